"""Single active consumers: the rules of a group, then the same over the protocol."""

import pytest
import trio
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streamd.broker.streams.groups import NO_PARTITION, Group
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import OffsetSpecification, Pair
from tests.support.server import FIRST, NEXT, OK, Harness, Peer

AS_SUBSCRIBED = OffsetSpecification(0)


class FakeMember:
    """A client that answers when the test says so."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.gets_chunks = False
        self.asked: list[bool] = []

    def tell_active(self, *, active: bool) -> None:
        if not active:
            self.gets_chunks = False
        self.asked.append(active)


class GroupMachine(RuleBasedStateMachine):
    """Joins, leaves and answers in any order."""

    partition = NO_PARTITION

    def __init__(self) -> None:
        super().__init__()
        self.group = Group(self.partition)
        self.members: list[FakeMember] = []
        self.count = 0

    @rule()
    def join(self) -> None:
        member = FakeMember(self.count)
        self.count += 1
        self.members.append(member)
        self.group.join(member)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members))
        self.members.remove(member)
        self.group.leave(member)

    @precondition(lambda self: any(m.asked for m in self.members))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from([m for m in self.members if m.asked]))
        active = member.asked.pop()  # of several questions the last one counts
        member.asked.clear()
        if not active:
            self.group.answered(member)
        elif self.group.active is member:
            member.gets_chunks = True

    @invariant()
    def at_most_one_gets_chunks(self) -> None:
        assert sum(member.gets_chunks for member in self.members) <= 1

    @invariant()
    def somebody_is_asked_or_active(self) -> None:
        """When no answer is awaited any more, the active member is the one that the rule names."""
        if not self.members or any(member.asked for member in self.members):
            return
        (active,) = (member for member in self.members if member.gets_chunks)
        if self.partition != NO_PARTITION:
            assert active is self.members[self.partition % len(self.members)]


class PartitionMachine(GroupMachine):
    partition = 5


TestGroup = GroupMachine.TestCase
TestPartition = PartitionMachine.TestCase
TestGroup.settings = TestPartition.settings = settings(stateful_step_count=30, deadline=None)


async def join(
    peer: Peer,
    stream: str = "s",
    subscription_id: int = 1,
    *,
    name: str = "app",
    super_stream: str = "",
    offset: OffsetSpecification = FIRST,
    credit: int = 10,
) -> None:
    extra = {"super_stream": super_stream} if super_stream else {}
    await peer.subscribe(
        stream, offset, credit, subscription_id, single_active_consumer="true", name=name, **extra
    )


async def asked(peer: Peer, subscription_id: int = 1, *, active: bool) -> c.ConsumerUpdate:
    update = await peer.expect(c.ConsumerUpdate)
    assert (update.subscription_id, update.active) == (subscription_id, active)
    return update


async def reply(
    peer: Peer, update: c.ConsumerUpdate, offset: OffsetSpecification = AS_SUBSCRIBED
) -> None:
    await peer.send(c.ConsumerUpdateResponse(update.correlation_id, OK, offset))


class TestOverTheProtocol:
    async def test_one_after_the_other(self, server: Harness, peer: Peer) -> None:
        await peer.begin("s")
        await peer.store([b"one"])
        first, second = await server.peer(), await server.peer()
        await join(first)
        update = await asked(first, active=True)
        await first.silence()  # no chunk before the answer
        await reply(first, update)
        assert await first.bodies(1) == [b"one"]
        await join(second)
        await second.silence()
        assert await first.code(c.Unsubscribe, 1) == OK
        update = await asked(second, active=True)
        await reply(second, update, OffsetSpecification(4, 1))  # where it had stored
        await peer.store([b"two"], 2)
        assert await second.bodies(1) == [b"two"]
        await second.vanish()
        await peer.store([b"three"], 3)
        await first.silence()

    async def test_other_names_and_plain_consumers_are_not_touched(
        self, server: Harness, peer: Peer
    ) -> None:
        await peer.begin("s")
        await peer.store([b"one"])
        first, other, plain = [await server.peer() for _ in range(3)]
        await join(first)
        await asked(first, active=True)
        await join(other, name="other")
        await reply(other, await asked(other, active=True))
        assert await other.bodies(1) == [b"one"]
        await plain.subscribe("s", FIRST)
        assert await plain.bodies(1) == [b"one"]

    async def test_partitions_spread(self, server: Harness, peer: Peer) -> None:
        """The worked example of the Java client's tests: A, B, C join; B leaves."""
        names = ("i-0", "i-1", "i-2")
        assert await peer.code(c.CreateSuperStream, "i", names, ("0", "1", "2")) == OK
        one, two, three = [await server.peer() for _ in range(3)]

        async def join_all(member: Peer) -> None:
            for number, name in enumerate(names):
                await join(member, name, number, super_stream="i")

        await join_all(one)
        for number in range(3):
            await reply(one, await asked(one, number, active=True))
        await join_all(two)
        step_down = await asked(one, 1, active=False)
        await two.silence()  # not before the other has stepped down
        await reply(one, step_down)
        await reply(two, await asked(two, 1, active=True))
        await join_all(three)
        await reply(one, await asked(one, 2, active=False))
        await reply(three, await asked(three, 2, active=True))
        for number in range(3):
            assert await two.code(c.Unsubscribe, number) == OK
        await reply(three, await asked(three, 1, active=True))
        await reply(three, await asked(three, 2, active=False))
        await reply(one, await asked(one, 2, active=True))

    async def test_credit_while_inactive_is_kept(self, peer: Peer) -> None:
        await peer.begin("s", stream_chunk_max_records="1")
        await peer.store([b"a", b"b"])
        await join(peer, credit=0)
        update = await asked(peer, active=True)
        await peer.send(c.Credit(1, 2))
        refusal = await peer.expect(c.CreditResponse)
        assert refusal == c.CreditResponse(ResponseCode.PRECONDITION_FAILED, 1)
        await reply(peer, update)
        assert await peer.bodies(2) == [b"a", b"b"]

    async def test_members_that_do_not_answer_are_closed(self, peer: Peer) -> None:
        await peer.create("s")
        await join(peer)
        await asked(peer, active=True)
        await trio.sleep(70)
        await peer.ended()

    async def test_answers_that_nobody_waits_for(self, peer: Peer) -> None:
        await peer.create("s")
        await peer.send(c.ConsumerUpdateResponse(77, OK, FIRST))
        await join(peer)
        update = await asked(peer, active=True)
        await reply(peer, update)
        await reply(peer, update)
        assert await peer.code(c.StreamStats, "s") == OK

    async def test_an_invalid_offset(self, peer: Peer) -> None:
        await peer.begin("s")
        await peer.store([b"a"])
        await join(peer)
        await reply(peer, await asked(peer, active=True), OffsetSpecification(9))
        assert await peer.bodies(1) == [b"a"]

    async def test_refusals(self, peer: Peer) -> None:
        assert await peer.code(c.CreateSuperStream, "i", ("i-0", "s"), ("0", "1")) == OK
        no = ResponseCode.PRECONDITION_FAILED
        pairs = (Pair("single-active-consumer", "true"),)
        assert await peer.code(c.Subscribe, 1, "s", FIRST, 1, pairs) == no
        await join(peer, super_stream="i")
        named = (*pairs, Pair("name", "app"))
        assert await peer.code(c.Subscribe, 2, "s", FIRST, 1, named) == no  # not as a partition
        assert await peer.code(c.Subscribe, 2, "s", NEXT, 1, ()) == OK

    async def test_a_deleted_stream_hands_over_to_nobody(self, server: Harness, peer: Peer) -> None:
        await peer.create("s")
        first, second = await server.peer(), await server.peer()
        await join(first)
        await asked(first, active=True)
        await join(second)
        assert await peer.code(c.Delete, "s") == OK
        await second.expect(c.MetadataUpdate)
        await first.expect(c.MetadataUpdate)
        await second.silence()

    async def test_who_waits_and_leaves_changes_nothing(self, server: Harness, peer: Peer) -> None:
        await peer.create("s")
        active, waiting, vanishing = [await server.peer() for _ in range(3)]
        for member in (active, waiting, vanishing):
            await join(member)
        await reply(active, await asked(active, active=True))
        assert await waiting.code(c.Unsubscribe, 1) == OK
        await vanishing.vanish()
        for member in (active, waiting):
            await member.silence()
        assert await active.code(c.Unsubscribe, 1) == OK
        await active.silence()

    async def test_a_stream_that_is_created_again_has_a_new_group(
        self, server: Harness, peer: Peer
    ) -> None:
        await peer.create("s")
        first, second = await server.peer(), await server.peer()
        await join(first)
        await asked(first, active=True)  # and does not answer any more
        assert await peer.code(c.Delete, "s") == OK
        await first.expect(c.MetadataUpdate)
        await peer.create("s")
        await join(second)
        await reply(second, await asked(second, active=True))
        await peer.declare("s")
        await peer.store([b"x"])
        assert await second.bodies(1) == [b"x"]
        await trio.sleep(100)
        await first.silence()  # an answer about what is gone is not missed

    async def test_a_partition_that_goes_away(self, server: Harness, peer: Peer) -> None:
        names = ("i-0", "i-1", "i-2")
        assert await peer.code(c.CreateSuperStream, "i", names, ("0", "1", "2")) == OK
        one, two = await server.peer(), await server.peer()
        for number, name in enumerate(names):
            await join(one, name, number, super_stream="i")
            await reply(one, await asked(one, number, active=True))
        for number, name in enumerate(names):
            await join(two, name, number, super_stream="i")
        await reply(one, await asked(one, 1, active=False))
        await reply(two, await asked(two, 1, active=True))
        assert await peer.code(c.Delete, "i-0") == OK
        for member in (one, two):
            assert (await member.expect(c.MetadataUpdate)).stream == "i-0"
        for number, name in enumerate(names[1:], 1):
            await peer.declare(name, number)
            await peer.store([name.encode()], publisher_id=number)
        # Each of the others has one that is active, whoever it is by now.
        found: dict[bytes, int] = {}
        for member in (one, two):
            with trio.move_on_after(1):
                while True:
                    match await member.next():
                        case c.ConsumerUpdate() as update:
                            await reply(member, update)
                        case c.Deliver() as chunk:
                            body = chunk.chunk[-3:]
                            found[body] = found.get(body, 0) + 1
        assert found == {b"i-1": 1, b"i-2": 1}
        await one.vanish()
        await reply(two, await asked(two, 2, active=True))

    async def test_turns_while_messages_are_published(self, server: Harness, peer: Peer) -> None:
        """Members come and go; each begins where the one before has stored that it was."""
        await peer.begin("s", stream_chunk_max_records="1")
        done: list[int] = []

        async def work(member: Peer, turns: int) -> None:
            """Consume `turns` messages in all, one credit at a time, then leave."""
            await join(member, credit=1)
            while turns:
                match await member.next():
                    case c.ConsumerUpdate() as update:
                        answer = await member.ask(c.QueryOffset, "app", "s")
                        stored = OffsetSpecification(4, answer.offset + 1)
                        await reply(member, update, stored if answer.code == OK else FIRST)
                    case c.Deliver() as chunk:
                        offset = int.from_bytes(chunk.chunk[24:32], "big")
                        done.append(offset)
                        await member.send(c.StoreOffset("app", "s", offset))
                        turns -= 1
                        await member.send(c.Credit(1, 1 if turns else 0))
            assert await member.code(c.Unsubscribe, 1) == OK

        async with trio.open_nursery() as nursery:
            for turns in (5, 17, 1, 30, 47):
                nursery.start_soon(work, await server.peer(), turns)
            for n in range(100):
                await peer.store([b"x"], n)
                await trio.sleep(0.05)
        assert done == list(range(100))

    async def test_two_members_on_one_connection(self, peer: Peer) -> None:
        await peer.create("s")
        await join(peer, subscription_id=1)
        await reply(peer, await asked(peer, 1, active=True))
        await join(peer, subscription_id=2)
        assert await peer.code(c.Unsubscribe, 1) == OK
        await asked(peer, 2, active=True)


@pytest.mark.parametrize("offset", [FIRST, NEXT])
async def test_describing_an_inactive_subscription(peer: Peer, offset: OffsetSpecification) -> None:
    await peer.create("s")
    await join(peer, offset=offset)
    await asked(peer, active=True)
    answer = await peer.ask(c.DescribeSubscription, 1, 0)
    assert answer.code == ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST

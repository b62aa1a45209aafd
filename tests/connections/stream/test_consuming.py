"""Consuming: where it begins, what credit allows, what filters leave out, where it ends."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from segments import CorruptError, Log
from segments.codec import decode_chunk_header
from segments.columns import sound_columns
from streamd.net import threads
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.codec import encode
from streamd.wire.stream.fields import CommandVersions, OffsetSpecification
from tests.connections.stream.test_publishing import bodies
from tests.support.server import FIRST, LAST, NEXT, OK, Harness, Peer, harness

NO_SUBSCRIPTION = ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST


def at(offset: int) -> OffsetSpecification:
    return OffsetSpecification(4, offset)


def since(timestamp_ms: int) -> OffsetSpecification:
    return OffsetSpecification(5, timestamp_ms)


@pytest.fixture
async def reader(peer: Peer) -> Peer:
    """A peer with stream s: 10 chunks of 10 messages, a second apart."""
    await peer.create("s")
    await peer.declare("s")
    for n in range(10):
        await peer.store(bodies(10, f"{n}-"), first_id=10 * n)
        await trio.sleep(1)
    return peer


class TestStart:
    @pytest.mark.parametrize(
        ("offset", "first"),
        [
            (FIRST, 0),
            (LAST, 90),
            (at(0), 0),
            (at(9), 0),
            (at(10), 10),
            (at(55), 50),
            (at(99), 90),
            (since(0), 0),
            (since(-(2**63)), 0),
        ],
    )
    async def test_begins_exactly_with_the_chunk(
        self, reader: Peer, offset: OffsetSpecification, first: int
    ) -> None:
        await reader.subscribe("s", offset)
        assert (await reader.chunk()).header.chunk_id == first

    @pytest.mark.parametrize("offset", [NEXT, at(100), at(10**6), since(2**62)])
    async def test_begins_with_what_comes(self, reader: Peer, offset: OffsetSpecification) -> None:
        await reader.subscribe("s", offset)
        await reader.silence()
        await reader.publish([b"new"])
        commands = [await reader.next(), await reader.next()]
        assert {type(command) for command in commands} == {c.PublishConfirm, c.Deliver}

    async def test_by_time(self, reader: Peer) -> None:
        times = []
        await reader.subscribe("s", credit=100)
        for _ in range(10):
            times.append((await reader.chunk()).header.timestamp_ms)
        assert times == [times[0] + 1000 * n for n in range(10)]
        for number, time in enumerate(times):
            for before in (0, 1, 999):
                await reader.subscribe("s", since(time - before), 1, subscription_id=2)
                assert (await reader.chunk()).header.chunk_id == 10 * number
                await reader.ask(c.Unsubscribe, 2)

    @pytest.mark.parametrize("offset", [FIRST, LAST, NEXT, at(0), at(5), since(0)])
    async def test_an_empty_stream(self, peer: Peer, offset: OffsetSpecification) -> None:
        await peer.create("s")
        await peer.subscribe("s", offset)
        await peer.declare("s")
        await peer.publish([b"first"])
        commands = [await peer.next(), await peer.next()]
        delivered = next(x for x in commands if isinstance(x, c.Deliver))
        assert delivered.chunk.endswith(b"first")

    @pytest.mark.parametrize("kind", [0, 6, 99])
    async def test_offset_types_that_do_not_exist(self, reader: Peer, kind: int) -> None:
        code = await reader.code(c.Subscribe, 1, "s", OffsetSpecification(kind), 10)
        assert code == ResponseCode.PRECONDITION_FAILED
        await reader.subscribe("s")


class TestPatience:
    """Credit alone wakes nobody while there is enough; see Listening.LATER."""

    @pytest.fixture
    async def writer(self, polled: Harness) -> Peer:
        writer = await polled.peer()
        await writer.create("s")
        await writer.declare("s")
        return writer

    @pytest.fixture
    async def polled(self, tmp_path: Path) -> AsyncIterator[Harness]:
        async with harness(tmp_path, is_polled=True) as server:
            yield server

    async def give_credit(self, server: Harness, reader: Peer) -> bool:
        """Whether the server has patience with the reader then."""
        assert server.poller is not None
        await reader.send(c.Credit(1, 1))
        await wait_all_tasks_blocked()
        return bool(server.poller.patient)

    async def test_until_credit_gets_short(self, polled: Harness, writer: Peer) -> None:
        reader = await polled.peer()
        await reader.subscribe("s", NEXT, credit=10)
        assert polled.poller is not None
        assert not polled.poller.patient
        assert await self.give_credit(polled, reader)
        for number in range(11):
            assert bool(polled.poller.patient) == (number < 10)  # one is left
            await writer.store([b"x"], first_id=number)
            assert await reader.bodies(1) == [b"x"]
        for number in range(6):
            assert await self.give_credit(polled, reader) == (number >= 4)

    async def test_not_when_anything_else_comes(self, polled: Harness, writer: Peer) -> None:
        await writer.store([b"x"])
        reader = await polled.peer()
        await reader.subscribe("s", credit=10)
        assert await reader.bodies(1) == [b"x"]
        assert await self.give_credit(polled, reader)
        assert polled.poller is not None
        for begun in (c.QueryOffset(9, "r", "s"), c.StoreOffset("r", "s", 1)):
            raw = encode(begun)
            for part in (raw, raw[:5]):
                await reader.stream.send_all(part)
                await wait_all_tasks_blocked()
                assert not polled.poller.patient
            await reader.stream.send_all(raw[5:])
            assert await self.give_credit(polled, reader)
        for _ in range(2):
            assert await reader.expect(c.QueryOffsetResponse)
        await reader.declare("s")
        assert not await self.give_credit(polled, reader)

    async def test_not_with_one_that_has_not_read_everything(
        self, polled: Harness, writer: Peer
    ) -> None:
        for number in range(8):
            await writer.store([b"x"], first_id=number)
        reader = await polled.peer()
        await reader.subscribe("s", NEXT, credit=10)
        await reader.subscribe("s", FIRST, credit=3, subscription_id=2)
        assert not await self.give_credit(polled, reader)

    async def test_not_with_one_that_is_about_to_be_active(
        self, polled: Harness, writer: Peer
    ) -> None:
        await writer.store([b"x"])
        reader = await polled.peer()
        await reader.subscribe("s", NEXT, credit=10, name="g", single_active_consumer="true")
        await reader.expect(c.ConsumerUpdate)
        assert not await self.give_credit(polled, reader)


class TestCredit:
    async def test_one_chunk_for_one_credit(self, reader: Peer) -> None:
        await reader.subscribe("s", credit=3)
        assert len(await reader.bodies(30)) == 30
        await reader.silence()
        await reader.send(c.Credit(1, 2), c.Credit(1, 1))
        assert len(await reader.bodies(30)) == 30
        await reader.silence()

    async def test_none_at_first(self, reader: Peer) -> None:
        await reader.subscribe("s", credit=0)
        await reader.silence(3600)
        await reader.send(c.Credit(1, 1))
        assert (await reader.chunk()).header.chunk_id == 0
        await reader.silence()

    async def test_kept_for_what_is_to_come(self, reader: Peer) -> None:
        await reader.subscribe("s", NEXT, credit=2)
        for n in range(3):
            await reader.publish([b"%d" % n], first_id=n)
            await trio.sleep(1)
        kinds = [type(await reader.next()) for _ in range(5)]
        assert kinds.count(c.Deliver) == 2
        assert kinds.count(c.PublishConfirm) == 3
        await reader.silence()

    async def test_skipped_chunks_cost_nothing(self, peer: Peer) -> None:
        await peer.create("s")
        await peer.declare("s")
        for n in range(100):
            await peer.store([b"x"], first_id=n, values=[b"rare" if n == 70 else b"common"])
        await peer.subscribe("s", credit=1, filter__0="rare")
        assert (await peer.chunk()).header.chunk_id == 70
        await peer.silence()

    async def test_for_a_subscription_that_does_not_exist(self, peer: Peer) -> None:
        await peer.send(c.Credit(7, 1))
        assert await peer.next() == c.CreditResponse(NO_SUBSCRIPTION, 7)
        await peer.create("s")

    async def test_good_credit_has_no_answer(self, reader: Peer) -> None:
        await reader.subscribe("s", NEXT)
        await reader.send(c.Credit(1, 0), c.Credit(1, 65535))
        await reader.silence()


class TestFarBehind:
    """Whose credit does not reach to the end gets small chunks together; see segments/runs.py."""

    @pytest.fixture
    async def small(self, peer: Peer) -> Peer:
        """A peer with stream s: 30 chunks of 200 messages, as they have filter values."""
        await peer.create("s")
        await peer.declare("s")
        for n in range(30):
            await peer.store(bodies(200, f"{n}-"), first_id=200 * n, values=[b"v"] * 200)
        return peer

    @pytest.mark.parametrize("filters", [{}, {"filter__1": "v"}])
    async def test_many_small_chunks_for_one_credit(
        self, small: Peer, filters: dict[str, str]
    ) -> None:
        await small.subscribe("s", credit=1, **filters)
        first = await small.chunk()
        await small.silence()
        assert first.header.chunk_id == 0
        assert len(first.bodies) == first.header.num_records == 4_000
        await small.send(c.Credit(1, 20))
        rest = [await small.chunk() for _ in range(10)]
        assert {len(chunk.bodies) for chunk in rest} == {200}  # it is not far behind any more
        found = first.bodies + [body for chunk in rest for body in chunk.bodies]
        assert found == [body for n in range(30) for body in bodies(200, f"{n}-")]

    async def test_each_by_itself_where_credit_is_enough(self, small: Peer) -> None:
        await small.subscribe("s", credit=30)
        assert [len((await small.chunk()).bodies) for _ in range(30)] == [200] * 30

    async def test_each_by_itself_where_they_come_as_stored(self, small: Peer) -> None:
        await small.subscribe("s", credit=10, stored_chunks="true")
        assert [len((await small.chunk()).bodies) for _ in range(10)] == [200] * 10
        await small.silence()

    @pytest.mark.parametrize("num_read", range(0, 50_000, 7_000))
    async def test_what_has_begun_arrives_whole_though_nobody_wants_it(
        self,
        server: Harness,
        small: Peer,  # noqa: ARG002
        num_read: int,
    ) -> None:
        slow = server.connect(reads_slowly=True)
        await slow.log_in()
        await slow.subscribe("s", credit=2)
        if num_read:
            slow.connection.receive_data(bytes(await slow.stream.receive_some(num_read)))
        await slow.send(c.Unsubscribe(77, 1))
        found: list[bytes] = []
        while not isinstance(command := await slow.next(), c.UnsubscribeResponse):
            slow.unasked.insert(0, command)
            found += (await slow.chunk()).bodies
        everything = [body for n in range(30) for body in bodies(200, f"{n}-")]
        assert found == everything[: len(found)]
        await slow.silence()


class TestFilters:
    @pytest.fixture
    async def mixed(self, peer: Peer) -> Peer:
        """Chunks: apple, pear, apple and none, none, pear and none."""
        await peer.create("s", stream_filter_size_bytes="255")
        await peer.declare("s")
        chunks = [[b"apple"], [b"pear"], [b"apple", None], [None], [b"pear", b""]]
        for n, values in enumerate(chunks):
            await peer.store([b"%d" % n] * len(values), first_id=10 * n, values=values)
        return peer

    @pytest.mark.parametrize(
        ("properties", "expected"),
        [
            ({}, [0, 1, 2, 3, 4]),
            ({"filter__0": "apple"}, [0, 2]),
            ({"filter__0": "apple", "match_unfiltered": "false"}, [0, 2]),
            ({"filter__0": "apple", "match_unfiltered": "true"}, [0, 2, 3, 4]),
            ({"filter__0": "apple", "match_unfiltered": "TRUE"}, [0, 2]),
            ({"filter__0": "apple", "filter__1": "pear"}, [0, 1, 2, 4]),
            ({"filter__anything": "pear"}, [1, 4]),
            ({"filter__0": "grape"}, []),
            ({"filter__0": "grape", "match_unfiltered": "true"}, [2, 3, 4]),
            ({"match_unfiltered": "true"}, [0, 1, 2, 3, 4]),  # no filter at all
            ({"key1": "value1", "identifier": "tag"}, [0, 1, 2, 3, 4]),
        ],
    )
    async def test_whole_chunks(
        self, mixed: Peer, properties: dict[str, str], expected: list[int]
    ) -> None:
        await mixed.subscribe("s", **properties)
        for number in expected:
            chunk = await mixed.chunk()
            assert set(chunk.bodies) == {b"%d" % number}
        await mixed.silence()

    async def test_publish_version_1_has_no_filter_values(self, mixed: Peer) -> None:
        await mixed.subscribe("s", NEXT, filter__0="apple")
        await mixed.subscribe(
            "s", NEXT, subscription_id=2, filter__0="apple", match_unfiltered="true"
        )
        await mixed.publish([b"plain"], first_id=100)
        kinds = [await mixed.next(), await mixed.next()]
        assert [x.subscription_id for x in kinds if isinstance(x, c.Deliver)] == [2]
        await mixed.silence()

    async def test_an_empty_filter_value_is_refused(self, mixed: Peer) -> None:
        properties = (("filter.0", ""),)
        code = await mixed.code(c.Subscribe, 1, "s", FIRST, 10, properties)
        assert code == ResponseCode.PRECONDITION_FAILED

    async def test_values_are_compared_as_bytes_of_utf8(self, peer: Peer) -> None:
        await peer.create("s")
        await peer.declare("s")
        for n, value in enumerate(["Orléans", "Orleans"]):
            await peer.store([value.encode()], first_id=n, values=[value.encode()])
        await peer.subscribe("s", filter__0="Orléans")
        assert (await peer.chunk()).bodies == ["Orléans".encode()]
        await peer.silence()

    async def test_several_filtered_consumers_on_a_live_stream(self, peer: Peer) -> None:
        await peer.create("s", stream_filter_size_bytes="255")
        await peer.declare("s")
        for n in range(20):
            await peer.subscribe("s", NEXT, subscription_id=n, filter__0=f"v{n}")
        for n in range(20):
            await peer.publish([b"%d" % n], first_id=n, values=[b"v%d" % n])
            commands = [await peer.next(), await peer.next()]
            assert [x.subscription_id for x in commands if isinstance(x, c.Deliver)] == [n]
        await peer.silence()


class TestSubscriptions:
    async def test_ids(self, reader: Peer) -> None:
        subscribe = c.Subscribe
        assert (
            await reader.code(subscribe, 1, "none", FIRST, 1) == ResponseCode.STREAM_DOES_NOT_EXIST
        )
        assert await reader.code(subscribe, 1, "s", NEXT, 1) == OK
        code = await reader.code(subscribe, 1, "s", NEXT, 1)
        assert code == ResponseCode.SUBSCRIPTION_ID_EXISTS
        assert await reader.code(c.Unsubscribe, 1) == OK
        assert await reader.code(c.Unsubscribe, 1) == NO_SUBSCRIPTION
        assert await reader.code(subscribe, 1, "s", NEXT, 1) == OK
        name = (("name", "n" * 256),)
        code = await reader.code(subscribe, 2, "s", NEXT, 1, name)
        assert code == ResponseCode.PRECONDITION_FAILED

    async def test_as_many_as_there_are_ids(self, reader: Peer) -> None:
        for number in range(256):
            await reader.subscribe("s", NEXT, subscription_id=number)
        code = await reader.code(c.Subscribe, 7, "s", NEXT, 1)
        assert code == ResponseCode.PRECONDITION_FAILED

    async def test_nothing_comes_after_unsubscribe(self, reader: Peer) -> None:
        await reader.subscribe("s", credit=5)
        await reader.send(c.Unsubscribe(1, 1))
        while not isinstance(command := await reader.next(), c.UnsubscribeResponse):
            assert isinstance(command, c.Deliver)
        await reader.publish([b"x"])
        await reader.expect(c.PublishConfirm)
        await reader.send(c.Credit(1, 1))  # late, as clients do
        assert await reader.next() == c.CreditResponse(NO_SUBSCRIPTION, 1)
        await reader.silence()

    async def test_the_answer_comes_before_the_first_chunk(self, reader: Peer) -> None:
        await reader.send(c.Subscribe(1, 1, "s", FIRST, 10))
        assert await reader.next() == c.SubscribeResponse(1, OK)
        await reader.expect(c.Deliver)

    async def test_several_take_turns(self, reader: Peer) -> None:
        for number in range(3):
            await reader.subscribe("s", credit=100, subscription_id=number)
        seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
        for _ in range(30):
            chunk = await reader.chunk()
            seen[chunk.subscription_id].append(chunk.header.chunk_id)
        assert set(map(tuple, seen.values())) == {tuple(range(0, 100, 10))}

    async def test_a_large_stream_arrives_whole(self, peer: Peer) -> None:
        await peer.create("s", stream_max_segment_size_bytes="500000")
        await peer.declare("s")
        sent = [b"%06d" % n + b"x" * 1000 for n in range(3000)]
        for n in range(0, 3000, 500):
            await peer.store(sent[n : n + 500], first_id=n)
        await peer.subscribe("s", credit=1000)
        assert await peer.bodies(3000) == sent

    async def test_chunks_larger_than_what_is_read_ahead(self, peer: Peer) -> None:
        await peer.create("s")
        await peer.declare("s")
        sent = [b"small", b"x" * 300_000, b"small", b"y" * 900_000, b"z" * 65_500]
        for n, body in enumerate(sent):
            await peer.store([body], first_id=n)
        await peer.subscribe("s", credit=1000)
        assert await peer.bodies(5) == sent


class TestStoredChunks:
    """Our extension: chunks come as they stand in the file."""

    @pytest.mark.parametrize("size", [10, 3_000, 100_000])
    async def test_all_of_the_file(self, server: Harness, peer: Peer, size: int) -> None:
        await peer.create("s")
        await peer.declare("s")
        for first in (0, 4, 8):  # small chunks, and such as go out by sendfile
            raws = [b"%d" % n + b"x" * size for n in range(4)]
            await peer.publish(raws, values=[b"a", b"b", None, b"a"], first_id=first)
            await peer.confirmed(4)
        await peer.store([b"y" * size], first_id=12)
        await peer.subscribe("s", stored_chunks="true")
        found = []
        for _ in range(4):
            command = await peer.next()
            assert isinstance(command, c.DeliverStored)
            assert command.subscription_id == 1
            found.append(command.chunk)
        (log,) = server.data.glob("**/*.segment")
        assert b"".join(found) == log.read_bytes()[8:]
        header = decode_chunk_header(found[0])
        columns = sound_columns(
            found[0][: header.data_start], found[0][-header.trailer_size :], header
        )
        assert columns is not None
        assert columns.values_of(None) == [b"a", b"b", b"", b"a"]

    async def test_only_where_they_are_asked_for(self, reader: Peer) -> None:
        await reader.subscribe("s", credit=1, stored_chunks="yes")
        await reader.subscribe("s", credit=1, subscription_id=2, stored_chunks="true")
        kinds = {type(await reader.next()) for _ in range(2)}
        assert kinds == {c.Deliver, c.DeliverStored}


class TestCommittedChunk:
    async def test_only_for_clients_that_ask(self, reader: Peer) -> None:
        await reader.subscribe("s", credit=1)
        assert (await reader.chunk()).committed is None
        versions = (CommandVersions(8, 1, 2), CommandVersions(2, 1, 2))
        answer = await reader.ask(c.ExchangeCommandVersions, versions)
        assert answer.versions[1] == (2, 1, 2)  # one client looks at this place
        assert (8, 1, 2) not in answer.versions
        await reader.send(c.Credit(1, 1))
        assert (await reader.chunk()).committed == 90
        await reader.ask(c.ExchangeCommandVersions, (CommandVersions(8, 1, 1),))
        await reader.send(c.Credit(1, 1))
        assert (await reader.chunk()).committed is None


class TestProgress:
    """Our extension: a consumer learns that its filter has skipped all there is."""

    async def test_told_when_everything_before_an_offset_is_done(self, peer: Peer) -> None:
        await peer.create("s")
        await peer.declare("s")
        for n in range(20):
            await peer.store([b"x"] * 10, first_id=10 * n, values=[b"a" if n == 3 else b"b"] * 10)
        await peer.subscribe("s", credit=10, filter__0="a")
        await peer.send(c.DescribeSubscription(7, 1, 200))
        assert (await peer.chunk()).header.chunk_id == 30
        answer = await peer.expect(c.DescribeSubscriptionResponse)
        figures = dict(answer.statistics)
        assert (answer.correlation_id, answer.code) == (7, OK)
        assert (figures["next_offset"], figures["chunks"], figures["messages"]) == (200, 1, 10)
        assert (figures["skipped_chunks"], figures["lost_messages"]) == (19, 0)
        assert figures["skipped_bytes"] > 0

    async def test_not_before_what_it_counts_was_sent(self, reader: Peer) -> None:
        await reader.subscribe("s", credit=3)
        await reader.send(c.DescribeSubscription(1, 1, 100), c.DescribeSubscription(2, 1, 0))
        found = [await reader.next() for _ in range(4)]
        assert [type(x) for x in found].count(c.Deliver) == 3
        await reader.silence()  # credit is used up before offset 100
        await reader.send(c.Credit(1, 100))
        for _ in range(7):
            await reader.expect(c.Deliver)
        assert (await reader.expect(c.DescribeSubscriptionResponse)).correlation_id == 1

    async def test_of_what_is_to_come(self, reader: Peer) -> None:
        await reader.subscribe("s", NEXT, filter__0="nothing")
        await reader.send(c.DescribeSubscription(1, 1, 101))
        await reader.silence()
        await reader.publish([b"x"])
        await reader.expect(c.PublishConfirm)
        figures = dict((await reader.expect(c.DescribeSubscriptionResponse)).statistics)
        assert figures["next_offset"] == 101

    async def test_of_what_others_publish(self, server: Harness, reader: Peer) -> None:
        """Nothing else is to be sent then, and the message is skipped at once."""
        other = await server.peer()
        await other.declare("s")
        await reader.subscribe("s", NEXT, filter__0="a")
        for number in range(5):  # the first one has the segment's index made
            await reader.send(c.DescribeSubscription(number, 1, 101 + number))
            await reader.silence()
            await other.store([b"x"], number, values=[b"another"])
            with trio.fail_after(1):
                answer = await reader.expect(c.DescribeSubscriptionResponse)
            assert answer.correlation_id == number
            assert dict(answer.statistics)["chunks"] == 0

    async def test_of_what_is_to_come_asked_for_before_it_waits(self, reader: Peer) -> None:
        await reader.subscribe("s", credit=1, filter__0="nothing", match_unfiltered="true")
        await reader.chunk()
        await reader.send(c.DescribeSubscription(1, 1, 101))
        await reader.send(c.Credit(1, 100))
        for _ in range(9):
            await reader.chunk()
        await reader.silence()  # at the end by now
        await reader.store([b"x"], values=[b"another"])
        assert (await reader.expect(c.DescribeSubscriptionResponse)).correlation_id == 1

    async def test_when_the_subscription_ends(self, reader: Peer) -> None:
        assert await reader.code(c.DescribeSubscription, 1, 0) == NO_SUBSCRIPTION
        await reader.subscribe("s", NEXT)
        await reader.send(c.DescribeSubscription(8, 1, 500), c.Unsubscribe(9, 1))
        answer = await reader.expect(c.DescribeSubscriptionResponse)
        assert (answer.correlation_id, answer.code) == (8, NO_SUBSCRIPTION)
        await reader.expect(c.UnsubscribeResponse)

    async def test_when_the_server_ends(self, server: Harness, reader: Peer) -> None:
        """No answer: a refusal would be the end, so clients ask again on the next connection."""
        await reader.subscribe("s", NEXT)
        await reader.send(c.DescribeSubscription(8, 1, 500))
        await reader.silence()
        server.start(server.server.drain)
        await reader.ended()

    async def test_not_without_limit(self, reader: Peer) -> None:
        await reader.subscribe("s", NEXT)
        await reader.send(*(c.DescribeSubscription(n, 1, 500) for n in range(20)))
        refused = [await reader.expect(c.DescribeSubscriptionResponse) for _ in range(4)]
        assert {answer.code for answer in refused} == {ResponseCode.PRECONDITION_FAILED}


class TestStoredOffsets:
    async def test_stored_and_asked_for(self, server: Harness, reader: Peer) -> None:
        query = c.QueryOffset
        answer = await reader.ask(query, "app", "s")
        assert (answer.code, answer.offset) == (ResponseCode.NO_OFFSET, 0)
        for offset in (42, 7):  # it may go backwards
            await reader.send(c.StoreOffset("app", "s", offset))
            answer = await reader.ask(query, "app", "s")
            assert (answer.code, answer.offset) == (OK, offset)
        other = await server.peer()
        assert (await other.ask(query, "app", "s")).offset == 7
        assert await other.code(query, "app", "none") == ResponseCode.STREAM_DOES_NOT_EXIST
        assert await other.code(query, "a" * 256, "s") == ResponseCode.PRECONDITION_FAILED

    async def test_what_cannot_be_stored_is_ignored(self, reader: Peer) -> None:
        await reader.send(
            c.StoreOffset("a" * 256, "s", 1), c.StoreOffset("", "s", 1), c.StoreOffset("a", "?", 1)
        )
        assert await reader.code(c.QueryOffset, "", "s") == ResponseCode.NO_OFFSET

    async def test_whoever_asks_later_gets_it_though_the_log_was_closed(
        self, server: Harness, reader: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It takes a while to open it, and the one that has stored the offset is gone by then."""
        stream, in_thread = server.host.find("s"), threads.in_thread

        async def slowly(work: Callable[..., Any], *arguments: object) -> Any:
            await trio.sleep(1)
            return await in_thread(work, *arguments)

        monkeypatch.setattr(threads, "in_thread", slowly)
        for number in range(20):
            await stream.life.close()
            assert not stream.is_open
            other = await server.peer()
            await other.send(c.StoreOffset("app", "s", number))
            await wait_all_tasks_blocked()
            await other.vanish()
            assert (await reader.ask(c.QueryOffset, "app", "s")).offset == number

    async def test_an_offset_of_a_stream_that_cannot_be_opened_is_ignored(
        self, server: Harness, reader: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stream = server.host.find("s")
        await stream.life.close()
        with monkeypatch.context() as patch:
            patch.setattr(Log, "open", Mock(side_effect=CorruptError("s/0.segment", 0, "broken")))
            await reader.send(c.StoreOffset("app", "s", 7))
            assert await reader.code(c.QueryOffset, "app", "s") != OK
        await trio.sleep(100)
        assert await reader.code(c.QueryOffset, "app", "s") == ResponseCode.NO_OFFSET

    async def test_a_burst(self, server: Harness, reader: Peer) -> None:
        await reader.send(*(c.StoreOffset("app", "s", n) for n in range(50_000)))
        assert (await reader.ask(c.QueryOffset, "app", "s")).offset == 49_999
        journal = server.host.find("s").log.journal
        assert journal._size < 10_000  # not a record per frame

    async def test_they_take_no_offsets_of_the_stream(self, reader: Peer) -> None:
        await reader.send(c.StoreOffset("app", "s", 1))
        await reader.ask(c.QueryOffset, "app", "s")
        await reader.subscribe("s", NEXT)
        await reader.publish([b"x"])
        commands = [await reader.next(), await reader.next()]
        delivered = next(x for x in commands if isinstance(x, c.Deliver))
        assert int.from_bytes(delivered.chunk[24:32], "big") == 100


class TestFigures:
    async def test_statistics(self, reader: Peer) -> None:
        statistics = dict((await reader.ask(c.StreamStats, "s")).statistics)
        assert statistics == {
            "first_chunk_id": 0,
            "last_chunk_id": 90,
            "committed_chunk_id": 90,
            "committed_offset": 99,
        }
        await reader.create("empty")
        empty = (await reader.ask(c.StreamStats, "empty")).statistics
        assert [value for _, value in empty] == [-1, -1, -1, -1]
        answer = await reader.ask(c.StreamStats, "none")
        assert (answer.code, answer.statistics) == (ResponseCode.STREAM_DOES_NOT_EXIST, ())

    @pytest.mark.parametrize(
        ("offset", "found"),
        [(FIRST, 0), (LAST, 90), (NEXT, 100), (at(55), 50), (at(500), 100), (since(1 << 60), 100)],
    )
    async def test_resolving_offsets(
        self, reader: Peer, offset: OffsetSpecification, found: int
    ) -> None:
        answer = await reader.ask(c.ResolveOffsetSpec, "s", offset)
        assert (answer.code, answer.offset) == (OK, (4, found))

    async def test_resolving_what_cannot_be(self, reader: Peer) -> None:
        answer = await reader.ask(c.ResolveOffsetSpec, "none", FIRST)
        assert (answer.code, answer.offset) == (ResponseCode.STREAM_DOES_NOT_EXIST, (4, 0))
        answer = await reader.ask(c.ResolveOffsetSpec, "s", OffsetSpecification(9))
        assert answer.code == ResponseCode.PRECONDITION_FAILED

    async def test_descriptions(self, reader: Peer) -> None:
        await reader.create("t", max_age="120s", stream_filter_history="false")
        answer = await reader.ask(c.DescribeStreams, ())
        assert [stream.stream for stream in answer.streams] == ["s", "t"]
        s, t = answer.streams
        figures = dict(s.statistics)
        assert (figures["messages"], figures["chunks"], figures["segments"]) == (100, 10, 1)
        assert dict(t.arguments) == {"max-age": "120s", "stream-filter-history": "false"}
        answer = await reader.ask(c.DescribeStreams, ("none", "s"))
        assert [stream.code for stream in answer.streams] == [2, 1]

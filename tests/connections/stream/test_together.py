"""Several clients of one stream: ids used again, streams replaced, segments dropped meanwhile."""

from pathlib import Path

import pytest
import trio

from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import OffsetSpecification
from streamd.wire.stream.publish import encode_sub_batch
from tests.connections.stream.test_publishing import bodies
from tests.support.server import FIRST, NEXT, OK, Chunk, Harness, Peer, frame, harness

NO_STREAM, GONE = ResponseCode.STREAM_DOES_NOT_EXIST, ResponseCode.STREAM_NOT_AVAILABLE
NO_PUBLISHER = ResponseCode.PUBLISHER_DOES_NOT_EXIST
NO_SUBSCRIPTION = ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
SMALL = {"stream_max_segment_size_bytes": "5000"}


async def committed(peer: Peer, name: str = "s") -> int:
    return int(dict((await peer.ask(c.StreamStats, name)).statistics)["committed_offset"])


async def first_offset(peer: Peer, name: str = "s") -> int:
    return int(dict((await peer.ask(c.StreamStats, name)).statistics)["first_chunk_id"])


class TestIdsUsedAgain:
    async def test_confirms_of_the_publisher_before_do_not_arrive(self, tmp_path: Path) -> None:
        async with harness(tmp_path, flush="always") as server:
            peer = await server.peer()
            await peer.create("s")
            await peer.create("t")
            await peer.declare("s")
            await peer.send(
                frame([b"old"] * 5, 100),
                c.DeletePublisher(1, 1),
                c.DeclarePublisher(2, 1, "", "t"),
                frame([b"new"], 7),
            )
            assert await peer.next() == c.DeletePublisherResponse(1, OK)
            assert await peer.next() == c.DeclarePublisherResponse(2, OK)
            assert await peer.next() == c.PublishConfirm(1, (7,))
            await peer.silence()
            assert (await committed(peer), await committed(peer, "t")) == (4, 0)

    async def test_a_publisher_deleted_while_it_publishes(self, peer: Peer) -> None:
        await peer.create("s")
        await peer.declare("s", 1, "p")
        await peer.declare("s", 2)
        await peer.send(
            *(frame(bodies(10), 10 * n) for n in range(20)),
            c.DeletePublisher(1, 1),
            *(frame(bodies(10), 10 * n) for n in range(20, 40)),
        )
        confirmed, refused = set[int](), set[int]()
        while len(refused) < 200:
            match await peer.next():
                case c.PublishConfirm(1, ids):
                    confirmed |= set(ids)
                case c.PublishError(1, faults):
                    assert {code for _, code in faults} == {NO_PUBLISHER}
                    refused |= {number for number, _ in faults}
                case answer:
                    assert answer == c.DeletePublisherResponse(1, OK)
        assert confirmed <= set(range(200))
        assert refused == set(range(200, 400))
        await peer.store([b"of the other"], 1, publisher_id=2)
        assert await committed(peer) == 200
        assert (await peer.ask(c.QueryPublisherSequence, "p", "s")).sequence == 199

    async def test_chunks_of_the_subscription_before_do_not_arrive(self, peer: Peer) -> None:
        for publisher, name in enumerate(("s", "t")):
            await peer.create(name)
            await peer.declare(name, publisher)
            for n in range(20):
                await peer.store([name.encode()] * 10, 10 * n, publisher)
        await peer.subscribe("s", credit=5)
        await peer.send(c.Unsubscribe(1, 1), c.Subscribe(2, 1, "t", FIRST, 5), c.Credit(1, 2))
        while (command := await peer.next()) != c.UnsubscribeResponse(1, OK):
            assert isinstance(command, c.Deliver)
        assert await peer.next() == c.SubscribeResponse(2, OK)
        for n in range(7):
            chunk = await peer.chunk()
            assert (chunk.header.chunk_id, set(chunk.bodies)) == (10 * n, {b"t"})
        await peer.silence()

    async def test_credit_of_the_subscription_before_is_gone(self, peer: Peer) -> None:
        await peer.create("s")
        await peer.declare("s")
        for n in range(5):
            await peer.store([b"x"], n)
        await peer.subscribe("s", NEXT, credit=100)
        assert await peer.code(c.Unsubscribe, 1) == OK
        await peer.subscribe("s", FIRST, credit=1)
        assert (await peer.chunk()).header.chunk_id == 0
        await peer.silence()

    async def test_one_of_two_on_the_same_stream(self, peer: Peer) -> None:
        await peer.create("s")
        await peer.declare("s")
        for number in (1, 2):
            await peer.subscribe("s", NEXT, subscription_id=number)
        assert await peer.code(c.Unsubscribe, 1) == OK
        await peer.publish([b"x"])
        commands = [await peer.next(), await peer.next()]
        assert [x.subscription_id for x in commands if isinstance(x, c.Deliver)] == [2]
        await peer.silence()


class TestReplaced:
    async def test_a_stream_deleted_while_several_publish(self, server: Harness) -> None:
        """Each message is confirmed or refused; none is confirmed to the stream that follows."""
        owner = await server.peer()
        await owner.create("s")
        writers = [await server.peer() for _ in range(4)]
        settled: list[tuple[set[int], set[int]]] = []

        async def write(peer: Peer) -> None:
            await peer.declare("s")
            for n in range(50):
                await peer.publish(bodies(4), 4 * n)
                await trio.sleep(0.01)
            confirmed, refused, updates = set[int](), set[int](), 0
            while len(confirmed) + len(refused) < 200:
                match await peer.next():
                    case c.PublishConfirm(1, ids):
                        confirmed |= set(ids)
                    case c.PublishError(1, faults):
                        assert {code for _, code in faults} <= {NO_PUBLISHER, GONE}
                        refused |= {number for number, _ in faults}
                    case update:
                        assert update == c.MetadataUpdate(GONE, "s")
                        updates += 1
            assert updates == 1
            settled.append((confirmed, refused))

        async with trio.open_nursery() as nursery:
            for writer in writers:
                nursery.start_soon(write, writer)
            await trio.sleep(0.25)
            assert await owner.code(c.Delete, "s") == OK
            await owner.create("s")
        for confirmed, refused in settled:
            assert confirmed
            assert refused
            assert max(confirmed) < min(refused)
        assert await committed(owner) == -1
        for writer in writers:
            await writer.declare("s")  # the id is free, the stream another
            await writer.store([b"new"])
        assert await committed(owner) == 3

    async def test_offsets_and_sequences_do_not_come_back(self, peer: Peer) -> None:
        for _ in range(3):
            await peer.create("s")
            assert (await peer.ask(c.QueryPublisherSequence, "p", "s")).sequence == 0
            assert await peer.code(c.QueryOffset, "app", "s") == ResponseCode.NO_OFFSET
            await peer.declare("s", reference="p")
            await peer.store(bodies(3), 5)
            await peer.send(c.StoreOffset("app", "s", 2), c.Delete(1, "s"))
            assert await peer.next() == c.DeleteResponse(1, OK)
            assert await peer.next() == c.MetadataUpdate(GONE, "s")

    async def test_everybody_creates_and_deletes_one_name(self, server: Harness) -> None:
        codes: list[int] = []

        async def come_and_go(peer: Peer) -> None:
            for _ in range(20):
                codes.append(await peer.code(c.Create, "s"))
                codes.append(await peer.code(c.DeclarePublisher, 1, "", "s"))
                codes.append(await peer.code(c.Delete, "s"))
                codes.append(await peer.code(c.DeletePublisher, 1))

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(come_and_go, await server.peer())
        assert set(codes) <= {OK, ResponseCode.STREAM_EXISTS, NO_STREAM, NO_PUBLISHER}
        peer = await server.peer()
        assert await peer.code(c.Delete, "s") == NO_STREAM
        await peer.create("s")
        await peer.declare("s")
        await peer.store([b"x"])
        assert await committed(peer) == 0

    async def test_who_has_left_hears_nothing(self, server: Harness, peer: Peer) -> None:
        user = await server.peer()
        await peer.create("s")
        await user.declare("s", 1)
        await user.declare("s", 2)
        await user.subscribe("s")
        for number in (1, 2):
            assert await user.code(c.DeletePublisher, number) == OK
        assert await user.code(c.Unsubscribe, 1) == OK
        assert await peer.code(c.Delete, "s") == OK
        await user.silence()


class TestRetentionWhileReading:
    async def fill(self, peer: Peer, count: int, start: int = 0) -> None:
        for n in range(start, start + count):
            await peer.store([b"%d" % n] + [b"x" * 100] * 9, 10 * n)

    async def read(self, peer: Peer, until: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        while not chunks or chunks[-1].header.next_offset < until:
            chunks.append(await peer.chunk())
            await peer.send(c.Credit(1, 1))
        return chunks

    @pytest.mark.parametrize("limit", [{"max_length_bytes": "20000"}, {"max_age": "10s"}])
    async def test_who_keeps_up_misses_nothing(
        self, server: Harness, limit: dict[str, str]
    ) -> None:
        writer, quick, slow = [await server.peer() for _ in range(3)]
        await writer.create("s", **SMALL, **limit)
        await writer.declare("s")
        found: list[int] = []

        async def follow() -> None:
            found.extend(x.header.chunk_id for x in await self.read(quick, 2000))

        await quick.subscribe("s", credit=2)
        await slow.subscribe("s", credit=2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            for n in range(200):
                await self.fill(writer, 1, n)
                await trio.sleep(0.5)
        assert found == list(range(0, 2000, 10))
        oldest = await first_offset(writer)
        assert oldest > 1000
        await slow.send(c.Credit(1, 8))
        late = [x.header.chunk_id for x in await self.read(slow, 2000)]
        assert late == sorted(late)
        assert set(range(oldest, 2000, 10)) <= set(late)
        assert late[:2] == [0, 10]
        assert len(late) < 200

    async def test_a_stored_offset_that_is_gone_begins_with_the_oldest(self, peer: Peer) -> None:
        await peer.create("s", **SMALL, max_length_bytes="20000")
        await peer.declare("s")
        await self.fill(peer, 5)
        await peer.send(c.StoreOffset("app", "s", 20), c.StoreOffset("ahead", "s", 990))
        await self.fill(peer, 95, 5)
        await trio.sleep(1)
        oldest = await first_offset(peer)
        assert oldest > 20
        for number, offset in enumerate((0, 20, oldest - 1, oldest)):
            await peer.subscribe("s", OffsetSpecification(4, offset), 1, number)
            assert (await peer.chunk()).header.chunk_id == oldest
        assert (await peer.ask(c.QueryOffset, "ahead", "s")).offset == 990
        await peer.subscribe("s", OffsetSpecification(4, 990), 1, 9)
        assert (await peer.chunk()).header.chunk_id == 990

    async def test_a_time_that_is_gone_begins_with_the_oldest(self, peer: Peer) -> None:
        await peer.create("s", **SMALL, max_age="30s")
        await peer.declare("s")
        await self.fill(peer, 10)
        await trio.sleep(20)
        await self.fill(peer, 10, 10)
        await trio.sleep(80)
        oldest = await first_offset(peer)
        assert oldest > 0
        await peer.subscribe("s", OffsetSpecification(5, 1_700_000_000_000), 1)
        assert (await peer.chunk()).header.chunk_id == oldest

    async def test_what_was_stored_once_stays_a_duplicate(self, peer: Peer) -> None:
        """Sequences outlive the segments with the messages that they are of."""
        await peer.create("s", **SMALL, max_length_bytes="1")
        await peer.declare("s", 1, "p")
        await peer.declare("s", 2)
        packed = encode_sub_batch(8, 3, 0, 30, b"x" * 30)
        await peer.send(c.Publish(1, 1, packed))
        assert await peer.confirmed(1) == [8]
        for n in range(50):
            await peer.store([b"y" * 1000], n, publisher_id=2)
        await trio.sleep(1)
        assert await first_offset(peer) > 3
        end = await committed(peer)
        await peer.send(c.Publish(1, 1, packed))
        await peer.publish([b"again"], 5)
        assert await peer.confirmed(2) == [8, 5]
        assert await committed(peer) == end

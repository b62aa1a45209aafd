"""Publishing: declaring publishers, storing and confirming messages, and forming chunks."""

import pytest

from streamd.connections.stream import publishers
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.publish import Outgoing, encode_entries, encode_sub_batch
from tests.support.server import OK, Harness, Peer, frame

PRECONDITION_FAILED = ResponseCode.PRECONDITION_FAILED
NO_STREAM = ResponseCode.STREAM_DOES_NOT_EXIST
NO_PUBLISHER = ResponseCode.PUBLISHER_DOES_NOT_EXIST


def bodies(count: int, prefix: str = "m") -> list[bytes]:
    return [f"{prefix}{n}".encode() for n in range(count)]


@pytest.fixture
async def writer(peer: Peer) -> Peer:
    """A peer with stream s and publisher 1 on it."""
    await peer.create("s")
    await peer.declare("s")
    return peer


class TestDeclaring:
    async def test_ids_and_references(self, peer: Peer) -> None:
        await peer.create("s")
        await peer.create("t")
        declare = c.DeclarePublisher
        assert await peer.code(declare, 1, "", "none") == NO_STREAM
        assert await peer.code(declare, 1, "", "s") == OK
        assert await peer.code(declare, 1, "", "s") == PRECONDITION_FAILED  # id in use
        assert await peer.code(declare, 2, "", "s") == OK  # several without a name
        assert await peer.code(declare, 3, "p", "s") == OK
        assert await peer.code(declare, 4, "p", "s") == PRECONDITION_FAILED  # name in use there
        assert await peer.code(declare, 4, "p", "t") == OK
        assert await peer.code(declare, 5, "q" * 255, "s") == OK
        assert await peer.code(declare, 6, "q" * 256, "s") == PRECONDITION_FAILED
        assert await peer.code(declare, 6, "é" * 128, "s") == PRECONDITION_FAILED  # bytes count
        await peer.store([b"still the first one"])
        assert await peer.code(c.DeletePublisher, 3) == OK
        assert await peer.code(c.DeletePublisher, 3) == NO_PUBLISHER
        assert await peer.code(declare, 3, "p", "s") == OK

    async def test_two_connections_may_use_one_reference(self, server: Harness, peer: Peer) -> None:
        await peer.create("s")
        await peer.declare("s", reference="p")
        other = await server.peer()
        await other.declare("s", reference="p")

    async def test_as_many_as_there_are_ids(self, peer: Peer) -> None:
        await peer.create("s")
        for number in range(256):
            await peer.declare("s", number)
        assert await peer.code(c.DeclarePublisher, 7, "", "s") == PRECONDITION_FAILED


class TestConfirms:
    async def test_ids_come_back_in_order_as_they_were_sent(self, writer: Peer) -> None:
        messages = [Outgoing(n, b"x") for n in (5, 3, 3, 2**64 - 1, 0)]
        await writer.send(c.Publish(1, 5, encode_entries(messages)))
        assert await writer.confirmed(5) == [5, 3, 3, 2**64 - 1, 0]

    async def test_nothing_is_nothing(self, writer: Peer) -> None:
        await writer.send(c.Publish(1, 0, b""), c.PublishFiltered(1, 0, b""))
        await writer.silence()

    async def test_one_frame_for_all_that_were_sent_together(self, writer: Peer) -> None:
        await writer.send(*(frame([b"x"] * 10, 10 * n) for n in range(50)))
        confirm = await writer.expect(c.PublishConfirm)
        assert confirm == c.PublishConfirm(1, tuple(range(500)))

    async def test_a_deleted_publisher_hears_nothing(self, writer: Peer) -> None:
        messages = [Outgoing(1, b"x")]
        await writer.send(c.Publish(1, 1, encode_entries(messages)), c.DeletePublisher(1, 1))
        answer = await writer.next()
        if isinstance(answer, c.PublishConfirm):  # it was stored before the request was looked at
            answer = await writer.next()
        assert answer == c.DeletePublisherResponse(1, OK)
        await writer.silence()
        await writer.subscribe("s")
        assert (await writer.chunk()).bodies == [b"x"]  # stored all the same

    @pytest.mark.parametrize("values", [None, [b"v", None, b""]])
    async def test_unknown_publishers(
        self, writer: Peer, values: list[bytes | None] | None
    ) -> None:
        await writer.publish([b"a", b"b", b"c"], publisher_id=9, values=values)
        refusal = await writer.expect(c.PublishError)
        assert refusal == c.PublishError(
            9, ((1, NO_PUBLISHER), (2, NO_PUBLISHER), (3, NO_PUBLISHER))
        )
        await writer.store([b"x"])


class TestChunks:
    async def read_chunks(self, peer: Peer, count: int) -> list[int]:
        """How many messages each chunk has, in order."""
        await peer.subscribe("s", credit=1000)
        sizes: list[int] = []
        while sum(sizes) < count:
            sizes.append((await peer.chunk()).header.num_records)
        return sizes

    async def test_a_small_frame_is_one_chunk(self, writer: Peer) -> None:
        for n in range(3):
            await writer.store(bodies(10), first_id=10 * n)
        assert await self.read_chunks(writer, 30) == [10, 10, 10]

    async def test_small_frames_stay_whole(self, writer: Peer) -> None:
        await writer.send(*(frame(bodies(100), 100 * n) for n in range(30)))
        assert len(await writer.confirmed(3000)) == 3000
        sizes = await self.read_chunks(writer, 3000)
        assert all(size % 100 == 0 for size in sizes)
        assert sizes[0] == 200
        assert max(sizes) > 256  # a backlog: larger chunks

    @pytest.mark.parametrize("count", [500, 1000, 4999])
    async def test_a_large_frame_is_several_chunks(self, writer: Peer, count: int) -> None:
        await writer.store(bodies(count))
        sizes = await self.read_chunks(writer, count)
        assert len(sizes) > 1
        assert sizes[0] <= 256

    async def test_chunks_with_filter_values_stay_small(self, writer: Peer) -> None:
        await writer.send(*(frame(bodies(100), 100 * n, 1, [b"v"] * 100) for n in range(60)))
        assert len(await writer.confirmed(6000)) == 6000
        assert max(await self.read_chunks(writer, 6000)) <= 256

    async def test_a_declared_limit_holds(self, peer: Peer) -> None:
        await peer.create("s", stream_chunk_max_records="7", stream_chunk_max_bytes="1000")
        await peer.declare("s")
        await peer.store(bodies(20))
        assert await self.read_chunks(peer, 20) == [7, 7, 6]
        await peer.store([b"x" * 400] * 3 + [b"y" * 5000])
        assert await self.read_more(peer, 4) == [2, 1, 1]

    async def read_more(self, peer: Peer, count: int) -> list[int]:
        sizes: list[int] = []
        while sum(sizes) < count:
            sizes.append((await peer.chunk()).header.num_records)
        return sizes

    async def test_sub_batches_are_stored_as_they_came_in_chunks_of_their_own(
        self, writer: Peer
    ) -> None:
        packed = encode_sub_batch(2, 3, 1, 21, b"not really gzip")
        entries = encode_entries([Outgoing(1, b"a")]) + packed + encode_entries([Outgoing(3, b"b")])
        await writer.send(c.Publish(1, 3, entries))
        assert await writer.confirmed(3) == [1, 2, 3]
        await writer.subscribe("s")
        chunks = [await writer.chunk() for _ in range(3)]
        assert [chunk.header.chunk_id for chunk in chunks] == [0, 1, 4]
        assert [chunk.header.num_records for chunk in chunks] == [1, 3, 1]
        assert chunks[1].bodies == [b"not really gzip"]

    async def test_a_bad_sub_batch_refuses_the_rest_of_its_frame(self, writer: Peer) -> None:
        bad = encode_sub_batch(2, 0, 0, 0, b"")
        entries = encode_entries([Outgoing(1, b"a")]) + bad + encode_entries([Outgoing(3, b"b")])
        await writer.send(c.Publish(1, 3, entries))
        # The refusal comes first, as RabbitMQ has it.
        code = PRECONDITION_FAILED
        assert await writer.next() == c.PublishError(1, ((2, code), (3, code)))
        assert await writer.next() == c.PublishConfirm(1, (1,))
        await writer.subscribe("s")
        assert (await writer.chunk()).bodies == [b"a"]

    @pytest.mark.parametrize("most", [1, 2, 3, 10])
    async def test_a_large_frame_is_stored_in_parts(
        self, writer: Peer, most: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A bad sub-batch refuses what follows it in its frame, and nothing of the next frame."""
        monkeypatch.setattr(publishers, "MESSAGES_A_TURN", most)
        bad = encode_sub_batch(4, 0, 0, 0, b"")
        good = [encode_entries([Outgoing(n, b"%d" % n)]) for n in range(1, 9)]
        await writer.send(c.Publish(1, 8, b"".join([*good[:3], bad, *good[4:]])))
        await writer.send(c.Publish(1, 1, encode_entries([Outgoing(9, b"9")])))
        refused: list[int] = []
        confirmed: list[int] = []
        while len(refused) + len(confirmed) < 9:
            answer = await writer.next()
            if isinstance(answer, c.PublishError):
                refused += [fault.publishing_id for fault in answer.faults]
            else:
                assert isinstance(answer, c.PublishConfirm)
                confirmed += answer.publishing_ids
        assert (refused, confirmed) == ([4, 5, 6, 7, 8], [1, 2, 3, 9])

    async def test_nothing_of_a_large_frame_is_stored_when_its_end_is_damaged(
        self, server: Harness, writer: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(publishers, "MESSAGES_A_TURN", 2)
        entries = encode_entries([Outgoing(n, b"%d" % n) for n in range(9)])
        await writer.send(c.Publish(1, 9, entries[:-1]))
        await writer.expect(c.Close)
        assert (await server.host.find("s").read_figures()).num_messages == 0

    async def test_known_header_of_a_named_publisher(self, peer: Peer) -> None:
        """What rstream's own test_deliver expects of a server."""
        await peer.create("s")
        await peer.declare("s", reference="test-reference")
        await peer.store([b"test message"])
        await peer.subscribe("s")
        header = (await peer.chunk()).header
        assert (header.epoch, header.chunk_id, header.data_crc) == (1, 0, 307778378)
        assert (header.trailer_size, header.filter_size, header.header_check) == (24, 0, 0)


class TestDuplicates:
    async def test_what_was_stored_before_is_confirmed_and_not_stored(self, peer: Peer) -> None:
        await peer.create("s")
        await peer.declare("s", reference="p")
        await peer.store(bodies(5), first_id=1)
        await peer.store(bodies(5, "again"), first_id=3)  # 3, 4, 5 are old
        await peer.subscribe("s")
        assert await peer.bodies(7) == [*bodies(5), b"again3", b"again4"]
        assert (await peer.ask(c.QueryPublisherSequence, "p", "s")).sequence == 7

    async def test_within_one_frame(self, peer: Peer) -> None:
        await peer.create("s")
        await peer.declare("s", reference="p")
        messages = [Outgoing(n, b"%d" % at) for at, n in enumerate((0, 0, 4, 2, 4, 5))]
        await peer.send(c.Publish(1, 6, encode_entries(messages)))
        assert await peer.confirmed(6) == [0, 0, 4, 2, 4, 5]
        await peer.subscribe("s")
        assert await peer.bodies(3) == [b"0", b"2", b"5"]

    async def test_with_filter_values(self, peer: Peer) -> None:
        await peer.create("s")
        await peer.declare("s", reference="p")
        await peer.store([b"a", b"b"], values=[b"x", b"y"])
        await peer.store([b"B", b"c", b"d"], first_id=2, values=[b"y", b"z", b"x"])
        await peer.subscribe("s", filter__0="z")
        assert (await peer.chunk()).bodies == [b"c", b"d"]

    async def test_without_a_reference_everything_is_stored(self, writer: Peer) -> None:
        for _ in range(2):
            await writer.store([b"x"])
        await writer.subscribe("s")
        assert await writer.bodies(2) == [b"x", b"x"]

    async def test_sub_batches_count_by_their_one_id(self, peer: Peer) -> None:
        await peer.create("s")
        await peer.declare("s", reference="p")
        for number in (3, 3, 2, 4):
            await peer.send(c.Publish(1, 1, encode_sub_batch(number, 2, 0, 10, b"%d" % number)))
            assert await peer.confirmed(1) == [number]
        await peer.subscribe("s")
        assert [(await peer.chunk()).bodies for _ in range(2)] == [[b"3"], [b"4"]]

    async def test_a_publisher_that_comes_back_goes_on(self, server: Harness, peer: Peer) -> None:
        await peer.create("s")
        await peer.declare("s", reference="p")
        await peer.store(bodies(10))
        await peer.vanish()
        other = await server.peer()
        await other.declare("s", reference="p")
        answer = await other.ask(c.QueryPublisherSequence, "p", "s")
        assert (answer.code, answer.sequence) == (OK, 10)
        await other.store(bodies(10), first_id=6)
        stats = dict((await other.ask(c.StreamStats, "s")).statistics)
        assert stats["committed_offset"] == 14

    async def test_the_sequence_counts_what_was_sent_just_before(self, peer: Peer) -> None:
        await peer.create("s")
        await peer.declare("s", reference="p")
        await peer.publish(bodies(3000), first_id=1)
        answer = await peer.ask(c.QueryPublisherSequence, "p", "s")
        assert answer.sequence == 3000

    async def test_unknown_references_and_streams(self, peer: Peer) -> None:
        await peer.create("s")
        answer = await peer.ask(c.QueryPublisherSequence, "nobody", "s")
        assert (answer.code, answer.sequence) == (OK, 0)
        answer = await peer.ask(c.QueryPublisherSequence, "p", "none")
        assert (answer.code, answer.sequence) == (NO_STREAM, 0)
        answer = await peer.ask(c.QueryPublisherSequence, "p" * 256, "s")
        assert (answer.code, answer.sequence) == (PRECONDITION_FAILED, 0)

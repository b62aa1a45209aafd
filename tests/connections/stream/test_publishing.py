"""Publishing: declaring publishers, storing and confirming messages, and forming chunks."""

import math
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from hypothesis import HealthCheck, given, settings, strategies as st
from trio.testing import MockClock

from segments.message import Message
from streamd.connections.stream import publishers
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.publish import (
    Outgoing,
    encode_entries,
    encode_filtered_entries,
    encode_sub_batch,
)
from tests.support.server import OK, Harness, Peer, frame, harness

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
        return await self.read_more(peer, count)

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


class Sent(NamedTuple):
    """A message on its way to a stream with a strict contract.

    Attributes:
        number: its publishing id.
        is_sound: it keeps to the contract.
        is_declared_before: the publisher is declared again before it is sent.
    """

    number: int
    is_sound: bool
    is_declared_before: bool


class TestRefusals:
    """The highest id that is stored under a name stands for all below it: none of them is open."""

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        st.lists(st.lists(st.builds(Sent, st.integers(0, 12), *[st.booleans()] * 2), max_size=6)),
        st.sampled_from(["", "p"]),
        st.sampled_from([1, 2, 20_000]),
        st.booleans(),
    )
    def test_nothing_is_stored_behind_one(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        frames: list[list[Sent]],
        reference: str,
        most: int,
        looks_long: bool,
    ) -> None:
        """Against a model: each message is stored, known, or refused; and all are answered."""
        folder = tmp_path_factory.mktemp("refusals")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(publishers, "_FILTERED_A_TURN", most)
            patch.setattr(publishers, "_CHECKED_A_TURN", 1 if looks_long else math.inf)
            trio.run(
                self._publish, folder, frames, reference, clock=MockClock(autojump_threshold=0)
            )

    async def _publish(self, folder: Path, frames: list[list[Sent]], reference: str) -> None:
        async with harness(folder) as server:
            peer = await server.peer()
            strict = {"stream_filter_property": "p", "stream_filter_contract": "strict"}
            await peer.create("s", **strict)
            await peer.declare("s", reference=reference)
            sequence, is_stopped = -1, False
            stored: list[int] = []
            for messages in frames:
                if messages and messages[0].is_declared_before:
                    assert await peer.code(c.DeletePublisher, 1) == OK
                    await peer.declare("s", reference=reference)
                    is_stopped = False
                faults, taken = [], []
                for number, is_sound, _ in messages:
                    if is_stopped:
                        faults.append((number, NO_PUBLISHER))
                    elif not is_sound:
                        faults.append((number, PRECONDITION_FAILED))
                        is_stopped = bool(reference)
                    else:
                        taken.append(number)
                        if not reference or number > sequence:
                            sequence = max(sequence, number)
                            stored.append(number)
                await peer.send(_filtered(messages))
                assert await self._answers(peer, len(messages)) == (faults, taken)
            if reference:
                asked = await peer.ask(c.QueryPublisherSequence, reference, "s")
                assert asked.sequence == max(sequence, 0)
            found: list[bytes] = []
            if stored:
                await peer.subscribe("s", credit=1000)
                found = await peer.bodies(len(stored))
            assert found == [_body(number) for number in stored]

    async def _answers(self, peer: Peer, count: int) -> tuple[list[tuple[int, int]], list[int]]:
        refused: list[tuple[int, int]] = []
        confirmed: list[int] = []
        while len(refused) + len(confirmed) < count:
            answer = await peer.next()
            if isinstance(answer, c.PublishError):
                refused += [(fault.publishing_id, fault.code) for fault in answer.faults]
            else:
                assert isinstance(answer, c.PublishConfirm)
                confirmed += answer.publishing_ids
        return refused, confirmed

    async def test_a_bad_sub_batch_stops_a_publisher_with_a_name(self, peer: Peer) -> None:
        await peer.create("s")
        await peer.declare("s", reference="p")
        bad = encode_sub_batch(2, 0, 0, 0, b"")
        await peer.send(c.Publish(1, 1, encode_entries([Outgoing(1, b"1")])), c.Publish(1, 1, bad))
        await peer.send(c.Publish(1, 1, encode_entries([Outgoing(3, b"3")])))
        faults = [(2, PRECONDITION_FAILED), (3, NO_PUBLISHER)]
        assert await self._answers(peer, 3) == (faults, [1])
        assert (await peer.ask(c.QueryPublisherSequence, "p", "s")).sequence == 1
        assert await peer.code(c.DeletePublisher, 1) == OK
        await peer.declare("s", reference="p")
        await peer.store([b"2", b"3"], first_id=2)


def _body(number: int) -> bytes:
    return Message(b"%d" % number, application_properties={"p": "v"}).encode()


def _filtered(messages: list[Sent]) -> c.PublishFiltered:
    outgoing = [Outgoing(n, _body(n), b"v" if is_sound else b"w") for n, is_sound, _ in messages]
    return c.PublishFiltered(1, len(outgoing), encode_filtered_entries(outgoing))

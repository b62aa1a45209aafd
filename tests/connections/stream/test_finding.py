"""Searches over the stream protocol: what they find, and what goes on beside them."""

from pathlib import Path
from typing import Any

import pytest
import trio

from segments import StorageError
from segments.codec import CHUNK_HEADER_SIZE, FILE_HEADER_SIZE
from segments.message import Message
from segments.search import brief
from segments.search.handing import Prompt
from streamd.broker import searches
from streamd.broker.declared.rows import PermissionRow
from streamd.broker.search_places import InTurns
from streamd.broker.search_session import Session
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import Pair
from tests.segments.derived.test_key_files import index_keys
from tests.support.server import OK, Harness, Peer, harness
from tests.support.syncs import work_beside


def words(*pairs: tuple[str, str], **more: object) -> tuple[Pair, ...]:
    named = {name.rstrip("_"): str(value) for name, value in more.items()}
    return tuple(Pair(*pair) for pair in (*pairs, *named.items()))


def order(number: int, **properties: Any) -> bytes:
    return Message(
        b"order %d" % number, application_properties={"order_id": str(number)} | properties
    ).encode()


async def find(peer: Peer, stream: str, *pairs: tuple[str, str], **more: object) -> list[int]:
    """The offsets that are found, all pages together."""
    found: list[int] = []
    after: dict[str, object] = {}
    while True:
        answer = await peer.ask(c.Find, stream, words(*pairs, **more, **after))
        assert answer.code == OK, answer.reason
        found += [message.offset for message in answer.messages]
        if not answer.cut:
            return found
        after = {"after": answer.after}


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches rest for long whenever they have done something."""
    monkeypatch.setattr(InTurns, "rest_seconds", 30)
    monkeypatch.setattr("streamd.connections.stream.finding._SECONDS", 10_000)


@pytest.fixture
async def reader(peer: Peer) -> Peer:
    """A peer with stream s: 60 orders in chunks of 4 and segments of a few, a second apart."""
    await peer.create("s", stream_max_segment_size_bytes="2000", stream_chunk_max_records="4")
    await peer.declare("s")
    for n in range(0, 60, 4):
        await peer.store([order(n + k, region="EU" if k else "US") for k in range(4)], n)
        await trio.sleep(1)
    return peer


async def test_a_message_can_be_found_as_soon_as_it_is_confirmed(peer: Peer) -> None:
    await peer.create("s")
    await peer.declare("s")
    for number in range(20):
        await peer.store([order(number)], number)
        key = ("key", str(number))
        assert await find(peer, "s", key, property="order_id") == [number]


async def test_pages_in_both_orders(reader: Peer) -> None:
    assert await find(reader, "s", limit=7) == list(range(60))
    assert await find(reader, "s", limit=7, order="newest") == list(range(60))[::-1]
    eu = [n for n in range(60) if n % 4]
    assert await find(reader, "s", limit=3, sql="region = 'EU'") == eu
    assert await find(reader, "s", limit=3, offset=50) == list(range(50, 60))
    keys = (("key", "7"), ("key", "50"), ("key", "nothing"))
    assert await find(reader, "s", *keys, property="order_id", latest="true") == [50, 7]


async def test_a_page_is_bounded_in_bytes(peer: Peer) -> None:
    await peer.create("s")
    await peer.declare("s")
    for number in range(5):
        await peer.store([bytes(400_000)], number)
    answer = await peer.ask(c.Find, "s", ())
    assert (len(answer.messages), answer.cut) == (3, "size")
    assert await find(peer, "s") == list(range(5))


async def test_times(reader: Peer) -> None:
    answer = await reader.ask(c.Find, "s", ())
    times = sorted({message.timestamp_ms for message in answer.messages})
    assert len(times) == 15
    begin, end = times[3], times[5]
    expected = list(range(12, 24))
    assert await find(reader, "s", ("from", str(begin)), ("to", str(end))) == expected
    for first, last in ((begin - 500, end + 500), (times[2] + 1, times[6] - 1)):
        assert await find(reader, "s", ("from", str(first)), ("to", str(last))) == expected
    assert await find(reader, "s", ("from", "2099-01-01T00:00:00Z")) == []
    assert await find(reader, "s", ("to", "1999-01-01T00:00:00+01:00")) == []
    for early in ("-1", "-" + "9" * 20, "1960-01-01T00:00:00Z"):
        assert await find(reader, "s", ("from", early)) == list(range(60))
        assert await find(reader, "s", ("to", early)) == []


@pytest.mark.parametrize(
    "pairs",
    [
        [("key", "1")],
        [("key", ""), ("property", "a")],
        [("property", "a")],
        [("key", "1"), ("property", "properties.colour")],
        [("after", "garbage")],
        [("after", "é")],
        [("limit", "0")],
        [("limit", "1000000000")],
        [("limit", "-1")],
        [("limit", "9" * 5000)],
        [("offset", "-1")],
        [("offset", str(1 << 63))],
        [("from", "5"), ("to", "4")],
        [("from", "yesterday")],
        [("from", "--1")],
        [("from", "-")],
        [("to", "2026-11-21T09:00:00")],
        [("from", "2026-13-41T09:00:00Z")],
        [("by", "moonlight")],
        [("order", "random")],
        [("latest", "true")],
        [("latest", "perhaps"), ("key", "1"), ("property", "a")],
        [("latest", "true"), ("key", "1"), ("property", "a"), ("order", "oldest")],
        [("sql", "a ="), ("limit", "1")],
        [("sql", "a = 1"), ("tags", "b")],
        [("sql", "a = 1"), ("dialect", "latin")],
        [("tags", "||")],
        [("filter", "EU")],
        [("limit", "1"), ("limit", "2")],
        [("colour", "red")],
        [("key", "1")] * 1_001,
        [("key", str(n)) for n in range(300)] + [("property", "a")],
    ],
)
async def test_what_cannot_be_understood_is_refused_in_a_line(
    reader: Peer, pairs: list[tuple[str, str]]
) -> None:
    answer = await reader.ask(c.Find, "s", words(*pairs))
    assert answer.code == ResponseCode.PRECONDITION_FAILED
    assert answer.reason
    assert "\n" not in answer.reason
    assert len(answer.reason) < 400
    assert not answer.messages


async def test_a_stream_that_is_not_there(peer: Peer) -> None:
    assert await peer.code(c.Find, "s", ()) == ResponseCode.STREAM_DOES_NOT_EXIST


async def test_a_token_of_a_stream_that_was_deleted_and_created_again(reader: Peer) -> None:
    after = (await reader.ask(c.Find, "s", words(limit=30))).after
    assert await reader.code(c.Delete, "s") == OK
    await reader.create("s")
    await reader.declare("s", 2)
    await reader.publish([order(n) for n in range(60)], publisher_id=2)
    while len(await find(reader, "s")) < 60:
        await trio.sleep(1)
    answer = await reader.ask(c.Find, "s", words(limit=30, after=after))
    assert answer.code == ResponseCode.PRECONDITION_FAILED
    assert "another stream" in answer.reason


@pytest.mark.usefixtures("slowly")
async def test_other_commands_of_the_connection_do_not_wait(reader: Peer) -> None:
    await reader.send(c.Find(7, "s", ()))
    await trio.sleep(1)
    before = trio.current_time()
    await reader.store([order(1)], 100)
    assert await reader.code(c.StreamStats, "s") == OK
    assert trio.current_time() == before
    answer = await reader.expect(c.FindResponse)
    assert trio.current_time() > before + 20
    assert len(answer.messages) == 60  # what was there when it began


@pytest.mark.usefixtures("slowly")
async def test_a_search_ends_the_one_before(reader: Peer) -> None:
    await reader.send(c.Find(7, "s", ()))
    await trio.sleep(1)
    await reader.send(c.Find(8, "s", words(limit=1)))
    first, second = await reader.expect(c.FindResponse), await reader.expect(c.FindResponse)
    assert (first.correlation_id, first.code) == (7, ResponseCode.PRECONDITION_FAILED)
    assert "another search" in first.reason
    assert (second.correlation_id, second.code, len(second.messages)) == (8, OK, 1)


@pytest.mark.usefixtures("slowly")
async def test_a_search_ends_with_its_connection(reader: Peer, server: Harness) -> None:
    await reader.send(c.Find(7, "s", ()))
    await trio.sleep(1)
    stream = server.host.find("s")  # type: ignore[arg-type]
    assert stream.life._num_holds == 1
    await reader.vanish()
    await trio.sleep(1)
    assert stream.life._num_holds == 0
    assert not server.server.broker.supervisor.faults.total()


@pytest.mark.usefixtures("slowly")
async def test_too_many_searches(
    reader: Peer, server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches, "MAX_WAITING", 2)
    peers = [await server.peer() for _ in range(searches.MAX_SEARCHES + 4)]
    for number, peer in enumerate(peers):
        await peer.send(c.Find(number, "s", ()))
        await trio.sleep(0.01)
    answers = [await peer.expect(c.FindResponse) for peer in peers]
    refused = [a for a in answers if a.code == ResponseCode.STREAM_NOT_AVAILABLE]
    assert len(refused) == 2
    assert "wait for their turn" in refused[0].reason
    assert await find(reader, "s", limit=60) == list(range(60))
    assert all(len(a.messages) == 60 for a in answers if a not in refused)


class TestLookUpsOfKeys:
    """What takes little is answered at once, whatever else is searched for."""

    @pytest.fixture
    async def keyed(self, reader: Peer, server: Harness, monkeypatch: pytest.MonkeyPatch) -> Peer:
        """The same peer with a stream k, of 60 orders that are indexed."""
        monkeypatch.setattr(brief, "read_ready", lambda file, *where: file.read(*where))
        sizes = {"stream_max_segment_size_bytes": "2000", "stream_chunk_max_records": "4"}
        await reader.create("k", stream_key_properties="order_id", **sizes)
        await reader.declare("k", 2)
        for n in range(0, 60, 4):
            await reader.store([order(n + k) for k in range(4)], n, 2)
        work_beside(index_keys, server.host.find("k").log)  # type: ignore[arg-type]
        return reader

    @pytest.fixture
    async def busy(self, keyed: Peer, server: Harness, slowly: None) -> Peer:  # noqa: ARG002
        """The same beside searches that take all places."""
        for number in range(searches.MAX_SEARCHES):
            await (await server.peer()).send(c.Find(number, "s", ()))
        await trio.sleep(1)
        return keyed

    async def test_they_wait_for_no_other_search(self, busy: Peer, server: Harness) -> None:
        before, begun = trio.current_time(), server.server.broker.searches.num_begun
        for number in (7, 50):
            answer = await busy.ask(c.Find, "k", words(key=number, property="order_id"))
            assert [message.offset for message in answer.messages] == [number]
            assert (answer.code, answer.cut, answer.after) == (OK, "", "")
        assert trio.current_time() == before
        assert server.server.broker.searches.num_begun == begun + 2

    async def test_they_end_the_search_before(self, busy: Peer) -> None:
        await busy.send(c.Find(7, "s", ()), c.Find(8, "k", words(key="9", property="order_id")))
        first, second = await busy.expect(c.FindResponse), await busy.expect(c.FindResponse)
        assert {first.correlation_id, second.correlation_id} == {7, 8}
        answers = {first.correlation_id: first, second.correlation_id: second}
        assert "another search" in answers[7].reason
        assert [message.offset for message in answers[8].messages] == [9]

    async def test_many_in_one_go(self, busy: Peer, server: Harness) -> None:
        """Others have their turn between some of them."""
        other = await server.peer()
        asked = [words(key=n % 60, property="order_id") for n in range(100)]
        begun = server.server.broker.searches.num_begun
        await busy.send(*(c.Find(n, "k", pairs) for n, pairs in enumerate(asked)))
        assert await other.code(c.StreamStats, "s") == OK
        assert server.server.broker.searches.num_begun < begun + 100
        for number in range(100):
            answer = await busy.expect(c.FindResponse)
            assert answer.correlation_id == number
            assert [message.offset for message in answer.messages] == [number % 60]

    async def test_a_right_is_needed(self, busy: Peer, server: Harness) -> None:
        row = PermissionRow("guest", "/", ".*", ".*", "")  # type: ignore[arg-type]
        await server.server.directory.put_permission(row)
        asked = words(key="9", property="order_id")
        assert await busy.code(c.Find, "k", asked) == ResponseCode.ACCESS_REFUSED
        assert await busy.code(c.Find, "none", asked) == ResponseCode.ACCESS_REFUSED

    async def test_what_is_wrong_is_said_by_the_search(
        self, keyed: Peer, server: Harness, caplog: pytest.LogCaptureFixture
    ) -> None:
        segment = server.host.find("k").log.segments.shown[0]  # type: ignore[arg-type]
        file = segment.disk.open(segment.path(), writable=True)
        file.write([b"?"], FILE_HEADER_SIZE + CHUNK_HEADER_SIZE + 30)
        file.close()
        answer = await keyed.ask(c.Find, "k", words(key="1", property="order_id"))
        assert (answer.code, answer.messages) == (OK, ())
        assert dict(answer.looked_at)["messages_lost"] == 4
        assert "has left out 4 messages" in caplog.text


@pytest.mark.usefixtures("slowly")
async def test_a_right_that_is_taken_meanwhile(reader: Peer, server: Harness) -> None:
    await reader.send(c.Find(7, "s", ()))
    await trio.sleep(1)
    row = PermissionRow("guest", "/", ".*", ".*", "")  # type: ignore[arg-type]
    await server.server.directory.put_permission(row)
    while not isinstance(answer := await reader.next(), c.FindResponse):
        pass
    assert (answer.code, answer.messages) == (ResponseCode.ACCESS_REFUSED, ())


async def test_many_searches_while_messages_come_and_segments_go(tmp_path: Path) -> None:
    """Each answer is right for some moment: in order, complete from the first that was kept."""
    async with harness(tmp_path) as server:
        owner = await server.peer()
        await owner.create(
            "s",
            stream_max_segment_size_bytes="3000",
            max_length_bytes="9000",
            stream_chunk_max_records="5",
        )
        await owner.declare("s")
        published = 0
        is_over = False

        async def publish() -> None:
            nonlocal published, is_over
            for _ in range(60):
                await owner.store([order(published + n) for n in range(5)], published)
                published += 5
                await trio.lowlevel.checkpoint()
            is_over = True

        counts = [0, 0]

        async def search(peer: Peer, *, newest: bool) -> None:
            while not is_over:
                first, last = _kept(server), published
                asked = {"order": "newest"} if newest else {}
                found = await find(peer, "s", limit=40, **asked)
                assert found == sorted(found, reverse=newest)
                low, high = min(found, default=0), max(found, default=-1)
                assert sorted(found) == [n for n in range(low, high + 1) if n in set(found)]
                kept = _kept(server)
                assert set(range(max(first, kept), last)) <= set(found)
                counts[0] += 1
                key = ("key", str(last - 1))
                hits = await find(peer, "s", key, property="order_id")
                assert hits == [last - 1] or _kept(server) >= last or not last
                counts[1] += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            for number in range(3):
                peer = await server.peer()
                nursery.start_soon(lambda p=peer, n=number: search(p, newest=n % 2 == 0))
        assert min(counts) > 3
        assert _kept(server) > 0, "nothing was removed meanwhile"


def _kept(server: Harness) -> int:
    return server.host.find("s").log.segments.first_offset  # type: ignore[arg-type]


@pytest.mark.usefixtures("slowly")
async def test_a_stream_that_is_deleted_while_it_is_searched(reader: Peer, server: Harness) -> None:
    other = await server.peer()
    await other.send(c.Find(7, "s", ()))
    await trio.sleep(1)
    assert await reader.code(c.Delete, "s") == OK
    answer = await other.expect(c.FindResponse)
    assert (answer.code, answer.messages) == (ResponseCode.STREAM_DOES_NOT_EXIST, ())
    assert await other.code(c.StreamStats, "s") == ResponseCode.STREAM_DOES_NOT_EXIST
    assert not server.server.broker.supervisor.faults.total()


@pytest.mark.usefixtures("slowly")
async def test_a_disk_that_refuses_because_the_stream_is_being_deleted(
    reader: Peer, server: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on = Session.now

    def now(session: Session, question: Prompt) -> object:
        if server.host.has_stream("s"):  # type: ignore[arg-type]
            return goes_on(session, question)
        raise StorageError("read", "a file", OSError(5, "Input/output error"))

    monkeypatch.setattr(Session, "now", now)
    other = await server.peer()
    await other.send(c.Find(7, "s", ()))
    await trio.sleep(1)
    assert await reader.code(c.Delete, "s") == OK
    answer = await other.expect(c.FindResponse)
    assert answer.code == ResponseCode.STREAM_DOES_NOT_EXIST
    assert not caplog.messages

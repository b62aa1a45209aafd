"""A read-only server serves what another one has stored, and follows it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from segments import FIRST as FIRST_OFFSET, at_offset
from segments.store import stores
from segments.store.manifest import Manifest, encode_manifest
from streamd.auth.administration import Administration
from streamd.broker.declared.rows import PermissionRow
from streamd.broker.declared.standing_selectors import StandingSelector, parse_standing
from streamd.broker.follower import Follower
from streamd.broker.read_only import READ_ONLY
from streamd.broker.stream_follower import LIST_SECONDS, POLL_SECONDS
from streamd.operations.errors import Refused
from streamd.operations.routing import Binding, ExchangeRow, ExchangeType
from streamd.server import StartError
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import PROTOCOL_HEADER
from streamd.wire.amqp091.values import Field
from streamd.wire.stream import ResponseCode, commands as c
from tests.broker.tier.support import A_FRAME, SEGMENT_BYTES, bodies, publish, tiered
from tests.support.amqp import STREAM, connect, declare, exchange, open_peer
from tests.support.amqp10 import connect as connect_amqp10
from tests.support.fake_store import WRITES, FakeStore, late_answers
from tests.support.http import Http
from tests.support.server import NEXT, Harness, Peer, fails_to_start, frame, harness
from tests.support.syncs import work_beside
from tests.support.tier_upload import SUFFIXES, upload_catalog, upload_stream

TIER = {"tier": "s3://bucket/tier"}
SOON = LIST_SECONDS + 2 * POLL_SECONDS


class ReadStore(FakeStore):
    """A store that refuses every write but those of the server that writes."""

    may_write = False

    @contextmanager
    def writable(self) -> Iterator[None]:
        """In this block, the server that writes is at work."""
        self.may_write = True
        try:
            yield
        finally:
            self.may_write = False

    def _call(self, name: str, key: str, size: int = 0) -> Any:
        assert name not in WRITES or self.may_write, f"{name} {key}"
        return super()._call(name, key, size)


class Writer:
    """The server that writes: it is started for each change, and all of it is in the store then."""

    def __init__(self, folder: Path, store: ReadStore) -> None:
        self._folder = folder
        self._store = store
        self._revision = 0
        self._ids: dict[str, int] = {}
        self.suffixes: tuple[str, ...] = SUFFIXES

    async def publish(self, name: str, *bodies: bytes, values: list[bytes] | None = None) -> None:
        """Publish to a stream, which is created where it does not exist."""
        async with self.changing() as server:
            peer = await server.peer()
            if not server.host.has_stream(name):
                await peer.create(name)
            await peer.declare(name, 1, "pub")
            first = self._ids.get(name, 0) + 1
            await peer.store(list(bodies), first, values=values)
            self._ids[name] = first + len(bodies) - 1
        self.upload(name)

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[Harness]:
        """The server; its catalog is stored then."""
        async with harness(self._folder) as server:
            yield server
        self._revision += 1
        with self._store.writable():
            work_beside(lambda: upload_catalog(self._store, self._folder))

    def upload(self, name: str, **options: Any) -> Manifest:
        """Store what a stream has."""
        self._revision += 1
        with self._store.writable():
            upload = partial(upload_stream, self._store, self._folder, name, **options)
            return work_beside(partial(upload, revision=self._revision, suffixes=self.suffixes))

    def put(self, manifest: Manifest, **changes: Any) -> None:
        """Store a manifest, changed."""
        self._revision += 1
        manifest = replace(manifest, revision=self._revision, **changes)
        with self._store.writable():
            self._store.delete([manifest.stream.manifest])
            self._store.create(manifest.stream.manifest, encode_manifest(manifest))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> ReadStore:
    """The store that servers open."""
    made = ReadStore()
    monkeypatch.setattr("segments.store.stores.open_store", lambda _url, _endpoint="": made)
    return made


@pytest.fixture
def writer(tmp_path: Path, store: ReadStore) -> Writer:
    """The server that writes."""
    return Writer(tmp_path / "writer", store)


@asynccontextmanager
async def _reading(folder: Path, **settings: Any) -> AsyncIterator[Harness]:
    async with harness(folder / "reader", read_only=True, **TIER, **settings) as server:
        yield server


@pytest.fixture
async def server(tmp_path: Path, writer: Writer) -> AsyncIterator[Harness]:
    """A server that reads, where the store has stream s with a message."""
    await writer.publish("s", b"a")
    async with _reading(tmp_path) as running:
        yield running


async def test_consumers_at_the_end_get_what_is_stored_later(writer: Writer, peer: Peer) -> None:
    await peer.subscribe("s")
    await peer.subscribe("s", NEXT, subscription_id=2)
    assert await peer.bodies(1) == [b"a"]
    for n in range(4):
        await peer.silence(3)
        await writer.publish("s", b"b%d" % n, b"c%d" % n)
        chunks = [await peer.chunk(), await peer.chunk()]
        assert {chunk.subscription_id for chunk in chunks} == {1, 2}
        assert all(chunk.bodies == [b"b%d" % n, b"c%d" % n] for chunk in chunks)


@pytest.mark.parametrize("suffixes", [SUFFIXES, SUFFIXES[:2]])
async def test_filtered_consumers_get_what_matches(
    tmp_path: Path, writer: Writer, suffixes: tuple[str, ...]
) -> None:
    """Also where no filter index is stored."""
    writer.suffixes = suffixes
    await writer.publish("s", b"a", b"b", values=[b"x", b"x"])
    async with _reading(tmp_path) as server:
        peers = []
        for value in ("x", "y"):
            peer = await server.consumer("s", filter__1=value)
            peers.append(peer)
        assert await peers[0].bodies(2) == [b"a", b"b"]
        await peers[1].silence()
        await writer.publish("s", b"c", values=[b"y"])
        assert await peers[1].bodies(1) == [b"c"]
        await peers[0].silence(SOON)
        await writer.publish("s", b"d", values=[b"x"])
        assert await peers[0].bodies(1) == [b"d"]
        await peers[1].silence(SOON)


async def test_a_stream_appears_and_goes(writer: Writer, server: Harness) -> None:
    await writer.publish("t", b"b")
    await trio.sleep(SOON)
    assert server.host.names() == ["s", "t"]
    peer = await server.consumer("t")
    assert await peer.bodies(1) == [b"b"]
    await peer.subscribe("s", subscription_id=2)
    assert await peer.bodies(1) == [b"a"]
    manifest = _manifest(server, "t")
    async with writer.changing() as writing:
        await writing.host.delete("t", lambda: None)
    writer.put(manifest, is_deleted=True)
    update = await peer.expect(c.MetadataUpdate)
    assert update.stream == "t"
    assert server.host.names() == ["s"]


async def test_a_stream_that_is_created_again_is_another_one(
    tmp_path: Path, writer: Writer
) -> None:
    await writer.publish("s", b"a", b"b")
    async with _reading(tmp_path) as server:
        peer = await server.consumer("s")
        assert await peer.bodies(2) == [b"a", b"b"]
        manifest = _manifest(server, "s")
        async with writer.changing() as writing:
            await writing.host.delete("s", lambda: None)
            other = await writing.publisher("s", is_new=True)
            await other.store([b"c"])
        writer.put(manifest, is_deleted=True)
        writer.upload("s", creation="00000002")
        assert (await peer.expect(c.MetadataUpdate)).stream == "s"
        await peer.subscribe("s", subscription_id=2)
        assert await peer.bodies(1) == [b"c"]


async def test_one_that_is_created_again_is_empty_at_first(
    writer: Writer, server: Harness, peer: Peer, store: ReadStore
) -> None:
    """Nothing of the one before is shown for it, whose manifest is gone."""
    await peer.subscribe("s")
    assert await peer.bodies(1) == [b"a"]
    manifest = _manifest(server, "s")
    async with writer.changing() as writing:
        await writing.host.delete("s", lambda: None)
        await (await writing.peer()).create("s")
    del store.objects[manifest.stream.manifest]
    assert (await peer.expect(c.MetadataUpdate)).stream == "s"
    await peer.subscribe("s", subscription_id=2)
    await peer.silence(20)


async def test_a_stream_without_a_manifest_is_empty_until_it_has_one(
    tmp_path: Path, writer: Writer
) -> None:
    await writer.publish("s", b"a")
    async with writer.changing() as writing:
        await (await writing.peer()).create("t")
    async with _reading(tmp_path) as server:
        peer = await server.consumer("t")
        await peer.silence(20)
        await writer.publish("t", b"b")
        assert await peer.bodies(1) == [b"b"]
        assert server.host.get_stream("t") is not None


async def test_readers_go_on_where_the_log_begins_now(tmp_path: Path, writer: Writer) -> None:
    for n in range(4):
        await writer.publish("s", b"%d" % n)
    async with _reading(tmp_path) as server:
        peer = await server.consumer("s", credit=1)
        assert await peer.bodies(1) == [b"0"]
        manifest = _manifest(server, "s")
        writer.put(manifest, segments=manifest.segments[2:])
        await trio.sleep(SOON)
        await peer.send(c.Credit(1, 10))
        assert await peer.bodies(2) == [b"2", b"3"]
        async with server.host.find("s").opened() as log:
            assert (log.segments.first_offset, log.next_offset) == (2, 4)
        writer.put(manifest, segments=())
        await trio.sleep(SOON)
        async with server.host.find("s").opened() as log:
            assert (log.segments.first_offset, log.next_offset) == (4, 4)
        await peer.silence()
    writer.put(manifest)


async def test_a_log_that_is_closed_meanwhile_has_everything(
    writer: Writer, server: Harness
) -> None:
    stream = server.host.find("s")
    for n in range(1, 4):
        async with stream.opened() as log:
            assert log.next_offset == n
            assert not log.report.steps
        await stream.life.close()
        await writer.publish("s", b"b")
        await trio.sleep(70)
        assert not stream.is_open
        assert stream.figures is not None
        assert (stream.figures.next_offset, stream.figures.num_chunks) == (n + 1, n + 1)
    peer = await server.consumer("s")
    assert await peer.bodies(4) == [b"a", b"b", b"b", b"b"]


async def test_offsets_that_are_stored_here_count_here(tmp_path: Path, writer: Writer) -> None:
    await writer.publish("s", b"a", b"b", b"c")
    async with writer.changing() as writing:
        await _set_offsets(writing, 1)
    writer.upload("s")
    async with _reading(tmp_path) as server:
        stream = server.host.find("s")
        async with stream.opened() as log:
            assert log.journal.tracking.offsets() == {b"both": 1, b"there": 1}
            await stream.set_offset("both", 2)
            await stream.set_offset("here", 0)
        await stream.life.close()
        async with stream.opened() as log:
            assert log.journal.tracking.offsets() == {b"both": 2, b"here": 0, b"there": 1}
            async with writer.changing() as writing:
                await _set_offsets(writing, 0)
            await writer.publish("s", b"d")
            await trio.sleep(SOON)
            assert log.journal.tracking.offsets() == {b"both": 2, b"here": 0, b"there": 0}
        await stream.life.close()
        async with stream.opened() as log:
            assert log.journal.tracking.offsets() == {b"both": 2, b"here": 0, b"there": 0}
    async with _reading(tmp_path) as server, server.host.find("s").opened() as log:
        assert log.journal.tracking.offsets() == {b"both": 0, b"there": 0}  # it is scratch


async def test_users_follow(writer: Writer, server: Harness) -> None:
    directory = server.server.directory
    async with writer.changing() as writing:
        await writing.server.directory.put_user("ann", b"guest", ())
        await writing.server.directory.put_permission(PermissionRow("ann", "/", "", "", "s.*"))
    await trio.sleep(SOON)
    peer = await server.peer(user="ann")
    await peer.subscribe("s")
    assert await peer.bodies(1) == [b"a"]
    async with writer.changing() as writing:
        await writing.server.directory.put_user("ann", b"other")
        await writing.server.directory.put_permission(PermissionRow("ann", "/", "", "", ""))
    await trio.sleep(SOON)
    row = directory.permission("ann", "/")
    assert row is not None
    assert row.read == ""
    async with writer.changing() as writing:
        await writing.server.directory.remove_user("ann")
    await trio.sleep(SOON)
    assert [user.name for user in directory.users()] == ["guest"]
    await _until_ended(peer)


async def test_so_do_virtual_hosts_exchanges_and_settings(writer: Writer, server: Harness) -> None:
    broker = server.server.broker
    async with writer.changing() as writing:
        administration = Administration(writing.server.broker, writing.server.directory)
        await administration.add_virtual_host("more", "guest")
        await writing.host.create_super_stream("sup", [("0", "sup-0"), ("1", "sup-1")], [])
        await writing.host.settings.set_arguments("s", [("max-age", "1D")])
    await trio.sleep(SOON)
    assert set(broker.virtual_hosts) == {"/", "more"}
    assert server.host.super_streams.find("sup").name == "sup"
    assert server.host.row("s").settings["max-age"].seconds == 86_400
    async with server.host.find("s").opened() as log:
        assert log.policy.max_age_ms is None  # the server that writes drops what is old
    async with writer.changing() as writing:
        administration = Administration(writing.server.broker, writing.server.directory)
        await administration.remove_virtual_host("more")
        await writing.host.exchanges.delete("sup")
    await trio.sleep(SOON)
    assert set(broker.virtual_hosts) == {"/"}
    assert not server.host.topology.has("sup")


@pytest.mark.parametrize("sql", ["a = 2", ""])
async def test_consumers_by_a_selector_begin_anew_when_it_is_another_one(
    tmp_path: Path, writer: Writer, sql: str
) -> None:
    await writer.publish("s", b"a")
    async with writer.changing() as writing:
        await writing.host.settings.put_selector("s", parse_standing("g", "union", "a = 1"))
    async with _reading(tmp_path) as server:
        peer, other = await server.peer(), await server.peer()
        await peer.subscribe("s", selector_group="g")
        await other.subscribe("s")
        assert await peer.bodies(1) == [b"a"]  # of before there was a selector
        async with writer.changing() as writing:
            await writing.host.settings.remove_selector("s", "g")
            if sql:
                await writing.host.settings.put_selector("s", parse_standing("g", "union", sql))
        assert (await peer.expect(c.MetadataUpdate)).stream == "s"
        assert await other.bodies(1) == [b"a"]
        await other.silence(SOON)


# -- refusing


async def test_everything_that_changes_something_is_refused(server: Harness, peer: Peer) -> None:
    refused = ResponseCode.PRECONDITION_FAILED
    assert await peer.code(c.Create, "new", ()) == refused
    assert await peer.code(c.Delete, "s") == refused
    assert await peer.code(c.DeclarePublisher, 1, "", "s") == refused
    assert await peer.code(c.CreateSuperStream, "sup", ("sup-0",), ("0",), ()) == refused
    assert await peer.code(c.Create, "s", ()) == ResponseCode.STREAM_EXISTS  # no change
    await peer.send(frame([b"x"]))  # of a publisher that came anyway
    error = await peer.expect(c.PublishError)
    assert {code for _, code in error.faults} == {ResponseCode.PUBLISHER_DOES_NOT_EXIST}
    host, directory = server.host, server.server.directory
    administration = Administration(server.server.broker, directory)
    binding = Binding("/", "amq.direct", "s", False, "k", {})
    exchange = ExchangeRow("/", "x", ExchangeType.DIRECT, True, False, False, "")
    selector = StandingSelector("g", "amqp", "a = 1", 0)
    for change in (
        lambda: host.create("new", []),
        lambda: host.delete("s", lambda: None),
        lambda: host.settings.set_arguments("s", [("max-age", "1D")]),
        lambda: host.settings.put_selector("s", selector),
        lambda: host.exchanges.bind(binding),
        lambda: host.exchanges.declare(exchange),
        lambda: host.exchanges.declare(exchange._replace(is_durable=False)),
        lambda: host.find("s").truncate(FIRST_OFFSET),
        lambda: directory.put_user("ann", b"secret"),
        lambda: directory.remove_user("guest"),
        lambda: directory.put_permission(PermissionRow("guest", "/", "", "", "")),
        lambda: directory.remove_permission("guest", "/"),
        lambda: administration.add_virtual_host("more", "guest"),
        lambda: administration.remove_virtual_host("/"),
        lambda: server.server.broker.tier.collect(dry_run=True),
    ):
        async with host.find("s").opened():
            with pytest.raises(Refused) as told:
                await change()
        if "last administrator" not in str(told.value):
            assert told.value.details == READ_ONLY
    assert host.names() == ["s"]
    assert [u.name for u in directory.users()] == ["guest"]


# -- what is wrong


async def test_a_store_that_is_away_costs_nothing_but_news(
    writer: Writer, server: Harness, peer: Peer, store: ReadStore
) -> None:
    await peer.subscribe("s")
    assert await peer.bodies(1) == [b"a"]
    await writer.publish("s", b"b")
    store.fail(times=-1)
    await peer.silence(30)
    tier = server.server.broker.tier
    assert tier is not None
    status = await tier.status()
    assert status.state == "away"
    assert "connection broke off" in status.sentence
    store.heal()
    assert await peer.bodies(1) == [b"b"]
    assert (await tier.status()).state == "ok"


async def test_a_manifest_that_cannot_be_used_costs_its_stream_alone(
    tmp_path: Path, writer: Writer, store: ReadStore
) -> None:
    await writer.publish("s", b"a")
    await writer.publish("t", b"b")
    (key,) = [key for key in store.objects if key.endswith("manifest") and "/t~" in key]
    good = store.objects[key]
    store.flip(key, 200)
    async with _reading(tmp_path) as server:
        assert server.host.names() == ["s", "t"]
        with pytest.raises(Refused, match="cannot be used"):
            await server.host.find("t").ready()
        peer = await server.consumer("s")
        assert await peer.bodies(1) == [b"a"]
        store.objects[key] = good
        await trio.sleep(130)
        await peer.subscribe("t", subscription_id=2)
        assert await peer.bodies(1) == [b"b"]
        store.flip(key, 200)
        store.objects[key].etag = "another"
        await trio.sleep(SOON)
        tier = server.server.broker.tier
        assert tier is not None
        told = tier.stream("/", "t")
        assert told is not None
        assert "cannot be used" in told.sentence
        async with server.host.find("t").opened() as log:  # as it was
            assert log.next_offset == 1


async def test_a_manifest_that_is_an_older_one_costs_its_stream_alone(
    tmp_path: Path, writer: Writer, store: ReadStore
) -> None:
    await writer.publish("s", b"0")
    await writer.publish("other", b"0")
    before = dict(store.objects)
    await writer.publish("s", b"1")
    async with _reading(tmp_path) as server:
        peer = await server.consumer("other")
        assert await peer.bodies(1) == [b"0"]
        (key,) = [key for key in before if "/s~" in key and key.endswith("manifest")]
        store.objects[key] = before[key]
        await writer.publish("other", b"1")
        with trio.fail_after(SOON):
            assert await peer.bodies(1) == [b"1"]
        assert server.server.broker.tier is not None
        assert "older manifest" in (await server.server.broker.tier.status()).sentence


async def test_an_older_state_of_the_store_is_another_stream(
    tmp_path: Path, writer: Writer
) -> None:
    await writer.publish("s", b"a", b"b")
    async with _reading(tmp_path) as server:
        before = _manifest(server, "s")
        await writer.publish("s", b"c")
        await trio.sleep(SOON)
        peer = await server.consumer("s")
        assert await peer.bodies(3) == [b"a", b"b", b"c"]
        writer.put(before)
        assert (await peer.expect(c.MetadataUpdate)).stream == "s"
        await peer.subscribe("s")
        assert await peer.bodies(2) == [b"a", b"b"]


async def test_it_says_how_far_behind_it_is(server: Harness) -> None:
    await trio.sleep(1)
    tier = server.server.broker.tier
    assert tier is not None
    told = tier.stream("/", "s")
    assert told is not None
    assert (told.sentence, told.looked_seconds) == ("", 1)
    assert (await tier.status()).looked_seconds == 1
    assert told.segments_remote == 1


@pytest.mark.parametrize("is_restored", [False, True])
async def test_its_folder_is_not_for_others(
    tmp_path: Path, writer: Writer, *, is_restored: bool
) -> None:
    await writer.publish("s", b"a")
    async with _reading(tmp_path) as server, server.host.find("s").opened():
        pass
    await fails_to_start(
        tmp_path / "reader", "is that of a read-only server", restore=is_restored, **TIER
    )
    async with _reading(tmp_path) as server:
        assert server.host.names() == ["s"]


async def test_nor_are_others_for_it(tmp_path: Path, writer: Writer) -> None:
    await writer.publish("s", b"a")
    await fails_to_start(
        tmp_path / "writer", "is that of a server that writes", read_only=True, **TIER
    )
    async with harness(tmp_path / "writer") as server:
        assert server.host.names() == ["s"]


async def test_there_must_be_something_to_read(tmp_path: Path, store: ReadStore) -> None:
    with pytest.raises(StartError, match="there is nothing in the tier fake://store to read"):
        async with _reading(tmp_path):
            pass
    assert not store.objects


async def test_what_has_not_changed_is_not_sent_again(
    tmp_path: Path, writer: Writer, store: ReadStore
) -> None:
    await writer.publish("s", b"a")
    await writer.publish("t", b"a")
    async with _reading(tmp_path) as server, server.host.find("s").opened():
        await trio.sleep(1)
        before = store.size()
        calls = store.count("get_changed", "/s~"), store.count("get_changed", "/t~")
        await trio.sleep(600)
        cluster = store.count("get", "v1/cluster") * len(store.objects["v1/cluster"].content)
        assert store.size() - before < cluster + 100
        assert 290 <= store.count("get_changed", "/s~") - calls[0] <= 301  # somebody reads it
        assert store.count("get_changed", "/t~") - calls[1] < 20
        assert store.count("folders") < 130


async def _set_offsets(writing: Harness, offset: int) -> None:
    stream = writing.host.find("s")
    async with stream.opened():
        for name in ("both", "there"):
            await stream.set_offset(name, offset)


async def _some(peer: Peer) -> list[bytes]:
    """The bodies of all that comes before a pause."""
    found: list[bytes] = []
    while True:
        with trio.move_on_after(1) as scope:
            found += (await peer.chunk()).bodies
        if scope.cancelled_caught:
            return found


def _manifest(server: Harness, name: str) -> Manifest:
    follower = cast("Follower", server.server.broker.tier)
    followed = follower._followed("/", name)
    assert followed is not None
    assert followed.manifest is not None
    return followed.manifest


async def _until_ended(peer: Peer) -> None:
    with suppress(trio.EndOfChannel, trio.BrokenResourceError):
        while True:
            await peer.next()


@asynccontextmanager
async def _beside(
    folder: Path, store: FakeStore, patch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Harness, Peer, Harness, Peer]]:
    """A server that uploads, its publisher, one that reads, and its consumer."""
    async with tiered(folder / "a", store) as writing:
        publisher = await writing.publisher(
            "s", is_new=True, reference="p", stream_max_segment_size_bytes=SEGMENT_BYTES
        )
        await publish(publisher, 0, 12)
        await trio.sleep(5)
        with patch.context() as reading:
            reading.setattr(stores, "open_store", lambda *_: ReadStore(store.objects))
            async with _reading(folder) as server:
                peer = await server.consumer("s", credit=10_000)
                reading.undo()
                yield writing, publisher, server, peer


async def test_beside_a_server_that_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments roll, are dropped and truncated."""
    async with _beside(tmp_path, FakeStore(), monkeypatch) as (writing, publisher, server, peer):
        got = await _some(peer)
        for first in range(12, 62, 10):
            await publish(publisher, first * A_FRAME, 10)
            await trio.sleep(SOON)
            got += await _some(peer)
        assert got == bodies(0, len(got))
        assert len(got) > 50 * A_FRAME
        await writing.host.settings.set_arguments("s", [("max-length-bytes", "5000")])
        await writing.host.expire()
        await trio.sleep(SOON)
        async with (
            server.host.find("s").opened() as log,
            writing.host.find("s").opened() as original,
        ):
            first = original.segments.first_offset + 7
            assert (log.segments.first_offset, log.next_offset) == (first - 7, len(got))
            assert first > 7
            await writing.host.find("s").truncate(at_offset(first))
            await trio.sleep(SOON)
            assert log.segments.first_offset == original.segments.first_offset > first - A_FRAME
            begin = log.segments.first_offset
        await peer.subscribe("s", subscription_id=2, credit=1_000)
        assert await _some(peer) == bodies(begin, len(got) - begin)


async def test_another_server_takes_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeStore()
    async with _beside(tmp_path, store, monkeypatch) as (_, _, server, peer):
        got = await _some(peer)
        assert got == bodies(0, len(got))
        async with tiered(tmp_path / "b", store, restore=True) as other:
            publisher = await other.publisher("s", reference="p")
            await publish(publisher, len(got), 12)
            await trio.sleep(SOON)
            got += await _some(peer)
            assert len(got) > 15 * A_FRAME
            assert got == bodies(0, len(got))
            await other.host.delete("s", lambda: None)
            assert (await peer.expect(c.MetadataUpdate)).stream == "s"
            assert server.host.names() == []


# -- over all doors


async def test_clients_are_told_what_it_is(tmp_path: Path, writer: Writer) -> None:
    await writer.publish("s", b"a")
    async with _reading(tmp_path) as server:
        answer = await server.connect().ask(c.PeerProperties, ())
        assert {p.key: p.value for p in answer.properties}["read_only"] == "true"
        assert (await Http(server).get("overview"))["read_only"] is True
        amqp = connect(server)
        await amqp.send_bytes(PROTOCOL_HEADER)
        start = await amqp.expect(m.ConnectionStart)
        assert start.properties["read_only"] == Field("t", True)
        told = await connect_amqp10(server).log_in()
        assert told.properties is not None
        assert told.properties["read_only"] is True
    async with harness(tmp_path / "writer") as server:
        answer = await server.connect().ask(c.PeerProperties, ())
        assert "read_only" not in {p.key for p in answer.properties}


async def test_amqp_clients_read_and_may_not_publish(server: Harness) -> None:
    amqp = await open_peer(server)
    await amqp.declare("s")  # it is there
    told = "this server is read-only"
    for method in (declare("new", STREAM), exchange("x"), exchange("x", durable=False)):
        await amqp.channel_fails(method, 406, told)
        await amqp.open()
    await amqp.channel_fails(amqp.message("s", b"x"), 406, told)
    await amqp.open()
    await amqp.consume("s", x_stream_offset="first")
    (delivery,) = await amqp.deliveries(1)
    assert delivery.method.delivery_tag == 1


async def test_the_http_api_changes_nothing(server: Harness) -> None:
    http = Http(server)
    (row,) = await http.get("queues")
    assert row["messages"] == 1
    for method, path, body in (
        ("PUT", "queues/%2F/new", {"arguments": {"x-queue-type": "stream"}}),
        ("DELETE", "queues/%2F/s", None),
        ("PUT", "exchanges/%2F/x", {"type": "direct"}),
        ("POST", "bindings/%2F/e/amq.direct/q/s", {"routing_key": "k"}),
        ("PUT", "users/ann", {"password": "x", "tags": ""}),
        ("PUT", "vhosts/more", None),
        ("PUT", "permissions/%2F/guest", {"configure": "", "write": "", "read": ""}),
        ("POST", "tier/gc", None),
    ):
        answer = await http.ask(method, path, body)
        assert answer.status_code == 400, (method, path, answer.text)
        assert "read-only" in answer.text, (method, path, answer.text)


async def test_a_store_that_hangs_keeps_no_server_from_ending(
    tmp_path: Path, store: ReadStore, writer: Writer
) -> None:
    await writer.publish("s", b"a")
    async with harness(tmp_path / "other"):
        with late_answers(store):
            async with _reading(tmp_path):
                store.seconds = lambda _call: 3_600.0
                await trio.sleep(60)
                ends_at = trio.current_time()
            assert trio.current_time() < ends_at + 30  # that connections have to end

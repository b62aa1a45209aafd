"""Streams as a whole: created, found, deleted, and still there after a restart."""

import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from streamd.net import threads
from streamd.operations.errors import Refused
from streamd.operations.names import Name
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import Pair
from tests.connections.stream.test_publishing import bodies
from tests.support.logs import read_bodies
from tests.support.server import FIRST, NEXT, OK, Harness, Peer, fails_to_start, harness, with_peer

EXISTS, PRECONDITION_FAILED = ResponseCode.STREAM_EXISTS, ResponseCode.PRECONDITION_FAILED
NO_STREAM, GONE = ResponseCode.STREAM_DOES_NOT_EXIST, ResponseCode.STREAM_NOT_AVAILABLE


async def create(peer: Peer, name: str, *arguments: tuple[str, str]) -> int:
    return await peer.code(c.Create, name, tuple(Pair(*pair) for pair in arguments))


class TestCreate:
    @pytest.mark.parametrize(
        "name",
        ["s", "with space", "Größe", "a/b", "..", ".hidden", "%2F", "x" * 1000, "\U0001f600"],
    )
    async def test_any_name(self, server: Harness, peer: Peer, name: str) -> None:
        assert await create(peer, name) == OK
        assert await create(peer, name) == EXISTS
        await peer.declare(name)
        await peer.store([b"x"])
        folders = list(Path(server.data, "streams", "%2F").iterdir())
        assert len(folders) == 1

    @pytest.mark.parametrize("name", ["", "\r\n", "amq.", "amq.stream", "\ramq.x", "a\r\nb"])
    async def test_names_that_are_refused(self, peer: Peer, name: str) -> None:
        assert await create(peer, name) == PRECONDITION_FAILED

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("max-length-bytes", "many"),
            ("max-length-bytes", "-1"),
            ("max-length-bytes", ""),
            ("max-length-bytes", "1e6"),
            ("max-length-bytes", "9" * 30),
            ("max-age", "2w"),
            ("max-age", "x"),
            ("max-age", "0s"),
            ("max-age", "10"),
            ("stream-max-segment-size-bytes", "3000000001"),
            ("stream-max-segment-size-bytes", "0"),
            ("stream-filter-size-bytes", "15"),
            ("stream-filter-size-bytes", "256"),
            ("stream-filter-size-bytes", "large"),
            ("initial-cluster-size", "0"),
            ("queue-leader-locator", "nearest"),
            ("stream-filter-history", "no"),
            ("stream-filter-error-rate", "2"),
            ("stream-filter-error-rate", "nan"),
            ("stream-chunk-max-records", "65536"),
            ("stream-tier", "yes"),
            ("stream-local-max-length-bytes", "-1"),
            ("stream-local-max-age", "2w"),
            ("stream-key-properties", ""),
            ("stream-key-properties", "a,"),
            ("stream-key-properties", "a,b,a"),
            ("stream-key-properties", "properties.subjekt"),
            ("stream-key-properties", "a,b,c,d,e,f,g,h,i"),
            ("stream-key-properties", "x" * 256),
        ],
    )
    async def test_arguments_that_are_refused(self, peer: Peer, name: str, value: str) -> None:
        assert await create(peer, "s", (name, value)) == PRECONDITION_FAILED
        assert await create(peer, "s") == OK  # nothing is left of it

    @pytest.mark.parametrize(
        ("name", "value", "same", "other"),
        [
            ("max-length-bytes", "1000", "1000", "1001"),
            ("max-age", "1h", "60m", "61m"),
            ("max-age", "7D", "604800s", "8D"),
            ("stream-max-segment-size-bytes", "500000000", "500000000", "3000000000"),
            ("stream-filter-size-bytes", "16", "16", "255"),
            ("stream-filter-size-bytes", "auto", "auto", "255"),
            ("queue-leader-locator", "least-leaders", "least-leaders", "balanced"),
            ("initial-cluster-size", "3", "3", "1"),
            ("stream-tier", "false", "false", "true"),
            ("stream-local-max-length-bytes", "0", "0", "1"),
            ("stream-local-max-age", "1h", "60m", "61m"),
            ("stream-key-properties", "a,properties.to", "a,properties.to", "a"),
        ],
    )
    async def test_twice_with_equal_and_other_arguments(
        self, peer: Peer, name: str, value: str, same: str, other: str
    ) -> None:
        assert await create(peer, "s", (name, value), ("unknown", "ignored")) == OK
        assert await create(peer, "s", (name, same)) == EXISTS
        assert await create(peer, "s", (name, other)) == PRECONDITION_FAILED
        assert await create(peer, "s") == PRECONDITION_FAILED  # absent is not the same

    async def test_from_two_connections_at_once(self, server: Harness) -> None:
        peers = [await server.peer() for _ in range(5)]
        codes: list[int] = []

        async def one(peer: Peer) -> None:
            codes.append(await create(peer, "s"))

        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(one, peer)
        assert sorted(codes) == [OK, EXISTS, EXISTS, EXISTS, EXISTS]


class TestMetadata:
    async def test_where_streams_are(self, peer: Peer) -> None:
        await peer.create("s")
        answer = await peer.ask(c.Metadata, ("s", "none", "s"))
        (broker,) = answer.brokers
        assert (broker.host, broker.port) == ("localhost", 5552)  # as Open announces
        assert answer.streams == (("s", OK, broker.reference, ()), ("none", NO_STREAM, 0xFFFF, ()))

    async def test_announced_as_configured(self, tmp_path: Path) -> None:
        settings = {"advertised_host": "streams.example", "advertised_port": 443}
        async with harness(tmp_path, **settings) as server:
            peer = server.connect()
            await peer.log_in()
            answer = await peer.ask(c.Metadata, ("none",))
            assert answer.brokers == ((0, "streams.example", 443),)


class TestDelete:
    async def test_users_are_told_once_and_after_the_answer(
        self, server: Harness, peer: Peer
    ) -> None:
        publisher, consumer, bystander = [await server.peer() for _ in range(3)]
        await peer.create("s")
        await peer.create("t")
        for user in (peer, publisher):
            await user.declare("s", 1)
            await user.declare("s", 2)
        await consumer.subscribe("s")
        await bystander.subscribe("t")
        await bystander.subscribe("s", subscription_id=2)
        await bystander.ask(c.Unsubscribe, 2)
        await peer.send(c.Delete(5, "s"))
        assert await peer.next() == c.DeleteResponse(5, OK)
        for user in (peer, publisher, consumer):
            assert await user.next() == c.MetadataUpdate(GONE, "s")
            await user.silence()
        await bystander.silence()
        await publisher.publish([b"x"])
        refusal = await publisher.expect(c.PublishError)
        assert refusal.faults == ((1, ResponseCode.PUBLISHER_DOES_NOT_EXIST),)
        assert await consumer.code(c.Unsubscribe, 1) == ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
        assert await publisher.code(c.DeclarePublisher, 1, "", "t") == OK  # the id is free

    async def test_deleted_is_deleted(self, server: Harness, peer: Peer) -> None:
        assert await peer.code(c.Delete, "s") == NO_STREAM
        await peer.begin("s", reference="p")
        await peer.store(bodies(5))
        await peer.send(c.StoreOffset("app", "s", 3))
        assert await peer.code(c.Delete, "s") == OK
        await peer.expect(c.MetadataUpdate)
        assert await peer.code(c.Delete, "s") == NO_STREAM
        assert await create(peer, "s", ("max-age", "1h")) == OK
        stats = dict((await peer.ask(c.StreamStats, "s")).statistics)
        assert stats["committed_offset"] == -1
        assert (await peer.ask(c.QueryPublisherSequence, "p", "s")).sequence == 0
        assert await peer.code(c.QueryOffset, "app", "s") == ResponseCode.NO_OFFSET
        assert not list(Path(server.data, "trash").iterdir())

    @pytest.mark.parametrize("work", ["opening", "a flush"])
    async def test_nothing_is_done_with_its_files_any_more(
        self,
        server: Harness,
        peer: Peer,
        nursery: trio.Nursery,
        monkeypatch: pytest.MonkeyPatch,
        work: str,
    ) -> None:
        """A stream of its name may have files in its folder from then on."""
        await peer.create("s")
        stream, in_thread, running = server.host.find("s"), threads.in_thread, list[int]()

        async def slow(*call: Any) -> Any:
            running.append(1)
            await trio.sleep(10)
            running.pop()
            return await in_thread(*call)

        async def begin() -> None:
            with suppress(Refused):  # it is gone
                await (
                    stream.ready() if work == "opening" else stream.life.held.maintenance.flush()
                )

        if work == "a flush":
            await peer.declare("s")
            await peer.store([b"x"])
        with monkeypatch.context() as patch:
            patch.setattr(threads, "in_thread", slow)
            nursery.start_soon(begin)
            await wait_all_tasks_blocked()
        assert running
        left: list[int] = []
        await server.host.delete("s", lambda: left.append(len(running)))
        assert left == [0]

    async def test_a_consumer_in_the_middle_of_it(self, server: Harness, peer: Peer) -> None:
        await peer.begin("s")
        for n in range(4):
            await peer.store([b"x" * 100_000] * 5, first_id=5 * n)
        reader = server.connect(reads_slowly=True)
        await reader.log_in()
        await reader.subscribe("s", credit=100)
        await reader.expect(c.Deliver)
        assert await peer.code(c.Delete, "s") == OK
        while isinstance(command := await reader.next(), c.Deliver):
            pass  # what was on its way
        assert command == c.MetadataUpdate(GONE, "s")


class TestRetention:
    async def test_by_size(self, peer: Peer) -> None:
        await peer.begin("s", max_length_bytes="100000", stream_max_segment_size_bytes="50000")
        for n in range(20):
            await peer.store([b"x" * 1000] * 100, first_id=100 * n)
        await trio.sleep(1)
        answer = await peer.ask(c.DescribeStreams, ("s",))
        figures = dict(answer.streams[0].statistics)
        assert figures["first_chunk_id"] > 0
        # A segment ends with the chunk that fills it, so up to one chunk more than asked for.
        assert figures["bytes"] <= 100_000 + 101_000
        await peer.subscribe("s", FIRST, credit=1)
        assert (await peer.chunk()).header.chunk_id == figures["first_chunk_id"]

    async def test_by_age_also_while_nobody_writes(self, peer: Peer) -> None:
        await peer.begin("s", max_age="1h", stream_max_segment_size_bytes="1000")
        for n in range(3):
            await peer.store([b"x" * 1000], first_id=n)
        await trio.sleep(3500)
        assert dict((await peer.ask(c.StreamStats, "s")).statistics)["first_chunk_id"] == 0
        await trio.sleep(200)
        assert dict((await peer.ask(c.StreamStats, "s")).statistics)["first_chunk_id"] == 2

    async def test_a_slow_reader_goes_on_behind_the_gap(self, peer: Peer) -> None:
        await peer.begin("s", max_length_bytes="1", stream_max_segment_size_bytes="1")
        await peer.store([b"0"])
        await peer.subscribe("s", credit=1)
        assert (await peer.chunk()).header.chunk_id == 0
        for n in range(1, 5):
            await peer.store([b"%d" % n], first_id=n + 1)
        await trio.sleep(1)
        await peer.send(c.Credit(1, 9))
        assert (await peer.chunk()).header.chunk_id == 4


async def _life(peer: Peer) -> int:
    (found,) = (await peer.ask(c.DescribeStreams, ("s",))).streams
    return int(dict(found.statistics)["life"])


class TestLife:
    async def test_from_the_creation_to_the_deletion(self, tmp_path: Path) -> None:
        async with with_peer(tmp_path) as (_, peer):
            await peer.create("s")
            life = await _life(peer)  # it has no files yet
            await peer.declare("s")
            await peer.store([b"x"])
            assert await _life(peer) == life
        async with with_peer(tmp_path) as (_, peer):
            assert await _life(peer) == life
            assert await peer.code(c.Delete, "s") == OK
            await peer.create("s")
            other = await _life(peer)
            await peer.subscribe("s", NEXT)
            assert await _life(peer) == other != life


class TestRestart:
    async def test_everything_is_still_there(self, tmp_path: Path) -> None:
        async with with_peer(tmp_path) as (_, peer):
            await peer.create("s", stream_filter_size_bytes="64", max_age="7D")
            await peer.create("größe")
            await peer.declare("s", reference="p")
            await peer.store(bodies(300), values=[b"v%d" % (n % 7) for n in range(300)])
            await peer.send(c.StoreOffset("app", "s", 123))
            assert (await peer.ask(c.QueryOffset, "app", "s")).offset == 123
        async with with_peer(tmp_path) as (_, peer):
            assert (
                await create(peer, "s", ("stream-filter-size-bytes", "64"), ("max-age", "7D"))
                == EXISTS
            )
            assert await create(peer, "größe") == EXISTS
            assert (await peer.ask(c.QueryPublisherSequence, "p", "s")).sequence == 300
            assert (await peer.ask(c.QueryOffset, "app", "s")).offset == 123
            await peer.subscribe("s", credit=100)
            assert await peer.bodies(300) == bodies(300)
            await peer.declare("s", reference="p")
            await peer.store([b"old", b"new"], first_id=300)
            chunk = await peer.chunk()
            assert (chunk.header.chunk_id, chunk.bodies, chunk.header.epoch) == (300, [b"new"], 2)

    async def test_a_stream_that_cannot_be_opened_leaves_the_others_alone(
        self, tmp_path: Path
    ) -> None:
        async with with_peer(tmp_path) as (_, peer):
            for number, name in enumerate(("good", "bad", "gone")):
                await peer.begin(name, number)
        segment = next(tmp_path.glob("streams/*/bad/*.segment"))
        segment.write_bytes(b"not a segment at all")
        (gone,) = tmp_path.glob("streams/*/gone")
        gone.rename(tmp_path / "elsewhere")
        async with with_peer(tmp_path) as (_, peer):
            await trio.sleep(1)  # until all were looked at
            answer = await peer.ask(c.Metadata, ("good", "bad", "gone"))
            assert [s.code for s in answer.streams] == [OK, GONE, GONE]
            assert await peer.code(c.DeclarePublisher, 1, "", "bad") == GONE
            assert await peer.code(c.Subscribe, 1, "bad", NEXT, 1) == GONE
            assert await create(peer, "bad") == EXISTS
            await peer.declare("good")
            await peer.store([b"x"])
            assert await peer.code(c.Delete, "bad") == OK
            assert await create(peer, "bad") == OK
            await peer.declare("bad", 2)
            assert await peer.code(c.Delete, "gone") == OK
        assert segment.read_bytes()[:4] == b"OSIL"

    async def test_folders_without_a_stream_are_set_aside(self, tmp_path: Path) -> None:
        catalog = tmp_path / "catalog.sqlite"
        async with harness(tmp_path):
            pass
        earlier = catalog.read_bytes()
        async with with_peer(tmp_path) as (_, peer):
            await peer.begin("s")
            await peer.store([b"precious"])
        catalog.write_bytes(earlier)
        async with with_peer(tmp_path) as (_, peer):
            assert await create(peer, "s") == OK
            assert dict((await peer.ask(c.StreamStats, "s")).statistics)["committed_offset"] == -1
        (aside,) = tmp_path.glob("orphans/s-*")
        assert b"precious" in next(aside.glob("*.segment")).read_bytes()

    async def test_a_folder_with_streams_and_no_catalog(self, tmp_path: Path) -> None:
        async with with_peer(tmp_path) as (_, peer):
            await peer.begin("s")
            await peer.store([b"precious"])
        (tmp_path / "catalog.sqlite").unlink()
        await fails_to_start(tmp_path, "has streams and no catalog: put its file")
        assert not list(tmp_path.glob("orphans"))


class TestDataFolder:
    async def test_two_servers_do_not_share_one(self, tmp_path: Path) -> None:
        async with harness(tmp_path):
            await fails_to_start(tmp_path, "another server uses")

    async def test_a_folder_that_cannot_be_used(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        await fails_to_start(
            tmp_path / "file" / "data", r"cannot use the data folder .*: Not a directory"
        )

    async def test_a_catalog_of_another_version(self, tmp_path: Path) -> None:
        with sqlite3.connect(tmp_path / "catalog.sqlite") as db:
            db.execute("PRAGMA user_version = 99")
        db.close()
        await fails_to_start(tmp_path, "has version 99")

    async def test_a_file_that_is_not_a_catalog(self, tmp_path: Path) -> None:
        (tmp_path / "catalog.sqlite").write_bytes(b"noise" * 100)
        await fails_to_start(tmp_path, "cannot use the catalog")


async def test_a_folder_with_messages_is_never_deleted_for_a_new_stream(tmp_path: Path) -> None:
    """A copy that was put in place of a stream that nobody has used, or what a power failure left.

    In place of one that was used, it is that stream.
    """
    async with with_peer(tmp_path) as (server, peer):
        for name in ("original", "used", "unused"):
            await peer.create(name)
        await peer.declare("original", publisher_id=1)
        await peer.store([b"kept"])
        await server.host.find("used").ready()
    folders = tmp_path / "streams" / "%2F"
    shutil.rmtree(folders / "used")
    for name in ("used", "unused"):
        shutil.copytree(folders / "original", folders / name)
    async with harness(tmp_path) as server:
        found = {}
        for name in ("used", "unused"):
            async with server.host.find(name).opened() as log:
                found[name] = read_bodies(log)
        assert found == {"used": [b"kept"], "unused": []}
    (aside,) = tmp_path.glob("orphans/unused-*")
    segment = "00000000000000000000.segment"
    assert (aside / segment).read_bytes() == (folders / "original" / segment).read_bytes()


async def test_of_many_streams_a_login_does_not_look_at_all(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few it does: they tell at once."""
    broker, num_looks = server.server.broker, 0
    (host,) = broker.virtual_hosts.values()

    def look() -> dict[Name, str]:
        nonlocal num_looks
        num_looks += 1
        return {Name("s"): "full"} if num_looks > 10 else {}

    monkeypatch.setattr(host, "alarms", look)
    for number in range(1, 11):
        assert not broker.has_alarms
        assert num_looks == number
    monkeypatch.setattr(broker._resources.quota, "used", 10_100)
    assert broker.has_alarms  # the one before was good for that moment
    monkeypatch.setattr(host, "alarms", dict)
    await trio.sleep(0.4)
    assert broker.has_alarms
    await trio.sleep(0.2)
    assert not broker.has_alarms

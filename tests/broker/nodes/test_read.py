"""Sequences under which a cluster does not keep what it promises."""

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from segments.disk import OsDisk
from segments.store.heartbeat import encode_heartbeat, read_heartbeat
from segments.store.object_names import node_key
from segments.store.object_store import DeniedError, TierError
from streamd.broker.nodes import folder, leftovers
from streamd.broker.nodes.leftovers import lacking
from streamd.config import Config, ConfigError
from streamd.operations.names import as_sent
from tests.broker.nodes.support import (
    STORED,
    Nodes,
    RunningNode,
    half_stored,
    publisher_at,
    two,
    until,
)
from tests.broker.tier.support import A_FRAME, SEGMENT_BYTES, bodies, publish
from tests.support.fake_store import late_answers
from tests.support.server import FIRST


def _of_a_later_version(content: bytes) -> bytes:
    return content.replace(b'"version":1', b'"version":2')


def _damaged(content: bytes) -> bytes:
    return content[:-20]


@pytest.mark.parametrize("change", [_damaged, _of_a_later_version])
async def test_a_leader_whose_heartbeat_cannot_be_read_is_taken_over(
    nodes: Nodes, change: Callable[[bytes], bytes]
) -> None:
    """It is damaged, or of a later version; the leader is gone."""
    a, b = await two(nodes)
    await a.kill()
    kept = nodes.store.objects[node_key("a")]
    kept.content, kept.etag = change(kept.content), "changed"
    await until(lambda b=b: b.is_leader, 3_600)


async def test_a_node_whose_heartbeat_cannot_be_read_starts(nodes: Nodes) -> None:
    """It was damaged, or is of a later version, which was tried on this machine."""
    a = nodes.start("a")
    await until(lambda: a.is_leader)
    await a.kill()
    kept = nodes.store.objects[node_key("a")]
    kept.content, kept.etag = _of_a_later_version(kept.content), "changed"
    a = nodes.start("a")
    await until(lambda: a.is_leader, 3_600)


async def test_a_heartbeat_that_is_damaged_is_renewed(nodes: Nodes) -> None:
    a, b = await two(nodes)
    kept = nodes.store.objects[node_key("a")]
    kept.content, kept.etag = _damaged(kept.content), "changed"
    await until(lambda: nodes.store.objects[node_key("a")].etag != "changed", 3_600)
    assert a.is_leader
    assert b.is_standby


async def test_a_note_of_a_takeover_from_long_ago_is_not_followed(nodes: Nodes) -> None:
    """The leader was paused, and the standby was killed when it had noted that it takes over."""
    a, b = await two(nodes)
    assert a.server is not None
    epoch = a.server.server.node._epoch  # type: ignore[union-attr]
    await b.kill()
    found = read_heartbeat(nodes.store, "a")
    assert found is not None
    note = partial(folder.note_takeover, str(b.folder), epoch, found.etag)
    await trio.to_thread.run_sync(note)
    await trio.sleep(3_600)
    assert nodes.leaders == ["a"]
    b = nodes.start("b")
    await until(lambda: b.is_leader or b.is_standby)
    await trio.sleep(60)
    assert nodes.leaders == ["a"]


async def test_a_leader_on_an_older_copy_of_its_folder_lets_others_lead(
    tmp_path: Path, nodes: Nodes
) -> None:
    """Its disk was put back from a snapshot, when it was alone."""
    a = nodes.start("a")
    await until(lambda: a.is_leader)
    await (await a.peer()).create("one")
    await trio.sleep(10)
    await a.kill()
    shutil.copytree(a.folder, tmp_path / "older")
    a = nodes.start("a")
    await until(lambda: a.is_leader)
    await (await a.peer()).create("two")
    await trio.sleep(10)
    await a.kill()
    shutil.rmtree(a.folder)
    shutil.copytree(tmp_path / "older", a.folder)
    nodes.start("a")
    await trio.sleep(300)
    nodes.start("b")
    await until(lambda: bool(nodes.leaders), 3_600)


async def test_many_dead_nodes_do_not_hold_up_the_leader(nodes: Nodes) -> None:
    """Each has had a name of its own, as pods have; a request takes 50 ms."""
    _a, b = await two(nodes)
    content = nodes.store.objects[node_key("b")].content
    for number in range(300):
        nodes.store.create(node_key(f"old-{number}"), content)
    nodes.store.seconds = lambda _call: 0.05
    with late_answers(nodes.store), trio.move_on_after(600):
        await until(lambda: b.num_starts > 1, 1_000)
    assert nodes.leaders == ["a"]


async def test_a_leader_that_stands_by_is_not_the_leader(nodes: Nodes) -> None:
    """Its catalog is gone, and its identity is not."""
    a, _b = await two(nodes)
    await a.kill()
    for path in a.folder.glob("catalog.sqlite*"):
        path.unlink()
    a = nodes.start("a")
    await until(lambda: a.is_standby)
    await until(lambda: bool(nodes.leaders), 3_600)


async def test_a_leader_that_was_paused_looks_whether_it_still_is(nodes: Nodes) -> None:
    """What it goes on confirming of streams with confirm=local is lost."""
    a, b = await two(nodes, takeover_local_seconds=0)
    peer = await a.peer()
    await peer.create("s")
    await peer.declare("s", reference="p")
    await peer.store(bodies(0))
    await trio.sleep(120)
    a.pause()
    await until(lambda: b.is_leader)
    await trio.sleep(15)
    a.go_on()
    seconds = await until(lambda: a.is_standby)
    assert seconds < 5


async def test_streams_that_the_cluster_does_have_are_told_from_gaps(nodes: Nodes) -> None:
    """The new leader has gone on with the stream before the earlier one comes back."""
    a, b = await two(nodes, tier_roll_seconds=3_600)
    stored, end = await half_stored(nodes, a)
    await a.kill()
    await until(lambda: b.is_leader)
    peer = await b.peer()
    await peer.declare("s", reference="q")
    await publish(peer, 0, 24)
    await trio.sleep(30)
    a = nodes.start(a.name)
    await until(lambda: a.is_standby)
    await until(lambda: not list((a.folder / "earlier").glob("*")))
    (kept,) = (a.folder / "orphans").glob("*")
    assert lacking(kept, [])[:3] == (end - stored, stored, end - 1)


async def test_what_was_confirmed_before_a_stream_waits_for_the_store(nodes: Nodes) -> None:
    """Messages were confirmed with confirm=local; then the setting was changed."""
    a, b = await two(nodes, tier_roll_seconds=3_600)
    stored, end = await half_stored(nodes, a)
    assert a.server is not None
    broker = a.server.server.broker
    a.view.before = _no_slots
    with trio.move_on_after(5):
        await broker.virtual_hosts[as_sent("/")].settings.set_arguments(
            as_sent("s"), [("stream-confirm", "store")]
        )
    await trio.sleep(WAIT)
    await a.kill()
    await until(lambda: b.is_leader)
    a = nodes.start(a.name)
    await until(lambda: a.is_standby)
    await until(lambda: not list((a.folder / "earlier").glob("*")))
    kept = sum(lacking(one, [])[0] for one in (a.folder / "orphans").glob("*"))
    assert kept >= end - stored


WAIT = 0.5


def _no_slots(name: str, key: str) -> None:
    """Requests for slots are not answered in time."""
    if "~wal" in key and name == "create":
        raise TierError("the store does not answer")


async def test_a_takeover_is_begun_again_when_the_disk_was_full(nodes: Nodes) -> None:
    """The standby cannot write down that it takes over."""
    a, b = await two(nodes)
    (b.folder / "restoring").mkdir()
    await trio.sleep(30)
    await a.kill()
    await trio.sleep(120)
    (b.folder / "restoring").rmdir()
    await until(lambda: b.is_leader, 600)


async def test_restore_stays_in_the_command(nodes: Nodes) -> None:
    """A node was begun with --restore; it is taken over, and its first look as a standby fails."""
    a, b = await two(nodes)
    c = nodes.start("c", restore=True)
    await until(lambda: c.is_leader)
    await until(lambda: a.is_standby)
    await trio.sleep(30)
    c.pause()
    await until(lambda: a.is_leader or b.is_leader)
    leaders = [one for one in (a, b) if one.is_leader]

    def met(_name: str, _key: str) -> None:
        c.view.is_away = (c.folder / "read-only").exists()

    c.view.before = met
    c.go_on()
    await until(lambda: c.view.is_away, 600)
    c.view.before = lambda _name, _key: None
    await trio.sleep(120)
    c.view.is_away = False
    await trio.sleep(120)
    assert nodes.leaders == [leaders[0].name]


async def test_restore_stays_in_the_command_of_one_that_was_killed(nodes: Nodes) -> None:
    """It was setting its files aside."""
    a, b = await two(nodes)
    await a.kill()
    await until(lambda: b.is_leader)
    (a.folder / "earlier" / "x").mkdir(parents=True)
    for path in a.folder.glob("catalog.sqlite*"):
        path.rename(a.folder / "earlier" / "x" / path.name)
    a = nodes.start("a", restore=True)
    await until(lambda: a.is_standby or a.is_leader)
    assert nodes.leaders == ["b"]


async def test_copy_of_a_standbys_folder(tmp_path: Path, nodes: Nodes) -> None:
    """It runs under another name: it is refused, or harms nobody."""
    a, b = await two(nodes)
    await b.kill()
    shutil.copytree(b.folder, tmp_path / "c")
    b = nodes.start("b")
    c = nodes.start("c")
    await until(lambda: b.is_standby and (c.is_standby or c.error is not None))
    await trio.sleep(30)
    await a.kill()
    await trio.sleep(300)
    assert b.error is None
    assert len(nodes.leaders) == 1


async def test_a_stream_whose_manifest_is_damaged_is_kept(nodes: Nodes) -> None:
    """What was confirmed by the store is on the disk of an earlier leader, and nowhere usable."""
    a, b = await two(nodes, tier_roll_seconds=3_600)
    peer = await a.peer()
    await peer.create("s", **STORED)
    await peer.declare("s")
    await publish(peer, 0, 3)
    await a.kill()
    await until(lambda: b.is_leader)
    b2 = await b.peer()
    await b2.declare("s")
    await publish(b2, 3 * A_FRAME, 1)
    await trio.sleep(30)
    keys = [key for key in nodes.store.objects if key.endswith("/manifest")]
    for key in keys:
        nodes.store.flip(key, 100)
        nodes.store.objects[key].etag = "changed"
    await publish(b2, 4 * A_FRAME, 1)
    await trio.sleep(5)
    a = nodes.start(a.name)
    await until(lambda: a.is_standby)
    with trio.move_on_after(120):
        await until(lambda: not list((a.folder / "earlier").glob("*")))
    kept = sum(lacking(one, [])[0] for one in (a.folder / "orphans").glob("*"))
    assert kept or list((a.folder / "earlier").glob("*"))


async def test_a_leader_that_cannot_start_is_taken_over(nodes: Nodes) -> None:
    """Its catalog is damaged; whatever supervises it starts it again and again."""
    a, b = await two(nodes)
    await a.kill()
    (a.folder / "catalog.sqlite").write_bytes(b"damaged" * 1_000)
    for suffix in ("-wal", "-shm"):
        (a.folder / f"catalog.sqlite{suffix}").unlink(missing_ok=True)
    for _ in range(200):
        a = nodes.start("a")
        await a.has_ended.wait()
        await trio.sleep(5)
        if b.is_leader:
            break
    assert b.is_leader


async def test_what_was_declared_before_the_leader_left_is_there(nodes: Nodes) -> None:
    a, b = await two(nodes)
    peer = await a.peer()
    await peer.create("s")
    await a.end()
    await until(lambda: b.is_leader)
    peer = await b.peer()
    await peer.declare("s", reference="p")


async def test_a_user_of_the_moment_before_the_leader_left_is_there(nodes: Nodes) -> None:
    """Nothing of it is uploaded with streams."""
    a, b = await two(nodes)
    assert a.server is not None
    await a.server.server.directory.put_user("ada", b"secret")
    await a.end()
    await until(lambda: b.is_leader)
    assert b.server is not None
    assert "ada" in [user.name for user in b.server.server.directory.users()]


async def test_a_cluster_that_is_started_again_goes_on_with_its_leader(nodes: Nodes) -> None:
    """All machines went down, and the standby is back first."""
    a, b = await two(nodes, tier_roll_seconds=3_600)
    peer = await a.peer()
    await peer.create("s", stream_max_segment_size_bytes=SEGMENT_BYTES)
    await peer.declare("s", reference="p")
    await publish(peer, 0, 12)
    await trio.sleep(10)
    await b.kill()
    await a.kill()
    b = nodes.start("b")
    await trio.sleep(20)
    a = nodes.start("a")
    await until(lambda: bool(nodes.leaders))
    await trio.sleep(60)
    assert nodes.leaders == ["a"]


async def test_a_copied_folder_of_a_process_with_the_same_number_is_refused(
    tmp_path: Path, nodes: Nodes
) -> None:
    """As in two containers of one machine: the other one's processes are not to be seen."""
    a, _ = await two(nodes)
    shutil.copytree(a.folder, tmp_path / "twin")
    twin = RunningNode("a", tmp_path / "twin", nodes.store, {})
    nodes._nursery.start_soon(twin.run)
    await trio.sleep(60)
    assert twin.error is not None
    assert a.is_leader


async def test_a_heartbeat_that_lands_late_is_one_s_own(nodes: Nodes) -> None:
    """It was under way when the standby ended to begin anew as the leader."""
    a, b = await two(nodes)
    await trio.sleep(20)
    late = nodes.beat("b")
    assert late is not None
    late = replace(late, counter=late.counter + 100)

    def met(name: str, key: str) -> None:
        kept = nodes.store.objects.get(node_key("b"))
        if name == "replace" and key == node_key("b") and b.server is None:
            b.view.before = lambda _name, _key: None
            nodes.store.replace(key, encode_heartbeat(late), kept.etag)

    b.view.before = met
    await a.kill()
    await until(lambda: b.is_leader or b.error is not None)
    assert b.is_leader


async def test_a_standby_that_has_just_joined_takes_over_in_time(nodes: Nodes) -> None:
    """The leader was alone, and dies a moment later."""
    a = nodes.start("a")
    await until(lambda: a.is_leader)
    await trio.sleep(400)
    b = nodes.start("b")
    await until(lambda: b.is_standby)
    await trio.sleep(5)
    await a.kill()


async def test_a_takeover_that_never_ends_is_taken_over(nodes: Nodes) -> None:
    """The node that was faster may not write manifests; another one may."""
    a, b = await two(nodes)
    peer = await a.peer()
    await peer.create("s")
    await peer.declare("s")
    await peer.store(bodies(0))
    await trio.sleep(30)
    b.view.before = _no_manifests
    await a.kill()
    await until(lambda: nodes.store.count(key="~log") > 0 and b.num_starts == 1)
    await trio.sleep(60)
    c = nodes.start("c")
    await until(lambda: c.is_leader, 3_600)


def _no_manifests(name: str, key: str) -> None:
    if name == "replace" and key.endswith("/manifest"):
        raise DeniedError("may not write")


async def test_a_new_cluster_begins_where_another_was_removed(nodes: Nodes) -> None:
    """Its nodes were running when the store was emptied."""
    a, b = await two(nodes)
    await trio.sleep(20)
    nodes.store.objects.clear()
    await trio.sleep(20)
    await b.end()
    await a.end()
    c = nodes.start("c")
    await until(lambda: c.is_leader, 3_600)


async def test_takeovers_in_a_row_keep_what_was_confirmed_by_the_store(nodes: Nodes) -> None:
    """Each leader is killed, and comes back as a standby on the folder of its lead."""
    pair = await two(nodes, tier_roll_seconds=3_600)
    await (await publisher_at(pair[0])).store(bodies(0))
    sent = A_FRAME
    for _ in range(6):
        pair = await _changed(nodes, *pair)
        peer = await pair[0].peer()
        await peer.declare("s", reference="p")
        await peer.store(bodies(sent), first_id=sent + 1)
        sent += A_FRAME
    reader = await pair[1].peer()
    await reader.subscribe("s", FIRST)
    expected = [body for first in range(0, sent, A_FRAME) for body in bodies(first)]
    assert await reader.bodies(sent) == expected
    for node in pair:
        assert not list((node.folder / "orphans").glob("*"))


async def _changed(nodes: Nodes, a: RunningNode, b: RunningNode) -> tuple[RunningNode, RunningNode]:
    await a.kill()
    await until(lambda: b.is_leader)
    a = nodes.start(a.name, tier_roll_seconds=3_600)
    await until(lambda: a.is_standby)
    return b, a


async def test_a_node_with_another_name_goes_on_with_its_folder(
    tmp_path: Path, nodes: Nodes
) -> None:
    a, b = await two(nodes)
    await b.end()
    await a.kill()
    shutil.move(a.folder, tmp_path / "z")
    z = nodes.start("z")
    await until(lambda: z.is_leader, 600)
    b = nodes.start("b")
    await until(lambda: b.is_standby)
    await trio.sleep(100)
    assert nodes.leaders == ["z"]


async def test_catalog_set_aside_without_streams(nodes: Nodes) -> None:
    """It is killed while it sets its files aside: the catalog is moved, the streams are not."""
    a, b = await two(nodes)
    peer = await publisher_at(a)
    await peer.store(bodies(0))
    await a.kill()
    await until(lambda: b.is_leader)
    (a.folder / "earlier" / "x").mkdir(parents=True)
    for path in a.folder.glob("catalog.sqlite*"):
        path.rename(a.folder / "earlier" / "x" / path.name)
    a = nodes.start("a")
    await until(lambda: a.is_standby)
    await until(lambda: not list((a.folder / "earlier").glob("*")))
    assert not list((a.folder / "orphans").glob("*"))


def test_an_empty_host_is_not_advertised() -> None:
    """Others could not read such a heartbeat."""
    with pytest.raises(ConfigError, match="node needs advertised_host"):
        Config(data="d", node="a", tier="s3://tier", advertised_host="")


def test_what_is_set_aside_survives_a_power_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry of the new folder in `earlier` is on the device, before anything goes on."""
    synced: list[str] = []
    inner = OsDisk.sync_folder

    def sync_folder(self: OsDisk, path: str) -> None:
        synced.append(path)
        inner(self, path)

    monkeypatch.setattr(OsDisk, "sync_folder", sync_folder)
    (tmp_path / "streams" / "%2F" / "s").mkdir(parents=True)
    folder.stand_down(str(tmp_path))
    assert str(tmp_path / "earlier") in synced


async def test_a_takeover_does_not_wait_for_what_an_earlier_lead_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look through a large stream takes minutes; the node can end meanwhile."""
    (tmp_path / "earlier" / "x" / "streams" / "%2F" / "s").mkdir(parents=True)
    go_on, inner, scope = threading.Event(), lacking, trio.CancelScope()
    loop = trio.lowlevel.current_trio_token()

    def slow(*arguments: Any) -> Any:
        loop.run_sync_soon(scope.cancel)
        go_on.wait(3)
        return inner(*arguments)

    monkeypatch.setattr(leftovers, "lacking", slow)
    began_at = time.monotonic()
    try:
        with scope:
            await leftovers.sort_out(str(tmp_path), lambda _host, _name: leftovers.Kept("", []))
        assert time.monotonic() - began_at < 2
    finally:
        go_on.set()

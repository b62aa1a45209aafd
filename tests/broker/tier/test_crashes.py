"""A kill at any point: before and after each request to the store, and each step on the disk.

A server works through a scenario once. At each of these points the data folder and the store are
copied: what a killed process leaves. Then a server is started on each of the copies. Nothing that
was confirmed is missing, doubled or invented, here and in the store; what is left over is found.
"""

import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from segments import at_offset
from segments.disk import OsDisk
from streamd.broker.streams.stream import Stream
from streamd.wire.stream import commands as c
from tests.broker.tier.support import (
    A_FRAME,
    SEGMENT_BYTES,
    bodies,
    is_of_log,
    manifest_of,
    manifests,
    passes,
    publish,
    tier_of,
    tiered,
)
from tests.support.fake_store import Call, FakeStore, Kept
from tests.support.server import Harness, Peer

_TOLD = ("manifest", "checkpoint")


class State(NamedTuple):
    """What a kill leaves, and what was promised by then.

    Attributes:
        what: it has just done, or was about to do.
        folder: copy of the data folder.
        objects: of the store.
        confirmed: messages.
        first: the lowest and the highest offset that the log may begin with.
        is_there: the stream is; None where both is right.
    """

    what: str
    folder: Path
    objects: dict[str, Kept]
    confirmed: int
    first: tuple[int, int]
    is_there: bool | None


@dataclass
class Recorder:
    """Copies what there is, at each point."""

    data: Path
    copies: Path
    store: FakeStore
    states: list[State] = field(default_factory=list)
    confirmed: int = 0
    first: tuple[int, int] = (0, 0)
    is_there: bool | None = True
    is_on: bool = False
    _seen: set[bytes] = field(default_factory=set)

    def note(self, what: str) -> None:
        if not self.is_on:
            return
        objects = dict(self.store.objects)
        digest = self._digest(objects)
        if digest in self._seen:
            return
        self._seen.add(digest)
        folder = self.copies / f"{len(self.states):04d}"
        shutil.copytree(self.data, folder)
        state = State(what, folder, objects, self.confirmed, self.first, self.is_there)
        self.states.append(state)

    def _digest(self, objects: dict[str, Kept]) -> bytes:
        digest = blake2b(repr((self.confirmed, self.first, self.is_there)).encode())
        for key, kept in sorted(objects.items()):
            digest.update(key.encode() + kept.content)
        for path in sorted(self.data.rglob("*")):
            if path.is_file() and ("tier-" in str(path) or path.name in _TOLD):
                digest.update(path.read_bytes())
            elif path.suffix == ".segment":
                digest.update(f"{path}{path.stat().st_size}".encode())
        return digest.digest()

    def before(self, call: Call) -> None:
        self.note(f"before {call.name} {call.key}")

    def after(self, call: Call) -> None:
        self.note(f"after {call.name} {call.key}")


@contextmanager
def recorded(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    recorder.store.before, recorder.store.after = recorder.before, recorder.after
    for name in ("rename", "remove", "create"):
        original = getattr(OsDisk, name)

        def noted(self: OsDisk, *paths: Any, original: Any = original, name: str = name) -> Any:
            result = original(self, *paths)
            if any(part in paths[0] for part in ("manifest", ".segment", "tier-")):
                recorder.note(f"{name} {paths[0]}")
            return result

        monkeypatch.setattr(OsDisk, name, noted)
    try:
        yield
    finally:
        monkeypatch.undo()


async def upload(server: Harness, peer: Peer, recorder: Recorder) -> None:
    """Three segments are sealed, and leave the disk."""
    recorder.is_on = True
    for frames in (6, 5, 5):
        await more(peer, recorder, frames)
        await passes(1)
    assert (
        sum(segment.cold is not None for segment in server.host.find("s").log.segments.shown) == 3
    )


async def more(peer: Peer, recorder: Recorder, frames: int) -> None:
    for _ in range(frames):
        at = recorder.confirmed
        await peer.store(bodies(at), first_id=at + 1)
        recorder.confirmed += A_FRAME


async def truncate(server: Harness, peer: Peer, recorder: Recorder) -> None:
    """The log is cut inside a segment that is stored and here, then inside one that is to be."""
    await more(peer, recorder, 16)
    await passes(3)
    recorder.is_on = True
    stream = server.host.find("s")
    recorder.first = (0, 240)
    async with stream.opened():
        assert await stream.truncate(at_offset(240)) == 240
    recorder.first = (240, 240)
    await passes(3)


async def retention(server: Harness, peer: Peer, recorder: Recorder) -> None:
    """The oldest segments outlive the limit."""
    await more(peer, recorder, 16)
    await passes(3)
    recorder.is_on = True
    recorder.first = (0, 200)
    await server.host.settings.set_arguments("s", [("max-length-bytes", "5000")])
    await server.host.expire()
    recorder.first = (200, 200)
    await passes(3)


async def delete(server: Harness, peer: Peer, recorder: Recorder) -> None:
    """The stream is deleted."""
    await more(peer, recorder, 11)
    await passes(3)
    recorder.is_on = True
    recorder.is_there = None
    assert await peer.code(c.Delete, "s") == 1
    recorder.is_there = False
    await passes(3)
    assert not server.host.names()


Scenario = Callable[[Harness, Peer, Recorder], Awaitable[None]]
NO_ROOM = {"stream_local_max_length_bytes": "0"}


@pytest.mark.parametrize(
    ("scenario", "arguments"),
    [(upload, NO_ROOM), (truncate, {}), (retention, NO_ROOM), (delete, NO_ROOM)],
)
async def test_a_kill_at_any_point(
    scenario: Scenario,
    arguments: dict[str, str],
    tmp_path: Path,
    store: FakeStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = Recorder(tmp_path / "data", tmp_path / "copies", store)
    with recorded(recorder, monkeypatch):
        async with tiered(recorder.data, store) as server:
            peer = await server.publisher(
                "s",
                is_new=True,
                reference="p",
                stream_max_segment_size_bytes=SEGMENT_BYTES,
                **arguments,
            )
            await scenario(server, peer, recorder)
            recorder.is_on = False
    assert len(recorder.states) > 5
    for state in recorder.states:
        try:
            await _goes_on(state)
        except BaseException as error:
            error.add_note(f"killed {state.what}, {state.folder.name}")
            raise
        finally:
            shutil.rmtree(state.folder)


async def _goes_on(state: State) -> None:
    store = FakeStore(objects=dict(state.objects))
    store.now_ms += 10_000
    async with tiered(state.folder, store) as server:
        peer = await server.peer()
        stream = server.host.get_stream("s")
        if state.is_there is not None:
            assert (stream is not None) is state.is_there
        if stream is not None:
            await _continues(server, peer, store, stream, state)
        else:
            await passes(3)
        await _is_tidy(server, store, is_there=stream is not None)


async def _continues(
    server: Harness, peer: Peer, store: FakeStore, stream: Stream, state: State
) -> None:
    async with stream.opened() as log:
        first, end = log.segments.first_offset, log.committed_offset
        lowest, highest = state.first
        assert lowest <= first <= highest
        assert state.confirmed <= end <= state.confirmed + A_FRAME
        await peer.declare("s", reference="p")
        sequence = (await peer.ask(c.QueryPublisherSequence, "p", "s")).sequence
        assert sequence == end
        reader = await server.consumer("s", credit=1_000)
        found = await _read(reader, end - first)
        assert found == bodies(first, end - first)
        await publish(peer, end, 11)
        assert await _read(reader, 11 * A_FRAME) == bodies(end, 11 * A_FRAME)
        await passes(3)
        manifest = manifest_of(store, "s")
        assert manifest.next_offset == log.segments.shown[-1].base_offset
        at = log.segments.first_offset
        for segment in manifest.segments:
            assert segment.base_offset == at
            content = store.objects[segment.key(manifest.stream, ".segment")].content
            for number in (segment.base_offset, segment.next_offset - 1):
                assert bodies(number, 1)[0] in content
            assert bodies(segment.next_offset, 1)[0] not in content
            at = segment.next_offset
        assert at == manifest.next_offset
        assert not (await tier_of(server).verify(server.host.name, stream.name)).faults


async def _read(peer: Peer, count: int) -> list[bytes]:
    with trio.fail_after(60):
        found: list[bytes] = []
        while len(found) < count:
            found += (await peer.chunk()).bodies
        return found


async def _is_tidy(server: Harness, store: FakeStore, *, is_there: bool) -> None:
    """What a killed server left is found, and nothing else."""
    await tier_of(server).collect(dry_run=False)
    assert not list(server.data.glob("tier-deletions/*"))
    left = {m.stream.folder for m in manifests(store)}
    assert len(left) == is_there
    named = {key for m in manifests(store) for key in (*m.keys(), m.stream.manifest)}
    named |= {key for key in store.objects if is_of_log(key)}
    assert {key for key in store.objects if not key.startswith("probe-")} == named

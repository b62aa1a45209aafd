"""A log that follows manifests is, after each of them, as one that is opened with it."""

from dataclasses import replace

from hypothesis import given, strategies as st

from segments import Log
from segments.gaps import OFFSET_GAP
from segments.store.cache import TierCache
from segments.store.local_copy import write_copy
from segments.store.manifest import (
    Manifest,
    StoredFile,
    StoredSegment,
    decode_manifest,
    encode_manifest,
)
from segments.store.object_names import StreamKey
from segments.tracking import Tracking
from tests.support.disk import FaultyDisk

KEY = StreamKey("/", "s", "018bcfe56800" + "0" * 8)


def opened(manifest: Manifest) -> Log:
    disk = FaultyDisk()
    disk.make_folder("s")
    write_copy(disk, "s", manifest)
    return Log.open("s", disk=disk, cache=TierCache("cache", 1 << 30, disk))


def segment(base: int, next_offset: int, number: int) -> StoredSegment:
    files = {".segment": StoredFile(100 + base, 7), ".index": StoredFile(66, 8)}
    return StoredSegment(base, next_offset, 2, 5, 6, base, 1, f"{number:016x}", files)


def facts(log: Log) -> object:
    return (
        [(s.base_offset, s.next_offset, s.size, s.damage, s.stored) for s in log.segments.shown],
        [s.cold is not None and s.cold.stored is s.stored for s in log.segments.shown],
        (
            log.segments.size,
            log.segments.num_chunks,
            log.segments.first_offset,
            log.next_offset,
            log.committed_offset,
        ),
        (len(log.segments.local), log.segments.unstored),
        [log.segments.gaps.before(s.base_offset) for s in log.segments.shown[1:]],
        log.segments.gaps.num_between(log.segments.first_offset, log.committed_offset),
    )


@st.composite
def _later(draw: st.DrawFn, before: Manifest) -> Manifest:
    """The next manifest: the oldest segments are dropped, or cut, and new ones come."""
    number, end = 1_000 * before.revision, before.next_offset
    segments = list(before.segments[draw(st.integers(0, 4)) :])
    if segments and segments[0].next_offset - segments[0].base_offset > 1 and draw(st.booleans()):
        first = segments[0]  # the log was truncated within it
        segments[0] = segment(first.base_offset + 1, first.next_offset, number)
    for new in range(draw(st.integers(0, 4))):
        base = end + draw(st.sampled_from([0, 0, 3, OFFSET_GAP, OFFSET_GAP + 3]))
        end = base + draw(st.integers(1, 5))
        segments.append(segment(base, end, number + new + 1))
    later = replace(before, revision=before.revision + 1, next_offset=end, segments=tuple(segments))
    if draw(st.booleans()):
        return later
    return decode_manifest(encode_manifest(later))  # read anew


@given(st.data())
def test_it_is_as_one_that_is_opened_anew(data: st.DataObject) -> None:
    manifest = Manifest(stream=KEY, revision=1, epoch=1, writer="w")
    manifest = data.draw(_later(manifest))
    log = opened(manifest)
    for _ in range(data.draw(st.integers(1, 6))):
        before, manifest = log.segments.shown, data.draw(_later(manifest))
        gone = log.follow(manifest, Tracking())
        assert facts(log) == facts(opened(manifest))
        bases = {one.base_offset for one in log.segments.shown}
        assert gone == [s for s in before[:-1] if s.base_offset not in bases]
        if gone:  # readers of those go on with the first one
            assert log.segments.begins_at == log.segments.first_offset

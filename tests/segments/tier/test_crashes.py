"""The log that crashes again and again, while its sealed segments are stored and leave the disk."""

from contextlib import suppress
from dataclasses import replace

from hypothesis import settings, strategies as st
from hypothesis.stateful import initialize, invariant, rule

from segments import Log
from segments.checksum import crc32
from segments.segment import INDEX_SUFFIX, SEGMENT_SUFFIX, Segment
from segments.store.cache import TierCache
from segments.store.local_copy import write_copy
from segments.store.manifest import Manifest, StoredFile, StoredSegment
from segments.store.object_names import StreamKey
from segments.tier.packing import stored_segment
from segments.tier.planning import conflict, kept_segments, next_unstored
from tests.segments.test_crashes import CrashingLog
from tests.support.disk import FaultyDisk, Killed

KEY = StreamKey("/", "s", "018bcfe56800" + "0" * 8)


def listed_anew(log: Log, kept: Manifest, new: StoredSegment | None) -> tuple[StoredSegment, ...]:
    """What the manifest should list, from all that there is."""
    named = [*kept.segments, *([new] if new is not None else [])]
    bases = {segment.base_offset for segment in log.segments.shown}
    found = {one.base_offset: one for one in named if one.base_offset in bases}
    first = log.segments.first_offset
    if min(found, default=first + 1) > first:
        found |= {s.base_offset: s for s in named if s.base_offset < first < s.next_offset}
    return tuple(found[base] for base in sorted(found))


def check_known(log: Log) -> None:
    """Sums, and what the log knows of the store, do not depend on how it has come to be so."""
    assert log.segments.size == sum(segment.size for segment in log.segments.shown)
    assert log.segments.num_chunks == sum(segment.num_chunks for segment in log.segments.shown)
    assert log.segments.local == [segment for segment in log.segments.shown if segment.cold is None]
    rows = (
        {}
        if log.stored.manifest is None
        else {s.base_offset: s for s in log.stored.manifest.segments}
    )
    *sealed, newest = log.segments.shown
    assert newest.stored is None
    for segment in sealed:
        assert segment.stored == rows.get(segment.base_offset) or segment.cold is not None
    assert log.segments.unstored == [s for s in sealed if s.stored is None and s.num_chunks]


class TieredLog(CrashingLog):
    """`objects` is what the store has, and `kept` the manifest there: no crash takes them away."""

    @initialize()
    def create_store(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.kept = Manifest(stream=KEY, revision=0, epoch=1, writer="w")

    def opened(self) -> Log:
        cache = TierCache("cache", 1 << 30, FaultyDisk())
        log = Log.open("s", self.policy, self.disk, cache=cache)
        for segment in log.segments.shown:
            self.bring(segment)
        self.cut_offsets(log)
        return log

    def bring(self, segment: Segment) -> None:
        """All of a cold segment, for whoever reads."""
        if segment.cold is not None:
            segment.cold.put(0, self.objects[segment.cold.stored.uid])

    def read(self, segment: Segment, suffix: str) -> bytes:
        return bytes(self.disk.files[segment.path(suffix)].content)

    @rule(life=st.none() | st.integers(0, 400))
    def upload(self, life: int | None) -> None:
        """Store the next segment; the process may die at any byte that it writes on the way."""
        self.log.seal()
        self.log.flush(with_checkpoint=True)
        self.durable = len(self.written)
        segment, new = next_unstored(self.log), None
        if segment is not None:
            content = self.read(segment, SEGMENT_SUFFIX)[: segment.size]
            index = self.read(segment, INDEX_SUFFIX)[: 8 + 29 * segment.num_chunks]
            files = {
                SEGMENT_SUFFIX: StoredFile(len(content), crc32(content)),
                INDEX_SUFFIX: StoredFile(len(index), crc32(index)),
            }
            uid = f"{len(self.objects):016x}"
            new = stored_segment(segment, 1, uid, files)
            self.objects[uid] = content
        segments = kept_segments(self.log, self.kept.segments, new)
        assert segments == listed_anew(self.log, self.kept, new)
        self.kept = replace(
            self.kept,
            revision=self.kept.revision + 1,
            segments=segments,
            next_offset=max([self.kept.next_offset, *(one.next_offset for one in segments)]),
        )
        self.keep(life)

    @rule(life=st.none() | st.integers(0, 400))
    def keep(self, life: int | None) -> None:
        """Write the copy of the manifest."""
        self.disk.life = life
        try:
            write_copy(self.disk, "s", self.kept)
            self.log.stored.adopt(self.kept)
        except Killed:
            self.disk.life = None
            self.log = self.opened()
            self.durable = len(self.written)
        self.disk.life = None

    @rule(number=st.integers(1, 3), life=st.none() | st.integers(0, 3))
    def evict(self, number: int, life: int | None) -> None:
        """Files of some segments go."""
        self.log.journal.write_pending(self.log.committed_offset)
        self.log.flush(with_checkpoint=True)
        self.durable = len(self.written)
        going = [s for s in self.log.segments.shown if s.stored is not None and s.cold is None]
        self.disk.life = life
        with suppress(Killed):
            for segment in going[:number]:
                if self.log.is_sure_of(segment.next_offset):
                    self.log.stored.make_cold(segment)
                    self.bring(segment)
                    segment.remove_file()
        was_killed = self.disk.life == 0
        self.disk.life = None
        if was_killed:
            self.log = self.opened()
            self.durable = len(self.written)

    @invariant()
    def what_it_knows_is_what_there_is(self) -> None:
        check_known(self.log)

    @invariant()
    def the_store_has_what_the_log_has(self) -> None:
        assert not conflict(self.log, self.kept)
        at = None
        for one in self.kept.segments:
            assert at in (None, one.base_offset)
            at = one.next_offset


TieredLog.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestTieredLog = TieredLog.TestCase

"""What a store has of a log, and which of its segments are read from there."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from segments.disk import Disk
from segments.segment import Segment
from segments.segment_list import SegmentList
from segments.store.cache import TierCache
from segments.store.manifest import Manifest, StoredSegment, changed_segments


class Marks(NamedTuple):
    """Which chunks of a log have tokens of standing selectors.

    Attributes:
        tokens: see Manifest.marked.
        next_offset: of chunks before this offset.
    """

    tokens: Mapping[str, int]
    next_offset: int


class StoredPart:
    """What a store has of a log.

    Attributes:
        marks: that are known of the chunks that a store has; None where it has none.
        manifest: what the store has, as the copy in the log's folder says; None for nothing.
    """

    def __init__(self, segments: SegmentList, cache: TierCache, disk: Disk, folder: str) -> None:
        self.cache = cache
        self.manifest: Manifest | None = None
        self.marks: Marks | None = None
        self._segments = segments
        self._disk, self._folder = disk, folder

    def adopt(self, manifest: Manifest) -> None:
        """The store has what a manifest says, and the copy of it is on the device."""
        removed, added = self._changes(manifest)
        self.manifest = manifest
        self.note_marks(Marks(manifest.marked, manifest.next_offset))
        for one in removed:
            segment = self._segments.at(one.base_offset)
            if segment is not None and segment.cold is None:
                self._segments.forget_stored(segment)
        for one in added:
            segment = self._segments.at(one.base_offset)
            if segment is None:
                continue
            if segment.cold is not None:
                segment.stored = one
                self.make_cold(segment)
            elif self._segments.is_sealed(segment) and segment.is_as_stored(one):
                segment.stored = one

    def note_marks(self, marks: Marks) -> None:
        """A store has these; what is known of later chunks stays."""
        if self.marks is None or marks.next_offset >= self.marks.next_offset:
            self.marks = marks

    def follow(self, manifest: Manifest, tail: Sequence[Segment]) -> list[Segment]:
        """Show readers what the store has, and segments behind it; see `Log.follow`."""
        removed, added = self._changes(manifest)
        disk, folder = self._disk, self._folder
        new = [Segment.of_store(disk, folder, manifest.stream, one, self.cache) for one in added]
        gone = self._segments.exchange({one.base_offset for one in removed}, new, tail)
        self.manifest = manifest
        used = {segment.base_offset for segment in new}
        return [one for one in gone if one.base_offset not in used]

    def _changes(
        self, manifest: Manifest
    ) -> tuple[tuple[StoredSegment, ...], tuple[StoredSegment, ...]]:
        """What the manifest lists no more, and what it has not listed before."""
        before = self.manifest.segments if self.manifest is not None else ()
        return changed_segments(before, manifest.segments)

    def make_cold(self, segment: Segment) -> None:
        """Read a segment from the store from now on; who reads its file can finish.

        It is sealed, on the device, and in the manifest. Its file is then to be removed, by
        `remove_file` of the segment, in a thread if the caller likes.
        """
        stored, manifest = segment.stored, self.manifest
        assert stored is not None and manifest is not None  # noqa: S101, PT018 - see above
        segment.make_cold(self.cache.segment(manifest.stream, stored, self._folder))

    def forget_cold(self) -> None:
        """The log is deleted: nothing of it is to stay in the cache."""
        for segment in self._segments.kept:
            if segment.cold is not None:
                segment.cold.forget()

"""The filter and key indexes of a log's segments: which are asked for, and taking filters in."""

from segments.filter_index import FilterIndex, Index as FilterIndexForm
from segments.observer import LogObserver
from segments.segment import Segment, SegmentWriter
from segments.segment_list import SegmentList

_SEGMENTS_AHEAD = 32  # whose filter indexes are made ready for a reader


class LogIndexes:
    """The indexes of a log's segments.

    Attributes:
        writer: of the last segment that readers may read.
        keys_requested: somebody is about to index keys; it says when that is done.
        keys_wanted_from: bytes and chunks of that segment; with either there is something to index.
            Said by whoever found that there is nothing more before.
    """

    def __init__(self, segments: SegmentList, writer: SegmentWriter, observer: LogObserver) -> None:
        self.writer = writer
        self.keys_requested = False
        self.keys_wanted_from = (0, 0)
        self._segments = segments
        self._observer = observer
        self._requests: list[Segment] = []

    def request(self, segment: Segment) -> None:
        """Ask for the filter index of this segment, with which a reader could skip chunks.

        The reader will soon need those of the next segments, so they are requested as well.
        """
        if segment.index_requested or not segment.is_indexable or segment.damage:
            return  # readers ask again for every chunk
        for one in self._segments.following(segment, _SEGMENTS_AHEAD):
            is_possible = one.is_indexable and not one.damage and not one.index_requested
            if is_possible and (one is segment or one.filters is None):
                one.index_requested = True
                self._requests.append(one)
        if self._requests:
            self._observer.index_requested()

    def take_requests(self) -> list[Segment]:
        """Segments that need a filter index, or have one in memory that can be written."""
        requested, self._requests = self._requests, []
        return [one for one in requested if self._segments.at(one.base_offset) is one]

    def request_keys(self) -> None:
        """Ask for the key indexes that are missing, unless they are asked for."""
        if not self.keys_requested:
            self.keys_requested = True
            self._observer.keys_requested()

    def size_of(self, segment: Segment) -> int:
        """Bytes of a segment that a filter index has to be made for; its writer knows the rest."""
        return segment.size if self._segments.is_sealed(segment) else self.writer.start_size

    def adopt(self, segment: Segment, filters: FilterIndexForm, size: int) -> None:
        """Give readers the filter index of a segment's first `size` bytes."""
        if self._segments.is_sealed(segment):
            if size == segment.size:
                segment.filters = filters
        elif isinstance(filters, FilterIndex) and segment.filters is None:
            self.writer.adopt(filters)

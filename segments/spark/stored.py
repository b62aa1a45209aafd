"""A stream in an object store, of which only what a query needs is read.

The manifest says which segments there are, their indexes where their chunks are, and their filter
indexes which of these may hold what is asked for: so planning reads no segment. Tasks read ranges.
Behind the segments comes what write-ahead logs have of a stream that is confirmed by the store. All
else that was published since the newest stored segment was sealed is not in the store.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from urllib.parse import unquote

import numpy as np

from segments.codec import FILE_HEADER_SIZE, Damage
from segments.disk import Buffer
from segments.errors import CorruptError, FormatError
from segments.filter_index import FilterFile, Shape, content_crc
from segments.format_constants import USER
from segments.segment import FILTER_SUFFIX, INDEX_SUFFIX, SEGMENT_SUFFIX
from segments.spark import headers as columns
from segments.spark.files import SegmentGone, Window, runs_of
from segments.spark.headers import Bytes, Mask, Numbers
from segments.spark.inventory import EVERYTHING, Bounds, Gap, Listing, NotAStream, NothingYet
from segments.spark.messages import PADDING
from segments.spark.ranges import Range, ask_in_order, merged, read_in_order
from segments.spark.screen import Screen, by_filters, by_index, keep_all
from segments.spark.stored_tail import Part, Slots, chunks_of
from segments.store.address import parse_address
from segments.store.lookup import find_stream, read_folder
from segments.store.manifest import Manifest, StoredSegment
from segments.store.manifest_store import still_names
from segments.store.object_store import MissingError, ObjectStore, TierError
from segments.store.stores import open_store
from segments.tier.fetching import BadFileError, file_beside

_MARK = "://"


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where a store is, without anything secret: whoever opens it has the credentials.

    Attributes:
        url: as `open_store` takes it.
        endpoint: see there; empty for the provider's.
    """

    url: str
    endpoint: str = ""

    def open(self) -> ObjectStore:
        """The store, one for each process.

        Raises:
            TierError: it cannot be used from here.
        """
        return _opened(self, os.getpid())


_first_process = 0


@cache
def _opened(place: StorePlace, process: int) -> ObjectStore:
    global _first_process  # noqa: PLW0603 - a process has one such past
    if _first_process not in (0, process):
        raise TierError(
            "this process was forked from one that had used the store, and the library's threads "
            "did not come along; start it by spawning instead"
        )
    _first_process = process
    return open_store(place.url, place.endpoint)


def is_in_store(path: str) -> bool:
    """Whether a path is that of a stream in a store, such as s3://BUCKET/PREFIX/VHOST/STREAM."""
    return _MARK in path


def find_stored(path: str, endpoint: str = "") -> "StoredStream":
    """The stream at a path; names in it are escaped as in URLs.

    Raises:
        NotAStream: the path is none.
        NothingYet: nothing is stored of such a stream.
        TierError: the store refused, or could not be reached.
        FormatError: its manifest cannot be used.
    """
    url, host, name = _parts(path)
    place = StorePlace(url, parse_address(url, endpoint).endpoint)
    store, slots = place.open(), Slots((host, name))
    slots.look(store)
    manifest, reason = None, ""
    try:
        manifest = find_stream(store, host, name, slots.since)
    except MissingError as error:
        reason = str(error)
    newest = slots.newest(manifest)
    if newest is None:
        raise NothingYet(
            f"{reason} in {url}; a path ends with virtual host and stream, as %2F/NAME, and a "
            "stream is there once its first segment was uploaded"
        )
    return StoredStream(place, newest, slots)


def _parts(path: str) -> tuple[str, str, str]:
    """URL of the store, virtual host and stream."""
    scheme, _, rest = path.partition(_MARK)
    *where, host, name = ["", "", *rest.split("/")]
    if "@" in rest.partition("/")[0] or not (host and name and any(where)):
        shown = "the path" if "@" in path else path
        raise NotAStream(
            f"{shown} is not a stream in a store, expected a path such as "
            "s3://BUCKET/PREFIX/%2F/NAME with virtual host and stream, escaped as in URLs"
        )
    return f"{scheme}{_MARK}{'/'.join(where[2:])}", unquote(host), unquote(name)


class StoredStream:
    """A stream of which there is something; see inventory.Stream.

    Args:
        manifest: an empty one where there is none.
        slots: as they were before that was read.
    """

    def __init__(self, place: StorePlace, manifest: Manifest, slots: Slots) -> None:
        self._place = place
        self._manifest, self._slots = manifest, slots
        self._tail = slots.behind(manifest)
        self.name = manifest.stream.stream
        self.path = f"{place.url}/{manifest.stream.folder}"
        self.life = manifest.stream.creation

    def listings(  # noqa: D102 - see Stream
        self,
        bounds: Bounds = EVERYTHING,
        *,
        only_indexed: bool = False,  # noqa: ARG002 - stored segments are sealed
    ) -> Iterator[Listing]:
        wanted = (
            segment
            for segment in self._manifest.segments
            if segment.next_offset > bounds.start_offset
            and (bounds.end_offset is None or segment.base_offset < bounds.end_offset)
        )
        list_one = partial(self._listing, store=self._place.open(), bounds=bounds)
        yield from (found for found in ask_in_order(list_one, wanted) if found is not None)
        yield from self._tail_listings(bounds)

    def _tail_listings(self, bounds: Bounds) -> Iterator[Listing]:
        """Chunks behind the segments."""
        end = self._manifest.next_offset
        wanted = [
            part
            for part in self._tail
            if part.section.next_offset > bounds.start_offset
            and (bounds.end_offset is None or part.section.after < bounds.end_offset)
        ]
        list_one = partial(self._tail_listing, store=self._place.open(), bounds=bounds)
        try:
            for found in ask_in_order(list_one, wanted, lambda part: part.section.size):
                yield found
                end = found.next_offset
        except MissingError:  # segments have them by now
            start = max(end, wanted[0].section.after)
            for found in self.refreshed().listings(bounds._replace(start_offset=start)):
                yield _behind(found, start)

    def _tail_listing(self, part: Part, *, store: ObjectStore, bounds: Bounds) -> Listing:
        file = StoredFile(self._place, part.key, part.size)
        try:
            chunks = chunks_of(store, part, self._manifest.next_offset)
        except FormatError as error:
            raise CorruptError(file.path, part.position, str(error)) from error
        headers = chunks.headers
        ids = headers["chunk_id"].astype(np.int64)
        filters = by_filters(chunks, chunks.positions, headers)
        return Listing(
            file,
            int(ids[0]),
            chunks.positions,
            columns.total_sizes(headers),
            ids,
            columns.next_offsets(headers),
            headers["timestamp_ms"].astype(np.int64),
            headers["chunk_type"] == USER,
            filters if bounds.needs_filters else keep_all,
            [],
            part.section.next_offset,
        )

    def ends(self) -> tuple[int, int]:  # noqa: D102 - see Stream
        return self._manifest.first_offset, self.sealed_end()

    def sealed_end(self) -> int:  # noqa: D102 - see Stream
        segments = self._manifest.segments
        if self._tail:
            return self._tail[-1].section.next_offset
        return segments[-1].next_offset if segments else self._manifest.next_offset

    def refreshed(self) -> "StoredStream":
        """The stream as its manifest says it now.

        Raises:
            NotAStream: it is no more.
            TierError: the store refused, or could not be reached.
        """
        key, store = self._manifest.stream, self._place.open()
        self._slots.look(store)
        try:
            found: Manifest | None = read_folder(store, key.folder).manifest
        except MissingError:
            found = None if self._manifest.revision else self._slots.newest(None)
        if found is None or found.is_deleted or found.stream != key:
            raise NotAStream(f"{self.path} was deleted while it was read")
        return StoredStream(self._place, found, self._slots)

    def _listing(
        self, segment: StoredSegment, *, store: ObjectStore, bounds: Bounds
    ) -> Listing | None:
        """The chunks of a segment; None where it was removed meanwhile."""
        file = self._file(segment)
        try:
            index = file_beside(store, self._manifest.stream, segment, INDEX_SUFFIX)
        except MissingError:
            return self._missed(segment, store=store, bounds=bounds)
        except BadFileError as error:
            raise CorruptError(f"{self._place.url}/{file.key}", 0, str(error)) from error
        screen = self._screen(store, segment) if bounds.needs_filters else keep_all
        return _listing(file, segment, index, screen)

    def _missed(
        self, segment: StoredSegment, *, store: ObjectStore, bounds: Bounds
    ) -> Listing | None:
        """What there is in place of a segment that is not there."""
        if still_names(store, self._manifest, segment):
            return _lost(self._file(segment), segment)
        # It may have been truncated: its rest is another segment.
        where = bounds._replace(start_offset=segment.base_offset, end_offset=segment.next_offset)
        return next(iter(self.refreshed().listings(where)), None)

    def _file(self, segment: StoredSegment) -> "StoredFile":
        key = segment.key(self._manifest.stream, SEGMENT_SUFFIX)
        return StoredFile(self._place, key, segment.size)

    def _screen(self, store: ObjectStore, segment: StoredSegment) -> Screen:
        """The test by the filter index; where there is none, all chunks have to be read."""
        if FILTER_SUFFIX not in segment.files:
            return keep_all
        try:
            raw = file_beside(store, self._manifest.stream, segment, FILTER_SUFFIX)
        except (MissingError, BadFileError):
            return keep_all
        # That it is of this content was seen when it was uploaded; the checksum says it is that.
        parts = segment.size, segment.base_offset, segment.num_chunks
        try:
            return by_index(FilterFile(raw, Shape(*parts, content_crc(raw))))
        except FormatError:
            return keep_all


def _listing(file: "StoredFile", segment: StoredSegment, index: bytes, screen: Screen) -> Listing:
    """The chunks as the index has them; a chunk ends where the next one, or damage, begins."""
    records = columns.index_records(index)
    if len(records) != segment.num_chunks:
        reason = f"it lists {len(records)} chunks, its manifest {segment.num_chunks}"
        raise CorruptError(file.path, 0, reason)
    positions, ids = records["position"].astype(np.int64), records["chunk_id"].astype(np.int64)
    damage = sorted(segment.damage)
    keep = np.ones(len(records), np.bool_)
    for place in damage:
        keep &= (positions < place.position) | (positions >= place.end)
    rows = np.flatnonzero(keep)
    starts = [*((d.position, d.first_offset) for d in damage), (segment.size, segment.next_offset)]
    sizes, ends = _ends(positions[rows], ids[rows], np.array(starts, np.int64))
    return Listing(
        file,
        segment.base_offset,
        positions[rows],
        sizes,
        ids[rows],
        ends,
        records["timestamp_ms"][rows].astype(np.int64),
        records["chunk_type"][rows] == USER,
        _of_rows(screen, rows),
        [_gap(file, place) for place in damage],
        segment.next_offset,
    )


def _behind(listing: Listing, offset: int) -> Listing:
    """A listing without chunks and gaps before an offset."""
    rows = np.flatnonzero(listing.chunk_ids >= offset)
    return listing._replace(
        base_offset=max(listing.base_offset, offset),
        positions=listing.positions[rows],
        sizes=listing.sizes[rows],
        chunk_ids=listing.chunk_ids[rows],
        chunk_ends=listing.chunk_ends[rows],
        timestamps=listing.timestamps[rows],
        is_user=listing.is_user[rows],
        screen=_of_rows(listing.screen, rows),
        gaps=[gap for gap in listing.gaps if gap.next_offset > offset],
    )


def _lost(file: "StoredFile", segment: StoredSegment) -> Listing:
    """A segment that is not in the store, although its manifest names it."""
    whole = Damage(FILE_HEADER_SIZE, segment.size, segment.base_offset, segment.next_offset)
    found = _listing(file, replace(segment, num_chunks=0, damage=(whole,)), b"", keep_all)
    reason = "it is not in the store, and the stream's manifest names it"
    return found._replace(gaps=[gap._replace(reason=reason) for gap in found.gaps])


def _ends(positions: Numbers, ids: Numbers, others: Numbers) -> tuple[Numbers, Numbers]:
    """Sizes of chunks, and the offsets behind them.

    Args:
        positions: of the chunks.
        ids: of the chunks.
        others: position and offset of whatever else ends a chunk, ascending.
    """
    places = np.concatenate([positions, others[:, 0]])
    offsets = np.concatenate([ids, others[:, 1]])
    order = np.argsort(places, kind="stable")
    behind = np.searchsorted(places[order], positions, side="right")
    return places[order][behind] - positions, offsets[order][behind]


def _of_rows(screen: Screen, rows: Numbers) -> Screen:
    """The test of a segment's chunks, for some of them that are counted anew."""
    return lambda some, matcher: screen(rows[some], matcher)


def _gap(file: "StoredFile", damage: Damage) -> Gap:
    reason = "this part was damaged before it was uploaded"
    return Gap(
        file.path, damage.position, damage.end, damage.first_offset, damage.next_offset, reason
    )


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A segment in a store; see files.SegmentFile.

    Attributes:
        size: of it, in bytes.
    """

    place: StorePlace
    key: str
    size: int

    @property
    def path(self) -> str:  # noqa: D102 - see SegmentFile
        return f"{self.place.url}/{self.key}"

    def blocks(  # noqa: D102 - see SegmentFile
        self, positions: Numbers, sizes: Numbers, blocks: Sequence[range]
    ) -> Iterator[Bytes]:
        ends = positions + sizes
        requests = [
            merged(positions[rows.start : rows.stop], ends[rows.start : rows.stop])
            for rows in blocks
        ]
        found = self.read(part for parts in requests for part, _ in parts)
        for rows, parts in zip(blocks, requests, strict=True):
            buffer = np.zeros(int(sizes[rows.start : rows.stop].sum()) + PADDING, np.uint8)
            first = filled = 0
            for part, count in parts:
                some = slice(rows.start + first, rows.start + first + count)
                raw = np.frombuffer(next(found), np.uint8)
                filled += _copy(raw, positions[some] - part.start, sizes[some], buffer[filled:])
                first += count
            yield buffer

    def window(self, start: int, end: int) -> Window:  # noqa: D102 - see SegmentFile
        return _Fetched(self, start, end)

    def read(self, ranges: Iterator[Range] | Sequence[Range]) -> Iterator[Buffer]:
        """The bytes of some ranges.

        Raises:
            SegmentGone: it was removed.
            TierError: they cannot be read.
        """
        store = self.place.open()
        try:
            yield from read_in_order(partial(store.get_range, self.key), ranges)
        except MissingError as error:
            raise SegmentGone(self.path) from error


def _copy(raw: Bytes, starts: Numbers, sizes: Numbers, buffer: Bytes) -> int:
    """Copy chunks into a buffer back to back; returns their bytes."""
    filled = 0
    for run in runs_of(starts, sizes):
        start, size = int(starts[run[0]]), int(sizes[run].sum())
        buffer[filled : filled + size] = raw[start : start + size]
        filled += size
    return filled


class _Fetched:
    """A part of a stored segment; see files.Window.

    Its memory is given by the system where something is loaded, and nowhere else.
    """

    def __init__(self, file: StoredFile, start: int, end: int) -> None:
        self.start = start
        self.content: Bytes = np.zeros(end - start, np.uint8)
        self._file = file
        self._loaded: list[Range] = []

    def load(self, starts: Numbers, ends: Numbers) -> None:
        missing = self._missing(starts, ends)
        ranges = [part for part, _ in merged(starts[missing], ends[missing])]
        for part, raw in zip(ranges, self._file.read(ranges), strict=True):
            at = part.start - self.start
            self.content[at : at + part.size] = np.frombuffer(raw, np.uint8)
        self._loaded = sorted(self._loaded + ranges)

    def _missing(self, starts: Numbers, ends: Numbers) -> Mask:
        missing: Mask = starts < ends
        for part in self._loaded:
            missing &= (starts < part.start) | (ends > part.end)
        return missing

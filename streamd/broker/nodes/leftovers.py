"""What an earlier leader has that its cluster lacks: it is kept in `orphans`, and said.

Theory of operation. A leader that was taken over has confirmed messages of streams with
`confirm=local` that it had not uploaded. When it becomes a standby, its streams are moved to
`earlier` in its data folder (folder.py). Once it knows all that the store has, each of them is
looked through, by the headers of its chunks:

    in a manifest, or a write-ahead log, or before what this        the cluster has it, or has
    node itself had uploaded                                        dropped it: it goes
    of a stream that was confirmed by the store from its            nobody was told that it is
    declaration on, and in neither                                  stored: it goes
    anything else                                                   its segments are kept

It may end anywhere, and begins again with the next start: what was dealt with is not there then.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import trio

from segments.codec import CHUNK_HEADER_SIZE, FILE_HEADER_SIZE
from segments.disk import OsDisk
from segments.errors import SegmentsError
from segments.marks import LIFE, STORED, marked
from segments.segment import SEGMENT_SUFFIX, parse_name, read_header
from segments.words import plural
from streamd.broker.catalog.catalog import CATALOG_FILE, Catalog, CatalogError
from streamd.broker.declared.rows import StreamRow
from streamd.broker.nodes.folder import EARLIER
from streamd.broker.orphans import set_aside
from streamd.broker.tier.removals import copy_of
from streamd.broker.tier.restore import STREAMS
from streamd.net import threads
from streamd.operations.arguments import CONFIRM, STORE
from streamd.operations.names import Name, stream_folder

logger = logging.getLogger(__name__)


class Kept(NamedTuple):
    """What a cluster has of a stream.

    Attributes:
        life: tells it from others of that name; empty where there is none.
        ranges: first offset of each, and the one behind it, in their order; they do not overlap.
    """

    life: str
    ranges: list[tuple[int, int]]

    def has(self, first: int, next_offset: int) -> bool:
        """Whether it has all from one offset to before another one."""
        at = bisect_right(self.ranges, (first, 1 << 64)) - 1
        return at >= 0 and next_offset <= self.ranges[at][1]


class Lacking(NamedTuple):
    """What a cluster lacks of a stream.

    Attributes:
        num: of messages.
        first, last: offsets of them.
        segments: base offsets of the segments with some of them, or that cannot be read.
    """

    num: int
    first: int
    last: int
    segments: frozenset[int]


def together(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same offsets in ranges that do not touch each other, in their order."""
    found: list[tuple[int, int]] = []
    for first, behind in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], behind)
        else:
            found.append((first, behind))
    return found


async def sort_out(data: str, kept: Callable[[Name, Name], Kept]) -> None:
    """Keep what the cluster lacks of all that earlier leads have left, and remove the rest.

    Args:
        data: the data folder.
        kept: what the cluster has of a stream, by its virtual host and its name.

    Raises:
        SegmentsError: the disk refused.
        OSError: the same.
    """
    with threads.using(trio.CapacityLimiter(1)):  # a takeover does not wait for it
        for earlier in await threads.in_thread(_sorted, Path(data, EARLIER), "*"):
            for row, folder in await threads.in_thread(_streams, earlier):
                has = Kept("", []) if row is None else kept(row.virtual_host, row.name)
                await threads.in_thread(_sort_out_stream, data, folder, row, has)
            await threads.in_thread(OsDisk().remove_folder, str(earlier))


def _streams(earlier: Path) -> list[tuple[StreamRow | None, Path]]:
    """Folders of streams, and what the catalog said of each."""
    rows = _rows(earlier)
    known = {stream_folder(str(earlier), row.virtual_host, row.name): row for row in rows}
    return [(known.get(str(one)), one) for one in _sorted(Path(earlier, STREAMS), "*/*")]


def _sorted(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern))


def _rows(earlier: Path) -> list[StreamRow]:
    if not Path(earlier, CATALOG_FILE).exists():
        return []
    try:
        with closing(Catalog(str(earlier))) as catalog:
            return list(catalog.streams())
    except CatalogError as error:
        logger.error("what %s has is kept: %s", earlier, error)
        return []


def _sort_out_stream(data: str, folder: Path, row: StreamRow | None, kept: Kept) -> None:
    names = OsDisk().list(str(folder))
    lives = marked(names, LIFE) or marked(names, STORED)
    is_known = bool(kept.life) and kept.life in lives
    uploaded = _uploaded(folder)
    found = lacking(folder, together([*kept.ranges, (0, uploaded)]) if is_known else [])
    stream = folder.name if row is None else f"{row.name} in {row.virtual_host}"
    if not found.segments:
        return
    first, last = f"{found.first:,}", f"{found.last:,}"
    what = f"{plural(found.num, 'message')}, offsets {first} to {last}"
    if is_known and row is not None and _waits_for_store(row):
        logger.info("stream %s: %s, were never confirmed, and are dropped", stream, what)
        return
    for name in names:
        parsed = parse_name(name)
        if parsed is not None and parsed[0] not in found.segments:
            OsDisk().remove(str(folder / name))
    text = f"stream {stream}, which this node has led: the cluster lacks {what}"
    set_aside(data, folder, f"{text}, see `python -m segments dump`")


def _waits_for_store(row: StreamRow) -> bool:
    """Nothing of it was ever confirmed before the store had it."""
    return row.arguments.get(CONFIRM) == STORE and CONFIRM not in row.settings


def _uploaded(folder: Path) -> int:
    """The offset up to which a stream was uploaded from its folder, as far as that is known."""
    try:
        copy = copy_of(OsDisk(), str(folder))
    except SegmentsError:
        return 0
    return 0 if copy is None else copy.next_offset


def lacking(folder: Path, ranges: list[tuple[int, int]]) -> Lacking:
    """What is in a stream's folder, and not in some ranges of offsets; blocks.

    Raises:
        SegmentsError: the disk refused.
    """
    kept, num, segments = Kept("", ranges), 0, set()
    offsets: list[tuple[int, int]] = []
    for name in OsDisk().list(str(folder)):
        parsed = parse_name(name)
        if parsed is None or parsed[1] != SEGMENT_SUFFIX:
            continue
        for first, behind in _chunks(str(folder / name), parsed[0]):
            if behind == _UNREADABLE:
                segments.add(parsed[0])
            elif not kept.has(first, behind):
                segments.add(parsed[0])
                num += behind - first
                offsets.append((first, behind))
    if not offsets:
        return Lacking(0, 0, 0, frozenset(segments))
    last = max(behind for _, behind in offsets) - 1
    return Lacking(num, min(offsets)[0], last, frozenset(segments))


_UNREADABLE = -1


def _chunks(path: str, base: int) -> Iterator[tuple[int, int]]:
    """First offset of each chunk, and the one behind it; _UNREADABLE where that ends early."""
    with closing(OsDisk().open(path, writable=False)) as file:
        position, offset, size = FILE_HEADER_SIZE, base, file.size()
        while position < size:
            try:
                header = read_header(file, position, offset)
            except SegmentsError:
                header = None
            if position + (CHUNK_HEADER_SIZE if header is None else header.total_size) > size:
                return  # the process ended while it wrote this
            if header is None:
                yield offset, _UNREADABLE
                return
            if header.num_records:
                yield header.chunk_id, header.next_offset
            position, offset = position + header.total_size, header.next_offset

"""Which chunks of a segment hold which filter values: the others are skipped unread.

The newest segment's index grows in memory with it. A sealed segment's is in `<base>.filter`; it is
derived, and rebuilt when it is missing or was made from another content of its segment. Both are
exact: a chunk without the value is not looked at, where its Bloom filter would let it through.

A file is copied into memory, not mapped: a mapped file that somebody cuts, or that the device
cannot read, ends the process.

A chunk whose values are not known (its trailer has no history, its header fails its check, another
program wrote it) is `uncertain`: it is always looked at.
"""

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias, Union

import mmh3

from segments import codec
from segments.bloom import ChunkMatcher, Clause
from segments.checksum import crc32
from segments.codec import FILE_HEADER_SIZE
from segments.errors import FormatError
from segments.property_keys import is_of_property, marks_among

UNFILTERED = b""  # the key of "some message has no filter value"
# Kept in memory for one segment, some 60 MB at most; chunks beyond that are uncertain.
MAX_POSTINGS = 4 << 20
MAX_KEYS = 100_000
_MAX_LOOKUPS = 64  # of keys at once, where a filter has several clauses; some 50 µs
_POSTINGS_AT_ONCE = 32 << 10
_FIELDS = struct.Struct(">QQIIIIII")  # see layout.FILTER_INDEX
_CRC = struct.Struct(">I")
_CRC_AT = FILE_HEADER_SIZE + _FIELDS.size
_BODY = _CRC_AT + _CRC.size
_UNFILTERED_PRINT = 0
_PADDING = 8 - _BODY % 8  # so that the columns stand where 8-byte numbers may
Numbers: TypeAlias = Sequence[int]


class FilterIndex:
    """The index of a segment that grows, in memory.

    Attributes:
        positions: where each chunk begins in the segment file.
        chunk_ids: offset of each chunk's first message.
        bare: ordinals of chunks in which no message has a filter value.
        uncertain: ordinals of chunks that may hold anything.
        postings: ordinals of the chunks that hold a key.
        num_postings: how many ordinals those are.
    """

    def __init__(self) -> None:
        self.positions: array[int] = array("I")
        self.chunk_ids: array[int] = array("Q")
        self.bare: array[int] = array("I")
        self.uncertain: array[int] = array("I")
        self.postings: dict[bytes, array[int]] = {}
        self.num_postings = 0

    def add(self, position: int, chunk_id: int, keys: Collection[bytes] | None) -> None:
        """Add the next chunk.

        Args:
            position: where it begins.
            chunk_id: offset of its first message.
            keys: its filter values as trailers have them, an empty one for messages without;
                None when they are not known.
        """
        ordinal = len(self.positions)
        self.positions.append(position)
        self.chunk_ids.append(chunk_id)
        if keys is None or not self._has_room(keys):
            self.uncertain.append(ordinal)
            return
        for key in keys:
            found = self.postings.get(key)
            if found is None:
                self.postings[key] = array("I", (ordinal,))
            else:
                found.append(ordinal)
        self.num_postings += len(keys)
        if UNFILTERED in keys and (len(keys) == 1 or _is_bare(keys)):
            self.bare.append(ordinal)

    def _has_room(self, keys: Collection[bytes]) -> bool:
        if self.num_postings + len(keys) > MAX_POSTINGS:
            return False
        if len(self.postings) + len(keys) <= MAX_KEYS:
            return True
        return all(key in self.postings for key in keys)

    def next_match(self, keys: Iterable[bytes], ordinal: int, mark: bytes | None = None) -> int:
        """The first chunk from `ordinal` on that may hold one of the keys; else their number.

        Args:
            keys: what is looked for.
            ordinal: of the first chunk that is asked about.
            mark: a chunk that does not hold this may hold any of the keys.
        """
        best = _first(self.uncertain, ordinal, len(self.positions))
        for key in keys:
            found = self.postings.get(key)
            if found is not None:
                best = _first(found, ordinal, best)
        if mark is not None:
            best = _first_gap(self.postings.get(mark, ()), ordinal, best)
        return best

    def holding(self, key: bytes, chunks: range) -> Iterable[int]:
        """Ordinals of those of some chunks that hold a key."""
        return _within(self.postings.get(key, ()), chunks)

    def part(self, keys: Collection[bytes], most: int) -> "FilterIndex | None":
        """What it says of some keys, as it is now, without the places of chunks.

        None where that are more than so many ordinals.
        """
        found = {key: self.postings[key] for key in keys if key in self.postings}
        if len(self.uncertain) + sum(map(len, found.values())) > most:
            return None
        part = FilterIndex()
        part.uncertain = self.uncertain[:]
        part.postings = {key: ordinals[:] for key, ordinals in found.items()}
        return part

    def extend(self, later: "FilterIndex") -> None:
        """Add all chunks of an index that goes on where this one ends."""
        base = len(self.positions)
        self.positions.extend(later.positions)
        self.chunk_ids.extend(later.chunk_ids)
        for ours, theirs in ((self.bare, later.bare), (self.uncertain, later.uncertain)):
            ours.extend(base + ordinal for ordinal in theirs)
        for key, ordinals in later.postings.items():
            self.postings.setdefault(key, array("I")).extend(base + n for n in ordinals)
        self.num_postings += later.num_postings

    def encode(self, shape: "Shape") -> bytes:
        """The content of a filter file, for a segment that is sealed."""
        prints = sorted((fingerprint(key), key) for key in self.postings)
        starts, ordinals = array("I", (0,)), array("I")
        for _, key in prints:
            ordinals.extend(self.postings[key])
            starts.append(len(ordinals))
        columns = (
            self.chunk_ids,
            array("Q", (number for number, _ in prints)),
            self.positions,
            starts,
            ordinals,
            self.bare,
            self.uncertain,
        )
        body = b"".join(_little(column) for column in columns)
        fields = _FIELDS.pack(
            shape.size,
            shape.base_offset,
            len(self.positions),
            len(prints),
            len(ordinals),
            len(self.bare),
            len(self.uncertain),
            shape.content_crc,
        )
        crc = _CRC.pack(crc32(body, crc32(fields)))
        return b"".join((codec.FILTER_INDEX_HEADER, fields, crc, bytes(_PADDING), body))


class Shape(NamedTuple):
    """What a filter file has to fit.

    Attributes:
        content_crc: of what the segment holds, see layout.FILTER_INDEX.
    """

    size: int
    base_offset: int
    num_chunks: int
    content_crc: int


def content_crc(raw: bytes) -> int:
    """The checksum of the content that a filter file says it is of; see Shape.

    Raises:
        FormatError: it is cut off.
    """
    if len(raw) < _CRC_AT:
        raise FormatError("the filter file is cut off")
    crc: int = _FIELDS.unpack(raw[FILE_HEADER_SIZE:_CRC_AT])[-1]
    return crc


class FilterFile:
    """The index of a sealed segment, from its filter file.

    Attributes:
        num_bytes: that it takes.

    Raises:
        FormatError: it is not a filter file, is damaged, or is of another state of the segment.
    """

    def __init__(self, raw: bytes, shape: Shape) -> None:
        codec.check_file_header(raw[:FILE_HEADER_SIZE], codec.FILTER_INDEX_HEADER)
        if len(raw) < _BODY:
            raise FormatError("the filter file is cut off")
        fields = raw[FILE_HEADER_SIZE:_CRC_AT]
        size, base, chunks, prints, ordinals, bare, uncertain, content = _FIELDS.unpack(fields)
        if (size, base, chunks, content) != shape:
            raise FormatError("the filter file is that of another segment, or of an older state")
        view = memoryview(raw)[_BODY + _PADDING :]
        words = (chunks, prints)
        halves = (chunks, prints + 1, ordinals, bare, uncertain)
        if len(view) != 8 * sum(words) + 4 * sum(halves):
            raise FormatError(
                f"the filter file has {len(raw)} bytes, which does not fit its counts"
            )
        if _CRC.pack(crc32(view, crc32(fields))) != raw[_CRC_AT:_BODY]:
            raise FormatError("the filter file fails its checksum")
        self.num_bytes = len(raw)
        columns: list[Numbers] = []
        for count, kind, width in (*((n, "Q", 8) for n in words), *((n, "I", 4) for n in halves)):
            columns.append(_numbers(view[: count * width], kind))
            view = view[count * width :]
        self.chunk_ids, self._prints, self.positions = columns[:3]
        self._starts, self._ordinals, self.bare, self.uncertain = columns[3:]

    def next_match(self, keys: Iterable[bytes], ordinal: int, mark: bytes | None = None) -> int:
        """See FilterIndex."""
        best = _first(self.uncertain, ordinal, len(self.positions))
        for key in keys:
            for start, stop in self._ends(key):
                found = bisect_left(self._ordinals, ordinal, start, stop)
                if found < stop:
                    best = min(best, self._ordinals[found])
        if mark is not None:
            best = _first_gap(self._ordinals, ordinal, best, *next(self._ends(mark), (0, 0)))
        return best

    def holding(self, key: bytes, chunks: range) -> Iterable[int]:
        """See FilterIndex."""
        ordinals = self._ordinals
        return chain.from_iterable(_within(ordinals, chunks, *ends) for ends in self._ends(key))

    def _ends(self, key: bytes) -> Iterator[tuple[int, int]]:
        """Between which places the ordinals of a key stand; several keys may have its print."""
        prints, wanted = self._prints, fingerprint(key)
        at = bisect_left(prints, wanted)
        while at < len(prints) and prints[at] == wanted:
            yield self._starts[at], self._starts[at + 1]
            at += 1


Index: TypeAlias = Union[FilterIndex, FilterFile]  # noqa: UP007 - one name for both


def next_match(index: Index, matcher: ChunkMatcher, ordinal: int) -> int:
    """The first chunk from `ordinal` on that may match; else their number. See `next_of_all`."""
    if matcher.is_simple:
        return index.next_match(matcher.keys, ordinal)
    return next_of_all(index, matcher.clauses, ordinal)


def matching(index: Index, matcher: ChunkMatcher, chunks: range) -> list[int]:
    """The numbers of the chunks in a range that may match, in order.

    It takes as long as those chunks have postings of what is asked for, whatever follows them.
    """
    found = set(chunks)
    for clause in matcher.clauses:
        may = set(_within(index.uncertain, chunks))
        for key in clause.keys:
            may.update(index.holding(key, chunks))
        if clause.mark is not None:
            may.update(found.difference(index.holding(clause.mark, chunks)))
        found &= may
    return sorted(found)


def chunks_at_once(matchers: Iterable[ChunkMatcher]) -> int:
    """How many chunks `matching` takes at most a millisecond or two for."""
    keys = sum(len(clause.keys) + 1 for matcher in matchers for clause in matcher.clauses)
    return max(1, _POSTINGS_AT_ONCE // (keys + 1))


def next_of_all(index: Index, clauses: Sequence[Clause], ordinal: int) -> int:
    """The first chunk from `ordinal` on that may match all clauses; else their number.

    Where it takes long to find, another one before it: no chunk from `ordinal` up to that matches.
    It is `ordinal` itself only when that may match.
    """
    target = ordinal
    keys = sum(len(clause.keys) + 1 for clause in clauses)
    for _ in range(max(1, _MAX_LOOKUPS // keys)):
        start = target
        for clause in clauses:
            target = index.next_match(clause.keys, target, clause.mark)
        if target == start:
            break
    return target


def _is_bare(keys: Collection[bytes]) -> bool:
    """Whether several keys are no filter values, but for those of further filter properties."""
    if not all(not key or is_of_property(key) for key in keys):
        return False
    return bool(marks_among(keys))  # else they only look like such keys


def fingerprint(key: bytes) -> int:
    """What stands for a key in a filter file: 64 bits, 0 for messages without a filter value."""
    if not key:
        return _UNFILTERED_PRINT
    return mmh3.hash64(key, seed=0, x64arch=True, signed=False)[0] or 1


def _within(ordinals: Numbers, chunks: range, start: int = 0, stop: int | None = None) -> Numbers:
    """The ordinals, sorted between `start` and `stop`, that lie in a range of chunks."""
    stop = len(ordinals) if stop is None else stop
    start = bisect_left(ordinals, chunks.start, start, stop)
    return ordinals[start : bisect_left(ordinals, chunks.stop, start, stop)]


def _first(ordinals: Numbers, ordinal: int, otherwise: int) -> int:
    """The first of sorted ordinals that is not below `ordinal`, if it is below `otherwise`."""
    at = bisect_left(ordinals, ordinal)
    return min(ordinals[at], otherwise) if at < len(ordinals) else otherwise


def _first_gap(
    ordinals: Numbers, ordinal: int, otherwise: int, start: int = 0, stop: int | None = None
) -> int:
    """The first number from `ordinal` on that is not among sorted ordinals, up to `otherwise`.

    Args:
        ordinals: distinct, and sorted between
        start: and
        stop: which is their end for None.
        ordinal: where to begin.
        otherwise: the answer where there is none before it.
    """
    stop = len(ordinals) if stop is None else stop
    at = bisect_left(ordinals, ordinal, start, stop)
    last = min(stop, at + otherwise - ordinal)  # behind what can follow without a gap
    if last == at or ordinals[last - 1] == ordinal + last - 1 - at:
        return min(ordinal + last - at, otherwise)
    shift = ordinal - at
    found = bisect_left(range(at, last), 1, key=lambda place: ordinals[place] - place > shift)
    return ordinal + found


def _little(column: "array[int]") -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def _numbers(view: memoryview, kind: str) -> Numbers:
    if sys.byteorder == "little":
        return view.cast(kind)  # type: ignore[call-overload,no-any-return] # "I" or "Q"
    column = array(kind, view.tobytes())
    column.byteswap()
    return column

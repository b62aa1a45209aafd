"""Which messages of a chunk have which filter value: its columns, in the trailer.

A trailer lists the filter values of a chunk with their counts. A column says for each message
which of them it has, as the value's place in that list: its ordinal. An ordinal takes as many bits
as the number of values asks for, none where all messages have the same. The bits stand apart from
each other, first the lowest one of all messages, then the next: in such a plane a message is one
bit, so what AND, OR and NOT ask of columns is asked of all messages of a chunk at once, in numbers
as long as the chunk has messages. There is a column for the plain filter values and one for each
further filter property (see `property_keys`).

Beside the columns stands where each 32nd message begins, so that one message is opened without a
walk over all lengths before it.

The section stands in blocks of a kind that trailers of messages do not have otherwise, and that
all readers of before pass over. It has no checksum but that of the trailer. What cannot be read
tells nothing: then all messages are looked at, and no match is lost. Where all messages have the
same values the list says so, and there is no section.
"""

import struct
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, groupby, pairwise
from typing import Final, NamedTuple, Protocol

from segments.codec import (
    CHECKED_HEADER_SIZE,
    CHUNK_HEADER_SIZE,
    MAX_REFERENCE_SIZE,
    ChunkHeader,
    find_block,
    header_check,
)
from segments.disk import Readable
from segments.errors import FormatError
from segments.format_constants import COLUMNS, FILTER_VALUE, MMH3_SCHEME
from segments.property_keys import is_mark, plain_key

POSITION_STEP = 32  # messages between those of which it is known where they begin
_VERSION = 1
_FIRST = bytes((COLUMNS,))  # what a trailer with columns begins with
_HAS_POSITIONS = 1
_HEAD = struct.Struct(">BBB")  # version, flags, number of columns
_COLUMN = struct.Struct(">BIH")  # kind, where its blocks begin behind the section, how many values
_PLAIN, _MARKED = 0, 1
_PIECE = 255 + 8  # of the section in a block: its id and its value
_SMALLEST_PIECE = 1 + 8
_LENGTH = struct.Struct(">I")
_FEW_VALUES = 2  # looked for one by one; where more are asked for, all are looked at
_FEW = 16  # where at most one message in so many is wanted, only what is around them is read
_DISTANCE_LIMIT = 1 << 16
_MOST_VALUES = (1 << 16) - 1  # of a column
_BYTE_VALUES = 1 << 8  # as many have ordinals of one byte

_ZERO, _ONE = b"0"[0], b"1"[0]
_BITS: Final = [
    bytes(_ONE if byte >> bit & 1 else _ZERO for byte in range(256)) for bit in range(8)
]


class Column:
    """A column while its chunk is built.

    Args:
        values: of the messages in order, in pieces.

    Attributes:
        num_records: how many messages.
        counts: how many of them have which value, in the order of the values' ordinals.
    """

    __slots__ = ("_ordinal_of", "_ordinals", "_planes", "counts", "num_records")

    def __init__(self, values: Sequence[Sequence[bytes]]) -> None:
        flat = list(chain.from_iterable(values))
        self.num_records = len(flat)
        self.counts: dict[bytes, int] = Counter(flat)
        self._ordinal_of = dict(zip(self.counts, range(len(self.counts)), strict=True))
        kind = bytes if len(self.counts) <= _BYTE_VALUES else partial(array, "I")
        self._ordinals: bytes | array[int] = kind(map(self._ordinal_of.__getitem__, flat))
        self._planes: list[int] | None = None

    @property
    def listed_size(self) -> int | None:
        """Bytes of the blocks of its values; None where some are not recorded as they are."""
        if len(self.counts) > _MOST_VALUES or max(map(len, self.counts)) > MAX_REFERENCE_SIZE:
            return None
        return 10 * len(self.counts) + sum(map(len, self.counts))

    @property
    def planes(self) -> list[int]:
        """The bits of the ordinals, the lowest ones first; there are at most 65,536 values."""
        if self._planes is None:
            self._planes = _planes(self._ordinals, (len(self.counts) - 1).bit_length())
        return self._planes

    def rows(self, values: Iterable[bytes]) -> int:
        """The messages with one of some values, see `Columns.rows`."""
        found, every = 0, (1 << self.num_records) - 1
        for value in values:
            ordinal = self._ordinal_of.get(value)
            if ordinal is not None:
                found |= _having(self.planes, ordinal, every)
        return found


def _planes(found: "bytes | array[int]", bits: int) -> list[int]:
    if isinstance(found, bytes):
        digits = [found.translate(_BITS[bit]) for bit in range(bits)]
    else:
        raw = array("H", found).tobytes()
        ends = (raw[0::2], raw[1::2]) if array("H", [1]).tobytes()[0] else (raw[1::2], raw[0::2])
        digits = [ends[bit >> 3].translate(_BITS[bit & 7]) for bit in range(bits)]
    return [int(text, 2) for text in digits]


def _having(planes: Iterable[int], ordinal: int, every: int) -> int:
    found = every
    for bit, plane in enumerate(planes):
        found &= plane if ordinal >> bit & 1 else ~plane
    return found


class PlacedColumn(NamedTuple):
    """A column, and where its values stand in the trailer.

    Attributes:
        mark: of a further property, its block stands before them; None for plain filter values.
        position: of its first block among those of the filter values.
    """

    mark: bytes | None
    position: int
    column: Column


def encode(placed: Sequence[PlacedColumn], ends: Sequence[int] | None, blocks_before: int) -> bytes:
    """The section of a chunk, as blocks of its trailer.

    Args:
        placed: its columns.
        ends: where each of the chunk's messages ends in its data; None where that is not known.
        blocks_before: bytes of blocks between the section and those of the filter values.
    """
    if ends is not None and len(ends) != placed[0].column.num_records:
        ends = None
    distances = None if ends is None else _distances(ends)
    parts = [_HEAD.pack(_VERSION, _HAS_POSITIONS if distances is not None else 0, len(placed))]
    for mark, position, column in placed:
        kind, size = _PLAIN if mark is None else _MARKED, -(-column.num_records // 8)
        parts.append(_COLUMN.pack(kind, blocks_before + position, len(column.counts)))
        parts += [plane.to_bytes(size, "big") for plane in column.planes]
    if distances is not None:
        parts.append(struct.pack(f">{len(distances)}H", *distances))
    return b"".join(_blocks(b"".join(parts)))


def _blocks(section: bytes) -> Iterator[bytes]:
    for at in range(0, len(section), _PIECE):
        piece = section[at : at + _PIECE].ljust(_SMALLEST_PIECE, b"\0")
        yield bytes((COLUMNS, len(piece) - 8)) + piece


def _distances(ends: Sequence[int]) -> list[int] | None:
    """How far it is from each 32nd message to the next; None where that is too far."""
    begins = [0, *ends[POSITION_STEP - 1 : -1 : POSITION_STEP]]
    found = [b - a for a, b in pairwise(begins)]
    return found if all(distance < _DISTANCE_LIMIT for distance in found) else None


class ValueTest:
    """What is asked of a column.

    Args:
        mark: of a further property, None for plain filter values.
        values: filter values, an empty one for none,
        is_complement: or all but those.
    """

    __slots__ = ("_blocks", "_blocks_beside", "_keys", "_keys_beside", "is_complement", "mark")

    def __init__(
        self, mark: bytes | None, values: Collection[bytes], *, is_complement: bool
    ) -> None:
        self.mark = mark
        self.is_complement = is_complement
        self._keys = _recorded(values if mark is None else (mark + b"\0" + v for v in values))
        self._keys_beside = self._keys if mark is not None else _recorded(map(plain_key, values))
        self._blocks, self._blocks_beside = _blocks_of(self._keys), _blocks_of(self._keys_beside)

    def keys(self, *, are_several: bool) -> frozenset[bytes]:
        """Its values as trailers have them.

        Args:
            are_several: the trailer is of a stream with several filter properties.
        """
        return self._keys_beside if are_several else self._keys

    def blocks(self, *, are_several: bool) -> frozenset[bytes]:
        """How their blocks begin in a trailer."""
        return self._blocks_beside if are_several else self._blocks


def _recorded(keys: Iterable[bytes]) -> frozenset[bytes]:
    return frozenset(key for key in keys if len(key) <= MAX_REFERENCE_SIZE)  # others: no column


def _blocks_of(keys: Iterable[bytes]) -> frozenset[bytes]:
    return frozenset(bytes((FILTER_VALUE, len(key))) + key for key in keys)


class ToldRows(Protocol):
    """Columns, of a chunk that is stored or still built."""

    def rows(self, asked: ValueTest) -> int | None:
        """The messages whose value is asked for, see `Columns.rows`."""


class NewColumns:
    """The columns of a chunk that is built: what they will be when it is stored.

    Args:
        placed: the columns.

    Attributes:
        num_records: messages of the chunk.
    """

    __slots__ = ("_columns", "num_records")

    def __init__(self, placed: Sequence[PlacedColumn]) -> None:
        self._columns = {mark: column for mark, _, column in placed}
        self.num_records = placed[0].column.num_records

    def rows(self, asked: ValueTest) -> int | None:
        """See `Columns.rows`."""
        column = self._columns.get(asked.mark)
        if column is None:
            return None
        found = column.rows(asked.keys(are_several=len(self._columns) > 1))
        return ((1 << self.num_records) - 1) & ~found if asked.is_complement else found


class _Stored:
    """A column of a stored chunk.

    Attributes:
        first: where the block of its first value begins in the trailer.
        size: how many values it has.
    """

    __slots__ = ("_planes", "_position", "first", "size")

    def __init__(self, first: int, size: int, position: int) -> None:
        self.first = first
        self.size = size
        self._position = position  # of its planes in the section
        self._planes: list[int] | None = None

    def planes(self, section: bytes, num_records: int) -> list[int]:
        """The bits of the ordinals, the lowest ones first; read when they are asked for."""
        if self._planes is None:
            at, step, read = self._position, -(-num_records // 8), int.from_bytes
            end = at + step * (self.size - 1).bit_length()
            self._planes = [read(section[n : n + step], "big") for n in range(at, end, step)]
        return self._planes


class Columns:
    """The columns of a stored chunk.

    Attributes:
        num_records: messages of the chunk.
    """

    __slots__ = ("_all", "_begins_at", "_columns", "_section", "_trailer", "num_records")

    def __init__(self, trailer: bytes, num_records: int) -> None:
        self.num_records = num_records
        self._all = (1 << num_records) - 1
        self._trailer = trailer
        self._begins_at: int | None = None
        self._columns: dict[bytes | None, _Stored] = {}
        self._section = self._read_section(trailer)

    @classmethod
    def parse(cls, trailer: bytes, num_records: int) -> "Columns | None":
        """The columns that a trailer holds; None where it has none, or none that can be read.

        Args:
            trailer: one that has passed its check.
            num_records: messages of the chunk.
        """
        try:
            return cls(trailer, num_records)
        except (struct.error, IndexError, FormatError):
            return None

    def _read_section(self, trailer: bytes) -> bytes:
        if trailer[:1] != _FIRST:
            self._read_equal(trailer)
            return b""
        pieces, behind = [], 0
        while trailer[behind : behind + 1] == _FIRST:
            end = behind + 10 + trailer[behind + 1]
            pieces.append(trailer[behind + 2 : end])
            behind = end
        section = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        version, flags, number = _HEAD.unpack_from(section)
        if version != _VERSION:
            raise FormatError(f"the columns' version is {version}, expected {_VERSION}")
        at, plane_size = _HEAD.size, -(-self.num_records // 8)
        for _ in range(number):
            kind, first, size = _COLUMN.unpack_from(section, at)
            at += _COLUMN.size
            first += behind
            mark = None
            if kind == _MARKED:
                name_end = first + 2 + trailer[first + 1]
                mark, first = trailer[first + 2 : name_end], name_end + 8
            self._columns[mark] = _Stored(first, size, at)
            at += plane_size * (size - 1).bit_length()
        if flags & _HAS_POSITIONS:
            self._begins_at = at
            at += 2 * ((self.num_records - 1) // POSITION_STEP)
        if at > len(section):
            raise FormatError("the columns are cut off")
        return section

    def _read_equal(self, trailer: bytes) -> None:
        """Find the columns of a trailer without a section: all messages have the same values."""
        every = self.num_records.to_bytes(8, "big")
        listed: list[tuple[bytes, int]] = []
        at = 0
        while at < len(trailer):
            name, end = at + 2, at + 10 + trailer[at + 1]
            if trailer[at] == FILTER_VALUE:
                value = trailer[name : end - 8]
                if trailer[end - 8 : end] != every or len(value) == MAX_REFERENCE_SIZE:
                    break  # or it stands for a longer one
                listed.append((value, at))
            at = end
        else:
            if len(listed) % 2 and all(
                is_mark(mark) and key.startswith(mark + b"\0")
                for (mark, _), (key, _) in zip(listed[1::2], listed[2::2], strict=True)
            ):
                self._columns[None] = _Stored(listed[0][1], 1, 0)
                for (mark, _), (_, position) in zip(listed[1::2], listed[2::2], strict=True):
                    self._columns[mark] = _Stored(position, 1, 0)
                return
        raise FormatError("there are no columns")

    @property
    def begins(self) -> Sequence[int]:
        """Where each 32nd message begins in the data; empty where that is not known."""
        if self._begins_at is None:
            return ()
        form = f">{(self.num_records - 1) // POSITION_STEP}H"
        return (0, *accumulate(struct.unpack_from(form, self._section, self._begins_at)))

    def rows(self, asked: ValueTest) -> int | None:
        """The messages whose value is asked for.

        Returns:
            a bit for each message, the first one highest; None where that is not told.
        """
        column = self._columns.get(asked.mark)
        if column is None:
            return None
        blocks, found = asked.blocks(are_several=len(self._columns) > 1), 0
        try:
            for ordinal in self._ordinals(column, blocks):
                planes = column.planes(self._section, self.num_records)
                found |= _having(planes, ordinal, self._all)
        except IndexError:  # the trailer is wrong, though its check is right
            return None
        return self._all & ~found if asked.is_complement else found

    def values_of(self, mark: bytes | None) -> list[bytes] | None:
        """The value of each message as trailers have it; None where that is not told."""
        column = self._columns.get(mark)
        if column is None:
            return None
        ordinals = [0] * self.num_records
        for bit, plane in enumerate(column.planes(self._section, self.num_records)):
            for place in places_of(plane, self.num_records):
                ordinals[place] |= 1 << bit
        values, at = [], column.first
        for _ in range(column.size):
            end = at + 2 + self._trailer[at + 1]
            values.append(self._trailer[at + 2 : end])
            at = end + 8
        return [values[ordinal] for ordinal in ordinals]

    def _ordinals(self, column: _Stored, blocks: Collection[bytes]) -> list[int]:
        """Those of values by how their blocks begin, as far as the column has them."""
        trailer, at = self._trailer, column.first
        ordinals: list[int] = []
        if len(blocks) <= _FEW_VALUES:
            found = [find_block(trailer, block, at) for block in blocks]
            return [place[1] for place in found if place is not None and place[1] < column.size]
        for ordinal in range(column.size):
            end = at + 2 + trailer[at + 1]
            if trailer[at:end] in blocks:
                ordinals.append(ordinal)
            at = end + 8
        return ordinals


def places_of(rows: int, num_records: int) -> list[int]:
    """The messages that have their bit in `rows`, in order."""
    digits = bin(rows | 1 << num_records)
    places, at = [], digits.find("1", 3)
    while at >= 0:
        places.append(at - 3)
        at = digits.find("1", at + 1)
    return places


class Opened(NamedTuple):
    """Some messages of a chunk.

    Attributes:
        data: the messages, each with 4 bytes of length before it.
        ends: where each ends in `data`.
        places: their numbers in the chunk, in order.
    """

    data: bytes
    ends: list[int]
    places: list[int]


def read_columns(file: Readable, position: int, header: ChunkHeader) -> Columns | None:
    """The columns of a chunk in a segment file; None where it has none, or none that are sound.

    Args:
        file: the segment file.
        position: where the chunk begins in it.
        header: of the chunk.

    Raises:
        StorageError: the system refused.
    """
    if not has_columns(header):
        return None
    try:
        head = file.read(header.data_start, position)
        trailer = file.read(header.trailer_size, position + header.data_start + header.data_size)
    except FormatError:
        return None
    return sound_columns(head, trailer, header)


def has_columns(header: ChunkHeader) -> bool:
    """Whether a chunk may have columns, by its header."""
    return (
        header.filter_scheme == MMH3_SCHEME
        and header.num_records == header.num_entries
        and header.trailer_size > 0
    )


def sound_columns(head: bytes | memoryview, trailer: bytes, header: ChunkHeader) -> Columns | None:
    """The columns in a trailer; None where it has none, or does not pass its check.

    Args:
        head: the chunk's header as it is stored, and its filter.
        trailer: the chunk's trailer.
        header: the chunk's header.
    """
    if header_check(head[:CHECKED_HEADER_SIZE], head[CHUNK_HEADER_SIZE:], trailer) != (
        header.header_check
    ):
        return None
    return Columns.parse(trailer, header.num_records)


def open_rows(
    columns: Columns, rows: int, data_size: int, read: Callable[[int, int], bytes]
) -> Opened:
    """Some messages of a chunk, those between them not read where they are few.

    Args:
        columns: of the chunk.
        rows: the messages, see `Columns.rows`.
        data_size: bytes of the chunk's data.
        read: gives so many bytes of the data from a position in it on.

    Raises:
        FormatError: the data is not what the columns are of.
    """
    places, found = messages_of(columns, rows, data_size, read)
    return Opened(b"".join(found), list(accumulate(map(len, found))), places)


def messages_of(
    columns: Columns, rows: int, data_size: int, read: Callable[[int, int], bytes]
) -> tuple[list[int], list[bytes]]:
    """The same one by one: their numbers in the chunk; and each behind its length.

    Raises:
        FormatError: see `open_rows`.
    """
    places = places_of(rows, columns.num_records)
    found: list[bytes] = []
    if not places:
        return places, found
    begins = columns.begins
    step = POSITION_STEP if begins else columns.num_records
    bounds = (*begins, data_size) if begins else (0, data_size)
    whole = read(data_size, 0) if _FEW * len(places) > columns.num_records else None
    for number, wanted in groupby(places, key=lambda place: place // step):
        begin, end = bounds[number], bounds[number + 1]
        raw = read(end - begin, begin) if whole is None else whole[begin:end]
        found += _take(raw, [place - number * step for place in wanted])
    return places, found


def _take(raw: bytes, wanted: Sequence[int]) -> Iterator[bytes]:
    """Messages by their numbers, of some that stand back to back."""
    unpack, following, begin, end = _LENGTH.unpack_from, 0, 0, 0
    for number in wanted:
        try:
            while following <= number:
                begin = end
                (size,) = unpack(raw, begin)
                end = begin + 4 + size
                following += 1
        except struct.error:
            end = len(raw) + 1
        if end > len(raw):
            raise FormatError("a message ends elsewhere than the chunk's columns have it")
        yield raw[begin:end]

"""A key table: which messages of a segment have which keys, in blocks of a file.

A sorted list of pairs: the print of a key (32 bits) and the place of a message, which is the
ordinal of its chunk and its number in the chunk (16 bits each, or 24 and 8 in a segment of more
than 65,536 chunks, which are small). The highest number stands for all that are not told: any
message of the chunk may be meant. Over the list stands a tree of the first prints of its blocks, as
over a database's index, so that a lookup reads a block of each level: with 5 M keys in a segment of
500 MB two, of 4 KB each; the uppermost is kept in memory. Each block has a checksum that begins
with that of the table's header: a block that is damaged, or is another table's, is never taken for
one of this.

Tables of version 1 have ordinals alone, and are read as if any message of those chunks were meant.

Measured with 5 M keys, each of one message, in 19,532 chunks of 256 messages (Python 3.11, two busy
cores; a cold lookup finds nothing of the file in the page cache):

    structure                   bytes/key  build, CPU   warm p50    cold p50   needless chunks
    this table                       8.0        5.9 s   0.014 ms    0.32 ms        0.00
    the same without messages        6.0        5.3 s   0.014 ms    0.32 ms        0.00
    SQLite, WITHOUT ROWID           14.9       10.7 s   0.013 ms    0.64 ms        0.00
    Bloom, bit-sliced, 16 bits       2.0       16.4 s   0.039 ms    0.43 ms       20
    Bloom, bit-sliced, 12 bits       1.5       12.9 s   0.088 ms    0.67 ms       80

A needless chunk costs a search more than all else, some 0.2 ms each: so no Bloom filter, though it
is smaller. SQLite takes more than a tenth of the data where messages have 100 bytes. Longer prints
than 32 bits would spare a needless chunk in one of 900 lookups of 5 M keys. The number of the
message, and not its position, as a look-up has to say which offset it has found; a CRC of each
message would take 4 bytes more, and spare reading the rest of a chunk and its CRC: 0.01 ms for one
of 20 KB, 0.3 for one of 1 MB. With NumPy the time to build would be some 0.7 s: half of all the
time from chunks to file, which a process of low priority takes. That is not worth another
dependency of the server, of tens of megabytes.
"""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from segments import codec
from segments.checksum import crc32
from segments.codec import FILE_HEADER_SIZE
from segments.disk import File, Readable
from segments.errors import FormatError
from segments.format_constants import KEY_BLOCK_SIZE

# A pair in memory is one number: the print, and the place in its lower bits.
PLACE_BITS = 32
_PLACES = (1 << PLACE_BITS) - 1
NUMBER_BITS, _FEW_NUMBER_BITS = 16, 8  # of a place: the number of the message
MAX_CHUNKS = 1 << PLACE_BITS - _FEW_NUMBER_BITS

_FIELDS = struct.Struct(">QQIIIIQH")  # see layout.KEY_TABLE
_CRC = struct.Struct(">I")
_CONTENT = KEY_BLOCK_SIZE - _CRC.size
_NAMES_AT = FILE_HEADER_SIZE + _FIELDS.size
_SEPARATOR = "\n"  # of names, which are printable
_FENCES = _CONTENT // 4
_PAIRS = _CONTENT // 8
_OLD_NARROW_PAIRS = _CONTENT // 6  # of version 1
_MANY_CHUNKS = 1 << 16
_AT_ONCE = 256  # blocks in one write
_SORTED_AT_ONCE = 1 << 19  # pairs


class TableHead(NamedTuple):
    """What a table is of.

    Attributes:
        size: bytes of the segment up to the end of the last chunk.
        first_chunk, end_chunk: it has the keys of the chunks from one ordinal up to the other.
        content_crc: of what the segment holds, see filter_files.shape_of; 0 for a part of one.
        num_uncertain: chunks that may have any keys.
    """

    size: int
    base_offset: int
    first_chunk: int
    end_chunk: int
    content_crc: int
    num_uncertain: int
    num_pairs: int
    properties: tuple[str, ...]

    def encode(self) -> bytes:
        """The first block of a table."""
        names = _SEPARATOR.join(self.properties).encode()
        fields = _FIELDS.pack(*self[:-1], len(names))
        return _sealed(codec.KEY_TABLE_HEADER + fields + names, 0)


def number_bits(end_chunk: int) -> int:
    """Bits of a place that are the number of a message, in a table up to a chunk."""
    return NUMBER_BITS if end_chunk <= _MANY_CHUNKS else _FEW_NUMBER_BITS


class _Form(NamedTuple):
    """How the pairs of a table stand in its blocks.

    Attributes:
        most: pairs in a block.
        kind: of the column of places, see array.
        bits: of a place that are the number of a message.
    """

    most: int
    kind: str
    bits: int


def _form_of(head: TableHead, *, is_old: bool = False) -> _Form:
    if not is_old:
        return _Form(_PAIRS, "I", number_bits(head.end_chunk))
    return _Form(
        *((_OLD_NARROW_PAIRS, "H") if head.end_chunk <= _MANY_CHUNKS else (_PAIRS, "I")), 0
    )


def decode_head(block: bytes) -> tuple[TableHead, _Form]:
    """Read the first block of a table.

    Raises:
        FormatError: it is none, or damaged.
    """
    start = block[:FILE_HEADER_SIZE]
    is_old = start == codec.OLD_KEY_TABLE_HEADER
    if not is_old:
        codec.check_file_header(start, codec.KEY_TABLE_HEADER)
    content = _opened(block, 0)
    *numbers, names_size = _FIELDS.unpack_from(content, FILE_HEADER_SIZE)
    names = bytes(content[_NAMES_AT : _NAMES_AT + names_size]).decode()
    head = TableHead._make([*numbers, tuple(names.split(_SEPARATOR))])
    return head, _form_of(head, is_old=is_old)


class KeyTable:
    """A table in a file, its first block and its uppermost level in memory.

    Args:
        file: where it is; not kept.
        position: where it begins, in bytes.

    Attributes:
        position, end: where it begins and ends in the file.
        number_bits: of a place that are the number of a message, 0 in version 1.

    Raises:
        FormatError: there is none, or it is damaged.
        StorageError: the system refused.
    """

    def __init__(self, file: Readable, position: int = 0) -> None:
        raw = file.read(2 * KEY_BLOCK_SIZE, position)
        first, second = raw[:KEY_BLOCK_SIZE], raw[KEY_BLOCK_SIZE:]
        self.head, self._form = decode_head(first)
        (self._seed,) = _CRC.unpack(first[_CONTENT:])
        self._shape = _Shape.of(self.head, self._form)
        self.position = position
        self.end = position + KEY_BLOCK_SIZE * self._shape.num_blocks
        self.number_bits = self._form.bits
        self._top: Sequence[int] = ()
        if len(self._shape.levels) > 1:
            num = self._shape.levels[-2][1]
            self._top = array("I", _numbers(_opened(second, self._seed)[: 4 * num], "I"))
        self.uncertain: Sequence[int] = ()
        if self.head.num_uncertain:
            self.uncertain = self._read_uncertain(file)

    @property
    def num_chunks(self) -> int:
        """How many chunks it knows."""
        return self.head.end_chunk - self.head.first_chunk

    def places_with(self, file: Readable, key: int) -> Iterator[int]:
        """Yield the places of messages that may have a key with this print, in order.

        One is the ordinal of a chunk, and in its lower bits the number of a message; with all of
        those bits set, or where there are none, it may be any message of the chunk.

        Raises:
            FormatError: the table is damaged, or not there any more.
            StorageError: the system refused.
        """
        levels = self._shape.levels
        if not self.head.num_pairs:
            return
        number, fences = 0, self._top
        for level in range(len(levels) - 1, 0, -1):
            if level < len(levels) - 1:
                fences = self._fences(file, level, number)
            # The pairs of a print may begin in the block before the one that begins with it.
            number = number * _FENCES + max(bisect_left(fences, key) - 1, 0)
        for leaf in range(number, levels[0][1]):
            prints, places = self._pairs(file, leaf)
            at = bisect_left(prints, key)
            end = bisect_right(prints, key, at)
            yield from places[at:end]
            if end < len(prints):
                return

    def check(self, file: Readable) -> None:
        """Raise FormatError unless each block can be read and passes its checksum."""
        for number in range(1, self._shape.num_blocks):
            self._block(file, number)

    def pairs(self, file: Readable, bits: int) -> "array[int]":
        """All pairs, in order, as numbers.

        Args:
            file: where it is.
            bits: of their places that shall be the number of a message.
        """
        found = array("Q")
        for leaf in range(self._shape.levels[0][1]):
            prints, places = self._pairs(file, leaf)
            if bits != self.number_bits:
                places = [_moved(place, self.number_bits, bits) for place in places]
            found.extend(
                [key << PLACE_BITS | place for key, place in zip(prints, places, strict=True)]
            )
        return found

    def _fences(self, file: Readable, level: int, number: int) -> Sequence[int]:
        start, _ = self._shape.levels[level]
        below = self._shape.levels[level - 1][1]
        count = min(_FENCES, below - number * _FENCES)
        return _numbers(self._block(file, start + number)[: 4 * count], "I")

    def _pairs(self, file: Readable, leaf: int) -> tuple[Sequence[int], Sequence[int]]:
        most, kind, _ = self._form
        count = min(most, self.head.num_pairs - leaf * most)
        content = self._block(file, self._shape.levels[0][0] + leaf)
        places = content[4 * most :][: count * array(kind).itemsize]
        return _numbers(content[: 4 * count], "I"), _numbers(places, kind)

    def _read_uncertain(self, file: Readable) -> Sequence[int]:
        found = array("I")
        start, count = self._shape.uncertain
        for number in range(count):
            left = self.head.num_uncertain - len(found)
            found.extend(_numbers(self._block(file, start + number)[: 4 * min(left, _FENCES)], "I"))
        return found

    def _block(self, file: Readable, number: int) -> memoryview:
        raw = file.read(KEY_BLOCK_SIZE, self.position + number * KEY_BLOCK_SIZE)
        return _opened(raw, self._seed)


class _Shape(NamedTuple):
    """Where the blocks of a table are.

    Attributes:
        levels: the first block and the number of blocks of each, the pairs first.
        uncertain: the same of the list of chunks that may have any keys.
        num_blocks: of all, the header's among them.
    """

    levels: list[tuple[int, int]]
    uncertain: tuple[int, int]
    num_blocks: int

    @classmethod
    def of(cls, head: TableHead, form: _Form) -> "_Shape":
        counts = [-(-head.num_pairs // form.most)]
        while counts[-1] > 1:
            counts.append(-(-counts[-1] // _FENCES))
        at, levels = 1, []  # behind the header the uppermost level
        for count in reversed(counts):
            levels.append((at, count))
            at += count
        num_uncertain = -(-head.num_uncertain // _FENCES)
        return cls(levels[::-1], (at, num_uncertain), at + num_uncertain)


def write_table(
    file: File,
    position: int,
    head: TableHead,
    runs: Sequence["array[int]"],
    uncertain: Sequence[int],
) -> None:
    """Write a table.

    Args:
        file: where to.
        position: where it begins, in bytes.
        head: what it is of; its counts are those of the rest.
        runs: the pairs, sorted within each; see `number_bits`.
        uncertain: ordinals of chunks that may have any keys, in order.

    Raises:
        StorageError: the system refused.
    """
    shape, first = _Shape.of(head, _form_of(head)), head.encode()
    (seed,) = _CRC.unpack(first[_CONTENT:])
    blocks = _Blocks(file, position, seed)
    blocks.go_to(shape.levels[0][0])
    fences = array("I")
    for part in _cut(_merged(runs), _PAIRS):
        fences.append(part[0] >> PLACE_BITS)
        prints = array("I", [pair >> PLACE_BITS for pair in part])
        places = array("I", [pair & _PLACES for pair in part])
        blocks.add(_little(prints).ljust(4 * _PAIRS, b"\0") + _little(places))
    for start, _ in shape.levels[1:]:
        blocks.go_to(start)
        below, fences = fences, array("I")
        for at in range(0, len(below), _FENCES):
            fences.append(below[at])
            blocks.add(_little(below[at : at + _FENCES]))
    blocks.go_to(shape.uncertain[0])
    listed = array("I", uncertain)
    for at in range(0, len(listed), _FENCES):
        blocks.add(_little(listed[at : at + _FENCES]))
    blocks.go_to(0)
    file.write([first], position)


class _Blocks:
    """Writes blocks, many at once."""

    def __init__(self, file: File, position: int, seed: int) -> None:
        self._file = file
        self._start = self._position = position
        self._seed = seed
        self._waiting: list[bytes] = []

    def go_to(self, number: int) -> None:
        """The next block is this one."""
        self._write()
        self._position = self._start + number * KEY_BLOCK_SIZE

    def add(self, content: bytes) -> None:
        """Write a block, soon."""
        self._waiting.append(_sealed(content, self._seed))
        if len(self._waiting) == _AT_ONCE:
            self._write()

    def _write(self) -> None:
        if self._waiting:
            self._position += self._file.write(self._waiting, self._position)
            self._waiting.clear()


def _merged(runs: Sequence["array[int]"]) -> Iterator[list[int]]:
    """The pairs of all runs in order, some at a time: numbers in lists take five times the room."""
    num_pairs = sum(map(len, runs))
    parts = max(-(-num_pairs // _SORTED_AT_ONCE), 1)
    starts = [0] * len(runs)
    for part in range(1, parts + 1):
        end = (part << 32) // parts << PLACE_BITS  # prints are spread evenly
        ends = [bisect_left(run, end, start) for run, start in zip(runs, starts, strict=True)]
        found: list[int] = []
        for run, start, stop in zip(runs, starts, ends, strict=True):
            found += run[start:stop]
        found.sort()
        yield found
        starts = ends


def _cut(parts: Iterable[list[int]], size: int) -> Iterator[list[int]]:
    """The same numbers in lists of one size, the last one as short as it must be."""
    rest: list[int] = []
    for part in parts:
        rest += part
        whole = len(rest) - len(rest) % size
        for at in range(0, whole, size):
            yield rest[at : at + size]
        del rest[:whole]
    if rest:
        yield rest


def _moved(place: int, bits: int, other: int) -> int:
    """A place with so many bits for the number of the message, where it had others."""
    every, all_told = (1 << bits) - 1, (1 << other) - 1
    number = place & every
    return place >> bits << other | (all_told if number == every else min(number, all_told))


def _sealed(content: bytes, seed: int) -> bytes:
    """A block, its checksum at its end."""
    padded = content.ljust(_CONTENT, b"\0")
    return padded + _CRC.pack(crc32(padded, seed))


def _opened(block: bytes, seed: int) -> memoryview:
    """What a block holds."""
    content = memoryview(block)[:_CONTENT]
    if len(block) != KEY_BLOCK_SIZE or _CRC.pack(crc32(content, seed)) != block[_CONTENT:]:
        raise FormatError("a block of the key file fails its checksum, or is not there")
    return content


def _little(column: "array[int]") -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def _numbers(view: memoryview, kind: str) -> Sequence[int]:
    if sys.byteorder == "little":
        return view.cast(kind)  # type: ignore[call-overload,no-any-return] # "I" or "H"
    column = array(kind, view.tobytes())
    column.byteswap()
    return column

"""Building one chunk: entries in, the bytes of header, filter, data and trailer out."""

import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from segments import bloom, codec, columns
from segments.bloom import filter_keys, history_form
from segments.checksum import crc32
from segments.codec import Block, ChunkHeader, simple_ends
from segments.columns import Column, NewColumns, PlacedColumn
from segments.format_constants import FILTER_VALUE, MMH3_SCHEME, SEQUENCE, USER
from segments.policy import LogPolicy

_REMEMBERED_BYTES = 64  # of a filter value
_REMEMBERED_VALUES = 8192  # then all are forgotten


class EncodedChunk(NamedTuple):
    """A chunk ready to be written.

    Attributes:
        parts: the bytes in file order.
        size: how many those are.
        keys: its filter values as trailers have them, an empty one for messages without; None
            where they are not known.
        sequences: highest publishing id by publisher reference.
    """

    header: ChunkHeader
    parts: tuple[bytes, bytes, bytes]
    size: int
    keys: Collection[bytes] | None
    sequences: Mapping[bytes, int]


class ChunkBuilder:
    """Collects entries for one chunk.

    Attributes:
        num_entries: slots so far.
        num_records: messages so far.
        data_size: bytes of the data section so far.
        has_filter_values: some message so far carries a filter value.
    """

    def __init__(self) -> None:
        self.num_entries = 0
        self.num_records = 0
        self.data_size = 0
        self.has_filter_values = False
        self._data: list[bytes] = []
        self._added: list[_Added] = []
        self._ends: list[Sequence[int] | None] = []
        self._told: _Told | None = _NOTHING  # None until it is asked for
        self._tokens: dict[bytes, int] = {}
        self._sequences: dict[bytes, int] = {}

    def add(
        self,
        data: bytes,
        num_entries: int,
        num_records: int,
        filter_values: Sequence[bytes] | Counter[bytes] | None,
        marks: tuple[bytes, ...] = (),
        property_keys: tuple[Sequence[bytes], ...] | Counter[bytes] = (),
        ends: Sequence[int] | None = None,
    ) -> None:
        """Take entries, encoded back to back as they will stand in the data section.

        Args:
            data: the entries.
            num_entries: how many there are.
            num_records: how many messages they hold, sub-batches counted through.
            filter_values: one per entry, empty where there is none, or how many messages have
                which; None for none at all.
            marks: see Entries.
            property_keys: see Entries.
            ends: see Entries.
        """
        self._data.append(data)
        self.num_entries += num_entries
        self.num_records += num_records
        self.data_size += len(data)
        self._added.append((num_records, filter_values, marks, property_keys))
        self._ends.append(ends)
        if filter_values is not None or marks:
            self._told = None
            if marks or any(filter_values or ()):
                self.has_filter_values = True

    def set_sequence(self, reference: bytes, publishing_id: int) -> None:
        """Note the highest publishing id of the publisher `reference` in this chunk."""
        self._sequences[reference] = publishing_id

    @property
    def data(self) -> bytes:
        """The data section so far."""
        if len(self._data) != 1:
            self._data = [b"".join(self._data)]
        return self._data[0]

    def add_token(self, token: bytes) -> None:
        """Put something into the filter that no message has as its filter value."""
        self._tokens[token] = 1

    def encode(
        self, *, chunk_id: int, timestamp_ms: int, epoch: int, policy: LogPolicy
    ) -> EncodedChunk:
        """The chunk's bytes, filter and trailer made as `policy` says."""
        data = self.data
        filter_bytes = trailer = b""
        values = self._values
        if len(values) > 1 or b"" not in values:
            filter_bytes = bloom.build(values, _filter_size(values, policy))
        if filter_bytes or self._sequences:
            trailer = self._trailer(with_history=policy.filter_history and bool(filter_bytes))
        fields = (  # a ChunkHeader's, in order
            USER,
            self.num_entries,
            self.num_records,
            timestamp_ms,
            epoch,
            chunk_id,
            crc32(data),
            len(data),
            len(trailer),
            len(filter_bytes),
            MMH3_SCHEME,
        )
        unchecked = codec.encode_chunk_header(ChunkHeader(*fields, 0))
        checked = unchecked[: codec.CHECKED_HEADER_SIZE]
        check = codec.header_check(checked, filter_bytes, trailer)
        head = codec.append_header_check(checked, check) + filter_bytes
        return EncodedChunk(
            ChunkHeader(*fields, check),
            (head, data, trailer),
            len(head) + len(data) + len(trailer),
            filter_keys(values),
            self._sequences,
        )

    @property
    def keys(self) -> Collection[bytes]:
        """The filter values as trailers have them, an empty one for messages without."""
        return filter_keys(self._values)

    @property
    def columns(self) -> NewColumns | None:
        """Which message has which filter value; None where that is not known of each."""
        placed = self._tell().columns
        return NewColumns(placed) if placed else None

    def _tell(self) -> "_Told":
        if self._told is None:
            self._told = _tell(self._added, self.num_records)
        return self._told

    @property
    def _values(self) -> Mapping[bytes, int]:
        """How many messages have which filter value or key; tokens as well."""
        told = self._tell()
        counts: Mapping[bytes, int] = told.counts
        if told is _NOTHING:
            counts = {b"": self.num_records}
        return {**counts, **self._tokens} if self._tokens else counts

    def _trailer(self, *, with_history: bool) -> bytes:
        sequences = [Block(SEQUENCE, name, number) for name, number in self._sequences.items()]
        trailer = codec.encode_blocks(sequences)
        if not with_history:
            return trailer
        section, placed = b"", self._tell().columns
        if any(len(one.column.counts) > 1 for one in placed):
            section = columns.encode(placed, self.ends, len(trailer))
        return section + trailer + _history(self._values)

    @property
    def ends(self) -> Sequence[int] | None:
        """Where each message so far ends in the data; None where there are sub-batches."""
        if len(self._ends) != 1 or self._ends[0] is None:
            self._ends = [self._joined_ends()]
        return self._ends[0]

    def _joined_ends(self) -> Sequence[int] | None:
        joined: list[int] = []
        for ends in self._ends:
            if ends is None:
                return simple_ends(self.data)
            joined += map(joined[-1].__add__, ends) if joined else ends
        return joined


# What `ChunkBuilder.add` was told of some entries: how many messages, filter values, marks, keys.
_Added: TypeAlias = tuple[
    int,
    Sequence[bytes] | Counter[bytes] | None,
    tuple[bytes, ...],
    tuple[Sequence[bytes], ...] | Counter[bytes],
]


class _Told(NamedTuple):
    """What a chunk tells of its messages.

    Attributes:
        counts: how many have which filter value or key.
        columns: which of them; none where that is not known of each.
    """

    counts: dict[bytes, int]
    columns: Sequence[PlacedColumn]


_NOTHING = _Told({}, ())  # no filter values at all


def _tell(added: Sequence[_Added], num_records: int) -> _Told:
    told = _tell_in_order(added, num_records)
    return _Told(_count(added), ()) if told is None else told


def _tell_in_order(added: Sequence[_Added], num_records: int) -> _Told | None:
    """Counts and columns of messages that are told one by one; None where some are not."""
    _, _, marks, _ = added[0]
    plain: list[Sequence[bytes]] = []
    keys: list[list[Sequence[bytes]]] = [[] for _ in marks]
    for number, values, own_marks, of_properties in added:
        if isinstance(values, Counter) or isinstance(of_properties, Counter):
            return None
        if own_marks != marks or len(of_properties) != len(marks):
            return None
        plain.append((b"",) * number if values is None else values)
        for parts, part in zip(keys, of_properties, strict=True):
            parts.append(part)
    found = [Column(values) for values in (plain, *keys)]
    if any(column.num_records != num_records for column in found):
        return None  # sub-batches
    counts: dict[bytes, int] = {}
    placed: list[PlacedColumn] = []
    position = num_listed = 0
    for mark, column in zip((None, *marks), found, strict=True):
        size = column.listed_size
        if size is None:
            return None
        placed.append(PlacedColumn(mark, position, column))
        if mark is not None:
            counts[mark] = num_records
            position += 10 + len(mark)
            num_listed += 1
        counts |= column.counts
        position += size
        num_listed += len(column.counts)
    return _Told(counts, placed) if len(counts) == num_listed else None


def _count(added: Sequence[_Added]) -> dict[bytes, int]:
    """The same without columns. A chunk has the marks that all of its entries have."""
    counts: Counter[bytes] = Counter()
    marks = [mark for mark in added[0][2] if all(mark in some[2] for some in added)]
    for num_records, values, _, keys in added:
        counts.update({b"": num_records} if values is None else values)
        counts.update(dict.fromkeys(marks, num_records))
        for some in (keys,) if isinstance(keys, Counter) else keys:
            counts.update(some)
    return counts


def _filter_size(values: Collection[bytes], policy: LogPolicy) -> int:
    if policy.filter_error_rate is None:
        return policy.filter_size
    distinct = len(values) - (b"" in values)
    return bloom.smallest_size(distinct, policy.filter_error_rate, policy.filter_size)


class _Packed(dict[int, bytes]):
    """Counts as they are stored; a chunk's records bound how many there can be."""

    def __missing__(self, count: int) -> bytes:
        self[count] = packed = struct.pack(">Q", count)
        return packed


class _Heads(dict[bytes, bytes]):
    """How the blocks of filter values begin; a dict, so that those of before are looked up in C."""

    def __missing__(self, value: bytes) -> bytes:
        """The kind, the size and the value.

        Raises:
            ValueError: the value is too long to be recorded as it is.
        """
        made = bytes((FILTER_VALUE, len(value))) + value
        if len(value) <= _REMEMBERED_BYTES:
            if len(self) >= _REMEMBERED_VALUES:
                self.clear()
            self[value] = made
        return made


_packed, _heads = _Packed(), _Heads()


def _history(counts: Mapping[bytes, int]) -> bytes:
    """How many messages carry which filter value, as trailer blocks."""
    blocks = [b""] * (2 * len(counts))
    try:
        blocks[::2] = map(_heads.__getitem__, counts)
    except ValueError:
        folded: Counter[bytes] = Counter()
        for value, count in counts.items():
            folded[history_form(value)] += count
        return _history(folded)
    blocks[1::2] = map(_packed.__getitem__, counts.values())
    return b"".join(blocks)


def split_entries(
    data: bytes, max_records: int, max_bytes: int
) -> Iterator[tuple[bytes, int, int]]:
    """Cut entries into runs that fit into a chunk each.

    Args:
        data: entries back to back.
        max_records: messages per run.
        max_bytes: bytes per run; an entry that is larger makes a run of its own.

    Yields:
        The run's bytes, its number of entries, its number of records.
    """
    ends = codec.simple_ends(data)
    if ends is not None:
        yield from _split_messages(data, ends, max_records, max_bytes)
        return
    start = end = entries = records = 0
    for entry in codec.walk_entries(data):
        too_many = records + entry.num_records > max_records
        if entries and (too_many or entry.end - start > max_bytes):
            yield data[start:end], entries, records
            start, entries, records = end, 0, 0
        end = entry.end
        entries += 1
        records += entry.num_records
    if entries:
        yield data[start:end], entries, records


def _split_messages(
    data: bytes, ends: list[int], max_records: int, max_bytes: int
) -> Iterator[tuple[bytes, int, int]]:
    """The same for entries that are messages; `ends` says where each ends."""
    start = first = 0
    while first < len(ends):
        last = bisect_right(ends, start + max_bytes, first, min(first + max_records, len(ends)))
        last = max(last, first + 1)
        yield data[start : ends[last - 1]], last - first, last - first
        start, first = ends[last - 1], last

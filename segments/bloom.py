"""The chunk filter: which filter values may stand in a chunk, in 16 to 255 bytes.

Two bits per distinct value, from the two halves of one 128-bit MurmurHash3. Bit 0 means "some
message has no filter value"; values use the other bits. A test may wrongly say yes, but never no.
Bits are numbered from the most significant bit of the first byte, so a filter read as one
big-endian integer of F bytes has bit n at weight 2 ** (8 F - 1 - n); all work is done on such
integers. Hashes, seed and bit order are part of the file format.

Source: rabbitmq/osiris, src/osiris_bloom.erl, with other hashes (filter scheme 1).
"""

import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache, reduce
from operator import and_, or_
from typing import NamedTuple

import mmh3

from segments.codec import lists_value, lists_values
from segments.columns import Columns, ValueTest
from segments.format_constants import MAX_FILTER_SIZE, MIN_FILTER_SIZE, MMH3_SCHEME
from segments.property_keys import PropertyFilter, key_of, mark_of, plain_key

MAX_RECORDED_SIZE = 255  # of a value in a trailer
_LONG_VALUE_PREFIX = 239  # with a 16-byte hash this makes the 255 that a block can hold
_HALVES = struct.Struct("<QQ")  # of that hash, as it is written
_CACHED_VALUE_SIZE = 255  # longer values are hashed each time: they would make the cache large
_CACHED_VALUES = 8192  # per filter size; a full cache is emptied


def bit_positions(value: bytes, size: int) -> tuple[int, int]:
    """The two bits, 1 to 8 * size - 1, that stand for a non-empty `value`; they may coincide."""
    first, second = mmh3.hash64(value, seed=0, x64arch=True, signed=False)
    usable = 8 * size - 1
    return first % usable + 1, second % usable + 1


def long_bit_positions(recorded: bytes, size: int) -> tuple[int, int]:
    """The same for a value of more than 255 bytes, from the form in which trailers record it."""
    first, second = _HALVES.unpack_from(recorded, _LONG_VALUE_PREFIX)
    usable = 8 * size - 1
    return first % usable + 1, second % usable + 1


def _mask(value: bytes, size: int) -> int:
    top = 8 * size - 1
    if not value:
        return 1 << top
    first, second = bit_positions(value, size)
    return (1 << top - first) | (1 << top - second)


class _Masks(dict[bytes, int]):
    """Masks by value for one filter size; a dict, so that a chunk's values are looked up in C."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def __missing__(self, value: bytes) -> int:
        found = _mask(value, self._size)
        if len(value) <= _CACHED_VALUE_SIZE:
            if len(self) >= _CACHED_VALUES:
                self.clear()
            self[value] = found
        return found


_masks = lru_cache(maxsize=MAX_FILTER_SIZE + 1)(_Masks)


def mask(value: bytes, size: int) -> int:
    """The bits of `value` in a filter of `size` bytes, as an integer; empty means unfiltered."""
    return _masks(size)[value]


def build(values: Iterable[bytes], size: int) -> bytes:
    """The filter over distinct `values`, where the empty value stands for "no filter value".

    Returns:
        `size` bytes, or none at all when no message has a value.
    """
    bits = reduce(or_, map(_masks(size).__getitem__, values), 0)
    if bits in (0, 1 << 8 * size - 1):
        return b""
    return bits.to_bytes(size, "big")


def false_positive_rate(num_values: int, size: int) -> float:
    """Probability that a filter of `num_values` distinct values says yes to another one.

    The exact expectation over uniform positions, not the textbook approximation:
    E[(X / m) ** 2] for X bits set out of m = 8 * size - 1.
    """
    m = 8 * size - 1
    one = (1 - 1 / m) ** (2 * num_values)
    two = (1 - 2 / m) ** (2 * num_values)
    return 1 - 2 * one + ((m - 1) * two + one) / m


@lru_cache(maxsize=4096)
def smallest_size(num_values: int, error_rate: float, ceiling: int = MAX_FILTER_SIZE) -> int:
    """The smallest filter size that keeps `num_values` within `error_rate`, at most `ceiling`."""
    low, high = MIN_FILTER_SIZE, ceiling
    while low < high:
        middle = (low + high) // 2
        if false_positive_rate(num_values, middle) <= error_rate:
            high = middle
        else:
            low = middle + 1
    return low


def history_form(value: bytes) -> bytes:
    """A filter value as trailers record it: at most 255 bytes, long ones prefix and hash."""
    if len(value) <= MAX_RECORDED_SIZE:
        return value
    return value[:_LONG_VALUE_PREFIX] + mmh3.hash_bytes(value, seed=0, x64arch=True)


def filter_keys(values: Collection[bytes]) -> Collection[bytes]:
    """Filter values in the form that trailers and filter indexes have them."""
    if max(map(len, values), default=0) > MAX_RECORDED_SIZE:
        return {history_form(value) for value in values}
    return values


class Clause(NamedTuple):
    """One of the things that a chunk has to hold.

    Attributes:
        values: one of these; whatever stands in filters, whole.
        keys: the same as trailers and filter indexes have it.
        mark: a chunk that does not hold this may hold anything; None where all chunks tell.
    """

    values: frozenset[bytes]
    keys: tuple[bytes, ...]
    mark: bytes | None


class ChunkMatcher:
    """Which chunks a subscription wants: those with any of some values, perhaps unfiltered ones.

    Args:
        values: filter values; an empty one is refused, because it would mean "unfiltered". None
            for any, and none.
        match_unfiltered: also take chunks in which some message has no filter value.
        since: chunks with a lower id match whatever their filter says.
        properties: what they have to hold besides of further filter properties, all of it.

    Attributes:
        values: see above, empty for any.
        clauses: what a chunk has to hold, all of it.
        keys: those of the clause with the fewest.
        other_keys: those of each other clause.

    Raises:
        ValueError: a value is empty.
    """

    def __init__(
        self,
        values: Collection[bytes] | None,
        *,
        match_unfiltered: bool = False,
        since: int = 0,
        properties: Sequence[PropertyFilter] = (),
    ) -> None:
        if values is not None and not all(values):
            raise ValueError("a filter value is empty: that stands for messages without one")
        self.values = frozenset(values or ())
        self.match_unfiltered = match_unfiltered or values is None
        self.since = since
        self.properties = tuple(properties)
        clauses = [] if values is None else [_plain_clause(self.values, match_unfiltered)]
        clauses += map(_property_clause, self.properties)
        self.clauses = tuple(sorted(clauses, key=lambda clause: len(clause.keys)))
        if not clauses:
            raise ValueError("nothing is wanted in particular: then there is no need of a matcher")
        self.keys = self.clauses[0].keys
        self.other_keys = tuple(frozenset(clause.keys) for clause in self.clauses[1:])
        self.is_simple = len(clauses) == 1 and clauses[0].mark is None
        self._tests = [
            ValueTest(mark_of(name), {*found, *((b"",) if with_none else ())}, is_complement=False)
            for name, found, with_none in self.properties
        ]
        if values is not None:
            none = (b"",) if match_unfiltered else ()
            self._tests.append(ValueTest(None, self.values.union(none), is_complement=False))
        self._masks: dict[int, tuple[int, ...]] = {}
        self._clause_masks: dict[int, list[tuple[int, ...]]] = {}

    def rows(self, columns: Columns) -> int | None:
        """The messages of a chunk that it asks for, by its columns; None where they do not tell.

        Returns:
            see `Columns.rows`.
        """
        found = [rows for test in self._tests if (rows := columns.rows(test)) is not None]
        return reduce(and_, found) if found else None

    @property
    def asked(self) -> Iterator[bytes]:
        """The filter values that it asks for, and the keys of values of further properties."""
        yield from self.values
        for name, values, _ in self.properties:
            yield from (key_of(name, value) for value in values)

    def matches(self, scheme: int, size: int, filter_bytes: bytes) -> bool:
        """Whether a chunk may hold a wanted message.

        Args:
            scheme: the header's filter scheme; filters of other schemes always match.
            size: the header's filter size; 0 means that no message has a filter value.
            filter_bytes: the chunk's filter, `size` bytes.
        """
        if scheme != MMH3_SCHEME:
            return True
        if not size:
            return self.match_unfiltered
        bits = int.from_bytes(filter_bytes, "big")
        if not self.is_simple:
            return self._all_match(bits, size)
        masks = self._masks.get(size) or self._masks_for(size)
        return any(bits & wanted == wanted for wanted in masks)

    def is_doubtful(self, filter_bytes: bytes, trailer: bytes) -> bool:
        """Whether a chunk that `matches` has ruled out may hold a wanted message nevertheless.

        The bits of a mark may be those of other values. Trailers tell which chunks were looked at
        for a property; without a history in them the bits have to do.

        Args:
            filter_bytes: the chunk's filter.
            trailer: its trailer, which has passed its check.
        """
        if self.is_simple or not filter_bytes:
            return False
        if not lists_values(trailer):
            return False
        bits, size = int.from_bytes(filter_bytes, "big"), len(filter_bytes)
        return all(
            any(bits & wanted == wanted for wanted in clause_masks(clause, size))
            for clause in self.clauses
            if clause.mark is None or lists_value(trailer, clause.mark)
        )

    def _masks_for(self, size: int) -> tuple[int, ...]:
        (clause,) = self.clauses
        self._masks[size] = masks = clause_masks(clause, size)
        return masks

    def _all_match(self, bits: int, size: int) -> bool:
        found = self._clause_masks.get(size)
        if found is None:
            found = [clause_masks(clause, size) for clause in self.clauses]
            self._clause_masks[size] = found
        for clause, masks in zip(self.clauses, found, strict=True):
            if clause.mark is not None:
                looked_for = mask(clause.mark, size)
                if bits & looked_for != looked_for:
                    continue
            if not any(bits & wanted == wanted for wanted in masks):
                return False
        return True


def clause_masks(clause: Clause, size: int) -> tuple[int, ...]:
    """The bits of each value of a clause in a filter of `size` bytes."""
    return tuple({mask(value, size) for value in clause.values})


def _plain_clause(values: frozenset[bytes], match_unfiltered: bool) -> Clause:
    # On a stream with several filter properties some stand in filters in another form.
    asked = values.union(map(plain_key, values), (b"",) if match_unfiltered else ())
    return Clause(asked, tuple(filter_keys(asked)), None)


def _property_clause(wanted: PropertyFilter) -> Clause:
    keys = wanted.keys
    (mark,) = filter_keys((mark_of(wanted.name),))
    return Clause(frozenset(keys), tuple(filter_keys(keys)), mark)

"""What a stream promises about filter values: that they are the values of a declared property.

Selectors choose chunks by that promise. The server keeps it in two ways: it takes the value from
the message where the publisher gave none, and it refuses messages that break it. The values of
further filter properties are always taken from the messages.

Source: rabbitmq/osiris, src/osiris_bloom.erl, for filter values. The promise is ours.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import add
from typing import NamedTuple

from segments.codec import simple_bodies, simple_ends, walk_entries
from segments.compression import entry_bodies
from segments.entries import ID_SIZE, Entries, pick
from segments.errors import FormatError
from segments.map_patterns import MapPatterns
from segments.property_keys import PREFIX, key_of, mark_of, plain_key
from segments.selector import RowReader, filter_value_of, filter_value_reader, parse_property
from segments.selector.fields import value_at
from segments.selector.nodes import PropertySection
from streamd.operations.argument_kinds import Value as Argument
from streamd.operations.arguments import (
    FILTER_CONTRACT,
    FILTER_DERIVE,
    STRICT,
    filter_properties,
)

MAX_VALUES_BYTES = 1 << 20  # of the different filter values of a sub-batch
VALUE_BYTES = 128  # counted for each besides its own
# Keys are made once for each value, as far as these go; for all streams together.
_REMEMBERED_BYTES = 64  # of a value
_REMEMBERED_VALUES = 4096  # of a property; then all of it are forgotten
_REMEMBERED_PROPERTIES = 16
_MANY = 4  # messages that are faster read together


class Checked(NamedTuple):
    """The entries to be stored, and those to be refused.

    Attributes:
        entries: to be stored, their filter values complete; None when there are none.
        refused_ids: 8 bytes for each entry that breaks the promise.
    """

    entries: Entries | None
    refused_ids: bytes = b""


class FilterContract:
    """The promise of one stream.

    Args:
        properties: names of its filter properties. The value of the first is a message's filter
            value; values of the others are taken from each message.
        is_strict: messages that break the promise are refused.
        derives: the server takes the filter value from messages that come without one.

    Attributes:
        further: the names of all properties but the first.
    """

    def __init__(self, properties: Sequence[str], *, is_strict: bool, derives: bool) -> None:
        self.further = frozenset(properties[1:])
        self._is_strict = is_strict
        self._derives = derives
        self._properties = _Properties(properties)

    def check(self, entries: Entries) -> Checked:
        """Fill in missing filter values, and find the entries that break the promise.

        Args:
            entries: messages, none of them packed.
        """
        given = entries.filter_values
        is_complete = given is not None and all(given)
        needs_own = self._is_strict or (self._derives and not is_complete)
        if not (needs_own or self.further):
            return Checked(entries)
        own, entries = self._properties.taken(entries)
        if not needs_own:
            return Checked(self._stored(entries))
        if given is None:
            values = list(own) if self._derives else None
        elif self._derives:
            values = [theirs or ours for theirs, ours in zip(given, own, strict=True)]
        else:
            values = list(given)
        checked = entries._replace(filter_values=values if values and any(values) else None)
        if not self._is_strict:
            return Checked(self._stored(checked))
        return self._keep_sound(checked, values, own)

    def check_sub_batch(self, entries: Entries) -> Checked:
        """The same for one sub-batch: all of it is stored, or nothing.

        Nothing is, too, when its filter values are larger than MAX_VALUES_BYTES together. It may
        take seconds: call it from a thread.
        """
        values: Counter[bytes] = Counter()
        keys: Counter[bytes] = Counter()
        size = 0
        for raw in _unpacked(entries.data):
            own, *others = self._properties.of(raw)
            for counts, value in ((values, own), *((keys, key) for key in others)):
                if value not in counts:
                    size += len(value) + VALUE_BYTES
                counts[value] += 1
            if size > MAX_VALUES_BYTES:
                return Checked(None, entries.publishing_ids)
        if self.further:
            entries = entries._replace(marks=self._properties.marks, property_keys=keys)
        if self._derives and any(values):
            return Checked(self._stored(entries._replace(filter_values=values)))
        breaks_promise = self._is_strict and not self._derives and any(values)
        return Checked(None, entries.publishing_ids) if breaks_promise else Checked(entries)

    def with_property_keys(self, entries: Entries) -> Entries:
        """Entries whose filter values are known, with what further filter properties add to them.

        Args:
            entries: messages, none of them packed.
        """
        return self._stored(self._properties.taken(entries)[1]) if self.further else entries

    def _keep_sound(
        self, entries: Entries, values: Sequence[bytes] | None, own: Sequence[bytes]
    ) -> Checked:
        given = [b""] * len(own) if values is None else values
        if given == own:
            return Checked(self._stored(entries))
        kept = [
            n for n, (theirs, ours) in enumerate(zip(given, own, strict=True)) if theirs == ours
        ]
        ids = entries.publishing_ids
        wrong = set(range(entries.num_entries)).difference(kept)
        refused = b"".join(ids[ID_SIZE * n : ID_SIZE * (n + 1)] for n in sorted(wrong))
        return Checked(self._stored(pick(entries, kept)) if kept else None, refused)

    def _stored(self, entries: Entries) -> Entries:
        """The entries with their filter values as chunks have them."""
        values = entries.filter_values
        if not self.further or values is None:
            return entries
        if PREFIX not in b"".join(values) or not any(it.startswith(PREFIX) for it in values):
            return entries
        if isinstance(values, Counter):
            counts = {plain_key(value): count for value, count in values.items()}
            return entries._replace(filter_values=Counter(counts))
        return entries._replace(filter_values=list(map(plain_key, values)))


class _Properties:
    """Takes the values of filter properties from messages, all of them in one go.

    Attributes:
        marks: of all but the first, see segments/property_keys.py.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.marks = tuple(map(mark_of, names[1:]))
        properties = list(map(parse_property, names))
        in_map = all(prop.section is PropertySection.APPLICATION for prop in properties)
        self._patterns = MapPatterns(names) if in_map else None
        self._read = RowReader(properties).read
        self._readers = list(map(filter_value_reader, properties))
        # The value of the first is a filter value, those of the others become keys.
        self._heads = (b"", *(key_of(name, b"") for name in names[1:]))

    def of(self, raw: bytes) -> tuple[bytes, ...]:
        """The filter value of a message, then its keys."""
        try:
            row = self._read(raw)
        except FormatError:
            # Damaged behind some of them, perhaps: a selector that names one finds its value.
            values = [read(raw) for read in self._readers]
        else:
            values = list(map(filter_value_of, row))
        return tuple(map(add, self._heads, values))

    def taken(self, entries: Entries) -> tuple[Sequence[bytes], Entries]:
        """The filter values of messages, and the messages with their keys."""
        own, *keys = self._columns(entries)
        return own, entries._replace(marks=self.marks, property_keys=tuple(keys))

    def _columns(self, entries: Entries) -> Sequence[Sequence[bytes]]:
        """The same: what stands first in `of` for each message, what stands second, and so on."""
        data, patterns, ends = entries.data, self._patterns, None
        if patterns is not None and entries.num_entries >= _MANY:
            ends = entries.ends or simple_ends(data)
        if patterns is None or ends is None:
            return self._read_each(messages_of(data))
        found, unread = patterns.read(data, ends)
        if len(unread) == len(ends):
            return self._read_each(messages_of(data))
        try:
            columns = [
                list(map(_known(head).__getitem__, column))
                for head, column in zip(self._heads, found, strict=True)
            ]
        except FormatError:
            return self._read_each(messages_of(data))
        if unread:
            begins = (0, *ends)
            others = self._read_each([data[begins[n] + 4 : ends[n]] for n in unread])
            for column, values in zip(columns, others, strict=True):
                for number, value in zip(unread, values, strict=True):
                    column[number] = value
        return columns

    def _read_each(self, bodies: Sequence[bytes]) -> Sequence[Sequence[bytes]]:
        try:
            rows = list(map(self._read, bodies))
        except FormatError:
            return list(zip(*map(self.of, bodies), strict=True))
        return [
            [head + filter_value_of(value) for value in column]
            for head, column in zip(self._heads, zip(*rows, strict=True), strict=True)
        ]


class _Known(dict[bytes, bytes]):
    """What encoded values of a property become; a dict, so that those of before are looked up in C.

    Args:
        head: what stands before each.
    """

    def __init__(self, head: bytes) -> None:
        super().__init__()
        self._head = head

    def __missing__(self, encoded: bytes) -> bytes:
        """What it becomes; that of an empty one is what messages without a value have.

        Raises:
            FormatError: it is not sound.
        """
        made = self._head + filter_value_of(value_at(encoded, 0) if encoded else None)
        if len(encoded) <= _REMEMBERED_BYTES:
            if len(self) >= _REMEMBERED_VALUES:
                self.clear()
            self[encoded] = made
        return made


_known = lru_cache(maxsize=_REMEMBERED_PROPERTIES)(_Known)


def contract_of(arguments: Mapping[str, Argument]) -> FilterContract | None:
    """What a stream's arguments promise; None when there is nothing to enforce."""
    properties = filter_properties(arguments)
    is_strict = arguments.get(FILTER_CONTRACT) == STRICT
    derives = arguments.get(FILTER_DERIVE) is True
    if not properties or not (is_strict or derives or len(properties) > 1):
        return None
    return FilterContract(properties, is_strict=is_strict, derives=derives)


def own_value_reader(arguments: Mapping[str, Argument]) -> Callable[[bytes], bytes] | None:
    """Reads the value of a stream's first filter property from messages; None where it has none.

    The value is empty where the message has no such property, is damaged, or has a number there.
    """
    properties = filter_properties(arguments)
    return filter_value_reader(parse_property(properties[0])) if properties else None


def unpacked_size(data: bytes) -> int:
    """How many bytes the sub-batches among entries announce to have when unpacked."""
    return sum(entry.uncompressed_size for entry in walk_entries(data))


def messages_of(data: bytes) -> list[bytes]:
    """The messages in entries, sub-batches unpacked; one that is damaged yields empty messages."""
    simple = simple_bodies(data)
    return list(_unpacked(data)) if simple is None else simple


def _unpacked(data: bytes) -> Iterator[bytes]:
    for entry in walk_entries(data):
        try:
            found = list(entry_bodies(data, entry))
        except FormatError:
            found = [b""] * entry.num_records
        yield from found

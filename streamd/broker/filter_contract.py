"""What a stream promises about filter values: that they are the values of a declared property.

Selectors choose chunks by that promise. The server keeps it in two ways: it takes the value from
the message where the publisher gave none, and it refuses messages that break it.

Source: rabbitmq/osiris, src/osiris_bloom.erl, for filter values. The promise is ours.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from segments.codec import simple_bodies, walk_entries
from segments.compression import entry_bodies
from segments.entries import ID_SIZE, Entries, pick
from segments.errors import FormatError
from segments.selector import Property, filter_value_reader, parse_property
from streamd.broker.arguments import FILTER_CONTRACT, FILTER_DERIVE, FILTER_PROPERTY, STRICT, Value

MAX_VALUES_BYTES = 1 << 20  # of the different filter values of a sub-batch
VALUE_BYTES = 128  # counted for each besides its own


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
        filter_property: the property whose value is a message's filter value.
        is_strict: messages that break the promise are refused.
        derives: the server takes the value from messages that come without one.
    """

    def __init__(self, filter_property: Property, *, is_strict: bool, derives: bool) -> None:
        self._own_value = filter_value_reader(filter_property)
        self._is_strict = is_strict
        self._derives = derives

    def check(self, entries: Entries) -> Checked:
        """Fill in missing filter values, and find the entries that break the promise.

        Args:
            entries: messages, none of them packed.
        """
        given = entries.filter_values
        if not self._is_strict and given is not None and all(given):
            return Checked(entries)
        own = [self._own_value(raw) for raw in messages_of(entries.data)]
        if given is None:
            values = own if self._derives else None
        elif self._derives:
            values = [theirs or ours for theirs, ours in zip(given, own, strict=True)]
        else:
            values = list(given)
        checked = entries._replace(filter_values=values if values and any(values) else None)
        return self._keep_sound(checked, values, own) if self._is_strict else Checked(checked)

    def check_sub_batch(self, entries: Entries) -> Checked:
        """The same for one sub-batch: all of it is stored, or nothing.

        Nothing is, too, when its filter values are larger than MAX_VALUES_BYTES together. It may
        take seconds: call it from a thread.
        """
        values: Counter[bytes] = Counter()
        size = 0
        for raw in _unpacked(entries.data):
            value = self._own_value(raw)
            if value not in values:
                size += len(value) + VALUE_BYTES
                if size > MAX_VALUES_BYTES:
                    return Checked(None, entries.publishing_ids)
            values[value] += 1
        if not any(values):
            return Checked(entries)
        if self._derives:
            return Checked(entries._replace(filter_values=values))
        return Checked(None, entries.publishing_ids)

    def _keep_sound(
        self, entries: Entries, values: Sequence[bytes] | None, own: Sequence[bytes]
    ) -> Checked:
        given = [b""] * len(own) if values is None else values
        kept = [
            n for n, (theirs, ours) in enumerate(zip(given, own, strict=True)) if theirs == ours
        ]
        ids = entries.publishing_ids
        wrong = set(range(entries.num_entries)).difference(kept)
        refused = b"".join(ids[ID_SIZE * n : ID_SIZE * (n + 1)] for n in sorted(wrong))
        return Checked(pick(entries, kept) if kept else None, refused)


def contract_of(arguments: Mapping[str, Value]) -> FilterContract | None:
    """What a stream's arguments promise; None when there is nothing to enforce."""
    name = arguments.get(FILTER_PROPERTY)
    is_strict = arguments.get(FILTER_CONTRACT) == STRICT
    derives = arguments.get(FILTER_DERIVE) is True
    if name is None or not (is_strict or derives):
        return None
    return FilterContract(parse_property(str(name)), is_strict=is_strict, derives=derives)


def own_value_reader(arguments: Mapping[str, Value]) -> Callable[[bytes], bytes] | None:
    """Reads the value of a stream's filter property from a message; None where it has none.

    The value is empty where the message has no such property, is damaged, or has a number there.
    """
    name = arguments.get(FILTER_PROPERTY)
    return None if name is None else filter_value_reader(parse_property(str(name)))


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

"""What connections hand to streams: entries, and the publisher that learns their outcome."""

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple, Protocol

from segments.entries import Entries
from streamd.broker.declared.filter_contract import VALUE_BYTES
from streamd.config import PUBLICATION_BYTES
from streamd.operations.errors import Reason

_SHORT_VALUE_BYTES = 64  # counted for the filter value of a message: longer ones are in the frame
_END_BYTES = 40  # the same for where it ends


class Publisher(Protocol):
    """A publisher, whatever protocol its connection speaks.

    Attributes:
        reference: a durable name as bytes, empty for none; with one, messages that are sent twice
            are stored once.
    """

    @property
    def reference(self) -> bytes:
        """See above; always the same."""

    def confirm(self, publishing_ids: bytes) -> None:
        """These messages are stored, or were before; 8 bytes each, as they were given."""

    def refuse(self, publishing_ids: bytes, reason: Reason) -> None:
        """These messages are not taken."""


class SinglePublisher:
    """Publishes one message, and learns where it is.

    Attributes:
        offset: of the message; None before it is written.
        is_stored: it is as safe as a confirmed message.
        refused: why it is not taken; None while it may be.
    """

    reference = b""

    def __init__(self) -> None:
        self.offset: int | None = None
        self.is_stored = False
        self.refused: Reason | None = None

    def confirm(self, _publishing_ids: bytes) -> None:
        """See Publisher."""
        self.is_stored = True

    def refuse(self, _publishing_ids: bytes, reason: Reason) -> None:
        """See Publisher."""
        self.refused = reason


class PendingEntries(NamedTuple):
    """Entries on their way into a stream, and their publisher."""

    publisher: Publisher
    entries: Entries


class Remote(Protocol):
    """Publishes to a stream that another node leads; see connections/stream/remote.py."""

    @property
    def is_crowded(self) -> bool:
        """More must not be given."""

    def publish(self, pending: PendingEntries) -> None:
        """Have entries published; their publisher is told when they are stored."""

    async def room(self) -> None:
        """Return when more may be given."""

    async def settled(self) -> None:
        """Return when everything is confirmed or refused."""


def queued_size(entries: Entries) -> int:
    """The bytes that are counted for entries while they wait to be written."""
    size, values = len(entries.data) + PUBLICATION_BYTES, entries.filter_values
    if type(values) is Counter:  # those of a sub-batch were unpacked
        size += _unpacked_size(values)
    elif values is not None:
        size += _SHORT_VALUE_BYTES * len(values)
    if isinstance(entries.ends, list):
        size += _END_BYTES * len(entries.ends)
    if entries.marks:
        keys = entries.property_keys
        if isinstance(keys, Counter):
            size += _unpacked_size(keys)
        else:
            size += _SHORT_VALUE_BYTES * sum(map(len, keys))
    return size


def _unpacked_size(values: Collection[bytes]) -> int:
    return sum(map(len, values)) + VALUE_BYTES * len(values)

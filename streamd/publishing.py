"""From a Publish frame to entries that a stream can store, and back to the publisher's confirm."""

from typing import NamedTuple

from streamd.outbox import Outbox
from streamd.wire import ResponseCode
from streamd.wire.publish import Entries, encode_confirm, encode_refusal


class Publisher:
    """A publisher that a connection declared.

    Attributes:
        publisher_id: its number on the connection.
        reference: its durable name as bytes, empty for none; with one, messages it sends twice
            are stored once.
        is_deleted: it was taken back; nothing more is sent to it.
    """

    __slots__ = ("_outbox", "is_deleted", "publisher_id", "reference")

    def __init__(self, publisher_id: int, reference: str, outbox: Outbox) -> None:
        self.publisher_id = publisher_id
        self.reference = reference.encode()
        self.is_deleted = False
        self._outbox = outbox

    def confirm(self, publishing_ids: bytes) -> None:
        """Tell the client that these messages are stored; 8 bytes each, as it sent them."""
        if not self.is_deleted:
            self._outbox.put(encode_confirm(self.publisher_id, publishing_ids))

    def refuse(self, publishing_ids: bytes, code: ResponseCode) -> None:
        """Tell the client that these messages were not taken."""
        if not self.is_deleted:
            self._outbox.put(encode_refusal(self.publisher_id, publishing_ids, code))


class Publication(NamedTuple):
    """Entries on their way into a stream, and whom to tell."""

    publisher: Publisher
    entries: Entries

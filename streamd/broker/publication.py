"""From a Publish frame to entries that a stream can store, and back to the publisher's confirm."""

from typing import NamedTuple

from streamd.net.outbox import Outbox
from streamd.wire.stream import ResponseCode
from streamd.wire.stream.publish import Entries, encode_confirm, encode_refusal

_ID_SIZE = 8


class Publisher:
    """A publisher that a connection declared.

    Attributes:
        publisher_id: its number on the connection.
        reference: its durable name as bytes, empty for none; with one, messages it sends twice
            are stored once.
        is_deleted: it was taken back; nothing more is sent to it.
        published: entries that arrived.
        confirmed: entries stored or found to be stored already.
        refused: entries not taken.
    """

    __slots__ = (
        "_outbox",
        "confirmed",
        "is_deleted",
        "published",
        "publisher_id",
        "reference",
        "refused",
    )

    def __init__(self, publisher_id: int, reference: str, outbox: Outbox) -> None:
        self.publisher_id = publisher_id
        self.reference = reference.encode()
        self.is_deleted = False
        self.published = self.confirmed = self.refused = 0
        self._outbox = outbox

    def confirm(self, publishing_ids: bytes) -> None:
        """Tell the client that these messages are stored; 8 bytes each, as it sent them."""
        self.confirmed += len(publishing_ids) // _ID_SIZE
        if not self.is_deleted:
            self._outbox.put_now(encode_confirm(self.publisher_id, publishing_ids))

    def refuse(self, publishing_ids: bytes, code: ResponseCode) -> None:
        """Tell the client that these messages were not taken."""
        self.refused += len(publishing_ids) // _ID_SIZE
        if not self.is_deleted:
            self._outbox.put(encode_refusal(self.publisher_id, publishing_ids, code))


class Publication(NamedTuple):
    """Entries on their way into a stream, and whom to tell."""

    publisher: Publisher
    entries: Entries

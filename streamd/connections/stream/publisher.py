"""A publisher that a connection of the stream protocol has declared: confirms as frames."""

from segments.entries import ID_SIZE
from streamd.broker.errors import Reason
from streamd.connections.stream.response_codes import code_of_reason
from streamd.net.outbox import Outbox
from streamd.wire.stream.publish import encode_confirm, encode_refusal


class StreamPublisher:
    """One publisher; see broker.publication.Publisher.

    Attributes:
        publisher_id: its number on the connection.
        reference: its durable name as bytes, empty for none; with one, messages it sends twice
            are stored once.
        is_deleted: nothing more is sent to it.
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
        self.confirmed += len(publishing_ids) // ID_SIZE
        if not self.is_deleted:
            self._outbox.put_now(encode_confirm(self.publisher_id, publishing_ids))

    def refuse(self, publishing_ids: bytes, reason: Reason) -> None:
        """Tell the client that these messages were not taken."""
        self.refused += len(publishing_ids) // ID_SIZE
        if not self.is_deleted:
            self._outbox.put(
                encode_refusal(self.publisher_id, publishing_ids, code_of_reason(reason))
            )

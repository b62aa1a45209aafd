"""A publisher that a connection of the stream protocol has declared: confirms as frames."""

from segments.entries import ID_SIZE
from streamd.broker.traffic import ProtocolTraffic
from streamd.connections.stream.response_codes import code_of_reason
from streamd.net.outbox import Outbox
from streamd.operations.errors import Reason
from streamd.wire.stream import ResponseCode
from streamd.wire.stream.publish import encode_confirm, encode_refusal


class StreamPublisher:
    """One publisher; see broker.publication.Publisher.

    The highest publishing id that is stored under a name stands for all below it: messages up to
    it are taken for duplicates, and publishers go on behind it. So of a publisher with a name
    nothing is stored behind a message that was refused; it is over, and has to be declared again.

    Attributes:
        reference: its durable name as bytes, empty for none; with one, messages it sends twice
            are stored once.
        is_deleted: nothing more is sent to it.
        is_stopped: it has a name, and one of its messages was refused: all behind that are, too.
        published: entries that arrived.
        confirmed: entries stored or found to be stored already.
        refused: entries not taken.
    """

    __slots__ = (
        "_outbox",
        "confirmed",
        "is_deleted",
        "is_stopped",
        "published",
        "publisher_id",
        "reference",
        "refused",
        "traffic",
    )

    def __init__(
        self, publisher_id: int, reference: str, outbox: Outbox, traffic: ProtocolTraffic
    ) -> None:
        self.publisher_id = publisher_id
        self.reference = reference.encode()
        self.is_deleted = self.is_stopped = False
        self.published = self.confirmed = self.refused = 0
        self.traffic = traffic
        self._outbox = outbox
        traffic.publishers += 1

    def received(self, count: int) -> None:
        """This many entries have arrived."""
        self.published += count
        self.traffic.messages_received += count

    def delete(self) -> None:
        """Nothing more is sent to it."""
        if not self.is_deleted:
            self.is_deleted = True
            self.traffic.publishers -= 1

    def confirm(self, publishing_ids: bytes) -> None:
        """Tell the client that these messages are stored; 8 bytes each, as it sent them."""
        count = len(publishing_ids) // ID_SIZE
        self.confirmed += count
        self.traffic.messages_confirmed += count
        if not self.is_deleted:
            self._outbox.put_now(encode_confirm(self.publisher_id, publishing_ids))

    def refuse(self, publishing_ids: bytes, reason: Reason) -> None:
        """Tell the client that these messages were not taken."""
        self._refuse(publishing_ids, code_of_reason(reason))

    def refuse_behind(self, publishing_ids: bytes) -> None:
        """Tell the client that these are not taken, because one before them was not."""
        self._refuse(publishing_ids, ResponseCode.PUBLISHER_DOES_NOT_EXIST)

    def _refuse(self, publishing_ids: bytes, code: ResponseCode) -> None:
        self.is_stopped = bool(self.reference)
        self.refused += len(publishing_ids) // ID_SIZE
        self.traffic.errors[code] += 1
        if not self.is_deleted:
            self._outbox.put(encode_refusal(self.publisher_id, publishing_ids, code))

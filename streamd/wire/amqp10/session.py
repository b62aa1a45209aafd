"""One session: its windows, its links, and the messages that arrive on them. No sockets.

Theory of operation. Both ends count the transfers that they have sent and got, modulo 2^32. A
window says how many more may come; our incoming one is WINDOW, and filled up again when half of it
is used. A message may take several transfers, each counts; they are collected here, link by link.
How many messages a link may send is its credit, which is granted in terms of the number of messages
it has sent (delivery-count).

    a transfer arrives    window - 1; the first of a message: credit - 1, delivery-count + 1
    our Flow              window = WINDOW; with a link: its credit
    their Flow            how many transfers may be sent; with a link: their credit for it

Source: OASIS AMQP 1.0 part 2 (transport), 2.5.6 and 2.6.7.
"""

from collections.abc import Iterator
from typing import NamedTuple

from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import TransferHead
from streamd.wire.amqp10.errors import Condition, ConnectionFault, LinkFault, SessionFault

WINDOW = 400  # transfers
HANDLE_MAX = 255
MAX_MESSAGE_BYTES = 16 << 20
_MASK = (1 << 32) - 1
_HALF = 1 << 31


def serial_gap(first: int, second: int) -> int:
    """How far the second number is behind the first, which may be negative; see RFC 1982."""
    return ((second - first + _HALF) & _MASK) - _HALF


class Arrived(NamedTuple):
    """A message that has arrived as a whole.

    Attributes:
        is_settled: the sender does not wait for an outcome.
    """

    delivery_id: int
    is_settled: bool
    raw: bytes


class Link:
    """One end of a link; the peer's handle and ours are the same number.

    Attributes:
        is_incoming: the peer sends on it.
        is_detached: our end is; the peer's is not yet.
        credit: messages that may still come, or be sent.
        delivery_count: how many have, as both ends count.
        unfinished: bytes that are kept of a message that is arriving.
    """

    def __init__(self, attach: p.Attach) -> None:
        self.name = attach.name
        self.handle = attach.handle
        self.is_incoming = attach.role is p.SENDER
        self.is_detached = False
        self.snd_settle_mode = attach.snd_settle_mode
        self.credit = 0
        self.delivery_count = (attach.initial_delivery_count or 0) if self.is_incoming else 0
        self.max_message_bytes = MAX_MESSAGE_BYTES
        self.unfinished = 0
        self._delivery_id: int | None = None  # of the message that is arriving
        self._is_settled: bool | None = None
        self._parts = bytearray()  # one by one they would take far more than they are

    def take(self, head: TransferHead, payload: bytes) -> Arrived | None:
        """Take a transfer; the message once it is whole.

        Raises:
            LinkFault, SessionFault: it is not what may come.
        """
        delivery_id = self._delivery_id
        if delivery_id is None:
            delivery_id = self._begin(head)
            if not head.more and not head.is_aborted:  # as mostly
                return self._arrived(delivery_id, head.settled, payload)
            self._delivery_id, self._is_settled = delivery_id, head.settled
        elif head.delivery_id not in (None, delivery_id):
            raise _invalid(f"delivery {head.delivery_id} begins in the middle of {delivery_id}")
        elif head.settled is not None:
            if self._is_settled and not head.settled:
                raise _invalid(f"delivery {delivery_id} is settled, and then it is not")
            self._is_settled = head.settled
        if head.is_aborted:
            self.drop_unfinished()
            return None
        self._parts += payload
        self.unfinished += len(payload)
        if self.unfinished > self.max_message_bytes:
            raise _too_large(self.unfinished, self.max_message_bytes)
        if head.more:
            return None
        raw, is_settled = bytes(self._parts), self._is_settled
        self.drop_unfinished()
        return self._arrived(delivery_id, is_settled, raw)

    def _begin(self, head: TransferHead) -> int:
        if head.delivery_id is None:
            raise SessionFault(
                Condition.INVALID_FIELD, "the first transfer of a message has no delivery-id"
            )
        if self.credit <= 0:
            raise LinkFault(
                Condition.TRANSFER_LIMIT_EXCEEDED,
                f"link '{self.name}' has no credit; wait for a flow before you send",
            )
        self.took(1)
        return head.delivery_id

    def took(self, count: int) -> None:
        """So many messages were taken, or sent, for which there was credit."""
        self.credit -= count
        self.delivery_count = (self.delivery_count + count) & _MASK

    def _arrived(self, delivery_id: int, settled: bool | None, raw: bytes) -> Arrived:
        mode = self.snd_settle_mode
        is_settled = bool(settled)
        if mode != p.MIXED and is_settled != (mode == p.SETTLED):
            asked = "settled" if mode == p.SETTLED else "unsettled"
            raise _invalid(f"delivery {delivery_id} has settled={is_settled} on a link for {asked}")
        if len(raw) > self.max_message_bytes:
            raise _too_large(len(raw), self.max_message_bytes)
        return Arrived(delivery_id, is_settled, raw)

    def drop_unfinished(self) -> None:
        """Forget the message that is arriving."""
        self._delivery_id, self._is_settled = None, None
        if self._parts:
            self._parts = bytearray()
        self.unfinished = 0

    def take_flow(self, flow: p.Flow) -> None:
        """The peer, which receives on this link, says how much it wants."""
        count = flow.delivery_count
        if count is None:  # it has not seen our attach
            count = 0
        on_its_way = serial_gap(count, self.delivery_count)
        self.credit = max(0, (flow.link_credit or 0) - on_its_way)

    def drain(self) -> None:
        """Use all credit up, as nothing is there to be sent."""
        self.took(self.credit)


def _invalid(text: str) -> LinkFault:
    return LinkFault(Condition.INVALID_FIELD, text)


def _too_large(size: int, most: int) -> SessionFault:
    text = f"a message has {size:,} bytes and more, at most {most:,} can be sent"
    return SessionFault(Condition.MESSAGE_SIZE_EXCEEDED, text)


class Session:
    """One session.

    Attributes:
        channel: the peer's number and ours.
        links: by handle.
        handle_max: the largest handle.
        incoming: transfers that may come.
        outgoing: transfers that may be sent now.
        next_outgoing_id: the number of the next.
        next_delivery_id: of the next message from here.
        is_blocked: the peer is to send nothing for now; what was granted before may still come.
    """

    def __init__(self, channel: int, begin: p.Begin) -> None:
        self.channel = channel
        self.links: dict[int, Link] = {}
        self.handle_max = min(begin.handle_max, HANDLE_MAX)
        self.outgoing = begin.incoming_window
        self.next_outgoing_id = self.next_delivery_id = 0
        self.incoming = WINDOW
        self.is_blocked = False
        self._next_incoming_id = begin.next_outgoing_id

    def answer(self) -> p.Begin:
        """The answer to the peer's Begin."""
        return p.Begin(self.channel, self.next_outgoing_id, WINDOW, _MASK, self.handle_max)

    # -- incoming

    def attach(self, attach: p.Attach) -> Link:
        """A new link.

        Raises:
            ConnectionFault, SessionFault: it cannot have this handle.
        """
        handle = attach.handle
        if handle > self.handle_max:
            text = f"handle {handle} is attached, at most {self.handle_max} was agreed"
            raise ConnectionFault(Condition.FRAMING_ERROR, text)
        old = self.links.get(handle)
        if old is not None and not old.is_detached:
            raise SessionFault(
                Condition.HANDLE_IN_USE, f"handle {handle} is that of link '{old.name}'"
            )
        link = self.links[handle] = Link(attach)
        return link

    def link(self, handle: int) -> Link:
        """The link of a handle.

        Raises:
            SessionFault: there is none.
        """
        found = self.links.get(handle)
        if found is None:
            text = f"no link is attached with handle {handle}"
            raise SessionFault(Condition.UNATTACHED_HANDLE, text)
        return found

    def take_transfer(self) -> None:
        """One transfer has arrived.

        Raises:
            SessionFault: the window was used up.
        """
        if self.incoming <= 0:
            text = f"more than {WINDOW} transfers came without a flow from here"
            raise SessionFault(Condition.WINDOW_VIOLATION, text)
        self.took(1)

    def took(self, count: int) -> None:
        """So many transfers have arrived, for which there was room."""
        self.incoming -= count
        self._next_incoming_id = (self._next_incoming_id + count) & _MASK

    @property
    def needs_window(self) -> bool:
        """Half of our window is used, and more may come."""
        return self.incoming <= WINDOW // 2 and not self.is_blocked

    def flow(self, link: Link | None = None) -> p.Flow:
        """A flow that fills the window up again, unless the session is blocked.

        Args:
            link: that it is for, too.
        """
        window = 0 if self.is_blocked else WINDOW
        if not self.is_blocked:
            self.incoming = WINDOW
        flow = p.Flow(self._next_incoming_id, window, self.next_outgoing_id, _MASK)
        if link is None:
            return flow
        return flow._replace(
            handle=link.handle, delivery_count=link.delivery_count, link_credit=link.credit
        )

    # -- outgoing

    def take_flow(self, flow: p.Flow) -> None:
        """The peer's window.

        Raises:
            SessionFault: it has got what was not sent.
        """
        seen = 0 if flow.next_incoming_id is None else flow.next_incoming_id
        ahead = serial_gap(self.next_outgoing_id, seen)
        if ahead > 0:
            text = f"next-incoming-id is {seen}, but {self.next_outgoing_id} is sent next"
            raise SessionFault(Condition.WINDOW_VIOLATION, text)
        self.outgoing = max(0, flow.incoming_window + ahead)

    def sent(self, count: int) -> None:
        """So many transfers are sent."""
        self.outgoing -= count
        self.next_outgoing_id = (self.next_outgoing_id + count) & _MASK

    def deliver(self, count: int) -> int:
        """So many messages are sent; returns the id of the first."""
        first = self.next_delivery_id
        self.next_delivery_id = (first + count) & _MASK
        return first

    # -- the end

    def attached(self) -> Iterator[Link]:
        """The links that are attached at both ends."""
        return (link for link in self.links.values() if not link.is_detached)

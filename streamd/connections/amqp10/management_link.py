"""Pairs of links to the management node: requests come on one, answers go on the other.

Both have one name, in either order; see management.py for what can be asked.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_amqp_session.erl; OASIS AMQP link pairing.
"""

from functools import partial

from streamd.connections.amqp10.addresses import MANAGEMENT
from streamd.connections.amqp10.delivery import OutgoingSession
from streamd.connections.amqp10.management import Management
from streamd.net.outbox import Outbox
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import frame
from streamd.wire.amqp10.deliver import pieces_of
from streamd.wire.amqp10.errors import Condition, LinkFault, SessionFault
from streamd.wire.amqp10.session import Arrived, Link

CREDIT = 8  # requests, as RabbitMQ grants it; again when half of it is used
MAX_PAIRS = 64  # of a session
MAX_REQUEST_BYTES = 16 << 10  # each value in it costs


def is_management(attach: p.Attach) -> bool:
    """Whether a link is a half of a pair."""
    terminus = attach.target if attach.role is p.SENDER else attach.source
    return isinstance(terminus, p.Target | p.Source) and terminus.address == MANAGEMENT


def check_half(attach: p.Attach) -> None:
    """Raise LinkFault unless a link can be a half of a pair."""
    if (attach.properties or {}).get("paired") is not True:
        text = "Link property 'paired' is not set to boolean value 'true'"
        raise LinkFault(Condition.INVALID_FIELD, text)
    if attach.snd_settle_mode != p.SETTLED:
        text = "snd-settle-mode is not settled, as it has to be on a link to the management node"
        raise LinkFault(Condition.INVALID_FIELD, text)


class ManagementPair:
    """A pair of links.

    Attributes:
        incoming, outgoing: its halves; None for one that is not attached.
    """

    def __init__(
        self,
        sending: OutgoingSession,
        management: Management,
        outbox: Outbox,
        frame_max: int,
    ) -> None:
        self.incoming: Link | None = None
        self.outgoing: Link | None = None
        self._sending = sending
        self._management = management
        self._outbox = outbox
        self._frame_max = frame_max

    def attach(self, link: Link) -> None:
        """A half is attached.

        Raises:
            LinkFault: it has this half.
        """
        if (self.incoming if link.is_incoming else self.outgoing) is not None:
            text = f"the link pair '{link.name}' has this half"
            raise LinkFault(Condition.INVALID_FIELD, text)
        if link.is_incoming:
            self.incoming = link
        else:
            self.outgoing = link

    def detach(self, link: Link) -> bool:
        """A half is detached; whether there is none left."""
        if link is self.incoming:
            self.incoming = None
        if link is self.outgoing:
            self.outgoing = None
        return self.incoming is self.outgoing

    def close(self) -> None:
        """The session has ended: what is still asked for is answered to nobody."""
        self.incoming = self.outgoing = None

    def grant(self) -> None:
        """Grant credit for requests, where little is left."""
        link, session = self.incoming, self._sending.session
        if link is not None and link.credit <= CREDIT // 2 and not self._sending.has_waiting:
            link.credit = CREDIT
            self._outbox.put(frame(session.channel, session.flow(link)))

    async def answer(self, request: Arrived) -> None:
        """Carry out a request.

        Raises:
            SessionFault: it cannot be answered.
        """
        await self._management.answer(request.raw, partial(self._send, self._ready(request)))
        self.grant()

    def _send(self, link: Link, answer: bytes) -> None:
        if self.outgoing is not link:
            return  # it has gone meanwhile
        link.took(1)
        sending = self._sending
        transfer = p.Transfer(link.handle, sending.session.deliver(1), b"", 0, True)
        channel, most = sending.session.channel, self._frame_max
        sending.send(link, pieces_of(channel, transfer, answer, most))

    def _ready(self, request: Arrived) -> Link:
        link = self.outgoing
        if link is None or link.credit <= 0:
            found = "has no credit" if link else "is not attached"
            text = f"the link for answers {found}; attach it and grant credit before you ask"
            raise SessionFault(Condition.PRECONDITION_FAILED, text)
        if not request.is_settled:
            text = "a request is not settled, as it has to be"
            raise SessionFault(Condition.INVALID_FIELD, text)
        return link

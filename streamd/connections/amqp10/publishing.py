"""From a transfer to the streams that its message goes to, and back to the outcome.

Where messages go is in routes.py, how they are given to streams in gathering.py.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import NamedTuple

import trio

from segments.errors import FormatError
from segments.message import MessageView
from streamd.auth.users import Rights
from streamd.broker.targets import Target
from streamd.broker.traffic import Traffic
from streamd.broker.virtual_host import VirtualHost
from streamd.connections.amqp10.addresses import Destination, more_keys, read_to
from streamd.connections.amqp10.faults import fault_of
from streamd.connections.amqp10.publisher import NOBODY, PublisherLink
from streamd.connections.gathering import Gathering
from streamd.connections.routes import ROUTED, Routes, targets_a_turn
from streamd.net.turns import Steps, Stepwise, next_turn
from streamd.operations.errors import Refused
from streamd.operations.figures import AMQP10
from streamd.operations.names import Name
from streamd.operations.routing import Headers
from streamd.wire.amqp10.errors import Condition, Fault, LinkFault, SessionFault
from streamd.wire.amqp10.messages import (
    Bare,
    StoredHead,
    bare_position,
    check_bare,
    read_start,
    start_of,
    stored_head,
    to_of,
    user_of,
)
from streamd.wire.amqp10.session import Arrived
from streamd.wire.stored_messages import MAX_KEYS

_SECTIONS_A_MESSAGE = 5  # that take as long as a message
_USUAL_BYTES = 512  # of annotations, and of properties, cost nothing more
# That take as long as a message: of annotations, and of properties that an exchange looks at; of
# other properties.
_READ_A_MESSAGE, _SKIPPED_A_MESSAGE = 16, 64
MAX_READ_BYTES = 32 << 10  # of properties that an exchange looks at
_UNITS_A_TURN = 512  # messages, and what takes as long, before others have a turn


class _Message(NamedTuple):
    """A message that has been checked.

    Attributes:
        raw: as it arrived.
        bare: where the bare message begins in it.
        properties: bytes of it before its body.
        price: of what it has besides its body, in messages that would have taken as long.
    """

    arrived: Arrived
    head: StoredHead
    bare: int
    properties: int
    price: int
    destination: Destination
    keys: tuple[str, ...]

    @property
    def stored(self) -> bytes:
        """As streams keep it."""
        return self.head.sections + self.arrived.raw[self.bare :]


class Begun(NamedTuple):
    """A message that has to wait: where it goes, as far as that was found out."""

    targets: Stepwise[list[Target]]
    message: _Message


class Publishing:
    """What one connection publishes."""

    def __init__(self, host: VirtualHost, rights: Rights, traffic: Traffic) -> None:
        self._host = host
        self._rights = rights
        self._user = rights.user.encode()
        self._routes, self._gathering = Routes(host, rights), Gathering(traffic)
        self._traffic = traffic.protocol(AMQP10)
        self._new_sizes = self._gathering.new_sizes
        self.flush, self.settled = self._gathering.flush, self._gathering.settled
        self.has_room, self.room = self._gathering.has_room, self._gathering.room

    def require(self, destination: Destination) -> None:
        """Raise a fault unless the user may publish there, and there is such a place."""
        self._require(destination.exchange)
        queue = destination.queue
        if queue is not None and not self._host.has_stream(queue):
            text = f"no queue '{queue}' in vhost '{self._host.name}'"
            raise LinkFault(Condition.NOT_FOUND, text)

    def publish(
        self, link: PublisherLink, arrived: Sequence[Arrived]
    ) -> tuple[int, int, Begun | None]:
        """Take messages; `flush` gives them to their streams.

        Returns:
            How many were taken, how much work that was, as much as so many messages for one stream,
            and the next message if it was begun: `go_on` takes it. Where all is not taken, others
            have their turn first.

        Raises:
            LinkFault, SessionFault: one of them cannot be published; those before it were taken.
        """
        number = self._publish_run(link, arrived)
        units = number
        for message in islice(arrived, number, None):
            work = self._take(link, message)
            if isinstance(work, Begun):
                return number, units, work
            number += 1
            units += work
            if units >= _UNITS_A_TURN:
                break
        return number, units, None

    def _publish_run(self, link: PublisherLink, arrived: Sequence[Arrived]) -> int:
        """Take messages of the usual kind, all for one stream; returns how many were."""
        destination = link.destination
        if destination is None:
            return 0
        exchange, key = destination.exchange, destination.key
        known = self._routes.known(exchange, key)
        if known is None or len(known) != 1:
            return 0
        target = known[0]
        self._require(exchange)
        ids: list[int] = []
        entries: list[bytes] = []
        values: list[bytes] = []
        size = 0
        try:
            for delivery_id, is_settled, raw in arrived:
                # Neighbours begin alike: most beginnings, and where they end, were seen before.
                start = start_of(exchange, key, raw[:size], len(raw)) if size else None
                if start is None:
                    at = bare_position(raw)
                    bare = check_bare(raw, at)
                    if _price(at, bare):
                        break
                    start, size = read_start(exchange, key, raw, at, bare)
                head, at, _, user = start
                if head.more_keys is not None or user not in (None, self._user):
                    break
                stored, value = head.sections + raw[at:], head.filter_value
                if not target.takes_any_value:
                    value = target.filter_value(value, stored)
                ids.append(NOBODY if is_settled else delivery_id)
                entries += (len(stored).to_bytes(4, "big"), stored)
                values.append(value)
        except (Fault, Refused):  # `_take` finds the same, and says what it means
            pass
        if ids:
            self._new_sizes.extend([len(message.raw) for message in arrived[: len(ids)]])
            unsettled = [number for number in ids if number != NOBODY]
            link.expect_all(unsettled)
            self._count(link, len(ids), len(unsettled), is_routed=True)
            numbers = struct.pack(f">{len(ids)}Q", *ids)
            self._gathering.add_run(link, numbers, b"".join(entries), values, target.stream)
        return len(ids)

    def _count(self, link: PublisherLink, count: int, unsettled: int, *, is_routed: bool) -> None:
        link.published += count
        self._traffic.messages_received += count
        self._traffic.messages_received_confirm += unsettled
        if is_routed:
            self._traffic.messages_routed += count

    def _take(self, link: PublisherLink, arrived: Arrived) -> int | Begun:
        """Take a message; how much work that was, or the message that `go_on` has to take."""
        try:
            message = self._checked(link, arrived)
            exchange = message.destination.exchange
            self._require(exchange)
            key = message.destination.key
            known = None if message.keys else self._routes.known(exchange, key)
            work = Stepwise(self._targets(message, known))
        except _Unwanted as unwanted:
            self._reject(link, arrived, unwanted.fault)
            return 1 + len(arrived.raw) // _READ_A_MESSAGE  # it was read, as far as it came
        if not work.is_done or len(work.result) > targets_a_turn(len(arrived.raw)):
            return Begun(work, message)
        self._publish_to(link, work.result, message)
        work_done = 1 + len(work.result) + message.price
        if known is None:
            work_done += ROUTED
            if self._routes.looks_at_headers(exchange):
                work_done += message.properties // _READ_A_MESSAGE
        return work_done

    def _checked(self, link: PublisherLink, arrived: Arrived) -> _Message:
        raw = arrived.raw
        at = bare_position(raw)
        bare = check_bare(raw, at)
        self._check_user(raw, bare)
        destination = link.destination
        if destination is None:
            destination = self._own_destination(raw, bare)
        head = stored_head(destination.exchange, destination.key, raw[:at])
        with _of_one_message():
            keys = more_keys(head.more_keys)
            if len(keys) > MAX_KEYS:
                text = f"x-cc has {len(keys):,} routing keys, expected at most {MAX_KEYS:,}"
                raise LinkFault(Condition.INVALID_FIELD, text)
        size = bare.body - at
        return _Message(arrived, head, at, size, _price(at, bare), destination, keys)

    def _own_destination(self, raw: bytes, bare: Bare) -> Destination:
        """Where a message of a link without an address goes."""
        with _of_one_message():
            destination = read_to(to_of(raw, bare))
            self._require(destination.exchange)
        return destination

    def _check_user(self, raw: bytes, bare: Bare) -> None:
        user = user_of(raw, bare)
        if user is not None and user != self._user:
            text = f"user_id property set to {user!r} but authenticated user was {self._user!r}"
            raise LinkFault(Condition.UNAUTHORIZED_ACCESS, text)

    def _require(self, exchange: Name) -> None:
        try:
            self._routes.require(exchange)
        except Refused as refused:
            raise fault_of(refused) from refused

    def _targets(self, message: _Message, known: list[Target] | None) -> Steps[list[Target]]:
        if known is not None:
            return known
        exchange, key, _ = message.destination
        headers = partial(_headers, message)
        try:
            return (yield from self._routes.find(exchange, key, message.keys, headers))
        except Refused as refused:
            raise _Unwanted(fault_of(refused)) from refused

    async def go_on(self, link: PublisherLink, begun: Begun) -> None:
        """Do the rest of a message that `publish` has begun, others have their turn meanwhile.

        Raises:
            LinkFault, SessionFault: it cannot be published.
        """
        work, message = begun
        self.flush()
        try:
            targets = await work.finish()
        except _Unwanted as unwanted:
            self._reject(link, message.arrived, unwanted.fault)
            return
        exchange = message.destination.exchange
        self._require(exchange)  # it may have gone meanwhile
        raw, most = message.stored, targets_a_turn(len(message.arrived.raw))
        values: list[bytes] = []  # of all, before one of the streams has it
        try:
            for target in targets:
                values.append(target.filter_value(message.head.filter_value, raw))
                if len(values) % most == 0:
                    await trio.lowlevel.checkpoint()
        except Refused as refused:
            self._reject(link, message.arrived, fault_of(refused))
            return
        number = self._next_number(link, message.arrived, len(targets))
        for at in range(0, len(targets), most):
            self._require(exchange)
            places = slice(at, at + most)
            pairs = zip(targets[places], values[places], strict=True)
            self._gathering.add(link, number, raw, pairs)
            self.flush()
            await next_turn()

    def _publish_to(self, link: PublisherLink, targets: list[Target], message: _Message) -> None:
        raw, given = message.stored, message.head.filter_value
        try:
            values = [target.filter_value(given, raw) for target in targets]
        except Refused as refused:
            self._reject(link, message.arrived, fault_of(refused))
            return
        number = self._next_number(link, message.arrived, len(targets))
        if targets:
            self._gathering.add(link, number, raw, zip(targets, values, strict=True))

    def _next_number(self, link: PublisherLink, arrived: Arrived, copies: int) -> int:
        """Count a message; its number. One that goes nowhere is released."""
        self._new_sizes.append(len(arrived.raw))
        self._count(link, 1, int(not arrived.is_settled), is_routed=bool(copies))
        if not copies:
            if arrived.is_settled:
                self._traffic.messages_unroutable_dropped += 1
            else:
                self._traffic.messages_unroutable_returned += 1
                self.flush()
                link.release((arrived.delivery_id,))
        if not copies or arrived.is_settled:
            return NOBODY
        return link.expect(arrived.delivery_id, copies)

    def _reject(self, link: PublisherLink, arrived: Arrived, fault: Fault) -> None:
        """Refuse one message; of one that is settled only the end of its link can tell."""
        if arrived.is_settled or isinstance(fault, SessionFault):
            raise fault
        self.flush()
        link.refused += 1
        link.reject((arrived.delivery_id,), fault)


def _price(at: int, bare: Bare) -> int:
    """Of what stands before the body of a message, and of its sections; 0 of most."""
    annotations, properties = at - _USUAL_BYTES, bare.body - at - _USUAL_BYTES
    price = bare.sections // _SECTIONS_A_MESSAGE
    if annotations > 0:
        price += annotations // _READ_A_MESSAGE
    if properties > 0:
        price += properties // _SKIPPED_A_MESSAGE
    return price


class _Unwanted(Exception):
    """A message that is rejected where its publisher wants an outcome; its link goes on."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault


@contextmanager
def _of_one_message() -> Iterator[None]:
    """A fault of a link in this block is one of its message alone."""
    try:
        yield
    except LinkFault as fault:
        raise _Unwanted(fault) from None


def _headers(message: _Message) -> Headers:
    """The application properties of a message.

    Raises:
        _Unwanted: to read them would hold everybody up.
    """
    if message.properties > MAX_READ_BYTES:
        text = (
            f"the message has {message.properties:,} bytes of properties, at most "
            f"{MAX_READ_BYTES:,} can go to an exchange that looks at them"
        )
        raise _Unwanted(LinkFault(Condition.RESOURCE_LIMIT_EXCEEDED, text))
    try:
        found = MessageView(message.arrived.raw).application_properties
    except FormatError:
        return {}
    return {name: v for name, v in found.items() if isinstance(v, int | float | str | None)}

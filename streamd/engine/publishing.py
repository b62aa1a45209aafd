"""Single messages that are published without a connection."""

from collections.abc import Callable, Sequence

import trio

from segments.entries import ID_SIZE, Entries
from segments.words import size
from streamd.broker.streams.publication import PendingEntries, SinglePublisher
from streamd.broker.streams.stream import Stream
from streamd.broker.targets import Target, targets_of
from streamd.engine.engine import Call, Handlers, Parts
from streamd.net import threads
from streamd.net.turns import Stepwise, in_turns
from streamd.operations import publishing as p
from streamd.operations.errors import Reason, Refused
from streamd.operations.routing import DEFAULT_EXCHANGE

_SECONDS = 5.0  # until a message is confirmed
_BYTES_A_TURN = 4 << 20  # of copies of a message, before they are confirmed
_STREAMS_A_TURN = 100
_LARGE = 64 << 10  # bytes of a message: its properties may be many


class Publishing:
    """Single messages for streams.

    Attributes:
        handlers: one for each operation.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.handlers: Handlers = {
            p.PublishMessage: self._to_stream,
            p.PublishToExchange: self._to_exchange,
        }

    async def _to_stream(self, call: Call, request: p.PublishMessage) -> p.Published:
        host = self._parts.host(request.vhost)
        _check(request)
        target = Target(host, host.find(request.stream))
        (offset,) = await _store_all(call, [target], request)
        return p.Published(offset)

    async def _to_exchange(self, call: Call, request: p.PublishToExchange) -> p.Routed:
        host = self._parts.host(request.vhost)
        _check(request)
        is_default = request.exchange == p.DEFAULT_IN_RIGHTS
        exchange = DEFAULT_EXCHANGE if is_default else request.exchange
        if host.topology.find(exchange).is_internal:
            details = f"the exchange {exchange} is internal: only other exchanges publish to it"
            raise Refused(Reason.ACCESS_REFUSED, details)
        steps = targets_of(host, exchange, request.keys, request.headers)
        targets = await Stepwise(steps).finish()
        return p.Routed(len(await _store_all(call, targets, request)))


def _check(request: p.PublishMessage | p.PublishToExchange) -> None:
    """Raise Refused where it is larger than what is published like this."""
    message, value = len(request.message), len(request.filter_value)
    if message > p.MAX_MESSAGE_BYTES:
        details = f"the message has {size(message)}, expected at most {size(p.MAX_MESSAGE_BYTES)}"
        raise Refused(Reason.PRECONDITION_FAILED, details)
    if value > p.MAX_VALUE_BYTES:
        details = f"the filter value has {value:,} bytes, expected at most {p.MAX_VALUE_BYTES:,}"
        raise Refused(Reason.PRECONDITION_FAILED, details)


async def _store_all(
    call: Call, targets: Sequence[Target], request: p.PublishMessage | p.PublishToExchange
) -> list[int]:
    """Store a message in some streams; its offset in each of them."""
    raw = request.message
    data = len(raw).to_bytes(4, "big") + raw
    given = [
        (target.stream, await _worked_out(len(raw), _entries, target, request, data))
        async for target in in_turns(targets)
    ]
    offsets: list[int] = []
    most = max(1, min(_STREAMS_A_TURN, _BYTES_A_TURN // len(data)))
    for at in range(0, len(given), most):
        try:
            offsets += await _store_some(call, given[at : at + most])
        except Refused as refused:
            if not offsets:
                raise
            done = f"it is stored in {len(offsets):,} of {len(given):,} streams"
            raise Refused(refused.reason, f"{refused.details}; {done}") from refused
    return offsets


def _entries(
    target: Target, request: p.PublishMessage | p.PublishToExchange, data: bytes
) -> Entries:
    value = target.filter_value(request.filter_value, request.message)
    entries = Entries(bytes(ID_SIZE), data, 1, 1, [value] if value else None)
    contract = target.stream.contract
    return entries if contract is None else contract.with_property_keys(entries)


async def _worked_out(size: int, work: Callable[..., Entries], *arguments: object) -> Entries:
    """What follows from a message; in a thread where its properties may be many."""
    return work(*arguments) if size <= _LARGE else await threads.compute(work, *arguments)


async def _store_some(call: Call, given: Sequence[tuple[Stream, Entries]]) -> list[int]:
    singles: list[tuple[Stream, SinglePublisher]] = []
    with trio.move_on_after(_SECONDS):
        for stream, _ in given:
            await stream.ready()
            if stream.alarm:
                raise Refused(Reason.NOT_AVAILABLE, stream.alarm)
            if stream.remote is None:
                stream.check_writable()
            if stream.is_crowded:
                details = f"more than {stream.name} can take waits to be written; try again"
                raise Refused(Reason.NOT_AVAILABLE, details)
        call.check()
        for stream, entries in given:
            single = SinglePublisher()
            stream.publish(PendingEntries(single, entries))
            singles.append((stream, single))
        for stream, _ in singles:
            await stream.settled()
    if not singles:
        details = f"nothing was published: the stream was not open within {_SECONDS:.0f} s"
        raise Refused(Reason.NOT_AVAILABLE, details)
    return [_offset(stream, single) for stream, single in singles]


def _offset(stream: Stream, single: SinglePublisher) -> int:
    """Where a message is stored; Refused where it is not, or not yet."""
    if single.refused is not None:
        raise Refused(single.refused, stream.alarm or single.refused.value)
    if stream.remote is not None and single.is_stored:
        return 0  # it is known to the node that leads the stream
    if single.offset is None or not single.is_stored:
        why = stream.alarm or f"{stream.name} has not confirmed it within {_SECONDS:.0f} s"
        details = f"{why}: the message waits, and is stored when it can be; do not publish it again"
        raise Refused(Reason.NOT_AVAILABLE, details)
    return single.offset

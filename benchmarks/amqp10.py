"""`python -m benchmarks.amqp10`: publishing and consuming over AMQP 1.0, here and at a peer.

The peer is any server of AMQP 1.0 with streams on this machine, usually RabbitMQ: give its address
and the process id whose CPU time counts. Both get each load in turn, in the same round; the medians
of the rounds are shown. The client is raw: it sends what was encoded before, and looks at little.

Where a filter property chooses, the stream has ten times the messages: to connect and to log in,
some 10 ms, would be most of the time.
"""

import selectors
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from uuid import uuid4

import click

from benchmarks.amqp import OURS, Figure, Place, compare
from segments.amqp10 import Opaque, Symbol, encode_map
from segments.message import Message
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import (
    AMQP_HEADER,
    FRAME_HEAD,
    SASL_HEADER,
    decode_composite,
    frame,
    sasl_frame,
)
from streamd.wire.amqp10.values import Described, write_value

_BODY = bytes(100)
_VALUES = 100
_CREDIT = 1_000
_WINDOW = 100_000
_CONNECTIONS = 20
_PROPERTY = "kind"
_SETTLE = 250  # messages with one disposition
_READ_BYTES = 1 << 20
_ANY_ID = 0xDEADBEEF
_MORE = 10  # times the messages, where a filter property tells chunks apart
_RUN = 500  # messages of one value after the other, where a filter property tells chunks apart

Filters: TypeAlias = Mapping[str, tuple[str, object]]  # descriptor and value, by key
NO_FILTERS: Filters = MappingProxyType({})


class Client:
    """A connection with one session, logged in as guest."""

    def __init__(self, uri: str) -> None:
        where = urlsplit(uri)
        self.socket = socket.create_connection((where.hostname, where.port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self.transfers = 0
        self.socket.sendall(SASL_HEADER)
        self._take(8)
        self.wait_for(p.SaslMechanisms)
        self.socket.sendall(sasl_frame(p.SaslInit("PLAIN", b"\0guest\0guest")) + AMQP_HEADER)
        self.wait_for(p.SaslOutcome)
        self._take(8)
        begin = p.Begin(None, 0, _WINDOW, _WINDOW)
        self.send(p.Open("benchmark", "vhost:/", 131_072), begin)
        self.wait_for(p.Begin)

    def send(self, *performatives: p.Performative) -> None:
        """Send performatives."""
        self.socket.sendall(b"".join(frame(0, one) for one in performatives))

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = self.socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._buffer += data
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found

    def wait_for(self, kind: type[Any]) -> Any:  # noqa: ANN401 - of any kind
        """The next performative of a kind; those before it are dropped."""
        while True:
            size, words, _, _ = FRAME_HEAD.unpack(self._take(FRAME_HEAD.size))
            body = self._take(size - FRAME_HEAD.size)[4 * words - FRAME_HEAD.size :]
            if body:
                found, _ = decode_composite(body)
                if isinstance(found, p.Close | p.End | p.Detach):
                    raise RuntimeError(str(found.error))
                if isinstance(found, kind):
                    return found

    def frames(self) -> list[p.Performative]:
        """What came: performatives; messages are counted in `transfers` instead."""
        self._buffer += self.socket.recv(_READ_BYTES)
        buffer, at, found = self._buffer, 0, []
        while at + FRAME_HEAD.size <= len(buffer):
            size = int.from_bytes(buffer[at : at + 4], "big")
            if at + size > len(buffer):
                break
            if buffer[at + 10 : at + 11] == b"\x14":
                self.transfers += 1
            elif size > FRAME_HEAD.size:
                found.append(decode_composite(buffer[at + FRAME_HEAD.size : at + size])[0])
            at += size
        self._buffer = buffer[at:]
        return found

    def attach_sender(self, queue: str) -> p.Flow:
        """A link that publishes; the first credit."""
        attach = p.Attach("out", 0, p.SENDER, source=p.Source("me"), initial_delivery_count=0)
        self.send(attach._replace(target=p.Target(f"/queues/{queue}")))
        return self.wait_for(p.Flow)  # type: ignore[no-any-return]

    def attach_receiver(self, queue: str, filters: Filters) -> None:
        """A link that reads from the first message on."""
        first = ("rabbitmq:stream-offset-spec", "first")
        items: list[bytes] = []
        for name, (descriptor, value) in {first[0]: first, **filters}.items():
            items += (write_value(Symbol(name)), write_value(Described(Symbol(descriptor), value)))
        source = p.Source(f"/queues/{queue}", filter=Opaque(encode_map(items)))
        attach = p.Attach("in", 0, p.RECEIVER, source=source, target=p.Target("me"))
        self.send(attach)
        self.wait_for(p.Attach)


def _message(number: int) -> bytes:
    return Message(_BODY, application_properties={_PROPERTY: f"v{number % _VALUES}"}).encode()


class _Transfer:
    """The frame of one message, which has a delivery id and a tag of its own each time."""

    def __init__(self, raw: bytes) -> None:
        whole = frame(0, p.Transfer(0, _ANY_ID, _ANY_ID.to_bytes(4, "big"), 0, False), raw)
        self._parts = whole.split(_ANY_ID.to_bytes(4, "big"))

    def frame(self, delivery_id: int) -> bytes:
        """The frame."""
        return delivery_id.to_bytes(4, "big").join(self._parts)


def publish(uri: str, queue: str, count: int, run: int = 1) -> None:
    """As many as the credit allows, each with an outcome; `run` have the same value."""
    client = Client(uri)
    transfers = [_Transfer(_message(number)) for number in range(_VALUES)]
    credit = client.attach_sender(queue).link_credit or 0
    sent = settled = 0
    limit = credit
    while settled < count:
        frames = [transfers[n // run % _VALUES].frame(n) for n in range(sent, min(limit, count))]
        if frames:
            client.socket.sendall(b"".join(frames))
            sent += len(frames)
        for found in client.frames():
            if isinstance(found, p.Disposition):
                settled += (found.first if found.last is None else found.last) - found.first + 1
            elif isinstance(found, p.Flow) and found.link_credit is not None:
                limit = (found.delivery_count or 0) + found.link_credit
    client.socket.close()


def consume(uri: str, queue: str, count: int, filters: Filters = NO_FILTERS) -> None:
    """Messages are settled some at a time; credit is given as they come."""
    client = Client(uri)
    client.attach_receiver(queue, filters)
    granted = settled = 0
    while client.transfers < count:
        got = client.transfers
        if granted - got <= _CREDIT // 2:
            granted = got + _CREDIT
            client.send(p.Flow(got, _WINDOW, 0, _WINDOW, 0, got, _CREDIT))
        if got - settled >= _SETTLE:
            state = p.Accepted()
            client.send(p.Disposition(p.RECEIVER, settled, got - 1, True, state))
            settled = got
        client.frames()
    client.socket.close()


def publish_from_many(uri: str, queue: str, count: int) -> None:
    """Connections with one message in flight each."""
    transfer = _Transfer(_message(0))
    left = count
    with selectors.DefaultSelector() as ready:
        for _ in range(_CONNECTIONS):
            client = Client(uri)
            client.attach_sender(queue)
            client.socket.sendall(transfer.frame(0))
            ready.register(client.socket, selectors.EVENT_READ, [client, 0])
        while left > 0:
            for key, _ in ready.select():
                client, number = key.data
                for found in client.frames():
                    if isinstance(found, p.Disposition):
                        left -= 1
                        key.data[1] = number = number + 1
                        client.socket.sendall(transfer.frame(number))
        for key in list(ready.get_map().values()):
            key.data[0].socket.close()


_SQL: Filters = {"sql-filter": ("amqp:sql-filter", f"{_PROPERTY} = 'v{_VALUES - 1}'")}


def one_round(place: Place, count: int) -> dict[str, Figure]:
    """All loads, each on what was published before it."""
    plain, marked = f"benchmark-{uuid4()}", f"benchmark-{uuid4()}"
    place.declare(plain)
    # A peer has no filter properties.
    place.declare(marked, {"x-stream-filter-property": _PROPERTY} if place.name == OURS else {})
    some, many = count // _VALUES, _MORE * count
    loads: Sequence[tuple[str, Callable[[str], None]]] = [
        ("publish", partial(publish, queue=plain, count=count)),
        ("consume", partial(consume, queue=plain, count=count)),
        ("consume 1 % by SQL", partial(consume, queue=plain, count=some, filters=_SQL)),
        (
            "publish with a filter property, x 10",
            partial(publish, queue=marked, count=many, run=_RUN),
        ),
        (
            "consume 1 % by SQL, with a filter property, x 10",
            partial(consume, queue=marked, count=_MORE * some, filters=_SQL),
        ),
        (
            f"publish one by one, {_CONNECTIONS} connections",
            partial(publish_from_many, queue=plain, count=count // 10),
        ),
    ]
    figures = {name: place.measure(load) for name, load in loads}
    for queue in (plain, marked):
        place.delete(queue)
    return figures


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--count", default=100_000, show_default=True, help="Messages per load.")
@click.option("--rounds", default=3, show_default=True, help="Rounds; the median is shown.")
@click.option("--peer", help="Another server, as amqp://guest:guest@localhost:5672/.")
@click.option("--peer-pid", type=int, help="Its process id.")
def main(count: int, rounds: int, peer: str | None, peer_pid: int | None) -> None:
    """Measure AMQP 1.0 of this server, and of a peer beside it."""
    compare(rounds, peer, peer_pid, partial(one_round, count=count))


if __name__ == "__main__":
    main()

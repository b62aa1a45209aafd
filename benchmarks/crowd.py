"""Many consumers of one stream, each for a filter value of its own.

Every message has one of the values, so it is for one of the consumers; a server that looks at all
of them for each message falls behind. A message that is not there a second after it was due is
late; one that never comes counts with the time that it was waited for.
"""

import os
import random
import selectors
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from benchmarks.latency import Chunks, Pace, Publisher, ready
from benchmarks.raw_connection import RawConnection
from benchmarks.reading import CREDIT, NEXT, filters
from benchmarks.target import Server, busy_seconds
from streamd.wire.stream import commands as c
from streamd.wire.stream.codec import encode

IN_TIME_SECONDS = 1.0
_PER_CONNECTION = 10
_MOST_CONNECTIONS = 500
_WARM_UP = 10  # one tenth of the messages, the first ones, is left out
_LEAD_SECONDS = 0.5
_WAIT_SECONDS = 2.0  # for what has not come when the last message is due
_SEED = 1


class Crowd(NamedTuple):
    """Who reads, and what is published.

    Attributes:
        subscriptions: each for a filter value of its own.
        rate: messages per second, each with one of these values.
        seconds: how long.
        connections: that share the subscriptions; 0 for one per ten, and 500 at most.
    """

    subscriptions: int
    rate: int = 1_000
    seconds: float = 5
    connections: int = 0

    @property
    def members(self) -> int:
        """How many connections there are."""
        usual = min(max(self.subscriptions // _PER_CONNECTION, 1), _MOST_CONNECTIONS)
        return min(self.connections or usual, self.subscriptions)

    @property
    def pace(self) -> Pace:
        """What is published."""
        return Pace(self.rate, self.seconds)


class Served(NamedTuple):
    """How the consumers were served.

    Attributes:
        in_time: share of the messages that came within IN_TIME_SECONDS, in percent.
        p50, p99: milliseconds from when a message was due to its arrival, of all messages.
        cpu: of the server per message, in µs.
        subscribing: of the server per subscription, in µs.
        memory: of the server per subscription, in kB, without that of the connections.
        others: share of the machine that neither the server nor this process used, in percent.
    """

    in_time: float
    p50: float
    p99: float
    cpu: float
    subscribing: float
    memory: float
    others: float


def serve(server: Server, stream: str, crowd: Crowd) -> Served:
    """Subscribe, publish, and see what comes."""
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.EpollSelector())
        producer = stack.enter_context(server.connect())
        producer.request(c.DeclarePublisher, 0, "", stream)
        connections = [stack.enter_context(server.connect()) for _ in range(crowd.members)]
        memory, cpu = server.resident_bytes(), server.cpu_seconds()
        members = _subscribe(connections, stream, crowd.subscriptions)
        subscribing = (server.cpu_seconds() - cpu) / crowd.subscriptions
        load = _Load(server)
        waited = _run(selector, producer, members, crowd)
        used, others = load.end()
        memory = server.resident_bytes() - memory
    measured = sorted(waited[len(waited) // _WARM_UP :])
    return Served(
        in_time=100 * sum(it <= IN_TIME_SECONDS for it in measured) / len(measured),
        p50=measured[len(measured) // 2] * 1e3,
        p99=measured[len(measured) * 99 // 100] * 1e3,
        cpu=used / len(waited) * 1e6,
        subscribing=subscribing * 1e6,
        memory=memory / crowd.subscriptions / 1e3,
        others=100 * others,
    )


class _Member:
    """A connection and its subscriptions; credit is given for each chunk.

    Attributes:
        socket: of the connection.
        values: what each subscription asks for, by its id.
    """

    def __init__(self, connection: RawConnection, values: Sequence[int]) -> None:
        self.socket = connection.socket
        self.values = values
        self._chunks = Chunks(connection)

    def receive(self) -> Iterator[tuple[int, float, float]]:
        """Each message that came: its number, when it was due, when it came."""
        for chunk in self._chunks.receive():
            self.socket.sendall(encode(c.Credit(chunk.subscription, 1)))
            for due, number in chunk.stamps():
                yield number, due, chunk.arrived


def _subscribe(
    connections: Sequence[RawConnection], stream: str, subscriptions: int
) -> list[_Member]:
    """Deal the subscriptions out to the connections, and wait until each is answered."""
    members = []
    for number, connection in enumerate(connections):
        values = range(number, subscriptions, len(connections))
        for subscription, value in enumerate(values):
            wanted = filters((_value(value),))
            connection.send(c.Subscribe, subscription, stream, NEXT, CREDIT, wanted)
        for _ in values:
            if (code := connection.wait_for(c.SubscribeResponse).code) != 1:
                raise RuntimeError(f"a subscription is refused with code {code}")
        members.append(_Member(connection, values))
    return members


def _value(number: int) -> bytes:
    return b"consumer-%06d" % number


def _run(
    selector: selectors.EpollSelector,
    producer: RawConnection,
    members: Sequence[_Member],
    crowd: Crowd,
) -> list[float]:
    """How long each message was waited for, in seconds, in the order in which they were sent."""
    pace = crowd.pace
    choose = random.Random(_SEED)  # noqa: S311 - no secret
    picks = [choose.randrange(crowd.subscriptions) for _ in range(pace.messages)]
    begin = time.perf_counter() + _LEAD_SECONDS
    publisher = Publisher(producer, pace, begin, lambda number: _value(picks[number]))
    came: dict[int, float] = {}
    give_up = begin + crowd.seconds + _WAIT_SECONDS
    selector.register(producer.socket, selectors.EVENT_READ)
    for member in members:
        selector.register(member.socket, selectors.EVENT_READ, member)
    while len(came) < pace.messages and time.perf_counter() < give_up:
        for key in ready(selector, publisher.send_due()):
            if key.data is None:
                publisher.receive()
                continue
            for number, due, arrived in key.data.receive():
                if picks[number] in key.data.values:  # else it shares a chunk with another's
                    came.setdefault(number, arrived - due)
    end = time.perf_counter()
    return [came.get(n, end - begin - n / pace.rate) for n in range(pace.messages)]


class _Load:
    """What the server and others use of the machine from now on."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._began = time.perf_counter()
        self._before = self._now()

    def _now(self) -> tuple[float, float, float]:
        return self._server.cpu_seconds(), time.process_time(), busy_seconds()

    def end(self) -> tuple[float, float]:
        """CPU seconds of the server, and the share of the machine that others used."""
        now = self._now()
        server, own, busy = (
            after - before for after, before in zip(now, self._before, strict=True)
        )
        cores = os.cpu_count() or 1
        return server, max(busy - server - own, 0) / cores / (time.perf_counter() - self._began)

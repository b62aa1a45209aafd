"""Messages for a stream that another node leads, of clients that have come to this one.

Clients of the stream protocol publish where a stream is led. Those of AMQP and HTTP come to any
node. What they publish to a stream that another node leads, it is told over a connection between
the nodes, which lasts while there is something to publish. A message is confirmed when that node
has confirmed it. When the connection is gone, all that was not is refused: nobody knows what became
of it.
"""

import struct
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import trio

from segments.codec import walk_entries
from segments.entries import ID_SIZE, Entries
from streamd.auth.users import NODE
from streamd.broker.broker import Broker
from streamd.broker.streams.publication import PendingEntries, Publisher, queued_size
from streamd.config import QUEUE_BYTES
from streamd.connections.stream.node_link import NodeLink, open_link
from streamd.operations.cluster import LeaderFacts
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name
from streamd.wire.stream import ResponseCode, commands as c

_LOOK_SECONDS = 1.0  # between two looks whether that node still leads the stream
_IDLE_SECONDS = 60.0  # after which the connection ends
_FRAME_BYTES = 256 << 10  # of messages in a frame, but for one that is larger
_HEAD = struct.Struct(">Qh")  # publishing id, size of the filter value


class _Sent(NamedTuple):
    publisher: Publisher
    number: bytes  # the publishing id that it has given
    size: int


class RemoteStream:
    """Publishes to one stream that another node leads.

    Args:
        broker: knows the nodes.
        host: the virtual host.
        name: of the stream.
        shard: that it is in.

    Attributes:
        num_bytes: that are not confirmed.
    """

    def __init__(self, broker: Broker, host: Name, name: Name, shard: str) -> None:
        self.num_bytes = 0
        self._broker, self._host, self._name, self._shard = broker, host, name, shard
        self._queue: deque[PendingEntries] = deque()
        self._sent: dict[int, _Sent] = {}
        self._last = 0
        self._is_running = self._is_over = False
        self._work, self._changed = trio.Event(), trio.lowlevel.ParkingLot()

    @property
    def is_crowded(self) -> bool:
        """More must not be given."""
        return self.num_bytes > QUEUE_BYTES

    def publish(self, pending: PendingEntries) -> None:
        """Have entries published; their publisher is told when they are stored."""
        self._queue.append(pending)
        self.num_bytes += queued_size(pending.entries)
        self._work.set()
        if not self._is_running:
            self._is_running, self._is_over = True, False
            start = self._broker.supervisor.start_once
            start("publishing to another node", self._run, self._name)

    async def room(self) -> None:
        """Return when more may be given."""
        while self.is_crowded:
            await self._changed.park()

    async def settled(self) -> None:
        """Return when everything is confirmed or refused."""
        while self._queue or self._sent:
            await self._changed.park()

    async def _run(self) -> None:
        try:
            own, shards = self._broker.node, self._broker.shards
            assert own is not None and shards is not None  # noqa: PT018, S101 - it is led elsewhere
            await shards.led_soon([self._shard])
            leader = shards.node(self._shard)
            if leader is not None and leader.name:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._end_when_gone, leader, nursery.cancel_scope)
                    with suppress(Refused):  # so is everything that waits
                        await self._publish_to(leader, own.secret)
                    nursery.cancel_scope.cancel()
        finally:
            self._is_running = False
            self._refuse_all()

    async def _end_when_gone(self, leader: LeaderFacts, scope: trio.CancelScope) -> None:
        """One that is paused, or has lost its machine, closes no connection."""
        shards = self._broker.shards
        while shards is not None:
            await trio.sleep(_LOOK_SECONDS)
            now = shards.node(self._shard)
            if now is None or now.start != leader.start:
                scope.cancel()

    async def _publish_to(self, leader: LeaderFacts, secret: str) -> None:
        async with open_link(leader, secret, NODE, self._host, self._take) as link:
            try:
                answer = await link.ask(c.DeclarePublisher(0, 1, "", self._name))
                while answer.code == ResponseCode.OK and not (link.is_lost or self._is_over):
                    await self._send_all(link)
                    self._work = trio.Event()
                    with trio.move_on_after(_IDLE_SECONDS) as idle:
                        await link.lost_or(self._work)
                    if idle.cancelled_caught and not self._sent:
                        break
            except Refused:
                pass

    async def _send_all(self, link: NodeLink) -> None:
        while self._queue:
            publisher, entries = self._queue.popleft()
            self.num_bytes -= queued_size(entries)
            for body, count in self._frames(publisher, entries):
                await link.send(c.PublishFiltered(1, count, body))

    def _frames(self, publisher: Publisher, entries: Entries) -> Iterator[tuple[bytes, int]]:
        """Messages as they are sent, some at a time."""
        parts: list[bytes] = []
        size = count = 0
        values = entries.filter_values
        assert not isinstance(values, Counter)  # noqa: S101 - of sub-batches, which come elsewhere
        for at, found in enumerate(walk_entries(entries.data)):
            value = values[at] if values else b""
            message = entries.data[found.start : found.end]
            self._last += 1
            number = entries.publishing_ids[ID_SIZE * at : ID_SIZE * (at + 1)]
            self._sent[self._last] = _Sent(publisher, number, len(message))
            self.num_bytes += len(message)
            parts += [_HEAD.pack(self._last, len(value)), value, message]
            size, count = size + len(message), count + 1
            if size > _FRAME_BYTES:
                yield b"".join(parts), count
                parts, size, count = [], 0, 0
        if count:
            yield b"".join(parts), count

    def _take(self, command: c.Command) -> None:
        """The other node says something that was not asked for."""
        if isinstance(command, c.PublishConfirm):
            for publisher, numbers in self._ended(command.publishing_ids).items():
                publisher.confirm(numbers)
        elif isinstance(command, c.PublishError):
            ids = [fault.publishing_id for fault in command.faults]
            for publisher, numbers in self._ended(ids).items():
                publisher.refuse(numbers, Reason.NOT_AVAILABLE)
        elif isinstance(command, c.MetadataUpdate):
            self._is_over = True  # its publisher there is
            self._refuse_all()
            self._work.set()

    def _ended(self, ids: "Iterator[int] | list[int] | tuple[int, ...]") -> dict[Publisher, bytes]:
        """Publishers of some messages, and their own numbers."""
        found: dict[Publisher, bytes] = {}
        for one in ids:
            sent = self._sent.pop(one, None)
            if sent is not None:
                self.num_bytes -= sent.size
                found[sent.publisher] = found.get(sent.publisher, b"") + sent.number
        self._changed.unpark_all()
        return found

    def _refuse_all(self) -> None:
        for publisher, numbers in self._ended(list(self._sent)).items():
            publisher.refuse(numbers, Reason.NOT_AVAILABLE)
        queue, self._queue = self._queue, deque()
        for publisher, entries in queue:
            self.num_bytes -= queued_size(entries)
            publisher.refuse(entries.publishing_ids, Reason.NOT_AVAILABLE)
        self._changed.unpark_all()

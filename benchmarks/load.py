"""Publishing: frames are built before the clock starts, and go out as far as a window allows.

The generator's own work is some 0.02 µs per message, and some 20 µs per frame where each waits for
the confirm of the one before it.
"""

import selectors
import struct
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from benchmarks.raw_connection import SIZE, RawConnection
from streamd.wire.stream import commands as c
from streamd.wire.stream.codec import encode
from streamd.wire.stream.publish import Outgoing, encode_filtered_entries

WINDOW = 10_000  # messages on their way to be confirmed
MARKER = b"end"
_FRAME = struct.Struct(">IHH")
_PUBLISH = struct.Struct(">IHHBI")
_LENGTH16 = struct.Struct(">h")
_RECEIVE_BYTES = 1 << 20
_PATIENCE_SECONDS = 60


class Load(NamedTuple):
    """Messages to publish.

    Attributes:
        messages: how many.
        size: bytes of each.
        batch: messages per Publish frame.
        values: distinct filter values, dealt out in turn; 0 for none.
        run: messages in a row that get the same filter value.
        window: messages on their way at most; with that of a batch, each frame waits for the
            confirm of the one before it, and becomes a chunk of its own.
    """

    messages: int
    size: int = 100
    batch: int = 100
    values: int = 0
    run: int = 1
    window: int = WINDOW


def value(load: Load, number: int) -> bytes:
    """The filter value with that number, of those that a load deals out."""
    return b"v%0*d" % (len(str(load.values - 1)), number)


def frames(load: Load) -> list[bytes]:
    """The Publish frames of a load."""
    body = SIZE.pack(load.size) + b"x" * load.size
    key, version, tails = c.Publish.KEY, c.Publish.VERSION, [body]
    if load.values:
        version = c.PublishFiltered.VERSION
        values = [value(load, number) for number in range(load.values)]
        tails = [_LENGTH16.pack(len(it)) + it + body for it in values]
    made = []
    for start in range(0, load.messages, load.batch):
        ids = range(start, min(start + load.batch, load.messages))
        packed = _packed(len(ids), len(tails[0]))
        columns: list[int | bytes] = [0] * (2 * len(ids))
        columns[::2] = ids
        columns[1::2] = [tails[n // load.run % len(tails)] for n in ids]
        size = packed.size - SIZE.size
        made.append(packed.pack(size, key, version, 0, len(ids), *columns))
    return made


@lru_cache(maxsize=2)
def _packed(count: int, tail_size: int) -> struct.Struct:
    """A frame of `count` messages: publishing ids, and what follows each of them."""
    return struct.Struct(_PUBLISH.format + f"Q{tail_size}s" * count)


def publish(connection: RawConnection, stream: str, load: Load, made: Sequence[bytes]) -> float:
    """Publish and wait for every confirm; returns seconds."""
    return publish_together([(connection, stream)], load, made)


def publish_together(
    members: Sequence[tuple[RawConnection, str]], load: Load, made: Sequence[bytes]
) -> float:
    """Publish the same from each connection into its stream; returns seconds."""
    for connection, stream in members:
        connection.request(c.DeclarePublisher, 0, "", stream)
        connection.socket.setblocking(False)
    publishers = [_Publisher(connection, load, made) for connection, _ in members]
    began = time.perf_counter()
    _run(publishers)
    seconds = time.perf_counter() - began
    for connection, _ in members:
        connection.socket.settimeout(_PATIENCE_SECONDS)
        connection.request(c.DeletePublisher, 0)
    return seconds


def mark(connection: RawConnection, stream: str) -> None:
    """Publish one more message, of a filter value and in a chunk of its own."""
    connection.request(c.DeclarePublisher, 0, "", stream)
    entries = encode_filtered_entries([Outgoing(0, b"", MARKER)])
    connection.socket.sendall(encode(c.PublishFiltered(0, 1, entries)))
    connection.wait_for(c.PublishConfirm)
    connection.request(c.DeletePublisher, 0)


def _run(publishers: Sequence["_Publisher"]) -> None:
    with selectors.DefaultSelector() as selector:
        for publisher in publishers:
            publisher.send()
            selector.register(publisher.socket, selectors.EVENT_READ, publisher)
        waiting = len(publishers)
        while waiting:
            ready = selector.select(_PATIENCE_SECONDS)
            if not ready:
                raise TimeoutError(f"no confirm in {_PATIENCE_SECONDS} s")
            for key, events in ready:
                publisher = key.data
                if events & selectors.EVENT_READ:
                    publisher.receive()
                publisher.send()
                wanted = selectors.EVENT_READ | selectors.EVENT_WRITE * publisher.is_blocked
                if publisher.is_done:
                    selector.unregister(publisher.socket)
                    waiting -= 1
                elif wanted != key.events:
                    selector.modify(publisher.socket, wanted, publisher)


class _Publisher:
    """Frames go out as far as the window allows, confirms come in.

    Attributes:
        socket: of its connection, not blocking.
    """

    def __init__(self, connection: RawConnection, load: Load, made: Sequence[bytes]) -> None:
        self.socket = connection.socket
        self._load = load
        self._made = made
        self._next_frame = 0
        self._pending = memoryview(b"")
        self._received = bytearray()
        self._confirmed = 0

    @property
    def is_done(self) -> bool:
        """Whether every message is confirmed."""
        return self._confirmed >= self._load.messages

    @property
    def is_blocked(self) -> bool:
        """Whether the connection took only a part of what was sent."""
        return bool(self._pending)

    def send(self) -> None:
        """Send what the window allows, as far as the connection takes it."""
        self._fill()
        while self._pending:
            try:
                sent = self.socket.send(self._pending)
            except BlockingIOError:
                return
            self._pending = self._pending[sent:]

    def _fill(self) -> None:
        """Take what the window allows, a few frames in one send."""
        if self._pending:
            return
        room = self._load.window - (self._next_frame * self._load.batch - self._confirmed)
        end = self._next_frame + max(room // self._load.batch, 0)
        self._pending = memoryview(b"".join(self._made[self._next_frame : end]))
        self._next_frame = min(end, len(self._made))

    def receive(self) -> None:
        """Take in confirms."""
        data = self.socket.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        received = self._received
        received += data
        position = 0
        while position + _FRAME.size <= len(received):
            size, key, _ = _FRAME.unpack_from(received, position)
            if position + SIZE.size + size > len(received):
                break
            if key == c.PublishConfirm.KEY:
                self._confirmed += SIZE.unpack_from(received, position + _FRAME.size + 1)[0]
            elif key != c.Heartbeat.KEY:
                raise RuntimeError(f"the server sends command {key:#06x}")
            position += SIZE.size + size
        del received[:position]

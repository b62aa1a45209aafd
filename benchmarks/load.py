"""What is done to the server, and how long it took.

Publish frames are built before the clock starts, and a reader looks at frame and chunk headers
only: the generator's own work is some 0.02 µs per published message, less for one that is read.
"""

import select
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.link import SIZE, Link
from segments.codec import CHUNK_HEADER_SIZE, decode_chunk_header
from streamd.wire import ResponseCode, commands as c
from streamd.wire.codec import encode
from streamd.wire.fields import OffsetSpecification
from streamd.wire.publish import Outgoing, encode_entries, encode_filtered_entries

WINDOW = 10_000  # messages on their way to be confirmed
CREDIT = 50
_FRAME = struct.Struct(">IHH")
_PUBLISH = struct.Struct(">IHHBI")
_DELIVER_HEAD = 9  # size, key, version, subscription
_ONE_CREDIT = encode(c.Credit(0, 1))
_RESPONSE_CODE = slice(12, 14)  # of a response frame with its size
_FIRST = OffsetSpecification(1)
_RECEIVE_BYTES = 1 << 20


class Load(NamedTuple):
    """Messages to publish.

    Attributes:
        messages: how many.
        size: bytes of each.
        batch: messages per Publish frame.
        values: distinct filter values, dealt out in turn; 0 for none.
    """

    messages: int
    size: int = 100
    batch: int = 100
    values: int = 0


class Read(NamedTuple):
    """What a consumer got, by the chunk headers."""

    messages: int
    chunks: int
    bytes: int
    seconds: float


def frames(load: Load) -> list[bytes]:
    """The Publish frames of a load."""
    body = b"x" * load.size
    made = []
    for start in range(0, load.messages, load.batch):
        ids = range(start, min(start + load.batch, load.messages))
        if load.values:
            messages = [Outgoing(n, body, b"v%03d" % (n % load.values)) for n in ids]
            entries, version = encode_filtered_entries(messages), c.PublishFiltered.VERSION
        else:
            entries, version = encode_entries([Outgoing(n, body) for n in ids]), c.Publish.VERSION
        size = _PUBLISH.size - SIZE.size + len(entries)
        made.append(_PUBLISH.pack(size, c.Publish.KEY, version, 0, len(ids)) + entries)
    return made


def publish(link: Link, stream: str, load: Load, made: Sequence[bytes]) -> float:
    """Publish and wait for every confirm; returns seconds."""
    link.request(c.DeclarePublisher, 0, "", stream)
    began = time.perf_counter()
    _Publishing(link, load, made).run()
    seconds = time.perf_counter() - began
    link.request(c.DeletePublisher, 0)
    return seconds


class _Publishing:
    """Frames go out as far as the window allows, confirms come in."""

    def __init__(self, link: Link, load: Load, made: Sequence[bytes]) -> None:
        self._socket = link.socket
        self._load = load
        self._made = made
        self._next_frame = 0
        self._pending = memoryview(b"")
        self._received = bytearray()
        self._confirmed = 0

    def run(self) -> None:
        self._socket.setblocking(False)
        try:
            while self._confirmed < self._load.messages:
                self._fill()
                wanted = [self._socket] if self._pending else []
                readable, writable, _ = select.select([self._socket], wanted, [], 60)
                if not (readable or writable):
                    raise TimeoutError(f"{self._confirmed} of {self._load.messages} confirmed")
                if writable:
                    self._pending = self._pending[self._socket.send(self._pending) :]
                if readable:
                    self._receive()
        finally:
            self._socket.settimeout(60)

    def _fill(self) -> None:
        """Take what the window allows, a few frames in one send."""
        if self._pending:
            return
        room = WINDOW - (self._next_frame * self._load.batch - self._confirmed)
        end = self._next_frame + max(room // self._load.batch, 0)
        self._pending = memoryview(b"".join(self._made[self._next_frame : end]))
        self._next_frame = min(end, len(self._made))

    def _receive(self) -> None:
        data = self._socket.recv(_RECEIVE_BYTES)
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


def read(link: Link, stream: str, count: int) -> Read:
    """Read from the first chunk on until `count` messages came."""
    began = time.perf_counter()
    link.send(c.Subscribe, 0, stream, _FIRST, CREDIT, ())
    reading = _Reading(link)
    while reading.messages < count:
        reading.frame()
    seconds = time.perf_counter() - began
    return Read(reading.messages, reading.chunks, reading.bytes, seconds)


class _Reading:
    """Delivered chunks, of which only the headers are looked at."""

    def __init__(self, link: Link) -> None:
        self.messages = self.chunks = self.bytes = 0
        self._socket = link.socket
        self._buffer = bytearray(_RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def frame(self) -> None:
        """Take in the next frame."""
        self._need(_FRAME.size)
        size, key, _ = _FRAME.unpack_from(self._buffer, self._start)
        rest = SIZE.size + size
        if key == c.Deliver.KEY:
            self._need(_DELIVER_HEAD + CHUNK_HEADER_SIZE)
            head = self._start + _DELIVER_HEAD
            header = decode_chunk_header(bytes(self._view[head : head + CHUNK_HEADER_SIZE]))
            self.messages += header.num_records
            self.bytes += header.data_size
            self.chunks += 1
            self._socket.sendall(_ONE_CREDIT)
        elif key == c.SubscribeResponse.KEY:
            self._need(rest)
            frame = self._view[self._start : self._start + rest]
            code = int.from_bytes(frame[_RESPONSE_CODE], "big")
            if code != ResponseCode.OK:
                raise RuntimeError(f"Subscribe: the server answers with code {code}")
        self._pass_over(rest)

    def _need(self, size: int) -> None:
        """Have the next `size` bytes in the buffer."""
        if self._start + size > len(self._buffer):
            left = self._end - self._start
            self._buffer[:left] = self._buffer[self._start : self._end]
            self._start, self._end = 0, left
        while self._end - self._start < size:
            self._end += self._receive(self._view[self._end :])

    def _pass_over(self, size: int) -> None:
        left = size - (self._end - self._start)
        if left <= 0:
            self._start += size
            return
        self._start = self._end = 0
        while left:
            left -= self._receive(self._view[: min(left, len(self._buffer))])

    def _receive(self, into: memoryview) -> int:
        received = self._socket.recv_into(into)
        if not received:
            raise ConnectionError("the server closed the connection")
        return received

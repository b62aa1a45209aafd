"""Reading back: only frame and chunk headers are looked at, entries are skipped."""

import struct
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.raw_connection import SIZE, RawConnection
from segments.codec import CHUNK_HEADER_SIZE, ChunkHeader, decode_chunk_header
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.codec import encode
from streamd.wire.stream.fields import OffsetSpecification, Pair
from streamd.wire.stream.subscribe_properties import FILTER_PREFIX

CREDIT = 50
DELIVER_HEAD = 9  # size, key, version, subscription
FRAME = struct.Struct(">IHH")
NEXT = OffsetSpecification(3)
FIRST = OffsetSpecification(1)
_RESPONSE_CODE = 12  # where a response frame has it
_BUFFER_BYTES = 4 << 20


class Read(NamedTuple):
    """What a consumer got, by the chunk headers.

    Attributes:
        chunks: id and data bytes of each.
    """

    messages: int
    bytes: int
    seconds: float
    chunks: list[tuple[int, int]]


def filters(values: Sequence[bytes]) -> tuple[Pair, ...]:
    """The properties of a subscription to these filter values."""
    return tuple(Pair(f"{FILTER_PREFIX}{n}", value.decode()) for n, value in enumerate(values))


def read(
    connection: RawConnection,
    stream: str,
    values: Sequence[bytes] = (),
    properties: Sequence[Pair] = (),
) -> Read:
    """Read from the first chunk on, until what is now the last one has come.

    Args:
        connection: a connection of its own.
        stream: that it reads.
        values: filter values that are asked for; the last chunk has one of them.
        properties: what is asked for besides.
    """
    found = connection.request(c.StreamStats, stream).statistics
    last = next(it.value for it in found if it.name == "committed_chunk_id")
    reading = _Reading(connection)
    messages = size = 0
    chunks: list[tuple[int, int]] = []
    began = time.perf_counter()
    connection.send(c.Subscribe, 0, stream, FIRST, CREDIT, (*filters(values), *properties))
    while not chunks or chunks[-1][0] < last:
        for header in reading.receive():
            messages += header.num_records
            size += header.data_size
            chunks.append((header.chunk_id, header.data_size))
    reading.finish()
    return Read(messages, size, time.perf_counter() - began, chunks)


class _Reading:
    """Delivered chunks; the rest of one that is counted already is skipped."""

    def __init__(self, connection: RawConnection) -> None:
        self._socket = connection.socket
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._to_pass = 0

    def receive(self) -> Sequence[ChunkHeader]:
        """Take in what has arrived; credit for the chunks goes back in one command."""
        filled = self._filled + self._receive(self._view[self._filled :])
        headers = list(self._headers(filled))
        if headers:
            self._socket.sendall(encode(c.Credit(0, len(headers))))
        return headers

    def finish(self) -> None:
        """Take in the rest of the last chunk."""
        while self._to_pass > 0:
            self._to_pass -= self._receive(self._view[: min(self._to_pass, _BUFFER_BYTES)])

    def _headers(self, filled: int) -> Iterator[ChunkHeader]:
        position = self._to_pass
        while position + FRAME.size <= filled:
            size, key, _ = FRAME.unpack_from(self._buffer, position)
            head = position + DELIVER_HEAD
            if key == c.Deliver.KEY:
                if head + CHUNK_HEADER_SIZE > filled:
                    break
                yield decode_chunk_header(self._view, head)
            elif position + SIZE.size + size > filled:
                break
            elif key == c.SubscribeResponse.KEY:
                self._check(position)
            position += SIZE.size + size
        self._to_pass = max(position - filled, 0)
        self._filled = max(filled - position, 0)
        self._view[: self._filled] = self._view[position : position + self._filled]

    def _check(self, position: int) -> None:
        (code,) = struct.unpack_from(">H", self._buffer, position + _RESPONSE_CODE)
        if code != ResponseCode.OK:
            raise RuntimeError(f"Subscribe: the server answers with code {code}")

    def _receive(self, into: memoryview) -> int:
        received = self._socket.recv_into(into)
        if not received:
            raise ConnectionError("the server closed the connection")
        return received

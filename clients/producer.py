"""Publishing: messages gather while a frame is on its way, confirms come back for many at once."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

import anyio

from clients.connection import Connection
from clients.errors import PublishFailed, StreamError, refusal
from segments.compression import NAMES, pack
from segments.message import Message
from streamd.wire import ResponseCode, codec, commands as c
from streamd.wire.publish import (
    Outgoing,
    encode_entries,
    encode_filtered_entries,
    encode_sub_batch,
)

OK = ResponseCode.OK
FilterValue: TypeAlias = Callable[[Message], str | bytes | None]

_FRAME_MESSAGES = 100  # what the server keeps in one chunk, several times over
_FRAME_OVERHEAD = 13
_MESSAGE_OVERHEAD = 14
_MAX_SUB_BATCH = 65_535


class Producer:
    """Publishes to one stream; made by `Client.producer`, which closes it in order.

    Attributes:
        stream: its name.
        name: the producer's durable name, empty for none.
        last_publishing_id: of the last message given to it; a named one begins where it ended.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        name: str,
        filter_value: FilterValue | None,
        window: int,
    ) -> None:
        self.stream = stream
        self.name = name
        self.last_publishing_id = 0
        self._connection = connection
        self._filter_value = filter_value
        self._window = window
        self._publisher_id = -1
        self._waiting: list[Outgoing] = []
        self._has_values = filter_value is not None
        self._unconfirmed = 0
        self._refused: list[tuple[int, int]] = []
        self._error: Exception | None = None
        self._has_work = anyio.Event()
        self._progress = anyio.Event()
        self._pumping = anyio.CancelScope()

    # -- what a program uses

    async def send(
        self,
        message: Message | bytes,
        *,
        publishing_id: int | None = None,
        filter_value: str | bytes | None = None,
    ) -> int:
        """Give a message to be published; waits only while too many are not confirmed.

        Args:
            message: bytes become the body of a message.
            publishing_id: its number, for a named producer that keeps its own count. A message
                whose number is not above all before it is taken for a duplicate.
            filter_value: instead of what the producer's function gives.

        Returns:
            The message's publishing id.

        Raises:
            ConnectionLost: the connection is gone.
            ServerRefused: the stream is gone.
        """
        if isinstance(message, bytes):
            message = Message(message)
        value = filter_value
        if value is None and self._filter_value is not None:
            value = self._filter_value(message)
        return await self.send_encoded(message.encode(), value, publishing_id)

    async def send_encoded(
        self,
        body: bytes,
        filter_value: str | bytes | None = None,
        publishing_id: int | None = None,
    ) -> int:
        """As `send`, for a message that is encoded already."""
        while self._unconfirmed + len(self._waiting) >= self._window:
            await self._progressed()
        self._check()
        value = filter_value.encode() if isinstance(filter_value, str) else filter_value
        size = len(body) + len(value or b"")
        self._check_size(size)
        number = self.last_publishing_id + 1 if publishing_id is None else publishing_id
        self.last_publishing_id = number
        self._waiting.append(Outgoing(number, body, value))
        self._has_values = self._has_values or value is not None
        if len(self._waiting) >= _FRAME_MESSAGES:
            await self._write()
        else:
            self._has_work.set()
        return number

    async def send_all(self, messages: Iterable[Message | bytes]) -> None:
        """Give several messages; see `send`."""
        for message in messages:
            await self.send(message)

    async def send_sub_batch(
        self, messages: Iterable[Message | bytes], compression: str = "gzip"
    ) -> int:
        """Publish messages packed together: less to move and to store, no filter values.

        Args:
            messages: 1 to 65,535.
            compression: none, gzip, snappy, lz4 or zstd.

        Returns:
            The publishing id of them all.

        Raises:
            ValueError: no messages, too many, or too large for a frame.
        """
        bodies = [(Message(m) if isinstance(m, bytes) else m).encode() for m in messages]
        await self._write()
        self._check()
        if not 0 < len(bodies) <= _MAX_SUB_BATCH:
            raise ValueError(f"{len(bodies)} messages, a sub-batch holds 1 to {_MAX_SUB_BATCH}")
        packed, full_size = pack(bodies, NAMES[compression])
        self._check_size(len(packed))
        self.last_publishing_id += len(bodies)
        number = self.last_publishing_id
        entry = encode_sub_batch(number, len(bodies), NAMES[compression], full_size, packed)
        self._unconfirmed += 1
        await self._connection.send(c.Publish(self._publisher_id, 1, entry))
        return number

    async def flush(self) -> None:
        """Return when everything given so far is confirmed.

        Raises:
            PublishFailed: some of it was refused.
            ConnectionLost: the connection is gone; what was not confirmed may be stored or not.
            ServerRefused: the stream is gone.
        """
        await self._write()
        while self._unconfirmed or self._waiting:
            self._check()
            await self._progressed()
        self._check()
        if self._refused:
            refused, self._refused = self._refused, []
            raise PublishFailed(refused)

    # -- what the client does with it

    async def open(self, publisher_id: int) -> None:
        """Declare the publisher, and find out where it ended if it has a name."""
        self._publisher_id = publisher_id
        request = self._connection.request
        what = f"cannot publish to {self.stream}"
        answer = await request(c.DeclarePublisher, publisher_id, self.name, self.stream)
        if answer.code != OK:
            raise refusal(answer.code, what)
        if self.name:
            answer = await request(c.QueryPublisherSequence, self.name, self.stream)
            if answer.code != OK:
                raise refusal(answer.code, what)
            self.last_publishing_id = answer.sequence

    async def pump(self) -> None:
        """Send what gathers whenever the program pauses."""
        with self._pumping:
            while self._error is None:
                await self._has_work.wait()
                self._has_work = anyio.Event()
                try:
                    await self._write()
                except StreamError as error:
                    self.failed(error)

    async def close(self) -> None:
        """Take the publisher back."""
        self._pumping.cancel()
        if self._error is None:
            await self._connection.request(c.DeletePublisher, self._publisher_id)

    def received(self, command: c.ServerCommand) -> None:
        """See connection.Listener."""
        match command:
            case c.PublishConfirm(_, publishing_ids):
                self._unconfirmed -= len(publishing_ids)
            case c.PublishError(_, faults):
                self._unconfirmed -= len(faults)
                self._refused += [(fault.publishing_id, fault.code) for fault in faults]
            case _:
                return
        self._wake()

    def failed(self, error: Exception) -> None:
        """See connection.Listener."""
        self._error = error
        self._has_work.set()
        self._wake()

    def _wake(self) -> None:
        self._progress.set()
        self._progress = anyio.Event()

    async def _progressed(self) -> None:
        self._has_work.set()
        await self._progress.wait()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _check_size(self, size: int) -> None:
        room = self._connection.frame_max - _FRAME_OVERHEAD - _MESSAGE_OVERHEAD
        if size > room:
            raise ValueError(f"message is {size} bytes, at most {room} fit into a frame")

    async def _write(self) -> None:
        """Send what waits, in frames of at most what the server takes."""
        room = self._connection.frame_max - _FRAME_OVERHEAD
        while self._waiting:
            size, count = 0, 0
            for message in self._waiting[:_FRAME_MESSAGES]:
                size += len(message.body) + len(message.filter_value or b"") + _MESSAGE_OVERHEAD
                if size > room:
                    break
                count += 1
            messages, self._waiting = self._waiting[:count], self._waiting[count:]
            self._unconfirmed += count
            command: c.Publish | c.PublishFiltered
            if self._has_values:
                entries = encode_filtered_entries(messages)
                command = c.PublishFiltered(self._publisher_id, count, entries)
            else:
                command = c.Publish(self._publisher_id, count, encode_entries(messages))
            await self._connection.send_frame(codec.encode(command))

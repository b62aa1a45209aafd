"""Publishing: messages gather while a frame is on its way, confirms come back for many at once.

Unconfirmed messages are kept, and sent again when a lost connection is back. The server tells a
producer with a name how far it had come, so that none of its messages is stored twice. Without a
name, messages that were stored but not confirmed are stored twice.

How far it had come is one number, and stands for all below it. So a producer with a name ends with
the first message that is refused: nothing is published behind it, nor stored by the server. Numbers
of messages never mean "none"; the server's 0 does, or that message 0 is stored.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, TypeAlias

import anyio

from clients.connection import ClientConnection
from clients.errors import ConnectionLost, PublishFailed, refusal
from clients.filters import Declared
from clients.position import describe
from clients.signals import Signal
from segments.compression import NAMES, pack
from segments.message import Message
from streamd.wire.stream import ResponseCode, codec, commands as c
from streamd.wire.stream.publish import (
    MAX_SUB_BATCH_BYTES,
    encode_entry,
    encode_filtered_entry,
    encode_sub_batch,
    with_no_value,
)

OK = ResponseCode.OK
FilterValue: TypeAlias = Callable[[Message], str | bytes | None]

_FRAME_MESSAGES = 100  # what the server keeps in one chunk, several times over
# Frames are sent together: a call for each would cost as much as its messages.
_GATHERED = 500  # messages, and they are sent though the program does not pause
_WRITE_BYTES = 128 << 10  # of frames, before others that share the connection have a turn
_FRAME_OVERHEAD = 13
_MESSAGE_OVERHEAD = 14
_SUB_BATCH_OVERHEAD = 19
_MAX_VALUE_BYTES = (1 << 15) - 1
_END_OF_IDS = 1 << 64
_READ_ONLY = "the server is read-only; ask the one that writes"
_NOT_HERE = (ResponseCode.PRECONDITION_FAILED, ResponseCode.STREAM_NOT_AVAILABLE)
_MAX_SUB_BATCH = 65_535
_BEHIND = ResponseCode.PUBLISHER_DOES_NOT_EXIST  # as the server says of messages behind a refusal


class _SubBatch(bytes):
    """The entry of messages that are packed together; it never has a filter value."""


_Given: TypeAlias = tuple[int, bytes]  # the publishing id, and the entry as it stands in a frame


class _Flush:
    """A task that waits for what was given before.

    Args:
        last: the highest publishing id given by then.

    Attributes:
        last: as given.
        told: what was refused and another task was told of meanwhile.
    """

    def __init__(self, last: int) -> None:
        self.last = last
        self.told: list[tuple[int, int]] = []


class Producer:
    """Publishes to one stream; made by `Client.producer`, which closes it in order.

    Attributes:
        stream: its name.
        name: the producer's durable name, empty for none.
        last_publishing_id: the highest given to it; a named one begins where it ended.
        num_confirmed: messages and sub-batches that are stored.
    """

    def __init__(
        self, stream: str, name: str, filter_value: FilterValue | None, window: int
    ) -> None:
        if window < 1:
            raise ValueError(f"window is {window}, expected 1 or more")
        self.stream = stream
        self.name = name
        self.last_publishing_id = self.num_confirmed = 0
        self._filter_value = filter_value
        self._missing_value: Callable[[bytes], bytes] | None = None
        self._window = window
        self._connection: ClientConnection | None = None
        self._frame_max = 0
        self._publisher_id = -1
        self._is_new = True
        self._highest_given = -1
        self._waiting: list[_Given] = []
        self._unconfirmed: dict[int, bytes] = {}
        self._has_values = filter_value is not None  # and all entries but sub-batches say so
        self._refused: list[tuple[int, int]] = []
        self._ended_by: tuple[int, int] | None = None  # see the top: the first that was refused
        self._flushes: set[_Flush] = set()
        self._error: Exception | None = None
        self._has_work = anyio.Event()
        self._is_woken = False
        self._progress = Signal()
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
                whose number is not above all earlier ones is taken for a duplicate. Messages
                without one go on above the highest.
            filter_value: instead of what the producer's function gives; b"" for none.

        Returns:
            The message's publishing id. Cancelled, it has not taken the message.

        Raises:
            TypeError: its filter value is neither text nor bytes.
            ValueError: the message or its filter value is too large, or its number is none.
            PublishFailed: the producer has a name, and an earlier message was refused. It takes no
                more; one that is opened anew goes on with the number that was refused.
            ConnectionLost: the connection is gone for good.
            ServerRefused: the stream is gone.
        """
        message = as_message(message)
        value = self.value_of(message) if filter_value is None else filter_value
        body = message.encode()
        if not self._has_room():
            await self.room()
        return self.accept(body, value, publishing_id)

    async def send_encoded(
        self,
        body: bytes,
        filter_value: str | bytes | None = None,
        publishing_id: int | None = None,
    ) -> int:
        """As `send`, for a message that is encoded already."""
        if not self._has_room():
            await self.room()
        return self.accept(body, filter_value, publishing_id)

    def value_of(self, message: Message) -> str | bytes | None:
        """The filter value that the producer's function gives a message."""
        return None if self._filter_value is None else self._filter_value(message)

    @property
    def is_full(self) -> bool:
        """Whether so many messages are unconfirmed that no more are taken."""
        return self.num_unconfirmed >= self._window and self._error is None

    def _has_room(self) -> bool:
        """Whether `room` has nothing to do."""
        gathered = len(self._waiting)
        return (
            gathered < _GATHERED
            and gathered + len(self._unconfirmed) < self._window
            and self._ended_by is None
        )

    async def room(self) -> None:
        """Return when there is room for a message; send what has gathered if it is much."""
        if len(self._waiting) >= _GATHERED:
            await self._write()
        while self.is_full:
            self._wake()
            await self._progress.wait()
        if self._ended_by is not None:  # and what becomes of all that was given can be told
            await self._settled(_Flush(self.last_publishing_id))

    def accept(
        self, body: bytes, filter_value: str | bytes | None, publishing_id: int | None = None
    ) -> int:
        """Take a message, without waiting: from now on it is stored, or reported.

        Raises:
            TypeError: the filter value is neither text nor bytes.
            ValueError: it is too large, or its number is none, or has been given to another.
            PublishFailed: see `send`.
            StreamError: the stream is gone, or the connection for good.
        """
        value = _value_bytes(filter_value)
        if self._error is not None or self._ended_by is not None:
            self.check()
        if value is None and self._missing_value is not None:
            value = self._if_it_fits(self._missing_value(body), body)
        size = len(body)
        if value is not None:
            size += len(value)
            if len(value) > _MAX_VALUE_BYTES:
                self._check_size(size, _MESSAGE_OVERHEAD)
                raise ValueError(
                    f"filter value is {len(value)} bytes, expected {_MAX_VALUE_BYTES} at most"
                )
            if not self._has_values:
                self._begin_values()
        if size > self._frame_max - _FRAME_OVERHEAD - _MESSAGE_OVERHEAD:
            self._check_size(size, _MESSAGE_OVERHEAD)
        number = self._next_number() if publishing_id is None else self._number(publishing_id)
        entry = (
            encode_filtered_entry(number, body, value)
            if self._has_values
            else encode_entry(number, body)
        )
        self._waiting.append((number, entry))
        if not self._is_woken:
            self._wake()
        return number

    def _next_number(self) -> int:
        """The number of a message that comes without one."""
        number = self.last_publishing_id + 1
        if number >= _END_OF_IDS:
            return self._number(number)
        self.last_publishing_id = self._highest_given = number
        return number

    def _number(self, number: int) -> int:
        """Take note of the number that a message comes with.

        Raises:
            ValueError: it is none, or has been given to another.
        """
        if not 0 <= number < _END_OF_IDS:
            raise ValueError(f"publishing id is {number}, expected 0 or more, below 2**64")
        if not self.name and number <= self._highest_given:  # they could not be told apart
            raise ValueError(
                f"publishing id is {number}, and {self._highest_given} was given before; without a "
                "name the numbers of a producer grow"
            )
        self._highest_given = max(number, self._highest_given)
        self.last_publishing_id = max(number, self.last_publishing_id)
        return number

    def _begin_values(self) -> None:
        """The first filter value: from now on all entries say which they have."""
        self._has_values = True
        self._waiting = [(number, _with_no_value(entry)) for number, entry in self._waiting]
        given = self._unconfirmed
        given.update((number, _with_no_value(entry)) for number, entry in given.items())

    def _wake(self) -> None:
        """Let `pump` send what waits, once the program pauses."""
        self._is_woken = True
        self._has_work.set()

    async def send_all(self, messages: Iterable[Message | bytes]) -> None:
        """Give several messages; see `send`."""
        for given in messages:
            message = as_message(given)
            body, value = message.encode(), self.value_of(message)
            if not self._has_room():
                await self.room()
            self.accept(body, value)

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
            ValueError: no messages, too many, or too large: for a frame, or unpacked.
            PublishFailed: see `send`.
        """
        bodies = [as_message(message).encode() for message in messages]
        if not 0 < len(bodies) <= _MAX_SUB_BATCH:
            raise ValueError(f"{len(bodies)} messages, a sub-batch holds 1 to {_MAX_SUB_BATCH}")
        if compression not in NAMES:
            raise ValueError(f"compression is {compression!r}, expected {', '.join(NAMES)}")
        packed, full_size = pack(bodies, NAMES[compression])
        if full_size > MAX_SUB_BATCH_BYTES:
            raise ValueError(
                f"sub-batch is {full_size} bytes unpacked, expected {MAX_SUB_BATCH_BYTES} at most"
            )
        await self._write()
        await self.room()
        self.check()
        self._check_size(len(packed), _SUB_BATCH_OVERHEAD)
        self.last_publishing_id += len(bodies)
        number = self._highest_given = self.last_publishing_id
        entry = encode_sub_batch(number, len(bodies), NAMES[compression], full_size, packed)
        self._waiting.append((number, _SubBatch(entry)))
        self._wake()
        return number

    async def flush(self) -> None:
        """Return when everything given so far is confirmed, whatever is given meanwhile.

        Raises:
            PublishFailed: some of it was refused; all tasks that wait are told, once.
            ConnectionLost: the connection is gone for good; unconfirmed messages may or may not be
                stored.
            ServerRefused: the stream is gone.
        """
        flush = _Flush(self.last_publishing_id)
        self._flushes.add(flush)
        try:
            await self._settled(flush)
        finally:
            self._flushes.remove(flush)
        self._check_open()
        refused, self._refused = self._refused, []
        for other in self._flushes:  # their messages may be among them
            other.told += refused
        if flush.told or refused:
            raise PublishFailed(flush.told + refused)

    async def _settled(self, flush: "_Flush") -> None:
        """Return when what was given before is stored or refused."""
        while self._lacks(flush):
            self._check_open()
            self._wake()
            await self._progress.wait()

    def _lacks(self, flush: "_Flush") -> bool:
        """Whether a message that was given before a flush began is neither stored nor refused."""
        # Numbers that are not in order are those of duplicates, so the oldest one tells.
        oldest = next(iter(self._unconfirmed), None)
        if oldest is None and self._waiting:
            oldest, _ = self._waiting[0]
        return oldest is not None and oldest <= flush.last

    @property
    def num_unconfirmed(self) -> int:
        """Messages and sub-batches given to it of which the server has said nothing yet."""
        return len(self._unconfirmed) + len(self._waiting)

    @property
    def num_missing(self) -> int:
        """Messages that are unconfirmed, or were refused without anybody being told yet."""
        return self.num_unconfirmed + len(self._refused)

    async def wait_until_lost(self) -> NoReturn:
        """Wait until nothing can be published any more, for programs with nothing to send now.

        Raises:
            ConnectionLost: the connection is gone for good.
            ServerRefused: the stream is gone.
        """
        while self._error is None:
            await self._progress.wait()
        raise self._error

    # -- what the client does with it

    async def open(self, connection: ClientConnection, number: int) -> None:
        """See reconnecting.ConnectionListener."""
        what = f"cannot publish to {self.stream}"
        answer = await connection.request(c.DeclarePublisher, number, self.name, self.stream)
        if answer.code != OK:
            is_read_only = answer.code in _NOT_HERE and connection.is_read_only
            raise refusal(answer.code, what, _READ_ONLY if is_read_only else "")
        await self._learn(connection, what)
        sequence = 0
        if self.name:
            answer = await connection.request(c.QueryPublisherSequence, self.name, self.stream)
            if answer.code != OK:
                raise refusal(answer.code, what)
            sequence = answer.sequence
        if self._is_new:
            self._is_new, self.last_publishing_id = False, sequence
        self._go_on(connection, number, sequence)

    async def _learn(self, connection: ClientConnection, what: str) -> None:
        """See whether messages without a filter value are to get one here."""
        if self._filter_value is None and connection.is_streamd:
            arguments, _ = await describe(connection, self.stream, what)
            self._missing_value = Declared.by(arguments).missing_value_reader()

    def _go_on(self, connection: ClientConnection, number: int, sequence: int) -> None:
        """Send again what is not stored; up to `sequence` everything is, see the top."""
        missing = [
            (number, entry)
            for number, entry in self._unconfirmed.items()
            if number > sequence or not sequence
        ]
        self._waiting[:0] = missing
        self.num_confirmed += len(self._unconfirmed) - len(missing)
        self._unconfirmed.clear()
        self._connection, self._publisher_id = connection, number
        self._frame_max = connection.frame_max
        self._refuse_too_large()
        self._wake()
        self._progress.set()

    def _refuse_too_large(self) -> None:
        """Give up what waits and fits into no frame: the limit may be lower than it was."""
        room = self._frame_max - _FRAME_OVERHEAD
        waiting, self._waiting = self._waiting, []
        too_large: list[tuple[int, int]] = []
        for number, entry in waiting:
            full = entry if self._has_values else _with_no_value(entry)  # as it may be later
            if len(full) > room:
                too_large.append((number, int(ResponseCode.FRAME_TOO_LARGE)))
            else:
                self._waiting.append((number, entry))
        self._refuse(too_large)

    def _refuse(self, faults: Sequence[tuple[int, int]]) -> None:
        """These are not stored; nor is, of a producer with a name, what waits behind them."""
        self._refused += faults
        if self.name and faults:
            self._ended_by = self._ended_by or faults[0]
        if self._ended_by is not None:
            last, _ = self._ended_by
            self._refused += [(number, _BEHIND) for number, _ in self._waiting if number > last]
            self._waiting = [given for given in self._waiting if given[0] < last]

    async def pump(self) -> None:
        """Send what gathers whenever the program pauses."""
        with self._pumping:
            while True:
                await self._has_work.wait()
                await (
                    anyio.lowlevel.checkpoint()
                )  # more of what the program gives goes out together
                self._has_work, self._is_woken = anyio.Event(), False
                await self._write()

    def received(self, command: c.ServerCommand) -> None:
        """See reconnecting.ConnectionListener."""
        match command:
            case c.PublishConfirm(_, publishing_ids):
                for number in publishing_ids:
                    if self._unconfirmed.pop(number, None) is not None:
                        self.num_confirmed += 1
            case c.PublishError(_, faults):
                for number, _ in faults:
                    self._unconfirmed.pop(number, None)
                self._refuse([(number, code) for number, code in faults])
            case _:
                return
        self._progress.set()

    def interrupted(self) -> None:
        """See reconnecting.ConnectionListener."""
        self._connection = None

    def failed(self, error: Exception) -> None:
        """See reconnecting.ConnectionListener."""
        self._error, self._connection = error, None
        self._pumping.cancel()
        self._progress.set()

    def check(self) -> None:
        """Raise why it takes no message: see `send`."""
        self._check_open()
        if self._ended_by is not None:
            raise PublishFailed([*self._refused] or [self._ended_by])

    def _check_open(self) -> None:
        """Raise what is wrong with it: the stream is gone, or the connection for good."""
        if self._error is not None:
            raise self._error

    def _if_it_fits(self, value: bytes, body: bytes) -> bytes | None:
        """A message's own filter value; None where there is none, or no room for it."""
        room = self._frame_max - _FRAME_OVERHEAD - _MESSAGE_OVERHEAD - len(body)
        return value if 0 < len(value) <= min(room, _MAX_VALUE_BYTES) else None

    def _check_size(self, size: int, overhead: int) -> None:
        room = self._frame_max - _FRAME_OVERHEAD - overhead
        if size > room:
            raise ValueError(f"message is {size} bytes, at most {room} fit into a frame")

    async def _write(self) -> None:
        """Send what waits, as far as there is a connection; the rest when it is back."""
        connection = self._connection
        if connection is None:
            return
        while self._waiting and connection is self._connection:
            try:
                await connection.send_frame(self._next_frames)
            except ConnectionLost:
                return  # it is sent again on the next connection

    def _next_frames(self) -> bytes:
        """Frames of what waits longest.

        Called when they are sent next, not before: messages leave the queue as they are sent.
        """
        frames: list[bytes] = []
        size = 0
        while self._waiting and size < _WRITE_BYTES:
            frame = self._next_frame()
            frames.append(frame)
            size += len(frame)
        return b"".join(frames)

    def _next_frame(self) -> bytes:
        """A frame of what waits longest, at most as large as the server takes."""
        given = self._fitting()
        del self._waiting[: len(given)]
        self._unconfirmed.update(given)
        is_filtered = self._has_values and not isinstance(given[0][1], _SubBatch)
        kind = c.PublishFiltered if is_filtered else c.Publish
        entries = b"".join([entry for _, entry in given])
        return codec.encode(kind(self._publisher_id, len(given), entries))

    def _fitting(self) -> list[_Given]:
        """What waits longest: a sub-batch alone, or the messages before one that a frame takes."""
        given = self._waiting[:_FRAME_MESSAGES]
        if isinstance(given[0][1], _SubBatch):
            return given[:1]
        room = self._frame_max - _FRAME_OVERHEAD
        for count, (_, entry) in enumerate(given):
            room -= len(entry)
            if room < 0 or isinstance(entry, _SubBatch):
                return given[:count]
        return given


def _with_no_value(entry: bytes) -> bytes:
    return entry if isinstance(entry, _SubBatch) else with_no_value(entry)


def _value_bytes(value: object) -> bytes | None:
    """A filter value as it is sent; what a program's function gives may be anything."""
    if isinstance(value, str):
        return value.encode()
    if value is None or isinstance(value, bytes):
        return value
    found = type(value).__name__
    raise TypeError(f"filter value is {found}, expected text, bytes, or None for none")


def as_message(message: object) -> Message:
    """A message; bytes become its body.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(message, bytes):
        return Message(message)
    if not isinstance(message, Message):
        found = type(message).__name__
        raise TypeError(f"a message is {found}, expected a Message, or bytes for its body")
    return message

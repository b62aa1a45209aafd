"""Consuming: chunks arrive as far as credit allows, messages come out one by one.

Credit for a chunk is given back when the program asks for what comes after it, so a slow program
holds at most `credit` chunks in memory. With a filter the server sends whole chunks in which some
message may match; a consumer that knows how to find a message's filter value hands out only the
messages that do.

A consumer that begins with a time gets the first chunk that was stored then or later. Some of its
messages may have been created before: those that say so, in their property creation_time, are not
handed out. All that is stored behind that chunk is, whenever it was created.

When a lost connection is back, reading continues after the last chunk that arrived.
"""

from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Set as AbstractSet,
)
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeAlias, cast

import anyio

from clients.connection import ClientConnection
from clients.errors import Closed, ConnectionLost, StreamError, Unsupported, refusal
from clients.filters import (
    ArrivedChunk,
    ConsumerFilter,
    Declared,
    ReceivedMessage,
    SelectorFilter,
)
from clients.reconnecting import ReconnectingConnection
from clients.signals import Signal
from segments import compression
from segments.checksum import crc32
from segments.codec import CHUNK_HEADER_SIZE, ChunkHeader, decode_chunk_header
from segments.creation_time import was_created_before
from segments.errors import FormatError
from segments.times import whole_ms
from streamd.wire.stream import ResponseCode, codec, commands as c, subscribe_properties as words
from streamd.wire.stream.fields import OffsetSpecification, Pair

OK = ResponseCode.OK
Offset: TypeAlias = int | str | datetime | OffsetSpecification
FIRST, LAST, NEXT = (OffsetSpecification(kind) for kind in (1, 2, 3))
_NAMED = {"first": FIRST, "last": LAST, "next": NEXT}
_AT_OFFSET, _AT_TIME = 4, 5
_NOT_SAID = OffsetSpecification(0)
_NO_END = 1 << 64


class DamagedChunk(StreamError):
    """A chunk does not hold what it announces; says which chunk, and in what way."""


Resume: TypeAlias = Callable[[], Awaitable[OffsetSpecification]]


class SingleActiveGroup(NamedTuple):
    """Consumers of one name, only one of which gets messages at a time.

    Attributes:
        resume: finds out where to begin, whenever it is this consumer's turn.
        super_stream: whose partition the stream is, empty for none.
    """

    resume: Resume
    super_stream: str


class _Since(NamedTuple):
    """A time that was asked for, until a chunk has come.

    Attributes:
        time_ms: in ms since 1970.
        chunk_id: of the first chunk that was stored then or later; None where the server does not
            tell: it is the first that comes.
    """

    time_ms: int
    chunk_id: int | None

    def left_out(self, header: ChunkHeader, data: bytes) -> AbstractSet[int]:
        """The places of messages that were created before.

        None where the chunk is another one, because a filter has skipped the first, say; or where
        it is older, because there was none so late, and the next new messages were given instead.
        """
        if self.chunk_id not in (None, header.chunk_id) or header.timestamp_ms < self.time_ms:
            return frozenset()
        bodies = enumerate(compression.bodies(data))
        return {place for place, raw in bodies if was_created_before(raw, self.time_ms)}


class _Arrived(NamedTuple):
    """A chunk, and the first offset in it, and the time, that was asked for."""

    chunk: bytes
    first_offset: int
    since: _Since | None


@dataclass(slots=True)
class ConsumerCounts:
    """What a consumer has received.

    Attributes:
        chunks, bytes: delivered by the server; bytes of their data.
        messages: in those chunks, without those before the offset or time asked for.
        matched: of them, handed to the program.
        false_chunks: chunks in which no message matched.
    """

    chunks: int = 0
    bytes: int = 0
    messages: int = 0
    matched: int = 0
    false_chunks: int = 0


class Consumer:
    """Reads one stream; made by `Client.consumer`. Iterate over it, or over `batches()`.

    Attributes:
        stream: its name.
        name: under which offsets are stored, empty for none.
        counts: what has come so far.
        last_offset: of the last message that was handed out, None before the first.
        is_active: it gets messages; of a group it may be another's turn.
        arrived: set when `take` may have something new.
    """

    def __init__(
        self,
        reconnecting: ReconnectingConnection,
        stream: str,
        name: str,
        start: OffsetSpecification,
        wanted: ConsumerFilter,
        credit: int,
        group: SingleActiveGroup | None = None,
        end_offset: int = _NO_END,
    ) -> None:
        self.is_active = group is None
        self._group = group
        self.stream = stream
        self.name = name
        self.counts = ConsumerCounts()
        self.last_offset: int | None = None
        self._reconnecting = reconnecting
        self._start = start
        self._connection: ClientConnection | None = None
        self._wanted = wanted
        self._was_open = False
        self._credit = credit
        self._first_offset = 0
        self._since: _Since | None = None
        self._end_offset = end_offset
        self._has_ended = False
        self._subscription_id = -1
        self._chunks: deque[_Arrived] = deque()
        self._to_store: int | None = None
        self.arrived = Signal()
        self._error: Exception | None = None
        self._ready: Iterator[ReceivedMessage] = iter(())
        self._owed_credit = 0
        self._is_granting = False
        self._turn: c.ConsumerUpdate | None = None
        self._questions: deque[tuple[ClientConnection, c.ConsumerUpdate]] = deque()
        self._is_answering = False
        self._following = anyio.CancelScope()

    # -- what a program uses

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self

    async def __anext__(self) -> ReceivedMessage:
        while (message := self.take()) is None:
            await self.arrived.wait()
        return message

    def take(self) -> ReceivedMessage | None:
        """The next message, None when it is not there yet.

        Raises:
            StopAsyncIteration: there will be none.
            StreamError: the stream is gone, or the connection for good.
        """
        while True:
            for message in self._ready:
                self.last_offset = message.offset
                return message
            batch = self._take_batch()
            if batch is None:
                return None
            self._ready = iter(batch)

    async def batches(self) -> AsyncGenerator[list[ReceivedMessage], None]:
        """The wanted messages of each chunk, possibly none; cheaper than one by one.

        The first are those that are left of a chunk of which some were taken one by one.
        """
        while True:
            try:
                messages = list(self._ready) or self._take_batch()
            except StopAsyncIteration:
                return
            if messages is None:
                await self.arrived.wait()
                continue
            if messages:
                self.last_offset = messages[-1].offset
            yield messages

    async def store_offset(self, offset: int | None = None) -> None:
        """Remember on the server how far this consumer has come; see `offset="stored"`.

        Args:
            offset: default is that of the last message that was handed out.

        Raises:
            ValueError: the consumer has no name, or nothing was handed out yet.
            ConnectionLost: the connection is gone for good.
        """
        if not self.name:
            raise ValueError("only a consumer with a name can store its offset")
        if offset is None:
            offset = self.last_offset
        if offset is None:
            raise ValueError("there is no offset to store yet")
        if not 0 <= offset < _NO_END:
            raise ValueError(f"offset to store is {offset}, expected 0 or more, below 2**64")
        if self._error is not None:
            raise self._error
        frame = codec.encode(c.StoreOffset(self.name, self.stream, offset))

        def store() -> bytes:
            self._to_store = offset
            return frame

        if self._connection is not None:
            with suppress(ConnectionLost):
                await self._connection.send_frame(store)
                return
        store()  # it is stored when the connection is back

    def explain(self) -> list[str]:
        """Which chunks the server is asked for, and why: lines for people."""
        return self._wanted.explain()

    @property
    def undecodable(self) -> int:
        """Messages that a selector could not read, and so did not match."""
        wanted = self._wanted
        return wanted.matcher.undecodable if isinstance(wanted, SelectorFilter) else 0

    @property
    def num_others(self) -> int:
        """Messages that the server sees without a filter value although their property has one.

        A time or a list, say, or a number where the stream declares a filter property.
        """
        wanted = self._wanted
        return 0 if isinstance(wanted, SelectorFilter) else wanted.num_others

    async def progress(self, awaited_offset: int = 0) -> dict[str, int]:
        """How far the server has come with this consumer, skipped chunks included.

        Args:
            awaited_offset: answer only when everything before this was delivered or skipped.

        Returns:
            next_offset, chunks, messages, skipped_chunks, skipped_bytes, lost_messages.

        Raises:
            Unsupported: the server is not a streamd.
            ConnectionLost: the connection is gone for good.
        """
        if not self._reconnecting.is_streamd:
            raise Unsupported("only a streamd server tells how far a filter has come")
        if self._error is not None:
            raise self._error
        answer = await self._reconnecting.ask(
            c.DescribeSubscription, self._subscription_id, awaited_offset, seconds=None
        )
        if answer.code != OK:
            raise refusal(answer.code, f"cannot follow {self.stream}")
        return dict(answer.statistics)

    # -- what the client does with it

    async def open(self, connection: ClientConnection, number: int) -> None:
        """See reconnecting.ConnectionListener."""
        self._subscription_id = number
        asked = self._start
        if self._group is None:
            self._start = await self._resolved(connection, asked)
        self._begin_at(asked, self._start)
        if self._to_store is not None:
            await self._store_again(connection, self._to_store)
        if self._was_open:
            await self._learn_again(connection)
        self._was_open = True
        credit = max(0, self._credit - len(self._chunks))
        self._owed_credit = 0
        self._connection = connection
        properties = self._wanted.properties()
        if self.name:
            properties += (Pair(words.NAME, self.name),)
        if self._group is not None:
            properties += (Pair(words.SINGLE_ACTIVE, words.TRUE),)
            if self._group.super_stream:
                properties += (Pair(words.SUPER_STREAM, self._group.super_stream),)
        answer = await connection.request(
            c.Subscribe, number, self.stream, self._start, credit, properties
        )
        if answer.code != OK:
            raise refusal(answer.code, f"cannot read {self.stream}")

    async def _learn_again(self, connection: ClientConnection) -> None:
        """It may be another stream of the same name, with other filter properties."""
        if self._wanted.follows and self._reconnecting.is_streamd:
            answer = await connection.request(c.DescribeStreams, (self.stream,))
            for _, code, arguments, _ in answer.streams:
                if code != ResponseCode.STREAM_DOES_NOT_EXIST:
                    self._wanted.learn(Declared.by(dict(arguments)))

    async def _resolved(
        self, connection: ClientConnection, start: OffsetSpecification
    ) -> OffsetSpecification:
        """Where to begin, as an offset: "next" would be another place after an interruption."""
        is_fixed = start.type in (FIRST.type, _AT_OFFSET)
        if is_fixed or not connection.knows(c.ResolveOffsetSpec):
            return start
        answer = await connection.request(c.ResolveOffsetSpec, self.stream, start, ())
        return start if answer.code != OK else cast("OffsetSpecification", answer.offset)

    async def _store_again(self, connection: ClientConnection, offset: int) -> None:
        """Store what may have been lost on the way, unless another consumer has got further."""
        answer = await connection.request(c.QueryOffset, self.name, self.stream)
        if answer.code != OK or answer.offset < offset:
            await connection.send(c.StoreOffset(self.name, self.stream, offset))

    async def stop_at_end(self) -> None:
        """End the iteration once everything before its end offset is done."""
        with self._following:
            try:
                await self.progress(self._end_offset)
            except StreamError as error:
                self.failed(error)
                return
            # The answer came after all chunks that it counts.
            self._has_ended = True
            self.arrived.set()

    async def settle(self) -> None:
        """Return when the offset that was stored last is known to be stored."""
        with suppress(StreamError):  # the program gets it from the iteration
            while self._to_store is not None:
                answer = await self._reconnecting.ask(c.QueryOffset, self.name, self.stream)
                is_stored = answer.code == OK and answer.offset >= self._to_store
                if is_stored or answer.code not in (OK, ResponseCode.NO_OFFSET):
                    return
                await self.store_offset(self._to_store)

    def received(self, command: c.ServerCommand) -> None:
        """See reconnecting.ConnectionListener."""
        if isinstance(command, c.Deliver | c.DeliverCommitted):
            self._chunks.append(_Arrived(command.chunk, self._first_offset, self._since))
            self._since = None
            self.arrived.set()
            with suppress(FormatError):  # reported when it is opened
                header = decode_chunk_header(command.chunk)
                behind = max(self._first_offset, header.chunk_id + header.num_records)
                self._start = OffsetSpecification(_AT_OFFSET, behind)
        elif isinstance(command, c.ConsumerUpdate) and self._connection is not None:
            self._turn = command
            if not command.active:
                self._step_down()
            self._questions.append((self._connection, command))
            if not self._is_answering:
                self._is_answering = True
                self._reconnecting.tasks.start_soon(self._answer_all)

    def interrupted(self) -> None:
        """See reconnecting.ConnectionListener."""
        self._connection = None
        if self._group is not None:  # another consumer gets what was not handed out yet
            self._step_down()

    def failed(self, error: Exception) -> None:
        """See reconnecting.ConnectionListener."""
        self._error, self._connection = error, None
        self._following.cancel()
        if isinstance(error, Closed):
            self._step_down()
        self.arrived.set()

    def _begin_at(self, asked: OffsetSpecification, start: OffsetSpecification) -> None:
        """Reading begins where was asked, which is `start` as far as the server tells."""
        is_known = start.type == _AT_OFFSET
        self._first_offset = start.value if is_known else 0
        if asked.type == _AT_TIME:
            self._since = _Since(asked.value, start.value if is_known else None)

    async def _answer_all(self) -> None:
        """Answer the server's questions in their order; of several the last one counts."""
        while self._questions:
            connection, command = self._questions.popleft()
            try:
                start = await self._answer(connection, command)
                await connection.send(c.ConsumerUpdateResponse(command.correlation_id, OK, start))
            except ConnectionLost:
                pass  # the next connection has its own questions
            except StreamError as error:
                self.failed(error)
        self._is_answering = False

    async def _answer(
        self, connection: ClientConnection, command: c.ConsumerUpdate
    ) -> OffsetSpecification:
        """It is this consumer's turn, or another's; where to begin."""
        if not command.active or self._group is None:
            return _NOT_SAID
        asked = start = await self._group.resume()
        if asked.type == _AT_TIME:
            start = await self._resolved(connection, asked)
        if command is self._turn and connection is self._connection:
            self._begin_at(asked, start)
            self.is_active = True
        return start

    def _step_down(self) -> None:
        """Drop what was not handed out yet: another consumer gets it."""
        self.is_active = False
        self._turn = None
        self._owed_credit += len(self._chunks)
        self._chunks.clear()
        self._ready = iter(())
        self._grant()

    def _take_batch(self) -> list[ReceivedMessage] | None:
        """The wanted messages of the next chunk, None when it is not there yet; see `take`."""
        self._grant()
        if self._chunks:
            self._owed_credit += 1
            return self._open(self._chunks.popleft())
        if self._error is not None:
            raise self._error
        if self._has_ended:
            raise StopAsyncIteration
        return None

    def _grant(self) -> None:
        """Give credit back, half of it at a time: fewer frames.

        Not in the program's task: that may be cancelled meanwhile, and need not wait.
        """
        is_due = self._owed_credit * 2 >= self._credit
        if is_due and self._connection is not None and not self._is_granting:
            self._is_granting = True
            self._reconnecting.tasks.start_soon(self._send_credit, self._connection)

    async def _send_credit(self, connection: ClientConnection) -> None:
        def credit() -> bytes:
            if connection is not self._connection:
                return b""  # the next one has begun with all of it
            owed, self._owed_credit = self._owed_credit, 0
            return codec.encode(c.Credit(self._subscription_id, owed))

        is_lost = False
        try:
            await connection.send_frame(credit)
        except ConnectionLost:
            is_lost = True
        self._is_granting = False
        if not is_lost or connection is not self._connection:
            self._grant()  # what has become due while it was sent: nothing else may ever ask again

    def _open(self, arrived: "_Arrived") -> list[ReceivedMessage]:
        chunk = arrived.chunk
        try:
            header = decode_chunk_header(chunk)
            data = chunk[CHUNK_HEADER_SIZE:]
            if len(data) != header.data_size or crc32(data) != header.data_crc:
                raise FormatError("its data fails the checksum")
            since = arrived.since
            asked, wanted = self._wanted.pick(
                ArrivedChunk(
                    self.stream,
                    header.chunk_id,
                    header.timestamp_ms,
                    data,
                    arrived.first_offset,
                    self._end_offset,
                    frozenset() if since is None else since.left_out(header, data),
                )
            )
        except FormatError as error:
            raise DamagedChunk(f"a chunk of {self.stream} is damaged: {error}") from error
        counts = self.counts
        counts.chunks += 1
        counts.bytes += len(data)
        counts.messages += asked
        counts.matched += len(wanted)
        counts.false_chunks += not wanted
        return wanted


def offset_specification(offset: Offset) -> OffsetSpecification:
    """Where to begin, from a name, an offset or a time.

    Raises:
        ValueError: it is none of them.
    """
    if isinstance(offset, OffsetSpecification):
        return offset
    if isinstance(offset, datetime):
        return OffsetSpecification(_AT_TIME, whole_ms(offset))
    if isinstance(offset, str):
        if offset in _NAMED:
            return _NAMED[offset]
        raise ValueError(f"offset is {offset!r}, expected first, last, next, a number or a time")
    if not 0 <= offset < _NO_END:
        raise ValueError(f"offset is {offset}, expected 0 or more")
    return OffsetSpecification(_AT_OFFSET, offset)

"""Consuming: chunks arrive as far as credit allows, messages come out one by one.

Credit for a chunk is given back when the program asks for what comes after it, so a slow program
holds at most `credit` chunks in memory. With a filter the server sends whole chunks in which some
message may match; a consumer that knows how to find a message's filter value hands out only the
messages that do.

A consumer that begins with a time gets the first chunk that was stored then or later. Some of its
messages may have been created before: those that say so, in their property creation_time, are not
handed out. All that is stored behind that chunk is, whenever it was created.

When a lost connection is back, reading continues after the last chunk that arrived; a single active
consumer, which drops what was not handed out, continues after the last message that was. What that
means where the stream is another one by then is in `position.py`.
"""

from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
    Set as AbstractSet,
    Sized,
)
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import anyio
import anyio.lowlevel

from clients.connection import ClientConnection
from clients.errors import (
    Closed,
    ConnectionLost,
    DamagedChunk,
    StreamError,
    Unsupported,
    refusal,
)
from clients.filters import (
    ArrivedChunk,
    ConsumerFilter,
    Declared,
    Filter,
    ReceivedMessage,
    SelectorFilter,
)
from clients.position import AT_OFFSET, AT_TIME, FIRST, LAST, NEXT, Moved, Place, StreamState
from clients.reconnecting import ReconnectingConnection
from clients.signals import Signal
from segments import compression
from segments.arrow.parts import Part
from segments.checksum import crc32
from segments.codec import CHUNK_HEADER_SIZE, ChunkHeader, decode_chunk_header
from segments.columns import sound_columns
from segments.creation_time import was_created_before
from segments.errors import FormatError
from segments.format_constants import NO_COMPRESSION
from segments.times import whole_ms
from streamd.wire.stream import ResponseCode, codec, commands as c, subscribe_properties as words
from streamd.wire.stream.fields import OffsetSpecification, Pair

if TYPE_CHECKING:
    import pyarrow as pa

OK = ResponseCode.OK
Offset: TypeAlias = int | str | datetime | OffsetSpecification
_NAMED = {"first": FIRST, "last": LAST, "next": NEXT}
_NOT_SAID = OffsetSpecification(0)
_NO_END = 1 << 64


_ROUNDS = 4  # of the event loop, within which a chunk that has come is here
_MAX_ROWS = 1 << 16

_Wanted = TypeVar("_Wanted", bound=Sized)
_Pick: TypeAlias = Callable[[ChunkHeader, ArrivedChunk], tuple[int, _Wanted]]
Resume: TypeAlias = Callable[[], Awaitable[OffsetSpecification]]


class SingleActiveGroup(NamedTuple):
    """Consumers of one name, only one of which gets messages at a time.

    Attributes:
        resume: finds out where to begin, the first time that it is this consumer's turn. Later it
            goes on where it was.
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
    """A chunk, what of it was asked for (the first offset, the end, the time), and in which era.

    Attributes:
        header: of the chunk; None where it is damaged, which is told when it is opened.
    """

    command: c.Delivered
    header: ChunkHeader | None
    first_offset: int
    end_offset: int
    since: _Since | None
    era: int


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
        place: Place,
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
        self._place = place
        self._connection: ClientConnection | None = None
        self._wanted = wanted
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
        self._ready: deque[ReceivedMessage] = deque()
        self._opened: ChunkHeader | None = None  # the chunk that is being handed out
        self._era = 0  # of what was handed out last, see Place
        self._had_turn = False
        self._owed_credit = 0
        self._is_granting = False
        self._due = Signal()
        self._granting = anyio.CancelScope()
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
            if self._ready:
                message = self._ready.popleft()
                self.last_offset = message.offset
                return message
            batch = self._take_batch()
            if batch is None:
                return None
            self._ready.extend(batch)

    async def batches(self) -> AsyncGenerator[list[ReceivedMessage], None]:
        """The wanted messages of each chunk, possibly none; cheaper than one by one.

        The first are those that are left of a chunk of which some were taken one by one.
        """
        while True:
            try:
                messages = list(self._ready) or self._take_batch()
                self._ready.clear()
            except StopAsyncIteration:
                return
            if messages is None:
                await self.arrived.wait()
                continue
            if messages:
                self.last_offset = messages[-1].offset
            yield messages

    def arrow(
        self, columns: Sequence[str] | Mapping[str, str | None], *, max_rows: int = _MAX_ROWS
    ) -> AsyncGenerator["pa.RecordBatch", None]:
        """The wanted messages as Arrow record batches, for Polars, DuckDB, pandas.

        A batch has the messages of the chunks that have arrived, at most `credit` chunks, so give
        the consumer more credit than usual. All batches have the same schema. What is missing,
        null or cannot be read is null.

        Args:
            columns: names of columns, or their types by name. `offset`, `timestamp` (when the
                message was stored) and `body` are there; other names are of properties, as in
                selectors: region, properties.subject. application_properties.offset is one that
                has the name of another column. Types are int64, double, string, binary, bool and
                timestamp; None, or names alone: that of the values in the first batch, string if
                there are none. A column that is asked for as string has all values as text.
            max_rows: messages in a batch, as far as that is possible with whole chunks.

        Raises:
            ArrowMissing: pyarrow or numpy is not installed.
            ColumnError: there is no such column. While iterating: a value is not of its column's
                type; the batch is not handed out then, and iterating has ended.
            ValueError: `max_rows` is below 1.
            DamagedChunk: a chunk is damaged; iterating again continues behind it.
        """
        if max_rows < 1:
            raise ValueError(f"max_rows is {max_rows}, expected 1 or more")
        # Not before: programs do without the extra.
        from clients.record_batches import record_batches  # noqa: PLC0415 - needs the extra

        return record_batches(self, columns, max_rows)

    async def store_offset(self, offset: int | None = None) -> None:
        """Remember on the server how far this consumer has come; see `offset="stored"`.

        The offset of a message that was in a stream of before, see `moved`, is not stored.

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
            if self._is_of_before(offset):
                return b""
            self._to_store = offset
            return frame

        connection: ClientConnection | None = None
        while self._connection is not connection:  # lost, and there is another one
            connection = self._connection
            if connection is not None:
                with suppress(ConnectionLost):
                    await connection.send_frame(store)
                    return
        store()  # it is stored when the connection is back

    def _is_of_before(self, offset: int) -> bool:
        """Whether an offset is that of a message of before the last time that offsets changed."""
        if not self._place.era:
            return False
        last = self.last_offset if self._era == self._place.era else None
        return last is None or offset > last

    @property
    def moved(self) -> Moved | None:
        """The last time that reading did not go on where it was, None for never.

        Known, and logged, as soon as the connection is back; messages that had arrived before come
        out first. Only a streamd server tells.
        """
        return self._place.moved

    def explain(self) -> list[str]:
        """Which chunks the server is asked for, and why: lines for people."""
        return self._wanted.explain()

    @property
    def undecodable(self) -> int:
        """Messages that a selector could not read, and so did not match."""
        wanted = self._wanted
        return wanted.matcher.undecodable if isinstance(wanted, SelectorFilter) else 0

    @property
    def hint(self) -> str:
        """What may be wrong with what is asked for, where nothing matches; often empty."""
        return "" if self.counts.matched else self._wanted.names.hint()

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
        return await self._follow(self._reconnecting, awaited_offset)

    async def _follow(
        self, asked: ReconnectingConnection | ClientConnection, awaited_offset: int
    ) -> dict[str, int]:
        ask = asked.ask if isinstance(asked, ReconnectingConnection) else asked.request
        answer = await ask(
            c.DescribeSubscription, self._subscription_id, awaited_offset, seconds=None
        )
        if answer.code != OK:
            raise refusal(answer.code, f"cannot follow {self.stream}")
        return dict(answer.statistics)

    # -- what the client does with it

    async def open(self, connection: ClientConnection, number: int) -> None:
        """See reconnecting.ConnectionListener."""
        self._subscription_id = number
        answer = await self._subscribe(connection, number)
        while answer.code == ResponseCode.STREAM_DOES_NOT_EXIST:
            if not await self._place.is_of_before(connection):
                break
            answer = await self._subscribe(connection, number)  # another one was created meanwhile
        if answer.code != OK:
            raise refusal(answer.code, f"cannot read {self.stream}")
        await self._store_again(connection)
        if self._end_offset != _NO_END:
            self._reconnecting.tasks.start_soon(self._stop_at_end, connection)

    async def _subscribe(self, connection: ClientConnection, number: int) -> c.SubscribeResponse:
        """Look for the place, and ask for chunks from there; the answer may be a refusal."""
        place, era, asked = self._place, self._place.era, self._place.start
        state = await place.look(connection)
        is_other = place.era != era
        if self._group is None or self._had_turn:  # else it begins when its turn comes
            await place.resolve(connection)
            self._begin(asked)
        if place.era != era:
            self._opened = self._since = self._to_store = None
        if state is not None:
            self._learn_again(state, is_other=is_other)
        self._connection = connection
        credit = max(0, self._credit - len(self._chunks))
        self._owed_credit = 0
        properties = self._wanted.properties()
        if self.name:
            properties += (Pair(words.NAME, self.name),)
        if self._group is not None:
            properties += (Pair(words.SINGLE_ACTIVE, words.TRUE),)
            if self._group.super_stream:
                properties += (Pair(words.SUPER_STREAM, self._group.super_stream),)
        if place.life is not None:
            properties += (Pair(words.LIFE, str(place.life)),)
        answer: c.SubscribeResponse = await connection.request(
            c.Subscribe, number, self.stream, place.start, credit, properties
        )
        return answer

    def _begin(self, asked: OffsetSpecification) -> None:
        """Reading begins at its place, which is where was asked as far as the server tells."""
        start = self._place.start
        is_known = start.type == AT_OFFSET
        self._first_offset = start.value if is_known else 0
        if asked.type == AT_TIME:
            self._since = _Since(asked.value, start.value if is_known else None)

    def _learn_again(self, state: StreamState, *, is_other: bool) -> None:
        """Learn a stream again: a new one of the same name, perhaps, or a shorter one."""
        if self._wanted.follows:
            self._wanted.learn(Declared.by(state.arguments))
        if self._end_offset != _NO_END and not self._reconnecting.is_read_only:
            self._end_offset = 0 if is_other else min(self._end_offset, state.end)

    async def _store_again(self, connection: ClientConnection) -> None:
        """Store what may have been lost on the way, unless another consumer has got further."""
        if self._to_store is None:
            return
        answer = await connection.request(c.QueryOffset, self.name, self.stream)

        def store() -> bytes:
            offset = self._to_store  # which the program may have changed meanwhile
            if offset is None or (answer.code == OK and answer.offset >= offset):
                return b""
            return codec.encode(c.StoreOffset(self.name, self.stream, offset))

        stored = self._to_store
        await connection.send_frame(store)
        await connection.request(c.QueryOffset, self.name, self.stream)
        if self._to_store == stored:
            self._to_store = None  # it came before what was answered

    async def _stop_at_end(self, connection: ClientConnection) -> None:
        """End the iteration once everything before its end offset is done."""
        if self._error is not None:
            return
        with anyio.CancelScope() as self._following:
            try:
                await self._follow(connection, self._end_offset)
            except ConnectionLost:
                return  # the next connection is asked, or there is none
            except StreamError as error:
                self.failed(error)
                return
            # The answer came after all chunks that it counts.
            self._has_ended = True
            self.arrived.set()

    async def settle(self) -> None:
        """Return when the offset that was stored last is known to be stored."""
        if self._to_store is not None:
            with suppress(StreamError):  # the program gets it from the iteration
                # It was stored before this is answered, on this connection or as that was opened.
                await self._reconnecting.ask(c.QueryOffset, self.name, self.stream)

    def received(self, command: c.ServerCommand) -> None:
        """See reconnecting.ConnectionListener."""
        if isinstance(command, c.Delivered):
            first, end, era = self._first_offset, self._end_offset, self._place.era
            header = None
            with suppress(FormatError):
                header = decode_chunk_header(command.chunk)
            self._chunks.append(_Arrived(command, header, first, end, self._since, era))
            self._since = None
            self.arrived.set()
            if self._group is None and header is not None:
                behind = header.chunk_id + header.num_records
                self._place.reached(max(first, behind), behind)
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
        self._granting.cancel()
        if isinstance(error, Closed):
            self._step_down()
        self.arrived.set()

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
        """Take or give up the turn of a single active consumer; returns where to begin."""
        if not command.active or self._group is None:
            return _NOT_SAID
        place = self._place
        if self._had_turn:
            await place.skip_stored(connection)
        else:
            place.start = await self._group.resume()
        asked, era = place.start, place.era
        await place.resolve(connection)
        if command is self._turn and connection is self._connection:
            if place.era != era:
                self._since = self._to_store = None
            self._begin(asked)
            self._opened = None
            self.is_active = self._had_turn = True
        return place.start

    def _step_down(self) -> None:
        """Drop what was not handed out yet: another consumer gets it."""
        if self._opened is not None:
            chunk_id = self._opened.chunk_id
            behind = chunk_id + self._opened.num_records
            if self._ready:
                self._place.reached(self._ready[0].offset, chunk_id)
            else:
                self._place.reached(behind, behind)
        self.is_active = False
        self._turn = None
        self._owed_credit += len(self._chunks)
        self._chunks.clear()
        self._ready.clear()
        self._grant()

    async def gather(self) -> None:
        """Return when something has arrived, with all that comes along with it."""
        self._grant()
        while not self.has_arrived:
            await self.arrived.wait()
        idle = 0
        while idle < _ROUNDS and len(self._chunks) < self._credit and not self._has_ended:
            count = len(self._chunks)
            await anyio.lowlevel.checkpoint()
            idle = 0 if len(self._chunks) > count else idle + 1

    @property
    def has_arrived(self) -> bool:
        """Whether `take` and `take_part` have something to give, or to raise."""
        return bool(self._ready or self._chunks or self._error or self._has_ended)

    def take_part(self) -> Part | None:
        """The wanted messages of the next chunk for a record batch, possibly none; see `take`."""
        if self._ready:
            messages = list(self._ready)
            self._ready.clear()
            return _part_of(messages)
        return self._take_chunk(self._pick_part)

    def _pick_part(self, header: ChunkHeader, chunk: ArrivedChunk) -> tuple[int, Part]:
        """A chunk as it is where all of its messages are wanted; else those that are picked."""
        wanted = self._wanted
        if not isinstance(wanted, Filter) or wanted.follows or chunk.left_out:
            asked, messages = wanted.pick(chunk)
            return asked, _part_of(messages)
        count, chunk_id = header.num_records, chunk.chunk_id
        first = min(max(0, chunk.first_offset - chunk_id), count)
        rows = range(first, max(first, min(count, chunk.end_offset - chunk_id)))
        offsets = range(chunk_id + rows.start, chunk_id + rows.stop)
        return len(rows), Part(chunk.timestamp_ms, count, chunk.data, rows, offsets)

    def _take_batch(self) -> list[ReceivedMessage] | None:
        """The wanted messages of the next chunk, None when it is not there yet; see `take`."""
        return self._take_chunk(self._pick)

    def _pick(self, _: ChunkHeader, chunk: ArrivedChunk) -> tuple[int, list[ReceivedMessage]]:
        return self._wanted.pick(chunk)

    def _take_chunk(self, pick: "_Pick[_Wanted]") -> "_Wanted | None":
        """What is picked of the next chunk, None when it is not there yet; see `take`."""
        self._grant()
        if self._chunks:
            self._owed_credit += 1
            return self._open(self._chunks.popleft(), pick)
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
            self._due.set()

    async def grant(self) -> None:
        """Send credit whenever it is due."""
        with self._granting:
            while True:
                while not self._is_granting:
                    await self._due.wait()
                await self._send_credit(self._connection)

    async def _send_credit(self, connection: ClientConnection | None) -> None:
        def credit() -> bytes:
            if connection is not self._connection:
                return b""  # the next one has begun with all of it
            owed, self._owed_credit = self._owed_credit, 0
            return codec.encode(c.Credit(self._subscription_id, owed))

        is_lost = False
        try:
            if connection is not None:
                await connection.send_frame(credit)
        except ConnectionLost:
            is_lost = True
        self._is_granting = False
        if not is_lost or connection is not self._connection:
            self._grant()  # what has become due while it was sent: nothing else may ever ask again

    def _open(self, arrived: "_Arrived", pick: "_Pick[_Wanted]") -> "_Wanted":
        command = arrived.command
        chunk = command.chunk
        try:
            header = arrived.header or decode_chunk_header(chunk)
            start, end = CHUNK_HEADER_SIZE, len(chunk)
            columns = None
            if isinstance(command, c.DeliverStored):
                start = header.data_start
                end = start + header.data_size
                if arrived.era == self._place.era:  # else they may be of other properties
                    columns = sound_columns(chunk[:start], chunk[end:], header)
            data = chunk[start:end]
            if len(data) != header.data_size or crc32(data) != header.data_crc:
                raise FormatError("its data fails the checksum")
            since = arrived.since
            asked, wanted = pick(
                header,
                ArrivedChunk(
                    self.stream,
                    header.chunk_id,
                    header.timestamp_ms,
                    data,
                    arrived.first_offset,
                    arrived.end_offset,
                    frozenset() if since is None else since.left_out(header, data),
                    columns,
                ),
            )
        except FormatError as error:
            raise DamagedChunk(f"a chunk of {self.stream} is damaged: {error}") from error
        self._opened = header
        if wanted:
            self._era = arrived.era
        counts = self.counts
        counts.chunks += 1
        counts.bytes += len(data)
        counts.messages += asked
        counts.matched += len(wanted)
        counts.false_chunks += not wanted
        return wanted


def _part_of(messages: Sequence[ReceivedMessage]) -> Part:
    """Messages of one chunk, for a record batch."""
    data, _ = compression.pack((message.raw for message in messages), NO_COMPRESSION)
    time_ms = messages[0].timestamp_ms if messages else 0
    offsets = [message.offset for message in messages]
    return Part(time_ms, len(messages), data, range(len(messages)), offsets)


def offset_specification(offset: Offset) -> OffsetSpecification:
    """Where to begin, from a name, an offset or a time.

    Raises:
        ValueError: it is none of them.
    """
    if isinstance(offset, OffsetSpecification):
        return offset
    if isinstance(offset, datetime):
        return OffsetSpecification(AT_TIME, whole_ms(offset))
    if isinstance(offset, str):
        if offset in _NAMED:
            return _NAMED[offset]
        raise ValueError(f"offset is {offset!r}, expected first, last, next, a number or a time")
    if not 0 <= offset < _NO_END:
        raise ValueError(f"offset is {offset}, expected 0 or more")
    return OffsetSpecification(AT_OFFSET, offset)

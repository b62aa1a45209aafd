"""Where a consumer reads on, over connections that are lost.

An offset alone is no place. A stream that was deleted and created again has the same offsets for
other messages: it has another *life*, which a streamd server tells. Within one life an offset means
one message at most; but what stood at it may be gone, and a log that was put back from a copy may
end before it. So on each connection the place is looked for, and who reads is told if it has moved.
"""

import logging
from collections.abc import Mapping
from typing import NamedTuple

from clients.connection import ClientConnection
from clients.errors import refusal
from segments.gaps import num_lost
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import OffsetSpecification

logger = logging.getLogger(__name__)

OK = ResponseCode.OK
FIRST, LAST, NEXT = (OffsetSpecification(kind) for kind in (1, 2, 3))
AT_OFFSET, AT_TIME = 4, 5
_SAID = (OK, ResponseCode.STREAM_DOES_NOT_EXIST, ResponseCode.ACCESS_REFUSED)


class Moved(NamedTuple):
    """Reading does not go on where it was; as text, a sentence for people.

    Attributes:
        stream: its name.
        expected: the offset that was to come next.
        begins: the offset with which reading goes on. Behind `expected`: all between them is gone,
            by retention or truncation, or never was, as after a power failure; offsets that a log
            has left out on purpose, with no message missing, are not told. Before it: the stream
            has become shorter.
        is_other_stream: it was deleted, and one of the same name was made, whose offset `begins`
            is.
    """

    stream: str
    expected: int
    begins: int
    is_other_stream: bool = False

    def __str__(self) -> str:
        if self.is_other_stream:
            return (
                f"stream {self.stream} was deleted and created again: reading, which was at offset "
                f"{self.expected} of the old one, goes on at offset {self.begins} of the new one"
            )
        if self.begins < self.expected:
            return (
                f"stream {self.stream} has become shorter: reading, which was at offset "
                f"{self.expected}, goes on at offset {self.begins}"
            )
        return (
            f"stream {self.stream} has nothing at offsets {self.expected} to {self.begins - 1} any "
            f"more, which were to be read next: reading goes on at offset {self.begins}"
        )


class StreamState(NamedTuple):
    """What a streamd server says about a stream.

    Attributes:
        arguments: what it was declared with.
        end: the offset behind its last message.
    """

    arguments: Mapping[str, str]
    end: int


class Place:
    """Where one consumer reads on in its stream.

    Args:
        stream: its name.
        name: of a consumer that begins behind the offset stored under it; empty for others, to
            whom it does not matter what is stored.
        start: where it begins.

    Attributes:
        start: where it reads on; on a server that resolves it, an offset.
        moved: the last time that reading did not go on where it was; None for never.
        era: how often offsets that were read before have become those of other messages.
        life: of the stream in which that is; None where it is not known, which any is.
    """

    def __init__(self, stream: str, name: str, start: OffsetSpecification) -> None:
        self.start = start
        self.moved: Moved | None = None
        self.era = 0
        self._stream = stream
        self._name = name
        self.life: int | None = None
        self._chunk_id: int | None = None  # of the chunk at `start`, where that is known

    def reached(self, offset: int, chunk_id: int) -> None:
        """All before `offset` is read; it stands in the chunk `chunk_id`, or will begin it."""
        self.start, self._chunk_id = OffsetSpecification(AT_OFFSET, offset), chunk_id

    async def look(self, connection: ClientConnection) -> StreamState | None:
        """Look whether the stream is the one of before; None where the server does not tell.

        Of another one everything is new: it is read from its first message on, or from behind the
        offset that is stored in it.

        Raises:
            ConnectionLost: no answer came.
        """
        if not connection.is_streamd:
            return None
        what = f"cannot read {self._stream}"
        arguments, figures = await describe(connection, self._stream, what)
        if not figures:
            return None  # the next request is refused, too, and says why
        life = figures.get("life", self.life)
        if self.life is not None and life != self.life:
            await self._begin_anew(connection, max(0, figures["first_chunk_id"]))
        self.life = life
        return StreamState(arguments, figures["committed_offset"] + 1)

    async def is_of_before(self, connection: ClientConnection) -> bool:
        """Whether there is another stream of that name since `look`.

        Raises:
            ConnectionLost: no answer came.
        """
        if self.life is None:
            return False
        _, figures = await describe(connection, self._stream, f"cannot read {self._stream}")
        return figures.get("life", self.life) != self.life

    async def _begin_anew(self, connection: ClientConnection, first: int) -> None:
        expected = self.start.value if self.start.type == AT_OFFSET else 0
        self.start, self._chunk_id = FIRST, None
        await self.skip_stored(connection)
        begins = self.start.value if self.start.type == AT_OFFSET else first
        self.era += 1
        self._move(Moved(self._stream, expected, begins, is_other_stream=True))

    async def skip_stored(self, connection: ClientConnection) -> None:
        """Go on behind the offset that is stored, if that matters and is further.

        Raises:
            ConnectionLost: no answer came.
        """
        if not self._name:
            return
        answer = await connection.request(c.QueryOffset, self._name, self._stream)
        is_at_offset = self.start.type == AT_OFFSET
        if answer.code == OK and not (is_at_offset and self.start.value > answer.offset):
            self.start = OffsetSpecification(AT_OFFSET, answer.offset + 1)
            self._chunk_id = None

    async def resolve(self, connection: ClientConnection) -> None:
        """Find the offset of the place: "next" would be another one after an interruption.

        Raises:
            ConnectionLost: no answer came.
        """
        start = self.start
        is_offset = start.type == AT_OFFSET
        is_fixed = start.type == FIRST.type or (is_offset and not connection.is_streamd)
        if is_fixed or not connection.knows(c.ResolveOffsetSpec):
            return
        answer = await connection.request(c.ResolveOffsetSpec, self._stream, start, ())
        if answer.code != OK:
            return
        found: int = answer.offset.value
        # One that only follows what another server stores may be behind that, and will get there.
        is_shorter = (
            self._chunk_id is not None and found < self._chunk_id and not connection.is_read_only
        )
        if is_offset and (is_shorter or num_lost(start.value, found) > 0):
            self.era += is_shorter
            self._move(Moved(self._stream, start.value, found))
        elif is_offset and found <= start.value:
            return
        self.reached(found, found)

    def _move(self, moved: Moved) -> None:
        self.moved = moved
        logger.warning("%s", moved)


async def describe(
    connection: ClientConnection, stream: str, what: str
) -> tuple[dict[str, str], dict[str, int]]:
    """The arguments and figures of a stream, nothing of one that is not there or not for us.

    Raises:
        ConnectionLost: no answer came.
        ServerRefused: the server cannot say, at the moment as a rule; without its arguments, nobody
            knows which filter values its messages are to have.
    """
    answer = await connection.request(c.DescribeStreams, (stream,))
    ((_, code, arguments, statistics),) = answer.streams
    if code not in _SAID:
        raise refusal(code, what)
    return (dict(arguments), dict(statistics)) if code == OK else ({}, {})

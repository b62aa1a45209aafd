"""A door's end of the hop."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec
import trio

from streamd.hop.declared import answer_of
from streamd.hop.messages import (
    DOOR,
    Answered,
    Ask,
    Cancel,
    Changed,
    Enter,
    Entered,
    Failed,
    Frames,
    FromDoor,
    FromEngine,
    HopError,
    Leave,
    encode,
    frame,
)
from streamd.operations.declaration import Operation
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name

Answer = TypeVar("Answer")

_READ_BYTES = 256 << 10
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


class EngineLost(Exception):
    """The engine has ended: nothing can be asked any more."""


class Session:
    """A user who has entered through this door; or the door itself.

    Attributes:
        name: of the user; empty for the door.
        tags: of the user, as the engine has said last.
        ended: why it counts no more, one sentence; empty while it does.
    """

    def __init__(self, link: "EngineLink", number: int, name: Name, tags: tuple[str, ...]) -> None:
        self.name, self.tags, self.ended = name, tags, ""
        self._link, self._number = link, number
        self._told: dict[object, Callable[[], None]] = {}

    async def ask(self, operation: Operation[Answer]) -> Answer:
        """Have the engine carry out an operation.

        Raises:
            Refused: the user may not, or it cannot be done; says why.
            EngineLost: the engine has ended.
        """
        return await self._link.ask(self._number, operation)

    @contextmanager
    def told(self, changed: Callable[[], None]) -> Iterator[None]:
        """In this block, call `changed` when it has ended, or its rights are others."""
        key = object()
        self._told[key] = changed
        try:
            yield
        finally:
            del self._told[key]

    def change(self, tags: tuple[str, ...], ended: str) -> None:
        """The engine has said what it may do now."""
        self.tags, self.ended = tags, ended
        for changed in list(self._told.values()):
            changed()

    async def leave(self) -> None:
        """The user has left."""
        await self._link.leave(self._number)


class EngineLink:
    """The way to the engine.

    Args:
        stream: to the engine; closed when `run` returns.

    Attributes:
        door: the session of the door itself.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._sending = trio.Lock()
        self._last = 0
        self._waiting: dict[int, trio.MemorySendChannel[FromEngine]] = {}
        self._is_lost = False
        self.door = Session(self, DOOR, Name(""), ())
        self._sessions: dict[int, Session] = {DOOR: self.door}

    async def run(self) -> None:
        """Take what the engine says until it ends; whoever waits for an answer then is told."""
        frames = Frames()
        try:
            async with self._stream:
                while data := await self._stream.receive_some(_READ_BYTES):
                    for message in frames.receive(bytes(data)):
                        await self._take(message)
        except _GONE:
            pass
        finally:
            self._is_lost = True
            for waiting in self._waiting.values():
                waiting.close()

    async def _take(self, message: object) -> None:
        match message:
            case Entered(number, session) if session != DOOR and number not in self._waiting:
                await self._send(Leave(session))  # who wanted to enter has gone
            case Answered(number) | Failed(number) | Entered(number):
                waiting = self._waiting.pop(number, None)
                if waiting is not None:
                    waiting.send_nowait(message)
            case Changed(number, tags, ended):
                if number in self._sessions:
                    self._sessions[number].change(tags, ended)
            case _:
                raise HopError(f"{type(message).__name__} is for the engine")

    async def ask(self, session: int, operation: Operation[Answer]) -> Answer:
        """See Session.ask."""
        self._last += 1
        fields = msgspec.Raw(encode(operation))
        answer = await self._asked(Ask(self._last, session, operation.NAME, fields))
        assert isinstance(answer, Answered)  # noqa: S101 - a failure has been raised
        found: Answer = msgspec.msgpack.decode(answer.answer, type=answer_of(type(operation)))
        return found

    async def enter(self, name: Name, password: bytes, host: str) -> Session | None:
        """Let a user in; None when name or password is wrong.

        Args:
            name: of the user.
            password: as it was sent.
            host: the address that it comes from.

        Raises:
            EngineLost: the engine has ended.
        """
        self._last += 1
        entered = await self._asked(Enter(self._last, name, password, host))
        assert isinstance(entered, Entered)  # noqa: S101 - as above
        if entered.session == DOOR:
            return None
        session = Session(self, entered.session, name, entered.tags)
        self._sessions[entered.session] = session
        return session

    async def leave(self, session: int) -> None:
        """See Session.leave."""
        if self._sessions.pop(session, None) is not None:
            with trio.CancelScope(shield=True):
                await self._send(Leave(session))

    async def _asked(self, message: Ask | Enter) -> FromEngine:
        if self._is_lost:
            raise EngineLost
        number = message.number
        give, take = trio.open_memory_channel[FromEngine](math.inf)
        self._waiting[number] = give
        try:
            await self._send(message)
            answer = await take.receive()
        except trio.EndOfChannel:
            raise EngineLost from None
        except trio.Cancelled:
            if self._waiting.pop(number, None) is not None:
                with trio.CancelScope(shield=True):
                    await self._send(Cancel(number))
            raise
        if isinstance(answer, Failed):
            if not answer.reason:
                raise Refused(Reason.INTERNAL_ERROR, "a bug, see the server's log")
            raise answer.error()
        return answer

    async def _send(self, message: FromDoor) -> None:
        data = frame(message)
        async with self._sending:
            try:
                await self._stream.send_all(data)
            except _GONE:
                await self._stream.aclose()

"""A door's end of the hop."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

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
    HopError,
    Leave,
    encode,
    frame,
)
from streamd.operations.declaration import Operation
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name
from streamd.operations.rights import TagHolder
from streamd.operations.users import ListOwnTags

Answer = TypeVar("Answer")

_READ_BYTES = 256 << 10
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


class EngineLost(Exception):
    """The engine has ended: nothing can be asked any more."""


class Session(TagHolder):
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

    def has_tag(self, tag: str) -> bool:
        """See TagHolder."""
        return tag in self.tags

    async def ask(self, operation: Operation[Answer]) -> Answer:
        """Have the engine carry out an operation.

        Raises:
            Refused: the user may not, or it cannot be done; says why.
            EngineLost: the engine has ended.
        """
        return await self._link.ask(self._number, operation)

    async def look(self) -> None:
        """See what the user may do now, also what the engine has not said yet.

        Raises:
            EngineLost: the engine has ended.
        """
        try:
            self.tags = await self.ask(ListOwnTags())
        except Refused as refused:
            self.tags, self.ended = (), refused.details

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

    def leave(self) -> None:
        """The user has left."""
        self._link.leave(self._number)


class _Wait(Generic[Answer]):
    """Somebody waits for an answer.

    Attributes:
        answer: None until it is there, and where the engine is lost.
    """

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.is_over = trio.Event()

    def end(self, answer: Answer | None) -> None:
        self.answer = answer
        self.is_over.set()


class EngineLink:
    """The way to the engine.

    What is said goes out in order and whole, whoever is cancelled meanwhile: one task sends it.

    Args:
        stream: to the engine; closed when `run` returns.

    Attributes:
        door: the session of the door itself.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._unsent: deque[bytes] = deque()
        self._has_more = trio.Event()
        self._last = 0
        self._waiting: dict[int, _Wait[Answered | Failed | Session]] = {}
        self._entering: dict[int, Name] = {}
        self._is_lost = False
        self.door = Session(self, DOOR, Name(""), ())
        self._sessions: dict[int, Session] = {DOOR: self.door}

    async def run(self) -> None:
        """Say and hear until the engine ends; whoever waits for an answer then is told."""
        frames = Frames()
        try:
            async with self._stream, trio.open_nursery() as nursery:
                nursery.start_soon(self._send)
                while data := await self._stream.receive_some(_READ_BYTES):
                    for message in frames.receive(bytes(data)):
                        self._take(message)
                nursery.cancel_scope.cancel()
        except* _GONE:
            pass
        finally:
            self._is_lost = True
            for waiting in self._waiting.values():
                waiting.end(None)

    async def _send(self) -> None:
        while True:
            while self._unsent:
                await self._stream.send_all(self._unsent.popleft())
            self._has_more = trio.Event()
            await self._has_more.wait()

    def _say(self, message: FromDoor) -> None:
        if not self._is_lost:
            self._unsent.append(frame(message))
            self._has_more.set()

    def _take(self, message: object) -> None:
        match message:
            case Entered(number, session, tags):
                waiting, name = self._waiting.pop(number, None), self._entering.pop(number)
                if session == DOOR:
                    visitor = self.door  # nobody is let in
                else:
                    visitor = Session(self, session, name, tags)
                    self._sessions[session] = visitor
                if waiting is not None:
                    waiting.end(visitor)
                elif visitor is not self.door:
                    visitor.leave()  # who wanted to enter has gone
            case Answered(number) | Failed(number):
                self._entering.pop(number, None)
                waiting = self._waiting.pop(number, None)
                if waiting is not None:
                    waiting.end(message)
            case Changed(number, tags, ended):
                if number in self._sessions:
                    self._sessions[number].change(tags, ended)
            case _:
                raise HopError(f"{type(message).__name__} is for the engine")

    async def ask(self, session: int, operation: Operation[Answer]) -> Answer:
        """See Session.ask."""
        self._last += 1
        try:
            fields = msgspec.Raw(encode(operation))
        except UnicodeEncodeError:
            details = "a text has half a character (a lone surrogate), expected whole ones"
            raise Refused(Reason.PRECONDITION_FAILED, details) from None
        except OverflowError:
            details = "a number is too large, expected a number of at most 64 bits"
            raise Refused(Reason.PRECONDITION_FAILED, details) from None
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
        try:
            name.encode()
        except UnicodeEncodeError:
            return None  # nobody is called so
        self._last += 1
        self._entering[self._last] = name
        visitor = await self._asked(Enter(self._last, name, password, host))
        assert isinstance(visitor, Session)  # noqa: S101 - as above
        return None if visitor is self.door else visitor

    def leave(self, session: int) -> None:
        """See Session.leave."""
        if self._sessions.pop(session, None) is not None:
            self._say(Leave(session))

    async def _asked(self, message: Ask | Enter) -> Answered | Session:
        if self._is_lost:
            raise EngineLost
        number = message.number
        waiting = self._waiting[number] = _Wait()
        self._say(message)
        try:
            await waiting.is_over.wait()
        except trio.Cancelled:
            if self._waiting.pop(number, None) is not None:
                self._say(Cancel(number))
            elif isinstance(waiting.answer, Session) and waiting.answer is not self.door:
                waiting.answer.leave()
            raise
        answer = waiting.answer
        if answer is None:
            raise EngineLost
        if isinstance(answer, Failed):
            if not answer.reason:
                raise Refused(Reason.INTERNAL_ERROR, "a bug, see the server's log")
            raise answer.error()
        return answer

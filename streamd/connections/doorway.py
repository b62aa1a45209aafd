"""The engine's end of the hop.

Each request of a door is a task of its own; when the door says that nobody waits any more, or is
gone, it is cancelled. Users are let in here, so that a door never sees what a password is compared
with.
"""

import logging
from contextlib import ExitStack
from functools import partial

import msgspec
import trio

from streamd.auth.users import UserDirectory
from streamd.broker.traffic import ProtocolTraffic
from streamd.engine import Caller, Engine
from streamd.engine.by_name import carry_out
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
    FromEngine,
    HopError,
    Leave,
    frame,
)
from streamd.net.actor import Actor, serves
from streamd.operations.errors import Reason, Refused
from streamd.operations.rights import may_come_from

logger = logging.getLogger(__name__)

_READ_BYTES = 64 << 10
_ASKED_AT_ONCE = 1_000  # by a door; more is refused
_ENTERING_AT_ONCE = 1_000  # and then the door is not read from, until one is through
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


class Doorway:
    """One door, as the engine sees it.

    Args:
        stream: to the door; closed when `run` returns.
        engine: carries out what it asks for.
        directory: lets users in.
        door: what the door itself may ask for, without a user.
        traffic: counts attempts to log in.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        engine: Engine,
        directory: UserDirectory,
        door: Caller,
        traffic: ProtocolTraffic,
    ) -> None:
        self._stream, self._engine, self._directory = stream, engine, directory
        self._traffic = traffic
        self._sending = trio.Lock()
        self._entering = trio.Semaphore(_ENTERING_AT_ONCE)
        self._asked: dict[int, trio.CancelScope] = {}
        self._sessions: dict[int, Caller] = {DOOR: door}
        self._actors: dict[int, Actor] = {}
        self._told: dict[int, ExitStack] = {}  # by session: hears of changes until it is closed
        self._last = DOOR
        self._changes: dict[int, None] = {}  # sessions to be told of
        self._is_changed = trio.Event()

    async def run(self) -> None:
        """Serve the door until it ends."""
        frames = Frames()
        with ExitStack() as end:
            end.callback(self._forget)
            async with self._stream, trio.open_nursery() as nursery:
                nursery.start_soon(self._tell)
                try:
                    while data := await self._stream.receive_some(_READ_BYTES):
                        for message in frames.receive(bytes(data)):
                            await self._take(message, nursery)
                except _GONE:
                    pass
                except HopError as error:
                    logger.error("a door has sent what it never sends: %s", error)
                nursery.cancel_scope.cancel()

    def _forget(self) -> None:
        for told in self._told.values():
            told.close()

    async def _take(self, message: object, nursery: trio.Nursery) -> None:
        match message:
            case Ask(number) if len(self._asked) >= _ASKED_AT_ONCE:
                # Nobody waits for room here: who gives up has to be heard.
                details = f"{_ASKED_AT_ONCE:,} requests are being worked on; try again later"
                await self._send(Failed(number, Reason.NOT_AVAILABLE.name, details))
            case Ask():
                self._asked[message.number] = trio.CancelScope()
                nursery.start_soon(self._answer, message)
            case Cancel(number):
                if number in self._asked:
                    self._asked[number].cancel()
            case Enter():
                await self._entering.acquire()
                nursery.start_soon(self._enter, message)
            case Leave(session):
                self._sessions.pop(session, None)
                self._actors.pop(session, None)
                self._told.pop(session, ExitStack()).close()
            case _:
                raise HopError(f"{type(message).__name__} is for doors")

    async def _answer(self, ask: Ask) -> None:
        answer: FromEngine = Failed(ask.number, "", "")
        with self._asked[ask.number] as scope:
            try:
                answer = Answered(ask.number, await self._carry_out(ask))
            except Refused as refused:
                answer = Failed.of(ask.number, refused)
            except Exception:
                logger.exception("%s has failed", ask.operation[:40])
        del self._asked[ask.number]
        if not scope.cancelled_caught:
            await self._send(answer)

    async def _carry_out(self, ask: Ask) -> msgspec.Raw:
        caller = self._sessions.get(ask.session)
        if caller is None:
            raise Refused(Reason.ACCESS_REFUSED, "the login has ended")
        serves(self._actors.get(ask.session))
        return msgspec.Raw(await carry_out(self._engine, caller, ask.operation, bytes(ask.fields)))

    # -- users

    async def _enter(self, enter: Enter) -> None:
        answer: FromEngine = Entered(enter.number, DOOR, ())
        try:
            name, host = enter.name, enter.host
            account = None
            if enter.password:
                account = await self._directory.authenticate(name, enter.password, host)
            if account is not None and may_come_from(name, host):
                self._last += 1
                caller = Caller(self._directory, account, needs_tag=True)
                self._sessions[self._last] = caller
                self._actors[self._last] = Actor("HTTP", host or "?", name)
                told = self._told[self._last] = ExitStack()
                told.enter_context(account.told(partial(self._note_change, self._last)))
                answer = Entered(enter.number, self._last, caller.tags)
                self._traffic.logins += 1
            else:
                logger.warning("%s: login refused", host or "?")
                self._traffic.logins_refused += 1
        except Exception:
            logger.exception("cannot accept a connection from %s", enter.name[:40])
            answer = Failed(enter.number, "", "")
        finally:
            self._entering.release()
        await self._send(answer)

    def _note_change(self, session: int) -> None:
        if session in self._sessions:
            self._changes[session] = None
            self._is_changed.set()

    async def _tell(self) -> None:
        """Tell the door whose tags or permissions are others, each as it is now."""
        while True:
            await self._is_changed.wait()
            self._is_changed = trio.Event()
            while self._changes:
                session, _ = self._changes.popitem()
                caller = self._sessions.get(session)
                if caller is not None:
                    await self._send(Changed(session, caller.tags, caller.account.ended))

    async def _send(self, message: FromEngine) -> None:
        try:
            data = frame(message)
        except HopError as error:
            assert isinstance(message, Answered)  # noqa: S101 - nothing else is large
            data = frame(Failed(message.number, Reason.INTERNAL_ERROR.name, str(error)))
        async with self._sending:
            try:
                await self._stream.send_all(data)
            except _GONE:
                await self._stream.aclose()

"""A user whose rights, password and account come and go while it does things over each door.

users.md says "Changes hold at once", SECURITY.md "What is taken away has gone when that is
answered". So nothing that was begun after that answer is done until it is given again; and what is
given is there once that is answered.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, NamedTuple

import trio

from streamd.wire.amqp091 import methods as m
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import Pair
from tests.support.amqp import FIRST as FROM_FIRST, STREAM, Delivery, declare
from tests.support.server import FIRST
from tests.world.box import GONE
from tests.world.doors import AmqpDoor, Door, Gone, HttpDoor, Refused, StreamDoor, managed
from tests.world.world import Program, World

WHO, NAME = "ann", "r"
RIGHTS = ("configure", "write", "read")
_DONE, _REFUSED = (1, 200, 201, 204), (16, 401, 403)
_PASSING = (6, 15)  # codes of refusals that say something of the machine
_PAUSES = (0, 0.1, 0.4, 2)
_STEPS = (0, 0, 3, 10, 30)  # of the loop, before something is done while something changes
_BEFORE_A_CHANGE = (0.02, 0.2, 0.2, 1)
_A_MOMENT = 0.05  # seconds in which an answer arrives
_OPENED = 0.5  # the same where messages are counted before: the log may have to be opened
_ARGUMENTS = {
    "stream-filter-property": "kind",
    "stream-filter-derive": "true",
    "stream-chunk-max-records": "200",  # fewer than the least gap has offsets, see limits.py
}
_MANY = 4_000  # messages of a frame that is stored in several turns


class Deed(NamedTuple):
    """Something that the user has tried.

    Attributes:
        what: for people.
        needs: rights, and the password it has entered with.
        sent: when all of it was sent; numbers of events.
        answered: when it was known what came of it.
        is_done: otherwise it was refused.
        seconds: when it was answered.
    """

    what: str
    needs: tuple[str, ...]
    sent: int
    answered: int
    is_done: bool
    seconds: float = 0


class Span(NamedTuple):
    """From the answer to a change to the request that changed it again.

    Attributes:
        begin, end: numbers of events.
        seconds: when it began.
    """

    begin: int
    end: int
    seconds: float = 0


@dataclass
class Rights:
    """What was given and taken away, and done meanwhile.

    Attributes:
        given, taken: spans in which a right or a password was there, and was not.
        deeds: all that was tried.
        grown: what was stored after it was answered that the right to it had gone.
        answers_wait: for a store, which is to know of a change of the catalog that was made.
    """

    given: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    taken: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    deeds: list[Deed] = field(default_factory=list)
    grown: list[str] = field(default_factory=list)
    answers_wait: bool = False

    def judge(self) -> Iterator[str]:
        """What did not hold."""
        for check in (
            nobody_does_without_a_right,
            nothing_waits_its_turn_without_a_right,
            what_is_given_is_there,
            no_rest_is_stored,
        ):
            for fault in check(self):
                yield f"{check.__name__.replace('_', ' ')}: {fault}"


def nobody_does_without_a_right(told: Rights) -> Iterator[str]:
    """SECURITY.md: "What is taken away has gone when that is answered"."""
    for deed in told.deeds:
        for need in deed.needs if deed.is_done else ():
            for span in told.taken[need]:
                if span.begin < deed.sent and deed.answered < span.end:
                    yield f"{deed}, but {need} was away {span}"


def nothing_waits_its_turn_without_a_right(told: Rights) -> Iterator[str]:
    """SECURITY.md: "a change of the catalog whose turn had come … is made", and nothing else."""
    for deed in told.deeds if not told.answers_wait else ():
        need, is_change = deed.needs[0], "configure" in deed.needs or "Declare" in deed.what
        for span in told.taken[need] if deed.is_done and is_change else ():
            is_within = deed.sent < span.begin < deed.answered < span.end
            moment = _OPENED if "QueueDeclareOk" in deed.what else _A_MOMENT
            if is_within and deed.seconds > span.seconds + moment:
                yield f"{deed}, but the right to it was away {span}"


def what_is_given_is_there(told: Rights) -> Iterator[str]:
    """users.md: "Changes hold at once"."""
    for deed in told.deeds:
        spans = [
            any(s.begin < deed.sent and deed.answered < s.end for s in told.given[need])
            for need in deed.needs
        ]
        if not deed.is_done and all(spans):
            yield f"{deed}, but it had all of that"


def no_rest_is_stored(told: Rights) -> Iterator[str]:
    """SECURITY.md: "also the rest of one that is being carried out"."""
    yield from told.grown


_DIGITS = re.compile(rb"\d+$")
_DATA = b"\x00\x53\x75\xb0"  # a body of AMQP 1.0


def _message(number: int) -> bytes:
    body = b"%d" % number
    return _DATA + len(body).to_bytes(4, "big") + body


def _sent(message: bytes) -> int:
    found = _DIGITS.search(message)
    assert found is not None, message
    return int(found[0])


class User:
    """Programs of the user, and of the one who gives and takes; see the module.

    Args:
        world: they live in.
        may_fail: whether something is wrong with the machine.
    """

    def __init__(self, world: World, may_fail: Callable[[], bool]) -> None:
        self.told = Rights()
        self._world = world
        self._may_fail = may_fail
        self._tick = itertools.count(1).__next__
        self._passwords = [f"{WHO}-0"]
        self._since: dict[str, tuple[bool, int, float]] = {}  # whether it is there, and since when
        self._frame: trio.Event | None = None  # is waited for by the chief
        self._fresh, self._num_fresh = "", 0  # a stream that nobody has used yet
        self._has_permissions = False
        self._changing = trio.Event()  # is set when the chief begins a change
        self._stored: tuple[Any, int] | None = None

    def programs(self) -> dict[str, Program]:
        doers = {
            "ann-stream": partial(self._do, "ann-stream", StreamDoor, self._by_stream),
            "ann-amqp": partial(self._do, "ann-amqp", AmqpDoor, self._by_amqp),
            "ann-http": partial(self._do, "ann-http", HttpDoor, self._by_http),
        }
        return {"chief": self._rule, **doers}

    async def prepare(self) -> None:
        """The stream."""
        async with self._world.box.peer() as peer:
            await peer.create(NAME, **{k.replace("-", "_"): v for k, v in _ARGUMENTS.items()})

    def judge(self) -> list[str]:
        """What did not hold."""
        for what in list(self._since):
            self._close(what, 1 << 60)
        self.told.answers_wait = self._world.box.settings.get("confirm") == "store"
        return list(self.told.judge())

    # -- the chief

    async def _rule(self) -> None:
        chance = self._world.chance_of("chief")
        door = StreamDoor(self._world.box, self._may_fail)
        is_there = False
        while not self._world.is_ending:
            if is_there and chance.random() < 0.15:
                is_there = False
                self._has_permissions = False
                asked = managed("user.delete", name=WHO)
                await self._change(door, asked, [*RIGHTS, self._passwords[-1]], [])
            elif not is_there or chance.random() < 0.2:
                await self._set_password(door, is_new=not is_there)
                is_there = True
            else:
                await self._permit(door, chance)
            await trio.sleep(chance.choice(_BEFORE_A_CHANGE))
            await self._publish(door)
        door.close()

    async def _set_password(self, door: Door, *, is_new: bool) -> None:
        old, new = self._passwords[-1], f"{WHO}-{len(self._passwords)}"
        self._passwords.append(new)
        words = {"name": WHO, "password": new} | ({"tags": "management"} if is_new else {})
        asked = managed("user.add" if is_new else "user.passwd", **words)
        await self._change(door, asked, [old], [new])

    async def _permit(self, door: Door, chance: Random) -> None:
        may = [right for right in RIGHTS if chance.random() < 0.7]
        may = [] if chance.random() < 0.1 else may
        if "write" not in may and chance.random() < 0.5:
            self._num_fresh += 1
            fresh = f"{NAME}{self._num_fresh}"
            if await self._is_done(door, (c.Create, fresh, ())):
                self._fresh = fresh
        patterns = {right: ".*" if right in may else "" for right in RIGHTS}
        if "write" not in may and chance.random() < 0.7:  # a large frame is stored just then
            self._frame = frame = trio.Event()
            with trio.move_on_after(chance.choice((0, 2))):
                await frame.wait()
                for _ in range(chance.randint(0, 12)):
                    await trio.lowlevel.checkpoint()
        away = [right for right in RIGHTS if right not in may]
        asked = managed("permission.set", user=WHO, **patterns)
        if not may and self._has_permissions:
            asked = managed("permission.clear", user=WHO)
        self._has_permissions = bool(may)
        await self._change(door, asked, away, may)

    async def _change(self, door: Door, asked: Any, away: list[str], there: list[str]) -> None:
        """Change something, again and again until that is answered."""
        for what in (*away, *there):
            if what in self._since and self._since[what][0] == (what in away):
                self._close(what, self._tick())
        self._changing.set()
        self._changing = trio.Event()
        while not await self._is_done(door, asked):
            await trio.sleep(0.1)
        now = self._tick()
        for what in (*away, *there):
            self._since.setdefault(what, (what in there, now, trio.current_time()))
        server = self._world.box.server
        for stream in server.host.streams() if server is not None and "write" in away else ():
            if stream.name == NAME:
                self._stored = stream.life.opened_log, stream.life.num_published  # which is all

    async def _is_done(self, door: Door, asked: Any) -> bool:
        """Ask for something; False when it has to be asked for again, as nobody knows."""
        try:
            code, told = await door.send(asked)
        except Gone:
            door.close()
            return False
        assert code in (1, *_PASSING, 17), told
        return code == 1 or (code == 17 and not self._may_fail())  # done before it was lost

    def _close(self, what: str, end: int) -> None:
        is_there, since, seconds = self._since.pop(what)
        spans = self.told.given if is_there else self.told.taken
        spans[what].append(Span(since, end, seconds))

    async def _publish(self, door: StreamDoor) -> None:
        """A message that says when it was published."""
        if self._stored is not None:
            opened, stored = self._stored
            if opened is not None and opened.writer.num_asked != stored:
                self.told.grown.append(f"{opened.writer.num_asked - stored} messages")
            self._stored = None
        try:
            await door.send((c.DeclarePublisher, 1, "", NAME))
            await door.peer.publish([_message(self._tick())])
        except (Gone, *GONE):
            door.close()

    # -- the user

    async def _do(self, who: str, kind: type[Door], act: Callable[..., Any]) -> None:
        """Enter, with a password that is or was right, do things, and enter again."""
        chance = self._world.chance_of(who)

        async def work() -> None:
            password = chance.choice(self._passwords[-2:])
            door = kind(self._world.box, lambda: True, (WHO, password))
            entering = self._tick()
            try:
                await door.open()
                if kind is not HttpDoor:
                    self._note("enters", (password,), entering, is_done=True)
                while not self._world.is_ending:
                    await self._pause(chance)
                    await act(door, password, chance)
            except Refused:
                self._note("is refused", (password, "configure"), entering, is_done=False)
            except (Gone, *GONE):
                pass
            finally:
                door.close()

        while not self._world.is_ending:
            await self._world.guarded(who, work)
            await self._pause(chance)

    async def _pause(self, chance: Random) -> None:
        """Until it is time to do something: often when something is just being changed."""
        with trio.move_on_after(chance.choice(_PAUSES) + 0.2):
            await self._changing.wait()
            for _ in range(chance.choice(_STEPS)):
                await trio.lowlevel.checkpoint()

    def _note(self, what: str, needs: tuple[str, ...], sent: int, *, is_done: bool) -> None:
        now = trio.current_time()
        self.told.deeds.append(Deed(what, needs, sent, self._tick(), is_done, now))

    async def _ask(self, door: Door, password: str, right: str, asked: Any) -> None:
        sent = self._tick()
        code, told = await door.send(asked)
        if code in _DONE or code in _REFUSED:
            self._note(f"{asked}: {told}", (right, password), sent, is_done=code in _DONE)

    async def _by_stream(self, door: StreamDoor, password: str, chance: Random) -> None:
        fresh, self._fresh = self._fresh, ""
        if fresh:  # its log has to be opened
            number = self._num_fresh % 250
            await self._ask(door, password, "write", (c.DeclarePublisher, 2 + number, "", fresh))
        frame, self._frame = self._frame, None
        match 4 if frame is not None else chance.randrange(6):
            case 0:
                await self._ask(door, password, "configure", (c.Create, "ann-0", ()))
            case 1:
                await self._ask(door, password, "configure", (c.Delete, "ann-0"))
            case 2:
                await self._ask(door, password, "read", (c.Find, NAME, (Pair("limit", "1"),)))
            case 3:
                asked = (c.Subscribe, 1, NAME, FIRST, 1_000, ())
                await self._ask(door, password, "read", asked)
            case 4:
                await self._ask(door, password, "write", (c.DeclarePublisher, 1, "", NAME))
        await door.peer.publish([_message(self._tick())] * (1 if frame is None else _MANY))
        if frame is not None:
            frame.set()
        await self._listen(door, password)

    async def _listen(self, door: StreamDoor, password: str) -> None:
        """What has come unasked: messages, and what became of those that were published."""
        with trio.move_on_after(0.1):
            while True:
                command = await door.peer.next()
                if isinstance(command, c.Delivered):
                    door.peer.unasked.insert(0, command)
                    for body in (await door.peer.chunk()).bodies:
                        self._note("reads", ("read", password), _sent(body), is_done=True)

    async def _by_amqp(self, door: AmqpDoor, password: str, chance: Random) -> None:
        match chance.randrange(3):
            case 0:
                asked = (declare("ann-1", STREAM), m.QueueDeclareOk)
                await self._ask(door, password, "configure", asked)
            case 1:
                await door.send((m.BasicQos(0, 1_000, False), m.BasicQosOk))
                method = m.BasicConsume(0, NAME, "", False, False, False, False, FROM_FIRST)
                await self._ask(door, password, "read", (method, m.BasicConsumeOk))
            case _:
                await door.send((m.ConfirmSelect(False), m.ConfirmSelectOk))
                sent = self._tick()
                await door.peer.publish(NAME, b"%d" % sent)
                code, told = await door.send((None, m.BasicAck))
                if code in (1, 403):
                    self._note(f"publishes: {told}", ("write", password), sent, is_done=code == 1)
        unasked, door.peer.unasked = door.peer.unasked, []
        for found in unasked:
            if isinstance(found, Delivery):
                self._note("reads", ("read", password), int(found.body), is_done=True)

    async def _by_http(self, door: HttpDoor, password: str, chance: Random) -> None:
        match chance.randrange(3):
            case 0:
                asked: tuple[Any, ...] = ("GET", f"stream/%2F/{NAME}/messages?limit=1", None)
                await self._ask(door, password, "read", asked)
            case 1:
                await self._ask(door, password, "configure", ("DELETE", "queues/%2F/ann-2", None))
            case _:
                begins = self._tick()
                ends: list[int] = []
                pieces = self._slowly(b"{", b"}", ends, chance.choice((0, 0.2, 1)))
                code, told = await door.send(("PUT", "queues/%2F/ann-2", pieces))
                if ends and (code in _DONE or code in _REFUSED):
                    is_done = code in _DONE  # who it is was asked at its beginning
                    sent = ends[0] if is_done else begins
                    self._note(f"puts: {told}", ("configure", password), sent, is_done=is_done)

    async def _slowly(
        self, first: bytes, last: bytes, ends: list[int], seconds: float
    ) -> AsyncIterator[bytes]:
        yield first
        await trio.sleep(seconds)
        ends.append(self._tick())
        yield last

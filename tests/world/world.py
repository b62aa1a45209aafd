"""The world: servers, their disks, their clients and a clock in one process, at virtual time.

Its seed decides what everybody does, and what goes wrong when. What there is to do comes from
parts; a seed chooses some of them, some of their programs and some of what can go wrong, as faults
hide where everything happens at once. The witness judges what everybody was told.
"""

import itertools
import logging
import math
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from time import thread_time
from typing import Any, NamedTuple, Protocol

import outcome
import pytest
import trio
from anyio.abc import ByteStream
from trio.testing import MockClock

import clients.connection
from clients import Client, StreamError, connect
from clients.uri import Endpoint
from segments import marks
from segments.derived import key_schedule, key_worker
from segments.derived.key_files import KeyJob
from segments.derived.key_worker import Answer
from segments.errors import StorageError
from segments.store.object_store import TierError
from streamd.connections.watch import LoopClock
from streamd.net import threads, turns
from tests.support import server as servers
from tests.support.client import MemoryByteStream
from tests.support.proxy import Cut
from tests.support.server import Harness, simulated
from tests.support.syncs import work_beside
from tests.world import machine as machines
from tests.world.box import Box
from tests.world.limits import lowered
from tests.world.machine import Machine, brings_to_device
from tests.world.witness import Witness

Program = Callable[[], Awaitable[None]]

_DELAYS = (0, 0, 0, 0.001, 0.01, 0.1)  # seconds that work in a thread takes
_LATE = (0.5, 3)  # the same when it is late, before and after
_LATE_FLUSH_SECONDS = 20.0  # that a flush which has begun then may take
_FEW_SECONDS = 3.0  # that descriptors, or room, are short at most
_PAUSES = (0, 0.01, 0.1, 0.3, 1, 3)  # seconds between faults
_MOST_FAULTS = 30
# Of so many worlds a few programs are enough: they cost a fifth, and meet as many faults. So guards
# that were taken away were missed with less than half of the work.
_FEW, _MOST_OF_FEW = 0.75, 4
_LASTING = ("full", "late", "stall")  # what a server has to get over by itself, as the last fault
_OVERLAPPING = 2  # of so many of these, all but one go on when the next fault comes
_ALIVE = 5  # of so many faults all but one wait for a server that they can meet
_MOST_OPERATIONS, _MOST_SYNCS = 80, 12  # on the disk, until the machine fails at one
_LONGEST = 600  # seconds until everything must have ended
_LONGEST_WORK = 60  # of a processor: at virtual time, what turns round and round never ends
_RETRY_SECONDS = 30
_EXPECTED = (StorageError, TierError)  # what a server may tell of its disk and its store
_AGAIN = (0.01, 0.3, 2)  # seconds until a program that failed is started again


class Fault(NamedTuple):
    """Something that goes wrong.

    Attributes:
        after: seconds after the one before.
        name: of a harm.
        seed: decides everything else about it.
    """

    after: float
    name: str
    seed: int


class Part(Protocol):
    """What a part of the world adds to it.

    Attributes:
        is_kept: its programs cannot do without what they have declared; a machine that is lost
            takes the last of that with it.
    """

    is_kept: bool

    async def prepare(self) -> None:
        """Make what its programs work with; nothing goes wrong yet."""

    def programs(self) -> dict[str, Program]:
        """What clients do until the world is ending, by name."""

    def harms(self) -> dict[str, Program]:
        """What can go wrong, by name."""

    async def finish(self) -> None:
        """Nothing goes wrong any more; programs end while this is at work."""

    async def settle(self) -> None:
        """All programs have ended: have a last look, for the witness."""


class World:
    """See above.

    Args:
        folder: an empty one.
        seed: decides everything.
        parts: makes each part.
        only: names of programs; by default the seed chooses.
        faults: in order; by default the seed chooses.

    Attributes:
        boxes: by the name that its clients use; "" is the server that everybody knows.
        pick: the one that a host is, or any where a client, or harm, does not care.
        chance: of the fault that is going on.
        witness: is told everything.
        is_ending: programs come to their end.
        scopes: of the programs that run; the world may cancel any.
        contexts: are entered before anything runs.
        events: what has happened, for those who look for the cause of a fault.
        pairs: kinds of events that have followed each other.
        parts: of it.
        beside_seconds: what threads have worked.
        was_wrong: the disk has refused something, for a while.
        skew_ms: that the clock on the wall is wrong.
        nursery: for what goes on beside programs and harms, until the world's end.
        began: is called with each server, before anybody can reach it.
        request_seconds: how long a request to the store is on its way.
        keeps_confirms: a store does not let the server confirm, or did not until a moment ago, or
            the server has just begun to read what it has.
        holds_streams: the same of any stream, and only as long as its server may wait for it.
        parts: those before the one that asks.
        waited_at: when a server has last said that publishers wait for something.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        parts: "Iterable[Callable[[World], Part]]",
        *,
        only: Iterable[str] | None = None,
        faults: Iterable[Fault] | None = None,
    ) -> None:
        self.seed = seed
        self.folder = folder
        self.is_ending = False
        self.scopes: dict[str, trio.CancelScope] = {}
        self.contexts: list[AbstractContextManager[Any]] = [lowered(Random(f"{seed}/limits"))]
        self.events: list[str] = []
        self.pairs: set[tuple[str, str]] = set()
        self.skew_ms, self.was_wrong = 0, False
        self.beside_seconds = 0.0
        self.waited_at = -math.inf
        self.nursery: trio.Nursery
        self.began: list[Callable[[Harness], None]] = []
        self.request_seconds: Callable[[], float] = lambda: 0
        self.keeps_confirms: Callable[[], bool] = lambda: False
        self.holds_streams: Callable[[], bool] = lambda: False
        self.parts: list[Part] = []
        self.chance = Random(f"{seed}/settings")
        flush = self.chance.choice(("always", "always", "interval", "os"))
        self.witness = Witness(flush)
        self.boxes: dict[str, Box] = {}
        self.add_box("").settings["flush"] = flush
        self.pick: Callable[[str], Box] = lambda host: self.boxes.get(host) or self.boxes[""]
        self._last = "begin"
        self._lateness, self._late_at, self._late_until = 0.0, 0.0, -_LATE_FLUSH_SECONDS
        self._waiting: set[str] = set()  # programs that have not ended
        self._delays = Random(f"{seed}/delays")
        self._cuts = Random(f"{seed}/cuts")
        for make in parts:
            self.parts.append(make(self))
        self._programs = {n: work for part in self.parts for n, work in part.programs().items()}
        self._harms = self._own_harms()
        self._harms |= {n: harm for part in self.parts for n, harm in part.harms().items()}
        choice = Random(f"{seed}/choice")
        if only is not None:
            self.only = [name for name in self._programs if name in set(only)]
        else:
            self.only = _few(_some(list(self._programs), choice), Random(f"{seed}/few"))
        names = _some(list(self._harms), choice)
        self.faults = list(_faults(names, choice) if faults is None else faults)

    @property
    def box(self) -> Box:
        """The server that clients reach, and that harm meets."""
        return self.pick("")

    def num_refused(self) -> int:
        """What disks have refused so far."""
        return sum(box.machine.num_refused for box in self.boxes.values())

    def chance_of(self, name: str) -> Random:
        """What decides about a program; another one's decisions do not change it."""
        return Random(f"{self.seed}/{name}")

    def add_box(self, name: str) -> Box:
        """A further machine with its server, which has to be started; see `Box.live`."""
        folder = self.folder / f"box-{name}"
        folder.mkdir()
        machine = Machine(folder, Random(f"{self.seed}/machine {name}"))
        chance = self.chance_of(f"box {name}")
        box = self.boxes[name] = Box(machine, chance, self.now_ms, self._began)
        self.contexts.append(machine.running())
        return box

    def now_ms(self) -> int:
        """The clock on the wall."""
        return 1_700_000_000_000 + round(trio.current_time() * 1000) + self.skew_ms

    def _time_ns(self) -> int:
        return self.now_ms() * 1_000_000 if trio.lowlevel.in_trio_run() else 0

    def note(self, kind: str, text: str = "") -> None:
        """Something has happened."""
        self.events.append(f"{trio.current_time():.3f} {kind} {text}")
        self.pairs.add((self._last, kind))
        self._last = kind

    # -- its life

    def run(self) -> list[str]:
        """What did not hold; empty when everything did."""
        trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[attr-defined]
        trio._core._run._r.seed(self.seed)  # type: ignore[attr-defined]
        random.seed(self.seed)
        log, root = _Log(self), logging.getLogger()
        root.addHandler(log)
        try:
            with ExitStack() as stack:
                for context in [*self.contexts, simulated(), self._own_clocks()]:
                    stack.enter_context(context)
                trio.run(self._run, clock=MockClock(autojump_threshold=0))
        except BaseExceptionGroup as group:
            self.witness.cut_short = f"the world ended: {_leaves(group)}"
        finally:
            root.removeHandler(log)
        for box in self.boxes.values():
            self.witness.faults += [f"a server did not start: {why}" for why in box.refusals]
        return self.witness.judge()

    @contextmanager
    def _own_clocks(self) -> Iterator[None]:
        """In this block nothing is real: no clock, no chance, no thread, no way to a server."""
        elapsed = itertools.accumulate(_turns(Random(f"{self.seed}/turns")))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "urandom", Random(self.seed).randbytes)
            patch.setattr(time, "time_ns", self._time_ns)
            patch.setattr(turns, "perf_counter", lambda: next(elapsed))
            patch.setattr(LoopClock.__init__, "__defaults__", (lambda: 0.0, lambda: 0.0))
            patch.setattr(marks, "_last_ms", 0)
            patch.setattr(servers, "_ports", itertools.count(40_000))
            patch.setattr(threads, "in_thread", self.in_thread)
            patch.setattr(threads, "together", lambda call, items: list(map(call, items)))
            patch.setattr(clients.connection, "_connect", self._reach)
            patch.setattr(key_schedule, "SPARE_BYTES", 20_000)
            patch.setattr(key_schedule, "FEW_BYTES", 1)
            yield

    async def _run(self) -> None:
        with trio.move_on_after(_LONGEST) as limit, _limited(limit.cancel):
            async with trio.open_nursery() as self.nursery:
                await self.nursery.start(self.boxes[""].live)
                for part in self.parts:
                    await part.prepare()
                await self._act()
                for part in self.parts:
                    await self._do("the last look", part.settle)
                for box in self.boxes.values():
                    box.end()
        if limit.cancelled_caught:
            self.witness.cut_short = f"these wait for ever: {', '.join(sorted(self._waiting))}"

    async def _act(self) -> None:
        async with trio.open_nursery() as nursery:
            for name in self.only:
                nursery.start_soon(self._do, name, self._programs[name])
            for fault in self.faults:
                if fault.seed % _ALIVE:
                    await self.box.comes_up()
                await trio.sleep(fault.after)
                self.note(f"[{fault.name}]")
                self.chance = Random(fault.seed)
                harm = self._harms.get(fault.name, _nothing)
                is_long = fault.name in _LASTING and "tier" not in self.box.settings
                if is_long and fault.seed % _OVERLAPPING:
                    nursery.start_soon(harm)
                else:
                    await harm()
            self.is_ending = True
            for box in self.boxes.values():
                box.machine.disarm()
            for part in self.parts:
                nursery.start_soon(self._do, "the end", part.finish)

    async def _do(self, name: str, work: Program) -> None:
        self._waiting.add(name)
        await work()
        self._waiting.discard(name)

    def _began(self, server: Harness) -> None:
        server.server.broker._resources.keys.worker.make = self._make  # type: ignore[method-assign]
        for began in self.began:
            began(server)

    async def _reach(self, endpoint: Endpoint) -> ByteStream:
        await trio.lowlevel.checkpoint()
        return self.pick(endpoint.host).reach()

    async def in_thread(self, work: Callable[..., Any], *arguments: object) -> Any:
        """What `threads.in_thread` is in the world."""
        await trio.lowlevel.checkpoint()
        machine = machines.here.get()
        if machine is None or machine.goes_on is None:
            return await self._worked(work, *arguments)
        await machine.gone_on()
        try:
            return await self._worked(work, *arguments)
        finally:
            await machine.gone_on()

    async def _worked(self, work: Callable[..., Any], *arguments: object) -> Any:
        if threads._limiter.get() is not None:
            return await self._beside(work, *arguments)
        with trio.CancelScope(shield=True):  # a thread cannot be cancelled
            await trio.sleep(self._lateness or self._delays.choice(_DELAYS))
            began = thread_time()
            try:
                return work_beside(work, *arguments)
            finally:
                self.beside_seconds += thread_time() - began
                await trio.sleep(self._lateness or self._delays.choice(_DELAYS))

    async def _beside(self, work: Callable[..., Any], *arguments: object) -> Any:
        """The same for a thread that is left alone by who is cancelled: a request to the store."""
        done = trio.Event()
        result: list[outcome.Outcome[Any]] = []

        async def ask() -> None:
            await trio.sleep(self.request_seconds())
            result.append(outcome.capture(work_beside, work, *arguments))
            await trio.sleep(self.request_seconds())
            done.set()

        self.nursery.start_soon(ask)  # in the context of who asks
        await done.wait()
        return result[0].unwrap()

    async def _make(self, job: KeyJob) -> Answer:
        """What the process that makes key tables does."""
        answer: Answer = await self.in_thread(key_worker.work, key_worker.encode_job(job))
        if answer.is_bug:
            self.witness.faults.append(f"keys are not made: {answer.fault}")
        return answer

    # -- programs of the client library

    async def repeat(self, name: str, work: Callable[[Client], Awaitable[None]], **to: Any) -> None:
        """Run a program, which fails or is ended now and then, until it has done its work."""
        chance = self.chance_of(f"again {name}")
        while not await self.attempt(name, work, **to):
            await trio.sleep(chance.choice(_AGAIN))

    async def attempt(
        self, name: str, work: Callable[[Client], Awaitable[None]], uri: str = "", **options: Any
    ) -> bool:
        """Run a program, which may be ended at any step; whether it has done its work."""
        beat = self.chance_of(f"heartbeat {name}").choice((0, 0, 5))
        options = {"heartbeat": beat, "retry_seconds": _RETRY_SECONDS} | options
        uris = [uri] if uri else []

        async def use() -> None:
            async with connect(*uris, **options) as client:
                await work(client)

        return await self.guarded(name, use)

    async def guarded(self, name: str, work: Program) -> bool:
        """The same for a program that connects by itself."""
        is_done = False
        with trio.CancelScope() as scope:
            self.scopes[name] = scope
            try:
                await work()
                is_done = True
            except* StreamError as group:
                for error in _each(group):
                    self.note(f"{name} {type(error).__name__}", str(error))
            finally:
                self.scopes.pop(name, None)
        return is_done

    # -- what goes wrong with the server that everybody knows

    def _own_harms(self) -> dict[str, Program]:
        return {
            "kill": self._kill,
            "power": self._cut_power,
            "cut": self._cut_line,
            "cut at": self._cut_lines_at,
            "crash": self._crash,
            "full": self._fill,
            "broken": self._break,
            "stop": self._stop,
            "kill at": self._kill_at,
            "power at": self._cut_power_at,
            "power twice": self._cut_power_twice,
            "late": self._be_late,
            "stall": self._stall,
            "drain": self._drain,
            "clock": self._set_clock,
        }

    async def _kill(self) -> None:
        self.end_process()

    def end_process(self, box: Box | None = None) -> None:
        since = self.flushed_until()
        if (box or self.box).kill():
            self.witness.kill(since)

    async def _cut_power(self) -> None:
        self._lose_power()

    def _lose_power(self, box: Box | None = None) -> None:
        since = self.flushed_until()
        if (box or self.box).cut_power():
            self.witness.lose_power(since)

    async def _drain(self) -> None:
        await self.box.drain()

    def flushed_until(self) -> float:
        """When flushes began to take longer, or to fail; now, when they did not."""
        now, broken_at = trio.current_time(), self.boxes[""].machine.broken_at
        late_at = self._late_at if now < self._late_until + _LATE_FLUSH_SECONDS else now
        return min(late_at, now if broken_at is None else broken_at)

    async def _cut_line(self) -> None:
        lines = [line for box in self.boxes.values() for line in box.lines]
        if lines:
            self.chance.choice(lines).kill()

    async def _cut_lines_at(self) -> None:
        """Connections break in the middle of what is on its way, for a while new ones as well."""
        for box in self.boxes.values():
            box.cut = self._some_cut
            for line in box.lines:
                if isinstance(line, MemoryByteStream) and self.chance.random() < 0.5:
                    line.cut(self._some_cut())
        await trio.sleep(self.chance.choice((0.1, 1, 5)))
        for box in self.boxes.values():
            box.cut = Cut

    def _some_cut(self) -> Cut:
        """After one byte or thousands, on the way there or back; or never."""
        size = int(self._cuts.choice((10, 100, 1_000, 5_000)) * self._cuts.random())
        return self._cuts.choice((Cut(), Cut(to_server=size), Cut(to_client=size)))

    async def _crash(self) -> None:
        if self.scopes:
            self.chance.choice(list(self.scopes.values())).cancel()

    async def _fill(self) -> None:
        """There is no room, or none for other files; the power fails meanwhile, perhaps."""
        box = self.box
        self._go_wrong(box, self.chance.choice(("full", "full", "few")))
        await trio.sleep(self.chance.choice((0.05, 1, _FEW_SECONDS)))
        box.machine.disarm()
        if box.machine.wrong and self.chance.random() < 0.4:
            self.chance.choice((self._lose_power, self.end_process))(box)
        box.machine.wrong = ""

    def _go_wrong(self, box: Box, how: str) -> None:
        """See `Machine.wrong`: at once, or from some operation on."""
        machine = box.machine

        def begin() -> None:
            machine.wrong = how
            self.was_wrong = True
            if how == "few":
                self._flushes_wait(_FEW_SECONDS)
            if how == "broken":
                machine.broken_at = trio.current_time()

        if self.chance.random() < 0.5:
            begin()
        else:
            self._arm(box, begin)

    async def _break(self) -> None:
        """What fails to reach the device: its server takes nothing more until it starts again."""
        box = self.box
        self._go_wrong(box, "broken")
        await trio.sleep(self.chance.choice((0.05, 1)))
        box.machine.disarm()
        box.machine.wrong = ""
        await trio.sleep(self.chance.choice((0, 0.05, 1, 3)))  # it works, and nobody knows
        self.chance.choice((self._lose_power, self.end_process))(box)

    async def _stop(self) -> None:
        """In order; perhaps the machine is switched off then."""
        switches_off, box = self.chance.random() < 0.5, self.box
        machine = box.machine

        def behind() -> None:
            if switches_off:
                if machine.broken_at is not None:
                    self.witness.lose_power(machine.broken_at)
                self.witness.switch_off()
                machine.cut_power()

        box.stop(behind)

    async def _kill_at(self) -> None:
        """At some operation on the disk."""
        box = self.box
        self._arm(box, partial(self.end_process, box))

    async def _cut_power_at(self) -> None:
        box = self.box
        self._arm(box, partial(self._lose_power, box))

    async def _cut_power_twice(self) -> None:
        """Again when the server has just begun to put its files in order."""
        box = self.box
        self._lose_power(box)
        end = self.chance.choice((self._lose_power, self.end_process))
        self._arm(box, partial(end, box))

    def _arm(self, box: Box, due: Callable[[], None]) -> None:
        """Any operation, one that brings something to the device, or one of a rare kind."""
        machine, chance = box.machine, self.chance
        match chance.randrange(3):
            case 0:
                machine.arm(chance.randint(1, _MOST_OPERATIONS), due, lambda _: True)
            case 1:
                machine.arm(chance.randint(1, _MOST_SYNCS), due, brings_to_device)
            case _:
                kind = chance.choice(list(machine.kinds))
                machine.arm(chance.randint(1, 2), due, kind.__eq__)

    async def _be_late(self) -> None:
        """What asks the disk, or the store, waits long for its answer."""
        self._lateness = self.chance.choice(_LATE)
        seconds = self.chance.choice((1, 5))
        self._flushes_wait(seconds)
        await trio.sleep(seconds)
        self._lateness = 0

    def _flushes_wait(self, seconds: float) -> None:
        """For so long, and those that have begun then."""
        now = trio.current_time()
        if now > self._late_until + _LATE_FLUSH_SECONDS:
            self._late_at = now
        self._late_until = max(self._late_until, now + seconds)

    async def _stall(self) -> None:
        """Nothing moves on some connections for a while."""
        lines = [line for box in self.boxes.values() for line in box.lines]
        still = [one for one in lines if isinstance(one, MemoryByteStream)]
        event = trio.Event()
        for line in still:
            if self.chance.random() < 0.5:
                line.moves = event
        await trio.sleep(self.chance.choice((0.1, 1, 40)))
        event.set()

    async def _set_clock(self) -> None:
        """The clock on the wall is set: back, forward, or right again."""
        hour = 3_600_000
        self.skew_ms = self.chance.choice((0, -60_000, -hour, 5_000, hour, 300 * 24 * hour))


@contextmanager
def _limited(end: Callable[[], None]) -> Iterator[None]:
    """In this block so much work is done, then `end` is called."""
    token = trio.lowlevel.current_trio_token()
    before = signal.signal(signal.SIGPROF, lambda *_: token.run_sync_soon(end))
    signal.setitimer(signal.ITIMER_PROF, _LONGEST_WORK)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class _Log(logging.Handler):
    """What servers and clients say has happened, too; what nobody has expected is a fault."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.note(f"{record.name}: {record.msg}"[:90], record.getMessage())
        if "publishers wait" in record.msg:
            self._world.waited_at = trio.current_time()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, _EXPECTED):
            self._world.witness.faults.append(f"the log: {record.getMessage()}: {error!r}")


def _turns(chance: Random) -> Iterator[float]:
    """How long steps take, of those who let others have their turn after a while."""
    while True:
        yield chance.choice((0, 0, 0, 1))


async def _nothing() -> None:
    """A harm that this world does not have."""


def _some(names: list[str], chance: Random) -> list[str]:
    """All, or a few, in order."""
    share = chance.choice((0.2, 0.4, 0.6, 1))
    return [name for name in names if chance.random() < share] or [chance.choice(names)]


def _few(names: list[str], chance: Random) -> list[str]:
    """A few of them, in most worlds."""
    if chance.random() >= _FEW:
        return names
    kept = chance.sample(names, min(_MOST_OF_FEW, len(names)))
    return [name for name in names if name in kept]


def _faults(names: list[str], chance: Random) -> Iterable[Fault]:
    weights = [chance.random() for _ in names]
    slow = chance.choice((0.2, 1))
    for _ in range(chance.randint(1, _MOST_FAULTS)):
        name = chance.choices(names, weights)[0]
        yield Fault(slow * chance.choice(_PAUSES), name, chance.randrange(1 << 30))
    if last := [name for name in _LASTING if name in names]:
        yield Fault(0, chance.choice(last), chance.randrange(1 << 30))


def _each(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _each(inner)]
    return [error]


def _leaves(group: BaseExceptionGroup[Any]) -> str:
    return "; ".join(map(repr, _each(group)))

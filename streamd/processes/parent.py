"""The parent: it holds the sockets, starts engine and doors, and starts a door again that ends.

Theory of operation. The parent has no event loop but `poll`, no threads and no files of streams, so
that it can fork at any time. Each child is forked from it with all modules there already: a door is
back within milliseconds. The engine comes first and alone; a door gets one end of a fresh socket
pair, the engine the other one. What ends how:

| who | what follows |
|---|---|
| a door ends, however | it is restarted, after a pause that grows while it keeps ending |
| a door does not answer for 10 s | it is killed and restarted |
| the engine ends | doors are killed, the parent ends with the engine's code |
| the engine ends with `AGAIN` | doors are killed, all are started again |
| the parent is told to stop | the engine is; doors go on until it has ended |
| the parent is killed | the kernel kills all children |

Signals reach the parent alone: children ignore those that a terminal sends to all.
"""

import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from streamd.processes.control import (
    AGAIN,
    BEAT,
    LINK,
    READY,
    RELOAD,
    STOP,
    STOP_NOW,
    die_with_parent,
    hear,
    pair,
    say,
)

logger = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
SILENT_SECONDS = 10.0  # a door that says nothing for this long is ended
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds, before a door that ends again is restarted
_READ_BYTES = 4_096
_RUNS_WELL = 60.0  # seconds after which the pauses begin again
_STOPPING = (signal.SIGINT, signal.SIGTERM)

# What a child does: it gets its end of the control socket, and its end of the way to the other.
Work = Callable[[socket.socket, socket.socket | None], int]


@dataclass(eq=False)
class Child:
    """A process that the parent has started.

    Attributes:
        name: for the log.
        work: what it does; returns its exit code.
        pid: 0 while it does not run.
        control: the parent's end of the control socket.
        is_ready: it has said so.
        unanswered: beats since it has said something. Time says less: the parent may stand still.
        asked: when it was sent the last of them, by `time.monotonic`.
        began: when it was started last.
        pause: seconds before it is restarted.
        due: when it is restarted, while it does not run.
    """

    name: str
    work: Work
    pid: int = 0
    control: socket.socket | None = None
    is_ready: bool = False
    unanswered: int = 0
    asked: float = 0.0
    began: float = 0.0
    pause: float = 0.0
    due: float = 0.0


class Parent:
    """Starts the children and looks after them.

    Args:
        engine: what the engine does.
        doors: by name, what each door does.
        prepare: called when the engine was started: loads what doors need.
        ready: called with what the engine says, when all are ready; again when it was restarted.
        stdin: a descriptor whose end stops the server; None for none.
        resting: by what the engine says, the doors that have nothing to do then.
    """

    def __init__(
        self,
        engine: Work,
        doors: Mapping[str, Work],
        prepare: Callable[[], object],
        ready: Callable[[str], None],
        stdin: int | None = None,
        resting: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> None:
        self._engine = Child("engine", engine)
        self._all_doors = [Child(name, work) for name, work in doors.items()]
        self._doors, self._resting = self._all_doors, resting
        self._ready, self._told_ready, self._says = ready, False, ""
        self._signals, self._woken = socket.socketpair()
        self._is_stopping = False
        self._order = ""  # that the engine has not taken yet
        self._prepare, self._stdin = prepare, stdin

    def run(self) -> int:
        """Run until the engine has ended; returns its exit code, 128 + the signal that ended it."""
        self._take_signals()
        self._start(self._engine)
        self._prepare()
        code: int | None = None
        while code is None:
            self._wait()
            self._give_order()
            code = self._reap()
            if code == AGAIN:
                self._end_doors()
                code = 0 if self._is_stopping else None
                if code is None:
                    self._told_ready = False
                    self._start(self._engine)
            self._look_after_doors()
        self._end_doors()
        return code

    def _end_doors(self) -> None:
        for door in self._doors:
            if door.pid:
                os.kill(door.pid, signal.SIGKILL)
                os.waitpid(door.pid, 0)
                self._note_end(door)
            door.pause = door.due = 0.0

    # -- signals

    def _take_signals(self) -> None:
        for end in (self._signals, self._woken):
            end.setblocking(False)
        signal.set_wakeup_fd(self._woken.fileno(), warn_on_full_buffer=False)
        for number in (*_STOPPING, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def _hear_signals(self) -> None:
        try:
            numbers = self._signals.recv(1_000)
        except BlockingIOError:
            return
        for number in numbers:
            if number in _STOPPING:
                self._stop(signal.Signals(number).name)
            elif number == signal.SIGHUP:
                for child in (self._engine, *self._doors):
                    if child.control is not None:
                        say(child.control, RELOAD)

    def _stop(self, why: str) -> None:
        """Stop in order; at once when somebody asks again."""
        logger.info("%s: stopping", why)
        self._order = STOP_NOW if self._is_stopping else STOP
        self._is_stopping = True

    def _give_order(self) -> None:
        control = self._engine.control
        if self._order and control is not None and say(control, self._order):
            self._order = ""

    # -- children

    def _start(self, child: Child, way: tuple[socket.socket, ...] = ()) -> None:
        """Fork a child; `way` is to the engine: the child's end, and the engine's.

        Raises:
            OSError: there are too many processes or open files, or there is no memory.
        """
        ours, theirs = pair()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            code = 1
            try:
                other, *not_its = (*way, ours) if way else (None, ours)
                for end in not_its:  # or the child would not see that the others have gone
                    end.close()
                self._become(child, theirs, parent)
                code = child.work(theirs, other)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            except BaseException:
                logger.critical("a bug ends the %s", child.name, exc_info=True)
            finally:
                try:
                    logging.shutdown()
                    sys.stdout.flush()
                    sys.stderr.flush()
                finally:
                    os._exit(code)  # whatever happens: it is not the parent
        theirs.close()
        child.pid, child.control, child.is_ready = pid, ours, False
        child.began, child.unanswered = time.monotonic(), 0

    def _become(self, child: Child, theirs: socket.socket, parent: int) -> None:
        """In a new process: be no parent any more."""
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        for number in _STOPPING:
            signal.signal(number, signal.SIG_IGN)  # the parent says when to stop
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self._signals, self._woken):
            end.close()
        for other in (self._engine, *self._doors):
            if other.control is not None and other is not child:
                other.control.close()  # or its end would never be seen
                other.control = None
        theirs.setblocking(False)

    def _start_door(self, door: Child) -> None:
        assert self._engine.control is not None  # noqa: S101 - it was started first
        door.began = time.monotonic()
        try:
            engines, doors = socket.socketpair()
            with engines, doors:
                self._start(door, (doors, engines))
                say(self._engine.control, LINK, door.name, engines)
        except OSError as error:
            self._plan(door, f"cannot be started: {error.strerror}; it is tried again")

    def _wait(self) -> None:
        """Until something is said, a signal comes, or a second has passed."""
        poll, by_number = select.poll(), {}
        poll.register(self._signals, select.POLLIN)
        for child in (self._engine, *self._doors):
            if child.control is not None:
                poll.register(child.control, select.POLLIN)
                by_number[child.control.fileno()] = child
        if self._stdin is not None:
            poll.register(self._stdin, select.POLLIN)
        for number, _ in poll.poll(self._seconds_left() * 1_000):
            if number in by_number:
                self._hear(by_number[number])
            elif number == self._stdin:
                self._read_stdin()
        self._hear_signals()

    def _read_stdin(self) -> None:
        assert self._stdin is not None  # noqa: S101 - only then it is asked for
        try:
            has_more = bool(os.read(self._stdin, _READ_BYTES))  # what it says means nothing
        except OSError:
            has_more = False
        if not has_more:
            self._stdin = None
            if not self._is_stopping:
                self._stop("stdin has ended")

    def _seconds_left(self) -> float:
        now = time.monotonic()
        if self._is_stopping or not self._engine.is_ready:
            return BEAT_SECONDS
        due = [door.due - now for door in self._doors if not door.pid]
        return max(0.0, min([BEAT_SECONDS, *due]))

    def _hear(self, child: Child) -> None:
        assert child.control is not None  # noqa: S101 - only those are asked
        said = hear(child.control)
        if said is None:
            child.control.close()
            child.control = None
            return
        child.unanswered = 0
        if said.word == READY:
            child.is_ready = True
            if child is self._engine:
                self._says, resting = said.text, self._resting.get(said.text, ())
                self._doors = [door for door in self._all_doors if door.name not in resting]
            if not self._told_ready and all(c.is_ready for c in (self._engine, *self._doors)):
                self._ready(self._says)
                self._told_ready = True

    def _reap(self) -> int | None:
        """Take note of children that have ended; the exit code of the engine when it has."""
        code = None
        for child in (self._engine, *self._doors):
            if not child.pid:
                continue
            ended, status = os.waitpid(child.pid, os.WNOHANG)
            if not ended:
                continue
            found = os.waitstatus_to_exitcode(status)
            self._note_end(child)
            if child is self._engine:
                code = found if found >= 0 else 128 - found
            elif not self._is_stopping:
                # One that has ended in order has lost its way to the engine, which ends, too.
                self._plan(child, f"has ended {_how(found)}: restarting it", is_fault=found != 0)
        return code

    def _note_end(self, child: Child) -> None:
        child.pid, child.is_ready = 0, False
        if child.control is not None:
            child.control.close()
            child.control = None

    def _plan(self, door: Child, what: str, *, is_fault: bool = True) -> None:
        """Begin a door anew, soon; say `what` has become of it."""
        now = time.monotonic()
        if now - door.began > _RUNS_WELL:
            door.pause = 0.0
        door.due = now + door.pause
        door.pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, 2 * door.pause))
        level = logging.ERROR if is_fault else logging.INFO
        logger.log(level, "the process for %s %s", door.name, what)

    def _look_after_doors(self) -> None:
        now = time.monotonic()
        if not self._engine.is_ready or self._engine.control is None:
            return
        for door in self._doors:
            if not door.pid:
                if now >= door.due and not self._is_stopping:
                    self._start_door(door)
            elif now - door.asked < BEAT_SECONDS:
                continue
            elif door.unanswered * BEAT_SECONDS >= SILENT_SECONDS:
                text = "the process for %s has not answered for %.0f s: it is ended"
                logger.error(text, door.name, SILENT_SECONDS)
                door.unanswered = 0
                os.kill(door.pid, signal.SIGKILL)
            else:
                door.asked, door.unanswered = now, door.unanswered + 1
                if door.control is not None:
                    say(door.control, BEAT)


def _how(code: int) -> str:
    """How a process has ended, by what `os.waitstatus_to_exitcode` says."""
    names = {number: number.name for number in signal.Signals}  # those of real time have none
    return f"with code {code}" if code >= 0 else f"by {names.get(-code, f'signal {-code}')}"  # type: ignore[call-overload]

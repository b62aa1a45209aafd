"""Each call to the system that a log makes fails once, with each error that it can really have.

An operation is run as often as it makes calls; each time another one of them fails. Whatever the
operation then does, nothing that was confirmed may be lost or shown wrongly, no descriptor may be
kept, nothing but a StorageError may come out, and the log goes on, or refuses and opens again.

Interrupted calls (EINTR) are not among the errors: Python itself makes those again (PEP 475).
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from segments import ChunkMatcher, Log, LogPolicy, StorageError, at_offset, at_time, disk
from segments.derived.filter_files import load_or_build, save
from segments.derived.key_files import keys_of, make_table
from segments.derived.key_schedule import adopt, next_task, tidy_up
from segments.errors import FormatError
from segments.filter_index import FilterIndex
from segments.segment import KeyState
from tests.support.logs import append, read_bodies, read_chunks, store_offset

NOW_MS = 1_700_000_000_000
POLICY = LogPolicy(max_segment_chunks=2)
ANY, OPENS = (errno.EIO,), (errno.EIO, errno.EMFILE)
WRITES = (errno.EIO, errno.ENOSPC)


ERRORS: dict[str, Sequence[int]] = {
    "open": (*OPENS, errno.ENOSPC),
    "close": ANY,
    "fstat": ANY,
    "pread": ANY,
    "pwritev": WRITES,
    "pwrite": WRITES,
    "ftruncate": ANY,
    "fdatasync": WRITES,
    "fsync": WRITES,
    "scandir": OPENS,
    "makedirs": WRITES,
    "unlink": ANY,
    "replace": WRITES,
}


def can_fail(call: str, fault: int) -> bool:
    """Whether a call can fail so; 0 is that it does half of its work."""
    return fault in ERRORS[call] if fault else call in ("pread", "pwritev")


class Calls:
    """Stands in for the module `os` where the disk uses it: counts calls, and lets one fail.

    Attributes:
        made: names of the calls since `fail`.
        opened: descriptors that are open.
        failed: the call that has failed, None while none has.
    """

    def __init__(self) -> None:
        self.made: list[str] = []
        self.opened: set[int] = set()
        self.failed: str | None = None
        self._number, self._fault = -1, 0

    def fail(self, number: int, fault: int) -> None:
        """From now on let the call of that number fail: with an error, or 0 for half of it."""
        self.made, self.failed = [], None
        self._number, self._fault = number, fault

    def stop(self) -> list[str]:
        """Let no more fail; returns what was called."""
        self._number = -1
        return list(self.made)

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        if name not in ERRORS:
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            is_due = len(self.made) == self._number
            self.made.append(name)
            if is_due:
                self.failed = name
                return self._fail(name, found, arguments)
            if name in ("fdatasync", "fsync"):
                return None  # nothing here ends with the power, and a disk takes its time
            result = found(*arguments, **options)
            if name == "open":
                self.opened.add(result)
            elif name == "close":
                self.opened.discard(arguments[0])
            return result

        return call

    def _fail(self, name: str, call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        if name == "close":  # the descriptor is gone all the same
            call(*arguments)
            self.opened.discard(arguments[0])
        elif name == "pread" and self._fault == 0:
            return call(*arguments)[: arguments[1] // 2]
        elif name == "pwritev":  # a disk takes a part before it refuses the rest
            data = b"".join(arguments[1])
            written = os.pwrite(arguments[0], data[: len(data) // 2], arguments[2])
            if self._fault == 0:
                return written
        raise OSError(self._fault, os.strerror(self._fault))


class World:
    """A log, and what is known of it.

    Attributes:
        log: None while it is closed.
        sure: bodies that were confirmed, in order.
        tried: bodies behind those whose fate is not known.
        offsets: what may be stored for the consumer: the last is known to be, or all are tried.
    """

    def __init__(self, folder: Path, calls: Calls, *, commits_on_flush: bool) -> None:
        self.folder = str(folder / "s")
        self.calls = calls
        self._commits_on_flush = commits_on_flush
        self.log: Log | None = None
        self.sure: list[bytes] = []
        self.tried: list[bytes] = []
        self.offsets: list[int | None] = [None]
        self.policy = POLICY
        self.set_aside: list[bytes] = []  # by recovery
        self.removed: list[bytes] = []  # by retention: may come back when that has failed

    def open(self) -> None:
        self.log = Log.open(self.folder, self.policy, commits_on_flush=self._commits_on_flush)

    @property
    def it(self) -> Log:
        assert self.log is not None
        return self.log

    def append(self) -> None:
        number = len(self.removed) + len(self.sure) + len(self.tried)
        body = b"m%d" % number
        before = self.it.next_offset
        try:
            append(self.it, [body], [b"even" if number % 2 == 0 else b"odd"], now_ms=NOW_MS)
        finally:
            if self.it.next_offset != before:
                self.tried.append(body)
        self._appended()

    def _appended(self) -> None:
        if not self._commits_on_flush:
            self.sure, self.tried = self.sure + self.tried, []

    def flush(self, **options: bool) -> None:
        self.it.flush(**options)
        self.sure, self.tried = self.sure + self.tried, []

    def store(self) -> None:
        number = 1 + max(offset or 0 for offset in self.offsets)
        self.offsets.append(number)
        store_offset(self.it, b"c", number)
        self.offsets = [number]

    def close(self) -> None:
        log, self.log = self.it, None
        log.close()

    # -- what must hold

    def check_shown(self) -> None:
        """Consumers see what was confirmed, with a filter as without."""
        shown = read_bodies(self.it)
        if self.removed and shown[: len(self.removed)] == self.removed:
            shown = shown[len(self.removed) :]
        allowed = self.sure + self.tried
        assert shown[: len(self.sure)] == self.sure
        assert shown == allowed[: len(shown)]
        assert self.it.journal.tracking.offset(b"c") in self.offsets
        even = {body for body in shown if int(body[1:]) % 2 == 0}
        assert even <= set(read_bodies(self.it, matcher=ChunkMatcher([b"even"])))

    def go_on(self) -> None:
        """It takes more, at once or after a flush; or has failed for good."""
        if self.log is None:
            return
        self.check_shown()
        with suppress(StorageError):
            self.flush()
            self.append()
            self.flush()
            self.store()
            self.check_shown()
            return
        assert self.it.flushing.failed is not None

    def check_reopened(self) -> None:
        if self.log is not None:
            with suppress(StorageError):
                self.close()
        assert not self.calls.opened, "a descriptor is kept"
        self.open()
        assert not self.it.report.losses
        end = self.it.next_offset  # an offset behind it is cut
        self.offsets = [None if at is None or not end else min(at, end - 1) for at in self.offsets]
        self.check_shown()
        self.sure = [body for body in read_bodies(self.it) if body not in self.removed]
        self.tried = []
        assert self.it.journal.tracking.offset(b"c") in self.offsets
        self.append()
        self.flush()
        self.check_shown()
        self.close()
        assert not self.calls.opened
        kept = b"".join(path.read_bytes() for path in Path(self.folder).glob("quarantine/*"))
        assert all(body in kept for body in self.set_aside), "something of use is deleted"


def _filled(world: World) -> None:
    world.open()
    for _ in range(5):
        world.append()
    world.store()
    world.flush(with_checkpoint=True)
    for _ in range(2):
        world.append()


def _closed(world: World) -> None:
    _filled(world)
    world.close()


def _crashed(world: World) -> None:
    """The process has died within an append, and there is no checkpoint."""
    _filled(world)
    world.it.abandon()
    world.log = None
    Path(world.folder, "checkpoint").unlink()
    for path in (Path(world.folder, "tracking"), max(Path(world.folder).glob("*.segment"))):
        path.write_bytes(path.read_bytes() + b"torn")


def _broken(world: World) -> None:
    """Behind the checkpoint a chunk is damaged, so that whole ones have to leave the log."""
    world.open()
    for number in range(7):
        world.append()
        if number == 2:
            world.store()
            world.flush(with_checkpoint=True)
    world.it.abandon()
    world.log = None
    path = Path(world.folder, f"{4:020d}.segment")
    path.write_bytes(path.read_bytes().replace(b"m4", b"??"))
    world.sure, world.set_aside = world.sure[:4], world.sure[5:]


def _full(world: World) -> None:
    _filled(world)
    while world.it.segments.shown[-1].num_chunks < 2 and world.it._writer.num_chunks < 2:
        world.append()


def _old(world: World) -> None:
    """Nothing is stored in it that somebody still has to have."""
    _filled(world)
    world.flush(with_checkpoint=True)
    world.it.policy = LogPolicy(max_segment_chunks=2, max_length_bytes=1)


def _expire(world: World) -> None:
    removal = world.it.expire(0)
    gone = sum(segment.num_chunks for segment in removal.segments)
    assert gone
    world.it.policy = POLICY
    world.removed, world.sure = world.sure[:gone], world.sure[gone:]
    world.offsets.append(None)  # it was below what is kept
    removal.run()


def _rewrite(world: World) -> None:
    world.it.journal.must_be_rewritten()
    world.flush()


def _store_twice(world: World) -> None:
    world.store()
    world.store()


def _ask(world: World) -> None:
    world.it.filter_demand.add([b"even"])
    world.it.filter_demand.write()


def _read(world: World) -> None:
    expected = world.sure
    assert read_bodies(world.it) == expected
    assert read_bodies(world.it, at_offset(3)) == expected[3:]
    assert read_bodies(world.it, at_time(NOW_MS)) == expected
    assert len(read_chunks(world.it, matcher=ChunkMatcher([b"even"]))) >= (len(expected) + 1) // 2


def _index(world: World) -> None:
    for segment in world.it.segments.shown[:-1]:
        if isinstance(segment.filters, FilterIndex):
            segment.filters = save(segment, segment.filters)
        segment.filters = load_or_build(segment, segment.size, True, lambda: None)


def _index_keys(world: World) -> None:
    """What the broker has done in a process, for the segments that are sealed and the newest."""
    log = world.it
    log.policy = replace(POLICY, key_properties=("k",))
    while (task := next_task(log)) is not None:
        try:
            make_table(task.segment.disk, task.job)
            task.segment.keys = adopt(task)
        except FormatError:  # what cannot be read is damaged
            task.segment.drop_keys()
        tidy_up(task)
    for segment in log.segments.shown[:-1]:
        segment.keys, segment.key_state = None, KeyState.UNKNOWN
        found = keys_of(segment)
        assert found is None or found.num_chunks == segment.num_chunks


OPERATIONS: dict[str, tuple[Callable[[World], None], Callable[[World], None]]] = {
    "create": (lambda _: None, World.open),
    "append": (_filled, World.append),
    "roll": (_full, World.append),
    "flush": (_filled, World.flush),
    "flush with a checkpoint": (_filled, lambda world: world.flush(with_checkpoint=True)),
    "flush of a new segment": (_full, lambda world: (world.append(), world.flush())[0]),
    "first stored offset": (World.open, World.store),
    "stored offset": (_filled, _store_twice),
    "rewrite of the journal": (_filled, _rewrite),
    "demand": (_filled, _ask),
    "read": (_closed, lambda world: (world.open(), _read(world))[0]),
    "filter index": (_filled, _index),
    "key index": (_filled, _index_keys),
    "retention": (_old, _expire),
    "close": (_filled, World.close),
    "reopen": (_closed, World.open),
    "recover": (_crashed, World.open),
    "quarantine": (_broken, World.open),
}


@contextmanager
def calls_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    calls = Calls()
    with monkeypatch.context() as patched:
        patched.setattr(disk, "os", calls)
        yield calls


WRITING = ("append", "roll", "flush", "flush of a new segment", "rewrite of the journal")
CASES = [(name, False) for name in OPERATIONS] + [(name, True) for name in WRITING]


@pytest.mark.parametrize("fault", [0, errno.EIO, errno.ENOSPC, errno.EMFILE])
@pytest.mark.parametrize(("name", "commits_on_flush"), CASES)
def test_a_call_that_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    fault: int,
    commits_on_flush: bool,
) -> None:
    prepare, operation = OPERATIONS[name]

    def run(number: int) -> list[str]:
        with calls_of(monkeypatch) as calls:
            world = World(tmp_path / str(number), calls, commits_on_flush=commits_on_flush)
            prepare(world)
            calls.fail(number, fault)
            refusal: StorageError | None = None
            try:
                operation(world)
            except StorageError as error:
                refusal = error
            made = calls.stop()
            try:
                if refusal is not None and refusal.is_temporary and world.log is not None:
                    assert world.it.flushing.failed is None, "what is temporary is final"
                world.go_on()
                world.check_reopened()
            except (AssertionError, StorageError) as error:
                where = f"call {number} of {name}, {calls.failed}: {refusal}"
                raise AssertionError(f"after {where}: {error!r}") from error
            return made

    for number, call in enumerate(run(-1)):
        if can_fail(call, fault):
            run(number)

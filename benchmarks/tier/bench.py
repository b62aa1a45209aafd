"""What the measurements of the tier share: sizes, rows, a server, a stream that is cold."""

import itertools
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.load import Load, frames, mark, publish
from benchmarks.raw_connection import RawConnection
from benchmarks.reading import Read, read
from benchmarks.rows import Goal
from benchmarks.target import Target
from benchmarks.tier.stores import Place, Store
from segments.disk import OsDisk
from segments.store.local_copy import read_copy
from segments.store.manifest import Manifest
from segments.store.object_store import ObjectStore
from streamd.broker.tier.claims import look
from streamd.operations.tier_reports import StreamTier, TierState, TierStatus, from_row
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import Pair

MIB, GB = 1 << 20, 1_000_000_000
STREAM = "tiered"
VALUES, RUN = 100, 256  # each chunk has one of a hundred filter values
LOOK_SECONDS = 0.01
_ASK_SECONDS = 0.1  # between two questions, which cost the server something
_PATIENCE_SECONDS = 900
_NICEST = 19
_TIMES = 8  # that the cold stream is published to
_PART = 512_000  # messages whose frames are made at once
_MESSAGE_BYTES = 105  # of 100 bytes, in a segment, with a part of its chunk's header
SEGMENT_BYTES = "stream-max-segment-size-bytes"
LOCAL_BYTES = "stream-local-max-length-bytes"


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        name: what was measured.
        value: as it is shown.
        figure: for programs: seconds, bytes, a share.
        goal: what the figure must reach; None without one.
        unit: of the goal.
    """

    name: str
    value: str
    figure: float
    goal: Goal | None = None
    unit: str = ""

    @property
    def is_reached(self) -> bool | None:
        """Whether the goal is reached; None without one."""
        return None if self.goal is None else self.goal.is_reached(self.figure)


def at_most(limit: float) -> Goal:
    """A figure of at most this."""
    return Goal(limit, is_ratio=False)


def at_least(limit: float) -> Goal:
    """A figure of at least this."""
    return Goal(limit, is_least=True, is_ratio=False)


class Size(NamedTuple):
    """How much is measured.

    Attributes:
        rounds: of what is measured in turn.
        segment: bytes of a segment.
        publish: messages of 100 bytes in a round of publishing.
        upload: bytes that are uploaded at once.
        local: segments that may be local, while ten times as many are published.
        rate: bytes a second that are published meanwhile.
        cold: bytes of the stream that is read cold.
        streams: that are restored.
        restore: bytes of all of them.
        firsts: first messages that are waited for.
        delay: seconds that a first message is away.
        far: seconds that the store is away of which all is read.
        consumers: of a server that only reads.
        seconds: for which these are beside the server that writes.
    """

    rounds: int = 5
    segment: int = 64 * MIB
    publish: int = 5_000_000
    upload: int = GB
    local: int = 2
    rate: int = 40_000_000
    cold: int = 2 * GB
    streams: int = 100
    restore: int = 2 * GB
    firsts: int = 20
    delay: float = 0.03
    far: float = 0.1
    consumers: int = 100
    seconds: float = 5


QUICK = Size(
    rounds=1,
    segment=MIB,
    publish=50_000,
    upload=4 * MIB,
    rate=20_000_000,
    cold=16 * MIB,
    streams=3,
    restore=4 * MIB,
    firsts=2,
    consumers=4,
    seconds=0.3,
)


class Bench:
    """A store that runs, and folders for servers.

    Args:
        store: for their tiers.
        folder: for their data.
        size: how much is measured.
    """

    def __init__(self, store: Store, folder: Path, size: Size) -> None:
        self.store, self.size = store, size
        self._folder = folder
        self._numbers = itertools.count()

    def place(self) -> Place:
        """An empty place in the store."""
        return self.store.place(f"place-{next(self._numbers)}")

    def data(self) -> Path:
        """A new data folder."""
        return self._folder / f"data-{next(self._numbers)}"

    def arguments(self, local: int = 1) -> tuple[Pair, ...]:
        """Of a stream of which so many bytes may be local."""
        return Pair(SEGMENT_BYTES, str(self.size.segment)), Pair(LOCAL_BYTES, str(local))


def at_once(place: Place, *more: str) -> tuple[str, ...]:
    """Options of a server that deletes what is stored without waiting."""
    return (*place.options, "--tier-delete-delay-seconds", "0", *more)


def folder_of(data: Path, stream: str = STREAM) -> Path:
    """Where a stream's files are."""
    return data / "streams" / "%2F" / stream


def stored(data: Path, stream: str = STREAM) -> Manifest:
    """What the store has of a stream, as the server knows it.

    Raises:
        SegmentsError: nothing, so far.
    """
    return read_copy(OsDisk(), str(folder_of(data, stream)))


# -- asking a server


def status(connection: RawConnection) -> TierStatus:
    """How its tier does."""
    return from_row(TierStatus, _rows(connection, "tier.status")[0])


def of_stream(connection: RawConnection, stream: str = STREAM) -> StreamTier:
    """What is where of a stream."""
    return from_row(StreamTier, _rows(connection, "tier.stream", Pair("stream", stream))[0])


def _rows(connection: RawConnection, operation: str, *pairs: Pair) -> list[dict[str, str]]:
    answer = connection.request(c.Manage, operation, pairs)
    return [{pair.key: pair.value for pair in row} for row in answer.rows]


def wait_until(what: str, is_so: Callable[[], bool], *, pause: float = _ASK_SECONDS) -> None:
    """Return when something is so.

    Args:
        what: is awaited.
        is_so: whether it is.
        pause: seconds between two looks.

    Raises:
        TimeoutError: it takes too long; says what.
    """
    end = time.monotonic() + _PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"{_PATIENCE_SECONDS} s were too few until {what}")
        time.sleep(pause)


def wait_until_ready(connection: RawConnection) -> None:
    """Return when the server has taken its tier."""
    wait_until("the tier was taken", lambda: status(connection).state == TierState.OK)


def wait_until_stored(connection: RawConnection) -> None:
    """Return when nothing waits to be uploaded."""
    wait_until("all was stored", lambda: not status(connection).bytes_waiting)


def has_catalog(store: ObjectStore) -> bool:
    """A read-only server can begin."""
    return look(store) is not None


def let_others_go_first(pid: int) -> None:
    """Give a process the lowest priority, as it stands for another machine."""
    _give(pid, os.SCHED_OTHER, 0, _NICEST)


def go_on_as_all(pid: int) -> None:
    """Give a process the priority of this one again."""
    priority = os.sched_getparam(0).sched_priority
    _give(pid, os.sched_getscheduler(0), priority, os.getpriority(os.PRIO_PROCESS, 0))


def _give(pid: int, policy: int, priority: int, niceness: int) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError, PermissionError):  # root alone may take it back
            os.setpriority(os.PRIO_PROCESS, int(task.name), niceness)
            os.sched_setscheduler(int(task.name), policy, os.sched_param(priority))


# -- publishing


def messages_in(size: int) -> int:
    """So many messages of 100 bytes make about so many bytes of segments."""
    return max(size // _MESSAGE_BYTES // RUN, 1) * RUN


def publish_all(
    connection: RawConnection, messages: int, stream: str = STREAM, *, values: int = 0
) -> float:
    """Publish messages of 100 bytes, each chunk with one filter value if there are any; seconds."""
    seconds = 0.0
    for start in range(0, messages, _PART):
        load = Load(min(_PART, messages - start))
        if values:
            load = load._replace(batch=RUN, values=values, run=RUN)
        seconds += publish(connection, stream, load, frames(load))
    return seconds


# -- a cold stream


class Cold(NamedTuple):
    """A stream that is cold but for its newest segment; no server has it now.

    Attributes:
        data: the data folder.
        place: where its tier is.
        manifest: as last stored.
    """

    data: Path
    place: Place
    manifest: Manifest

    def target(self) -> Target:
        """A server, with an empty cache."""
        target = Target(self.data, *at_once(self.place))
        with target.connect() as connection:
            wait_until("it was open", lambda: bool(of_stream(connection).bytes_remote))
        return target

    def read(self, values: Sequence[bytes] = ()) -> tuple[Read, int, int]:
        """Read with an empty cache: what came, and the requests and bytes that it took."""
        with self.target() as target, target.connect() as asking:
            before = status(asking)
            with target.connect() as connection:
                found = read(connection, STREAM, values)
            after = status(asking)
        requests = after.requests["get"] - before.requests["get"]
        return found, requests, after.transferred["get"] - before.transferred["get"]


def cold_stream(bench: Bench) -> Cold:
    """A stream whose chunks have one of a hundred filter values each, and a marker at the end."""
    data, place = bench.data(), bench.place()
    with Target(data, *at_once(place)) as target, target.connect() as connection:
        connection.request(c.Create, STREAM, bench.arguments())
        turn = RUN * VALUES  # messages in which each value comes once
        turns = max(messages_in(bench.size.cold) // turn // _TIMES, 1)
        for _ in range(_TIMES):  # or full segments wait for the disk, and the newest one grows
            publish_all(connection, turn * turns, values=VALUES)
            wait_until_stored(connection)
        mark(connection, STREAM)
        wait_until_stored(connection)
        wait_until("all was cold", lambda: of_stream(connection).segments_local <= 1)
    return Cold(data, place, stored(data))

"""What a crash leaves of streams in use: every state of a recorded run, opened and compared.

    python -m tests.crash.states --states 100000 --seed 1

A run publishes (with names, without, again what was published before), rolls over, drops what is
old, is truncated, has its keys indexed, stores offsets, closes, deletes the stream and creates it
again. It goes over a disk that records, so that a crash can be tried at any point of it, see
tests/crash/recorder.py.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

from segments import FIRST, ChunkBuilder, ChunkMatcher, Log, OffsetSpec, Reader, at_offset
from segments.derived.filter_files import load_or_build
from segments.derived.key_files import keys_of, make_table
from segments.derived.key_schedule import adopt, next_task, tidy_up
from segments.gaps import OFFSET_GAP
from segments.keys import KeyReader, key_prints
from segments.search.request import SearchRequest
from segments.search.search import run as run_search
from segments.search.token import BadToken, read_token
from segments.segment import walk_headers
from segments.verify import verify
from streamd.broker.streams.flusher import FlushMode
from tests.crash.runs import (
    FOLDER,
    KEY,
    Life,
    Mark,
    Run,
    bodies_in,
    filter_value_of,
    search,
)
from tests.support.logs import entry
from tests.support.recorder import RecordingDisk, Tree

_NEAR_CUTS = 0.2  # of the states: shortly before a truncation is done
_CUT_OPERATIONS = 12
_BACK = SearchRequest(limit=2, newest=True).fingerprint()


def check(run: Run, tree: Tree, at: int, *, is_killed: bool, random: Random) -> str:
    """Open what a crash after `at` operations left; fails unless it is as promised.

    Returns:
        what kind of state it was, for counting.
    """
    lives = [life for life in run.lives if life.created <= at < life.deleted]
    if not lives:
        return "no stream"
    (life,) = lives
    disk = RecordingDisk(tree, boot=1 if is_killed else 2)
    log = _open(run, disk)
    kind = "whole"
    if random.random() < 0.2 and disk.operations:  # crashed again, while it was opened
        disk = _crashed(disk, random.randint(0, len(disk.operations)), random, is_killed=is_killed)
        log = _open(run, disk)
        kind = "crashed twice"
    elif log.report.steps:
        kind = "repaired"
    _check_messages(run, life, log, at, is_killed=is_killed)
    _check_tracking(run, life, log, at, is_killed=is_killed)
    if random.random() < 0.4:
        _check_filters(log)
    if random.random() < 0.4:
        _check_keys(log)
    _check_tokens(life, log, at)
    if random.random() < 0.2:
        _check_writable(run, log, disk)
    else:
        _check_readers(run, life, disk, log, at, random)
    return kind


def _open(run: Run, disk: RecordingDisk) -> Log:
    commits_on_flush = run.mode is FlushMode.ALWAYS
    log = Log.open(FOLDER, run.policy, disk, commits_on_flush=commits_on_flush)
    assert log.report.losses == (), log.report
    return log


def _crashed(disk: RecordingDisk, at: int, random: Random, *, is_killed: bool) -> RecordingDisk:
    boot = int(disk.boot())
    if is_killed:
        return RecordingDisk(disk.killed(at, random.randint(0, 100)), boot)
    return RecordingDisk(disk.power_cut(at, random), boot + 1)


def _end(log: Log) -> int:
    """Behind the last message of the run, as if there were no gaps."""
    return log.segments.gaps.before(log.next_offset) % OFFSET_GAP


def _last(marks: list[Mark], at: int, default: Any) -> Any:
    return next((mark.value for mark in reversed(marks) if mark.at <= at), default)


def _safe_until(run: Run, life: Life, at: int, *, is_killed: bool) -> int:
    """What was confirmed before this operation has to be there."""
    if is_killed or run.mode is FlushMode.ALWAYS:
        return at
    if run.mode is FlushMode.INTERVAL:
        return int(_last(life.flushes, at, 0))
    return 0


def _check_messages(run: Run, life: Life, log: Log, at: int, *, is_killed: bool) -> None:
    found = dict(_read(log))
    first = log.segments.first_offset % OFFSET_GAP
    assert list(found) == list(range(first, _end(log)))
    assert len(found) == log.segments.gaps.num_between(log.segments.first_offset, log.next_offset)
    for offset, body in found.items():
        assert body == life.bodies[offset], (offset, body, life.bodies[offset])
    safe = _safe_until(run, life, at, is_killed=is_killed)
    confirmed = max((mark.value for mark in life.confirms if mark.at <= safe), default=-1)
    assert _end(log) > confirmed, f"confirmed up to {confirmed}, found {_end(log)}"
    most = max(_last(life.firsts, at, 0), _last(life.cutting, at, 0))
    assert first <= most, "what is kept is gone"
    assert first >= _last(life.cut, at, 0), "what was truncated is there"


def _check_filters(log: Log) -> None:
    """A filtered consumer gets exactly the matches, whatever is left of the filter files."""
    found = list(_read(log))
    for is_indexed in (False, True):
        if is_indexed:
            for segment in log.segments.shown:
                size, is_sealed = log.indexes.size_of(segment), log.segments.is_sealed(segment)
                filters = load_or_build(segment, size, is_sealed)
                if filters is not None:
                    log.indexes.adopt(segment, filters, size)
        for value in (b"v0", b"v1"):
            matches = [(at, body) for at, body in found if filter_value_of(body) == value]
            read = _read(log, ChunkMatcher([value]))
            assert [(at, body) for at, body in read if filter_value_of(body) == value] == matches


def _check_keys(log: Log) -> None:
    """A key file knows all keys of its segment, or is not believed, and made again."""
    reader = KeyReader([KEY])
    for _ in range(2):
        for segment in log.segments.shown:
            index = keys_of(segment)
            if index is None:
                continue
            assert log.segments.is_sealed(segment) or index.num_chunks <= segment.num_chunks
            file = segment.acquire()
            for ordinal, (position, header) in enumerate(walk_headers(segment, file)):
                data = file.read(header.data_size, position + header.data_start)
                for raw in bodies_in(data):
                    found = index.chunks_with(key_prints([KEY], reader.read(raw)))
                    assert found is not None
                    assert ordinal in found or ordinal >= index.num_chunks
            segment.release()
        while (task := next_task(log)) is not None:
            make_table(task.segment.disk, task.job)
            task.segment.keys = adopt(task)
            tidy_up(task)
    assert all(s.keys for s in log.segments.shown[:-1] if s.num_chunks and not s.damage)


def _check_tracking(run: Run, life: Life, log: Log, at: int, *, is_killed: bool) -> None:
    for reference in (b"p", b"q"):
        mine = {n: at for (name, n), at in life.offset_of.items() if name == reference}
        expected = max((n for n, at in mine.items() if at < _end(log)), default=None)
        found = log.journal.tracking.sequence(reference)
        assert found == expected, f"{reference!r} is at {found}, its last message is {expected}"
    safe = _safe_until(run, life, at, is_killed=is_killed)
    known = _last(life.known, safe, -1)
    possible = [m.value for n, m in enumerate(life.stored) if n >= known and m.at <= at]
    is_forgotten = None in possible or not _end(log)
    possible = [min(at, _end(log) - 1) for at in possible if at is not None]  # none is behind it
    found = log.journal.tracking.offset(b"c")
    dropped = _last(life.firsts, at, 0)  # what was stored below it was forgotten, or need not be
    if found is None:
        is_forgotten = is_forgotten or any(value < dropped for value in possible)
        assert known < 0 or is_forgotten, f"stored offsets {possible} are gone"
    else:
        is_possible = found in possible or found < dropped
        assert is_possible, f"the stored offset is {found}, expected one of {possible}"


def _check_tokens(life: Life, log: Log, at: int) -> None:
    """A search goes on where it was and misses nothing, or is told that it cannot."""
    text = _last(life.tokens, at, "")
    if not text:
        return
    token = read_token(text)
    is_newest = token.position < token.end and token.request == _BACK
    found = []
    try:
        while text:
            page = run_search(search(log, text, newest=is_newest))
            found += [message.offset for message in page.messages]
            text = page.after
    except BadToken:
        assert log.next_offset < token.end or log.segments.first_offset > 0, (
            "it was refused for nothing"
        )
        return
    there = [offset for offset, _ in _read(log)]
    if is_newest:
        assert found == [offset for offset in there if offset < token.position][::-1]
    else:
        assert found == [offset for offset in there if token.position <= offset < token.end]


def _check_readers(
    run: Run, life: Life, disk: RecordingDisk, log: Log, at: int, random: Random
) -> None:
    """Who has seen messages, lost ones perhaps, gets all that come, and each offset is one's."""
    seen = {offset: life.bodies[offset] for offset in range(_last(life.shown, at, 0))}
    asked = [len(seen), random.randint(0, len(seen))]
    stored = log.journal.tracking.offset(b"c")
    asked += [] if stored is None else [stored + 1]
    for turn in range(3):
        log.policy = replace(run.policy, max_length_bytes=None)
        new: dict[int, bytes] = {}
        before = dict(_read(log))
        begun = len(disk.operations)
        for number in range(random.randint(1, 3)):
            offset, body = log.next_offset, b"%d|after|%d|" % (turn, number)
            assert offset not in seen, f"offset {offset} has two messages"
            builder = ChunkBuilder()
            builder.add(entry(body), 1, 1, None)
            log.append([builder], 0)
            if run.mode is FlushMode.ALWAYS or random.random() < 0.3:
                log.flush()
            new[offset] = body
        found = dict(_read(log))
        assert found == before | new
        for offset in asked:
            wanted = {**{at: body for at, body in before.items() if at >= offset}, **new}
            read = _read(log, start=at_offset(offset))
            assert {at: body for at, body in read if at >= offset} == wanted, f"from {offset}"
        assert len(found) == log.segments.gaps.num_between(
            log.segments.first_offset, log.next_offset
        )
        is_killed = random.random() < 0.3
        crash = random.randint(begun, len(disk.operations))
        if crash == len(disk.operations):  # else some may not have been shown
            seen |= new
            asked.append(log.next_offset)
        disk = _crashed(disk, crash, random, is_killed=is_killed)
        log = _open(run, disk)
        assert dict(_read(log)).items() <= (seen | before | new).items()


def _check_writable(run: Run, log: Log, disk: RecordingDisk) -> None:
    """It takes messages again, and no check of the files finds anything."""
    end, before, last = _end(log), log.next_offset, log.journal.tracking.sequence(b"p") or 0
    builder = ChunkBuilder()
    builder.add(entry(b"after"), 1, 1, None)
    builder.set_sequence(b"p", last + 1)
    log.append([builder], 0)
    log.close()
    assert list(verify(disk, FOLDER)) == []
    log = _open(run, disk)
    assert log.report.steps == ()
    found = dict(_read(log))
    assert list(found) == [*range(log.segments.first_offset % OFFSET_GAP, end), before]
    assert found[before] == b"after"
    assert log.journal.tracking.sequence(b"p") == last + 1


def _read(
    log: Log, matcher: ChunkMatcher | None = None, start: OffsetSpec = FIRST
) -> Iterator[tuple[int, bytes]]:
    reader = Reader(log, log.segments.find(start), matcher)
    while not reader.at_end:
        for chunk in reader.read(1_000, 1 << 20, 1_000):
            raw = chunk.data
            if raw is None:
                raw = chunk.file.read(chunk.header.data_size, chunk.data_position)
            yield from zip(count(chunk.header.chunk_id), bodies_in(bytes(raw)), strict=False)
    reader.close()


def try_states(mode: FlushMode, seed: int, states: int) -> Counter[str]:
    """Record one run and check so many states of it; how many there were of each kind."""
    run, random = Run(mode, seed), Random(seed)
    kinds: Counter[str] = Counter()
    cuts = [mark.at for life in run.lives for mark in life.cut]
    for number in range(states):
        at = random.randint(0, len(run.disk.operations))
        if cuts and random.random() < _NEAR_CUTS:  # of which there are few
            at = max(0, random.choice(cuts) - random.randint(0, _CUT_OPERATIONS))
        is_killed = random.random() < 0.25
        tree = (
            run.disk.killed(at, random.randint(0, 2_000))
            if is_killed
            else run.disk.power_cut(at, random)
        )
        try:
            kinds[check(run, tree, at, is_killed=is_killed, random=random)] += 1
        except Exception as error:
            crash = "a kill" if is_killed else "a power failure"
            raise AssertionError(
                f"flush {mode.value}, seed {seed}, state {number}: {crash} after operation {at} of "
                f"{len(run.disk.operations)}: {error!r}"
            ) from error
    return kinds


def main() -> None:
    parser = argparse.ArgumentParser(description="Crash states, tried one after the other.")
    parser.add_argument("--states", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-run", type=int, default=500, help="states of each recorded run")
    given = parser.parse_args()
    began, kinds = time.monotonic(), Counter[str]()
    runs = -(-given.states // given.per_run)
    for number in range(runs):
        mode = list(FlushMode)[number % len(FlushMode)]
        kinds += try_states(mode, given.seed + number, given.per_run)
        if sys.stderr.isatty():
            print(f"\r{sum(kinds.values()):,} states", end="", file=sys.stderr)
    seconds = time.monotonic() - began
    shown = ", ".join(f"{number:,} {kind}" for kind, number in kinds.most_common())
    print(f"{sum(kinds.values()):,} crash states of {runs} runs in {seconds:.0f} s: {shown}")
    print("confirmed messages lost: 0, invented: 0, out of order: 0, wrong duplicates: 0")


if __name__ == "__main__":
    main()

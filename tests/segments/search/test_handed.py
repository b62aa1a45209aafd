"""A search that is handed what it needs of a log, and what happens to the log meanwhile."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from segments.derived.key_files import keys_of
from segments.log import Log
from segments.policy import LogPolicy
from segments.search.handed import HandedLog, conduct
from segments.search.handing import (
    Failed,
    Fetched,
    FilesOf,
    Found,
    Handing,
    Job,
    Needs,
    Outcome,
    Segments,
    Some,
    close,
)
from segments.search.page import FoundMessage, Limits, Missing, StreamIsGone
from segments.search.request import SearchRequest
from segments.segment import INDEX_SUFFIX, SEGMENT_SUFFIX
from segments.store.cache import ColdError
from tests.segments.derived.test_derived_files import index_all
from tests.segments.derived.test_key_files import index_keys
from tests.segments.search.model import IDENTITY, START_MS, pages
from tests.segments.search.test_search import order
from tests.support.cold import make_cold
from tests.support.disk import FaultyDisk
from tests.support.fake_store import FakeStore
from tests.support.logs import append, truncate

KEYED = SearchRequest(keys=("4711",), properties=("order_id",), limit=1_000)
ALL = SearchRequest(limit=1_000)
NEEDS = Needs(None, keys=False)


def filled(count: int, disk: FaultyDisk | None = None) -> Log:
    """A log of orders in chunks of two, three chunks in a segment; each third has the key 4711."""
    policy = LogPolicy(max_segment_chunks=3, key_properties=("order_id",))
    log = Log.open("s", policy, disk or FaultyDisk())
    for at in range(0, count, 2):
        append(log, [numbered(n) for n in (at, at + 1)], now_ms=START_MS + at)
    return log


def numbered(number: int) -> bytes:
    return order("4711" if number % 3 == 0 else str(number), b"%d" % number)


def job(log: Log, asked: SearchRequest, after: str = "") -> Job:
    ends = log.segments.first_offset, log.committed_offset, log.segments.gaps
    return Job(asked, IDENTITY, START_MS, after, Limits(), *ends, 1e9)


def outcome_of(log: Log, asked: SearchRequest, between: Any = lambda: None) -> Outcome:
    """What comes of a page, something happening before each answer."""
    handing = Handing(log)

    def ask(question: Any) -> Any:
        between()
        return handing.answer(question)

    steps, answer = conduct(job(log, asked), ask, lambda: 0.0), None
    while True:
        try:
            question = steps.send(answer)  # type: ignore[arg-type] # None at the beginning
        except StopIteration as end:
            outcome: Outcome = end.value
            handing.take(outcome.notes)
            handing.mend(outcome.notes)
            return outcome
        answer = None
        if question is not None:
            between()
            segment = handing.segment(question.files.base)
            if segment is not None:
                keys_of(segment)
            answer = Fetched(True, (), handing.files(question.files))


def found(outcome: Outcome) -> list[FoundMessage]:
    assert isinstance(outcome, Found), outcome
    return outcome.page.messages


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("resumed", [False, True])
def test_a_segment_leaves_the_log_while_its_index_is_fetched(newest: bool, resumed: bool) -> None:
    """It is not asked for again and again: what there is in its place is searched."""
    log, asked, after = filled(40), replace(ALL, newest=newest), ""
    if resumed:
        before = outcome_of(log, replace(asked, limit=2))
        assert isinstance(before, Found)
        after = before.page.after
    make_cold(log, FakeStore(), restored=True, seals=False, number=None if newest else 3)
    handing, number = Handing(log), log.segments.shown[-1 if newest else 3].base_offset
    steps, answer = conduct(job(log, asked, after), handing.answer, lambda: 0.0), None
    num_fetched = 0
    while num_fetched < 9:
        try:
            question = steps.send(answer)  # type: ignore[arg-type] # None at the beginning
        except StopIteration as end:
            offsets = sorted(one.offset for one in found(end.value))
            break
        answer = None
        if question is not None:
            num_fetched += 1
            truncate(log, number)
            answer = Fetched(True, (), handing.files(question.files))
    assert offsets == list(range(number, 40 - 2 * (newest and resumed)))
    assert num_fetched


def test_what_is_in_the_place_of_a_segment_that_has_left_the_log_is_asked_for() -> None:
    log = filled(40)
    make_cold(log, FakeStore(), restored=True)
    handing = Handing(log)
    handed = HandedLog(job(log, ALL), handing.answer)
    gone = handed.segments.holding(39)
    assert gone.cold is not None
    missing = Missing(ColdError(gone.cold, suffix=INDEX_SUFFIX))
    question = handed.question(missing, has_progressed=False)
    truncate(log, 40)
    assert handed.take(question, Fetched(True, (), handing.files(question.files)))
    assert handed.segments.holding(39).base_offset == 40
    handed.close()


@given(
    happening=st.lists(
        st.sampled_from(("", "append", "expire", "cut", "seal", "index")), max_size=9
    ),
    asked=st.sampled_from((ALL, KEYED)),
    newest=st.booleans(),
)
def test_what_happens_between_two_questions(
    happening: list[str], asked: SearchRequest, newest: bool
) -> None:
    """What is found is what there was at the beginning, but for what was removed meanwhile."""
    log = filled(40)
    number = log.next_offset
    left = iter(happening)

    def happen() -> None:
        match next(left, ""):
            case "append":
                append(log, [numbered(log.next_offset)] * 2, now_ms=START_MS + 100)
            case "expire":
                log.policy = log.policy.__class__(
                    max_length_bytes=log.segments.size - 1, max_segment_chunks=3
                )
                log.flush(with_checkpoint=True)
                log.expire(START_MS).run()
            case "cut":
                truncate(log, min(log.segments.first_offset + 2, log.next_offset))
            case "seal":
                log.seal()
            case "index":
                index_keys(log)
                index_all(log)

    messages = found(outcome_of(log, replace(asked, newest=newest), happen))
    offsets = [message.offset for message in messages]
    assert offsets == sorted(set(offsets), reverse=newest)
    wanted = [n for n in range(number) if asked is ALL or n % 3 == 0]
    assert {n for n in wanted if n >= log.segments.first_offset} <= set(offsets) <= set(wanted)
    assert all(numbered(m.offset) == m.raw for m in messages)


def test_a_stream_that_is_made_again_is_another_one() -> None:
    """In the same folder, with files of the same names."""
    disk = FaultyDisk()
    log = filled(20, disk)
    handing = Handing(log)
    search = HandedLog(job(log, ALL), handing.answer)
    segment = search.segments.holding(7)
    log.close()
    for name in disk.list("s"):
        disk.remove(f"s/{name}")
    other = filled(20, disk)
    assert not search.keeps(segment)
    assert not handing.files(FilesOf(segment.base_offset, NEEDS)).files
    with pytest.raises(StreamIsGone):
        search.segments.holding(7)
    search.close()
    other.close()


def test_a_stream_that_goes_meanwhile() -> None:
    log = filled(400)
    left = iter(range(2))

    def between() -> None:
        if next(left, None) is None:
            log.abandon()

    assert isinstance(outcome_of(log, ALL, between), Failed)


def test_files_that_are_handed_out_can_only_be_read(tmp_path: Path) -> None:
    """Also that of the segment that grows, which the writer has open for writing."""
    log = Log.open(str(tmp_path), LogPolicy())
    append(log, [order("1")])
    answer = Handing(log).answer(Segments(0, False, NEEDS))
    assert isinstance(answer, Some)
    assert SEGMENT_SUFFIX in answer.files[0].files
    for file in answer.files[0].files.values():
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(file.fileno(), b"x")
    close(answer.files[0].files)
    log.close()


def test_what_a_search_learns_is_noted() -> None:
    disk = FaultyDisk()
    log = filled(20, disk)
    content = disk.files[log.segments.shown[1].path()].content
    content[20:60] = bytes(40)  # the header of its first chunk
    expected = [n for n in range(20) if n not in (6, 7)]
    assert [m.offset for m in found(outcome_of(log, ALL))] == expected
    assert list(log.segments.shown[1].damage) == [8]
    for segment in log.segments.shown:
        segment.drop_filters()
    asked = replace(ALL, filter_values=(b"x",), filter_properties=("order_id",))
    outcome_of(log, asked)
    assert log.segments.shown[0] in log.indexes.take_requests()


def num_questions(log: Log, asked: SearchRequest) -> int:
    """How often a page asks the log."""
    handing, questions = Handing(log), []

    def ask(question: Any) -> Any:
        questions.append(question)
        return handing.answer(question)

    for _ in conduct(job(log, asked), ask, lambda: 0.0):
        pass
    return len(questions)


@pytest.mark.parametrize("newest", [False, True])
def test_time_passes_over_very_many_segments(newest: bool) -> None:
    """Of those that are out of time no file is opened."""
    log = filled(600)
    asked = replace(ALL, from_ms=START_MS + 300, to_ms=START_MS + 301, newest=newest)
    assert num_questions(log, asked) < 10
    offsets = [m.offset for page in pages(log, asked) for m in page.messages]
    assert sorted(offsets) == [300, 301]


@pytest.mark.parametrize("newest", [False, True])
def test_keys_are_looked_up_in_several_segments_for_one_question(
    tmp_path: Path, newest: bool
) -> None:
    """And of their files none stays open."""
    policy = LogPolicy(max_segment_chunks=3, key_properties=("order_id",))
    log = Log.open(str(tmp_path), policy)
    for number in range(60):
        append(log, [order(str(number))])
    index_keys(log)
    before = os.listdir("/proc/self/fd")
    asked = replace(KEYED, keys=("nowhere",), newest=newest)
    assert num_questions(log, asked) <= len(log.segments.shown) / 4 + 1
    assert os.listdir("/proc/self/fd") == before
    assert len(log.segments.shown) > 10
    log.close()

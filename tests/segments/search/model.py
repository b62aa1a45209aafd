"""Logs of messages that are remembered, and what a search over them has to find."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import strategies as st

from segments import ChunkBuilder, Log, LogPolicy
from segments.compression import GZIP, pack
from segments.derived.key_files import keys_of
from segments.disk import OsFile
from segments.message import Message, MessageView, Properties
from segments.search import message_matcher, message_search, search, span_reader
from segments.search.handed import conduct
from segments.search.handing import Fetched, Found, Handing, Job, Prompt
from segments.search.page import FoundMessage, Limits, Page
from segments.search.request import SearchRequest
from segments.search.search import Search
from segments.search.worker import decode, encode, encoder, told
from segments.selector import filter_value_of
from tests.support.disk import FaultyDisk
from tests.support.logs import entry, sub_batch

START_MS = 1_700_000_000_000
MIXED = 9
_LOST = 2  # messages in a batch that nobody can unpack
IDENTITY = 77
AN_ID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
KEYS = (
    "4711",
    "4711.0",
    "x",
    "ab",
    "true",
    AN_ID,
    "2023-11-14T22:13:20Z",
    "-7",
    "long-key",
    "EU",
    "5",
)
VALUES: tuple[Any, ...] = (
    "4711", 4711, 4711.0, 4711.5, "x", b"x", b"ab", True, False, "true", UUID(AN_ID), AN_ID, "",
    datetime.fromtimestamp(START_MS / 1000, UTC), START_MS, -7, -7.0, "-7", "long-key", None,
)  # fmt: skip
REGIONS = ("EU", "US", "APAC", 5, None)


@dataclass(frozen=True)
class Written:
    """A message of the log."""

    offset: int
    timestamp_ms: int
    raw: bytes


class Filled(NamedTuple):
    """A log, and what was written to it."""

    log: Log
    messages: list[Written]


messages = st.builds(
    lambda order, keys, number, created, region, body: Message(
        body,
        Properties(
            message_id=number,
            creation_time=created and datetime.fromtimestamp(created / 1000, UTC),
        ),
        {
            name: value
            for name, value in (("order_id", order), ("KEYS", keys), ("region", region))
            if value is not None
        },
    ).encode(),
    st.sampled_from(VALUES),
    st.sampled_from((None, "x", "a x", "ab  4711", 4711, "xx")),
    st.sampled_from((None, "4711", 4711, UUID(AN_ID), b"x")),
    st.sampled_from((None, START_MS, START_MS + 5)),
    st.sampled_from(REGIONS),
    st.sampled_from((b"", b"4711", b"long-key", b"z" * 3000)),
) | st.sampled_from((b"", b"no message 4711", b"\0\x53\x74\xc1\xff"))


class ChunkPlan(NamedTuple):
    """A chunk that is to be written: how it is packed, how time goes on, what it holds.

    Packed are all messages together; or, with MIXED, each for itself, but for every third, and
    behind the first of them a batch that nobody can unpack.
    """

    packed: int
    elapsed_ms: int
    messages: list[bytes]


chunks = st.builds(
    ChunkPlan,
    st.sampled_from((0, 0, 0, 1, 2, MIXED)),
    st.sampled_from((0, 1, 7, 1000, -7_200_000)),
    st.lists(messages, min_size=1, max_size=6),
)
plans = st.lists(chunks, max_size=14)


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    """Few chunks at once, so that there are many places where a search may be cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "_BLOCK", 2)
        patch.setattr(span_reader, "SPAN_BYTES", 1_500)
        patch.setattr(message_search, "_STEP_UNITS", 60)
        patch.setattr(message_matcher, "_MANY", 3)
        patch.setattr(message_matcher, "_MOST_SCREENS", 2)
        yield


def region_of(raw: bytes) -> bytes:
    try:
        return filter_value_of(MessageView(raw).application_properties.get("region"))
    except Exception:  # noqa: BLE001 - damaged
        return b""


def write(
    plan: Sequence[ChunkPlan], *, per_segment: int = 4, key_properties: tuple[str, ...] = ()
) -> Filled:
    """A log as planned, with messages of the same bytes in any packing."""
    policy = LogPolicy(
        max_segment_chunks=per_segment, filter_size=16, key_properties=key_properties
    )
    log = Log.open("s", policy, FaultyDisk())
    found: list[Written] = []
    now = START_MS
    for packed, elapsed, bodies in plan:
        now += elapsed
        builder = ChunkBuilder()
        values = [region_of(raw) for raw in bodies]
        if packed == MIXED:
            for number, (raw, value) in enumerate(zip(bodies, values, strict=True)):
                if number % 3:
                    builder.add(entry(raw), 1, 1, [value])
                else:
                    builder.add(_packed([raw], GZIP), 1, 1, Counter([value]))
                if not number:
                    builder.add(sub_batch(b"no gzip", _LOST, GZIP, 99), 1, _LOST, None)
        elif packed:
            builder.add(_packed(bodies, packed - 1), 1, len(bodies), Counter(values))
        else:
            builder.add(b"".join(map(entry, bodies)), len(bodies), len(bodies), values)
        before = log.next_offset
        log.append([builder], now)
        time = log.segments.last_timestamp_ms
        assert time is not None
        for n, raw in enumerate(bodies):
            shift = _LOST if n and packed == MIXED else 0
            found.append(Written(before + n + shift, time, raw))
    return Filled(log, found)


def _packed(bodies: Sequence[bytes], compression: int) -> bytes:
    body, size = pack(bodies, compression)
    return sub_batch(body, len(bodies), compression, size)


# -- what is found, the slow way


def values_of(raw: bytes, name: str) -> list[Any]:
    view = MessageView(raw)
    try:
        if name == "properties.message_id":
            found = [view.properties.message_id]
        else:
            found = [view.application_property(name)]
    except Exception:  # noqa: BLE001 - it is damaged, so has none
        return []
    if name == "KEYS" and isinstance(found[0], str | bytes):
        return list(found[0].split(" " if isinstance(found[0], str) else b" "))  # type: ignore[arg-type]
    return found


def is_key(key: str, value: Any) -> bool:  # noqa: PLR0911 - one for each type
    """Whether a property's value is what a key as typed means."""
    match value:
        case bool():
            return key == str(value).lower()
        case str():
            return value == key
        case bytes():
            return value == (UUID(AN_ID).bytes if key == AN_ID else None) or value == key.encode()
        case UUID():
            return str(value) == key
        case datetime():
            return is_key(key, round(value.timestamp() * 1000))
        case int() | float():
            is_time = key.endswith("Z")
            number = datetime.fromisoformat(key).timestamp() * 1000 if is_time else number_of(key)
            return number == value
    return False


def number_of(key: str) -> float | None:
    try:
        return float(key)
    except ValueError:
        return None


def has_key(raw: bytes, key: str, properties: Sequence[str]) -> bool:
    return any(is_key(key, value) for name in properties for value in values_of(raw, name))


def is_wanted(written: Written, asked: SearchRequest) -> bool:
    raw = written.raw
    if asked.keys and not any(has_key(raw, key, asked.properties) for key in asked.keys):
        return False
    time: float | None = written.timestamp_ms
    if asked.by_creation_time and (asked.from_ms, asked.to_ms) != (None, None):
        try:
            created = MessageView(raw).properties.creation_time
        except Exception:  # noqa: BLE001 - damaged
            created = None
        time = None if created is None else created.timestamp() * 1000
    if time is None or time < (asked.from_ms or 0) or time > (asked.to_ms or 1 << 62):
        return False
    if asked.selector is not None and not asked.selector.matcher().matches(raw):
        return False
    if asked.filter_values:
        value = values_of(raw, "region")
        text = [b"5" if v == 5 else filter_value_of(v) for v in value]
        return any(v in asked.filter_values for v in text)
    return True


def wanted(messages: Sequence[Written], asked: SearchRequest) -> list[int]:
    """Offsets of all that is to be found, in order."""
    order = list(reversed(messages)) if asked.newest else list(messages)
    if asked.offset is not None:
        at = asked.offset
        order = [m for m in order if (m.offset <= at if asked.newest else m.offset >= at)]
    found = [m for m in order if is_wanted(m, asked)]
    if asked.latest:
        newest = {
            next((m.offset for m in found if has_key(m.raw, key, asked.properties)), None)
            for key in asked.keys
        }
        found = [m for m in found if m.offset in newest]
    return [m.offset for m in found]


# -- searching


def step(search: Search, *, over_after: int | None = None) -> Page:
    """Do the steps of a search, the budget used up after some."""
    for number, _ in enumerate(search.steps()):
        if number + 1 == over_after:
            search.progress.is_over = True
    return search.page


def handed_page(
    log: Log, asked: SearchRequest, after: str, limits: Limits, over_after: float
) -> Page:
    """A page, all that is asked and answered for it told as to another process."""
    handing = Handing(log)

    def ask(question: Prompt) -> Any:
        asked = decode(encoder.encode(question))
        assert asked == question
        answer, files = encode(handing.answer(asked))
        return told(answer, lambda number, _: list(files.values())[number])

    ends = log.segments.first_offset, log.committed_offset, log.segments.gaps
    job = Job(asked, IDENTITY, START_MS, after, limits, *ends, over_after)
    job = told(encode(job)[0], OsFile.of)
    steps, answer = conduct(job, ask, partial(next, count())), None
    while True:
        try:
            question = steps.send(answer)  # type: ignore[arg-type] # None at the beginning
        except StopIteration as end:
            found = decode(encoder.encode(end.value))
            assert isinstance(found, Found), found
            handing.take(found.notes)
            handing.mend(found.notes)
            return found.page
        answer = None
        if question is not None:
            base = question.files.base
            keys_of(next(one for one in log.segments.shown if one.base_offset == base))
            answer = Fetched(True, (), handing.files(question.files))


def pages(
    log: Log,
    asked: SearchRequest,
    limits: Limits | None = None,
    *,
    over_after: int | None = None,
) -> Iterator[Page]:
    """All pages of a search, one after the other, each with what it is handed of the log."""
    after, number = "", 0
    while True:
        page = handed_page(log, asked, after, limits or Limits(), over_after or math.inf)
        yield page
        number += 1
        assert number < 10_000, "a search that never ends"
        if page.cut is None:
            assert not page.after
            return
        after = page.after


def joined(found: Sequence[Page]) -> list[FoundMessage]:
    return [message for page in found for message in page.messages]

"""What users of RocketMQ have complained of when they looked for a message by its key.

Numbers are of issues of apache/rocketmq, rocketmq-dashboard and mq-studio.
"""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

import mmh3
import pytest

from segments import Log, LogPolicy, StorageError
from segments.keys import key_prints
from segments.keys.forms import TEXT, seed_of
from segments.message import Message, Properties
from segments.search.request import SearchRequest
from segments.search.search import Search, run
from segments.segment import parse_name
from segments.selector import parse_tags
from tests.segments.derived.test_key_files import index_keys, small_tables
from tests.segments.search.model import IDENTITY, START_MS, joined, pages
from tests.support.disk import FaultyDisk
from tests.support.logs import append

__all__ = ["small_tables"]  # a fixture

POLICY = LogPolicy(max_segment_chunks=4, key_properties=("KEYS",))


def message(keys: str, **properties: str) -> bytes:
    return Message(b"body", application_properties={"KEYS": keys} | properties).encode()


def filled(*chunks: list[bytes], policy: LogPolicy = POLICY) -> tuple[FaultyDisk, Log]:
    disk = FaultyDisk()
    log = Log.open("s", policy, disk)
    for number, bodies in enumerate(chunks):
        append(log, bodies, now_ms=START_MS + 1000 * number)
    index_keys(log)
    return disk, log


def ask(key: str, **more: object) -> SearchRequest:
    return replace(SearchRequest(keys=(key,), properties=("KEYS",)), **more)


def find(log: Log, asked: SearchRequest) -> list[int]:
    return [m.offset for m in joined(list(pages(log, asked)))]


def test_keys_of_the_same_hash_are_different_keys() -> None:
    """#3613, #3616: 31 bits stand for a key, and at most 64 are looked at before keys are."""
    seed = seed_of("KEYS", TEXT)
    seen: dict[int, str] = {}
    for number in count():
        key = f"order-{number}"
        other = seen.setdefault(mmh3.hash(key.encode(), seed, signed=False), key)
        if other != key:
            break
    prints = [key_prints(["KEYS"], [TEXT + k.encode()]) for k in (key, other)]
    assert prints[0] == prints[1]
    _, log = filled(*([message(key if n % 2 else other)] for n in range(200)))
    assert find(log, ask(key, limit=500)) == [n for n in range(200) if n % 2]
    assert find(log, ask(other, limit=500)) == [n for n in range(200) if not n % 2]


def test_a_message_is_found_whatever_its_clock_said() -> None:
    """#681: nothing found while the message exists, as clocks differ; only three days are seen."""
    stamped = [
        Message(
            b"b",
            Properties(creation_time=datetime(year, 1, 1, tzinfo=UTC)),
            {"KEYS": "k"},
        ).encode()
        for year in (1999, 2099)
    ]
    _, log = filled([stamped[0]], [message("k")], [stamped[1]])
    assert find(log, ask("k")) == [0, 1, 2]
    range_of_chunks = {"from_ms": START_MS, "to_ms": START_MS + 1000}
    assert find(log, ask("k", **range_of_chunks)) == [0, 1]
    assert find(log, ask("k", from_ms=START_MS + 1, to_ms=START_MS + 1000)) == [1]
    assert find(log, ask("k", from_ms=START_MS + 2000, to_ms=START_MS + 2000)) == [2]
    assert find(log, ask("k", by_creation_time=True, to_ms=10**12)) == [0]


def test_publishing_writes_no_index() -> None:
    """#262: work on the index slows sending."""
    writes = []
    for policy in (POLICY, replace(POLICY, key_properties=())):
        disk = FaultyDisk()
        log = Log.open("s", policy, disk)
        disk.life = 1 << 40
        for number in range(20):
            append(log, [message(f"k{number}")], now_ms=START_MS)
        writes.append((1 << 40) - disk.life)
    assert writes[0] == writes[1]


def test_an_index_goes_with_its_segment() -> None:
    """Files of 420 MB each fill the disk."""
    disk, log = filled(*([message(f"k{n}")] for n in range(40)))
    log.policy = replace(POLICY, max_length_bytes=1)
    log.flush(with_checkpoint=True)
    for part in log.expire(START_MS).parts():
        part()
    kept = {segment.base_offset for segment in log.segments.shown}
    names = [parse_name(path.removeprefix("s/")) for path in disk.files]
    assert {name[0] for name in names if name is not None} == kept
    assert log.segments.first_offset == 36
    assert find(log, ask("k38")) == [38]


def test_what_cannot_be_read_is_an_error_and_no_empty_answer() -> None:
    """mq-studio#45: a client swallows the broker's error, and shows that there is nothing."""
    disk, log = filled(*([message("k")] for _ in range(3)))
    disk.failures["read"] = 1_000
    with pytest.raises(StorageError):
        run(Search(log, ask("k"), IDENTITY, START_MS))
    disk.failures.clear()
    assert find(log, ask("k")) == [0, 1, 2]


def test_tags_can_be_asked_for() -> None:
    """dashboard#24, #192: messages cannot be found by their tag."""
    _, log = filled([message("k", TAGS="paid")], [message("k", TAGS="sent")], [message("k")])
    assert find(log, ask("k", selector=parse_tags("sent || lost"))) == [1]
    assert find(log, SearchRequest(selector=parse_tags("paid"))) == [0]

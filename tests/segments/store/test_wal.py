"""Slots of a write-ahead log: what was written is read, and nothing else passes for one."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies

from segments.checksum import crc32
from segments.chunk import ChunkBuilder
from segments.errors import FormatError
from segments.policy import LogPolicy
from segments.store.wal import Section, Slot, chunks_in, decode_slot, encode_slot, slot_in, slot_key
from tests.support.logs import entry

_TIER = "0123456789abcdef"


def _chunk(chunk_id: int, count: int) -> bytes:
    builder = ChunkBuilder()
    builder.add(entry(b"message") * count, count, count, None)
    return b"".join(
        builder.encode(chunk_id=chunk_id, timestamp_ms=5, epoch=1, policy=LogPolicy()).parts
    )


def _section(name: str, after: int, counts: list[int]) -> tuple[Section, bytes]:
    parts, offset = [], after
    for count in counts:
        parts.append(_chunk(offset, count))
        offset += count
    part = b"".join(parts)
    section = Section(
        virtual_host="/",
        stream=name,
        creation="a1",
        after=after,
        next_offset=offset,
        size=len(part),
        crc=crc32(part),
        arguments={"max-age": "7D"},
        settings={},
        offsets={"00ff": 3, "61": None},
    )
    return section, part


def _slot(counts: list[list[int]]) -> tuple[Slot, bytes, list[bytes]]:
    found = [_section(f"s{number}", 10 * number, one) for number, one in enumerate(counts)]
    sections = tuple(section for section, _ in found)
    slot = Slot(tier=_TIER, epoch=3, slot=7, writer="me.1", sections=sections)
    parts = [part for _, part in found]
    return slot, encode_slot(slot, parts), parts


@given(strategies.lists(strategies.lists(strategies.integers(1, 9), max_size=3), max_size=4))
def test_what_was_written_is_read(counts: list[list[int]]) -> None:
    slot, content, parts = _slot(counts)
    assert slot_in(slot_key(3, 7)) == (3, 7)
    found, read = decode_slot(slot_key(3, 7), content)
    assert (found, list(map(bytes, read))) == (slot, parts)
    for wanted, part in zip(counts, read, strict=True):
        chunks = list(chunks_in(part))
        assert [header.num_records for header, _ in chunks] == wanted
        assert b"".join(raw for _, raw in chunks) == part


def test_what_is_cut_or_changed_is_refused() -> None:
    slot, content, _ = _slot([[3], [2, 2]])
    for size in range(len(content)):
        with pytest.raises(FormatError):
            decode_slot(slot_key(3, 7), content[:size])
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1
        with pytest.raises(FormatError):
            decode_slot(slot_key(3, 7), bytes(changed))
    with pytest.raises(FormatError):
        decode_slot(slot_key(3, 7), content + b"x")
    with pytest.raises(FormatError, match="slot 7 of epoch 3"):
        decode_slot(slot_key(3, 8), content)
    assert decode_slot(slot_key(slot.epoch, slot.slot), content)[0] == slot


def test_a_part_of_a_chunk_is_refused() -> None:
    part = memoryview(_chunk(0, 3) + _chunk(3, 2))
    for size in range(1, len(part)):
        if size != len(_chunk(0, 3)):
            with pytest.raises(FormatError):
                list(chunks_in(part[:size]))


@pytest.mark.parametrize("key", ["v1/cluster", "v1/~wal/1/7", "v1/~wal/x/00000000000000000007"])
def test_other_keys_are_no_slots(key: str) -> None:
    assert slot_in(key) is None


def test_the_page_shows_a_slot() -> None:
    page = Path("docs/internals/file-format.md").read_text()
    shown = re.search(r"<!-- a slot -->\n```text\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    line = json.loads(shown[1])
    sections = tuple(Section(**section) for section in line.pop("sections"))
    given = {name: line[name] for name in Slot.__dataclass_fields__ if name != "sections"}
    head, _, _ = encode_slot(Slot(**given, sections=sections)).partition(b"\n")
    assert json.loads(head) == json.loads(shown[1])
    rows = page[shown.end() : page.index("## asked.json")]
    named = {
        name for row in re.findall(r"^\| (`.*?) \|", rows, re.MULTILINE) for name in row.split(", ")
    }
    assert named == {f"`{name}`" for name in {*given, *Section.__dataclass_fields__}}

"""The page on file formats suffices to read a stream's folder, and says what the code does."""

import json
import re
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import mmh3
import pytest

from segments import ChunkBuilder, ChunkMatcher, Log, LogPolicy, bloom, format_constants
from segments.codec import Damage, encode_damage
from segments.derived import filter_files
from segments.message import Message, MessageView, Properties
from segments.property_keys import key_of, mark_of
from streamd.broker.catalog.catalog import Catalog
from streamd.broker.catalog.schema import VERSION
from tests.internals import page_reader, tables
from tests.releases.contents import FOLDERS, KINDS
from tests.segments import layout
from tests.segments.derived.test_key_files import OLD_KEYS, index_keys, small_tables
from tests.support.logs import append, entry, sub_batch
from tests.support.rulers import ruler

__all__ = ["small_tables"]  # a fixture

PAGE = (Path(__file__).parents[2] / "docs" / "internals" / "file-format.md").read_text()
SIZES = {"TRACKING_BLOCK": {"value": 8}, "SNAPSHOT_BLOCK": {"value": 8, "chunk_id": 8}}


def shown_files() -> dict[str, bytes]:
    """The files whose bytes the page shows."""
    found = re.findall(r"<!-- file: (\S+) -->\n```text\n(.*?)\n```", PAGE, re.DOTALL)
    return {name: shown_bytes(text) for name, text in found}


def shown_bytes(text: str) -> bytes:
    """The bytes in lines of positions, bytes, and what they are."""
    raw = b""
    for position, piece in re.findall(
        r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} ?){1,8})", text, re.MULTILINE
    ):
        assert int(position, 16) == len(raw), f"at {position}"
        raw += bytes.fromhex(piece)
    return raw


def text_message(text: bytes) -> bytes:
    return entry(b"\x00\x53\x75\xa0" + bytes([len(text)]) + text)


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    for name, raw in shown_files().items():
        (tmp_path / name).write_bytes(raw)
    return tmp_path


@pytest.mark.parametrize("name", re.findall(r"<!-- layout: (\w+) -->", PAGE))
def test_drawings_are_those_of_the_declarations(name: str) -> None:
    drawing = ruler(getattr(layout, name), SIZES.get(name, {}))
    assert f"<!-- layout: {name} -->\n```text\n{drawing}\n```" in PAGE


def test_every_declaration_is_drawn_and_every_field_is_explained() -> None:
    drawn = set(re.findall(r"<!-- layout: (\w+) -->", PAGE))
    declared = {
        name
        for name, value in vars(layout).items()
        if isinstance(value, layout.Struct) and not name.endswith("_HEADER") and name != "ENTRY"
    }
    assert drawn == declared | {"SEGMENT_HEADER", "CHUNK_HEADER"}
    for name in drawn - {"FILTER_INDEX", "SIMPLE_ENTRY"}:
        for field in getattr(layout, name).subcons:
            assert f"`{field.name}`" in PAGE or field.name in ("id_size", "compression")


def test_versions_are_those_of_the_program() -> None:
    for suffix, name in (
        (".segment", "SEGMENT"),
        (".index", "INDEX"),
        ("tracking", "TRACKING"),
        ("checkpoint", "CHECKPOINT"),
        (".filter", "FILTER_INDEX"),
        (".keys", "KEY_TABLE"),
        (".damage", "DAMAGE"),
    ):
        magic = getattr(format_constants, f"{name}_MAGIC").decode()
        version = getattr(format_constants, f"{name}_VERSION", format_constants.FILE_VERSION)
        assert f"| `{suffix}` | `{magic}` | {version} |" in PAGE
    assert f"`PRAGMA user_version` is the version of the catalog, {VERSION}." in PAGE


def test_the_bytes_shown_are_those_that_a_log_writes(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path), LogPolicy(max_segment_bytes=100, filter_size=16))
    first, second = ChunkBuilder(), ChunkBuilder()
    for text, value in ((b"on time", b"HA"), (b"late", b"UA")):
        first.add(text_message(text), 1, 1, [value])
    first.set_sequence(b"till-3", 1)
    log.append([first], 1_763_715_600_000)
    log.journal.tracking.store_offset(b"reader", 0)
    log.journal.write_pending(log.committed_offset)
    second.add(text_message(b"early"), 1, 1, None)
    log.append([second], 1_763_715_601_000)
    log.journal.tracking.store_offset(b"reader", 2)
    log.journal.write_pending(log.committed_offset)
    sealed = log.segments.shown[0]
    filter_files.load_or_build(sealed, sealed.size, is_sealed=True)
    log.close()
    mark = f"life-{log.life}"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        **shown_files(),
        mark: b"",
    }


def test_the_reader_reads_the_bytes_shown(shown: Path) -> None:
    texts = [(offset, raw[5:]) for offset, raw in page_reader.read(shown)]
    assert texts == [(0, b"on time"), (1, b"late"), (2, b"early")]
    assert page_reader.tracking(shown) == {
        "offsets": {b"reader": 2},
        "sequences": {b"till-3": 1},
    }
    check_folder(shown)


@pytest.mark.parametrize("count", [1, 2, 33, 300])
def test_the_reader_reads_columns(tmp_path: Path, count: int) -> None:
    plain = [b"v%d" % (n % 5) for n in range(count)]
    kinds = [key_of("kind", b"k%d" % (n // 2)) for n in range(count)]
    builder = ChunkBuilder()
    data = b"".join(text_message(b"%d" % n) for n in range(count))
    builder.add(data, count, count, plain, (mark_of("kind"),), (kinds,))
    builder.set_sequence(b"till-3", 1)
    log = Log.open(str(tmp_path), LogPolicy())
    log.append([builder], 1)
    log.close()
    ((_, chunk),) = page_reader.chunks(tmp_path)
    expected = {None: plain, mark_of("kind"): kinds}
    assert page_reader.columns(chunk) == (expected if count > 1 else {})


def check_folder(folder: Path) -> None:
    """Filters, indexes, filter indexes and the checkpoint fit the chunks."""
    found = list(page_reader.chunks(folder))
    for path in folder.glob("*.index"):
        expected = [
            (c.header[6], c.header[4], c.header[5], c.position, c.header[1])
            for name, c in found
            if name == path.stem
        ]
        assert page_reader.index(path) == expected
    for _, chunk in found:
        values = {value for kind, value, _ in chunk.blocks if kind == 3}
        size = len(chunk.filter)
        found_bits = page_reader.bits_of(chunk.filter)
        expected_bits: set[int] = set()
        for value in values if size else ():
            forms = [page_reader.bloom_bits(value, size)]
            if len(value) == 255:
                forms.append(page_reader.bloom_bits(value, size, is_long=True))
            assert any(bits <= found_bits for bits in forms)
            expected_bits = expected_bits.union(*(b for b in forms if b <= found_bits))
        assert found_bits == expected_bits
    for path in folder.glob("*.filter"):
        here = [c for name, c in found if name == path.stem]
        holds: dict[int, list[int]] = {}
        for ordinal, chunk in enumerate(here):
            values = {v for k, v, _ in chunk.blocks if k == 3} or {b""}
            for value in values:
                holds.setdefault(page_reader.fingerprint(value), []).append(ordinal)
        assert page_reader.filter_index(path, here[-1].raw_header) == holds
    last = page_reader.checkpoint(folder / "checkpoint")
    ends = {name: c.header[6] + c.header[3] for name, c in found}
    assert last["next_offset"] <= max(ends.values(), default=0)


@pytest.mark.parametrize("count", [3, 2_000])
def test_the_reader_reads_key_tables(tmp_path: Path, count: int) -> None:
    """Of one block, and of several with a tree over them."""
    policy = LogPolicy(max_segment_chunks=4, key_properties=("k", "properties.subject"))
    log = Log.open(str(tmp_path), policy)
    keyed = [
        Message(b"", Properties(subject="all"), {"k": n if n % 2 else f"a{n}"}).encode()
        for n in range(count)
    ]
    for _ in range(3):
        append(log, keyed)
    builder = ChunkBuilder()
    builder.add(entry(keyed[0]) + sub_batch(entry(keyed[0]) + entry(keyed[1]), 2), 2, 3, None)
    log.append([builder], 1_700_000_000_000)
    append(log, keyed[:1])
    index_keys(log)
    log.close()
    table = page_reader.key_table(tmp_path / f"{0:020d}.keys")
    assert (table.end_chunk, table.names) == (4, ["k", "properties.subject"])
    assert table.uncertain == []
    for number in range(count):
        key = (b"#", b"%d" % number) if number % 2 else (b"=", b"a%d" % number)
        places = [(0, number), (1, number), (2, number)]
        places += [(3, 0), (3, 1)] if number == 0 else [(3, 2)] if number == 1 else []
        assert table.places[page_reader.key_print("k", *key)] == places
    few = [(chunk, n) for chunk in range(3) for n in range(count)]
    all_of_them = few if count <= 8 else [(chunk, None) for chunk in range(3)]
    subject = page_reader.key_print("properties.subject", b"=", b"all")
    assert table.places[subject] == [*all_of_them, (3, 0), (3, 1), (3, 2)]


def test_the_reader_reads_key_tables_of_version_1() -> None:
    table = page_reader.key_table(OLD_KEYS)
    assert table.names == ["k"]
    print_of = partial(page_reader.key_print, "k", b"=")
    assert table.places[print_of(b"a1")] == [(0, None), (1, None), (2, None)]
    assert table.places[print_of(b"a2")] == [(2, None)]


def bodies(folder: Path) -> list[tuple[int, bytes]]:
    return [(n, MessageView(raw).body) for n, raw in page_reader.read(folder)]  # type: ignore[misc]


@pytest.mark.parametrize("kind", KINDS)
def test_the_reader_reads_what_every_release_wrote(kind: str) -> None:
    for release in FOLDERS.iterdir():
        expected = json.loads((release / "expected.json").read_text())
        host = release / kind / "streams" / "%2F"
        for name, messages in expected["messages"].items():
            if not (host / name).exists():
                assert not messages
                continue
            wanted = [(offset, body.encode()) for offset, body, *_ in messages]
            assert bodies(host / name) == wanted
            check_folder(host / name)
        offsets = page_reader.tracking(host / "plain")["offsets"]
        assert {name.decode(): n for name, n in offsets.items()} == expected["stored offsets"]
        ids = {
            **page_reader.tracking(host / "plain")["sequences"],
            **page_reader.tracking(host / "packed")["sequences"],
        }
        assert {name.decode(): n for name, n in ids.items()} == expected["publishing ids"]


def test_the_reader_reads_long_values_and_sub_batches(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path), LogPolicy(filter_size=64))
    long = b"x" * 300
    append(log, [b"a", b"b", b"c"], [long, b"", b"y" * 255], sequences={b"p": 7})
    builder = ChunkBuilder()
    builder.add(sub_batch(entry(b"d") + entry(b"e"), 2), 1, 2, None)
    log.append([builder], 0)
    log.close()
    assert [raw for _, raw in page_reader.read(tmp_path)] == [b"a", b"b", b"c", b"d", b"e"]
    check_folder(tmp_path)
    (_, chunk), _ = page_reader.chunks(tmp_path)
    recorded = long[:239] + mmh3.hash_bytes(long, seed=0, x64arch=True)
    assert {value for kind, value, _ in chunk.blocks if kind == 3} == {recorded, b"", b"y" * 255}


def test_the_reader_reads_damage_files(tmp_path: Path) -> None:
    ranges = [Damage(8, 100, 0, 3), Damage(200, 200, 9, 9)]
    (tmp_path / "d").write_bytes(encode_damage(ranges))
    assert page_reader.damage(tmp_path / "d") == [tuple(one) for one in ranges]
    shown = shown_bytes(PAGE.split("<!-- damage -->\n```text\n")[1].split("```")[0])
    assert shown == encode_damage([Damage(8, 141, 0, 2)])


def test_the_worked_example_of_the_filter() -> None:
    rows = re.findall(
        r"^\| (\w+) \| 0x(\w{16}) \| 0x(\w{16}) \| (\d+) and (\d+) \|$", PAGE, re.MULTILINE
    )
    assert [row[0] for row in rows] == ["HA", "UA", "AS"]
    for value, first, second, one, other in rows:
        halves = mmh3.hash64(value.encode(), seed=0, x64arch=True, signed=False)
        assert halves == (int(first, 16), int(second, 16))
        assert [1 + half % 127 for half in halves] == [int(one), int(other)]


def test_the_folder_shown_is_whole_to_the_program(shown: Path) -> None:
    command = [sys.executable, "-m", "segments", "verify", str(shown)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "whole: 2 segments, 2 chunks, 224 bytes\n")


def test_the_tables_of_the_catalog(tmp_path: Path) -> None:
    Catalog(str(tmp_path)).close()
    db = sqlite3.connect(tmp_path / "catalog.sqlite")
    names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for name in names:
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({name})")]
        assert f"| `{name}` | {', '.join(f'`{column}`' for column in columns)} |" in PAGE
    db.close()


def test_the_rates_of_false_positives() -> None:
    assert "\n".join(tables.false_positives()) in PAGE


def test_which_chunks_are_sent() -> None:
    chunks = {
        "no message has a filter value (no filter)": {b""},
        "some have apple": {b"apple", b"pear"},
        "all have banana": {b"banana"},
        "some have apple, some have none": {b"apple", b""},
        "some have banana, some have none": {b"banana", b""},
    }
    for what, values in chunks.items():
        filter_bytes = bloom.build(values, 32)
        (shown,) = re.findall(
            rf"^\| {re.escape(what)} \| (yes|no)\b.*\| (yes|no)\b", PAGE, re.MULTILINE
        )
        found = [
            ChunkMatcher([b"apple"], match_unfiltered=both).matches(
                1, len(filter_bytes), filter_bytes
            )
            for both in (False, True)
        ]
        assert found == [word == "yes" for word in shown], what

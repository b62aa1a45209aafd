"""Reads a stream's folder as docs/internals/file-format.md describes it.

Written from that page alone: it imports nothing of ours, so what it can read the page explains.
"""

import gzip
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cramjam
import mmh3


class Chunk(NamedTuple):
    """One chunk of a segment, as far as the page says what is in it."""

    position: int
    header: tuple[int, ...]
    raw_header: bytes
    filter: bytes
    messages: list[bytes]
    blocks: list[tuple[int, bytes, int]]


CHUNK = struct.Struct(">BBHIqQQIIIBBH")
INDEX = struct.Struct(">QqQIB")
UNPACK = {
    0: bytes,
    1: gzip.decompress,
    2: lambda body: bytes(cramjam.snappy.decompress(body)),
    3: lambda body: bytes(cramjam.lz4.decompress(body)),
    4: lambda body: bytes(cramjam.zstd.decompress(body)),
}


def content(path: Path, magic: bytes, version: int = 1) -> bytes:
    """What follows the file header."""
    raw = path.read_bytes()
    assert raw[:8] == magic + version.to_bytes(4, "big")
    return raw[8:]


def entries(data: bytes) -> Iterator[bytes]:
    """The messages of a chunk's data, or of the body of a sub-batch."""
    at = 0
    while at < len(data):
        if data[at] & 0x80:
            flags, records, full_size, size = struct.unpack_from(">BHII", data, at)
            body = UNPACK[flags >> 4 & 7](data[at + 11 : at + 11 + size])
            messages = list(entries(body))
            assert (len(body), len(messages)) == (full_size, records)
            yield from messages
            at += 11 + size
        else:
            (size,) = struct.unpack_from(">I", data, at)
            yield data[at + 4 : at + 4 + size]
            at += 4 + size
    assert at == len(data)


def blocks(raw: bytes, *, is_snapshot: bool = False) -> list[tuple[int, bytes, int]]:
    """Kind, id and value of tracking blocks."""
    found, at = [], 0
    while at < len(raw):
        kind, end = raw[at], at + 2 + raw[at + 1]
        name = raw[at + 2 : end]
        end += 8 if is_snapshot and kind == 0 else 0
        (value,) = struct.unpack_from(">q" if kind == 2 else ">Q", raw, end)
        found.append((kind, name, value))
        at = end + 8
    assert at == len(raw)
    return found


def chunks(folder: Path) -> Iterator[tuple[str, Chunk]]:
    """All chunks of a stream with the names of their segments; checksums are tested."""
    expected = None
    for path in sorted(folder.glob("*.segment")):
        raw, at = content(path, b"OSIL"), 0
        assert expected in (None, int(path.stem))
        expected = int(path.stem)
        while at < len(raw):
            header = CHUNK.unpack_from(raw, at)
            magic, kind, num_entries, num_records, *_, chunk_id = header[:7]
            data_crc, data_size, trailer_size, filter_size, scheme, check = header[7:]
            assert (magic, kind, chunk_id) == (0x50, 0, expected)
            start = at + 48 + filter_size
            data, end = raw[start : start + data_size], start + data_size + trailer_size
            bits, trailer = raw[at + 48 : start], raw[start + data_size : end]
            assert zlib.crc32(data) == data_crc
            assert scheme == 1
            assert zlib.crc32(raw[at : at + 46] + bits + trailer) & 0xFFFF == check
            messages = list(entries(data))
            assert len(messages) == num_records >= num_entries
            yield (
                path.stem,
                Chunk(at + 8, header, raw[at : at + 48], bits, messages, blocks(trailer)),
            )
            at, expected = end, expected + num_records


def columns(chunk: Chunk) -> dict[bytes | None, list[bytes]]:
    """What is listed for each message: of plain filter values, and of each further property."""
    count, kinds = chunk.header[3], [kind for kind, _, _ in chunk.blocks]
    if 2 not in kinds:
        return {}
    parts = [name + struct.pack(">q", value) for kind, name, value in chunk.blocks if kind == 2]
    assert kinds[: len(parts)] == [2] * len(parts)
    raw, rest = b"".join(parts), chunk.blocks[len(parts) :]
    places, at = [], 0
    for _, name, _ in rest:
        places.append(at)
        at += 10 + len(name)
    version, flags, number = struct.unpack_from(">BBB", raw)
    assert version == 1
    found, at = {}, 3
    for _ in range(number):
        kind, first, size = struct.unpack_from(">BIH", raw, at)
        at += 7
        block = places.index(first)
        mark = rest[block][1] if kind else None
        values = [name for _, name, _ in rest[block + kind :][:size]]
        ordinals = [0] * count
        for bit in range((size - 1).bit_length()):
            plane = int.from_bytes(raw[at : at + -(-count // 8)], "big")
            at += -(-count // 8)
            for n in range(count):
                ordinals[n] |= (plane >> (count - 1 - n) & 1) << bit
        found[mark] = [values[ordinal] for ordinal in ordinals]
    if flags & 1:
        begin = 0
        for n in range((count - 1) // 32):
            begin += int.from_bytes(raw[at + 2 * n : at + 2 * n + 2], "big")
            assert begin == sum(4 + len(message) for message in chunk.messages[: 32 * (n + 1)])
    return found


def bloom_bits(value: bytes, size: int, *, is_long: bool = False) -> set[int]:
    """The bits of a value in a filter of so many bytes; `is_long`: the form of a longer value."""
    if not value:
        return {0}
    digest = value[-16:] if is_long else mmh3.hash_bytes(value, seed=0, x64arch=True)
    return {1 + half % (8 * size - 1) for half in struct.unpack("<QQ", digest)}


def bits_of(filter_bytes: bytes) -> set[int]:
    """The bits that are set in a filter; bit 0 is the most significant one of its first byte."""
    size = 8 * len(filter_bytes)
    number = int.from_bytes(filter_bytes, "big")
    return {bit for bit in range(size) if number >> (size - 1 - bit) & 1}


def index(path: Path) -> list[tuple[int, ...]]:
    """The records of an index: chunk id, time, epoch, position, type."""
    return list(INDEX.iter_unpack(content(path, b"OSII")))


def filter_index(path: Path, last_header: bytes) -> dict[int, list[int]]:
    """Which chunks hold which fingerprint; checksums are tested."""
    raw = content(path, b"SFLT", 2)
    *_, num_chunks, prints, ordinals, bare, uncertain, of_content, crc = struct.unpack_from(
        ">QQIIIIIII", raw
    )
    assert zlib.crc32(raw[48:], zlib.crc32(raw[:40])) == crc
    records = content(path.with_suffix(".index"), b"OSII")
    assert zlib.crc32(last_header, zlib.crc32(records)) == of_content
    form = f"<{num_chunks}Q{prints}Q{num_chunks}I{prints + 1}I{ordinals}I{bare}I{uncertain}I"
    numbers = struct.unpack(form, raw[48:])
    fingerprints = numbers[num_chunks : num_chunks + prints]
    starts = numbers[2 * num_chunks + prints :][: prints + 1]
    places = numbers[2 * num_chunks + 2 * prints + 1 :][:ordinals]
    return {key: list(places[starts[n] : starts[n + 1]]) for n, key in enumerate(fingerprints)}


class Keys(NamedTuple):
    """A key table: chunks that may hold any key, and places by print; of a place the number of the
    message is None where it may be any of the chunk."""

    end_chunk: int
    content_crc: int
    names: list[str]
    uncertain: list[int]
    places: dict[int, list[tuple[int, int | None]]]


def key_table(path: Path) -> Keys:
    """The key table of a sealed segment; all checksums are tested, and the levels of its tree."""
    raw = path.read_bytes()
    blocks = [raw[at : at + 4096] for at in range(0, len(raw), 4096)]
    crcs = [int.from_bytes(block[-4:], "big") for block in blocks]
    assert crcs[0] == zlib.crc32(blocks[0][:-4])
    assert crcs[1:] == [zlib.crc32(block[:-4], crcs[0]) for block in blocks[1:]]
    assert raw[:4] == b"SKEY"
    version = int.from_bytes(raw[4:8], "big")
    fields = struct.unpack_from(">QQIIIIQH", raw, 8)
    _, _, _, end_chunk, content_crc, num_uncertain, num_pairs, names_size = fields
    is_large = end_chunk > 65_536
    is_narrow = version == 1 and not is_large
    most, form = (682, "H") if is_narrow else (511, "I")
    bits = 0 if version == 1 else 8 if is_large else 16
    sizes = [-(-num_pairs // most)]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 1023))
    at, fences, expected = 1, [], []
    for size in reversed(sizes[1:]):
        numbers = [n for b in blocks[at : at + size] for n in struct.unpack_from("<1023I", b)]
        assert not expected or numbers[::1023] == expected
        at, fences = at + size, numbers
        expected = numbers
    prints: list[int] = []
    places: list[int] = []
    for number, block in enumerate(blocks[at : at + sizes[0]]):
        count = min(most, num_pairs - number * most)
        prints += struct.unpack_from(f"<{count}I", block)
        places += struct.unpack_from(f"<{count}{form}", block, 4 * most)
        assert not fences or fences[number] == prints[-count]
    found: dict[int, list[tuple[int, int | None]]] = {}
    every = (1 << bits) - 1
    pairs = list(zip(prints, places, strict=True))
    assert pairs == sorted(pairs)
    for key, place in pairs:
        number = place & every
        found.setdefault(key, []).append((place >> bits, None if number == every else number))
    rest = b"".join(block[:-4] for block in blocks[at + sizes[0] :])
    uncertain = list(struct.unpack_from(f"<{num_uncertain}I", rest))
    return Keys(
        end_chunk, content_crc, raw[50 : 50 + names_size].decode().split("\n"), uncertain, found
    )


def key_print(name: str, kind: bytes, value: bytes) -> int:
    """Of a key: its kind is one byte."""
    seed = zlib.crc32(name.encode(), zlib.crc32(kind))
    return int(mmh3.hash(value, seed, signed=False))


def fingerprint(value: bytes) -> int:
    """Of a filter value as trailers have it."""
    first: int = mmh3.hash64(value, seed=0, x64arch=True, signed=False)[0]
    return (first or 1) if value else 0


def checkpoint(path: Path) -> dict[str, int]:
    """The fields of a checkpoint; its checksum is tested."""
    raw = content(path, b"SCKP")
    *fields, crc = struct.unpack(">QQQQQQBI", raw)
    assert zlib.crc32(raw[:-4]) == crc
    names = "first_offset segment position num_chunks next_offset epoch has_tracking"
    return dict(zip(names.split(), fields, strict=True))


def damage(path: Path) -> list[tuple[int, ...]]:
    """Position, end, first offset and next offset of each range."""
    found = []
    for record in struct.iter_unpack(">32sI", content(path, b"SDMG")):
        assert zlib.crc32(record[0]) == record[1]
        found.append(struct.unpack(">QQQQ", record[0]))
    return found


def tracking(folder: Path) -> dict[str, dict[bytes, int]]:
    """Stored offsets, and publishing ids by publisher."""
    found = list(chunks(folder))
    end = found[-1][1].header[6] + found[-1][1].header[3] if found else 0
    state: dict[str, dict[bytes, int]] = {"offsets": {}, "sequences": {}}
    kinds = {0: "sequences", 1: "offsets"}
    since = 0
    path = folder / "tracking"
    raw, at = content(path, b"STRK") if path.exists() else b"", 0
    while at + 17 <= len(raw):
        crc, size, kind, next_offset = struct.unpack_from(">IIBQ", raw, at)
        if zlib.crc32(raw[at + 4 : at + 17 + size]) != crc:
            break
        if kind == 2 and next_offset <= end:
            since, state = next_offset, {"offsets": {}, "sequences": {}}
        if kind == 1 or next_offset <= end:
            for what, name, value in blocks(raw[at + 17 : at + 17 + size], is_snapshot=kind == 2):
                state[kinds[what]][name] = value
        at += 17 + size
    for _, chunk in found:
        if chunk.header[6] >= since:
            state["sequences"] |= {name: n for kind, name, n in chunk.blocks if kind == 0}
    return state


def read(folder: Path) -> list[tuple[int, bytes]]:
    """All messages with their offsets."""
    found: list[tuple[int, bytes]] = []
    for _, chunk in chunks(folder):
        first: Any = chunk.header[6]
        found += enumerate(chunk.messages, first)
    return found

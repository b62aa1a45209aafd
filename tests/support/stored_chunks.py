"""Chunks as streams with filter properties store them, however their messages were published.

Messages with values of all types, missing and null ones, some longer than a trailer records; in
frames with and without filter values, in sub-batches packed or not, before and after the last
property was declared; and what is left of a chunk when some bytes of it are changed.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from segments import ChunkBuilder, LogPolicy, codec
from segments.chunk import EncodedChunk
from segments.codec import CHUNK_HEADER_SIZE, IndexRecord
from segments.compression import GZIP, NO_COMPRESSION, bodies, pack
from segments.entries import Entries
from segments.format_constants import COLUMNS
from segments.message import Message, Properties
from segments.segment import INDEX_SUFFIX, SEGMENT_SUFFIX, file_path
from segments.selector import filter_value_reader, parse_property
from streamd.broker.declared.filter_contract import FilterContract
from tests.segments.selector.strategies import meeting, messages
from tests.support.logs import entry, sub_batch

NAMES = ("p", "q", "TAGS", "properties.subject")
WAYS = ("given", "some given", "some given", "plain", "plain", "packed", "gzip", "one")
_LONG = ("r" * 255, "r" * 256, "r" * 300)
_READERS = {name: filter_value_reader(parse_property(name)) for name in NAMES}
_FILLERS = [
    Message(
        b"x" * (n % 7),
        Properties(subject="ab"[n % 2]),
        {"p": f"{n % 3}", "q": "ab"[n % 2]} if n % 5 else {},
    ).encode()
    for n in range(70)
]


class StoredChunk(NamedTuple):
    """A chunk as it is stored.

    Attributes:
        head: its header and its filter.
        bodies: its messages, as who reads all of them finds them.
    """

    head: bytes
    data: bytes
    trailer: bytes
    bodies: list[bytes]

    @property
    def raw(self) -> bytes:
        """All its bytes."""
        return self.head + self.data + self.trailer

    def read(self, size: int, position: int) -> bytes:
        """Some bytes of its data."""
        return self.data[position : position + size]


class StoredStream(NamedTuple):
    """The chunks of a stream, and what it has declared.

    Attributes:
        names: of its filter properties, the first one first.
        gives_all: every message that has a value of the first has it as its filter value, and
            the chunks tell.
    """

    names: tuple[str, ...]
    is_strict: bool
    gives_all: bool
    chunks: list[StoredChunk]

    def write(self, folder: Path) -> Path:
        """Make files of it: one segment, with its index."""
        position, index = codec.FILE_HEADER_SIZE, [codec.INDEX_HEADER]
        for chunk in self.chunks:
            header = codec.decode_chunk_header(chunk.head)
            row = header.chunk_id, header.timestamp_ms, header.epoch, position, header.chunk_type
            index.append(codec.encode_index_record(IndexRecord(*row)))
            position += len(chunk.raw)
        raw = codec.SEGMENT_HEADER + b"".join(chunk.raw for chunk in self.chunks)
        Path(file_path(str(folder), 0, SEGMENT_SUFFIX)).write_bytes(raw)
        Path(file_path(str(folder), 0, INDEX_SUFFIX)).write_bytes(b"".join(index))
        return folder


@cache
def _contract(names: tuple[str, ...], is_strict: bool, derives: bool) -> FilterContract:
    return FilterContract(names, is_strict=is_strict, derives=derives)


@cache
def _meeting(name: str) -> list[bytes]:
    found = meeting(name)
    for text in _LONG:
        if name == "properties.subject":
            found.append(Message(b"x", Properties(subject=text)).encode())
        else:
            found.append(Message(b"x", application_properties={name: text}).encode())
    return found


@st.composite
def stored_streams(draw: st.DrawFn, most_chunks: int = 3) -> StoredStream:
    """A stream with one to four filter properties, and a few chunks."""
    names = tuple(draw(st.permutations(NAMES))[: draw(st.integers(1, 4))])
    is_strict, derives = (draw(st.integers(0, 2)) == 0 for _ in range(2))
    some = st.one_of(messages(), *(st.sampled_from(_meeting(name)) for name in NAMES))
    chunks, next_offset, gives_all = [], 0, True
    for _ in range(draw(st.integers(1, most_chunks))):
        builder = ChunkBuilder()
        before = draw(st.sampled_from((0.0, 0.0, 0.5, 1.0)))  # frames, as a share
        for _ in range(draw(st.integers(1, 3))):
            first, count = draw(st.tuples(st.integers(0, 40), st.sampled_from((0, 3, 30))))
            raws = _FILLERS[first : first + count] + draw(st.lists(some, max_size=5))
            way = draw(st.sampled_from(WAYS))
            own = list(map(_READERS[names[0]], raws))
            given = [v if way != "some given" or draw(st.booleans()) else b"" for v in own]
            known = names[:-1] if before > draw(st.sampled_from((0.25, 0.75))) else names
            contract = _contract(known or names, is_strict, derives)
            added = _published(raws, given, way, contract) if raws else None
            if added is not None:
                builder.add(*added[1:])
                has_all = way in ("given", "some given") and given == own
                gives_all &= is_strict or derives or has_all
        if builder.num_entries:
            policy = LogPolicy(
                filter_size=draw(st.sampled_from((16, 255))),
                filter_history=draw(st.integers(0, 5)) > 0,
            )
            gives_all &= policy.filter_history  # else it is not told which numbers have theirs
            chunk = builder.encode(chunk_id=next_offset, timestamp_ms=1, epoch=1, policy=policy)
            next_offset = chunk.header.next_offset
            chunks.append(_stored(chunk))
    return StoredStream(names, is_strict, gives_all, chunks)


def _published(
    raws: Sequence[bytes], given: Sequence[bytes], way: str, contract: FilterContract
) -> Entries | None:
    if way in ("packed", "gzip", "one"):
        raws = raws[:1] if way == "one" else raws
        compression = GZIP if way == "gzip" else NO_COMPRESSION
        body, size = pack(raws, compression)
        data = sub_batch(body, len(raws), compression, size)
        return contract.check_sub_batch(Entries(bytes(8), data, 1, len(raws), None)).entries
    ids = b"".join(n.to_bytes(8, "big") for n in range(len(raws)))
    values = None if way == "plain" or not any(given) else list(given)
    data = b"".join(map(entry, raws))
    return contract.check(Entries(ids, data, len(raws), len(raws), values)).entries


def _stored(chunk: EncodedChunk) -> StoredChunk:
    head, data, trailer = chunk.parts
    return StoredChunk(head, data, trailer, list(bodies(data)))


def without_columns(chunk: StoredChunk) -> StoredChunk:
    """The chunk as servers of before have written it."""
    at = 0
    while chunk.trailer[at : at + 1] == bytes((COLUMNS,)):
        at += 10 + chunk.trailer[at + 1]
    trailer = chunk.trailer[at:]
    header = codec.decode_chunk_header(chunk.head)._replace(trailer_size=len(trailer))
    checked = codec.encode_chunk_header(header)[: codec.CHECKED_HEADER_SIZE]
    filter_bytes = chunk.head[CHUNK_HEADER_SIZE:]
    check = codec.header_check(checked, filter_bytes, trailer)
    head = codec.append_header_check(checked, check) + filter_bytes
    return chunk._replace(head=head, trailer=trailer)


@st.composite
def damaged(draw: st.DrawFn, chunk: StoredChunk) -> StoredChunk:
    """The chunk with other bytes in its filter, its check or its trailer."""
    head, trailer = bytearray(chunk.head), bytearray(chunk.trailer)
    places = [(head, n) for n in range(codec.CHECKED_HEADER_SIZE, len(head))]
    places += [(trailer, n) for n in range(len(trailer))]
    for part, at in draw(st.lists(st.sampled_from(places), min_size=1, max_size=3)):
        part[at] ^= draw(st.integers(1, 255))
    return chunk._replace(head=bytes(head), trailer=bytes(trailer))


def is_sound(chunk: StoredChunk) -> bool:
    """Whether it passes its check."""
    head, header = chunk.head, codec.decode_chunk_header(chunk.head)
    checked, filter_bytes = head[: codec.CHECKED_HEADER_SIZE], head[CHUNK_HEADER_SIZE:]
    return codec.header_check(checked, filter_bytes, chunk.trailer) == header.header_check

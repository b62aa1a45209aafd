"""Which filter values each chunk of a stream has held: from the trailers, or from the messages.

Of the trailers' chunks only headers and trailers are read. Where chunks have no history in their
trailers (written by RabbitMQ, or with filter-history=false), a property of the messages can stand
in: then everything is read.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segments.bloom import history_form
from segments.codec import CHUNK_HEADER_SIZE, encode_chunk_header
from segments.format_constants import FILTER_VALUE
from segments.selector import parse_property
from segments.spark import headers as columns
from segments.spark.columns import TOKEN_PREFIX, filter_values_of
from segments.spark.entries import MessageBlock, read_piece
from segments.spark.headers import Bytes, Mask, Numbers
from segments.spark.maps import slices
from segments.spark.messages import PADDING
from segments.spark.plan import Piece

_HEAD, _COUNT = 2, 8  # bytes of a trailer block before and behind its value
_CHUNKS_AT_ONCE, _BYTES_AT_ONCE = 4096, 64 << 20


class History(NamedTuple):
    """What some chunks, neighbours in a stream, have held.

    Attributes:
        ordinals: place of each chunk in the stream, from 0.
        chunks: of each entry, the place of its chunk in this history; ascending.
        values: of each entry, the place of its filter value in `names`.
        counts: of each entry, how many messages of the chunk have the value.
        names: the distinct filter values, in the form that trailers have them.
    """

    ordinals: Numbers
    records: Numbers
    data_bytes: Numbers
    filter_sizes: Numbers
    chunks: Numbers
    values: Numbers
    counts: Numbers
    names: list[bytes]


def read_history(piece: Piece, first_ordinal: int, prop: str | None) -> Iterator[History]:
    """The history of a piece, some thousand chunks at a time.

    Args:
        piece: some chunks.
        first_ordinal: place in the stream of the first of them.
        prop: the property whose values stand in for filter values; None reads the trailers.

    Raises:
        CorruptError: a chunk is damaged, when messages have to be read.
        StorageError, TierError: they cannot be read.
    """
    if prop is not None:
        yield from _from_messages(piece, first_ordinal, prop)
        return
    for first, last in _parts(piece):
        yield _from_trailers(piece.part(first, last), first_ordinal + first)


def _parts(piece: Piece) -> Iterator[tuple[int, int]]:
    """Its chunks in parts of so many chunks, and so many bytes, that they fit into memory."""
    first, number = 0, len(piece.positions)
    while first < number:
        limit = int(piece.positions[first]) + _BYTES_AT_ONCE
        last = int(np.searchsorted(piece.positions, limit))
        last = min(max(last, first + 1), first + _CHUNKS_AT_ONCE)
        yield first, last
        first = last


def _from_trailers(piece: Piece, first_ordinal: int) -> History:
    positions = piece.positions
    start, end = int(positions[0]), int(positions[-1] + piece.sizes[-1])
    window = piece.file.window(start, end)
    window.load(positions, positions + CHUNK_HEADER_SIZE)
    found = columns.gather(window.content, positions - start)
    begins = columns.trailer_positions(found, positions)
    sizes = found["trailer_size"].astype(np.int64)
    window.load(begins, begins + sizes)
    view = window.content.data
    parts = [
        view[begin:end]
        for begin, end in zip(
            (begins - start).tolist(), (begins - start + sizes).tolist(), strict=True
        )
    ]
    buffer = np.frombuffer(b"".join((*parts, bytes(PADDING))), np.uint8)
    ends = np.cumsum(sizes)
    chunks, starts, stops = _blocks(buffer, ends - sizes, ends)
    encoded = slices(buffer, starts, stops).dictionary_encode()
    numbers = np.ndarray((len(buffer) - 7,), ">u8", buffer, strides=(1,))
    return _history(found, first_ordinal, chunks, encoded, numbers[stops].astype(np.int64))


def _blocks(buffer: Bytes, at: Numbers, ends: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """The blocks with filter values in many trailers: chunk, and where the value is; in order.

    All trailers advance together, a block per step; one that is damaged ends where it is.
    """
    lanes = np.flatnonzero(at < ends)
    at, ends = at[lanes], ends[lanes]
    steps: list[tuple[Numbers, Numbers, Numbers]] = []
    while len(lanes):
        start = at + _HEAD
        stop = start + buffer[at + 1]
        is_whole = stop + _COUNT <= ends
        wanted = is_whole & (buffer[at] == FILTER_VALUE)
        steps.append((lanes[wanted], start[wanted], stop[wanted]))
        at = stop + _COUNT
        goes_on = is_whole & (at < ends)
        lanes, at, ends = lanes[goes_on], at[goes_on], ends[goes_on]
    empty = np.empty(0, np.int64)
    chunks, starts, stops = (
        np.concatenate([empty, *column])
        for column in (zip(*steps, strict=True) if steps else ((),) * 3)
    )
    order = np.argsort(starts, kind="stable")
    return chunks[order], starts[order], stops[order]


def _from_messages(piece: Piece, first_ordinal: int, prop: str) -> Iterator[History]:
    filter_property = parse_property(prop)
    ordinal = first_ordinal
    for found in read_piece(piece):
        if not isinstance(found, MessageBlock):
            raise found.error()
        encoded = filter_values_of(found, filter_property).values.dictionary_encode()
        values = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        has_value = values >= 0
        width = len(encoded.dictionary) + 1
        keys, counts = np.unique(
            found.chunks[has_value] * width + values[has_value], return_counts=True
        )
        headers = np.frombuffer(
            b"".join(map(encode_chunk_header, found.headers)), columns.HEADER_DTYPE
        )
        indices = pa.array(keys % width, pa.int32())
        entries = pa.DictionaryArray.from_arrays(indices, encoded.dictionary)
        yield _history(headers, ordinal, keys // width, entries, counts)
        ordinal += len(found.headers)


def _history(
    headers: columns.Headers,
    first_ordinal: int,
    chunks: Numbers,
    encoded: pa.DictionaryArray,
    counts: Numbers,
) -> History:
    """Put together, without what stands for messages without a value or for selectors."""
    names = encoded.dictionary
    values = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    is_none = pc.equal(pc.binary_length(names), 0)
    is_left_out = pc.or_(is_none, pc.starts_with(names, TOKEN_PREFIX))
    keep: Mask = ~is_left_out.to_numpy(zero_copy_only=False)[values]
    return History(
        first_ordinal + np.arange(len(headers)),
        headers["num_records"].astype(np.int64),
        headers["data_size"].astype(np.int64),
        headers["filter_size"].astype(np.int64),
        chunks[keep],
        values[keep],
        counts[keep],
        [history_form(name) for name in names.to_pylist()],
    )

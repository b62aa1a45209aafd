"""Chunk headers and index records as columns of numbers: thousands of chunks in one step.

The numpy twins of `segments.codec`; a property test compares the two.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from segments.codec import CHUNK_HEADER_SIZE, FILE_HEADER_SIZE, INDEX_RECORD_SIZE
from segments.format_constants import CHUNK_MAGIC, MIN_FILTER_SIZE, TRACKING_SNAPSHOT, USER

Bytes: TypeAlias = npt.NDArray[np.uint8]
Numbers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Headers: TypeAlias = npt.NDArray[Any]  # of HEADER_DTYPE, a chunk each
Records: TypeAlias = npt.NDArray[Any]  # of _INDEX_DTYPE, a chunk each

HEADER_DTYPE = np.dtype(
    [
        ("magic", "u1"),
        ("chunk_type", "u1"),
        ("num_entries", ">u2"),
        ("num_records", ">u4"),
        ("timestamp_ms", ">i8"),
        ("epoch", ">u8"),
        ("chunk_id", ">u8"),
        ("data_crc", ">u4"),
        ("data_size", ">u4"),
        ("trailer_size", ">u4"),
        ("filter_size", "u1"),
        ("filter_scheme", "u1"),
        ("header_check", ">u2"),
    ]
)
_INDEX_DTYPE = np.dtype(
    [
        ("chunk_id", ">u8"),
        ("timestamp_ms", ">i8"),
        ("epoch", ">u8"),
        ("position", ">u4"),
        ("chunk_type", "u1"),
    ]
)
_BLOCK = 1 << 16  # headers gathered at once


def index_records(raw: bytes) -> Records:
    """The whole records of an index file, header included."""
    count = max(0, len(raw) - FILE_HEADER_SIZE) // INDEX_RECORD_SIZE
    return np.frombuffer(raw, _INDEX_DTYPE, count, FILE_HEADER_SIZE if count else 0)


def index_columns(raw: bytes) -> tuple[Numbers, Numbers]:
    """Positions and chunk ids of the whole records of an index file, header included."""
    records = index_records(raw)
    return records["position"].astype(np.int64), records["chunk_id"].astype(np.int64)


def gather(content: Bytes, positions: Numbers) -> Headers:
    """The headers at some positions of a segment's content; all of them must be within it."""
    found = np.empty(len(positions), HEADER_DTYPE)
    if not len(positions):
        return found
    windows = np.lib.stride_tricks.sliding_window_view(content, CHUNK_HEADER_SIZE)
    for start in range(0, len(positions), _BLOCK):
        rows = windows[positions[start : start + _BLOCK]]
        found[start : start + len(rows)] = rows.reshape(-1).view(HEADER_DTYPE)
    return found


def total_sizes(headers: Headers) -> Numbers:
    """Bytes of each whole chunk: header, filter, data, trailer."""
    total: Numbers = np.full(len(headers), CHUNK_HEADER_SIZE, np.int64)
    total += headers["filter_size"]
    total += headers["data_size"]
    total += headers["trailer_size"]
    return total


def data_positions(headers: Headers, positions: Numbers) -> Numbers:
    """Where each chunk's data section begins."""
    places: Numbers = positions + CHUNK_HEADER_SIZE + headers["filter_size"]
    return places


def trailer_positions(headers: Headers, positions: Numbers) -> Numbers:
    """Where each chunk's trailer begins."""
    return data_positions(headers, positions) + headers["data_size"].astype(np.int64)


def next_offsets(headers: Headers) -> Numbers:
    """The offset after each chunk's last message."""
    return headers["chunk_id"].astype(np.int64) + headers["num_records"].astype(np.int64)


def are_sound(headers: Headers) -> Mask:
    """Which headers `codec.decode_chunk_header` takes."""
    entries, records = headers["num_entries"], headers["num_records"]
    size, kind = headers["filter_size"], headers["chunk_type"]
    is_bare = (records == 1) & (size == 0) & (headers["trailer_size"] == 0)
    sound: Mask = (
        (headers["magic"] == CHUNK_MAGIC)
        & (entries > 0)
        & (entries <= records)
        & ((size == 0) | (size >= MIN_FILTER_SIZE))
        & ((kind == USER) | ((kind <= TRACKING_SNAPSHOT) & is_bare))
    )
    return sound

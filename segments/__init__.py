"""Stream logs on disk: chunks with Bloom filters in segment files, laid out as in rabbitmq/osiris.

Plain synchronous code: no event loop, no sockets, no clock. `Log` appends and finds, `Reader`
reads forward and skips chunks that a filter rules out.

What is assumed of a disk: when the process dies, everything that a write call took is kept, in
order, the last write possibly in part. When the power fails, anything since the last sync may be
lost, in any order, and torn. A sync that returned keeps its promise. A rename replaces a file in
one step.
"""

from segments.bloom import ChunkMatcher
from segments.chunk import ChunkBuilder
from segments.errors import (
    CorruptError,
    FormatError,
    SegmentsError,
    StorageError,
)
from segments.log import Log, RecoveryReport
from segments.offset_lookup import Position
from segments.offsets import FIRST, LAST, NEXT, OffsetSpec, Start, at_offset, at_time
from segments.policy import LogPolicy
from segments.reader import Reader, StoredChunk

__all__ = [
    "FIRST",
    "LAST",
    "NEXT",
    "ChunkBuilder",
    "ChunkMatcher",
    "CorruptError",
    "FormatError",
    "Log",
    "LogPolicy",
    "OffsetSpec",
    "Position",
    "Reader",
    "RecoveryReport",
    "SegmentsError",
    "Start",
    "StorageError",
    "StoredChunk",
    "at_offset",
    "at_time",
]

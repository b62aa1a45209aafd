"""Stream logs on disk: chunks with Bloom filters in segment files, laid out as in rabbitmq/osiris.

Plain synchronous code: no event loop, no sockets, no clock. `Log` appends and finds, `Reader`
reads forward and skips chunks that a filter rules out.

What is assumed of a disk: when the process dies, everything that a write call took is kept, in
order, the last write possibly in part. When the power fails, anything since the last sync may be
lost, in any order, and torn. A sync that returned keeps its promise. A rename replaces a file in
one step.
"""

from typing import TYPE_CHECKING

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

# A door needs errors and offsets, not the log: each is loaded when it is asked for.
if TYPE_CHECKING:
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
else:
    _HOMES = {
        "bloom": "ChunkMatcher",
        "chunk": "ChunkBuilder",
        "errors": "CorruptError FormatError SegmentsError StorageError",
        "log": "Log RecoveryReport",
        "offset_lookup": "Position",
        "offsets": "FIRST LAST NEXT OffsetSpec Start at_offset at_time",
        "policy": "LogPolicy",
        "reader": "Reader StoredChunk",
    }

    def __getattr__(name):  # noqa: ANN001, ANN202 - not for type checkers
        from importlib import import_module  # noqa: PLC0415 - as above

        for home, names in _HOMES.items():
            if name in names.split():
                return getattr(import_module(f"segments.{home}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

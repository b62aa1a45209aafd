"""The offsets that consumers have stored in a stream, and how far behind they are."""

from collections.abc import Callable

from segments import Log, StorageError, at_offset
from segments.chunk_search import Place, time_of
from segments.store.cache import ColdError
from streamd.broker.streams.stream import Stream
from streamd.net.turns import in_turns
from streamd.operations.streams import StoredOffset


async def stored_offsets(stream: Stream, now_ms: Callable[[], int]) -> list[StoredOffset]:
    """The stored offsets of a stream that is held open, by reference; others have their turns.

    Args:
        stream: the stream.
        now_ms: the wall clock, in ms since 1970.

    Raises:
        Refused: what was stored is not safe yet, and the store that is to confirm it takes long.
    """
    await stream.settled_soon()
    found: list[StoredOffset] = []
    async for reference, offset in in_turns(sorted(stream.stored_offsets().items())):
        if not stream.is_open:
            break  # deleted meanwhile
        log = stream.log
        behind = log.segments.gaps.num_between(
            max(offset + 1, log.segments.first_offset), log.committed_offset
        )
        seconds = _seconds_behind(log, offset + 1, now_ms()) if behind else 0.0
        name = reference.decode("utf-8", "backslashreplace")
        found.append(StoredOffset(name, offset, behind, seconds))
    return found


def _seconds_behind(log: Log, offset: int, now_ms: int) -> float | None:
    """Since the chunk with `offset`, or the first after it, was written."""
    try:
        segment, position, chunk_id = log.segments.find(at_offset(offset))
        written_ms = time_of(segment, Place(position, chunk_id))
    except (StorageError, ColdError):
        return None
    return None if written_ms is None else max(0, now_ms - written_ms) / 1000

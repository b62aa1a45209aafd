"""Slots of write-ahead logs in the store: whether they are right, and which of them nobody needs.

Nobody needs a slot of an earlier epoch that is before the mark of its log, or whose log has none:
it is left where the store failed while the log was shortened, or where a server that was taken over
has written behind its fence. Fences stay for good, see segments/store/wal.py, and so does what
cannot be read. These functions block; call them in a thread.
"""

from collections.abc import Iterable, Iterator

from segments.errors import FormatError
from segments.store.cluster import WalMark
from segments.store.object_names import WAL_FOLDER, StreamKey
from segments.store.object_store import Listed, MissingError, ObjectStore
from segments.store.wal import MOST_SLOT, chunks_in, decode_slot, slot_in

_MOST_FENCE = 4_096  # bytes; what is larger has chunks


def check_slot(store: ObjectStore, key: str, stream: StreamKey) -> int:
    """Read a slot, and what it has of a stream; its size in bytes.

    Raises:
        MissingError: it is not there.
        FormatError: it is damaged, or has nothing of the stream.
        TierError: the store did not answer.
    """
    content = store.get(key, MOST_SLOT).content
    slot, parts = decode_slot(key, content)
    found = [n for n, section in enumerate(slot.sections) if section.key == stream]
    if not found:
        raise FormatError(f"it has nothing of {stream.stream}")
    for number in found:
        section, end = slot.sections[number], slot.sections[number].after
        for header, _ in chunks_in(parts[number]):
            if header.chunk_id < end:
                raise FormatError(f"a chunk at offset {header.chunk_id} is not behind {end}")
            end = header.next_offset
        if end != section.next_offset:
            raise FormatError(f"its chunks end at offset {end}, expected {section.next_offset}")
    return len(content)


def unneeded(store: ObjectStore, marks: Iterable[WalMark], epoch: int) -> Iterator[Listed]:
    """Slots of epochs before this one that nobody needs.

    Args:
        store: where they are.
        marks: of logs that are to be read.
        epoch: of the server that asks, whose own log is left alone.

    Raises:
        TierError: the store did not answer.
    """
    begins = {mark.epoch: mark.begins for mark in marks}
    for one in store.listing(WAL_FOLDER):
        place = slot_in(one.key)
        if place is None or place[0] >= epoch or place[1] >= begins.get(place[0], place[1] + 1):
            continue
        if not (one.size <= _MOST_FENCE and _may_be_fence(store, one.key)):
            yield one


def _may_be_fence(store: ObjectStore, key: str) -> bool:
    try:
        return decode_slot(key, store.get(key, _MOST_FENCE).content)[0].is_fence
    except (FormatError, MissingError):
        return True

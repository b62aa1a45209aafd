"""What a manifest should say of a log: which segments come next, and which are gone.

Sealed segments are stored in order, so what is stored has no holes but those of the log. Segments
that the log has dropped leave the manifest at once, with one exception: when a log was truncated
inside a stored segment, its first segment is the rest of that one. The stored one stays in the
manifest until the rest is stored, and then one change swaps them, so at no time does the store lack
messages that the log has.
"""

from collections.abc import Sequence

from segments.log import Log
from segments.segment import Segment
from segments.store.manifest import Manifest, StoredSegment, changed_segments, number_before


def next_unstored(log: Log) -> Segment | None:
    """The oldest sealed segment that is not stored."""
    return next(iter(log.segments.unstored), None)


def is_stored_to(log: Log, offset: int) -> bool:
    """The store has all messages before an offset that the log still has."""
    newest = log.segments.shown[-1]
    waiting = log.segments.unstored or ([newest] if newest.num_chunks else [])
    return not waiting or waiting[0].base_offset >= offset


def kept_segments(
    log: Log, stored: Sequence[StoredSegment], new: StoredSegment | None = None
) -> tuple[StoredSegment, ...]:
    """What a manifest should list.

    Args:
        log: the log. All that is listed from its first offset on is part of it; see `conflict`.
        stored: what it lists now.
        new: what was uploaded since, a segment of the log.
    """
    first = log.segments.kept_from
    dropped = number_before(stored, first)
    kept = list(stored[dropped:])
    if new is not None:
        at = number_before(kept, new.base_offset)
        kept[at : number_before(kept, new.base_offset + 1)] = [new]
    if not kept or kept[0].base_offset > first:  # the log begins with a rest that is not stored
        kept[:0] = [one for one in stored[:dropped][-1:] if first < one.next_offset]
    return tuple(kept)


def conflict(log: Log, manifest: Manifest) -> str:
    """Why a manifest cannot be of this log, as when the log is from an older backup; else empty.

    Args:
        log: the log.
        manifest: as the store has it, written by this server, perhaps in an earlier life.
    """
    if manifest.next_offset > log.committed_offset:
        return (
            f"the tier has messages up to offset {manifest.next_offset}, the data folder only up "
            f"to {log.committed_offset}"
        )
    # What the log already knows to be in the store was compared: these are nearly all.
    known = [segment.stored for segment in log.segments.shown if segment.stored is not None]
    lost, new = changed_segments(known, manifest.segments)
    named = {one.base_offset for one in new}
    for one in lost:
        base, here = one.base_offset, log.segments.at(one.base_offset)
        if here is not None and here.cold is not None and base not in named:
            return f"the segment from offset {base} on is in neither the tier nor the data folder"
    for one in new:
        if (
            one.next_offset <= log.segments.first_offset
            or one.base_offset < log.segments.first_offset
        ):
            continue
        here = log.segments.at(one.base_offset)
        if here is None or not log.segments.is_sealed(here):
            return f"the tier has a segment from offset {one.base_offset} on, the data folder none"
        if here.cold is None and not here.is_as_stored(one):
            return f"the segment from offset {one.base_offset} on is another one in the tier"
    return ""

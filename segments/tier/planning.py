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
from segments.tier.manifest import Manifest, StoredSegment


def sealed_segments(log: Log) -> list[Segment]:
    """Those to which nothing is added any more, and that hold something; oldest first."""
    return [one for one in log.segments if log.is_sealed(one) and one.num_chunks]


def next_unstored(log: Log) -> Segment | None:
    """The oldest sealed segment that is not stored."""
    unstored = (one for one in log.segments if one.stored is None)
    return next((one for one in unstored if log.is_sealed(one) and one.num_chunks), None)


def kept_segments(
    log: Log, stored: Sequence[StoredSegment], new: StoredSegment | None = None
) -> tuple[StoredSegment, ...]:
    """What a manifest should list.

    Args:
        log: the log.
        stored: what it lists now.
        new: what was uploaded since, a segment of the log.
    """
    wanted = {one.base_offset: one for one in stored}
    if new is not None:
        wanted[new.base_offset] = new
    bases = {segment.base_offset for segment in log.segments}
    kept = [one for base, one in sorted(wanted.items()) if base in bases]
    first = log.segments[0].base_offset
    if not kept or kept[0].base_offset > first:  # the log begins with a rest that is not stored
        kept[:0] = [one for one in stored if one.base_offset < first < one.next_offset]
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
    segments = {segment.base_offset: segment for segment in log.segments}
    named = {one.base_offset for one in manifest.segments}
    for base, segment in segments.items():
        if segment.cold is not None and base not in named:
            return f"the segment from offset {base} on is in neither the tier nor the data folder"
    for one in manifest.segments:
        if one.next_offset <= log.first_offset or one.base_offset < log.first_offset:
            continue
        here = segments.get(one.base_offset)
        if here is None or not log.is_sealed(here):
            return f"the tier has a segment from offset {one.base_offset} on, the data folder none"
        if here.cold is None and not here.is_as_stored(one):
            return f"the segment from offset {one.base_offset} on is another one in the tier"
    return ""

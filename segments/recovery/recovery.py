"""Finding out what a stream's folder holds after a crash, and what has to be done to it.

`examine` reads and writes nothing; it returns every segment as it will be, and the steps that
make the files so (steps.py). The checkpoint says how much was on the device for certain:

* Before it everything is trusted unread where index, segment and the next segment's name agree
  on where it ends. Else the segment is read through. What is damaged there is never cut: readers
  step over it, its offsets are reported as lost, and the place is written to the damage file.
* After it everything is read through and every checksum tested. The log ends at the first fault:
  what follows was not on the device when the power failed, and any part of it may be missing. A
  torn append is cut off; whole chunks and segments after it go into quarantine. Keeping them in
  the log would be wrong: a publisher that sent the missing ones again would be taken to repeat
  itself.
* Without a checkpoint, as in a folder that another program wrote, it is taken to be at the start
  of the newest segment.
* An index is derived: one that is missing, short or wrong is rebuilt from its segment. The filter
  file of the segment in which the log ends may know chunks that are gone: it is removed, before
  others take their places.
* What the device refuses to read (EIO) is neither whole nor damaged: it may be read the next time.
  So nothing is cut, set aside or forgotten because of it. Before the checkpoint readers step over
  it, and each opening looks whether it can be read again. After the checkpoint, where the log would
  have to end, opening is refused; the broker tries again when the stream is used. The same goes for
  the checkpoint itself, without which a torn end would be trusted, and for the journal, which alone
  knows stored offsets. No number of attempts tells a cable that is loose for an hour from a sector
  that is lost, so an operator decides: with a file `salvage` in the stream's folder the next
  opening takes for damaged what cannot be read. The log ends there then, and a copy of what follows
  is kept, with zeros in the place of what cannot be read.
* A segment that the copy of the manifest names, and whose file is not there, is cold: the store has
  it, and what is beside it stays. Nothing is appended to it.
* Offsets are never used twice: an empty newest segment keeps the base offset in its name, what the
  checkpoint covered and is now missing is left out, and where readers may have seen more than that
  before the machine went down, the log goes on behind a gap (gaps.py).
"""

import itertools
from collections.abc import Collection, Sequence
from pathlib import PurePath

from segments import codec
from segments.atomic_write import TEMPORARY_SUFFIX
from segments.checkpoint import CHECKPOINT_NAME, read_checkpoint
from segments.codec import Checkpoint, Damage
from segments.disk import Disk
from segments.errors import CorruptError, FormatError, LostCopyError, UnreadableError
from segments.gaps import OFFSET_GAP, RESTORE_GAP, end_before, num_lost
from segments.marks import AHEAD, LIFE, marked, restored_in
from segments.recovery.segment_scan import SegmentScanner
from segments.recovery.steps import Loss, Plan, Remove, Replace, SetAside
from segments.segment import (
    DAMAGE_SUFFIX,
    DERIVED_SUFFIXES,
    INDEX_SUFFIX,
    KEYS_SUFFIX,
    MAX_OFFSET,
    SEGMENT_SUFFIX,
    SUFFIXES,
    KeyState,
    Segment,
    beginning,
    file_path,
    files_by_base,
)
from segments.store.cache import TierCache
from segments.store.local_copy import MANIFEST_FILE, UNRESTORED_FILE, check_restored, copy_in
from segments.store.manifest import Manifest, StoredSegment

SALVAGE_NAME = "salvage"
_OUTLIVED = "retention had dropped it"
_TRUNCATED = "the log was told to begin behind it"


def examine(disk: Disk, folder: str, *, trust_indexes: bool = True, salvages: bool = False) -> Plan:
    """Look at the stream in `folder` and say what it holds and what has to be done.

    Args:
        disk: the file system.
        folder: the stream's folder.
        trust_indexes: False reads every segment through, not only doubtful ones.
        salvages: take what the device refuses to read for damaged, wherever it is.

    Raises:
        UnreadableError: the device refuses to read what decides how much is kept.
        CorruptError: a segment is not one, or has an impossible name.
        OtherVersionError: another version of this program wrote a file.
        UnrestoredError: it could not be restored.
        LostCopyError: what says which segments are cold is not there any more.
        StorageError: the system refused to list or read.
    """
    names = disk.list(folder)
    plan = Plan([], [], [], salvages=salvages or SALVAGE_NAME in names)
    if CHECKPOINT_NAME in names:
        try:
            plan.checkpoint = read_checkpoint(disk, folder)
        except FormatError as error:
            if isinstance(error, UnreadableError) and not plan.salvages:
                raise
            plan.checkpoint_fault = str(error)
    suffixes = files_by_base(names)
    plan.manifest = _manifest(disk, folder, names)
    lives = marked(names, LIFE)
    plan.has_files, plan.has_life = bool(names), bool(lives)
    if plan.manifest is not None:
        lives = lives or [plan.manifest.stream.creation]
    plan.life = max(lives, default="")
    cold = _cold(plan.manifest, suffixes)
    newest = max(
        (b for b, found in suffixes.items() if SEGMENT_SUFFIX in found), default=MAX_OFFSET
    )
    if newest > MAX_OFFSET:
        path = file_path(folder, newest, SEGMENT_SUFFIX)
        reason = f"its name is an offset above {MAX_OFFSET}; move it to another folder"
        raise CorruptError(path, 0, reason)
    gone = _remove_remains(plan, folder, names, suffixes, cold)
    begins_at = beginning(suffixes)
    for base in cold:
        suffixes.setdefault(base, set())
    bases = _without(plan, folder, suffixes, begins_at, _TRUNCATED)
    if plan.checkpoint is not None:
        begins_at = max(begins_at, plan.checkpoint.first_offset)
        sealed = range(begins_at, min(newest, plan.checkpoint.next_offset))
        _check_newest(plan, disk, folder, gone - _unfinished(names), sealed)
        bases = _without(plan, folder, suffixes, begins_at, _OUTLIVED)
    _examine_all(plan, disk, folder, bases, begins_at, suffixes, cold, trust_indexes=trust_indexes)
    _grow_again(plan, suffixes)
    if plan.checkpoint is not None:
        _keep_offsets(plan, plan.checkpoint, folder)
    _look_at_boots(plan, marked(names, AHEAD), disk.boot())
    ends = [plan.segments[-1].next_offset] if plan.segments else [e.base_offset for e in plan.empty]
    plan.ends_at = min(ends, default=plan.next_offset)
    return plan


def _look_at_boots(plan: Plan, boots: Sequence[str], now: str) -> None:
    """Boots of which readers may have seen what is not on the device."""
    plan.boots = boots
    last = plan.segments[-1] if plan.segments else None
    if boots and last is not None and last.cold is None and last not in plan.unflushed:
        # Who opened it last may have been killed in the midst: its cut may not be on the device.
        plan.unflushed.append(last)
    if any(boot != now for boot in boots):
        _go_on_behind_gap(plan)


def _go_on_behind_gap(plan: Plan) -> None:
    """Readers may have seen more than is left of it."""
    if plan.segments:
        plan.next_offset = max(plan.next_offset, plan.segments[-1].next_offset)
        _drop_empty(plan)
    goes_on = max(map(restored_in, plan.boots)) * RESTORE_GAP
    if plan.manifest is not None:
        goes_on = max(goes_on, plan.manifest.goes_on)
    num_gaps = -(-(goes_on - plan.next_offset) // OFFSET_GAP)  # whole ones: nothing is lost there
    plan.gap = max(1, num_gaps) * OFFSET_GAP


def _is_empty(segment: Segment) -> bool:
    return segment.cold is None and not segment.num_chunks and not segment.damage


def _manifest(disk: Disk, folder: str, names: Collection[str]) -> Manifest | None:
    """The copy of what a store has, where there is one, in a folder that could be restored."""
    if UNRESTORED_FILE in names:
        check_restored(disk, folder)
    return copy_in(disk, folder, names)


def _grow_again(plan: Plan, suffixes: dict[int, set[str]]) -> None:
    """The newest segment is to be appended to, unless it is cold, or there is none."""
    if not plan.segments:
        if plan.manifest is not None:
            plan.next_offset = plan.manifest.next_offset  # all of it has outlived its limits
        return
    last = plan.segments[-1]
    if last.cold is not None:
        plan.next_offset = last.next_offset
        return
    plan.steps += [
        Remove(last.path(suffix), "its segment grows again, after chunks that it may know")
        for suffix in DERIVED_SUFFIXES
        if suffix in suffixes[last.base_offset]
    ]


def _remove_remains(
    plan: Plan,
    folder: str,
    names: Sequence[str],
    suffixes: dict[int, set[str]],
    cold: Collection[int],
) -> set[int]:
    """Remove what belongs to segments that are gone, and files that were not made to the end.

    Returns:
        Base offsets of segments that are gone, and whose indexes are there.
    """
    orphans = [
        (base, suffix)
        for base in sorted(suffixes)
        if SEGMENT_SUFFIX not in suffixes[base] and base not in cold
        for suffix in sorted(suffixes[base])
    ]
    plan.steps += [
        Remove(file_path(folder, base, suffix), "its segment file is missing")
        for base, suffix in orphans
    ]
    plan.steps += [
        Remove(str(PurePath(folder, name)), "the file that it was to replace is the valid one")
        for name in names
        if name.endswith(TEMPORARY_SUFFIX)
    ]
    for base in {base for base, _ in orphans}:
        del suffixes[base]
    return {base for base, suffix in orphans if suffix == INDEX_SUFFIX}


def _unfinished(names: Collection[str]) -> set[int]:
    """Base offsets of segments that a truncation was copying, see truncation.py."""
    ending = SEGMENT_SUFFIX + TEMPORARY_SUFFIX
    copies = (name.removesuffix(TEMPORARY_SUFFIX) for name in names if name.endswith(ending))
    return set(files_by_base(copies))


def _check_newest(plan: Plan, disk: Disk, folder: str, gone: Collection[int], where: range) -> None:
    """Raise LostCopyError where the manifest is older than files of segments that became cold.

    An index alone is also left by a kill while the segment behind all others was created, or by a
    power failure that took a segment which was not flushed. Those are not in `where`: a segment is
    cold after a checkpoint behind it, unless no room could be found for one. Or while an empty one
    was removed.
    """
    if plan.manifest is not None and any(
        base in where and not _is_empty_file(disk, file_path(folder, base, INDEX_SUFFIX))
        for base in gone
    ):
        path = str(PurePath(folder, MANIFEST_FILE))
        raise LostCopyError(path, "is an older one", plan.manifest.stream.creation)


def _is_empty_file(disk: Disk, path: str) -> bool:
    file = disk.open(path, writable=False)
    try:
        return file.size() <= codec.FILE_HEADER_SIZE
    finally:
        file.close()


def _cold(manifest: Manifest | None, found: dict[int, set[str]]) -> dict[int, StoredSegment]:
    """Segments that are only in the store, by base offset."""
    stored = () if manifest is None else manifest.segments
    bases = {one.base_offset: one for one in stored}
    return {b: s for b, s in bases.items() if SEGMENT_SUFFIX not in found.get(b, ())}


def _take_cold(plan: Plan, segment: Segment, epoch: int, next_base: int | None) -> None:
    """A segment is only in the store; offsets between it and the next one were lost."""
    plan.segments.append(segment)
    plan.last_epoch = max(plan.last_epoch, epoch)
    plan.is_ended = next_base is None
    if next_base is not None:
        segment.reaches_to(next_base)


def _without(
    plan: Plan, folder: str, suffixes: dict[int, set[str]], begins_at: int, reason: str
) -> list[int]:
    """Finish the removal of older segments that was begun; returns the base offsets that stay."""
    for base in [base for base in sorted(suffixes) if base < begins_at]:
        found = suffixes.pop(base)
        plan.steps += [
            Remove(file_path(folder, base, suffix), reason)
            for suffix in SUFFIXES
            if suffix in found
        ]
    return sorted(suffixes)


def _examine_all(
    plan: Plan,
    disk: Disk,
    folder: str,
    bases: Sequence[int],
    first: int,
    suffixes: dict[int, set[str]],
    cold: dict[int, StoredSegment],
    *,
    trust_indexes: bool,
) -> None:
    cache = TierCache(disk=disk)  # that has nothing
    if plan.checkpoint is not None and bases and bases[0] > first:
        _add_missing(plan, folder, first, first, bases[0])
    for base, next_base in itertools.zip_longest(bases, bases[1:]):
        if base in cold:
            assert plan.manifest is not None  # noqa: S101 - it names the segment
            stored, stream = cold[base], plan.manifest.stream
            segment = Segment.of_store(disk, folder, stream, stored, cache)
            _take_cold(plan, segment, stored.epoch, next_base)
            continue
        scanner = SegmentScanner(disk, folder, base, suffixes[base], plan.checkpoint)
        plan.segments.append(scanner.examine(plan, next_base, trust_index=trust_indexes))
        if KEYS_SUFFIX not in suffixes[base]:
            plan.segments[-1].key_state = KeyState.KNOWN
        if next_base is not None and next_base > base and not num_lost(base, next_base):
            _drop_empty(plan)
        if scanner.is_end:
            reason = f"it follows offset {scanner.segment.next_offset}, where the log ends"
            plan.steps += [
                SetAside(file_path(folder, later, suffix), reason)
                for later in bases
                if later > base
                for suffix in SUFFIXES
                if suffix in suffixes[later]
            ]
            break


def _drop_empty(plan: Plan) -> None:
    """The segment that was looked at last is no part of the log if nothing is between two gaps."""
    if _is_empty(plan.segments[-1]):
        plan.empty.append(plan.segments.pop())
        plan.unflushed = [one for one in plan.unflushed if one is not plan.empty[-1]]


def _add_missing(plan: Plan, folder: str, base: int, first: int, following: int) -> None:
    """The segment at `base` is missing, and with it what was from `first` to `following`."""
    lost = num_lost(first, following)
    if lost:
        path = file_path(folder, base, SEGMENT_SUFFIX)
        plan.losses.append(Loss(path, 0, "the file is missing", first, lost))


def _keep_offsets(plan: Plan, checkpoint: Checkpoint, folder: str) -> None:
    """Report the offsets as lost between the end of the log and where the checkpoint had it."""
    wanted = checkpoint.next_offset
    plan.next_offset = max(plan.next_offset, wanted)
    plan.last_epoch = max(plan.last_epoch, checkpoint.epoch)
    if not plan.segments:
        _add_missing(plan, folder, checkpoint.segment, checkpoint.first_offset, wanted)
        return
    last = plan.segments[-1]
    if last.next_offset >= wanted:
        return
    plan.is_ended = True
    end = end_before(last.next_offset, wanted)
    if end > last.next_offset:
        damage = Damage(last.size, last.size, last.next_offset, end)
        place, reason = (last.path(), last.size), f"it ends at offset {last.next_offset}"
        if last.base_offset < checkpoint.segment:
            place = (file_path(folder, checkpoint.segment, SEGMENT_SUFFIX), 0)
            reason = "the file is missing"
        plan.losses.append(Loss(*place, reason, last.next_offset, end - last.next_offset))
        last.damage[damage.position] = damage
        last.next_offset = end
        content = codec.encode_damage(last.damage.values())
        plan.steps.append(Replace(last.path(DAMAGE_SUFFIX), content, "the segment is damaged"))

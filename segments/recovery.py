"""Finding out what a stream's folder holds after a crash, and what has to be done to it.

`examine` reads and writes nothing; it returns every segment as it will be, and the steps that
make the files so (repairs.py). The checkpoint says how much was on the device for certain:

* Before it everything is trusted unread where index, segment and the next segment's name agree
  on where it ends. Else the segment is read through. What is damaged there is never cut: readers
  step over it, its offsets are reported as lost, and the place is written to the damage file.
* After it everything is read through, every checksum tested. It ends at the first fault: what
  follows was not on the device when the power failed, and of it any part may be missing. A torn
  append is cut off; whole chunks and segments behind it go into quarantine. To keep them in the
  log would be wrong: a publisher that sends the missing ones again would seem to repeat itself.
* Without a checkpoint, as in a folder that another program wrote, it is taken to be at the start
  of the newest segment.
* An index is derived. Missing, short or wrong, it is written anew from its segment.
* Offsets are never used twice: an empty newest segment keeps the base offset in its name, and
  what the checkpoint knew and is missing now leaves a gap.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath

from segments import codec
from segments.checkpoint import CHECKPOINT_NAME, read_checkpoint
from segments.codec import (
    CHUNK_HEADER_SIZE,
    FILE_HEADER_SIZE,
    Checkpoint,
    ChunkHeader,
    Damage,
    IndexRecord,
)
from segments.disk import Disk, File
from segments.errors import CorruptError, FormatError, OtherVersionError, VersionError
from segments.index import Index, record_position, whole_records
from segments.repairs import Cut, Loss, Remove, Replace, SetAside, Step, WriteHeader
from segments.replacing import TEMPORARY_SUFFIX
from segments.scan import check_chunk, header_is_sound
from segments.segment import (
    DAMAGE_SUFFIX,
    INDEX_SUFFIX,
    SEGMENT_SUFFIX,
    SUFFIXES,
    Segment,
    file_path,
    parse_name,
)

_OUTLIVED = "retention had dropped it"


@dataclass
class Plan:
    """What a stream's folder holds, and what has to be done to it.

    Attributes:
        segments: oldest first; empty for a folder without segments.
        steps: to be applied in order.
        losses: what cannot be read any more, where it was not known before.
        last_epoch: highest epoch that was seen, 0 without chunks.
        next_offset: the first offset that was never used, as far as the checkpoint knows.
        checkpoint: as it was found, None without one.
        checkpoint_fault: why it cannot be used; empty when it can, or is missing.
        unflushed: segments that may not be on the device as they are.
        is_ended: nothing may be appended to the newest segment.
    """

    segments: list[Segment]
    steps: list[Step]
    losses: list[Loss]
    last_epoch: int = 0
    next_offset: int = 0
    checkpoint: Checkpoint | None = None
    checkpoint_fault: str = ""
    unflushed: list[Segment] = field(default_factory=list)
    is_ended: bool = False

    def apply(self, disk: Disk) -> None:
        """Carry out all steps."""
        for step in self.steps:
            step.apply(disk)
        folders = {str(PurePath(step.path).parent) for step in self.steps}
        for folder in folders:
            disk.sync_folder(folder)


def examine(disk: Disk, folder: str, *, trust_indexes: bool = True) -> Plan:
    """Look at the stream in `folder` and say what it holds and what has to be done.

    Args:
        disk: the file system.
        folder: the stream's folder.
        trust_indexes: False reads every segment through, not only doubtful ones.

    Raises:
        CorruptError: a segment is not one.
        OtherVersionError: another version of this program wrote a file.
        StorageError: the system refused to list or read.
    """
    names = disk.list(folder)
    plan = Plan([], [], [])
    if CHECKPOINT_NAME in names:
        try:
            plan.checkpoint = read_checkpoint(disk, folder)
        except FormatError as error:
            plan.checkpoint_fault = str(error)
    found = {parsed for name in names if (parsed := parse_name(name))}
    bases = sorted(base for base, suffix in found if suffix == SEGMENT_SUFFIX)
    orphans = sorted((base, suffix) for base, suffix in found if base not in bases)
    plan.steps += [
        Remove(file_path(folder, base, suffix), "its segment file is missing")
        for base, suffix in orphans
    ]
    plan.steps += [
        Remove(str(PurePath(folder, name)), "the file that it was to replace is the valid one")
        for name in names
        if name.endswith(TEMPORARY_SUFFIX)
    ]
    suffixes = {base: {s for b, s in found if b == base} for base in bases}
    if plan.checkpoint is not None:
        bases = _without_outlived(plan, plan.checkpoint, folder, suffixes)
    _examine_all(plan, disk, folder, bases, suffixes, trust_indexes=trust_indexes)
    if plan.checkpoint is not None:
        _keep_offsets(plan, plan.checkpoint, folder)
    return plan


def _without_outlived(
    plan: Plan, checkpoint: Checkpoint, folder: str, suffixes: dict[int, set[str]]
) -> list[int]:
    """Finish what retention had begun; returns the base offsets that stay."""
    for base in sorted(suffixes):
        if base < checkpoint.first_offset:
            plan.steps += [
                Remove(file_path(folder, base, suffix), _OUTLIVED)
                for suffix in SUFFIXES
                if suffix in suffixes[base]
            ]
    return sorted(base for base in suffixes if base >= checkpoint.first_offset)


def _examine_all(
    plan: Plan,
    disk: Disk,
    folder: str,
    bases: Sequence[int],
    suffixes: dict[int, set[str]],
    *,
    trust_indexes: bool,
) -> None:
    first = plan.checkpoint.first_offset if plan.checkpoint is not None else 0
    if plan.checkpoint is not None and bases and bases[0] > first:
        path = file_path(folder, first, SEGMENT_SUFFIX)
        plan.losses.append(Loss(path, 0, "the file is missing", first, bases[0] - first))
    for base, next_base in itertools.zip_longest(bases, bases[1:]):
        examiner = _Examiner(disk, folder, base, suffixes[base], plan.checkpoint)
        plan.segments.append(examiner.examine(plan, next_base, trust_index=trust_indexes))
        if examiner.is_end:
            reason = f"it follows offset {examiner.segment.next_offset}, where the log ends"
            plan.steps += [
                SetAside(file_path(folder, later, suffix), reason)
                for later in bases
                if later > base
                for suffix in SUFFIXES
                if suffix in suffixes[later]
            ]
            break


def _keep_offsets(plan: Plan, checkpoint: Checkpoint, folder: str) -> None:
    """Where the log ends before the offset that the checkpoint knew, the offsets between go."""
    plan.next_offset = wanted = checkpoint.next_offset
    plan.last_epoch = max(plan.last_epoch, checkpoint.epoch)
    if not plan.segments:
        first = checkpoint.first_offset
        path = file_path(folder, checkpoint.segment, SEGMENT_SUFFIX)
        if wanted > first:
            plan.losses.append(Loss(path, 0, "the file is missing", first, wanted - first))
        return
    last = plan.segments[-1]
    if last.next_offset < wanted:
        damage = Damage(last.size, last.size, last.next_offset, wanted)
        place, reason = (last.path(), last.size), f"it ends at offset {last.next_offset}"
        if last.base_offset < checkpoint.segment:
            place = (file_path(folder, checkpoint.segment, SEGMENT_SUFFIX), 0)
            reason = "the file is missing"
        plan.losses.append(Loss(*place, reason, last.next_offset, wanted - last.next_offset))
        last.damage[damage.position] = damage
        last.next_offset = wanted
        content = codec.encode_damage(last.damage.values())
        plan.steps.append(Replace(last.path(DAMAGE_SUFFIX), content, "the segment is damaged"))
        plan.is_ended = True


class _Examiner:
    """Examines one segment: fills in its Segment, and collects its index as it should be.

    Attributes:
        segment: as it will be.
        epoch: the highest in it.
        is_end: what was found after it does not follow it.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        base_offset: int,
        suffixes: set[str],
        checkpoint: Checkpoint | None,
    ) -> None:
        self._disk = disk
        self._suffixes = suffixes
        self._checkpoint = checkpoint
        self._old_index: Index | None = None
        self._index_size = 0
        self._first_record = 0  # those before stay as they are
        self._records = bytearray()
        self._known: dict[int, Damage] = {}
        self.segment = Segment(disk, folder, base_offset)
        self.epoch = 0
        self.is_end = False

    def examine(self, plan: Plan, next_base: int | None, *, trust_index: bool) -> Segment:
        """Examine the segment; `next_base` is where the next one begins, None for the newest."""
        segment, checkpoint = self.segment, self._checkpoint
        file = segment.acquire()
        try:
            is_sealed = next_base is not None
            if checkpoint is not None:
                is_sealed = segment.base_offset < checkpoint.segment
            self._check_file_header(plan, file, is_sealed=is_sealed)
            self._load_damage()
            with self._open_index():
                size = file.size()
                if checkpoint is None:
                    durable, ends_at = (FILE_HEADER_SIZE if next_base is None else size), next_base
                elif segment.base_offset < checkpoint.segment:
                    durable, ends_at = size, next_base
                    if ends_at is None:
                        ends_at = checkpoint.segment
                else:
                    is_at = segment.base_offset == checkpoint.segment
                    durable, ends_at = (checkpoint.position if is_at else FILE_HEADER_SIZE), None
                is_before = ends_at is not None
                if trust_index and is_before and self._is_trusted(file, size, ends_at):
                    if checkpoint is None:
                        plan.unflushed.append(segment)
                    return segment
                if trust_index and not is_before and checkpoint is not None:
                    self._trust_to(file, size, checkpoint)
                if segment.size < size or checkpoint is None:
                    plan.unflushed.append(segment)
                following = next_base if ends_at is None else ends_at
                self._read_through(plan, file, size, durable, following, is_before=is_before)
        finally:
            segment.release()
            plan.last_epoch = max(plan.last_epoch, self.epoch)
        self._add_side_file_steps(plan)
        return segment

    def _check_file_header(self, plan: Plan, file: File, *, is_sealed: bool) -> None:
        raw = file.read(FILE_HEADER_SIZE, 0)
        if raw != codec.SEGMENT_HEADER and codec.SEGMENT_HEADER.startswith(raw.rstrip(b"\0")):
            # A crash lost the header. A sealed file stays as it is; its chunks speak for it.
            if not is_sealed:
                plan.steps.append(WriteHeader(file.path, "a crash had lost it"))
            return
        try:
            codec.check_file_header(raw, codec.SEGMENT_HEADER)
        except VersionError as error:
            raise OtherVersionError(file.path, error) from error
        except FormatError as error:
            raise CorruptError(file.path, 0, str(error)) from error

    def _load_damage(self) -> None:
        if DAMAGE_SUFFIX in self._suffixes:
            try:
                found = codec.decode_damage(self._read_file(DAMAGE_SUFFIX))
            except VersionError as error:
                raise OtherVersionError(self.segment.path(DAMAGE_SUFFIX), error) from error
            except FormatError:
                return  # found again by reading the segment through
            self._known = {damage.position: damage for damage in found}

    @contextmanager
    def _open_index(self) -> Iterator[None]:
        if INDEX_SUFFIX not in self._suffixes:
            yield
            return
        file = self._disk.open(self.segment.path(INDEX_SUFFIX), writable=False)
        try:
            self._index_size = file.size()
            if file.read(FILE_HEADER_SIZE, 0) == codec.INDEX_HEADER:
                self._old_index = Index(file, whole_records(self._index_size))
            yield
        finally:
            self._old_index = None
            file.close()

    def _read_file(self, suffix: str, position: int = 0) -> bytes:
        file = self._disk.open(self.segment.path(suffix), writable=False)
        try:
            return file.read(max(0, file.size() - position), position)
        finally:
            file.close()

    def _is_trusted(self, file: File, size: int, ends_at: int | None) -> bool:
        """Whether index, segment and the next segment's name agree on where this one ends."""
        index = self._old_index
        if index is None or self._index_size != record_position(index.num_records):
            return False
        return self._agrees(file, index.num_records, size, ends_at)

    def _trust_to(self, file: File, size: int, checkpoint: Checkpoint) -> None:
        """Take what the checkpoint knows of this segment unread, if index and segment agree."""
        index, number = self._old_index, checkpoint.num_chunks
        if self.segment.base_offset != checkpoint.segment or index is None or not number:
            return
        if number > index.num_records or checkpoint.position > size:
            return
        if self._agrees(file, number, checkpoint.position, checkpoint.next_offset):
            self._first_record = number

    def _agrees(self, file: File, num_chunks: int, end: int, next_offset: int | None) -> bool:
        """Whether the index has so many chunks that end there; fills in the segment if so."""
        segment, index = self.segment, self._old_index
        if index is None or not num_chunks:
            return False
        last = index.record(num_chunks - 1)
        try:
            header = codec.decode_chunk_header(file.read(CHUNK_HEADER_SIZE, last.position))
        except FormatError:
            return False
        found_end, found_next = last.position + header.total_size, header.next_offset
        known = self._known.get(found_end)
        if known is not None:
            found_end, found_next = known.end, known.next_offset
        if header.chunk_id != last.chunk_id or (found_end, found_next) != (end, next_offset):
            return False
        self.epoch = header.epoch
        segment.size, segment.next_offset = found_end, found_next
        segment.num_chunks = num_chunks
        segment.first_timestamp_ms = index.record(0).timestamp_ms
        segment.last_timestamp_ms, segment.last_chunk_id = last.timestamp_ms, last.chunk_id
        segment.damage = {at: found for at, found in self._known.items() if found.end <= end}
        return True

    def _read_through(
        self,
        plan: Plan,
        file: File,
        size: int,
        durable: int,
        next_base: int | None,
        *,
        is_before: bool,
    ) -> None:
        """Read from where trust ends to the end, or to where the log ends."""
        segment = self.segment
        while segment.size < size:
            try:
                header = check_chunk(
                    file,
                    size,
                    segment.size,
                    segment.next_offset,
                    epoch=self.epoch,
                    is_strict=segment.size >= durable,
                )
            except FormatError as error:
                resumed = self._resume(file, size)
                if segment.size >= durable:
                    has_more = resumed is not None or next_base is not None
                    cut = Cut(segment.path(), segment.size, size, str(error), has_more)
                    plan.steps.append(cut)
                    self.is_end = True
                    return
                if resumed is None:
                    self._end_at_damage(plan, size, next_base, str(error))
                    return
                self._add_damage(plan, *resumed, str(error))
            else:
                self._accept(header)
        if next_base is not None and segment.next_offset != next_base:
            if segment.size < durable or is_before:
                self._add_gap(plan, next_base)
            else:
                self.is_end = True

    def _end_at_damage(self, plan: Plan, size: int, next_base: int | None, reason: str) -> None:
        """Nothing that was on the device can be read from here on."""
        checkpoint = self._checkpoint
        next_offset = next_base
        if next_offset is None:
            assert checkpoint is not None  # noqa: S101 - nothing is sure of the newest without
            next_offset = max(checkpoint.next_offset, self.segment.next_offset)
            plan.is_ended = True
        self._add_damage(plan, size, next_offset, reason)

    def _accept(self, header: ChunkHeader) -> None:
        segment = self.segment
        self._records += codec.encode_index_record(
            IndexRecord(
                header.chunk_id,
                header.timestamp_ms,
                header.epoch,
                segment.size,
                header.chunk_type,
            )
        )
        segment.size += header.total_size
        segment.next_offset = header.next_offset
        segment.num_chunks += 1
        segment.last_chunk_id = header.chunk_id
        segment.last_timestamp_ms = header.timestamp_ms
        if segment.first_timestamp_ms is None:
            segment.first_timestamp_ms = header.timestamp_ms
        self.epoch = header.epoch

    def _resume(self, file: File, size: int) -> tuple[int, int] | None:
        """Position and offset of the first whole chunk after the bad one, None without one.

        Only places that this program wrote down are tried: where the damage file says that it
        ends, where a header with a good check says that the chunk ends, and where the old index
        says that chunks begin. Searching the bytes for something that looks like a chunk could
        find one inside a message.
        """
        segment = self.segment
        for position, offset in self._candidates(file, size):
            if position > segment.size and offset > segment.next_offset:
                try:
                    check_chunk(file, size, position, offset, epoch=self.epoch)
                except FormatError:
                    continue
                return position, offset
        return None

    def _candidates(self, file: File, size: int) -> Iterator[tuple[int, int]]:
        position = self.segment.size
        known, checkpoint = self._known.get(position), self._checkpoint
        if known is not None:
            yield known.end, known.next_offset
        if checkpoint is not None and checkpoint.segment == self.segment.base_offset:
            yield checkpoint.position, checkpoint.next_offset
        raw = file.read(CHUNK_HEADER_SIZE, position)
        try:
            header = codec.decode_chunk_header(raw)
        except FormatError:
            pass
        else:
            expected = header.chunk_id == self.segment.next_offset
            end = position + header.total_size
            if expected and end < size and header_is_sound(file, position, header, raw):
                yield end, header.next_offset
        if self._old_index is not None:  # one by one: a lost page leaves zeros, not an order
            for record in map(self._old_index.record, range(self._old_index.num_records)):
                yield record.position, record.chunk_id

    def _add_gap(self, plan: Plan, next_offset: int) -> None:
        segment = self.segment
        missing = PurePath(file_path("", segment.next_offset, SEGMENT_SUFFIX)).name
        reason = (
            f"it ends at offset {segment.next_offset}, the next one begins at {next_offset}: it "
            f"was cut, or {missing} is missing"
        )
        self._add_damage(plan, segment.size, next_offset, reason)

    def _add_damage(self, plan: Plan, end: int, next_offset: int, reason: str) -> None:
        segment = self.segment
        damage = Damage(segment.size, end, segment.next_offset, next_offset)
        segment.damage[damage.position] = damage
        segment.size, segment.next_offset = end, next_offset
        if damage == self._known.get(damage.position):
            return
        lost = damage.next_offset - damage.first_offset
        plan.losses.append(Loss(segment.path(), damage.position, reason, damage.first_offset, lost))

    def _add_side_file_steps(self, plan: Plan) -> None:
        segment = self.segment
        start = record_position(self._first_record) if self._first_record else 0
        index = (b"" if start else codec.INDEX_HEADER) + self._records
        if INDEX_SUFFIX not in self._suffixes or index != self._read_file(INDEX_SUFFIX, start):
            is_missing = INDEX_SUFFIX not in self._suffixes
            reason = "the file is missing" if is_missing else "it does not fit its segment"
            before = self._read_file(INDEX_SUFFIX)[:start] if start else b""
            plan.steps.append(Replace(segment.path(INDEX_SUFFIX), before + index, reason))
        if segment.damage:
            content = codec.encode_damage(segment.damage.values())
            if DAMAGE_SUFFIX not in self._suffixes or content != self._read_file(DAMAGE_SUFFIX):
                path = segment.path(DAMAGE_SUFFIX)
                plan.steps.append(Replace(path, content, "the segment is damaged"))
        elif DAMAGE_SUFFIX in self._suffixes:
            path, reason = segment.path(DAMAGE_SUFFIX), "the segment is whole"
            plan.steps.append(Remove(path, reason))

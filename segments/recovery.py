"""Putting a stream's files in order after a crash: examine first, then apply.

`examine` reads and writes nothing; it returns every segment as it will be, and the steps that
make the files so. Applying the steps twice changes nothing. What is kept:

* The newest segment is read through, every checksum tested. What follows the last whole chunk is
  a torn append and is cut off.
* A damaged chunk with whole chunks after it is not cut: readers step over it, its offsets are
  reported as lost, and everything after it stays. The place is written to the damage file.
* Older segments are trusted when their index ends exactly where the file does and the next
  segment begins at that offset. Otherwise they are read through as well. They are never cut.
* An index is derived. Missing, short or wrong, it is written anew from its segment.
* Offsets are never used twice: an empty newest segment keeps the base offset in its name.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath

from segments import codec
from segments.codec import (
    CHUNK_HEADER_SIZE,
    FILE_HEADER_SIZE,
    ChunkHeader,
    Damage,
    IndexRecord,
)
from segments.disk import Disk, File
from segments.errors import CorruptError, FormatError
from segments.index import Index, record_position, whole_records
from segments.journal import TEMPORARY_SUFFIX, replace_file
from segments.scan import check_chunk, header_is_sound
from segments.segment import (
    DAMAGE_SUFFIX,
    INDEX_SUFFIX,
    SEGMENT_SUFFIX,
    Segment,
    file_path,
    parse_name,
)


@dataclass(frozen=True)
class Remove:
    """Delete a file that nothing refers to."""

    path: str
    reason: str
    position: int = 0

    def apply(self, disk: Disk) -> None:
        """Carry it out."""
        disk.remove(self.path)

    def __str__(self) -> str:
        return f"removed {self.path}: {self.reason}"


@dataclass(frozen=True)
class Cut:
    """Cut a segment after its last whole chunk."""

    path: str
    position: int
    found_size: int
    reason: str

    def apply(self, disk: Disk) -> None:
        """Carry it out."""
        file = disk.open(self.path, writable=True)
        file.truncate(self.position)
        file.close()

    def __str__(self) -> str:
        cut = self.found_size - self.position
        return f"cut {cut} bytes from the end of {self.path}: {self.reason}"


@dataclass(frozen=True)
class Replace:
    """Write a file anew."""

    path: str
    content: bytes = field(repr=False)
    reason: str
    position: int = 0

    def apply(self, disk: Disk) -> None:
        """Carry it out."""
        replace_file(disk, self.path, self.content).close()

    def __str__(self) -> str:
        return f"wrote {self.path} anew: {self.reason}"


@dataclass(frozen=True)
class WriteHeader:
    """Write the file header that a crash kept from reaching the newest segment."""

    path: str
    reason: str
    position: int = 0

    def apply(self, disk: Disk) -> None:
        """Carry it out."""
        file = disk.open(self.path, writable=True)
        file.write([codec.SEGMENT_HEADER], 0)
        file.close()

    def __str__(self) -> str:
        return f"wrote the file header of {self.path}: {self.reason}"


Step = Remove | Cut | Replace | WriteHeader


@dataclass(frozen=True)
class Loss:
    """Messages that cannot be read any more, and where they should be."""

    path: str
    position: int
    reason: str
    first_offset: int
    num_records: int

    def __str__(self) -> str:
        lost = f"{self.num_records} messages from offset {self.first_offset} on are lost"
        return f"{self.path} is damaged at byte {self.position}: {self.reason}; {lost}"


@dataclass
class Plan:
    """What a stream's folder holds, and what has to be done to it.

    Attributes:
        segments: oldest first; empty for a folder without segments.
        steps: to be applied in order.
        losses: what cannot be read any more, where it was not known before.
        last_epoch: highest epoch that was seen, 0 without chunks.
    """

    segments: list[Segment]
    steps: list[Step]
    losses: list[Loss]
    last_epoch: int = 0

    def apply(self, disk: Disk) -> None:
        """Carry out all steps."""
        for step in self.steps:
            step.apply(disk)


def examine(disk: Disk, folder: str, *, trust_indexes: bool = True) -> Plan:
    """Look at the stream in `folder` and say what it holds and what has to be done.

    Args:
        disk: the file system.
        folder: the stream's folder.
        trust_indexes: False reads every segment through, not only doubtful ones.

    Raises:
        CorruptError: a segment is not one, or of a version this program does not know.
        StorageError: the system refused to list or read.
    """
    names = disk.list(folder)
    found = {parsed for name in names if (parsed := parse_name(name))}
    bases = sorted(base for base, suffix in found if suffix == SEGMENT_SUFFIX)
    orphans = sorted((base, suffix) for base, suffix in found if base not in bases)
    steps: list[Step] = [
        Remove(file_path(folder, base, suffix), "its segment file is missing")
        for base, suffix in orphans
    ]
    steps += [
        Remove(str(PurePath(folder, name)), "the file that it was to replace is the valid one")
        for name in names
        if name.endswith(TEMPORARY_SUFFIX)
    ]
    plan = Plan([], steps, [])
    for base, next_base in itertools.zip_longest(bases, bases[1:]):
        examiner = _Examiner(disk, folder, base, {s for b, s in found if b == base})
        plan.segments.append(examiner.examine(plan, next_base, trust_index=trust_indexes))
    return plan


class _Examiner:
    """Examines one segment: fills in its Segment, and collects its index as it should be."""

    def __init__(self, disk: Disk, folder: str, base_offset: int, suffixes: set[str]) -> None:
        self._disk = disk
        self._suffixes = suffixes
        self._old_index: Index | None = None
        self._index_size = 0
        self._records = bytearray()
        self._known: dict[int, Damage] = {}
        self.segment = Segment(disk, folder, base_offset)
        self.epoch = 0

    def examine(self, plan: Plan, next_base: int | None, *, trust_index: bool) -> Segment:
        """Examine the segment; `next_base` is where the next one begins, None for the newest."""
        segment = self.segment
        file = segment.acquire()
        try:
            self._check_file_header(plan, file, next_base)
            self._load_damage()
            with self._open_index():
                size = file.size()
                if trust_index and self._is_trusted(file, size, next_base):
                    return segment
                self._read_through(plan, file, size, next_base)
        finally:
            segment.release()
            plan.last_epoch = max(plan.last_epoch, self.epoch)
        self._add_side_file_steps(plan)
        return segment

    def _check_file_header(self, plan: Plan, file: File, next_base: int | None) -> None:
        raw = file.read(FILE_HEADER_SIZE, 0)
        is_blank = not raw.strip(b"\0")
        if is_blank or (len(raw) < FILE_HEADER_SIZE and codec.SEGMENT_HEADER.startswith(raw)):
            # A crash lost the header. A sealed file stays as it is; its chunks speak for it.
            if next_base is None:
                plan.steps.append(WriteHeader(file.path, "a crash had lost it"))
            return
        try:
            codec.check_file_header(raw, codec.SEGMENT_HEADER)
        except FormatError as error:
            raise CorruptError(file.path, 0, str(error)) from error

    def _load_damage(self) -> None:
        if DAMAGE_SUFFIX in self._suffixes:
            try:
                found = codec.decode_damage(self._read_file(DAMAGE_SUFFIX))
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

    def _read_file(self, suffix: str) -> bytes:
        file = self._disk.open(self.segment.path(suffix), writable=False)
        try:
            return file.read(file.size(), 0)
        finally:
            file.close()

    def _is_trusted(self, file: File, size: int, next_base: int | None) -> bool:
        """Whether index, segment and the next segment's name agree on where this one ends."""
        segment, index = self.segment, self._old_index
        if next_base is None or index is None or not index.num_records:
            return False
        if self._index_size != record_position(index.num_records):
            return False
        last = index.record(index.num_records - 1)
        try:
            header = codec.decode_chunk_header(file.read(CHUNK_HEADER_SIZE, last.position))
        except FormatError:
            return False
        end, next_offset = last.position + header.total_size, header.next_offset
        known = self._known.get(end)
        if known is not None:
            end, next_offset = known.end, known.next_offset
        if header.chunk_id != last.chunk_id or (end, next_offset) != (size, next_base):
            return False
        self.epoch = header.epoch
        segment.size, segment.next_offset = size, next_base
        segment.num_chunks = index.num_records
        segment.first_timestamp_ms = index.record(0).timestamp_ms
        segment.last_timestamp_ms, segment.last_chunk_id = last.timestamp_ms, last.chunk_id
        segment.damage = self._known
        return True

    def _read_through(self, plan: Plan, file: File, size: int, next_base: int | None) -> None:
        segment = self.segment
        while segment.size < size:
            try:
                header = check_chunk(
                    file, size, segment.size, segment.next_offset, epoch=self.epoch
                )
            except FormatError as error:
                resumed = self._resume(file, size)
                if resumed is None:
                    self._end_at_fault(plan, size, next_base, str(error))
                    break
                self._add_damage(plan, *resumed, str(error))
            else:
                self._accept(header)
        if next_base is not None and segment.next_offset != next_base:
            reason = f"it ends at offset {segment.next_offset}, the next one begins at {next_base}"
            self._add_damage(plan, segment.size, next_base, reason)

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
        known = self._known.get(position)
        if known is not None:
            yield known.end, known.next_offset
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

    def _end_at_fault(self, plan: Plan, size: int, next_base: int | None, reason: str) -> None:
        if next_base is None:
            plan.steps.append(Cut(self.segment.path(), self.segment.size, size, reason))
        else:
            self._add_damage(plan, size, next_base, reason)

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
        index = codec.INDEX_HEADER + self._records
        if INDEX_SUFFIX not in self._suffixes or index != self._read_file(INDEX_SUFFIX):
            is_missing = INDEX_SUFFIX not in self._suffixes
            reason = "the file is missing" if is_missing else "it does not fit its segment"
            plan.steps.append(Replace(segment.path(INDEX_SUFFIX), bytes(index), reason))
        if segment.damage:
            content = codec.encode_damage(segment.damage.values())
            if DAMAGE_SUFFIX not in self._suffixes or content != self._read_file(DAMAGE_SUFFIX):
                path = segment.path(DAMAGE_SUFFIX)
                plan.steps.append(Replace(path, content, "the segment is damaged"))
        elif DAMAGE_SUFFIX in self._suffixes:
            path, reason = segment.path(DAMAGE_SUFFIX), "the segment is whole"
            plan.steps.append(Remove(path, reason))

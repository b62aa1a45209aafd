"""Examining one segment for recovery: what is whole, what is damaged, where the log ends.

What is kept, and why, is in recovery.py. Here is how one segment is judged. Two things are asked
of it before it is read: how many of its bytes were on the device for certain (`durable`), and at
which offset it has to end (`following`, what the next segment begins with):

    the checkpoint is about  this segment is  durable            following         is_sealed
    -----------------------  ---------------  -----------------  ----------------  ---------
    nothing, there is none   not the newest   all of it          next name         yes
    nothing, there is none   the newest       the file header    unknown           no
    a later segment          before it        all of it          next name, or     yes
                                                                 the checkpoint's
    this segment             the one          up to its position next name         no
    an earlier segment       behind it        the file header    next name         no

Where it stops short of `following` by whole gaps (gaps.py), nothing is missing.

What is durable is never cut: a chunk in it that cannot be read is damage, which readers step over,
and the log goes on behind it. What is not durable ends at the first chunk that cannot be read, and
the log ends there with it (`is_end`). A sealed segment that stops short of `following` has lost its
end, which is damage; one that is not sealed just ends, and so does the log.

Three steps, each of which moves `segment.size` and `segment.next_offset` forward:

1. trust: a sealed segment whose last index record ends where the file and the next name say is
   taken whole, unread. Of the checkpoint's own segment the part before its position is, if index
   and chunk agree there.
2. read: `_read_through` checks every chunk from there on, and adds damage or a cut.
3. side files: index and damage file are replaced where they do not say what was found.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePath
from typing import NamedTuple

from segments import codec
from segments.chunk_check import check_chunk, header_is_sound
from segments.chunk_search import index_content
from segments.codec import (
    CHUNK_HEADER_SIZE,
    FILE_HEADER_SIZE,
    Checkpoint,
    ChunkHeader,
    Damage,
    IndexRecord,
)
from segments.disk import Disk, File
from segments.errors import (
    CorruptError,
    FormatError,
    OtherVersionError,
    UnreadableError,
    VersionError,
)
from segments.gaps import end_before
from segments.index import Index, is_of_chunk, record_position, whole_records
from segments.recovery.steps import Cut, Loss, Plan, Remove, Replace, WriteHeader
from segments.segment import (
    DAMAGE_SUFFIX,
    INDEX_SUFFIX,
    SEGMENT_SUFFIX,
    Segment,
    file_path,
    read_header,
)


class _Bounds(NamedTuple):
    """What a segment has to be; see the table above.

    Attributes:
        durable: its bytes before this were on the device.
        following: the offset at which the next segment begins, None where nothing says so.
        is_sealed: nothing was appended to it any more, so it has to reach `following`.
    """

    durable: int
    following: int | None
    is_sealed: bool


class SegmentScanner:
    """Examines one segment: fills in its Segment, and collects its index as it should be.

    Attributes:
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
        self._is_unsure = False
        self.segment = Segment(disk, folder, base_offset)
        self.epoch = 0
        self.is_end = False

    def examine(self, plan: Plan, next_base: int | None, *, trust_index: bool) -> Segment:
        """Examine the segment and add to the plan what has to be done to its files.

        Args:
            plan: of the whole stream.
            next_base: the offset in the name of the next segment, None for the newest.
            trust_index: do not read what the index and its neighbours agree on.

        Raises:
            CorruptError: the file is not a segment.
            OtherVersionError: another version of this program wrote it.
            StorageError: the system refused to read.
        """
        segment = self.segment
        file = segment.acquire()
        try:
            size = file.size()
            bounds = self._bounds(size, next_base)
            self._check_file_header(plan, file, is_sealed=bounds.is_sealed)
            self._load_damage()
            with self._open_index():
                is_trusted = trust_index and not self._has_healed(file, size)
                is_trusted = is_trusted and self._trust(file, size, bounds)
                if segment.size < size or self._may_be_unflushed(next_base):
                    plan.unflushed.append(segment)
                if not is_trusted:
                    self._read_through(plan, file, size, bounds)
                    self._add_side_file_steps(plan, file)
        finally:
            segment.release()
            plan.last_epoch = max(plan.last_epoch, self.epoch)
        return segment

    def _may_be_unflushed(self, next_base: int | None) -> bool:
        """Whether it was sealed after the checkpoint, or there is none.

        Then even its size may not be on the device: the cut that took a failed append back.
        """
        checkpoint = self._checkpoint
        if checkpoint is None:
            return True
        return next_base is not None and self.segment.base_offset >= checkpoint.segment

    def _bounds(self, size: int, next_base: int | None) -> _Bounds:
        """The row of the table above that the segment is in."""
        base, checkpoint = self.segment.base_offset, self._checkpoint
        if checkpoint is None:
            is_sealed = next_base is not None
            return _Bounds(size if is_sealed else FILE_HEADER_SIZE, next_base, is_sealed)
        if base < checkpoint.segment:
            following = checkpoint.segment if next_base is None else next_base
            return _Bounds(size, following, is_sealed=True)
        durable = checkpoint.position if base == checkpoint.segment else FILE_HEADER_SIZE
        return _Bounds(durable, next_base, is_sealed=False)

    def _trust(self, file: File, size: int, bounds: _Bounds) -> bool:
        """Take unread what is whole for certain; True when that is all of the segment."""
        if bounds.is_sealed:
            return self._is_trusted(file, size, bounds.following)
        if self._checkpoint is not None:
            self._trust_to(file, size, self._checkpoint)
        return False

    def _check_file_header(self, plan: Plan, file: File, *, is_sealed: bool) -> None:
        try:
            raw = file.read(FILE_HEADER_SIZE, 0)
        except UnreadableError:
            return  # its chunks speak for it
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

    def _has_healed(self, file: File, size: int) -> bool:
        """Whether what was known to be damaged can be read again."""
        for damage in self._known.values():
            with suppress(FormatError):
                check_chunk(file, size, damage.position, damage.first_offset)
                return True
        return False

    @contextmanager
    def _open_index(self) -> Iterator[None]:
        if INDEX_SUFFIX not in self._suffixes:
            yield
            return
        file = self._disk.open(self.segment.path(INDEX_SUFFIX), writable=False)
        try:
            self._index_size = file.size()
            with suppress(FormatError):  # the device cannot read it: it is made again
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

    def _read_index(self, position: int = 0) -> bytes:
        try:
            return self._read_file(INDEX_SUFFIX, position)
        except UnreadableError:
            return b""

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
        try:
            first, last = index.record(0), index.record(num_chunks - 1)
        except FormatError:
            return False
        header = self._chunk_of(file, last)
        if header is None or self._chunk_of(file, first) is None:
            return False
        found_end, found_next = last.position + header.total_size, header.next_offset
        known = self._known.get(found_end)
        if known is not None:
            found_end, found_next = known.end, known.next_offset
        is_end = next_offset is not None and found_next == end_before(found_next, next_offset)
        if found_end != end or not is_end:
            return False
        self.epoch = header.epoch
        segment.size, segment.next_offset = found_end, found_next
        segment.num_chunks = num_chunks
        segment.first_timestamp_ms = first.timestamp_ms
        segment.last_timestamp_ms, segment.last_chunk_id = last.timestamp_ms, last.chunk_id
        segment.damage = {at: found for at, found in self._known.items() if found.end <= end}
        return True

    def _chunk_of(self, file: File, record: IndexRecord) -> ChunkHeader | None:
        """The header of the chunk that an index record is about, None where they differ."""
        header = read_header(file, record.position, record.chunk_id)
        return header if header is not None and is_of_chunk(record, header) else None

    def _read_through(self, plan: Plan, file: File, size: int, bounds: _Bounds) -> None:
        """Read from where trust ends to the end, or to where the log ends."""
        segment, durable, following = self.segment, bounds.durable, bounds.following
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
                    if isinstance(error, UnreadableError) and not plan.salvages:
                        raise
                    self._note(error)
                    keeps = resumed is not None or following is not None or self._is_unsure
                    where = (segment.path(), segment.size, size)
                    cut = Cut(*where, str(error), keeps, plan.salvages)
                    plan.steps.append(cut)
                    self.is_end = True
                    return
                if resumed is None:
                    self._end_at_damage(plan, size, following, str(error))
                    return
                self._add_damage(plan, *resumed, str(error))
            else:
                self._accept(header)
        if following is not None and segment.next_offset != end_before(
            segment.next_offset, following
        ):
            if segment.size < durable or bounds.is_sealed:
                self._add_gap(plan, following)
            else:
                self.is_end = True

    def _end_at_damage(self, plan: Plan, size: int, following: int | None, reason: str) -> None:
        """Nothing that was on the device can be read from here on."""
        checkpoint = self._checkpoint
        if following is not None:
            next_offset = end_before(self.segment.next_offset, following)
        else:
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

        Without one, `_is_unsure` says that the device refused to read where one may be.

        Only places that this program wrote down are tried: where the damage file says that it
        ends, where a header with a good check says that the chunk ends, and where the old index
        says that chunks begin. Searching the bytes for something that looks like a chunk could
        find one inside a message.
        """
        segment = self.segment
        self._is_unsure = False
        for position, offset in self._candidates(file, size):
            if position > segment.size and offset > segment.next_offset:
                try:
                    check_chunk(file, size, position, offset, epoch=self.epoch)
                except FormatError as error:
                    self._note(error)
                    continue
                return position, offset
        return None

    def _note(self, error: FormatError) -> None:
        self._is_unsure = self._is_unsure or isinstance(error, UnreadableError)

    def _candidates(self, file: File, size: int) -> Iterator[tuple[int, int]]:
        position = self.segment.size
        known, checkpoint = self._known.get(position), self._checkpoint
        if known is not None:
            yield known.end, known.next_offset
        if checkpoint is not None and checkpoint.segment == self.segment.base_offset:
            yield checkpoint.position, checkpoint.next_offset
        try:
            raw = file.read(CHUNK_HEADER_SIZE, position)
            header = codec.decode_chunk_header(raw)
        except FormatError as error:
            self._note(error)
        else:
            expected = header.chunk_id == self.segment.next_offset
            end = position + header.total_size
            if expected and end < size and header_is_sound(file, position, header, raw):
                yield end, header.next_offset
        if self._old_index is not None:  # one by one: a lost page leaves zeros, not an order
            for number in range(self._old_index.num_records):
                try:
                    record = self._old_index.record(number)
                except FormatError as error:  # the device does not give it back
                    self._note(error)
                    continue
                yield record.position, record.chunk_id

    def _add_gap(self, plan: Plan, next_offset: int) -> None:
        segment = self.segment
        missing = PurePath(file_path("", segment.next_offset, SEGMENT_SUFFIX)).name
        reason = (
            f"it ends at offset {segment.next_offset}, the next one begins at {next_offset}: it "
            f"was cut, or {missing} is missing"
        )
        end = end_before(segment.next_offset, next_offset)
        self._add_damage(plan, segment.size, end, reason)

    def _add_damage(self, plan: Plan, end: int, next_offset: int, reason: str) -> None:
        segment = self.segment
        damage = Damage(segment.size, end, segment.next_offset, next_offset)
        segment.damage[damage.position] = damage
        segment.size, segment.next_offset = end, next_offset
        if damage == self._known.get(damage.position):
            return
        lost = damage.next_offset - damage.first_offset
        plan.losses.append(Loss(segment.path(), damage.position, reason, damage.first_offset, lost))

    def _add_side_file_steps(self, plan: Plan, file: File) -> None:
        segment = self.segment
        start = record_position(self._first_record) if self._first_record else 0
        index = (b"" if start else codec.INDEX_HEADER) + self._records
        if INDEX_SUFFIX not in self._suffixes or index != self._read_index(start):
            is_missing = INDEX_SUFFIX not in self._suffixes
            reason = "the file is missing" if is_missing else "it does not fit its segment"
            before = self._read_index()[:start] if start else b""
            content = before + index if len(before) == start else index_content(segment, file)
            plan.steps.append(Replace(segment.path(INDEX_SUFFIX), content, reason))
        if segment.damage:
            content = codec.encode_damage(segment.damage.values())
            if self._known != segment.damage:
                path = segment.path(DAMAGE_SUFFIX)
                plan.steps.append(Replace(path, content, "the segment is damaged"))
        elif DAMAGE_SUFFIX in self._suffixes:
            path, reason = segment.path(DAMAGE_SUFFIX), "the segment is whole"
            plan.steps.append(Remove(path, reason))

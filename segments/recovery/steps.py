"""What opening a log does to the files that it finds: one step each, described in a sentence.

Nothing of possible use is deleted: what cannot stay in the log goes into the folder `quarantine`
beside it.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TypeAlias

from segments import codec
from segments.atomic_write import replace_file, write_again
from segments.codec import Checkpoint
from segments.disk import Disk, File
from segments.errors import StorageError, UnreadableError
from segments.segment import INDEX_SUFFIX, Segment
from segments.store.manifest import Manifest

QUARANTINE = "quarantine"
_ASIDE = ".aside"
_COPY_BYTES = 1 << 20
_PAGE_BYTES = 1 << 12


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
    """Cut a segment after its last whole chunk.

    Attributes:
        keeps_tail: whole chunks may be among what is cut: put a copy into quarantine.
        salvages: what the device cannot read is zeros in the copy; else nothing is cut.
    """

    path: str
    position: int
    found_size: int
    reason: str
    keeps_tail: bool = False
    salvages: bool = False

    def apply(self, disk: Disk) -> None:
        """Carry it out."""
        file = disk.open(self.path, writable=True)
        try:
            if self.keeps_tail:
                self._keep_tail(disk, file)
            file.truncate(self.position)
            file.sync()
        finally:
            file.close()

    def _keep_tail(self, disk: Disk, file: File) -> None:
        to = _quarantine(disk, self.path, f".from-byte-{self.position}")
        kept = disk.create(to)
        try:
            for at in range(self.position, self.found_size, _COPY_BYTES):
                self._keep(file, kept, at, min(at + _COPY_BYTES, self.found_size))
            kept.sync()
            disk.sync_folder(str(PurePath(to).parent))
        except StorageError:
            disk.remove(to)  # or each attempt would leave one
            raise
        finally:
            kept.close()

    def _keep(self, file: File, kept: File, start: int, end: int) -> None:
        """Copy a part."""
        try:
            kept.write([file.read(end - start, start)], start - self.position)
        except UnreadableError:
            if not self.salvages:
                raise
            if end - start > _PAGE_BYTES:
                for at in range(start, end, _PAGE_BYTES):
                    self._keep(file, kept, at, min(at + _PAGE_BYTES, end))

    def __str__(self) -> str:
        cut = self.found_size - self.position
        kept = f"; they are kept in {QUARANTINE}" if self.keeps_tail else ""
        return f"cut {cut} bytes from the end of {self.path}: {self.reason}{kept}"


@dataclass(frozen=True)
class SetAside:
    """Move a file that does not belong to the log any more into quarantine."""

    path: str
    reason: str
    position: int = 0

    def apply(self, disk: Disk) -> None:
        """Carry it out."""
        to = _quarantine(disk, self.path)
        disk.rename(self.path, to)
        disk.sync_folder(str(PurePath(to).parent))

    def __str__(self) -> str:
        return f"moved {self.path} into {QUARANTINE}: {self.reason}"


@dataclass(frozen=True)
class Replace:
    """Rewrite a file."""

    path: str
    content: bytes = field(repr=False)
    reason: str
    position: int = 0

    def apply(self, disk: Disk) -> None:
        """Carry it out."""
        replace_file(disk, self.path, self.content).close()

    def __str__(self) -> str:
        return f"rewrote {self.path}: {self.reason}"


@dataclass(frozen=True)
class WriteHeader:
    """Write the file header that a crash kept from reaching the newest segment."""

    path: str
    reason: str
    position: int = 0

    def apply(self, disk: Disk) -> None:
        """Carry it out."""
        file = disk.open(self.path, writable=True)
        try:
            file.write([codec.SEGMENT_HEADER], 0)
            file.sync()
        finally:
            file.close()

    def __str__(self) -> str:
        return f"wrote the file header of {self.path}: {self.reason}"


Step: TypeAlias = Remove | Cut | SetAside | Replace | WriteHeader


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
        next_offset: the first offset that was never used, as far as the checkpoint knows.
        ends_at: behind the last message that is there, or was and is reported as lost.
        gap: how far behind that the log goes on, see gaps.py; 0 where that is where it ends.
        empty: segments that nothing is in and that a gap follows; to be removed once the segment
            behind it is on the device, and whatever else depends on where the log ended.
        checkpoint: as it was found, None without one.
        checkpoint_fault: why it cannot be used; empty when it can, or is missing.
        unflushed: segments that may not be on the device as they are.
        is_ended: nothing may be appended to the newest segment.
        salvages: an operator wants what can be read to be kept, and the rest given up.
        manifest: the copy of what a store has; None without one.
        life: of the stream; empty where nothing says so.
        has_files: it is not new.
        has_life: there is a mark that says it.
        boots: of marks that readers may have seen what was not on the device; see marks.py.
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
    salvages: bool = False
    manifest: Manifest | None = None
    life: str = ""
    has_files: bool = False
    has_life: bool = False
    boots: Sequence[str] = ()
    ends_at: int = 0
    gap: int = 0
    empty: list[Segment] = field(default_factory=list)

    @property
    def has_tail(self) -> bool:
        """There is a newest segment, and the log goes on in it."""
        return bool(self.segments) and not (self.is_ended or self.gap)

    @property
    def new_base(self) -> int:
        """The base offset of a new segment; offsets of lost messages are not used again."""
        return max(self.next_offset, self.ends_at) + self.gap

    @property
    def knows_newest(self) -> bool:
        """The checkpoint is about the newest segment, so that its name is on the device.

        A process that ends behind the creation of a segment leaves a name that a power failure
        can still take away.
        """
        if self.checkpoint is None or not self.has_tail:
            return False
        return self.checkpoint.segment == self.segments[-1].base_offset

    def write_again(self, disk: Disk) -> None:
        """Write what a process left that ended in this run of the machine, so that syncs bring it.

        What its syncs failed to bring to the device counts as written for the system: it can be
        read, and a later sync would leave it out, and succeed.
        """
        if disk.boot() not in self.boots:
            return  # what is read is what is on the device
        for segment in self.unflushed:
            at, base = self.checkpoint, segment.base_offset
            start = 0  # no sync had the header where there were no chunks
            if at is not None and at.segment == base and at.num_chunks:
                start = at.position
            write_again(disk, segment.path(), start)
            write_again(disk, segment.path(INDEX_SUFFIX), 0)

    def apply(self, disk: Disk) -> None:
        """Carry out all steps."""
        for step in self.steps:
            step.apply(disk)
        folders = {str(PurePath(step.path).parent) for step in self.steps}
        for folder in folders:
            disk.sync_folder(folder)


def _quarantine(disk: Disk, path: str, suffix: str = "") -> str:
    """A free path in the quarantine beside `path`, whose folder is made.

    A file there is never taken for one of a stream, because its name has a suffix of its own.
    """
    folder = str(PurePath(path).parent / QUARANTINE)
    disk.make_folder(folder)
    taken = set(disk.list(folder))
    name = PurePath(path).name + suffix + _ASIDE
    names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(2)))
    return str(PurePath(folder, next(free for free in names if free not in taken)))

"""Checking a stream's folder from end to end, without writing anything."""

from collections.abc import Collection, Iterator
from pathlib import PurePath
from typing import NamedTuple

from segments import bloom, codec
from segments.checkpoint import CHECKPOINT_NAME, checkpoint_path
from segments.chunk_check import check_entries, header_is_sound
from segments.codec import CHUNK_HEADER_SIZE, ChunkHeader
from segments.derived import key_files
from segments.derived.filter_files import load
from segments.disk import Disk, File
from segments.errors import FormatError, VersionError
from segments.format_constants import FILTER_VALUE, MMH3_SCHEME, USER
from segments.journal import JOURNAL_NAME
from segments.recovery import recovery
from segments.recovery.steps import Plan
from segments.segment import FILTER_SUFFIX, KEYS_SUFFIX, Segment, walk_headers


class Finding(NamedTuple):
    """Something that is not as it should be.

    Attributes:
        position: byte position in it; 0 where the whole file is meant.
    """

    path: str
    position: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path} at byte {self.position}: {self.reason}"


def verify(disk: Disk, folder: str) -> Iterator[Finding]:
    """Yield every fault in the stream's files: segments, indexes, filters, tracking, checkpoint.

    Segments that are only in an object store are left out.

    Raises:
        CorruptError: a segment is not one, so that nothing in it can be checked.
        StorageError: the system refused to read.
    """
    plan = recovery.examine(disk, folder, trust_indexes=False, salvages=True)
    names = disk.list(folder)
    if not plan.segments:
        yield Finding(folder, 0, "there are no segment files here")
    for step in plan.steps:
        yield Finding(step.path, step.position, step.reason)
    for loss in plan.losses:
        yield Finding(loss.path, loss.position, loss.reason)
    new = {(loss.path, loss.position) for loss in plan.losses}
    is_ours = False  # a folder that another program wrote has no checkpoint
    for segment in (one for one in plan.segments if one.cold is None):
        for damage in segment.damage.values():
            if (segment.path(), damage.position) not in new:
                yield Finding(segment.path(), damage.position, "known damage, noted beside it")
        file = segment.acquire()
        try:
            for position, header in walk_headers(segment, file):
                is_ours = is_ours or bool(header.header_check)
                fault = _chunk_fault(file, position, header)
                if fault:
                    yield Finding(segment.path(), position, fault)
        finally:
            segment.release()
        yield from _derived_faults(segment)
    yield from _checkpoint_faults(disk, plan, folder, names, is_ours=is_ours)
    if JOURNAL_NAME in names:
        yield from _journal_faults(disk, folder)


def _version_faults(disk: Disk, path: str) -> Iterator[Finding]:
    """Yield a wrong version in front of a checkpoint that is whole otherwise."""
    file = disk.open(path, writable=False)
    try:
        codec.check_file_header(file.read(codec.FILE_HEADER_SIZE, 0), codec.CHECKPOINT_HEADER)
    except FormatError as error:
        yield Finding(path, 0, f"{error}; the server reads it nevertheless")
    finally:
        file.close()


def _checkpoint_faults(
    disk: Disk, plan: Plan, folder: str, names: Collection[str], *, is_ours: bool
) -> Iterator[Finding]:
    path = checkpoint_path(folder)
    if plan.checkpoint is not None:
        yield from _version_faults(disk, path)
    if plan.checkpoint_fault:
        yield Finding(path, 0, f"{plan.checkpoint_fault}; the server rebuilds it")
    elif is_ours and CHECKPOINT_NAME not in names:
        yield Finding(path, 0, "the file is missing; the server rebuilds it")
    elif plan.checkpoint and plan.checkpoint.has_tracking and JOURNAL_NAME not in names:
        yield Finding(str(PurePath(folder, JOURNAL_NAME)), 0, "the file is missing")


def _chunk_fault(file: File, position: int, header: ChunkHeader) -> str | None:
    raw = file.read(CHUNK_HEADER_SIZE, position)
    if not header_is_sound(file, position, header, raw):
        return "header, filter and trailer fail their checksum; the chunk is never skipped"
    if header.chunk_type != USER:
        return None
    try:
        check_entries(file, position, header)
        trailer_position = position + header.data_start + header.data_size
        blocks = codec.decode_blocks(file.read(header.trailer_size, trailer_position))
    except FormatError as error:
        return str(error)
    if header.filter_scheme == MMH3_SCHEME and header.filter_size:
        bits = int.from_bytes(file.read(header.filter_size, position + CHUNK_HEADER_SIZE), "big")
        for block in blocks:
            # A long value stands in the trailer as prefix and hash: its bits are not known.
            if block.kind == FILTER_VALUE and len(block.id) < codec.MAX_REFERENCE_SIZE:
                wanted = bloom.mask(block.id, header.filter_size)
                if bits & wanted != wanted:
                    return f"the filter lacks the value {block.id!r}, which the trailer lists"
    return None


def _derived_faults(segment: Segment) -> Iterator[Finding]:
    """Yield a filter or key file that does not fit its segment; a missing one is made again."""
    if segment.damage:
        return
    names = segment.disk.list(segment.folder)
    for suffix, check in ((FILTER_SUFFIX, load), (KEYS_SUFFIX, key_files.check)):
        path = segment.path(suffix)
        if PurePath(path).name not in names:
            continue
        try:
            check(segment)
        except VersionError:
            continue  # another version made it; the server makes its own when it is needed
        except FormatError as error:
            yield Finding(path, 0, f"{error}; the server rebuilds it")


def _journal_faults(disk: Disk, folder: str) -> Iterator[Finding]:
    path = f"{folder}/{JOURNAL_NAME}"
    file = disk.open(path, writable=False)
    try:
        raw = file.read(file.size(), 0)
    finally:
        file.close()
    try:
        codec.check_file_header(raw, codec.TRACKING_HEADER)
    except FormatError as error:
        yield Finding(path, 0, str(error))
        return
    _, used = codec.decode_journal(raw[codec.FILE_HEADER_SIZE :])
    if codec.FILE_HEADER_SIZE + used < len(raw):
        yield Finding(path, codec.FILE_HEADER_SIZE + used, "no whole record follows")

"""Letting a log begin in the middle of a segment: the rest of it becomes a segment of its own.

The chunks from there on are copied, so that the space of those before is free afterwards, and so
that nothing else has to know of segments that begin late. What follows each other, and what a
crash leaves in between:

    the copy is written, and its side files, and synced     temporary file: removed at the opening
    an empty file `<base>.begin`, and the folder is synced  without its segment: removed
    the copy gets its name, and the folder is synced        the log begins there: see below
    readers have it; older segments are removed             as for retention

From the moment that the copy has its name, its `.begin` file says that older segments are not part
of the log, whatever the checkpoint says, and an opening removes them. It stays as long as its
segment does.
"""

from collections.abc import Callable
from pathlib import PurePath

from segments import codec
from segments.atomic_write import TEMPORARY_SUFFIX, replace_file
from segments.chunk_search import Place
from segments.codec import FILE_HEADER_SIZE, Damage, IndexRecord
from segments.disk import File
from segments.errors import FormatError
from segments.segment import (
    BEGIN_SUFFIX,
    DAMAGE_SUFFIX,
    INDEX_SUFFIX,
    SUFFIXES,
    Segment,
    walk_headers,
)

_COPY_BYTES = 1 << 20


class Rest:
    """The end of a sealed segment, as a segment of its own.

    Args:
        segment: that it is taken from; its files must not be removed before `finish`.
        place: the chunk that it begins with.

    Attributes:
        segment: the new one; it can be read after `finish`.
        may_be_there: `finish` has been tried.
    """

    def __init__(self, segment: Segment, place: Place) -> None:
        self._from, self._start = segment, place.position
        self.may_be_there = False
        self.segment = Segment(segment.disk, segment.folder, place.offset)
        self._shift = place.position - FILE_HEADER_SIZE
        self.segment.size = segment.size - self._shift
        self.segment.next_offset = segment.next_offset
        self._temporary = self.segment.path() + TEMPORARY_SUFFIX

    def copy(self, check_running: Callable[[], None]) -> None:
        """Write the new files, as yet without effect. In a thread: it reads and writes it all.

        Args:
            check_running: called for each MiB; what it raises ends the work.

        Raises:
            FormatError: the file was cut, or the device cannot read a part of it.
            StorageError: the system refused.
        """
        disk = self.segment.disk
        self.discard()  # an attempt before this one
        source = disk.open(self._from.path(), writable=False)
        try:
            self._copy_data(source, check_running)
            index = self._index(source)
        finally:
            source.close()
        replace_file(disk, self.segment.path(INDEX_SUFFIX), index).close()
        if self.segment.damage:
            damage = codec.encode_damage(self.segment.damage.values())
            replace_file(disk, self.segment.path(DAMAGE_SUFFIX), damage).close()
        if PurePath(self.segment.path(BEGIN_SUFFIX)).name not in disk.list(self.segment.folder):
            disk.create(self.segment.path(BEGIN_SUFFIX)).close()
        disk.sync_folder(self.segment.folder)

    def _copy_data(self, source: File, check_running: Callable[[], None]) -> None:
        copy = self.segment.disk.create(self._temporary)
        try:
            copy.write([codec.SEGMENT_HEADER], 0)
            end = self._from.size
            for position in range(self._start, end, _COPY_BYTES):
                check_running()
                wanted = min(_COPY_BYTES, end - position)
                data = source.read(wanted, position)
                if len(data) < wanted:
                    raise FormatError(f"{source.path} ends before byte {end}")
                copy.write([data], position - self._shift)
            copy.sync()
        finally:
            copy.close()

    def _index(self, source: File) -> bytes:
        """The content of the new index; what the new segment holds becomes known on the way."""
        content, segment = bytearray(codec.INDEX_HEADER), self.segment
        start = (self._start, segment.base_offset)
        for position, header in walk_headers(self._from, source, start):
            if position >= self._from.size:
                break
            chunk_id, time_ms = header.chunk_id, header.timestamp_ms
            at = position - self._shift
            record = IndexRecord(chunk_id, time_ms, header.epoch, at, header.chunk_type)
            content += codec.encode_index_record(record)
            segment.num_chunks += 1
            segment.last_chunk_id, segment.last_timestamp_ms = chunk_id, time_ms
            if segment.first_timestamp_ms is None:
                segment.first_timestamp_ms = time_ms
        segment.damage = {
            at - self._shift: Damage(at - self._shift, known.end - self._shift, *known[2:])
            for at, known in self._from.damage.items()
            if at >= self._start
        }
        return bytes(content)

    def finish(self) -> None:
        """Let the log begin with it: on the device when this returns.

        Raises:
            StorageError: the system refused; it may have begun nevertheless, which is seen at the
                next opening.
        """
        self.may_be_there = True
        self.segment.disk.rename(self._temporary, self.segment.path())
        self.segment.disk.sync_folder(self.segment.folder)

    def discard(self) -> None:
        """Remove what `copy` has written, but for the `.begin` file.

        That goes with the next opening: after a power failure it must not be missing where the
        segment is there.

        Raises:
            StorageError: the system refused; the next opening does it.
        """
        self.segment.disk.remove(self._temporary)
        for suffix in SUFFIXES:
            if suffix != BEGIN_SUFFIX:
                self.segment.disk.remove(self.segment.path(suffix))

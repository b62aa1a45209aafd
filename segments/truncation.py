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

from collections.abc import Callable, Iterator
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
        self._next = place.position  # what is before it is copied

    def copy(self, check_running: Callable[[], None]) -> None:
        """Write the new files, as yet without effect. In a thread: it reads and writes it all.

        Of a cold segment the next bytes may have to be fetched: then it is to be called again, and
        goes on.

        Args:
            check_running: called for each MiB; what it raises ends the work.

        Raises:
            ColdError: the next bytes have to be fetched.
            FormatError: the file was cut, or the device cannot read a part of it.
            StorageError: the system refused.
        """
        disk = self.segment.disk
        if self._next == self._start:
            self.discard()  # an attempt before this one
        source = self._from.open()
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
        disk = self.segment.disk
        if self._next == self._start:
            copy = disk.create(self._temporary)
        else:
            copy = disk.open(self._temporary, writable=True)
        try:
            copy.write([codec.SEGMENT_HEADER], 0)
            end = self._from.size
            for position in range(self._next, end, _COPY_BYTES):
                self._next = position
                check_running()
                wanted = min(_COPY_BYTES, end - position)
                data = source.read(wanted, position)
                if len(data) < wanted:
                    raise FormatError(f"{source.path} ends before byte {end}")
                copy.write([data], position - self._shift)
            self._next = end
            copy.sync()
        finally:
            copy.close()

    def _index(self, source: File) -> bytes:
        """The content of the new index; what the new segment holds becomes known on the way."""
        content, segment = bytearray(codec.INDEX_HEADER), self.segment
        segment.num_chunks, segment.first_timestamp_ms = 0, None
        for record in self._records(source):
            content += codec.encode_index_record(
                record._replace(position=record.position - self._shift)
            )
            segment.num_chunks += 1
            segment.last_chunk_id = record.chunk_id
            segment.last_timestamp_ms = record.timestamp_ms
            if segment.first_timestamp_ms is None:
                segment.first_timestamp_ms = record.timestamp_ms
        segment.damage = {
            at - self._shift: Damage(at - self._shift, known.end - self._shift, *known[2:])
            for at, known in self._from.damage.items()
            if at >= self._start
        }
        return bytes(content)

    def _records(self, source: File) -> Iterator[IndexRecord]:
        """Index records of the chunks that are copied, with their places in the old segment."""
        if self._from.cold is not None:  # its headers may be gone from the cache by now
            with self._from.index() as index:
                for record in map(index.record, range(index.num_records)):
                    if record.position >= self._start and not self._is_damaged(record.position):
                        yield record
            return
        start = (self._start, self.segment.base_offset)
        for position, header in walk_headers(self._from, source, start):
            if position >= self._from.size:
                break
            chunk_id, time_ms = header.chunk_id, header.timestamp_ms
            yield IndexRecord(chunk_id, time_ms, header.epoch, position, header.chunk_type)

    def _is_damaged(self, position: int) -> bool:
        return any(d.position <= position < d.end for d in self._from.damage.values())

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
        for suffix in SUFFIXES:
            if suffix != BEGIN_SUFFIX:
                self.segment.disk.remove(self.segment.path(suffix))
        self.segment.disk.remove(self._temporary)  # the last: it says what the others are of

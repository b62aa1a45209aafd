"""Which chunks of a segment may hold a key: its key tables, asked together.

A sealed segment has one with all its chunks, in `<base>.keys`. The newest segment gets one after
the other while it grows, each behind the one before in a file of a temporary name; chunks that no
table has yet are looked at one by one. Both files are derived: where one is missing, damaged or of
another content there is no index, and one is rebuilt (derived/key_files.py).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from segments.disk import Disk, Readable
from segments.errors import SegmentsError, StorageError
from segments.keys.table import KeyTable


class Place(NamedTuple):
    """Between two chunks of a segment: that many chunks and bytes stand before it.

    Attributes:
        num_chunks: before it.
        position: of the next chunk, in bytes.
    """

    num_chunks: int
    position: int
    offset: int


class KeyIndex:
    """An index as it is at one time.

    Args:
        path: of the file, which is opened for each question.
        tables: in it, each begins where the one before ends.
        end: what they know lies before this.
        is_final: they are of a sealed segment, and know all of it.

    Attributes:
        num_chunks: chunks from this ordinal on are not in it.
        fault: why it cannot be asked any more; empty as long as it can.
    """

    def __init__(
        self, disk: Disk, path: str, tables: Sequence[KeyTable], end: Place, *, is_final: bool
    ) -> None:
        self._disk = disk
        self.path = path
        self.tables = tuple(tables)
        self.end = end
        self.num_chunks = end.num_chunks
        self.is_final = is_final
        self.properties = self.tables[0].head.properties
        self.fault = ""

    def chunks_with(self, prints: Collection[int]) -> Sequence[int] | None:
        """The ordinals of chunks that may have a key, in order; see `asked`."""
        found = self.asked([prints])
        return None if found is None else sorted(found)

    def asked(
        self, keys: Sequence[Collection[int]], first: int = 0, last: int | None = None
    ) -> dict[int, int] | None:
        """Which chunks may have which of some keys.

        Args:
            keys: the prints of each, see `key_prints`.
            first: no chunks before this ordinal.
            last: none from this ordinal on.

        Returns:
            By ordinal a bit for each key that the chunk may have, by its place. None where the
            file cannot be read or is damaged: then any chunk may have any.
        """
        last = self.num_chunks if last is None else min(last, self.num_chunks)
        found: dict[int, int] = {}
        try:
            file = self._disk.open(self.path, writable=False)
            try:
                for table in self.tables:
                    if table.head.first_chunk >= last or first >= table.head.end_chunk:
                        continue
                    for bits, ordinals in _found(table, file, keys):
                        for at in ordinals:
                            if first <= at < last:
                                found[at] = found.get(at, 0) | bits
            finally:
                file.close()
        except SegmentsError as error:
            if not (isinstance(error, StorageError) and error.is_temporary):
                self.fault = str(error)
            return None
        return found


def _found(
    table: KeyTable, file: Readable, keys: Sequence[Collection[int]]
) -> Iterator[tuple[int, Iterable[int]]]:
    """Ordinals of chunks that may have some keys, and the bits of these keys."""
    yield (1 << len(keys)) - 1, table.uncertain
    for place, prints in enumerate(keys):
        for one in prints:
            yield 1 << place, table.chunks_with(file, one)

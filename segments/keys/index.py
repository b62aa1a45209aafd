"""Which messages of a segment may have a key: its key tables, asked together.

A sealed segment has one with all its chunks, in `<base>.keys`. The newest segment gets one after
the other while it grows, each behind the one before in a file of a temporary name; chunks that no
table has yet are looked at one by one. Both files are derived: where one is missing, damaged or of
another content there is no index, and one is rebuilt (derived/key_files.py).
"""

from collections.abc import Collection, Sequence
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


class Held(NamedTuple):
    """What chunks may have, by their ordinal.

    Attributes:
        keys: a bit for each key that one may have, by its place among those that were asked for.
        messages: the numbers of the messages that may have one, where it is told which.
    """

    keys: dict[int, int]
    messages: dict[int, set[int]]


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
        return None if found is None else sorted(found.keys)

    def asked(
        self, keys: Sequence[Collection[int]], first: int = 0, last: int | None = None
    ) -> Held | None:
        """Which messages may have which of some keys.

        Args:
            keys: the prints of each, see `key_prints`.
            first: no chunks before this ordinal.
            last: none from this ordinal on.

        Returns:
            None where the file cannot be read or is damaged: then any message may have any.
        """
        try:
            file = self._disk.open(self.path, writable=False)
            try:
                return self.held(file, keys, first, last)
            finally:
                file.close()
        except SegmentsError as error:
            if not (isinstance(error, StorageError) and error.is_temporary):
                self.fault = str(error)
            return None

    def held(
        self,
        file: Readable,
        keys: Sequence[Collection[int]],
        first: int = 0,
        last: int | None = None,
    ) -> Held:
        """The same by a file that is open.

        Raises:
            FormatError: it is damaged, or another one.
            StorageError: the system refused.
        """
        last = self.num_chunks if last is None else min(last, self.num_chunks)
        found = _Found(first, last)
        for table in self.tables:
            if table.head.first_chunk < last and first < table.head.end_chunk:
                found.add(table, file, keys)
        return found.held()


class _Found:
    """What tables know of some chunks."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = first, last
        self._keys: dict[int, int] = {}
        self._messages: dict[int, set[int]] = {}
        self._untold: set[int] = set()  # chunks of which any message may be meant

    def add(self, table: KeyTable, file: Readable, keys: Sequence[Collection[int]]) -> None:
        """Ask a table for keys."""
        for ordinal in table.uncertain:
            self._add((1 << len(keys)) - 1, ordinal, 0, 0)
        bits = table.number_bits
        every = (1 << bits) - 1
        for number, prints in enumerate(keys):
            for one in prints:
                for place in table.places_with(file, one):
                    self._add(1 << number, place >> bits, place & every, every)

    def _add(self, keys: int, ordinal: int, number: int, every: int) -> None:
        if not self._first <= ordinal < self._last:
            return
        self._keys[ordinal] = self._keys.get(ordinal, 0) | keys
        if number == every:
            self._untold.add(ordinal)
        else:
            self._messages.setdefault(ordinal, set()).add(number)

    def held(self) -> Held:
        """All of it."""
        for ordinal in self._untold:
            self._messages.pop(ordinal, None)
        return Held(self._keys, self._messages)

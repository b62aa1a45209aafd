"""Bytes that a reader has read ahead, of the segment file that it stands in."""

from segments.codec import CHUNK_HEADER_SIZE, FILE_HEADER_SIZE
from segments.disk import File
from segments.errors import FormatError, UnreadableError
from segments.segment import Segment
from segments.store.cache import ColdFile, Pin

HEAD_READ = CHUNK_HEADER_SIZE + 255  # one chunk's header with the largest filter


class Window:
    """What was read ahead of a segment file; of a cold one it is kept here meanwhile.

    Attributes:
        data: what was read.
        start: where that stands in the file.
        read_size: bytes to be read at once.
        cold: the file where the segment is cold, else None.
        pins: of what was read last; the last one is the data's.
    """

    def __init__(
        self,
        segment: Segment,
        file: File,
        position: int = FILE_HEADER_SIZE,
        read_size: int = HEAD_READ,
    ) -> None:
        self.data = b""
        self.start = position
        self.read_size = read_size
        self.cold = file if isinstance(file, ColdFile) else None
        self.pins: list[Pin] = []
        self._segment, self._file = segment, file
        self._careful_until = 0  # nothing is read ahead before this position

    @property
    def end(self) -> int:
        """Where the data ends in the file."""
        return self.start + len(self.data)

    def fill(self, position: int, needed: int) -> None:
        """Read ahead, at least `needed` bytes; no more where the device cannot read what follows.

        Raises:
            ColdError: those are not here.
            FormatError: the file was cut, or the device cannot read what is needed.
            StorageError: the system refused, or they are not in the store any more.
        """
        left = self._segment.size - position
        wanted = min(max(self.read_size, needed), left)
        if self.cold is not None:
            self._fill_from(self.cold, position, wanted, needed)
        else:
            if position < self._careful_until:
                wanted = min(needed, left)
            try:
                self.data = self._file.read(wanted, position)
            except UnreadableError:
                if wanted <= needed:
                    raise
                self._careful_until = position + wanted
                self.data = self._file.read(needed, position)
        self.start = position
        if len(self.data) < needed:
            raise FormatError(f"the segment ends within {needed} bytes from byte {position}")

    def _fill_from(self, cold: ColdFile, position: int, wanted: int, needed: int) -> None:
        """Read what is here of a cold segment; and keep that here."""
        size = max(needed, cold.length_there(wanted, position))
        pin = cold.hold(size, position)
        try:
            self.data = cold.read(size, position)
        except BaseException:
            pin.release()
            raise
        self.pins.append(pin)

    def hold(self, cold: ColdFile, position: int, size: int) -> None:
        """Keep a chunk here that is read from its file.

        Raises:
            ColdError: not all of it is here.
            StorageError: it is not in the store any more.
        """
        self.pins.insert(0, cold.hold(size, position))

    def bytes_at(self, position: int, size: int) -> bytes:
        """Bytes of the segment, from the data where that has them."""
        start = position - self.start
        if start + size <= len(self.data):
            return self.data[start : start + size]
        return self._file.read(size, position)

    def let_go(self, *, keeps_data: bool = False) -> None:
        """What was read may go, but for the data that is here."""
        number = len(self.pins) - (keeps_data and bool(self.data))
        for pin in self.pins[:number]:
            pin.release()
        del self.pins[:number]

    def drop(self) -> None:
        """Free it; the next `fill` reads it again."""
        self.data = b""
        self.let_go()

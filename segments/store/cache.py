"""The bytes of cold segments that are on the disk for the moment.

A cold segment's `.segment` file is in the store alone. What has been fetched of it stands in a file
of the cache folder, at the same positions, with holes between: whoever reads it needs to know
nothing, and `os.sendfile` sends from it. Reading what is not there raises ColdError, which says
what is wanted; the bytes are fetched, and it is tried again.

The owner of these files is `TierCache`. What was fetched together is a piece. When all pieces
together are more than the cache may have, those go that were read longest ago: a hole is punched,
or, where the file system cannot do that, the file goes once nobody reads it. A piece that is
pinned, because bytes of it are about to be sent, stays.

Fetching writes in threads, and messages are unpacked in threads, so a lock guards what is known of
the pieces; it is held for some system calls at most. A piece is not removed while somebody writes
in its place, or a hole might be punched into what was written. A cache begins empty: after a
restart nobody knows which parts of a file are holes.
"""

import errno
import itertools
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePath
from threading import Lock
from typing import NamedTuple
from weakref import WeakValueDictionary

from segments.disk import Buffer, Disk, File, OsDisk, punch_hole
from segments.errors import SegmentsError, StorageError
from segments.store.manifest import StoredSegment
from segments.store.object_names import StreamKey


class Range(NamedTuple):
    """Bytes of a segment file, from `start` to before `end`."""

    start: int
    end: int


_NOTHING = Range(0, 0)
_SHRUNK_AT_ONCE = 16 << 20  # bytes


class ColdError(SegmentsError):
    """What is to be read has to be fetched first; then it can be read again.

    Attributes:
        wanted: bytes of it that have to be there at the same time, some of which are not.
        suffix: that of the file beside it that is missing; empty when it is the segment itself.
    """

    def __init__(self, cached: "CachedSegment", wanted: Range = _NOTHING, suffix: str = "") -> None:
        what = f"the {suffix} file" if suffix else f"bytes {wanted.start:,} to {wanted.end:,}"
        base = cached.stored.base_offset
        super().__init__(f"{what} of the cold segment {base} must be fetched from the tier")
        self.cached = cached
        self.wanted = wanted
        self.suffix = suffix

    @property
    def ranges(self) -> list[Range]:
        """What is missing of `wanted` at the moment, in order."""
        return self.cached.missing(*self.wanted)


class _Piece:
    """What was fetched together; `pins` keep it."""

    __slots__ = ("end", "pins", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end, self.pins = start, end, 0


class Pin:
    """Keeps bytes of a cold segment until `release`."""

    def __init__(self, cache: "TierCache", pieces: Sequence[_Piece]) -> None:
        self._cache, self._pieces = cache, pieces

    def again(self) -> "Pin":
        """Another one that keeps the same."""
        self._cache.pin(self._pieces)
        return Pin(self._cache, self._pieces)

    def with_more(self, pieces: Sequence[_Piece]) -> "Pin":
        """One in its place that keeps pieces besides, which are pinned."""
        mine, self._pieces = self._pieces, ()
        return Pin(self._cache, [*mine, *pieces])

    def release(self) -> None:
        """They may go; may be called again."""
        pieces, self._pieces = self._pieces, ()
        if pieces:
            self._cache.unpin(pieces)


class CachedSegment:
    """What there is of one cold segment.

    Args:
        cache: owns it.
        folder: of the stream, with the files that are beside the segment.
        name: of its file, which no other one has.

    Attributes:
        is_gone: its objects are not in the store any more.
    """

    def __init__(
        self, cache: "TierCache", stream: StreamKey, stored: StoredSegment, folder: str, name: str
    ) -> None:
        self.stream, self.stored, self.folder, self.name = stream, stored, folder, name
        self.is_gone = False
        self._cache = cache
        self._pieces: list[_Piece] = []  # by their start; none overlaps another
        self._file: File | None = None
        self._users = 0
        self._has_file = self._is_forgotten = False
        self._writing: list[Range] = []

    @property
    def size(self) -> int:
        """Bytes of the segment file."""
        return self.stored.size

    @property
    def max_ahead(self) -> int:
        """Bytes that the cache has room for."""
        return self._cache.max_bytes

    def open(self) -> "ColdFile":
        """The file, to be closed."""
        with self._cache.lock:
            self._users += 1
        return ColdFile(self)

    def missing(self, start: int, end: int) -> list[Range]:
        """What is not there of these bytes, in order."""
        with self._cache.lock:
            return self._missing(start, end)

    def _missing(self, start: int, end: int) -> list[Range]:
        found: list[Range] = []
        end = min(end, self.size)
        for piece in self._touching(start, end):
            if piece.start > start:
                found.append(Range(start, piece.start))
            start = max(start, piece.end)
        if start < end:
            found.append(Range(start, end))
        return found

    def _touching(self, start: int, end: int) -> list[_Piece]:
        pieces = self._pieces
        at = bisect_right(pieces, start, key=lambda piece: piece.start)
        if at and pieces[at - 1].end > start:
            at -= 1
        found = []
        while at < len(pieces) and pieces[at].start < end:
            found.append(pieces[at])
            at += 1
        return found

    def hold(self, start: int, end: int) -> Pin | None:
        """Keep these bytes until the pin is released; None where some are missing."""
        with self._cache.lock:
            if self._missing(start, end):
                return None
            return self._pinned(start, end)

    def hold_some(self, start: int, end: int) -> Pin:
        """Keep those of these bytes that are there."""
        with self._cache.lock:
            return self._pinned(start, end)

    def _pinned(self, start: int, end: int) -> Pin:
        pieces = self._touching(start, end)
        for piece in pieces:
            piece.pins += 1
            self._cache.used(self, piece)
        return Pin(self._cache, pieces)

    def put(self, start: int, content: Buffer) -> Pin:
        """Add bytes; in a thread. What is there already stays as it is.

        Returns:
            What keeps them, or else they might go before somebody has read them.

        Raises:
            StorageError: the disk refused.
        """
        view, first, end = memoryview(content), start, start + len(content)
        pieces: list[_Piece] = []
        pin = self.hold_some(start, end)
        try:
            while (gap := self._begin_writing(start, end)) is not None:
                pieces += self._write(view[gap.start - first : gap.end - first], gap)
                start = gap.end
        except BaseException:
            self._cache.unpin(pieces)
            pin.release()
            raise
        return pin.with_more(pieces)

    def _write(self, content: memoryview, gap: Range) -> list[_Piece]:
        """Fill a gap for which writing was begun; the new piece, which is pinned."""
        try:
            file = self._writable()
            try:
                file.write([content], gap.start)
                return self._cache.add(self, gap)
            finally:
                self._close()  # only now: with the last user, a forgotten file goes
        finally:
            with self._cache.lock:
                self._writing.remove(gap)

    def _begin_writing(self, start: int, end: int) -> Range | None:
        """The first bytes that are missing; nothing is removed in their place until they are."""
        with self._cache.lock:
            gap = next(iter(self._missing(start, end)), None)
            if gap is not None:
                self._writing.append(gap)
        return gap

    def _writable(self) -> File:
        """The file, which is made where it is not there; `_close` gives it back."""
        with self._cache.lock:
            self._users += 1
            if self._file is None:
                try:
                    self._file = self._cache.make_file(self)
                except BaseException:
                    self._users -= 1
                    raise
                self._has_file = True
            return self._file

    def file(self) -> File:
        """The file, open as long as somebody uses it; for who holds bytes of it."""
        with self._cache.lock:
            if self._file is None:
                self._file = self._cache.make_file(self)
                self._has_file = True
            return self._file

    def _close(self) -> None:
        with self._cache.lock:
            self._users -= 1
            if self._users:
                return
            if self._file is not None:
                self._file.close()
                self._file = None
            # What is in a file without a name is gone now; one without bytes is of no use.
            if self._is_forgotten or not self._has_file or not self._pieces:
                self._cache.remove_file(self)

    def lose(self) -> None:
        """Its file is not as it was left: all of it has to be fetched again."""
        with self._cache.lock:
            self._cache.remove_file(self)

    def close(self) -> None:
        """One that has opened it is done."""
        self._close()

    def forget(self) -> None:
        """The segment is not in the log any more: its file goes with the last who reads it."""
        with self._cache.lock:
            self._is_forgotten = True
            if not self._users:
                self._cache.remove_file(self)

    # -- for the cache, which holds the lock

    def insert(self, piece: _Piece) -> bool:
        """Note a piece; False where it is there, put by somebody else meanwhile."""
        if self._touching(piece.start, piece.end):
            return False
        at = bisect_right(self._pieces, piece.start, key=lambda one: one.start)
        self._pieces.insert(at, piece)
        return True

    def drop(self, piece: _Piece) -> bool:
        """Forget a piece; whether its file is of no use any more."""
        self._pieces.remove(piece)
        return not (self._pieces or self._users)

    def is_writing(self, piece: _Piece) -> bool:
        """Somebody writes in the place of a piece."""
        return any(one.start < piece.end and piece.start < one.end for one in self._writing)

    @property
    def has_file(self) -> bool:
        """There is a file in the cache folder."""
        return self._has_file

    @property
    def is_used(self) -> bool:
        """Somebody has it open."""
        return bool(self._users)

    def take_pieces(self) -> list[_Piece]:
        """All its pieces, which are forgotten."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def file_is_removed(self) -> None:
        """Its file has no name any more: what comes next needs another one."""
        self._has_file = False


class ColdFile:
    """A cold segment's file, as readers see it; see disk.File. Nothing is written to it."""

    def __init__(self, cached: CachedSegment) -> None:
        self._cached = cached
        self._is_open = True
        self.path = cached.name

    @property
    def cached(self) -> CachedSegment:
        """What there is of it."""
        return self._cached

    def size(self) -> int:
        """Bytes of the segment file."""
        return self._cached.size

    def read(self, size: int, position: int) -> bytes:
        """Bytes of the segment.

        Raises:
            ColdError: some of them have to be fetched.
            StorageError: the disk refused.
        """
        cached = self._cached
        size = max(0, min(size, cached.size - position))
        pin = self.hold(size, position)
        try:
            file = cached.file()
            if not cached.missing(position, position + size):
                content = file.read(size, position)
                if len(content) == size:
                    return content
                cached.lose()  # somebody has cut it
            raise ColdError(cached, Range(position, position + size))
        finally:
            pin.release()

    def hold(self, size: int, position: int) -> Pin:
        """Keep bytes until the pin is released.

        Raises:
            ColdError: some of them have to be fetched.
            StorageError: they are not in the store any more.
        """
        cached = self._cached
        pin = cached.hold(position, position + size)
        if pin is None:
            if cached.is_gone:
                missing = OSError(errno.ENOENT, "its object is not in the store")
                raise StorageError("read", self.path, missing)
            raise ColdError(cached, Range(position, min(position + size, cached.size)))
        return pin

    def length_there(self, size: int, position: int) -> int:
        """How many of so many bytes are there before one is missing."""
        end = min(position + size, self._cached.size)
        missing = self._cached.missing(position, end)
        return (missing[0].start if missing else end) - position

    def fileno(self) -> int:
        """The descriptor, for bytes that are held."""
        return self._cached.file().fileno()

    def close(self) -> None:
        """Stop reading from it; may be called again."""
        if self._is_open:
            self._is_open = False
            self._cached.close()

    def write(self, parts: Sequence[Buffer], position: int) -> int:  # noqa: ARG002
        """Refused."""
        raise StorageError("write", self.path, OSError(errno.EROFS, "the segment is cold"))

    def truncate(self, size: int) -> None:  # noqa: ARG002
        """Refused."""
        raise StorageError("cut", self.path, OSError(errno.EROFS, "the segment is cold"))

    def sync(self) -> None:
        """Nothing of it is ours."""


class TierCache:
    """All cold segments of a data folder.

    Args:
        folder: of the cache; what is in it goes. Made when something is put into it.
        max_bytes: that may be there. While more are pinned, more are there.

    Attributes:
        num_bytes: that are there.
        lock: guards what is known of the pieces.
    """

    def __init__(self, folder: str = "", max_bytes: int = 0, disk: Disk | None = None) -> None:
        self.num_bytes = 0
        self.lock = Lock()
        self._folder = folder
        self.max_bytes = max_bytes
        self._disk = disk or OsDisk()
        self._pieces: OrderedDict[_Piece, CachedSegment] = OrderedDict()  # by their last use
        self._known: WeakValueDictionary[tuple[str, str], CachedSegment] = WeakValueDictionary()
        self._numbers = itertools.count()
        self._punches = True

    def clear(self) -> None:
        """Empty the folder, if there is one, before anything is cached.

        Raises:
            StorageError: the disk refused.
        """
        try:
            names = self._disk.list(self._folder)
        except StorageError as error:
            if not error.is_missing:
                raise
            return
        for name in names:
            self._disk.remove(str(PurePath(self._folder, name)))

    def segment(self, stream: StreamKey, stored: StoredSegment, folder: str) -> CachedSegment:
        """What there is of a cold segment."""
        key = folder, stored.uid
        found = self._known.get(key)
        if found is None or found.stored != stored:
            name = f"{stored.base_offset:020d}.{next(self._numbers)}"
            found = self._known[key] = CachedSegment(self, stream, stored, folder, name)
        found.is_gone = False  # of a log that is opened, or was told so just now
        return found

    def used(self, cached: CachedSegment, piece: _Piece) -> None:
        """A piece is read; the lock is held."""
        if self._pieces.get(piece) is cached:
            self._pieces.move_to_end(piece)

    def pin(self, pieces: Sequence[_Piece]) -> None:
        """Pieces that are pinned are needed by one more."""
        with self.lock:
            for piece in pieces:
                piece.pins += 1

    def unpin(self, pieces: Sequence[_Piece]) -> None:
        """Pieces are not needed any more by somebody."""
        with self.lock:
            for piece in pieces:
                piece.pins -= 1

    def make_file(self, cached: CachedSegment) -> File:
        """Open a segment's file, or make it; the lock is held.

        Where somebody has removed it, or the folder, what was in it is forgotten, and it is made
        anew.

        Raises:
            StorageError: the disk refused.
        """
        path = str(PurePath(self._folder, cached.name))
        if cached.has_file:
            try:
                return self._disk.open(path, writable=True)
            except StorageError as error:
                if not error.is_missing:
                    raise
                self.remove_file(cached)
        self._disk.make_folder(self._folder)  # which somebody may have removed, too
        self._disk.remove(path)
        return self._disk.create(path)

    def add(self, cached: CachedSegment, where: Range) -> list[_Piece]:
        """Bytes have been written: they may be read. Others go where there are too many.

        Returns:
            The new piece, which is pinned; none where somebody else was faster.
        """
        with self.lock:
            piece = _Piece(*where)
            if not cached.insert(piece):
                return []
            piece.pins = 1
            self._pieces[piece] = cached
            self.num_bytes += piece.end - piece.start
            self._shrink(self.max_bytes)
        return [piece]

    def shrink(self, num_bytes: int) -> None:
        """Let pieces go until there are so many bytes, because the disk is full, say.

        There may be very many, so readers get the lock in between; in a thread, rather.
        """
        before = self.num_bytes + 1
        while num_bytes < self.num_bytes < before:
            with self.lock:
                before = self.num_bytes
                self._shrink(max(num_bytes, before - _SHRUNK_AT_ONCE))

    def _shrink(self, most: int) -> None:
        while self.num_bytes > most:
            may_go = (piece for piece in self._pieces if self._may_go(piece))
            piece = next(may_go, None)
            if piece is None:
                return
            cached = self._pieces[piece]
            if not self._punches:
                self.remove_file(cached)
                continue
            try:
                self._punch(cached, piece)
            except StorageError:
                return  # no descriptor, say: the next time, then

    def _may_go(self, piece: _Piece) -> bool:
        cached = self._pieces[piece]
        if piece.pins or cached.is_writing(piece):
            return False
        return self._punches or not cached.is_used

    def _drop(self, cached: CachedSegment, piece: _Piece) -> None:
        del self._pieces[piece]
        self.num_bytes -= piece.end - piece.start
        if cached.drop(piece):
            self.remove_file(cached)

    def _punch(self, cached: CachedSegment, piece: _Piece) -> None:
        """Let a piece go, unless it turns out that the file system cannot.

        Raises:
            StorageError: the disk refused.
        """
        try:
            file = self._disk.open(str(PurePath(self._folder, cached.name)), writable=True)
        except StorageError as error:
            if not error.is_missing:
                raise
            cached.file_is_removed()  # somebody else has
            if cached.is_used:
                self._drop(cached, piece)
            else:
                self.remove_file(cached)
            return
        try:
            self._punches = punch_hole(file.fileno(), piece.start, piece.end - piece.start)
        finally:
            file.close()
        if self._punches:
            self._drop(cached, piece)

    def remove_file(self, cached: CachedSegment) -> None:
        """Remove a segment's file, with all its pieces; the lock is held.

        Who reads it can finish. What they put into it meanwhile goes when the last of them is done.
        """
        for piece in cached.take_pieces():
            if self._pieces.pop(piece, None) is not None:
                self.num_bytes -= piece.end - piece.start
        if cached.has_file:
            cached.file_is_removed()
            with suppress(StorageError):  # it goes with the next start
                self._disk.remove(str(PurePath(self._folder, cached.name)))

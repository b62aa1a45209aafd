"""Which segments have outlived their stream's limits, by sizes and times; and removing them.

A log hides them from readers in the moment when that is known: when a segment is sealed, or
somebody says the time. Their files are part of it until the tracking does not need them and a
checkpoint says that they are gone; a restart before that finds them again.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import NamedTuple

from segments.checkpoint import write_checkpoint
from segments.codec import Checkpoint
from segments.disk import Disk
from segments.errors import StorageError
from segments.policy import LogPolicy
from segments.segment import BEGIN_SUFFIX, INDEX_SUFFIX, Segment, file_path

_AT_ONCE = 16  # segments whose files a part of a removal removes


class Removal(NamedTuple):
    """Segments that are no longer part of their log, oldest first, and the removal of their files.

    There may be thousands of them, so it can be done in parts, with other work between them.

    Attributes:
        segments: to be removed; each leaves the list when its files are gone.
        checkpoint: says that they are removed, so that none is reported missing or comes back.
    """

    disk: Disk
    folder: str
    segments: list[Segment]
    checkpoint: Checkpoint | None

    def parts(self) -> Iterator[Callable[[], None]]:
        """The work in its parts, each to be done before the next one is asked for.

        Each may run in a thread, and takes milliseconds. The first one writes the checkpoint; where
        there is no room for it, a name says first where the log begins. No flush may be going on
        meanwhile. Each raises StorageError when the system refuses; what is left then is part of
        the log's next removal.
        """
        if self.checkpoint is None:
            return
        yield self._begin
        while self.segments:
            yield self._remove_some

    def run(self) -> None:
        """Remove the files.

        Raises:
            StorageError: see `parts`.
        """
        for part in self.parts():
            part()

    def _begin(self) -> None:
        assert self.checkpoint is not None  # noqa: S101 - see `parts`
        try:
            write_checkpoint(self.disk, self.folder, self.checkpoint)
        except StorageError as error:
            if not error.is_full:
                raise
            self._mark_beginning()
            self._remove_some()  # this is what makes room
            write_checkpoint(self.disk, self.folder, self.checkpoint)
        else:
            self._remove_some()

    def _mark_beginning(self) -> None:
        """Say by a name where the log begins, which needs no room; see truncation.py."""
        assert self.checkpoint is not None  # noqa: S101 - see `parts`
        names = set(self.disk.list(self.folder))
        indexes = [one.path(INDEX_SUFFIX) for one in self.segments]
        going = [path for path in indexes if PurePath(path).name in names]
        if going:  # or what goes is in a store, or was marked by an attempt before this one
            begin = file_path(self.folder, self.checkpoint.first_offset, BEGIN_SUFFIX)
            self.disk.rename(going[0], begin)
        self.disk.sync_folder(self.folder)

    def _remove_some(self) -> None:
        for _ in self.segments[:_AT_ONCE]:
            self.segments[0].remove()
            del self.segments[0]


def expired(segments: Sequence[Segment], size: int, policy: LogPolicy, now_ms: int) -> int:
    """How many of the oldest segments go; never the newest one.

    By size the newest segments stay whose sizes add up to at most `max_length_bytes`, always the
    newest that has messages: it may have been sealed, and nothing have come since. By age those go,
    from the oldest on, whose last chunk is older than `max_age_ms`. Of a chunk from the
    future only this is known: it was written before the next one that is not.

    Args:
        segments: of a log, at least one.
        size: of all of them, in bytes.
        policy: its limits.
        now_ms: wall clock.

    Source: rabbitmq/osiris, src/osiris_log.erl, eval_max_bytes and eval_age.
    """
    return max(_by_size(segments, size, policy.max_length_bytes), _by_age(segments, policy, now_ms))


def _by_size(segments: Sequence[Segment], size: int, max_bytes: int | None) -> int:
    number, newest = 0, len(segments) - 1
    if not segments[newest].num_chunks:
        newest -= 1
    while max_bytes is not None and size > max_bytes and number < newest:
        size -= segments[number].size
        number += 1
    return number


def _by_age(segments: Sequence[Segment], policy: LogPolicy, now_ms: int) -> int:
    if policy.max_age_ms is None:
        return 0
    oldest = now_ms - policy.max_age_ms
    number = 0
    while number < len(segments) - 1:
        following, ended_ms = number + 1, segments[number].last_timestamp_ms
        if ended_ms is not None and ended_ms > now_ms:  # the clock was ahead
            following, ended_ms = _next_begun(segments, following, now_ms)
        if ended_ms is not None and ended_ms >= oldest:
            return number
        number = following
    return number


def _next_begun(segments: Sequence[Segment], start: int, now_ms: int) -> tuple[int, int]:
    """From `start` on the first segment that began in the past, and when: all before ended then."""
    for number in range(start, len(segments)):
        begun_ms = segments[number].first_timestamp_ms
        if begun_ms is not None and begun_ms <= now_ms:
            return number, begun_ms
    return len(segments), now_ms

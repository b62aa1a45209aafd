"""Which segments have outlived their stream's limits, by sizes and times; and removing them."""

from collections.abc import Sequence
from typing import NamedTuple

from segments.checkpoint import write_checkpoint
from segments.codec import Checkpoint
from segments.disk import Disk
from segments.errors import StorageError
from segments.policy import LogPolicy
from segments.segment import Segment


class Removal(NamedTuple):
    """Segments that are no longer part of their log, oldest first, and the removal of their files.

    Attributes:
        disk, folder: where they are.
        segments: to be removed.
        checkpoint: says that they are removed, so that none is reported missing or comes back.
    """

    disk: Disk
    folder: str
    segments: Sequence[Segment]
    checkpoint: Checkpoint | None

    def run(self) -> None:
        """Remove the files. May run in a thread.

        Raises:
            StorageError: the system refused; what is left goes at the next start.
        """
        if self.checkpoint is None:
            return
        is_said = False
        try:
            write_checkpoint(self.disk, self.folder, self.checkpoint)
            is_said = True
        except StorageError as error:
            if not error.is_full:  # then this is what makes room
                raise
        for segment in self.segments:
            segment.remove()
        if not is_said:
            write_checkpoint(self.disk, self.folder, self.checkpoint)


def expired(segments: Sequence[Segment], policy: LogPolicy, now_ms: int) -> int:
    """How many of the oldest segments go; never the newest one.

    By size the newest segments stay whose sizes add up to at most `max_length_bytes`. By age
    those go, from the oldest on, whose last chunk is older than `max_age_ms`.

    Source: rabbitmq/osiris, src/osiris_log.erl, eval_max_bytes and eval_age.
    """
    return max(_by_size(segments, policy.max_length_bytes), _by_age(segments, policy, now_ms))


def _by_size(segments: Sequence[Segment], max_bytes: int | None) -> int:
    if max_bytes is None:
        return 0
    budget = max_bytes - segments[-1].size
    for number in range(len(segments) - 2, -1, -1):
        budget -= segments[number].size
        if budget < 0:
            return number + 1
    return 0


def _by_age(segments: Sequence[Segment], policy: LogPolicy, now_ms: int) -> int:
    if policy.max_age_ms is None:
        return 0
    oldest = now_ms - policy.max_age_ms
    for number, segment in enumerate(segments[:-1]):
        if segment.last_timestamp_ms is not None and segment.last_timestamp_ms >= oldest:
            return number
    return len(segments) - 1

"""Whether a node is still there, by its heartbeat in the store. No clocks, no tasks.

Theory of operation. Whoever watches reads the object again and again, and renews its own heartbeat
meanwhile. The node is gone when its object was the same in four good reads, over the time that is
set and three of its own intervals, while what the watcher itself wrote went well. Only the
watcher's monotonic clock counts:

    a read says that the object was so at some moment between asking and the answer; so time counts
    from the answer of the first read to the asking of the last one
    another object                         all of it begins anew
    a read, or a heartbeat of one's own,   the store was away, for oneself at least: all begins
    has failed                             anew when it answers, so nobody is taken over at once
    no read for half of the time, or one   the watcher itself stood still, or its machine did, and
    that took as long                      the others with it perhaps: all begins anew

That a node is gone is a guess, for which nothing needs to be true: who leads is decided by the log,
and a leader that was taken over is fenced. A wrong guess costs a change of the leader.
"""

from segments.store.cluster import Cluster
from segments.store.heartbeat import FoundHeartbeat, NodeRole

BEAT_SECONDS = 3.0  # between heartbeats, at most
LONE_BEATS = 20  # heartbeats that a node leaves out that is alone
BEATS_IN_TIME = 10 / 3  # so many while a watcher waits, at least
_READS, INTERVALS = 4, 3
_READS_IN_TIME = 5  # so many in the time that is set, and one more
_STARTING_SECONDS = 600.0  # that a start may take


class Watch:
    """Watches one heartbeat.

    Args:
        seconds: that it has to be silent for, at least.
        own_beats: heartbeats of one's own that have to go well meanwhile.
    """

    def __init__(self, seconds: float, own_beats: int = 2) -> None:
        self.seconds = seconds
        self._wanted_beats = own_beats
        self._etag: str | None = None
        self._interval = BEAT_SECONDS
        self._since: float | None = None
        self._asked = self._answered = 0.0
        self._reads = self._own_beats = 0

    @property
    def pause(self) -> float:
        """Seconds between two reads."""
        return min(self.seconds / _READS_IN_TIME, BEAT_SECONDS)

    @property
    def silent_seconds(self) -> float:
        """For how long the object has been the same, as far as it was seen."""
        return 0.0 if self._since is None else max(0.0, self._asked - self._since)

    @property
    def is_silent(self) -> bool:
        """The node has not renewed its heartbeat for as long as three of them take, and a half."""
        return self.silent_seconds >= (INTERVALS + 0.5) * self._interval

    @property
    def is_gone(self) -> bool:
        """The node does not renew its heartbeat any more."""
        wanted = max(self.seconds, INTERVALS * self._interval)
        is_silent = self._since is not None and self.silent_seconds >= wanted
        return is_silent and self._reads >= _READS and self._own_beats >= self._wanted_beats

    def read(self, asked: float, answered: float, found: FoundHeartbeat | None) -> None:
        """The store has answered what there is; None for nothing that this node has written."""
        most = self.seconds / 2
        stood_still = self._since is not None and asked - self._answered > most
        etag = "" if found is None else found.etag
        if etag != self._etag or stood_still or answered - asked > most:
            self.failed()
        if self._since is None:
            self._since = answered
        self._etag, self._asked, self._answered = etag, asked, answered
        self._interval = interval_of(found)
        self._reads += 1

    def beat(self, asked: float) -> None:
        """The watcher has renewed its own heartbeat."""
        if self._since is not None and asked >= self._since:
            self._own_beats += 1

    def failed(self) -> None:
        """Nothing that was seen before counts."""
        self._since = None
        self._reads = self._own_beats = 0


def interval_of(found: FoundHeartbeat | None) -> float:
    """Seconds from a heartbeat to the next one, at most."""
    if found is None:
        return BEAT_SECONDS
    if found.heartbeat is None:  # as long as that of any node may be
        return LONE_BEATS * BEAT_SECONDS
    return found.heartbeat.interval_ms / 1_000


class LeaderWatch(Watch):
    """Watches the leader.

    What does not come from it under its name is silence:

        of another data folder         a node was given its name
        as a standby, or of an         it has what the claim rests on no more
        earlier claim
        as one that starts, again      it ends at each start, and is begun anew by whatever looks
        and again, or for minutes      after it

    Of one that cannot be read only the changes are known: they count.

    Args:
        seconds: see Watch.
        claimed: its claim; None while nobody is known to lead.
    """

    def __init__(self, seconds: float, claimed: Cluster | None = None) -> None:
        super().__init__(seconds)
        self._claimed = claimed
        self._start, self._began_at = "", 0.0

    def of_leader(self, found: FoundHeartbeat | None, asked: float) -> FoundHeartbeat | None:
        """What there is of the leader, when that was `asked` for; None for nothing."""
        beat = None if found is None else found.heartbeat
        if beat is None or self._claimed is None:
            return found
        counts = beat.role in (NodeRole.LEADER, NodeRole.LEFT) and beat.epoch >= self._claimed.epoch
        if beat.role is NodeRole.STARTING:
            if not self._start:
                self._start, self._began_at = beat.start, asked
            is_late = asked - self._began_at > _STARTING_SECONDS
            counts = beat.start == self._start and not is_late
        return found if counts and beat.writer == self._claimed.writer else None


def has_left(found: FoundHeartbeat | None) -> bool:
    """Whether the leader says that it has gone, in order; see `LeaderWatch.of_leader`."""
    beat = None if found is None else found.heartbeat
    return beat is not None and beat.role is NodeRole.LEFT

"""Which published messages of a channel are stored, and the acks that say so.

Plain synchronous code. Tags are 1, 2, 3 and so on. An ack for several says "up to here": it is
only sent for a tag that was open until now and has no open tag below it.
"""

from collections.abc import Iterable, Sequence

from streamd.wire.amqp091 import methods as m


class Confirms:
    """The tags of one channel.

    Attributes:
        last: the tag of the last message; 0 before the first.
        num_settled: messages that are stored in all their streams.
    """

    def __init__(self) -> None:
        self.last = self.num_settled = 0
        self._settled = 0  # all up to here are
        self._ahead: set[int] = set()  # and these behind it
        self._copies: dict[int, int] = {}  # streams that have to store a message, if several

    def next_tag(self, copies: int = 1) -> int:
        """The tag of the next message, which goes to this many streams."""
        self.last += 1
        if copies > 1:
            self._copies[self.last] = copies
        return self.last

    def next_tags(self, count: int) -> Sequence[int]:
        """The tags of the next messages, which go to one stream each."""
        first, self.last = self.last + 1, self.last + count
        return range(first, self.last + 1)

    def settle(self, tags: Iterable[int]) -> list[m.BasicAck]:
        """Messages are stored, in one stream each; returns the acks to send."""
        ready = sorted(filter(self._is_stored, tags) if self._copies else tags)
        before = len(ready)
        self.num_settled += before
        if before and not self._ahead and ready[-1] == self._settled + before:  # as mostly
            self._settled = ready[-1]
            return [m.BasicAck(self._settled, before > 1)]
        self._ahead.update(ready)
        while self._settled + 1 in self._ahead:
            self._settled += 1
            self._ahead.remove(self._settled)
        within = [tag for tag in ready if tag <= self._settled]
        acks = []
        if within:
            acks.append(m.BasicAck(within[-1], len(within) > 1))
        acks += (m.BasicAck(tag, False) for tag in ready[len(within) : before])
        return acks

    def _is_stored(self, tag: int) -> bool:
        copies = self._copies.get(tag)
        if copies is None:
            return True
        if copies > 1:
            self._copies[tag] = copies - 1
            return False
        del self._copies[tag]
        return True

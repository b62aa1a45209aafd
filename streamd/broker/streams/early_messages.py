"""What is published to a stream, and offsets that are stored, while its log is not open."""

import logging
from collections import deque
from collections.abc import Callable

from segments.tracking import Tracking
from streamd.broker.streams.publication import PendingEntries, queued_size
from streamd.operations.errors import Reason
from streamd.operations.names import Name

logger = logging.getLogger(__name__)


class EarlyMessages:
    """They wait for the log, in their order; nothing of them is stored yet."""

    def __init__(self, name: Name) -> None:
        self.num_bytes = 0
        self._name = name
        self._queue: deque[PendingEntries] = deque()
        self._offsets = Tracking()

    def __len__(self) -> int:
        return len(self._queue)

    def __bool__(self) -> bool:
        return bool(self._queue) or self._offsets.has_pending

    def add(self, pending: PendingEntries) -> None:
        """Keep entries until the log is open."""
        self._queue.append(pending)
        self.num_bytes += queued_size(pending.entries)

    def store_offset(self, reference: bytes, offset: int) -> None:
        """Keep a consumer's offset.

        Raises:
            ValueError: the reference cannot be stored.
        """
        self._offsets.store_offset(reference, offset)

    def hand_over(
        self,
        store_offset: Callable[[bytes, int], None],
        publish: Callable[[PendingEntries], None],
    ) -> None:
        """Give everything to a log that is open now."""
        offsets, self._offsets = self._offsets.offsets(), Tracking()
        for reference, offset in offsets.items():
            store_offset(reference, offset)
        for pending in self._take():
            publish(pending)

    def refuse(self, reason: Reason) -> None:
        """The log cannot be opened; about offsets nobody is told."""
        self._offsets = Tracking()
        for publisher, entries in self._take():
            try:
                publisher.refuse(entries.publishing_ids, reason)
            except Exception:  # a bug of its connection: it stays there
                logger.exception("stream %s: a publisher cannot be refused", self._name)

    def _take(self) -> deque[PendingEntries]:
        queue, self._queue, self.num_bytes = self._queue, deque(), 0
        return queue

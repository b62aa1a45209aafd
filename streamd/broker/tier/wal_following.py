"""Following write-ahead logs as they grow, for servers that only read.

Slots are read in their order, see segments/store/wal.py: a name that is free has nothing yet, and a
fence ends a log; then the one of the next epoch goes on. Slots that have gone are in manifests.
Nothing is written into the store.

What was read of a stream, and is in no manifest yet, is kept in a file, see `StoredTail`.
"""

from collections.abc import Iterable
from functools import partial

from segments.store.cluster import Cluster, WalMark
from segments.store.object_store import MissingError, ObjectStore
from streamd.broker.tier.patience import each
from streamd.broker.tier.wal_reading import NOWHERE, ReadSlot, check_tier, read_slot

_AT_ONCE = 8  # slots


class GrowingLogs:
    """The place up to which logs were read.

    Attributes:
        at: the next slot; logs of earlier epochs are at their ends.
    """

    def __init__(self) -> None:
        self.at = NOWHERE
        self._at_once = 1

    async def read(self, store: ObjectStore, cluster: Cluster) -> list[ReadSlot]:
        """The next slots, a few at most; none where there are none yet.

        Args:
            store: of the logs.
            cluster: says which logs there are.

        Raises:
            BadObjectError: the next slot cannot be used.
            TierError: the store is away.
        """
        mark = self._place(cluster.wals)
        if mark is None:
            return []
        numbers = range(mark.begins, mark.begins + self._at_once)
        outcomes = await each(partial(read_slot, store, mark.epoch), numbers, seconds=0)
        found: list[ReadSlot] = []
        for one in outcomes:
            if not isinstance(one, ReadSlot):
                self._at_once = 1
                if found or isinstance(one, MissingError):
                    return found  # what is wrong is met again
                raise one
            check_tier(one.slot, cluster.tier)
            self.at = WalMark(mark.epoch, one.slot.slot + 1)
            if one.slot.is_fence:
                self.at = WalMark(mark.epoch + 1, 0)
                return found or await self.read(store, cluster)
            found.append(one)
        self._at_once = min(2 * self._at_once, _AT_ONCE)
        return found

    def _place(self, marks: Iterable[WalMark]) -> WalMark | None:
        """Where to go on; None where there is no log."""
        there = (max(mark, self.at) if mark.epoch == self.at.epoch else mark for mark in marks)
        return min((mark for mark in there if mark >= self.at), default=None)

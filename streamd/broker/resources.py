"""What all virtual hosts of a server have in common."""

from collections.abc import Callable
from typing import NamedTuple

import trio

from streamd.broker.catalog_writer import CatalogWriter
from streamd.broker.errors import Reason, Refused
from streamd.broker.flusher import Flusher
from streamd.broker.indexer import Indexer
from streamd.net.rounds import Rounds


class StreamQuota:
    """How many streams there are in all virtual hosts, and how many there may be.

    Args:
        limit: the setting max_streams.

    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0

    def check(self, wanted: int) -> None:
        """Raise Refused unless so many more streams can be made."""
        if self._used + wanted > self._limit:
            details = (
                f"there are {self._used:,} streams and {wanted:,} more are wanted, the setting "
                f"max_streams allows {self._limit:,}"
            )
            raise Refused(Reason.PRECONDITION_FAILED, details)

    def count_new(self) -> None:
        """There is one more."""
        self._used += 1

    def count_gone(self) -> None:
        """There is one less."""
        self._used -= 1


class ServerResources(NamedTuple):
    """What all virtual hosts of a server have in common.

    Attributes:
        data: the data folder.
        catalog: changes the catalog of that folder.
        nursery: in which the writers of the streams run.
        now_ms: the wall clock.
        indexer: gives segments their filter indexes.
        flusher: gets what streams write onto the device.
        rounds: at whose end streams write.
        quota: how many streams there may be.
    """

    data: str
    catalog: CatalogWriter
    nursery: trio.Nursery
    now_ms: Callable[[], int]
    indexer: Indexer
    flusher: Flusher
    rounds: Rounds
    quota: StreamQuota

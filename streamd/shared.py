"""What all virtual hosts of a server have in common."""

from collections.abc import Callable
from typing import NamedTuple

import trio

from streamd.catalog import Catalog
from streamd.flushing import Flusher
from streamd.indexing import Indexer
from streamd.poller import Poller


class Shared(NamedTuple):
    """What all virtual hosts of a server have in common.

    Attributes:
        data: the data folder.
        catalog: of that folder.
        nursery: in which the writers of the streams run.
        now_ms: the wall clock.
        changes: held while the catalog is changed.
        indexer: gives segments their filter indexes.
        flusher: gets what streams write onto the device.
        poller: waits for connections; None where there is none.
    """

    data: str
    catalog: Catalog
    nursery: trio.Nursery
    now_ms: Callable[[], int]
    changes: trio.Lock
    indexer: Indexer
    flusher: Flusher
    poller: Poller | None

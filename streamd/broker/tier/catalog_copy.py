"""A copy of the catalog in the store, for a new machine and for those that only read.

The copy has nothing that was removed from the catalog, as SQLite leaves it in free pages. Passwords
are hashes in it, as they are in the catalog, and it has no other secrets.
"""

import logging
import math
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path

import trio

from segments.checksum import crc32
from segments.store.cluster import CatalogCopy
from segments.store.object_names import CATALOG_FOLDER
from segments.store.object_store import ObjectStore, TierError
from streamd.broker.catalog.catalog import CATALOG_FILE, CatalogError
from streamd.broker.tier.claims import FencedError, Held, check, check_there, name_catalog
from streamd.broker.tier.identity import Identity, random_name
from streamd.broker.tier.requests import ask
from streamd.net.wakeup import Wakeup

logger = logging.getLogger(__name__)

_DEBOUNCE_SECONDS = 1.0
_BYTES_PER_SECOND = 1 << 20  # of all copies together, at most; a copy of 10,000 streams has 2 MB
_LONGEST_PAUSE_SECONDS = 30.0
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.5, 30.0
_LOOK_SECONDS = 20.0  # until others than the newest copies are looked for again


def compact_copy(data: str) -> bytes:
    """The catalog of a data folder as it is at one moment, as a file of its own; blocks.

    Whoever changes the catalog does not wait for it.

    Raises:
        CatalogError: it cannot be read.
    """
    path = Path(data, CATALOG_FILE)
    try:
        with (
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(":memory:", isolation_level=None)) as copy,
        ):
            source.backup(copy)
            copy.execute("VACUUM")
            return copy.serialize()
    except sqlite3.Error as error:
        raise CatalogError(f"cannot copy the catalog {path}: {error}") from error


async def _nobody_asks(_held: Held) -> None:
    """Tell nobody: it is enough that the store knows."""


class CatalogCopies:
    """Keeps a copy of the catalog in the store.

    Theory of operation. What is changed is noted (`changed`). A second later, so that many changes
    have one copy, the catalog is copied and stored under a name of its own; then the cluster object
    names it, by compare-and-set. Between two copies there is a pause that grows with their size;
    who waits for a copy (`stored`) waits for neither. As
    the object of the one before may be read by somebody, two are kept. Where removing others has
    failed, or one may have come late to the store, they are looked for again.

    A store that is away is asked again for ever. Once another server has the tier, nothing is
    written any more.

    Args:
        me: gives who this server is, with the epoch that it has claimed the tier with.
        fenced: called when another server turns out to have the tier.
        named: called with what the cluster object says, after each copy.

    Attributes:
        is_fenced: another server has the tier.
        is_behind: the catalog has changed since the last copy.
    """

    def __init__(
        self,
        data: str,
        store: ObjectStore,
        me: Callable[[], Identity],
        fenced: Callable[[FencedError], None],
        named: Callable[[Held], Awaitable[None]] = _nobody_asks,
    ) -> None:
        self.is_fenced = False
        self.is_behind = True
        self._data = data
        self._store = store
        self._me = me
        self._fenced, self._named = fenced, named
        self._work = Wakeup()
        self._work.set()  # what has changed before the start is not known
        self._last: CatalogCopy | None = None
        self._held: Held | None = None
        self._kept: set[str] = set()
        self._may_have_old = False
        self._num_changes, self._num_stored = 1, 0
        self._stored = trio.lowlevel.ParkingLot()
        self._hurry = Wakeup()

    def changed(self) -> None:
        """Something was committed to the catalog."""
        self.is_behind = True
        self._num_changes += 1
        self._work.set()

    async def stored(self) -> None:
        """Return when the store has what was committed before, however long it is away."""
        wanted = self._num_changes
        while self._num_stored < wanted:
            self._hurry.set()
            await self._stored.park()

    async def run(self) -> None:
        """Copy what changes, until cancelled, or fenced; the tier is claimed."""
        while not self.is_fenced:
            with trio.move_on_after(_LOOK_SECONDS if self._may_have_old else math.inf) as waiting:
                await self._work.wait()
            if waiting.cancelled_caught:
                with suppress(TierError, FencedError):  # the next time, then
                    await ask(self._look_again)
                continue
            await self._pause(_DEBOUNCE_SECONDS)
            await self._copy()
            size = 0 if self._last is None else self._last.size
            await self._pause(min(size / _BYTES_PER_SECOND, _LONGEST_PAUSE_SECONDS))

    async def _pause(self, seconds: float) -> None:
        """Wait, unless somebody waits for a copy."""
        with trio.move_on_after(seconds):
            await self._hurry.wait()

    async def _copy(self) -> None:
        """Copy it once, however long the store is away."""
        pause = _FIRST_RETRY_SECONDS
        while True:
            self.is_behind, changes = False, self._num_changes
            try:
                await ask(self._copy_once)
            except FencedError as error:
                self.is_fenced = self.is_behind = True
                self._fenced(error)
            except (TierError, CatalogError) as error:
                self.is_behind = True
                if pause == _FIRST_RETRY_SECONDS:  # else it was said
                    logger.warning("the tier does not have the newest catalog: %s", error)
                await trio.sleep(pause)
                pause = min(2 * pause, _LONGEST_RETRY_SECONDS)
                continue
            else:
                if self._held is not None:
                    await self._named(self._held)
                self._may_have_old |= pause > _FIRST_RETRY_SECONDS
                self._num_stored = changes
                self._stored.unpark_all()
            return

    def _copy_once(self) -> None:
        """Store a copy that differs from the last one, and have it named; blocks.

        Raises:
            FencedError: another server has the tier.
            TierError: the store refused; the copy before is still named.
            CatalogError: the catalog cannot be read.
        """
        content = compact_copy(self._data)
        checksum = crc32(content)
        me = self._me()
        held = check(self._store, me, self._held)
        last = held.cluster.catalog
        if last is not None and last == self._last and last[-2:] == (len(content), checksum):
            return
        revision = 1 if last is None else last.revision + 1
        copy = CatalogCopy(revision, me.epoch, random_name(), len(content), checksum)
        self._store.put(copy.key, content)
        held = check(self._store, me, held)
        check_there(self._store, {copy.key: copy.size})
        self._held = name_catalog(self._store, held, copy, me)
        self._last = copy
        self._kept = {copy.key} if last is None else {copy.key, last.key}
        self._remove_old()

    def _look_again(self) -> None:
        """Remove others than the newest copies where that has failed; blocks.

        Raises:
            FencedError: another server has the tier.
            TierError: the store refused, or is another one.
        """
        check(self._store, self._me(), self._held)
        self._remove_old()

    def _remove_old(self) -> None:
        """Remove all but the newest copies; blocks."""
        newest = max(map(revision_of, self._kept))
        self._may_have_old = True
        with suppress(TierError):
            listed = [found.key for found in self._store.listing(CATALOG_FOLDER)]
            old = [key for key in listed if key not in self._kept and revision_of(key) <= newest]
            if old:
                self._store.delete(old)
            self._may_have_old = False


def revision_of(key: str) -> int:
    """The revision in the key of a copy; -1 for any other key."""
    first = key.rpartition("/")[2].partition(".")[0]
    return int(first) if first.isdecimal() else -1

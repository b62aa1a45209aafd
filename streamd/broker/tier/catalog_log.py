"""Changes of the catalog on their way into the log in the store, and snapshots of it.

Theory of operation. What is committed to the catalog is noted in it (catalog/unlogged.py). A second
later, or at once where somebody waits for it (`stored`), all that is noted goes into one entry of
the log; what is changed meanwhile goes into the next one. When the store has it the notes go:

    noted      an entry is written with it
    written    the store says that it has it: the notes go
               another entry was there, or nobody knows: the log is read on, what it has of this
               server lets notes go, and what is still noted is written again
               another server has claimed the tier: nothing more is written

A store that is away is asked again for ever; the notes are kept for so long, over restarts too.

After 1,000 revisions, or a MiB of rows, there is a snapshot: of a copy of the catalog, when all
that was noted in that copy is in the log, so that it has exactly what the log has up to its
revision. Of snapshots the newest two are kept: the log has all that they have. The copy has nothing
that was removed from the catalog, as SQLite leaves it in free pages. Passwords are hashes in it, as
they are in the catalog, and in entries; there are no other secrets.
"""

import logging
from collections.abc import Callable
from contextlib import closing, suppress

import trio

from segments.store.metadata_log import Held, encode_snapshot
from segments.store.object_names import snapshot_folder, snapshot_in, snapshot_key
from segments.store.object_store import ObjectStore, TierError
from streamd.broker.catalog import unlogged
from streamd.broker.catalog.catalog import CatalogError
from streamd.broker.catalog.schema import VERSION
from streamd.broker.catalog.unlogged import State, Taken, Unlogged, size_of
from streamd.broker.tier import claims
from streamd.broker.tier.claims import FasterError, FencedError
from streamd.broker.tier.identity import Identity, random_name
from streamd.broker.tier.requests import ask
from streamd.net.wakeup import Wakeup

logger = logging.getLogger(__name__)

_DEBOUNCE_SECONDS = 1.0
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.5, 30.0
SNAPSHOT_REVISIONS, SNAPSHOT_BYTES = 1_000, 1 << 20  # after which there is another one
_KEPT_SNAPSHOTS = 2


class CatalogLog:
    """Writes what changes in the catalog into the log.

    Args:
        notes: what has changed.
        store: where the log is.
        me: gives who this server is.
        fenced: called when another server turns out to have the tier.
        read: called with what is known of the tier, after each entry.
        may_move: see claims.py.

    Attributes:
        is_fenced: another server has the tier.
        is_behind: something has changed that is not in the log.
    """

    def __init__(
        self,
        notes: Unlogged,
        store: ObjectStore,
        me: Callable[[], Identity],
        fenced: Callable[[FencedError], None],
        read: Callable[[Held], None],
        *,
        may_move: bool = False,
    ) -> None:
        self.is_fenced = False
        self.is_behind = True
        self._notes, self._store, self._me = notes, store, me
        self._fenced, self._read, self._may_move = fenced, read, may_move
        self._state: State | None = None
        self._work, self._hurry = Wakeup(), Wakeup()
        self._work.set()  # what has changed before the start
        self._num_changes, self._num_stored = 1, 0
        self._stored = trio.lowlevel.ParkingLot()

    def changed(self) -> None:
        """Something was committed to the catalog."""
        self.is_behind = True
        self._num_changes += 1
        self._work.set()

    def grew(self, held: Held) -> None:
        """Something was written into the log, perhaps by others of this server."""
        state = self._state
        if state is not None and held.cluster.revision - state.snapshot >= SNAPSHOT_REVISIONS:
            self._state = None  # read on, and store a snapshot
            self._work.set()

    async def stored(self) -> None:
        """Return when the store has what was committed before, however long it is away."""
        wanted = self._num_changes
        while self._num_stored < wanted:
            self._hurry.set()
            await self._stored.park()

    async def run(self) -> None:
        """Write what changes, until cancelled, or fenced; the tier is claimed."""
        while not self.is_fenced:
            await self._work.wait()
            with trio.move_on_after(_DEBOUNCE_SECONDS):
                await self._hurry.wait()
            await self._write()

    async def _write(self) -> None:
        """Write all that is noted, however long the store is away."""
        pause = _FIRST_RETRY_SECONDS
        while True:
            self.is_behind, changes = False, self._num_changes
            try:
                self._state = await ask(self._write_once, self._state)
            except FencedError as error:
                self.is_fenced = self.is_behind = True
                self._fenced(error)
            except FasterError:  # where write-ahead logs begin, for one
                self._state = None
                continue
            except (TierError, CatalogError) as error:
                self._state = None  # read on
                self.is_behind = True
                if pause == _FIRST_RETRY_SECONDS:  # else it was said
                    logger.warning("the tier does not have the newest catalog: %s", error)
                await trio.sleep(pause)
                pause = min(2 * pause, _LONGEST_RETRY_SECONDS)
                continue
            else:
                self._num_stored = changes
                self._stored.unpark_all()
                await self._snapshot()
                if self._state is not None:
                    self._read(self._state.held)
            return

    def _write_once(self, known: State | None) -> State:
        """Write what is noted, and give what is known then; blocks.

        Raises:
            FencedError: another server has the tier.
            TierError: the store refused.
            CatalogError: the catalog cannot be used, or the log is of another one.
        """
        state = known or self._read_on()
        while (taken := self._notes.take()).rows:
            state = self._put(state, taken)
        return state

    def _read_on(self) -> State:
        """See what is in the log, and let notes go that are."""
        state = self._notes.state()
        if state is None:
            raise CatalogError(
                "the catalog does not say what it has of the log; restart the server"
            )
        held, entries = claims.go_on(self._store, state.held)
        if entries:
            num_bytes = state.num_bytes + sum(size_of(entry.rows) for entry in entries)
            state = State(held, state.snapshot, num_bytes)
            self._notes.check(entries, state)
        claims.require_ours(self._store, held.cluster, self._me())
        return state

    def _put(self, state: State, taken: Taken) -> State:
        held = claims.put_rows(
            *(self._store, state.held, taken.rows, taken.change, VERSION),
            may_move=self._may_move,
        )
        found = State(held, state.snapshot, state.num_bytes + size_of(taken.rows))
        self._notes.written(found, taken.change)
        return found

    # -- snapshots

    async def _snapshot(self) -> None:
        """Store a snapshot where that is worthwhile; if that fails, after the next entry."""
        state = self._state
        if state is None or not (
            state.held.cluster.revision - state.snapshot >= SNAPSHOT_REVISIONS
            or state.num_bytes >= SNAPSHOT_BYTES
        ):
            return
        try:
            self._state = await ask(self._snapshot_once, state)
        except FencedError as error:
            self.is_fenced = self.is_behind = True
            self._fenced(error)
        except (TierError, CatalogError) as error:
            self._state = None
            logger.warning("there is no new snapshot of the catalog in the tier: %s", error)

    def _snapshot_once(self, state: State) -> State:
        with closing(self._notes.copy()) as copy:
            while (taken := unlogged.take(copy)).rows:
                state = self._put(state, taken)
                unlogged.forget(copy, taken.change)
            change = unlogged.change_in(copy)
            content = encode_snapshot(state.held.cluster, change, unlogged.packed(copy))
        tier, revision = state.held.cluster.tier, state.held.cluster.revision
        key = snapshot_key(tier, revision, random_name())
        self._store.put(key, content)
        claims.check_there(self._store, {key: len(content)})
        state = State(state.held, revision)
        self._notes.written(state, 0)
        with suppress(TierError):  # `tier gc` finds them
            if old := old_snapshots(
                [one.key for one in self._store.listing(snapshot_folder(tier))]
            ):
                self._store.delete(old)
        return state


def old_snapshots(keys: list[str]) -> list[str]:
    """All but those of the newest revisions; an attempt may have left one beside another."""
    revisions = {key: at for key in keys if (at := snapshot_in(key)) is not None}
    kept = sorted(set(revisions.values()))[-_KEPT_SNAPSHOTS:]
    return sorted(key for key, revision in revisions.items() if revision not in kept)

"""Ownership of the tier, as far as the store has told this server.

Theory of operation. The server starts whether the store answers or not. A task takes the tier when
the store does: it opens the store, reads the log on from where the catalog is, sees that nothing in
it is news to the catalog, tries whether the store can compare-and-set, begins a log where there is
none, and claims the tier (claims.py); until then nothing is written. From then on it looks now and
then whether the tier is still ours, and at once when a request has failed:

    state                leaves it
    AWAY                 the right store answers: OK, FENCED, NO_COMPARE_AND_SET
    OK                   a look fails, or the store is not the right one: AWAY; another server is
                         named: FENCED
    NO_COMPARE_AND_SET   the store can, when it is tried again after a while
    FENCED               never: another server has it
"""

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import PurePath
from typing import Protocol

import trio

from segments.disk import Disk
from segments.store import stores
from segments.store.cluster import Cluster, WalMark
from segments.store.metadata_log import Entry, Found, Held
from segments.store.object_store import ObjectStore, TierError
from segments.store.stores import probe
from streamd.broker.catalog.catalog import CatalogError
from streamd.broker.catalog.unlogged import State, Unlogged, change_in, packed
from streamd.broker.tier import claims
from streamd.broker.tier.claims import FencedError, WrongStoreError
from streamd.broker.tier.folding import news_of
from streamd.broker.tier.identity import Identity, keep_epoch
from streamd.broker.tier.pauses import next_pause, shortened
from streamd.broker.tier.requests import CountedStore, ask
from streamd.config import Config
from streamd.net import threads
from streamd.operations.tier_reports import TierState

logger = logging.getLogger(__name__)

_BUSY_SECONDS, _IDLE_SECONDS = 10.0, 60.0  # between two looks at whose the tier is
_UNFIT_SECONDS = 600.0  # until a store that cannot compare-and-set is tried again
BEGIN_FILE = "begin-tier"  # of the data folder: a tier is begun where there is none, see claims.py


class OwnershipUse(Protocol):
    """Listens to changes of the store and of the tier's owner."""

    @property
    def is_busy(self) -> bool:
        """Something is uploaded: look more often."""

    def store_opened(self, store: CountedStore) -> None:
        """The store can be asked."""

    def store_is_wrong(self) -> None:
        """The store is a different one: what was written last may be there."""

    def log_grew(self, held: Held) -> None:
        """The log has another entry, perhaps."""

    def ownership_changed(self) -> None:
        """The state may have changed."""


class Ownership:
    """Takes the tier, and knows whose it is.

    Args:
        config: settings of the server.
        use: hears of what changes.
        open_store: gives the store; default that of the settings.

    Attributes:
        identity: see above; its epoch is higher once the store has seen that one.
        sentence: what is wrong and what to do; empty when nothing is.
        fence: why nothing may be written any more; empty while this server has the tier.
        may_move: what is at the store's address may be another one for a while, see claims.py.
    """

    def __init__(
        self,
        config: Config,
        identity: Identity,
        disk: Disk,
        use: OwnershipUse,
        open_store: Callable[[], ObjectStore] | None = None,
    ) -> None:
        self.identity = identity
        self.state, self.sentence = TierState.AWAY, ""
        self.fence = ""
        self._use = use
        self._data, self._disk = config.data, disk
        self.may_move = config.tier.startswith("file:")
        self._notes = Unlogged(config.data)
        self._begins = str(PurePath(config.data, BEGIN_FILE))
        of_config = partial(stores.open_store, config.tier, config.tier_endpoint)
        self._open_store = open_store or of_config
        self._store: CountedStore | None = None
        self._held: Held | None = None
        self._is_fit = False
        self._look = trio.Event()
        self._changed = trio.lowlevel.ParkingLot()

    @property
    def store(self) -> CountedStore:
        """The store, once it could be opened.

        Raises:
            TierError: it could not yet.
        """
        if self._store is None:
            raise TierError(self.sentence or "the tier was not reached yet")
        return self._store

    @property
    def counted(self) -> CountedStore | None:
        """The store, with what has gone to it and come from it; None before it could be opened."""
        return self._store

    @property
    def may_write(self) -> bool:
        """This server has the tier, as far as is known."""
        return self.state is TierState.OK and self._held is not None

    @property
    def cluster(self) -> Cluster:
        """What is known of the tier, once this server has taken it."""
        assert self._held is not None  # noqa: S101 - see above
        return self._held.cluster

    @property
    def since(self) -> int:
        """Manifests of earlier epochs do not count: they are of an earlier tier, or server."""
        return 0 if self._held is None else self._held.cluster.since

    @property
    def wals(self) -> tuple[WalMark, ...]:
        """Write-ahead logs of which something is in no manifest yet."""
        return () if self._held is None else self._held.cluster.wals

    async def mark_wals(self, change: Callable[[tuple[WalMark, ...]], tuple[WalMark, ...]]) -> None:
        """Change what is known of write-ahead logs.

        Raises:
            TierError: the store did not answer, something else was changed at the same time, or
                another server has the tier, see `fence`.
        """
        try:
            work = partial(claims.mark_wals, may_move=self.may_move)
            self.read(await ask(work, self.store, self.identity, self._held, change))
        except FencedError as error:
            self.give_up(error)
            raise TierError(self.fence) from error

    @property
    def is_able(self) -> bool:
        """Whether it owns the tier, or may own it before long."""
        return self.state not in (TierState.FENCED, TierState.NO_COMPARE_AND_SET)

    async def taken(self) -> None:
        """Return when this server has the tier."""
        while not self.may_write:
            await self._changed.park()

    async def settled(self) -> None:
        """Return when it is known whether this server has the tier."""
        while not (self.may_write or not self.is_able):
            await self._changed.park()

    async def fenced(self) -> None:
        """Return when another server has the tier."""
        while not self.fence:
            await self._changed.park()

    async def check(self) -> None:
        """Ask the store who owns the tier, after something that another server may have done.

        Raises:
            TierError: the store did not answer, or is not the right one.
        """
        if not self.fence and self._held is not None:
            try:
                await self._check()
            except TierError as error:
                self._lost_sight(error)
                self._look.set()
                raise

    async def check_stored(self, sizes: Mapping[str, int]) -> None:
        """See that objects which were written are in this tier, before anything names them.

        Raises:
            NotThereError: the store does not have them.
            TierError: it did not answer, or is not the right one.
        """
        await self.check()
        await ask(claims.check_there, self.store, sizes)

    async def check_ownership(self) -> None:
        """A manifest is another server's: ask the store who owns the tier."""
        with suppress(TierError):  # then it is looked at later
            await self.check()

    async def confirmed(self) -> None:
        """Return when the store has said that the tier is this server's, or another's."""
        pause = 0.0
        while True:
            with suppress(TierError):
                return await self.check()
            pause = next_pause(pause)
            await trio.sleep(shortened(pause))

    def look(self) -> None:
        """See soon whether this server has the tier still."""
        self._look.set()

    def look_again(self, _error: TierError) -> None:
        """A stream's request has failed: is it the store, or that stream alone?"""
        self.look()

    async def run(self) -> None:
        """Take the tier, and look whether it is still ours."""
        pause = 0.0
        while not self.fence:
            try:
                await self._look_once()
                pause = 0.0
            except (TierError, CatalogError) as error:
                self._lost_sight(error)
                pause = next_pause(pause)
            seconds = shortened(pause) if pause else self._seconds_to_look()
            self._look = trio.Event()
            with trio.move_on_after(seconds):
                await self._look.wait()
                if pause:
                    await trio.sleep(shortened(pause))

    def _seconds_to_look(self) -> float:
        if self.state is TierState.NO_COMPARE_AND_SET:
            return _UNFIT_SECONDS
        return _BUSY_SECONDS if self._use.is_busy else _IDLE_SECONDS

    async def _look_once(self) -> None:
        if self._store is None:
            self._store = CountedStore(await ask(self._open_store))
            self._use.store_opened(self._store)
        if self._held is not None:
            await self._check()
            return
        try:
            await self._examine_and_take(self._store)
        except FencedError as error:
            self.give_up(error)

    async def _examine_and_take(self, store: CountedStore) -> None:
        state = await threads.in_thread(self._notes.state)
        known = None if state is None else state.held
        found = await ask(claims.examine, store, self.identity, known, self._begins)
        if not self._is_fit:  # only now: nothing is written into another store
            told = await ask(probe, store)
            if told:
                sentence = f"{told}; nothing is uploaded"
                self._set_state(TierState.NO_COMPARE_AND_SET, sentence)
                return
            self._is_fit = True
        earlier = None if found is None else found.held
        if found is None or found.held.earlier is not None:
            catalog = await threads.in_thread(self._copy)
            held = await ask(claims.begin, store, self.identity, earlier, catalog)
            state = State(held, held.cluster.revision)
            await threads.in_thread(self._notes.written, state, catalog.change)
        else:
            held = found.held
            await threads.in_thread(self._see, found, state)
        take = partial(claims.take, may_move=self.may_move)
        held, met = await ask(take, store, self.identity, held)
        if met:  # of another process on a copy of this folder
            await threads.in_thread(self._see_met, met)
        await self._take(held)

    def _copy(self) -> claims.Catalog:
        """The catalog, for the first snapshot."""
        with closing(self._notes.copy()) as copy:
            change = change_in(copy)
            return claims.Catalog(packed(copy), change)

    def _see(self, found: Found, state: State | None) -> None:
        """See that the log has nothing that is news to the catalog."""
        entries, now = news_of(found, state, self._notes)
        if os.path.exists(self._begins):
            self._notes.insist(entries, now)
        elif entries:
            self._notes.check(entries, now)

    def _see_met(self, entries: list[Entry]) -> None:
        """See the same of entries that came just before this server claimed the tier."""
        state = self._notes.state()
        assert state is not None  # noqa: S101 - it was seen
        self._notes.check(entries, state)

    async def _take(self, held: Held) -> None:
        """The tier is this server's from now on."""
        cluster = held.cluster
        await self._keep(
            self.identity._replace(
                epoch=cluster.epoch, tier=cluster.tier, claimed=cluster.epoch, revision=0
            )
        )
        await threads.in_thread(self._disk.remove, self._begins)
        self.read(held)
        self._set_state(TierState.OK, "")

    async def _keep(self, wanted: Identity) -> None:
        """Write down who this server is, and what it knows of its tier."""
        if wanted != self.identity:
            await threads.in_thread(keep_epoch, self._data, wanted, self._disk)
            self.identity = wanted

    def read(self, held: Held) -> None:
        """Something was read of the log, or written into it, of which this server has the tier."""
        if self._held is None or held.cluster.revision >= self._held.cluster.revision:
            self._held = held
            self._use.log_grew(held)

    async def _check(self) -> None:
        try:
            self.read(await ask(claims.check, self.store, self.identity, self._held))
        except FencedError as error:
            self.give_up(error)
            return
        self._set_state(TierState.OK, "")

    def give_up(self, error: FencedError) -> None:
        """Another server has the tier: nothing is written any more."""
        epoch, own = error.cluster.epoch, self.identity
        what = "node" if own.node else "server"
        self.fence = (
            f"another {what}, epoch {epoch}, has taken over the tier; this one, epoch {own.epoch}, "
            "takes no more messages for streams in it"
        )
        if not own.node:  # a node sees to that itself
            self.fence += ": read what is on its disk alone, then stop it"
        self._set_state(TierState.FENCED, self.fence)

    def _lost_sight(self, error: TierError | CatalogError) -> None:
        if isinstance(error, WrongStoreError):
            self._use.store_is_wrong()
        self._set_state(TierState.AWAY, str(error))

    def _set_state(self, state: TierState, sentence: str) -> None:
        if self.state is TierState.FENCED:
            return  # an answer from before that was late
        before, self.state = self.state, state
        has_news = state is not before or sentence != self.sentence
        self.sentence = sentence
        if state is TierState.OK:
            if before is not TierState.OK:
                logger.info("the tier %s is used, epoch %s", self._store, self.identity.epoch)
        elif has_news:
            is_bad = state is TierState.FENCED and not self.identity.node
            level = logging.ERROR if is_bad else logging.WARNING
            logger.log(level, "tier: %s", sentence)
        self._use.ownership_changed()
        self._changed.unpark_all()

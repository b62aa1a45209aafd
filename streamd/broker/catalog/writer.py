"""The one way to change the catalog while the server runs.

A change has a turn of its own, in the order in which the changes asked for one. In its turn it

1. checks whether it may and can be done: nothing that it finds can change before it is complete;
2. commits its rows, all or none;
3. carries out in memory and on the disk what follows from them.

Cancelling the task that asked for the change has an effect while it waits for its turn, and after
its turn, not within: the catalog, the memory and the folders are as before the change or as after
it, even when the connection that asked is reset meanwhile. So a turn must not wait for anything
that depends on a peer.

Where the tier confirms (`answer_when`), whoever asked waits behind the turn until that has what was
committed: then it is answered, and others have had their turns. So does who is told that something
is there which somebody has made, or is gone, and the tier does not know it yet (`Subject`).

The commit is the only step that waits for the device. Should it be worthwhile, changes that
depend on nothing that the others change could have one turn and share a commit, a SAVEPOINT for
each; `Turn.commit` would then return when the commit is made that holds the change.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple, TypeAlias

import trio

from segments import StorageError
from streamd.broker.catalog.catalog import Catalog, CatalogError, Change
from streamd.broker.read_only import ReadOnly
from streamd.net import threads
from streamd.operations.errors import Reason, Refused

# Raises Refused unless whoever asks for a change may still make it.
Check: TypeAlias = Callable[[], None]


def permitted() -> None:
    """A `Check` for changes that nobody asks for: the server makes them."""


_STORE_SECONDS = 20.0  # that an answer waits for the tier; clients wait 30 s


class Subject(NamedTuple):
    """A stream or an exchange, with its bindings, that a client may ask for again."""

    virtual_host: str
    name: str


class Turn:
    """The turn of one change; see the module.

    Attributes:
        has_committed: something was.
        made: was committed.
        ended: streams that are gone, which is answered when the tier knows it.
        found: was there, or was not, and is told of.
    """

    def __init__(
        self,
        catalog: Catalog,
        committed: Callable[[], None],
        read_only: ReadOnly | None = None,
    ) -> None:
        self.has_committed = False
        self.made: set[Subject] = set()
        self.ended: set[Subject] = set()
        self.found: set[Subject] = set()
        self._catalog = catalog
        self._committed = committed
        self._read_only = read_only

    def check_writable(self) -> None:
        """Raise Refused where nothing can be changed; `commit` does, too."""
        if self._read_only is not None:
            raise self._read_only.refusal()

    async def commit(self, *changes: Change) -> None:
        """Write all of it; on return it is on the disk.

        Raises:
            Refused: the catalog cannot be written; nothing is changed in it.
        """
        self.check_writable()
        try:
            await threads.in_thread(self._catalog.apply, *changes)
        except (CatalogError, StorageError) as error:
            raise Refused(Reason.INTERNAL_ERROR, str(error)) from error
        self.has_committed = True
        self._committed()


class CatalogWriter:
    """Gives turns.

    Args:
        catalog: nobody else changes it.
        read_only: says how every change is refused; None where they are made.
    """

    def __init__(self, catalog: Catalog, read_only: ReadOnly | None = None) -> None:
        self._catalog = catalog
        self._read_only = read_only
        self._told: list[Callable[[], None]] = []
        self._stored: Callable[[], Awaitable[None]] | None = None
        self._ends_stored: Callable[[set[Subject]], Awaitable[None]] | None = None
        # Perhaps not known to the tier; until somebody has waited for that.
        self._unstored: set[Subject] = set()
        self._ended: set[Subject] = set()
        self._lock = trio.Lock()  # first come, first served

    @asynccontextmanager
    async def turn(
        self, check: Check = permitted, *, is_answered: bool = True
    ) -> AsyncIterator[Turn]:
        """Wait for a turn; the change is made in this block, which cannot be cancelled.

        Args:
            check: called before the wait and again in the turn: the changes that came before
                may have taken a right away.
            is_answered: somebody is told of it; else it is over when it is made here.

        Raises:
            Refused: by `check`; or it is made here, and the tier does not have it for long.
        """
        check()
        turn = Turn(self._catalog, self._committed, self._read_only)
        refusal: Refused | None = None
        async with self._lock:
            with trio.CancelScope(shield=True):
                check()
                try:
                    yield turn
                except Refused as refused:  # as something is there, say
                    refusal = refused
                if self._stored is not None:
                    self._unstored |= turn.made
                if turn.has_committed:
                    self._ended |= turn.ended
        if turn.has_committed and is_answered:
            await self._answer()
        await self.tell_of(turn.found)
        if refusal is not None:
            raise refusal

    async def tell_of(self, found: Collection[Subject]) -> None:
        """Return when the tier knows what is there, or gone, and is to be told of.

        Raises:
            Refused: it does not for long.
        """
        ended = self._ended.intersection(found)
        if self._ends_stored is not None and ended:
            await self._wait(partial(self._ends_stored, ended))
            self._ended -= ended
        if not self._unstored.isdisjoint(found):
            await self._answer()

    async def stored(self) -> None:
        """Return when the tier has what is committed now, however long that takes."""
        if self._stored is not None:
            await self._stored()

    async def _answer(self) -> None:
        if self._stored is not None:
            made = set(self._unstored)
            await self._wait(self._stored)
            self._unstored -= made

    async def _wait(self, stored: Callable[[], Awaitable[None]]) -> None:
        with trio.move_on_after(_STORE_SECONDS) as waiting:
            await stored()
        if waiting.cancelled_caught:
            details = "it is done, and the tier does not have it: the machine would take it along"
            raise Refused(Reason.NOT_AVAILABLE, details)

    def answer_when(self, stored: Callable[[], Awaitable[None]]) -> None:
        """From now on, changes are answered when `stored` has returned."""
        self._stored = stored

    def answer_ends_when(self, stored: Callable[[set[Subject]], Awaitable[None]]) -> None:
        """That streams are gone is answered when `stored` has returned; see `Turn.ended`."""
        self._ends_stored = stored

    def tell(self, told: Callable[[], None]) -> None:
        """From now on, call `told` whenever something was committed."""
        self._told.append(told)

    def _committed(self) -> None:
        for told in self._told:
            told()

    def close(self) -> None:
        """Release the catalog."""
        self._catalog.close()

"""Servers that share an object store, which fails in all its ways."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import trio

from segments.store import stores
from segments.store.object_store import ObjectStore
from tests.world.store import CLUSTER, LOG, SNAPSHOTS, WAL, Line, Trouble, WorldStore
from tests.world.world import Program, World

_FAILS = (0.1, 0.4, 1)  # of requests
_TROUBLED = (
    "",
    "",
    CLUSTER,
    LOG,
    LOG,
    SNAPSHOTS,
    "/manifest",
    ".segment",
    ".tracking",
)  # parts of keys
_LATE = (0.0, 0.01, 0.5, 5.0)
_TROUBLES = (
    *(Trouble(refused=rate) for rate in _FAILS),
    *(Trouble(unanswered=rate) for rate in _FAILS),
    *(Trouble(conflict=rate) for rate in _FAILS),
    *(Trouble(cut=rate) for rate in _FAILS),
    *(Trouble(late=rate) for rate in _FAILS),
    Trouble(seconds=_LATE),
    Trouble(0.1, 0.1, 0.1, 0.1, _LATE),
)
LASTS = (0.1, 1, 5, 40)  # seconds that something is wrong with the store

Wrote = Callable[[str, str], None]


class SharedStore:
    """The store of a part of the world, and what goes wrong with it.

    Args:
        world: that it is in.
        names: of the boxes whose servers share it; those that are not there are made.
        confirms: messages are confirmed by it, at times at least.

    Attributes:
        store: see above.
        lines: of each box, to the store.
        wrote: is told of each object that the server of a box has written or removed.
        calmed: is called when nothing is wrong any more.
        ways: what is wrong with the way from a box to the store alone.
    """

    def __init__(self, world: World, names: Iterable[str], *, confirms: bool) -> None:
        self.store = WorldStore(world.chance_of("store"), world.now_ms)
        self.lines: dict[str, list[Line]] = {name: [] for name in names}
        self.wrote: dict[str, Wrote] = {}
        self.ways: dict[str, Trouble] = {}
        self.calmed: Callable[[bool], None] = lambda _: None
        self._world = world
        self._troubled = (*_TROUBLED, *[WAL] * (6 if confirms else 0))
        world.request_seconds = self.store.delay
        world.contexts.append(self._opening())

    def lead_to(self, name: str, kind: str) -> None:
        """The server of a box has this store, in a bucket or a folder."""
        box = self._world.boxes.get(name) or self._world.add_box(name)
        box.settings["tier"] = f"{kind}/{name or 'main'}"
        box.left = partial(self.cut_lines, name)

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """Servers that start in this block find the store."""
        opened, stores.open_store = stores.open_store, self._open
        try:
            yield
        finally:
            stores.open_store = opened

    def _open(self, url: str, _endpoint: str = "") -> ObjectStore:
        name = url.rpartition("/")[2].replace("main", "")
        way = partial(self.ways.get, name, Trouble())
        line: Any = Line(self.store, self.wrote.get(name, _nothing), way)
        self.lines[name].append(line)
        return line  # type: ignore[no-any-return]

    def cut_lines(self, name: str) -> None:
        """Nothing of the server in a box reaches the store any more."""
        for line in self.lines[name]:
            line.is_cut = True
        self.lines[name].clear()

    # -- what goes wrong

    def harms(self) -> dict[str, Program]:
        """What can go wrong, by name."""
        return {"store trouble": self._trouble, "store away": self._go_away}

    def for_a_while(self, seconds: float) -> None:
        """What is wrong now is right again then."""

        async def calm() -> None:
            await trio.sleep(seconds)
            self.calm()

        self._world.nursery.start_soon(calm)

    def calm(self) -> None:
        """Nothing is wrong with it any more."""
        self.calmed(self.store.calm())

    async def _trouble(self) -> None:
        chance = self._world.chance
        self.store.trouble = chance.choice(_TROUBLES)._replace(part=chance.choice(self._troubled))
        self.for_a_while(chance.choice(LASTS))

    async def _go_away(self) -> None:
        self.store.is_away = True
        self.for_a_while(self._world.chance.choice(LASTS))


def _nothing(_name: str, _key: str) -> None:
    """Nobody has to know what this server writes; see WorldStore."""

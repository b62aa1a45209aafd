"""What the clients of a run do: each in its own seeded order, all to the same few names."""

import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from random import Random

import trio

from tests.churn.doors import ANSWER_SECONDS, ARGUMENTS, Broken, Door, Dropped, HttpDoor
from tests.churn.history import LOST, Call, History, Model, Outcome, Request
from tests.churn.models import RealmModel, RoutingModel, ShelfModel, StreamModel

LOST_SECONDS = 10  # after which a request whose connection was dropped can have no effect any more
VALUES = (b"red", b"green", b"blue", None)
_LEAVES = 0.06  # how often a connection is dropped in the middle of a request
_MOST_FAULTS = 5
_BODY = re.compile(rb"(s\d+)\|(c\d+)\|(\d+)\|([a-z]*)\|")
_GONE = (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError, OSError)


class Sizes:
    """How much there is to quarrel about.

    Args:
        streams: names of streams.
        routes: names of exchanges and super streams.
        realms: names of virtual hosts, each with a user.
        messages: published at once, at most.
        shelves: names of streams without messages, where offsets are stored and keys are changed.
    """

    def __init__(
        self,
        streams: int = 4,
        routes: int = 2,
        realms: int = 2,
        messages: int = 150,
        shelves: int = 2,
    ) -> None:
        self.streams = streams
        self.routes = routes
        self.realms = realms
        self.messages = messages
        self.shelves = shelves


class World:
    """What all clients of a run share, and what has come of it.

    Attributes:
        streams, routes, realms, shelves: the histories of each kind.
        faults: what must not have happened.
        counts: how many operations there were, by protocol, kind and outcome.
    """

    def __init__(self, sizes: Sizes, *, lost_seconds: float | None = LOST_SECONDS) -> None:
        self.sizes = sizes
        self.streams = [self._history(f"s{n}", StreamModel()) for n in range(sizes.streams)]
        self.routes = [self._history(f"x{n}", RoutingModel()) for n in range(sizes.routes)]
        self.realms = [self._history(f"v{n}", RealmModel()) for n in range(sizes.realms)]
        self.shelves = [self._history(f"t{n}", ShelfModel()) for n in range(sizes.shelves)]
        self.faults: list[str] = []
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self._lost: deque[tuple[float, History, Request]] = deque()
        self._lost_seconds = lost_seconds
        self._events = 0

    @property
    def histories(self) -> list[History]:
        return [*self.streams, *self.routes, *self.realms, *self.shelves]

    @property
    def has_failed(self) -> bool:
        return len(self.faults) >= _MOST_FAULTS

    def _history(self, name: str, model: Model) -> History:
        return History(name, model, self._tick)

    def _tick(self) -> int:
        self._events += 1
        return self._events

    def note_lost(self, history: History, request: Request) -> None:
        """A request has no answer."""
        self._lost.append((trio.current_time(), history, request))

    def expire(self) -> None:
        """Forget lost requests that are too old to have an effect."""
        if self._lost_seconds is None:
            return
        while self._lost and self._lost[0][0] + self._lost_seconds < trio.current_time():
            _, history, request = self._lost.popleft()
            history.expire(request)

    def judge(self) -> tuple[list[str], list[str]]:
        """The faults with what cannot be explained, and the histories that are undecided."""
        verdicts = [(history.name, history.judge()) for history in self.histories]
        unexplained = [verdict.fault for _, verdict in verdicts if verdict.fault]
        undecided = [name for name, verdict in verdicts if not verdict.is_decided]
        return [*self.faults, *unexplained], undecided


def calls_of(world: World, door: Door, chance: Random) -> tuple[History, Call]:
    """Some call that a door can make."""
    kinds = ((world.streams, _STREAM_CALLS, 5), (world.routes, _ROUTE_CALLS, 3))
    kinds = (*kinds, (world.realms, _REALM_CALLS, 2), (world.shelves, _SHELF_CALLS, 2))
    possible = [kind for kind in kinds if any(name in door.calls for name in kind[1])]
    histories, names, _ = chance.choices(possible, [kind[2] for kind in possible])[0]
    history = chance.choice(histories)
    name = chance.choice([name for name in names if name in door.calls])
    if history.name in _SUPER_ONLY:  # or super streams would hardly ever find their names free
        name = _INSTEAD.get(name, name)
    return history, Call(name, _arguments(history.name, name, chance))


_STREAM_CALLS = ("create", "declare", "put", "delete", "remove", "find", "arguments")
_ROUTE_CALLS = (
    "make_super", "delete_super", "partitions", "route", "declare_exchange", "put_exchange",
    "remove_exchange", "remove_unused", "bind", "unbind", "drop_binding", "bound", "create_stream",
    "delete_stream", "remove_stream",
)  # fmt: skip
_REALM_CALLS = (
    "add_host", "put_host", "delete_host", "enter_host", "add_user", "put_user", "delete_user",
    "find_user", "put_permission", "delete_permission", "find_permission", "put_inside",
    "delete_inside",
)  # fmt: skip

_SHELF_CALLS = (
    "build", "build", "tear", "store", "store", "forget", "forget_it", "stored", "set_keys", "keys",
)  # fmt: skip


_SUPER_ONLY = ("x0", "x2", "x4")
_INSTEAD = {"declare_exchange": "remove_unused", "put_exchange": "make_super"}
_INSTEAD |= {"remove_exchange": "bind", "remove_stream": "unbind", "create_stream": "make_super"}

_CHOICES: dict[str, Sequence[object]] = {
    **{kind: list(ARGUMENTS) for kind in ("create", "declare", "put")},
    **dict.fromkeys(("declare_exchange", "put_exchange"), ("fanout", "topic")),
    "route": "01k",
    "store": range(100),
    "set_keys": ("", "a", "a,b"),
}


def _arguments(name: str, kind: str, chance: Random) -> tuple[object, ...]:
    stream = f"{name}-{chance.choice('01')}"
    if kind in _CHOICES:
        return (chance.choice(_CHOICES[kind]),)
    if kind == "make_super":
        return (tuple((key, f"{name}-{key}") for key in "01"),)
    if kind in ("bind", "unbind", "drop_binding"):
        return chance.choice("01k"), stream
    return (stream,) if kind.endswith("_stream") else ()


class Client:
    """One client.

    Args:
        name: of the client.
        world: what all share.
        door: its way to the server.
        chance: decides what it does.
        waits: seconds that a request over HTTP may take at most before it is dropped.
    """

    def __init__(
        self, name: str, world: World, door: Door, chance: Random, waits: float = 0.02
    ) -> None:
        self.name = name
        self._world = world
        self._door = door
        self._chance = chance
        self._waits = waits
        self._next = 1

    async def run(self, steps: Iterable[object]) -> None:
        """One thing after the other, as long as there are steps."""
        try:
            await self._door.open()
            for _ in steps:
                if self._world.has_failed:
                    break
                self._world.expire()
                await self._step()
        except _GONE as error:
            self._world.faults.append(f"{self.name} cannot connect: {error!r}")
        finally:
            with trio.CancelScope(shield=True):
                await self._door.close()

    async def _step(self) -> None:
        door, chance = self._door, self._chance
        door.leaving = chance.random() < _LEAVES
        door.waits = chance.random() ** 2 * self._waits
        work = chance.choices(
            (self._call, self._publish, self._consume, self._look, self._search), (8, 2, 1, 1, 1)
        )
        try:
            with trio.fail_after(2 * ANSWER_SECONDS):
                await work[0]()
        except Dropped:
            await self._again()
        except (Broken, trio.TooSlowError, *_GONE) as error:
            self._world.faults.append(f"{self.name}: {self._doing}: {error!r}")
            await self._again()

    async def _again(self) -> None:
        await self._door.close()
        self._door.leaving = False
        await self._door.open()

    def _count(self, kind: str, outcome: object = "done") -> None:
        word = outcome[0] if isinstance(outcome, tuple) else outcome
        self._world.counts[self._door.name, kind, str(word)] += 1

    async def _call(self) -> None:
        history, call = calls_of(self._world, self._door, self._chance)
        self._doing = f"{call} of {history.name}"
        request = history.begin(call, self.name)
        outcome: Outcome = LOST
        try:
            outcome = await self._door.calls[call.kind](history.name, *call.arguments)
            history.end(request, outcome)
        finally:
            if outcome == LOST:
                self._world.note_lost(history, request)
            self._count(call.kind, outcome)

    async def _look(self) -> None:
        name = self._stream()
        self._doing = f"look, maybe at {name}"
        if kind := await self._door.look(name, self._chance):
            self._count(kind)

    # -- messages

    async def _publish(self) -> None:
        if isinstance(self._door, HttpDoor):
            return
        name = self._stream()
        self._doing = f"publish to {name}"
        count = self._chance.randint(1, self._world.sizes.messages)
        values = self._chance.choices(VALUES, k=count)
        numbers = range(self._next, self._next + count)
        self._next += count
        bodies = [
            b"%s|%s|%d|%s|" % (name.encode(), self.name.encode(), n, value or b"") + b"x" * 30
            for n, value in zip(numbers, values, strict=True)
        ]
        await self._door.publish(name, list(values), bodies)
        self._count("publish")

    async def _consume(self) -> None:
        if isinstance(self._door, HttpDoor):
            return
        name = self._stream()
        self._doing = f"consume {name}"
        value = self._chance.choice(("", "", "red", "blue"))
        is_exact = self._door.name == "amqp"  # else a filter lets whole chunks through
        self._judge(name, value, await self._door.consume(name, value), is_exact=is_exact)
        self._count("consume")

    async def _search(self) -> None:
        name = self._stream()
        self._doing = f"search {name}"
        value = self._chance.choice(("", "red", "blue"))
        found = await self._door.search(name, value)
        if found is not None:
            self._judge(name, value, found, is_exact=True)
            self._count("search")

    def _stream(self) -> str:
        return self._chance.choice(self._world.streams).name

    def _judge(self, name: str, value: str, bodies: list[bytes], *, is_exact: bool) -> None:
        """Messages of this stream, in the order in which each client has published them."""
        last: dict[bytes, int] = {}
        for body in bodies:
            match = _BODY.search(body)
            if match is None or match[1] != name.encode():
                raise Broken(f"{name} has a message that was not published to it: {body!r}")
            if int(match[3]) <= last.get(match[2], 0):
                raise Broken(f"{name}: {match[0]!r} comes after {last[match[2]]}")
            last[match[2]] = int(match[3])
            if value and is_exact and match[4] != value.encode():
                raise Broken(f"{name}: {match[0]!r} is not what was asked for: {value}")

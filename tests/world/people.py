"""People who declare things: several at once, over all doors, all the same few names.

What each of them was answered about a stream, an exchange or a virtual host is a history, which
there must be an order for; see history.py. In the end the catalog, the memory and the folders
agree, and nothing is left of clients; see agreement.py.
"""

import itertools
import re
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

import trio

from clients import Client, Message, connect
from streamd.broker.streams import log_keeper
from tests.world.agreement import disagreements
from tests.world.costly import Costly
from tests.world.doors import ARGUMENTS, DOORS, Broken, Door, Gone
from tests.world.history import LOST, Call, History
from tests.world.models import OFFSETS, RESTART, RealmModel, RoutingModel, StreamModel
from tests.world.rights import User
from tests.world.sharing import Sharing
from tests.world.world import Program, World

_CLIENTS = 4
_STEPS = (3, 20)  # of a client, from, to
_PAUSES = (0, 0, 0, 0, 0.01, 0.2, 1)  # seconds between them
_LEAVES = 0.25  # how often a request is given up
_LEAVES_AFTER = (0, 0.001, 0.02, 0.05, 0.1, 0.2)
_MESSAGES = (1, 3, 30)  # published at once
_AGES = 10  # seconds after which something that was wrong with the machine is not felt any more
_SETTLE_SECONDS = 30
_IDLE = 60  # seconds after which logs are closed, where limits are not lowered
_BODY = re.compile(r"(d\d)\|(.+)\|(\d+)")
_CHOICES: dict[str, Sequence[Any]] = {
    "create": list(ARGUMENTS),
    "create_exchange": ("fanout", "topic"),
    "route": "01k",
    "store": OFFSETS,
    "set_keys": ("", "a", "a,b"),
}


class People:
    """A part of the world: see above.

    Attributes:
        histories: what was answered, by what it is about.
    """

    is_kept = True

    def __init__(self, world: World) -> None:
        self._world = world
        self._tick = itertools.count(1).__next__
        self._streams = StreamModel()
        models: dict[str, Any] = {"d0": self._streams, "d1": self._streams, "v0": RealmModel()}
        models |= {"x0": RoutingModel(), "x1": RoutingModel()}
        self.histories = {n: History(n, model, self._tick) for n, model in models.items()}
        self._was_wrong = -float("inf")
        self._sharing = Sharing(world)
        self._costly = Costly(world, self.may_fail)
        self._ann = User(world, self.may_fail)
        world.box.told_of_ends.append(self._server_has_ended)
        world.witness.judges.append(lambda _: self.judge())

    def judge(self) -> list[str]:
        """What cannot be explained; a machine that was lost explains everything."""
        if self._world.box.was_wiped:
            return []
        faults = [history.judge() for history in self.histories.values()]
        found = [f"every answer is explained: {fault}" for fault in faults if fault]
        return found + self._ann.judge()

    def may_fail(self) -> bool:
        """Whether the machine is at fault when something is refused."""
        now, machine = trio.current_time(), self._world.box.machine
        if machine.wrong or machine.broken_at is not None:
            self._was_wrong = now
        return now < self._was_wrong + _AGES

    def _server_has_ended(self) -> None:
        for history in self.histories.values():
            history.end_all(RESTART)

    async def prepare(self) -> None:
        """What clients do not make themselves."""
        self._streams.is_closed_soon = log_keeper._IDLE_SECONDS < _IDLE
        await self._ann.prepare()
        async with connect(heartbeat=0) as client:
            await self._sharing.prepare(client)

    def programs(self) -> dict[str, Program]:
        found: dict[str, Program] = {
            f"c{number}": partial(self.live, f"c{number}", DOORS[-1 - number % len(DOORS)])
            for number in range(_CLIENTS)
        }
        found |= self._ann.programs() | self._sharing.programs()
        return found | {"traffic": self._move, "audit": self._audit, "costly": self._costly.run}

    def harms(self) -> dict[str, Program]:
        return {}

    # -- requests

    async def live(self, who: str, kind: type[Door], steps: int = 0) -> None:
        """Ask for one thing after the other, so many or as many as the seed says."""
        chance = self._world.chance_of(who)
        door = kind(self._world.box, self.may_fail, is_held=self._world.holds_streams)
        steps = steps or chance.randint(*_STEPS)

        async def work() -> None:
            nonlocal steps
            while steps and not self._world.is_ending:
                steps -= 1
                await trio.sleep(chance.choice(_PAUSES))
                await self._step(who, door, chance)

        try:
            while steps and not self._world.is_ending:
                await self._world.guarded(who, work)
                door.close()
        except* Broken as broken:
            self._world.witness.faults += [f"{who}: {error}" for error in broken.exceptions]

    async def _step(self, who: str, door: Door, chance: Random) -> None:
        history, call = self._some_call(door, chance)
        with trio.CancelScope() as scope:
            if chance.random() < _LEAVES:
                scope.deadline = trio.current_time() + chance.choice(_LEAVES_AFTER)
            try:
                await door.open()
                request = history.begin(call, who)
                answer = await door.ask(call.kind, history.name, *call.arguments)
                # An offset that could not be written is kept, and there once there is room.
                if answer != LOST or call.kind != "store":
                    history.end(request, answer)
                self._world.note(f"{door.name} {call.kind}", f"{history.name} {request}")
                return
            except Gone:
                self._world.note(f"{door.name} lost")
        door.close()

    def _some_call(self, door: Door, chance: Random) -> tuple[History, Call]:
        """Some call that a door can make."""
        while True:
            history = chance.choice(list(self.histories.values()))
            kinds = [kind for kind in door.ways if hasattr(history.model, kind)]
            if history.name == "x0":  # or super streams would hardly ever find their names free
                kinds = [k for k in kinds if k not in ("create_exchange", "create_stream")]
            if kinds:
                kind = chance.choice(kinds)
                return history, Call(kind, _arguments(history.name, kind, chance))

    async def _audit(self) -> None:
        """Whenever nothing is being changed, the catalog and the memory are the same."""
        chance = self._world.chance_of("audit")
        while not self._world.is_ending:
            await trio.sleep(chance.choice((0.3, 1, 3)))
            server = self._world.box.server
            if server is not None and not server.server.broker.catalog._lock.locked():
                self._world.witness.faults += disagreements(server, is_quiet=False)

    # -- messages on streams that may go at any time

    async def _move(self) -> None:
        """Publish to them, and read them; what is read is what was published, in order."""
        chance = self._world.chance_of("traffic")
        numbers = itertools.count(1)

        async def work(client: Client) -> None:
            while not self._world.is_ending:
                await trio.sleep(chance.choice(_PAUSES) + 0.2)
                name = chance.choice(("d0", "d1"))
                if chance.random() < 0.6:
                    async with client.producer(name, name="traffic") as producer:
                        for number in itertools.islice(numbers, chance.choice(_MESSAGES)):
                            await producer.send(Message(f"{name}|p|{number}".encode()))
                else:
                    await self._read(client, name)

        while not self._world.is_ending:
            await self._world.attempt("traffic", work, retry_seconds=1)
            await trio.sleep(0.3)

    async def _read(self, client: Client, name: str) -> None:
        last = 0
        async with client.consumer(name, offset="first", until_end=True) as consumer:
            async for message in consumer:
                match = _BODY.fullmatch(bytes(message.body).decode())
                if match is None or match[1] != name or int(match[3]) < last:
                    self._world.witness.faults.append(
                        f"a stream has its own messages, in order: {name} has {message.body!r} "
                        f"behind {last}"
                    )
                else:
                    last = int(match[3])

    # -- the end

    async def finish(self) -> None:
        """Nothing: programs end."""

    async def settle(self) -> None:
        """See that all that knows of things agrees."""
        await self._sharing.settle()
        await trio.sleep(_SETTLE_SECONDS)
        server = self._world.box.server
        if server is not None:
            self._world.witness.faults += disagreements(server)


def _arguments(name: str, kind: str, chance: Random) -> tuple[Any, ...]:
    stream = f"{name}-{chance.choice('01')}"
    if kind in _CHOICES:
        return (chance.choice(_CHOICES[kind]),)
    if kind == "make_super":
        return (tuple((key, f"{name}-{key}") for key in "01"),)
    if kind in ("bind", "unbind"):
        return chance.choice("01k"), stream
    return (stream,) if kind.endswith("_stream") else ()

"""What is taken away ends what was begun with it: nothing of it happens after that was answered.

Each request of tests/auth/needs.py, and each form of the console, is asked over its door, and
something is taken away from who has asked: after each number of steps that the tasks of the server
have taken since. The change is answered: from then on nothing of the request happens, nor when it
is asked again.
"""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
from hypothesis import HealthCheck, given, settings, strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from streamd.auth.administration import Administration
from streamd.broker.declared.rows import PermissionRow
from streamd.operations.names import as_sent
from streamd.operations.rights import Right
from streamd.operations.routing import Binding, ExchangeRow
from streamd.wire.amqp091 import methods as m
from streamd.wire.stream import ResponseCode, commands as c
from tests.auth import needs as n
from tests.auth.test_rights import allow, enough, path_to, world
from tests.console import test_rights as console
from tests.support import amqp
from tests.support.console import visitor
from tests.support.http import Http
from tests.support.server import Harness, frame

EVERYTHING = PermissionRow("ada", "/", *[".*"] * 3)
ADA = as_sent("ada")
Change = Callable[[Harness], Awaitable[object]]
Ask = Callable[[], Awaitable[object]]
_GONE = (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError)
_SECONDS = 30.0  # an answer has come by then, or does not come


class After(trio.abc.Instrument):
    """Sets `event` when tasks have taken so many steps."""

    def __init__(self, steps: int) -> None:
        self.event = trio.Event()
        self.steps = 0
        self._wanted = steps

    def after_task_step(self, _task: trio.lowlevel.Task) -> None:
        self.steps += 1
        if self.steps == self._wanted:
            self.event.set()


@asynccontextmanager
async def after(steps: int) -> AsyncIterator[After]:
    """An event that is set so many steps after the block has begun."""
    clock = After(steps)
    trio.lowlevel.add_instrument(clock)
    try:
        yield clock
    finally:
        trio.lowlevel.remove_instrument(clock)


# -- what is taken away


async def deleted(server: Harness) -> None:
    await server.server.directory.remove_user(ADA)


async def made_again(server: Harness) -> None:
    await deleted(server)
    await server.server.directory.put_user(ADA, b"another", ["administrator"])
    await server.server.directory.put_permission(EVERYTHING)


async def another_password(server: Harness) -> None:
    await server.server.directory.put_user(ADA, b"another")


async def no_permission(server: Harness) -> None:
    await server.server.directory.remove_permission(ADA, as_sent("/"))


async def no_tags(server: Harness) -> None:
    await server.server.directory.put_user(ADA, tags=[])


async def no_host(server: Harness) -> None:
    """The virtual host is made again at once, and ada may not enter it."""
    administration = Administration(server.server.broker, server.server.directory)
    await administration.remove_virtual_host(as_sent("/"))
    await administration.add_virtual_host(as_sent("/"), as_sent("guest"))


OF_THE_LOGIN: dict[str, Change] = {
    "deleted": deleted,
    "made again": made_again,
    "another password": another_password,
}
OF_A_PERMISSION: dict[str, Change] = {"no permission": no_permission, "no host": no_host}
OF_A_TAG: dict[str, Change] = {"no tags": no_tags}
CHANGES = OF_THE_LOGIN | OF_A_PERMISSION | OF_A_TAG


# -- what there is


def marks(server: Harness) -> dict[str, object]:
    """Everything that a request may change."""
    broker, directory = server.server.broker, server.server.directory
    hosts = broker.virtual_hosts
    streams = [
        (host.row(name)._replace(has_files=False), _contents(host.find(name)))
        for host in hosts.values()
        for name in host.names()
    ]
    tier: Any = broker.tier
    connections = [x for x in server.server.connections if x.user != "ada"]
    return {
        "hosts": sorted(hosts),
        "streams": streams,
        "super streams": [list(host.super_streams.rows()) for host in hosts.values()],
        "exchanges": [host.topology.rows() for host in hosts.values()],
        "bindings": [
            sorted(map(str, host.topology.bindings_from(row.name)))
            for host in hosts.values()
            for row in host.topology.rows()
        ],
        "users": directory.users(),
        "permissions": directory.permissions(),
        "asked of the tier": [x for x in tier.asked if x != ("cancelled",)],
        "connections": len(connections),
        "ended": [getattr(x.end, "call_count", 0) for x in connections],
    }


def _contents(stream: Any) -> object:
    if stream.life.opened_log is None:
        return "closed"
    log = stream.log
    offsets = sorted(log.journal.tracking.offsets().items())
    return stream.life.num_published, log.segments.first_offset, offsets, stream.standing.rows()


async def try_out(server: Harness, ask: Ask) -> tuple[int, bool]:
    """How many steps a request takes that may be carried out, and whether it changes something."""
    async with held(server), after(0) as clock:
        before = marks(server)
        with trio.move_on_after(_SECONDS), suppress(*_GONE):
            await ask()
        num_steps = clock.steps
        await wait_all_tasks_blocked()
        return num_steps, marks(server) != before


@asynccontextmanager
async def held(server: Harness) -> AsyncIterator[None]:
    """With the logs of all streams open."""
    async with AsyncExitStack() as logs:
        for name in server.host.names():
            await logs.enter_async_context(server.host.find(name).opened())
        await wait_all_tasks_blocked()
        yield


async def check(
    server: Harness, ask: Ask, steps: int, take: str, *, is_completed: bool = False
) -> None:
    """Ask, take something away after so many steps, and ask again.

    Args:
        server: the server.
        ask: the request.
        steps: of all tasks, after which it is taken away.
        take: a key of CHANGES.
        is_completed: once begun, it is.
    """
    async with held(server), after(steps) as clock:

        async def asked() -> None:
            with trio.move_on_after(_SECONDS), suppress(*_GONE):
                await ask()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(asked)
            with trio.move_on_after(_SECONDS / 2):
                await clock.event.wait()
            await CHANGES[take](server)
            at_change = marks(server)
        await wait_all_tasks_blocked()
        if is_completed:
            at_change = marks(server)
        assert marks(server) == at_change, f"{take} after {steps} steps"
        await asked()
        await wait_all_tasks_blocked()
        assert marks(server) == at_change, f"asked again, {take}"


# -- doors


async def over_stream(server: Harness, kind: type[Any], fields: tuple[Any, ...]) -> Ask:
    peer = await server.peer(user="ada")
    has_answer = "correlation_id" in kind.__struct_fields__

    async def ask() -> None:
        if not has_answer:
            await peer.send(kind(*fields))
        await peer.ask(*((kind, *fields) if has_answer else (c.Metadata, ())))

    return ask


async def over_a_publisher(server: Harness) -> Ask:
    """Frames of a publisher that was declared when its user might."""
    peer = await server.peer(user="ada")
    await peer.declare("s")

    async def ask() -> None:
        for _ in range(10):
            await peer.send(frame([b"x"] * 10))
        await peer.ask(c.Metadata, ())

    return ask


async def over_amqp(server: Harness, method: Any) -> Ask:
    peer = await amqp.open_peer(server, user="ada")

    async def ask() -> None:
        if isinstance(method, m.BasicPublish):
            for _ in range(10):
                await peer.publish(method.key, *[b"m"] * 10, exchange=method.exchange)
        else:
            await peer.send(method)
        await peer.send(m.BasicQos(0, 10, False))
        await peer.next()
        await peer.next()

    return ask


async def over_http(server: Harness, route: str) -> Ask:
    """With a body that comes byte by byte."""
    verb, body, http = route.split(maxsplit=1)[0], n.HTTP[route].fields, Http(server)
    path = "vhosts/new" if route == "PUT /api/vhosts/{vhost}" else await path_to(server, route)

    async def pieces() -> AsyncIterator[bytes]:
        for byte in json.dumps(body).encode():
            await trio.lowlevel.checkpoint()
            yield bytes([byte])

    return lambda: http.ask(verb, path, None if body is None else pieces(), "ada", "guest")


async def over_the_console(server: Harness, route: str) -> Ask:
    browser = visitor(server)
    await browser.log_in("ada", "guest")
    form = {**console.CASES[route].form, "csrf": await browser.token()}
    if "before" in form:
        form["before"] = "5"
    if route.endswith("/tags"):
        form["was"] = "policymaker"
    path, headers = console.path_of(route), {"origin": "http://localhost"}
    return lambda: browser.client.post(path, data=form, headers=headers)


class Tried(NamedTuple):
    """A request over a door.

    Attributes:
        begin: makes what asks it, for ada, who has what it needs.
        case: what it needs.
        needs_tag: without any tag it is refused.
    """

    begin: Callable[[Harness], Awaitable[Ask]]
    case: n.Case
    needs_tag: bool = False

    @property
    def changes(self) -> list[str]:
        """What takes away all of the right to it."""
        found = list(OF_THE_LOGIN)
        if self.case.is_for_administrators or self.needs_tag:
            found += OF_A_TAG
        if not self.case.is_for_administrators:
            found += OF_A_PERMISSION
        return found


def _of_the_console(route: str) -> n.Case:
    case = console.CASES[route]
    rights = tuple(Right) if case.right == "all" else (Right[case.right.upper() or "READ"],)
    needs = tuple(
        ((right, name),) for right in rights for name in ("s", "s2", "s2-0", "s2-1", "s-0")
    )
    return n.Case(None, needs, bool(case.tags))


def _manage(operation: str) -> Callable[[Harness], Awaitable[Ask]]:
    fields = (operation, n.MANAGE[operation].fields)
    return partial(over_stream, kind=c.Manage, fields=fields)


TRIED: dict[str, Tried] = {
    **{
        kind.__name__: Tried(partial(over_stream, kind=kind, fields=case.fields), case)
        for kind, case in n.STREAM.items()
    },
    "StoreOffset": Tried(
        partial(over_stream, kind=c.StoreOffset, fields=("r", "s", 7)), n.Case((), n.read("s"))
    ),
    "Publish": Tried(over_a_publisher, n.Case((), n.write("s"))),
    **{f"Manage {name}": Tried(_manage(name), case) for name, case in n.MANAGE.items()},
    **{name: Tried(partial(over_amqp, method=case.fields), case) for name, case in n.AMQP.items()},
    **{
        route: Tried(partial(over_http, route=route), case, needs_tag=True)
        for route, case in n.HTTP.items()
    },
    **{
        f"console: {route}": Tried(
            partial(over_the_console, route=route), _of_the_console(route), needs_tag=True
        )
        for route in console.ACTIONS
        if not route.endswith("/logout")
    },
}


# They only read, or find what they are to make.
WITHOUT_EFFECT = re.compile(
    "Declare|Query|Subscribe|Metadata|Route|Part|.*Stat|Res|Desc|.*Find|.*list|.*tier.st|.*passive"
    "|.*Purge|BasicConsume|BasicGet|GET|POST .*/get|DELETE .*username|ExchangeBind|PUT /api/queues"
    "|console: POST /(definitions|create-exchange)"
)


# Once it is being written, or ends, that is completed.
COMPLETED = re.compile("truncate|DELETE .*connections")


@pytest.mark.parametrize("name", TRIED)
def test_nothing_happens_after_it_was_taken_away(tmp_path: Path, name: str) -> None:
    tried, numbers = TRIED[name], count()

    def run(use: Callable[[Harness, Ask], Awaitable[Any]]) -> Any:
        folder = tmp_path / str(next(numbers))
        return trio.run(begin, folder, use, clock=MockClock(autojump_threshold=0))

    async def begin(folder: Path, use: Callable[[Harness, Ask], Awaitable[Any]]) -> Any:
        async with world(folder) as server:
            await server.host.create("t", [])
            peer = await server.publisher("s")
            for number in range(10):
                await peer.store([b"x"], number)
            await peer.vanish()
            await server.server.directory.put_user(as_sent("bob"), tags=["policymaker"])
            if name.startswith("console"):
                patterns = PermissionRow("bob", "/", "^b", "^b", "^b")
                await server.server.directory.put_permission(patterns)
                await server.host.settings.remove_selector("s", "g")
                await server.host.create_super_stream("s", [("0", "s-0")], [])
                server.server.connections.add(console.connection_of(server, "bob"))
            await allow(server, enough(tried.case)[0])
            tags = ["administrator"] if tried.case.is_for_administrators else ["management"]
            await server.server.directory.put_user(ADA, tags=tags)
            return await use(server, await tried.begin(server))

    num_steps, has_effect = run(try_out)
    assert has_effect or WITHOUT_EFFECT.match(name), "it may do it, and does"

    @settings(max_examples=3, suppress_health_check=list(HealthCheck))
    @given(st.integers(1, num_steps), st.sampled_from(tried.changes))
    def take_away(steps: int, take: str) -> None:
        run(partial(check, steps=steps, take=take, is_completed=bool(COMPLETED.search(name))))

    take_away()


# -- the rest of a frame


@pytest.mark.parametrize("change", OF_THE_LOGIN | OF_A_PERMISSION)
async def test_the_rest_of_a_frame_is_not_stored(tmp_path: Path, change: str) -> None:
    seen = set()
    for steps in range(1, 40, 3):
        async with world(tmp_path / str(steps)) as server:
            await server.host.create(
                "f", [("stream-filter-property", "kind"), ("stream-filter-derive", "true")]
            )
            await allow(server, [(Right.WRITE, "f")])
            peer = await server.peer(user="ada")
            await peer.declare("f")
            stream = server.host.find(as_sent("f"))
            async with after(steps) as clock:
                await peer.publish([b"x"] * 2_000)
                await clock.event.wait()
                await CHANGES[change](server)
                taken = stream.life.num_published
                await wait_all_tasks_blocked()
                assert stream.life.num_published == taken
            seen.add(taken)
    assert len(seen) > 2, "in the middle of it, too"


@pytest.mark.parametrize("change", OF_A_PERMISSION)
async def test_no_publisher_begins_when_its_stream_was_opened_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    async with world(tmp_path) as server:
        await server.host.create("f", [])
        await allow(server, [(Right.WRITE, "f")])
        peer = await server.peer(user="ada")
        stream = server.host.find(as_sent("f"))
        ready = stream.ready

        async def late() -> None:
            await ready()
            await CHANGES[change](server)

        monkeypatch.setattr(stream, "ready", late)
        assert await peer.code(c.DeclarePublisher, 1, "", "f") == ResponseCode.ACCESS_REFUSED


# -- the rest of a message to many streams, and of chunks to a consumer


async def test_the_rest_of_a_message_to_many_streams_is_not_stored(tmp_path: Path) -> None:
    seen = set()
    for steps in (3, 5, 8):
        async with world(tmp_path / str(steps)) as server:
            names = [as_sent(f"s{number}") for number in range(220)]
            await server.host.create_all([(name, []) for name in names])
            row = ExchangeRow("/", "all", "fanout", False, False, False, "")
            server.host.topology.add(
                row, [Binding("/", "all", name, False, "", {}) for name in names]
            )
            await allow(server, [(Right.WRITE, "all")])
            peer = await amqp.open_peer(server, user="ada")
            streams = [server.host.find(name) for name in names]
            for stream in streams:
                await stream.ready()
            async with after(steps) as clock:
                await peer.publish("", b"x", exchange="all")
                await clock.event.wait()
                await no_permission(server)
                taken = sum(stream.life.num_published for stream in streams)
                await wait_all_tasks_blocked()
                assert sum(stream.life.num_published for stream in streams) == taken
            seen.add(taken)
    assert len(seen) > 1, "in the middle of it, too"


async def test_chunks_that_have_not_begun_are_not_sent(tmp_path: Path) -> None:
    """To a consumer that reads slowly."""
    async with world(tmp_path) as server:
        writer = await server.publisher("s")
        for number in range(10):
            await writer.store([b"x" * 1_000], number)
        await allow(server, [(Right.READ, "s")])
        peer = server.connect(reads_slowly=True)
        await peer.log_in(user="ada")
        await peer.subscribe("s")
        await wait_all_tasks_blocked()
        await no_permission(server)
        num_chunks = 0
        while isinstance(found := await peer.next(), c.Deliver):
            num_chunks += 1
        assert isinstance(found, c.MetadataUpdate)
        assert num_chunks <= 1

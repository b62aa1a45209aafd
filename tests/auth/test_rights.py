"""Every command, method and path is tried without each of the rights that it needs.

Without a right from the start; with one that is taken away while the request waits for its turn;
in another virtual host; by a user that is deleted, and made again under the same name.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from streamd.auth.administration import Administration
from streamd.auth.users import Rights
from streamd.broker.declared.rows import PermissionRow
from streamd.broker.declared.standing_selectors import parse_standing
from streamd.connections.stream.management import Management
from streamd.engine import Caller
from streamd.operations.rights import Right
from streamd.operations.routing import Binding, ExchangeRow, ExchangeType
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp10 import performatives as p
from streamd.wire.stream import ResponseCode, commands as c
from tests.auth import needs as n
from tests.broker.catalog.test_changes import state
from tests.connections.amqp10.test_link_pairs import attach_pair
from tests.connections.amqp10.test_management import request
from tests.support import amqp, amqp10
from tests.support.http import Http
from tests.support.server import FIRST, OK, Harness, Peer, frame, harness
from tests.support.tier import FakeTier

REFUSED = ResponseCode.ACCESS_REFUSED
UNAUTHORIZED = 401
Ask = Callable[[], Awaitable[bool]]  # whether it was refused for want of a right


# -- the table is complete


def test_every_stream_command_is_in_the_table() -> None:
    listed = [*n.STREAM, *n.STREAM_WITHOUT_NEEDS, *n.STREAM_APART]
    assert sorted(map(repr, get_args(c.ClientCommand))) == sorted(map(repr, listed))


def test_every_operation_is_in_the_table() -> None:
    assert set(n.MANAGE) == Management.OPERATIONS


def test_every_amqp_method_is_in_the_table() -> None:
    kinds = {name.split()[0] for name in n.AMQP} | {k.__name__ for k in n.AMQP_WITHOUT_NEEDS}
    assert kinds == {kind.__name__ for kind in m.SENT_BY_CLIENT}


def routes(server: Harness) -> set[str]:
    app: Any = server.server.http_app()
    while not hasattr(app, "routes"):  # what is around it
        app = app._app
    return {f"{verb} {route.path}" for route in app.routes for verb in route.methods - {"HEAD"}}


async def test_every_path_is_in_the_table(server: Harness) -> None:
    listed = [*n.HTTP, *n.HTTP_WITHOUT_NEEDS, *n.HTTP_OF_A_HOST, *n.HTTP_WITHOUT_LOGIN]
    assert sorted(listed) == sorted(routes(server))


# -- a server with something in it


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[Harness]:
    """See needs.py; the users are guest, bob, secret-bob and ada, who tries everything."""
    async with harness(folder) as server:
        host, directory = server.host, server.server.directory
        server.server.broker.tier = FakeTier()
        await host.create("s", [])
        await host.settings.put_selector("s", parse_standing("g", "union", "a = 1"))
        async with host.find("s").opened():
            host.find("s").store_offset("reader", 3)
        partitions = [("0", "super-0"), ("1", "super-1")]
        await host.create_super_stream("super", partitions, [])
        for name in ("x", "y"):
            row = ExchangeRow("/", name, ExchangeType.TOPIC, True, False, False, "")
            await host.exchanges.declare(row)
        await host.exchanges.bind(Binding("/", "x", "s", False, "k", {}))
        await host.exchanges.bind(Binding("/", "x", "y", True, "k", {}))
        administration = Administration(server.server.broker, directory)
        await administration.add_virtual_host("hidden", "guest")
        hidden = server.server.broker.virtual_hosts["hidden"]
        await hidden.create("secret-stream", [])
        await hidden.create_super_stream("secret-super", [("0", "secret-super-0")], [])
        for name in ("bob", "secret-bob", "ada"):
            await directory.put_user(name, b"guest", ["management"])
        await directory.put_permission(PermissionRow("bob", "hidden", "", "", ""))
        yield server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Harness]:
    async with world(tmp_path) as running:
        yield running


async def allow(server: Harness, found: Iterable[tuple[Right, str]], host: str = "/") -> None:
    """Let ada have these rights and no others."""
    names: dict[Right, list[str]] = {right: [] for right in Right}
    for right, name in found:
        names[right].append(re.escape(name))
    patterns = [f"^({'|'.join(names[r])})$" if names[r] else "" for r in Right]
    await server.server.directory.put_permission(PermissionRow("ada", host, *patterns))


def without_one(case: n.Case) -> list[list[tuple[Right, str]]]:
    """All the rights that a case needs but one, for each of them."""
    return [
        list(chain.from_iterable(need for other, need in enumerate(case.needs) if other != number))
        for number in range(len(case.needs))
    ]


def enough(case: n.Case) -> list[list[tuple[Right, str]]]:
    """Rights of which each set is enough."""
    most = max(map(len, case.needs), default=1)
    return [[need[min(k, len(need) - 1)] for need in case.needs] for k in range(most)]


async def is_refused_in_its_turn(server: Harness, ask: Ask, change: Ask) -> bool:
    """Ask for something that the user may do until a change that has its turn just before."""
    refused = False

    async def run() -> None:
        nonlocal refused
        refused = await ask()

    async with trio.open_nursery() as nursery, server.server.broker.catalog.turn():
        nursery.start_soon(change)
        await wait_all_tasks_blocked()
        nursery.start_soon(run)
        await wait_all_tasks_blocked()
    return refused


async def check(server: Harness, case: n.Case, ask: Ask, *, changes: bool) -> None:
    """Try a request without each of its rights, with its rights, and when one goes meanwhile."""
    directory = server.server.directory
    if case.is_for_administrators:
        await allow(server, [(right, ".*") for right in Right])
        tags = partial(directory.put_user, "ada", tags=["management"])
        entitle = partial(directory.put_user, "ada", tags=["administrator"])
        less: list[Any] = [tags]
        more: list[Any] = [entitle]
    else:
        less = [partial(allow, server, rights) for rights in without_one(case)]
        more = [partial(allow, server, rights) for rights in enough(case)]
    before = state(server)["streams"], state(server)["exchanges"], state(server)["bindings"]
    for take in less:
        await take()
        assert await ask(), "refused without the right"
    if changes:
        for take in less:
            await more[0]()
            assert await is_refused_in_its_turn(server, ask, take), "refused in its turn"
    now = state(server)["streams"], state(server)["exchanges"], state(server)["bindings"]
    assert now == before
    for give in more:
        await give()
        assert not await ask(), "these rights are enough"


# -- the stream protocol

CHANGING = {c.Create, c.Delete, c.CreateSuperStream, c.DeleteSuperStream}


def _codes(answer: Any) -> list[int]:
    return [row.code for row in answer.streams] if not hasattr(answer, "code") else [answer.code]


async def asks(peer: Peer, kind: type[Any], *fields: Any) -> bool:
    answer = await peer.ask(kind, *fields)
    if kind is c.DescribeStreams:
        return bool(answer.streams[0].code == REFUSED)
    return _codes(answer)[0] == REFUSED


@pytest.mark.parametrize("kind", n.STREAM, ids=lambda kind: kind.__name__)
async def test_commands(server: Harness, kind: type[Any]) -> None:
    case = n.STREAM[kind]
    await allow(server, [])
    peer = await server.peer(user="ada")
    ask = partial(asks, peer, kind, *case.fields)
    await check(server, case, ask, changes=kind in CHANGING)


@pytest.mark.parametrize("operation", n.MANAGE)
async def test_operations(server: Harness, operation: str) -> None:
    case = n.MANAGE[operation]
    await allow(server, [])
    peer = await server.peer(user="ada")
    ask = partial(asks, peer, c.Manage, operation, case.fields)
    is_of_the_catalog = not operation.endswith("list") and operation not in n.OF_A_LOG
    await check(server, case, ask, changes=is_of_the_catalog)


async def test_the_tag_monitoring_is_enough_to_look_at_the_tier(server: Harness) -> None:
    await allow(server, [])
    await server.server.directory.put_user("ada", tags=["monitoring"])
    peer = await server.peer(user="ada")
    refused = {op: await asks(peer, c.Manage, op, n.MANAGE[op].fields) for op in n.OF_THE_TIER}
    assert {op for op, is_refused in refused.items() if not is_refused} == {"tier.status"}


@pytest.mark.parametrize("kind", n.STREAM, ids=lambda kind: kind.__name__)
async def test_commands_in_another_virtual_host(server: Harness, kind: type[Any]) -> None:
    """All rights in one virtual host do nothing to what has the same name in another one."""
    before = state(server)
    await allow(server, [])
    rows = [PermissionRow("ada", "/", "", "", ""), PermissionRow("ada", "hidden", *[".*"] * 3)]
    for row in rows:
        await server.server.directory.put_permission(row)
    peer = await server.peer(user="ada", virtual_host="hidden")
    await peer.ask(kind, *n.STREAM[kind].fields)
    for part in ("streams", "exchanges", "bindings"):
        found, was = state(server)[part], before[part]
        if part == "streams":
            found, was = ([row for row in rows if row.virtual_host == "/"] for rows in (found, was))
        else:
            found, was = found["/"], was["/"]
        assert found == was


async def test_an_offset_is_not_stored_without_the_right(server: Harness) -> None:
    reader = await server.peer()
    await allow(server, [])
    peer = await server.peer(user="ada")
    await peer.send(c.StoreOffset("r", "s", 7))
    await peer.code(c.QueryOffset, "r", "s")  # carried out after it
    assert await reader.code(c.QueryOffset, "r", "s") == ResponseCode.NO_OFFSET
    await allow(server, [(Right.READ, "s")])
    await peer.send(c.StoreOffset("r", "s", 7))
    assert await peer.code(c.QueryOffset, "r", "s") == OK


# -- AMQP 0-9-1


async def asks_amqp(peer: amqp.AmqpPeer, method: Any) -> bool:
    """Each request on a channel of its own: a refusal closes it."""
    await peer.ask(m.ChannelOpen(), m.ChannelOpenOk)
    await peer.ask(m.BasicQos(0, 10, False), m.BasicQosOk)
    if isinstance(method, m.BasicPublish):
        await peer.send_bytes(peer.message(method.key, b"m", exchange=method.exchange))
        await peer.send(m.BasicQos(0, 10, False))
    else:
        await peer.send(method)
    found = await peer.next()
    if isinstance(found, m.ChannelClose):
        await peer.send(m.ChannelCloseOk())
        assert found.code == 403, found
        return True
    if not isinstance(found, m.ConnectionClose):
        await peer.ask(m.ChannelClose(200, "", 0, 0), m.ChannelCloseOk)
    else:
        assert found.code == 540, found  # streams cannot do that
    return False


@pytest.mark.parametrize("name", n.AMQP)
async def test_methods(server: Harness, name: str) -> None:
    case = n.AMQP[name]
    changes = name.startswith(("Queue", "Exchange")) and not name.endswith(("passive", "Purge"))
    await allow(server, [])
    peers: list[amqp.AmqpPeer] = []

    async def ask() -> bool:
        peer = amqp.connect(server)
        await peer.log_in(user="ada")
        peers.append(peer)
        return await asks_amqp(peer, case.fields)

    await check(server, case, ask, changes=changes)


# -- AMQP 1.0


async def asks_amqp10(peer: amqp10.Amqp10Peer, asked: Any) -> bool:
    """A refusal ends the session."""
    if isinstance(asked, tuple) and not isinstance(asked, p.Attach):
        await attach_pair(peer)
        await peer.publish(request(*asked), settled=True)
    else:
        await peer.send(asked)
    while True:
        _, found, _ = await peer.receive()
        if isinstance(found, p.End):
            assert found.error.condition == "amqp:unauthorized-access", found
            return True
        if isinstance(found, p.Attach | p.Transfer):
            return False


@pytest.mark.parametrize("name", n.AMQP10)
async def test_links(server: Harness, name: str) -> None:
    case = n.AMQP10[name]
    await allow(server, [])

    async def ask() -> bool:
        peer = await amqp10.open_peer(server, user="ada")
        return await asks_amqp10(peer, case.fields)

    await check(server, case, ask, changes=not name.startswith("Attach"))


# -- HTTP


def path_of(route: str, name: str = "s") -> str:
    filled = {**n.FILLED, "name": name}
    return re.sub(r"\{(\w+)\}", lambda found: filled[found[1]], route).removeprefix("/api/")


NAMES = {
    "DELETE /api/stream/super-streams/{vhost}/{name}": "super",
    "GET /api/stream/super-streams/{vhost}/{name}": "super",
    "DELETE /api/exchanges/{vhost}/{name}": "x",
    "PUT /api/exchanges/{vhost}/{name}": "s",
    "POST /api/exchanges/{vhost}/{name}/publish": "x",
    "GET /api/exchanges/{vhost}/{name}": "x",
    "GET /api/nodes/{name}": "streamd@localhost",
}


async def path_to(server: Harness, route: str) -> str:
    """The path of a request about what there is in the world; a connection is made for it."""
    name = NAMES.get(route, "s")
    if "connections" in route and "{name}" in route:
        await server.peer()
        await wait_all_tasks_blocked()  # it is open before it is listed
        (connection,) = server.server.connections
        name = connection.name.replace(" ", "%20")
    path = path_of(route.split()[1], name)
    return path.replace("%2F", "hidden") if "permissions" in route else path


@pytest.mark.parametrize("route", n.HTTP)
async def test_paths(server: Harness, route: str) -> None:
    case, verb = n.HTTP[route], route.split(maxsplit=1)[0]
    http, path = Http(server), await path_to(server, route)
    await allow(server, [])

    async def ask() -> bool:
        answer = await http.ask(verb, path, case.fields, "ada", "guest")
        assert answer.status_code < 500, answer.text
        assert answer.status_code != 404, answer.text
        return answer.status_code == UNAUTHORIZED

    is_of_the_catalog = verb != "GET" and not re.search(
        "connections|tracking|truncate|tier|publish|/get", path
    )
    await check(server, case, ask, changes=is_of_the_catalog)


@pytest.mark.parametrize("route", sorted(n.HTTP_OF_A_HOST | n.HTTP_WITHOUT_NEEDS))
async def test_paths_show_what_the_caller_may_see(server: Harness, route: str) -> None:
    """Nothing of other virtual hosts, not even that there is one, and no paths of the server."""
    _, template = route.split()
    http, path = Http(server), path_of(template, NAMES.get(route, "s"))
    await server.peer(virtual_host="hidden", connection_name="secret")
    broker = server.server.broker
    for stream in (broker.virtual_hosts["hidden"].find("secret-stream"), server.host.find("s")):
        await stream.ready()
        stream.life.held.writer.failure = "/secret/path: the disk is broken"
    await allow(server, [])
    answer = await http.ask("GET", path, None, "ada", "guest")
    assert answer.status_code in (200, 503), answer.text
    assert "secret" not in answer.text
    assert "hidden" not in answer.text
    if route in n.HTTP_OF_A_HOST:
        hidden = await http.ask("GET", path.replace("%2F", "hidden"), None, "ada", "guest")
        missing = await http.ask("GET", path.replace("%2F", "missing"), None, "ada", "guest")
        assert hidden.status_code == missing.status_code == UNAUTHORIZED
        await server.server.directory.remove_permission("ada", "/")  # meanwhile
        answer = await http.ask("GET", path, None, "ada", "guest")
        assert answer.status_code == UNAUTHORIZED
    full = await http.ask("GET", path)
    assert full.status_code in (200, 503)


# -- what goes on when rights go


async def test_a_right_that_goes_ends_reading_and_publishing_at_once(server: Harness) -> None:
    await allow(server, [(Right.READ, "s"), (Right.WRITE, "s"), (Right.WRITE, "super-0")])
    publisher, consumer = await server.peer(user="ada"), await server.peer(user="ada")
    await publisher.declare("s")
    await publisher.declare("super-0", publisher_id=2)
    await consumer.subscribe("s")
    await publisher.store([b"seen"])
    assert await consumer.bodies(1) == [b"seen"]
    await allow(server, [(Right.WRITE, "super-0")])
    for peer in (publisher, consumer):
        with trio.fail_after(1):
            update = await peer.expect(c.MetadataUpdate)
        assert (update.code, update.stream) == (ResponseCode.STREAM_NOT_AVAILABLE, "s")
    await publisher.send(frame([b"late"], 2))
    (fault,) = (await publisher.expect(c.PublishError)).faults
    assert fault.code == ResponseCode.PUBLISHER_DOES_NOT_EXIST
    guest = await server.publisher("s")
    await guest.store([b"hidden"])
    await consumer.silence()
    await publisher.store([b"still"], publisher_id=2)


async def test_a_right_that_goes_ends_consumers_of_amqp_at_once(server: Harness) -> None:
    await allow(server, [(Right.READ, "s")])
    peer = await amqp.open_peer(server, user="ada")
    await peer.consume("s")
    before = trio.current_time()
    await server.server.directory.remove_permission("ada", "/")
    with trio.fail_after(1):
        await peer.expect(m.BasicCancel)
    assert trio.current_time() == before


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made again"])
async def test_connections_of_a_deleted_user_end_at_once(server: Harness, again: bool) -> None:
    directory = server.server.directory
    row = PermissionRow("ada", "/", ".*", ".*", ".*")
    await directory.put_permission(row)
    stream_peer, amqp_peer = await server.peer(user="ada"), amqp.connect(server)
    await amqp_peer.log_in(user="ada")
    other = await server.peer()
    before = trio.current_time()
    await directory.remove_user("ada")
    if again:
        await directory.put_user("ada", b"guest", ["administrator"])
        await directory.put_permission(row)
    with trio.fail_after(1):
        await stream_peer.ended()
        await amqp_peer.expect(m.ConnectionClose)
        await amqp_peer.send(m.ConnectionCloseOk(), 0)
        await amqp_peer.ended()
    assert trio.current_time() == before
    assert await other.code(c.StreamStats, "s") == OK
    assert len(server.server.connections) == 1


async def test_a_user_made_again_is_another_user(server: Harness) -> None:
    directory = server.server.directory
    old = directory.account("ada")
    assert old is not None
    rights = Rights(directory, old, "/")
    await directory.remove_user("ada")
    await directory.put_user("ada", b"guest", ["administrator"])
    await directory.put_permission(PermissionRow("ada", "/", ".*", ".*", ".*"))
    new = directory.account("ada")
    assert new is not None
    assert Rights(directory, new, "/").allows(Right.READ, "s")
    assert not rights.allows(Right.READ, "s")
    assert not rights.may_enter
    assert not Caller(directory, old).is_administrator


async def test_a_login_is_over_when_its_user_is_made_again(server: Harness) -> None:
    """The password was that of the first user, the virtual host would be entered as the second."""
    directory, peer = server.server.directory, server.connect()
    await allow(server, [])
    assert await peer.code(c.PeerProperties, ()) == OK
    assert await peer.code(c.SaslHandshake) == OK
    assert await peer.code(c.SaslAuthenticate, "PLAIN", b"\0ada\0guest") == OK
    await peer.expect(c.Tune)
    await directory.remove_user("ada")
    await directory.put_user("ada", b"other")
    await allow(server, [])
    await peer.send(c.Tune(1 << 20, 0))
    code = await peer.code(c.Open, "/")
    assert code == ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE


@pytest.mark.parametrize("change", ["password", "user"])
async def test_a_password_that_was_changed_while_it_was_checked(
    server: Harness, change: str
) -> None:
    directory = server.server.directory
    found: list[Any] = []

    async def authenticate() -> None:
        found.append(await directory.authenticate("ada", b"guest", "192.0.2.1"))

    async with trio.open_nursery() as nursery:
        for _ in range(directory._checks.total_tokens):
            directory._checks.acquire_on_behalf_of_nowait(object())
        borrowers = list(directory._checks.statistics().borrowers)
        nursery.start_soon(authenticate)
        await wait_all_tasks_blocked()
        if change == "user":
            await directory.remove_user("ada")
        await directory.put_user("ada", password_hash="")
        for borrower in borrowers:
            directory._checks.release_on_behalf_of(borrower)
    assert found == [None]


async def test_a_right_that_goes_while_a_log_is_opened(server: Harness) -> None:
    """Nothing is added to a connection whose rights were looked at already."""
    await allow(server, [(Right.READ, "super-0"), (Right.WRITE, "super-1")])
    reader, writer = await server.peer(user="ada"), await server.peer(user="ada")
    peer = await amqp.open_peer(server, user="ada")
    await peer.ask(m.BasicQos(0, 10, False), m.BasicQosOk)
    codes: list[int] = []

    async def ask(peer: Peer, *command: Any) -> None:
        codes.append(await peer.code(*command))

    consume = m.BasicConsume(0, "super-0", "t", False, False, False, False, {})
    remove = partial(server.server.directory.remove_permission, "ada", "/")
    turn = server.server.broker.catalog.turn  # the first use of a stream waits for its turn
    async with trio.open_nursery() as nursery, turn():
        nursery.start_soon(remove)
        await wait_all_tasks_blocked()
        nursery.start_soon(ask, reader, c.Subscribe, 1, "super-0", FIRST, 1, ())
        nursery.start_soon(ask, writer, c.DeclarePublisher, 1, "", "super-1")
        nursery.start_soon(peer.send, consume)
        await wait_all_tasks_blocked()
    assert codes == [REFUSED, REFUSED]
    assert (await peer.expect(m.ChannelClose)).code == 403
    for live in server.server.connections:
        assert not live.consumers()
        assert not live.publishers()

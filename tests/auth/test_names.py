"""Names mean the same to whoever checks a right and to whoever uses it, at every door."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, strategies as st

from streamd import patterns
from streamd.broker.declared.rows import PermissionRow
from streamd.operations.errors import Refused
from streamd.wire.amqp091 import methods as m
from streamd.wire.stream import ResponseCode, commands as c
from tests.auth.test_users import manage
from tests.broker.catalog.test_changes import state
from tests.support import amqp
from tests.support.amqp import declare, exchange
from tests.support.http import Http
from tests.support.server import OK, Harness, Peer, harness

PRECONDITION_FAILED = ResponseCode.PRECONDITION_FAILED
BAD = ["\nadmin-x", "admin-x\n", "admin-\rx", "a\x00b", "a\x7f", "a\x9b2J", "a\u2028b"]
DIRECT: dict[str, Any] = {"type": "direct", "durable": True}
IS_STREAM = {"x-queue-type": "stream"}
Door = Callable[[Harness, str], Awaitable[bool]]  # whether a new thing of that name was refused


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Harness]:
    async with harness(tmp_path) as running:
        yield running


def _stream(kind: type[Any], *fields: Callable[[str], Any]) -> Door:
    async def knock(server: Harness, name: str) -> bool:
        peer = await server.peer()
        answer = await peer.ask(kind, *(field(name) for field in fields))
        return bool(answer.code == PRECONDITION_FAILED)

    return knock


def _amqp(method: Callable[[str], Any]) -> Door:
    async def knock(server: Harness, name: str) -> bool:
        peer = await amqp.open_peer(server)
        await peer.channel_fails(method(name), 406, "has the character U+")
        return True

    return knock


def _http(verb: str, path: str, body: Callable[[str], Any]) -> Door:
    async def knock(server: Harness, name: str) -> bool:
        place = path.format(quote(name, safe=""))
        return "has the character U+" in await Http(server).reason(verb, place, body(name))

    return knock


DOORS: dict[str, Door] = {
    "Create": _stream(c.Create, str, lambda _: ()),
    "CreateSuperStream": _stream(
        c.CreateSuperStream, str, lambda _: ("p",), lambda _: ("0",), lambda _: ()
    ),
    "a partition": _stream(
        c.CreateSuperStream, lambda _: "i", lambda name: (name,), lambda _: ("0",), lambda _: ()
    ),
    "user.add": _stream(
        c.Manage, lambda _: "user.add", lambda name: (("name", name), ("password", "p"))
    ),
    "vhost.add": _stream(c.Manage, lambda _: "vhost.add", lambda name: (("name", name),)),
    "queue.declare": _amqp(declare),
    "exchange.declare": _amqp(exchange),
    "an alternate exchange": _amqp(lambda name: exchange("new", alternate_exchange=name)),
    "PUT queue": _http("PUT", "queues/%2F/{}", lambda _: {}),
    "PUT exchange": _http("PUT", "exchanges/%2F/{}", lambda _: {"type": "topic"}),
    "PUT exchange as a super stream": _http("PUT", "exchanges/%2F/{}", lambda _: DIRECT),
    "PUT super stream": _http("PUT", "stream/super-streams/%2F/{}", lambda _: {"partitions": 1}),
    "PUT super stream, its keys": _http(
        "PUT", "stream/super-streams/%2F/i", lambda name: {"binding-keys": [name]}
    ),
    "PUT user": _http("PUT", "users/{}", lambda _: {"password": "p", "tags": ""}),
    "PUT virtual host": _http("PUT", "vhosts/{}", lambda _: {}),
    "definitions of queues": _http(
        "POST",
        "definitions/%2F",
        lambda name: {"queues": [{"name": name, "type": "stream", "arguments": IS_STREAM}]},
    ),
    "definitions of exchanges": _http(
        "POST", "definitions/%2F", lambda name: {"exchanges": [{"name": name} | DIRECT]}
    ),
    "definitions of users": _http(
        "POST", "definitions", lambda name: {"users": [{"name": name, "tags": ""}]}
    ),
    "definitions of virtual hosts": _http(
        "POST", "definitions", lambda name: {"vhosts": [{"name": name}]}
    ),
}


@pytest.mark.parametrize("door", DOORS)
async def test_new_names_are_refused_as_they_are(server: Harness, door: str) -> None:
    """With a line end or another control character nothing is created, nor what looks like it."""
    await server.host.create_super_stream("admin-x", [("0", "admin-x-0")], [])
    before = state(server)
    for name in BAD:
        if door.startswith(("user.", "vhost.")):
            answer = await manage(await server.peer(), door, name=name, password="p")
            assert answer.code == PRECONDITION_FAILED
        else:
            assert await DOORS[door](server, name), name
        assert state(server) == before


async def test_a_pattern_is_not_passed_by_with_a_line_end(server: Harness) -> None:
    """Whoever may have all but one prefix gets nothing with it, and loses nobody else's things."""
    host, directory = server.host, server.server.directory
    await host.create_super_stream("admin-orders", [("0", "admin-orders-0")], [])
    await directory.put_user("ada", b"guest", ["management"])
    await directory.put_permission(PermissionRow("ada", "/", *["^(?!admin-)"] * 3))
    before = state(server)
    http, peer = Http(server), await server.peer(user="ada")
    channel = await amqp.open_peer(server, user="ada")
    for name in ("\nadmin-x", "\r\nadmin-orders", "\nadmin-orders-0"):
        assert await peer.code(c.Create, name, ()) == PRECONDITION_FAILED
        assert await peer.code(c.Delete, name) == ResponseCode.STREAM_DOES_NOT_EXIST
        assert await peer.code(c.DeleteSuperStream, name) == ResponseCode.STREAM_DOES_NOT_EXIST
        for path, body in (("queues", {}), ("exchanges", DIRECT)):
            place = f"{path}/%2F/{quote(name)}"
            assert (await http.ask("PUT", place, body, "ada", "guest")).status_code == 400
            assert (await http.ask("DELETE", place, None, "ada", "guest")).status_code == 404
        await channel.ask(m.QueueDelete(0, name, False, False, False), m.QueueDeleteOk)
        await channel.ask(m.ExchangeDelete(0, name, False, False), m.ExchangeDeleteOk)
    assert state(server) == before


@pytest.mark.parametrize(
    "path", ["queues/%2F/%FF", "exchanges/%2F/a%C3", "users/%80", "vhosts/%FE"]
)
async def test_paths_that_are_not_text(http: Http, path: str) -> None:
    assert "is not UTF-8" in await http.reason("PUT", path, {})


async def test_names_keep_their_spaces(server: Harness, peer: Peer) -> None:
    for name in (" s", "s ", "s"):
        assert await peer.code(c.Create, name, ()) == OK
    assert server.host.names() == [" s", "s", "s "]


# -- patterns


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}", "(" * 5_000])
async def test_patterns_that_cannot_be_compiled(server: Harness, pattern: str) -> None:
    with pytest.raises(Refused, match="is not a regular expression"):
        await server.server.directory.put_permission(PermissionRow("guest", "/", "", "", pattern))


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("^s$", "s", True),
        ("^s$", "s\n", False),
        ("s$|t$", "s\n", False),
        ("(a|s$)", "s\n", False),
        (r"^s\$$", "s$", True),
        (r"^s\\$", "s\\", True),
        (r"^s\\$", "s\\\n", False),
        ("^s[$]", "s$", True),
        ("^s[]$]$", "s$", True),
        ("^s[^]$]$", "s$", False),
        (r"^s[\]$]$", "s]", True),
        ("", "s", False),
        (".*", "s\n", True),
        ("b", "abc", True),
    ],
)
def test_the_end_in_a_pattern_is_the_end_of_the_name(
    pattern: str, name: str, matches: bool
) -> None:
    assert patterns.matches(pattern, name) is matches


@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
@given(
    st.lists(st.sampled_from("ab$^.|\\*[]("), min_size=1, max_size=8).map("".join),
    st.text("ab$^.|\\[]", max_size=4),
)
def test_patterns_mean_what_they_mean_elsewhere(pattern: str, name: str) -> None:
    """For names without a line end, "$" is the same in all of them."""
    try:
        expected = re.search(pattern, name) is not None
    except re.error:
        return
    assert patterns.matches(pattern, name) is expected

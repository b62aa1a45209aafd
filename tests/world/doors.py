"""The three protocols as ways to the same requests, over restarts of the server.

What a request is in a protocol is a row of a table: how it is said, and what its answers mean. A
door speaks for one client. It connects when it has to.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import trio

from clients import ConnectionLost
from streamd.server import STREAM as STREAM_PROTOCOL
from streamd.wire.amqp091 import methods as m
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import Pair
from tests.support.amqp import STREAM, AmqpPeer, declare, exchange, fields
from tests.support.server import AMQP, Harness, Peer
from tests.world.box import GONE, Box, Line
from tests.world.history import CONFLICT, LOST, MISSING, NEW, NONE, OK, SAME, Answer, Outcome

_ANSWER_SECONDS = 60
# Small segments that come and go; the same arguments in the three protocols.
ARGUMENTS: Mapping[str, Mapping[str, str | int]] = {
    "length": {"stream-max-segment-size-bytes": 1_500, "max-length-bytes": 5_000},
    "age": {"stream-max-segment-size-bytes": 1_000, "max-age": "1s"},
    "filter": {"stream-max-segment-size-bytes": 2_500, "stream-filter-size-bytes": 32},
}
KEYS = "stream-key-properties"
_SIZES = {str(a["stream-max-segment-size-bytes"]): name for name, a in ARGUMENTS.items()}


class Gone(Exception):
    """The connection ended before the answer, or the server could not say: anything is possible."""


class Broken(Exception):
    """Something that must hold does not; one sentence."""


class _Request:
    """An HTTP request, which can be cut; see tests.world.box.Line."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self.is_killed = False
        self._kill = kill

    def kill(self) -> None:
        """It breaks."""
        self.is_killed = True
        self._kill()


class Way(NamedTuple):
    """A request in a protocol.

    Attributes:
        make: what is sent, from the name of what it is about and the call's arguments.
        means: the results that an answer stands for, by its code.
        read: what is told beside that it was done.
    """

    make: Callable[..., Any]
    means: Mapping[int, tuple[Outcome, ...]]
    read: Callable[[Any], Outcome] | None = None


class Door:
    """A client's way to the server.

    Args:
        box: where the server is.
        may_fail: whether something is wrong with its machine, or with the user.
        user: as whom, and the password.
        is_held: whether a store that confirms its streams is in trouble.

    Attributes:
        name: of the protocol.
        ways: what it can ask for, by kind of call.
        failures: codes of answers that say that something is wrong.
        unavailable: the one that says that of a stream.
    """

    name: str
    ways: Mapping[str, Way]
    failures: frozenset[int]
    unavailable: int

    def __init__(
        self,
        box: Box,
        may_fail: Callable[[], bool],
        user: tuple[str, str] = ("guest", "guest"),
        is_held: Callable[[], bool] = lambda: False,
    ) -> None:
        self.box = box
        self.user = user
        self._may_fail = may_fail
        self._is_held = is_held
        self._line: Line | None = None
        self._server: Harness | None = None

    async def open(self) -> None:
        """Connect, unless it is connected.

        Raises:
            Gone: the connection has broken.
        """
        if self._line is not None and not self._line.is_killed:
            return
        self.close()
        while self.box.server is None:
            await trio.sleep(0.2)
        self._server = self.box.server
        await self._carefully(self._open)

    async def _open(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Drop the connection."""
        if self._line is not None:
            self._line.kill()
            self._line = None

    async def ask(self, kind: str, name: str, *arguments: Any) -> Answer:
        """What a request is answered; LOST where it may have been carried out, or not.

        Raises:
            Gone: there is no answer.
        """
        way = self.ways[kind]
        code, told = await self.send(way.make(name, *arguments))
        if code in self.failures and self._may_fail():
            return LOST
        if code == self.unavailable and code not in way.means and self._is_held():
            return LOST  # perhaps it is done here, and the store gets to know it later
        if code not in way.means:
            raise Broken(f"{self.name}: {kind} of {name} was answered {code}: {told}")
        outcomes = way.means[code]
        if way.read is not None and outcomes == _DONE:
            return frozenset(((OK, way.read(told)),))
        return frozenset(outcomes)

    async def send(self, asked: Any) -> tuple[int, Any]:
        """Ask for something; returns the answer's code, and what it says.

        Raises:
            Gone: there is none.
        """
        await self.open()
        return await self._carefully(self._send, asked)

    async def _send(self, asked: Any) -> tuple[int, Any]:
        raise NotImplementedError

    async def _carefully(self, work: Callable[..., Awaitable[Any]], *given: Any) -> Any:
        """Do something on the connection, which may break."""
        try:
            with trio.fail_after(_ANSWER_SECONDS):
                return await work(*given)
        except (AssertionError, ConnectionLost, trio.TooSlowError, *GONE) as error:
            is_killed = self._line is None or self._line.is_killed
            if is_killed or self.box.server is not self._server or self._may_fail():
                raise Gone from error
            raise Broken(f"{self.name}: {error!r} instead of an answer to {given}") from error


_DONE = (OK,)
_FOUND = {1: _DONE, 2: (MISSING,)}


def _pairs(table: Mapping[str, object]) -> tuple[Pair, ...]:
    return tuple(Pair(key, str(value)) for key, value in table.items())


def managed(operation: str, **words: object) -> tuple[Any, ...]:
    """An operation of streamd's own."""
    return c.Manage, operation, _pairs(words)


def _changed(same: Outcome) -> Mapping[int, tuple[Outcome, ...]]:
    return {1: _DONE if same is MISSING else (NEW,), 17: (same,)}


def _parts(keys: tuple[tuple[str, str], ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The streams of a super stream, and their keys."""
    return tuple(stream for _, stream in keys), tuple(key for key, _ in keys)


class StreamDoor(Door):
    """The stream protocol, command by command."""

    name = "stream"
    failures = frozenset((6, 15))  # not available; internal error
    unavailable = 6
    ways: Mapping[str, Way] = {
        "create": Way(
            lambda name, given: (c.Create, name, _pairs(ARGUMENTS[given])),
            {1: (NEW,), 5: (SAME,), 17: (CONFLICT,)},
        ),
        "delete": Way(lambda name: (c.Delete, name), _FOUND),
        "find": Way(lambda name: (c.Metadata, (name,)), _FOUND),
        "store": Way(
            lambda name, at: managed("offset.set", stream=name, name="app", offset=at), _FOUND
        ),
        "forget": Way(
            lambda name: managed("offset.delete", stream=name, name="app"), {**_FOUND, 17: (NONE,)}
        ),
        "stored": Way(
            lambda name: managed("offset.list", stream=name),
            _FOUND,
            lambda told: next((int(dict(row)["offset"]) for row in told.rows), None),
        ),
        "set_keys": Way(
            lambda name, keys: managed("stream.set", stream=name, **{KEYS: keys}), _FOUND
        ),
        "keys": Way(
            lambda name: (c.DescribeStreams, (name,)),
            _FOUND,
            lambda told: dict(told.streams[0].arguments).get(KEYS, ""),
        ),
        "make_super": Way(
            lambda name, keys: (c.CreateSuperStream, name, *_parts(keys), ()),
            {1: (NEW,), 5: (CONFLICT,)},
        ),
        "delete_super": Way(lambda name: (c.DeleteSuperStream, name), _FOUND),
        "partitions": Way(
            lambda name: (c.Partitions, name), _FOUND, lambda told: tuple(told.streams)
        ),
        "route": Way(
            lambda name, key: (c.Route, key, name), _FOUND, lambda told: tuple(told.streams)
        ),
        "create_stream": Way(lambda _, stream: (c.Create, stream, ()), {1: (NEW,), 5: (SAME,)}),
        "delete_stream": Way(lambda _, stream: (c.Delete, stream), _FOUND),
        "create_host": Way(lambda name: managed("vhost.add", name=name), _changed(SAME)),
        "delete_host": Way(lambda name: managed("vhost.delete", name=name), _changed(MISSING)),
        "create_user": Way(
            lambda name: managed("user.add", name=name, password=name), _changed(SAME)
        ),
        "delete_user": Way(lambda name: managed("user.delete", name=name), _changed(MISSING)),
    }
    peer: Peer

    async def _open(self) -> None:
        self._line = self.box.dial(STREAM_PROTOCOL)
        self.peer = Peer(self._line.stream)
        await log_in(self.peer, *self.user)

    async def _send(self, asked: Any) -> tuple[int, Any]:
        self.peer.unasked.clear()
        told = await self.peer.ask(*asked)
        about = next(iter(getattr(told, "streams", ())), told)  # some say it of each stream
        return int(getattr(about, "code", 0) or told.code), told


async def log_in(peer: Peer, user: str, password: str) -> None:
    """Enter the default virtual host.

    Raises:
        Refused: that is not allowed.
    """
    assert await peer.code(c.PeerProperties, ()) == 1
    assert await peer.code(c.SaslHandshake) == 1
    code = await peer.code(c.SaslAuthenticate, "PLAIN", f"\0{user}\0{password}".encode())
    if code != 1:
        raise Refused(code)
    await peer.expect(c.Tune)
    await peer.send(c.Tune(1 << 20, 0))
    code = await peer.code(c.Open, "/")
    if code != 1:
        raise Refused(code)


class Refused(Exception):
    """The user may not enter."""


def _method(kind: type[Any], answer: type[Any], *rest: Any) -> Callable[..., Any]:
    return lambda name: (kind(0, name, *rest), answer)


_QUEUE, _EXCHANGE = m.QueueDeclareOk, m.ExchangeDeclareOk


def _x(table: Mapping[str, str | int]) -> dict[str, str | int]:
    return {f"x-{key}": value for key, value in table.items()}


class AmqpDoor(Door):
    """AMQP 0-9-1, method by method, or None to wait. A code of 1 says that it was done."""

    name = "amqp"
    failures = frozenset((406, 541))
    unavailable = 406
    ways: Mapping[str, Way] = {
        "create": Way(
            lambda name, given: (declare(name, STREAM | fields(**_x(ARGUMENTS[given]))), _QUEUE),
            {1: (NEW, SAME), 406: (CONFLICT,)},
        ),
        "delete": Way(_method(m.QueueDelete, m.QueueDeleteOk, *[False] * 3), {1: (OK, MISSING)}),
        "find": Way(
            lambda name: (declare(name, passive=True), _QUEUE), {1: _DONE, 404: (MISSING,)}
        ),
        "create_exchange": Way(
            lambda name, kind: (exchange(name, kind), _EXCHANGE), {1: (NEW, SAME), 406: (CONFLICT,)}
        ),
        "delete_exchange": Way(
            _method(m.ExchangeDelete, m.ExchangeDeleteOk, False, False), {1: (OK, MISSING)}
        ),
        "delete_unused": Way(
            _method(m.ExchangeDelete, m.ExchangeDeleteOk, True, False),
            {1: (OK, MISSING), 406: (CONFLICT,)},
        ),
        "bind": Way(
            lambda name, key, stream: (m.QueueBind(0, stream, name, key, False, {}), m.QueueBindOk),
            {1: _DONE, 404: (MISSING,)},
        ),
        "unbind": Way(
            lambda name, key, stream: (m.QueueUnbind(0, stream, name, key, {}), m.QueueUnbindOk),
            {1: _DONE, 404: (MISSING,)},
        ),
        "delete_stream": Way(
            lambda _, stream: (m.QueueDelete(0, stream, *[False] * 3), m.QueueDeleteOk),
            {1: (OK, MISSING)},
        ),
    }
    peer: AmqpPeer

    async def _open(self) -> None:
        self._line = self.box.dial(AMQP)
        self.peer = AmqpPeer(self._line.stream)
        await self.peer.log_in(*self.user)
        await self.peer.open()

    async def _send(self, asked: Any) -> tuple[int, Any]:
        method, kind = asked
        if method is not None:
            await self.peer.send(method)
        while True:
            _, found = await self.peer.receive()
            if isinstance(found, kind):
                return 1, found
            if isinstance(found, m.ConnectionClose):
                raise trio.EndOfChannel
            if isinstance(found, m.ChannelClose):
                await self.peer.send(m.ChannelCloseOk())
                await self.peer.open()
                return found.code, found.text
            self.peer.unasked.append(found)


_HOST = "%2F"
_PUT: Mapping[int, tuple[Outcome, ...]] = {201: (NEW,), 204: (SAME,), 404: (MISSING,)}
_DECLARED: Mapping[int, tuple[Outcome, ...]] = {201: (NEW,), 204: (SAME,), 400: (CONFLICT,)}
_THERE: Mapping[int, tuple[Outcome, ...]] = {200: _DONE, 204: _DONE, 404: (MISSING,)}


def _path(method: str, path: str, **body: Any) -> Callable[..., Any]:
    return lambda name, *_: (method, path.format(name=name, host=_HOST), body)


class HttpDoor(Door):
    """The management API."""

    name = "http"
    failures = frozenset((500, 503))
    unavailable = 503
    ways: Mapping[str, Way] = {
        "create": Way(
            lambda name, given: (
                "PUT", f"queues/{_HOST}/{name}", {"arguments": _x(ARGUMENTS[given])},
            ),
            _DECLARED,
        ),
        "delete": Way(_path("DELETE", "queues/{host}/{name}"), _THERE),
        "arguments": Way(
            _path("GET", "queues/{host}/{name}"),
            _THERE,
            lambda told: _SIZES[str(told["arguments"]["x-stream-max-segment-size-bytes"])],
        ),
        "store": Way(
            lambda name, at: ("PUT", f"stream/{_HOST}/{name}/tracking/app", {"offset": at}), _THERE
        ),
        "forget": Way(
            _path("DELETE", "stream/{host}/{name}/tracking/app"),
            {204: _DONE, 404: (MISSING, NONE)},
        ),
        "stored": Way(
            _path("GET", "stream/{host}/{name}/tracking"),
            _THERE,
            lambda told: told["offsets"].get("app"),
        ),
        "make_super": Way(
            lambda name, keys: (
                "PUT", f"stream/super-streams/{_HOST}/{name}",
                {"binding-keys": [key for key, _ in keys]},
            ),
            {204: (NEW,), 400: (CONFLICT,)},
        ),
        "delete_super": Way(_path("DELETE", "stream/super-streams/{host}/{name}"), _THERE),
        "create_exchange": Way(
            lambda name, kind: ("PUT", f"exchanges/{_HOST}/{name}", {"type": kind}), _DECLARED
        ),
        "bind": Way(
            lambda name, key, stream: (
                "POST", f"bindings/{_HOST}/e/{name}/q/{stream}", {"routing_key": key},
            ),
            {201: _DONE, 404: (MISSING,)},
        ),
        "bound": Way(
            _path("GET", "exchanges/{host}/{name}/bindings/source"),
            {200: _DONE},
            lambda told: tuple(sorted((row["routing_key"], row["destination"]) for row in told)),
        ),
        "create_host": Way(_path("PUT", "vhosts/{name}"), _PUT),
        "delete_host": Way(_path("DELETE", "vhosts/{name}"), _THERE),
        "create_user": Way(
            _path("PUT", "users/{name}", password_hash="", tags="management"), _PUT
        ),
        "delete_user": Way(_path("DELETE", "users/{name}"), _THERE),
        "find_user": Way(_path("GET", "users/{name}"), _THERE),
        "permit": Way(
            _path("PUT", "permissions/{name}/{name}", configure=".*", write=".*", read=".*"), _PUT
        ),
        "forbid": Way(_path("DELETE", "permissions/{name}/{name}"), _THERE),
        "find_permission": Way(_path("GET", "permissions/{name}/{name}"), _THERE),
        "create_inside": Way(_path("PUT", "queues/{name}/inside"), _PUT),
        "delete_inside": Way(_path("DELETE", "queues/{name}/inside"), _THERE),
    }  # fmt: skip

    async def _open(self) -> None:
        """Each request has a connection of its own."""

    async def _send(self, asked: Any) -> tuple[int, Any]:
        method, path, body = asked
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        with trio.CancelScope() as scope:
            line = _Request(scope.cancel)
            self.box.lines.append(line)
            async with self.box.http() as client:
                answer = await client.request(
                    method, f"/api/{path}", content=content or None, auth=self.user
                )
            if line in self.box.lines:
                self.box.lines.remove(line)
            return answer.status_code, answer.json() if answer.content else None
        raise trio.BrokenResourceError


DOORS: tuple[type[Door], ...] = (StreamDoor, AmqpDoor, HttpDoor)

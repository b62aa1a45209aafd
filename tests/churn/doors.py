"""The three protocols as ways to the same requests, over sockets or in memory.

A door speaks for one client. `leaving` makes its next request the last one on its connection, which
is dropped before the answer has come.
"""

import base64
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from random import Random
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import httpx
import trio

from streamd.wire.amqp091 import methods as m
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import Pair
from tests.churn.history import CONFLICT, EXISTS, MISSING, NEW, NONE, OK, SAME, Outcome
from tests.support.amqp import STREAM, AmqpPeer, Delivery, declare, exchange, fields
from tests.support.server import FIRST, Peer, frame

ANSWER_SECONDS = 30
_QUIET_SECONDS = 0.3  # a consumer that has got nothing for so long has got everything
_BATCH = 12

# The same arguments in the three protocols; small segments that come and go, and that leave the
# disk where there is a tier.
ARGUMENTS: Mapping[str, Mapping[str, str | int]] = {
    "length": {"stream-max-segment-size-bytes": 1_500, "max-length-bytes": 5_000},
    "age": {
        "stream-max-segment-size-bytes": 1_000,
        "max-age": "1s",
        "stream-local-max-length-bytes": 0,
    },
    "filter": {
        "stream-max-segment-size-bytes": 2_500,
        "stream-filter-size-bytes": 32,
        "stream-local-max-length-bytes": 3_000,
    },
}
KEYS = "stream-key-properties"
_SIZES = {str(a["stream-max-segment-size-bytes"]): name for name, a in ARGUMENTS.items()}


class Dropped(Exception):
    """The connection was dropped on purpose, or ended by the server: the answer is not known."""


class Broken(Exception):
    """Something that must hold does not; one sentence."""


class Network(Protocol):
    """Leads to a server."""

    async def stream(self) -> Peer:
        """A connection of the stream protocol, not logged in."""

    async def amqp(self) -> AmqpPeer:
        """A connection of AMQP 0-9-1, not logged in."""

    def http(self) -> httpx.AsyncClient:
        """For requests to the HTTP API."""


Ask = Callable[..., Awaitable[Outcome]]


class Door:
    """A client's way to the server.

    Attributes:
        name: of the protocol.
        leaving: see the module.
        calls: what it can ask for, by kind of call; each is called with the name of what the call
            is about, and its arguments.
        waits: seconds after which an HTTP request is given up when leaving.
    """

    name: str
    calls: dict[str, Ask]

    def __init__(self, network: Network) -> None:
        self.leaving = False
        self.waits = 0.0
        self.network = network

    async def open(self) -> None:
        """Connect and log in."""

    async def close(self) -> None:
        """Drop the connection."""

    async def look(self, name: str, chance: Random) -> str:  # noqa: ARG002
        """Ask for something else, maybe about a stream; returns what it was, empty for nothing."""
        return ""

    async def publish(self, name: str, values: list[bytes | None], bodies: list[bytes]) -> None:
        """Publish to a stream that may be gone at any time; waits for what is to be heard of it."""

    async def consume(self, name: str, value: str) -> list[bytes]:
        """Read some of a stream from its beginning, with a filter if there is a value."""
        raise NotImplementedError

    async def search(self, name: str, value: str) -> list[bytes] | None:  # noqa: ARG002
        """Find the messages of a stream whose kind is a value, all where there is none.

        Returns:
            None where it cannot.
        """
        return None


def _judged(code: int, expected: Mapping[int, Outcome]) -> Outcome:
    if code in expected:
        return expected[code]
    raise Broken(f"the answer was {code}, expected one of {', '.join(map(str, expected))}")


# -- the stream protocol


class StreamDoor(Door):
    """The stream protocol, command by command."""

    name = "stream"

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._peer: Peer | None = None
        self.calls = {
            "create": self._create,
            "delete": self._delete,
            "find": self._find,
            "make_super": self._make_super,
            "delete_super": self._delete_super,
            "partitions": self._partitions,
            "route": self._route,
            "create_stream": self._create_one,
            "delete_stream": self._delete_one,
            "add_host": self._add_host,
            "delete_host": self._delete_host,
            "enter_host": self._enter_host,
            "add_user": self._add_user,
            "delete_user": self._delete_user,
            "build": self._build,
            "tear": self._delete,
            "store": self._store,
            "forget": self._forget,
            "stored": self._stored,
            "set_keys": self._set_keys,
            "keys": self._keys,
        }

    @property
    def peer(self) -> Peer:
        assert self._peer is not None
        return self._peer

    async def open(self) -> None:
        self._peer = await self.network.stream()
        await self._peer.log_in()

    async def close(self) -> None:
        if self._peer is not None:
            await trio.aclose_forcefully(self._peer.stream)

    async def ask(self, kind: type[Any], *arguments: Any) -> Any:
        if self.leaving:
            await self.peer.send(kind(1, *arguments))
            raise Dropped
        self.peer.unasked.clear()
        return await self.peer.ask(kind, *arguments)

    async def _code(self, expected: Mapping[int, Outcome], kind: type[Any], *rest: Any) -> Outcome:
        return _judged((await self.ask(kind, *rest)).code, expected)

    # -- streams

    async def _create(self, name: str, arguments: str) -> Outcome:
        pairs = tuple(Pair(key, str(value)) for key, value in ARGUMENTS[arguments].items())
        return await self._code(_CREATED, c.Create, name, pairs)

    async def _delete(self, name: str) -> Outcome:
        return await self._code(_FOUND, c.Delete, name)

    async def _find(self, name: str) -> Outcome:
        answer = await self.ask(c.Metadata, (name,))
        return _judged(answer.streams[0].code, _FOUND)

    async def _create_one(self, _name: str, stream: str) -> Outcome:
        return await self._code({1: OK, 5: EXISTS}, c.Create, stream, ())

    async def _delete_one(self, _name: str, stream: str) -> Outcome:
        return await self._code(_FOUND, c.Delete, stream)

    # -- what is kept beside messages

    async def _build(self, name: str) -> Outcome:
        return await self._code({1: OK, 5: EXISTS}, c.Create, name, ())

    async def _beside(self, expected: Mapping[int, Outcome], *asked: Any, **words: str) -> Any:
        answer = await self.ask(c.Manage, *_operation(*asked, **words))
        return _judged(answer.code, expected), answer.rows

    async def _store(self, name: str, offset: int) -> Outcome:
        words = {"name": "app", "offset": str(offset)}
        return (await self._beside(_FOUND, "offset.set", name, **words))[0]

    async def _forget(self, name: str) -> Outcome:
        return (await self._beside({**_FOUND, 17: NONE}, "offset.delete", name, name="app"))[0]

    async def _stored(self, name: str) -> Outcome:
        found, rows = await self._beside(_FOUND, "offset.list", name)
        offsets = [int(dict(row)["offset"]) for row in rows]
        return (OK, *(offsets or [None])) if found == OK else found

    async def _set_keys(self, name: str, keys: str) -> Outcome:
        return (await self._beside(_FOUND, "stream.set", name, **{KEYS: keys}))[0]

    async def _keys(self, name: str) -> Outcome:
        (stream,) = (await self.ask(c.DescribeStreams, (name,))).streams
        found = _judged(stream.code, _FOUND)
        return (OK, dict(stream.arguments).get(KEYS, "")) if found == OK else found

    # -- super streams

    async def _make_super(self, name: str, keys: tuple[tuple[str, str], ...]) -> Outcome:
        names, streams = zip(*keys, strict=True)
        return await self._code({1: OK, 5: EXISTS}, c.CreateSuperStream, name, streams, names, ())

    async def _delete_super(self, name: str) -> Outcome:
        return await self._code(_FOUND, c.DeleteSuperStream, name)

    async def _partitions(self, name: str) -> Outcome:
        answer = await self.ask(c.Partitions, name)
        found = _judged(answer.code, _FOUND)
        return (OK, tuple(answer.streams)) if found == OK else found

    async def _route(self, name: str, key: str) -> Outcome:
        answer = await self.ask(c.Route, key, name)
        found = _judged(answer.code, _FOUND)
        return (OK, tuple(answer.streams)) if found == OK else found

    # -- users and virtual hosts

    async def _manage(self, refused: Outcome, operation: str, **arguments: str) -> Outcome:
        pairs = tuple(Pair(*item) for item in arguments.items())
        return await self._code({1: OK, 17: refused}, c.Manage, operation, pairs)

    async def _add_host(self, name: str) -> Outcome:
        return await self._manage(EXISTS, "vhost.add", name=name)

    async def _delete_host(self, name: str) -> Outcome:
        return await self._manage(MISSING, "vhost.delete", name=name)

    async def _add_user(self, name: str) -> Outcome:
        return await self._manage(EXISTS, "user.add", name=name, password=name)

    async def _delete_user(self, name: str) -> Outcome:
        return await self._manage(MISSING, "user.delete", name=name)

    async def _enter_host(self, name: str) -> Outcome:
        if self.leaving:  # on a connection of its own
            raise Dropped
        peer = await self.network.stream()
        try:
            await peer.code(c.PeerProperties, ())
            await peer.code(c.SaslHandshake)
            await peer.code(c.SaslAuthenticate, "PLAIN", b"\0guest\0guest")
            await peer.expect(c.Tune)
            await peer.send(c.Tune(1 << 20, 0))
            return _judged(await peer.code(c.Open, name), {1: OK, 12: MISSING})
        finally:
            await trio.aclose_forcefully(peer.stream)

    async def look(self, name: str, chance: Random) -> str:
        kind, arguments = chance.choice(_OTHERS)
        code = (await self.ask(kind, *arguments(name))).code
        if code not in _LOOKED_AT:
            raise Broken(f"{kind.__name__} of {name} was answered {code}")
        return "look"

    # -- messages

    async def publish(self, name: str, values: list[bytes | None], bodies: list[bytes]) -> None:
        leaving, self.leaving = self.leaving, False
        if (await self.ask(c.DeclarePublisher, 1, "", name)).code != ResponseCode.OK:
            return
        for at in range(0, len(bodies), _BATCH):
            some = [
                _DATA + len(body).to_bytes(4, "big") + body for body in bodies[at : at + _BATCH]
            ]
            await self.peer.send(frame(some, at, 1, values[at : at + _BATCH]))
        if leaving:
            raise Dropped
        await self._until_settled(name, len(bodies))
        await self.ask(c.DeletePublisher, 1)

    async def _until_settled(self, name: str, count: int) -> None:
        """Until each message is confirmed or refused, or the stream is gone."""
        while count > 0:
            match await self.peer.next():
                case c.PublishConfirm(publishing_ids=ids):
                    count -= len(ids)
                case c.PublishError(faults=faults):
                    count -= len(faults)
                case c.MetadataUpdate(stream=stream) if stream == name:
                    return

    async def consume(self, name: str, value: str) -> list[bytes]:
        properties = (Pair("filter.0", value), Pair("match-unfiltered", "false")) if value else ()
        answer = await self.ask(c.Subscribe, 1, name, FIRST, 20, properties)
        if answer.code != ResponseCode.OK:
            return []
        found: list[bytes] = []
        with trio.move_on_after(_QUIET_SECONDS):
            while True:
                command = await self.peer.next()
                if isinstance(command, c.MetadataUpdate):
                    return found
                if isinstance(command, c.Delivered):
                    self.peer.unasked.insert(0, command)
                    found += (await self.peer.chunk()).bodies
        await self.ask(c.Unsubscribe, 1)
        return found

    async def search(self, name: str, value: str) -> list[bytes] | None:
        found: list[bytes] = []
        after = ""
        while True:
            answer = await self.ask(c.Find, name, tuple(_search_words(value, after)))
            if answer.code != ResponseCode.OK:
                if answer.code not in _LOOKED_AT:
                    raise Broken(f"a search in {name} was answered {answer.code} {answer.reason}")
                return None  # it is gone, or another one
            found += [message.raw for message in answer.messages]
            if not answer.cut:
                return found
            after = answer.after


def _search_words(value: str, after: str) -> Iterator[Pair]:
    """What a search is asked for, page by page."""
    if value:
        yield Pair("key", value)
        yield Pair("property", "kind")
    yield Pair("limit", "50")
    if after:
        yield Pair("after", after)


# Requests that are answered in one of two ways, whether there is a stream or not. A setting leaves
# the arguments that a stream was declared with as they are.
_OTHERS: tuple[tuple[type[Any], Callable[[str], tuple[Any, ...]]], ...] = (
    (c.StreamStats, lambda name: (name,)),
    (c.DescribeFilters, lambda name: (name,)),
    (c.DescribeStreams, lambda name: ((name,),)),
    (c.DescribeStreams, lambda _name: ((),)),
    (c.ResolveOffsetSpec, lambda name: (name, FIRST)),
    (c.QueryPublisherSequence, lambda name: ("app", name)),
    (c.Manage, lambda name: _operation("selector.add", name, group="g", text="kind = 'red'")),
    (c.Manage, lambda name: _operation("selector.delete", name, group="g")),
    (c.Manage, lambda name: _operation("selector.list", name)),
    (c.Manage, lambda name: _operation("stream.set", name, **{"max-length-bytes": "4000"})),
    (c.Manage, lambda name: _operation("stream.set", name, **{KEYS: "kind"})),
    (c.Manage, lambda name: _operation("stream.set", name, **{KEYS: ""})),
    (c.Manage, lambda name: _operation("stream.truncate", name, offset="20")),
    (c.Manage, lambda name: _operation("offset.set", name, name="app", offset="30")),
    (c.Manage, lambda name: _operation("offset.list", name)),
    (c.Manage, lambda name: _operation("offset.delete", name, name="app")),
)
_LOOKED_AT = (1, 2, 17)  # done; no such stream; no such selector


def _operation(operation: str, stream: str, /, **arguments: str) -> tuple[Any, ...]:
    return operation, tuple(Pair(*item) for item in ({"stream": stream} | arguments).items())


_DATA = b"\x00\x53\x75\xb0"  # what a body of AMQP 1.0 begins with, before its size
_CREATED = {1: OK, 5: EXISTS, 17: CONFLICT}
_FOUND = {1: OK, 2: MISSING}


# -- AMQP 0-9-1


class _Refused(Exception):
    """The channel was closed by the server.

    Attributes:
        code: of the protocol.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code


class AmqpDoor(Door):
    """AMQP 0-9-1, method by method."""

    name = "amqp"

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._peer: AmqpPeer | None = None
        self._tag = 0
        self.calls = {
            "declare": self._declare,
            "remove": self._remove,
            "find": self._find,
            "declare_exchange": self._declare_exchange,
            "remove_exchange": self._remove_exchange,
            "remove_unused": self._remove_unused,
            "bind": self._bind,
            "unbind": self._unbind,
            "remove_stream": self._remove_stream,
        }

    @property
    def peer(self) -> AmqpPeer:
        assert self._peer is not None
        return self._peer

    async def open(self) -> None:
        self._peer = await self.network.amqp()
        await self._peer.log_in()
        await self._peer.open()

    async def close(self) -> None:
        if self._peer is not None:
            await trio.aclose_forcefully(self._peer.stream)

    async def ask(self, method: Any, kind: type[Any]) -> Any:
        await self.peer.send(method)
        if self.leaving:
            raise Dropped
        while True:
            _, found = await self.peer.receive()
            if isinstance(found, kind):
                return found
            await self._check(found)

    async def _check(self, found: Any) -> None:
        """Raise for what ends the channel or the connection."""
        if isinstance(found, m.ConnectionClose):
            raise Broken(f"the connection was closed: {found.code} {found.text}")
        if isinstance(found, m.ChannelClose):
            await self.peer.send(m.ChannelCloseOk())
            await self.peer.ask(m.ChannelOpen(), m.ChannelOpenOk)
            raise _Refused(found.code, found.text)

    async def _outcome(
        self, method: Any, kind: type[Any], refusals: Mapping[int, Outcome]
    ) -> Outcome:
        try:
            await self.ask(method, kind)
        except _Refused as refused:
            if refused.code not in refusals:
                raise Broken(f"the channel was closed: {refused}") from refused
            return refusals[refused.code]
        return OK

    # -- queues

    async def _declare(self, name: str, arguments: str) -> Outcome:
        table = {f"x-{key}": value for key, value in ARGUMENTS[arguments].items()}
        method = declare(name, STREAM | fields(**table))
        return await self._outcome(method, m.QueueDeclareOk, {406: CONFLICT})

    async def _remove(self, name: str) -> Outcome:
        method = m.QueueDelete(0, name, False, False, False)
        return await self._outcome(method, m.QueueDeleteOk, {})

    async def _find(self, name: str) -> Outcome:
        method = declare(name, passive=True)
        return await self._outcome(method, m.QueueDeclareOk, {404: MISSING})

    # -- exchanges

    async def _declare_exchange(self, name: str, kind: str) -> Outcome:
        return await self._outcome(exchange(name, kind), m.ExchangeDeclareOk, {406: CONFLICT})

    async def _remove_exchange(self, name: str) -> Outcome:
        method = m.ExchangeDelete(0, name, False, False)
        return await self._outcome(method, m.ExchangeDeleteOk, {})

    async def _remove_unused(self, name: str) -> Outcome:
        method = m.ExchangeDelete(0, name, True, False)
        return await self._outcome(method, m.ExchangeDeleteOk, {406: CONFLICT})

    async def _bind(self, name: str, key: str, stream: str) -> Outcome:
        method = m.QueueBind(0, stream, name, key, False, {})
        return await self._outcome(method, m.QueueBindOk, {404: MISSING})

    async def _unbind(self, name: str, key: str, stream: str) -> Outcome:
        method = m.QueueUnbind(0, stream, name, key, {})
        return await self._outcome(method, m.QueueUnbindOk, {404: MISSING})

    async def _remove_stream(self, _name: str, stream: str) -> Outcome:
        return await self._remove(stream)

    # -- messages

    async def publish(self, name: str, values: list[bytes | None], bodies: list[bytes]) -> None:
        leaving, self.leaving = self.leaving, False
        await self.ask(m.ConfirmSelect(False), m.ConfirmSelectOk)
        for value, body in zip(values, bodies, strict=True):
            word = (value or b"").decode()
            headers = fields(x_stream_filter_value=word, kind=word) if word else {}
            await self.peer.publish(name, body, mandatory=True, headers=headers)
        if leaving:
            raise Dropped
        settled: set[int] = set()
        while len(settled) < len(bodies):
            _, found = await self.peer.receive()
            if isinstance(found, m.BasicAck | m.BasicNack):
                first = 1 if found.multiple else found.delivery_tag
                settled.update(range(first, found.delivery_tag + 1))
            else:
                await self._check(found)
        await self._new_channel()  # confirms are numbered from 1 again

    async def _new_channel(self) -> None:
        await self.ask(m.ChannelClose(200, "", 0, 0), m.ChannelCloseOk)
        await self.ask(m.ChannelOpen(), m.ChannelOpenOk)

    async def consume(self, name: str, value: str) -> list[bytes]:
        wanted = fields(x_stream_offset="first")
        if value:
            wanted |= fields(x_stream_sql=f"kind = '{value}'")
        self._tag += 1
        await self.ask(m.BasicQos(0, 50, False), m.BasicQosOk)
        tag = f"c{self._tag}"
        method = m.BasicConsume(0, name, tag, False, False, False, False, wanted)
        try:
            await self.ask(method, m.BasicConsumeOk)
        except _Refused as refused:
            if refused.code != 404:
                raise Broken(f"the channel was closed: {refused}") from refused
            return []
        found = await self._deliveries()
        await self.ask(m.BasicCancel(tag, False), m.BasicCancelOk)
        return found

    async def _deliveries(self) -> list[bytes]:
        found: list[bytes] = []
        with trio.move_on_after(_QUIET_SECONDS):
            while len(found) < 200:
                _, item = await self.peer.receive()
                if isinstance(item, m.BasicCancel):
                    break
                if isinstance(item, Delivery):
                    found.append(item.body)
                    await self.peer.send(m.BasicAck(item.method.delivery_tag, False))
                else:
                    await self._check(item)
        return found


# -- HTTP

_HOST = "%2F"
_CUTS = 0.15  # of what is looked at
_SALT = b"salt"


def _password_hash(password: str) -> str:
    """As RabbitMQ writes it: quickly made, unlike our own."""
    digest = hashlib.sha256(_SALT + password.encode()).digest()
    return base64.b64encode(_SALT + digest).decode()


class HttpDoor(Door):
    """The management API."""

    name = "http"

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._client: httpx.AsyncClient | None = None
        self.calls = {
            "put": self._put,
            "delete": self._delete,
            "arguments": self._arguments,
            "make_super": self._make_super,
            "delete_super": self._delete_super,
            "put_exchange": self._put_exchange,
            "bind": self._bind,
            "drop_binding": self._drop_binding,
            "bound": self._bound,
            "put_host": self._put_host,
            "delete_host": self._delete_host,
            "put_user": self._put_user,
            "delete_user": self._delete_user,
            "find_user": self._find_user,
            "put_permission": self._put_permission,
            "delete_permission": self._delete_permission,
            "find_permission": self._find_permission,
            "put_inside": self._put_inside,
            "delete_inside": self._delete_inside,
            "build": self._build,
            "tear": self._delete,
            "store": self._store,
            "forget_it": self._forget,
            "stored": self._stored,
        }

    async def open(self) -> None:
        self._client = self.network.http()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        assert self._client is not None
        content = None if body is None else json.dumps(body).encode()
        limit = trio.move_on_after(self.waits if self.leaving else ANSWER_SECONDS)
        with limit:
            try:
                return await self._client.request(
                    method, f"/api/{path}", content=content, auth=("guest", "guest")
                )
            except httpx.TransportError as error:
                raise trio.BrokenResourceError(repr(error)) from error
        if self.leaving:
            raise Dropped
        raise trio.TooSlowError

    async def _outcome(
        self, expected: Mapping[int, Outcome], method: str, path: str, body: Any = None
    ) -> Outcome:
        answer = await self.ask(method, path, body)
        if answer.status_code not in expected:
            raise Broken(f"{method} {path} was answered {answer.status_code}: {answer.text[:300]}")
        return expected[answer.status_code]

    async def look(self, name: str, chance: Random) -> str:
        if chance.random() < _CUTS:
            await self.see(f"stream/{_HOST}/{name}/tracking?details=true", _DONE)
            await self.see(f"stream/{_HOST}/{name}/truncate", _DONE, {"offset": 20})
            return "cut"
        await self.see(chance.choice(LISTS))
        return "list"

    async def see(
        self, path: str, expected: Mapping[int, Outcome] | None = None, body: Any = None
    ) -> None:
        """Look at something, which is always there unless more is expected; or post a body."""
        method = "GET" if body is None else "POST"
        await self._outcome(expected or {200: OK}, method, path, body)

    async def search(self, name: str, value: str) -> list[bytes] | None:
        found: list[bytes] = []
        after = ""
        while True:
            words = urlencode(list(_search_words(value, after)))
            answer = await self.ask("GET", f"stream/{_HOST}/{name}/messages?{words}")
            if answer.status_code in (404, 429) or (answer.status_code == 400 and after):
                return None  # it is gone, another one searches, or it is another stream now
            if answer.status_code != 200:
                text = answer.text[:300]
                raise Broken(f"a search in {name} was answered {answer.status_code} {text}")
            page = answer.json()
            found += [row["body"].encode() for row in page["messages"]]
            if page["complete"]:
                return found
            after = page["next"]

    # -- streams

    async def _put(self, name: str, arguments: str) -> Outcome:
        table = {f"x-{key}": value for key, value in ARGUMENTS[arguments].items()}
        expected = {201: NEW, 204: SAME, 400: CONFLICT}
        return await self._outcome(expected, "PUT", f"queues/{_HOST}/{name}", {"arguments": table})

    async def _delete(self, name: str) -> Outcome:
        return await self._outcome(_DONE, "DELETE", f"queues/{_HOST}/{name}")

    async def _arguments(self, name: str) -> Outcome:
        answer = await self.ask("GET", f"queues/{_HOST}/{name}")
        found = _judged(answer.status_code, _DONE)
        if found == MISSING:
            return found
        size = answer.json()["arguments"]["x-stream-max-segment-size-bytes"]
        return OK, _SIZES[str(size)]

    async def _build(self, name: str) -> Outcome:
        expected = {201: OK, 204: EXISTS}
        return await self._outcome(expected, "PUT", f"queues/{_HOST}/{name}", {})

    async def _store(self, name: str, offset: int) -> Outcome:
        path = f"stream/{_HOST}/{name}/tracking/app"
        return await self._outcome(_DONE, "PUT", path, {"offset": offset})

    async def _forget(self, name: str) -> Outcome:
        return await self._outcome(_DONE, "DELETE", f"stream/{_HOST}/{name}/tracking/app")

    async def _stored(self, name: str) -> Outcome:
        answer = await self.ask("GET", f"stream/{_HOST}/{name}/tracking")
        found = _judged(answer.status_code, _DONE)
        return (OK, answer.json()["offsets"].get("app")) if found == OK else found

    # -- exchanges and super streams

    async def _make_super(self, name: str, keys: tuple[tuple[str, str], ...]) -> Outcome:
        body = {"binding-keys": [key for key, _ in keys]}
        path = f"stream/super-streams/{_HOST}/{name}"
        return await self._outcome({204: OK, 400: EXISTS}, "PUT", path, body)

    async def _delete_super(self, name: str) -> Outcome:
        return await self._outcome(_DONE, "DELETE", f"stream/super-streams/{_HOST}/{name}")

    async def _put_exchange(self, name: str, kind: str) -> Outcome:
        expected = {201: NEW, 204: SAME, 400: CONFLICT}
        return await self._outcome(expected, "PUT", f"exchanges/{_HOST}/{name}", {"type": kind})

    async def _bind(self, name: str, key: str, stream: str) -> Outcome:
        path = f"bindings/{_HOST}/e/{name}/q/{stream}"
        return await self._outcome({201: OK, 404: MISSING}, "POST", path, {"routing_key": key})

    async def _drop_binding(self, name: str, key: str, stream: str) -> Outcome:
        bindings = await self.ask("GET", f"bindings/{_HOST}/e/{name}/q/{stream}")
        wanted = [row["properties_key"] for row in bindings.json() if row["routing_key"] == key]
        if not wanted:
            return MISSING
        path = f"bindings/{_HOST}/e/{name}/q/{stream}/{quote(wanted[0], safe='')}"
        return await self._outcome(_DONE, "DELETE", path)

    async def _bound(self, name: str) -> Outcome:
        answer = await self.ask("GET", f"exchanges/{_HOST}/{name}/bindings/source")
        found = _judged(answer.status_code, {200: OK})
        rows = answer.json()
        return found, tuple(sorted((row["routing_key"], row["destination"]) for row in rows))

    # -- users and virtual hosts

    async def _put_host(self, name: str) -> Outcome:
        return await self._outcome(_PUT, "PUT", f"vhosts/{name}", {})

    async def _delete_host(self, name: str) -> Outcome:
        return await self._outcome(_DONE, "DELETE", f"vhosts/{name}")

    async def _put_user(self, name: str) -> Outcome:
        body = {"password_hash": _password_hash(name), "tags": "management"}
        body["hashing_algorithm"] = "rabbit_password_hashing_sha256"
        return await self._outcome(_PUT, "PUT", f"users/{name}", body)

    async def _delete_user(self, name: str) -> Outcome:
        return await self._outcome(_DONE, "DELETE", f"users/{name}")

    async def _find_user(self, name: str) -> Outcome:
        return await self._outcome({200: OK, 404: MISSING}, "GET", f"users/{name}")

    async def _put_permission(self, name: str) -> Outcome:
        body = {"configure": ".*", "write": ".*", "read": ".*"}
        return await self._outcome(_PUT, "PUT", f"permissions/{name}/{name}", body)

    async def _delete_permission(self, name: str) -> Outcome:
        return await self._outcome(_DONE, "DELETE", f"permissions/{name}/{name}")

    async def _find_permission(self, name: str) -> Outcome:
        path = f"permissions/{name}/{name}"
        return await self._outcome({200: OK, 404: MISSING}, "GET", path)

    async def _put_inside(self, name: str) -> Outcome:
        return await self._outcome(_PUT, "PUT", f"queues/{name}/inside", {})

    async def _delete_inside(self, name: str) -> Outcome:
        return await self._outcome(_DONE, "DELETE", f"queues/{name}/inside")


LISTS = (
    "queues", "queues/%2F", "exchanges", "bindings", "connections", "consumers", "vhosts", "users",
    "permissions", "overview", "definitions", "stream/super-streams", "stream/connections",
)  # fmt: skip
_PUT = {201: NEW, 204: SAME, 404: MISSING}
_DONE = {200: OK, 204: OK, 404: MISSING}
DOORS: tuple[type[Door], ...] = (StreamDoor, AmqpDoor, HttpDoor)

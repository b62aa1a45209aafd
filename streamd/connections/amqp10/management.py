"""Management: queues, exchanges and bindings, asked for by messages as by HTTP.

A request has a path in `to`, a method in `subject`, and a body of one value. The answer has the
status in `subject`, and the id of the request in `correlation-id`.

Source: OASIS HTTP over AMQP 1.0, working draft 6; rabbitmq/rabbitmq-server,
deps/rabbit/src/rabbit_amqp_management.erl, for the paths, and for texts that clients look at.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, quote

from segments.amqp10 import Opaque
from segments.amqp10_codes import INT
from streamd.broker.virtual_host import VirtualHost
from streamd.connections.amqp10.addresses import decoded
from streamd.connections.amqp10.management_messages import (
    SHOWN,
    Failed,
    Fields,
    Request,
    Response,
    bad,
    read_request,
    write_response,
)
from streamd.connections.declaring import Declaring, Flags
from streamd.connections.queue_arguments import PREFIX, QUEUE_TYPE, STREAM, BadArgument
from streamd.net.turns import in_turns
from streamd.operations.arguments import plain_arguments
from streamd.operations.connections import ListReaders
from streamd.operations.declaration import Operation
from streamd.operations.errors import Inequivalent, Reason, Refused, ReservedName
from streamd.operations.names import Name, as_sent
from streamd.operations.rights import Right
from streamd.operations.routing import (
    ALTERNATE,
    DEFAULT_EXCHANGE,
    SUPER_STREAM,
    Binding,
    ExchangeRow,
    ExchangeType,
    Scalar,
    arguments_hash,
    exchange_type,
)
from streamd.operations.server import NODE
from streamd.wire.amqp10.errors import Condition, SessionFault
from streamd.wire.amqp10.values import Array, Exact, Uint, Ulong, write_value

logger = logging.getLogger(__name__)

Ask: TypeAlias = Callable[[Operation[Any]], Awaitable[Any]]

_BINDING = re.compile(
    r"src=(?P<source>[^;]+);dst(?P<kind>[eq])=(?P<destination>[^;]+);key=(?P<key>[^;]*);"
    r"args=(?P<hash>[\w-]*)",
    re.ASCII,
)
_STATUSES = {
    Reason.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Reason.NOT_AVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    Reason.INTERNAL_ERROR: HTTPStatus.INTERNAL_SERVER_ERROR,
}
_DONE = Response(HTTPStatus.NO_CONTENT)


class _Asked(NamedTuple):
    """What a handler gets.

    Attributes:
        part: the name in the path.
        query: the words behind the path.
        answer: for one that answers itself.
    """

    part: str
    query: str
    body: Exact
    answer: Callable[[Response], None]


class Management:
    """Answers the requests of one user.

    Args:
        ask: has an operation carried out for the user.
    """

    def __init__(self, host: VirtualHost, declaring: Declaring, ask: Ask) -> None:
        self._host, self._declaring, self._ask = host, declaring, ask
        self._handlers: dict[tuple[str, str], Callable[[_Asked], Awaitable[Response | None]]] = {
            ("PUT", "/queues/*"): self._declare_queue,
            ("GET", "/queues/*"): self._get_queue,
            ("DELETE", "/queues/*"): self._delete_queue,
            ("DELETE", "/queues/*/messages"): self._purge_queue,
            ("PUT", "/exchanges/*"): self._declare_exchange,
            ("DELETE", "/exchanges/*"): self._delete_exchange,
            ("POST", "/bindings"): self._bind,
            ("GET", "/bindings"): self._list_bindings,
            ("DELETE", "/bindings/*"): self._unbind,
            ("PUT", "/auth/*"): self._set_token,
        }

    async def answer(self, message: bytes, send: Callable[[bytes], None]) -> None:
        """Answer a request.

        Args:
            message: all its sections.
            send: is given the answer; where a stream is deleted, before those that use it are told,
                as clients wait for the answer alone.

        Raises:
            SessionFault: it is no request, or the user may not do what it asks for.
        """
        request = read_request(message)

        def answer(response: Response) -> None:
            send(write_response(request, response))

        try:
            response = await self._carry_out(request, answer)
        except Failed as failed:
            response = Response(failed.status, failed.text)
        except Refused as refused:
            response = _refused(refused)
        if response is None:
            return
        if response.status >= HTTPStatus.BAD_REQUEST:
            logger.info("%s is answered %d: %s", request.shown, response.status, response.body)
        answer(response)

    async def _carry_out(
        self, request: Request, answer: Callable[[Response], None]
    ) -> Response | None:
        path, _, query = request.target.partition("?")
        segments = path.split("/")
        part = "".join(segments[2:3])
        segments[2:3] = ["*"] * len(segments[2:3])
        pattern = "/".join(segments)
        handler = self._handlers.get((request.method, pattern))
        if handler is None:
            raise Failed(HTTPStatus.NOT_FOUND, f"there is no {request.shown}")
        return await handler(_Asked(part, query, request.body, answer))

    # -- queues

    async def _declare_queue(self, asked: _Asked) -> Response:
        name = _name(asked.part)
        if not name:
            raise bad("declare queue with empty name not allowed")
        given = Fields("queue property", asked.body)
        flags = Flags(
            given.flag("durable", default=True),
            given.flag("exclusive", default=False),
            given.flag("auto_delete", default=False),
        )
        arguments = given.arguments()
        given.finish()
        is_new = await self._declaring.declare_queue(name, flags, arguments)
        status = HTTPStatus.CREATED if is_new else HTTPStatus.OK
        return Response(status, await self._queue(name))

    async def _get_queue(self, asked: _Asked) -> Response:
        name = _name(asked.part)
        self._declaring.require_any("queue", name)
        if not self._host.has_stream(name):
            text = f"queue '{name}' in vhost '{self._host.name}' not found"
            raise Failed(HTTPStatus.NOT_FOUND, text)
        return Response(HTTPStatus.OK, await self._queue(name))

    async def _queue(self, name: Name) -> Exact:
        arguments = plain_arguments(self._host.arguments(name))
        readers = await self._ask(ListReaders(vhost=self._host.name, stream=name))
        return {
            "name": name,
            "vhost": self._host.name,
            "durable": True,
            "auto_delete": False,
            "exclusive": False,
            "type": STREAM,
            "arguments": {QUEUE_TYPE: STREAM} | {PREFIX + k: v for k, v in arguments.items()},
            "message_count": Ulong(await self._declaring.num_messages(name)),
            "consumer_count": Uint(len(readers)),
            "leader": NODE,
            "replicas": Array([NODE]),
        }

    async def _delete_queue(self, asked: _Asked) -> None:
        deleted = Response(HTTPStatus.OK, {"message_count": Ulong(0)})
        await self._declaring.delete_queue(_name(asked.part), partial(asked.answer, deleted))

    async def _purge_queue(self, asked: _Asked) -> Response:
        name = _name(asked.part)
        self._declaring.require(Right.READ, "queue", name)
        where = f"queue '{name}' in vhost '{self._host.name}'"
        if not self._host.has_stream(name):
            raise Failed(HTTPStatus.NOT_FOUND, f"no {where}")
        raise bad(f"purge not supported by {where}: messages of a stream go by its size and age")

    # -- exchanges

    async def _declare_exchange(self, asked: _Asked) -> Response:
        given = Fields("exchange property", asked.body)
        arguments = given.arguments()
        alternate = arguments.get(ALTERNATE, "")
        is_super_stream = arguments.get(SUPER_STREAM)
        if not isinstance(alternate, str):
            raise bad(f"invalid type for arg '{ALTERNATE}': expected a string")
        row = ExchangeRow(
            self._host.name,
            _name(asked.part),
            exchange_type(given.text("type", default=ExchangeType.DIRECT)),
            given.flag("durable", default=True),
            given.flag("auto_delete", default=False),
            given.flag("internal", default=False),
            as_sent(alternate),
        )
        given.finish()
        stated = is_super_stream if isinstance(is_super_stream, bool) else None
        await self._declaring.declare_exchange(row, is_super_stream=stated)
        return _DONE

    async def _delete_exchange(self, asked: _Asked) -> Response:
        await self._declaring.delete_exchange(_name(asked.part))
        return _DONE

    # -- bindings

    async def _bind(self, asked: _Asked) -> Response:
        given = Fields("binding field", asked.body)
        to_exchange = given.has("destination_exchange")
        binding = Binding(
            self._host.name,
            as_sent(given.text("source")),
            as_sent(given.text("destination_exchange" if to_exchange else "destination_queue")),
            to_exchange,
            given.text("binding_key", default=""),
            _scalars(given.arguments()),
        )
        given.finish()
        self._check_ends(binding)
        await _of_bindings(self._declaring.bind(binding))
        return _DONE

    async def _unbind(self, asked: _Asked) -> Response:
        found = _BINDING.fullmatch(asked.part)
        if found is None:
            raise bad(f"bad binding path segment {asked.part[:SHOWN]!r}")
        source, destination = _name(found["source"]), _name(found["destination"])
        wanted = self._wanted(source, destination, found["kind"] == "e", _name(found["key"]))
        for binding in await self._between(wanted):
            # The position of a partition was given to it: it is no argument that was asked for.
            is_plain = not found["hash"] and binding.position is not None
            if is_plain or arguments_hash(binding.arguments) == found["hash"]:
                await _of_bindings(self._declaring.unbind(binding))
                break
        return _DONE

    async def _list_bindings(self, asked: _Asked) -> Response:
        words = dict(parse_qsl(asked.query, keep_blank_values=True))
        to_exchange = "dste" in words
        destination = words.get("dste" if to_exchange else "dstq")
        if destination is None:
            raise bad("missing 'dste' or 'dstq' in query")
        if "src" not in words or "key" not in words:
            raise bad("missing 'src' or 'key' in query")
        wanted = self._wanted(
            as_sent(words["src"]), as_sent(destination), to_exchange, words["key"]
        )
        found = in_turns(await self._between(wanted))
        rows = [Opaque(write_value(_shown(binding))) async for binding in found]
        return Response(HTTPStatus.OK, rows)

    def _wanted(self, source: Name, destination: Name, to_exchange: bool, key: str) -> Binding:
        binding = Binding(self._host.name, source, destination, to_exchange, key, {})
        self._check_ends(binding)
        return binding

    def _check_ends(self, binding: Binding) -> None:
        if DEFAULT_EXCHANGE in (binding.source, binding.destination):
            raise ReservedName("operation not permitted on the default exchange")
        self._declaring.check_ends(binding)

    async def _between(self, wanted: Binding) -> list[Binding]:
        """The bindings with these ends and this key, whatever their arguments are."""
        found = self._host.topology.bindings_from(wanted.source)
        return [binding async for binding in in_turns(found) if binding[:5] == wanted[:5]]

    # -- tokens

    async def _set_token(self, asked: _Asked) -> Response:
        """Who has logged in with a password has no token, and nothing to renew; as RabbitMQ."""
        if not isinstance(asked.body, bytes):
            raise bad("the body is no token: bytes are expected")
        return _DONE


def _scalars(arguments: Mapping[str, object]) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    for name, value in arguments.items():
        match value:
            case None | str() | bool() | float():
                found[name] = value
            case int():
                found[name] = int(value)  # of no type of its own
            case _:
                expected = "a string, number, true, false or null"
                raise bad(f"unsupported argument '{name[:SHOWN]}': expected {expected}")
    return found


def _typed(value: Scalar) -> Exact:
    """The value of an argument, a whole number as an int where it fits into one, else a long.

    Clients take a binding for the one that they mean only if the types of its arguments are those
    that they have given, which are not kept.
    """
    if type(value) is int and -(1 << 31) <= value < 1 << 31:
        return Opaque(bytes((INT,)) + value.to_bytes(4, "big", signed=True))
    return value


def _shown(binding: Binding) -> Exact:
    ends = (binding.source, binding.destination, binding.key)
    source, destination, key = (quote(end, safe="") for end in ends)
    kind, named = ("e", "exchange") if binding.to_exchange else ("q", "queue")
    where = f"src={source};dst{kind}={destination};key={key}"
    return {
        "source": binding.source,
        f"destination_{named}": binding.destination,
        "binding_key": binding.key,
        "arguments": {name: _typed(value) for name, value in binding.arguments.items()},
        "location": f"/bindings/{where};args={arguments_hash(binding.arguments)}",
    }


def _name(part: str) -> Name:
    name = decoded(part)
    if name is None:
        raise bad(f"{part[:SHOWN]!r} in the path is not UTF-8 in percent encoding")
    return as_sent(name)


async def _of_bindings(change: Awaitable[None]) -> None:
    """What is missing at one end is a bad request: the path names no end."""
    try:
        await change
    except Refused as refused:
        if refused.reason is Reason.NOT_FOUND:
            raise bad(refused.details) from refused
        raise


def _refused(refused: Refused) -> Response:
    """The answer that says why.

    Raises:
        SessionFault: the user may not.
    """
    text = refused.details or refused.reason.value
    if isinstance(refused, ReservedName):
        return Response(HTTPStatus.FORBIDDEN, text)
    if refused.reason is Reason.ACCESS_REFUSED:
        raise SessionFault(Condition.UNAUTHORIZED_ACCESS, text) from refused
    if isinstance(refused, Inequivalent | BadArgument):  # as RabbitMQ says it
        return Response(HTTPStatus.CONFLICT, text)
    return Response(_STATUSES.get(refused.reason, HTTPStatus.BAD_REQUEST), text)

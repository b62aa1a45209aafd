"""/api/bindings: from which exchange to which streams and exchanges.

A partition of a super stream is a stream that is bound to it; the argument
x-stream-partition-order gives its position.
"""

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Callable
from functools import partial
from urllib.parse import quote

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.auth.users import Rights
from streamd.broker.catalog.writer import Check
from streamd.broker.virtual_host import VirtualHost
from streamd.http_api.caller import caller_of
from streamd.http_api.description import CREATED, DONE, ENTER, Operation, described
from streamd.http_api.exchanges import exchange_part
from streamd.http_api.messages import (
    NotFound,
    NotServed,
    Row,
    done,
    json_answer,
    listing,
    mapping,
    part,
    read_body,
    text,
)
from streamd.http_api.queues import host_of, hosts_of
from streamd.http_api.service import Service
from streamd.net.turns import in_turns
from streamd.operations.rights import Right
from streamd.operations.routing import Binding, arguments_text

_BETWEEN = "/api/bindings/{vhost}/e/{source}/{kind}/{destination}"
_KINDS = {"q": False, "e": True}  # the letter before a destination: whether it is an exchange
_NAMES = {False: "queue", True: "exchange"}
_HASH_BYTES = 9
_ROWS_A_TURN = 100


class BindingPaths:
    """Bindings listed, made and removed."""

    TITLE = "Bindings"

    def __init__(self, service: Service) -> None:
        self._hosts = service.broker.virtual_hosts
        self.routes = [
            Route("/api/bindings", self._list),
            Route("/api/bindings/{vhost}", self._list),
            Route("/api/exchanges/{vhost}/{name}/bindings/source", self._list_from),
            Route("/api/exchanges/{vhost}/{name}/bindings/destination", self._list_to_exchange),
            Route("/api/queues/{vhost}/{name}/bindings", self._list_to_queue),
            Route(_BETWEEN, self._list_between),
            Route(_BETWEEN, self._bind, methods=["POST"]),
            Route(_BETWEEN + "/{key}", self._one),
            Route(_BETWEEN + "/{key}", self._unbind, methods=["DELETE"]),
        ]

    # -- looking

    @described(Operation(rows="Binding"))
    async def _list(self, request: Request) -> Response:
        """Bindings of all exchanges."""
        hosts = hosts_of(self._hosts, request)
        bindings = [binding for host in hosts for binding in await bindings_of(host)]
        return await listing(request, bindings, binding_row)

    @described(Operation(rows="Binding", needs=ENTER))
    async def _list_from(self, request: Request) -> Response:
        """Bindings from an exchange."""
        host = host_of(self._hosts, request)
        bindings = host.exchanges.bindings_from(exchange_part(request, "name"))
        return await listing(request, bindings, binding_row)

    @described(Operation(rows="Binding", needs=ENTER))
    async def _list_to_exchange(self, request: Request) -> Response:
        """Bindings to an exchange."""
        return await self._list_to(request, exchange_part(request, "name"), to_exchange=True)

    @described(Operation(rows="Binding", needs=ENTER))
    async def _list_to_queue(self, request: Request) -> Response:
        """Bindings to a stream."""
        return await self._list_to(request, part(request, "name"), to_exchange=False)

    async def _list_to(self, request: Request, name: str, *, to_exchange: bool) -> Response:
        host = host_of(self._hosts, request)
        ends = (name, to_exchange)
        bindings = await bindings_of(
            host, lambda binding: (binding.destination, binding.to_exchange) == ends
        )
        return await listing(request, bindings, binding_row)

    @described(Operation(rows="Binding", needs=ENTER))
    async def _list_between(self, request: Request) -> Response:
        """Bindings from an exchange to a stream or to another exchange."""
        host, wanted = self._ends(request)
        return await listing(request, _between(host, wanted), binding_row)

    @described(Operation(answer="Binding", needs=ENTER))
    async def _one(self, request: Request) -> Response:
        """A binding."""
        host, wanted = self._ends(request)
        return json_answer(binding_row(await find_binding(host, wanted, part(request, "key"))))

    # -- changing

    @described(
        Operation(
            body="NewBinding",
            statuses=CREATED,
            needs="the rights to read the source and to write to the destination",
        )
    )
    async def _bind(self, request: Request) -> Response:
        """Bind a stream or an exchange to an exchange.

        The header `Location` ends in the binding's `properties_key`.
        """
        host, ends = self._ends(request)
        check = partial(check_ends, caller_of(request).rights(host.name), ends)
        check()
        binding, _ = await bind(host, ends, await read_body(request), check)
        last = [binding.destination, properties_key(binding)]
        return done(is_new=True, location="/".join(quote(name, safe="") for name in last))

    @described(
        Operation(
            statuses=DONE, needs="the rights to read the source and to write to the destination"
        )
    )
    async def _unbind(self, request: Request) -> Response:
        """Remove a binding."""
        host, ends = self._ends(request)
        check = partial(check_ends, caller_of(request).rights(host.name), ends)
        check()
        await host.exchanges.unbind(await find_binding(host, ends, part(request, "key")), check)
        return done()

    def _ends(self, request: Request) -> tuple[VirtualHost, Binding]:
        """The virtual host, and a binding of the ends in the path, without key and arguments."""
        host, kind = host_of(self._hosts, request), part(request, "kind")
        if kind not in _KINDS:
            raise NotFound
        to_exchange = _KINDS[kind]
        destination = (exchange_part if to_exchange else part)(request, "destination")
        source = exchange_part(request, "source")
        return host, Binding(host.name, source, destination, to_exchange, "", {})


def check_ends(rights: Rights, ends: Binding) -> None:
    """Raise Refused unless somebody with these rights may bind or unbind these ends."""
    rights.require(Right.READ, ends.source)
    rights.require(Right.WRITE, ends.destination)


async def bindings_of(
    host: VirtualHost, is_wanted: Callable[[Binding], bool] | None = None
) -> list[Binding]:
    """The bindings of all exchanges, or only the wanted ones."""
    found: list[Binding] = []
    for row in host.exchanges.rows():
        found += filter(is_wanted, host.exchanges.bindings_from(row.name))
        await trio.lowlevel.checkpoint()  # there can be 100,000, and messages must flow meanwhile
    return found


def _between(host: VirtualHost, ends: Binding) -> list[Binding]:
    bindings = host.exchanges.bindings_from(ends.source)
    return [binding for binding in bindings if binding[:4] == ends[:4]]


async def find_binding(host: VirtualHost, ends: Binding, key: str) -> Binding:
    """The binding with that properties_key, or the only one with that routing key.

    Raises:
        NotFound: there is none.
    """
    bindings = _between(host, ends)
    async for binding in in_turns(bindings, _ROWS_A_TURN):
        if properties_key(binding) == key:
            return binding
    same_key = [binding for binding in bindings if binding.key == key]
    if len(same_key) != 1:
        raise NotFound
    return same_key[0]


async def bind(host: VirtualHost, ends: Binding, body: Row, check: Check) -> tuple[Binding, bool]:
    """Make a binding as definitions and requests describe it.

    Returns:
        The binding as it is kept, and whether it is new.

    Raises:
        NotServed: it has arguments with lists or objects.
        BadRequest: it cannot be understood.
        Refused: it cannot be made.
    """
    arguments = mapping(body, "arguments")
    for name, value in arguments.items():
        if isinstance(value, list | dict):
            raise NotServed(
                f"the binding's argument '{name[:40]}' is not a string, number, true, false or null"
            )
    key = text(body, "routing_key", "")
    wanted = ends._replace(key=key, arguments=arguments)
    is_new = not host.exchanges.has_binding(wanted)
    return await host.exchanges.bind(wanted, check), is_new


def binding_row(binding: Binding) -> Row:
    """A binding as RabbitMQ shows it."""
    return declared_binding(binding) | {"properties_key": properties_key(binding)}


def declared_binding(binding: Binding) -> Row:
    """A binding as definitions have it."""
    return {
        "source": binding.source,
        "vhost": binding.virtual_host,
        "destination": binding.destination,
        "destination_type": _NAMES[binding.to_exchange],
        "routing_key": binding.key,
        "arguments": dict(binding.arguments),
    }


def properties_key(binding: Binding) -> str:
    """The routing key and a hash of the arguments: tells bindings between the same two ends apart.

    Source: rabbitmq/rabbitmq-server, deps/rabbitmq_management_agent/src/rabbit_mgmt_format.erl; the
    hash is our own.
    """
    key = quote(binding.key, safe="").replace("~", "%7E")
    if not binding.arguments:
        return key or "~"
    raw = arguments_text(binding.arguments).encode()
    digest = hashlib.blake2b(raw, digest_size=_HASH_BYTES).digest()
    return f"{key}~{urlsafe_b64encode(digest).decode()}"

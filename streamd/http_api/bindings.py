"""/api/bindings: from which exchange to which streams and exchanges.

A partition of a super stream is a stream that is bound to it; the argument
x-stream-partition-order gives its position.
"""

from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.http_api.description import CREATED, DONE, ENTER, Operation, described
from streamd.http_api.exchanges import exchange_part, host_part
from streamd.http_api.messages import (
    NotFound,
    NotServed,
    Row,
    done,
    found,
    json_answer,
    listing,
    mapping,
    part,
    read_body,
    text,
)
from streamd.http_api.service import Service
from streamd.operations import routing as r
from streamd.operations.routing import Binding, binding_with, properties_key

_BETWEEN = "/api/bindings/{vhost}/e/{source}/{kind}/{destination}"
_KINDS = {"q": False, "e": True}  # the letter before a destination: whether it is an exchange
_NAMES = {False: "queue", True: "exchange"}


class BindingPaths:
    """Bindings listed, made and removed."""

    TITLE = "Bindings"

    def __init__(self, service: Service) -> None:
        self._ask = service.ask
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

    async def _found(self, request: Request, **ends: Any) -> list[Binding]:  # noqa: ANN401 - see ListBindings
        return await self._ask(request, r.ListBindings(vhost=host_part(request), **ends))

    @described(Operation(rows="Binding", asks=r.ListBindings))
    async def _list(self, request: Request) -> Response:
        """Bindings of all exchanges."""
        return await listing(request, await self._found(request), binding_row)

    @described(Operation(rows="Binding", asks=r.ListBindings, needs=ENTER))
    async def _list_from(self, request: Request) -> Response:
        """Bindings from an exchange."""
        bindings = await self._found(request, source=exchange_part(request, "name"))
        return await listing(request, bindings, binding_row)

    @described(Operation(rows="Binding", asks=r.ListBindings, needs=ENTER))
    async def _list_to_exchange(self, request: Request) -> Response:
        """Bindings to an exchange."""
        name = exchange_part(request, "name")
        bindings = await self._found(request, destination=name, to_exchange=True)
        return await listing(request, bindings, binding_row)

    @described(Operation(rows="Binding", asks=r.ListBindings, needs=ENTER))
    async def _list_to_queue(self, request: Request) -> Response:
        """Bindings to a stream."""
        bindings = await self._found(request, destination=part(request, "name"))
        return await listing(request, bindings, binding_row)

    @described(Operation(rows="Binding", asks=r.ListBindings, needs=ENTER))
    async def _list_between(self, request: Request) -> Response:
        """Bindings from an exchange to a stream or to another exchange."""
        bindings = await self._found(request, **_ends(request))
        return await listing(request, bindings, binding_row)

    @described(Operation(answer="Binding", asks=r.ListBindings, needs=ENTER))
    async def _one(self, request: Request) -> Response:
        """A binding."""
        bindings = await self._found(request, **_ends(request))
        return json_answer(binding_row(found(await binding_with(bindings, part(request, "key")))))

    # -- changing

    @described(Operation(body="NewBinding", statuses=CREATED, asks=r.Bind))
    async def _bind(self, request: Request) -> Response:
        """Bind a stream or an exchange to an exchange.

        The header `Location` ends in the binding's `properties_key`.
        """
        vhost, ends = part(request, "vhost"), _ends(request)
        asked = r.Bind(vhost=vhost, **ends, **binding_fields(await read_body(request)))
        binding = (await self._ask(request, asked)).binding
        last = [binding.destination, properties_key(binding)]
        return done(is_new=True, location="/".join(quote(name, safe="") for name in last))

    @described(Operation(statuses=DONE, asks=r.Unbind))
    async def _unbind(self, request: Request) -> Response:
        """Remove a binding."""
        vhost, key = part(request, "vhost"), part(request, "key")
        await self._ask(request, r.Unbind(vhost=vhost, **_ends(request), binding=key))
        return done()


def _ends(request: Request) -> dict[str, Any]:
    """The ends of a binding that the path names."""
    kind = part(request, "kind")
    if kind not in _KINDS:
        raise NotFound
    to_exchange = _KINDS[kind]
    return {
        "source": exchange_part(request, "source"),
        "destination": (exchange_part if to_exchange else part)(request, "destination"),
        "to_exchange": to_exchange,
    }


def binding_fields(body: Row) -> dict[str, Any]:
    """Key and arguments of a binding as definitions and requests describe it.

    Raises:
        NotServed: it has arguments with lists or objects.
        BadRequest: it cannot be understood.
    """
    arguments = mapping(body, "arguments")
    for name, value in arguments.items():
        if isinstance(value, list | dict):
            raise NotServed(
                f"the binding's argument '{name[:40]}' is not a string, number, true, false or null"
            )
    return {"key": text(body, "routing_key", ""), "arguments": arguments}


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

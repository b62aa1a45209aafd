"""The parts of a server that the HTTP API works on."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from starlette.requests import Request

from streamd.auth.users import UserDirectory
from streamd.broker.broker import Broker
from streamd.engine import Engine
from streamd.engine.registry import ConnectionRegistry
from streamd.hop.door import EngineLink
from streamd.http_api.caller import visitor_of
from streamd.net.transport import Address
from streamd.operations.declaration import Operation

Answer = TypeVar("Answer")
NODE = "streamd@localhost"  # the only one; clients expect a name


class Service(NamedTuple):
    """A server as the HTTP API sees it.

    Attributes:
        listeners: gives protocol and address of every open port.
        link: to the engine.
        refused: gets the number of requests that were refused, by the reason.
        now_ms: the wall clock.
    """

    link: EngineLink
    refused: Counter[str]
    now_ms: Callable[[], int]
    # In one process with the engine, until the last path asks it instead.
    broker: Broker = None  # type: ignore[assignment]
    directory: UserDirectory = None  # type: ignore[assignment]
    connections: ConnectionRegistry = None  # type: ignore[assignment]
    engine: Engine = None  # type: ignore[assignment]
    listeners: Callable[[], list[tuple[str, Address]]] = None  # type: ignore[assignment]

    async def ask(self, request: Request, operation: Operation[Answer]) -> Answer:
        """Have an operation carried out for the user behind a request.

        Raises:
            Refused: see Session.ask.
        """
        return await visitor_of(request).ask(operation)

"""The server as the HTTP API and the console see it: what can be asked of the engine."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from starlette.requests import Request

from streamd.hop.door import EngineLink
from streamd.http_api.caller import visitor_of
from streamd.http_api.unsent import Unsent
from streamd.operations.declaration import Operation

Answer = TypeVar("Answer")


class Service(NamedTuple):
    """The server, and what all paths of this door share.

    Attributes:
        link: to the engine.
        refused: gets the number of requests that were refused, by the reason.
        now_ms: the wall clock.
        unsent: what users have been answered and not taken yet.
    """

    link: EngineLink
    refused: Counter[str]
    now_ms: Callable[[], int]
    unsent: Unsent

    async def ask(self, request: Request, operation: Operation[Answer]) -> Answer:
        """Have an operation carried out for the user behind a request.

        Raises:
            Refused: see Session.ask.
        """
        return await visitor_of(request).ask(operation)

"""Running the HTTP API: Hypercorn on trio, on a socket that is bound here.

Hypercorn because it speaks HTTP on trio, in the same event loop as the streams.
"""

import logging
import socket
from collections.abc import Awaitable, Callable

from hypercorn.config import Config as HypercornConfig
from hypercorn.trio import serve
from starlette.types import ASGIApp

from streamd.transport import Address

logger = logging.getLogger(__name__)

_HEADER_BYTES = 32 << 10
_IDLE_SECONDS = 15
_GRACE_SECONDS = 2  # for requests that are being answered when the server stops
_BACKLOG = 128
# A peer that takes nothing of its answer for so long is cut off by the kernel; Hypercorn would
# wait for it for ever, also when the server stops.
_STUCK_MS = 10_000
_STUCK_OPTION = getattr(socket, "TCP_USER_TIMEOUT", None)


class Listener:
    """A bound socket for the HTTP API.

    Attributes:
        address: where it listens.
    """

    def __init__(self, bound: socket.socket) -> None:
        self._socket = bound
        self.address = Address(*bound.getsockname()[:2])

    async def run(self, app: ASGIApp, stop: Callable[[], Awaitable[None]]) -> None:
        """Serve until `stop` returns."""
        config = HypercornConfig()
        config.bind = [f"fd://{self._socket.dup().detach()}"]  # Hypercorn closes its own
        config.h11_max_incomplete_size = _HEADER_BYTES
        config.keep_alive_timeout = _IDLE_SECONDS
        config.graceful_timeout = _GRACE_SECONDS
        config.backlog = _BACKLOG
        config.errorlog = logging.getLogger("hypercorn")
        config.errorlog.setLevel(logging.WARNING)  # it greets on stderr otherwise
        config.accesslog = None
        config.include_server_header = False
        await serve(app, config, shutdown_trigger=stop)  # type: ignore[arg-type]

    def close(self) -> None:
        """Listen no longer."""
        self._socket.close()


def listen(host: str, port: int) -> Listener:
    """Bind a port.

    Raises:
        OSError: it cannot be bound.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if _STUCK_OPTION is not None:
            bound.setsockopt(socket.IPPROTO_TCP, _STUCK_OPTION, _STUCK_MS)
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError:
        bound.close()
        raise
    return Listener(bound)

"""What a connection of any protocol needs from the server, and what the server needs from it."""

from typing import NamedTuple, Protocol

from streamd.auth.authentication import Authenticator, Peer
from streamd.auth.users import UserDirectory
from streamd.broker.broker import Broker
from streamd.config import Config
from streamd.engine import Engine
from streamd.engine.registry import ConnectionRegistry
from streamd.net.transport import Transport


class Connection(Protocol):
    """One live connection, whatever it speaks."""

    @property
    def is_open(self) -> bool:
        """Somebody has logged in."""

    async def run(self) -> None:
        """Serve the peer until one side ends the connection, or the task is cancelled."""

    async def stop(self) -> None:
        """The server stops: give the peer what is due to it, then end."""


class Services(NamedTuple):
    """The parts of a server that its connections work with.

    Attributes:
        config: settings.
        registry: lists a connection while it is open.
        engine: carries out operations.
    """

    config: Config
    broker: Broker
    directory: UserDirectory
    registry: ConnectionRegistry
    engine: Engine

    def authenticator(self, transport: Transport) -> Authenticator:
        """The authenticator for the peer of a connection."""
        peer = Peer(transport.peer.host, transport.is_local, transport.certificate_user)
        return Authenticator(self.config, self.broker, self.directory, peer)


class MakeConnection(Protocol):
    """Creates a connection of one protocol."""

    def __call__(
        self, transport: Transport, services: Services, announced: tuple[str, int]
    ) -> Connection:
        """A connection that waits for `run`.

        Args:
            transport: the connection's bytes; closed when `run` returns.
            services: of the server.
            announced: host and port at which clients are told to find the server.
        """

"""The open connections of all protocols, to be listed or ended."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from streamd.auth.users import Account, Rights
from streamd.broker.virtual_host import VirtualHost
from streamd.net.transport import Address, Transport
from streamd.operations.connections import ConsumerFacts, PublisherFacts
from streamd.operations.names import Name


@dataclass(frozen=True, eq=False)
class LiveConnection:
    """One open connection.

    Attributes:
        peer: host and port of the other end.
        local: host and port of this end.
        protocol: STREAM_PROTOCOL, AMQP_PROTOCOL or AMQP10_PROTOCOL.
        is_tls: it is inside TLS.
        account: the user that has logged in.
        mechanism: the SASL mechanism that was used.
        is_node: another node of the cluster has opened it for a client of its own.
        virtual_host: the one that was entered.
        properties: what the client says about itself.
        frame_max: agreed, in bytes.
        heartbeat_seconds: agreed; 0 for none.
        connected_at_ms: when it was opened, in ms since 1970.
        publishers: the publishers at the moment.
        consumers: the subscriptions at the moment.
        check_rights: ends what its user may not do any more.
        end: ends it, for the reason given.
    """

    peer: Address
    local: Address
    protocol: str
    is_tls: bool
    account: Account
    mechanism: str
    is_node: bool
    virtual_host: str
    properties: Mapping[str, str]
    frame_max: int
    heartbeat_seconds: int
    connected_at_ms: int
    publishers: Callable[[], list[PublisherFacts]]
    consumers: Callable[[], list[ConsumerFacts]]
    check_rights: Callable[[], None]
    end: Callable[[str], None]

    @property
    def user(self) -> Name:
        """The name of the user that has logged in."""
        return self.account.name

    @property
    def name(self) -> str:
        """As RabbitMQ names connections."""
        return f"{self.peer} -> {self.local}"


class LoggedIn(Protocol):
    """The result of a connection's login.

    Attributes:
        properties: what the client says about itself.
        heartbeat_seconds: agreed; 0 for none.
        mechanism: by which the user was authenticated.
        is_node: another node of the cluster has logged in.
        host: the virtual host that was entered.
        rights: what the user may do there.
        opened_at_ms: when the connection was opened, in ms since 1970.
    """

    properties: Mapping[str, str]
    heartbeat_seconds: int
    mechanism: str
    is_node: bool
    host: VirtualHost
    rights: Rights
    opened_at_ms: int


class ConnectionRegistry:
    """All open connections of a server, by name.

    Attributes:
        opened, closed: connections since the start.
    """

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self._open: dict[str, LiveConnection] = {}

    def add(self, connection: LiveConnection) -> None:
        """A connection was opened."""
        self.opened += 1
        self._open[connection.name] = connection

    def discard(self, connection: LiveConnection) -> None:
        """A connection has ended."""
        self.closed += 1
        if self._open.get(connection.name) is connection:
            del self._open[connection.name]

    def find(self, name: str) -> LiveConnection | None:
        """The connection of that name."""
        return self._open.get(name)

    def __iter__(self) -> Iterator[LiveConnection]:
        return iter(list(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    @property
    def of_clients(self) -> Iterator[LiveConnection]:
        """All but those that other nodes have opened for their own clients."""
        return (one for one in self if not one.is_node)

    @contextmanager
    def listed(
        self,
        transport: Transport,
        login: LoggedIn,
        protocol: str,
        frame_max: int,
        publishers: Callable[[], list[PublisherFacts]],
        consumers: Callable[[], list[ConsumerFacts]],
        check_rights: Callable[[], None],
        end: Callable[[str], None],
    ) -> Iterator[None]:
        """Let others see a connection, and end it."""
        live = LiveConnection(
            peer=transport.peer,
            local=transport.local,
            protocol=protocol,
            is_tls=transport.is_tls,
            account=login.rights.account,
            mechanism=login.mechanism,
            is_node=login.is_node,
            virtual_host=login.host.name,
            properties=login.properties,
            frame_max=frame_max,
            heartbeat_seconds=login.heartbeat_seconds,
            connected_at_ms=login.opened_at_ms,
            publishers=publishers,
            consumers=consumers,
            check_rights=check_rights,
            end=end,
        )
        self.add(live)
        try:
            with live.account.told(partial(_check, live)):
                _check(live)  # something may have been taken away while it logged in
                yield
        finally:
            self.discard(live)


def _check(connection: LiveConnection) -> None:
    """End what the user may not do any more, and the connection when its login counts no more."""
    connection.check_rights()
    if connection.account.ended:
        connection.end(connection.account.ended)

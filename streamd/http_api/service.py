"""The parts of a server that the HTTP API works on."""

from collections.abc import Callable
from typing import NamedTuple

from streamd.auth.administration import Administration
from streamd.auth.users import UserDirectory
from streamd.broker.broker import Broker
from streamd.connections.registry import ConnectionRegistry
from streamd.net.transport import Address

NODE = "streamd@localhost"  # the only one; clients expect a name


class Service(NamedTuple):
    """A server as the HTTP API sees it.

    Attributes:
        broker: the virtual hosts.
        directory: the users.
        connections: the open connections.
        administration: changes to users and virtual hosts.
        listeners: gives protocol and address of every open port.
    """

    broker: Broker
    directory: UserDirectory
    connections: ConnectionRegistry
    administration: Administration
    listeners: Callable[[], list[tuple[str, Address]]]

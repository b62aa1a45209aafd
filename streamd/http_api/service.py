"""What the HTTP API shows and changes."""

from collections.abc import Callable
from typing import NamedTuple

from streamd.auth.administration import Administration
from streamd.auth.users import UserDirectory
from streamd.broker.broker import Broker
from streamd.connections.registry import ConnectionRegistry
from streamd.net.transport import Address

NODE = "streamd@localhost"  # there is one, and clients want it to have a name


class Service(NamedTuple):
    """A server as the HTTP API sees it.

    Attributes:
        broker: the virtual hosts.
        directory: the users.
        connections: those that are open.
        administration: changes to users and virtual hosts.
        listeners: protocol and address of every open port.
    """

    broker: Broker
    directory: UserDirectory
    connections: ConnectionRegistry
    administration: Administration
    listeners: Callable[[], list[tuple[str, Address]]]

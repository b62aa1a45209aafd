"""What the links of one connection work with."""

from collections.abc import Callable
from typing import NamedTuple

from streamd.auth.users import Rights
from streamd.broker.traffic import ProtocolTraffic
from streamd.broker.virtual_host import VirtualHost
from streamd.connections.amqp10.delivery import Deliveries
from streamd.connections.amqp10.management import Management
from streamd.connections.amqp10.publishing import Publishing
from streamd.net.outbox import Outbox
from streamd.operations.names import Name
from streamd.operations.rights import Right
from streamd.wire.amqp10.connection import Connection
from streamd.wire.amqp10.errors import Condition, SessionFault


class Context(NamedTuple):
    """One connection as its links see it.

    Attributes:
        connection: its bytes.
        now_ms: the wall clock.
    """

    host: VirtualHost
    rights: Rights
    connection: Connection
    outbox: Outbox
    deliveries: Deliveries
    publishing: Publishing
    management: Management
    now_ms: Callable[[], int]
    traffic: ProtocolTraffic

    def require_read(self, name: Name) -> None:
        """Raise SessionFault unless the user may read a queue."""
        if not self.rights.allows(Right.READ, name):
            text = (
                f"read access to queue '{name}' in vhost '{self.host.name}' refused for user "
                f"'{self.rights.user}'"
            )
            raise SessionFault(Condition.UNAUTHORIZED_ACCESS, text)

"""What the methods of one connection work with."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

from streamd.auth.users import Rights
from streamd.broker.traffic import ProtocolTraffic
from streamd.broker.virtual_host import VirtualHost
from streamd.connections.amqp091.channel import Channel
from streamd.connections.amqp091.delivery import Deliveries
from streamd.connections.amqp091.faults import not_found, refusals
from streamd.connections.amqp091.publishing import Publishing
from streamd.connections.declaring import Declaring
from streamd.net.outbox import Outbox
from streamd.operations.names import Name, as_sent
from streamd.operations.rights import Right
from streamd.wire.amqp091.codec import method_frame
from streamd.wire.amqp091.methods import Method

Handler: TypeAlias = Callable[[Channel, Any], Awaitable[None]]
Handlers: TypeAlias = dict[type[Any], Handler]


class Context(NamedTuple):
    """One connection as its methods see it.

    Attributes:
        now_ms: the wall clock.
        declaring: queues, exchanges and bindings.
        hears_of_cancel: the client wants to know when the server ends a consumer.
    """

    host: VirtualHost
    rights: Rights
    outbox: Outbox
    deliveries: Deliveries
    publishing: Publishing
    now_ms: Callable[[], int]
    declaring: Declaring
    hears_of_cancel: bool
    traffic: ProtocolTraffic

    def answer(self, channel: Channel, method: Method, *, nowait: bool = False) -> None:
        """Send a method to the client, unless it does not wait for one."""
        if not nowait:
            self.outbox.put(method_frame(channel.number, method))

    def require_any(self, kind: str, name: Name) -> None:
        """Raise ChannelFault unless the user may do anything at all with a queue or exchange."""
        with refusals():
            self.declaring.require_any(kind, name)

    def require(self, right: Right, kind: str, name: Name) -> None:
        """Raise ChannelFault unless the user may do this with a queue or exchange."""
        with refusals():
            self.declaring.require(right, kind, name)

    def queue_name(self, channel: Channel, name: str) -> Name:
        """The queue of that name; without a name, the last one that was declared.

        Raises:
            ChannelFault: none was declared.
        """
        found = as_sent(name) or channel.queue
        if not found:
            raise not_found("previously declared queue", "", self.host.name)
        return found

    def require_queue(self, name: Name) -> None:
        """Raise ChannelFault unless there is such a queue."""
        if not self.host.has_stream(name):
            raise not_found("queue", name, self.host.name)

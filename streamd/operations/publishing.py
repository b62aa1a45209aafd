"""Single messages that people and scripts publish without a connection of their own."""

import msgspec

from streamd.operations.declaration import Allowed, At, OfHost, OfStream
from streamd.operations.names import Name
from streamd.operations.rights import Right
from streamd.operations.routing import Scalar

DEFAULT_IN_RIGHTS = Name("amq.default")  # RabbitMQ's name for the default exchange
MAX_MESSAGE_BYTES = 4 << 20
MAX_VALUE_BYTES = 4_096  # of a filter value


class Published(msgspec.Struct, frozen=True):
    """A message is stored, at this offset."""

    offset: int


class PublishMessage(OfStream[Published], frozen=True, kw_only=True):
    """Publish a message to a stream; it is as safe as a confirmed one when this is answered.

    Attributes:
        message: as streams keep it: AMQP 1.0.
        filter_value: empty for none, or for that of the stream's filter property.
    """

    NAME = "message.publish"
    AT = At.WRITER
    NEEDS = Allowed(Right.WRITE)
    CHANGES = True

    message: bytes
    filter_value: bytes = b""


class Routed(msgspec.Struct, frozen=True):
    """A message is stored in so many streams."""

    streams: int


class PublishToExchange(OfHost[Routed], frozen=True, kw_only=True):
    """Publish a message to an exchange; as PublishMessage, in every stream that it leads to.

    Attributes:
        exchange: `amq.default` for the default one.
        keys: routing keys.
        headers: scalars among the message's headers, for exchanges that look at them.
    """

    NAME = "exchange.publish"
    NEEDS = Allowed(Right.WRITE, "exchange")
    CHANGES = True

    exchange: Name
    keys: tuple[str, ...]
    message: bytes
    filter_value: bytes = b""
    headers: dict[str, Scalar] = msgspec.field(default_factory=dict)

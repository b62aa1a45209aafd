"""Exchanges and bindings: where messages go that programs publish over AMQP."""

import hashlib
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from streamd.net.turns import in_turns
from streamd.operations.declaration import Allowed, Created, Enter, OfHost, Operation
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name
from streamd.operations.rights import Right

Answer = TypeVar("Answer")

_HASH_BYTES = 9

DEFAULT_EXCHANGE = Name("")
RESERVED_PREFIX = "amq."
NO_ALTERNATE = Name("")
ALTERNATE, SUPER_STREAM = "alternate-exchange", "x-super-stream"  # arguments of an exchange

Scalar: TypeAlias = int | float | str | bool | None
Headers: TypeAlias = Mapping[str, Scalar]
NO_HEADERS: Headers = MappingProxyType({})


class ExchangeType(StrEnum):
    """How an exchange routes."""

    DIRECT = "direct"
    FANOUT = "fanout"
    TOPIC = "topic"
    HEADERS = "headers"


class ExchangeRow(NamedTuple):
    """One exchange.

    Attributes:
        name: unique in its virtual host.
        type: how it routes, an ExchangeType.
        is_durable: it survives a restart.
        auto_delete: it goes when its last binding goes.
        is_internal: only other exchanges may send to it.
        alternate: the exchange that gets what this one routes nowhere; empty for none.
        is_super_stream: streams bound to it are partitions of a super stream, in their order.
    """

    virtual_host: Name
    name: Name
    type: str
    is_durable: bool
    auto_delete: bool
    is_internal: bool
    alternate: Name
    is_super_stream: bool = False


class Binding(NamedTuple):
    """One binding: from an exchange to a stream, or to another exchange.

    Attributes:
        destination: the name of the stream or exchange.
        key: a routing key, or the pattern of a topic exchange.
        arguments: the headers that must match; of a partition, its position.
        position: of a partition in its super stream, unique there; None for others.
    """

    virtual_host: Name
    source: Name
    destination: Name
    to_exchange: bool
    key: str
    arguments: Headers
    position: int | None = None


def arguments_text(arguments: Headers) -> str:
    """Arguments as one string; equal for equal ones, but 1, 1.0 and true are different."""
    return json.dumps(dict(arguments), sort_keys=True)


def properties_key(binding: Binding) -> str:
    """The routing key and a hash of the arguments: tells bindings between the same two ends apart.

    Source: rabbitmq/rabbitmq-server, deps/rabbitmq_management_agent/src/rabbit_mgmt_format.erl; the
    hash is our own.
    """
    key = quote(binding.key, safe="").replace("~", "%7E")
    if not binding.arguments:
        return key or "~"
    return f"{key}~{arguments_hash(binding.arguments)}"


def arguments_hash(arguments: Headers) -> str:
    """A short text that is equal for equal arguments; empty for none."""
    if not arguments:
        return ""
    raw = arguments_text(arguments).encode()
    digest = hashlib.blake2b(raw, digest_size=_HASH_BYTES).digest()
    return urlsafe_b64encode(digest).decode()


async def binding_with(bindings: list[Binding], key: str) -> Binding | None:
    """The binding with that properties_key, or the only one with that routing key.

    Args:
        bindings: those between two ends.
        key: see above.
    """
    async for binding in in_turns(bindings):
        if properties_key(binding) == key:
            return binding
    same_key = [binding for binding in bindings if binding.key == key]
    return same_key[0] if len(same_key) == 1 else None


def exchange_type(name: str) -> ExchangeType:
    """The exchange type of that name.

    Raises:
        Refused: it does not exist.
    """
    try:
        return ExchangeType(name)
    except ValueError:
        details = f"invalid exchange type '{name[:40]}'; there are {', '.join(ExchangeType)}"
        raise Refused(Reason.PRECONDITION_FAILED, details) from None


def as_super_stream(virtual_host: Name, name: Name) -> ExchangeRow:
    """A super stream as an exchange."""
    return ExchangeRow(
        virtual_host, name, ExchangeType.DIRECT, True, False, False, NO_ALTERNATE, True
    )


def could_be_super_stream(row: ExchangeRow) -> bool:
    """Whether an exchange has the properties that each super stream has."""
    return row._replace(is_super_stream=True) == as_super_stream(row.virtual_host, row.name)


def is_built_in(name: Name) -> bool:
    """Whether every virtual host has this exchange, in RabbitMQ if not here."""
    return name == DEFAULT_EXCHANGE or name.startswith(RESERVED_PREFIX)


class Exchange(msgspec.Struct, frozen=True):
    """An exchange, and how many bindings begin at it."""

    row: ExchangeRow
    bindings: int


class ListExchanges(Operation[list[Exchange]], frozen=True, kw_only=True):
    """Exchanges, super streams among them, of the virtual hosts that the user may look into.

    Attributes:
        vhost: of this one alone.
    """

    NAME = "exchange.list"

    vhost: Name | None = None


class ExchangeDetails(Exchange, frozen=True):
    """An exchange.

    Attributes:
        leading: bindings to it; the first ones.
        num_leading: how many there are.
        may_bind: the user may read it, and bind to it what it may write to.
        may_delete: the user may delete it.
    """

    leading: tuple[Binding, ...]
    num_leading: int
    may_bind: bool
    may_delete: bool


class GetExchange(OfHost[ExchangeDetails], frozen=True, kw_only=True):
    """An exchange."""

    NAME = "exchange.get"
    NEEDS = Enter()

    exchange: Name


class PutExchange(OfHost[Created], frozen=True, kw_only=True):
    """Declare an exchange; where it is known, it has to be the same.

    With an alternate exchange, the rights to read this one and to write to that one are needed,
    too.

    Attributes:
        type: an ExchangeType.
        alternate: gets what this one routes nowhere; empty for none.
        is_super_stream: None: where it is new, and has the properties of one.
    """

    NAME = "exchange.put"
    NEEDS = Allowed(Right.CONFIGURE, "exchange")
    CHANGES = True

    exchange: Name
    type: ExchangeType = ExchangeType.DIRECT
    is_durable: bool = True
    auto_delete: bool = False
    is_internal: bool = False
    alternate: Name = NO_ALTERNATE
    is_super_stream: bool | None = None


class DeleteExchange(OfHost[None], frozen=True, kw_only=True):
    """Delete an exchange, and its bindings.

    Attributes:
        if_unused: only if no binding begins at it.
    """

    NAME = "exchange.delete"
    NEEDS = Allowed(Right.CONFIGURE, "exchange")
    CHANGES = True

    exchange: Name
    if_unused: bool = False


class ListBindings(Operation[list[Binding]], frozen=True, kw_only=True):
    """Bindings, in the virtual hosts that the user may look into.

    Attributes:
        vhost: in this one alone.
        source: from this exchange alone.
        destination: to this one alone, which is an exchange with `to_exchange`, or else a stream.
        kept: only those that outlive a restart.
    """

    NAME = "binding.list"

    vhost: Name | None = None
    source: Name | None = None
    destination: Name | None = None
    to_exchange: bool = False
    kept: bool = False


class Bound(Created, frozen=True):
    """A binding as it is kept."""

    binding: Binding


class OfEnds(OfHost[Answer], Generic[Answer], frozen=True, kw_only=True):
    """An operation on what leads from an exchange to a stream or to another exchange.

    Attributes:
        source: the exchange.
        destination: the other one.
        to_exchange: the other one is an exchange.
    """

    NEEDS = (Allowed(Right.READ, "source"), Allowed(Right.WRITE, "destination"))
    CHANGES = True

    source: Name
    destination: Name
    to_exchange: bool = False


class Bind(OfEnds[Bound], frozen=True, kw_only=True):
    """Bind a stream or an exchange to an exchange.

    Attributes:
        key: a routing key, or the pattern of a topic exchange.
        arguments: see Binding.
    """

    NAME = "binding.put"

    key: str = ""
    arguments: dict[str, Scalar] = msgspec.field(default_factory=dict)


class Unbind(OfEnds[None], frozen=True, kw_only=True):
    """Remove a binding.

    Attributes:
        binding: its `properties_key`, or its routing key where it is the only one with that.
    """

    NAME = "binding.delete"

    binding: str


class ListWritable(OfHost[list[Name]], frozen=True, kw_only=True):
    """Which of some names the user may write to.

    Attributes:
        names: of streams and exchanges.
    """

    NAME = "names.writable"
    NEEDS = Enter()

    names: tuple[Name, ...]

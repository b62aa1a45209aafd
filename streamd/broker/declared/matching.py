"""Exchanges and bindings as rows, and which headers match. Plain functions over rows.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_exchange.erl,
deps/rabbit/src/rabbit_exchange_type_direct.erl, deps/rabbit/src/rabbit_exchange_type_fanout.erl,
deps/rabbit/src/rabbit_exchange_type_headers.erl and deps/rabbit/src/rabbit_exchange_type_topic.erl.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from streamd.operations.names import Name

Scalar: TypeAlias = int | float | str | bool | None
Headers: TypeAlias = Mapping[str, Scalar]
NO_HEADERS: Headers = MappingProxyType({})

MATCH = "x-match"  # an argument of a binding: all or any, with-x to look at x- headers too


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


def headers_match(wanted: Headers, headers: Headers) -> bool:
    """Whether all, or any, of the wanted headers are there and equal; None asks for presence."""
    mode = wanted.get(MATCH, "all")
    with_x = isinstance(mode, str) and mode.endswith("-with-x")
    tests = [
        name in headers and (value is None or _equal(value, headers[name]))
        for name, value in wanted.items()
        if name != MATCH and (with_x or not name.startswith("x-"))
    ]
    return any(tests) if isinstance(mode, str) and mode.startswith("any") else all(tests)


def _equal(one: Scalar, other: Scalar) -> bool:
    return one == other and isinstance(one, bool) is isinstance(other, bool)

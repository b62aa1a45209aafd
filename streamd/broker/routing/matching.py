"""Which bindings of an exchange a message follows. Plain functions over rows.

Source: rabbitmq/rabbitmq-server, rabbit_exchange.erl and rabbit_exchange_type_*.erl.
"""

import json
from collections.abc import Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from streamd.broker.names import Name

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
        virtual_host: where it is.
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
        virtual_host: where it is.
        source: the exchange.
        destination: the name of the stream or exchange.
        to_exchange: which of the two.
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


def follows(exchange_type: str, binding: Binding, keys: Collection[str], headers: Headers) -> bool:
    """Whether a message with these routing keys and headers follows a binding."""
    if exchange_type == ExchangeType.DIRECT:
        return binding.key in keys
    if exchange_type == ExchangeType.TOPIC:
        return any(topic_matches(binding.key, key) for key in keys)
    if exchange_type == ExchangeType.HEADERS:
        return headers_match(binding.arguments, headers)
    return True


def topic_matches(pattern: str, key: str) -> bool:
    """Whether a key's words, with dots between, match: `*` is one word, `#` any number of them."""
    words = key.split(".") if key else []
    parts = pattern.split(".") if pattern else []
    # Positions in the pattern that can be reached with the words so far: no pattern is slow.
    reached = _past_hashes({0}, parts)
    for word in words:
        following = {n + 1 for n in reached if n < len(parts) and parts[n] in ("*", word)}
        following |= {n for n in reached if n < len(parts) and parts[n] == "#"}
        reached = _past_hashes(following, parts)
    return len(parts) in reached


def _past_hashes(reached: set[int], parts: list[str]) -> set[int]:
    found = set(reached)
    for n in reached:
        at = n
        while at < len(parts) and parts[at] == "#":
            at += 1
            found.add(at)
    return found


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

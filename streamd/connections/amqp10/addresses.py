"""Where messages go, and where they come from: the addresses of links and of messages.

Names in an address are percent-encoded: what may stand in a part of a path as it is, may do so
here.

Source: RFC 3986, 3.3; rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_amqp_session.erl, for
version 2 of its addresses.
"""

import re
from typing import NamedTuple
from urllib.parse import unquote

from streamd.operations.names import Name, as_sent
from streamd.operations.routing import DEFAULT_EXCHANGE
from streamd.wire.amqp10.errors import Condition, LinkFault
from streamd.wire.amqp10.values import Exact

MANAGEMENT = "/management"

_QUEUES, _EXCHANGES = "/queues/", "/exchanges/"
_DEFAULT = "amq.default"  # no address: /queues/ is the way to the default exchange
_PART = re.compile(r"(?:[A-Za-z0-9!$&'()*+,\-.:;=@_~]|%[0-9A-Fa-f]{2})*")
_SHOWN = 100  # characters of an address


class Destination(NamedTuple):
    """Where messages go.

    Attributes:
        exchange: takes them.
        key: the routing key.
        queue: the address names this one, and no exchange; else None.
    """

    exchange: Name
    key: str
    queue: Name | None = None


def read_target(address: Exact) -> Destination | None:
    """Where the messages of a link go; None where each says it for itself, in `to`.

    Raises:
        LinkFault: there is no such form of address.
    """
    if address is None:
        return None
    found = _destination(address)
    if found is None:
        raise _refused("target", address, f"{_QUEUES}:queue, {_EXCHANGES}:exchange/:key or null")
    return found


def read_to(address: Exact) -> Destination:
    """Where a message of a link without an address goes.

    Raises:
        LinkFault: its `to` is missing, or there is no such form of address.
    """
    if address is None:
        text = "anonymous terminus requires 'to' address to be set"
        raise LinkFault(Condition.PRECONDITION_FAILED, text)
    found = _destination(address)
    if found is None:
        text = f"bad 'to' address string: {_shown(address)}"
        raise LinkFault(Condition.PRECONDITION_FAILED, text)
    return found


def read_source(address: Exact) -> Name:
    """The queue that a link reads.

    Raises:
        LinkFault: there is no such form of address.
    """
    name = _queue(address) if _is_text(address) else None
    if name is None:
        raise _refused("source", address, f"{_QUEUES}:queue")
    return name


def more_keys(value: Exact) -> tuple[str, ...]:
    """The further routing keys in a message's annotation x-cc.

    Raises:
        LinkFault: it is no list of strings.
    """
    if value is None:
        return ()
    if not isinstance(value, list) or not all(map(_is_text, value)):
        text = f"bad value for 'x-cc' message-annotation: {_shown(value)}; expected a list of texts"
        raise LinkFault(Condition.INVALID_FIELD, text)
    return tuple(value)


def decoded(part: str) -> str | None:
    """A part of a path without its percent encoding; None where it is none."""
    if not _PART.fullmatch(part):
        return None
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        return None


def _destination(address: Exact) -> Destination | None:
    if not _is_text(address):
        return None
    if address.startswith(_EXCHANGES):
        exchange, _, key = address.removeprefix(_EXCHANGES).partition("/")
        name, routing_key = decoded(exchange), decoded(key)
        if exchange == _DEFAULT or not name or routing_key is None:
            return None
        return Destination(as_sent(name), routing_key)
    queue = _queue(address)
    return None if queue is None else Destination(DEFAULT_EXCHANGE, queue, queue)


def _queue(address: str) -> Name | None:
    if not address.startswith(_QUEUES):
        return None
    name = decoded(address.removeprefix(_QUEUES))
    return as_sent(name) if name else None


def _is_text(value: Exact) -> bool:
    return type(value) is str  # no symbol, no character


def _refused(what: str, address: Exact, expected: str) -> LinkFault:
    reason = f"the {what} address is {_shown(address)}, expected {expected}"
    return LinkFault(Condition.INVALID_FIELD, f"Attach refused: {reason}, percent-encoded")


def _shown(value: Exact) -> str:
    return str(value)[:_SHOWN] if _is_text(value) else repr(value)[:_SHOWN]

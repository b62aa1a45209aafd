"""The arguments of a queue: from tagged values to the arguments of a stream.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_amqqueue.erl and
deps/rabbit/src/rabbit_stream_queue.erl. Error texts are RabbitMQ's where its test suites check
them.
"""

from collections.abc import Iterator
from typing import NoReturn

from segments.format_constants import MAX_FILTER_SIZE, MIN_FILTER_SIZE
from streamd.operations.argument_kinds import AUTO, AmqpType
from streamd.operations.arguments import (
    ARGUMENTS,
    Argument,
    Arguments,
    read_argument,
    read_arguments,
)
from streamd.operations.errors import Refused
from streamd.wire.amqp091.errors import precondition_failed
from streamd.wire.amqp091.values import INTEGER_TAGS, Field, Table

QUEUE_TYPE = "x-queue-type"
STREAM = "stream"
PREFIX = "x-"
_OURS = (f"{PREFIX}stream-", f"{PREFIX}max-")
_FOREIGN = frozenset(
    PREFIX + name
    for name in (
        *("expires", "message-ttl", "dead-letter-exchange", "dead-letter-routing-key"),
        *("dead-letter-strategy", "max-length", "max-priority", "overflow", "queue-mode"),
        *("queue-version", "single-active-consumer", "queue-master-locator"),
        *("max-in-memory-length", "max-in-memory-bytes", "quorum-initial-group-size"),
        *("member-placement-tag", "delivery-limit", "consumer-timeout"),
        *("consumer-disconnected-timeout", "delayed-retry-type", "delayed-retry-min"),
        "delayed-retry-max",
    )
)


class Declaration:
    """The arguments of one queue.declare."""

    def __init__(self, name: str, virtual_host: str, arguments: Table) -> None:
        self._name = name
        self._virtual_host = virtual_host
        self._arguments = arguments

    def check_type(self, default: str) -> None:
        """Raise ChannelFault unless the queue is to be a stream.

        Args:
            default: the type of a queue that is declared without one.
        """
        field = self._arguments.get(QUEUE_TYPE)
        if field is not None and field.tag != "S":
            self._refuse(QUEUE_TYPE, "expected a string")
        kind = field.value.decode(errors="replace") if field is not None else ""
        if kind in ("", "undefined"):
            kind = default
        if kind != STREAM:
            raise precondition_failed(
                f"queue '{self._name}' in vhost '{self._virtual_host}' would be of type "
                f"'{kind[:40]}': there are streams only; declare it durable, with the argument "
                f"{QUEUE_TYPE}={STREAM}"
            )

    def pairs(self) -> list[tuple[str, str]]:
        """The arguments as a stream is created with.

        Raises:
            ChannelFault: one is of the wrong type, or belongs to other kinds of queues.
        """
        pairs = list(self._own())
        for key in self._arguments:
            if key in _FOREIGN:
                where = f"for queue '{self._name}' in vhost '{self._virtual_host}'"
                reason = f"invalid arg '{key}' {where} of queue type rabbit_stream_queue"
                raise precondition_failed(reason)
        return pairs

    def passed_over(self) -> list[str]:
        """Arguments that look like ours but are not, as when they are misspelt."""
        return [
            key
            for key in self._arguments
            if key.startswith(_OURS) and key.removeprefix(PREFIX) not in ARGUMENTS
        ]

    def canonical(self) -> Arguments:
        """The arguments as the catalog has them.

        Raises:
            ChannelFault: one cannot be used.
        """
        pairs = self.pairs()
        for pair in pairs:
            try:
                read_argument(*pair)
            except Refused as refused:
                self._refuse(PREFIX + pair[0], refused.details)
        try:
            return read_arguments(pairs)
        except Refused as refused:
            raise precondition_failed(refused.details) from refused

    def _own(self) -> Iterator[tuple[str, str]]:
        for key, field in self._arguments.items():
            argument = ARGUMENTS.get(key.removeprefix(PREFIX))
            if argument is not None and key.startswith(PREFIX):
                yield argument.name, self._read(argument, key, field)

    def _read(self, argument: Argument, key: str, field: Field) -> str:
        match argument.kind.amqp:
            case AmqpType.INTEGER:
                return str(self._integer(key, field))
            case AmqpType.INTEGER_OR_AUTO:
                return self._filter_size(key, field)
            case AmqpType.FLAG:
                return self._flag(key, field)
            case AmqpType.RATE:
                return self._rate(key, field)
        return self._text(key, field)

    def _text(self, key: str, field: Field) -> str:
        if field.tag != "S":
            self._refuse(key, f"expected a string, not a value of type {field.tag}")
        text: str = field.value.decode(errors="replace")
        return text

    def _integer(self, key: str, field: Field) -> int:
        if field.tag not in INTEGER_TAGS:
            self._refuse(key, f"expected an integer, not a value of type {field.tag}")
        number: int = field.value
        if number < 0:
            self._refuse(key, f"expected an integer of at least 0, not {number}")
        return number

    def _flag(self, key: str, field: Field) -> str:
        return str(field.value).lower() if field.tag == "t" else self._text(key, field)

    def _filter_size(self, key: str, field: Field) -> str:
        if field.tag == "S" and field.value == AUTO.encode():
            return AUTO
        size = self._integer(key, field)
        if not MIN_FILTER_SIZE <= size <= MAX_FILTER_SIZE:
            raise precondition_failed(f"Invalid value for {key}")
        return str(size)

    def _rate(self, key: str, field: Field) -> str:
        # Not every client can send a double: pika sends none, aio-pika a float of 32 bits.
        return f"{field.value:.6g}" if field.tag in "fd" else self._text(key, field)

    def _refuse(self, key: str, reason: str) -> NoReturn:
        where = f"for queue '{self._name}' in vhost '{self._virtual_host}'"
        raise precondition_failed(f"invalid arg '{key}' {where}: {reason}")


def inequivalent(name: str, virtual_host: str, wanted: Arguments, current: Arguments) -> str | None:
    """The sentence about the first argument that differs; None when all are equal."""
    for key in sorted({*wanted, *current}):
        received, known = wanted.get(key), current.get(key)
        if received != known:
            return (
                f"inequivalent arg '{PREFIX}{key}' for queue '{name}' in vhost '{virtual_host}': "
                f"received {_shown(received)} but current is {_shown(known)}"
            )
    return None


def _shown(value: object) -> str:
    return "none" if value is None else f"the value '{value}'"

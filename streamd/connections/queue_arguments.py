"""The arguments of a queue: from the values that AMQP has to the arguments of a stream.

A value is a str, int, bool or float; whatever else a version of AMQP has stands for itself, and is
no value of an argument.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_amqqueue.erl and
deps/rabbit/src/rabbit_stream_queue.erl. Error texts are RabbitMQ's where its test suites check
them.
"""

from collections.abc import Iterator, Mapping
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
from streamd.operations.errors import Reason, Refused

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

_TYPES = {str: "string", bool: "boolean", int: "integer", float: "float"}


class BadArgument(Refused):
    """An argument that a stream does not have, or not with this value."""

    def __init__(self, details: str) -> None:
        super().__init__(Reason.PRECONDITION_FAILED, details)


class Declaration:
    """The arguments of a queue that is declared."""

    def __init__(self, name: str, virtual_host: str, arguments: Mapping[str, object]) -> None:
        self._name = name
        self._virtual_host = virtual_host
        self._arguments = arguments

    def check_type(self, default: str) -> None:
        """Raise Refused unless the queue is to be a stream.

        Args:
            default: the type of a queue that is declared without one.
        """
        kind = self._text(QUEUE_TYPE, self._arguments.get(QUEUE_TYPE, ""))
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
            Refused: one is of the wrong type, or belongs to other kinds of queues.
        """
        pairs = list(self._own())
        for key in self._arguments:
            if key in _FOREIGN:
                where = f"for queue '{self._name}' in vhost '{self._virtual_host}'"
                reason = f"invalid arg '{key}' {where} of queue type rabbit_stream_queue"
                raise BadArgument(reason)
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
            Refused: one cannot be used.
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
        for key, value in self._arguments.items():
            argument = ARGUMENTS.get(key.removeprefix(PREFIX))
            if argument is not None and key.startswith(PREFIX):
                yield argument.name, self._read(argument, key, value)

    def _read(self, argument: Argument, key: str, value: object) -> str:
        match argument.kind.amqp:
            case AmqpType.INTEGER:
                return str(self._integer(key, value))
            case AmqpType.INTEGER_OR_AUTO:
                return self._filter_size(key, value)
            case AmqpType.FLAG:
                return self._flag(key, value)
            case AmqpType.RATE:
                return self._rate(key, value)
        return self._text(key, value)

    def _text(self, key: str, value: object) -> str:
        if not isinstance(value, str):
            self._refuse(key, f"expected a string, not a value of type {_type_of(value)}")
        return value

    def _integer(self, key: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            self._refuse(key, f"expected an integer, not a value of type {_type_of(value)}")
        if value < 0:
            self._refuse(key, f"expected an integer of at least 0, not {value}")
        return value

    def _flag(self, key: str, value: object) -> str:
        return str(value).lower() if isinstance(value, bool) else self._text(key, value)

    def _filter_size(self, key: str, value: object) -> str:
        if value == AUTO:
            return AUTO
        size = self._integer(key, value)
        if not MIN_FILTER_SIZE <= size <= MAX_FILTER_SIZE:
            raise precondition_failed(f"Invalid value for {key}")
        return str(size)

    def _rate(self, key: str, value: object) -> str:
        # Not every client can send a double: pika sends none, aio-pika a float of 32 bits.
        return f"{value:.6g}" if isinstance(value, float) else self._text(key, value)

    def _refuse(self, key: str, reason: str) -> NoReturn:
        where = f"for queue '{self._name}' in vhost '{self._virtual_host}'"
        raise BadArgument(f"invalid arg '{key}' {where}: {reason}")


def precondition_failed(details: str) -> Refused:
    """What is told of something that cannot be declared."""
    return Refused(Reason.PRECONDITION_FAILED, details)


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


def _type_of(value: object) -> str:
    return next((name for kind, name in _TYPES.items() if isinstance(value, kind)), "another one")

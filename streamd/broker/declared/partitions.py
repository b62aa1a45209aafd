"""A super stream as its partitions: streams in an order, with the routing keys that lead to them.

To AMQP a super stream is a direct exchange and its partitions are bindings. That is how they are
kept, see exchanges.py; here are the rules for bindings of a super stream. Plain functions.
"""

from collections.abc import Iterable, Sequence

from streamd.broker.declared.checks import (
    check_number,
    check_stream_name,
    checked_key,
)
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name
from streamd.operations.routing import Binding, Headers
from streamd.operations.streams import MAX_PARTITIONS, Partition, SuperStreamRow

ORDER = "x-stream-partition-order"  # an argument of a binding: the position of the partition
_MAX_ORDER = (1 << 31) - 1


def new_super_stream(
    virtual_host: Name, name: Name, keys: Iterable[tuple[str, Name]]
) -> SuperStreamRow:
    """A super stream with all its partitions.

    Args:
        virtual_host: where it is.
        name: of the super stream.
        keys: routing key and partition, in order.

    Raises:
        Refused: bad names or keys, too many partitions, or the same one twice.
    """
    keys = list(keys)
    check_number(len(keys))
    for new in (name, *(stream for _, stream in keys)):
        check_stream_name(new)
    found = [Partition(checked_key(key), stream, n) for n, (key, stream) in enumerate(keys)]
    row = SuperStreamRow(virtual_host, name, tuple(found))
    if len(set(partitions_of(row))) != len(found):
        details = "a super stream has a partition twice, expected each once"
        raise Refused(Reason.PRECONDITION_FAILED, details)
    return row


def partitions_of(row: SuperStreamRow) -> list[Name]:
    """The partitions of a super stream, in their order; one with two keys appears twice."""
    return [partition.stream for partition in row.partitions]


def bindings_of(row: SuperStreamRow) -> list[Binding]:
    """The partitions of a super stream as bindings."""
    host, name, partitions = row
    return [partition_binding(host, name, stream, key, n) for key, stream, n in partitions]


def partition_binding(
    virtual_host: Name, super_stream: Name, stream: Name, key: str, position: int
) -> Binding:
    """A partition as a binding."""
    return Binding(virtual_host, super_stream, stream, False, key, {ORDER: position}, position)


def placed(wanted: Binding, known: Binding | None, others: Sequence[Binding]) -> Binding:
    """A binding to a new partition, or to one whose position changes.

    Without an order, or with one that is taken, the partition comes last. A stream that is a
    partition already keeps its position when there is no order.

    Args:
        wanted: the order is in its arguments.
        known: the same partition under the same key, if it is one already.
        others: the super stream's other partitions.

    Raises:
        Refused: too many partitions, or a bad key or order.
    """
    position = _order(wanted.arguments)
    if len(others) >= MAX_PARTITIONS:
        details = f"{wanted.source} has {MAX_PARTITIONS} partitions, the most there can be"
        raise Refused(Reason.PRECONDITION_FAILED, details)
    if position is None and known is not None:
        return known
    taken = {other.position for other in others if other.position is not None}
    if position is None or position in taken:
        position = max(taken, default=-1) + 1
    host, source, stream, _, key, _, _ = wanted
    return partition_binding(host, source, stream, checked_key(key), position)


def _order(arguments: Headers) -> int | None:
    order = arguments.get(ORDER)
    if order is None:
        return None
    try:
        number = int(order)
    except (ValueError, OverflowError):
        number = _MAX_ORDER + 1
    if number > _MAX_ORDER:
        details = f"{ORDER} is {str(order)[:40]!r}, expected a number from 0 to {_MAX_ORDER:,}"
        raise Refused(Reason.PRECONDITION_FAILED, details)
    return max(0, number)

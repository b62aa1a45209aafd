"""The super streams of one virtual host, and how they change partition by partition.

To AMQP a super stream is an exchange and its partitions are bindings. That side is `Exchanges`,
which comes here in the turn of a change.
"""

import logging
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from streamd.broker.catalog_rows import Binding, SuperStreamRow
from streamd.broker.catalog_writer import Turn
from streamd.broker.checks import MAX_PARTITIONS, check_number, checked_key, checked_name
from streamd.broker.errors import Reason, Refused
from streamd.broker.groups import NO_PARTITION
from streamd.broker.routing.matching import Headers, RouteRow

if TYPE_CHECKING:
    from streamd.broker.virtual_host import VirtualHost

logger = logging.getLogger(__name__)

ORDER = "x-stream-partition-order"  # an argument of a binding: the place of the partition
_MAX_ORDER = (1 << 31) - 1


class SuperStreams:
    """Found, declared, bound, dropped.

    Args:
        host: the virtual host.
    """

    def __init__(self, host: "VirtualHost") -> None:
        self._host = host
        self._rows: dict[str, SuperStreamRow] = {}

    # -- finding

    def __contains__(self, name: str) -> bool:
        """Whether there is a super stream of that name."""
        return name in self._rows

    def __len__(self) -> int:
        """How many there are."""
        return len(self._rows)

    def rows(self) -> list[SuperStreamRow]:
        """All of them, by name."""
        return sorted(self._rows.values())

    def find(self, name: str) -> SuperStreamRow:
        """The super stream `name`.

        Raises:
            Refused: there is none.
        """
        found = self._rows.get(name)
        if found is None:
            raise Refused(Reason.NOT_FOUND, name)
        return found

    def partition_number(self, name: str, stream: str) -> int:
        """The place of a stream in a super stream; NO_PARTITION where it has none."""
        row = self._rows.get(name)
        partitions = partitions_of(row) if row else []
        return partitions.index(stream) if stream in partitions else NO_PARTITION

    def routes_from(self, name: str) -> list[RouteRow]:
        """The partitions of a super stream as bindings; none where there is no such thing."""
        row = self._rows.get(name)
        return [_as_route(row, binding) for binding in row.bindings] if row else []

    def num_partitions(self) -> int:
        """Of all super streams together."""
        return sum(len(row.bindings) for row in self._rows.values())

    # -- changing

    def add(self, row: SuperStreamRow) -> None:
        """Take one that the catalog has."""
        self._rows[row.name] = row
        self._host.exchanges.changed()

    async def declare(self, turn: Turn, name: str) -> None:
        """Add one that has no partitions yet.

        Raises:
            Refused: bad name, or the disk refused.
        """
        await self._put(turn, SuperStreamRow(self._host.name, checked_name(name), ()))

    async def bind(self, turn: Turn, route: RouteRow) -> RouteRow:
        """Make a stream a partition; without an order, or with one that is taken, the last.

        One that is a partition already stays in its place when there is no order.

        Returns:
            The binding as it is now, with its order.

        Raises:
            Refused: too many partitions, a bad key or order, or the disk refused.
        """
        row = self.find(route.source)
        order = _order(route.arguments)
        others = _without(row, route)
        if len(others) >= MAX_PARTITIONS:
            details = f"{row.name} has {MAX_PARTITIONS} partitions, the most there can be"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        if len(others) == len(row.bindings):
            self._host.exchanges.check_room_for_routes(1)
        elif order is None:
            (order,) = (known.order for known in row.bindings if known not in others)
        taken = {known.order for known in others}
        if order is None or order in taken:
            order = max(taken, default=-1) + 1
        binding = Binding(checked_key(route.key), route.destination, order)
        bindings = sorted([*others, binding], key=lambda b: b.order)
        await self._put(turn, row._replace(bindings=tuple(bindings)))
        return _as_route(row, binding)

    async def unbind(self, turn: Turn, route: RouteRow) -> None:
        """Have a stream be no partition any more, where it is one.

        Raises:
            Refused: the disk refused.
        """
        row = self.find(route.source)
        others = _without(row, route)
        if others != row.bindings:
            await self._put(turn, row._replace(bindings=others))

    async def drop(self, turn: Turn, name: str) -> None:
        """Remove one and leave the streams that were its partitions.

        Raises:
            Refused: the disk refused.
        """
        host = self._host.name
        await turn.commit(lambda catalog: catalog.remove_super_stream(host, name))
        self.forget((), name)
        logger.info("removed super stream %s, its streams stay", name)

    async def _put(self, turn: Turn, row: SuperStreamRow) -> None:
        await turn.commit(lambda catalog: catalog.put_super_stream(row))
        self.add(row)

    def forget(self, streams: Collection[str], name: str | None = None) -> None:
        """Streams are gone, and a super stream, in the catalog too."""
        if name is not None:
            del self._rows[name]
        for row in self._rows.values():
            left = tuple(binding for binding in row.bindings if binding.stream not in streams)
            self._rows[row.name] = row._replace(bindings=left)
        self._host.exchanges.forget_streams(streams, name)

    def clear(self) -> None:
        """The virtual host is gone."""
        self._rows.clear()


def new_super_stream(
    virtual_host: str, name: str, routes: Iterable[tuple[str, str]]
) -> SuperStreamRow:
    """A super stream with all its partitions.

    Args:
        virtual_host: where.
        name: of the super stream.
        routes: routing key and partition, in order.

    Raises:
        Refused: bad names or keys, too many partitions or one twice.
    """
    routes = list(routes)
    check_number(len(routes))
    bindings = [Binding(checked_key(key), checked_name(s), n) for n, (key, s) in enumerate(routes)]
    row = SuperStreamRow(virtual_host, checked_name(name), tuple(bindings))
    if len(set(partitions_of(row))) != len(bindings):
        details = "a super stream has a partition twice, expected each once"
        raise Refused(Reason.PRECONDITION_FAILED, details)
    return row


def partitions_of(row: SuperStreamRow) -> list[str]:
    """The partitions of a super stream, in their order."""
    return [binding.stream for binding in row.bindings]


def _as_route(row: SuperStreamRow, binding: Binding) -> RouteRow:
    arguments = {ORDER: binding.order}
    return RouteRow(row.virtual_host, row.name, binding.stream, False, binding.key, arguments)


def _without(row: SuperStreamRow, route: RouteRow) -> tuple[Binding, ...]:
    """The other bindings: key and stream are what tells them apart."""
    this = (route.key, route.destination)
    return tuple(known for known in row.bindings if known[:2] != this)


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

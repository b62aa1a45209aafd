"""The exchanges of one virtual host, their bindings, and where a message goes.

A super stream is a durable direct exchange, its partitions are its bindings, in their order. Every
virtual host has the default exchange, which leads to each stream by its name, and five of
RabbitMQ's.
"""

import logging
from collections.abc import Collection, Iterable
from typing import TypeAlias

from streamd.broker.catalog.transaction import Transaction
from streamd.broker.catalog.writer import CatalogWriter, Check, permitted
from streamd.broker.declared.checks import check_stream_name, checked_key
from streamd.broker.declared.partitions import placed
from streamd.broker.routing.binding_index import BindingIndex
from streamd.broker.routing.rules import (
    check_arguments,
    check_names,
    check_not_default,
    check_not_reserved,
    check_same,
)
from streamd.broker.streams.stream_table import StreamTable
from streamd.net.turns import Steps
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name, as_sent
from streamd.operations.routing import (
    DEFAULT_EXCHANGE,
    NO_ALTERNATE,
    NO_HEADERS,
    Binding,
    ExchangeRow,
    ExchangeType,
    Headers,
    arguments_text,
    could_be_super_stream,
)

logger = logging.getLogger(__name__)

_BUILT_IN = (
    (Name("amq.direct"), ExchangeType.DIRECT),
    (Name("amq.fanout"), ExchangeType.FANOUT),
    (Name("amq.topic"), ExchangeType.TOPIC),
    (Name("amq.headers"), ExchangeType.HEADERS),
    (Name("amq.match"), ExchangeType.HEADERS),
)
MAX_EXCHANGES = 10_000  # of a virtual host, super streams included
MAX_BINDINGS = 100_000  # of all of them
_MAX_BINDINGS_FROM_ONE = 10_000
_EXCHANGES_A_STEP = 100

_Identity: TypeAlias = tuple[Name, bool, str, str]


class Exchanges:
    """The exchanges of one virtual host and their bindings.

    Args:
        catalog: changes the catalog.

    Attributes:
        version: differs after every change to where messages may go; streams included.
    """

    def __init__(self, virtual_host: Name, streams: StreamTable, catalog: CatalogWriter) -> None:
        self.version = 0
        self._virtual_host = virtual_host
        self._streams = streams
        self._catalog = catalog
        self._bindings: dict[Name, dict[_Identity, Binding]] = {}
        self._indexes: dict[Name, BindingIndex] = {}  # of exchanges that messages came to
        self._rows: dict[Name, ExchangeRow] = self._built_in()

    def _built_in(self) -> dict[Name, ExchangeRow]:
        return {
            name: ExchangeRow(self._virtual_host, name, kind, True, False, False, NO_ALTERNATE)
            for name, kind in _BUILT_IN
        }

    def follow(self, rows: Iterable[ExchangeRow], bindings: Iterable[Binding]) -> None:
        """Have what the server has that writes, and nothing else."""
        self._rows, self._bindings = self._built_in(), {}
        self.load(rows, bindings)

    def load(self, rows: Iterable[ExchangeRow], bindings: Iterable[Binding]) -> None:
        """Load what the catalog has; partitions in their order."""
        self._rows |= {row.name: row for row in rows}
        for binding in bindings:
            # Older versions left bindings to super streams that were deleted.
            if not binding.to_exchange or self.has(binding.destination):
                self._bindings.setdefault(binding.source, {})[self._identity(binding)] = binding
        self._indexes.clear()
        self.note_change()

    def note_change(self) -> None:
        """Messages may go elsewhere from now on."""
        self.version += 1

    def _rewire(self, *sources: Name) -> None:
        """The bindings of some exchanges have changed."""
        for source in sources:
            self._indexes.pop(source, None)
        self.note_change()

    # -- finding

    def find(self, name: Name) -> ExchangeRow:
        """The exchange of that name.

        Raises:
            Refused: it does not exist.
        """
        row = self._rows.get(name)
        if row is not None:
            return row
        host = self._virtual_host
        if name == DEFAULT_EXCHANGE:
            return ExchangeRow(host, name, ExchangeType.DIRECT, True, False, False, NO_ALTERNATE)
        raise Refused(Reason.NOT_FOUND, f"no exchange '{name}' in vhost '{host}'")

    def has(self, name: Name) -> bool:
        """Whether there is an exchange of that name."""
        return name in self._rows or name == DEFAULT_EXCHANGE

    def is_super_stream(self, name: Name) -> bool:
        """Whether there is a super stream of that name."""
        row = self._rows.get(name)
        return row is not None and row.is_super_stream

    def rows(self) -> list[ExchangeRow]:
        """All of them by name, the default exchange and super streams included."""
        return [self.find(name) for name in sorted([DEFAULT_EXCHANGE, *self._rows])]

    def num_exchanges(self) -> int:
        """How many there are, not counting the default exchange."""
        return len(self._rows)

    def bindings_from(self, name: Name) -> list[Binding]:
        """The bindings of an exchange; partitions in their order, before others."""
        if name == DEFAULT_EXCHANGE:
            host = self._virtual_host
            return [Binding(host, name, s, False, s, NO_HEADERS) for s in self._streams.names()]
        return list(self._bindings.get(name, {}).values())

    def has_binding(self, wanted: Binding) -> bool:
        """Whether there is this binding; of a partition, whatever its order."""
        return self._identity(wanted) in self._bindings.get(wanted.source, {})

    def reach(self, name: Name, keys: Collection[str], headers: Headers) -> Steps[list[Name]]:
        """Find the streams that a message published to an exchange goes to, each once.

        Bindings that are made or removed between two steps may count or not.

        Raises:
            Refused: there is no such exchange.
        """
        if name == DEFAULT_EXCHANGE:
            return [as_sent(key) for key in dict.fromkeys(keys)]
        self.find(name)
        keys = dict.fromkeys(keys)
        found: dict[Name, None] = {}
        seen: set[Name] = set()
        waiting = [name]
        while waiting:
            current = waiting.pop()
            if current in seen:
                continue
            seen.add(current)
            followed = yield from self._index(current).followed(keys, headers)
            found.update(dict.fromkeys(b.destination for b in followed if not b.to_exchange))
            waiting += [b.destination for b in followed if b.to_exchange]
            row = self._rows.get(current)
            if not followed and row is not None and row.alternate:
                waiting.append(row.alternate)
            if len(seen) % _EXCHANGES_A_STEP == 0:
                yield
        return list(found)

    def looks_at_headers(self, name: Name) -> bool:
        """Whether more than the routing key decides where a message goes."""
        row = self._rows.get(name)
        if row is not None and (row.alternate or row.type == ExchangeType.HEADERS):
            return True
        return name != DEFAULT_EXCHANGE and self._index(name).leads_to_exchanges

    def _index(self, name: Name) -> BindingIndex:
        index = self._indexes.get(name)
        if index is None:
            row = self._rows.get(name)
            exchange_type = row.type if row is not None else ExchangeType.DIRECT
            index = BindingIndex(exchange_type, self.bindings_from(name))
            self._indexes[name] = index
        return index

    # -- exchanges

    async def declare(
        self, row: ExchangeRow, check: Check = permitted, *, super_stream: bool | None = None
    ) -> bool:
        """Add an exchange; if it exists, it must be the same.

        Args:
            row: the exchange.
            check: see CatalogWriter.turn.
            super_stream: whether it is to be a super stream, if it can be one; None when not
                stated: a new exchange is not one then, an existing one stays what it is.

        Returns:
            Whether it is new.

        Raises:
            Refused: it exists and differs, its name is reserved, there are too many, or the disk
                refused.
        """
        is_super_stream = bool(super_stream) and could_be_super_stream(row)
        row = row._replace(is_super_stream=is_super_stream)
        async with self._catalog.turn(self._streams.while_there(check)) as turn:
            check_not_default(row.name)
            if self.has(row.name):
                self._check_same(row, is_said=super_stream is not None)
                return False
            check_not_reserved(row.name)
            check_names(row)
            self.check_room()
            if is_super_stream:
                check_stream_name(row.name)
            turn.check_writable()
            if row.is_durable:
                await turn.commit(lambda catalog: catalog.add_exchange(row))
            self.add(row)
            return True

    def _check_same(self, row: ExchangeRow, *, is_said: bool) -> None:
        known = self._rows[row.name]
        if not is_said or not could_be_super_stream(row):
            row = row._replace(is_super_stream=known.is_super_stream)
        check_same(known, row)

    def add(self, row: ExchangeRow, bindings: Iterable[Binding] = ()) -> None:
        """Add an exchange with its bindings; if it is durable, the catalog has it already."""
        self._rows[row.name] = row
        for binding in bindings:
            self._bindings.setdefault(row.name, {})[self._identity(binding)] = binding
        self._rewire(row.name)

    def check_room(self) -> None:
        """Raise Refused when there cannot be another exchange or super stream."""
        if self.num_exchanges() >= MAX_EXCHANGES:
            details = f"there are {MAX_EXCHANGES:,} exchanges, the limit of a virtual host"
            raise Refused(Reason.PRECONDITION_FAILED, details)

    def check_room_for_bindings(self, wanted: int) -> None:
        """Raise Refused when there cannot be so many more bindings."""
        if sum(map(len, self._bindings.values())) + wanted > MAX_BINDINGS:
            details = (
                f"there would be more than {MAX_BINDINGS:,} bindings, the limit of a virtual host"
            )
            raise Refused(Reason.PRECONDITION_FAILED, details)

    async def delete(
        self, name: Name, check: Check = permitted, *, if_unused: bool = False
    ) -> None:
        """Remove an exchange with its bindings, if it exists.

        The streams of a super stream stay.

        Raises:
            Refused: it is in use, belongs to every virtual host, or the disk refused.
        """
        async with self._catalog.turn(self._streams.while_there(check)) as turn:
            check_not_default(name)
            check_not_reserved(name)
            if if_unused and self.bindings_from(name):
                details = f"exchange '{name}' in vhost '{self._virtual_host}' in use"
                raise Refused(Reason.PRECONDITION_FAILED, details)
            if name not in self._rows:
                return
            if self.is_super_stream(name):
                logger.info("removing super stream %s, its streams stay", name)
            gone = [name, *self.emptied(exchanges=[name])]
            await turn.commit(lambda catalog: self.remove_rows(catalog, gone))
            self.forget(gone)

    def emptied(
        self, streams: Collection[Name] = (), exchanges: Collection[Name] = ()
    ) -> list[Name]:
        """The auto-delete exchanges that lose their last binding when others go.

        An exchange that goes takes the bindings that lead to it away, so it can be the last
        destination of another one.

        Args:
            streams: that go.
            exchanges: that go; they are not in the answer.
        """
        left: dict[Name, int] = {}
        leading: dict[tuple[Name, bool], list[Name]] = {}
        for source, bindings in self._bindings.items():
            if bindings and source not in exchanges and self._rows[source].auto_delete:
                left[source] = len(bindings)
                for binding in bindings.values():
                    end = (binding.destination, binding.to_exchange)
                    leading.setdefault(end, []).append(source)
        found: list[Name] = []
        going = [(name, False) for name in streams] + [(name, True) for name in exchanges]
        while going:
            for source in leading.pop(going.pop(), ()):
                left[source] -= 1
                if not left[source]:
                    found.append(source)
                    going.append((source, True))
        return found

    def remove_rows(self, catalog: Transaction, names: Iterable[Name]) -> None:
        """Remove exchanges from the catalog, with the bindings from them and to them."""
        for name in names:
            catalog.remove_exchange(self._virtual_host, name)

    def forget(self, names: Collection[Name]) -> None:
        """Drop exchanges, and the bindings from them and to them; the catalog has them no more."""
        for name in names:
            self._rows.pop(name, None)
            self._bindings.pop(name, None)
        self._drop_bindings_to(set(names), to_exchange=True)
        self._rewire(*names)

    # -- bindings

    async def bind(self, wanted: Binding, check: Check = permitted) -> Binding:
        """Add a binding; an existing one stays. A stream bound to a super stream is a partition.

        Returns:
            The binding as it is kept, for a partition with its order.

        Raises:
            Refused: one of its ends is missing or may not be bound, it has bad arguments, there
                are too many, or the disk refused.
        """
        async with self._catalog.turn(self._streams.while_there(check)) as turn:
            self._check_ends(wanted)
            known = self._bindings.get(wanted.source, {}).get(self._identity(wanted))
            if self._is_partition(wanted):
                binding = self._placed(wanted, known)
            else:
                binding = known or self._checked(wanted)
            if binding == known:
                return binding
            turn.check_writable()
            if self.is_kept(binding):
                await turn.commit(lambda catalog: catalog.put_binding(binding))
            self._put(binding)
            return binding

    def _placed(self, wanted: Binding, known: Binding | None) -> Binding:
        partitions = [b for b in self.bindings_from(wanted.source) if b.position is not None]
        binding = placed(wanted, known, [b for b in partitions if b != known])
        if known is None:
            self.check_room_for_bindings(1)
        return binding

    def _checked(self, wanted: Binding) -> Binding:
        if len(self._bindings.get(wanted.source, ())) >= _MAX_BINDINGS_FROM_ONE:
            most = f"{_MAX_BINDINGS_FROM_ONE:,} bindings, the most there can be"
            raise Refused(Reason.PRECONDITION_FAILED, f"{wanted.source} has {most}")
        checked_key(wanted.key)
        check_arguments(wanted)
        self.check_room_for_bindings(1)
        return wanted

    def _put(self, binding: Binding) -> None:
        bindings = self._bindings.setdefault(binding.source, {})
        bindings[self._identity(binding)] = binding
        if binding.position is not None:
            ordered = sorted(bindings.items(), key=lambda item: _place(item[1]))
            self._bindings[binding.source] = dict(ordered)
        self._rewire(binding.source)

    async def unbind(self, wanted: Binding, check: Check = permitted) -> None:
        """Remove the binding between these ends, if it exists.

        Raises:
            Refused: one of its ends is missing or cannot be unbound, or the disk refused.
        """
        async with self._catalog.turn(self._streams.while_there(check)) as turn:
            self._check_ends(wanted)
            source, identity = wanted.source, self._identity(wanted)
            bindings = self._bindings.get(source, {})
            if identity not in bindings:
                return
            binding = bindings[identity]
            is_last = len(bindings) == 1 and self._rows[source].auto_delete
            emptied = [source, *self.emptied(exchanges=[source])] if is_last else []

            def remove(catalog: Transaction) -> None:
                catalog.remove_binding(binding)
                self.remove_rows(catalog, emptied)

            await turn.commit(remove)
            del bindings[identity]
            self._rewire(source)
            self.forget(emptied)

    def _check_ends(self, binding: Binding) -> None:
        check_not_default(binding.source)
        self.find(binding.source)
        if binding.to_exchange:
            check_not_default(binding.destination)
            self.find(binding.destination)
        elif binding.destination not in self._streams:
            details = f"no queue '{binding.destination}' in vhost '{self._virtual_host}'"
            raise Refused(Reason.NOT_FOUND, details)

    def _is_partition(self, binding: Binding) -> bool:
        return not binding.to_exchange and self.is_super_stream(binding.source)

    def _identity(self, binding: Binding) -> _Identity:
        """Tells the bindings of one exchange apart; a partition may have another order."""
        arguments = "" if self._is_partition(binding) else arguments_text(binding.arguments)
        return binding.destination, binding.to_exchange, binding.key, arguments

    def is_kept(self, binding: Binding) -> bool:
        """Whether a binding survives a restart: both its ends are there, and do."""
        ends = [binding.source, *([binding.destination] if binding.to_exchange else [])]
        rows = map(self._rows.get, ends)
        return all(row is not None and row.is_durable for row in rows)

    def forget_streams(self, names: Collection[Name]) -> None:
        """Drop the bindings to streams that are gone, in the catalog too."""
        self._drop_bindings_to(set(names), to_exchange=False)
        self.note_change()

    def clear(self) -> None:
        """Drop everything that was declared or bound: the virtual host is gone."""
        built_in = {name for name, _ in _BUILT_IN}
        self._rows = {name: row for name, row in self._rows.items() if name in built_in}
        self._bindings.clear()
        self._indexes.clear()
        self.note_change()

    def _drop_bindings_to(self, names: set[Name], *, to_exchange: bool) -> None:
        for source, bindings in self._bindings.items():
            over = [
                identity
                for identity, binding in bindings.items()
                if binding.destination in names and binding.to_exchange == to_exchange
            ]
            for identity in over:
                del bindings[identity]
            if over:
                self._rewire(source)


def _place(binding: Binding) -> tuple[bool, int]:
    """Partitions come first, in their order, then bindings to exchanges, as they were made."""
    return binding.position is None, binding.position or 0

"""Where messages go: the exchanges of one virtual host and their bindings, in memory.

A super stream is a durable direct exchange, its partitions are its bindings, in their order. Every
virtual host has the default exchange, which leads to each stream by its name, and five of
RabbitMQ's.
"""

from collections.abc import Collection, Iterable
from typing import TypeAlias

from streamd.broker.routing.binding_index import BindingIndex
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
)

_BUILT_IN = (
    (Name("amq.direct"), ExchangeType.DIRECT),
    (Name("amq.fanout"), ExchangeType.FANOUT),
    (Name("amq.topic"), ExchangeType.TOPIC),
    (Name("amq.headers"), ExchangeType.HEADERS),
    (Name("amq.match"), ExchangeType.HEADERS),
)
MAX_EXCHANGES = 10_000  # of a virtual host, super streams included
MAX_BINDINGS = 100_000  # of all of them
_EXCHANGES_A_STEP = 100

_Identity: TypeAlias = tuple[Name, bool, str, str]


class Topology:
    """The exchanges of one virtual host and their bindings; who changes them tells it.

    Attributes:
        virtual_host: its name.
        version: differs after every change to where messages may go; streams included.
    """

    def __init__(self, virtual_host: Name, streams: StreamTable) -> None:
        self.version = 0
        self.virtual_host = virtual_host
        self._streams = streams
        self._bindings: dict[Name, dict[_Identity, Binding]] = {}
        self._indexes: dict[Name, BindingIndex] = {}  # of exchanges that messages came to
        self._rows: dict[Name, ExchangeRow] = self._built_in()

    def _built_in(self) -> dict[Name, ExchangeRow]:
        return {
            name: ExchangeRow(self.virtual_host, name, kind, True, False, False, NO_ALTERNATE)
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
        host = self.virtual_host
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
            host = self.virtual_host
            return [Binding(host, name, s, False, s, NO_HEADERS) for s in self._streams.names()]
        return list(self._bindings.get(name, {}).values())

    def binding(self, wanted: Binding) -> Binding | None:
        """This binding as it is kept, None where there is none; a partition has its order."""
        return self._bindings.get(wanted.source, {}).get(self._identity(wanted))

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

    def forget(self, names: Collection[Name]) -> None:
        """Drop exchanges, and the bindings from them and to them; the catalog has them no more."""
        for name in names:
            self._rows.pop(name, None)
            self._bindings.pop(name, None)
        self._drop_bindings_to(set(names), to_exchange=True)
        self._rewire(*names)

    def put(self, binding: Binding) -> None:
        """Add a binding; a partition takes its place among the others."""
        bindings = self._bindings.setdefault(binding.source, {})
        bindings[self._identity(binding)] = binding
        if binding.position is not None:
            ordered = sorted(bindings.items(), key=lambda item: _place(item[1]))
            self._bindings[binding.source] = dict(ordered)
        self._rewire(binding.source)

    def remove(self, binding: Binding) -> None:
        """Drop a binding that there is."""
        del self._bindings[binding.source][self._identity(binding)]
        self._rewire(binding.source)

    def is_partition(self, binding: Binding) -> bool:
        """Whether a binding is, or would be, to a partition of a super stream."""
        return not binding.to_exchange and self.is_super_stream(binding.source)

    def _identity(self, binding: Binding) -> _Identity:
        """Tells the bindings of one exchange apart; a partition may have another order."""
        arguments = "" if self.is_partition(binding) else arguments_text(binding.arguments)
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

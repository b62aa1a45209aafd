"""Exchanges and bindings declared, bound and removed: changes of the catalog and the topology."""

import logging

from streamd.broker.catalog.transaction import Transaction
from streamd.broker.catalog.writer import CatalogWriter, Check, Subject, permitted
from streamd.broker.declared.checks import check_stream_name, checked_key
from streamd.broker.declared.partitions import placed
from streamd.broker.routing.rules import (
    check_arguments,
    check_names,
    check_not_default,
    check_not_reserved,
    check_same,
)
from streamd.broker.routing.topology import Topology
from streamd.broker.streams.stream_table import StreamTable
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name
from streamd.operations.routing import Binding, ExchangeRow, could_be_super_stream

logger = logging.getLogger(__name__)

_MAX_BINDINGS_FROM_ONE = 10_000


class Exchanges:
    """Changes the exchanges of one virtual host and their bindings.

    Args:
        topology: what is changed.
        streams: that there are.
        catalog: changes the catalog.
    """

    def __init__(self, topology: Topology, streams: StreamTable, catalog: CatalogWriter) -> None:
        self._topology = topology
        self._streams = streams
        self._catalog = catalog

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
            turn.found.add(Subject(self._topology.virtual_host, row.name))
            if self._topology.has(row.name):
                self._check_same(row, is_said=super_stream is not None)
                return False
            check_not_reserved(row.name)
            check_names(row)
            self._topology.check_room()
            if is_super_stream:
                check_stream_name(row.name)
            turn.check_writable()
            if row.is_durable:
                await turn.commit(lambda catalog: catalog.add_exchange(row))
                turn.made |= turn.found
            self._topology.add(row)
            return True

    def _check_same(self, row: ExchangeRow, *, is_said: bool) -> None:
        known = self._topology.find(row.name)
        if not is_said or not could_be_super_stream(row):
            row = row._replace(is_super_stream=known.is_super_stream)
        check_same(known, row)

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
            if if_unused and self._topology.bindings_from(name):
                details = f"exchange '{name}' in vhost '{self._topology.virtual_host}' in use"
                raise Refused(Reason.PRECONDITION_FAILED, details)
            if not self._topology.has(name):
                return
            if self._topology.is_super_stream(name):
                logger.info("removing super stream %s, its streams stay", name)
            gone = [name, *self._topology.emptied(exchanges=[name])]
            await turn.commit(
                lambda catalog: catalog.remove_exchanges(self._topology.virtual_host, gone)
            )
            self._topology.forget(gone)

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
            turn.found.add(Subject(self._topology.virtual_host, wanted.source))
            known = self._topology.binding(wanted)
            if self._topology.is_partition(wanted):
                binding = self._placed(wanted, known)
            else:
                binding = known or self._checked(wanted)
            if binding == known:
                return binding
            turn.check_writable()
            if self._topology.is_kept(binding):
                await turn.commit(lambda catalog: catalog.put_binding(binding))
                turn.made |= turn.found
            self._topology.put(binding)
            return binding

    def _placed(self, wanted: Binding, known: Binding | None) -> Binding:
        partitions = [
            b for b in self._topology.bindings_from(wanted.source) if b.position is not None
        ]
        binding = placed(wanted, known, [b for b in partitions if b != known])
        if known is None:
            self._topology.check_room_for_bindings(1)
        return binding

    def _checked(self, wanted: Binding) -> Binding:
        if len(self._topology.bindings_from(wanted.source)) >= _MAX_BINDINGS_FROM_ONE:
            most = f"{_MAX_BINDINGS_FROM_ONE:,} bindings, the most there can be"
            raise Refused(Reason.PRECONDITION_FAILED, f"{wanted.source} has {most}")
        checked_key(wanted.key)
        check_arguments(wanted)
        self._topology.check_room_for_bindings(1)
        return wanted

    async def unbind(self, wanted: Binding, check: Check = permitted) -> None:
        """Remove the binding between these ends, if it exists.

        Raises:
            Refused: one of its ends is missing or cannot be unbound, or the disk refused.
        """
        async with self._catalog.turn(self._streams.while_there(check)) as turn:
            self._check_ends(wanted)
            binding = self._topology.binding(wanted)
            if binding is None:
                return
            source = self._topology.find(wanted.source)
            is_last = len(self._topology.bindings_from(source.name)) == 1 and source.auto_delete
            emptied: list[Name] = []
            if is_last:
                emptied = [source.name, *self._topology.emptied(exchanges=[source.name])]

            def remove(catalog: Transaction) -> None:
                catalog.remove_binding(binding)
                catalog.remove_exchanges(self._topology.virtual_host, emptied)

            await turn.commit(remove)
            self._topology.remove(binding)
            self._topology.forget(emptied)

    def _check_ends(self, binding: Binding) -> None:
        check_not_default(binding.source)
        self._topology.find(binding.source)
        if binding.to_exchange:
            check_not_default(binding.destination)
            self._topology.find(binding.destination)
        elif binding.destination not in self._streams:
            details = f"no queue '{binding.destination}' in vhost '{self._topology.virtual_host}'"
            raise Refused(Reason.NOT_FOUND, details)

"""Queues, exchanges and bindings, as programs that speak AMQP declare and delete them.

Both versions of AMQP ask for the same; each tells a refusal in its own way.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_channel.erl and
deps/rabbit/src/rabbit_amqqueue.erl.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from streamd.auth.users import Rights
from streamd.broker.virtual_host import VirtualHost
from streamd.connections.queue_arguments import Declaration, inequivalent, precondition_failed
from streamd.operations.arguments import as_kept
from streamd.operations.errors import Inequivalent, Reason, Refused, ReservedName
from streamd.operations.names import Name
from streamd.operations.rights import Right
from streamd.operations.routing import RESERVED_PREFIX, Binding, ExchangeRow

logger = logging.getLogger(__name__)

_MAX_WARNINGS = 4  # for one declaration


class Locked(Refused):
    """A queue that is there for everybody is asked for as one's own."""

    def __init__(self, details: str) -> None:
        super().__init__(Reason.PRECONDITION_FAILED, details)


class Flags(NamedTuple):
    """How a queue is declared; a stream has only these."""

    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False


class Declaring:
    """What one user declares in a virtual host.

    Args:
        default_queue_type: of queues that are declared without one.
    """

    def __init__(self, host: VirtualHost, rights: Rights, default_queue_type: str) -> None:
        self._host, self._rights = host, rights
        self._default_queue_type = default_queue_type

    # -- rights

    def require(self, right: Right, kind: str, name: Name) -> None:
        """Raise Refused unless the user may do this with a queue or exchange."""
        if not self._rights.allows(right, name):
            raise self._access_refused(f"{right.name.lower()} access", kind, name)

    def require_any(self, kind: str, name: Name) -> None:
        """Raise Refused unless the user may do anything at all with a queue or exchange."""
        if not self._rights.allows_any(name, *Right):
            raise self._access_refused("access", kind, name)

    def _access_refused(self, access: str, kind: str, name: Name) -> Refused:
        where = f"to {kind} '{name}' in vhost '{self._host.name}'"
        details = f"{access} {where} refused for user '{self._rights.user}'"
        return Refused(Reason.ACCESS_REFUSED, details)

    # -- queues

    async def declare_queue(
        self, name: Name, flags: Flags, arguments: Mapping[str, object]
    ) -> bool:
        """Create a stream, unless there is one that is the same.

        Args:
            name: of the queue.
            flags: with which it is declared.
            arguments: see `queue_arguments`.

        Returns:
            Whether it is new.

        Raises:
            Refused: it cannot be a stream, or the user may not; Inequivalent or Locked where there
                is another one.
        """
        if not name:
            raise precondition_failed(
                "a stream needs a name: server-named queues are not supported"
            )
        if name.startswith(RESERVED_PREFIX):
            raise ReservedName(f"queue name '{name}' contains reserved prefix 'amq.*'")
        check = partial(self.require, Right.CONFIGURE, "queue", name)
        check()
        declaration = Declaration(name, self._host.name, arguments)
        if self._host.has_stream(name):
            self._check_same(name, flags, declaration)
            await self._host.declared_again(name)
            return False
        declaration.check_type(self._default_queue_type)
        declaration.pairs()
        _check_flags(name, flags)
        declaration.canonical()
        try:
            await self._host.create(name, declaration.pairs(), check)
        except Refused as refused:
            if refused.reason is Reason.ALREADY_EXISTS:  # another client has created it meanwhile
                return False
            raise
        for key in declaration.passed_over()[:_MAX_WARNINGS]:
            logger.warning("stream %s: the argument %r is ignored", name, key[:40])
        return True

    def _check_same(self, name: Name, flags: Flags, declaration: Declaration) -> None:
        host = self._host.name
        where = f"for queue '{name}' in vhost '{host}'"
        if flags.exclusive:
            raise Locked(
                f"cannot obtain exclusive access to locked queue '{name}' in vhost '{host}'"
            )
        for arg, received, current in (
            ("durable", flags.durable, True),
            ("auto_delete", flags.auto_delete, False),
        ):
            if received != current:
                shown = f"received '{received}' but current is '{current}'".lower()
                raise Inequivalent(f"inequivalent arg '{arg}' {where}: {shown}")
        declaration.check_type(self._default_queue_type)
        current_arguments = self._host.arguments(name)
        wanted = as_kept(declaration.canonical(), current_arguments)
        reason = inequivalent(name, host, wanted, current_arguments)
        if reason is not None:
            raise Inequivalent(reason)

    async def num_messages(self, name: Name) -> int:
        """How many messages a stream keeps; 0 while nobody knows."""
        try:
            figures = await self._host.find(name).read_figures()
        except Refused:
            return 0
        return figures.num_messages

    async def delete_queue(self, name: Name, answer: Callable[[], None]) -> None:
        """Delete a stream, if there is one.

        Args:
            name: of the stream.
            answer: called when there is none any more, before those that use it are told.

        Raises:
            Refused: the user may not, or the disk refused.
        """
        check = partial(self.require, Right.CONFIGURE, "queue", name)
        try:
            await self._host.delete(name, answer, check)
        except Refused as refused:
            if refused.reason is not Reason.NOT_FOUND:
                raise
            answer()

    # -- exchanges and bindings

    async def declare_exchange(self, row: ExchangeRow, *, is_super_stream: bool | None) -> bool:
        """See Exchanges.declare; messages that it routes nowhere go on to the alternate one."""
        check = partial(self._check_exchange, row)
        check()
        return await self._host.exchanges.declare(row, check, super_stream=is_super_stream)

    def _check_exchange(self, row: ExchangeRow) -> None:
        self.require(Right.CONFIGURE, "exchange", row.name)
        if row.alternate:
            self.require(Right.READ, "exchange", row.name)
            self.require(Right.WRITE, "exchange", row.alternate)

    async def delete_exchange(self, name: Name, *, if_unused: bool = False) -> None:
        """See Exchanges.delete."""
        check = partial(self.require, Right.CONFIGURE, "exchange", name)
        await self._host.exchanges.delete(name, check, if_unused=if_unused)

    async def bind(self, binding: Binding) -> None:
        """See Exchanges.bind."""
        await self._host.exchanges.bind(binding, partial(self.check_ends, binding))

    async def unbind(self, binding: Binding) -> None:
        """See Exchanges.unbind."""
        await self._host.exchanges.unbind(binding, partial(self.check_ends, binding))

    def check_ends(self, binding: Binding) -> None:
        """Raise Refused unless the user may bind these two."""
        kind = "exchange" if binding.to_exchange else "queue"
        self.require(Right.WRITE, kind, binding.destination)
        self.require(Right.READ, "exchange", binding.source)


def _check_flags(name: Name, flags: Flags) -> None:
    """Raise Refused unless the flags are those that a stream has."""
    for flag, found, wanted in (
        ("auto-delete", flags.auto_delete, False),
        ("exclusive", flags.exclusive, False),
        ("durable", flags.durable, True),
    ):
        if found != wanted:
            shown = f"{flag}={str(found).lower()}"
            raise precondition_failed(
                f"invalid property {shown} for stream '{name}': streams are durable, not exclusive "
                "and not auto-delete"
            )

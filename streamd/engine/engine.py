"""The one place where operations are allowed, and carried out.

Theory of operation. A right is decided here and nowhere else: before the handler runs, and again
whenever it matters. A change to the catalog is checked in its turn (`Call.check`, see
catalog_writer.py); what takes long and only looks is ended as soon as its user has lost the
right, and started again where what it shows depends on the user. A handler gets what it needs from
`Parts`, checks nothing that the declaration says, and answers with the record that the declaration
names.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Collection, Container, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import trio

from streamd.auth.administration import Administration
from streamd.auth.users import UserDirectory
from streamd.broker.broker import Broker
from streamd.broker.catalog.writer import Check
from streamd.broker.streams.log_figures import LogFigures
from streamd.broker.virtual_host import VirtualHost
from streamd.engine.caller import Caller, DoorCaller
from streamd.engine.registry import ConnectionRegistry
from streamd.net.actor import CHANGE
from streamd.net.transport import Address
from streamd.operations import streams as s
from streamd.operations.declaration import (
    ADMINISTRATORS,
    WATCHERS,
    Allowed,
    At,
    Enter,
    Operation,
    Tagged,
    needs_of,
)
from streamd.operations.errors import NoSuch, Reason, Refused
from streamd.operations.names import Name
from streamd.operations.publishing import PublishMessage, PublishToExchange
from streamd.operations.server import DoorFacts

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

# What the log tells of a change; no field besides, as there are passwords.
_TOLD = frozenset({"vhost", "stream", "super_stream", "exchange", "source", "destination"}) | {
    *("name", "user", "group", "before")
}
# Changes that their owner logs, whoever asks for them; and messages, which are many.
_LOGGED = frozenset({s.CreateStream, s.DeleteStream, s.CreateSuperStream, s.DeleteSuperStream}) | {
    *(s.SetOffset, s.DeleteOffset, PublishMessage, PublishToExchange)
}
_MOST_TOLD = 80  # characters of a field
_PLAIN, _BETWEEN = re.compile(rf"[\w./-]{{1,{_MOST_TOLD}}}", re.ASCII), re.compile(r"[._]")


class Parts(NamedTuple):
    """What handlers work on.

    Attributes:
        broker: the virtual hosts, and the tier.
        directory: the users.
        connections: the open connections.
        listeners: the address of every open port, by protocol.
        doors: processes beside this one, by name.
    """

    broker: Broker
    directory: UserDirectory
    connections: ConnectionRegistry
    listeners: Mapping[str, Address]
    doors: Mapping[str, DoorFacts]

    @property
    def administration(self) -> Administration:
        """Changes that concern both virtual hosts and users."""
        return Administration(self.broker, self.directory)

    def host(self, name: Name) -> VirtualHost:
        """A virtual host.

        Raises:
            NoSuch: there is none of that name.
        """
        host = self.broker.virtual_hosts.get(name)
        if host is None:
            raise NoSuch(f"there is no virtual host {name}")
        return host


class Call(NamedTuple):
    """The caller, and the check that it still may ask; see `CatalogWriter.turn`.

    Attributes:
        may_all: `check` is all that is to be asked, whatever the permissions of the caller are.
    """

    caller: Caller
    check: Check
    may_all: bool = False


Handler: TypeAlias = Callable[[Call, Any], Awaitable[Any]]
Elsewhere: TypeAlias = Callable[
    [Operation[Any]], Awaitable[Callable[[Name], Awaitable[Any]] | None]
]
Everywhere: TypeAlias = Callable[
    [Name, Operation[Any], Callable[[], Awaitable[Any]]], Awaitable[Any]
]
Handlers: TypeAlias = dict[type[Operation[Any]], Handler]


class Refresh(Protocol):
    """See Engine."""

    async def __call__(
        self, host: Name | None = None, streams: Collection[Name] = ()
    ) -> Mapping[Name, LogFigures | None]:
        """Ask for streams of a virtual host; for all if there are none.

        Returns:
            What those have that another node leads; None for one of which nobody could be asked.
        """


async def _known(
    host: Name | None = None,  # noqa: ARG001 - this server leads all streams
    streams: Collection[Name] = (),  # noqa: ARG001
) -> Mapping[Name, LogFigures | None]:
    """There is nobody to ask."""
    return {}


async def _here(_user: Name, _request: Operation[Any], here: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 - of any kind
    """There is no other node."""
    return await here()


async def _nowhere(_request: Operation[Any]) -> None:
    """This server carries out everything."""


class Engine:
    """Carries out operations.

    Args:
        handlers: those of all rooms, one for each operation.
        hosts: the names of the virtual hosts that there are.

    Attributes:
        elsewhere: gives what has another node of a cluster carry out an operation for a user; None
            where this server does.
        everywhere: carries out an operation here, as it is told to, and at all other nodes of a
            cluster for a user; gives what all of them say.
        refresh: gives figures of streams that other nodes lead: of some as they are now, and where
            those of all are asked for, sees that they are known as they were a moment ago.
    """

    def __init__(self, *handlers: Handlers, hosts: Container[Name]) -> None:
        self.elsewhere: Elsewhere = _nowhere
        self.refresh: Refresh = _known
        self.everywhere: Everywhere = _here
        self._hosts = hosts
        self._handlers: Handlers = {kind: h for some in handlers for kind, h in some.items()}

    @property
    def operations(self) -> frozenset[type[Operation[Any]]]:
        """The operations that can be asked for."""
        return frozenset(self._handlers)

    async def ask(self, caller: Caller, request: Operation[Answer]) -> Answer:
        """Carry out an operation.

        Raises:
            Refused: the caller may not, also when it lost the right meanwhile; or it cannot be
                done; says why.
        """
        check = partial(_check, caller, request)
        here = partial(self._carry_out, caller, check, request)
        try:
            check()
            if request.SHOWS_FIGURES:
                await self.refresh()
            if caller.is_node:
                return await here()
            if request.AT is At.ALL:
                joined: Answer = await self.everywhere(caller.name, request, here)
                return joined
            node = await self.elsewhere(request)
            if node is not None:
                asked: Answer = await node(caller.name)
                return asked
            return await here()
        except Refused as refused:
            if request.CHANGES:
                _log(caller, request, refused.details)
            is_of_host = any(isinstance(need, Enter | Allowed) for need in needs_of(request))
            if refused.reason is Reason.ACCESS_REFUSED and is_of_host:
                self._require_there(caller, request.vhost)  # type: ignore[attr-defined]
            raise

    async def _carry_out(self, caller: Caller, check: Check, request: Operation[Answer]) -> Answer:
        handler = self._handlers[type(request)]
        if request.CHANGES:  # it asks in its turn, and is not ended in the middle
            done: Answer = await handler(Call(caller, check), request)
            if type(request) not in _LOGGED:
                _log(caller, request)
            return done
        while True:
            check()
            with _until_changed(caller, check, is_any_change=request.NEEDS is None):
                answer: Answer = await handler(Call(caller, check), request)
                return answer

    def _require_there(self, caller: Caller, host: Name) -> None:
        """Raise NoSuch where a virtual host is gone, and all permissions in it with it.

        Only for those who may look into any: others do not hear which there are.
        """
        if host not in self._hosts and caller.sees_host(host):
            raise NoSuch(f"there is no virtual host {host}") from None


def _log(caller: Caller, request: Operation[Any], refused: str = "") -> None:
    """Log a change, or why it was refused; the line names who has asked for it."""
    if isinstance(caller, DoorCaller) or getattr(request, "dry_run", False):
        return  # a door changes only what is counted
    told = []
    for field in request.__struct_fields__:
        value = getattr(request, field)
        if field in _TOLD and isinstance(value, str) and value:
            shown = value if _PLAIN.fullmatch(value) else repr(value[:_MOST_TOLD])
            told.append(f"{field.replace('_', ' ')} {shown}")
    what = _BETWEEN.sub(" ", request.NAME)
    if told:
        what += f": {', '.join(told)}"
    if refused:
        logger.info("%s refused: %s", what, refused)
    else:
        logger.info("%s", what, extra=CHANGE)


def _check(caller: Caller, request: Operation[Any]) -> None:
    """Raise Refused unless the caller may ask for this now."""
    if caller.account.ended:
        raise Refused(Reason.ACCESS_REFUSED, caller.account.ended)
    for need in needs_of(request):
        match need:
            case Tagged(tags, unless):
                is_own = unless and getattr(request, unless) == caller.name
                if not (is_own or any(map(caller.has_tag, tags))):
                    _refuse(caller, tags)
            case Enter():
                caller.require_host(request.vhost)  # type: ignore[attr-defined]
            case Allowed(right, field):
                caller.require(right, request.vhost, getattr(request, field))  # type: ignore[attr-defined]


def _refuse(caller: Caller, tags: tuple[str, ...]) -> None:
    if tags == ADMINISTRATORS.tags:
        caller.require_administrator()
    elif tags == WATCHERS.tags:
        caller.require_all()
    raise Refused(Reason.ACCESS_REFUSED, f"{caller.name} is no door of this server")


@contextmanager
def _until_changed(caller: Caller, check: Check, *, is_any_change: bool) -> Iterator[None]:
    """A block that ends as soon as one right is gone, whatever else changes.

    Args:
        caller: whose right it is.
        check: raises Refused when it is gone.
        is_any_change: it ends with any change of what the caller may do: what it has found so far
            may not be for the caller any more.
    """

    def look() -> None:
        try:
            if not is_any_change:
                check()
                return
        except Refused:
            pass
        limit.cancel()

    with trio.CancelScope() as limit, caller.account.told(look):
        yield
    if limit.cancelled_caught and not is_any_change:
        details = f"{caller.name} has lost the right to this meanwhile"
        raise Refused(Reason.ACCESS_REFUSED, details)

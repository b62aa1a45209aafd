"""Searches for single messages, beside everything else on their connection."""

from functools import partial

import trio

from segments.search.page import Page
from streamd.connections.stream.context import Context, Handlers, HandlersAtOnce
from streamd.connections.stream.response_codes import OK, code_of
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name, as_sent
from streamd.operations.rights import Right
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import FoundMessage, Statistic

_SECONDS = 1.0  # for a page: a client asks for the next one


class Finding:
    """The search of one connection.

    A new one ends the one before: its client has given up on it.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._scope: trio.CancelScope | None = None
        self._is_closed = False
        self.at_once: HandlersAtOnce = {c.Find: self._find_at_once}
        self.handlers: Handlers = {c.Find: self._find}

    async def _find(self, command: c.Find) -> None:
        self._end()
        self._scope = trio.CancelScope()
        search = partial(self._answer, command, self._scope)
        self._context.broker.supervisor.start_once("searching", search, command.stream)

    def _find_at_once(self, command: c.Find) -> bool:
        """Answer a look-up of keys that takes little; False where it is to be searched for."""
        context, name = self._context, as_sent(command.stream)
        may_read = partial(self._check, name)
        try:
            page = context.broker.searches.find_at_once(context.host, name, command.words, may_read)
        except Refused:
            return False  # the other one says so
        if page is None:
            return False
        self._end()
        context.answer(_found(command, page))
        return True

    def _check(self, name: Name) -> None:
        """Raise Refused unless the user may read a stream, here."""
        self._context.rights.require(Right.READ, name)
        if self._context.is_node:
            self._context.host.check_led(name)

    def close(self) -> None:
        """The connection has ended: so does the search, if there is one."""
        self._is_closed = True
        self._end()

    def _end(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    async def _answer(self, command: c.Find, scope: trio.CancelScope) -> None:
        corr = command.correlation_id
        answer = c.FindResponse(corr, ResponseCode.INTERNAL_ERROR, "a bug, see the server's log")
        try:
            with scope:
                answer = await self._search(command)
            if scope.cancelled_caught:
                reason = "another search has begun on this connection"
                answer = c.FindResponse(corr, ResponseCode.PRECONDITION_FAILED, reason)
        finally:
            if not self._is_closed:
                await self._context.answer_in_turns(answer)

    async def _search(self, command: c.Find) -> c.FindResponse:
        context, name = self._context, as_sent(command.stream)
        may_read = partial(self._check, name)
        find = context.broker.searches.find
        try:
            page = await find(context.host, name, command.words, may_read, _SECONDS)
        except Refused as refused:
            says_more = refused.reason in (Reason.PRECONDITION_FAILED, Reason.NOT_AVAILABLE)
            reason = refused.details if says_more else ""
            return c.FindResponse(command.correlation_id, code_of(refused), reason)
        return _found(command, page)


def _found(command: c.Find, page: Page) -> c.FindResponse:
    return c.FindResponse(
        command.correlation_id,
        OK,
        page.hint,
        tuple(FoundMessage(*message[:3]) for message in page.messages),
        page.cut or "",
        page.after,
        tuple(Statistic(*item) for item in page.looked_at.as_dict().items()),
    )

"""The open connections: who, from where, since when, how much, how far behind; ending one."""

from functools import partial
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from streamd.console.connection_rates import CONSUMED, PUBLISHED, ConnectionRates, Rates
from streamd.console.forms import Form
from streamd.console.listing import Column, list_items
from streamd.console.site import NavigationItem, Site, is_poll
from streamd.http_api.caller import visitor_of
from streamd.http_api.messages import part
from streamd.operations import connections as c
from streamd.operations.connections import MAX_REASON, STREAM_PROTOCOL, Connection
from streamd.operations.errors import NoSuch

_MOST_ROWS = 200
_ONE = "/connections/{connection}"


class ConnectionRow(NamedTuple):
    """A connection in the list.

    Attributes:
        title: what its client calls itself; empty where it does not.
        num_publishers, num_consumers: it has at the moment.
        rates: messages a second.
        lag: messages that its consumer furthest behind has not been sent; None without consumers.
        lag_seconds: how old the first message is that a consumer has not been sent.
    """

    connection: Connection
    title: str
    num_publishers: int
    num_consumers: int
    rates: Rates
    lag: int | None
    lag_seconds: float


class ConnectionPages:
    """The open connections."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._ask, self._now_ms = site.service.ask, site.service.now_ms
        self._rates = ConnectionRates()
        site.navigation.append(NavigationItem("Connections", "/connections"))
        self.routes = [
            site.page("/connections", self._list),
            site.page(_ONE, self._show),
            site.action(f"{_ONE}/close", self._close),
        ]

    async def _list(self, request: Request) -> Response:
        rows = [self._row(found) for found in await self._ask(request, c.ListConnections())]
        has_hosts = len({row.connection.virtual_host for row in rows}) > 1
        listing = await list_items(request, rows, _columns(with_host=has_hosts), _searched)
        return await self._site.show(
            request,
            "connections.html",
            listing=listing,
            has_hosts=has_hosts,
            sees_all=visitor_of(request).sees_all,
        )

    def _row(self, found: c.ConnectionDetails) -> ConnectionRow:
        return ConnectionRow(
            found.connection,
            title_of(found.connection),
            len(found.publishers),
            len(found.consumers),
            self._rates.look(found, self._now_ms()),
            max((facts.lag for facts in found.consumers), default=None),
            max((facts.lag_seconds for facts in found.consumers), default=0.0),
        )

    # -- one

    async def _find(self, request: Request) -> c.ConnectionDetails:
        return await self._ask(request, c.GetConnection(name=part(request, "connection")))

    async def _show(self, request: Request) -> Response:
        try:
            found = await self._find(request)
        except NoSuch:
            if is_poll(request):  # of a page that is open: it says so instead of what it said
                return await self._site.show(request, "connection_closed.html")
            raise
        connection, rates = found.connection, self._rates.look(found, self._now_ms())
        return await self._site.show(
            request,
            "connection.html",
            connection=connection,
            title=title_of(connection),
            publishers=found.publishers[:_MOST_ROWS],
            consumers=found.consumers[:_MOST_ROWS],
            num_publishers=len(found.publishers),
            num_consumers=len(found.consumers),
            rates=rates,
            published=partial(_rate, rates, PUBLISHED),
            consumed=partial(_rate, rates, CONSUMED),
            counts_publishers=connection.protocol == STREAM_PROTOCOL,
            may_end=found.may_end,
            most=MAX_REASON,
        )

    async def _close(self, request: Request, form: Form) -> Response:
        connection = (await self._find(request)).connection
        reason = form.text("reason") or "closed through the management console"
        await self._ask(request, c.CloseConnections(name=connection.name, reason=reason))
        notice = f"The connection {connection.name} of {connection.user} is being closed."
        return self._site.go(request, self._site.url("connections"), notice)


def title_of(connection: Connection) -> str:
    """What a client calls its connection; empty where it does not."""
    named = connection.properties.get("connection_name")
    return named if isinstance(named, str) else ""


def _rate(rates: Rates, kind: str, number: int) -> float | None:
    return rates.each.get((kind, number))


def _searched(row: ConnectionRow) -> str:
    """What a connection is searched by: all that its row says in words."""
    connection = row.connection
    return " ".join(
        (
            str(connection.peer),
            row.title,
            connection.user,
            connection.virtual_host,
            connection.protocol,
        )
    )


def _columns(*, with_host: bool) -> list[Column[ConnectionRow]]:
    columns: list[Column[ConnectionRow]] = [
        Column("from", "From", lambda row: row.connection.peer),
        Column("user", "User", lambda row: (row.connection.user, row.connection.peer)),
        Column("protocol", "Protocol", lambda row: row.connection.protocol),
        Column("since", "Since", lambda row: row.connection.connected_at_ms, is_number=True),
        Column("publishers", "Publishers", lambda row: row.num_publishers, is_number=True),
        Column("published", "Published/s", lambda row: row.rates.published or 0, is_number=True),
        Column("consumers", "Consumers", lambda row: row.num_consumers, is_number=True),
        Column("consumed", "Delivered/s", lambda row: row.rates.consumed or 0, is_number=True),
        Column("lag", "Behind", lambda row: -1 if row.lag is None else row.lag, is_number=True),
    ]
    if with_host:
        columns.insert(2, Column("vhost", "Virtual host", lambda row: row.connection.virtual_host))
    return columns

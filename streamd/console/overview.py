"""The server at a glance: is all well, how much goes through, how long does it take."""

from collections.abc import Mapping
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from segments.words import plural
from streamd.console import words
from streamd.console.charts import Chart, make_chart
from streamd.console.site import NavigationItem, Site
from streamd.operations.names import Name
from streamd.operations.server import GetOverview, Moment

_MOST_TROUBLES = 20
_LITTLE_FREE = 0.1  # of the disk


class Trouble(NamedTuple):
    """Something that somebody has to look at.

    Attributes:
        stream: virtual host and name of the stream that it is about; None for the server.
    """

    what: str
    stream: tuple[Name, Name] | None = None


class OverviewPages:
    """The server at a glance."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._ask = site.service.ask
        site.navigation.append(NavigationItem("Overview", "/"))
        self.routes = [site.page("/", self._show)]

    async def _show(self, request: Request) -> Response:
        found = await self._ask(request, GetOverview())
        server = found.server
        troubles = []
        for one in found.troubles:
            where = one.vhost, one.stream
            if one.lost:
                troubles.append(Trouble(_damage(one.lost), where))
            if one.reason:
                troubles.append(Trouble(one.reason, where))
        if server is not None and server.disk_free < _LITTLE_FREE * server.disk_total:
            troubles.insert(0, Trouble(_little_room(server.disk_free, server.disk_total)))
        if server is not None and any(server.faults.values()):
            troubles.insert(0, Trouble(_faults(server.faults)))
        moments = server.history if server is not None else []
        return await self._site.show(
            request,
            "overview.html",
            totals=found.totals,
            num_unavailable=sum(bool(one.reason) for one in found.troubles),
            troubles=troubles[:_MOST_TROUBLES],
            num_more_troubles=max(0, len(troubles) - _MOST_TROUBLES),
            behind=found.behind,
            is_looking=not found.has_looked,
            server=server,
            now=moments[-1] if moments else None,
            charts=charts_of(moments) if server is not None else [],
        )


def charts_of(moments: list[Moment]) -> list[Chart]:
    """The last hour of the server."""
    return [
        make_chart(
            "messages",
            "Messages",
            "rate",
            moments,
            [("stored", lambda m: m.messages_in), ("sent", lambda m: m.messages_out)],
        ),
        make_chart(
            "bytes",
            "Bytes",
            "bytes",
            moments,
            [("stored", lambda m: m.bytes_in), ("sent", lambda m: m.bytes_out)],
        ),
        make_chart(
            "confirms",
            "Time to confirm",
            "duration",
            moments,
            [
                ("half within", lambda m: m.confirm_p50),
                ("99 % within", lambda m: m.confirm_p99),
            ],
            max,
        ),
        make_chart(
            "loop",
            "Delay of the event loop",
            "duration",
            moments,
            [("longest", lambda m: m.loop_delay)],
            max,
        ),
    ]


def _little_room(free: int, total: int) -> str:
    share = free / total if total else 0
    return (
        f"only {words.percent(share)} of the disk is free: {words.size(free)} of "
        f"{words.size(total)}; streams take no messages when it is full"
    )


def _damage(num_lost: int) -> str:
    are = "is" if num_lost == 1 else "are"
    return f"{plural(num_lost, 'message')} {are} damaged and cannot be read; the log says where"


def _faults(faults: Mapping[str, int]) -> str:
    kinds = ", ".join(f"{kind}: {count:,}" for kind, count in sorted(faults.items()) if count)
    total = sum(faults.values())
    were = "fault was" if total == 1 else "faults were"
    return f"{total:,} {were} contained since the start ({kinds}); the log says more"

"""The server at a glance: is all well, how much goes through, how long does it take."""

from starlette.requests import Request
from starlette.responses import Response

from streamd.console.charts import Chart, make_chart
from streamd.console.site import NavigationItem, Site
from streamd.operations.server import BEHIND_SECONDS, GetOverview, Moment

_MOST_TROUBLES = 20
_MOST_RECENT = 10  # lines of the log


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
        moments = server.history if server is not None else []
        return await self._site.show(
            request,
            "overview.html",
            totals=found.totals,
            num_unavailable=sum(bool(one.reason) for one in found.troubles),
            troubles=found.wrong[:_MOST_TROUBLES],
            num_more_troubles=max(0, len(found.wrong) - _MOST_TROUBLES),
            recent=[] if server is None else server.recent[: -_MOST_RECENT - 1 : -1],
            behind=found.behind,
            late_seconds=BEHIND_SECONDS,
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
            [("published", lambda m: m.messages_in), ("delivered", lambda m: m.messages_out)],
        ),
        make_chart(
            "bytes",
            "Bytes",
            "bytes",
            moments,
            [("published", lambda m: m.bytes_in), ("delivered", lambda m: m.bytes_out)],
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

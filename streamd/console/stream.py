"""The page of a stream: how much is in it, who reads and writes it, where they stand."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from segments.format_constants import MIN_FILTER_SIZE
from streamd.console.charts import Chart, make_chart
from streamd.console.site import Site
from streamd.console.stream_arguments import TITLES
from streamd.http_api.messages import part
from streamd.operations import arguments as a, stream_views as v
from streamd.operations.argument_kinds import Plain
from streamd.operations.names import Name
from streamd.operations.rights import Right
from streamd.operations.streams import StreamMoment

ONE = "/streams/{vhost}/{name}"


class Setting(NamedTuple):
    """An argument of a stream.

    Attributes:
        declared, now: as it was declared, and what holds; empty for the default.
        default: what holds without it, in Markdown.
    """

    name: str
    title: str
    declared: str
    now: str
    default: str

    @property
    def is_default(self) -> bool:
        """Nobody has declared or changed it."""
        return not self.declared and not self.now


class Found(NamedTuple):
    """The stream in the path of a request, and what its user may do with it."""

    vhost: Name
    name: Name
    rights: v.StreamRights

    @property
    def stream(self) -> dict[str, Name]:
        """For operations on it."""
        return {"vhost": self.vhost, "stream": self.name}

    @property
    def values(self) -> dict[str, Any]:
        """For the templates of all pages of a stream."""
        return {"vhost": self.vhost, "name": self.name, "rights": self.rights}


class StreamPages:
    """The page of a stream, and how well its filters work."""

    def __init__(self, site: Site) -> None:
        self._site, self._ask = site, site.service.ask
        self.routes = [
            site.page(ONE, self._show),
            site.page(f"{ONE}/filters", self._filters),
        ]

    async def _show(self, request: Request) -> Response:
        vhost, name = part(request, "vhost"), part(request, "name")
        found = await self._ask(request, v.ShowStream(vhost=vhost, stream=name))
        details, contents = found.details, found.contents
        return await self._site.show(
            request,
            "stream.html",
            **Found(vhost, name, found.rights).values,
            settings=_settings(details.arguments, found.now),
            consumers=found.consumers,
            publishers=found.publishers,
            trouble=details.trouble,
            figures=details.figures,
            tier=details.tier,
            contents=contents,
            charts=_charts(contents.history) if contents is not None else [],
        )

    async def _filters(self, request: Request) -> Response:
        found = await find_stream(self._site, request, Right.READ)
        report = await self._ask(request, v.GetFilterReport(**found.stream))
        settings = await self._ask(request, v.GetSettings(**found.stream))
        return await self._site.show(
            request,
            "stream_filters.html",
            **found.values,
            report=report,
            filter_size=a.as_text(settings.now).get(a.FILTER_SIZE, str(MIN_FILTER_SIZE)),
            settings=[
                row
                for row in _settings(settings.declared, settings.now)
                if "filter" in row.name or row.name == a.CHUNK_RECORDS
            ],
            most=v.MOST_FILTERS,
        )


async def find_stream(site: Site, request: Request, right: Right | None = None) -> Found:
    """The stream in the path.

    Args:
        site: the console.
        request: from a user.
        right: that the user needs for what the page is for.

    Raises:
        Refused: there is none, the user may not enter the virtual host, or has not the right.
    """
    vhost, name = part(request, "vhost"), part(request, "name")
    asked = v.GetStreamRights(vhost=vhost, stream=name, needed=right)
    return Found(vhost, name, await site.service.ask(request, asked))


def _settings(declared: Mapping[str, Plain], now: Mapping[str, Plain]) -> list[Setting]:
    """The arguments of a stream that were declared or changed, and the most important others."""
    then, texts = a.as_text(declared), a.as_text(now)
    return [
        Setting(key, TITLES.get(key, key), then.get(key, ""), texts.get(key, ""), known.default)
        for key, known in a.ARGUMENTS.items()
        if key in TITLES or key in then
    ]


def _charts(moments: list[StreamMoment]) -> list[Chart]:
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
    ]

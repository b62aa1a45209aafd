"""The page of a stream: how much is in it, who reads and writes it, where they stand."""

import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from segments import Log, SegmentsError
from segments.filter_stats import newest
from segments.format_constants import MAX_FILTER_SIZE, MIN_FILTER_SIZE
from streamd.auth.users import Rights
from streamd.broker.declared import arguments as a
from streamd.broker.streams.stored_offsets import StoredOffset, stored_offsets
from streamd.broker.streams.stream import Stream
from streamd.broker.virtual_host import VirtualHost
from streamd.console.charts import Chart, make_chart
from streamd.console.people import consumer_name
from streamd.console.segment_map import SegmentMap, segment_map
from streamd.console.site import Site
from streamd.console.stream_arguments import TITLES, as_text
from streamd.engine import Caller
from streamd.engine.registry import ConsumerFacts, LiveConnection, PublisherFacts
from streamd.http_api.caller import caller_of
from streamd.http_api.connections import pairs_of
from streamd.http_api.messages import NotFound, part
from streamd.http_api.overview import shown_trouble
from streamd.http_api.queues import host_of, tier_row
from streamd.net import threads
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name
from streamd.operations.rights import Right

logger = logging.getLogger(__name__)
Facts = TypeVar("Facts", PublisherFacts, ConsumerFacts)

ONE = "/streams/{vhost}/{name}"
MOST_FILTERS = 1_000  # chunks whose filters are looked at
_MOST_ROWS = 100
_SIZES = (MIN_FILTER_SIZE, 32, 64, 128, MAX_FILTER_SIZE)


class People(NamedTuple):
    """Consumers or publishers of a stream, as far as the user may see them.

    Attributes:
        rows: connections with what they do, the first ones of many.
        num_more: that are not among them, because there are too many.
    """

    rows: list[tuple[LiveConnection, Any]]
    num_more: int
    num_hidden: int


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


class StreamPages:
    """The page of a stream, and how well its filters work."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._service = site.service
        self._broker = site.service.broker
        self.routes = [
            site.page(ONE, self._show),
            site.page(f"{ONE}/filters", self._filters),
        ]

    async def _show(self, request: Request) -> Response:
        host, name = find_name(self._broker.virtual_hosts, request)
        caller = caller_of(request)
        rights = caller.rights(host.name)
        consumers = await self._people(caller, host, name, lambda c: c.consumers())
        publishers = await self._people(caller, host, name, lambda c: c.publishers())
        common: dict[str, Any] = {
            "vhost": host.name,
            "name": name,
            "settings": settings_of(host, name),
            "consumers": consumers,
            "publishers": publishers,
            "may_configure": rights.allows(Right.CONFIGURE, name),
            "may_read": rights.allows(Right.READ, name),
        }
        try:
            stream = host.find(name)
            async with stream.opened() as log:
                stored = await stored_offsets(stream, self._broker.now_ms)
                picture = self._picture(log, consumers, stored)
                figures = stream.figures
        except Refused as refused:
            if refused.reason is Reason.NOT_FOUND:
                raise NotFound from None
            return await self._site.show(
                request,
                "stream.html",
                **common,
                is_open=False,
                trouble=shown_trouble(caller, refused.details),
            )
        if figures is None:  # deleted meanwhile
            raise NotFound
        return await self._site.show(
            request,
            "stream.html",
            **common,
            is_open=True,
            trouble=shown_trouble(caller, stream.alarm) if stream.alarm else "",
            is_passing=bool(stream.alarm) and not stream.failed,
            figures=figures,
            tier=tier_row(caller, self._broker.tier, host.name, name),
            now=self._broker.history.latest(stream),
            charts=self._charts(stream),
            picture=picture,
            stored=stored[:_MOST_ROWS],
            num_more_stored=max(0, len(stored) - _MOST_ROWS),
            selectors=_selectors(rights, stream),
        )

    def _charts(self, stream: Stream) -> list[Chart]:
        moments = self._broker.history.stream(stream)
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
        ]

    def _picture(self, log: Log, consumers: People, stored: list[StoredOffset]) -> SegmentMap:
        return segment_map(
            log.segments,
            log.gaps,
            log.committed_offset,
            (
                (facts.next_offset, consumer_name(*pair))
                for pair in consumers.rows
                for facts in pair[1:]
            ),
            ((row.offset + 1, row.reference) for row in stored[:_MOST_ROWS]),
        )

    async def _people(
        self,
        caller: Caller,
        host: VirtualHost,
        name: Name,
        facts_of: Callable[[LiveConnection], list[Facts]],
    ) -> People:
        rows: list[tuple[LiveConnection, Any]] = []
        num_seen = num_hidden = 0
        sees_all = caller.sees_all  # there may be 50,000 of them
        async for connection, facts in pairs_of(self._service.connections, facts_of):
            if facts.stream != name or connection.virtual_host != host.name:
                continue
            if not sees_all and connection.user != caller.name:
                num_hidden += 1
                continue
            num_seen += 1
            if num_seen <= _MOST_ROWS:
                rows.append((connection, facts))
        return People(rows, num_seen - len(rows), num_hidden)

    # -- filters

    async def _filters(self, request: Request) -> Response:
        host, name = find_name(self._broker.virtual_hosts, request)
        rights = caller_of(request).rights(host.name)
        rights.require(Right.READ, name)
        stream = host.find(name)
        async with stream.opened() as log:
            try:
                stats = await threads.compute(newest, tuple(log.segments), MOST_FILTERS)
            except SegmentsError as error:
                logger.error("stream %s cannot be read: %s", name, error)
                raise Refused(Reason.NOT_AVAILABLE, str(error)) from error
            policy = log.policy
        observed = await threads.compute(lambda: stats.observed) if stats.chunks else None
        rights.require(Right.READ, name)
        effective = as_text(host.row(name).effective) if host.has_stream(name) else {}
        return await self._site.show(
            request,
            "stream_filters.html",
            vhost=host.name,
            name=name,
            stats=stats,
            observed=observed,
            policy=policy,
            filter_size=effective.get(a.FILTER_SIZE, str(MIN_FILTER_SIZE)),
            sizes=[(size, stats.predicted_with(size)) for size in _SIZES] if stats.chunks else [],
            settings=[
                row
                for row in settings_of(host, name)
                if "filter" in row.name or row.name == a.CHUNK_RECORDS
            ],
            may_configure=rights.allows(Right.CONFIGURE, name),
            most=MOST_FILTERS,
            num_chunks=stream.figures.num_chunks if stream.figures else 0,
            read=stream.traffic.read(),
            in_vain=stream.traffic.chunks_in_vain,
        )


def find_name(hosts: dict[Name, VirtualHost], request: Request) -> tuple[VirtualHost, Name]:
    """The stream in the path.

    Raises:
        NotFound: there is none.
        Refused: the user may not enter the virtual host.
    """
    host, name = host_of(hosts, request), part(request, "name")
    if not host.has_stream(name):
        raise NotFound
    return host, name


def settings_of(host: VirtualHost, name: Name) -> list[Setting]:
    """The arguments of a stream that were declared or changed, and the most important others."""
    row = host.row(name)
    declared, now = as_text(row.arguments), as_text(row.effective)
    return [
        Setting(key, TITLES.get(key, key), declared.get(key, ""), now.get(key, ""), known.default)
        for key, known in a.ARGUMENTS.items()
        if key in TITLES or key in declared
    ]


def _selectors(rights: Rights, stream: Stream) -> Iterable[dict[str, Any]] | None:
    """The standing selectors; None for users that may not see them."""
    if not rights.allows(Right.READ, stream.name):
        return None
    return [
        {**row._asdict(), "num_consumers": stream.standing.num_users(row.group)}
        for row in stream.standing.rows()
    ]

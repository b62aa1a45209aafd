"""What is shown of streams and super streams."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import trio

from segments import Log, SegmentsError
from segments.filter_stats import FilterStats, newest, why_nothing_is_saved
from segments.format_constants import MAX_FILTER_SIZE, MIN_FILTER_SIZE
from streamd.broker.declared.partitions import partitions_of
from streamd.broker.streams.log_figures import LogFigures
from streamd.broker.streams.stored_offsets import stored_offsets
from streamd.broker.streams.stream import Stream
from streamd.broker.virtual_host import VirtualHost
from streamd.engine.caller import Caller
from streamd.engine.connections import connection_of, sees_connection
from streamd.engine.engine import Call, Handlers, Parts
from streamd.engine.overview import consumer_name, shown_trouble
from streamd.engine.registry import LiveConnection
from streamd.engine.routing import hosts_seen
from streamd.engine.segment_map import segment_map
from streamd.engine.streams import selectors_of
from streamd.net import threads
from streamd.net.turns import in_turns
from streamd.operations import stream_views as v
from streamd.operations.arguments import plain_arguments
from streamd.operations.connections import ConsumerFacts, PublisherFacts
from streamd.operations.declaration import OfStream
from streamd.operations.errors import NoSuch, Reason, Refused
from streamd.operations.names import Name
from streamd.operations.rights import Right
from streamd.operations.streams import StoredOffset, SuperStreamRow
from streamd.operations.tier_reports import StreamTier

logger = logging.getLogger(__name__)
Facts = TypeVar("Facts", PublisherFacts, ConsumerFacts)

_LOOKED_AT_ONCE = 8  # streams
_SIZES = (MIN_FILTER_SIZE, 32, 64, 128, MAX_FILTER_SIZE)


class StreamViews:
    """What is shown of streams and super streams.

    Attributes:
        handlers: one for each operation.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts, self._broker = parts, parts.broker
        self.handlers: Handlers = {
            v.ListStreams: self._list,
            v.DescribeStreams: self._describe,
            v.GetStream: self._get,
            v.GetStreamRights: self._rights,
            v.ShowStream: self._show,
            v.GetSettings: self._settings,
            v.GetFilterReport: self._filters,
            v.ListSuperStreams: self._list_super_streams,
            v.GetSuperStream: self._super_stream,
        }

    # -- lists

    async def _list(self, call: Call, request: v.ListStreams) -> list[v.StreamSummary]:
        hosts = hosts_seen(self._parts, call.caller, request.vhost)
        readers: Counter[tuple[str, str]] = Counter()
        writers: Counter[tuple[str, str]] = Counter()
        async for connection in in_turns(self._parts.connections):
            for facts in connection.consumers():
                readers[connection.virtual_host, facts.stream] += 1
            for publisher in connection.publishers():
                writers[connection.virtual_host, publisher.stream] += 1
        names = [(host, name) for host in hosts for name in host.names()]
        return [
            self._summary(
                call.caller, host, stream, readers[host.name, name], writers[host.name, name]
            )
            async for host, name in in_turns(names)
            if (stream := host.get_stream(name)) is not None  # not deleted meanwhile
        ]

    def _summary(
        self,
        caller: Caller,
        host: VirtualHost,
        stream: Stream,
        num_readers: int,
        num_writers: int,
    ) -> v.StreamSummary:
        figures, now = stream.figures, self._broker.history.latest(stream)
        return v.StreamSummary(
            host.name,
            stream.name,
            figures.num_messages if figures else -1,
            figures.size if figures else -1,
            now.messages_in if now else -1,
            now.messages_out if now else -1,
            num_readers,
            num_writers,
            figures.last_timestamp_ms if figures else -1,
            shown_trouble(caller, stream.alarm),
        )

    async def _describe(self, call: Call, request: v.DescribeStreams) -> list[v.StreamDetails]:
        if len(request.streams) > v.MOST_DESCRIBED:
            details = f"{len(request.streams):,} streams, expected at most {v.MOST_DESCRIBED}"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        hosts = {
            name: self._broker.virtual_hosts[name]
            for name in dict(request.streams)
            if call.caller.sees_host(name) and name in self._broker.virtual_hosts
        }
        chosen = [(hosts[host], name) for host, name in request.streams if host in hosts]
        await _know_all(chosen)
        return [
            self._details(call.caller, host, name)
            async for host, name in in_turns(chosen)
            if host.has_stream(name)  # not deleted meanwhile
        ]

    def _details(self, caller: Caller, host: VirtualHost, name: Name) -> v.StreamDetails:
        figures, trouble, is_open = None, "", True
        try:
            stream = host.find(name)
        except Refused as refused:
            trouble, is_open = refused.details, False
        else:
            figures, trouble = stream.figures, stream.alarm
        return v.StreamDetails(
            host.name,
            name,
            plain_arguments(host.arguments(name)),
            is_open,
            shown_trouble(caller, trouble),
            _figures(figures),
            self._tier(caller, host, name),
        )

    def _tier(self, caller: Caller, host: VirtualHost, name: Name) -> StreamTier | None:
        tier = self._broker.tier
        found = tier.stream(host.name, name) if tier is not None else None
        if found is None:
            return None
        return replace(found, sentence=shown_trouble(caller, found.sentence))

    # -- one stream

    def _find(self, request: OfStream[Any]) -> VirtualHost:
        host = self._parts.host(request.vhost)
        if not host.has_stream(request.stream):
            raise NoSuch(f"there is no stream {request.stream}")
        return host

    async def _get(self, call: Call, request: v.GetStream) -> v.StreamDetails:
        host, name = self._find(request), request.stream
        await _know_all([(host, name)])
        with suppress(Refused):  # its trouble says why
            await host.find(name).life.look_at_keys()
        return self._details(call.caller, self._find(request), name)

    async def _rights(self, call: Call, request: v.GetStreamRights) -> v.StreamRights:
        self._find(request)
        if request.needed is not None:
            call.caller.require(request.needed, request.vhost, request.stream)
        return _rights_of(call, request)

    async def _settings(self, _call: Call, request: v.GetSettings) -> v.Settings:
        row = self._find(request).row(request.stream)
        return v.Settings(plain_arguments(row.arguments), plain_arguments(row.effective))

    async def _show(self, call: Call, request: v.ShowStream) -> v.StreamView:
        host, name = self._find(request), request.stream
        consumers = await self._people(call, request, lambda one: one.consumers())
        publishers = await self._people(call, request, lambda one: one.publishers())
        rights, contents, trouble = _rights_of(call, request), None, ""
        try:
            stream = host.find(name)
            async with stream.opened() as log:
                stored = await self._stored(stream)
                known = stored or []
                contents = v.StreamContents(
                    _picture(log, consumers, known),
                    None if stored is None else stored[: v.MOST_ROWS],
                    max(0, len(known) - v.MOST_ROWS),
                    selectors_of(stream) if rights.may_read else None,
                    bool(stream.alarm) and not stream.failed,
                    self._broker.history.stream(stream),
                )
        except Refused as refused:
            if refused.reason is Reason.NOT_FOUND:
                raise NoSuch(f"there is no stream {name}") from None
            trouble = shown_trouble(call.caller, refused.details)
        self._find(request)  # not deleted meanwhile
        details = self._details(call.caller, host, name)
        if contents is None:
            details = v.StreamDetails(
                host.name, name, details.arguments, False, trouble, None, details.tier
            )
        now = plain_arguments(host.row(name).effective)
        return v.StreamView(details, now, rights, consumers, publishers, contents)

    async def _stored(self, stream: Stream) -> list[StoredOffset] | None:
        """Offsets that consumers have stored; None while nobody knows whether they are safe."""
        try:
            return await stored_offsets(stream, self._broker.now_ms)
        except Refused:
            return None

    async def _people(
        self,
        call: Call,
        request: v.ShowStream,
        facts_of: Callable[[LiveConnection], list[Facts]],
    ) -> v.People[Facts]:
        rows: list[v.Person[Facts]] = []
        num_seen = num_hidden = 0
        async for connection in in_turns(self._parts.connections):
            if connection.virtual_host != request.vhost:
                continue
            found = [facts for facts in facts_of(connection) if facts.stream == request.stream]
            if not sees_connection(call.caller, connection):
                num_hidden += len(found)
                continue
            num_seen += len(found)
            shown = found[: v.MOST_ROWS - len(rows)]
            rows += [v.Person(connection_of(connection), facts) for facts in shown]
        return v.People(rows, num_seen - len(rows), num_hidden)

    async def _filters(self, _call: Call, request: v.GetFilterReport) -> v.FilterReport:
        stream = self._parts.host(request.vhost).find(request.stream)
        async with stream.opened() as log:
            try:
                stats = await threads.compute(newest, tuple(log.segments.shown), v.MOST_FILTERS)
            except SegmentsError as error:
                logger.error("stream %s cannot be read: %s", stream.name, error)
                raise Refused(Reason.NOT_AVAILABLE, str(error)) from error
            num_chunks = log.segments.num_chunks
        read, in_vain = stream.traffic.flow(), stream.traffic.chunks_in_vain
        why = why_nothing_is_saved(stats.counts)
        if not stats.chunks:
            return v.FilterReport(0, 0.0, 0.0, None, 0, {}, [], num_chunks, read, in_vain, why)
        observed, with_sizes = await threads.compute(_worked_out, stats)
        return v.FilterReport(
            stats.chunks,
            stats.fill,
            stats.predicted,
            observed,
            stats.distinct,
            stats.properties,
            with_sizes,
            num_chunks,
            read,
            in_vain,
            why,
        )

    # -- super streams

    async def _list_super_streams(
        self, call: Call, request: v.ListSuperStreams
    ) -> list[v.SuperStream]:
        rows = (
            (host, row)
            for host in hosts_seen(self._parts, call.caller, request.vhost)
            for row in host.super_streams.rows()
        )
        return [_summed(host, row) async for host, row in in_turns(rows)]

    async def _super_stream(self, call: Call, request: v.GetSuperStream) -> v.SuperStreamDetails:
        host = self._parts.host(request.vhost)
        if request.super_stream not in host.super_streams:
            raise NoSuch(f"there is no super stream {request.super_stream}")
        row = host.super_streams.find(request.super_stream)
        await _know_all((host, name) for name in partitions_of(row))
        rights, may_delete = call.caller.rights(host.name), True
        try:
            rights.require_super_stream(row.name, partitions_of(row))
        except Refused:
            if request.to_delete:
                raise
            may_delete = False
        figures = [_figures(_known(host, name)) for name in partitions_of(row)]
        return v.SuperStreamDetails(row, figures, may_delete)


def _rights_of(call: Call, request: v.GetStreamRights | v.ShowStream) -> v.StreamRights:
    rights = call.caller.rights(request.vhost)
    return v.StreamRights(
        rights.allows(Right.CONFIGURE, request.stream),
        rights.allows(Right.READ, request.stream),
        rights.allows(Right.WRITE, request.stream),
    )


def _figures(found: LogFigures | None) -> v.StreamFigures | None:
    if found is None:
        return None
    return v.StreamFigures(
        found.first_offset,
        found.next_offset,
        found.num_messages,
        found.num_lost,
        found.num_chunks,
        found.num_segments,
        found.size,
        found.first_timestamp_ms,
        found.last_timestamp_ms,
        found.raised_segment_bytes,
        None if found.keys is None else v.KeyIndex(*found.keys),
    )


def _known(host: VirtualHost, name: Name) -> LogFigures | None:
    stream = host.get_stream(name)
    return stream.figures if stream is not None else None


def _summed(host: VirtualHost, row: SuperStreamRow) -> v.SuperStream:
    known = [found for name in partitions_of(row) if (found := _known(host, name)) is not None]
    return v.SuperStream(row, sum(f.num_messages for f in known), sum(f.size for f in known))


def _worked_out(stats: FilterStats) -> tuple[float | None, list[tuple[int, float]]]:
    return stats.observed, [(size, stats.predicted_with(size)) for size in _SIZES]


def _picture(
    log: Log, consumers: v.People[ConsumerFacts], stored: list[StoredOffset]
) -> v.SegmentMap:
    return segment_map(
        log.segments.shown,
        log.segments.gaps,
        log.committed_offset,
        (
            (one.facts.next_offset, consumer_name(one.connection, one.facts))
            for one in consumers.rows
        ),
        ((row.offset + 1, row.name) for row in stored[: v.MOST_ROWS]),
    )


async def _know_all(names: Iterable[tuple[VirtualHost, Name]]) -> None:
    """Look at streams whose size nobody knows since the start, some at a time."""
    left = iter(names)

    async def know() -> None:
        async for host, name in in_turns(left):
            stream = host.get_stream(name)
            if stream is not None and stream.figures is None:
                with suppress(Refused):  # its row says why
                    await stream.read_figures()

    async with trio.open_nursery() as nursery:
        for _ in range(_LOOKED_AT_ONCE):
            nursery.start_soon(know)

"""Streams and super streams: creating, deleting, looking at them."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from segments import SegmentsError, Start
from segments.derived.key_schedule import KeyFigures
from segments.filter_stats import newest
from segments.marks import life_number
from segments.segment import Segment
from streamd.broker.declared.checks import check_number, check_stream_name
from streamd.broker.declared.partitions import partitions_of
from streamd.broker.streams.log_figures import LogFigures
from streamd.connections.stream.context import Context, Handlers, offset_spec
from streamd.connections.stream.response_codes import OK, code_of
from streamd.net import threads
from streamd.net.turns import in_turns
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name, as_sent
from streamd.operations.rights import Right
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import (
    NO_LEADER,
    BrokerAddress,
    OffsetSpecification,
    Pair,
    Statistic,
    StreamDescription,
    StreamMetadata,
)

logger = logging.getLogger(__name__)

FETCH_SECONDS = 5.0  # that the tier may take: other commands of the connection wait

_NO_CHUNK = -1
_MOST_FILTERS = 1000  # chunks whose filters are looked at
_MILLION = 1_000_000


class Streams:
    """The commands about streams by name."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.handlers: Handlers = {
            c.Delete: self._delete,
            c.Metadata: self._metadata,
            c.StreamStats: self._stats,
            c.ResolveOffsetSpec: self._resolve_offset_spec,
            c.DescribeStreams: self._describe_streams,
            c.DescribeFilters: self._describe_filters,
            c.CreateSuperStream: self._create_super_stream,
            c.DeleteSuperStream: self._delete_super_stream,
            c.Partitions: self._partitions,
            c.Route: self._route,
        }

    # -- creating and deleting

    async def create_all(self, commands: Sequence[c.Create]) -> None:
        """Create streams, each or not; all share one change of the catalog."""
        wanted = [(as_sent(command.stream), command.arguments) for command in commands]
        may_configure = partial(self._context.rights.require, Right.CONFIGURE)
        outcomes = await self._context.host.create_all(wanted, may_configure)
        for command, outcome in zip(commands, outcomes, strict=True):
            code = OK if outcome is None else _refusal(command, outcome)
            self._context.answer(c.CreateResponse(command.correlation_id, code))

    async def _delete(self, command: c.Delete) -> None:
        answer = c.DeleteResponse(command.correlation_id, OK)
        name = as_sent(command.stream)

        async def delete() -> None:
            may_configure = partial(self._context.rights.require, Right.CONFIGURE, name)
            await self._context.host.delete(
                name, lambda: self._context.answer(answer), may_configure
            )

        code = await _code_of(f"stream {command.stream} not deleted", delete)
        if code != OK:
            self._context.answer(c.DeleteResponse(command.correlation_id, code))

    async def _create_super_stream(self, command: c.CreateSuperStream) -> None:
        name = as_sent(command.name)

        async def create() -> None:
            partitions, keys = list(map(as_sent, command.partitions)), command.binding_keys
            check_number(len(partitions))  # before each is looked at
            check_stream_name(name)
            check = partial(self._context.rights.require_super_stream, name, partitions)
            check()
            if len(partitions) != len(keys):
                details = f"{len(partitions)} partitions and {len(keys)} binding keys"
                raise Refused(Reason.PRECONDITION_FAILED, details)
            pairs = list(zip(keys, partitions, strict=True))
            await self._context.host.create_super_stream(name, pairs, command.arguments, check)

        code = await _code_of(f"super stream {command.name} not created", create)
        self._context.answer(c.CreateSuperStreamResponse(command.correlation_id, code))

    async def _delete_super_stream(self, command: c.DeleteSuperStream) -> None:
        answer = c.DeleteSuperStreamResponse(command.correlation_id, OK)
        name = as_sent(command.name)

        async def delete() -> None:
            rights = self._context.rights
            rights.require(Right.CONFIGURE, name)
            await self._context.host.delete_super_stream(
                name,
                lambda: self._context.answer(answer),
                partial(rights.require_super_stream, name),
            )

        code = await _code_of(f"super stream {command.name} not deleted", delete)
        if code != OK:
            self._context.answer(c.DeleteSuperStreamResponse(command.correlation_id, code))

    # -- super streams

    async def _partitions(self, command: c.Partitions) -> None:
        streams: tuple[str, ...] = ()
        code = OK
        super_stream = as_sent(command.super_stream)
        try:
            self._require_any(super_stream)
            found = partitions_of(self._context.host.super_streams.find(super_stream))
            async for name in in_turns(found):
                self._require_any(name)
            streams = tuple(found)
        except Refused as refused:
            code = code_of(refused)
        self._context.answer(c.PartitionsResponse(command.correlation_id, code, streams))

    async def _route(self, command: c.Route) -> None:
        streams: tuple[str, ...] = ()
        code = OK
        rights, super_stream = self._context.rights, as_sent(command.super_stream)
        try:
            rights.require(Right.WRITE, super_stream)
            found = self._context.host.super_streams.find(super_stream)
            routed = tuple(p.stream for p in found.partitions if p.key == command.routing_key)
            for name in routed:
                rights.require(Right.WRITE, name)
            streams = routed
        except Refused as refused:
            code = code_of(refused)
        self._context.answer(c.RouteResponse(command.correlation_id, code, streams))

    def _require_any(self, name: Name) -> None:
        """Check for a right to read or to write: either is enough to learn where something is."""
        if not self._context.rights.allows(Right.READ, name):
            self._context.rights.require(Right.WRITE, name)

    # -- looking at them

    async def _metadata(self, command: c.Metadata) -> None:
        streams: list[StreamMetadata] = []
        brokers: dict[tuple[str, int], int] = {}
        names = dict.fromkeys(map(as_sent, command.streams))
        await self._context.host.led_soon(names)
        async for name in in_turns(names):
            code = self._code(name)
            address = self._leader(name) if code == OK else None
            leader = NO_LEADER
            if address is not None:
                leader = brokers.setdefault(address, len(brokers))
            streams.append(StreamMetadata(name, code, leader, ()))
        brokers = brokers or {self._context.address: 0}
        told = tuple(BrokerAddress(number, *address) for address, number in brokers.items())
        answer = c.MetadataResponse(command.correlation_id, told, tuple(streams))
        await self._context.answer_in_turns(answer)

    def _leader(self, name: Name) -> tuple[str, int] | None:
        """Where a stream can be written; None for one that nobody leads at the moment."""
        context, host = self._context, self._context.host
        writer = host.writer(name)
        if writer is None:
            return context.address
        found = writer.leader(is_tls=context.is_tls)
        return found if found is not None or host.row(name).shard else context.address

    def _code(self, name: Name) -> ResponseCode:
        try:
            self._require_any(name)
            host = self._context.host
            if not host.has_stream(name) or host.writer(name) is None:  # others know their own
                host.find(name)
        except Refused as refused:
            return code_of(refused)
        return OK

    async def _stats(self, command: c.StreamStats) -> None:
        corr = command.correlation_id
        try:
            name = as_sent(command.stream)
            self._context.rights.require(Right.READ, name)
            stream = self._context.host.find(name)
            with suppress(Refused):  # what is not confirmed does not count
                await stream.settled_soon()
            figures = await stream.read_figures()
            self._context.rights.require(Right.READ, name)
        except Refused as refused:
            self._context.answer(c.StreamStatsResponse(corr, code_of(refused)))
            return
        self._context.answer(c.StreamStatsResponse(corr, OK, _statistics(figures)))

    async def _resolve_offset_spec(self, command: c.ResolveOffsetSpec) -> None:
        corr, code, offset = command.correlation_id, OK, 0
        try:
            async with self._context.readable(as_sent(command.stream)) as (stream, log):
                spec = offset_spec(command.offset)
                found = await stream.retry_cold_read(log.segments.find, spec, seconds=FETCH_SECONDS)
            offset = found.offset
        except Refused as refused:
            code = code_of(refused)
        except SegmentsError as error:
            logger.error("stream %s cannot be read: %s", command.stream, error)
            code = ResponseCode.NO_OFFSET
        resolved = OffsetSpecification(Start.OFFSET, offset)
        self._context.answer(c.ResolveOffsetSpecResponse(corr, code, resolved))

    async def _describe_streams(self, command: c.DescribeStreams) -> None:
        host, rights = self._context.host, self._context.rights
        asked = dict.fromkeys(map(as_sent, command.streams))
        told = await self._context.engine.refresh(host.name, asked)
        streams = [
            await self._describe(name, told, looks_at_keys=len(command.streams) == 1)
            async for name in in_turns(asked or host.names())
            if asked or rights.allows(Right.READ, name)
        ]
        answer = c.DescribeStreamsResponse(command.correlation_id, OK, tuple(streams))
        await self._context.answer_in_turns(answer)

    async def _describe_filters(self, command: c.DescribeFilters) -> None:
        figures: tuple[Statistic, ...] = ()
        try:
            async with self._context.readable(as_sent(command.stream)) as (_, log):
                found = await threads.compute(_filter_figures, tuple(log.segments.shown))
            figures, code = found, OK
        except Refused as refused:
            code = code_of(refused)
        except SegmentsError as error:
            logger.error("stream %s cannot be read: %s", command.stream, error)
            code = ResponseCode.STREAM_NOT_AVAILABLE
        self._context.answer(c.DescribeFiltersResponse(command.correlation_id, code, figures))

    async def _describe(
        self, name: Name, told: Mapping[Name, LogFigures | None], *, looks_at_keys: bool
    ) -> StreamDescription:
        """What there is of a stream; see Engine.refresh for what others have told."""
        try:
            self._context.rights.require(Right.READ, name)
            stream = self._context.host.find(name)
            row = self._context.host.row(name)  # now: later it may be deleted
            figures = told[name] if name in told else await stream.read_figures()
            if figures is None:
                raise Refused(Reason.NOT_AVAILABLE, f"who leads {name} does not answer")
            if looks_at_keys:
                await stream.life.look_at_keys()
                now = await stream.read_figures()
                figures = figures._replace(keys=now.keys) if name in told else now
            self._context.rights.require(Right.READ, name)
        except Refused as refused:
            return StreamDescription(name, code_of(refused), (), ())
        arguments = tuple(
            Pair(key, str(value).lower() if isinstance(value, bool) else str(value))
            for key, value in row.effective.items()
        )
        return StreamDescription(name, OK, arguments, _description(figures))


def _refusal(command: c.Create, refused: Refused) -> ResponseCode:
    logger.info("stream %s not created: %s", command.stream, refused)
    return code_of(refused)


async def _code_of(failure: str, work: Callable[[], Awaitable[None]]) -> ResponseCode:
    try:
        await work()
    except Refused as refused:
        logger.info("%s: %s", failure, refused)
        return code_of(refused)
    return OK


def _filter_figures(segments: Sequence[Segment]) -> tuple[Statistic, ...]:
    stats = newest(segments, _MOST_FILTERS)
    counts = tuple(Statistic(*item) for item in stats.counts.items())
    if not stats.chunks:
        return counts
    shares = {"fill": stats.fill, "predicted": stats.predicted, "observed": stats.observed}
    return (
        *counts,
        *(
            Statistic(f"{name}_ppm", round(share * _MILLION))
            for name, share in shares.items()
            if share is not None
        ),
    )


def _statistics(figures: LogFigures) -> tuple[Statistic, ...]:
    first, last = figures.first_chunk_id, figures.last_chunk_id
    is_empty = last is None or first is None
    return (
        Statistic("first_chunk_id", _NO_CHUNK if first is None else first),
        Statistic("last_chunk_id", _NO_CHUNK if last is None else last),
        Statistic("committed_chunk_id", _NO_CHUNK if last is None else last),
        Statistic("committed_offset", _NO_CHUNK if is_empty else figures.last_offset),
    )


def _description(figures: LogFigures) -> tuple[Statistic, ...]:
    lost, raised = figures.num_lost, figures.raised_segment_bytes
    life = life_number(figures.life)
    return (
        *_statistics(figures),
        Statistic("messages", figures.num_messages),
        Statistic("chunks", figures.num_chunks),
        Statistic("bytes", figures.size),
        Statistic("segments", figures.num_segments),
        Statistic("first_timestamp_ms", figures.first_timestamp_ms),
        Statistic("last_timestamp_ms", figures.last_timestamp_ms),
        *(_key_statistics(figures.keys) if figures.keys is not None else ()),
        *((Statistic("segment_bytes_raised_to", raised),) if raised else ()),
        *((Statistic("lost_messages", lost),) if lost else ()),
        *((Statistic("life", life),) if life is not None else ()),
    )


def _key_statistics(keys: KeyFigures) -> tuple[Statistic, ...]:
    return (
        Statistic("key_segments_sealed", keys.num_sealed),
        Statistic("key_segments_indexed", keys.num_indexed),
        Statistic("key_segments_unknown", keys.num_unknown),
        Statistic("key_index_bytes", keys.size),
    )

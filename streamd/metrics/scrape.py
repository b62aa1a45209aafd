"""Scrapes: one after the other, in pieces of a millisecond, each packed as it grows.

Theory of operation. An answer is made whole and packed with gzip before any of it is sent: the
lines of 10,000 streams are 30 MB, and 2 MB when packed. So a peer that reads slowly holds no more
than that, and keeps nobody waiting; a peer that has not asked for gzip gets it unpacked piece by
piece. One answer is made at a time. Who asks for the same while others wait gets the same answer,
if it was begun after the question; of those who wait there may be MAX_WAITING.

What fails in one metric, or for one stream, is logged and counted and left out; the rest is told.
"""

import logging
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

import trio

from streamd.metrics.families import SUMMARY, Family, Sample, escaped, lines
from streamd.metrics.server_metrics import (
    AGGREGATED,
    CLUSTER,
    DETAILED,
    IDENTITY,
    OWN_GROUP as SERVER_GROUP,
    PER_OBJECT,
    SERVER,
    Metric,
    ScrapeContext,
)
from streamd.metrics.stream_metrics import (
    BY_NAME,
    COLUMNS,
    DISK_ALARM,
    KNOWN,
    MATCHES,
    QUEUE,
    QUEUE_GROUPS,
    QUEUE_INFO,
    QUEUE_INFO_LABELS,
    WRITTEN,
    Column,
    Table,
    standing_matches,
)
from streamd.net.turns import in_turns
from streamd.operations.declaration import Operation
from streamd.operations.figures import (
    AllStreams,
    GetServerFigures,
    ListExchangeFigures,
    ListStreamFigures,
    ServerFigures,
)
from streamd.operations.names import Name
from streamd.patterns import PatternError, compiled, readable

logger = logging.getLogger(__name__)

Found = TypeVar("Found")

MAX_WAITING = 16
MAX_ANSWER_BYTES = 16 << 20  # packed: 10,000 streams take 1 to 8 MB, as long as their names are
MAX_PATTERN_BYTES = 2_000
_LINES_A_TURN = 2_000
# Names are compared for those who have no login: a long one takes some 20 ms at most with so much.
_PATTERN_MEMORY = 32 << 10
_UNPACKED_BYTES = 256 << 10
_WHAT = "collecting metrics"  # in the log and the count of faults
_GZIP = 31  # as zlib calls it

SCRAPE_SECONDS = Family(
    "streamd_scrape_seconds",
    SUMMARY,
    "What scrapes have taken, without the time that they waited for others, by path",
    ("endpoint",),
    (SERVER_GROUP,),
)


class Ask(Protocol):
    """Asks the engine for an operation."""

    async def __call__(self, operation: Operation[Found], /) -> Found:
        """The answer.

        Raises:
            Refused: it cannot be had.
        """


class BadQuery(ValueError):
    """What is asked for cannot be understood; one sentence."""


class TooLarge(Exception):
    """The answer is too large."""


class Busy(Exception):
    """Too many wait already."""


class Query(NamedTuple):
    """What is asked for.

    Attributes:
        endpoint: AGGREGATED, PER_OBJECT or DETAILED.
        families: names of groups, for DETAILED.
        hosts: virtual hosts; empty for all.
        pattern: a regular expression that is found in the names of streams; empty for all.
    """

    endpoint: str
    families: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    pattern: str = ""

    @classmethod
    def detailed(
        cls, families: Iterable[str], hosts: Iterable[str], patterns: Sequence[str]
    ) -> "Query":
        """What /metrics/detailed is asked for.

        Raises:
            BadQuery: the pattern is none, is too long, or there are several.
        """
        if len(patterns) > 1:
            raise BadQuery(f"queue stands {len(patterns)} times, expected once at most")
        pattern = patterns[0] if patterns else ""
        size = len(pattern.encode(errors="replace"))
        if size > MAX_PATTERN_BYTES:
            most = f"{MAX_PATTERN_BYTES:,}"
            raise BadQuery(f"queue has {size:,} bytes, expected a pattern of {most} at most")
        try:
            compiled(pattern, _PATTERN_MEMORY)
        except PatternError as error:
            raise BadQuery(f"queue is no regular expression that RE2 knows: {error}") from None
        return cls(DETAILED, frozenset(families), frozenset(hosts), pattern)

    def wants(self, groups: Iterable[str]) -> bool:
        """Whether families of these groups are asked for."""
        return self.endpoint != DETAILED or not self.families.isdisjoint(groups)

    def name(self, family: Family) -> str:
        """The name of a family in the answer."""
        is_theirs = family.name.startswith("rabbitmq_")
        if self.endpoint != DETAILED or not is_theirs or family.name.startswith("rabbitmq_cluster"):
            return family.name
        return family.name.replace("rabbitmq_", "rabbitmq_detailed_", 1)


class Answer(NamedTuple):
    """The metrics of one moment.

    Attributes:
        begun_at: when, by the event loop's clock.
        packed: with gzip, in pieces.
        size: unpacked.
    """

    begun_at: float
    packed: Sequence[bytes]
    size: int

    def pieces(self) -> Iterator[bytes]:
        """What it is unpacked, piece by piece."""
        unpacker = zlib.decompressobj(_GZIP)
        for packed in self.packed:
            data = unpacker.decompress(packed, _UNPACKED_BYTES)
            while data:
                yield data
                data = unpacker.decompress(unpacker.unconsumed_tail, _UNPACKED_BYTES)
        rest = unpacker.flush()
        if rest:
            yield rest


class _Page:
    """An answer that is being made."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(1, zlib.DEFLATED, _GZIP)
        self._packed: list[bytes] = []
        self._size = self._packed_size = 0

    def add(self, text: str) -> None:
        """Add lines.

        Raises:
            TooLarge: there are too many.
        """
        data = text.encode(errors="backslashreplace")
        self._size += len(data)
        packed = self._packer.compress(data)
        if packed:
            self._packed.append(packed)
            self._packed_size += len(packed)
            if self._packed_size > MAX_ANSWER_BYTES:
                raise TooLarge

    def end(self, begun_at: float) -> Answer:
        self._packed.append(self._packer.flush())
        return Answer(begun_at, self._packed, self._size)


class Scrapes:
    """All scrapes of a server.

    Args:
        ask: asks the engine for what it has counted.
        node: the name of the server.
        refused: gets the number of scrapes that were refused, as "scrapes".

    Attributes:
        refused: see above.
    """

    def __init__(self, ask: Ask, node: str, refused: Counter[str]) -> None:
        self._ask, self._node = ask, node
        self.refused = refused
        self._faults: Counter[str] = Counter()
        self._turn = trio.Lock()
        self._num_waiting = 0
        self._asking: Counter[Query] = Counter()
        self._answers: dict[Query, Answer] = {}
        self._number: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}

    async def answer(self, query: Query) -> Answer:
        """The metrics at a moment that is not before this call.

        Raises:
            Busy: too many wait already.
            TooLarge: the answer is too large.
        """
        if self._num_waiting >= MAX_WAITING:
            self.refused["scrapes"] += 1
            raise Busy
        asked_at = trio.current_time()
        self._num_waiting += 1
        self._asking[query] += 1
        try:
            async with self._turn:
                made = self._answers.get(query)
                if made is None or made.begun_at < asked_at:
                    made = self._answers[query] = await self._make(query)
                return made
        finally:
            self._num_waiting -= 1
            self._asking[query] -= 1
            if not self._asking[query]:
                del self._asking[query]
                self._answers.pop(query, None)

    async def _make(self, query: Query) -> Answer:
        begun_at = trio.current_time()
        page = _Page()
        server = await self._ask(GetServerFigures())
        asked = ScrapeContext(server, self._node, query.endpoint, self._faults)
        if query.endpoint == DETAILED and any(query.wants(m.family.groups) for m in CLUSTER):
            exchanges = await self._ask(ListExchangeFigures())
            asked = asked._replace(exchanges=exchanges)
        for metric in IDENTITY:
            self._add_metric(page, metric.family.name, metric, asked)
        for metric in SERVER:
            if query.wants(metric.family.groups):
                self._add_metric(page, query.name(metric.family), metric, asked)
            await trio.lowlevel.checkpoint()
        for metric in CLUSTER if query.endpoint == DETAILED else ():
            if query.wants(metric.family.groups):
                with self._guarded(metric.family.name):
                    found = metric.samples(asked)
                    await self._add_in_turns(page, metric.family.name, metric.family, found)
        if query.wants(SCRAPE_SECONDS.groups):
            self._add(page, SCRAPE_SECONDS.name, SCRAPE_SECONDS, ())
            page.add("".join(self._own_lines()))
        await self._add_streams(page, query, server)
        self._number[query.endpoint] += 1
        spent = trio.current_time() - begun_at
        self._seconds[query.endpoint] = self._seconds.get(query.endpoint, 0.0) + spent
        return page.end(begun_at)

    def _add_metric(self, page: _Page, name: str, metric: Metric, asked: ScrapeContext) -> None:
        text = ""
        with self._guarded(metric.family.name):
            text = metric.family.head(name) + "".join(lines(name, metric.samples(asked)))
        page.add(text)

    def _add(self, page: _Page, name: str, family: Family, samples: Iterable[Sample]) -> None:
        page.add(family.head(name) + "".join(lines(name, samples)))

    def _own_lines(self) -> Iterator[str]:
        for endpoint, number in sorted(self._number.items()):
            labels = f'{{endpoint="{endpoint}"}}'
            yield f"{SCRAPE_SECONDS.name}_count{labels} {number}\n"
            yield f"{SCRAPE_SECONDS.name}_sum{labels} {self._seconds[endpoint]!r}\n"

    # -- streams

    async def _add_streams(self, page: _Page, query: Query, server: ServerFigures) -> None:
        is_total = query.endpoint == AGGREGATED
        columns = [
            column
            for column in COLUMNS
            if query.wants(column.family.groups) and (column.has_total or not is_total)
        ]
        by_name = [] if is_total else [b for b in BY_NAME if query.wants(b[0].groups)]
        if not columns and not by_name:
            return
        found = await self._ask(ListStreamFigures(vhosts=tuple(map(Name, sorted(query.hosts)))))
        table = await self._table(query, found, columns)
        if query.endpoint != DETAILED:
            alarm = (Sample({}, int(table.is_disk_full)),)
            self._add(page, DISK_ALARM.name, DISK_ALARM, alarm)
            self._add(page, KNOWN.name, KNOWN, (Sample({}, len(table)),))
            self._add(page, WRITTEN.name, WRITTEN, (Sample({}, table.flow.bytes_in),))
        if is_total:
            for number, column in enumerate(columns):
                total = (Sample({}, table.total(number, server)),)
                self._add(page, column.family.name, column.family, total)
                await trio.lowlevel.checkpoint()
            return
        await self._add_table(page, query, table, columns)
        chosen = set(zip(table.hosts, table.names, strict=True)) if by_name else ()
        for family, value in by_name:
            samples = (
                Sample({"vhost": c.vhost, "stream": c.stream, "consumer": c.name}, value(c.readers))
                for c in found.consumers
                if (c.vhost, c.stream) in chosen
            )
            await self._add_in_turns(page, query.name(family), family, samples)

    async def _table(self, query: Query, found: AllStreams, columns: Sequence[Column]) -> Table:
        table, is_chosen = Table(columns, found.gone), _Chosen(query)
        async for stream in in_turns(found.streams):
            with self._guarded(stream.name):
                if is_chosen(stream.name):
                    table.add(stream)
        return table

    @contextmanager
    def _guarded(self, subject: str) -> Iterator[None]:
        """A failure in the block is logged and counted, and goes no further."""
        try:
            yield
        except Exception:
            self._faults[_WHAT] += 1
            logger.exception("%s (%s) failed, the rest goes on", _WHAT, subject)

    async def _add_table(
        self, page: _Page, query: Query, table: Table, columns: Sequence[Column]
    ) -> None:
        queues: list[str] = []
        streams: list[str] = []
        async for host, name in in_turns(zip(table.hosts, table.names, strict=True)):
            where, what = escaped(host), escaped(name)
            queues.append(f'vhost="{where}",queue="{what}"')
            streams.append(f'vhost="{where}",stream="{what}"')
        for number, column in enumerate(columns):
            metric, values = query.name(column.family), table.column(number)
            page.add(column.family.head(metric))
            labels = queues if column.family.labels == QUEUE else streams
            for at in range(0, len(table), _LINES_A_TURN):
                part = slice(at, at + _LINES_A_TURN)
                pairs = zip(labels[part], values[part], strict=True)
                page.add("".join([f"{metric}{{{label}}} {value}\n" for label, value in pairs]))
                await trio.lowlevel.checkpoint()
        if query.endpoint == PER_OBJECT or query.families & QUEUE_GROUPS:
            metric = query.name(QUEUE_INFO)
            page.add(QUEUE_INFO.head(metric))
            for at in range(0, len(table), _LINES_A_TURN):
                part = slice(at, at + _LINES_A_TURN)
                found = [f"{metric}{{{one},{QUEUE_INFO_LABELS}}} 1\n" for one in queues[part]]
                page.add("".join(found))
                await trio.lowlevel.checkpoint()
        if query.wants(MATCHES.groups):
            matches = (one for stream in table.with_selectors for one in standing_matches(stream))
            await self._add_in_turns(page, MATCHES.name, MATCHES, matches)

    async def _add_in_turns(
        self, page: _Page, name: str, family: Family, samples: Iterable[Sample]
    ) -> None:
        page.add(family.head(name))
        found = lines(name, samples)
        while some := list(islice(found, _LINES_A_TURN // 4)):  # their labels cost more
            page.add("".join(some))
            await trio.lowlevel.checkpoint()


class _Chosen:
    """Tells which streams are asked for."""

    def __init__(self, query: Query) -> None:
        self._pattern = compiled(query.pattern, _PATTERN_MEMORY) if query.pattern else None

    def __call__(self, stream: str) -> bool:
        return self._pattern is None or bool(self._pattern.search(readable(stream)))

"""The rows of the comparisons, and what each figure must reach, as data."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

from benchmarks import exact as e, scenarios as s
from benchmarks.crowd import Crowd
from benchmarks.latency import Pace
from benchmarks.load import Load
from benchmarks.orders import ALL, BOTH_DECLARED, ONE_DECLARED, TAG, Choice, Orders


class Goal(NamedTuple):
    """What a figure must reach: a lower or an upper limit.

    Attributes:
        limit: a ratio to the peer's figure, or a figure.
        is_least: whether more is better.
        is_ratio: whether the limit is a ratio.
    """

    limit: float
    is_least: bool = False
    is_ratio: bool = True

    def __str__(self) -> str:
        return f"{'≥' if self.is_least else '≤'} {self.limit:g}{' ×' if self.is_ratio else ''}"

    def is_reached(self, value: float) -> bool:
        """Whether a ratio, or a figure, is good enough."""
        return value >= self.limit if self.is_least else value <= self.limit


class Figure(NamedTuple):
    """One thing that a row measures.

    Attributes:
        key: its name in the scenario.
        name: for people, with its unit.
        goal: None when it is shown beside others.
        is_least: whether more is better.
    """

    key: str
    name: str
    goal: Goal | None = None
    is_least: bool = False


class Row(NamedTuple):
    """A scenario and its figures.

    Attributes:
        work: gives them, from a server of the comparison and a share of the full size.
    """

    name: str
    work: Callable[[Any, float], s.Figures]
    figures: tuple[Figure, ...]


class Stage(NamedTuple):
    """Rows that are measured in turn, round for round, or once."""

    rows: tuple[Row, ...]
    is_repeated: bool = True


def at_least(limit: float) -> Goal:
    """At least this many times the peer's figure."""
    return Goal(limit, is_least=True)


def at_most(limit: float) -> Goal:
    """At most this many times the peer's figure."""
    return Goal(limit)


def _rate(goal: float, name: str = "msg/s") -> Figure:
    return Figure("rate", name, at_least(goal), is_least=True)


def _cpu(goal: float | None = None, name: str = "server CPU µs/msg") -> Figure:
    return Figure("cpu", name, at_most(goal) if goal else None)


def _milliseconds(key: str, goal: float) -> Figure:
    return Figure(key, f"{key} ms", at_most(goal))


_PUBLISHING = (_rate(2), _cpu(0.4))
_PUBLISHING_OTHERWISE = (_rate(1.5), _cpu())
_PAST_SMALL_CHUNKS = (
    Figure("skip", "filtered, no match: ms", at_most(0.01)),
    Figure("stats", "StreamStats after Subscribe: ms", Goal(5, is_ratio=False)),
)
_END_TO_END = (*(_milliseconds(key, 1) for key in ("p50", "p99", "p99.9")), _cpu(1))
_MILLION = 1_000_000
_TWENTY = Load(40_000, batch=1, window=1)
_SINGLE = Load(50_000, batch=1, window=1, values=100)
_FIVES = Load(100_000, batch=5, window=5, values=100)

_PUBLISH_ROWS = (
    Row("publish 100 B", s.publishing(Load(_MILLION)), _PUBLISHING),
    Row("publish 10 B", s.publishing(Load(_MILLION, size=10)), _PUBLISHING),
    Row(
        "publish 100 B, 100 filter values in turn",
        s.publishing(Load(_MILLION, values=100)),
        _PUBLISHING,
    ),
    Row(
        "publish 100 B, 100 filter values clustered",
        s.publishing(Load(_MILLION, values=100, run=10_000)),
        _PUBLISHING,
    ),
    Row("publish 1 KiB", s.publishing(Load(_MILLION // 5, size=1024)), _PUBLISHING_OTHERWISE),
    Row(
        "publish 100 B, 1 message per frame",
        s.publishing(Load(_MILLION // 2, batch=1)),
        _PUBLISHING_OTHERWISE,
    ),
    Row("publish 100 B, 4 connections", s.publishing(Load(_MILLION), 4), _PUBLISHING_OTHERWISE),
    Row(
        "publish 100 B, 8 streams at once",
        s.publishing(Load(_MILLION), 8, 8),
        _PUBLISHING_OTHERWISE,
    ),
    Row("20 connections, one message in flight each", s.publishing(_TWENTY, 20), _PUBLISHING),
)
_READ_ROWS = (
    Row(
        "read back large chunks",
        s.reading_large_chunks,
        (_rate(1, "MB/s"), _cpu(1, "server CPU ms/MB")),
    ),
    Row(
        "50,000 chunks of 1 message",
        s.small_chunks(_SINGLE),
        (
            _rate(2, "publish, msg/s"),
            _cpu(0.4, "publish, server CPU µs/chunk"),
            Figure("read", "read back, msg/s", at_least(1), is_least=True),
            *_PAST_SMALL_CHUNKS,
        ),
    ),
    Row("20,000 chunks of 5 messages", s.small_chunks(_FIVES), _PAST_SMALL_CHUNKS),
    Row(
        "sealed segments, value in 0.1 % of chunks",
        s.sealed_segments,
        (
            Figure("beyond", "kB beyond the true chunks", Goal(0, is_ratio=False)),
            Figure("share", "share of what is delivered, %"),
        ),
    ),
)
_PACE_ROWS = (
    Row("end to end, 1,000 msg/s", s.at_a_pace(Pace(1_000, 4)), _END_TO_END),
    Row("end to end, 10,000 msg/s", s.at_a_pace(Pace(10_000, 4)), _END_TO_END),
    Row("end to end, 50,000 msg/s", s.at_a_pace(Pace(50_000, 4)), _END_TO_END),
    Row(
        "1,000 msg/s, 50 filtered bystanders",
        s.at_a_pace(Pace(1_000, 4, bystanders=50)),
        (_cpu(0.1), _milliseconds("p50", 0.5)),
    ),
    Row(
        "20,000 msg/s, 50 consumers at the tail",
        s.at_a_pace(Pace(20_000, 4, batch=100, consumers=50)),
        (_cpu(0.7), _milliseconds("p99", 1)),
    ),
)
_NARROW = (
    Figure("in_time", "within a second, %", Goal(99.9, is_least=True, is_ratio=False), True),
    _milliseconds("p50", 0.5),
    _milliseconds("p99", 0.5),
    _cpu(0.5),
)
_NARROW_ROWS = (
    Row("1,000 msg/s, 100 consumers, each for its value", s.narrow(Crowd(100)), _NARROW),
    Row("1,000 msg/s, 1,000 consumers, each for its value", s.narrow(Crowd(1_000)), _NARROW),
)


def _memory(when: str) -> Row:
    return Row(f"resident memory, {when}", s.resident, (Figure("resident", "MB", at_most(0.6)),))


_START = Row(
    "start, 10,000 chunks in 100 segments",
    s.starting,
    (
        Figure("ready", "ms from start to the stream's answer", at_most(0.5)),
        Figure("more", "ms more than without the stream", at_most(0.5)),
    ),
)
STAGES = (
    Stage((_memory("idle"),), is_repeated=False),
    Stage((*_PUBLISH_ROWS, *_READ_ROWS, *_PACE_ROWS, *_NARROW_ROWS)),
    Stage((_memory("after all rows"),), is_repeated=False),
    Stage((_START,)),  # at the end: it restarts the servers
)


def _at_most_seconds(limit: float) -> Figure:
    return Figure("seconds", "s per million", Goal(limit, is_ratio=False))


_OWN_TAG = (_at_most_seconds(0.5), _cpu())
_GOALS: dict[Choice, tuple[float | None, float | None]] = {
    TAG: (1, 0.5),
    BOTH_DECLARED: (0.4, 0.25),
    ONE_DECLARED: (None, 0.5),
}
_GOALS_IN_RUNS = (None, 0.05)
_LOOK_UP = (
    Figure("p50", "p50 ms", Goal(0.5, is_ratio=False)),
    Figure("cpu", "server CPU ms each", Goal(0.3, is_ratio=False)),
)
_SCATTERED, _IN_RUNS = Orders(_MILLION), Orders(_MILLION, run=1_000)
_SEALED = _SCATTERED._replace(is_sealed=True)


def _choosing() -> Iterator[Row]:
    """Messages chosen by the server, for AMQP."""
    layouts = (("scattered", _SCATTERED), ("in runs", _IN_RUNS))
    for (layout, orders), is_sealed, is_cold in product(layouts, (False, True), (False, True)):
        place = ("sealed" if is_sealed else "open") + (", cold" if is_cold else "")
        for choice, goals in _GOALS.items():
            wall, cpu = _GOALS_IN_RUNS if choice.sql and orders.run > 1 else goals
            if is_cold:
                wall, cpu = None, None
            yield Row(
                f"orders {layout}, {place}: {choice.name}, pika",
                e.choose_orders(
                    choice, e.pika, orders._replace(is_sealed=is_sealed), is_cold=is_cold
                ),
                (Figure("seconds", "s per million", at_most(wall) if wall else None), _cpu(cpu)),
            )


_ORDER_ROWS = (
    Row(
        "orders: publish, five properties",
        e.publish_orders,
        (_at_most_seconds(8), Figure("cpu", "server CPU µs/msg", Goal(3, is_ratio=False))),
    ),
    Row(
        "orders: stored",
        e.store_orders,
        (Figure("bytes", "bytes/msg", Goal(195, is_ratio=False)),),
    ),
    Row(
        "orders: read all, own client",
        e.choose_orders(ALL, e.own_client, _SCATTERED),
        (_at_most_seconds(4), _cpu()),
    ),
    Row(
        "orders: read all, Arrow",
        e.choose_orders(ALL, e.arrow, _SCATTERED),
        (_at_most_seconds(1), _cpu()),
    ),
    Row("orders: tag, 1 %, own client", e.choose_orders(TAG, e.own_client, _SCATTERED), _OWN_TAG),
    Row("orders: tag, 1 %, find", e.choose_orders(TAG, e.find, _SCATTERED), _OWN_TAG),
    *_choosing(),
    Row("orders, open: key look-ups", e.look_orders_up(_SCATTERED), _LOOK_UP),
    Row("orders, sealed: key look-ups", e.look_orders_up(_SEALED), _LOOK_UP),
    Row(
        "orders, sealed, cold at first: key look-ups",
        e.look_orders_up(_SEALED, is_cold=True),
        tuple(it._replace(goal=None) for it in _LOOK_UP),
    ),
)
ORDER_STAGES = (Stage(_ORDER_ROWS),)

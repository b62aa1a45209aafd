"""How much connections publish and consume in a second: counts, compared with an earlier look.

Nobody counts that for the console: whoever looks at connections leaves what was counted behind, and
the next look, his own or another's, makes a rate of the two.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from streamd.operations.connections import ConnectionDetails

SHORTEST_MS = 4_000  # between two looks
LONGEST_MS = 60_000  # a rate over a longer time says nothing about now
MOST = 10_000  # connections
PUBLISHED, CONSUMED = "published", "consumed"

Key: TypeAlias = tuple[str, int]  # PUBLISHED or CONSUMED, number of the publisher or subscription


@dataclass(slots=True)
class _Looks:
    """What was counted of a connection: at the last look, and at the one before it."""

    now_ms: float
    now: dict[Key, int]
    before_ms: float
    before: dict[Key, int]


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages a second of one connection; None while they are not known.

    Attributes:
        each: by publisher and subscription.
    """

    each: Mapping[Key, float]
    published: float | None
    consumed: float | None


_UNKNOWN = Rates({}, None, None)


class ConnectionRates:
    """The rates of connections; of so many, those that were looked at last."""

    def __init__(self) -> None:
        self._looks: OrderedDict[tuple[str, int], _Looks] = OrderedDict()

    def look(self, found: ConnectionDetails, now_ms: float) -> Rates:
        """The rates of a connection since one of the last looks at it.

        Args:
            found: the connection, as it is now.
            now_ms: the time, in ms since 1970.
        """
        connection = found.connection
        counts: dict[Key, int] = {
            (PUBLISHED, p.publisher_id): p.published for p in found.publishers
        }
        counts |= {(CONSUMED, c.subscription_id): c.consumed for c in found.consumers}
        key = connection.name, connection.connected_at_ms
        looks = self._looks.get(key)
        if looks is None or not 0 <= now_ms - looks.now_ms <= LONGEST_MS:
            begin = connection.connected_at_ms  # when nothing was counted
            is_young = 0 <= now_ms - begin <= LONGEST_MS
            looks = _Looks(
                now_ms, counts, begin if is_young else now_ms, {} if is_young else counts
            )
            self._looks[key] = looks
            if len(self._looks) > MOST:
                self._looks.popitem(last=False)
        elif now_ms - looks.now_ms >= SHORTEST_MS:
            looks.before_ms, looks.before = looks.now_ms, looks.now
            looks.now_ms, looks.now = now_ms, counts
        self._looks.move_to_end(key)
        seconds = (now_ms - looks.before_ms) / 1000
        if seconds < SHORTEST_MS / 1000:
            return _UNKNOWN
        # Numbers are given again: who has counted less than somebody before him is another one.
        each = {
            key: (count - was if count >= (was := looks.before.get(key, 0)) else count) / seconds
            for key, count in counts.items()
        }
        return Rates(
            each,
            sum(rate for (kind, _), rate in each.items() if kind == PUBLISHED),
            sum(rate for (kind, _), rate in each.items() if kind == CONSUMED),
        )

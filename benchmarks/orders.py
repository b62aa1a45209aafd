"""Orders: messages of 100 bytes with five properties, made by a formula.

RocketMQ's load program, rocketmq/Peer.java, makes the same ones. So both servers store the same,
and how many messages a selector chooses is known without asking either.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from segments.message import Message

BODY = b"x" * 100
_REGIONS = ("EU", "US", "UK", "JP")
_MASK = 0xFFFFFFFF
_KINDS, _TAGS, _TOTALS = 50, 100, 1000
_LARGE = 900
_BESIDE = 1_000_000_007  # so that a tag does not depend on the kind


class Orders(NamedTuple):
    """A stream of orders.

    Attributes:
        messages: how many.
        run: neighbours that have the same kind and tag: 1 where they are scattered.
        is_sealed: whether streamd stores them in sealed segments, but for a twentieth.
    """

    messages: int
    run: int = 1
    is_sealed: bool = False

    def properties(self, number: int) -> dict[str, str | int]:
        """Those of an order. The last one is chosen by all selectors."""
        group = number // self.run
        kind, tag = _mixed(group) % _KINDS, _mixed(group + _BESIDE) % _TAGS
        mixed = _mixed(number)
        total = mixed // _KINDS % _TOTALS
        if number == self.messages - 1:
            kind, tag, total = 7, 7, 999
        return {
            "region": _REGIONS[mixed // (_KINDS * _TOTALS) % len(_REGIONS)],
            "kind": f"k{kind}",
            "total": total,
            "order_id": order_id(number),
            "TAGS": f"t{tag}",
        }

    def made(self, start: int, end: int) -> Iterator[Message]:
        """The messages with these numbers."""
        for number in range(start, end):
            yield Message(BODY, application_properties=dict(self.properties(number)))


class Choice(NamedTuple):
    """Which orders are wanted.

    Attributes:
        is_chosen: what `tags` or `sql` say, said otherwise; without either, all are wanted.
    """

    name: str
    is_chosen: Callable[[dict[str, str | int]], bool]
    tags: str | None = None
    sql: str | None = None


ALL = Choice("all", lambda _: True)
TAG = Choice("tag, 1 %", lambda it: it["TAGS"] == "t7", tags="t7")
BOTH_DECLARED = Choice(
    "SQL, two declared, 0.2 %",
    lambda it: it["kind"] in ("k3", "k7") and it["TAGS"] in ("t1", "t3", "t5", "t7", "t9"),
    sql="kind IN ('k3', 'k7') AND TAGS IN ('t1', 't3', 't5', 't7', 't9')",
)
ONE_DECLARED = Choice(
    "SQL, one of two declared, 0.2 %",
    lambda it: it["kind"] == "k7" and int(it["total"]) >= _LARGE,
    sql=f"kind = 'k7' AND total >= {_LARGE}",
)


def order_id(number: int) -> str:
    """The key of an order."""
    return f"order-{number:09}"


@cache
def number_chosen(choice: Choice, orders: Orders) -> int:
    """How many orders are wanted."""
    if choice is ALL:
        return orders.messages
    return sum(choice.is_chosen(orders.properties(n)) for n in range(orders.messages))


def _mixed(number: int) -> int:
    number = number * 2654435761 & _MASK
    number ^= number >> 15
    number = number * 2246822519 & _MASK
    return number ^ number >> 13

"""How much work a selector is, in units of some 400 ns: an estimate, seldom exceeded by much."""

from typing import NamedTuple

from segments.selector import nodes as n

_BYTES_A_UNIT = 32  # of a message, read once, and once more for each test of a string
_ONE_CHAR_TESTS = 8  # a pattern with a _ in it is as much work as so many without


class Cost(NamedTuple):
    """The cost of a selector for each message.

    Attributes:
        parts: properties, values and operators.
        scans: how often the whole message may be gone through.
    """

    parts: int
    scans: int

    def units(self, size: int, num_messages: int = 1) -> int:
        """For messages that have `size` bytes together."""
        return self.parts * num_messages + self.scans * size // _BYTES_A_UNIT


def cost_of(node: n.Node) -> Cost:
    """The cost of a selector."""
    nodes = list(node.walk())
    return Cost(len(nodes), 1 + sum(map(_scans, nodes)))


def _scans(node: n.Node) -> int:
    if isinstance(node, n.Like):
        return _ONE_CHAR_TESTS if "_" in node.pattern else 1
    return isinstance(node, n.TextTest)


class Budget:
    """Work that may still be done.

    Args:
        units: how much; see Cost.
    """

    def __init__(self, units: int) -> None:
        self._left = units

    def take(self, units: int) -> bool:
        """Whether there was enough left for this; if not, there is nothing left."""
        self._left -= units
        return self._left >= 0

"""A selector as its users have it: parsed, and compiled for a run over messages."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from segments.errors import FormatError
from segments.selector import nodes as n, tags
from segments.selector.check import check
from segments.selector.cost import cost_of
from segments.selector.dialects import Dialect
from segments.selector.errors import SelectorError
from segments.selector.evaluate import Clock, Compiler, Condition, properties_of
from segments.selector.evaluate_rocketmq import Compiler as RocketmqCompiler
from segments.selector.fields import RowReader
from segments.selector.message_slices import body_at, holding
from segments.selector.parser import FIELDS, Parser
from segments.selector.prefilter import screen_of
from segments.selector.pushdown import Pushdown, push_down
from segments.selector.rocketmq import RocketmqParser

MAX_PROPERTY_BYTES = 255  # of a property's name: its length is one byte of a message
TAGS = "tags"  # the kind of selector that is not SQL, where a dialect is named
SCREEN_SHARE = 8  # look at places one by one while they are fewer than this part of the messages


@dataclass(frozen=True, slots=True)
class Selector:
    """Which messages of a stream are wanted, by their properties.

    Attributes:
        node: the parsed text.
        dialect: whose rules hold.
    """

    node: n.Node
    dialect: Dialect

    def __str__(self) -> str:
        """Its canonical text: parsed again, it gives the same selector."""
        return self.node.text(self.dialect)

    @property
    def is_tags(self) -> bool:
        """A tag expression, not SQL."""
        return isinstance(self.node, n.Tags)

    @property
    def properties(self) -> tuple[n.Property, ...]:
        """The properties that it names."""
        return properties_of(self.node)

    @property
    def depends_on_time(self) -> bool:
        """Whether a message that does not match now may match later."""
        return any(isinstance(part, n.UtcNow) for part in self.node.walk())

    def push_down(self, filter_properties: Sequence[str], *, is_strict: bool) -> Pushdown:
        """See pushdown.push_down.

        Raises:
            SelectorError: there is no property of one of the names.
        """
        found = {name: parse_property(name) for name in filter_properties}
        return push_down(self.node, self.dialect, found, is_strict=is_strict)

    def matcher(self) -> "MessageMatcher":
        """A fresh matcher, its counts at zero."""
        return MessageMatcher(self)


def parse_selector(kind: str, text: str) -> Selector:
    """The selector of a kind: what is registered, stored and sent as two strings.

    Args:
        kind: a dialect of SQL, or TAGS for a tag expression.
        text: the selector.

    Raises:
        ValueError: there is no such kind; a SelectorError when the text is not a selector.
    """
    if kind == TAGS:
        return parse_tags(text)
    try:
        dialect = Dialect(kind)
    except ValueError:
        raise ValueError(f"dialect is {kind!r}, expected one of {', '.join(Dialect)}") from None
    return parse_sql(text, dialect)


def parse_sql(text: str, dialect: Dialect = Dialect.UNION) -> Selector:
    """A SQL92 selector.

    Raises:
        SelectorError: the text is not a selector; the message shows the place.
    """
    parser = RocketmqParser(text) if dialect is Dialect.ROCKETMQ else Parser(text, dialect)
    node = parser.selector()
    check(node, text, dialect)
    return Selector(node, dialect)


def parse_tags(text: str) -> Selector:
    """A tag expression: `a || b`, or `*` for every message. A message's tag is its property TAGS.

    Raises:
        SelectorError: it names no tag.
    """
    return Selector(tags.parse(text), Dialect.UNION)


@lru_cache(maxsize=256)
def parse_property(name: str) -> n.Property:
    """A property that is named alone: an application property, or a field as properties.subject.

    Raises:
        SelectorError: there is no such field, or the name is empty or longer than
            MAX_PROPERTY_BYTES in UTF-8.
    """
    if len(name.encode(errors="replace")) > MAX_PROPERTY_BYTES:
        reason = f"a name of at most {MAX_PROPERTY_BYTES} bytes is expected"
        raise SelectorError(reason, name, 0, len(name))
    section, dot, field = name.partition(".")
    if dot and section == n.PropertySection.PROPERTIES:
        if field not in FIELDS[n.PropertySection.PROPERTIES]:
            reason = f"properties has {', '.join(FIELDS[n.PropertySection.PROPERTIES])}"
            raise SelectorError(reason, name, len(section) + 1, len(name))
        return n.Property(n.PropertySection.PROPERTIES, field)
    if not name:
        raise SelectorError("the name of a property is expected", name, 0, 0)
    return n.Property(n.PropertySection.APPLICATION, name)


class MessageMatcher:
    """Tells which messages a selector selects.

    Attributes:
        cost: of each message.
        tested: messages that were looked at, or ruled out with their chunk.
        matched: of them, selected ones.
        undecodable: of them, not AMQP 1.0 as far as was read; they match nothing.
    """

    def __init__(self, selector: Selector) -> None:
        properties = selector.properties
        self.clock = Clock()
        self.cost = cost_of(selector.node)
        self.tested = self.matched = self.undecodable = 0
        self._read = RowReader(properties).read
        self._condition = condition_of(selector, properties, self.clock)
        self._takes_all = isinstance(selector.node, n.Tags) and selector.node.wanted is None
        self._screen = screen_of(selector.node, selector.dialect)

    def matches(self, raw: bytes) -> bool:
        """Whether one message is selected."""
        return bool(self.select((raw,)))

    def select(self, bodies: Sequence[bytes]) -> list[int]:
        """The places of the selected ones in a list of messages, in order."""
        self.tested += len(bodies)
        if self._takes_all:
            self.matched += len(bodies)
            return list(range(len(bodies)))
        read, condition = self._read, self._condition
        found = []
        for place, raw in enumerate(bodies):
            try:
                if condition(read(raw)) is True:
                    found.append(place)
            except FormatError:
                self.undecodable += 1
        self.matched += len(found)
        return found

    def select_in(self, data: bytes, ends: Sequence[int]) -> list[int]:
        """The places of the selected messages of a chunk, most of it not looked at where it can.

        Args:
            data: the chunk's messages, each with 4 bytes of length before it.
            ends: where each message ends in `data`, in order.
        """
        if self._screen is not None:
            places = self._screen.places(data, len(ends) // SCREEN_SHARE)
            if places is not None:
                return self._select_at(data, ends, places)
        begins = [4, *(end + 4 for end in ends)]
        return self.select([data[a:b] for a, b in zip(begins, ends, strict=False)])

    def _select_at(self, data: bytes, ends: Sequence[int], places: Sequence[int]) -> list[int]:
        candidates = list(holding(ends, places))
        bodies = [body_at(data, ends, place) for place in candidates]
        self.tested += len(ends) - len(bodies)
        return [candidates[found] for found in self.select(bodies)]


def condition_of(selector: Selector, properties: Sequence[n.Property], clock: Clock) -> Condition:
    """A selector compiled for rows of some properties, which are all that it names or more."""
    if selector.dialect is Dialect.ROCKETMQ:
        return RocketmqCompiler(properties).selector(selector.node)
    return Compiler(properties, selector.dialect, clock).condition(selector.node)

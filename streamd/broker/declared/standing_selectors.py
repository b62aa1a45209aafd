"""Standing selectors: groups of consumers whose selector the writer evaluates, once per chunk.

A chunk that holds a match gets the selector's token into its filter, so the group's consumers skip
all others whatever their selector says. Chunks from before the registration are never skipped.
Equal selectors have equal tokens, different ones have different tokens.

Source: apache/rocketmq,
broker/src/main/java/org/apache/rocketmq/broker/filter/CommitLogDispatcherCalcBitMap.java, which
does this for each message.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from segments import ChunkBuilder, ChunkMatcher
from segments.columns import ToldRows, places_of
from segments.row_screen import RowScreen
from segments.selector import (
    TAGS,
    Budget,
    Dialect,
    MatcherSet,
    Selector,
    SelectorError,
    parse_selector,
)
from streamd.broker.declared.filter_contract import messages_of, unpacked_size
from streamd.operations.errors import Reason, Refused

logger = logging.getLogger(__name__)

MAX_GROUPS = 16  # of a stream: each costs its writer
MAX_PARTS = 100  # properties, values and operators of one: each costs, too
TOKEN_PREFIX = b"\0selector\0"
MARK_UNITS = 100_000  # of work for the chunks that are written together: some 40 ms
_TOKEN_HASH_BYTES = 16
_BYTES_A_UNIT = 8  # of a sub-batch that is unpacked
_ROWS_A_UNIT = 1024  # messages of which columns are asked for one value
_PLACES_A_UNIT = 4


class StandingSelector(NamedTuple):
    """A selector that a group has registered with a stream.

    Attributes:
        group: the name of the consumers that share it.
        dialect: union, rocketmq or amqp for SQL; tags for a tag expression.
        text: the selector, canonical.
        since: chunks from this offset on have its token if they hold a match.
    """

    group: str
    dialect: str
    text: str
    since: int

    @property
    def token(self) -> bytes:
        """What represents it in filters."""
        key = f"{self.dialect}\0{self.text}".encode()
        digest = hashlib.blake2b(key, digest_size=_TOKEN_HASH_BYTES).digest()
        return TOKEN_PREFIX + digest

    def parse(self) -> Selector:
        """The selector itself.

        Raises:
            SelectorError: the text is not a selector.
        """
        return parse_selector(self.dialect, self.text)


def parse_standing(group: str, dialect: str, text: str) -> StandingSelector:
    """The selector that a group wants to register, its text in canonical form.

    Raises:
        Refused: the selector is not valid, or depends on the time.
    """
    if dialect not in (TAGS, *Dialect):
        details = f"there is no dialect {dialect[:40]!r}; there are {TAGS}, {', '.join(Dialect)}"
        raise Refused(Reason.PRECONDITION_FAILED, details)
    asked = StandingSelector(group, dialect, text, 0)
    try:
        selector = asked.parse()
        asked = asked._replace(text=str(selector))
        asked.parse()  # the canonical text may be longer, and is what is kept
    except SelectorError as error:
        raise Refused(Reason.PRECONDITION_FAILED, str(error)) from error
    if selector.depends_on_time:
        details = "a standing selector cannot use UTC(): what matches must not change later"
        raise Refused(Reason.PRECONDITION_FAILED, details)
    parts = _num_parts(selector)
    if parts > MAX_PARTS:
        details = f"the selector has {parts} parts, expected at most {MAX_PARTS}"
        raise Refused(Reason.PRECONDITION_FAILED, details)
    return asked


def _num_parts(selector: Selector) -> int:
    return sum(1 for _ in selector.node.walk())


class _Screen(NamedTuple):
    """What the columns of a chunk say of a selector.

    Attributes:
        rows: see `RowScreen.rows`.
        num_parts: properties, values and operators.
    """

    rows: Callable[[ToldRows], int | None]
    num_parts: int


class StandingSelectors:
    """The standing selectors of one stream, and from where on chunks are marked for each.

    The catalog says which there are, and a manifest says the same of the segments that it names, as
    a slot of a write-ahead log does of chunks behind them.
    What comes from a store may be of two moments: a selector may have been removed and added in
    between. So both have to say that a chunk is marked, or else nobody skips it.

    Args:
        rows: those that are registered already. One that cannot be read, because another version
            of this program has registered it, say, matches everything: its group misses nothing.
        filter_properties: the names of those that the stream has declared, the first one first.
        is_strict: see `row_screen.RowScreen`.

    Attributes:
        matches: chunks in which a selector has matched, by its token.
    """

    def __init__(
        self,
        rows: Iterable[StandingSelector] = (),
        filter_properties: Sequence[str] = (),
        *,
        is_strict: bool = False,
    ) -> None:
        self._filter_properties, self._is_strict = filter_properties, is_strict
        self._users: dict[str, list[Callable[[], None]]] = {}
        self._marked: Mapping[str, int] = {}
        self._unmarked_before = 0  # for tokens that are not there
        self._rows: dict[str, StandingSelector] = {}
        self._take(list(rows))

    def follow(self, rows: Iterable[StandingSelector]) -> None:
        """What is registered on the server that writes; users of what is not so any more end."""
        rows = sorted(rows)
        if rows != sorted(self._registered):
            before = self._rows
            self._take(rows)
            self._end_users(before)

    def rest_on(self, marked: Mapping[str, int], next_offset: int) -> None:
        """Chunks of the log are those that a store has, and what is written from now on.

        Users of a selector for which fewer of them are marked than they were told end.

        Args:
            marked: see Manifest.
            next_offset: behind those that the store has.
        """
        self._marked, self._unmarked_before = marked, next_offset
        before = self._rows
        self._rows = {row.group: self._certain(row) for row in before.values()}
        self._end_users(before)

    def marked(self) -> dict[str, int]:
        """See Manifest.marked: of the chunks that there are now."""
        found: dict[str, int] = {}
        for row in self._rows.values():
            token = row.token.hex()
            found[token] = min(row.since, found.get(token, row.since))
        return found

    def _certain(self, row: StandingSelector) -> StandingSelector:
        stored = self._marked.get(row.token.hex(), self._unmarked_before)
        return row._replace(since=max(row.since, stored))

    def _end_users(self, before: dict[str, StandingSelector]) -> None:
        for group, old in before.items():
            row = self._rows.get(group)
            if row is None or row.token != old.token or row.since > old.since:
                for end in list(self._users.get(group, ())):
                    end()

    def _take(self, rows: list[StandingSelector]) -> None:
        self.matches: Counter[bytes] = Counter()
        self._registered = rows
        self._rows = {}
        self._changing: dict[str, StandingSelector | None] = {}
        self._unreadable: set[bytes] = set()  # tokens that every chunk gets
        for row in rows:
            self._rows[row.group] = self._certain(row)
            try:
                row.parse()
            except SelectorError as error:
                self._unreadable.add(row.token)
                text = "the standing selector of group %s cannot be read, its consumers get all: %s"
                logger.error(text, row.group, error)
        self._compile()

    def add_user(self, group: str, end: Callable[[], None]) -> None:
        """A subscription relies on what `matcher` gave for a group.

        Args:
            group: whose selector it is.
            end: called when that does not hold any more; the subscription ends.
        """
        self._users.setdefault(group, []).append(end)

    def num_users(self, group: str) -> int:
        """How many subscriptions rely on the selector of a group."""
        return len(self._users.get(group, ()))

    def remove_user(self, group: str, end: Callable[[], None]) -> None:
        """A subscription of a group has ended."""
        self._users[group].remove(end)
        if not self._users[group]:
            del self._users[group]

    def rows(self) -> list[StandingSelector]:
        """All, by their groups."""
        return [self._rows[group] for group in sorted(self._rows)]

    def find(self, group: str) -> StandingSelector | None:
        """What a group has registered."""
        return self._rows.get(group)

    def check_room(self, row: StandingSelector) -> None:
        """Raise Refused when a group cannot register."""
        if row.group not in self._rows and len(self._rows) >= MAX_GROUPS:
            details = f"{MAX_GROUPS} groups have registered a selector: no more can"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        self.check_unused(row.group)

    def check_unused(self, group: str) -> None:
        """Raise Refused while a group's consumers rely on its selector."""
        if num_users := self.num_users(group):
            details = f"{num_users} consumers of group {group} are reading with its selector"
            raise Refused(Reason.PRECONDITION_FAILED, details)

    @contextmanager
    def changing(self, group: str, row: StandingSelector | None) -> Iterator[None]:
        """Change the catalog in this block; if that succeeds, the group has the new selector.

        Until it is known whether it does, both the old and the new selector are evaluated, so that
        no chunk lacks a token that it needs, and no consumer can come to rely on either.

        Args:
            group: has no consumers.
            row: its new selector; None for none.
        """
        self._changing[group] = row
        self._compile()
        try:
            yield
            if row is None:
                del self._rows[group]
            else:
                self._rows[group] = row
        finally:
            del self._changing[group]
            self._compile()
            used = {row.token for row in self._rows.values()}
            self.matches = Counter({t: n for t, n in self.matches.items() if t in used})

    def _compile(self) -> None:
        rows = [*self._rows.values(), *filter(None, self._changing.values())]
        self._unreadable &= {row.token for row in rows}
        readable = {row.token: row.parse() for row in rows if row.token not in self._unreadable}
        self._matchers = MatcherSet(readable) if readable else None
        self._screens: dict[bytes, _Screen] = {}
        for token, selector in readable.items():
            screen = RowScreen(selector, self._filter_properties, is_strict=self._is_strict)
            if screen.is_useful:
                self._screens[token] = _Screen(screen.rows, _num_parts(selector))

    def matcher(self, group: str, selector: str = "", dialect: str = "") -> ChunkMatcher:
        """Which chunks a consumer of a group needs.

        Args:
            group: of the consumer.
            selector: the one that it expects, canonical; empty when it expects none in particular.
            dialect: the same of the dialect, which says what the text means.

        Raises:
            Refused: the group has registered none, or another one, or is changing it.
        """
        row = self._rows.get(group)
        if row is None:
            details = f"group {group} has no standing selector"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        if group in self._changing:
            details = f"the standing selector of group {group} is being changed: try again"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        if (selector or row.text, dialect or row.dialect) != (row.text, row.dialect):
            details = (
                f"group {group} has registered {row.text} ({row.dialect}), a consumer expects "
                f"{selector or row.text} ({dialect or row.dialect})"
            )
            raise Refused(Reason.PRECONDITION_FAILED, details)
        return ChunkMatcher([row.token], since=row.since)

    def mark(self, builders: Sequence[ChunkBuilder]) -> None:
        """Put the tokens of all selectors that match in a chunk into its filter.

        When that would take too long, the others' as well: then no consumer skips the chunk.

        Args:
            builders: of the chunks that are written together.
        """
        if self._unreadable:
            for builder in builders:
                for token in self._unreadable:
                    builder.add_token(token)
        if self._matchers is not None:
            budget = Budget(MARK_UNITS)
            for builder in builders:
                self._mark(builder, self._matchers, budget)

    def _mark(self, builder: ChunkBuilder, matchers: MatcherSet[bytes], budget: Budget) -> None:
        candidates = self._candidates(builder, budget)
        if len(candidates) == len(matchers.keys) and not any(candidates.values()):
            return
        data, ends = builder.data, builder.ends
        if ends is not None:
            found = matchers.matching_in(data, ends, budget, candidates)
        elif budget.take(unpacked_size(data) // _BYTES_A_UNIT):
            found = matchers.matching(messages_of(data), budget)
        else:
            found = matchers.keys
        for token in found:
            builder.add_token(token)
            self.matches[token] += 1

    def _candidates(self, builder: ChunkBuilder, budget: Budget) -> dict[bytes, Sequence[int]]:
        """The messages that a selector may select, by its token; not where it may be most of them.

        Then a look at one after the other finds a match as soon.
        """
        found: dict[bytes, Sequence[int]] = {}
        columns = builder.columns if self._screens else None
        if columns is None:
            return found
        number = columns.num_records
        for token, screen in self._screens.items():
            if not budget.take(screen.num_parts * (1 + number // _ROWS_A_UNIT)):
                break
            rows = screen.rows(columns)
            if rows is None or 2 * rows.bit_count() > number:
                continue
            if budget.take(rows.bit_count() // _PLACES_A_UNIT):
                found[token] = places_of(rows, number)
        return found

"""Searching streams for single messages: what is asked in words, and whose turn it is.

Pages are worked on beside the engine (search_places.py), which gives out places and answers what a
page asks for of the log (search_session.py). So nothing that is searched for can hold it up.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, closing
from typing import NamedTuple, TypeAlias

import mmh3
import trio

from segments import Log, StorageError
from segments.search import BadSearch, Limits, Page, SearchRequest
from segments.search.handing import Failed, Job, Notes
from segments.search.request import MAX_LIMIT
from segments.segment import MAX_OFFSET
from segments.selector import (
    TAGS,
    Dialect,
    Selector,
    SelectorError,
    names_in,
    parse_property,
    parse_selector,
)
from segments.times import time_ms
from segments.words import whole_number
from streamd.broker.catalog.writer import Check
from streamd.broker.search_places import Place
from streamd.broker.search_session import FETCH_SECONDS, Session
from streamd.broker.streams.fetcher import AwayError
from streamd.broker.streams.stream import Stream
from streamd.broker.virtual_host import VirtualHost
from streamd.operations.argument_kinds import Value
from streamd.operations.arguments import (
    FILTER_CONTRACT,
    KEY_PROPERTIES,
    STRICT,
    filter_properties,
)
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name

logger = logging.getLogger(__name__)

MAX_SEARCHES = 4  # that run at the same time; others wait for their turn
MAX_WAITING = 100  # and more are refused
PAGE_BYTES = 1 << 20
MAX_OF_A_USER = 8  # that wait for their turn, of those that are asked for over HTTP
MAX_MESSAGE_BYTES = 17 << 20  # that are found: AMQP 0-9-1 publishes 16 MiB, and properties
READ_BYTES = 1 << 30
_MORE_SECONDS = 30.0  # than it may that a page takes before it is given up

_MANY = frozenset(("key", "property", "filter"))
_ONE = frozenset(
    ("from", "to", "by", "sql", "dialect", "tags", "offset", "order", "limit", "after", "latest")
)
_CHUNK_TIME, _CREATION_TIME = "chunk-time", "creation-time"
_OLDEST, _NEWEST = "oldest", "newest"
_MOST_WORDS = 1_000
_DEFAULT_LIMIT = 100

Words: TypeAlias = Iterable[tuple[str, str]]


class Asked(NamedTuple):
    """A search as it was asked for.

    Attributes:
        after: the token to go on with; empty at the beginning.
    """

    request: SearchRequest
    after: str


class Busy(Exception):
    """A user searches already; one sentence."""


class Searches:
    """All searches of a server.

    Args:
        now_ms: the wall clock.
        place: where pages are worked on.

    Attributes:
        place: see above.
        num_begun, num_refused: since the start; each page of a search counts.
        num_open: that run at the moment.
        unsent: bytes of answers over HTTP that users have not taken yet.
    """

    def __init__(self, now_ms: Callable[[], int], place: Place) -> None:
        self._now_ms = now_ms
        self.place = place
        self._places = trio.Semaphore(MAX_SEARCHES)
        self._num_waiting = 0
        self.num_begun = self.num_refused = self.num_open = 0
        self._users: dict[Name, _User] = {}
        self.unsent: Counter[Name] = Counter()

    @asynccontextmanager
    async def alone(self, user: Name, seconds: float = 0) -> AsyncIterator[None]:
        """A user's turn to search: there is one search at a time of those who ask over HTTP.

        Args:
            user: who searches.
            seconds: how long the turn is waited for; those who wait get it in their order.

        Raises:
            Busy: another search of this user is going on.
        """
        own = self._users.setdefault(user, _User(user))
        own.number += 1
        try:
            if own.number > 1 + (MAX_OF_A_USER if seconds else 0):
                raise own.busy()
            await own.wait(seconds)
            try:
                yield
            finally:
                own.turn.release()
        finally:
            own.number -= 1
            if not own.number:
                del self._users[user]

    async def find(
        self, host: VirtualHost, name: Name, words: Words, check: Check, seconds: float
    ) -> Page:
        """The next page of a search.

        Args:
            host: the virtual host of the stream.
            name: of the stream.
            words: what is asked for, see `read_words`.
            check: raises Refused when the user may not read the stream.
            seconds: the page is cut when it has taken so long.

        Raises:
            Refused: the words cannot be understood, there is no such stream or right, or it cannot
                be read.
        """
        check()
        stream = host.find(name)
        asked = read_words(words, host.row(name).effective)
        async with _Place(self), stream.opened() as log:
            check()
            names = repr((host.name, name, log.life)).encode()
            identity = mmh3.hash64(names, signed=False)[0]
            job = Job(
                asked.request,
                identity,
                self._now_ms(),
                asked.after,
                Limits(PAGE_BYTES, MAX_MESSAGE_BYTES, READ_BYTES),
                log.first_offset,
                log.committed_offset,
                log.gaps,
                seconds,
            )
            page = await self._page(job, stream, log)
            check()
        if page.looked_at.chunks_damaged:
            lost, chunks = page.looked_at.messages_lost, page.looked_at.chunks_damaged
            text = "stream %s: a search has left out %d messages of %d damaged chunks"
            logger.error(text, name, lost, chunks)
        return page

    async def _page(self, job: Job, stream: Stream, log: Log) -> Page:
        with closing(Session(stream, log, job.seconds)) as session:
            try:
                with trio.fail_after(job.seconds + FETCH_SECONDS + _MORE_SECONDS):
                    outcome = await self.place.page(job, session)
            except trio.TooSlowError:
                text = "a step of this search takes too long: search for fewer keys, or less SQL"
                raise Refused(Reason.NOT_AVAILABLE, text) from None
            except StorageError as error:
                outcome = Failed(str(error), Notes())
            await session.take(outcome.notes)
        if log.is_closed:  # deleted meanwhile, and its files with it
            raise Refused(Reason.NOT_FOUND, stream.name)
        if job.request.keys:  # it may have found a file that is wrong
            stream.life.held.want_keys()
        if session.fault is not None:
            raise Refused(Reason.NOT_AVAILABLE, str(session.fault))
        if isinstance(outcome, Failed):
            if outcome.is_wrong:
                raise _wrong(outcome.text)
            logger.error("stream %s cannot be searched: %s", stream.name, outcome.text)
            raise Refused(Reason.NOT_AVAILABLE, f"{stream.name} cannot be read")
        if outcome.is_away and not outcome.has_progressed:
            raise Refused(Reason.NOT_AVAILABLE, str(AwayError(FETCH_SECONDS)))
        return outcome.page

    async def enter(self) -> None:
        """Take a place; wait for one where there is none.

        Raises:
            Refused: too many wait already.
        """
        if self._num_waiting >= MAX_WAITING:
            self.num_refused += 1
            details = f"{MAX_WAITING} searches wait for their turn; try again later"
            raise Refused(Reason.NOT_AVAILABLE, details)
        self._num_waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._num_waiting -= 1
        self.num_begun += 1
        self.num_open += 1

    def leave(self) -> None:
        """Give the place back."""
        self.num_open -= 1
        self._places.release()


class _User:
    """The searches of a user: how many there are, and whose turn it is."""

    def __init__(self, name: Name) -> None:
        self.turn = trio.Semaphore(1)
        self.number = 0
        self._name = name

    async def wait(self, seconds: float) -> None:
        """Wait for a turn; raise Busy where it does not come in time."""
        try:
            self.turn.acquire_nowait()
        except trio.WouldBlock:
            with trio.move_on_after(seconds):
                await self.turn.acquire()
                return
            raise self.busy() from None

    def busy(self) -> Busy:
        """What those are told who get no turn."""
        return Busy(f"a search of {self._name} is going on, there may be one at a time")


class _Place:
    """A place among the searches that run."""

    def __init__(self, searches: Searches) -> None:
        self._searches = searches

    async def __aenter__(self) -> None:
        await self._searches.enter()

    async def __aexit__(self, *_: object) -> None:
        self._searches.leave()


def key_properties(arguments: Mapping[str, Value]) -> tuple[str, ...]:
    """The properties in which keys of a stream are looked for."""
    declared = arguments.get(KEY_PROPERTIES)
    return names_in(declared) if isinstance(declared, str) and declared else ()


def read_words(words: Words, arguments: Mapping[str, Value]) -> Asked:
    """What is asked for in words, the same ones for all protocols.

    Args:
        words: names with their values: key, property and filter may come several times; from, to,
            by, sql, dialect, tags, offset, order, limit, after and latest.
        arguments: of the stream.

    Raises:
        Refused: a word is not known, or has a value that it cannot have; in one sentence.
    """
    given = _gathered(words)
    one = {name: values[0] for name, values in given.items() if name in _ONE}
    latest = _choice(one, "latest", {"false": False, "true": True}, default=False)
    if latest and one.get("order") == _OLDEST:
        raise _wrong("latest is the newest first, so order cannot be oldest")
    keys = tuple(dict.fromkeys(given.get("key", ())))
    named = tuple(dict.fromkeys(given.get("property", ())))
    order = _choice(one, "order", {_OLDEST: False, _NEWEST: True}, default=False)
    by = {_CHUNK_TIME: False, _CREATION_TIME: True}
    _check_properties(named)
    try:
        request = SearchRequest(
            keys=keys,
            properties=named or (key_properties(arguments) if keys else ()),
            from_ms=_time(one, "from"),
            to_ms=_time(one, "to"),
            by_creation_time=_choice(one, "by", by, default=False),
            selector=_selector(one),
            filter_values=tuple(sorted({text.encode() for text in given.get("filter", ())})),
            filter_properties=filter_properties(arguments),
            is_strict=arguments.get(FILTER_CONTRACT) == STRICT,
            newest=latest or order,
            offset=_number(one, "offset", MAX_OFFSET) if "offset" in one else None,
            limit=_number(one, "limit", MAX_LIMIT, least=1, default=_DEFAULT_LIMIT),
            latest=latest,
        )
        request.check()
    except SelectorError as error:
        word = "tags" if "tags" in one else "sql"
        raise _wrong(f"{word}, column {error.column}: {error.reason}") from None
    except BadSearch as error:
        raise _wrong(str(error)) from None
    return Asked(request, one.get("after", ""))


def _wrong(details: str) -> Refused:
    return Refused(Reason.PRECONDITION_FAILED, details)


def _check_properties(names: Iterable[str]) -> None:
    for name in names:
        try:
            parse_property(name)
        except SelectorError as error:
            raise _wrong(f"property is {name[:40]!r}: {error.reason}") from None


def _gathered(words: Words) -> dict[str, list[str]]:
    given: dict[str, list[str]] = {}
    for number, (name, value) in enumerate(words):
        if name not in _MANY | _ONE:
            known = ", ".join(sorted(_MANY | _ONE))
            raise _wrong(f"{name[:40]!r} is no word of a search; those are {known}")
        if number >= _MOST_WORDS:
            raise _wrong(f"there are more than {_MOST_WORDS:,} words in this search")
        given.setdefault(name, []).append(value)
        if name in _ONE and len(given[name]) > 1:
            raise _wrong(f"{name} is there twice")
    return given


def _choice(
    one: Mapping[str, str], name: str, choices: Mapping[str, bool], *, default: bool
) -> bool:
    text = one.get(name)
    if text is None:
        return default
    if text not in choices:
        raise _wrong(f"{name} is {text[:40]!r}, expected {' or '.join(choices)}")
    return choices[text]


def _number(
    one: Mapping[str, str], name: str, most: int, *, least: int = 0, default: int = 0
) -> int:
    text = one.get(name)
    if text is None:
        return default
    number = whole_number(text, least, most)
    if number is None:
        raise _wrong(f"{name} is {text[:40]!r}, expected a number from {least:,} to {most:,}")
    return number


def _time(one: Mapping[str, str], name: str) -> int | None:
    """A time in ms since 1970: so many, or as ISO 8601 has it."""
    text = one.get(name)
    if text is None:
        return None
    found = time_ms(text, needs_zone=True)
    if found is not None:
        return found
    expected = "a number of ms since 1970, or a time as in 2026-11-21T09:00:00Z"
    raise _wrong(f"{name} is {text[:40]!r}, expected {expected}")


def _selector(one: Mapping[str, str]) -> Selector | None:
    if "sql" in one and "tags" in one:
        raise _wrong("sql or tags, not both")
    if "tags" in one:
        return parse_selector(TAGS, one["tags"])
    if "sql" not in one:
        return None
    dialect = one.get("dialect", Dialect.UNION)
    if dialect not in list(Dialect):
        raise _wrong(f"dialect is {dialect[:40]!r}, expected one of {', '.join(Dialect)}")
    return parse_selector(dialect, one["sql"])

"""Finding single messages: pages are fetched as the program asks for what is in them."""

from collections import deque
from collections.abc import AsyncIterator, Collection
from datetime import datetime
from typing import TypeAlias, TypedDict
from uuid import UUID

import anyio

from clients.errors import refusal
from clients.filters import ReceivedMessage
from clients.reconnecting import ReconnectingConnection
from segments.selector import Dialect, parse_selector
from segments.selector.selector import TAGS
from segments.times import whole_ms
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import Pair

Key: TypeAlias = str | int | float | bool | UUID | datetime
Time: TypeAlias = int | str | datetime

OK = ResponseCode.OK
PAGE = 1_000  # messages that are asked for at once
DEFAULT_SECONDS = 60.0
_NOT_LED, _PAUSE = ResponseCode.STREAM_NOT_AVAILABLE, 1.0  # seconds
_LIMIT, _BUDGET = "limit", "budget"


class SearchOptions(TypedDict, total=False):
    """What is looked for; see `Client.find`."""

    key: Key | Collection[Key]
    properties: Collection[str]
    start: Time | None
    end: Time | None
    by_creation_time: bool
    sql: str | None
    tags: str | None
    dialect: str
    filter_values: Collection[str]
    offset: int | None
    newest: bool
    latest: bool


class Finding:
    """A search; made by `Client.find`. Iterate over it for its messages.

    Attributes:
        stream: its name.
        cut: once the iteration has ended: why there may be more, "limit" or "budget"; None when
            that was all.
        after: with it a search for the same goes on; empty when that was all.
        looked_at: what the server has looked at so far, by name.
        hint: while nothing was found: what may be wrong with the question; often empty.
    """

    def __init__(
        self,
        connection: ReconnectingConnection,
        searching: anyio.Lock,
        stream: str,
        words: tuple[Pair, ...],
        limit: int | None,
        after: str,
        seconds: float,
    ) -> None:
        self.stream = stream
        self.cut: str | None = None
        self.after = after
        self.looked_at: dict[str, int] = {}
        self.hint = ""
        self._has_found = False
        self._connection = connection
        self._searching = searching
        self._words = words
        self._left = limit
        self._seconds = seconds
        self._ready: deque[ReceivedMessage] = deque()
        self._has_ended = False

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self

    async def __anext__(self) -> ReceivedMessage:
        while not self._ready:
            if self._has_ended:
                raise StopAsyncIteration
            await self._fetch()
        return self._ready.popleft()

    @property
    def has_more(self) -> bool:
        """More messages are here already, which come without waiting."""
        return bool(self._ready)

    @property
    def is_all(self) -> bool:
        """The iteration has ended, and nothing was cut off."""
        return self._has_ended and self.cut is None

    async def _fetch(self) -> None:
        """Ask for the next page."""
        most = PAGE if self._left is None else min(PAGE, self._left)
        words = (*self._words, Pair("limit", str(most)))
        if self.after:
            words = (*words, Pair("after", self.after))
        began_at = anyio.current_time()
        async with self._searching:  # on a connection the next search ends the one before
            answer = await self._connection.ask(c.Find, self.stream, words)
        if answer.code == _NOT_LED and self._connection.is_spread and self._seconds > 0:
            await anyio.sleep(_PAUSE)  # another node will
            self._seconds -= anyio.current_time() - began_at
            return
        if answer.code != OK:
            self._has_ended = True
            raise refusal(answer.code, f"cannot search {self.stream}", answer.reason)
        for name, number in answer.looked_at:
            self.looked_at[name] = self.looked_at.get(name, 0) + number
        self._ready.extend(
            ReceivedMessage(found.raw, self.stream, found.offset, found.timestamp_ms)
            for found in answer.messages
        )
        self._has_found = self._has_found or bool(answer.messages)
        self.hint = "" if self._has_found else answer.reason or self.hint
        self.after = answer.after
        self._seconds -= anyio.current_time() - began_at
        if self._left is not None:
            self._left -= len(answer.messages)
        if not answer.cut:
            self._has_ended = True
        elif self._left == 0:
            self._has_ended, self.cut = True, _LIMIT
        elif self._seconds <= 0:
            self._has_ended, self.cut = True, _BUDGET


def words_of(  # noqa: PLR0913 - each by its name, and all have defaults
    *,
    key: Key | Collection[Key] = (),
    properties: Collection[str] = (),
    start: Time | None = None,
    end: Time | None = None,
    by_creation_time: bool = False,
    sql: str | None = None,
    tags: str | None = None,
    dialect: str = Dialect.UNION,
    filter_values: Collection[str] = (),
    offset: int | None = None,
    newest: bool = False,
    latest: bool = False,
) -> tuple[Pair, ...]:
    """What the server is asked for.

    Raises:
        ValueError: it cannot be asked for.
    """
    if isinstance(properties, str) or isinstance(filter_values, str):
        raise ValueError("properties and filter_values are lists, not one text")
    if sql is not None:
        parse_selector(dialect, sql)
    if tags is not None:
        parse_selector(TAGS, tags)
    keys = [key] if isinstance(key, str | int | float | UUID | datetime) else list(key)
    pairs = [Pair("key", _key(one)) for one in keys]
    pairs += [Pair("property", name) for name in properties]
    pairs += [Pair("filter", value) for value in filter_values]
    optional = {
        "from": None if start is None else _time(start),
        "to": None if end is None else _time(end),
        "by": "creation-time" if by_creation_time else None,
        "sql": sql,
        "dialect": None if sql is None else str(dialect),
        "tags": tags,
        "offset": None if offset is None else str(offset),
        "order": "newest" if newest else None,
        "latest": "true" if latest else None,
    }
    pairs += [Pair(name, text) for name, text in optional.items() if text is not None]
    return tuple(pairs)


def _key(key: Key) -> str:
    """A key as a text, for which the server finds what it spells."""
    if isinstance(key, bool):
        return str(key).lower()
    return _time(key) if isinstance(key, datetime) else str(key)


def _time(time: Time) -> str:
    """A time in ms since 1970, or the text of one, which the server reads."""
    if isinstance(time, datetime):
        return str(whole_ms(time))
    return str(time)

"""What the form of the messages page asks for, and its address, which is the same."""

from collections.abc import Iterator, Mapping
from datetime import UTC
from typing import NamedTuple, TypeAlias

from starlette.requests import Request

from segments.search.request import SearchRequest
from segments.segment import MAX_OFFSET
from segments.selector import (
    TAGS,
    Dialect,
    SelectorError,
    names_in,
    parse_property,
    parse_selector,
)
from segments.selector.nodes import Property
from segments.times import time_ms
from segments.words import whole_number
from streamd.http_api.messages import BadRequest
from streamd.operations.argument_kinds import Plain
from streamd.operations.errors import Refused
from streamd.operations.search_words import read_words

FIRST, NEWEST, OFFSET, TIME = "first", "newest", "offset", "time"
STARTS = (FIRST, NEWEST, OFFSET, TIME)
DEFAULT_LIMIT = 50
MAX_LIMIT = 1_000  # rows on a page
_MAX_CHARACTERS = 20_000
_MOST_COLUMNS = 8
_FIELDS = ("sql", "tags", "filter", "key", "where", "start", "offset", "time", "limit", "columns")

Words: TypeAlias = list[tuple[str, str]]


class BadForm(Exception):
    """The form cannot be carried out.

    Attributes:
        field: which of its fields is wrong; empty where it is none alone.
        before, wrong, after: the text of a selector around what is wrong with it.
    """

    def __init__(
        self, field: str, reason: str, before: str = "", wrong: str = "", after: str = ""
    ) -> None:
        super().__init__(reason)
        self.field, self.reason = field, reason
        self.before, self.wrong, self.after = before, wrong, after

    @property
    def caret(self) -> str:
        """The line below the text, with carets under what is wrong; empty without a text."""
        return " " * len(self.before) + "^" * max(1, len(self.wrong)) if self.shows_text else ""

    @property
    def shows_text(self) -> bool:
        """Whether there is a text to be shown."""
        return bool(self.before or self.wrong or self.after)


class SearchForm(NamedTuple):
    """The fields as they were filled in; empty where they were not.

    Attributes:
        sql, tags: selectors.
        where: in which property the key stands; empty for the key properties of the stream.
        offset, time: where it starts, in words.
        limit: messages at most, in digits.
        columns: names of properties that have columns of their own.
        is_live: new messages are wanted, as they come.
    """

    sql: str
    tags: str
    filter: str
    key: str
    where: str
    start: str
    offset: str
    time: str
    limit: str
    columns: str
    is_live: bool

    @property
    def query(self) -> dict[str, object]:
        """The address of this search, but for what is as it is without a word."""
        found: dict[str, object] = {name: getattr(self, name) for name in _FIELDS}
        if self.start == NEWEST:
            del found["start"]
        if self.start != OFFSET:
            del found["offset"]
        if self.start != TIME:
            del found["time"]
        if self.limit == str(DEFAULT_LIMIT):
            del found["limit"]
        return found | {"live": "1" if self.is_live else None}

    @property
    def has_conditions(self) -> bool:
        """Whether not every message is wanted."""
        return any((self.sql, self.tags, self.filter, self.key))

    @property
    def is_plain(self) -> bool:
        """Nothing is filled in but what stands in the bar."""
        others = (self.tags, self.filter, self.key, self.where, self.offset, self.time)
        plain = (NEWEST, str(DEFAULT_LIMIT), "")
        return not any(others) and (self.start, self.limit, self.columns) == plain

    @property
    def properties(self) -> tuple[Property, ...]:
        """The columns.

        Raises:
            BadForm: they are none.
        """
        try:
            names = names_in(self.columns) if self.columns else ()
            found = tuple(map(parse_property, names))
        except SelectorError as error:
            raise BadForm("columns", f"the columns: {error.reason}") from None
        except ValueError as error:
            raise BadForm("columns", f"the columns: {error}") from None
        if len(found) > _MOST_COLUMNS:
            raise BadForm(
                "columns", f"there are {len(found)} columns, expected at most {_MOST_COLUMNS}"
            )
        return found

    @property
    def num_wanted(self) -> int:
        """The limit.

        Raises:
            BadForm: it is none.
        """
        return _number("limit", self.limit, 1, MAX_LIMIT)

    def words(self) -> Words:
        """The search as `read_words` takes it, without limit and token.

        Raises:
            BadForm: a field cannot be understood.
        """
        return list(self._words())

    def _words(self) -> Iterator[tuple[str, str]]:
        for name in ("sql", "tags", "filter", "key"):
            if text := getattr(self, name):
                yield name, text
        if self.where and self.key:
            yield "property", self.where
        if self.start == NEWEST or self.is_live:
            yield "order", "newest"
        elif self.start == OFFSET:
            yield "offset", str(_number("offset", self.offset, 0, MAX_OFFSET))
        elif self.start == TIME:
            yield "from", str(_milliseconds(self.time))

    def request(self, arguments: Mapping[str, Plain]) -> SearchRequest:
        """What is searched for on a stream with these arguments.

        Raises:
            BadForm: the fields do not fit together, or not the stream.
        """
        words = [*self.words(), ("limit", str(self.num_wanted))]
        try:
            return read_words(words, arguments).request
        except Refused as refused:
            _check_selector("sql", self.sql)
            _check_selector("tags", self.tags)
            field, reason = _in_terms_of_the_form(refused.details)
            raise BadForm(field, reason) from None


def read_search_form(request: Request) -> SearchForm:
    """The form in an address.

    Raises:
        BadRequest: a field is too long.
    """
    query = request.query_params
    given = {name: query.get(name, "") for name in _FIELDS}
    if any(len(text) > _MAX_CHARACTERS for text in given.values()):
        raise BadRequest(f"a field of the form has more than {_MAX_CHARACTERS:,} characters")
    for name in ("sql", "tags", "where", "start", "offset", "time", "limit", "columns"):
        given[name] = given[name].strip()
    if given["start"] not in STARTS:
        given["start"] = OFFSET if given["offset"] else TIME if given["time"] else NEWEST
    given["limit"] = given["limit"] or str(DEFAULT_LIMIT)
    return SearchForm(**given, is_live=query.get("live") == "1")


def _check_selector(kind: str, text: str) -> None:
    """Raise BadForm where a selector is what is wrong, with the place."""
    try:
        if text:
            parse_selector(TAGS if kind == "tags" else Dialect.UNION, text)
    except SelectorError as error:
        head, shown, carets = str(error).rsplit("\n", 2)
        shown, at = shown[2:], carets.index("^") - 2
        end = at + carets.count("^")
        raise BadForm(kind, head, shown[:at], shown[at:end], shown[end:]) from None


def _in_terms_of_the_form(reason: str) -> tuple[str, str]:
    """Which field a refused search is about, and what is wrong in words of the form."""
    if "filter property" in reason:
        return "filter", "the stream declares no filter property, so no message has a filter value"
    if "key property" in reason:
        return "where", f"{reason[: reason.index(':')]}: say here in which property the key is"
    if "sql or tags" in reason:
        return "tags", "fill in SQL or Tags, not both"
    field = reason.removeprefix("a ").partition(" ")[0]
    if field == "property":
        field = "where"
    return (field if field in _FIELDS else ""), reason


def _number(name: str, text: str, least: int, most: int) -> int:
    number = whole_number(text.replace(",", "").replace("_", ""), least, most)
    if number is None:
        found = f"is {text[:40]!r}" if text else "is empty"
        raise BadForm(name, f"the {name} {found}, expected a number from {least:,} to {most:,}")
    return number


def _milliseconds(text: str) -> int:
    """A time in ms since 1970: so many, or as ISO 8601 has it, in UTC where it has no zone."""
    found = time_ms(text, UTC)
    if found is None:
        shown = f"is {text[:40]!r}" if text else "is empty"
        expected = "a time as 2026-11-21 09:00:00, in UTC, or a number of ms since 1970"
        raise BadForm("time", f"the time {shown}, expected {expected}")
    return max(0, min(found, MAX_OFFSET))

"""A search in words, the same ones for all protocols: what can be asked for, and reading it."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from segments.search.request import MAX_LIMIT, BadSearch, SearchRequest
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
from streamd.operations.argument_kinds import Value
from streamd.operations.arguments import (
    FILTER_CONTRACT,
    KEY_PROPERTIES,
    STRICT,
    filter_properties,
)
from streamd.operations.errors import Reason, Refused

_MANY = frozenset(("key", "property", "filter"))
_ONE = frozenset(
    ("from", "to", "by", "sql", "dialect", "tags", "offset", "order", "limit", "after", "latest")
)
_KNOWN = _MANY | _ONE
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
        raise wrong("latest is the newest first, so order cannot be oldest")
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
        raise wrong(f"{word}, column {error.column}: {error.reason}") from None
    except BadSearch as error:
        raise wrong(str(error)) from None
    return Asked(request, one.get("after", ""))


def wrong(details: str) -> Refused:
    """A search that cannot be understood; one sentence."""
    return Refused(Reason.PRECONDITION_FAILED, details)


def _check_properties(names: Iterable[str]) -> None:
    for name in names:
        try:
            parse_property(name)
        except SelectorError as error:
            raise wrong(f"property is {name[:40]!r}: {error.reason}") from None


def _gathered(words: Words) -> dict[str, list[str]]:
    given: dict[str, list[str]] = {}
    for number, (name, value) in enumerate(words):
        if name not in _KNOWN:
            known = ", ".join(sorted(_KNOWN))
            raise wrong(f"{name[:40]!r} is no word of a search; those are {known}")
        if number >= _MOST_WORDS:
            raise wrong(f"there are more than {_MOST_WORDS:,} words in this search")
        given.setdefault(name, []).append(value)
        if name in _ONE and len(given[name]) > 1:
            raise wrong(f"{name} is there twice")
    return given


def _choice(
    one: Mapping[str, str], name: str, choices: Mapping[str, bool], *, default: bool
) -> bool:
    text = one.get(name)
    if text is None:
        return default
    if text not in choices:
        raise wrong(f"{name} is {text[:40]!r}, expected {' or '.join(choices)}")
    return choices[text]


def _number(
    one: Mapping[str, str], name: str, most: int, *, least: int = 0, default: int = 0
) -> int:
    text = one.get(name)
    if text is None:
        return default
    number = whole_number(text, least, most)
    if number is None:
        raise wrong(f"{name} is {text[:40]!r}, expected a number from {least:,} to {most:,}")
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
    raise wrong(f"{name} is {text[:40]!r}, expected {expected}")


def _selector(one: Mapping[str, str]) -> Selector | None:
    if "sql" in one and "tags" in one:
        raise wrong("sql or tags, not both")
    if "tags" in one:
        return parse_selector(TAGS, one["tags"])
    if "sql" not in one:
        return None
    dialect = one.get("dialect", Dialect.UNION)
    if dialect not in list(Dialect):
        raise wrong(f"dialect is {dialect[:40]!r}, expected one of {', '.join(Dialect)}")
    return parse_selector(dialect, one["sql"])

"""What `spark.read.format("streamd").option(...)` takes, read once into one frozen object.

An option that does not exist is refused: a misspelt bound would silently read everything.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from segments.bloom import ChunkMatcher
from segments.columns import Columns, ValueTest
from segments.pushed_down import matcher_of
from segments.row_screen import RowScreen
from segments.selector import (
    EVERYTHING,
    Property,
    Pushdown,
    Selector,
    SelectorError,
    names_in,
    parse_property,
    parse_sql,
    parse_tags,
)
from segments.selector.dialects import Dialect
from segments.selector.pushdown import is_spelled
from segments.spark.opened import RowTest
from segments.spark.plan import ChunkCriteria
from segments.times import time_ms
from segments.words import whole_number

DEFAULT_BATCH_BYTES = 4 << 20
DEFAULT_PARTITION_BYTES = 64 << 20
FAIL, PERMISSIVE = "failfast", "permissive"


class OptionError(ValueError):
    """An option cannot be understood; one sentence with the option and what was expected."""


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that a reader is given.

    Attributes:
        paths: of the streams' folders, of folders of streams, or of streams in object stores.
        endpoint: URL of the server of an object store, empty for what the environment says.
        filter_values: None for chunks with any.
        match_unfiltered: take chunks with messages without a filter value as well.
        tags, sql, dialect: picks messages.
        filter_property: whose values are the filter values, so that tags and sql choose chunks,
            and filter_values picks messages; and the stream's further filter properties, with
            commas between their names.
        filter_contract: strict when no message with the property lacks its filter value.
        columns: wanted, None for all; `properties` come behind them.
        properties: names of properties and the types of the columns they become, as in DDL.
        permissive: go on where something is damaged.
        verify_checksums: test each chunk's data.
        batch_bytes, partition_bytes: sizes of a batch and of a task.
        max_bytes_per_trigger: of a streaming query; None for all there is.
        starting_offset: of a streaming query: earliest, latest or a number.
        fail_on_data_loss: a streaming query stops when retention has taken what it needs.
    """

    paths: tuple[str, ...]
    endpoint: str = ""
    start_offset: int | None = None
    end_offset: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    filter_values: tuple[bytes, ...] | None = None
    match_unfiltered: bool = False
    tags: str | None = None
    sql: str | None = None
    dialect: Dialect = Dialect.UNION
    filter_property: str | None = None
    filter_contract: str = "lenient"
    columns: tuple[str, ...] | None = None
    properties: str = ""
    permissive: bool = False
    verify_checksums: bool = True
    batch_bytes: int = DEFAULT_BATCH_BYTES
    partition_bytes: int = DEFAULT_PARTITION_BYTES
    max_bytes_per_trigger: int | None = None
    starting_offset: str = "earliest"
    fail_on_data_loss: bool = True

    def selector(self) -> Selector | None:
        """What picks messages, None for all.

        Raises:
            OptionError: both tags and sql were given, or the text is not a selector.
        """
        if self.tags is not None and self.sql is not None:
            raise OptionError("the options tags and sql were both given, expected one of them")
        try:
            if self.tags is not None:
                return parse_tags(self.tags)
            return None if self.sql is None else parse_sql(self.sql, self.dialect)
        except SelectorError as error:
            raise OptionError(f"the selector is wrong: {error}") from error

    def wanted(self) -> ChunkCriteria:
        """Which chunks are asked for.

        Raises:
            OptionError: see selector; or a filter value is empty.
        """
        pushed = self._pushed()
        return ChunkCriteria(
            self.start_offset,
            self.end_offset,
            self.start_ms,
            self.end_ms,
            self._matcher(pushed),
            pushed.is_empty,
        )

    def declared(self) -> Property | None:
        """The first filter property, None when there is none.

        Raises:
            OptionError: there is no property of one of the names.
        """
        found = [parse_property(name) for name in self._filter_properties()]
        return found[0] if found else None

    def row_test(self) -> RowTest | None:
        """What chooses messages by columns; None where these tell nothing of what is asked for.

        Raises:
            OptionError: see selector and declared.
        """
        names, is_strict = self._filter_properties(), self.filter_contract == "strict"
        by_value: ValueTest | None = None
        by_selector: RowTest | None = None
        if names and self.filter_values is not None:
            # Messages may lack their filter value; those that are asked for may have none.
            may_lack = self.match_unfiltered or not is_strict
            asked = {*self.filter_values, *((b"",) if may_lack else ())}
            by_value = ValueTest(None, asked, is_complement=False)
        selector = self.selector()
        if selector is not None:
            screen = RowScreen(selector, names, is_strict=is_strict)
            by_selector = screen.rows if screen.is_useful else None
        if by_value is None:
            return by_selector

        def rows(columns: Columns) -> int | None:
            found = columns.rows(by_value)
            more = None if by_selector is None or not found else by_selector(columns)
            return found if found is None or more is None else found & more

        return rows

    def _filter_properties(self) -> tuple[str, ...]:
        if self.filter_property is None:
            return ()
        try:
            names = names_in(self.filter_property)
            for name in names:
                parse_property(name)
        except SelectorError as error:
            raise OptionError(f"filterProperty is not a property: {error.reason}") from error
        except ValueError as expected:
            text = self.filter_property[:80]
            raise OptionError(f"filterProperty is {text!r}, expected {expected}") from expected
        return names

    def _pushed(self) -> Pushdown:
        selector, names = self.selector(), self._filter_properties()
        if selector is None:
            return EVERYTHING
        return selector.push_down(names, is_strict=self.filter_contract == "strict")

    def _matcher(self, pushed: Pushdown) -> ChunkMatcher | None:
        if self.filter_values is not None:
            unfiltered = self.match_unfiltered or self._has_numbers_without_value()
            try:
                return ChunkMatcher(self.filter_values, match_unfiltered=unfiltered)
            except ValueError as error:
                raise OptionError(f"filterValues: {error}; use matchUnfiltered") from error
        return None if pushed.is_empty else matcher_of(pushed)

    def _has_numbers_without_value(self) -> bool:
        """Whether a number that is asked for by its text may stand in a filter as no value."""
        if self.filter_property is None or self.filter_contract == "strict":
            return False
        return any(map(is_spelled, self.filter_values or ()))


def read_options(given: Mapping[str, str]) -> Options:
    """Read a data source's options, whose names may be in any case.

    Raises:
        OptionError: one is unknown, cannot be read, or no path was given.
    """
    lower = {name.lower(): text for name, text in given.items()}
    found: dict[str, Any] = {"paths": _paths(lower)}
    for name, text in lower.items():
        if name in ("path", "paths"):
            continue
        known = _READERS.get(name)
        if known is None:
            names = ", ".join(sorted(spelling for spelling, _, _ in _READERS.values()))
            raise OptionError(f"there is no option {name}; there are path, {names}")
        spelling, attribute, read = known
        try:
            found[attribute] = read(text)
        except ValueError as expected:
            raise OptionError(f"{spelling} is {text[:80]!r}, expected {expected}") from None
    return Options(**found)


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    if "paths" in given:
        return tuple(json.loads(given["paths"]))
    if "path" not in given:
        raise OptionError("no path was given, expected .load(DIR) with a stream's folder")
    return (given["path"],)


def _number(text: str) -> int:
    number = whole_number(text)
    if number is None:
        raise ValueError("a whole number that is not negative")
    return number


def _size(text: str) -> int:
    number = whole_number(text, 1)
    if number is None:
        raise ValueError("a number of bytes above 0")
    return number


def _time(text: str) -> int:
    found = time_ms(text)
    if found is None:
        raise ValueError("milliseconds since 1970, or a time as in 2026-11-21T09:00:00Z")
    return found


def values_text(values: Iterable[str | bytes]) -> str:
    """Filter values as the option takes them; bytes that are not UTF-8 as lone surrogates."""
    texts = (v if isinstance(v, str) else v.decode("utf-8", "surrogateescape") for v in values)
    return json.dumps(list(texts))


def _values(text: str) -> tuple[bytes, ...]:
    expected = 'a JSON array of strings, as in ["HA", "UA"]'
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(value, str) for value in found):
        raise ValueError(expected)
    try:
        return tuple(value.encode("utf-8", "surrogateescape") for value in found)
    except UnicodeEncodeError:  # half a character, which stands for no byte either
        raise ValueError(expected) from None


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError("names of columns with commas between them")
    return names


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(" or ".join(choices))
        return text.lower()

    return read


def _mode(text: str) -> bool:
    return _one_of(FAIL, PERMISSIVE)(text) == PERMISSIVE


def _dialect(text: str) -> Dialect:
    return Dialect(_one_of(*Dialect)(text))


def _starting(text: str) -> str:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    try:
        return str(_number(text))
    except ValueError:
        raise ValueError("earliest, latest or an offset") from None


# By the name in lower case, as Spark passes it on: how it is written, what it becomes, its reader.
_READERS: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    spelling.lower(): (spelling, attribute, read)
    for spelling, attribute, read in (
        ("endpoint", "endpoint", str),
        ("startOffset", "start_offset", _number),
        ("endOffset", "end_offset", _number),
        ("startTimestamp", "start_ms", _time),
        ("endTimestamp", "end_ms", _time),
        ("filterValues", "filter_values", _values),
        ("matchUnfiltered", "match_unfiltered", _flag),
        ("tags", "tags", str),
        ("sql", "sql", str),
        ("dialect", "dialect", _dialect),
        ("filterProperty", "filter_property", str),
        ("filterContract", "filter_contract", _one_of("strict", "lenient")),
        ("columns", "columns", _names),
        ("properties", "properties", str),
        ("mode", "permissive", _mode),
        ("verifyChecksums", "verify_checksums", _flag),
        ("batchBytes", "batch_bytes", _size),
        ("maxPartitionBytes", "partition_bytes", _size),
        ("maxBytesPerTrigger", "max_bytes_per_trigger", _size),
        ("startingOffset", "starting_offset", _starting),
        ("failOnDataLoss", "fail_on_data_loss", _flag),
    )
}

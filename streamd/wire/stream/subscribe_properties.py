"""The words of a Subscribe's properties, for both ends.

The first group is RabbitMQ's. The second is this project's: requests beyond a list of filter
values, and standing selectors. A server that does not know these words ignores them and sends more.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from segments.property_keys import PropertyFilter

TRUE: Final = "true"

NAME: Final = "name"
FILTER_PREFIX: Final = "filter."  # one property for each filter value, with any ending
MATCH_UNFILTERED: Final = "match-unfiltered"
SINGLE_ACTIVE: Final = "single-active-consumer"
SUPER_STREAM: Final = "super-stream"

FILTER_MODE: Final = "filter-mode"
UNFILTERED_ONLY: Final = "unfiltered-only"  # a mode: chunks with messages without a filter value
NOTHING: Final = "nothing"  # a mode: no chunk, as no message can match
# What chunks have to hold besides of a further filter property, of each that is named:
#     filter-property.0 = kind
#     filter-property.0.value.0 = late                 one of these values, with any ending
#     filter-property.0.match-unfiltered = true        or a message without one
FILTER_PROPERTY_PREFIX: Final = "filter-property."
SELECTOR: Final = "selector"  # its text; the server looks at it only with a group
SELECTOR_DIALECT: Final = "selector-dialect"  # of the text
SELECTOR_GROUP: Final = "selector-group"
LIFE: Final = "life"  # of the stream that is meant, as DescribeStreams tells it; no other is read
STORED_CHUNKS: Final = "stored-chunks"  # true: chunks come by DeliverStored
_VALUE = ".value."  # of a further filter property
_WITH_VALUES = (FILTER_PREFIX, FILTER_PROPERTY_PREFIX)


def property_pairs(
    asked: Iterable[tuple[str, Collection[bytes], bool]],
) -> Iterator[tuple[str, str]]:
    """The properties of a Subscribe that ask for values of further filter properties."""
    for number, (name, values, match_unfiltered) in enumerate(asked):
        key = f"{FILTER_PROPERTY_PREFIX}{number}"
        yield key, name
        for n, value in enumerate(sorted(values)):
            yield f"{key}{_VALUE}{n}", text_of(value)
        if match_unfiltered:
            yield f"{key}.{MATCH_UNFILTERED}", TRUE


def asked_properties(properties: Iterable[tuple[str, str]]) -> list[PropertyFilter]:
    """What a Subscribe asks for of further filter properties; see `property_pairs`."""
    given = [
        (key.removeprefix(FILTER_PROPERTY_PREFIX), text)
        for key, text in properties
        if key.startswith(FILTER_PROPERTY_PREFIX)
    ]
    names = {key: text for key, text in given if "." not in key}
    values: dict[str, set[bytes]] = {key: set() for key in names}
    unfiltered = set()
    for rest, text in given:
        key, _, word = rest.partition(".")
        if key in names and f".{word}".startswith(_VALUE):
            values[key].add(value_of(text))
        elif (word, text) == (MATCH_UNFILTERED, TRUE):
            unfiltered.add(key)
    return [
        PropertyFilter(name, frozenset(values[key]), key in unfiltered)
        for key, name in names.items()
    ]


def text_of(value: bytes) -> str:
    """A filter value as the text of a property; bytes that are not UTF-8 as lone surrogates."""
    return value.decode("utf-8", "surrogateescape")


def value_of(text: str) -> bytes:
    """The filter value that a property's text stands for; see `text_of`."""
    return text.encode("utf-8", "surrogateescape")


def shown(properties: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The properties for people: bytes that are not UTF-8 as backslash escapes."""
    return {
        key: _escaped(text) if key.startswith(_WITH_VALUES) else text for key, text in properties
    }


def _escaped(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return value_of(text).decode("utf-8", "backslashreplace")
    return text  # the same object: connections hold many of them

"""The words of a Subscribe's properties, for both ends.

The first group is RabbitMQ's. The second is this project's: requests beyond a list of filter
values, and standing selectors. A server that does not know these words ignores them and sends more.
"""

from collections.abc import Iterable
from typing import Final

TRUE: Final = "true"

NAME: Final = "name"
FILTER_PREFIX: Final = "filter."  # one property for each filter value, with any ending
MATCH_UNFILTERED: Final = "match-unfiltered"
SINGLE_ACTIVE: Final = "single-active-consumer"
SUPER_STREAM: Final = "super-stream"

FILTER_MODE: Final = "filter-mode"
UNFILTERED_ONLY: Final = "unfiltered-only"  # a mode: chunks with messages without a filter value
NOTHING: Final = "nothing"  # a mode: no chunk, as no message can match
SELECTOR: Final = "selector"  # its text; the server looks at it only with a group
SELECTOR_GROUP: Final = "selector-group"


def text_of(value: bytes) -> str:
    """A filter value as the text of a property; bytes that are not UTF-8 as lone surrogates."""
    return value.decode("utf-8", "surrogateescape")


def value_of(text: str) -> bytes:
    """The filter value that a property's text stands for; see `text_of`."""
    return text.encode("utf-8", "surrogateescape")


def shown(properties: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The properties for people: bytes that are not UTF-8 as backslash escapes."""
    return {
        key: _escaped(text) if key.startswith(FILTER_PREFIX) else text for key, text in properties
    }


def _escaped(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return value_of(text).decode("utf-8", "backslashreplace")
    return text  # the same object: connections hold many of them

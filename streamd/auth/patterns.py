"""The patterns of permissions: regular expressions that no name can make slow.

RE2 searches in time linear in the name, whatever the pattern. It knows no lookaround and no
references to groups, which RabbitMQ's patterns may have: such a pattern is searched for by trying,
for a limited time. A pattern that took longer once matches nothing from then on, and the log says
so: it can be written in another way.
"""

import logging
import re
from functools import lru_cache
from typing import Protocol

import re2
import regex

from streamd.config import MAX_NAME_BYTES

logger = logging.getLogger(__name__)

_PATTERNS_KEPT = 1_000
_ANSWERS_KEPT = 4_096  # each with MAX_NAME_BYTES letters at most
MOST_LETTERS = MAX_NAME_BYTES  # of a name; nothing has a longer one
_PATTERN_MEMORY = 1 << 20  # of RE2, for one pattern; beyond it the pattern is refused
_SEARCH_SECONDS = 0.02  # of processor time, for what RE2 does not know

# A part of a pattern in which "$" is no end, or such an end.
_END_IN_PATTERN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\$", re.DOTALL)

_ENDLESS = re.compile(r"(?<!\\)\{(?:\d+,)?\d{9}")  # RE2 takes it for text


class PatternError(ValueError):
    """The text is not a regular expression; says what is wrong."""


class _Pattern(Protocol):
    def search(self, name: str) -> object:
        """Whatever is not None when the pattern is found in the name."""


class _Trying:
    """A pattern that RE2 does not know."""

    def __init__(self, text: str) -> None:
        try:
            re.compile(text)  # an error shows the pattern as it was given
            self._pattern = regex.compile(_END_IN_PATTERN.sub(_last_end, text))
        except (re.error, regex.error, ValueError, OverflowError, RecursionError) as error:
            raise PatternError(str(error)) from error
        self._text = text
        self._is_given_up = False

    def search(self, name: str) -> object:
        if self._is_given_up:
            return None
        try:
            return self._pattern.search(name, timeout=_SEARCH_SECONDS)
        except TimeoutError:
            self._is_given_up = True
            logger.error(
                "the permission %.200r takes too long and allows nothing any more: write it "
                "without repetitions within repetitions, or without lookaround and references",
                self._text,
            )
            return None


def _last_end(found: re.Match[str]) -> str:
    """Unlike that of RE2, this "$" also matches before a line end at the end; "\\Z" does not."""
    return r"\Z" if found[0] == "$" else found[0]


@lru_cache(_PATTERNS_KEPT)
def compiled(pattern: str) -> _Pattern:
    """A pattern that can be searched for.

    Raises:
        PatternError: it is not a regular expression.
    """
    if _ENDLESS.search(pattern):
        raise PatternError("a repetition has more than eight digits")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY
    try:
        found: _Pattern = re2.compile(pattern, options=options)
    except (re2.error, UnicodeEncodeError):
        return _Trying(pattern)
    return found


@lru_cache(_ANSWERS_KEPT)
def matches(pattern: str, name: str) -> bool:
    """Whether a pattern is found in a name; an empty one never is.

    Args:
        pattern: a regular expression.
        name: at most MOST_LETTERS of it, as answers are kept.
    """
    # AMQP's names may be no text: such bytes are letters that no pattern names.
    text = name.encode(errors="surrogatepass").decode(errors="replace")
    return bool(pattern) and compiled(pattern).search(text) is not None

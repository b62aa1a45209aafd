"""Regular expressions from outside, for names: none makes a name slow to decide about.

RE2 searches in time linear in the name and in the size of the compiled pattern, which is bounded.
It knows no lookaround and no references to groups, which RabbitMQ's patterns may have. Lookahead
right after "^" is looked at in one place only, so it is a further pattern of its own, that has to
be found there or not: "^(?!secret)(?=.*eu).*" is three of them. Other such patterns are refused.

"$" is the end of the name, also where a line end is the last character of it.
"""

import re
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import re2

from streamd.config import MAX_NAME_BYTES

_PATTERNS_KEPT = 1_000
_ANSWERS_KEPT = 4_096  # each with MAX_NAME_BYTES letters at most
MOST_LETTERS = MAX_NAME_BYTES  # of a name; nothing has a longer one
# For one pattern, beyond it it is refused. Names of 1,024 bytes take 25 ms at most then, and usual
# ones, also of a pattern that lists 500 names, some microseconds.
_MEMORY = 128 << 10
_PATTERN_LETTERS = 32 << 10

_ENDLESS = re.compile(r"(?<!\\)\{(?:\d+,)?\d{9}")  # RE2 takes it for text
_BEFORE_LOOKAHEAD = re.compile(r"(\(\?[is]+\))?(?:\^|\\A)(?=\(\?[=!])")
# What brackets and bars stand in without a meaning of their own, or such a one.
_BRACKET = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|[()|\[]", re.DOTALL)
_ADVICE = (
    "; lookahead is taken right after ^ alone, as in '^(?!secret).*', with alternatives of what "
    "follows in brackets; lookbehind and references to groups are not, as they may take for ever"
)


class PatternError(ValueError):
    """The text is no regular expression that is taken; says why, and what to write instead."""


class Pattern(Protocol):
    """A regular expression."""

    def search(self, name: str) -> object:
        """Whatever is true when it is found in the name."""


class _WithLookahead(NamedTuple):
    """A pattern whose lookahead has been taken out.

    Attributes:
        looks: what is to begin where the name does, or not to.
    """

    looks: list[tuple[bool, Any]]
    rest: Any

    def search(self, name: str) -> object:
        """See Pattern."""
        for is_wanted, one in self.looks:
            if bool(one.match(name)) is not is_wanted:
                return None
        return self.rest.match(name)


@lru_cache(_PATTERNS_KEPT)
def _kept(text: str, memory: int) -> Pattern | PatternError:
    try:
        return _compile(text, memory)
    except PatternError as error:
        return error


def compiled(text: str, memory: int = _MEMORY) -> Pattern:
    """A pattern that can be searched for.

    Args:
        text: a regular expression.
        memory: bytes of what it is compiled to; a search takes some 0.1 µs for each, at most.

    Raises:
        PatternError: it is none, or no time can be promised for it.
    """
    found = _kept(text, memory)
    if isinstance(found, PatternError):
        raise found
    return found


def _compile(text: str, memory: int) -> Pattern:
    if len(text) > _PATTERN_LETTERS:
        raise PatternError(f"it has {len(text):,} letters, expected {_PATTERN_LETTERS:,} at most")
    if _ENDLESS.search(text):
        raise PatternError("a repetition has more than eight digits")
    begin = _BEFORE_LOOKAHEAD.match(text)
    if begin is None or r"\Q" in text:
        plain: Pattern = _linear(text, memory)
        return plain
    flags, at = begin[1] or "", begin.end()
    looks: list[tuple[bool, str]] = []
    while (kind := text[at : at + 3]) in ("(?=", "(?!"):
        end = _first(")", text, at + 3)
        if end is None:
            raise PatternError("a bracket is not closed")
        looks.append((kind == "(?=", text[at + 3 : end]))
        at = end + 1
    if _first("|", text, at) is not None:
        raise PatternError("alternatives follow a lookahead without brackets" + _ADVICE)
    share = memory // (len(looks) + 1)
    found = [(is_wanted, _linear(flags + part, share)) for is_wanted, part in looks]
    return _WithLookahead(found, _linear(flags + text[at:], share))


def _first(wanted: str, text: str, at: int) -> int | None:
    """The first place of a sign outside brackets that are opened from a place on."""
    depth = 0
    for found in _BRACKET.finditer(text, at):
        if found[0] == wanted and not depth:
            return found.start()
        depth += (found[0] == "(") - (found[0] == ")")
        if found[0] == "[":  # it is not closed, which RE2 says
            break
    return None


def _linear(text: str, memory: int) -> Any:  # noqa: ANN401 - re2 has no types
    options = re2.Options()
    options.log_errors = False
    options.max_mem = memory
    try:
        return re2.compile(text, options=options)
    except UnicodeEncodeError:
        raise PatternError("it is no text") from None
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args else "RE2 does not take it"
        raise PatternError(reason + _ADVICE) from None


@lru_cache(_ANSWERS_KEPT)
def matches(text: str, name: str) -> bool:
    """Whether a pattern is found in a name; an empty one never is, nor one that is not taken.

    Args:
        text: a regular expression.
        name: at most MOST_LETTERS of it, as answers are kept.
    """
    try:
        return bool(text) and bool(compiled(text).search(readable(name)))
    except PatternError:
        return False


def readable(name: str) -> str:
    """A name as patterns see it: bytes that are no text are letters that no pattern names."""
    return name.encode(errors="surrogatepass").decode(errors="replace")

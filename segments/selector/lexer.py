"""Text to tokens."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from segments.selector.dialects import GRAMMARS, MAX_CHARACTERS, Dialect
from segments.selector.errors import SelectorError
from segments.selector.nodes import Constant

MAX_INTEGER = (1 << 64) - 1
_MAX_JAVA_INTEGER = (1 << 63) - 1
_MAX_DIGITS = 400  # more are not a number; and a limit on the work of int()
_WRONG = {
    "comment": "a comment is /* … */; write two signs with a space between them",
    "number": "not a number",
    "open": "a string without its closing quote",
    "unclosed": "not a name in brackets, as in [any text]",
}


class Token(NamedTuple):
    """A word of a selector.

    Attributes:
        kind: int, float, text, binary, name, bracket, symbol or end.
        value: what a literal stands for, what a bracket holds.
        start, end: its characters in the selector; `end` is exclusive.
    """

    kind: str
    text: str
    value: Constant
    start: int
    end: int


def tokenize(text: str, dialect: Dialect) -> Iterator[Token]:
    """The tokens of a selector, the last one of kind `end`; made one by one.

    Raises:
        SelectorError: something is not a token, or there are too many characters or tokens.
    """
    if len(text) > MAX_CHARACTERS:
        reason = f"{len(text)} characters, at most {MAX_CHARACTERS} are allowed"
        raise SelectorError(reason, text, MAX_CHARACTERS, MAX_CHARACTERS + 1)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        reason = "half a character (a lone surrogate)"
        raise SelectorError(reason, text, error.start, error.end) from None
    grammar = GRAMMARS[dialect]
    position = count = 0
    while position < len(text):
        found = grammar.token.match(text, position)
        if found is None:
            reason = f"{text[position]!r} is not expected here"
            raise SelectorError(reason, text, position, position + 1)
        kind = str(found.lastgroup)
        if kind in _WRONG:
            raise SelectorError(_WRONG[kind], text, position, found.end())
        position = found.end()
        if kind == "space":
            continue
        count += 1
        if count > grammar.max_tokens:
            reason = f"at most {grammar.max_tokens} words and signs are allowed"
            raise SelectorError(reason, text, *found.span())
        value = _value(kind, found.group(), text, found.start(), dialect)
        yield Token(kind, found.group(), value, *found.span())
    yield Token("end", "", None, len(text), len(text) + 1)


def _value(kind: str, word: str, text: str, start: int, dialect: Dialect) -> Constant:
    match kind:
        case "text":
            return word[1:-1].replace(word[0] * 2, word[0])
        case "bracket":
            return word[1:-1].replace("[[", "[").replace("]]", "]")
        case "binary":
            return bytes.fromhex(word[2:])
        case "int":
            return _integer(word, text, start, dialect)
        case "float":
            return _float(word, text, start, dialect)
    return None


def _integer(word: str, text: str, start: int, dialect: Dialect) -> int:
    digits = word.rstrip("lL")
    most = _MAX_JAVA_INTEGER if dialect is Dialect.ROCKETMQ else MAX_INTEGER
    number = int(digits) if len(digits) <= _MAX_DIGITS else most + 1
    if number > most and dialect is not Dialect.AMQP:
        raise SelectorError(f"numbers reach to {most}", text, start, start + len(word))
    if len(digits) > _MAX_DIGITS:
        raise SelectorError("not a number", text, start, start + len(word))
    return number


def _float(word: str, text: str, start: int, dialect: Dialect) -> float:
    number = float(word)
    if math.isinf(number):
        raise SelectorError("the number is too large", text, start, start + len(word))
    if number == 0 and dialect is Dialect.ROCKETMQ:
        reason = "RocketMQ takes no zero with a point; write 0"
        raise SelectorError(reason, text, start, start + len(word))
    return number

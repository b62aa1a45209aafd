"""LIKE and its like: a pattern to a test, linear in the string for every pattern."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

Test: TypeAlias = Callable[[str], bool]
_ANY = "%"
_ONE = "_"
_MAX_PRODUCT = 1 << 14  # characters of a part times those of a string; beyond, use bits
_PIECE = 1 << 16  # places of a string that are looked at together


class Pattern(NamedTuple):
    """A LIKE pattern taken apart.

    Attributes:
        parts: between the % signs, in order; a None in a part stands for any one character.
    """

    parts: tuple[tuple[str | None, ...], ...]

    @property
    def literal(self) -> str | None:
        """The one string that it matches; None when there are several."""
        if len(self.parts) > 1 or None in self.parts[0]:
            return None
        return "".join(char or "" for char in self.parts[0])

    @property
    def matches_empty(self) -> bool:
        """Whether it matches the empty string."""
        return not any(self.parts)

    @property
    def longest_run(self) -> str:
        """The longest string that everything it matches contains."""
        runs = ("".join(c or "\0" for c in part).split("\0") for part in self.parts)
        return max((run for found in runs for run in found), key=len)


def parse_pattern(pattern: str, escape: str | None) -> Pattern:
    """Take a pattern apart; it has been checked."""
    parts: list[list[str | None]] = [[]]
    chars = iter(pattern)
    for char in chars:
        if char == escape:
            parts[-1].append(next(chars))
        elif char == _ANY:
            parts.append([])
        else:
            parts[-1].append(None if char == _ONE else char)
    return Pattern(tuple(map(tuple, parts)))


def like(pattern: Pattern) -> Test:
    """Whether a whole string matches."""
    first, *middle = pattern.parts
    if not middle:
        whole = _At(first)
        return lambda text: len(text) == whole.size and whole.at(text, 0)
    last = middle.pop()
    begin, end = _At(first), _At(last)
    finds = [_finder(part) for part in middle if part]

    def test(text: str) -> bool:
        position, limit = begin.size, len(text) - end.size
        if position > limit or not (begin.at(text, 0) and end.at(text, limit)):
            return False
        for find, size in finds:  # the leftmost place leaves most for the rest
            position = find(text, position, limit)
            if position < 0:
                return False
            position += size
        return True

    return test


def text_test(name: str, needle: str) -> Test:
    """CONTAINS, STARTSWITH or ENDSWITH with a needle."""
    match name:
        case "CONTAINS":
            return lambda text: needle in text
        case "STARTSWITH":
            return lambda text: text.startswith(needle)
    return lambda text: text.endswith(needle)


class _At:
    """Whether a part stands at a place."""

    def __init__(self, part: Sequence[str | None]) -> None:
        self.size = len(part)
        self._text = "".join(c or "" for c in part) if None not in part else None
        self._chars = [(n, char) for n, char in enumerate(part) if char is not None]

    def at(self, text: str, position: int) -> bool:
        if self._text is not None:
            return text.startswith(self._text, position)
        return all(text[position + n] == char for n, char in self._chars)


_Find: TypeAlias = Callable[[str, int, int], int]


def _finder(part: Sequence[str | None]) -> tuple[_Find, int]:
    """Where a part stands first, -1 for nowhere; and its size."""
    if None not in part:
        wanted = "".join(c or "" for c in part)
        return lambda text, start, end: text.find(wanted, start, end), len(part)
    short = re.compile("".join("." if c is None else re.escape(c) for c in part), re.DOTALL)

    def find(text: str, start: int, end: int) -> int:
        if (end - start) * len(part) > _MAX_PRODUCT:
            return _find_by_bits(part, text, start, end)
        found = short.search(text, start, end)
        return found.start() if found else -1

    return find, len(part)


def _find_by_bits(part: Sequence[str | None], text: str, start: int, end: int) -> int:
    """The same, each character of the part looked for in many places of the string at once.

    Bit n of a number stands for place n of the string, so a character is two operations on numbers
    that are as long as a piece of the string, and the time does not depend on what they find.
    """
    wanted = [(n, char) for n, char in enumerate(part) if char is not None]
    for at in range(start, end - len(part) + 1, _PIECE):
        piece = text[at : min(end, at + _PIECE + len(part) - 1)][::-1]  # the last digit is bit 0
        found = (1 << len(piece) - len(part) + 1) - 1
        where: dict[str, int] = {}
        for n, char in wanted:
            if char not in where:
                where[char] = int(piece.translate(_Digits({ord(char): "1"})), 2)
            found &= where[char] >> n
            if not found:
                break
        if found:
            return at + (found & -found).bit_length() - 1
    return -1


class _Digits(dict[int, str]):
    """One character as 1, all others as 0."""

    def __missing__(self, char: int) -> str:
        self[char] = "0"  # the next time it costs less
        return "0"

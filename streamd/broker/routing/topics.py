"""Patterns of topic exchanges."""

from functools import reduce
from operator import or_

ONE, ANY = "*", "#"  # one word; any number of them, also none


class TopicPattern:
    """A pattern, its words with dots between.

    It is matched by following all places of the pattern that a key's words lead to, as bits of one
    number: a word is one step, whatever the pattern.

    Args:
        text: the pattern.

    Attributes:
        size: how many words it has.
    """

    def __init__(self, text: str) -> None:
        words: list[str] = []
        for word in text.split(".") if text else ():
            if word != ANY or words[-1:] != [ANY]:  # twice is the same as once
                words.append(word)
        self.size = len(words)
        self._end = 1 << len(words)
        self._anys = _places(words, ANY)
        ones = _places(words, ONE)
        self._next = {word: ones | _places(words, word) for word in words}
        self._next[ONE] = self._next[ANY] = self._other = ones  # in a key they are words

    def matches(self, words: list[str]) -> bool:
        """Whether a key's words match."""
        anys, following, other = self._anys, self._next, self._other
        places = 1 | (1 & anys) << 1
        for word in words:
            places = (places & following.get(word, other)) << 1 | places & anys
            places |= (places & anys) << 1
            if not places:
                return False
        return bool(places & self._end)


def _places(words: list[str], wanted: str) -> int:
    return reduce(or_, (1 << n for n, word in enumerate(words) if word == wanted), 0)


def is_literal(text: str) -> bool:
    """Whether a pattern matches one key alone, itself."""
    return ONE not in text and ANY not in text


def words_of(key: str) -> list[str]:
    """The words of a routing key."""
    return key.split(".") if key else []

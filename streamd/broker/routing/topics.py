"""Patterns of topic exchanges."""

import re
from collections.abc import Iterable

from streamd.net.turns import STEP_UNITS, Steps

ONE, ANY = "*", "#"  # one word; any number of them, also none
_BYTES_A_UNIT = 256  # of numbers that are combined
_PLACES_A_STEP = 10_000
_MASK_BYTES = 1 << 20  # of what is remembered of words
_NOT_ZERO = re.compile(rb"[^\0]")


class TopicPatterns:
    """The patterns of one exchange, each of words with dots between, matched all at once.

    Theory of operation. Each pattern has a place before each of its words and one at its end, and
    all places of all patterns are bits of one number. A key begins at the first place of each
    pattern. A word of the key leads from the places before the same word, or before `*`, to the
    ones behind; `#` keeps a place, and lets the one behind it be reached without a word. So a word
    of a key costs a few operations on whole numbers, however the patterns are made up: following
    them one by one, or as a tree, would cost a step for each place that is reached.
    """

    def __init__(self) -> None:
        self._size = 0  # places
        self._starts = self._ones = self._anys = self._ends = 0
        self._texts: dict[int, str] = {}  # by the place at the end
        self._places: dict[str, list[int]] = {}  # before a word
        self._masks: dict[str, int] = {}  # the same as a number, of words that came lately

    def add(self, texts: Iterable[str]) -> Steps[None]:
        """Take patterns; once, before any is matched."""
        starts: list[int] = []
        ones: list[int] = []
        anys: list[int] = []
        units = 0
        for text in texts:
            starts.append(self._size)
            last = ""
            words = words_of(text)
            for word in words:
                if word == last == ANY:
                    continue  # twice is the same as once
                last = word
                if word == ONE:
                    ones.append(self._size)
                elif word == ANY:
                    anys.append(self._size)
                else:
                    self._places.setdefault(word, []).append(self._size)
                self._size += 1
            self._texts[self._size] = text
            self._size += 1
            units += 1 + len(words)
            if units >= STEP_UNITS:
                units = 0
                yield
        self._starts = yield from self._number(starts)
        self._ones = yield from self._number(ones)
        self._anys = yield from self._number(anys)
        self._ends = yield from self._number(self._texts)

    def matching(self, key: str) -> Steps[list[str]]:
        """Find the patterns that a key matches."""
        anys = self._anys
        places = self._starts
        places |= (places & anys) << 1
        price = 1 + self._size // (8 * _BYTES_A_UNIT)
        units = 0
        for word in words_of(key):
            before = self._ones | (yield from self._before(word))
            places = (places & before) << 1 | places & anys
            places |= (places & anys) << 1
            units += price
            if units >= STEP_UNITS:
                units = 0
                yield
        return self._ended(places & self._ends)

    def _before(self, word: str) -> Steps[int]:
        """The places before a word, as bits."""
        places = self._places.get(word)
        if places is None:
            return 0
        mask = self._masks.get(word)
        if mask is None:
            if len(self._masks) * self._size > 8 * _MASK_BYTES:
                self._masks.clear()
            mask = self._masks[word] = yield from self._number(places)
        return mask

    def _number(self, places: Iterable[int]) -> Steps[int]:
        raw = bytearray(self._size // 8 + 1)
        for count, place in enumerate(places, 1):
            raw[place >> 3] |= 1 << (place & 7)
            if count % _PLACES_A_STEP == 0:
                yield
        return int.from_bytes(raw, "little")

    def _ended(self, places: int) -> list[str]:
        raw = places.to_bytes(self._size // 8 + 1, "little")
        found = []
        for match in _NOT_ZERO.finditer(raw):
            at = match.start()
            found += [self._texts[8 * at + n] for n in range(8) if raw[at] >> n & 1]
        return found


def is_literal(text: str) -> bool:
    """Whether a pattern matches one key alone, itself."""
    return ONE not in text and ANY not in text


def words_of(key: str) -> list[str]:
    """The words of a routing key."""
    return key.split(".") if key else []

"""Finding the keys of the messages of a chunk, as the prints that an index holds.

What is found may be too much, as a search compares the keys themselves; it is never too little. So
application properties are not looked for message by message: wherever a declared name stands behind
its length, which is the last byte of it in each encoding that AMQP 1.0 has for a name, the value
behind it is taken. That is done with one `bytes.split` where all values are short strings: 0.6 µs
for a key, of reading, checking and all. Fields of fixed places are read message by message.
"""

import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain, repeat
from operator import le, lt
from typing import NamedTuple, TypeAlias

import mmh3

from segments import amqp10_codes as codes
from segments.amqp10 import skip_value
from segments.codec import simple_ends, walk_entries
from segments.compression import decompress
from segments.errors import FormatError
from segments.keys.forms import BOOLEAN, KEYS, NUMBER, SEPARATOR, TEXT, forms_of_value, seed_of
from segments.keys.table import NUMBER_BITS
from segments.selector import RowReader, parse_property
from segments.selector.fields import value_at
from segments.selector.nodes import PropertySection

# Beyond these a chunk is not worth indexing: it is always looked at. No program that means well
# gets there.
_MAX_UNPACKED = 16 << 20  # bytes of its sub-batches together: some 300 MB for two million keys
_FEWEST_KEYS, _BYTES_PER_KEY = 1_000, 4
_MOST_MESSAGES = 8  # of a chunk that have a key: where more have it, the chunk is searched for them
ANY_MESSAGE = (1 << NUMBER_BITS) - 1


class TooMuchError(Exception):
    """A chunk has more keys than an index should hold."""


class KeyExtractor:
    """Finds the keys of chunks.

    Args:
        properties: whose values are keys; see KeyReader.

    Raises:
        SelectorError: there is no such field.
    """

    def __init__(self, properties: Sequence[str]) -> None:
        self._named: list[_Named] = []
        self._fields: list[_Field] = []
        for name in properties:
            prop = parse_property(name)
            if prop.section is PropertySection.APPLICATION:
                self._named.append(_Named(name))
            else:
                self._fields.append(_Field(name))

    def told(self, data: bytes) -> set[int] | None:
        """The prints of all keys in a chunk, and which messages have them.

        Args:
            data: its messages.

        Returns:
            The print of a key, and in the lower NUMBER_BITS the number of a message that may have
            it, or `ANY_MESSAGE` where those are many, or far behind. None where the keys are not
            known, so that it may have any.
        """
        found: set[int] = set()
        size = 0
        try:
            for part in _parts(data):
                size += len(part.data)
                for named in self._named:
                    found.update(part.told(*named.prints(part.data)))
                for field in self._fields:
                    found.update(part.told(*field.prints(part)))
        except (FormatError, TooMuchError):
            return None
        found = _with_few(found)
        return found if len(found) <= max(_FEWEST_KEYS, size // _BYTES_PER_KEY) else None


_Found: TypeAlias = tuple[Sequence[int], Sequence[int]]  # prints, and a position of each


def _unzipped(found: Iterable[tuple[int, int]]) -> _Found:
    pairs = list(found)
    return [key for key, _ in pairs], [at for _, at in pairs]


class _Part(NamedTuple):
    """Messages that stand back to back.

    Attributes:
        first: the number of the first one in the chunk.
        data: each with 4 bytes of length before it.
        ends: where each ends in `data`.
    """

    first: int
    data: bytes
    ends: Sequence[int]

    def told(self, prints: Sequence[int], positions: Sequence[int]) -> list[int]:
        """Prints that were found in some positions of the data, with the messages there."""
        first, ends = self.first, self.ends
        numbers: Iterable[int] = range(first, first + len(ends))
        # Mostly each message has a key.
        is_plain = len(positions) == len(ends) and all(map(lt, positions, ends))
        if not (is_plain and all(map(le, ends, positions[1:]))):
            numbers = [first + bisect_right(ends, at) for at in positions]
        if first + len(ends) > ANY_MESSAGE:
            numbers = [min(number, ANY_MESSAGE) for number in numbers]
        return [key << NUMBER_BITS | one for key, one in zip(prints, numbers, strict=True)]


def _parts(data: bytes) -> Iterator[_Part]:
    """The messages of a chunk, as far as they can be read."""
    ends = simple_ends(data)
    if ends is not None:
        yield _Part(0, data, ends)
        return
    first = size = 0
    for entry in walk_entries(data):
        if entry.compression is None:
            yield _Part(first, data[entry.start : entry.end], [entry.end - entry.start])
        else:
            size += entry.uncompressed_size
            if size > _MAX_UNPACKED:
                raise TooMuchError
            with suppress(FormatError):  # nobody can unpack it
                body = data[entry.body : entry.end]
                plain = decompress(body, entry.compression, entry.uncompressed_size)
                yield _Part(first, plain, simple_ends(plain) or ())
        first += entry.num_records


def _with_few(found: set[int]) -> set[int]:
    """The same, where one stands for many messages with a key."""
    if len({one >> NUMBER_BITS for one in found}) == len(found):
        return found
    counts = Counter([one >> NUMBER_BITS for one in found])
    many = {key for key, count in counts.items() if count > _MOST_MESSAGES}
    if not many:
        return found
    few = {one for one in found if one >> NUMBER_BITS not in many}
    return few | {key << NUMBER_BITS | ANY_MESSAGE for key in many}


class _Prints:
    """Makes prints of the keys of one property."""

    def __init__(self, name: str) -> None:
        self._seeds = {kind: seed_of(name, kind) for kind in (TEXT, NUMBER, BOOLEAN)}
        self._text_seed = self._seeds[TEXT]
        self._is_split = name == KEYS

    def of_texts(self, values: Sequence[bytes]) -> list[int]:
        """Prints of texts; also of empty ones, which nobody looks for."""
        return list(map(mmh3.hash, values, repeat(self._text_seed), repeat(False)))

    def of_value(self, value: object) -> Iterator[int]:
        for form in forms_of_value(value, is_split=self._is_split):  # type: ignore[arg-type]
            yield mmh3.hash(form[1:], self._seeds[form[:1]], signed=False)


class _Named:
    """An application property.

    Its name stands with its length before it, in one byte or in the last of four.
    """

    def __init__(self, name: str) -> None:
        encoded = name.encode()
        self._needle = bytes((len(encoded),)) + encoded
        self._of_text = self._needle + bytes((codes.STRING_8,))
        # Whether a place where it stands may hide another one, which begins within it.
        self._overlaps = any(
            self._needle.startswith(self._needle[at:]) for at in range(1, len(self._needle))
        )
        self._make = _Prints(name)
        self._is_split = name == KEYS

    def prints(self, data: bytes) -> _Found:
        """Prints, and where each was found: a position in the message that has it."""
        texts: Sequence[bytes] | None
        texts, positions = self._texts(data)
        if texts is None:
            return _unzipped(self._any(data))
        if self._is_split:
            split = [text.split(SEPARATOR) for text in texts]
            positions = list(chain.from_iterable(map(repeat, positions, map(len, split))))
            texts = list(chain.from_iterable(split))
        return self._make.of_texts(texts), positions

    def _texts(self, data: bytes) -> tuple[list[bytes] | None, list[int]]:
        """The values where each is a short string, and where they are; None where one is not."""
        if self._overlaps:
            return None, []
        pieces = data.split(self._of_text)
        if len(pieces) != 1 + data.count(self._needle):
            return None, []
        size = len(self._of_text)
        positions = list(accumulate([len(piece) + size for piece in pieces]))
        del pieces[0], positions[-1]
        try:
            found = [text for piece in pieces if len(text := piece[1 : 1 + piece[0]]) == piece[0]]
        except IndexError:
            return None, []
        # A value that ends with the name was cut there, if a string follows.
        return (found if len(found) == len(pieces) else None), positions

    def _any(self, data: bytes) -> Iterator[tuple[int, int]]:
        size = len(self._needle)
        most = 2 * len(data) + 300  # values that do not overlap are never as much
        at = data.find(self._needle)
        while at >= 0:
            try:
                most -= skip_value(data, at + size) - at
                if most < 0:
                    raise TooMuchError
                for found in self._make.of_value(value_at(data, at + size)):
                    yield found, at
            except (FormatError, IndexError, struct.error):
                pass  # no value stands there
            at = data.find(self._needle, at + 1)


class _Field:
    """A field in a fixed place. Each is read for itself: damage behind one may hide another."""

    def __init__(self, name: str) -> None:
        self._read = RowReader([parse_property(name)]).read
        self._make = _Prints(name)

    def prints(self, part: _Part) -> _Found:
        """Prints, and where the message begins that has each."""
        return _unzipped(self._read_all(part))

    def _read_all(self, part: _Part) -> Iterator[tuple[int, int]]:
        begin = 0
        for end in part.ends:
            try:
                (value,) = self._read(part.data[begin + 4 : end])
            except FormatError:
                value = None
            if value is not None:
                for found in self._make.of_value(value):
                    yield found, begin
            begin = end

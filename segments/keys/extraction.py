"""Finding the keys of all messages of a chunk, as the prints that an index holds.

What is found may be too much, as a search compares the keys themselves; it is never too little. So
application properties are not looked for message by message: wherever a declared name stands behind
its length, which is the last byte of it in each encoding that AMQP 1.0 has for a name, the value
behind it is taken. That is done with one `bytes.split` where all values are short strings: 0.6 µs
for a key, of reading, checking and all. Fields of fixed places are read message by message.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

import mmh3

from segments import amqp10_codes as codes
from segments.amqp10 import skip_value
from segments.codec import simple_bodies, simple_ends, walk_entries
from segments.compression import decompress
from segments.errors import FormatError
from segments.format_constants import NO_COMPRESSION
from segments.keys.forms import BOOLEAN, KEYS, NUMBER, SEPARATOR, TEXT, forms_of_value, seed_of
from segments.selector import RowReader, parse_property
from segments.selector.fields import value_at
from segments.selector.nodes import PropertySection

# Beyond these a chunk is not worth indexing: it is always looked at. No program that means well
# gets there.
_MAX_UNPACKED = 16 << 20  # bytes of its sub-batches together: some 300 MB for two million keys
_FEWEST_KEYS, _BYTES_PER_KEY = 1_000, 4


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

    def prints(self, data: bytes) -> set[int] | None:
        """The prints of all keys in a chunk.

        Returns:
            None where they are not known, so that it may have any.
        """
        found: set[int] = set()
        size = 0
        try:
            is_simple = simple_ends(data) is not None
            parts = [data] if is_simple else [data, *_unpacked(data)]
            for part in parts:
                size += len(part)
                for named in self._named:
                    found.update(named.prints(part))
            if self._fields:
                self._read_fields(_messages(data) if not is_simple else simple_bodies(data), found)
        except (FormatError, TooMuchError):
            return None
        return found if len(found) <= max(_FEWEST_KEYS, size // _BYTES_PER_KEY) else None

    def _read_fields(self, messages: Iterable[bytes] | None, found: set[int]) -> None:
        for raw in messages or ():
            for reader in self._fields:
                found.update(reader.prints(raw))


def _unpacked(data: bytes) -> Iterator[bytes]:
    """What compressed sub-batches hold; nothing of one that nobody can unpack."""
    size = 0
    for entry in walk_entries(data):
        if entry.compression in (None, NO_COMPRESSION):
            continue  # its messages stand in the data as they are
        size += entry.uncompressed_size
        if size > _MAX_UNPACKED:
            raise TooMuchError
        try:
            yield decompress(
                data[entry.body : entry.end], entry.compression, entry.uncompressed_size
            )
        except FormatError:
            continue


def _messages(data: bytes) -> Iterator[bytes]:
    """The messages of a chunk with sub-batches, as far as they can be read."""
    for entry in walk_entries(data):
        body = data[entry.body : entry.end]
        if entry.compression is None:
            yield body
            continue
        try:
            plain = decompress(body, entry.compression, entry.uncompressed_size)
            for inner in walk_entries(plain):
                yield plain[inner.body : inner.end]
        except FormatError:
            continue


class _Prints:
    """Makes prints of the keys of one property."""

    def __init__(self, name: str) -> None:
        self._seeds = {kind: seed_of(name, kind) for kind in (TEXT, NUMBER, BOOLEAN)}
        self._text_seed = self._seeds[TEXT]
        self._is_split = name == KEYS

    def of_texts(self, values: Iterable[bytes]) -> Iterable[int]:
        """Prints of texts; also of empty ones, which nobody looks for."""
        if self._is_split:
            values = [part for value in values for part in value.split(SEPARATOR)]
        return map(mmh3.hash, values, repeat(self._text_seed), repeat(False))

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

    def prints(self, data: bytes) -> Iterable[int]:
        texts = self._texts(data)
        return self._make.of_texts(texts) if texts is not None else self._any(data)

    def _texts(self, data: bytes) -> list[bytes] | None:
        """The values where each is a short string; None where one is not."""
        if self._overlaps:
            return None
        pieces = data.split(self._of_text)
        if len(pieces) != 1 + data.count(self._needle):
            return None
        del pieces[0]
        try:
            found = [text for piece in pieces if len(text := piece[1 : 1 + piece[0]]) == piece[0]]
        except IndexError:
            return None
        # A value that ends with the name was cut there, if a string follows.
        return found if len(found) == len(pieces) else None

    def _any(self, data: bytes) -> Iterator[int]:
        size = len(self._needle)
        most = 2 * len(data) + 300  # values that do not overlap are never as much
        at = data.find(self._needle)
        while at >= 0:
            try:
                most -= skip_value(data, at + size) - at
                if most < 0:
                    raise TooMuchError
                yield from self._make.of_value(value_at(data, at + size))
            except (FormatError, IndexError, struct.error):
                pass  # no value stands there
            at = data.find(self._needle, at + 1)


class _Field:
    """A field in a fixed place. Each is read for itself: damage behind one may hide another."""

    def __init__(self, name: str) -> None:
        self._read = RowReader([parse_property(name)]).read
        self._make = _Prints(name)

    def prints(self, raw: bytes) -> Iterable[int]:
        try:
            (value,) = self._read(raw)
        except FormatError:
            return ()
        return () if value is None else self._make.of_value(value)

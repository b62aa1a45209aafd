"""Reading a large JSON object in pieces, so that messages flow meanwhile."""

import json
import re
from typing import Any

import trio

_SPACE = re.compile(r"[ \t\n\r]*")
_FIRST_TRY = 4 << 10  # characters that most values have room in
_CHARACTERS_A_TURN = 64 << 10
_VALUES_A_TURN = 500
_decode = json.JSONDecoder().raw_decode


async def read_large(data: bytes | bytearray, most: int) -> dict[str, Any]:
    """The JSON object that the data is: its fields, and the items of those that are lists, in turn.

    Args:
        data: UTF-8, or another encoding of JSON.
        most: characters that a field or an item may have.

    Raises:
        ValueError, RecursionError: it is not a JSON object, or one of the values is larger.
    """
    reader = _Reader(data.decode(json.detect_encoding(data)), most)
    found: dict[str, Any] = {}
    reader.take("{")
    if reader.has("}"):
        return reader.end(found)
    while True:
        name = reader.value()
        if not isinstance(name, str):
            raise ValueError("a name is expected")
        reader.take(":")
        found[name] = await _items(reader) if reader.has("[") else reader.value()
        if reader.has("}"):
            return reader.end(found)
        reader.take(",")


async def _items(reader: "_Reader") -> list[Any]:
    items: list[Any] = []
    if reader.has("]"):
        return items
    begin = reader.position
    while True:
        items.append(reader.value())
        if reader.has("]"):
            return items
        reader.take(",")
        if len(items) % _VALUES_A_TURN == 0 or reader.position - begin > _CHARACTERS_A_TURN:
            begin = reader.position
            await trio.lowlevel.checkpoint()


class _Reader:
    """Takes a text apart.

    Attributes:
        position: of what has not been read.
    """

    def __init__(self, text: str, most: int) -> None:
        self._text = text
        self._most = most
        self.position = 0
        self._skip(0)

    def _skip(self, position: int) -> None:
        """Go on to what follows the space there."""
        found = _SPACE.match(self._text, position)
        self.position = position if found is None else found.end()

    def has(self, sign: str) -> bool:
        """Whether this sign is next; if so, it is taken."""
        is_next = self._text.startswith(sign, self.position)
        if is_next:
            self._skip(self.position + 1)
        return is_next

    def take(self, sign: str) -> None:
        """Take this sign.

        Raises:
            ValueError: it is not next.
        """
        if not self.has(sign):
            raise ValueError(f"{sign} is expected")

    def value(self) -> Any:  # noqa: ANN401 - JSON
        """Take a value.

        Raises:
            ValueError, RecursionError: there is none, it is too large, or no Unicode.
        """
        for size in (_FIRST_TRY, self._most):
            piece = self._text[self.position : self.position + size]
            try:
                value, end = _decode(piece)
            except ValueError:
                continue
            # A number at the end of a piece may go on after it.
            if end < len(piece) or self.position + end == len(self._text):
                if "\\u" in piece[:end]:  # may be lone surrogates
                    json.dumps(value, ensure_ascii=False).encode()
                self._skip(self.position + end)
                return value
        raise ValueError("no value, or one that is too large")

    def end(self, found: dict[str, Any]) -> dict[str, Any]:
        """What was found; nothing may follow it.

        Raises:
            ValueError: something does.
        """
        if self.position < len(self._text):
            raise ValueError("nothing more is expected")
        return found

"""Messages that look like one before: the same sections, keys, types and lengths.

Most messages of a stream differ in their values alone. A template is made of a message that was
read. It knows which bytes another one must have in common with it, and where the values stand
between them: one comparison shows that a message is sound, and where everything in it is. What fits
no template is left to `segments.message.MessageView`, which defines the right answer: a property
test compares the two.

The body may have any length, within those that its size is written in. Messages with nested values
in properties, with several body sections or with none of bytes have no template.
"""

import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeAlias, cast

from segments import amqp10_codes as codes
from segments.amqp10 import Symbol, Value, decode_value, skip_value
from segments.amqp10_codes import SHORT_DESCRIPTOR, Section
from segments.errors import FormatError

_MAX_HEAD = 2048  # bytes before the body: a longer message is not worth a template
_MAX_ITEMS = 64
_MAX_KEYS = 256  # bounds what is kept, whatever messages come
_MAX_ALIKE = 4  # templates that begin alike: more of them cost more than they save
_PATIENCE = 32  # messages in a row that fit none of them, and these templates are given up
_PAUSE = 1_000  # messages without a template, until the next is made where that was in vain
_KEY_SIZE = 6  # code, size and count of the first section
_APPLICATION, _PROPERTIES = int(Section.APPLICATION_PROPERTIES), int(Section.PROPERTIES)
_OTHERS = frozenset((Section.HEADER, Section.DELIVERY_ANNOTATIONS, Section.MESSAGE_ANNOTATIONS))
_BODY_SIZES = {codes.BINARY_8: "B", codes.BINARY_32: "I"}
_CONSTANTS = frozenset((codes.NULL, codes.TRUE, codes.FALSE, codes.UINT_0, codes.ULONG_0))
_NUMBERS = codes.INTEGERS | codes.FRACTIONS | {codes.BOOLEAN: "?"}
_RARE = frozenset(
    (codes.CHAR, codes.DECIMAL32, codes.TIMESTAMP, codes.DECIMAL64, codes.DECIMAL128, codes.UUID)
)

_Convert: TypeAlias = Callable[[Any], Value]
Parts: TypeAlias = tuple[Any, ...]


class _NoTemplate(Exception):
    """A message is not of the usual form."""


class Slot(NamedTuple):
    """Where a value stands in a message that fits.

    Attributes:
        part: its number among the parts.
        convert: makes a value of that part; None where it is one. Raises FormatError or
            UnicodeDecodeError when the part has none.
    """

    part: int
    convert: _Convert | None

    def value(self, parts: Parts) -> Value:
        """The value; see convert."""
        part: Value = parts[self.part]
        return part if self.convert is None else self.convert(part)


class Template:
    """What messages that look alike have in common.

    Attributes:
        size: bytes before the body.
        split: takes a message of that size or more into parts: what is common and what is not, in
            turn. The last part is the size of the body.
        common: the parts that messages have in common.
        sections: positions of the sections' values, by section code; as MessageView finds them.
        application: where the application properties stand, by name, in order.
    """

    __slots__ = ("_named", "_properties", "application", "common", "sections", "size", "split")

    def __init__(self, raw: bytes) -> None:
        layout = _Layout(raw)
        form = struct.Struct(">" + "".join(layout.forms))
        self.split: Callable[[bytes], Parts] = form.unpack_from
        self.common = self.split(raw)[::2]
        self.size = form.size
        self.sections: Mapping[int, list[int]] = layout.sections
        self.application = layout.application
        self._named = tuple((name, *slot) for name, slot in layout.application.items())
        self._properties = tuple(layout.properties)

    def application_properties(self, parts: Parts) -> dict[str, Value]:
        """All application properties of a message that fits; see Slot."""
        found: dict[str, Value] = {}  # in a loop: a comprehension would cost half as much again
        for name, part, convert in self._named:
            value = parts[part]
            found[name] = value if convert is None else convert(value)
        return found

    def properties(self, parts: Parts) -> list[Value]:
        """Its fixed properties, as far as it has them, in order; see Slot."""
        return [slot.value(parts) for slot in self._properties]

    def fixed_property(self, parts: Parts, index: int) -> Value:
        """One of them, None where it has none there; see Slot."""
        found = self._properties
        return found[index].value(parts) if index < len(found) else None


class _Layout:
    """Takes a message apart: what is between the values, and the values, in turn.

    Raises:
        _NoTemplate: it is not of the usual form.
        FormatError, IndexError, struct.error: it is damaged.
    """

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._done = 0  # bytes that the forms cover
        self.forms: list[str] = []
        self.sections: dict[int, list[int]] = {}
        self.application: dict[str, Slot] = {}
        self.properties: list[Slot] = []
        position = 0
        while raw[position : position + 2] == SHORT_DESCRIPTOR:
            code, position = raw[position + 2], position + 3
            if code in self.sections:
                raise _NoTemplate
            self.sections[code] = [position]
            if code == Section.DATA:
                self._body(position)
                return
            position = self._section(code, position)
        raise _NoTemplate

    def _body(self, position: int) -> None:
        form = _BODY_SIZES.get(self._raw[position])
        if form is None:
            raise _NoTemplate
        size = struct.calcsize(f">{form}")
        self._part(position + 1, position + 1 + size, form)

    def _section(self, code: int, position: int) -> int:
        """Note what a section before the body has, and return where it ends."""
        end = skip_value(self._raw, position)
        if code == _APPLICATION:
            self._map(position, end)
        elif code == _PROPERTIES:
            self._list(position, end)
        elif code in _OTHERS and codes.WIDTHS[self._raw[position] >> 4] in (-1, -4):
            start = position + 1 - codes.WIDTHS[self._raw[position] >> 4]  # type: ignore[operator]
            self._part(start, end, f"{end - start}s")
        elif code not in _OTHERS:
            raise _NoTemplate
        if end > _MAX_HEAD or len(self.forms) > 2 * _MAX_ITEMS:
            raise _NoTemplate
        return end

    def _part(self, start: int, end: int, form: str) -> int:
        """Note a part that differs from message to message; returns its number."""
        self.forms += (f"{start - self._done}s", form)
        self._done = end
        return len(self.forms) - 1

    def _map(self, position: int, end: int) -> None:
        width = codes.MAPS.get(self._raw[position])
        if width is None:
            raise _NoTemplate
        at, count = self._count(position, width)
        for _ in range(count // 2):
            if self._raw[at] not in codes.TEXTS:
                raise _NoTemplate
            name, at = decode_value(self._raw, at)
            if name in self.application:  # where a name comes twice, MessageView knows which counts
                raise _NoTemplate
            self.application[cast("str", name)], at = self._value(at)
        if at != end or count % 2:
            raise _NoTemplate

    def _list(self, position: int, end: int) -> None:
        width = codes.LISTS.get(self._raw[position])
        if width is None:
            raise _NoTemplate
        if not width:
            return
        at, count = self._count(position, width)
        for _ in range(count):
            slot, at = self._value(at)
            self.properties.append(slot)
        if at != end:
            raise _NoTemplate

    def _count(self, position: int, width: int) -> tuple[int, int]:
        """Where the first value of a list or map begins, and how many it has."""
        at = position + 1 + width
        count = int.from_bytes(self._raw[at : at + width], "big")
        if count > 2 * _MAX_ITEMS:
            raise _NoTemplate
        return at + width, count

    def _value(self, at: int) -> tuple[Slot, int]:
        """Note the value at a position, and return where it ends."""
        raw, code = self._raw, self._raw[at]
        end = skip_value(raw, at)
        if code in _CONSTANTS:
            value, _ = decode_value(raw, at)
            return Slot(0, lambda _: value), end
        if code in _NUMBERS:
            return Slot(self._part(at + 1, end, _NUMBERS[code]), None), end
        start = at + 1
        convert: _Convert | None = partial(_decode, bytes((code,)))
        if code in _TEXT_CONVERTERS:
            start += 1 if code < codes.FIRST_LONG else 4
            convert = _TEXT_CONVERTERS[code]
        elif code not in _RARE:
            raise _NoTemplate
        return Slot(self._part(start, end, f"{end - start}s"), convert), end


def _decode(code: bytes, part: bytes) -> Value:
    return decode_value(code + part)[0]


def _symbol(part: bytes) -> Symbol:
    return Symbol(part.decode("ascii"))


_TEXT_CONVERTERS: dict[int, _Convert | None] = {
    **dict.fromkeys(codes.STRINGS, bytes.decode),
    **dict.fromkeys(codes.SYMBOLS, _symbol),
    **dict.fromkeys(codes.BINARIES),
}


class _Alike:
    """The templates of messages that begin alike.

    Attributes:
        templates: in the order in which they are tried.
        misses: messages in a row that fitted none; below 0 while no template is made.
    """

    __slots__ = ("misses", "templates")

    def __init__(self) -> None:
        self.templates: list[Template] = []
        self.misses = 0


class Templates:
    """The templates of messages that were read lately; they are made by themselves.

    What is kept is bounded, and so is what is spent on messages that do not look alike.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, _Alike] = {}

    def fit(self, raw: bytes) -> tuple[Template, Parts] | None:
        """The template that a message fits, and its parts; None when there is none."""
        alike = self._known.get(raw[:_KEY_SIZE])
        if alike is None:
            self._remember(raw[:_KEY_SIZE])  # one alone needs no template
            return None
        templates = alike.templates
        size = len(raw)
        for template in templates:
            body_size = size - template.size
            if body_size >= 0:
                parts = template.split(raw)
                if parts[-1] == body_size and parts[::2] == template.common:
                    if template is not templates[0]:
                        _move_up(templates, template)
                    if alike.misses > 0:  # noqa: PLR1730 - a call costs more
                        alike.misses = 0
                    return template, parts
        return _learn(alike, raw)

    def _remember(self, key: bytes) -> None:
        if len(self._known) >= _MAX_KEYS:
            self._known.pop(next(iter(self._known)), None)
        self._known[key] = _Alike()


def _move_up(templates: list[Template], template: Template) -> None:
    """Those that fit most come to the front."""
    with suppress(ValueError):  # another thread has cleared them
        number = templates.index(template)
        templates[number - 1 : number + 1] = template, templates[number - 1]


def _learn(alike: _Alike, raw: bytes) -> tuple[Template, Parts] | None:
    """Make a template of a message that fits none, unless that has not paid lately."""
    alike.misses += 1
    if alike.misses > _PATIENCE:
        alike.templates.clear()
        alike.misses = -_PAUSE
    if alike.misses < 0 or len(alike.templates) == _MAX_ALIKE:
        return None
    try:
        template = Template(raw)
    except (_NoTemplate, FormatError, IndexError, struct.error):
        alike.misses = -_PAUSE
        return None
    parts = template.split(raw)
    if parts[-1] != len(raw) - template.size:
        alike.misses = -_PAUSE
        return None
    alike.templates.append(template)
    return template, parts

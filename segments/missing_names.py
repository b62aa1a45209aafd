"""What may be wrong with a question that no message answers: it names what no message has.

A question is right whatever properties it names, so a slip in a name finds nothing. Some of the
messages that are looked at anyway are read for the names that they have; how many is bounded, and
reading ends where each name of the question was seen, mostly with the first message.
"""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from difflib import get_close_matches

from segments.errors import FormatError
from segments.message import MessageView, Properties
from segments.selector import nodes as n
from segments.words import plural

_MOST_MESSAGES = 1_000
_MOST_OF_A_CHUNK = 32
_MOST_BYTES = 64 << 10  # of a message, and of those of a chunk together
_MOST_NAMES = 200
_MOST_NAME_BYTES = 100
_TOLD = 3  # of each kind of name
_FIXED = tuple(item.name for item in fields(Properties))


class MissingNames:
    """Finds the properties of a question that no message has.

    Args:
        wanted: that the question names.
        node: its selector, if it has one.
    """

    def __init__(self, wanted: Iterable[n.Property], node: n.Node | None = None) -> None:
        parts = dict.fromkeys(wanted)
        self._left = {part: None for part in parts if part.section is not n.PropertySection.HEADER}
        self._node = node
        self._seen: dict[str, None] = {}
        self._messages = 0

    def look(self, bodies: Iterable[bytes]) -> None:
        """Look at the first of some messages; this does nothing once all names were seen."""
        if not self._left:
            return
        size, most = 0, min(_MOST_OF_A_CHUNK, _MOST_MESSAGES - self._messages)
        for _, raw in zip(range(most), bodies, strict=False):
            size += len(raw)
            if size > _MOST_BYTES or not self._left:
                return
            self._messages += 1
            self._look_at(MessageView(raw))

    def _look_at(self, message: MessageView) -> None:
        try:
            free, fixed = message.application_properties, message.properties
            names = [*free, *(f"properties.{k}" for k in _FIXED if getattr(fixed, k) is not None)]
        except FormatError:
            return
        found = {name for name in names if isinstance(name, str)}
        self._left = {part: None for part in self._left if _name(part) not in found}
        for name in names:
            if len(self._seen) < _MOST_NAMES and name in found and len(name) <= _MOST_NAME_BYTES:
                self._seen[name] = None

    def hint(self) -> str:
        """What to say where nothing was found: sentences, or nothing."""
        return "; ".join(self._sentences())

    def _sentences(self) -> Iterator[str]:
        unquoted = list(dict.fromkeys(self._unquoted()))
        for name in map(_name, unquoted[:_TOLD]):
            text = _shown(name)
            yield f"{text} is read as a property: a text is written '{text}'"
        for part in self._node.walk() if self._node is not None else ():
            match part:
                case n.Comparison(_, n.Literal(str(text)), n.Literal(str())):
                    yield f"'{_shown(text)}' is read as a text: a property has no quotes"
        has = f"none of {plural(self._messages, 'message')} that were looked into has a property"
        if self._messages == 1:
            has = "the one message that was looked into has no property"
        missing = [part for part in self._left if part not in unquoted] if self._messages else []
        for name in map(_name, missing[:_TOLD]):
            yield f"{has} {_shown(name)}: {self._instead_of(name)}"

    def _unquoted(self) -> Iterator[n.Property]:
        """Properties that nothing has and that stand where a text would be compared."""
        for part in self._node.walk() if self._node is not None and self._messages else ():
            match part:
                case n.Comparison(_, n.Property() as left, n.Property() as right):
                    if {left, right} & self._left.keys():
                        yield right if right in self._left else left
                case n.In(n.Property(), items):
                    for item in items:
                        if isinstance(item, n.Property) and item in self._left:
                            yield item

    def _instead_of(self, name: str) -> str:
        """The names that there are, the nearest ones if some are near."""
        if name == "body":
            return "a condition sees properties, not bodies"
        if not self._seen:
            return "they have no properties" if self._messages > 1 else "it has no properties"
        by_word = {name.rpartition(".")[2].lower(): name for name in reversed(self._seen)}
        near = get_close_matches(name.rpartition(".")[2].lower(), by_word, _TOLD)
        if near:
            return f"did you mean {' or '.join(_shown(by_word[word]) for word in near)}?"
        more = ", …" if len(self._seen) > _TOLD else ""
        return f"there is {', '.join(map(_shown, list(self._seen)[:_TOLD]))}{more}"


def _name(part: n.Property) -> str:
    """A property's name, as `parse_property` reads it."""
    is_free = part.section is n.PropertySection.APPLICATION
    return part.name if is_free else f"{part.section}.{part.name}"


def _shown(name: str) -> str:
    """A name for people, whatever a publisher has made of it."""
    cut = name if len(name) <= _MOST_NAME_BYTES else f"{name[:_MOST_NAME_BYTES]}…"
    return cut if cut.isprintable() else repr(cut)

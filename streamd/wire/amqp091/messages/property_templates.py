"""Messages of one kind: alike in all but their ids and times.

Publishers give each message an id or a time of its own, and everything else is the same again and
again. These are taken out of the properties as they came, so that the rest can be converted
once and remembered.
"""

from functools import lru_cache
from typing import NamedTuple

from streamd.wire.amqp091.properties import FIELDS, MORE_FLAGS, FieldKind

_DIFFERING = ("correlation_id", "message_id", "timestamp")
_DIFFERING_FLAGS = sum(bit for bit, name, _ in FIELDS if name in _DIFFERING)
_SIZES = {FieldKind.OCTET: 1, FieldKind.TIME: 8}
_TABLE_HEAD = 4


class Kind(NamedTuple):
    """Flags and properties, taken apart.

    Attributes:
        common: flags and properties without those that differ.
        differing: correlation id, message id, timestamp; None for a missing one.
    """

    common: bytes
    differing: tuple[bytes | None, bytes | None, bytes | None]


def kind_of(raw: bytes) -> Kind | None:
    """Take a message's properties apart; None where none of them differs, or they are damaged."""
    flags = raw[0] << 8 | raw[1]
    if not flags & _DIFFERING_FLAGS or flags & MORE_FLAGS:
        return None
    common = [(flags & ~_DIFFERING_FLAGS).to_bytes(2, "big")]
    differing: list[bytes | None] = [None, None, None]
    at = start = 2
    try:
        for kind, place in _steps(flags):
            if kind is FieldKind.TEXT:
                end = at + 1 + raw[at]
            elif kind is FieldKind.TABLE:
                end = at + _TABLE_HEAD + int.from_bytes(raw[at : at + _TABLE_HEAD], "big")
            else:
                end = at + _SIZES[kind]
            if place is not None:
                common.append(raw[start:at])
                differing[place] = raw[at + (kind is FieldKind.TEXT) : end]
                start = end
            at = end
    except IndexError:
        return None
    if at > len(raw):
        return None
    common.append(raw[start:])
    return Kind(b"".join(common), (differing[0], differing[1], differing[2]))


@lru_cache(maxsize=1024)
def _steps(flags: int) -> list[tuple[FieldKind, int | None]]:
    """The fields up to the last that differs: what they are, and their place in `differing`."""
    steps = [
        (kind, _DIFFERING.index(name) if name in _DIFFERING else None)
        for bit, name, kind in FIELDS
        if flags & bit
    ]
    while steps[-1][1] is None:
        steps.pop()
    return steps

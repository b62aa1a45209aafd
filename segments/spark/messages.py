"""Finding the sections of many messages at once.

Messages that begin alike advance together, one section per step, so that the usual ones cost no
Python call each. A message of any other form is left to `segments.message.MessageView`, which
defines the right answer: a property test compares the two.

Source: OASIS AMQP 1.0 part 3 (messaging), 3.2.
"""

from typing import NamedTuple

import numpy as np

from segments import amqp10_codes as codes
from segments.amqp10_codes import Section
from segments.errors import FormatError
from segments.message import MessageView
from segments.spark.headers import Bytes, Mask, Numbers
from segments.spark.walk import words

PADDING = 16  # bytes that must follow the last message, so that looking ahead stays inside
_MISSING = -1
_SHORT_LENGTH, _LONG_LENGTH = -1, -4
_NONE = 99  # no width: such a value is left to MessageView
_WIDTHS = np.array([_NONE if width is None else width for width in codes.WIDTHS], np.int64)
# The three bytes with which a section begins: its descriptor, of one byte.
_FIRST, _PROPERTIES, _APPLICATION, _BODY, _FOOTER = (
    codes.SMALL_ULONG << 8 | code
    for code in (
        Section.HEADER,
        Section.PROPERTIES,
        Section.APPLICATION_PROPERTIES,
        Section.DATA,
        Section.FOOTER,
    )
)


_OTHERS = (*range(_FIRST, _BODY), _FOOTER)
_ONCE = (_PROPERTIES, _APPLICATION, _BODY)
_NO_SECTION = 1 << 24  # heads from here on do not begin with the zero of a descriptor
_HEAD_SIZE = 4  # the descriptor and the type of what it describes
_FEW = 8  # as few messages as this are as fast one by one


class Sections(NamedTuple):
    """Where the parts of some messages are, as positions in their buffer.

    Attributes:
        body, body_end: of the body's bytes; where it is not an AMQP 1.0 message, all of it.
        properties, application: where the value of that section begins; -1 where there is none.
        odd: messages that the above does not describe; use `view_of`.
    """

    body: Numbers
    body_end: Numbers
    properties: Numbers
    application: Numbers
    odd: Mask


class _Alike(NamedTuple):
    """Messages that begin with the same kinds of sections, and how far these were followed.

    Attributes:
        rows: their numbers; a slice of all.
        at: where the next section of each begins.
        limits: where each ends.
    """

    rows: Numbers | slice
    at: Numbers
    limits: Numbers
    seen: frozenset[int] = frozenset()

    def some(self, which: Mask) -> "_Alike":
        """Some of them."""
        if which.all():
            return self
        rows = np.flatnonzero(which) if isinstance(self.rows, slice) else self.rows[which]
        return self._replace(rows=rows, at=self.at[which], limits=self.limits[which])


def find_sections(buffer: Bytes, starts: Numbers, ends: Numbers) -> Sections:
    """Find the sections of the messages that stand in `buffer` from `starts` to `ends`.

    Args:
        buffer: their bytes, with PADDING bytes behind the last one.
        starts: where the messages begin.
        ends: where they end.
    """
    count = len(starts)
    found = Sections(
        body=starts.copy(),
        body_end=ends.copy(),
        properties=np.full(count, _MISSING),
        application=np.full(count, _MISSING),
        odd=np.zeros(count, np.bool_),
    )
    numbers = words(buffer)
    everything = _Alike(slice(None), starts, ends)
    # What does not begin like a section is all body.
    is_section = (numbers[starts] < _NO_SECTION) & (starts < ends)
    groups = [everything.some(is_section)]
    while groups:
        group = groups.pop()
        if len(group.at) < _FEW:
            found.odd[group.rows] = True
            continue
        heads = numbers[group.at]
        is_same = heads == heads[0]
        if not is_same.all():
            groups.append(group.some(~is_same))
            group = group.some(is_same)
        further = _pass_section(buffer, numbers, int(heads[0]), group, found)
        if further is not None:
            groups.append(further)
    return found


def _pass_section(
    buffer: Bytes, numbers: Numbers, head: int, group: _Alike, found: Sections
) -> _Alike | None:
    """Note the section with which all messages of a group go on.

    Args:
        buffer: see find_sections.
        numbers: `words` of it.
        head: the four bytes with which the section begins.
        group: the messages.
        found: what to note it in.

    Returns:
        The group behind it; None when there is nothing more.
    """
    code, kind = head >> 8, head & 0xFF
    is_body = code == _BODY
    width = int(_WIDTHS[kind >> 4])
    is_known = kind in codes.BINARIES if is_body else code in _OTHERS
    is_again = code in group.seen and code in _ONCE
    is_behind = max(group.seen, default=0) >= _BODY and code < _BODY
    if not is_known or width == _NONE or is_again or is_behind:
        found.odd[group.rows] = True
        return None
    value = group.at + _HEAD_SIZE
    if width == _SHORT_LENGTH:
        end = value + buffer[value]
        end += 1
        value += 1
    elif width == _LONG_LENGTH:
        end = value + numbers[value]
        end += 4
        value += 4
    else:
        end = value + width
    fits = end <= group.limits
    if not fits.all():
        found.odd[group.some(~fits).rows] = True
        value, end, group = value[fits], end[fits], group.some(fits)
    if code == _PROPERTIES:
        found.properties[group.rows] = group.at + _HEAD_SIZE - 1
    elif code == _APPLICATION:
        found.application[group.rows] = group.at + _HEAD_SIZE - 1
    elif is_body:
        found.body[group.rows] = value
        found.body_end[group.rows] = end
    group = group._replace(at=end, seen=group.seen | {code})
    goes_on = end < group.limits
    if _BODY not in group.seen:
        found.odd[group.some(~goes_on).rows] = True
    return group.some(goes_on) if goes_on.any() else None


def view_of(buffer: Bytes, start: int, end: int) -> MessageView:
    """One message, to be looked at by itself."""
    return MessageView(buffer[start:end].tobytes())


def body_of(view: MessageView) -> bytes:
    """Its body; all its bytes when it is not an AMQP 1.0 message, or damaged."""
    try:
        return view.body
    except FormatError:
        return view.raw

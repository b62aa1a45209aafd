"""Finding the sections of many messages at once.

All messages of a block advance together, one section per step, so that the usual ones cost no
Python each. A message of any other form is left to `segments.message.MessageView`, whose answers
are the measure: a property test compares the two.

Source: OASIS AMQP 1.0 part 3 (messaging), 3.2.
"""

from typing import NamedTuple

import numpy as np

from segments.errors import FormatError
from segments.message import MessageView, Section
from segments.spark.headers import Bytes, Mask, Numbers
from segments.spark.walk import words

PADDING = 16  # bytes that must follow the last message, so that looking ahead stays inside
_MISSING = -1
_SHORT_BINARY, _LONG_BINARY = 0xA0, 0xB0
_SHORT_LENGTH, _LONG_LENGTH = -1, -4
# How many bytes follow a type code, by its high half; as segments.amqp10 has it. 99: not here.
_WIDTHS = np.array([99, 99, 99, 99, 0, 1, 2, 4, 8, 16, -1, -4, -1, -4, -1, -4], np.int64)
_NONE = 99
# The three bytes with which a section begins: its descriptor, of one byte.
_FIRST, _PROPERTIES, _APPLICATION, _BODY, _FOOTER = (
    0x5300 | code
    for code in (
        Section.HEADER,
        Section.PROPERTIES,
        Section.APPLICATION_PROPERTIES,
        Section.DATA,
        Section.FOOTER,
    )
)


class Sections(NamedTuple):
    """Where the parts of some messages are, as positions in their buffer.

    Attributes:
        body, body_end: of the body's bytes; of what is no AMQP 1.0 message, all of it.
        properties, application: where the value of that section begins; -1 where there is none.
        odd: messages for which the above says nothing; ask `view_of`.
    """

    body: Numbers
    body_end: Numbers
    properties: Numbers
    application: Numbers
    odd: Mask


def find_sections(buffer: Bytes, starts: Numbers, ends: Numbers) -> Sections:
    """Find the sections of the messages that stand in `buffer` from `starts` to `ends`.

    Args:
        buffer: their bytes, with PADDING bytes behind the last one.
        starts: where the messages begin.
        ends: where they end.
    """
    count = len(starts)
    body, body_end = starts.copy(), ends.copy()
    properties = np.full(count, _MISSING)
    application = np.full(count, _MISSING)
    has_body = np.zeros(count, np.bool_)
    odd = np.zeros(count, np.bool_)
    # What does not begin like a section is all body.
    rows = np.flatnonzero((starts < ends) & (buffer[starts] == 0))
    at = starts[rows]
    numbers = words(buffer)
    while len(rows):
        head = numbers[at]
        kind = (head & 0xFF).astype(np.uint8)
        code = head >> 8
        end, value = _value_end(buffer, numbers, at, kind)
        limit = ends[rows]
        is_body = (code == _BODY) & ((kind == _SHORT_BINARY) | (kind == _LONG_BINARY))
        plain = (is_body & ~has_body[rows]) | (code >= _FIRST) & (code < _BODY) | (code == _FOOTER)
        plain &= end <= limit
        for section, places in ((_PROPERTIES, properties), (_APPLICATION, application)):
            here = np.flatnonzero(code == section)
            if len(here):
                there = rows[here]
                plain[here] &= places[there] == _MISSING
                places[there] = at[here] + 3
        is_body &= plain
        bodies = rows[is_body]
        body[bodies], body_end[bodies] = value[is_body], end[is_body]
        has_body[bodies] = True
        odd[rows[~plain]] = True
        further = plain & (end < limit)
        done = rows[plain & ~further]
        odd[done[~has_body[done]]] = True
        rows, at = rows[further], end[further]
    return Sections(body, body_end, properties, application, odd)


def _value_end(
    buffer: Bytes, numbers: Numbers, at: Numbers, kind: Bytes
) -> tuple[Numbers, Numbers]:
    """Where the values of sections end, and where what is in them begins.

    Args:
        buffer: see find_sections.
        numbers: `words` of it.
        at: where the sections begin.
        kind: the type codes of their values.
    """
    width = _WIDTHS[kind >> 4]
    size = np.where(width == _NONE, len(buffer), width)  # reaches beyond the message: odd
    value = at + 4
    short, long = np.flatnonzero(width == _SHORT_LENGTH), np.flatnonzero(width == _LONG_LENGTH)
    size[short] = buffer[value[short]]
    value[short] += 1
    size[long] = numbers[value[long]]
    value[long] += 4
    return value + size, value


def view_of(buffer: Bytes, start: int, end: int) -> MessageView:
    """One message, to be looked at by itself."""
    return MessageView(buffer[start:end].tobytes())


def body_of(view: MessageView) -> bytes:
    """Its body; all its bytes when it is no AMQP 1.0 message, or a damaged one."""
    try:
        return view.body
    except FormatError:
        return view.raw

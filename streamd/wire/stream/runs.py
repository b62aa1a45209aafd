"""Publish frames: the commonest ones, read without the general machinery, and some taken together.

A frame costs about as much as twenty messages in a frame do. So frames that follow one another in
what was received, of one publisher and with one message each, become one command; for all code
behind this it is as if the client had sent them in one frame. Frames with a sub-batch are left
alone: a bad one refuses the rest of its own frame, and of no other.
"""

import struct
from typing import NamedTuple

from segments.entries import ID_SIZE
from segments.format_constants import SUB_BATCH_BIT
from streamd.wire.stream import commands as c

_MIN_RUN = 2
_MAX_RUN = 2048
_HEAD = struct.Struct(">IHHBI")  # size, key, version, publisher, number of messages
_VALUE_SIZE = struct.Struct(">h")
_LENGTH = struct.Struct(">I")
_SIZE_BYTES = 4
_FILTERED = c.PublishFiltered.VERSION
_VERSIONS = (c.Publish.VERSION, _FILTERED)


class Run(NamedTuple):
    """Frames as one command, and where the next frame begins."""

    command: c.Publish | c.PublishFiltered
    end: int


def publish_run(buffer: bytearray, position: int, limit: int | None) -> Run | None:
    """The Publish frames at `position` that are one command; None where there is no whole one.

    Args:
        buffer: what was received.
        position: where a frame begins.
        limit: bytes that a frame may have, without its size; None for no limit.
    """
    body = position + _HEAD.size
    if body > len(buffer):
        return None
    size, key, version, publisher_id, count = _HEAD.unpack_from(buffer, position)
    end = position + _SIZE_BYTES + size
    is_publish = key == c.Publish.KEY and version in _VERSIONS
    if not is_publish or not body <= end <= len(buffer) or (limit is not None and size > limit):
        return None
    if count == 1 and end < len(buffer):  # else one frame in flight, as many clients have
        run = _several(buffer, position, limit)
        if run is not None:
            return run
    return Run(_command(version, publisher_id, count, bytes(memoryview(buffer)[body:end])), end)


def _several(buffer: bytearray, position: int, limit: int | None) -> Run | None:
    """Whole frames of one message each; None where there is one, or that is a sub-batch."""
    size, _, version, publisher_id, _ = _HEAD.unpack_from(buffer, position)
    length_at = _length_place(buffer, position, size, filtered=version == _FILTERED)
    if length_at is None:
        return None
    stride = _SIZE_BYTES + size
    number = _uniform(buffer, position, stride, length_at)
    if number < _MIN_RUN:
        return _varied(buffer, position, (version, publisher_id), limit)
    end = position + number * stride
    block = bytes(memoryview(buffer)[position:end])
    starts = range(_HEAD.size, len(block), stride)
    entry = stride - _HEAD.size
    entries = b"".join([block[at : at + entry] for at in starts])
    return Run(_command(version, publisher_id, number, entries), end)


def _command(
    version: int, publisher_id: int, number: int, entries: bytes
) -> c.Publish | c.PublishFiltered:
    kind = c.PublishFiltered if version == _FILTERED else c.Publish
    return kind(publisher_id, number, entries)


def _varied(
    buffer: bytearray, position: int, wanted: tuple[int, int], limit: int | None
) -> Run | None:
    """Frames of one version and publisher whose messages differ in size."""
    version, publisher_id = wanted
    filtered = version == _FILTERED
    view = memoryview(buffer)
    entries: list[memoryview] = []
    try:
        while len(entries) < _MAX_RUN and position + _HEAD.size <= len(buffer):
            size, key, *found, count = _HEAD.unpack_from(buffer, position)
            is_like = key == c.Publish.KEY and tuple(found) == wanted and count == 1
            if not is_like or (limit is not None and size > limit):
                break
            if _length_place(buffer, position, size, filtered=filtered) is None:
                break
            end = position + _SIZE_BYTES + size
            entries.append(view[position + _HEAD.size : end])
            position = end
        if len(entries) < _MIN_RUN:
            return None
        return Run(_command(version, publisher_id, len(entries), b"".join(entries)), position)
    finally:
        entries.clear()
        view.release()  # or the buffer could not be changed


def _length_place(buffer: bytearray, position: int, size: int, *, filtered: bool) -> int | None:
    """Where a frame's only message has its length, from the frame's first byte.

    None when the frame is not there whole, or its message does not fill it, or is a sub-batch.
    """
    end = _SIZE_BYTES + size
    if position + end > len(buffer):
        return None
    at = _HEAD.size + ID_SIZE
    if filtered:
        if at + _VALUE_SIZE.size > end:
            return None
        (value_size,) = _VALUE_SIZE.unpack_from(buffer, position + at)
        at += _VALUE_SIZE.size + max(value_size, 0)
    if at + _LENGTH.size > end or buffer[position + at] & SUB_BATCH_BIT:
        return None
    (length,) = _LENGTH.unpack_from(buffer, position + at)
    return at if at + _LENGTH.size + length == end else None


def _uniform(buffer: bytearray, position: int, stride: int, length_at: int) -> int:
    """How many frames follow that differ in publishing id, filter value and body alone."""
    number = min((len(buffer) - position) // stride, _MAX_RUN)
    ids = range(_HEAD.size, _HEAD.size + ID_SIZE)
    value_size = range(ids.stop, min(ids.stop + _VALUE_SIZE.size, length_at))
    for at in (*range(_HEAD.size), *value_size, *range(length_at, length_at + _LENGTH.size)):
        if number < _MIN_RUN:
            break
        first = position + at
        column = buffer[first : first + (number - 1) * stride + 1 : stride]
        number -= len(column.lstrip(column[:1]))
    return number

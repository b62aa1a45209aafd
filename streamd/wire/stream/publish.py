"""The entries of Publish frames, read in one pass: the server's hottest code.

A chunk's data section holds entries exactly as a Publish frame carries them, less the publishing
ids and filter values between them. So a frame is taken apart into three columns: ids, filter
values, entries. Frames whose messages all have the same size (and whose filter values have) are
taken apart by one compiled `struct`; those whose sizes came before on the same connection by a
regular expression, at twice the cost per message; the others entry by entry, at four times. A
property test holds the three together.

Source of the sub-batch checks: rabbitmq/rabbitmq-server,
deps/rabbitmq_stream/src/rabbit_stream_utils.erl.
"""

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from segments.entries import ID_SIZE, Entries
from segments.format_constants import SUB_BATCH_BIT
from segments.pace import Advice, Pace
from streamd.wire.stream.commands import PublishConfirm, PublishError
from streamd.wire.stream.errors import unknown_frame

MAX_SUB_BATCH_BYTES = 64 << 20  # uncompressed, as announced: what a reader must make room for
_MAX_COMPRESSION = 4
_MIN_UNIFORM = 4  # fewer messages are read faster one by one
_MAX_UNIFORM = 2048  # bounds the compiled structs that are kept
_MAX_SIZES = 64  # of messages, and of filter values, that an expression knows

_SIMPLE = struct.Struct(">QI")
_SUB_BATCH = struct.Struct(">BHII")
_LENGTH16 = struct.Struct(">h")
_CONFIRM_HEAD = struct.Struct(">IHHBI")
_LENGTH32 = struct.Struct(">I")
_NO_VALUE = _LENGTH16.pack(-1)
_FindAll: TypeAlias = Callable[[bytes], list[tuple[bytes, bytes, bytes]]]  # id, value, message


class Decoded(NamedTuple):
    """What a Publish frame holds.

    Attributes:
        groups: entries to be stored, in order. A sub-batch is a group of its own: some clients
            read one sub-batch per chunk and nothing else with it.
        refused_ids: 8 bytes for each entry from the first bad sub-batch on.
    """

    groups: list[Entries]
    refused_ids: bytes = b""


class Part(NamedTuple):
    """Some of the entries of a Publish frame: their bytes, and how many they are."""

    entries: bytes
    num_entries: int


class KnownSizes:
    """The sizes that filter values and messages of a connection have had lately.

    Frames without others are taken apart by a regular expression of them. As a size stands before
    each value and message, no two alternatives fit.

    Args:
        filtered: messages have filter values, as in version 2 of the frame.
    """

    def __init__(self, *, filtered: bool) -> None:
        self._filtered = filtered
        self._values: set[int] = set()
        self._messages: set[int] = set()
        self._findall: _FindAll | None = None
        self._pace = Pace()

    def decode(self, entries: bytes, count: int) -> Decoded | None:
        """The entries of a Publish frame; None where one has another size."""
        rows = self._findall(entries) if self._findall is not None else []
        if len(rows) != count or not rows[-1][0]:
            return None
        self._pace.advice(count, 0)
        ids, values, pieces = zip(*rows, strict=True)
        data, ends = b"".join(pieces), list(accumulate(map(len, pieces)))
        found = [value[_LENGTH16.size :] for value in values] if self._filtered else ()
        has_values = found if any(found) else None
        return Decoded([Entries(b"".join(ids), data, count, count, has_values, ends=ends)])

    def learn(self, values: Sequence[bytes], pieces: Sequence[bytes]) -> None:
        """Take note of a frame that was read otherwise; pieces are messages behind their length."""
        advice = self._pace.advice(0, len(pieces))
        if advice is Advice.FORGET:
            self._forget()
        if advice is not Advice.LEARN:
            return
        sizes, lengths = set(map(len, values)), set(map(len, pieces))
        for _ in range(2):
            self._values |= sizes
            self._messages |= lengths
            if max(len(self._values), len(self._messages)) <= _MAX_SIZES:
                self._findall = self._compiled()
                return
            self._forget()  # all but those of this frame

    def _forget(self) -> None:
        self._values, self._messages, self._findall = set(), set(), None

    def _compiled(self) -> _FindAll:
        values = [(_LENGTH16.pack(size), size) for size in self._values]
        values += [(_NO_VALUE, 0)] if self._filtered else [(b"", 0)]
        sizes = (length - _LENGTH32.size for length in self._messages)
        messages = [(_LENGTH32.pack(size), size) for size in sizes]
        both = [
            b"|".join([re.escape(head) + b".{%d}" % size for head, size in some])
            for some in (values, messages)
        ]
        # What does not fit ends the search: it is found as one piece, without an id.
        return re.compile(b"(?s)(.{8})(%b)(%b)|.+" % tuple(both)).findall


def decode_entries(entries: bytes, count: int, sizes: KnownSizes | None = None) -> Decoded:
    """Take apart the entries of a Publish frame, version 1.

    Args:
        entries: the entries.
        count: how many they are.
        sizes: of the connection; None where nothing is known.

    Raises:
        RemoteProtocolError: they do not fill the frame as announced.
    """
    if count == 1 and _is_message(entries):
        return Decoded([Entries(entries[:ID_SIZE], entries[ID_SIZE:], 1, 1, None)])
    found = _uniform(entries, count)
    if found is None and sizes is not None and count >= _MIN_UNIFORM:
        found = sizes.decode(entries, count)
    return found or _one_by_one(entries, count, sizes)


def decode_filtered_entries(entries: bytes, count: int, sizes: KnownSizes | None = None) -> Decoded:
    """Take apart the entries of a Publish frame, version 2: each has a filter value or none.

    Args:
        entries: the entries.
        count: how many they are.
        sizes: of the connection; None where nothing is known.

    Raises:
        RemoteProtocolError: they do not fill the frame as announced, or one is a sub-batch.
    """
    found = _uniform_filtered(entries, count)
    if found is None and sizes is not None and count >= _MIN_UNIFORM:
        found = sizes.decode(entries, count)
    return found or _filtered_one_by_one(entries, count, sizes)


def _is_message(entries: bytes) -> bool:
    """Whether this is exactly one message, and no sub-batch."""
    if len(entries) < _SIMPLE.size or entries[ID_SIZE] & SUB_BATCH_BIT:
        return False
    return bool(_SIMPLE.unpack_from(entries)[1] == len(entries) - _SIMPLE.size)


def has_sub_batches(entries: bytes, count: int) -> bool:
    """Whether one of the entries of a frame may be a sub-batch; looks at what is not damaged."""
    position = 0
    for _ in range(count):
        if position + _SIMPLE.size > len(entries):
            return False
        if entries[position + ID_SIZE] & SUB_BATCH_BIT:
            return True
        position += _SIMPLE.size + _SIMPLE.unpack_from(entries, position)[1]
    return False


def parts_of(entries: bytes, count: int, most: int, *, filtered: bool) -> Iterator[Part]:
    """Cut the entries of a frame into parts of `most` of them, to be read one after another.

    Raises:
        RemoteProtocolError: they do not fill the frame as announced; the parts so far are no use.
    """
    position, size = 0, len(entries)
    for start in range(0, count, most):
        begin, number = position, min(most, count - start)
        for at in range(start, start + number):
            length_at = position + ID_SIZE
            if filtered:
                if length_at + _LENGTH16.size > size:
                    raise _cut_off(at, count)
                length_at += _LENGTH16.size + max(_LENGTH16.unpack_from(entries, length_at)[0], 0)
            if length_at + _LENGTH32.size > size:
                raise _cut_off(at, count)
            (length,) = _LENGTH32.unpack_from(entries, length_at)
            position = length_at + _LENGTH32.size + length
            if entries[length_at] & SUB_BATCH_BIT:
                if filtered:
                    raise unknown_frame("a sub-batch cannot have a filter value")
                _, position = _sub_batch(entries, length_at - ID_SIZE, at, count)
        yield Part(entries[begin:position], number)
    _check_end(position, size)


def publishing_ids_of(entries: bytes, count: int, *, filtered: bool) -> bytes:
    """The publishing ids alone, for a frame that is refused as a whole."""
    decoded = (decode_filtered_entries if filtered else decode_entries)(entries, count)
    return b"".join(group.publishing_ids for group in decoded.groups) + decoded.refused_ids


def _stride(entries: bytes, count: int) -> int:
    """Bytes per entry if they can all have the same size, else 0."""
    if not _MIN_UNIFORM <= count <= _MAX_UNIFORM or len(entries) % count:
        return 0
    return len(entries) // count


def _is_repeated(entries: bytes, count: int, stride: int, start: int, size: int) -> bool:
    """Whether the `size` bytes at `start` of each entry are those of the first entry."""
    for at in range(start, start + size):  # a generator would cost half as much again
        if entries[at::stride] != entries[at : at + 1] * count:
            return False
    return True


@lru_cache(maxsize=64)
def _columns(count: int, form: str) -> struct.Struct:
    return struct.Struct(form * count)


def _uniform(entries: bytes, count: int) -> Decoded | None:
    stride = _stride(entries, count)
    if stride < _SIMPLE.size:
        return None
    (length,) = _LENGTH32.unpack_from(entries, ID_SIZE)
    if length != stride - _SIMPLE.size:
        return None
    if not _is_repeated(entries, count, stride, ID_SIZE, _LENGTH32.size):
        return None
    columns = _columns(count, f"8s{stride - ID_SIZE}s").unpack(entries)
    ids, data = b"".join(columns[::2]), b"".join(columns[1::2])
    return Decoded([Entries(ids, data, count, count, None)])


def _uniform_filtered(entries: bytes, count: int) -> Decoded | None:
    stride = _stride(entries, count)
    if stride < ID_SIZE + _LENGTH16.size:
        return None
    (value_size,) = _LENGTH16.unpack_from(entries, ID_SIZE)
    value_start = ID_SIZE + _LENGTH16.size
    entry_start = value_start + value_size
    if value_size < 0 or stride < entry_start + _LENGTH32.size:
        return None
    (length,) = _LENGTH32.unpack_from(entries, entry_start)
    if length != stride - entry_start - _LENGTH32.size:
        return None
    if not (
        _is_repeated(entries, count, stride, ID_SIZE, _LENGTH16.size)
        and _is_repeated(entries, count, stride, entry_start, _LENGTH32.size)
    ):
        return None
    form = f"8s2x{value_size}s{stride - entry_start}s"
    columns = _columns(count, form).unpack(entries)
    ids, data = b"".join(columns[::3]), b"".join(columns[2::3])
    values = columns[1::3] if value_size else None
    size = stride - entry_start
    ends = range(size, len(data) + 1, size)
    return Decoded([Entries(ids, data, count, count, values, ends=ends)])


def _one_by_one(entries: bytes, count: int, sizes: KnownSizes | None = None) -> Decoded:
    groups: list[Entries] = []
    ids: list[bytes] = []
    pieces: list[bytes] = []
    position, size = 0, len(entries)
    unpack = _SIMPLE.unpack_from
    for number in range(count):
        if position + _SIMPLE.size > size:
            raise _cut_off(number, count)
        if entries[position + ID_SIZE] & SUB_BATCH_BIT:
            _close_group(groups, ids, pieces)
            batch, end = _sub_batch(entries, position, number, count)
            if batch is None:
                return Decoded(groups, _ids_from(entries, position, number, count))
            groups.append(batch)
        else:
            _, length = unpack(entries, position)
            end = position + _SIMPLE.size + length
            if end > size:
                raise _cut_off(number, count)
            ids.append(entries[position : position + ID_SIZE])
            pieces.append(entries[position + ID_SIZE : end])
        position = end
    _check_end(position, size)
    if sizes is not None and len(pieces) == count >= _MIN_UNIFORM:
        sizes.learn((), pieces)
    _close_group(groups, ids, pieces)
    return Decoded(groups)


def _close_group(groups: list[Entries], ids: list[bytes], pieces: list[bytes]) -> None:
    if pieces:
        count = len(pieces)
        groups.append(Entries(b"".join(ids), b"".join(pieces), count, count, None))
        ids.clear()
        pieces.clear()


def _sub_batch(
    entries: bytes, position: int, number: int, count: int
) -> tuple[Entries | None, int]:
    """The sub-batch at `position`, None when RabbitMQ would refuse it; and its end."""
    start = position + ID_SIZE
    body = start + _SUB_BATCH.size
    if body > len(entries):
        raise _cut_off(number, count)
    flags, records, full_size, size = _SUB_BATCH.unpack_from(entries, start)
    end = body + size
    if end > len(entries):
        raise _cut_off(number, count)
    compression = (flags >> 4) & 7
    is_sound = (
        records > 0
        and _LENGTH32.size * records <= full_size <= MAX_SUB_BATCH_BYTES
        and compression <= _MAX_COMPRESSION
        and (size > 0 or not compression)
    )
    if not is_sound:
        return None, end
    return Entries(entries[position:start], entries[start:end], 1, records, None), end


def _ids_from(entries: bytes, position: int, number: int, count: int) -> bytes:
    """The publishing ids from entry `number` on."""
    ids = []
    for at in range(number, count):
        if position + _SIMPLE.size > len(entries):
            raise _cut_off(at, count)
        ids.append(entries[position : position + ID_SIZE])
        if entries[position + ID_SIZE] & SUB_BATCH_BIT:
            _, position = _sub_batch(entries, position, at, count)
        else:
            position += _SIMPLE.size + _LENGTH32.unpack_from(entries, position + ID_SIZE)[0]
    return b"".join(ids)


def _filtered_one_by_one(entries: bytes, count: int, sizes: KnownSizes | None = None) -> Decoded:
    ids: list[bytes] = []
    values: list[bytes] = []
    pieces: list[bytes] = []
    position, size = 0, len(entries)
    for number in range(count):
        value_start = position + ID_SIZE + _LENGTH16.size
        if value_start > size:
            raise _cut_off(number, count)
        (length,) = _LENGTH16.unpack_from(entries, position + ID_SIZE)
        start = value_start + max(length, 0)
        if start + _LENGTH32.size > size:
            raise _cut_off(number, count)
        if entries[start] & SUB_BATCH_BIT:
            raise unknown_frame("a sub-batch cannot have a filter value")
        end = start + _LENGTH32.size + _LENGTH32.unpack_from(entries, start)[0]
        if end > size:
            raise _cut_off(number, count)
        ids.append(entries[position : position + ID_SIZE])
        values.append(entries[value_start:start])
        pieces.append(entries[start:end])
        position = end
    _check_end(position, size)
    if not pieces:
        return Decoded([])
    if sizes is not None and count >= _MIN_UNIFORM:
        sizes.learn(values, pieces)
    has_values = values if any(values) else None
    return Decoded([Entries(b"".join(ids), b"".join(pieces), count, count, has_values)])


def _cut_off(number: int, count: int) -> Exception:
    return unknown_frame(f"entry {number + 1} of {count} reaches beyond the Publish frame")


def _check_end(position: int, size: int) -> None:
    if position != size:
        raise unknown_frame(f"{size - position} bytes follow the last entry of a Publish frame")


class Outgoing(NamedTuple):
    """A message to be published.

    Attributes:
        body: the message's bytes.
        filter_value: None for none.
    """

    publishing_id: int
    body: bytes
    filter_value: bytes | None = None


def encode_entry(publishing_id: int, body: bytes) -> bytes:
    """A message as an entry of a Publish frame, version 1."""
    return _SIMPLE.pack(publishing_id, len(body)) + body


def encode_filtered_entry(publishing_id: int, body: bytes, value: bytes | None) -> bytes:
    """A message as an entry of a Publish frame, version 2.

    Raises:
        struct.error: the filter value is longer than 32,767 bytes.
    """
    if value is None:
        return _VALUELESS_HEAD.pack(publishing_id, -1, len(body)) + body
    size = len(value)
    return _filtered_head(size).pack(publishing_id, size, value, len(body)) + body


@lru_cache(maxsize=256)
def _filtered_head(size: int) -> struct.Struct:
    """What stands before a message with a filter value of a size."""
    return struct.Struct(f">Qh{size}sI")


_VALUELESS_HEAD = struct.Struct(">QhI")


def with_no_value(entry: bytes) -> bytes:
    """An entry of version 1, which is no sub-batch, as one of version 2."""
    return entry[:ID_SIZE] + _NO_VALUE + entry[ID_SIZE:]


def encode_entries(messages: Sequence[Outgoing]) -> bytes:
    """Messages as the entries of a Publish frame, version 1; filter values are left out."""
    return b"".join([encode_entry(m.publishing_id, m.body) for m in messages])


def encode_filtered_entries(messages: Sequence[Outgoing]) -> bytes:
    """Messages as the entries of a Publish frame, version 2; see `encode_filtered_entry`."""
    return b"".join([encode_filtered_entry(*message) for message in messages])


def encode_sub_batch(
    publishing_id: int, num_records: int, compression: int, full_size: int, body: bytes
) -> bytes:
    """A sub-batch as one entry of a Publish frame, version 1.

    Args:
        publishing_id: one for all of its messages.
        num_records: how many messages it holds, 1 to 65,535.
        compression: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        full_size: bytes of the body before compression.
        body: simple entries back to back, compressed as a whole.
    """
    flags = SUB_BATCH_BIT | compression << 4
    head = _SUB_BATCH.pack(flags, num_records, full_size, len(body))
    return publishing_id.to_bytes(ID_SIZE, "big") + head + body


def encode_confirm(publisher_id: int, publishing_ids: bytes) -> bytes:
    """A PublishConfirm frame from publishing ids as they were received, 8 bytes each."""
    count = len(publishing_ids) // ID_SIZE
    size = _CONFIRM_HEAD.size - _LENGTH32.size + len(publishing_ids)
    return _CONFIRM_HEAD.pack(size, PublishConfirm.KEY, 1, publisher_id, count) + publishing_ids


def encode_refusal(publisher_id: int, publishing_ids: bytes, code: int) -> bytes:
    """A PublishError frame that gives the same code for each of `publishing_ids`."""
    suffix = code.to_bytes(2, "big")
    faults = b"".join(
        publishing_ids[at : at + ID_SIZE] + suffix for at in range(0, len(publishing_ids), ID_SIZE)
    )
    count = len(publishing_ids) // ID_SIZE
    size = _CONFIRM_HEAD.size - _LENGTH32.size + len(faults)
    return _CONFIRM_HEAD.pack(size, PublishError.KEY, 1, publisher_id, count) + faults

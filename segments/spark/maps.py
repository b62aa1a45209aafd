"""Application properties of many messages at once: all maps advance together, an entry per step.

Maps with keys and values of the usual types only; the others are `odd` and left to
`segments.message.MessageView` and `segments.selector.RowReader`, which define the right answer.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from segments import amqp10_codes as codes
from segments.spark.headers import Bytes, Mask, Numbers
from segments.spark.walk import words

_BOOLEANS = (codes.TRUE, codes.FALSE)
# As numpy names them: by the same letters as struct. A ulong may be too large for a column.
_INTEGERS = {code: f">{form}" for code, form in codes.INTEGERS.items() if code != codes.ULONG}
_ZEROS = (codes.UINT_0, codes.ULONG_0)
_KNOWN = np.zeros(256, np.bool_)
_KNOWN[
    [*codes.TEXTS, *codes.BINARIES, *_BOOLEANS, *_INTEGERS, *_ZEROS, codes.DOUBLE, codes.NULL]
] = True
_FEW_KEYS = 16
_WIDTHS = np.array([width or 0 for width in codes.WIDTHS], np.int64)


class MapEntries(NamedTuple):
    """The entries of the maps of some messages, in order.

    Attributes:
        counts: entries of each message's map; 0 where it has none, or is odd.
        odd: messages whose map has something unusual.
    """

    counts: Numbers
    odd: Mask
    rows: Numbers
    key_starts: Numbers
    key_ends: Numbers
    codes: Bytes
    starts: Numbers
    ends: Numbers


def read_entries(buffer: Bytes, positions: Numbers) -> MapEntries:
    """Read the maps whose encoding begins at `positions`; -1 for a message without."""
    numbers = words(buffer)
    rows = np.flatnonzero(positions >= 0)
    odd = np.zeros(len(positions), np.bool_)
    at, end, count = map_heads(buffer, numbers, positions[rows])
    fits = (count % 2 == 0) & (count <= end - at)
    odd[rows[~fits]] = True
    counts = np.zeros(len(positions), np.int64)
    counts[rows] = np.where(fits, count >> 1, 0)
    first = np.cumsum(counts) - counts
    flat = np.zeros((5, int(counts.sum())), np.int64)
    rows, at, end = rows[fits], at[fits], end[fits]
    step = 0
    while len(rows):
        goes_on = counts[rows] > step
        done = rows[~goes_on]
        odd[done[at[~goes_on] != end[~goes_on]]] = True
        rows, at, end = rows[goes_on], at[goes_on], end[goes_on]
        key = at + 2
        key_end = np.minimum(key + buffer[key - 1], end - 1)
        code = buffer[key_end]
        value, value_end = value_ends(buffer, numbers, key_end, code)
        usual = (buffer[at] == codes.STRING_8) & _KNOWN[code] & (value_end <= end) & (key < end)
        odd[rows[~usual]] = True
        flat[:, first[rows] + step] = (key, key_end, code, value, value_end)
        rows, at, end = rows[usual], value_end[usual], end[usual]
        step += 1
    if odd.any():
        keep = np.repeat(~odd, counts)
        counts[odd] = 0
        flat = flat[:, keep]
    key_starts, key_ends, kinds, starts, ends = flat
    owners = np.repeat(np.arange(len(positions)), counts)
    return MapEntries(
        counts, odd, owners, key_starts, key_ends, kinds.astype(np.uint8), starts, ends
    )


def map_heads(buffer: Bytes, numbers: Numbers, at: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """First entry, end, and number of keys and values of maps; an odd number if there is none."""
    kind = buffer[at]
    is_short, is_long = kind == codes.MAP_8, kind == codes.MAP_32
    wide = np.minimum(at + 5, len(numbers) - 1)
    count = np.where(is_short, buffer[at + 2], np.where(is_long, numbers[wide], 1)).astype(np.int64)
    size = np.where(is_short, buffer[at + 1], numbers[at + 1]).astype(np.int64)
    first = np.where(is_short, at + 3, at + 9)
    return first, np.where(is_short, at + 2, at + 5) + size, count


def value_ends(
    buffer: Bytes, numbers: Numbers, at: Numbers, code: Bytes
) -> tuple[Numbers, Numbers]:
    """Where values begin, after code and size, and where they end."""
    size = _WIDTHS[code >> 4]
    value = at + 1
    short, long = np.flatnonzero(size == -1), np.flatnonzero(size == -4)  # noqa: PLR2004
    size[short] = buffer[value[short]]
    value[short] += 1
    size[long] = numbers[value[long]]
    value[long] += 4
    return value, value + size


def with_repeats(buffer: Bytes, entries: MapEntries) -> Mask:
    """Messages in whose map a key comes twice."""
    starts, ends = entries.key_starts, entries.key_ends
    # Most keys of a message differ in length, first or last byte already.
    sketch = (ends - starts) << 16 | buffer[starts].astype(np.int64) << 8 | buffer[ends - 1]
    found = _repeating(entries, sketch)
    if found.any():
        keys = slices(buffer, starts, ends).dictionary_encode().indices
        found = _repeating(entries, keys.to_numpy().astype(np.int64))
    return found


def _repeating(entries: MapEntries, keys: Numbers) -> Mask:
    """Messages two of whose keys have the same number, of at most 32 bits."""
    pairs = entries.rows << 32 | keys
    most = int(entries.counts.max(initial=0))
    if most > _FEW_KEYS:  # then sorting costs less than comparing each with each
        pairs.sort()
        most = 2
    found = np.zeros(len(entries.counts), np.bool_)
    for distance in range(1, most):
        found[pairs[distance:][pairs[distance:] == pairs[:-distance]] >> 32] = True
    return found


def as_map(buffer: Bytes, entries: MapEntries) -> pa.MapArray:
    """The maps, all values as text; keys that come twice are there twice, see `with_repeats`.

    Raises:
        pa.ArrowInvalid: a string is not UTF-8.
    """
    offsets = np.concatenate(([0], np.cumsum(entries.counts))).astype(np.int32)
    keys = slices(buffer, entries.key_starts, entries.key_ends).cast(pa.string())
    parts = list(_texts(buffer, entries))
    places = np.concatenate([rows for rows, _ in parts]) if parts else np.empty(0, np.int64)
    order = np.empty(len(places), np.int64)
    order[places] = np.arange(len(places))
    together = pa.concat_arrays([pa.array([], pa.string()), *(text for _, text in parts)])
    return pa.MapArray.from_arrays(pa.array(offsets), keys, together.take(pa.array(order)))


def _texts(buffer: Bytes, entries: MapEntries) -> Iterator[tuple[Numbers, pa.Array]]:
    """Entries, and their values as text, type by type."""
    texts = np.flatnonzero(np.isin(entries.codes, (*codes.TEXTS, *codes.BINARIES)))
    yield texts, slices(buffer, entries.starts[texts], entries.ends[texts]).cast(pa.string())
    rows, whole = integers(buffer, entries)
    yield rows, pa.array(whole).cast(pa.string())
    rows, numbers = doubles(buffer, entries)
    yield rows, pa.array([str(number) for number in numbers.tolist()], pa.string())
    rows, booleans = truths(entries)
    yield rows, pa.array(booleans).cast(pa.string())
    nulls = np.flatnonzero(entries.codes == codes.NULL)
    yield nulls, pa.nulls(len(nulls), pa.string())


def integers(buffer: Bytes, entries: MapEntries) -> tuple[Numbers, Numbers]:
    """Entries whose value is a whole number, and these numbers."""
    values = np.zeros(len(entries.codes), np.int64)
    is_integer = np.isin(entries.codes, _ZEROS)
    for code in np.unique(entries.codes).tolist():
        if code in _INTEGERS:
            same = entries.codes == code
            values[same] = _view(buffer, _INTEGERS[code])[entries.starts[same]]
            is_integer |= same
    rows = np.flatnonzero(is_integer)
    return rows, values[rows]


def doubles(buffer: Bytes, entries: MapEntries) -> tuple[Numbers, npt.NDArray[np.float64]]:
    """Entries whose value is a fraction, and these numbers."""
    rows = np.flatnonzero(entries.codes == codes.DOUBLE)
    return rows, _view(buffer, ">f8")[entries.starts[rows]].astype(np.float64)


def truths(entries: MapEntries) -> tuple[Numbers, Mask]:
    """Entries whose value is true or false, and which."""
    rows = np.flatnonzero(np.isin(entries.codes, _BOOLEANS))
    return rows, entries.codes[rows] == codes.TRUE


def _view(buffer: Bytes, form: str) -> npt.NDArray[Any]:
    """The number that begins at every byte; nothing is copied."""
    kind = np.dtype(form)
    return np.ndarray((len(buffer) - kind.itemsize + 1,), kind, buffer, strides=(1,))


def named(buffer: Bytes, entries: MapEntries, name: str) -> MapEntries:
    """The entries with a certain key, the first of each message; counts are left as they are.

    One that is null counts as missing.
    """
    wanted = np.frombuffer(name.encode(), np.uint8)
    is_long_enough = entries.key_ends - entries.key_starts == len(wanted)
    rows = np.flatnonzero(is_long_enough & (entries.codes != codes.NULL))
    for n, byte in enumerate(wanted.tolist()):
        rows = rows[buffer[entries.key_starts[rows] + n] == byte]
    _, firsts = np.unique(entries.rows[rows], return_index=True)
    rows = rows[firsts]
    return entries._replace(
        rows=entries.rows[rows],
        key_starts=entries.key_starts[rows],
        key_ends=entries.key_ends[rows],
        codes=entries.codes[rows],
        starts=entries.starts[rows],
        ends=entries.ends[rows],
    )


def as_column(buffer: Bytes, found: MapEntries, kind: str, arrow_type: pa.DataType) -> pa.Array:
    """One property's values for all messages, null where they are of another type.

    Args:
        buffer: see read_entries.
        found: from `named`.
        kind: as in DDL; or "json", the text of numbers and booleans.
        arrow_type: of the column.

    Raises:
        pa.ArrowInvalid: a string is not UTF-8.
    """
    rows, values = _COLUMNS[kind](buffer, found)
    index = np.full(len(found.counts), -1)
    index[found.rows[rows]] = np.arange(len(rows))
    return values.cast(arrow_type).take(pa.array(index, mask=index < 0))


def _strings(buffer: Bytes, found: MapEntries) -> tuple[Numbers, pa.Array]:
    rows = np.flatnonzero(np.isin(found.codes, codes.TEXTS))
    return rows, slices(buffer, found.starts[rows], found.ends[rows])


def _binaries(buffer: Bytes, found: MapEntries) -> tuple[Numbers, pa.Array]:
    rows = np.flatnonzero(np.isin(found.codes, codes.BINARIES))
    return rows, slices(buffer, found.starts[rows], found.ends[rows])


def _longs(buffer: Bytes, found: MapEntries) -> tuple[Numbers, pa.Array]:
    rows, values = integers(buffer, found)
    return rows, pa.array(values)


def _numbers(buffer: Bytes, found: MapEntries) -> tuple[Numbers, pa.Array]:
    whole, integral = integers(buffer, found)
    rows, fractions = doubles(buffer, found)
    values = np.concatenate((integral.astype(np.float64), fractions))
    return np.concatenate((whole, rows)), pa.array(values)


def _booleans(_buffer: Bytes, found: MapEntries) -> tuple[Numbers, pa.Array]:
    rows, values = truths(found)
    return rows, pa.array(values)


def _times(buffer: Bytes, found: MapEntries) -> tuple[Numbers, pa.Array]:
    rows, values = integers(buffer, found)
    fits = np.abs(values) <= np.iinfo(np.int64).max // 1000
    return rows[fits], pa.array(values[fits] * 1000)


def _number_texts(buffer: Bytes, found: MapEntries) -> tuple[Numbers, pa.Array]:
    """Numbers and booleans, as in JSON."""
    whole, integral = integers(buffer, found)
    real, fractions = doubles(buffer, found)
    either, booleans = truths(found)
    texts = (
        pa.array(integral).cast(pa.string()),
        pa.array([json.dumps(number) for number in fractions.tolist()], pa.string()),
        pa.array(booleans).cast(pa.string()),
    )
    return np.concatenate((whole, real, either)), pa.concat_arrays(texts)


_COLUMNS: dict[str, Callable[[Bytes, MapEntries], tuple[Numbers, pa.Array]]] = {
    "string": _strings,
    "bigint": _longs,
    "double": _numbers,
    "boolean": _booleans,
    "binary": _binaries,
    "timestamp": _times,
    "json": _number_texts,
}


def slices(buffer: Bytes, starts: Numbers, ends: Numbers) -> pa.Array:
    """Parts of a buffer, in order and without overlap, as binaries; copied in C in one go.

    Parts and what lies between them are the values of one array, of which every second is taken.
    """
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    places = np.empty(2 * count, np.int32)
    base = int(starts[0])
    places[0::2], places[1::2] = starts - base, ends - base
    content = pa.py_buffer(buffer).slice(base)
    both = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(places), content])
    return both.take(pa.array(np.arange(0, 2 * count, 2)))


def replaced(array: pa.Array, rows: Mask, values: pa.Array) -> pa.Array:
    """The array with other values in some rows; for nested types too."""
    if not rows.any():
        return array
    if not pa.types.is_map(array.type):
        return pc.replace_with_mask(array, pa.array(rows), values)
    index = np.arange(len(array))
    index[rows] = len(array) + np.arange(len(values))
    return pa.concat_arrays([array, values]).take(pa.array(index))

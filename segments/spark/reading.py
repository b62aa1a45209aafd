"""What the tasks of a query do, streaming or not: read chunks and make batches of them."""

import time
from collections.abc import Iterator
from os import cpu_count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from segments.columns import ValueTest
from segments.selector import Property
from segments.spark.columns import Column, Decoder, filter_values_of, value_counts
from segments.spark.entries import MessageBlock, read_piece
from segments.spark.headers import Mask, Numbers
from segments.spark.opened import wanted_mask
from segments.spark.options import Options
from segments.spark.plain_errors import plainly
from segments.spark.plan import Piece, deal

_MIN_PARTITION_BYTES = 4 << 20
_TASKS_PER_CORE = 3
_NO_VALUE = ValueTest(None, [b""], is_complement=False)


class Task(InputPartition):
    """What one task reads."""

    def __init__(self, parts: tuple[Piece, ...]) -> None:
        super().__init__(None)
        self.parts = parts


def tasks_of(found: list[Piece], options: Options) -> list[InputPartition]:
    """Deal pieces out to tasks: a few per core, none too large.

    Raises:
        CorruptError: one of them is damage and the mode is not permissive.
    """
    for piece in found:
        if piece.gap is not None and not options.permissive:
            raise piece.gap.error()
    total = sum(piece.size for piece in found)
    share = total // (_TASKS_PER_CORE * (cpu_count() or 1))
    size = min(options.partition_bytes, max(share, _MIN_PARTITION_BYTES))
    return [Task(group) for group in deal(found, size)]


@plainly
def read_task(
    partition: InputPartition, options: Options, columns: tuple[Column, ...]
) -> Iterator[pa.RecordBatch]:
    """Batches of about `options.batch_bytes`.

    Raises:
        CorruptError: a chunk is damaged and the mode is not permissive.
    """
    pa.set_cpu_count(1)  # one task per core is what Spark counts with
    picker = Picker(options)
    for piece in partition.parts if isinstance(partition, Task) else ():
        decoder = Decoder(piece.stream, columns)
        for found in read_piece(piece, verify=options.verify_checksums, row_test=picker.row_test):
            if isinstance(found, MessageBlock):
                for block in picker.pick(found).split(options.batch_bytes):
                    yield decoder.batch(block)
            elif options.permissive:
                yield decoder.damage(found)
            else:
                raise found.error()


class Picker:
    """Leaves of a block what is asked for, message by message.

    Args:
        options: offsets, filter values of a property, and selector count; chunks were chosen
            before.

    Attributes:
        row_test: leaves out by columns what is not asked for; None where they tell nothing of it.
    """

    def __init__(self, options: Options) -> None:
        self._start = options.start_offset
        self._end = options.end_offset
        self._property = None if options.filter_values is None else options.declared()
        self._values = pa.array(options.filter_values or (), pa.binary())
        self._match_unfiltered = options.match_unfiltered
        self._is_strict = options.filter_contract == "strict"
        selector = options.selector()
        self._matcher = None if selector is None else selector.matcher()
        if self._matcher is not None:
            self._matcher.clock.now_ms = time.time_ns() // 1_000_000  # for UTC()
        self.row_test = options.row_test()

    def pick(self, block: MessageBlock) -> MessageBlock:
        """The block with the messages that are wanted."""
        if self._property is not None:
            block = self._with_values(block, self._property)  # looks at whole chunks
        rows: Numbers | None = None
        if self._start is not None or self._end is not None:
            keep = np.ones(len(block.offsets), np.bool_)
            if self._start is not None:
                keep &= block.offsets >= self._start
            if self._end is not None:
                keep &= block.offsets < self._end
            rows = np.flatnonzero(keep)
        block = block if rows is None else block.rows(rows)
        if self._matcher is None:
            return block
        view = block.buffer.data
        places = zip(block.starts.tolist(), block.ends.tolist(), strict=True)
        bodies = [bytes(view[start:end]) for start, end in places]
        return block.rows(np.array(self._matcher.select(bodies), np.int64))

    def _with_values(self, block: MessageBlock, filter_property: Property) -> MessageBlock:
        """The block with the messages that have one of the filter values."""
        values, is_number = filter_values_of(block, filter_property)
        if self._is_strict:
            values, is_number = pc.if_else(is_number, None, values), pc.and_(is_number, False)
        found = pc.is_in(values, self._values)  # false where there is none
        keep: Mask = found.to_numpy(zero_copy_only=False)
        if self._match_unfiltered:
            keep = keep | pc.is_null(values).to_numpy(zero_copy_only=False)
            keep |= _may_lack_value(block, values, is_number)
        return block.rows(np.flatnonzero(keep))


def _may_lack_value(block: MessageBlock, values: pa.Array, is_number: pa.Array) -> Mask:
    """Messages with a number that were, or may have been, published without a filter value.

    The chunks tell. Columns say it of each message. One without a filter holds no filter value at
    all; and a trailer counts the messages with each value. If that is fewer than have the text, or
    a number of that text, some number lacks it. Where trailers say nothing, numbers have their
    values.

    Args:
        block: messages of some chunks; all of those that have no columns in it.
        values: see PropertyValues.
        is_number: see PropertyValues.
    """
    numeric: Mask = is_number.to_numpy(zero_copy_only=False)
    encoded = values.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    places = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    width = len(names) + 1
    keys = block.chunks * width + places
    pairs, rows, counts = np.unique(keys, return_inverse=True, return_counts=True)
    lacks = np.zeros(len(pairs), np.bool_)
    listed: dict[int, dict[bytes, int]] = {}
    has_columns = np.array([columns is not None for columns in block.columns], np.bool_)
    for n in np.unique(rows[numeric & ~has_columns[block.chunks]]).tolist():
        chunk, place = divmod(int(pairs[n]), width)
        if chunk not in listed:
            listed[chunk] = value_counts(block.trailers[chunk])
        known = listed[chunk]
        is_fewer = bool(known) and known.get(names[place], 0) < counts[n]
        lacks[n] = is_fewer or not block.headers[chunk].filter_size
    found: Mask = (lacks[rows] | _without_value(block)) & numeric
    return found


def _without_value(block: MessageBlock) -> Mask:
    """Messages without a filter value, by their columns; none where a chunk has no columns."""
    masks = [
        np.zeros(header.num_records, np.bool_)
        if columns is None
        else wanted_mask(columns.rows(_NO_VALUE) or 0, header.num_records)
        for header, columns in zip(block.headers, block.columns, strict=True)
    ]
    firsts = np.cumsum([0, *map(len, masks[:-1])])
    chunk_ids = np.array([header.chunk_id for header in block.headers], np.int64)
    found: Mask = np.concatenate(masks)[(firsts - chunk_ids)[block.chunks] + block.offsets]
    return found

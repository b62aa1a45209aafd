"""What a consumer gets, as Arrow record batches; see `Consumer.arrow`. Imported when it is used."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from clients.errors import ArrowMissing, DamagedChunk, StreamError
from segments.arrow.parts import Part

if TYPE_CHECKING:
    import pyarrow as pa

    from segments.arrow.columns import ArrowColumns

_MAX_BYTES = 16 << 20  # of a batch, as far as that is possible with whole chunks


class Source(Protocol):
    """What a consumer is for this; see there."""

    stream: str
    last_offset: int | None

    async def gather(self) -> None: ...  # noqa: D102

    @property
    def has_arrived(self) -> bool: ...  # noqa: D102

    def take_part(self) -> Part | None: ...  # noqa: D102


def record_batches(
    consumer: Source, columns: Sequence[str] | Mapping[str, str | None], max_rows: int
) -> AsyncGenerator["pa.RecordBatch", None]:
    """See `Consumer.arrow`."""
    try:
        from segments.arrow.columns import ArrowColumns  # noqa: PLC0415 - needs the extra
    except ModuleNotFoundError as error:
        raise ArrowMissing(
            f"record batches need pyarrow and numpy, and {error.name} is not installed; "
            "pip install pyarrow numpy"
        ) from error
    return _batches(consumer, ArrowColumns(columns), max_rows)


async def _batches(
    consumer: Source, made: "ArrowColumns", max_rows: int
) -> AsyncGenerator["pa.RecordBatch", None]:
    from segments.arrow.blocks import DamagedPart, block_of  # noqa: PLC0415 - as above

    while True:
        await consumer.gather()
        parts, end = _take(consumer, max_rows)
        while parts:
            try:
                block = block_of(parts)
            except DamagedPart as error:  # the others are handed out, those behind it as well
                reason = f"a chunk of {consumer.stream} is damaged: {error}"
                end = end if isinstance(end, DamagedChunk) else DamagedChunk(reason)
                del parts[error.number]
                continue
            batch = made.batch(block)
            consumer.last_offset = parts[-1].offsets[-1]
            yield batch
            break
        if isinstance(end, StopAsyncIteration):
            return
        if end is not None:
            raise end


def _take(consumer: Source, max_rows: int) -> tuple[list[Part], Exception | None]:
    """Messages for a batch, as far as they have arrived, and what ends the iteration then."""
    parts: list[Part] = []
    num_rows = num_bytes = 0
    while consumer.has_arrived and num_rows < max_rows and num_bytes < _MAX_BYTES:
        try:
            part = consumer.take_part()
        except (StopAsyncIteration, StreamError) as error:
            return parts, error
        if part is not None and len(part):
            parts.append(part)
            num_rows += len(part)
            num_bytes += len(part.data)
    return parts, None

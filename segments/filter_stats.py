"""How well the filters of some chunks work: how full they are, how often they wrongly say yes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from segments import bloom
from segments.codec import CHUNK_HEADER_SIZE, Block, ChunkHeader, decode_blocks
from segments.disk import File
from segments.errors import FormatError, StorageError
from segments.format_constants import FILTER_VALUE, MMH3_SCHEME
from segments.property_keys import key_of, mark_of, told
from segments.segment import Segment, read_header

_MAX_VALUES = 200  # that are tried against every filter
_MAX_CHUNKS = 5000  # whose filters they are tried against: enough for a share to the percent


def newest(segments: Sequence[Segment], max_chunks: int) -> "FilterStats":
    """Figures of the newest chunks of a log, up to `max_chunks`. May run in a thread.

    Segments that are dropped meanwhile are left out: they are the oldest, or the log is deleted.
    So are cold ones.

    Raises:
        StorageError: the system refused.
    """
    stats, left = FilterStats(), max_chunks
    for segment in reversed(segments):
        if left <= 0 or segment.cold is not None:
            break
        number = min(left, segment.num_chunks)
        try:
            if number:
                _add_newest(stats, segment, number)
        except StorageError as error:
            if not error.is_missing:
                raise
            break
        left -= number
    return stats


def _add_newest(stats: "FilterStats", segment: Segment, number: int) -> None:
    try:
        with segment.index() as index:
            records = [index.record(index.num_records - n) for n in range(number, 0, -1)]
    except FormatError:
        return  # whoever searches the index mends it
    file = segment.open()
    try:
        for record in records:
            header = read_header(file, record.position, record.chunk_id)
            if header is not None and header.filter_size:
                filter_bytes = file.read(header.filter_size, record.position + CHUNK_HEADER_SIZE)
                stats.add(header, filter_bytes, read_blocks(file, record.position, header))
    finally:
        file.close()


def read_blocks(file: File, position: int, header: ChunkHeader) -> list[Block]:
    """The blocks in a chunk's trailer; none where it cannot be read, which is for `verify`."""
    trailer_position = position + header.data_start + header.data_size
    try:
        return decode_blocks(file.read(header.trailer_size, trailer_position))
    except FormatError:
        return []


class FilterStats:
    """Counts over chunks with filters.

    Attributes:
        chunks: that have one.
        distinct: different filter values in all of them, those of further properties included.
        properties: how many there are of each further filter property, by its name.
    """

    def __init__(self) -> None:
        self.chunks = 0
        self._fill = self._predicted = 0.0
        self._seen: list[tuple[int, int, frozenset[bytes]]] = []
        self._values: dict[bytes, None] = {}
        self._of_property: dict[str, set[bytes]] = {}

    @property
    def distinct(self) -> int:
        """See above."""
        return len(self._values)

    @property
    def properties(self) -> dict[str, int]:
        """See above."""
        return {name: len(values) for name, values in sorted(self._of_property.items())}

    def add(self, header: ChunkHeader, filter_bytes: bytes, blocks: Iterable[Block]) -> None:
        """Count a chunk."""
        size = header.filter_size
        if not size or header.filter_scheme != MMH3_SCHEME:
            return
        bits = int.from_bytes(filter_bytes, "big")
        share = (bits.bit_count() - (bits >> 8 * size - 1)) / (8 * size - 1)
        values = self._values_of({b.id: b.value for b in blocks if b.kind == FILTER_VALUE})
        self.chunks += 1
        self._fill += share
        self._predicted += share**2
        if len(self._seen) < _MAX_CHUNKS:
            self._seen.append((size, bits, values))
        self._values.update(dict.fromkeys(sorted(values)))

    def _values_of(self, counts: dict[bytes, int]) -> frozenset[bytes]:
        """The values among the keys of a chunk; what stands for none, and marks, are left out."""
        properties = told(counts).properties
        left_out = {b""}
        for name, found in properties.items():
            left_out |= {mark_of(name), key_of(name, b"")}
            self._of_property.setdefault(name, set()).update(filter(None, found))
        return frozenset(counts) - left_out

    @property
    def fill(self) -> float:
        """Mean share of bits that are set, the one for messages without a value left out."""
        return self._fill / self.chunks

    @property
    def predicted(self) -> float:
        """Share of chunks that should let a value pass that they do not hold, by their bits."""
        return self._predicted / self.chunks

    def predicted_with(self, size: int) -> float:
        """The same for filters of `size` bytes, by the values that the chunks list."""
        counts = Counter(len(values) for _, _, values in self._seen)
        rates = (n * bloom.false_positive_rate(count, size) for count, n in counts.items())
        return sum(rates) / len(self._seen)

    @property
    def observed(self) -> float | None:
        """The same, counted with values of other chunks; None where there are none."""
        tried = passed = 0
        for value in islice(self._values, _MAX_VALUES):
            for size, bits, values in self._seen:
                if value not in values:
                    wanted = bloom.mask(value, size)
                    tried += 1
                    passed += bits & wanted == wanted
        return passed / tried if tried else None

"""How well the filters of some chunks work: how full they are, how often they wrongly say yes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from segments import bloom
from segments.codec import CHUNK_HEADER_SIZE, Block, ChunkHeader, decode_blocks
from segments.disk import File
from segments.errors import FormatError, StorageError
from segments.format_constants import FILTER_VALUE, MMH3_SCHEME
from segments.property_keys import key_of, mark_of, told
from segments.segment import Segment, read_header
from segments.words import plural

_MAX_VALUES = 200  # that are tried against every filter
_MAX_CHUNKS = 5000  # whose filters they are tried against: enough for a share to the percent
_NEARLY_ALL = 0.9  # of the chunks hold a value, on average
_VALUES, _PLACES = "values", "places"


def why_nothing_is_saved(counts: Mapping[str, int]) -> str:
    """Why filters let consumers skip nothing, in one line; empty where they do, or without chunks.

    Args:
        counts: see `FilterStats.counts`.
    """
    chunks = counts.get("chunks", 0)
    if not counts.get("chunks_seen"):
        return ""
    if not chunks:
        return "publishers sent no values: a filter finds nothing, a selector reads every chunk"
    further = {key: n for key, n in counts.items() if key.startswith(f"{_VALUES}.")}
    lines = []
    for key, number in ({_VALUES: counts[_VALUES] - sum(further.values())} | further).items():
        name, places = key.removeprefix(_VALUES), counts[key.replace(_VALUES, _PLACES, 1)]
        if chunks > 1 and 0 < _NEARLY_ALL * number * chunks <= places:
            where = "every chunk" if places == number * chunks else "nearly every chunk"
            what = (f"by {name[1:]}: " if name else "") + plural(number, "value")
            lines.append(f"{what}, {'all ' if number > 1 else ''}in {where}: no size helps")
        elif not number and not name and further:  # else chunks list no values at all
            lines.append("publishers sent no values of the first filter property")
    return "; ".join(lines)


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
            stats.chunks_seen += header is not None
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
        chunks_seen: with a filter or without, as `newest` has looked at them.
        chunks: that have one.
        distinct: different filter values in all of them, those of further properties included.
        properties: how many there are of each further filter property, by its name.
    """

    def __init__(self) -> None:
        self.chunks_seen = self.chunks = 0
        self._fill = self._predicted = 0.0
        self._seen: list[tuple[int, int, frozenset[bytes]]] = []
        self._values: dict[bytes, None] = {}
        self._of_property: dict[str, set[bytes]] = {}
        self._places: Counter[str] = Counter()

    @property
    def distinct(self) -> int:
        """See above."""
        return len(self._values)

    @property
    def properties(self) -> dict[str, int]:
        """See above."""
        return {name: len(values) for name, values in sorted(self._of_property.items())}

    @property
    def counts(self) -> dict[str, int]:
        """Chunks, values, and places: in how many chunks each value is, in sum.

        `values` are all, `places` those of filter values; `values.kind` and `places.kind` are of
        the further filter property kind.
        """
        found = {"chunks_seen": self.chunks_seen, "chunks": self.chunks}
        found |= {_VALUES: self.distinct, _PLACES: self._places[""]}
        for name, count in self.properties.items():
            found |= {f"{_VALUES}.{name}": count, f"{_PLACES}.{name}": self._places[name]}
        return found

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
        left_out, num_further = {b""}, 0
        for name, found in properties.items():
            left_out |= {mark_of(name), key_of(name, b"")}
            named = set(filter(None, found))
            self._of_property.setdefault(name, set()).update(named)
            self._places[name] += len(named)
            num_further += len(named)
        values = frozenset(counts) - left_out
        self._places[""] += len(values) - num_further
        return values

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

"""What a stream was declared with, as far as its log has to know."""

from dataclasses import dataclass

from segments.format_constants import MAX_FILTER_SIZE, MIN_FILTER_SIZE

DEFAULT_SEGMENT_BYTES = 500_000_000
DEFAULT_TIER_SEGMENT_BYTES = 64 << 20  # small segments are uploaded, and deleted here, soon
DEFAULT_LOCAL_BYTES = 1 << 30  # of a stream in the tier that declares no local limit
MAX_SEGMENT_BYTES = 3_000_000_000  # index positions are 32 bits wide
MAX_SEGMENT_CHUNKS = 256_000  # scanning more small chunks at start-up takes too long
DEFAULT_CHUNK_BYTES = 1 << 20  # bounds what one delivery holds up, and memory during recovery
MAX_CHUNK_BYTES = 64 << 20  # what a writer and every reader must have room for
MAX_CHUNK_RECORDS = 65_535  # the entry count is 16 bits wide

IDLE_CHUNK_RECORDS = 256
BUSY_CHUNK_RECORDS = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPolicy:
    """Limits and options of one log.

    Attributes:
        max_segment_bytes: a segment that has reached this is sealed before the next chunk, with
            the exceptions of `Log.segment_bytes` and of `flush.MOST_SEALED`.
        max_segment_chunks: the same, counted in chunks.
        max_length_bytes: drop the oldest segments while the stream is larger; None keeps all.
        max_age_ms: drop segments whose last chunk is older; None keeps all.
        filter_size: bytes of a chunk's filter, 16 to 255; with `filter_error_rate` the most.
        filter_error_rate: None writes filters of `filter_size`. Otherwise each chunk gets the
            smallest filter that keeps false positives within this share.
        filter_history: write how often each filter value occurs into the trailer.
        chunk_max_records: records per chunk; None adapts to the load, see RecordLimit.
        chunk_max_bytes: bytes of a chunk's data; a single larger entry still gets its chunk.
        chunk_wait_ms: how long the first message of a chunk may wait for more; 0 writes at once.
        key_properties: whose values are keys that messages can be found by.
        tier: sealed segments go to the tier, where there is one.
        confirms_in_store: messages are confirmed when the tier has them.
        local_max_length_bytes: the same as `max_length_bytes`, of what is local; only what the
            tier has goes. Whoever evicts takes DEFAULT_LOCAL_BYTES when both local limits are
            None.
        local_max_age_ms: the same as `max_age_ms`, of what is local; None sets no limit.
    """

    max_segment_bytes: int = DEFAULT_SEGMENT_BYTES
    max_segment_chunks: int = MAX_SEGMENT_CHUNKS
    max_length_bytes: int | None = None
    max_age_ms: int | None = None
    filter_size: int = MIN_FILTER_SIZE
    filter_error_rate: float | None = None
    filter_history: bool = True
    chunk_max_records: int | None = None
    chunk_max_bytes: int = DEFAULT_CHUNK_BYTES
    chunk_wait_ms: int = 0
    key_properties: tuple[str, ...] = ()
    tier: bool = True
    confirms_in_store: bool = False
    local_max_length_bytes: int | None = None
    local_max_age_ms: int | None = None

    def __post_init__(self) -> None:
        if not MIN_FILTER_SIZE <= self.filter_size <= MAX_FILTER_SIZE:
            raise ValueError(f"filter size is {self.filter_size}, expected 16 to 255 bytes")


class RecordLimit:
    """How many records the next chunk may hold when the stream declares no limit.

    Small chunks filter well and arrive early, large ones make bulk reads cheap. So: 256 after the
    writer was idle, doubling while a backlog fills chunk after chunk, up to 4,096. Chunks with
    filter values stay at 256, because a chunk that holds every value cannot be skipped.

    Attributes:
        filtered: for a chunk that has filter values.
        unfiltered: for one that has none.
    """

    def __init__(self, declared: int | None) -> None:
        self._is_adaptive = declared is None
        self.filtered = self.unfiltered = IDLE_CHUNK_RECORDS if declared is None else declared

    def chunk_was_full(self) -> None:
        """More records are waiting than went into the chunk just closed."""
        if self._is_adaptive:
            self.unfiltered = min(2 * self.unfiltered, BUSY_CHUNK_RECORDS)

    def backlog_is_gone(self, num_records: int) -> None:
        """The last chunk of a turn took `num_records` and nothing is left waiting."""
        if self._is_adaptive and 2 * num_records < self.unfiltered:
            self.unfiltered = max(self.unfiltered // 2, IDLE_CHUNK_RECORDS)

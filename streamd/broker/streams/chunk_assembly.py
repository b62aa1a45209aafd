"""Which of the queued messages make the next chunk: limits, duplicates, separate sub-batches.

Plain synchronous code over the log's state: nothing here changes queue or log.
"""

from segments import ChunkBuilder, Log
from segments.entries import ID_SIZE, Entries, has_filter_values, without_duplicates
from segments.format_constants import SUB_BATCH_BIT
from segments.policy import RecordLimit
from streamd.broker.streams.publication import PendingEntries, SinglePublisher


class ChunkAssembly:
    """The next chunk while it is being built.

    Frames stay whole where a chunk can hold them: a small batch of messages arrives as it was
    sent. A sub-batch gets a chunk of its own, because some clients read only the first one.

    Attributes:
        taken: what it was made from, duplicates included.
        singles: publishers of one message each, and where in the chunk that is.

    Args:
        limit: records per chunk.
        sequences: highest publishing ids of batches before this one that are not in the log yet;
            this batch adds its own.
    """

    def __init__(self, log: Log, limit: RecordLimit, sequences: dict[bytes, int]) -> None:
        self.builder = ChunkBuilder()
        self.taken: list[PendingEntries] = []
        self.singles: list[tuple[SinglePublisher, int]] = []
        self._log = log
        self._limit = limit
        self._sequences = sequences
        self._is_closed = False

    def take(self, pending: PendingEntries) -> bool:
        """Add entries; False when the chunk is complete without it."""
        publisher, entries = pending
        reference = publisher.reference
        new: Entries | None = entries
        if reference:
            new = without_duplicates(entries, self._sequence(reference))
        if new is not None:
            is_sub_batch = bool(new.data[0] & SUB_BATCH_BIT)
            if self.builder.num_entries and (is_sub_batch or not self._fits(new)):
                return False
            self._is_closed = is_sub_batch
            if type(publisher) is SinglePublisher:
                self.singles.append((publisher, self.builder.num_records))
            self.builder.add(*new[1:])
            if reference:
                last = int.from_bytes(new.publishing_ids[-ID_SIZE:], "big")
                self._sequences[reference] = last
                self.builder.set_sequence(reference, last)
        self.taken.append(pending)
        return True

    def _sequence(self, reference: bytes) -> int | None:
        if reference in self._sequences:
            return self._sequences[reference]
        return self._log.journal.tracking.latest_sequence(reference)

    def _fits(self, entries: Entries) -> bool:
        """Whether entries go into this chunk; into an empty one they always do (see `split`)."""
        builder, limit = self.builder, self._limit
        if self._is_closed:
            return False
        has_values = builder.has_filter_values or has_filter_values(entries)
        max_records = limit.filtered if has_values else limit.unfiltered
        return (
            builder.num_records + entries.num_records <= max_records
            and builder.data_size + len(entries.data) <= self._log.policy.chunk_max_bytes
        )

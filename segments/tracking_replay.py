"""Rebuilding a stream's tracking from its journal and its chunks."""

from collections.abc import Sequence

from segments import codec
from segments.chunk_check import check_header
from segments.chunk_search import chunk_holding
from segments.codec import Block, Checkpoint, ChunkHeader, JournalRecord
from segments.disk import Readable
from segments.errors import FormatError, UnreadableError
from segments.format_constants import JOURNAL_SNAPSHOT, TRACKING_DELTA, TRACKING_SNAPSHOT
from segments.journal import Journal
from segments.segment import Segment, walk_headers
from segments.tracking import Tracking

_ENTRY_HEAD_SIZE = 4  # a tracking chunk that osiris wrote is one simple entry


def restore_tracking(
    journal: Journal,
    segments: Sequence[Segment],
    checkpoint: Checkpoint | None,
    ends_at: int,
    *,
    salvages: bool = False,
) -> tuple[str, ...]:
    """Give a journal the tracking as of the last chunk; notes about what could not be read.

    Args:
        journal: as it was opened. The first flush rewrites one that is damaged, or ahead of the
            chunks, and makes sure of one that a killed process may have left.
        segments: the stream's, in order.
        checkpoint: the stream's, None without one.
        ends_at: behind the last message that is there; no stored offset is behind that.
        salvages: leave out what the device refuses to read.

    Raises:
        UnreadableError: the device refuses to read a chunk.
        StorageError: the system refused to read.
    """
    restorer = _Restorer(ends_at, salvages=salvages)
    if checkpoint is not None and not checkpoint.has_tracking:
        restorer.replay_from = checkpoint.next_offset  # before it there is nothing
    for record in journal.records:
        restorer.take_record(record)
    for segment in segments:
        is_known = segment.next_offset <= restorer.replay_from or not segment.num_chunks
        if not is_known and segment.cold is None:  # a snapshot was made before it became cold
            restorer.replay(segment)
    if journal.fault is not None:
        restorer.notes.insert(0, f"cut the tracking journal: {journal.fault}")
    journal.tracking = restorer.tracking
    has_cut = restorer.tracking.cut_offsets(ends_at)
    if has_cut or restorer.snapshot_was_ahead or (journal.fault is not None and not journal.exists):
        journal.must_be_rewritten()
    journal.flush_unless(checkpoint)
    return tuple(restorer.notes)


class _Refused(Exception):
    def __init__(self, error: UnreadableError) -> None:
        self.error = error


class _NoDamage:
    """A file in which nothing is damaged because the device refuses to read it."""

    def __init__(self, file: Readable) -> None:
        self._file = file

    def read(self, size: int, position: int) -> bytes:
        """See disk.Readable."""
        try:
            return self._file.read(size, position)
        except UnreadableError as error:
            raise _Refused(error) from error


class _Restorer:
    def __init__(self, ends_at: int, *, salvages: bool) -> None:
        self.tracking = Tracking()
        self.notes: list[str] = []
        self.replay_from = 0
        self.snapshot_was_ahead = False
        self._ends_at = ends_at
        self._salvages = salvages

    def take_record(self, record: JournalRecord) -> None:
        is_snapshot = record.kind == JOURNAL_SNAPSHOT
        try:
            blocks = codec.decode_blocks(record.body, snapshot=is_snapshot)
        except FormatError as error:
            self.notes.append(f"left out a record of the tracking journal: {error}")
            return
        if not is_snapshot:
            self.tracking.apply(blocks, record.next_offset)
        elif record.next_offset <= self._ends_at:
            self.tracking = Tracking.from_snapshot(blocks)
            self.replay_from = record.next_offset
        else:
            # Chunks that the snapshot knew are lost, or it stands behind a gap. Sequences of lost
            # chunks must go with them, or a message that its publisher sends again would be taken
            # for a duplicate. What they were before, the snapshots before it and the chunks that
            # are left tell. The journal is rewritten: once other chunks have taken those offsets
            # the snapshot would look valid again.
            self.snapshot_was_ahead = True
            self.tracking.add_snapshot(blocks, before=self._ends_at)

    def replay(self, segment: Segment) -> None:
        opened = segment.acquire()
        file = opened if self._salvages else _NoDamage(opened)
        try:
            start = chunk_holding(segment, self.replay_from)  # most of it may be known
            for position, header in walk_headers(segment, file, start):
                if header.chunk_id >= self.replay_from:
                    self._replay_chunk(opened.path, file, position, header)
        except _Refused as refused:
            raise refused.error from refused
        finally:
            segment.release()

    def _replay_chunk(self, path: str, file: Readable, position: int, header: ChunkHeader) -> None:
        """Apply what one chunk says of tracking, also a chunk that osiris wrote."""
        try:
            blocks = tracking_of(file, position, header)
        except FormatError as error:
            self.notes.append(f"left out tracking in {path} at byte {position}: {error}")
            return
        if header.chunk_type == TRACKING_SNAPSHOT:
            self.tracking = Tracking.from_snapshot(blocks)
        else:
            self.tracking.apply(blocks, header.chunk_id)


def tracking_of(file: Readable, position: int, header: ChunkHeader) -> list[Block]:
    """What one chunk says of publishers and consumers, also a chunk that osiris wrote.

    Raises:
        FormatError: it cannot be read.
        StorageError: the system refused.
    """
    data_start = position + header.data_start
    if header.chunk_type in (TRACKING_DELTA, TRACKING_SNAPSHOT):
        raw = file.read(header.data_size, data_start)[_ENTRY_HEAD_SIZE:]
        return codec.decode_blocks(raw, snapshot=header.chunk_type == TRACKING_SNAPSHOT)
    if not header.trailer_size:
        return []
    check_header(file, position, header, file.read(codec.CHUNK_HEADER_SIZE, position))
    return codec.decode_blocks(file.read(header.trailer_size, data_start + header.data_size))

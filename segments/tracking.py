"""Publisher sequences and stored offsets of one stream: pure state, and its blocks on disk.

Sequences travel in the trailers of the chunks whose messages they belong to, so that neither can
exist without the other. Stored offsets go to the tracking journal. A snapshot in the journal
holds both, as of the stream's next offset at that time; the trailers after it complete it.
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from segments.codec import MAX_REFERENCE_SIZE, Block
from segments.format_constants import OFFSET, SEQUENCE

_Value = TypeVar("_Value")

MAX_SEQUENCES = 4_096  # publisher references a stream remembers; osiris keeps 255
MAX_OFFSETS = (
    16_384  # consumer references a stream remembers; both bound the memory that peers can use
)


class Sequence(NamedTuple):
    """A publisher's highest publishing id, and the chunk that it came with."""

    chunk_id: int
    publishing_id: int


class Tracking:
    """What a stream knows of its publishers and consumers.

    Beyond the limits above the reference that was used longest ago is forgotten.

    Attributes:
        ahead: sequences of chunks that readers do not see yet.
    """

    def __init__(self) -> None:
        self._sequences: dict[bytes, Sequence] = {}
        self._offsets: dict[bytes, int] = {}
        self._pending: dict[bytes, int] = {}
        self.ahead: dict[bytes, int] = {}

    def sequence(self, reference: bytes) -> int | None:
        """Highest publishing id of a publisher, None when it has none."""
        found = self._sequences.get(reference)
        return None if found is None else found.publishing_id

    def latest_sequence(self, reference: bytes) -> int | None:
        """The same in all that is appended, also what readers do not see yet."""
        ahead = self.ahead.get(reference)
        return self.sequence(reference) if ahead is None else ahead

    def set_sequences(self, chunk_id: int, sequences: Iterable[tuple[bytes, int]]) -> None:
        """Note the sequences that chunk `chunk_id` brought."""
        for reference, publishing_id in sequences:
            self._sequences.pop(reference, None)  # re-inserted last: the order is by use
            self._sequences[reference] = Sequence(chunk_id, publishing_id)
            if self.ahead.get(reference) == publishing_id:
                del self.ahead[reference]
        trim(self._sequences, MAX_SEQUENCES)

    def take_sequences(self, other: "Tracking", offset: int) -> None:
        """Note sequences that are known elsewhere, of chunks from an offset on."""
        for block in other.snapshot_blocks():
            if block.chunk_id is not None and block.chunk_id >= offset:
                self.set_sequences(block.chunk_id, [(block.id, block.value)])

    def offset(self, reference: bytes) -> int | None:
        """The offset a consumer stored, None when it stored none."""
        return self._offsets.get(reference)

    def store_offset(self, reference: bytes, offset: int) -> None:
        """Remember an offset; it may go backwards. Not on disk until `pending_blocks` are written.

        Raises:
            ValueError: the reference is empty or longer than 255 bytes.
        """
        if not 0 < len(reference) <= MAX_REFERENCE_SIZE:
            raise ValueError(f"consumer reference is {len(reference)} bytes, expected 1 to 255")
        self._offsets.pop(reference, None)
        self._offsets[reference] = offset
        self._pending[reference] = offset
        trim(self._offsets, MAX_OFFSETS)
        if len(self._pending) > MAX_OFFSETS:  # the disk takes nothing at the moment
            trim(self._pending, MAX_OFFSETS)

    def offsets(self) -> dict[bytes, int]:
        """All stored offsets by reference, those stored longest ago first."""
        return dict(self._offsets)

    def sequences(self) -> dict[bytes, int]:
        """The highest publishing id of each publisher, those seen longest ago first."""
        return {name: found.publishing_id for name, found in self._sequences.items()}

    def delete_offset(self, reference: bytes) -> bool:
        """Forget a stored offset; whether there was one. A snapshot has to be written then."""
        self._pending.pop(reference, None)
        return self._offsets.pop(reference, None) is not None

    @property
    def is_empty(self) -> bool:
        """Nothing is known, nor will be when readers see all that is appended."""
        return not (self._sequences or self._offsets or self.ahead)

    @property
    def has_pending(self) -> bool:
        """Some stored offset is not on disk yet."""
        return bool(self._pending)

    def pending_blocks(self) -> list[Block]:
        """The stored offsets that are not on disk yet."""
        return [Block(OFFSET, name, value) for name, value in self._pending.items()]

    def pending_written(self) -> None:
        """What `pending_blocks` gave is on disk."""
        self._pending.clear()

    def forget_offsets_below(self, first_offset: int) -> None:
        """Drop stored offsets of messages that retention has removed.

        One that is not on disk yet is still written: an older one that is there would come back.
        """
        for reference in [name for name, at in self._offsets.items() if at < first_offset]:
            del self._offsets[reference]

    def cut_offsets(self, next_offset: int) -> bool:
        """Let no stored offset be behind the last message; whether one was.

        What the consumer has seen there is gone, and other messages may come in its place. Where
        there never was a message before `next_offset`, it is as if nothing was stored.
        """
        behind = [name for name, at in self._offsets.items() if at >= next_offset]
        for name in behind:
            if next_offset:
                self._offsets[name] = next_offset - 1
            else:
                del self._offsets[name]
        return bool(behind)

    def snapshot_blocks(self) -> list[Block]:
        """Everything, for a snapshot."""
        blocks = [
            Block(SEQUENCE, name, found.publishing_id, found.chunk_id)
            for name, found in self._sequences.items()
        ]
        return blocks + [Block(OFFSET, name, value) for name, value in self._offsets.items()]

    @classmethod
    def from_snapshot(cls, blocks: Iterable[Block], *, before: int | None = None) -> "Tracking":
        """The state that `snapshot_blocks` described; see `add_snapshot`."""
        tracking = cls()
        tracking.add_snapshot(blocks, before=before)
        return tracking

    def add_snapshot(self, blocks: Iterable[Block], *, before: int | None = None) -> None:
        """Take over what `snapshot_blocks` described, later than what is known.

        Args:
            blocks: the snapshot's blocks. It has all stored offsets.
            before: leave out sequences of chunks from this offset on: they were lost, and what is
                known counts.
        """
        self._offsets = {}
        for block in blocks:
            if block.kind == OFFSET:
                self._offsets[block.id] = block.value
            elif block.chunk_id is not None and (before is None or block.chunk_id < before):
                self.set_sequences(block.chunk_id, [(block.id, block.value)])

    def apply(self, blocks: Iterable[Block], chunk_id: int) -> None:
        """Apply the blocks of a trailer or delta that stood at `chunk_id`."""
        for block in blocks:
            if block.kind == SEQUENCE:
                self.set_sequences(chunk_id, [(block.id, block.value)])
            elif block.kind == OFFSET:
                self._offsets.pop(block.id, None)
                self._offsets[block.id] = block.value
        trim(self._offsets, MAX_OFFSETS)


def as_of(next_offset: int, before: Tracking, now: Iterable[Block]) -> Tracking:
    """What was known at an offset, where chunks after it are known, too.

    Args:
        next_offset: the offset.
        before: what chunks before it say, as far as they were looked at.
        now: a snapshot of what is known now: stored offsets, and sequences of publishers that have
            sent nothing since.
    """
    found: dict[bytes, Block] = {}
    for block in (*before.snapshot_blocks(), *now):
        if block.kind == OFFSET:
            continue
        known = found.get(block.id)
        if block.chunk_id is None or block.chunk_id >= next_offset:
            continue
        if known is None or (known.chunk_id or 0) <= block.chunk_id:
            found[block.id] = block
    offsets = (block for block in now if block.kind == OFFSET)
    sequences = sorted(found.values(), key=lambda block: block.chunk_id or 0)
    tracking = Tracking.from_snapshot([*(b for b in sequences if b.kind == SEQUENCE), *offsets])
    tracking.cut_offsets(next_offset)
    return tracking


def trim(references: dict[bytes, _Value], limit: int) -> None:
    """Forget the first references beyond a number."""
    while len(references) > limit:
        del references[next(iter(references))]

"""Messages on their way into record batches. Needs nothing of the extra `arrow`."""

from collections.abc import Sequence
from dataclasses import dataclass


class ColumnError(ValueError):
    """A column cannot be made: there is none of that name or type, or a value is of another."""


@dataclass(frozen=True, slots=True)
class Part:
    """Messages of one chunk; its length is that of the wanted ones.

    Attributes:
        timestamp_ms: when it was written, in ms since 1970.
        num_records: messages in `data`.
        data: the chunk's data section, or other messages as in one.
        rows: which of them are wanted, by their places.
        offsets: of those.
    """

    timestamp_ms: int
    num_records: int
    data: bytes
    rows: range
    offsets: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_entries(self) -> int:
        """As if each message were one: who reads it sees whether it is."""
        return self.num_records

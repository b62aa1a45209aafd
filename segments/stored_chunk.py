"""What a chunk says that stands in a segment, or in a store, beside its messages."""

from segments import codec
from segments.chunk import EncodedChunk
from segments.chunk_check import header_is_sound
from segments.codec import ChunkHeader
from segments.disk import Readable
from segments.errors import FormatError
from segments.filter_index import UNFILTERED
from segments.format_constants import FILTER_VALUE, MMH3_SCHEME, SEQUENCE, USER
from segments.tracking_replay import tracking_of


def keys_in(file: Readable, position: int, header: ChunkHeader) -> list[bytes] | None:
    """The filter values of the chunk at `position`; see `FilterIndex.add`."""
    if header.chunk_type != USER or header.filter_scheme != MMH3_SCHEME:
        return None
    trailer_position = position + header.data_start + header.data_size
    try:
        raw = file.read(codec.CHUNK_HEADER_SIZE, position)
        if not header_is_sound(file, position, header, raw):
            return None
        if not header.filter_size:
            return [UNFILTERED]
        blocks = codec.decode_blocks(file.read(header.trailer_size, trailer_position))
    except FormatError:
        return None
    return [block.id for block in blocks if block.kind == FILTER_VALUE] or None


def encoded(header: ChunkHeader, raw: bytes) -> EncodedChunk:
    """A chunk that a store has, to be appended where readers get it at once.

    Raises:
        FormatError: what it says of publishers cannot be read.
    """
    file = _Whole(raw)
    keys = keys_in(file, 0, header)
    sequences = {b.id: b.value for b in tracking_of(file, 0, header) if b.kind == SEQUENCE}
    return EncodedChunk(header, (raw, b"", b""), len(raw), keys, sequences)


class _Whole:
    """A chunk as a file."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def read(self, size: int, position: int) -> bytes:
        """See disk.Readable."""
        return self._raw[position : position + size]

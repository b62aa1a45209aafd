"""Packing and unpacking the bodies of sub-batches.

cramjam because it brings all four formats that stream clients use (gzip, framed snappy, lz4
frames, zstd) in one wheel, and unpacks into a buffer of a given size: a body that would grow
beyond what it announced is refused before it takes memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType

import cramjam

from segments.codec import Entry, simple_bodies, walk_entries
from segments.errors import FormatError
from segments.format_constants import GZIP, LZ4, NO_COMPRESSION, SNAPPY, ZSTD

NAMES = {"none": NO_COMPRESSION, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
_CODECS: dict[int, ModuleType] = {
    GZIP: cramjam.gzip,
    SNAPPY: cramjam.snappy,
    LZ4: cramjam.lz4,
    ZSTD: cramjam.zstd,
}
_MAX_FULL_SIZE = 64 << 20  # what RabbitMQ lets a sub-batch announce


def pack(bodies: Iterable[bytes], compression: int) -> tuple[bytes, int]:
    """The body of a sub-batch, and its size before compression."""
    plain = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    codec = _CODECS.get(compression)
    return (plain if codec is None else bytes(codec.compress(plain))), len(plain)


def bodies(data: bytes) -> Sequence[bytes]:
    """The messages in entries, sub-batches unpacked.

    Raises:
        FormatError: an entry is damaged, or a sub-batch does not hold what it announces.
    """
    simple = simple_bodies(data)
    if simple is not None:
        return simple
    return [body for entry in walk_entries(data) for body in entry_bodies(data, entry)]


def entry_bodies(data: bytes, entry: Entry) -> Iterator[bytes]:
    """Yield the messages of one entry: itself, or what its sub-batch holds; see `unpack`."""
    body = data[entry.body : entry.end]
    if entry.compression is None:
        yield body
    else:
        yield from unpack(body, entry.compression, entry.uncompressed_size, entry.num_records)


def unpack(packed: bytes, compression: int, full_size: int, num_records: int) -> Iterator[bytes]:
    """Yield the messages of a sub-batch.

    Args:
        packed: its body as stored.
        compression: its compression code.
        full_size: bytes that it announces to have when unpacked.
        num_records: messages that it announces.

    Raises:
        FormatError: it does not hold what it announces.
    """
    plain = decompress(packed, compression, full_size)
    count = 0
    for entry in walk_entries(plain):
        if entry.compression is not None:
            raise FormatError("a sub-batch within a sub-batch")
        yield plain[entry.body : entry.end]
        count += 1
    if count != num_records:
        raise FormatError(f"sub-batch announces {num_records} messages, it holds {count}")


def decompress(packed: bytes, compression: int, full_size: int) -> bytes:
    """The body of a sub-batch as it was before it was packed; see `unpack`."""
    if compression == NO_COMPRESSION:
        return packed
    codec = _CODECS.get(compression)
    if codec is None:
        raise FormatError(f"compression code is {compression}, known are 0 to 4")
    if full_size > _MAX_FULL_SIZE:
        raise FormatError(f"sub-batch announces {full_size} bytes, at most {_MAX_FULL_SIZE}")
    plain = bytearray(full_size)
    try:
        size = codec.decompress_into(packed, plain)
    except cramjam.DecompressionError as error:
        raise FormatError(f"sub-batch cannot be unpacked: {error}") from error
    if size != full_size:
        raise FormatError(f"sub-batch announces {full_size} bytes, it holds {size}")
    return bytes(plain)

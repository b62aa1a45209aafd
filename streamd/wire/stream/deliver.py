"""The head of a Deliver frame: what goes before a chunk's data, in one piece.

The chunk header is sent as it is stored, except that its last four bytes, filter size and our
additions, are zero: neither filter nor trailer follow, and some clients insist on it. Those that
have asked for chunks as they are stored get all of it.
"""

import struct

from streamd.wire.stream.commands import Deliver, DeliverCommitted, DeliverStored

CHUNK_HEADER_SIZE = 48
_SENT_HEADER_SIZE = 44
# Packing a chunk header cuts it to what is sent of it; the zeros stand for the rest.
_HEADER_FORM = f"{_SENT_HEADER_SIZE}s{CHUNK_HEADER_SIZE - _SENT_HEADER_SIZE}x"
_HEAD = struct.Struct(f">IHHB{_HEADER_FORM}")
_COMMITTED_HEAD = struct.Struct(f">IHHBQ{_HEADER_FORM}")
_STORED_HEAD = struct.Struct(f">IHHB{CHUNK_HEADER_SIZE}s")
_SIZE_BYTES = 4


def encode_deliver_head(
    subscription_id: int, raw_header: bytes, data_size: int, committed_chunk_id: int | None
) -> bytes:
    """Everything of a Deliver frame up to the chunk's data.

    Args:
        subscription_id: whose chunk it is.
        raw_header: the chunk's 48 header bytes as stored.
        data_size: bytes of the data that the caller sends right after this.
        committed_chunk_id: for version 2; None makes version 1.
    """
    if committed_chunk_id is None:
        size = _HEAD.size - _SIZE_BYTES + data_size
        return _HEAD.pack(size, Deliver.KEY, Deliver.VERSION, subscription_id, raw_header)
    size = _COMMITTED_HEAD.size - _SIZE_BYTES + data_size
    key, version = DeliverCommitted.KEY, DeliverCommitted.VERSION
    return _COMMITTED_HEAD.pack(size, key, version, subscription_id, committed_chunk_id, raw_header)


def encode_stored_head(subscription_id: int, raw_header: bytes, size: int) -> bytes:
    """Everything of a DeliverStored frame up to the chunk's filter.

    Args:
        subscription_id: whose chunk it is.
        raw_header: the chunk's 48 header bytes as stored.
        size: bytes of filter, data and trailer, which the caller sends right after this.
    """
    size += _STORED_HEAD.size - _SIZE_BYTES
    key = DeliverStored.KEY
    return _STORED_HEAD.pack(size, key, 1, subscription_id, raw_header)

"""The on-disk formats, declared a second time, in `construct`: names, widths and order.

A property test compares the `struct` twins in `segments/codec.py` with these declarations byte for
byte, and the drawings in docs/internals/file-format.md are made from them.

All integers are big-endian; sizes are bytes; timestamps are signed milliseconds since 1970 (UTC).

Source: rabbitmq/osiris, src/osiris_log.erl (head comment) and src/osiris_tracking.erl. Ours on top
are the three bytes at the end of the chunk header, trailer block type 3 and the side files.
"""

from construct import (
    Array,
    Bytes,
    Computed,
    Const,
    Enum,
    GreedyRange,
    IfThenElse,
    Int8ub,
    Int16ub,
    Int16ul,
    Int32ub,
    Int32ul,
    Int64sb,
    Int64ub,
    Int64ul,
    Peek,
    Rebuild,
    Struct,
    Switch,
    len_,
    this,
)

from segments.format_constants import (
    CHECKPOINT_MAGIC,
    CHUNK_MAGIC,
    DAMAGE_MAGIC,
    FILE_VERSION,
    FILTER_INDEX_MAGIC,
    FILTER_INDEX_VERSION,
    FILTER_VALUE,
    INDEX_MAGIC,
    JOURNAL_DELTA,
    JOURNAL_SNAPSHOT,
    KEY_BLOCK_SIZE,
    KEY_TABLE_MAGIC,
    KEY_TABLE_VERSION,
    MMH3_SCHEME,
    OFFSET,
    OSIRIS_SCHEME,
    SEGMENT_MAGIC,
    SEQUENCE,
    SUB_BATCH_BIT,
    TIMESTAMP,
    TRACKING_MAGIC,
    USER,
)


# No checksum covers a file header. In journal, checkpoint and damage file a version that differs by
# damage is told from one of a later program by what follows: that passes the checksums of version 1
# only in a file of version 1. So a later version has to put its number under its checksums.
def _file_header(magic: bytes, version: int = FILE_VERSION) -> Struct:
    return Struct("magic" / Const(magic), "version" / Const(version, Int32ub))


SEGMENT_HEADER = _file_header(SEGMENT_MAGIC)  # then chunks, back to back, to the end of the file
INDEX_HEADER = _file_header(INDEX_MAGIC)  # then index records
TRACKING_HEADER = _file_header(TRACKING_MAGIC)  # then journal records
DAMAGE_HEADER = _file_header(DAMAGE_MAGIC)  # then damage records
# Then one filter index.
FILTER_INDEX_HEADER = _file_header(FILTER_INDEX_MAGIC, FILTER_INDEX_VERSION)
CHECKPOINT_HEADER = _file_header(CHECKPOINT_MAGIC)  # then one checkpoint
KEY_TABLE_HEADER = _file_header(KEY_TABLE_MAGIC, KEY_TABLE_VERSION)  # then the rest of a key table

CHUNK_HEADER = Struct(
    "magic" / Const(CHUNK_MAGIC, Int8ub),
    "chunk_type" / Enum(Int8ub, user=USER, tracking_delta=1, tracking_snapshot=2),
    "num_entries" / Int16ub,  # slots in the data section; a sub-batch is one
    "num_records" / Int32ub,  # messages, hence how far offsets advance
    "timestamp_ms" / Int64sb,  # when the chunk was built; never decreases within a stream
    "epoch" / Int64ub,  # generation of the writer, never decreases
    "chunk_id" / Int64ub,  # offset of the first record
    "data_crc" / Int32ub,  # CRC-32 (zlib) of the data section alone
    "data_size" / Int32ub,
    "trailer_size" / Int32ub,
    "filter_size" / Int8ub,  # 0, or 16 to 255
    "filter_scheme" / Enum(Int8ub, osiris=OSIRIS_SCHEME, mmh3=MMH3_SCHEME),  # ours: who may test it
    "header_check" / Int16ub,  # ours: low half of CRC-32 over bytes 0..45, filter and trailer
)

SIMPLE_ENTRY = Struct(
    "size" / Rebuild(Int32ub, len_(this.body)),  # top bit 0
    "body" / Bytes(this.size),
)

SUB_BATCH_ENTRY = Struct(
    "flags" / Int8ub,  # bit 7 set, bits 4 to 6 compression, the rest 0
    "compression" / Computed((this.flags >> 4) & 7),
    "num_records" / Int16ub,
    "uncompressed_size" / Int32ub,
    "size" / Rebuild(Int32ub, len_(this.body)),
    "body" / Bytes(this.size),  # simple entries back to back, compressed as a whole
)

ENTRY = Struct(
    "first_byte" / Peek(Int8ub),
    "entry" / IfThenElse(this.first_byte & SUB_BATCH_BIT, SUB_BATCH_ENTRY, SIMPLE_ENTRY),
)

# Blocks of a chunk's trailer and of a tracking delta. Ids and filter values are 1 to 255 bytes,
# except that an empty filter value stands for "no filter value".
TRACKING_BLOCK = Struct(
    "kind"
    / Enum(
        Int8ub, sequence=SEQUENCE, offset=OFFSET, timestamp=TIMESTAMP, filter_value=FILTER_VALUE
    ),
    "id_size" / Rebuild(Int8ub, len_(this.id)),
    "id" / Bytes(this.id_size),
    "value"
    / Switch(
        this.kind,
        {
            "sequence": Int64ub,  # highest publishing id of that publisher in this chunk
            "offset": Int64ub,  # offset a consumer stored
            "timestamp": Int64sb,  # timestamp a consumer stored (osiris only)
            "filter_value": Int64ub,  # how many messages of the chunk carry the value
        },
    ),
)
TRACKING_BLOCKS = GreedyRange(TRACKING_BLOCK)

# What the blocks of kind 2 at the beginning of a trailer hold together: columns, behind this head,
# then their planes each, then positions.
COLUMNS = Struct(
    "version" / Const(1, Int8ub),
    "flags" / Int8ub,
    "num_columns" / Int8ub,
)
COLUMN = Struct(
    "kind" / Int8ub,
    "first" / Int32ub,  # byte of its first block, from the end of the section's blocks
    "num_values" / Int16ub,
)

# Blocks of a snapshot: a sequence also says which chunk it came with.
SNAPSHOT_BLOCK = Struct(
    "kind" / Enum(Int8ub, sequence=SEQUENCE, offset=OFFSET, timestamp=TIMESTAMP),
    "id_size" / Rebuild(Int8ub, len_(this.id)),
    "id" / Bytes(this.id_size),
    "chunk_id" / Switch(this.kind, {"sequence": Int64ub}),
    "value" / Switch(this.kind, {"timestamp": Int64sb}, default=Int64ub),
)
SNAPSHOT_BLOCKS = GreedyRange(SNAPSHOT_BLOCK)

INDEX_RECORD = Struct(
    "chunk_id" / Int64ub,
    "timestamp_ms" / Int64sb,
    "epoch" / Int64ub,
    "position" / Int32ub,  # of the chunk's header in the segment file
    "chunk_type" / Int8ub,
)

# The tracking journal: what no chunk carries, and snapshots of what many carry.
JOURNAL_RECORD = Struct(
    "crc" / Int32ub,  # CRC-32 of everything after it
    "size" / Rebuild(Int32ub, len_(this.body)),
    "kind" / Enum(Int8ub, delta=JOURNAL_DELTA, snapshot=JOURNAL_SNAPSHOT),
    "next_offset" / Int64ub,  # the stream's when the record was written
    "body" / Bytes(this.size),  # tracking blocks in a delta, snapshot blocks in a snapshot
)

# How much of a stream was on the device for certain when it was written.
CHECKPOINT = Struct(
    "first_offset" / Int64ub,  # of the stream; segments before it are being removed
    "segment" / Int64ub,  # base offset of the segment that the rest is about
    "position" / Int64ub,  # its bytes before this are on the device, and all segments before it
    "num_chunks" / Int64ub,  # index records before `position`; on the device, too
    "next_offset" / Int64ub,  # of the record that follows at `position`
    "epoch" / Int64ub,  # the highest so far
    "has_tracking" / Int8ub,  # 0: there was nothing that the tracking journal would have to know
    "crc" / Int32ub,  # CRC-32 of the fields before it
)

# Ranges of a segment that readers step over, found when the stream was opened.
DAMAGE_RECORD = Struct(
    "position" / Int64ub,
    "end" / Int64ub,
    "first_offset" / Int64ub,
    "next_offset" / Int64ub,
    "crc" / Int32ub,  # CRC-32 of the fields before it
)

# The filter index of a sealed segment: columns of numbers, little-endian so that they can be used
# as they stand in memory. `fingerprints` is sorted; the chunks that hold a value are
# ordinals[starts[n]:starts[n + 1]], counted from the segment's first chunk.
FILTER_INDEX = Struct(
    "segment_size" / Int64ub,  # bytes of the segment that it is for
    "base_offset" / Int64ub,
    "num_chunks" / Int32ub,
    "num_fingerprints" / Int32ub,
    "num_ordinals" / Int32ub,
    "num_bare" / Int32ub,
    "num_uncertain" / Int32ub,
    # Of the segment's index records, and of the header of its last chunk: it is for no other
    # content that has the same size.
    "content_crc" / Int32ub,
    "crc" / Int32ub,  # CRC-32 of the fields before it and everything after the padding
    "padding" / Bytes(4),
    "chunk_ids" / Array(this.num_chunks, Int64ul),
    "fingerprints" / Array(this.num_fingerprints, Int64ul),  # 0 for "no filter value"
    "positions" / Array(this.num_chunks, Int32ul),  # of the chunks in the segment file
    "starts" / Array(this.num_fingerprints + 1, Int32ul),
    "ordinals" / Array(this.num_ordinals, Int32ul),
    "bare" / Array(this.num_bare, Int32ul),  # chunks without any filter value
    "uncertain" / Array(this.num_uncertain, Int32ul),  # chunks that may hold anything
)

# A key table, of which a key file has one, and that of a segment that grows has several, back to
# back. It consists of blocks of 4,096 bytes: this one; the blocks of fences, the uppermost level
# first; blocks of pairs; and blocks of ordinals of chunks that may have any keys. Columns are
# little-endian as in filter indexes, and zero behind what the counts say.
KEY_TABLE = Struct(
    "segment_size" / Int64ub,  # bytes of the segment up to the end of the last chunk
    "base_offset" / Int64ub,
    "first_chunk" / Int32ub,  # it is of the chunks from this ordinal on
    "end_chunk" / Int32ub,  # before this one
    "content_crc" / Int32ub,  # as in a filter index; 0 where the segment grows
    "num_uncertain" / Int32ub,
    "num_pairs" / Int64ub,
    "names_size" / Rebuild(Int16ub, len_(this.names)),
    "names"
    / Bytes(this.names_size),  # of the properties whose values are keys, a line feed between
    "padding" / Bytes(KEY_BLOCK_SIZE - 8 - 42 - 4 - this.names_size),
    "crc" / Int32ub,  # CRC-32 of the block before it; with this begins that of all other blocks
)
# The prints of keys in order, with the places of the messages that have them. `most` go into a
# block: 511.
KEY_PAIRS = Struct(
    "prints" / Array(this["_params"]["most"], Int32ul),
    "places" / Array(this["_params"]["most"], Int32ul),  # the chunk's ordinal, the message's number
    "padding" / Bytes(4),
    "crc" / Int32ub,
)
# Of version 1: with the ordinals of the chunks that hold them, 682 in a block; or 511, and ordinals
# of 32 bits as places are, where `end_chunk` is above 65,536.
OLD_KEY_PAIRS = Struct(
    "prints" / Array(this["_params"]["most"], Int32ul),
    "ordinals" / Array(this["_params"]["most"], Int16ul),
    "crc" / Int32ub,
)
# The first prints of blocks of the level below, 1,023 in a block; or as many ordinals of chunks
# that may have any keys.
KEY_FENCES = Struct("numbers" / Array(this["_params"]["most"], Int32ul), "crc" / Int32ub)

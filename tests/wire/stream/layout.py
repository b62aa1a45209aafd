"""The frames of the stream protocol, declared a second time, in `construct`.

Written from the protocol's description and not from `fields.py` and `commands.py`: tests hold the
two against each other, byte for byte. Nothing that comes from a network is parsed with this.

Source: rabbitmq/rabbitmq-server, deps/rabbitmq_stream/docs/PROTOCOL.adoc.
"""

from construct import (
    Bytes,
    Const,
    ExprAdapter,
    GreedyBytes,
    If,
    Int8ub,
    Int16sb,
    Int16ub,
    Int32sb,
    Int32ub,
    Int64sb,
    Int64ub,
    PascalString,
    Prefixed,
    PrefixedArray,
    Struct,
    Switch,
    this,
)

_string = PascalString(Int16ub, "utf8")
_pair = Struct("key" / _string, "value" / _string)
_map = PrefixedArray(Int32ub, _pair)  # at the end of a request a client may leave it out
_any_bytes = ExprAdapter(  # filter values are bytes, mostly UTF-8
    Prefixed(Int16ub, GreedyBytes),
    lambda raw, _: raw.decode("utf-8", "surrogateescape"),
    lambda text, _: text.encode("utf-8", "surrogateescape"),
)
_subscribe_map = PrefixedArray(Int32ub, Struct("key" / _string, "value" / _any_bytes))
_strings = PrefixedArray(Int32ub, _string)
_offset = Struct("type" / Int16ub, "value" / Switch(this.type, {4: Int64ub, 5: Int64sb}))
_versions = PrefixedArray(
    Int32ub, Struct("key" / Int16ub, "min_version" / Int16ub, "max_version" / Int16ub)
)
_statistics = PrefixedArray(Int32ub, Struct("name" / _string, "value" / Int64sb))
_correlated = ("correlation_id" / Int32ub,)
_answer = (*_correlated, "code" / Int16ub)

SIMPLE_ENTRY = Struct("publishing_id" / Int64ub, "body" / Prefixed(Int32ub, GreedyBytes))
FILTERED_ENTRY = Struct(
    "publishing_id" / Int64ub,
    "value_size" / Int16sb,  # -1: no filter value
    "value" / If(this.value_size >= 0, Bytes(this.value_size)),
    "body" / Prefixed(Int32ub, GreedyBytes),
)
SUB_BATCH_ENTRY = Struct(
    "publishing_id" / Int64ub,
    "flags" / Int8ub,  # top bit set, then 3 bits of compression
    "num_records" / Int16ub,
    "uncompressed_size" / Int32ub,
    "body" / Prefixed(Int32ub, GreedyBytes),
)

# (key, version) to the fields after them
BODIES: dict[tuple[int, int], Struct] = {
    (0x0001, 1): Struct(
        *_correlated, "publisher_id" / Int8ub, "reference" / _string, "stream" / _string
    ),
    (0x0002, 1): Struct("publisher_id" / Int8ub, "num_entries" / Int32ub, "entries" / GreedyBytes),
    (0x0002, 2): Struct("publisher_id" / Int8ub, "num_entries" / Int32ub, "entries" / GreedyBytes),
    (0x0003, 1): Struct(
        "publisher_id" / Int8ub, "publishing_ids" / PrefixedArray(Int32ub, Int64ub)
    ),
    (0x0004, 1): Struct(
        "publisher_id" / Int8ub,
        "faults" / PrefixedArray(Int32ub, Struct("publishing_id" / Int64ub, "code" / Int16ub)),
    ),
    (0x0005, 1): Struct(*_correlated, "reference" / _string, "stream" / _string),
    (0x0006, 1): Struct(*_correlated, "publisher_id" / Int8ub),
    (0x0007, 1): Struct(
        *_correlated,
        "subscription_id" / Int8ub,
        "stream" / _string,
        "offset" / _offset,
        "credit" / Int16ub,
        "properties" / _subscribe_map,
    ),
    (0x0008, 1): Struct("subscription_id" / Int8ub, "chunk" / GreedyBytes),
    (0x0008, 2): Struct(
        "subscription_id" / Int8ub, "committed_chunk_id" / Int64ub, "chunk" / GreedyBytes
    ),
    (0x0009, 1): Struct("subscription_id" / Int8ub, "credit" / Int16ub),
    (0x8009, 1): Struct("code" / Int16ub, "subscription_id" / Int8ub),
    (0x000A, 1): Struct("reference" / _string, "stream" / _string, "offset" / Int64ub),
    (0x000B, 1): Struct(*_correlated, "reference" / _string, "stream" / _string),
    (0x000C, 1): Struct(*_correlated, "subscription_id" / Int8ub),
    (0x000D, 1): Struct(*_correlated, "stream" / _string, "arguments" / _map),
    (0x000E, 1): Struct(*_correlated, "stream" / _string),
    (0x000F, 1): Struct(*_correlated, "streams" / _strings),
    (0x800F, 1): Struct(
        *_correlated,
        "brokers"
        / PrefixedArray(Int32ub, Struct("reference" / Int16ub, "host" / _string, "port" / Int32ub)),
        "streams"
        / PrefixedArray(
            Int32ub,
            Struct(
                "stream" / _string,
                "code" / Int16ub,
                "leader" / Int16ub,
                "replicas" / PrefixedArray(Int32ub, Int16ub),
            ),
        ),
    ),
    (0x0010, 1): Struct("code" / Int16ub, "stream" / _string),
    (0x0011, 1): Struct(*_correlated, "properties" / _map),
    (0x8011, 1): Struct(*_answer, "properties" / _map),
    (0x0012, 1): Struct(*_correlated),
    (0x8012, 1): Struct(*_answer, "mechanisms" / _strings),
    (0x0013, 1): Struct(
        *_correlated, "mechanism" / _string, "data" / Prefixed(Int32sb, GreedyBytes)
    ),
    (0x8013, 1): Struct(*_answer, "challenge" / GreedyBytes),
    (0x0014, 1): Struct("frame_max" / Int32ub, "heartbeat_seconds" / Int32ub),
    (0x0015, 1): Struct(*_correlated, "virtual_host" / _string),
    (0x8015, 1): Struct(*_answer, "properties" / _map),
    (0x0016, 1): Struct(*_answer, "reason" / _string),
    (0x0017, 1): Struct(),
    (0x0018, 1): Struct(*_correlated, "routing_key" / _string, "super_stream" / _string),
    (0x8018, 1): Struct(*_answer, "streams" / _strings),
    (0x0019, 1): Struct(*_correlated, "super_stream" / _string),
    (0x8019, 1): Struct(*_answer, "streams" / _strings),
    (0x001A, 1): Struct(*_correlated, "subscription_id" / Int8ub, "active" / Int8ub),
    (0x801A, 1): Struct(*_answer, "offset" / _offset),
    (0x001B, 1): Struct(*_correlated, "versions" / _versions),
    (0x801B, 1): Struct(*_answer, "versions" / _versions),
    (0x001C, 1): Struct(*_correlated, "stream" / _string),
    (0x801C, 1): Struct(
        *_answer,
        "statistics" / _statistics,
    ),
    (0x0402, 1): Struct(*_correlated, "subscription_id" / Int8ub, "awaited_offset" / Int64ub),
    (0x8402, 1): Struct(*_answer, "statistics" / _statistics),
    (0x0404, 1): Struct(*_correlated, "stream" / _string),
    (0x8404, 1): Struct(*_answer, "statistics" / _statistics),
    (0x0406, 1): Struct("subscription_id" / Int8ub, "chunk" / GreedyBytes),
    (0x0405, 1): Struct(*_correlated, "stream" / _string, "words" / _map),
    (0x8405, 1): Struct(
        *_answer,
        "reason" / _string,
        "messages"
        / PrefixedArray(
            Int32ub,
            Struct(
                "offset" / Int64ub, "timestamp_ms" / Int64sb, "raw" / Prefixed(Int32ub, GreedyBytes)
            ),
        ),
        "cut" / _string,
        "after" / _string,
        "looked_at" / _statistics,
    ),
    (0x0401, 1): Struct(*_correlated, "streams" / _strings),
    (0x8401, 1): Struct(
        *_answer,
        "streams"
        / PrefixedArray(
            Int32ub,
            Struct(
                "stream" / _string,
                "code" / Int16ub,
                "arguments" / _map,
                "statistics" / _statistics,
            ),
        ),
    ),
    (0x001D, 1): Struct(
        *_correlated,
        "name" / _string,
        "partitions" / _strings,
        "binding_keys" / _strings,
        "arguments" / _map,
    ),
    (0x001E, 1): Struct(*_correlated, "name" / _string),
    (0x0403, 1): Struct(*_correlated, "operation" / _string, "arguments" / _map),
    (0x8403, 1): Struct(*_answer, "reason" / _string, "rows" / PrefixedArray(Int32ub, _map)),
    (0x001F, 1): Struct(*_correlated, "stream" / _string, "offset" / _offset, "properties" / _map),
    (0x801F, 1): Struct(*_answer, "offset" / _offset),
    (0x8005, 1): Struct(*_answer, "sequence" / Int64ub),
    (0x800B, 1): Struct(*_answer, "offset" / Int64ub),
}
# Answers that are a code and nothing more.
BODIES |= {
    (key, 1): Struct(*_answer)
    for key in (0x8001, 0x8006, 0x8007, 0x800C, 0x800D, 0x800E, 0x8016, 0x801D, 0x801E)
}

FRAME = Prefixed(Int32ub, Struct("key" / Int16ub, "version" / Int16ub, "body" / GreedyBytes))

DELIVERED_CHUNK_HEADER = Struct(
    "magic" / Const(0x50, Int8ub),
    "chunk_type" / Int8ub,
    "num_entries" / Int16ub,
    "num_records" / Int32ub,
    "timestamp_ms" / Int64sb,
    "epoch" / Int64ub,
    "chunk_id" / Int64ub,
    "data_crc" / Int32ub,
    "data_size" / Int32ub,
    "trailer_size" / Int32ub,  # of the stored trailer, which is not sent
    "nothing" / Const(bytes(4)),
)

"""The heartbeat of a node as an object."""

from dataclasses import replace

import pytest

from segments.errors import FormatError, VersionError
from segments.store.heartbeat import (
    Heartbeat,
    NodeAddress,
    NodeRole,
    decode_heartbeat,
    encode_heartbeat,
    list_nodes,
    read_heartbeat,
)
from tests.support.fake_store import FakeStore

BEAT = Heartbeat(
    tier="c41d07e2b3a95f68",
    node="a",
    writer="3f6c1d20a9b84e57",
    start="b0a1b0a1b0a1b0a1",
    counter=7,
    interval_ms=3_000,
    role=NodeRole.LEADER,
    since_ms=1_763_715_600_000,
    epoch=4,
    revision=8,
    addresses={"stream": NodeAddress("a.example", 5552), "stream/ssl": NodeAddress("a", 5551)},
    program="0.1.0",
)


def test_it_says_what_was_said() -> None:
    content = encode_heartbeat(BEAT)
    assert content.startswith(b'{"format":"streamd-node","version":1,"tier":"c41d07e2b3a95f68"')
    assert decode_heartbeat(BEAT.key, content) == BEAT
    assert str(BEAT.stream_address) == "a.example:5552"
    assert replace(BEAT, addresses={}).stream_address is None


def test_every_changed_byte_is_found() -> None:
    content = encode_heartbeat(BEAT)
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 0x15
        with pytest.raises(FormatError):
            decode_heartbeat(BEAT.key, bytes(changed))


def test_what_is_refused() -> None:
    with pytest.raises(FormatError, match="it is that of the node a"):
        decode_heartbeat("v1/~nodes/b", encode_heartbeat(BEAT))
    later = encode_heartbeat(BEAT).replace(b'"version":1', b'"version":2')
    with pytest.raises(VersionError):
        decode_heartbeat(BEAT.key, later)
    with pytest.raises(FormatError):
        decode_heartbeat("v1/~nodes/.x", encode_heartbeat(replace(BEAT, node=".x")))


def test_reading_them() -> None:
    store = FakeStore()
    assert read_heartbeat(store, "a") is None
    store.create(BEAT.key, encode_heartbeat(BEAT))
    store.put("v1/~nodes/b", b"damaged")
    found = read_heartbeat(store, "a")
    assert found is not None
    assert found.heartbeat == BEAT
    damaged = read_heartbeat(store, "b")
    assert damaged is not None
    assert damaged.heartbeat is None, "but its changes are seen"
    assert [(one.node, one.heartbeat) for one in list_nodes(store)] == [("a", BEAT), ("b", None)]

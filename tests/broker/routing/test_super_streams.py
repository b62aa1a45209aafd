"""Super streams: all partitions or none, in their order, after a restart as well."""

from pathlib import Path

import pytest

from streamd.operations.routing import Binding
from streamd.wire.stream import ResponseCode, commands as c
from tests.support.server import FIRST, OK, Harness, Peer, with_peer

NO_STREAM, EXISTS = ResponseCode.STREAM_DOES_NOT_EXIST, ResponseCode.STREAM_EXISTS
PRECONDITION_FAILED = ResponseCode.PRECONDITION_FAILED
NAMES, KEYS = ("i-2", "i-0", "i-1"), ("z", "a", "z")


async def partitions(peer: Peer, name: str = "i") -> tuple[int, tuple[str, ...]]:
    answer = await peer.ask(c.Partitions, name)
    return answer.code, answer.streams


async def route(peer: Peer, key: str, name: str = "i") -> tuple[int, tuple[str, ...]]:
    answer = await peer.ask(c.Route, key, name)
    return answer.code, answer.streams


async def test_from_creating_to_deleting(server: Harness, peer: Peer) -> None:
    assert await peer.code(c.CreateSuperStream, "i", NAMES, KEYS) == OK
    assert await partitions(peer) == (OK, NAMES)
    assert await route(peer, "z") == (OK, ("i-2", "i-1"))
    assert await route(peer, "a") == (OK, ("i-0",))
    assert await route(peer, "none") == (OK, ())
    await peer.declare("i-1")
    await peer.store([b"x"])
    reader = await server.consumer("i-1", FIRST)
    assert await reader.bodies(1) == [b"x"]
    assert await peer.code(c.DeleteSuperStream, "i") == OK
    for one in (peer, reader):
        assert await one.expect(c.MetadataUpdate) == c.MetadataUpdate(6, "i-1")
    assert await partitions(peer) == (NO_STREAM, ())
    assert await route(peer, "a") == (NO_STREAM, ())
    assert await peer.code(c.StreamStats, "i-0") == NO_STREAM
    assert await peer.code(c.DeleteSuperStream, "i") == NO_STREAM


async def test_a_partition_under_two_keys(server: Harness, peer: Peer) -> None:
    assert await peer.code(c.CreateSuperStream, "i", NAMES, KEYS) == OK
    await server.host.exchanges.bind(Binding("/", "i", "i-1", False, "again", {}))
    assert await route(peer, "again") == (OK, ("i-1",))
    assert await partitions(peer) == (OK, (*NAMES, "i-1"))
    assert await peer.code(c.DeleteSuperStream, "i") == OK
    assert server.host.names() == []


@pytest.mark.parametrize(
    ("name", "names", "keys", "arguments"),
    [
        ("i", ("a", "b"), ("0",), ()),
        ("i", (), (), ()),
        ("i", ("a", "a"), ("0", "1"), ()),
        ("i", ("a", ""), ("0", "1"), ()),
        ("i", ("a", "amq.b"), ("0", "1"), ()),
        ("", ("a",), ("0",), ()),
        ("i", tuple(f"p{n}" for n in range(1001)), tuple(map(str, range(1001))), ()),
        ("i", ("a",), ("0",), (("max-age", "soon"),)),
    ],
    ids=["counts", "none", "twice", "empty", "reserved", "unnamed", "many", "argument"],
)
async def test_refused_whole(
    peer: Peer,
    name: str,
    names: tuple[str, ...],
    keys: tuple[str, ...],
    arguments: tuple[tuple[str, str], ...],
) -> None:
    assert await peer.code(c.CreateSuperStream, name, names, keys, arguments) == PRECONDITION_FAILED
    assert await peer.code(c.StreamStats, "a") == NO_STREAM
    assert await partitions(peer, name) == (NO_STREAM, ())


async def test_what_exists_already(peer: Peer) -> None:
    await peer.create("b")
    await peer.create("i")  # a stream may have the same name
    assert await peer.code(c.CreateSuperStream, "i", ("a", "b"), ("0", "1")) == EXISTS
    assert await peer.code(c.StreamStats, "a") == NO_STREAM
    assert await peer.code(c.CreateSuperStream, "i", ("a",), ("0",)) == OK
    assert await peer.code(c.CreateSuperStream, "i", ("c",), ("0",)) == EXISTS


async def test_arguments_are_those_of_each_partition(peer: Peer) -> None:
    arguments = (("stream-filter-size-bytes", "64"), ("queue-leader-locator", "balanced"))
    assert await peer.code(c.CreateSuperStream, "i", NAMES, KEYS, arguments) == OK
    answer = await peer.ask(c.DescribeStreams, NAMES)
    assert [dict(found.arguments)["stream-filter-size-bytes"] for found in answer.streams] == [
        "64"
    ] * 3


async def test_after_a_restart(tmp_path: Path) -> None:
    async with with_peer(tmp_path) as (_, peer):
        assert await peer.code(c.CreateSuperStream, "i", NAMES, KEYS) == OK
        assert await peer.code(c.CreateSuperStream, "j", ("j-0",), ("0",)) == OK
        assert await peer.code(c.Delete, "i-0") == OK
        assert await peer.code(c.DeleteSuperStream, "j") == OK
    async with with_peer(tmp_path) as (_, peer):
        assert await partitions(peer) == (OK, ("i-2", "i-1"))
        assert await route(peer, "z") == (OK, ("i-2", "i-1"))
        assert await route(peer, "a") == (OK, ())  # its partition was deleted alone
        assert await partitions(peer, "j") == (NO_STREAM, ())
        assert await peer.code(c.DeleteSuperStream, "i") == OK

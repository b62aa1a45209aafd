"""Streams that could not be confirmed as their arguments say are refused, whatever the door."""

from pathlib import Path

import pytest

from streamd.operations.arguments import CONFIRM, TIER
from streamd.operations.errors import Refused
from streamd.wire.stream import ResponseCode, commands as c
from tests.broker.tier.support import tiered
from tests.support.amqp import STREAM, declare, fields, open_peer
from tests.support.fake_store import FakeStore
from tests.support.http import Http
from tests.support.server import OK, Harness, harness, with_peer

NO_TIER = "stream-confirm is store, but this server has no tier: start it with --tier, or leave"
NOT_IN_IT = "stream-confirm is store, but stream-tier is false: the tier gets nothing of the stream"


async def _refused_everywhere(server: Harness, said: str, **more: str) -> None:
    wanted = {CONFIRM: "store", **more}
    prefixed = {f"x-{name}": value for name, value in wanted.items()}
    peer = await server.peer()
    pairs = tuple(wanted.items())
    precondition = ResponseCode.PRECONDITION_FAILED
    assert await peer.code(c.Create, "s", pairs) == precondition
    assert await peer.code(c.CreateSuperStream, "s", ("s-0",), ("0",), pairs) == precondition
    table = STREAM | fields(**{name.replace("-", "_"): value for name, value in prefixed.items()})
    await (await open_peer(server)).channel_fails(declare("s", table), 406, said)
    http = Http(server)
    row = {"arguments": {"x-queue-type": "stream", **prefixed}}
    if more:
        row["arguments"]["x-stream-tier"] = False  # type: ignore[assignment]
    assert said in await http.reason("PUT", "queues/%2F/s", row)
    queue = {"name": "s", "vhost": "/", "durable": True, "auto_delete": False, **row}
    assert said in (await http.ask("POST", "definitions", {"queues": [queue]})).text
    assert not server.host.names()


async def test_without_a_tier(tmp_path: Path) -> None:
    async with harness(tmp_path) as server:
        await _refused_everywhere(server, NO_TIER)
        await server.host.create("s", [])
        with pytest.raises(Refused, match="no tier"):
            await server.host.settings.set_arguments("s", [(CONFIRM, "store")])


async def test_of_a_stream_that_is_not_in_the_tier(tmp_path: Path) -> None:
    async with tiered(tmp_path, FakeStore()) as server:
        await _refused_everywhere(server, NOT_IN_IT, **{TIER: "false"})
        await server.host.create("s", [(CONFIRM, "store")])
        with pytest.raises(Refused, match="stream-tier is false"):
            await server.host.settings.set_arguments("s", [(TIER, "false")])
        both = [(CONFIRM, ""), (TIER, "false")]
        await server.host.settings.set_arguments("s", both)
        await server.host.settings.set_arguments("s", [("max-age", "7D")])


async def test_what_is_there_is_declared_again_without_a_tier(tmp_path: Path) -> None:
    """It exists with these arguments; only that it cannot be used is another matter."""
    async with tiered(tmp_path, FakeStore()) as server:
        await server.host.create("s", [(CONFIRM, "store")])
    async with with_peer(tmp_path) as (server, peer):
        code = await peer.code(c.Create, "s", ((CONFIRM, "store"),))
        assert code == ResponseCode.STREAM_EXISTS
        await server.host.settings.set_arguments("s", [("max-age", "7D")])


async def test_a_default_does_not_concern_streams_that_are_not_in_the_tier(tmp_path: Path) -> None:
    store = FakeStore()
    async with tiered(tmp_path, store, confirm="store") as server:
        peer = await server.peer()
        await peer.create("local", stream_tier="false")
        await peer.create("stored")
        store.fail(times=-1)
        assert await peer.code(c.DeclarePublisher, 1, "", "local") == OK
        await peer.store([b"1"])
        await peer.declare("stored", 2)
        await peer.publish([b"1"], publisher_id=2)
        await peer.silence(5)

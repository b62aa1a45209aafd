"""Connections of all nodes are listed, and ended, at any of them."""

import base64
from typing import Any

import msgspec
import pytest
import trio

from streamd.hop.declared import answer_of
from streamd.operations.connections import (
    CloseConnections,
    GetConnection,
    ListConnections,
    ListReaders,
)
from streamd.operations.names import Name
from streamd.wire.stream import ResponseCode
from tests.broker.nodes.spread import HOST, NAMES, Three, manage, one_of, spread
from tests.support.server import OK, Peer


async def _ask(peer: Peer, request: Any) -> Any:
    answer = await manage(peer, request)
    assert answer.code == OK, answer.reason
    content = base64.b64decode("".join(value for row in answer.rows for _, value in row))
    return msgspec.msgpack.decode(content, type=answer_of(type(request)))


@pytest.mark.parametrize("asked", ["a", "c"])
async def test_all_nodes_tell_of_theirs(three: Three, asked: str) -> None:
    leaders = await spread(three["a"], *NAMES)
    stream = Name(one_of(leaders, "b"))
    peers = {name: await node.peer() for name, node in three.items()}
    for name in "ab":  # one of them where it is not led
        await peers[name].subscribe(stream)
    peer = peers[asked]
    await trio.sleep(5)
    found = await _ask(peer, ListConnections())
    # There is also the one that has made the streams.
    assert len({one.connection.name for one in found}) == len(found) == 4
    readers = await _ask(peer, ListReaders(vhost=HOST, stream=stream))
    assert len(readers) == 2
    (at_b,) = (one.connection.name for one in found if one.consumers)
    assert (await _ask(peer, GetConnection(name=at_b))).connection.name == at_b
    assert await _ask(peer, CloseConnections(name=at_b, reason="why")) == 1
    await peers["b"].ended()
    assert len(await _ask(peer, ListConnections())) == 3
    again = await manage(peer, CloseConnections(name=at_b, reason="why"))
    assert again.code != OK
    assert "it was closed" in again.reason


async def test_a_node_that_stands_still_is_left_out(three: Three) -> None:
    await spread(three["a"], *NAMES)
    peer, _ = await three["a"].peer(), await three["b"].peer()
    assert len(await _ask(peer, ListConnections())) == 3
    three["b"].pause()
    with trio.fail_after(5):
        assert len(await _ask(peer, ListConnections())) == 2
    three["b"].go_on()


async def test_answers_count_where_the_log_of_metadata_is_late(three: Three) -> None:
    leaders = await spread(three["a"], *NAMES)
    peer, other = await three["c"].peer(), await three["b"].peer()
    await other.subscribe(one_of(leaders, "b"))
    found = await _ask(peer, ListConnections())
    assert three["c"].server is not None
    three["c"].server.server.broker.tier.read_on = trio.sleep_forever  # type: ignore[union-attr]
    assert await _ask(peer, ListConnections()) == found
    (name,) = (one.connection.name for one in found if one.consumers)
    assert await _ask(peer, CloseConnections(name=name, reason="why")) == 1


async def test_who_does_not_answer_may_have_ended_it(three: Three) -> None:
    leaders = await spread(three["a"], *NAMES)
    peer, other = await three["a"].peer(), await three["b"].peer()
    await other.subscribe(one_of(leaders, "b"))
    found = await _ask(peer, ListConnections())
    (name,) = (one.connection.name for one in found if one.consumers)
    three["b"].pause()
    answers = [
        await manage(peer, CloseConnections(name=name, reason="why")),
        await manage(peer, CloseConnections(user=Name("nobody"), reason="why")),
    ]
    three["b"].go_on()
    for answer in answers:
        assert answer.code == ResponseCode.STREAM_NOT_AVAILABLE
        assert "b did not answer" in answer.reason

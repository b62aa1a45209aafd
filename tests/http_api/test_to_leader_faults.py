"""Sequences of events under which a request that is passed on breaks what was promised."""

from typing import Any, cast

import h11
import pytest
import trio
from starlette.types import Message
from trio.testing import memory_stream_pair

from segments.store.heartbeat import NodeAddress
from streamd.hop.door import EngineLink
from streamd.http_api.to_leader import Reached, ToLeader
from streamd.http_api.unread import UnreadBodies
from streamd.operations.cluster import LeaderFacts
from tests.http_api.test_to_leader import LEADER, _here, _Link, _standby

OTHER = LeaderFacts("c", "2", {"http": NodeAddress("c.example", 15672)}, "-")


def _scope(method: str, *headers: tuple[bytes, bytes], client: str = "127.0.0.1") -> dict[str, Any]:
    scope = {"type": "http", "method": method, "path": "/api/a", "raw_path": b"/api/a"}
    return {**scope, "query_string": b"", "headers": list(headers), "client": (client, 1)}


async def test_a_leader_that_says_nothing_is_left_when_another_one_leads() -> None:
    """Its machine is gone, or it is paused: nothing more comes, and no end either."""
    async with _standby() as (http, leader, link), trio.open_nursery() as nursery:
        leader.is_silent = True
        answers: list[object] = []

        async def ask() -> None:
            answers.append(await http.get("/x/api/a"))

        nursery.start_soon(ask)
        await trio.sleep(1)
        link.leader = OTHER
        await trio.sleep(3_600)
        nursery.cancel_scope.cancel()
    assert answers


async def test_a_leader_at_an_ipv6_address_is_asked_by_a_valid_host() -> None:
    address = {"http": NodeAddress("2001:db8::1", 15672)}
    async with _standby(leader=LeaderFacts("a", "1", address, "-")) as (http, leader, _):
        await http.get("/x/api/a")
        head = leader.asked[0]
        assert isinstance(head, h11.Request)
        assert dict(head.headers)[b"host"] == b"[2001:db8::1]:15672"


@pytest.mark.parametrize("pieces", [30, 31, 40])
async def test_a_refusal_comes_through_while_the_body_is_still_sent(pieces: int) -> None:  # noqa: C901
    """A wrong password with a large body; the leader answers without having read it."""

    async def serve(stream: trio.abc.Stream) -> None:
        http = h11.Connection(h11.SERVER)
        size = 0
        while size <= 1 << 20:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(bytes(await stream.receive_some(64 << 10)))
            elif isinstance(event, h11.Data):
                size += len(event.data)
        head = h11.Response(
            status_code=401, headers=[("content-length", "3"), ("connection", "close")]
        )
        for answer in (head, h11.Data(data=b"no!"), h11.EndOfMessage()):
            await stream.send_all(http.send(answer) or b"")
        with trio.move_on_after(1):  # as Hypercorn does, see serving.py
            while await stream.receive_some(64 << 10):
                pass
        await stream.aclose()

    async def reach(_leader: LeaderFacts, _address: NodeAddress) -> Reached:
        await trio.lowlevel.checkpoint()
        ours, theirs = memory_stream_pair()
        nursery.start_soon(serve, theirs)
        return Reached(ours, is_local=True)

    piece = bytes(64 << 10)
    left = pieces

    async def receive() -> Message:
        nonlocal left
        await trio.sleep(0.01)
        left -= 1
        if left < 0:
            await trio.sleep_forever()
        return {"type": "http.request", "body": piece, "more_body": left > 0}

    answers: list[Message] = []

    async def send(message: Message) -> None:
        await trio.lowlevel.checkpoint()
        answers.append(message)

    size = b"%d" % (pieces * len(piece))
    async with trio.open_nursery() as nursery:
        app = UnreadBodies(ToLeader(_here, cast("EngineLink", _Link(LEADER)), "", reach))
        await app(_scope("PUT", (b"content-length", size)), receive, send)
        nursery.cancel_scope.cancel()
    assert [answer.get("status") for answer in answers][:1] == [401]
    assert b"".join(answer.get("body", b"") for answer in answers) == b"no!"

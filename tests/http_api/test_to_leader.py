"""Requests that come to a standby: the leader's application answers, or says why it does not."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import h11
import httpx
import pytest
import trio
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from trio.testing import memory_stream_pair

from segments.store.heartbeat import NodeAddress
from streamd.hop.door import EngineLink
from streamd.http_api.to_leader import Reached, ToLeader
from streamd.operations.cluster import LeaderFacts

LEADER = LeaderFacts("a", "1", {"http": NodeAddress("a.example", 15672)}, "-")
Answering = Callable[[list[h11.Event]], list[h11.Event]]


class _Link:
    """The engine says who leads."""

    def __init__(self, leader: LeaderFacts | None) -> None:
        self.door, self.leader, self.num_asked = self, leader, 0

    async def enter(self, _name: str, _password: bytes, _host: str) -> None:
        await trio.lowlevel.checkpoint()

    async def ask(self, _operation: object) -> LeaderFacts | None:
        self.num_asked += 1
        await trio.lowlevel.checkpoint()
        return self.leader


class _Leader:
    """Speaks HTTP, and answers as a test says.

    Attributes:
        asked: what it was asked.
        is_silent: it answers nothing, and does not end either.
    """

    def __init__(self, nursery: trio.Nursery, answer: Answering, *, is_local: bool = True) -> None:
        self.asked: list[h11.Event] = []
        self._nursery, self._answer, self._is_local = nursery, answer, is_local
        self.is_there, self.is_silent = True, False

    async def reach(self, _leader: LeaderFacts, _address: NodeAddress) -> Reached:
        await trio.lowlevel.checkpoint()
        if not self.is_there:
            raise ConnectionRefusedError("nobody is there")
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(self._serve, theirs)
        return Reached(ours, self._is_local)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        http = h11.Connection(h11.SERVER)
        asked: list[h11.Event] = []
        while not asked or not isinstance(asked[-1], h11.EndOfMessage):
            event = http.next_event()
            if event is h11.NEED_DATA:
                data = await stream.receive_some(7)  # in pieces
                http.receive_data(bytes(data))
                if not data:
                    return
            else:
                asked.append(cast("h11.Event", event))
        self.asked += asked
        if self.is_silent:
            await trio.sleep_forever()
        for answer in self._answer(asked):
            data = http.send(answer) or b""
            for n in range(0, len(data), 5):
                await stream.send_all(data[n : n + 5])
        await stream.aclose()


async def _here(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(f"here: {scope['path']}")(scope, receive, send)


def _ok(*pieces: bytes, status: int = 200, **headers: str) -> list[h11.Event]:
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    head = h11.Response(status_code=status, headers=named)
    return [head, *(h11.Data(data=piece) for piece in pieces), h11.EndOfMessage()]


@asynccontextmanager
async def _standby(
    answer: Answering = lambda _: _ok(b"there"),
    leader: LeaderFacts | None = LEADER,
    *,
    client: str = "127.0.0.1",
    is_local: bool = True,
) -> AsyncIterator[tuple[httpx.AsyncClient, _Leader, _Link]]:
    async with trio.open_nursery() as nursery:
        other, link = _Leader(nursery, answer, is_local=is_local), _Link(leader)
        app = ToLeader(_here, cast("EngineLink", link), "/x", other.reach)
        transport = httpx.ASGITransport(app, client=(client, 40_000))
        async with httpx.AsyncClient(transport=transport, base_url="http://b.example") as http:
            yield http, other, link
        nursery.cancel_scope.cancel()


async def test_it_is_asked_what_was_asked_here() -> None:
    def answer(_asked: list[h11.Event]) -> list[h11.Event]:
        return _ok(b"yes", b"!", status=201, content_type="text/plain", set_cookie="a=b")

    async with _standby(answer) as (http, leader, _):
        sent = {"origin": "http://b.example", "cookie": "c=d", "authorization": "Basic eDp5"}
        found = await http.put("/x/api/queues/%2F/q?a=b&c=%20", content=b"body", headers=sent)
        assert (found.status_code, found.text) == (201, "yes!")
        assert (found.headers["set-cookie"], found.headers["content-type"]) == ("a=b", "text/plain")
        head, *rest = leader.asked
        assert isinstance(head, h11.Request)
        assert (head.method, head.target) == (b"PUT", b"/x/api/queues/%2F/q?a=b&c=%20")
        headers = dict(head.headers)
        assert headers[b"host"] == b"a.example:15672"
        assert (headers[b"cookie"], headers[b"authorization"]) == (b"c=d", b"Basic eDp5")
        assert headers[b"content-length"] == b"4"
        assert b"origin" not in headers
        assert headers[b"x-streamd-passed-on"] == b"1"
        bodies = [bytes(one.data) for one in rest if isinstance(one, h11.Data)]
        assert b"".join(bodies) == b"body"


async def test_a_body_whose_length_nobody_knows() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for n in range(5):
            yield b"%d" % n
            await trio.lowlevel.checkpoint()

    async with _standby() as (http, leader, _):
        found = await http.post("/x/api/a", content=pieces())
        assert found.text == "there"
        assert b"".join(bytes(e.data) for e in leader.asked if isinstance(e, h11.Data)) == b"01234"


@pytest.mark.parametrize("path", ["/x/healthz", "/x/readyz", "/x/readyz/"])
async def test_how_it_is_itself_it_says_itself(path: str) -> None:
    async with _standby() as (http, leader, _):
        assert (await http.get(path)).text == f"here: {path}"
        assert not leader.asked


async def test_while_nobody_leads_or_is_reached_it_answers_what_it_can() -> None:
    nobody = LeaderFacts()
    async with _standby(leader=nobody) as (http, _, link):
        assert (await http.get("/x/api/a")).text == "here: /x/api/a"
        link.leader = LEADER
        await trio.sleep(2)
        assert (await http.get("/x/api/a")).text == "there"
    async with _standby() as (http, leader, _):
        leader.is_there = False
        assert (await http.get("/x/api/a")).text == "here: /x/api/a"
    async with _standby(leader=LeaderFacts("a", "1")) as (http, _, _link):
        assert (await http.get("/x/api/a")).text == "here: /x/api/a"


async def test_a_leader_that_goes_before_it_answers() -> None:
    async with _standby(lambda _: []) as (http, _, _link):
        found = await http.put("/x/api/a")
        assert found.status_code == 503
        assert "whether it did it is not known" in found.json()["reason"]


async def test_one_that_goes_in_the_middle_of_its_answer_cuts_it_off() -> None:
    head = h11.Response(status_code=200, headers=[("content-length", "10")])
    async with _standby(lambda _: [head, h11.Data(data=b"half")]) as (http, _, _link):
        with pytest.RaisesGroup(OSError, allow_unwrapped=True, flatten_subgroups=True):
            await http.get("/x/api/a")


async def test_a_cookie_is_for_the_way_that_the_browser_has_come_by() -> None:
    def answer(_asked: list[h11.Event]) -> list[h11.Event]:
        return _ok(set_cookie="a=b; HttpOnly; Secure; SameSite=strict")

    async with _standby(answer) as (http, _, _link):
        found = await http.get("http://b.example/x/login")
        assert found.headers["set-cookie"] == "a=b; HttpOnly; SameSite=strict"
        for came in (
            await http.get("https://b.example/x/login"),
            await http.get("http://b.example/x/login", headers={"origin": "https://b.example"}),
        ):
            assert came.headers["set-cookie"] == "a=b; HttpOnly; SameSite=strict; Secure"


async def test_an_address_that_leads_back_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    async with _standby() as (http, leader, _):
        found = await http.get("/x/api/a", headers={"x-streamd-passed-on": "1"})
        assert (found.text, leader.asked) == ("here: /x/api/a", [])
        assert "look at its setting advertised_host" in caplog.text


async def test_who_is_not_on_the_leaders_machine_is_not_taken_for_one() -> None:
    async with _standby(client="192.0.2.1") as (http, leader, _):
        found = await http.get("/x/api/a")
        assert (found.status_code, leader.asked) == (403, [])
    async with _standby(client="192.0.2.1", is_local=False) as (http, _, _link):
        assert (await http.get("/x/api/a")).text == "there"


async def test_a_client_that_goes_takes_its_request_with_it() -> None:
    forever = trio.Event()

    class Silent(_Leader):
        async def reach(self, _leader: LeaderFacts, _address: NodeAddress) -> Reached:
            ours, theirs = memory_stream_pair()
            self._nursery.start_soon(self._wait, theirs)
            return Reached(ours, is_local=True)

        async def _wait(self, stream: trio.abc.Stream) -> None:
            while await stream.receive_some(100):
                pass
            forever.set()

    async with trio.open_nursery() as nursery:
        leader, link = Silent(nursery, lambda _: []), cast("EngineLink", _Link(LEADER))
        messages: list[dict[str, Any]] = [{"type": "http.request", "body": b""}]
        messages += [{"type": "http.disconnect"}]

        async def receive() -> Any:
            await trio.sleep(1)
            return messages.pop(0)

        async def send(_message: object) -> None:
            raise AssertionError("there is no answer")

        scope = {"type": "http", "method": "GET", "path": "/a", "raw_path": b"/a"}
        scope |= {"query_string": b"", "headers": [], "client": ("127.0.0.1", 1)}
        await ToLeader(_here, link, "", leader.reach)(scope, receive, send)
        await forever.wait()

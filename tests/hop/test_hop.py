"""Operations over the hop: the same answers and refusals as without it."""

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, strategies as st
from trio.testing import lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from streamd.auth.users import Account
from streamd.broker.traffic import ProtocolTraffic
from streamd.connections.doorway import Doorway
from streamd.engine import DoorCaller
from streamd.engine.engine import Call, Engine
from streamd.hop.door import EngineLink, EngineLost
from streamd.hop.messages import (
    Answered,
    Ask,
    Changed,
    Enter,
    Entered,
    Frames,
    HopError,
    encode,
    frame,
)
from streamd.operations import tier as t, users as u, virtual_hosts as v
from streamd.operations.declaration import WATCHERS, Operation
from streamd.operations.errors import NoSuch, Reason, Refused
from streamd.operations.names import Name
from streamd.operations.server import GetOverview
from tests.support.server import Harness, harness


class Mirror(Operation[list[Any]], frozen=True, kw_only=True):
    """Answer with what was asked."""

    NAME = "test.mirror"

    texts: tuple[str, ...] = ()


class Slow(Operation[int], frozen=True, kw_only=True):
    """Take a while."""

    NAME = "test.slow"
    NEEDS = WATCHERS

    seconds: float = 1.0


@asynccontextmanager
async def link_to(server: Harness, engine: Engine | None = None) -> AsyncIterator[EngineLink]:
    directory = server.server.directory
    ours, theirs = memory_stream_pair()
    doorway = Doorway(
        theirs,
        engine or server.server.engine,
        directory,
        DoorCaller(directory, "test"),
        server.server.broker.traffic.protocol("http"),
    )
    link = EngineLink(ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(doorway.run)
        nursery.start_soon(link.run)
        yield link
        nursery.cancel_scope.cancel()


@pytest.fixture
async def link(server: Harness) -> AsyncIterator[EngineLink]:
    """A door's end of a link to the server's engine."""
    async with link_to(server) as link:
        yield link


async def test_a_user_asks_through_a_door(link: EngineLink) -> None:
    guest = await link.enter("guest", b"guest", "127.0.0.1")
    assert guest is not None
    assert guest.tags == ("administrator",)
    assert (await guest.ask(u.PutUser(name="ada", password=b"x", tags=()))).is_new
    (ada, first) = await guest.ask(u.ListUsers())
    assert (ada.name, first.name) == ("ada", "guest")
    with pytest.raises(NoSuch, match="no user eve"):
        await guest.ask(u.DeleteUser(name="eve"))
    with pytest.raises(Refused, match="last administrator") as refused:
        await guest.ask(u.DeleteUser(name="guest"))
    assert refused.value.reason is Reason.PRECONDITION_FAILED


async def test_who_may_not_enter(link: EngineLink) -> None:
    assert await link.enter("guest", b"wrong", "127.0.0.1") is None
    assert await link.enter("guest", b"guest", "192.0.2.1") is None
    assert await link.enter("nobody", b"", "127.0.0.1") is None


async def test_a_door_by_itself_looks_and_changes_nothing(link: EngineLink) -> None:
    (host,) = await link.door.ask(v.ListVirtualHosts())
    assert (host.name, host.users) == ("/", None)
    assert (await link.door.ask(t.GetTier())).state == "off"
    for operation in (u.ListUsers(), v.AddVirtualHost(name="x"), u.DeleteUser(name="guest")):
        with pytest.raises(Refused, match="not an administrator"):
            await link.door.ask(operation)


async def test_a_session_hears_of_changes_and_ends(server: Harness, link: EngineLink) -> None:
    directory = server.server.directory
    await directory.put_user("ada", b"ada", ["administrator"])
    ada = await link.enter("ada", b"ada", "192.0.2.1")
    assert ada is not None
    heard: list[tuple[tuple[str, ...], str]] = []
    with ada.told(lambda: heard.append((ada.tags, ada.ended))):
        await directory.put_user("ada", tags=["management"])
        await wait_all_tasks_blocked()
        await directory.remove_user("ada")
        await wait_all_tasks_blocked()
    assert heard == [(("management",), ""), ((), "user 'ada' is deleted")]
    with pytest.raises(Refused):
        await ada.ask(v.ListVirtualHosts())
    ada.leave()
    with pytest.raises(Refused, match="login has ended"):
        await ada.ask(v.ListVirtualHosts())


async def test_a_session_that_changes_as_it_is_entered() -> None:
    """Both messages may come together, before whoever entered goes on."""
    ours, theirs = memory_stream_pair()
    link, sessions = EngineLink(ours), []

    async def enter() -> None:
        sessions.append(await link.enter(Name("ada"), b"ada", "192.0.2.1"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        nursery.start_soon(enter)
        (asked,) = Frames().receive(bytes(await theirs.receive_some()))
        assert isinstance(asked, Enter)
        entered = frame(Entered(asked.number, 9, ("administrator",)))
        await theirs.send_all(entered + frame(Changed(9, (), "user 'ada' is deleted")))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    (ada,) = sessions
    assert ada is not None
    assert (ada.tags, ada.ended) == ((), "user 'ada' is deleted")


async def test_a_session_looks_for_what_it_may_do_now(server: Harness, link: EngineLink) -> None:
    directory = server.server.directory
    await directory.put_user("ada", b"ada", ["administrator"])
    ada = await link.enter("ada", b"ada", "192.0.2.1")
    assert ada is not None
    await directory.put_user("ada", tags=["management"])
    await ada.look()
    assert (ada.tags, ada.ended) == (("management",), "")
    await directory.remove_user("ada")
    await ada.look()
    assert (ada.tags, ada.ended) == ((), "user 'ada' is deleted")


async def test_who_is_cancelled_leaves_what_is_sent_whole(server: Harness) -> None:
    async def handle(_call: Call, request: Mirror) -> list[Any]:
        return [len(text) for text in request.texts]

    ours, theirs = lockstep_stream_pair()  # takes a piece only while somebody reads
    engine = Engine({Mirror: handle}, hosts=())
    async with trio.open_nursery() as nursery:
        link = EngineLink(ours)
        nursery.start_soon(link.run)
        with trio.move_on_after(1):
            await link.door.ask(Mirror(texts=("x" * 100_000,)))
        directory = server.server.directory
        door, traffic = DoorCaller(directory, "test"), ProtocolTraffic()
        nursery.start_soon(Doorway(theirs, engine, directory, door, traffic).run)
        assert await link.door.ask(Mirror(texts=("abc",))) == [3]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("text", ["\ud800", "a\udcffb"])
async def test_halves_of_characters(server: Harness, text: str) -> None:
    async def handle(_call: Call, _request: Mirror) -> list[Any]:
        return [text, {text: (text, b"\xff", 1.5)}]

    async with link_to(server, Engine({Mirror: handle}, hosts=())) as link:
        with pytest.raises(Refused, match="half a character"):
            await link.door.ask(Mirror(texts=(text,)))
        assert await link.enter(Name(text), b"x", "127.0.0.1") is None
        shown = text.encode(errors="replace").decode()
        assert await link.door.ask(Mirror()) == [shown, {shown: [shown, b"\xff", 1.5]}]


@pytest.mark.parametrize("number", [499, 500, 70_000])
async def test_long_lists_go_over_in_turns(tmp_path: Path, number: int) -> None:
    """And are the same, also where one of the rows has half a character."""
    rows = [{"n": n, "name": "\udcff" if n == 7 else str(n)} for n in range(number)]

    async def handle(_call: Call, _request: Mirror) -> list[Any]:
        return rows

    async with (
        harness(tmp_path) as server,
        link_to(server, Engine({Mirror: handle}, hosts=())) as link,
    ):
        found = await link.door.ask(Mirror())
    assert found == [*rows[:7], {"n": 7, "name": "?"}, *rows[8:]]


async def test_nothing_is_kept_of_who_has_left(
    server: Harness, link: EngineLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = server.server.directory
    authenticate, is_right = directory.authenticate, trio.Event()

    async def wait(name: Name, password: bytes, address: str) -> Account | None:
        await is_right.wait()
        return await authenticate(name, password, address)

    monkeypatch.setattr(directory, "authenticate", wait)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.enter, "guest", b"guest", "127.0.0.1")
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    is_right.set()
    for _ in range(3):
        guest = await link.enter("guest", b"guest", "127.0.0.1")
        assert guest is not None
        guest.leave()
    account = await directory.authenticate("guest", b"guest", "127.0.0.1")
    assert account is not None
    await wait_all_tasks_blocked()
    assert not account._told
    assert await link.enter("guest", b"guest", "127.0.0.1") is not None
    assert len(account._told) == 1
    await link._stream.aclose()
    await wait_all_tasks_blocked()
    assert not account._told


async def _sleep(_call: Call, request: Slow) -> int:
    await trio.sleep(request.seconds)
    return 7


async def test_what_nobody_waits_for_is_cancelled(server: Harness) -> None:
    seen: list[str] = []

    async def handle(_call: Call, request: Slow) -> int:
        try:
            return await _sleep(_call, request)
        except trio.Cancelled:
            seen.append("cancelled")
            raise

    async with link_to(server, Engine({Slow: handle}, hosts=())) as link:
        with trio.move_on_after(0.01):
            await link.door.ask(Slow(seconds=1_000))
        await wait_all_tasks_blocked()
        assert seen == ["cancelled"]
        assert await link.door.ask(Slow(seconds=0)) == 7

        async def ask_for_long() -> None:
            with pytest.raises(EngineLost):
                await link.door.ask(Slow(seconds=1_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_for_long)
            await wait_all_tasks_blocked()
            await link._stream.aclose()
        with pytest.raises(EngineLost):
            await link.door.ask(Slow())


async def test_too_much_at_once_is_refused_and_who_gives_up_makes_room(server: Harness) -> None:
    async with (
        link_to(server, Engine({Slow: _sleep}, hosts=())) as link,
        trio.open_nursery() as nursery,
    ):
        for _ in range(999):
            nursery.start_soon(link.door.ask, Slow(seconds=1_000))
        async with trio.open_nursery() as one:
            one.start_soon(link.door.ask, Slow(seconds=1_000))
            await wait_all_tasks_blocked()
            with pytest.raises(Refused, match="1,000 requests are being worked on"):
                await link.door.ask(Slow(seconds=0))
            one.cancel_scope.cancel()
        await wait_all_tasks_blocked()
        assert await link.door.ask(Slow(seconds=0)) == 7
        nursery.cancel_scope.cancel()


async def test_a_bug_in_a_handler_stays_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(_call: Call, _request: Slow) -> int:
        raise ZeroDivisionError

    async with (
        harness(tmp_path) as server,
        link_to(server, Engine({Slow: handle}, hosts=())) as link,
    ):
        for _ in range(2):
            with pytest.raises(Refused, match="see the server's log"):
                await link.door.ask(Slow())
    assert "test.slow has failed" in caplog.text
    caplog.clear()


@given(sizes=st.lists(st.integers(1, 300), max_size=40), cut=st.integers(1, 500))
def test_messages_arrive_however_they_are_cut(sizes: list[int], cut: int) -> None:
    raw: Any = encode(list(range(50)))
    sent = [Ask(n, 1, "x" * n, raw) for n in range(3)] + [Answered(9, raw)]
    data, frames, got = b"".join(map(frame, sent)), Frames(), []
    for size in [*sizes, *([cut] * (len(data) // cut + 1))]:
        got += frames.receive(data[:size])
        data = data[size:]
    assert [encode(m) for m in got] == [encode(m) for m in sent]


@pytest.mark.parametrize("data", [b"\xff" * 8, b"\0\0\0\x01\xc1", b"\0\0\0\x02\x91\x05"])
def test_what_is_no_message(data: bytes) -> None:
    with pytest.raises(HopError):
        list(Frames().receive(data))


async def test_a_door_whose_successor_is_there_first_has_gone_all_the_same(
    server: Harness, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    running = server.server
    running.serving = nursery
    ends = []
    for _ in range(2):
        engines, doors = socket.socketpair()
        ends.append(doors)
        nursery.start_soon(running.serve_door, "HTTP", engines)
        await wait_all_tasks_blocked()
    ends[0].close()
    for _ in range(1_000):  # of a real socket
        if "the process for HTTP has gone" not in caplog.text:
            await trio.sleep(0.01)
    assert "the process for HTTP has gone" in caplog.text
    facts = (await running.engine.ask(_watcher(server), GetOverview())).server
    assert facts is not None
    assert [(door.name, door.is_up, door.starts) for door in facts.doors] == [("HTTP", True, 2)]
    running.serving = None
    ends[1].close()
    nursery.cancel_scope.cancel()


def _watcher(server: Harness) -> DoorCaller:
    return DoorCaller(server.server.directory, "a test")

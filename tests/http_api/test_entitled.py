"""Requests that read are answered with the rights that are left, or not at all."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from streamd.auth.users import Account
from streamd.http_api.entitled import Entitled, checked_by_parts, note_reader
from streamd.operations.names import Name

START = {"type": "http.response.start", "status": 200}


def body(text: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": text, "more_body": more}


class Asked:
    """One request to an application that reads, and what came of it."""

    def __init__(self, work: Callable[["Asked", Send], Awaitable[None]]) -> None:
        self.account = Account(Name("ada"))
        self.times = 0
        self.went_on = False
        self.sent: list[Message] = []
        self.while_sent: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self._work = work

    async def __call__(self, method: str = "GET") -> None:
        async def app(scope: Scope, _receive: Receive, send: Send) -> None:
            self.conn = HTTPConnection(scope)
            note_reader(self.conn, self.account)
            self.times += 1
            await self._work(self, send)

        async def send(message: Message) -> None:
            await self.while_sent()
            await trio.lowlevel.checkpoint()  # cancelled here, nobody would know what is out
            self.sent.append(message)

        async def receive() -> Message:
            raise AssertionError

        scope: Any = {"type": "http", "method": method, "headers": []}
        await Entitled(app)(scope, receive, send)


async def test_it_is_begun_anew_when_rights_change() -> None:
    async def work(asked: Asked, send: Send) -> None:
        answer = b"%d" % asked.times
        if asked.times == 1:
            asked.account.tell()
            await send(START)
            await trio.lowlevel.checkpoint()
        await send(START)
        await send(body(answer))

    asked = Asked(work)
    await asked()
    assert asked.sent == [START, body(b"2")]


async def test_it_is_cut_off_where_a_part_of_the_answer_is_out() -> None:
    async def work(asked: Asked, send: Send) -> None:
        await send(START)
        await send(body(b"1", more=True))
        asked.account.end("user 'ada' is deleted")
        await trio.lowlevel.checkpoint()
        await send(body(b"2"))

    asked = Asked(work)
    await asked()
    assert (asked.times, asked.sent) == (1, [START, body(b"1", more=True)])


@pytest.mark.parametrize("is_last", [False, True])
async def test_a_part_that_is_being_sent_is_sent(is_last: bool) -> None:
    async def work(asked: Asked, send: Send) -> None:
        await send(START)
        await send(body(b"1", more=not is_last))
        await trio.lowlevel.checkpoint()
        asked.went_on = True

    asked = Asked(work)

    async def tell() -> None:
        asked.account.tell()

    asked.while_sent = tell
    await asked()
    assert (asked.times, asked.sent) == (1, [START, body(b"1", more=not is_last)])
    assert asked.went_on == is_last, "what is complete is not ended"


async def test_what_is_checked_in_parts_is_not_cut_off() -> None:
    async def work(asked: Asked, send: Send) -> None:
        checked_by_parts(asked.conn)
        await send(START)
        await send(body(b"1", more=True))
        asked.account.tell()
        await trio.lowlevel.checkpoint()
        await send(body(b"2"))

    asked = Asked(work)
    await asked()
    assert asked.sent == [START, body(b"1", more=True), body(b"2")]


async def test_what_changes_something_asks_by_itself() -> None:
    async def work(asked: Asked, send: Send) -> None:
        asked.account.tell()
        await trio.lowlevel.checkpoint()
        await send(START)
        await send(body(b""))

    asked = Asked(work)
    await asked("POST")
    assert (asked.times, len(asked.sent)) == (1, 2)

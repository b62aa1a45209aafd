"""What hostile peers, users and messages try, and what happens when several people work at once."""

import base64
import csv
import io
import json
import tracemalloc
from typing import Any
from unittest.mock import MagicMock

import pytest
import trio
from bs4 import BeautifulSoup
from starlette.requests import Request
from starlette.types import ASGIApp, Message as HttpMessage

from segments.message import Message
from segments.search.page import FoundMessage
from streamd.console import message_view
from streamd.console.downloads import csv_row, json_line
from streamd.console.forms import read_form
from streamd.console.message_view import SHOWN_PAIRS, SHOWN_TEXT, full_of
from streamd.engine import Caller
from streamd.http_api.messages import BadRequest
from streamd.net import threads
from tests.support.console import Visitor, console_of, entered, visitor
from tests.support.server import Harness, Peer

MULTIPART = "multipart/form-data; boundary=x"


async def send_parts(
    browser: Visitor, path: str, fields: dict[str, bytes], kind: str = MULTIPART
) -> str:
    parts = [
        b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (name.encode(), value)
        for name, value in fields.items()
    ]
    content, headers = b"".join([*parts, b"--x--\r\n"]), {"content-type": kind}
    answer = await browser.client.post(path, content=content, headers=headers)
    assert answer.status_code == 400
    return answer.text


@pytest.mark.parametrize("charset", ["punycode", "unicode_escape", "utf-7", "no-such"])
async def test_forms_are_utf_8(browser: Visitor, charset: str) -> None:
    fields = {"user": b"\\ud800", "password": b"-" + b"b" * 40_000}
    kind = f"{MULTIPART}; charset={charset}"
    assert "is not in UTF-8" in await send_parts(browser, "/create-user", fields, kind)
    kind = f"{MULTIPART}; charset=UTF-8"
    assert "another login" in await send_parts(browser, "/create-user", fields, kind)


async def test_only_files_make_forms_large(browser: Visitor) -> None:
    answer = await browser.send("/definitions", {"file": "%" * 60_000})
    assert answer.status_code == 400
    assert "64 KiB" in answer.text


async def test_others_have_their_turn_while_a_large_form_is_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    content = b"--x\r\nContent-Disposition: form-data; name=a; filename=b\r\n\r\n%s\r\n--x--\r\n"
    token = b"--x\r\nContent-Disposition: form-data; name=csrf\r\n\r\nmine\r\n"
    parts, turns = [token + content % (b"\r" * 1_000_000), b"none"], 0

    async def receive() -> HttpMessage:
        return {"type": "http.request", "body": parts[0], "more_body": False}

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    headers = [(b"content-type", MULTIPART.encode())]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        form = await read_form(Request(scope, receive), "mine", 2 << 20)
        nursery.cancel_scope.cancel()
    assert len(form.file("a")) == 1_000_000
    assert turns > 10
    del parts[0]
    with pytest.raises(BadRequest):
        await read_form(Request(scope, receive), None)
    assert caplog.records == [], "anybody may send such a form, and fill the log"


async def test_cookies_of_another_server_at_the_same_host(server: Harness) -> None:
    app, _ = console_of(server)
    cookie = (await Visitor(app).log_in()).headers["set-cookie"].partition(";")[0]
    name = cookie.partition("=")[0]
    others = f"{name}=that-of-another-prefix"
    for both in (f"{cookie}; {others}", f"{others}; {cookie}"):
        assert await code_with(app, both) == 200
    assert await code_with(app, others) == 303
    assert await code_with(app, "; ".join([*(f"{name}={n}" for n in range(100)), cookie])) == 303


async def code_with(app: ASGIApp, cookie: str) -> int:
    return (await Visitor(app).get("/", cookie=cookie)).status_code


async def test_what_was_wanted_fits_into_an_address(server: Harness) -> None:
    browser = visitor(server)
    for length, is_kept in ((4_000, True), (20_000, False)):
        answer = await browser.get(f"/streams?q={'%27' * (length // 3)}")
        assert answer.status_code == 303
        assert ("next=" in answer.headers["location"]) == is_kept
        assert len(answer.headers["location"]) < 30_000


@pytest.mark.parametrize("offset", ["9" * 5_000, "0" * 30 + "9" * 5_000, "0" * 20 + "7", "-1"])
async def test_offsets_that_are_none(server: Harness, peer: Peer, offset: str) -> None:
    await peer.create("s")
    browser = await entered(server)
    fields = {"reference": "r", "offset": offset, "sure": "1"}
    code = (await browser.send("/streams/%2F/s/offsets", fields)).status_code
    assert code == (404 if offset == "-1" else 400), "one back from an offset that nobody stored"
    fields = {"name": "s", "before": offset}
    assert (await browser.send("/streams/%2F/s/truncate", fields)).status_code == 400


# -- two administrators


def filled_in(page: BeautifulSoup) -> dict[str, str]:
    """The form on a page as a browser sends it, but for the token."""
    fields = {field["name"]: field["value"] for field in page.main.select("input[name]")}
    for choice in page.main("select"):
        chosen = choice.find("option", selected=True) or choice.option
        fields[choice["name"]] = chosen["value"]
    del fields["csrf"]
    return fields


async def test_two_who_change_a_stream(server: Harness, peer: Peer) -> None:
    await peer.create("s", max_age="1D")
    app, _ = console_of(server)
    one, other, path = Visitor(app), Visitor(app), "/streams/%2F/s/change"
    await one.log_in()
    await other.log_in()
    forms = [filled_in(await browser.page(path)) for browser in (one, other)]
    assert (await one.send(path, forms[0] | {"max-age": "7D"})).status_code == 303
    again = forms[1] | {"stream-chunk-max-records": "50"}
    assert (await other.send(path, again)).status_code == 303
    form = filled_in(await one.page(path))
    assert form["max-age"] == "7D", "which the other did not touch"
    assert form["stream-chunk-max-records"] == "50"
    answer = await other.send(path, forms[1] | {"max-age": "3D", "max-length-bytes": "1000000"})
    assert answer.status_code == 400
    page = BeautifulSoup(answer.text, "html.parser")
    said = page.select_one("[role=alert]").get_text()  # type: ignore[union-attr]
    assert "somebody else has changed max-age meanwhile, to 7D: nothing was changed" in said
    again = filled_in(page)
    assert again["max-age"] == "3D"
    assert again["stream-chunk-max-records"] == "50", "as it is now"
    assert (await other.send(path, again)).status_code == 303
    form = filled_in(await one.page(path))
    found = [form[key] for key in ("max-age", "max-length-bytes", "stream-chunk-max-records")]
    assert found == ["3D", "1000000", "50"]


# -- messages that grow


def test_what_is_nested_deeply_is_not_laid_out_in_full() -> None:
    depth = 300
    body = b"[" * depth + b"1," * 60_000 + b"1" + b"]" * depth
    tracemalloc.start()
    shown = full_of(body, "").body
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (shown.view, len(shown.text), shown.is_cut) == ("json", SHOWN_TEXT, True)
    assert peak < 20 << 20  # all of it has 60 MB, and may have 900


def test_of_many_properties_only_those_are_read_that_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = Message(b"x", application_properties={f"k{n}": n for n in range(3_000)}).encode()
    decode = MagicMock(side_effect=message_view.decode_value)
    monkeypatch.setattr(message_view, "decode_value", decode)
    (group,) = full_of(raw, "").groups
    assert decode.call_count <= 2 * SHOWN_PAIRS + 1
    assert (len(group.rows), group.num_more) == (SHOWN_PAIRS, 3_000 - SHOWN_PAIRS)
    assert group.rows[-1].name == f"k{SHOWN_PAIRS - 1}"


LARGE: list[Any] = ['=é"\n' * 20_000, [{"a": ["b" * 66_000, None, 1.5]}], b"\xff" * 40_000]


@pytest.mark.parametrize("value", LARGE, ids=["text", "value", "bytes"])
def test_large_messages_are_written_in_pieces_as_small_ones(value: Any) -> None:
    properties = {"p": "x", "q": 7}
    if isinstance(value, bytes):
        message = Message(value, application_properties=properties)
    else:
        message = Message(value=value, application_properties=properties)
    found, whole = FoundMessage(7, 5, message.encode(), 0), FoundMessage(7, 5, message.encode(), 0)
    small = json.loads(json_line(whole, is_large=False))
    assert json.loads(json_line(found, is_large=True)) == small
    rows = [
        next(csv.reader(io.StringIO(csv_row(found, is_large=is_large).decode(), newline="")))
        for is_large in (False, True)
    ]
    assert [plain(cell) for cell in rows[0]] == [plain(cell) for cell in rows[1]]


def plain(cell: str) -> Any:
    """What is in a cell: JSON may be written with spaces and without."""
    return json.loads(cell) if cell[:1] in ("{", "[") else cell


# -- many consumers


async def test_a_stream_with_many_consumers(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.create("s")
    for number in range(30):
        await peer.subscribe("s", subscription_id=number, name="app", identifier="app")
    app, _ = console_of(server)
    browser = Visitor(app)
    await browser.log_in()
    (connection,) = server.server.connections
    questions = 0

    def sees_all(_caller: Caller) -> bool:
        nonlocal questions
        questions += 1
        return True

    registry = type(server.server.connections)
    monkeypatch.setattr(registry, "__iter__", lambda _: iter([connection] * 10))
    monkeypatch.setattr(Caller, "sees_all", property(sees_all))
    text = await browser.text("/streams/%2F/s")
    assert "200 consumers more" in text
    assert questions < 50, "what does not change is not asked for each of them"
    monkeypatch.setattr(Caller, "sees_all", property(lambda caller: caller.name == "x"))
    text = await browser.text("/streams/%2F/s")
    assert "200 consumers more" in text, "they are the user's own"
    bob = await entered(server, "bob", "management")
    assert "300 consumers of other users" in await bob.text("/streams/%2F/s")


@pytest.mark.parametrize(
    "path",
    [
        "/streams/%2F/s/messages",
        "/streams/%2F/s/messages/download",
        "/api/stream/%2F/s/messages",
    ],
)
async def test_messages_with_thousands_of_values_are_decoded_in_a_thread(
    server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    await peer.create("s")
    await peer.declare("s")
    raw = Message(value=[True] * 3_000).encode()
    await peer.store([raw] * 5, 0)
    browser = await entered(server)
    compute, in_threads = threads.compute, 0

    async def counted(work: Any, *arguments: Any) -> Any:
        nonlocal in_threads
        in_threads += any(getattr(item, "raw", b"") == raw for item in arguments)
        return await compute(work, *arguments)

    monkeypatch.setattr(threads, "compute", counted)
    login = "Basic " + base64.b64encode(b"guest:guest").decode()
    answer = await browser.get(path, authorization=login)
    assert answer.status_code == 200
    assert "true" in answer.text
    assert in_threads == 5  # one of 16 kB takes 0.1 s

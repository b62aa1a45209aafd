"""Publishing a message from the console, and one that is there again."""

import json
import uuid
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st

from segments.amqp10 import Symbol
from segments.errors import FormatError
from segments.message import Message, MessageView, Properties
from streamd.broker.declared.rows import PermissionRow
from streamd.console.forms import Form
from streamd.console.publishing import _message, _values
from tests.console.test_administration import followed, main_of, refusal
from tests.console.test_streams import HOSTILE
from tests.support.console import Visitor, entered, visitor
from tests.support.http import add_user
from tests.support.server import Harness, Peer

PATH = "/streams/%2F/s/publish"
TIME = datetime(2026, 11, 21, 9, tzinfo=UTC)
TYPED = Message(
    b"body",
    Properties(message_id=uuid.UUID(int=7), user_id=b"\xff", creation_time=TIME, subject="s"),
    {"n": 7, "rate": 1.0, "when": TIME, "raw": b"\x00", "word": Symbol("w"), "region": "EU"},
    {"x-routing-key": "k"},
)


@pytest.fixture
async def peer(server: Harness) -> Peer:
    """A client of a server with stream s."""
    peer = await server.peer()
    await peer.create("s", stream_filter_property="region")
    await peer.declare("s")
    return peer


@pytest.fixture
async def browser(server: Harness, peer: Peer) -> Visitor:  # noqa: ARG001 - so that s is there
    return await entered(server)


async def form_of(browser: Visitor, path: str) -> dict[str, str]:
    """The fields as the browser shows them, and sends them when nothing is typed."""
    page = await browser.page(path)
    form = page.select_one("form.publish")
    assert form is not None
    fields = {f["name"]: f.get("value", "") for f in form("input")}
    for area in form("textarea"):  # browsers leave out the first end of a line
        fields[area["name"]] = area.text.removeprefix("\n")
    for select in form("select"):
        fields[select["name"]] = select.select_one("option[selected]")["value"]
    return fields


async def last(server: Harness, offset: int) -> bytes:
    peer = await server.peer()
    await peer.subscribe("s")
    return (await peer.bodies(offset + 1))[offset]


async def test_a_message_is_published(server: Harness, browser: Visitor) -> None:
    form = {
        "form": "text",
        "body": "one\r\ntwo",
        "properties": '{"region": "EU", "total": 1.5, "paid": true}',
        "fixed": '{"message_id": "m", "creation_time": "2026-11-21 09:00:00", "group_sequence": 3}',
    }
    said = await followed(browser, PATH, form)
    assert "Published at offset 0." in said
    view = MessageView(await last(server, 0))
    assert view.body == b"one\ntwo"
    assert view.application_properties == {"region": "EU", "total": 1.5, "paid": True}
    properties = Properties(message_id="m", creation_time=TIME, group_sequence=3)
    assert view.properties == properties
    binary = {"form": "base64", "body": b64encode(bytes(range(256))).decode()}
    assert "Published at offset 1." in await followed(browser, PATH, binary)
    assert MessageView(await last(server, 1)).body == bytes(range(256))
    assert "Published at offset 2." in await followed(browser, PATH, {})
    assert MessageView(await last(server, 2)).body == b""


@pytest.mark.parametrize(
    "raw",
    [
        TYPED.encode(),
        Message(bytes(range(256)), application_properties={"a": 1}).encode(),
        Message(b"x" * 100_000).encode(),
        Message(b"one\r\ntwo").encode(),
        Message(b"\n\nlines\n").encode(),
        Message("<b>&amp;</b>\N{RIGHT-TO-LEFT OVERRIDE}".encode()).encode(),
        Message(value={"a": [1, "two"]}).encode(),
        b"\x00not AMQP",
        *(Message(text.encode(), application_properties={text: text}).encode() for text in HOSTILE),
    ],
)
async def test_again_it_is_the_same_byte_for_byte(
    server: Harness, browser: Visitor, peer: Peer, raw: bytes
) -> None:
    await peer.store([raw])
    page = await browser.page("/streams/%2F/s/messages/0")
    (link,) = [a for a in page("a") if a.text == "Publish again"]
    form = await form_of(browser, link["href"])
    assert "Published at offset 1." in await followed(browser, PATH, form)
    assert await last(server, 1) == raw


async def test_what_is_not_changed_keeps_its_type(
    server: Harness, browser: Visitor, peer: Peer
) -> None:
    await peer.store([TYPED.encode()])
    form = await form_of(browser, f"{PATH}?again=0")
    free, fixed = json.loads(form["properties"]), json.loads(form["fixed"])
    form["properties"] = json.dumps({**free, "region": "US", "n": 8})
    form["fixed"] = json.dumps({**fixed, "subject": "t"})
    await followed(browser, PATH, form)
    view = MessageView(await last(server, 1))
    changed = {**TYPED.application_properties, "region": "US", "n": 8}
    assert view.application_properties == changed
    assert isinstance(view.application_properties["word"], Symbol)
    assert view.properties.message_id == uuid.UUID(int=7)
    assert view.properties.subject == "t"
    assert view.annotations == TYPED.annotations
    assert view.body == b"body"


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"form": "base64", "body": "%"}, "the body is not base64"),
        ({"properties": "{"}, "the application properties are not JSON: expecting property name"),
        ({"properties": "[1]"}, "are not a JSON object"),
        ({"properties": f'{{"n": {1 << 64}}}'}, "does not fit into 64 bits"),
        ({"properties": '{"n": "\\ud800"}'}, "half a character"),
        ({"properties": "[" * 15_000}, "nested too deep"),
        ({"fixed": '{"color": "red"}'}, "'color' is no property; those are message_id"),
        ({"fixed": '{"subject": 5}'}, "the property subject is not a text"),
        ({"fixed": '{"creation_time": "soon"}'}, "creation_time is no time"),
        ({"fixed": '{"group_sequence": -1}'}, "group_sequence is -1, expected 0 or more"),
        ({"fixed": '{"content_type": "\\u00e4"}'}, "content_type and content_encoding are ASCII"),
        ({"filter": "x" * 5_000}, "the filter value has 5,000 bytes"),
    ],
)
async def test_what_cannot_be_published_is_said(
    browser: Visitor, form: dict[str, str], said: str
) -> None:
    text = await refusal(browser, PATH, {"body": "kept", **form})
    assert said.lower() in text.lower()


async def test_the_form_stays_filled(browser: Visitor) -> None:
    answer = await browser.send(PATH, {"body": "<i>mine", "properties": "{", "filter": '"v"'})
    assert answer.status_code == 400
    assert "<i>mine" not in answer.text
    assert "<i>mine" in main_of(answer)


async def test_a_stream_that_takes_nothing(
    server: Harness, browser: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(server.host.find("s")), "alarm", "the disk is full")
    assert "the disk is full" in await refusal(browser, PATH, {"body": "b"}, 503)


async def test_only_who_may_write_publishes(server: Harness, peer: Peer) -> None:
    await peer.store([b"m"])
    await add_user(server, "ada", "management")
    directory = server.server.directory
    ada = visitor(server)
    await ada.log_in("ada", "ada-secret")
    await directory.put_permission(PermissionRow("ada", "/", "", "", ".*"))
    assert PATH not in (await ada.get("/streams/%2F/s")).text
    assert PATH not in (await ada.get("/streams/%2F/s/messages/0")).text
    assert (await ada.get(PATH)).status_code == 403
    assert (await ada.send(PATH, {"body": "b"})).status_code == 403
    await directory.put_permission(PermissionRow("ada", "/", "", ".*", ""))
    assert (await ada.get(f"{PATH}?again=0")).status_code == 403, "it may not be read"
    assert (await ada.send(PATH, {"form": "kept", "again": "0"})).status_code == 403
    assert "Published at offset 1." in await followed(ada, PATH, {"body": "b"})


async def test_again_of_what_is_not_there(browser: Visitor) -> None:
    assert (
        "there is no message 5 yet" in (await browser.get(f"{PATH}?again=5")).text.lower()
        or (await browser.get(f"{PATH}?again=5")).status_code == 503
    )
    assert (await browser.get(f"{PATH}?again=x")).status_code == 404


VALUES = (
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text() | st.binary()
)
MESSAGES = st.builds(
    Message,
    st.binary() | st.text().map(str.encode),
    st.builds(Properties, message_id=st.text() | st.none(), subject=st.text() | st.none()),
    st.dictionaries(st.text(), VALUES | st.floats() | st.uuids()),
)


@given(MESSAGES)
def test_any_message_comes_back(message: Message) -> None:
    raw = message.encode()
    try:
        values: dict[str, Any] = _values(raw)
    except FormatError:
        return
    typed = [
        (name, text.replace("\r\n", "\n").replace("\r", "\n")) for name, text in values.items()
    ]
    assert _message(Form([*typed, ("again", "0")]), raw) == raw

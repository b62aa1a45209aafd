"""Messages over HTTP: what is found, what is refused, and that nobody searches for nobody."""

import json
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio
from hypothesis import given, strategies as st

from segments.message import Message, Properties
from streamd.broker.declared.rows import PermissionRow
from streamd.broker.search_places import InTurns
from streamd.http_api import messages
from streamd.http_api.messages import encoded, encoded_in_pieces
from tests.support.http import Http, add_user, going_away, scope_of
from tests.support.orders import store_orders
from tests.support.server import Harness, Peer

PATH = "stream/%2F/s/messages"


def scope() -> dict[str, Any]:
    return scope_of(f"/api/{PATH}", (b"authorization", b"Basic Z3Vlc3Q6Z3Vlc3Q="))


@pytest.fixture
async def http(server: Harness, peer: Peer) -> Http:
    """The API of a server with stream s: 30 orders in several segments."""
    await store_orders(peer)
    return Http(server)


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches rest for long whenever they have done something."""
    monkeypatch.setattr(InTurns, "rest_seconds", 2)


async def test_what_is_found(http: Http) -> None:
    found = await http.get(PATH + "?key=7&property=order_id")
    (message,) = found["messages"]
    assert message == {
        "offset": 7,
        "timestamp": message["timestamp"],
        "body": '{"order": 7}',
        "properties": {"order_id": 7, "region": "EU", "TAGS": "b"},
        "message_properties": {"message_id": "id-7"},
    }
    assert message["timestamp"].endswith("Z")
    assert (found["complete"], found["cut_by"], found["next"]) == (True, None, None)
    looked_at = found["looked_at"]
    assert looked_at["messages_tested"] + looked_at["messages_screened"] == 30
    assert set(found) == {"messages", "complete", "cut_by", "next", "looked_at", "hint"}
    assert found["hint"] is None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", range(30)),
        ("order=newest&limit=2", [29, 28]),
        ("offset=27", [27, 28, 29]),
        ("offset=2&order=newest", [2, 1, 0]),
        ("key=3&key=4&key=99&property=order_id", [3, 4]),
        ("key=3&key=4&latest=true&property=order_id", [4, 3]),
        ("key=id-3&property=order_id&property=properties.message_id", [3]),
        ("sql=" + quote("order_id > 27"), [28, 29]),
        ("sql=" + quote("properties.message_id = 'id-5'") + "&dialect=union", [5]),
        ("tags=" + quote("b || a") + "&limit=1", [0]),
        ("filter=EU&offset=24", [25, 27, 29]),
        ("filter=EU&filter=US&limit=3", [0, 1, 2]),
        ("filter=nowhere", []),
        ("to=1", []),
        ("from=0&by=chunk-time&limit=1", [0]),
        ("from=0&by=creation-time", []),
        ("from=2000-01-01T00:00:00Z&limit=1", [0]),
        ("from=2000-01-01T00:00:00%2B01:00&limit=1", [0]),
    ],
)
async def test_words(http: Http, query: str, expected: list[int]) -> None:
    found = await http.get(f"{PATH}?{query}")
    assert [m["offset"] for m in found["messages"]] == list(expected)


async def test_a_name_that_no_message_has(http: Http) -> None:
    found = await http.get(f"{PATH}?sql=" + quote("regoin = 'EU'"))
    expected = (
        "none of 30 messages that were looked into has a property regoin: did you mean region?"
    )
    assert (found["messages"], found["hint"]) == ([], expected)


async def test_pages(http: Http) -> None:
    for order_of, expected in (("oldest", range(30)), ("newest", range(29, -1, -1))):
        offsets: list[int] = []
        after = ""
        while True:
            found = await http.get(f"{PATH}?limit=7&order={order_of}{after}")
            offsets += [m["offset"] for m in found["messages"]]
            assert found["complete"] is (found["next"] is None)
            if found["complete"]:
                break
            assert found["cut_by"] == "limit"
            after = f"&after={found['next']}"
        assert offsets == list(expected)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("key=1&property=", "property is '': the name of a property is expected"),
        (
            f"property={'x' * 256}&" + "&".join(f"key={n}" for n in range(17)),
            f"property is '{'x' * 40}': a name of at most 255 bytes is expected",
        ),
        ("sql=a+%3D", "sql, column 4: found the end"),
        ("tags=||", "tags, column "),
        ("limit=0", "limit is '0', expected a number from 1 to 10,000"),
        ("from=2&to=1", "to is before from"),
        ("limit=x", "limit is 'x', expected a number from 1 to 10,000"),
        ("after=%00", "after"),
        ("key=%ff&property=a", "the query is not UTF-8 in percent encoding"),
        ("filter=", "filter"),
        ("colour=red", "'colour' is no word of a search; those are after, by, "),
        ("limit=1&limit=2", "limit"),
        ("&".join(["key=1"] * 1_100), "the query is not UTF-8 in percent encoding, or too long"),
    ],
)
async def test_what_is_wrong_is_named(http: Http, query: str, says: str) -> None:
    reason = await http.reason("GET", f"{PATH}?{query}")
    assert reason.startswith(says)
    assert "\n" not in reason


async def test_who_may_not_read_finds_nothing(http: Http, server: Harness) -> None:
    await add_user(server, "bob", "monitoring", patterns="x.*")
    assert await http.code("GET", PATH, user="bob") == 401
    assert await http.code("GET", "stream/%2F/xyz/messages", user="bob") == 404
    assert await http.code("GET", "stream/%2F/nothing/messages") == 404
    assert await http.code("GET", "stream/nowhere/s/messages") == 404
    assert await http.code("POST", PATH) == 405


@pytest.mark.usefixtures("slowly")
async def test_one_search_at_a_time_of_a_user(http: Http, server: Harness) -> None:
    await add_user(server, "bob", "management")
    codes: list[int] = []

    async def ask(user: str) -> None:
        codes.append(await http.code("GET", PATH, user=user))

    async with trio.open_nursery() as nursery:
        for user in ("guest", "bob", "guest"):
            nursery.start_soon(ask, user)
            await trio.sleep(0.5)
    assert codes == [429, 200, 200]
    assert await http.code("GET", PATH) == 200


async def test_answers_that_are_not_read_are_bounded(
    http: Http, server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user with many connections makes the server keep a few answers, not one for each."""
    assert await http.code("GET", PATH) == 200
    monkeypatch.setattr("streamd.http_api.unsent._MOST_UNSENT_BYTES", 5_000)
    app, may_send = server.server.http_app(), trio.Event()
    answers: list[bytes] = []

    async def ask(status: int | None = None) -> None:
        async def send(message: dict[str, Any]) -> None:
            assert status in (None, message.get("status", status))
            if body := message.get("body"):
                answers.append(body)
                if status is None:
                    await may_send.wait()

        await app(scope(), trio.sleep_forever, send)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)
            await trio.sleep(1)
        found = [len(answer) for answer in answers if b"not read" not in answer]
        assert sum(found) - found[-1] <= 5_000
        assert len(answers) - len(found) > 10
        await ask(429)
        may_send.set()
    await ask(200)


async def test_a_query_that_is_not_encoded_is_not_taken_for_another(
    http: Http, server: Harness
) -> None:
    assert await http.code("GET", PATH) == 200
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asked = scope() | {"query_string": "key=é&property=order_id".encode()}
    await server.server.http_app()(asked, trio.sleep_forever, send)
    assert sent[0]["status"] == 400


@pytest.mark.usefixtures("slowly")
async def test_a_search_ends_when_its_client_goes_away(http: Http, server: Harness) -> None:
    stream = server.host.find("s")  # type: ignore[arg-type]
    async with going_away(server.server.http_app(), scope()) as gone:
        assert stream.life._num_holds == 1
        gone.set()
        await trio.sleep(0.1)
        assert stream.life._num_holds == 0
    assert await http.code("GET", PATH) == 200


@pytest.mark.usefixtures("slowly")
async def test_a_search_is_cut_when_its_time_is_used_up(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.http_api.found_messages.SECONDS", 1.0)
    offsets, after, number = [], "", 0
    while True:
        found = await http.get(f"{PATH}?key=17&key=3&property=order_id{after}")
        offsets += [m["offset"] for m in found["messages"]]
        number += 1
        if found["complete"]:
            break
        assert found["cut_by"] == "budget"
        after = f"&after={found['next']}"
    assert offsets == [3, 17]
    assert number > 1


@pytest.mark.usefixtures("slowly")
async def test_a_right_that_is_taken_meanwhile(http: Http, server: Harness) -> None:
    await add_user(server, "bob", "management")

    async def take() -> None:
        await trio.sleep(1)
        row = PermissionRow("bob", "/", ".*", ".*", "")  # type: ignore[arg-type]
        await server.server.directory.put_permission(row)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        assert await http.code("GET", PATH, user="bob") == 401


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(("", "é\ud800\x01", "x" * 90)),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("abcdef\x01é"), inner),
)


@given(json_values)
def test_large_messages_are_written_in_pieces(value: Any) -> None:
    """A MiB at once would keep the event loop waiting for 20 ms and more."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("_PIECE", 4), ("_ITEMS", 2), ("_FEW", 2)):
            patch.setattr(messages, name, size)
        assert encoded_in_pieces(value) == encoded(value)
        strings = isinstance(value, str) and len(value) > 4
        assert not strings or max(map(len, messages._pieces(value))) <= 4 * len("\\u0001")


def test_the_pieces_of_a_large_message_are_small() -> None:
    for value in (["x" * 10] * 10_000, {str(n): [n, {"y": n}] for n in range(10_000)}, "z" * 10**6):
        assert max(map(len, messages._pieces({"properties": value}))) <= 1 << 16


async def test_large_and_damaged_messages(http: Http, peer: Peer) -> None:
    await peer.create("t")
    await peer.declare("t", 2)
    many = Message(b"m", application_properties={f"p{n}": n for n in range(5_000)}).encode()
    for number, raw in enumerate((many, b"no AMQP \xff", many[:40])):
        await peer.store([raw], number, 2)
    answer = await http.ask("GET", "stream/%2F/t/messages")
    found = json.loads(answer.content)["messages"]
    assert len(found[0]["properties"]) == 5_000
    assert found[1]["encoding"] == "base64"
    assert [m["offset"] for m in found] == [0, 1, 2]


async def test_the_command_of_the_page(server: Harness, peer: Peer) -> None:
    """What curl would send, without curl, to a stream as the page has it."""
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "find.md").read_text()
    rows = [json.loads(row) for row in re.findall(r"^ +'(\{.*?\})'", text, re.MULTILINE)]
    await peer.create("orders", stream_key_properties="order_id,customer")
    await peer.declare("orders")
    await peer.store(
        [Message(row.pop("body").encode(), Properties(), row).encode() for row in rows], 1
    )
    (command,) = re.findall(r"^curl (.*)$", text, re.MULTILINE)
    found = await Http(server).get(shlex.split(command)[-1].partition("/api/")[2])
    (block,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    shown = json.loads(block)
    for answer in (found, shown):
        assert answer["next"]
        del answer["next"], answer["messages"][0]["timestamp"]
    assert found == shown


async def test_paths_of_rabbitmq_go_first(http: Http) -> None:
    """So virtual hosts with these names cannot be searched, as the documentation says."""
    assert await http.get("stream/publishers/%2F/messages") == []

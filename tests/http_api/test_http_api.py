"""The HTTP API: what it shows and changes, and that nobody sees or does more than allowed."""

import json
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from streamd.broker.virtual_host import VirtualHost
from streamd.http_api import definitions
from streamd.http_api.definitions import Definitions
from streamd.http_api.messages import MAX_BODY_BYTES, decoded
from streamd.operations.names import Name
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import Pair
from tests.support.amqp import open_peer
from tests.support.http import Http, add_user
from tests.support.server import FIRST, OK, Harness, Peer, harness

BODY_TOO_LONG = b'{"arguments": {"x": "' + b"x" * MAX_BODY_BYTES + b'"}}'
RABBITMQ = Path(__file__).parents[1] / "vectors" / "rabbitmq-definitions.json"


# -- entering


async def test_nobody_enters_without_a_password(server: Harness) -> None:
    transport = httpx.ASGITransport(server.server.http_app())
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for header in (
            None,
            "",
            "Bearer x",
            "Basic",
            "Basic ?",
            "Basic Z3Vlc3Q=",
            "Basic //8=",
            "Basic \xff",
        ):
            headers = {"authorization": header.encode("latin-1")} if header is not None else {}
            for path in ("/api/overview", "/api/nothing", "/api"):
                answer = await client.get(path, headers=headers)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"].startswith("Basic")
                assert answer.json()["error"] == "not_authorized"


async def test_a_wrong_password_waits_for_its_answer(http: Http) -> None:
    for user, password in (("guest", "guess"), ("nobody", "guest")):
        before = trio.current_time()
        answer = await http.ask("GET", "overview", user=user, password=password)
        assert answer.status_code == 401
        assert trio.current_time() - before >= 3


async def test_guest_enters_from_this_machine_only(server: Harness) -> None:
    assert await Http(server, "127.0.0.1").code("GET", "whoami") == 200
    assert await Http(server, "::1").code("GET", "whoami") == 200
    assert await Http(server, "192.0.2.1").code("GET", "whoami") == 401


async def test_users_without_a_tag_are_refused(server: Harness, http: Http) -> None:
    await add_user(server, "ada")
    assert await http.code("GET", "whoami", user="ada") == 401
    await server.server.directory.put_user("ada", tags=["management"])
    assert await http.get("whoami", user="ada") == {
        "name": "ada",
        "tags": ["management"],
        "is_internal_user": True,
    }


async def test_who_monitors_sees_the_nodes(server: Harness, http: Http) -> None:
    await add_user(server, "ada", "monitoring", patterns="")
    for path in ("nodes", "nodes/streamd@localhost"):
        assert await http.code("GET", path, user="ada") == 200


async def test_other_virtual_hosts_are_not_counted(server: Harness, http: Http) -> None:
    await http.ask("PUT", "vhosts/other")
    for path in ("queues/other/hidden", "queues/%2F/seen"):
        await http.ask("PUT", path, {})
    await add_user(server, "ada", "management")
    for user, count in (("ada", 1), ("guest", 2)):
        assert len(await http.get("queues", user)) == count
        assert (await http.get("overview", user))["object_totals"]["queues"] == count


# -- streams


async def test_a_stream_from_creating_to_deleting(http: Http, peer: Peer) -> None:
    arguments = {
        "x-queue-type": "stream",
        "x-max-age": "60m",
        "x-max-length-bytes": 1000,
        "x-stream-filter-size-bytes": 32,
        "x-stream-filter-history": False,
        "x-stream-filter-property": "region, [a,b]",
        "x-stream-tier": True,
        "x-stream-local-max-length-bytes": 500,
        "x-stream-local-max-age": "1D",
        "x-unknown": "is ignored",
    }
    body = {"durable": True, "auto_delete": False, "arguments": arguments}
    assert await http.code("PUT", "queues/%2F/a%2Fb%20c", body) == 201
    assert await http.code("PUT", "queues/%2F/a%2Fb%20c", body) == 204
    pairs = tuple(
        Pair(*pair)
        for pair in (
            ("max-age", "1h"),
            ("max-length-bytes", "1000"),
            ("stream-filter-size-bytes", "32"),
            ("stream-filter-history", "false"),
            ("stream-filter-property", "region,[a,b]"),
            ("stream-tier", "true"),
            ("stream-local-max-length-bytes", "500"),
            ("stream-local-max-age", "24h"),
        )
    )
    assert await peer.code(c.Create, "a/b c", pairs) == ResponseCode.STREAM_EXISTS
    await peer.declare("a/b c")
    await peer.store([b"x", b"y"])
    await peer.subscribe("a/b c")
    await peer.chunk()
    row = await http.get("queues/%2F/a%2Fb%20c/")
    assert row["arguments"] == {
        "x-queue-type": "stream",
        "x-max-age": "60m",
        "x-max-length-bytes": 1000,
        "x-stream-filter-size-bytes": 32,
        "x-stream-filter-history": False,
        "x-stream-filter-property": "region,[a,b]",
        "x-stream-filter-derive": True,
        "x-stream-tier": True,
        "x-stream-local-max-length-bytes": 500,
        "x-stream-local-max-age": "1D",
    }
    assert row["name"] == "a/b c"
    assert (row["vhost"], row["type"], row["state"]) == ("/", "stream", "running")
    assert (row["messages"], row["messages_ready"], row["consumers"]) == (2, 2, 1)
    assert [one["consumer_tag"] for one in row["consumer_details"]] == ["stream.subid-1"]
    (listed,) = await http.get("queues")
    assert listed == {key: value for key, value in row.items() if key != "consumer_details"}
    assert await http.code("DELETE", "queues/%2F/a%2Fb%20c") == 204
    assert (await peer.expect(c.MetadataUpdate)).stream == "a/b c"
    assert await http.code("DELETE", "queues/%2F/a%2Fb%20c") == 404
    assert await http.code("GET", "queues/%2F/a%2Fb%20c") == 404


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"arguments": {"x-queue-type": "classic"}}, "streams only"),
        ({"arguments": {"x-queue-type": 7}}, "streams only"),
        ({"durable": False}, "durable"),
        ({"auto_delete": True}, "auto-delete"),
        ({"arguments": {"x-max-age": "soon"}}, "max-age is 'soon', expected"),
        ({"arguments": {"x-max-age": ["1h"]}}, "x-max-age is neither"),
        ({"arguments": {"x-max-age": None}}, "x-max-age is neither"),
        ({"arguments": [1]}, "arguments is not a JSON object"),
        ({"arguments": {"x-max-length-bytes": -1}}, "max-length-bytes is '-1', expected"),
        ([], "expected a JSON object"),
        (b"{", "not_json"),
        (b"\xff\xfe", "not_json"),
        (b'{"a":' * 20_000, "not_json"),
        (b'{"arguments": {"x-max-length-bytes": ' + b"9" * 5000 + b"}}", "out of range"),
        (b'{"arguments": {"x-max-length-bytes": NaN}}', "not_json"),
        (BODY_TOO_LONG, "larger than"),
    ],
)
async def test_streams_that_cannot_be(http: Http, body: Any, reason: str) -> None:
    assert reason in await http.reason("PUT", "queues/%2F/s", body)
    assert await http.get("queues") == []


async def test_equal_names_with_other_arguments(http: Http) -> None:
    await http.ask("PUT", "queues/%2F/s", {"arguments": {"x-max-age": "1h"}})
    assert "exists with other arguments" in await http.reason("PUT", "queues/%2F/s", {})


async def test_an_age_is_shown_as_it_was_declared(tmp_path: Path) -> None:
    shown = {"x-queue-type": "stream", "x-max-age": "120s"}
    for _ in range(2):
        async with harness(tmp_path) as server:
            http, peer = Http(server), await server.peer()
            for age in ("120s", "2m"):
                body = {"arguments": {"x-max-age": age}}
                assert await http.code("PUT", "queues/%2F/s", body) in (201, 204)
            reason = await http.reason("PUT", "queues/%2F/s", {"arguments": {"x-max-age": "180s"}})
            assert reason.endswith("s exists with other arguments: max-age is 120s, not 180s")
            assert (await http.get("queues/%2F/s"))["arguments"] == shown
            assert (await http.get("definitions"))["queues"][0]["arguments"] == shown
            (found,) = (await peer.ask(c.DescribeStreams, ("s",))).streams
            assert found.arguments == (("max-age", "120s"),)
            (found,) = (await peer.ask(c.Metadata, ("s",))).streams
            assert found.code == OK


async def test_invalid_names(http: Http) -> None:
    assert "begins with amq." in await http.reason("PUT", "queues/%2F/amq.s", {})
    assert await http.code("PUT", "queues/none/s", {}) == 404


# httpx forgets to close the body that it is not asked for any more.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_body_without_a_length_that_is_too_large(server: Harness) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * (1 << 20)

    transport = httpx.ASGITransport(server.server.http_app())
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", auth=("guest", "guest")
    ) as client:
        answer = await client.put("/api/queues/%2F/s", content=endless())
    assert "larger than" in answer.json()["reason"]


async def test_a_body_that_does_not_arrive(server: Harness) -> None:
    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await trio.sleep_forever()

    transport = httpx.ASGITransport(server.server.http_app())
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", auth=("guest", "guest"), timeout=None
    ) as client:
        answer = await client.put("/api/queues/%2F/s", content=never())
    assert answer.status_code == 400
    assert "within 30 s" in answer.json()["reason"]


async def test_pages_and_columns(http: Http, server: Harness) -> None:
    for number in range(7):
        await server.host.create(f"s{number}", [])
    await server.host.create("t", [])
    columns = "columns=name,arguments.x-queue-type"
    page = await http.get(f"queues?page=2&page_size=3&name=s&{columns}")
    names = [row["name"] for row in page.pop("items")]
    assert names == ["s3", "s4", "s5"]
    assert page == {
        "total_count": 8,
        "filtered_count": 7,
        "item_count": 3,
        "page": 2,
        "page_size": 3,
        "page_count": 3,
    }
    rows = await http.get(f"queues?{columns}")
    assert [sorted(row) for row in rows] == [["arguments", "name"]] * 8
    assert (await http.get("queues?page=1&name=none"))["items"] == []
    for wrong in ("page=0", "page=4&page_size=3", "page=x", "page=1&page_size=501", "page=-1"):
        assert "page" in await http.reason("GET", f"queues?{wrong}"), wrong
    assert "use_regex" in await http.reason("GET", "queues?page=1&name=s&use_regex=true")


# -- super streams


async def test_a_stream_that_is_deleted_while_it_is_listed(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    await http.ask("PUT", "queues/%2F/s", {})
    monkeypatch.setattr(VirtualHost, "names", lambda _: ["gone", "s"])
    assert [row["name"] for row in await http.get("queues")] == ["s"]
    assert [row["name"] for row in (await http.get("definitions"))["queues"]] == ["s"]


async def test_strings_that_are_not_unicode(http: Http) -> None:
    body = rb'{"users": [{"name": "\ud800", "tags": ""}]}'
    assert await http.reason("POST", "definitions", body) == "not_json"


async def test_super_streams_at_once(http: Http, peer: Peer) -> None:
    path = "stream/super-streams/%2F/i"
    assert await http.code("PUT", path, {"partitions": 2, "arguments": {"max-age": "1h"}}) == 204
    assert await http.code("PUT", path, {"partitions": 2}) == 400
    assert (await peer.ask(c.Partitions, "i")).streams == ("i-0", "i-1")
    assert (await http.get("queues/%2F/i-1"))["arguments"]["x-max-age"] == "1h"
    assert (await http.get(path))["partitions"][1] == {"routing_key": "1", "stream": "i-1"}
    assert await http.code("PUT", path + "2", {"binding-keys": "b, a"}) == 204
    assert (await peer.ask(c.Partitions, "i2")).streams == ("i2-b", "i2-a")
    assert len(await http.get("stream/super-streams")) == 2
    assert await http.code("DELETE", path) == 204
    assert await http.code("GET", path) == 404
    for body in ({}, {"partitions": 0}, {"partitions": 1001}, {"binding-keys": 7}):
        assert await http.code("PUT", path, body) == 400
    assert [row["name"] for row in await http.get("queues")] == ["i2-a", "i2-b"]


# -- connections


async def start_work(server: Harness) -> Peer:
    """A connection that has published and consumes."""
    peer = await server.peer(heartbeat=30, connection_name="my app", product="test")
    await peer.create("s")
    await peer.declare("s", 7, "pub")
    await peer.store([b"x"] * 5, publisher_id=7)
    await peer.store([b"x"] * 2, first_id=4, publisher_id=7)  # two of these were there before
    await peer.subscribe("s", FIRST, 4, name="reader", identifier="tag")
    assert len((await peer.chunk()).bodies) == 5
    return peer


def quoted(name: str) -> str:
    return name.replace(" ", "%20").replace(">", "%3E")


async def test_connections(server: Harness, http: Http) -> None:
    peer = await start_work(server)
    (row,) = await http.get("connections")
    name = quoted(row["name"])
    assert row["name"].endswith(" -> memory:5552")
    assert row["client_properties"] == {"connection_name": "my app", "product": "test"}
    assert row["user_provided_name"] == "my app"
    assert (row["user"], row["vhost"], row["protocol"]) == ("guest", "/", "stream")
    assert (row["timeout"], row["frame_max"], row["state"]) == (30, 1 << 20, "running")
    assert (row["auth_mechanism"], row["ssl"]) == ("PLAIN", False)
    assert (row["publishers"], row["consumers"]) == (1, 1)
    assert 1_700_000_000_000 <= row["connected_at"] < 1_700_000_100_000
    for path in (f"connections/{name}", f"stream/connections/%2F/{name}"):
        assert await http.get(path) == row
    for path in (
        "stream/connections",
        "stream/connections/%2F",
        "vhosts/%2F/connections",
        "connections/username/guest",
    ):
        assert await http.get(path) == [row]
    totals = (await http.get("overview"))["object_totals"]
    assert (totals["connections"], totals["consumers"], totals["queues"]) == (1, 1, 1)
    assert await http.code("DELETE", f"connections/{name}") == 204
    await peer.ended()
    assert await http.get("connections") == []
    assert await http.get("stream/publishers") == []
    assert await http.code("DELETE", f"connections/{name}") == 404


async def test_a_filter_value_that_is_no_text_is_shown(server: Harness, http: Http) -> None:
    peer = await server.peer()
    await peer.create("s")
    await peer.subscribe("s", filter__0="\udcff\0")  # how a Pair has the byte 0xFF
    (consumer,) = await http.get("stream/consumers/%2F")
    assert consumer["properties"] == {"filter.0": "\\xff\0"}


async def test_publishers_and_consumers(server: Harness, http: Http) -> None:
    await start_work(server)
    name = (await http.get("connections"))[0]["name"]
    (publisher,) = await http.get("stream/publishers/%2F/s")
    assert publisher["queue"] == {"name": "s", "vhost": "/"}
    assert (publisher["publisher_id"], publisher["reference"]) == (7, "pub")
    assert [publisher[key] for key in ("published", "confirmed", "errored")] == [7, 7, 0]
    assert publisher["connection_details"]["name"] == name
    assert await http.get("stream/publishers") == [publisher]
    assert await http.get(f"stream/connections/%2F/{quoted(name)}/publishers") == [publisher]
    assert await http.get("stream/publishers/%2F/none") == []
    (consumer,) = await http.get("stream/consumers/%2F")
    assert consumer["properties"] == {"name": "reader", "identifier": "tag"}
    wanted = {"credits": 3, "consumed": 5, "offset": 4, "offset_lag": 0, "active": True}
    assert {key: consumer[key] for key in wanted} == wanted
    assert (consumer["activity_status"], consumer["subscription_id"]) == ("up", 1)
    assert await http.get(f"stream/connections/%2F/{quoted(name)}/consumers") == [consumer]
    (amqp,) = await http.get("consumers/%2F/")
    assert amqp["consumer_tag"] == "tag"
    assert amqp["channel_details"]["connection_name"] == name


async def test_which_consumer_is_active(http: Http, peer: Peer) -> None:
    await peer.create("s")
    for number in (1, 2):
        await peer.subscribe("s", FIRST, 1, number, name="group", single_active_consumer="true")
    update = await peer.expect(c.ConsumerUpdate)
    await peer.send(c.ConsumerUpdateResponse(update.correlation_id, OK, FIRST))
    await trio.testing.wait_all_tasks_blocked()
    rows = await http.get("stream/consumers")
    found = [(row["active"], row["activity_status"]) for row in rows]
    assert found == [(True, "single_active"), (False, "waiting")]


async def test_a_connection_that_is_ended_hands_its_turn_over(
    server: Harness, http: Http, peer: Peer
) -> None:
    await peer.create("s")
    first, second = server.connect(), server.connect()
    for member, name in ((first, "first"), (second, "second")):
        await member.log_in(connection_name=name)
        await member.subscribe("s", single_active_consumer="true", name="app")
    assert (await first.expect(c.ConsumerUpdate)).active
    await second.silence()
    rows = await http.get("connections")
    (name,) = (
        row["name"] for row in rows if row["client_properties"].get("connection_name") == "first"
    )
    assert await http.code("DELETE", f"connections/{quoted(name)}") == 204
    update = await second.expect(c.ConsumerUpdate)
    assert update.active
    await first.ended()
    await second.send(c.ConsumerUpdateResponse(update.correlation_id, OK, FIRST))
    await second.silence()
    (row,) = await http.get("consumers")
    assert row["activity_status"] == "single_active"


async def test_connections_of_others(server: Harness, http: Http) -> None:
    await add_user(server, "ada", "management")
    await add_user(server, "bob", "monitoring")
    peer = await server.peer()
    await wait_all_tasks_blocked()  # until it is listed
    (row,) = await http.get("connections")
    name = quoted(row["name"])
    assert await http.get("connections", "ada") == []
    assert await http.code("GET", f"connections/{name}", user="ada") == 401
    assert await http.code("DELETE", f"connections/{name}", user="ada") == 401
    assert await http.get("connections", "bob") == [row]
    assert await http.code("DELETE", f"connections/{name}", user="bob") == 401
    assert await http.code("DELETE", "connections/username/guest", user="ada") == 204
    assert await peer.code(c.StreamStats, "none") == ResponseCode.STREAM_DOES_NOT_EXIST
    assert await http.code("DELETE", "connections/username/guest") == 204
    await peer.ended()


# -- users, permissions, virtual hosts


async def test_users(http: Http) -> None:
    assert "tags_not_present" in await http.reason("PUT", "users/ada", {"password": "x"})
    body = {"password": "ada-secret", "tags": "management, monitoring"}
    assert await http.code("PUT", "users/ada", body) == 201
    assert await http.code("PUT", "users/ada", body) == 204
    row = await http.get("users/ada")
    assert row["tags"] == ["management", "monitoring"]
    assert row["hashing_algorithm"] == "scrypt"
    assert "secret" not in json.dumps(await http.get("users"))
    assert await http.code("GET", "whoami", user="ada") == 200
    hashed = {key: row[key] for key in ("password_hash", "hashing_algorithm")}
    assert await http.code("PUT", "users/bob", {**hashed, "tags": ["management"]}) == 201
    answer = await http.ask("GET", "whoami", user="bob", password="ada-secret")
    assert answer.status_code == 200
    assert await http.code("PUT", "users/ada", {"tags": "management"}) == 204  # takes it away
    assert await http.code("GET", "whoami", user="ada") == 401
    for wrong in (
        {"password": 7, "tags": ""},
        {"password_hash": "x", "tags": ""},
        {"password_hash": "x", "hashing_algorithm": "md5", "tags": ""},
        {"tags": [7]},
    ):
        assert await http.code("PUT", "users/eve", wrong) == 400
    assert await http.code("GET", "users/eve") == 404
    assert await http.code("DELETE", "users/bob") == 204
    assert await http.code("DELETE", "users/bob") == 404


async def test_the_last_administrator_stays(http: Http) -> None:
    assert "last administrator" in await http.reason("DELETE", "users/guest")
    body = {"password": "guest", "tags": ""}
    assert "last administrator" in await http.reason("PUT", "users/guest", body)
    await http.ask("PUT", "users/ada", {"password": "ada-secret", "tags": "administrator"})
    assert await http.code("DELETE", "users/guest", user="ada") == 204


async def test_permissions(http: Http) -> None:
    await http.ask("PUT", "users/ada", {"password": "ada-secret", "tags": "management"})
    assert await http.code("GET", "permissions/%2F/ada") == 404
    body = {"configure": "", "write": "^w", "read": ".*"}
    assert await http.code("PUT", "permissions/%2F/ada", body) == 201
    assert await http.code("PUT", "permissions/%2F/ada", body) == 204
    row = {"user": "ada", "vhost": "/", **body}
    assert await http.get("permissions/%2F/ada") == row
    assert await http.get("users/ada/permissions", "ada") == [row]
    assert row in await http.get("vhosts/%2F/permissions")
    assert await http.code("PUT", "queues/%2F/w", {}, user="ada") == 401
    assert "write is missing" in await http.reason(
        "PUT", "permissions/%2F/ada", {"configure": "", "read": ""}
    )
    assert "regular expression" in await http.reason(
        "PUT", "permissions/%2F/ada", {**body, "read": "("}
    )
    assert await http.code("PUT", "permissions/none/ada", body) == 404
    assert await http.code("PUT", "permissions/%2F/none", body) == 404
    assert await http.code("DELETE", "permissions/%2F/ada") == 204
    assert await http.code("DELETE", "permissions/%2F/ada") == 404


async def test_virtual_hosts(http: Http) -> None:
    assert await http.code("PUT", "vhosts/a%2Fb") == 201
    assert await http.code("PUT", "vhosts/a%2Fb") == 204
    assert await http.code("PUT", "queues/a%2Fb/s", {}) == 201
    assert (await http.get("vhosts/a%2Fb"))["messages"] == 0
    assert [row["name"] for row in await http.get("vhosts")] == ["/", "a/b"]
    assert await http.code("PUT", "vhosts/a%0Ab") == 400
    assert await http.code("PUT", "vhosts/" + "x" * 256) == 400
    assert await http.code("DELETE", "vhosts/a%2Fb") == 204
    assert await http.code("DELETE", "vhosts/a%2Fb") == 404
    assert await http.code("GET", "queues/a%2Fb/s") == 404


# -- definitions


async def test_definitions_go_out_and_come_in(tmp_path: Path) -> None:
    async with harness(tmp_path / "one") as server:
        http = Http(server)
        await http.ask("PUT", "vhosts/other")
        await add_user(server, "ada", "monitoring", patterns="^a")
        await http.ask("PUT", "queues/other/s", {"arguments": {"x-max-age": "7D"}})
        await http.ask("PUT", "stream/super-streams/other/i", {"binding-keys": ["z", "y"]})
        exported = await http.get("definitions")
        of_host = await http.get("definitions/other")
    async with harness(tmp_path / "two") as server:
        http = Http(server)
        assert await http.code("POST", "definitions", exported) == 204
        assert await http.get("definitions") == exported
        assert await http.code("POST", "definitions", exported) == 204
        assert await http.get("definitions") == exported
        assert await http.code("GET", "queues", user="ada") == 200
        assert await http.code("PUT", "vhosts/third") == 201
        assert await http.code("POST", "definitions/third", of_host) == 204
        again = await http.get("definitions/third")
        assert again == of_host | {"original_vhost_name": "third"}
    async with harness(tmp_path / "two") as server:
        assert (await Http(server).get("definitions/other")) == of_host


async def test_definitions_of_rabbitmq_are_taken(http: Http, server: Harness) -> None:
    answer = await http.ask("POST", "definitions", RABBITMQ.read_bytes())
    peer = await server.peer()
    assert answer.status_code == 200
    assert answer.json() == {"left_out": ["global_parameters"]}
    names = [row["name"] for row in await http.get("queues")]
    assert names == ["s1", "sup-0", "sup-1", "sup2-a", "sup2-b"]
    assert (await peer.ask(c.Partitions, "sup2")).streams == ("sup2-a", "sup2-b")
    assert await http.code("GET", "whoami") == 200  # with RabbitMQ's hash of the password
    exported, original = await http.get("definitions"), json.loads(RABBITMQ.read_bytes())
    assert {row["name"]: row for row in exported["queues"]} == {
        row["name"]: row for row in original["queues"]
    }

    def key(row: dict[str, Any]) -> str:
        return str(row["destination"])

    assert sorted(exported["bindings"], key=key) == sorted(original["bindings"], key=key)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b'{"bindings": [%s{}]}' % (b"{}," * 750_001), "bindings has more than 750,000 commas"),
        (b'{"queues": [{"a": "%s"}]}' % (b"a" * (256 << 10)), "a row of queues has more than"),
        (b'{"f": %s}' % (b"[" * 100_000), "not_json"),
    ],
)
async def test_definitions_of_which_there_is_too_much(
    http: Http, document: bytes, reason: str
) -> None:
    assert reason in await http.reason("POST", "definitions", document)


def test_fields_that_definitions_do_not_have_become_no_objects() -> None:
    fields = b"".join(b'"f%d":[%d],' % (n, n) for n in range(300_000))
    document = b'{%s"vhosts":[{"name":"x"}]}' % fields
    tracemalloc.start()
    try:
        found = decoded(document, Definitions)
        assert tracemalloc.get_traced_memory()[1] < len(document) / 10
    finally:
        tracemalloc.stop()
    assert bytes(found.vhosts) == b'[{"name":"x"}]'


async def test_definitions_name_what_they_leave_out(http: Http) -> None:
    document = {
        "policies": [{"name": "p"}],
        "queues": [{"name": "q", "vhost": "/", "arguments": {}}],
    }
    answer = await http.ask("POST", "definitions", document)
    assert answer.json()["left_out"] == ["policies", "queue q: not a stream"]
    assert await http.get("queues") == []


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"queues": {}}, "queues is not a list"),
        ({"queues": [7]}, "queues is not a list"),
        ({"queues": [{"vhost": "/"}]}, "name is missing"),
        ({"queues": [{"name": "q"}]}, "vhost is missing"),
        ({"queues": [{"name": "q", "vhost": "none", "type": "stream"}]}, "no virtual host"),
        ({"users": [{"name": "ada"}]}, "tags_not_present"),
        ({"users": [{"name": "guest", "tags": ""}]}, "last administrator"),
        ({"permissions": [{"user": "none", "vhost": "/"}]}, "configure is missing"),
        ({"vhosts": [{"name": ""}]}, "1 to 255"),
        ({"exchanges": [{"vhost": "/"}]}, "exchanges, {'vhost': '/'}: name is missing"),
        ({"exchanges": [{"name": "x", "vhost": "none"}]}, "no virtual host none"),
        ({"exchanges": [{"name": "x", "vhost": "/", "durable": 7}]}, "durable is '7', expected"),
        ({"exchanges": [{"name": "there", "vhost": "/", "type": "topic"}]}, "inequivalent arg"),
        ({"bindings": [{"source": "x", "vhost": "/"}]}, "destination is missing"),
    ],
)
async def test_definitions_that_cannot_be(http: Http, document: Any, reason: str) -> None:
    await http.ask("PUT", "exchanges/%2F/there", {"type": "fanout"})
    assert reason in await http.reason("POST", "definitions", document)


# -- the server


async def test_overview_and_health(server: Harness, http: Http, peer: Peer) -> None:
    await peer.create("s")
    overview = await http.get("overview")
    assert overview["product_name"] == "RabbitMQ"
    listeners = [{key: row[key] for key in ("protocol", "port")} for row in overview["listeners"]]
    assert listeners == [{"protocol": "stream", "port": 5552}, {"protocol": "amqp", "port": 5672}]
    assert await http.get("health/checks/port-listener/5552") == {"status": "ok", "port": 5552}
    assert await http.code("GET", "health/checks/port-listener/1") == 503
    assert await http.code("GET", "health/checks/port-listener/x") == 503
    for path in ("alarms", "local-alarms"):
        assert await http.get(f"health/checks/{path}") == {"status": "ok"}
    await server.host.find("s").ready()
    server.host.find("s").life.held.writer.failure = "the disk is broken"
    answer = await http.ask("GET", "health/checks/alarms")
    assert answer.status_code == 503
    assert answer.json()["alarms"] == [
        {"vhost": "/", "queue": "s", "resource": "the disk is broken"}
    ]
    assert (await http.get("queues/%2F/s"))["reason"] == "the disk is broken"
    (node,) = await http.get("nodes")
    assert await http.code("GET", f"nodes/{node['name']}") == 200
    assert await http.code("GET", "nodes/none") == 404
    assert await http.get("channels") == []
    assert await http.get("aliveness-test/%2F") == {"status": "ok"}


@pytest.mark.parametrize("path", ["nothing", "queues/%2F/s/nothing", "", "%"])
async def test_unknown_paths(http: Http, path: str) -> None:
    answer = await http.ask("GET", path)
    assert answer.status_code == 404
    assert answer.json() == {"error": "Object Not Found", "reason": "Not Found"}


async def test_amqp_connections_and_their_consumers(server: Harness) -> None:
    http = Http(server)
    amqp = await open_peer(server)
    await amqp.declare("s")
    await amqp.consume("s", tag="mine", x_stream_offset="first")
    (connection,) = await http.get("connections")
    assert connection["protocol"] == "AMQP 0-9-1"
    assert await http.get("stream/connections") == []
    assert await http.get("stream/consumers") == []
    (consumer,) = await http.get("consumers")
    assert (consumer["consumer_tag"], consumer["ack_required"]) == ("mine", True)
    assert (await http.get("queues/%2F/s"))["consumers"] == 1


async def test_a_virtual_host_that_is_deleted_during_an_export_is_left_out(
    server: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await http.code("PUT", "vhosts/going") == 201
    await http.code("DELETE", "permissions/going/guest")  # or its rights change with the host
    await add_user(server, "ada", "", patterns="")
    rights = {"configure": "", "write": "", "read": ""}
    assert await http.code("PUT", "permissions/going/ada", rights) == 201
    listed = definitions._declared

    async def delete_first(asker: Any, host: Name) -> Any:
        if host == "going":
            assert await http.code("DELETE", "vhosts/going") == 204
        return await listed(asker, host)

    monkeypatch.setattr(definitions, "_declared", delete_first)
    exported = await http.get("definitions")
    assert exported["vhosts"] == [{"name": "/"}]
    assert {row["vhost"] for row in exported["permissions"]} == {"/"}

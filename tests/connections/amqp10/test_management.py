"""Requests to the management node, and the answers that clients depend on."""

import uuid
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from segments.amqp10 import Char, Symbol, decode_value
from segments.amqp10_codes import Section
from segments.message import find_section
from streamd.broker.streams.stream import Stream
from streamd.connections.amqp10.management import Management
from streamd.connections.declaring import Declaring
from streamd.engine import Caller
from streamd.operations.names import Name
from streamd.operations.users import PutPermission, PutUser
from streamd.wire.amqp10.errors import Condition, SessionFault
from streamd.wire.amqp10.values import Array, Uint, Ulong, read_value, write_value
from tests.support.server import Harness, harness

STREAM = {"arguments": {"x-queue-type": "stream"}}
ID = "7"


def request(
    method: object, target: object, body: object = None, message_id: Any = ID, **changed: object
) -> bytes:
    """A message as clients write one."""
    fields = {"to": target, "subject": method, "reply": "$me"} | changed
    properties = [message_id, None, fields["to"], fields["subject"], fields["reply"]]
    sections = ((Section.PROPERTIES, properties), (Section.VALUE, body))
    return b"".join(bytes((0, 0x53, code)) + write_value(value) for code, value in sections)


def section(message: bytes, kind: Section) -> Any:
    at = find_section(message, kind)
    assert at is not None
    return read_value(message, at)[0]


class Client:
    """A user who asks."""

    def __init__(self, server: Harness, user: str = "guest") -> None:
        directory = server.server.directory
        account = directory.account(Name(user))
        assert account is not None
        caller = Caller(directory, account)
        declaring = Declaring(server.host, caller.rights(Name("/")), "classic")
        ask = partial(server.server.engine.ask, caller)
        self._management = Management(server.host, declaring, ask)

    async def ask(self, method: str, target: str, body: object = None) -> tuple[int, Any]:
        """The status and the body of the answer."""
        answer = await self.raw(request(method, target, body))
        properties = section(answer, Section.PROPERTIES)
        assert properties[5] == ID
        assert section(answer, Section.APPLICATION_PROPERTIES) == {"http:response": "1.1"}
        at = find_section(answer, Section.APPLICATION_PROPERTIES)
        assert at is not None
        assert answer[read_value(answer, at)[1] :][:3] == bytes((0, 0x53, Section.VALUE))
        return int(properties[3]), read_value(answer, read_value(answer, at)[1] + 3)[0]

    async def raw(self, message: bytes, answered: Callable[[], object] = int) -> bytes:
        answers: list[bytes] = []

        def take(answer: bytes) -> None:
            answers.append(answer)
            answered()

        await self._management.answer(message, take)
        (answer,) = answers
        return answer


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Harness]:
    async with harness(tmp_path) as running:
        yield running


@pytest.fixture
def client(server: Harness) -> Client:
    return Client(server)


async def user(server: Harness, configure: str = "", write: str = "", read: str = "") -> Client:
    """A client with some rights."""
    engine, directory = server.server.engine, server.server.directory
    account = directory.account(Name("guest"))
    assert account is not None
    guest = Caller(directory, account)
    await engine.ask(guest, PutUser(name=Name("ada"), password=b"secret"))
    asked = PutPermission(
        user=Name("ada"), vhost=Name("/"), configure=configure, write=write, read=read
    )
    await engine.ask(guest, asked)
    return Client(server, "ada")


# -- messages


@pytest.mark.parametrize(
    "message_id", [None, "a", b"a", Ulong(0), Ulong(5), uuid.UUID(int=5), 5, Symbol("a")]
)
async def test_the_answer_has_the_id_in_its_type(client: Client, message_id: Any) -> None:
    answer = await client.raw(request("GET", "/queues/s", message_id=message_id))
    encoded = write_value(section(answer, Section.PROPERTIES)[5])
    assert encoded == write_value(message_id)


@pytest.mark.parametrize(
    "message",
    [
        request("GET", None),
        request(None, "/queues/s"),
        request("GET", "/queues/s", reply="me"),
        request("GET", "/queues/s", reply=None),
        request(Symbol("GET"), "/queues/s"),
        request("GET", b"/queues/s"),
        bytes((0, 0x53, Section.VALUE)) + b"\x40",
        bytes((0, 0x53, Section.PROPERTIES)) + b"\x45",
        b"",
    ],
)
async def test_what_is_no_request(client: Client, message: bytes) -> None:
    with pytest.raises(SessionFault, match=r"a request needs the path in 'to'") as caught:
        await client.raw(message)
    assert caught.value.condition == Condition.INVALID_FIELD


async def test_a_damaged_request_ends_the_session(client: Client) -> None:
    whole = request("PUT", "/queues/s", STREAM)
    without_body = find_section(whole, Section.VALUE)
    assert without_body is not None
    for size in {*range(len(whole))} - {without_body - 3}:
        with pytest.raises(SessionFault):
            await client.raw(whole[:size])
    for damaged in (b"\x00\x53\x73\x40", b"\x00\x53\x73\xc1\x01\x00", b"no message"):
        with pytest.raises(SessionFault):
            await client.raw(damaged)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/"),
        ("GET", ""),
        ("GET", "queues/s"),
        ("GET", "/queues"),
        ("GET", "/queues/s/messages"),
        ("DELETE", "/queues/s/message"),
        ("DELETE", "/queues/s/messages/1"),
        ("POST", "/queues/s"),
        ("put", "/queues/s"),
        ("GET", "/exchanges/x"),
        ("PUT", "/bindings"),
    ],
)
async def test_a_path_that_there_is_not(client: Client, method: str, target: str) -> None:
    status, text = await client.ask(method, target, {})
    assert (status, text) == (404, f"there is no '{method} {target}'")


async def test_who_has_a_password_has_no_token_to_renew(client: Client) -> None:
    """RabbitMQ 4.3 says the same; its Java client's suite has a test of it."""
    assert (await client.ask("PUT", "/auth/tokens", b"anything"))[0] == 204
    assert (await client.ask("PUT", "/auth/tokens", "text"))[0] == 400


# -- queues


async def test_a_stream_is_declared_shown_and_deleted(server: Harness, client: Client) -> None:
    arguments = {
        Symbol("x-queue-type"): Symbol("stream"),
        "x-max-age": "60s",
        "x-max-length-bytes": Ulong(5_000_000_000),
        "x-stream-filter-size-bytes": Uint(32),
        "x-initial-group-size": 1,
    }
    body = {"durable": True, "exclusive": False, "auto_delete": False, "arguments": arguments}
    status, shown = await client.ask("PUT", "/queues/a%20b", body)
    assert status == 201
    assert shown == {
        "name": "a b",
        "vhost": "/",
        "durable": True,
        "auto_delete": False,
        "exclusive": False,
        "type": "stream",
        "arguments": {
            "x-queue-type": "stream",
            "x-max-age": "60s",
            "x-max-length-bytes": 5_000_000_000,
            "x-stream-filter-size-bytes": 32,
            "x-initial-group-size": 1,
        },
        "message_count": 0,
        "consumer_count": 0,
        "leader": "streamd@localhost",
        "replicas": ("streamd@localhost",),
    }
    types = [type(shown[key]) for key in ("message_count", "consumer_count", "replicas")]
    assert types == [Ulong, Uint, Array]
    assert await client.ask("PUT", "/queues/a%20b", body) == (200, shown)
    assert await client.ask("GET", "/queues/a%20b") == (200, shown)
    assert await client.ask("DELETE", "/queues/a%20b") == (200, {"message_count": 0})
    assert not server.host.has_stream(Name("a b"))
    assert await client.ask("DELETE", "/queues/a%20b") == (200, {"message_count": 0})
    status, text = await client.ask("GET", "/queues/a%20b")
    assert (status, text) == (404, "queue 'a b' in vhost '/' not found")


async def test_deleting_is_answered_before_those_who_use_the_stream_are_told(
    server: Harness, client: Client
) -> None:
    told: list[str] = []

    class User:
        def stream_is_gone(self, stream: Stream) -> None:
            told.append(f"{stream.name} is gone")

        def host_is_gone(self) -> None:
            raise AssertionError

    await client.ask("PUT", "/queues/s", STREAM)
    server.host.add_observer(User())
    await client.raw(request("DELETE", "/queues/s"), lambda: told.append("answered"))
    assert told == ["answered", "s is gone"]


async def test_messages_and_consumers_are_counted(server: Harness, client: Client) -> None:
    peer = await server.peer()
    await peer.create("s")
    await peer.declare("s")
    await peer.store([b"a", b"b"])
    await peer.subscribe("s")
    shown = (await client.ask("GET", "/queues/s"))[1]
    assert (shown["message_count"], shown["consumer_count"]) == (2, 1)


@pytest.mark.parametrize(
    ("name", "body", "status", "text"),
    [
        (
            "s",
            {"arguments": {"x-queue-type": "stream", "x-max-age": "1h"}},
            409,
            "inequivalent arg",
        ),
        ("s", STREAM | {"durable": False}, 409, "inequivalent arg 'durable'"),
        ("s", STREAM | {"auto_delete": True}, 409, "inequivalent arg 'auto_delete'"),
        ("s", STREAM | {"exclusive": True}, 400, "cannot obtain exclusive access"),
        ("", STREAM, 400, "declare queue with empty name not allowed"),
        ("a%0Ab", STREAM, 400, "U+000A"),
        ("a%0D", STREAM, 400, "U+000D"),
        ("%FF", STREAM, 400, "percent encoding"),
        ("amq.new", STREAM, 403, "reserved prefix"),
        ("new", STREAM | {"durable": False}, 400, "durable=false"),
        ("new", STREAM | {"exclusive": True}, 400, "exclusive=true"),
        ("new", STREAM | {"more": True}, 400, "bad queue property 'more': True"),
        ("new", STREAM | {"durable": "yes"}, 400, "bad queue property 'durable'"),
        ("new", {"arguments": []}, 400, "bad queue property 'arguments'"),
        ("new", {"arguments": {5: "x"}}, 400, "unsupported argument 5"),
        ("new", None, 400, "the body is no map"),
        ("new", {}, 400, "there are streams only"),
        ("new", {"arguments": {"x-queue-type": "quorum"}}, 400, "there are streams only"),
        ("new", {"arguments": {"x-queue-type": 5}}, 409, "invalid arg 'x-queue-type'"),
        (
            "new",
            {"arguments": STREAM["arguments"] | {"x-message-ttl": 5}},
            409,
            "invalid arg 'x-message-ttl'",
        ),
        (
            "new",
            {"arguments": STREAM["arguments"] | {"x-stream-filter-size-bytes": 7}},
            400,
            "Invalid value for x-stream-filter-size-bytes",
        ),
    ],
)
async def test_a_queue_that_cannot_be(
    server: Harness, client: Client, name: str, body: object, status: int, text: str
) -> None:
    await client.ask("PUT", "/queues/s", STREAM)
    found, reason = await client.ask("PUT", f"/queues/{name}", body)
    assert found == status, reason
    assert text in reason
    assert list(server.host.names()) == ["s"]


async def test_a_stream_is_not_purged(client: Client) -> None:
    status, text = await client.ask("DELETE", "/queues/s/messages")
    assert (status, text) == (404, "no queue 's' in vhost '/'")
    await client.ask("PUT", "/queues/s", STREAM)
    status, text = await client.ask("DELETE", "/queues/s/messages")
    assert status == 400
    assert text.startswith("purge not supported by queue 's' in vhost '/'")


# -- exchanges


async def test_an_exchange_is_declared_and_deleted(server: Harness, client: Client) -> None:
    body = {"type": "topic", "durable": True, "auto_delete": False, "internal": False}
    for _ in range(2):
        assert await client.ask("PUT", "/exchanges/x", body | {"arguments": {}}) == (204, None)
    assert server.host.topology.find(Name("x")).type == "topic"
    for _ in range(2):
        assert await client.ask("DELETE", "/exchanges/x") == (204, None)
    assert not server.host.topology.has(Name("x"))
    assert await client.ask("PUT", "/exchanges/plain", {}) == (204, None)
    row = server.host.topology.find(Name("plain"))
    assert (row.type, row.is_durable, row.is_super_stream) == ("direct", True, False)
    body = {"arguments": {"x-super-stream": True}}
    assert await client.ask("PUT", "/exchanges/whole", body) == (204, None)
    assert server.host.topology.find(Name("whole")).is_super_stream
    assert await client.ask("PUT", "/exchanges/amq.topic", {"type": "topic"}) == (204, None)
    body = {"arguments": {"alternate-exchange": "plain"}}
    assert await client.ask("PUT", "/exchanges/y", body) == (204, None)
    assert server.host.topology.find(Name("y")).alternate == "plain"


@pytest.mark.parametrize(
    ("method", "name", "body", "status"),
    [
        ("PUT", "x", {"type": "fanout"}, 409),
        ("PUT", "x", {"durable": False}, 409),
        ("PUT", "new", {"type": "other"}, 400),
        ("PUT", "new", {"type": Symbol("direct")}, 400),
        ("PUT", "new", {"type": Char("d")}, 400),
        ("PUT", "new", {"more": 5}, 400),
        ("PUT", "new", {"durable": 1}, 400),
        ("PUT", "new", {"arguments": {"alternate-exchange": 5}}, 400),
        ("PUT", "new", [], 400),
        ("PUT", "", {}, 403),
        ("PUT", "amq.new", {}, 403),
        ("PUT", "a%0Ab", {}, 400),
        ("DELETE", "", None, 403),
        ("DELETE", "amq.direct", None, 403),
        ("DELETE", "%FF", None, 400),
    ],
)
async def test_an_exchange_that_cannot_be(
    client: Client, method: str, name: str, body: object, status: int
) -> None:
    await client.ask("PUT", "/exchanges/x", {})
    found, reason = await client.ask(method, f"/exchanges/{name}", body)
    assert found == status, reason
    assert isinstance(reason, str)
    assert reason


# -- bindings


async def topology(client: Client) -> None:
    for name in ("x", "y"):
        await client.ask("PUT", f"/exchanges/{quote(name)}", {"type": "headers"})
    await client.ask("PUT", "/queues/s", STREAM)


def binding(**fields: object) -> dict[str, object]:
    return {"source": "x", "binding_key": "k", "destination_queue": "s", "arguments": {}} | fields


async def test_bindings_are_made_listed_and_removed(client: Client) -> None:
    await topology(client)
    several: list[dict[Any, Any]] = [
        {},
        {"n": 1},
        {"n": Ulong(2)},
        {"t": "a", Symbol("b"): True, "f": 1.5, "z": None},
    ]
    for arguments in several * 2:
        assert await client.ask("POST", "/bindings", binding(arguments=arguments)) == (204, None)
    await client.ask("POST", "/bindings", binding(binding_key="other"))
    status, rows = await client.ask("GET", "/bindings?src=x&dstq=s&key=k")
    assert status == 200
    assert [row["arguments"] for row in rows] == [
        {str(k): v for k, v in a.items()} for a in several
    ]
    assert {key: rows[0][key] for key in ("source", "destination_queue", "binding_key")} == {
        "source": "x",
        "destination_queue": "s",
        "binding_key": "k",
    }
    assert rows[0]["location"] == "/bindings/src=x;dstq=s;key=k;args="
    for count, row in reversed(list(enumerate(rows))):
        for _ in range(2):
            assert await client.ask("DELETE", row["location"]) == (204, None)
        assert len((await client.ask("GET", "/bindings?src=x&dstq=s&key=k"))[1]) == count
    assert len((await client.ask("GET", "/bindings?src=x&dstq=s&key=other"))[1]) == 1


async def test_whole_numbers_are_ints_where_they_fit(client: Client) -> None:
    """RabbitMQ's Java client removes a binding only if its arguments have the types it gave."""
    await topology(client)
    for number in (5, -(1 << 31), 1 << 31):
        await client.ask("POST", "/bindings", binding(arguments={"n": number}))
    answer = await client.raw(request("GET", "/bindings?src=x&dstq=s&key=k"))
    for encoded in (b"\x71\0\0\0\x05", b"\x71\x80\0\0\0", b"\x81\0\0\0\0\x80\0\0\0"):
        assert b"\xa1\x01n" + encoded in answer


async def test_exchanges_are_bound(client: Client) -> None:
    await topology(client)
    fields = binding(destination_exchange="y")
    del fields["destination_queue"]
    assert await client.ask("POST", "/bindings", fields) == (204, None)
    (row,) = (await client.ask("GET", "/bindings?src=x&dste=y&key=k"))[1]
    assert row["destination_exchange"] == "y"
    assert await client.ask("DELETE", row["location"]) == (204, None)
    assert await client.ask("GET", "/bindings?src=x&dste=y&key=k") == (200, [])


@pytest.mark.parametrize("name", ["a;key=b", "a/b", "a+b", "ü", "%41", "a=&b", "a ~b?"])
async def test_a_location_has_any_names(client: Client, name: str) -> None:
    part = quote(name, safe="")
    await client.ask("PUT", f"/exchanges/{part}", {})
    await client.ask("PUT", f"/queues/{part}", STREAM)
    fields = binding(source=name, destination_queue=name, binding_key=name)
    assert await client.ask("POST", "/bindings", fields) == (204, None)
    listed = f"/bindings?src={part}&dstq={part}&key={part}"
    (row,) = (await client.ask("GET", listed))[1]
    assert (row["source"], row["destination_queue"], row["binding_key"]) == (name, name, name)
    await client.ask("DELETE", row["location"])
    assert await client.ask("GET", listed) == (200, [])


async def test_a_partition_is_unbound_as_it_was_bound(client: Client) -> None:
    """The argument that says its position was not given by the client."""
    await client.ask("PUT", "/exchanges/whole", {"arguments": {"x-super-stream": True}})
    await client.ask("PUT", "/queues/s", STREAM)
    await client.ask("POST", "/bindings", binding(source="whole"))
    (row,) = (await client.ask("GET", "/bindings?src=whole&dstq=s&key=k"))[1]
    assert row["arguments"] == {"x-stream-partition-order": 0}
    assert await client.ask("DELETE", "/bindings/src=whole;dstq=s;key=k;args=") == (204, None)
    assert await client.ask("GET", "/bindings?src=whole&dstq=s&key=k") == (200, [])


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        (binding(destination_queue="none"), 400, "no queue 'none' in vhost '/'"),
        (binding(source="none"), 400, "no exchange 'none' in vhost '/'"),
        (binding(source=""), 403, "default exchange"),
        (binding(source=5), 400, "bad binding field 'source': 5"),
        (binding(more="x"), 400, "bad binding field 'more'"),
        (binding(destination_queue=None), 400, "missing binding field 'destination_queue'"),
        (binding(arguments={"a": [1]}), 400, "unsupported argument 'a'"),
        (binding(arguments={"a": float("nan")}), 400, "expected a finite number"),
        ({"source": "x", "binding_key": "k"}, 400, "missing binding field 'destination_queue'"),
        ({"destination_queue": "s"}, 400, "missing binding field 'source'"),
        (None, 400, "the body is no map"),
    ],
)
async def test_a_binding_that_cannot_be(
    client: Client, fields: object, status: int, text: str
) -> None:
    await topology(client)
    found, reason = await client.ask("POST", "/bindings", fields)
    assert (found, text in reason) == (status, True), reason


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/bindings", 400),
        ("GET", "/bindings?src=x&key=k", 400),
        ("GET", "/bindings?dstq=s&key=k", 400),
        ("GET", "/bindings?src=x&dstq=s", 400),
        ("GET", "/bindings?src=&dstq=s&key=", 403),
        ("GET", "/bindings?src=none&dstq=none&key=", 200),
        ("DELETE", "/bindings/src=x", 400),
        ("DELETE", "/bindings/src=x;dstf=s;key=k;args=", 400),
        ("DELETE", "/bindings/src=%FF;dstq=s;key=k;args=", 400),
        ("DELETE", "/bindings/src=x;dstq=s;key=k;args=AAAA", 204),
        ("DELETE", "/bindings/src=none;dstq=none;key=k;args=", 204),
    ],
)
async def test_bindings_that_are_asked_for_wrongly(
    client: Client, method: str, target: str, status: int
) -> None:
    await topology(client)
    assert (await client.ask(method, target))[0] == status


# -- rights


@pytest.mark.parametrize(
    ("method", "target", "body", "rights"),
    [
        ("GET", "/queues/s", None, {"read": "s"}),
        ("DELETE", "/queues/s/messages", None, {"read": "s"}),
        ("GET", "/bindings?src=x&dstq=s&key=k", None, {"write": "s", "read": "x"}),
        (
            "PUT",
            "/exchanges/z",
            {"arguments": {"alternate-exchange": "x"}},
            {"configure": "z", "read": "z", "write": "x"},
        ),
    ],
)
async def test_who_may_not_loses_the_session(
    server: Harness,
    client: Client,
    method: str,
    target: str,
    body: object,
    rights: dict[str, str],
) -> None:
    """Those that tests/auth/test_rights.py does not try."""
    await topology(client)
    for lost in rights:
        left = {right: name for right, name in rights.items() if right != lost}
        ada = await user(server, **left)
        with pytest.raises(SessionFault, match="refused for user 'ada'") as caught:
            await ada.ask(method, target, body)
        assert caught.value.condition == Condition.UNAUTHORIZED_ACCESS
    ada = await user(server, **rights)
    status, _ = await ada.ask(method, target, body)
    assert status < 300 or "messages" in target


async def test_the_body_of_an_answer_is_read_by_others_too(client: Client) -> None:
    """As segments reads it: nothing in it is of a type that only this server knows."""
    answer = await client.raw(request("PUT", "/queues/s", STREAM))
    at = find_section(answer, Section.VALUE)
    assert at is not None
    value, end = decode_value(answer, at)
    assert end == len(answer)
    assert isinstance(value, dict)

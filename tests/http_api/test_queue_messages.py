"""RabbitMQ's paths for single messages: publish to an exchange, get from a stream."""

import errno
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given, strategies as st

from segments import Log
from segments.errors import StorageError
from streamd.http_api.messages import BadRequest
from streamd.http_api.queue_messages import _publication
from streamd.operations.names import Name
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.messages.from_amqp10 import delivered
from tests.support.amqp import AmqpPeer, exchange, fields, open_peer
from tests.support.http import Http
from tests.support.server import Harness, Peer

PUBLISH, GET = "exchanges/%2F/amq.default/publish", "queues/%2F/s/get"
PROPERTIES = {
    "content_type": "text/plain",
    "delivery_mode": 2,
    "priority": 3,
    "correlation_id": "c",
    "message_id": "m",
    "timestamp": 1_700_000_000,
    "type": "t",
    "app_id": "a",
    "headers": {"region": "EU", "total": 7, "paid": True, "rate": 0.5},
}


def message(payload: str = "hello", **more: Any) -> dict[str, Any]:
    body = {"properties": {}, "routing_key": "s", "payload": payload, "payload_encoding": "string"}
    return {**body, **more}


@pytest.fixture
async def http(server: Harness, peer: Peer) -> Http:
    """The API of a server with stream s."""
    await peer.create("s")
    return Http(server)


@pytest.fixture
async def amqp(server: Harness) -> AmqpPeer:
    return await open_peer(server)


async def publish(http: Http, **more: Any) -> Any:
    answer = await http.ask("POST", PUBLISH, message(**more))
    assert answer.status_code == 200, answer.text
    return answer.json()


async def get(http: Http, **body: Any) -> Any:
    answer = await http.ask("POST", GET, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_what_is_published_comes_back(http: Http) -> None:
    assert await publish(http, properties=PROPERTIES) == {"routed": True}
    (found,) = await get(http)
    headers = found["properties"].pop("headers")
    assert headers == {**PROPERTIES["headers"], "x-stream-offset": 0}
    assert found == {
        "offset": 0,
        "payload_bytes": 5,
        "redelivered": False,
        "exchange": "",
        "routing_key": "s",
        "message_count": 0,
        "properties": {name: value for name, value in PROPERTIES.items() if name != "headers"},
        "payload": "hello",
        "payload_encoding": "string",
    }
    assert await publish(http, routing_key="none") == {"routed": False}


async def test_it_is_stored_as_over_amqp(http: Http, amqp: AmqpPeer, peer: Peer) -> None:
    await publish(http, properties={"headers": {"region": "EU"}, "delivery_mode": 2})
    await amqp.store("s", b"hello", headers=fields(region="EU"), delivery_mode=2)
    await peer.subscribe("s")
    one, other = await peer.bodies(2)
    assert one == other


async def test_exchanges(http: Http, amqp: AmqpPeer) -> None:
    await amqp.ask(exchange("topic", "topic"), m.ExchangeDeclareOk)
    await amqp.ask(m.QueueBind(0, "s", "topic", "order.*", False, {}), m.QueueBindOk)
    path = "exchanges/%2F/topic/publish"
    for key, routed in (("order.1", True), ("other", False)):
        answer = await http.ask("POST", path, message(routing_key=key))
        assert answer.json() == {"routed": routed}
    copied = {"headers": {"CC": ["order.2"], "BCC": ["order.3"]}}
    answer = await http.ask("POST", path, message(routing_key="other", properties=copied))
    assert answer.json() == {"routed": True}
    found = await get(http, count=10)
    assert [(one["exchange"], one["routing_key"]) for one in found] == [
        ("topic", "order.1"),
        ("topic", "other"),
    ]
    assert found[1]["properties"]["headers"] == {"CC": ["order.2"], "x-stream-offset": 1}
    assert await http.code("POST", "exchanges/%2F/none/publish", message()) == 404


async def test_binary_payloads_survive(http: Http) -> None:
    data = bytes(range(256))
    text = b64encode(data).decode()
    await publish(http, payload=text, payload_encoding="base64")
    (found,) = await get(http)
    assert (found["payload"], found["payload_encoding"]) == (text, "base64")
    (cut,) = await get(http, truncate=3)
    assert (cut["payload"], cut["payload_encoding"]) == ("\x00\x01\x02", "string")
    assert cut["payload_bytes"] == 256
    (cut,) = await get(http, truncate=3, encoding="base64")
    assert cut["payload"] == "AAEC"


async def test_where_it_begins(http: Http, peer: Peer) -> None:
    await peer.declare("s")
    await peer.store([b"%d" % n for n in range(20)])

    async def offsets(**body: Any) -> list[int]:
        return [one["offset"] for one in await get(http, count=3, **body)]

    assert await offsets() == await offsets(offset="first") == [0, 1, 2]
    assert await offsets(offset=5) == await offsets(offset="5") == [5, 6, 7]
    assert await offsets(offset="last") == [17, 18, 19]
    assert await offsets(offset="1970-01-01T00:00:00Z") == [0, 1, 2]
    assert await offsets(offset="2999-01-01T00:00:00Z") == []
    assert await offsets(offset=100) == []
    assert [one["message_count"] for one in await get(http, offset="last", count=2)] == [1, 0]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ackmode": "ack_requeue_false"}, "a stream keeps its messages whoever reads them"),
        ({"ackmode": "reject_requeue_false"}, "a stream keeps its messages whoever reads them"),
        ({"ackmode": "other"}, "ackmode is 'other', expected ack_requeue_true"),
        ({"encoding": "hex"}, "encoding is 'hex', expected auto or base64"),
        ({"count": 0}, "count is '0', expected a number from 1"),
        ({"count": 10**9}, "expected a number from 1"),
        ({"count": True}, "expected a number from 1"),
        ({"truncate": -1}, "truncate is '-1'"),
        ({"offset": -1}, "offset is neither first"),
        ({"offset": "next"}, "from is 'next', expected"),
        ({"offset": {}}, "offset is neither first"),
    ],
)
async def test_what_get_refuses(http: Http, wrong: dict[str, Any], said: str) -> None:
    assert said in await http.reason("POST", GET, wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"payload_encoding": "hex"}, "payload_encoding is 'hex', expected string or base64"),
        ({"payload_encoding": "base64", "payload": "%"}, "the payload is not base64"),
        ({"payload": 5}, "payload is not a string"),
        ({"payload": None}, "payload is missing"),
        ({"routing_key": "k" * 256}, "routing_key has 256 bytes, expected at most 255"),
        ({"properties": {"user_id": "other"}}, "user_id is 'other', but you are guest"),
        ({"properties": {"color": "red"}}, "'color' is no property of a message"),
        ({"properties": {"priority": 256}}, "priority is not a whole number from 0 to 255"),
        ({"properties": {"message_id": 5}}, "the property message_id is not a string"),
        ({"properties": {"message_id": "x" * 256}}, "too long"),
        ({"properties": {"expiration": "soon"}}, "expiration is 'soon'"),
        ({"properties": {"headers": []}}, "headers is not a JSON object"),
        ({"properties": {"headers": {"n": 1 << 64}}}, "does not fit into 64 bits"),
        ({"properties": {"headers": {"x" * 256: 1}}}, "too long"),
        ({"properties": {"headers": {"CC": "s"}}}, "the header CC is not an array"),
        ({"properties": {"headers": {"CC": ["s"] * 1_001}}}, "CC and BCC have 1,001 routing keys"),
        (
            {"properties": {"headers": {"CC": ["s" * 1_025]}}},
            "a routing key in CC",
        ),
        ({"properties": {"type": "amqp-1.0"}}, "not an AMQP 1.0 body section"),
        ({"payload": "x" * (256 << 10)}, "the body is larger than"),
    ],
)
async def test_what_publish_refuses(http: Http, wrong: dict[str, Any], said: str) -> None:
    assert said in await http.reason("POST", PUBLISH, message(**wrong))
    assert await get(http) == []


async def test_a_server_without_room_answers_why(
    server: Harness, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(http)
    monkeypatch.setattr(type(server.host.find("s")), "alarm", "the disk is full")
    answer = await http.ask("POST", PUBLISH, message())
    assert (answer.status_code, answer.json()["reason"]) == (503, "the disk is full")


async def test_a_stream_that_finds_no_room_to_be_opened_is_not_available(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> Log:
        raise StorageError("open", "a file", OSError(errno.ENOSPC, "no room"))

    await http.code("PUT", "queues/%2F/full", {})
    monkeypatch.setattr(Log, "open", full)
    answer = await http.ask("GET", "stream/%2F/full/tracking")
    assert (answer.status_code, answer.json()["reason"]) == (503, "the disk is full")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
NAMES = st.sampled_from(list(PROPERTIES)) | st.text(max_size=5)


@given(st.dictionaries(NAMES, JSON | st.dictionaries(st.text(), JSON)), st.text(), st.text())
def test_whatever_json_says_is_published_or_refused(
    properties: dict[str, Any], key: str, payload: str
) -> None:
    body = message(payload, properties=properties, routing_key=key)
    try:
        found = _publication(Name("/"), Name(""), Name("guest"), body)
    except BadRequest:
        return
    assert delivered(found.message).body == payload.encode()

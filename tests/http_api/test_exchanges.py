"""The HTTP API: exchanges and bindings, as AMQP has them, and through definitions."""

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
from hypothesis import given, settings, strategies as st
from trio.testing import MockClock

from streamd.config import MAX_NAME_BYTES
from streamd.net.turns import Stepwise
from streamd.operations.routing import Binding
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.values import Field
from streamd.wire.stream import commands as c
from tests.support.amqp import AmqpPeer, Delivery, exchange, fields, open_peer
from tests.support.http import Http, add_user
from tests.support.server import OK, Harness, Peer, harness

LONG = "x" * (MAX_NAME_BYTES + 1)
BUILT_IN = ["", "amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.topic"]


async def declare(amqp: AmqpPeer, name: str, kind: str = "direct", **options: Any) -> None:
    await amqp.ask(exchange(name, kind, **options), m.ExchangeDeclareOk)


async def bind(amqp: AmqpPeer, source: str, queue: str, key: str = "", /, **arguments: Any) -> None:
    await amqp.ask(m.QueueBind(0, queue, source, key, False, fields(**arguments)), m.QueueBindOk)


async def bind_exchange(amqp: AmqpPeer, source: str, destination: str, key: str = "") -> None:
    await amqp.ask(m.ExchangeBind(0, destination, source, key, False, {}), m.ExchangeBindOk)


@pytest.fixture
async def amqp(server: Harness) -> AmqpPeer:
    return await open_peer(server)


# -- exchanges


async def test_all_exchanges_are_listed(http: Http, amqp: AmqpPeer) -> None:
    await declare(amqp, "plain")
    await declare(amqp, "passing", "fanout", durable=False, auto_delete=True)
    await declare(amqp, "inner", "topic", internal=True, alternate_exchange="plain")
    await declare(amqp, "super", x_super_stream=True)
    rows = await http.get("exchanges/%2F")
    assert [row["name"] for row in rows] == [*BUILT_IN, "inner", "passing", "plain", "super"]
    assert rows[0] == {
        "name": "",
        "vhost": "/",
        "type": "direct",
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "arguments": {},
    }
    assert [row["type"] for row in rows[1:6]] == ["direct", "fanout", "headers", "headers", "topic"]
    assert [row["arguments"] for row in rows[6:]] == [
        {"alternate-exchange": "plain"},
        {},
        {"x-super-stream": False},
        {"x-super-stream": True},
    ]
    flags = [(row["durable"], row["auto_delete"], row["internal"]) for row in rows[6:8]]
    assert flags == [(True, False, True), (False, True, False)]
    for row in rows:
        assert await http.get(f"exchanges/%2F/{row['name'] or 'amq.default'}") == row
    assert (await http.get("exchanges?page=1&name=in"))["filtered_count"] == 3
    overview = await http.get("overview")
    assert overview["object_totals"]["exchanges"] == len(rows)
    assert [kind["name"] for kind in overview["exchange_types"]] == [
        *("direct", "fanout", "topic", "headers")
    ]


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("options", [{}, {"auto_delete": True}, {"internal": "true"}])
async def test_what_is_declared_here_is_the_same_over_amqp(
    http: Http, amqp: AmqpPeer, kind: str, durable: bool, options: dict[str, Any]
) -> None:
    arguments = {"alternate-exchange": "amq.fanout"}
    body = {"type": kind, "durable": durable, **options, "arguments": arguments}
    assert await http.code("PUT", "exchanges/%2F/x", body) == 201
    assert await http.code("PUT", "exchanges/%2F/x", body) == 204
    flags = {name: bool(value) for name, value in options.items()}
    await declare(amqp, "x", kind, durable=durable, alternate_exchange="amq.fanout", **flags)
    other = {**body, "durable": not durable}
    assert "inequivalent arg 'durable'" in await http.reason("PUT", "exchanges/%2F/x", other)
    assert await http.code("DELETE", "exchanges/%2F/x") == 204
    await amqp.channel_fails(exchange("x", passive=True), 404)


async def test_what_becomes_a_super_stream(server: Harness, http: Http, amqp: AmqpPeer) -> None:
    plain = {"arguments": {"x-super-stream": False}}
    said = {"arguments": {"x-super-stream": True}}
    await http.ask("PUT", "exchanges/%2F/super", {})
    await http.ask("PUT", "exchanges/%2F/plain", plain)
    await http.ask("PUT", "exchanges/%2F/passing", {"durable": False})
    await declare(amqp, "of amqp")
    assert [row.name for row in server.host.super_streams.rows()] == ["super"]
    for name, again in (("super", said), ("plain", plain), ("of%20amqp", plain)):
        assert await http.code("PUT", f"exchanges/%2F/{name}", {}) == 204
        assert await http.code("PUT", f"exchanges/%2F/{name}", again) == 204
    for name, other in (("super", plain), ("plain", said)):
        told = await http.reason("PUT", f"exchanges/%2F/{name}", other)
        assert "inequivalent arg 'x-super-stream'" in told
    await declare(amqp, "super")
    await declare(amqp, "super", x_super_stream=True)
    told = "received 'True' but current is 'False'"
    await amqp.channel_fails(exchange("plain", x_super_stream=True), 406, told)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"type": "x-random"}, "invalid exchange type 'x-random'; there are direct, fanout,"),
        ({"type": 7}, "type is not a string"),
        ({"durable": 1}, "durable is '1', expected true or false"),
        ({"auto_delete": "perhaps"}, "auto_delete is 'perhaps', expected true or false"),
        ({"internal": None}, "internal is 'None', expected true or false"),
        ({"arguments": "x"}, "arguments is not a JSON object"),
        ({"arguments": {"alternate-exchange": 7}}, "alternate-exchange is not a string"),
        ({"arguments": {"alternate-exchange": LONG}}, "alternate-exchange has 1,025 bytes"),
        ({"arguments": {"x-super-stream": 7}}, "x-super-stream is '7', expected true or false"),
        ({"type": "topic", "arguments": {"x-super-stream": True}}, "a super stream is direct"),
        ({"durable": False, "arguments": {"x-super-stream": True}}, "a super stream is direct"),
    ],
)
async def test_exchanges_that_cannot_be(http: Http, body: Any, reason: str) -> None:
    assert reason in await http.reason("PUT", "exchanges/%2F/x", body)
    assert await http.code("GET", "exchanges/%2F/x") == 404


async def test_names_that_nobody_may_have(http: Http, amqp: AmqpPeer) -> None:
    for method, name, told in (
        ("PUT", "amq.new", "exchange name 'amq.new' contains reserved prefix 'amq.*'"),
        ("DELETE", "amq.direct", "exchange name 'amq.direct' contains reserved prefix 'amq.*'"),
        ("PUT", "amq.default", "operation not permitted on the default exchange"),
        ("DELETE", "amq.default", "operation not permitted on the default exchange"),
    ):
        answer = await http.ask(method, f"exchanges/%2F/{name}", {})
        assert (answer.status_code, answer.json()["reason"]) == (403, told)
    assert await http.code("PUT", "exchanges/%2F/amq.topic", {"type": "topic"}) == 204
    assert "has 1,025 bytes" in await http.reason("PUT", f"exchanges/%2F/{LONG}", {})
    await amqp.declare("s")
    for method, path in (("POST", ""), ("DELETE", "/s")):
        answer = await http.ask(method, f"bindings/%2F/e/amq.default/q/s{path}")
        assert (answer.status_code, answer.json()["error"]) == (403, "forbidden")


async def test_only_what_is_not_used_goes(http: Http, amqp: AmqpPeer) -> None:
    await amqp.declare("s")
    await declare(amqp, "x", "fanout")
    await http.ask("PUT", "exchanges/%2F/super", {})
    for name in ("x", "super"):
        path = f"exchanges/%2F/{name}?if-unused="
        await bind(amqp, name, "s", "k")
        assert "in use" in await http.reason("DELETE", path + "true")
        assert "if-unused is 'x'" in await http.reason("DELETE", path + "x")
        assert await http.code("DELETE", f"bindings/%2F/e/{name}/q/s/k") == 204
        assert await http.code("DELETE", path + "true") == 204
        assert await http.code("DELETE", path + "false") == 404


# -- bindings


async def test_bindings_of_all_kinds(http: Http, amqp: AmqpPeer) -> None:
    await amqp.declare("s")
    await declare(amqp, "x", "headers")
    await declare(amqp, "y", "topic", durable=False)
    arguments = {"x-match": "any", "a": 1, "b": "ä", "c": True, "d": None, "e": 1.5}
    body = {"routing_key": "", "arguments": arguments}
    answer = await http.ask("POST", "bindings/%2F/e/x/q/s", body)
    assert answer.status_code == 201
    key = answer.headers["location"].removeprefix("s/")
    row = await http.get(f"bindings/%2F/e/x/q/s/{key}")
    assert row == {
        "source": "x",
        "vhost": "/",
        "destination": "s",
        "destination_type": "queue",
        "routing_key": "",
        "arguments": arguments,
        "properties_key": row["properties_key"],
    }
    assert key.startswith("~")
    assert len(key) == 13
    answer = await http.ask("POST", "bindings/%2F/e/y/e/x", {"routing_key": "a.#"})
    assert answer.headers["location"] == "x/a.%2523"
    onward = {
        "source": "y",
        "vhost": "/",
        "destination": "x",
        "destination_type": "exchange",
        "routing_key": "a.#",
        "arguments": {},
        "properties_key": "a.%23",
    }
    default = {
        "source": "",
        "vhost": "/",
        "destination": "s",
        "destination_type": "queue",
        "routing_key": "s",
        "arguments": {},
        "properties_key": "s",
    }
    assert await http.get("bindings") == [default, row, onward]
    for path, found in (
        ("bindings/%2F/e/x/q/s", [row]),
        ("bindings/%2F/e/x/e/s", []),
        ("bindings/%2F/e/y/e/x", [onward]),
        ("bindings/%2F/e/amq.default/q/s", [default]),
        ("exchanges/%2F/x/bindings/source", [row]),
        ("exchanges/%2F/y/bindings/source", [onward]),
        ("exchanges/%2F/x/bindings/destination", [onward]),
        ("exchanges/%2F/s/bindings/destination", []),
        ("exchanges/%2F/amq.default/bindings/source", [default]),
        ("queues/%2F/s/bindings", [default, row]),
        ("bindings/%2F/e/x/z/s", None),
    ):
        answer = await http.ask("GET", path)
        assert (answer.json() if answer.status_code == 200 else None) == found, path
    headers = fields(b="ä")
    await amqp.publish("a.b", b"body", exchange="y", headers=headers, mandatory=True)
    await amqp.silence()  # it went somewhere
    assert await http.code("DELETE", "bindings/%2F/e/y/e/x/a.%23") == 204
    assert await http.code("DELETE", "bindings/%2F/e/y/e/x/a.%23") == 404
    await amqp.publish("a.b", b"body", exchange="y", headers=headers, mandatory=True)
    assert (await amqp.expect(Delivery)).method.code == 312


KEYS = ["", "~", "k", "k~", "k/%", "a b+c", "a%20b", "#.*", "ü", "k~hash"]


async def test_every_binding_goes_by_its_properties_key(http: Http, amqp: AmqpPeer) -> None:
    await amqp.declare("s")
    await declare(amqp, "x", "topic")
    for key in KEYS:
        await http.ask("POST", "bindings/%2F/e/x/q/s", {"routing_key": key})
        for a in (1, 1.0, True, "1"):  # four bindings, however equal Python finds some
            body = {"routing_key": key, "arguments": {"a": a}}
            await http.ask("POST", "bindings/%2F/e/x/q/s", body)
    path = "bindings/%2F/e/x/q/s"
    rows = await http.get(path)
    assert len(rows) == len({row["properties_key"] for row in rows}) == 5 * len(KEYS)
    assert next(row for row in rows if not row["routing_key"])["properties_key"] == "~"
    while rows:
        gone = rows.pop(len(rows) // 2)
        key = gone["properties_key"].replace("%", "%25")
        assert await http.get(f"{path}/{key}") == gone
        assert await http.code("DELETE", f"{path}/{key}") == 204
        assert await http.get(path) == rows


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("x/q/s", {"routing_key": 7}, 400, "routing_key is not a string"),
        ("x/q/s", {"routing_key": LONG}, 400, "a routing key has 1,025 bytes"),
        ("x/q/s", {"arguments": 7}, 400, "arguments is not a JSON object"),
        ("x/q/s", {"arguments": {"a": [1]}}, 400, "argument 'a' is not a string, number, true"),
        ("x/q/s", {"arguments": {"a": {}}}, 400, "argument 'a' is not a string, number, true"),
        ("x/q/s", {"arguments": {"a": "x" * 1024}}, 400, "expected at most 1,024"),
        ("none/q/s", {}, 404, "no exchange 'none' in vhost '/'"),
        ("x/q/none", {}, 404, "no queue 'none' in vhost '/'"),
        ("x/e/none", {}, 404, "no exchange 'none' in vhost '/'"),
        ("x/e/amq.default", {}, 403, "not permitted on the default exchange"),
        *(
            ("i/q/s", {"arguments": {"x-stream-partition-order": order}}, 400, "expected a number")
            for order in ("first", "", 1 << 31, 10**30, "9" * 5000)
        ),
    ],
)
async def test_bindings_that_cannot_be(
    http: Http, amqp: AmqpPeer, path: str, body: Any, status: int, reason: str
) -> None:
    await amqp.declare("s")
    await declare(amqp, "x", "headers")
    await http.ask("PUT", "exchanges/%2F/i", {})
    answer = await http.ask("POST", f"bindings/%2F/e/{path}", body)
    assert (answer.status_code, reason in answer.text) == (status, True), answer.text
    assert len(await http.get("bindings")) == 1


async def test_arguments_that_json_cannot_say(http: Http, amqp: AmqpPeer) -> None:
    await amqp.declare("s")
    for field in (Field("S", b"\xff"), Field("x", b"\xc3\xff")):
        wrong = m.QueueBind(0, "s", "amq.headers", "", False, {"a": field})
        await amqp.channel_fails(wrong, 406, "the binding's argument 'a' is not UTF-8 text")
        await amqp.open()
    wrong = m.QueueBind(0, "s", "amq.headers", "", False, {"a": Field("d", float("inf"))})
    await amqp.channel_fails(wrong, 406, "'a' is inf, expected a finite number")
    assert len(await http.get("bindings")) == 1


async def test_who_may_bind(server: Harness, http: Http, amqp: AmqpPeer) -> None:
    await add_user(server, "ada", "management", patterns="^(mine|q)")
    await amqp.declare("q")
    for name in ("mine", "mine2", "theirs"):
        await declare(amqp, name, "fanout")
    for path, code in (
        ("mine/q/q", 201),
        ("mine/e/mine2", 201),
        ("theirs/q/q", 401),
        ("mine/e/theirs", 401),
        ("theirs/e/mine", 401),
    ):
        assert await http.code("POST", f"bindings/%2F/e/{path}", {}, user="ada") == code, path
        removed = await http.code("DELETE", f"bindings/%2F/e/{path}/~", user="ada")
        assert removed == (204 if code == 201 else 401)


# -- super streams


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_super_streams_from_exchanges_and_bindings(
    http: Http, peer: Peer, order: tuple[int, ...]
) -> None:
    assert await http.code("PUT", "exchanges/%2F/i", {"type": "direct"}) == 201
    assert await http.code("PUT", "exchanges/%2F/i", {}) == 204
    for number in order:
        await http.ask("PUT", f"queues/%2F/i-{number}", {})
        arguments = {"x-stream-partition-order": str(number)}
        body = {"routing_key": f"k{number}", "arguments": arguments}
        assert await http.code("POST", f"bindings/%2F/e/i/q/i-{number}", body) == 201
    assert (await peer.ask(c.Partitions, "i")).streams == ("i-0", "i-1", "i-2")
    assert (await peer.ask(c.Route, "k1", "i")).streams == ("i-1",)
    bindings = await http.get("exchanges/%2F/i/bindings/source")
    assert [row["destination"] for row in bindings] == ["i-0", "i-1", "i-2"]
    assert [row["arguments"]["x-stream-partition-order"] for row in bindings] == [0, 1, 2]
    assert await http.get("bindings/%2F/e/i/q/i-1") == [bindings[1]]
    assert bindings[1] in await http.get("queues/%2F/i-1/bindings")
    assert await http.code("DELETE", "bindings/%2F/e/i/q/i-1/k1") == 204
    assert await http.code("DELETE", "bindings/%2F/e/i/q/i-1/k1") == 404
    assert (await peer.ask(c.Partitions, "i")).streams == ("i-0", "i-2")
    key = bindings[2]["properties_key"]
    assert await http.code("DELETE", f"bindings/%2F/e/i/q/i-2/{key}") == 204
    assert (await peer.ask(c.Partitions, "i")).streams == ("i-0",)
    assert await http.code("DELETE", "exchanges/%2F/i") == 204
    assert await http.code("DELETE", "exchanges/%2F/i") == 404
    assert await peer.code(c.StreamStats, "i-0") == OK


async def test_bindings_without_an_order_come_last(http: Http, peer: Peer) -> None:
    await http.ask("PUT", "exchanges/%2F/i", {})
    for name, order in (("a", 5), ("b", None), ("c", 5), ("d", 0), ("a", 5), ("a", None)):
        await http.ask("PUT", f"queues/%2F/{name}", {})
        arguments = {} if order is None else {"x-stream-partition-order": order}
        body = {"routing_key": name, "arguments": arguments}
        assert await http.code("POST", f"bindings/%2F/e/i/q/{name}", body) == 201
    assert (await peer.ask(c.Partitions, "i")).streams == ("d", "a", "b", "c")


async def test_a_super_stream_can_lead_to_exchanges_that_look_at_headers(
    server: Harness, amqp: AmqpPeer
) -> None:
    for name in ("p", "q"):
        await amqp.declare(name)
    await declare(amqp, "super", x_super_stream=True)
    await bind_exchange(amqp, "super", "amq.headers", "k")
    await bind(amqp, "amq.headers", "p", a=1)
    await bind(amqp, "amq.headers", "q", a=2)
    for a in (1, 2, 2):
        await amqp.store("k", b"body", exchange="super", headers=fields(a=a))
    assert [server.host.find(name).log.committed_offset for name in ("p", "q")] == [1, 2]


@pytest.mark.parametrize("whole", [True, False])
async def test_nothing_leads_to_a_super_stream_that_is_gone(tmp_path: Path, whole: bool) -> None:
    async with harness(tmp_path) as server:
        http, amqp, peer = Http(server), await open_peer(server), await server.peer()
        assert await peer.code(c.CreateSuperStream, "i", ("p",), ("a",), ()) == OK
        await bind_exchange(amqp, "amq.fanout", "i")
        assert len(await http.get("exchanges/%2F/i/bindings/destination")) == 1
        if whole:
            assert await peer.code(c.DeleteSuperStream, "i") == OK
        else:
            assert await http.code("DELETE", "exchanges/%2F/i") == 204
        assert await http.get("exchanges/%2F/i/bindings/destination") == []
    for _ in range(2):
        async with harness(tmp_path) as server:
            await Http(server).ask("PUT", "exchanges/%2F/i", {})
            assert await Http(server).get("exchanges/%2F/i/bindings/destination") == []


async def test_dangling_bindings_in_a_catalog_are_ignored(tmp_path: Path) -> None:
    async with harness(tmp_path) as server:
        binding = Binding("/", "amq.fanout", "gone", True, "", {})
        server.server.broker.catalog._catalog.apply(lambda rows: rows.put_binding(binding))
    async with harness(tmp_path) as server:
        assert await Http(server).get("bindings") == []
        assert (await Http(server).get("definitions"))["bindings"] == []


# -- definitions


async def test_what_is_not_durable_stays_out(http: Http, amqp: AmqpPeer) -> None:
    await amqp.declare("s")
    await declare(amqp, "kept", "fanout")
    await declare(amqp, "passing", "fanout", durable=False)
    for source in ("kept", "passing", "amq.fanout"):
        await bind(amqp, source, "s")
        for destination in ("kept", "passing"):
            await bind_exchange(amqp, source, destination)
    document = await http.get("definitions")
    assert [row["name"] for row in document["exchanges"]] == ["kept"]
    found = [(row["source"], row["destination"]) for row in document["bindings"]]
    assert sorted(found) == [
        *(("amq.fanout", "kept"), ("amq.fanout", "s")),
        *(("kept", "kept"), ("kept", "s")),
    ]


STREAMS, EXCHANGES = ("s0", "s1", "s2"), ("x0", "x1", "x2", "x3")
SOURCES = (*EXCHANGES, *BUILT_IN[1:])
WORDS = ("", "a", "b", "a.b", "b.a.a")
PATTERNS = (*WORDS, "#", "*", "a.#", "*.b")
VALUES = (1, 2, True, "a", "", Field("d", 1.0), Field("f", 0.5), Field("V", None))


class Declared(NamedTuple):
    """An exchange, and what it is declared with."""

    kind: str
    options: dict[str, Any]


class Bound(NamedTuple):
    """A binding, to a stream or an exchange."""

    source: str
    destination: str
    key: str
    arguments: dict[str, Any]


_flags = st.fixed_dictionaries(
    {},
    optional={
        "durable": st.just(False),
        "auto_delete": st.just(True),
        "internal": st.just(True),
        "alternate_exchange": st.sampled_from(SOURCES),
        "x_super_stream": st.booleans(),
    },
)
_declared = st.builds(
    Declared,
    st.sampled_from(("direct", "direct", "fanout", "topic", "headers")),
    st.one_of(st.sampled_from(({}, {"x_super_stream": True})), _flags),
)
_arguments = st.dictionaries(
    st.sampled_from(("a", "b", "x-c", "x_stream_partition_order")), st.sampled_from(VALUES[:3])
) | st.fixed_dictionaries(
    {"x_match": st.sampled_from(("all", "any", "any-with-x"))},
    optional={"a": st.sampled_from(VALUES), "b": st.sampled_from(VALUES)},
)
_bound = st.builds(
    Bound,
    st.sampled_from(SOURCES),
    st.sampled_from((*STREAMS, *EXCHANGES)),
    st.sampled_from(PATTERNS),
    _arguments,
)


def ways(server: Harness) -> dict[tuple[object, ...], set[str]]:
    """Where messages with all sorts of keys and headers go from all exchanges."""
    exchanges = server.host.topology
    headers: list[dict[str, Any]] = [{}, {"a": 1}, {"a": True, "b": 2}, {"x-c": 2}, {"b": "a"}]
    return {
        (row.name, key, number): set(Stepwise(exchanges.reach(row.name, [key], which)).result)
        for row in exchanges.rows()
        for key in WORDS
        for number, which in enumerate(headers)
    }


def test_an_import_is_what_a_restart_would_leave(tmp_path: Path) -> None:
    counter = itertools.count()

    async def check(declared: list[Declared], bound: list[Bound]) -> None:
        folder = tmp_path / str(next(counter))
        async with harness(folder / "one") as server:
            amqp = await open_peer(server)
            for name in STREAMS:
                await amqp.declare(name)
            for name, (kind, options) in zip(EXCHANGES, declared, strict=False):
                await declare(amqp, name, kind, **options)
            for source, destination, key, arguments in bound:
                if not {source, destination} <= {
                    *STREAMS,
                    *SOURCES[4:],
                    *EXCHANGES[: len(declared)],
                }:
                    continue
                if destination in STREAMS:
                    await bind(amqp, source, destination, key, **arguments)
                else:
                    table = fields(**arguments)
                    method = m.ExchangeBind(0, destination, source, key, False, table)
                    await amqp.ask(method, m.ExchangeBindOk)
            exported, before = await Http(server).get("definitions"), ways(server)
        async with harness(folder / "one") as server:
            restarted = ways(server)
            kept = list(server.host.super_streams.rows())
        if all(options.get("durable", True) for _, options in declared):
            assert restarted == before
        async with harness(folder / "two") as server:
            for _ in range(2):  # what is there stays as it is
                assert await Http(server).code("POST", "definitions", exported) == 204
            assert ways(server) == restarted
            assert list(server.host.super_streams.rows()) == kept
            assert await Http(server).get("definitions") == exported

    @settings(max_examples=25)
    @given(st.lists(_declared, min_size=2, max_size=4), st.lists(_bound, max_size=12))
    def run(declared: list[Declared], bound: list[Bound]) -> None:
        trio.run(check, declared, bound, clock=MockClock(autojump_threshold=0))

    run()


async def test_the_answer_names_what_an_import_leaves_out(http: Http) -> None:
    vhost = {"vhost": "/"}
    super_stream = {"x-super-stream": True}
    document = {
        "queues": [{"name": "q", "type": "stream", **vhost}],
        "exchanges": [
            {"name": "t", "type": "topic", **vhost},
            {"name": "random", "type": "x-random", **vhost},
            {"name": "super", "type": "fanout", "arguments": super_stream, **vhost},
            {"name": "amq.rabbitmq.log", "type": "topic", **vhost},
            {"name": "", "type": "direct", **vhost},
        ],
        "bindings": [
            {"source": "t", "destination": destination, "destination_type": kind, **more, **vhost}
            for destination, kind, more in (
                ("q", "queue", {"routing_key": "a"}),
                ("none", "queue", {}),
                ("random", "exchange", {}),
                ("q", "topic", {}),
                ("q", "queue", {"arguments": {"a": []}}),
            )
        ]
        + [
            {"source": "random", "destination": "q", "destination_type": "queue", **vhost},
            {"source": "", "destination": "q", "destination_type": "queue", **vhost},
        ],
    }
    answer = await http.ask("POST", "definitions", document)
    told = [
        "exchange random: invalid exchange type 'x-random'; there are direct,",
        "exchange super: x-super-stream is true: a super stream is direct and durable,",
        "binding t to none: no queue 'none'",
        "binding t to random: no exchange 'random'",
        "binding t to q: its destination_type is neither queue nor exchange",
        "binding t to q: the binding's argument 'a' is not a string, number, true, false or null",
        "binding random to q: no exchange 'random'",
    ]
    left_out = answer.json()["left_out"]
    assert [row[: len(one)] for row, one in zip(left_out, told, strict=True)] == told
    assert [row["routing_key"] for row in await http.get("bindings")] == ["q", "a"]

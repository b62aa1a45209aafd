"""Filter contracts, standing selectors, and filters that find nothing: the server's part."""

import json
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from segments.codec import FILE_HEADER_SIZE, decode_blocks, decode_chunk_header
from segments.compression import GZIP, NO_COMPRESSION, pack
from segments.format_constants import FILTER_VALUE
from segments.message import Message
from streamd.broker.catalog.catalog import CatalogError
from streamd.broker.declared.standing_selectors import (
    MAX_GROUPS,
    TOKEN_PREFIX,
    StandingSelectors,
    parse_standing,
)
from streamd.operations.errors import Reason, Refused
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import Pair
from streamd.wire.stream.publish import encode_sub_batch
from tests.auth.test_users import manage, must
from tests.support.held_work import hold_work
from tests.support.server import FIRST, Harness, Peer, harness, with_peer

OK, PRECONDITION = ResponseCode.OK, ResponseCode.PRECONDITION_FAILED
DERIVE = {"stream_filter_property": "carrier", "stream_filter_derive": "true"}
STRICT = {
    "stream_filter_property": "carrier",
    "stream_filter_contract": "strict",
    "stream_filter_derive": "false",
}


def flight(carrier: object, delay: int = 0) -> bytes:
    properties = {"dep_delay": delay} if carrier is None else {"carrier": carrier, "d": delay}
    return Message(b"x", application_properties=properties).encode()


def history(server: Harness) -> list[dict[bytes, int]]:
    """Filter values with their counts, chunk by chunk, as the trailers have them."""
    found = []
    (file,) = (server.data / "streams").glob("*/s/*.segment")
    raw = file.read_bytes()
    position = FILE_HEADER_SIZE
    while position < len(raw):
        header = decode_chunk_header(raw, position)
        end = position + header.total_size
        blocks = decode_blocks(raw[end - header.trailer_size : end])
        found.append({b.id: b.value for b in blocks if b.kind == FILTER_VALUE})
        position = end
    return found


async def read_bodies(peer: Peer, count: int, **properties: str) -> list[bytes]:
    await peer.subscribe("s", subscription_id=9, credit=100, **properties)
    return await peer.bodies(count)


class TestDerived:
    async def test_from_messages_without_a_value(self, server: Harness, peer: Peer) -> None:
        await peer.begin("s", **DERIVE)
        await peer.store([flight("HA"), flight(None), flight("UA"), b"no message", flight(5)])
        assert history(server) == [{b"HA": 1, b"UA": 1, b"": 3}]

    async def test_a_value_that_was_given_stays(self, server: Harness, peer: Peer) -> None:
        await peer.begin("s", **DERIVE)
        await peer.store([flight("HA"), flight("HA")], values=[b"other", b""])
        assert history(server) == [{b"other": 1, b"HA": 1}]

    @pytest.mark.parametrize("compression", [NO_COMPRESSION, GZIP])
    async def test_from_sub_batches(self, server: Harness, peer: Peer, compression: int) -> None:
        """Compression and filtering together, for a client that knows of neither."""
        await peer.begin("s", **DERIVE)
        bodies = [flight("HA"), flight("UA"), flight("HA"), flight(None)]
        for number, carriers in ((1, bodies), (2, [flight("DL")] * 3)):
            packed, size = pack(carriers, compression)
            entry = encode_sub_batch(number, len(carriers), compression, size, packed)
            await peer.send(c.Publish(1, 1, entry))
        await peer.confirmed(2)
        assert history(server) == [{b"HA": 2, b"UA": 1, b"": 1}, {b"DL": 3}]
        await peer.subscribe("s", filter__0="DL")
        chunk = await peer.next()
        assert isinstance(chunk, c.Deliver)
        await peer.silence()

    async def test_a_sub_batch_that_cannot_be_unpacked(self, server: Harness, peer: Peer) -> None:
        await peer.begin("s", **DERIVE)
        await peer.send(c.Publish(1, 1, encode_sub_batch(1, 2, GZIP, 100, b"no gzip")))
        await peer.confirmed(1)
        assert history(server) == [{}]

    async def test_for_duplicates_too(self, server: Harness, peer: Peer) -> None:
        await peer.begin("s", reference="p", **DERIVE)
        await peer.store([flight("HA"), flight("UA")])
        await peer.publish([flight("UA"), flight("DL")], first_id=2)
        await peer.confirmed(2)
        assert history(server) == [{b"HA": 1, b"UA": 1}, {b"DL": 1}]


class TestDeclared:
    """A filter property by itself."""

    MESSAGES = (flight("HA"), flight("UA"), flight(None))
    PLAIN: ClassVar = {"stream-filter-property": "carrier"}

    async def put(self, peer: Peer, first_id: int = 1) -> None:
        await peer.store(self.MESSAGES, first_id, values=[b"", b"given", b""])

    async def test_is_filled(self, server: Harness, peer: Peer) -> None:
        await peer.begin("s", stream_filter_property="carrier")
        await self.put(peer)
        packed, size = pack([flight("DL")] * 2, GZIP)
        await peer.send(c.Publish(1, 1, encode_sub_batch(9, 2, GZIP, size, packed)))
        await peer.confirmed(1)
        assert history(server) == [{b"HA": 1, b"given": 1, b"": 1}, {b"DL": 2}]

    @pytest.mark.parametrize(
        "arguments",
        [{}, {"stream_filter_property": "carrier", "stream_filter_derive": "false"}],
        ids=["without a property", "where that was declared"],
    )
    async def test_is_not_filled(
        self, server: Harness, peer: Peer, arguments: dict[str, str]
    ) -> None:
        await peer.begin("s", **arguments)
        await self.put(peer)
        assert history(server) == [{b"given": 1, b"": 2}]

    async def test_in_the_partitions_of_a_super_stream(self, server: Harness, peer: Peer) -> None:
        pairs = (Pair("stream-filter-property", "carrier"),)
        assert await peer.code(c.CreateSuperStream, "all", ("s",), ("key",), pairs) == OK
        await peer.declare("s")
        await self.put(peer)
        assert history(server) == [{b"HA": 1, b"given": 1, b"": 1}]

    async def test_a_stream_of_before_stays_as_it_is(self, tmp_path: Path) -> None:
        """Then a property by itself filled nothing; its arguments were kept as they were typed."""
        async with harness(tmp_path) as server:
            await (await server.peer()).create("s", stream_filter_property="carrier")
        with closing(sqlite3.connect(tmp_path / "catalog.sqlite")) as catalog, catalog:
            catalog.execute("UPDATE streams SET arguments = ?", [json.dumps(self.PLAIN)])
        async with with_peer(tmp_path) as (server, peer):
            await peer.declare("s")
            await self.put(peer)
            assert history(server) == [{b"given": 1, b"": 2}]
            assert server.host.arguments("s") == self.PLAIN
            same = tuple(Pair(*item) for item in self.PLAIN.items())
            assert await peer.code(c.Create, "s", same) == ResponseCode.STREAM_EXISTS
            other = (*same, Pair("stream-filter-derive", "true"))
            assert await peer.code(c.Create, "s", other) == PRECONDITION

    @pytest.mark.parametrize("first", [{}, {"stream-filter-derive": "true"}])
    @pytest.mark.parametrize("second", [{}, {"stream-filter-derive": "true"}])
    async def test_said_or_not_it_is_the_same_declaration(
        self, peer: Peer, first: dict[str, str], second: dict[str, str]
    ) -> None:
        pairs = [
            tuple(Pair(*item) for item in (self.PLAIN | more).items()) for more in (first, second)
        ]
        assert await peer.code(c.Create, "s", pairs[0]) == OK
        assert await peer.code(c.Create, "s", pairs[1]) == ResponseCode.STREAM_EXISTS
        off = (*pairs[0][:1], Pair("stream-filter-derive", "false"))
        assert await peer.code(c.Create, "s", off) == PRECONDITION


class TestStrict:
    @pytest.mark.parametrize(
        ("carrier", "value", "is_taken"),
        [
            ("HA", b"HA", True),
            ("HA", b"UA", False),
            ("HA", b"", False),
            (None, b"", True),
            (None, b"HA", False),
            ("", b"", True),
            (5, b"", True),
            (5, b"5", False),
            (b"HA", b"HA", True),
        ],
    )
    async def test_another_value_is_refused(
        self, peer: Peer, carrier: object, value: bytes, is_taken: bool
    ) -> None:
        await peer.begin("s", **STRICT)
        bodies = [flight("AA"), flight(carrier), flight("BB")]
        await peer.publish(bodies, values=[b"AA", value, b"BB"])
        if not is_taken:
            refused = await peer.expect(c.PublishError)
            assert [tuple(fault) for fault in refused.faults] == [(2, PRECONDITION)]
        assert sorted(await peer.confirmed(2 + is_taken)) == [1, 2, 3] if is_taken else [1, 3]

    async def test_without_values(self, peer: Peer) -> None:
        await peer.begin("s", **STRICT)
        await peer.publish([flight("HA")])
        assert (await peer.expect(c.PublishError)).faults[0][0] == 1
        await peer.store([flight(None)], first_id=2)
        packed, size = pack([flight(None), flight("HA")], GZIP)
        await peer.send(c.Publish(1, 1, encode_sub_batch(5, 2, GZIP, size, packed)))
        assert (await peer.expect(c.PublishError)).faults[0][0] == 5

    async def test_with_deriving_none_are_missing(self, peer: Peer) -> None:
        await peer.begin("s", **STRICT | {"stream_filter_derive": "true"})
        await peer.store([flight("HA"), flight(None)])
        await peer.publish([flight("HA")], first_id=3, values=[b"UA"])
        assert (await peer.expect(c.PublishError)).faults[0][0] == 3


@pytest.mark.parametrize(
    "arguments",
    [
        {"stream-filter-property": ""},
        {"stream-filter-property": "properties.colour"},
        {"stream-filter-property": "x" * 256},
        {"stream-filter-property": "a\nb"},
        {"stream-filter-contract": "strict"},
        {"stream-filter-derive": "true"},
        {"stream-filter-property": "p", "stream-filter-contract": "loose"},
        {"stream-filter-property": "p", "stream-filter-derive": "yes"},
    ],
)
async def test_bad_arguments(peer: Peer, arguments: dict[str, str]) -> None:
    pairs = tuple(Pair(*item) for item in arguments.items())
    assert await peer.code(c.Create, "s", pairs) == PRECONDITION


async def register(peer: Peer, group: str = "g", text: str = "d > 5", **more: str) -> None:
    await must(peer, "selector.add", stream="s", group=group, text=text, **more)


class TestStanding:
    async def test_its_consumers_skip_chunks_without_a_match(self, peer: Peer) -> None:
        await peer.begin("s")
        await peer.store([flight("HA", 9)])
        await peer.store([flight("HA", 1)], first_id=2)
        await register(peer)
        for number, delay in enumerate((1, 7, 2, 8), 3):
            await peer.store([flight("HA", 0), flight("HA", delay)], first_id=2 * number)
        got = await read_bodies(peer, 6, selector_group="g")
        before = [flight("HA", 9), flight("HA", 1)]  # whatever is in them
        assert got == [*before, flight("HA"), flight("HA", 7), flight("HA"), flight("HA", 8)]
        await peer.silence()

    async def test_on_sub_batches(self, peer: Peer) -> None:
        await peer.begin("s")
        await register(peer)
        for number, delay in ((1, 1), (2, 9)):
            packed, size = pack([flight("HA"), flight("HA", delay)], GZIP)
            await peer.send(c.Publish(1, 1, encode_sub_batch(number, 2, GZIP, size, packed)))
        await peer.confirmed(2)
        await peer.subscribe("s", selector_group="g", credit=5)
        delivered = await peer.next()
        assert isinstance(delivered, c.Deliver)
        assert int.from_bytes(delivered.chunk[24:32], "big") == 2
        await peer.silence()

    async def test_tokens_are_in_the_history_and_in_no_message(
        self, server: Harness, peer: Peer
    ) -> None:
        await peer.begin("s")
        await register(peer)
        await register(peer, "same", "(d > 5)")
        await peer.store([flight("HA", 9)])
        (found,) = history(server)
        assert len(found) == 2
        assert [value for value in found if value.startswith(TOKEN_PREFIX)]

    async def test_survive_a_restart(self, tmp_path: Path) -> None:
        async with with_peer(tmp_path) as (_, peer):
            await peer.begin("s")
            await register(peer, text="TAGS = 'a'")
            await register(peer, "t", "a || b", dialect="tags")
        async with with_peer(tmp_path) as (_, peer):
            await peer.declare("s")
            tagged = [Message(b"x", application_properties={"TAGS": t}).encode() for t in "abc"]
            for number, body in enumerate(tagged):
                await peer.store([body], first_id=number)
            assert await read_bodies(peer, 1, selector_group="g") == tagged[:1]
            await peer.code(c.Unsubscribe, 9)
            assert await read_bodies(peer, 2, selector_group="t") == tagged[:2]
            rows = await must(peer, "selector.list", stream="s")
            assert [(r["group"], r["text"], r["consumers"]) for r in rows] == [
                ("g", "TAGS = 'a'", "0"),
                ("t", "a || b", "1"),
            ]

    async def test_go_with_their_stream(self, peer: Peer) -> None:
        await peer.create("s")
        await register(peer)
        assert await peer.code(c.Delete, "s") == OK
        await peer.create("s")
        assert await must(peer, "selector.list", stream="s") == []

    async def test_another_selector_is_another_token(self, server: Harness, peer: Peer) -> None:
        await peer.begin("s")
        await register(peer)
        await peer.store([flight("HA", 9)])
        await register(peer, text="d > 7")
        assert server.host.find("s").standing.rows()[0].since == 1
        await peer.store([flight("HA", 6)], first_id=2)
        await peer.store([flight("HA", 8)], first_id=3)
        got = await read_bodies(peer, 2, selector_group="g")
        assert got == [flight("HA", 9), flight("HA", 8)]

    async def test_stay_while_consumers_rely_on_them(self, peer: Peer) -> None:
        await peer.create("s")
        await register(peer)
        await register(peer)  # the same again changes nothing
        await peer.subscribe("s", selector_group="g")
        for operation, text in (("selector.add", "d > 6"), ("selector.delete", "")):
            answer = await manage(peer, operation, stream="s", group="g", text=text)
            assert answer.code == PRECONDITION
            assert "1 consumers of group g" in answer.reason
        assert await peer.code(c.Unsubscribe, 1) == OK
        await must(peer, "selector.delete", stream="s", group="g")
        answer = await manage(peer, "selector.delete", stream="s", group="g")
        assert "no standing selector" in answer.reason

    async def test_nobody_comes_to_rely_on_one_that_is_being_removed(
        self, server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await peer.create("s")
        await register(peer)
        other = await server.peer()
        commit = hold_work(monkeypatch)
        arguments = (Pair("stream", "s"), Pair("group", "g"))
        await peer.send(c.Manage(9, "selector.delete", arguments))
        await commit.has_begun.wait()
        group = (Pair("selector-group", "g"),)
        assert await other.code(c.Subscribe, 1, "s", FIRST, 1, group) == PRECONDITION
        commit.goes_on.set()
        assert (await peer.expect(c.ManageResponse)).code == OK
        assert await other.code(c.Subscribe, 1, "s", FIRST, 1, group) == PRECONDITION

    @pytest.mark.parametrize("is_refused", [True, False])
    async def test_what_is_written_during_a_change_is_marked_for_the_new_one(
        self, server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch, is_refused: bool
    ) -> None:
        """Or for the old one, where the change is refused."""
        await peer.create("s")
        await register(peer)
        other = await server.publisher("s")
        arguments = (Pair("stream", "s"), Pair("group", "g"), Pair("text", "d < 2"))
        error = CatalogError("database or disk is full") if is_refused else None
        with monkeypatch.context() as patched:
            commit = hold_work(patched, error=error)
            await peer.send(c.Manage(9, "selector.add", arguments))
            await commit.has_begun.wait()
            await other.store([flight("HA", 9 if is_refused else 1)])
            commit.goes_on.set()
            assert ((await peer.expect(c.ManageResponse)).code != OK) is is_refused
        await other.store([flight("HA", 1 if is_refused else 9)], first_id=2)
        await other.store([flight("HA", 8 if is_refused else 0)], first_id=3)
        with trio.fail_after(5):
            got = await read_bodies(peer, 2, selector_group="g")
        assert (
            got == [flight("HA", 9), flight("HA", 8)]
            if is_refused
            else [
                flight("HA", 1),
                flight("HA", 0),
            ]
        )

    async def test_a_consumer_that_expects_another_one(self, peer: Peer) -> None:
        """The same text means something else in another dialect."""
        await peer.create("s")
        await register(peer, text="NOT (d > 5)", dialect="rocketmq")
        (row,) = await must(peer, "selector.list", stream="s")
        group, same = Pair("selector-group", "g"), Pair("selector", row["text"])
        for text, dialect, code in (
            ("d > 6", "rocketmq", PRECONDITION),
            (same.value, "union", PRECONDITION),
            (same.value, "rocketmq", OK),
        ):
            asked = (group, Pair("selector", text), Pair("selector-dialect", dialect))
            assert await peer.code(c.Subscribe, 1, "s", FIRST, 1, asked) == code

    async def test_a_consumer_that_leaves_without_a_word(self, server: Harness, peer: Peer) -> None:
        await peer.create("s")
        await register(peer)
        other = await server.consumer("s", selector_group="g")
        await other.vanish()
        await peer.silence()
        await must(peer, "selector.delete", stream="s", group="g")

    async def test_one_that_cannot_be_read_matches_everything(self, tmp_path: Path) -> None:
        """Another version of this program has registered it, say."""
        async with with_peer(tmp_path) as (_, peer):
            for name in ("s", "other"):
                await peer.create(name)
            await register(peer)
        with closing(sqlite3.connect(tmp_path / "catalog.sqlite")) as catalog, catalog:
            catalog.execute("UPDATE standing_selectors SET text = 'd > > 5'")
        async with with_peer(tmp_path) as (server, peer):
            await peer.declare("s")
            await peer.store([flight("HA", 1)], 1)
            await peer.store([flight("HA", 9)], 2)
            got = await read_bodies(peer, 2, selector_group="g")
            assert got == [flight("HA", 1), flight("HA", 9)]
            await peer.code(c.Unsubscribe, 9)
            await register(peer, text="d > 8")
            await peer.store([flight("HA", 1)], 3)
            await peer.store([flight("HA", 9)], 4)
            assert not history(server)[2]
            assert len(history(server)[3]) == 2

    async def test_one_for_a_stream_that_was_deleted_is_not_that_of_its_successor(
        self, server: Harness, peer: Peer
    ) -> None:
        await peer.begin("s")
        await peer.store([flight("HA", 9)] * 5)
        host = server.host
        name = host.find("s").name
        refused: list[Reason] = []

        async def put() -> None:
            try:
                await host.settings.put_selector(name, parse_standing("g", "union", "d > 5"))
            except Refused as error:
                refused.append(error.reason)

        async with trio.open_nursery() as nursery, server.server.broker.catalog.turn():
            for change in (partial(host.delete, name, list), partial(host.create, name, ()), put):
                nursery.start_soon(change)
                await wait_all_tasks_blocked()
        assert refused == [Reason.NOT_FOUND]
        assert host.find("s").standing.rows() == []

    async def test_a_consumer_with_another_selector(self, peer: Peer) -> None:
        await peer.create("s")
        await register(peer)

        async def code(**properties: str) -> int:
            pairs = tuple(Pair(key.replace("_", "-"), v) for key, v in properties.items())
            return await peer.code(c.Subscribe, 1, "s", FIRST, 1, pairs)

        assert await code(selector_group="g", selector="d > 6") == PRECONDITION
        assert await code(selector_group="other") == PRECONDITION
        assert await code(selector_group="g", selector="d > 5") == OK

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            ({"text": "d = "}, "column 5"),
            ({"text": "d > UTC()"}, "UTC()"),
            ({"text": "d > 1", "dialect": "sql"}, "there is no dialect 'sql'"),
            ({"text": " ", "dialect": "tags"}, "no tag is named"),
            ({"text": ""}, "a condition is expected"),
            ({"text": "a='" + "x" * 4092 + "'"}, "characters"),
            ({"text": "d > 1", "group": ""}, "group is missing"),
            ({"text": " OR ".join(["d > 1"] * 40)}, "121 parts, expected at most 100"),
        ],
    )
    async def test_refused(self, peer: Peer, arguments: dict[str, str], reason: str) -> None:
        await peer.create("s")
        answer = await manage(peer, "selector.add", **({"stream": "s", "group": "g"} | arguments))
        assert answer.code == PRECONDITION
        assert reason in answer.reason

    async def test_no_more_than_a_writer_can_bear(self, peer: Peer) -> None:
        await peer.create("s")
        for number in range(MAX_GROUPS):
            await register(peer, f"g{number}", f"d > {number}")
        answer = await manage(peer, "selector.add", stream="s", group="one", text="d > 99")
        assert "no more can" in answer.reason

    @pytest.mark.parametrize(("marked_from", "since"), [(None, 100), (60, 60), (20, 40)])
    def test_what_a_store_has_unmarked_is_not_skipped(
        self, marked_from: int | None, since: int
    ) -> None:
        """What is registered, and what is stored, may be of two moments; users learn of it."""
        row = parse_standing("g", "union", "a = 1")._replace(since=40)
        selectors, ended = StandingSelectors([row]), list[int]()
        selectors.add_user("g", lambda: ended.append(1))
        selectors.rest_on({} if marked_from is None else {row.token.hex(): marked_from}, 100)
        assert selectors.matcher("g").since == since
        assert bool(ended) == (since > 40)

    def test_equal_selectors_have_equal_tokens(self) -> None:
        one = parse_standing("g", "union", "a=1 AND (b = 2)")
        assert one.token == parse_standing("h", "union", "a = 1 AND b = 2").token
        assert one.token != parse_standing("g", "rocketmq", "a = 1 AND b = 2").token
        assert one.token != parse_standing("g", "union", "a = 1 AND b = 3").token


class TestNoSilentNothing:
    async def test_values_that_no_message_ever_had(
        self, peer: Peer, caplog: pytest.LogCaptureFixture
    ) -> None:
        await peer.begin("s")
        for number in range(3):
            await peer.store([flight("HA")], first_id=number)
        await peer.subscribe("s", filter__0="HA")
        await peer.silence()
        await peer.store([flight("HA")], first_id=4)
        await peer.silence()
        assert caplog.text.count("were they published without?") == 1
        figures = dict((await peer.ask(c.DescribeSubscription, 1, 0)).statistics)
        assert (figures["skipped_chunks"], figures["unfiltered_chunks"]) == (4, 4)

    async def test_not_said_where_values_are(
        self, peer: Peer, caplog: pytest.LogCaptureFixture
    ) -> None:
        await peer.begin("s")
        await peer.store([flight("HA")], values=[b"HA"])
        await peer.subscribe("s", filter__0="none")
        await peer.silence()
        assert "were they published without?" not in caplog.text

    async def test_selectors_that_are_empty(
        self, peer: Peer, caplog: pytest.LogCaptureFixture
    ) -> None:
        await peer.begin("s")
        await peer.store([flight("HA")])
        await peer.subscribe("s", filter_mode="nothing", selector="1 = 2")
        await peer.silence()
        assert caplog.text.count("stream s: a consumer has a selector that no message") == 1
        assert caplog.text.count("no message can match: 1 = 2") == 1

    async def test_consumers_without_a_match_hold_no_old_segment(
        self, server: Harness, peer: Peer
    ) -> None:
        await peer.begin("s", stream_max_segment_size_bytes="1000")
        await peer.subscribe("s", filter_mode="nothing")
        await peer.silence()
        for number in range(40):
            await peer.store([flight("HA")], first_id=number)
        await peer.silence(3)  # and what was sealed is flushed
        *old, _ = server.host.find("s").log.segments.shown
        assert len(old) > 2
        assert not any(segment._users for segment in old)

    async def test_only_messages_without_a_value(self, peer: Peer) -> None:
        await peer.begin("s")
        await peer.store([flight("HA")], values=[b"HA"])
        await peer.store([flight("UA")], first_id=2)
        await peer.subscribe("s", filter_mode="unfiltered-only")
        assert await peer.bodies(1) == [flight("UA")]
        await peer.silence()

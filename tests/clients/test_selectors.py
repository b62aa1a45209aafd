"""Consumers with selectors: what comes out, and what was asked for."""

from collections.abc import Sequence

import pytest

from clients import (
    Client,
    Message,
    PreconditionFailed,
    Properties,
    SelectorError,
    StreamDoesNotExist,
)
from clients.consumer import Consumer
from clients.filters import SelectorFilter
from segments.selector import parse_selector
from tests.clients.conftest import program

PROPERTY = {"stream-filter-property": "carrier"}
STRICT = PROPERTY | {"stream-filter-contract": "strict"}
DERIVE = PROPERTY | {"stream-filter-derive": "true"}
CARRIERS = ("HA", "UA", "DL", None)


def flight(number: int) -> Message:
    carrier = CARRIERS[number % 4]
    properties = {"delay": number} | ({} if carrier is None else {"carrier": carrier})
    return Message(
        b"%d" % number, Properties(subject=f"flight {number}"), application_properties=properties
    )


async def fill(client: Client, stream: str, arguments: dict[str, str]) -> None:
    """100 flights, each in a chunk of its own; the server derives their filter values."""
    await client.create(stream, arguments=arguments)

    def value(message: Message) -> str | None:
        carrier = message.application_properties.get("carrier")
        return None if carrier is None else str(carrier)

    async with client.producer(stream, filter_value=value) as producer:
        for number in range(100):
            await producer.send(flight(number))
            await producer.flush()


async def read(client: Client, stream: str, **options: object) -> tuple[list[int], Consumer]:
    wanted = {"offset": "first", "until_end": True} | options
    async with client.consumer(stream, **wanted) as messages:  # type: ignore[arg-type]
        return [int(message.body) async for message in messages], messages


HAWAIIAN = list(range(0, 100, 4))


@pytest.mark.parametrize(
    ("selector", "expected", "delivered"),
    [
        ({"sql": "carrier = 'HA'"}, HAWAIIAN, 25),
        ({"sql": "carrier = 'HA' AND delay > 50"}, [n for n in HAWAIIAN if n > 50], 25),
        ({"sql": "carrier IN ('HA', 'DL')"}, list(range(0, 100, 2)), 50),
        ({"sql": "carrier IS NULL"}, list(range(3, 100, 4)), 25),
        ({"sql": "carrier = 'HA' OR carrier IS NULL"}, sorted([*HAWAIIAN, *range(3, 100, 4)]), 50),
        ({"sql": "carrier <> 'HA'"}, [n for n in range(100) if n % 4 in (1, 2)], 100),
        ({"sql": "delay > 97"}, [98, 99], 100),
        ({"sql": "properties.subject = 'flight 7'"}, [7], 100),
        ({"sql": "carrier = 'HA' AND carrier = 'UA'"}, [], 0),
        ({"sql": "NOT delay", "dialect": "rocketmq"}, list(range(100)), 100),
        ({"tags": "*"}, list(range(100)), 100),
        ({"tags": "HA"}, [], 100),
    ],
)
@program
async def test_just_the_matching_messages_from_few_chunks(
    client: Client, stream: str, selector: dict[str, str], expected: list[int], delivered: int
) -> None:
    await fill(client, stream, STRICT)
    got, messages = await read(client, stream, **selector)
    assert got == expected
    assert messages.counts.matched == len(expected)
    assert messages.counts.chunks == delivered


@program
async def test_without_a_strict_contract_messages_may_lack_their_value(
    client: Client, stream: str
) -> None:
    await fill(client, stream, PROPERTY)
    async with client.producer(stream) as producer:
        await producer.send(flight(0))
    got, messages = await read(client, stream, sql="carrier = 'HA'")
    assert got == [*HAWAIIAN, 0]
    assert messages.counts.chunks == 25 + 25 + 1
    assert "some messages may have none" in "\n".join(messages.explain())


@pytest.mark.parametrize(
    ("sql", "expected", "delivered"),
    [
        ("carrier = 'HA' AND day = 'day 0'", range(0, 100, 20), 5),
        ("carrier IN ('HA', 'UA') AND day IN ('day 0', 'day 1')", (0, 1, 5, 16, 20, 21), None),
        ("day = 'day 3'", range(3, 100, 5), 20),
        ("day IS NULL AND carrier = 'DL'", range(14, 100, 20), 5),
        ("day = 'day 0' AND NOT carrier = 'HA'", (5, 10, 25, 30), None),
        ("carrier = 'HA' OR day = 'day 0'", (0, 4, 5, 8, 10, 12), 100),
        ("carrier = 'HA' AND day = 'day 9'", (), 0),
        ("carrier = 'HA' AND day = 'day 0' AND day = 'day 1'", (), 0),
        ("carrier = 'HA' AND delay < 9", (0, 4, 8), 25),
    ],
)
@program
async def test_several_filter_properties(
    client: Client, stream: str, sql: str, expected: Sequence[int], delivered: int | None
) -> None:
    several = {"stream-filter-property": "carrier,day"}
    await client.create(stream, arguments=DERIVE | STRICT | several)
    async with client.producer(stream) as producer:
        for number in range(100):
            message = flight(number)
            if number % 5 != 4:
                message.application_properties["day"] = f"day {number % 5}"
            await producer.send(message)
            await producer.flush()
    got, messages = await read(client, stream, sql=sql)
    plain, _ = await read(client, stream)
    assert len(plain) == 100
    assert got[: len(expected)] == list(expected)
    assert set(expected) or not got
    if delivered is not None:
        assert messages.counts.chunks == delivered
    assert messages.counts.matched == len(got)


@program
async def test_what_is_asked_of_several_filter_properties_is_told(
    client: Client, stream: str
) -> None:
    await client.create(stream, arguments={"stream-filter-property": "carrier,day,[a,b]"})
    sql = "carrier = 'HA' AND day IN ('x', 'y') AND [a,b] IS NULL"
    _, messages = await read(client, stream, sql=sql)
    assert messages.explain()[1:] == [
        (
            "filter values are those of carrier; some messages may have none; chunks also tell "
            "the values of day and of a,b"
        ),
        (
            "asks for chunks that may hold a message with filter value HA, or a message "
            "without a filter value; and a message with day x, y; and a message without a,b"
        ),
    ]
    # Said by the program, and not so by the stream: those are not what chunks are chosen by.
    got, _ = await read(client, stream, sql="z = 'a'", filter_property="carrier,z")
    assert got == []
    async with client.producer(stream) as producer:
        await producer.send(Message(b"1", application_properties={"z": "a"}))
    got, _ = await read(client, stream, sql="z = 'a'", filter_property="carrier,z")
    assert got == [1]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@program
async def test_sub_batches_are_skipped_and_looked_into(
    client: Client, stream: str, compression: str
) -> None:
    await client.create(stream, arguments=DERIVE | {"stream-filter-contract": "strict"})
    async with client.producer(stream) as producer:
        for start in range(0, 100, 20):
            flights = [flight(4 * n + start % 3) for n in range(start, start + 20)]
            await producer.send_sub_batch(flights, compression)
    got, messages = await read(client, stream, sql="carrier = 'UA' AND delay > 170")
    expected = [4 * n + 1 for n in range(40, 60) if 4 * n + 1 > 170]
    assert got == expected
    assert messages.counts.chunks == 1


@program
async def test_where_reading_begins_counts(client: Client, stream: str) -> None:
    await client.create(stream)
    async with client.producer(stream) as producer:
        await producer.send_all(flight(n) for n in range(100))
    got, messages = await read(client, stream, sql="carrier = 'HA'", offset=50)
    assert got == [n for n in HAWAIIAN if n >= 50]
    assert messages.counts.messages == 50


@program
async def test_messages_that_cannot_be_read(client: Client, stream: str) -> None:
    await client.create(stream)
    async with client.producer(stream) as producer:
        await producer.send(flight(0))
        for raw in (
            b"",
            b"\0",
            b"no message",
            b"\0\x53\x74\xc1\xff",
            b"\0\x53\x74\xc1\x05\x02",
        ):
            await producer.send_encoded(raw)
        await producer.send(flight(4))
    got, messages = await read(client, stream, sql="carrier = 'HA' OR carrier IS NULL")
    assert got == [0, 4]
    assert messages.undecodable == 5
    assert messages.counts.messages == 7


@pytest.mark.parametrize(
    ("options", "expected", "delivered"),
    [
        ({"filter_values": ["late"]}, [0], 1),
        ({"filter_values": ["late"], "match_unfiltered": True}, [0, 2, 3], 3),
        ({"filter_values": ["5"]}, [], 0),  # the server takes a number for no value
    ],
)
@program
async def test_values_of_a_further_filter_property(
    client: Client, stream: str, options: dict[str, object], expected: list[int], delivered: int
) -> None:
    await client.create(stream, arguments=DERIVE | {"stream-filter-property": "carrier,kind"})
    async with client.producer(stream) as producer:
        for number, kind in enumerate(("late", "early", 5, None)):
            given = {"carrier": "HA"} | ({} if kind is None else {"kind": kind})
            await producer.send(Message(b"%d" % number, application_properties=given))
            await producer.flush()
    got, messages = await read(client, stream, filter_value="kind", **options)
    assert got == expected
    assert messages.counts.chunks == delivered
    assert "a message with kind " in messages.explain()[0]


@program
async def test_standing_selectors(client: Client, stream: str) -> None:
    async def fill_more(client: Client, stream: str) -> None:
        async with client.producer(stream) as producer:
            for number in range(100):
                await producer.send(flight(number))
                await producer.flush()

    await client.create(stream)
    await client.register_selector(stream, "late", sql="delay >= 90")
    await fill_more(client, stream)
    got, messages = await read(client, stream, group="late")
    assert got == list(range(90, 100))
    assert messages.counts.chunks == 10
    got, _ = await read(client, stream, group="late", sql="delay>=90")
    assert got == list(range(90, 100))
    with pytest.raises(PreconditionFailed, match="all of a group share one selector"):
        await read(client, stream, group="late", sql="delay > 90")
    with pytest.raises(PreconditionFailed, match="has registered no selector"):
        await read(client, stream, group="early")
    (found,) = await client.selectors(stream)
    assert found == ("late", "union", "delay >= 90", 0, 0)
    await client.unregister_selector(stream, "late")
    assert await client.selectors(stream) == []


@program
async def test_what_is_refused(client: Client, stream: str) -> None:
    await client.create(stream)
    with pytest.raises(SelectorError, match="column 5"):
        await read(client, stream, sql="a = ")
    with pytest.raises(SelectorError, match="no tag is named"):
        await read(client, stream, tags="||")
    with pytest.raises(ValueError, match="either SQL or tags"):
        await read(client, stream, tags="a", sql="a = 1")
    with pytest.raises(ValueError, match="not both"):
        await read(client, stream, tags="a", filter_values=["a"])
    with pytest.raises(ValueError, match="expected one of union"):
        await read(client, stream, sql="a = 1", dialect="oracle")
    with pytest.raises(StreamDoesNotExist):
        await read(client, "none", sql="a = 1")
    with pytest.raises(PreconditionFailed, match="column 5"):
        await client.register_selector(stream, "g", sql="a = ")


def test_a_consumer_of_a_group_says_which_selector_it_evaluates() -> None:
    """Should the group have another one when it comes back, the server refuses it."""
    selector = parse_selector("rocketmq", "NOT (d > 5)")
    assert dict(SelectorFilter(selector, "s", None, "g").properties()) == {
        "selector-group": "g",
        "selector": str(selector),
        "selector-dialect": "rocketmq",
    }

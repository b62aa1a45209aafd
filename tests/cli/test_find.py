"""`streamd find`: what it prints, what it says of it, and what it refuses."""

import json
import re
from datetime import UTC, datetime

import pytest

from clients import Client, Message, Properties
from streamd.cli.common import DEFAULT_URI, run_client
from tests.support.command_line import CommandLine, Ended

COUNT = 30


@pytest.fixture
def orders(streamd: CommandLine) -> CommandLine:
    """Stream s has 30 orders, and t declares key properties and a filter property."""

    async def work(client: Client) -> None:
        await client.create("s")
        arguments = {
            "stream-key-properties": "order_id,properties.message_id",
            "stream-filter-property": "region",
            "stream-filter-derive": "true",
        }
        await client.create("t", arguments=arguments)
        for stream in ("s", "t"):
            async with client.producer(stream) as producer:
                for number in range(COUNT):
                    await producer.send(order(number))

    run_client(DEFAULT_URI, work)
    return streamd


def order(number: int) -> Message:
    return Message(
        b"order %d" % number,
        Properties(
            message_id=f"id-{number}",
            creation_time=datetime(2026, 11, 21, 9, number, tzinfo=UTC),
        ),
        {"order_id": number, "region": "EU" if number % 2 else "US", "TAGS": "paid"},
    )


def offsets(ended: Ended) -> list[int]:
    assert ended.code == 0, ended.notes
    return [json.loads(line)["offset"] for line in ended.out.splitlines()]


def test_a_message_as_consume_prints_it(orders: CommandLine) -> None:
    found = orders("find", "s", "--key", "7", "--property", "order_id")
    assert offsets(found) == [7]
    assert found.notes == "found 1 message: the search is complete\n"
    consumed = orders("consume", "s", "--until-end").out.splitlines()
    assert found.out.splitlines() == consumed[7:8]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["t", "--key", "7"], [7]),
        (["t", "--key", "id-7", "--key", "8"], [7, 8]),
        (["t", "--key", "7", "--key", "id-7", "--latest"], [7]),
        (["t", "--key", "id-7", "--property", "order_id"], []),
        (["t", "--filter", "EU", "--limit", "2"], [1, 3]),
        (["s", "--newest", "--limit", "3"], [29, 28, 27]),
        (["s", "--offset", "28"], [28, 29]),
        (["s", "--offset", "1", "--newest"], [1, 0]),
        (["s", "--sql", "order_id > 27"], [28, 29]),
        (["s", "--sql", "order_id = '5'", "--dialect", "rocketmq"], [5]),
        (["s", "--tags", "sent||paid", "--limit", "1"], [0]),
        (["s", "--from", "2026-11-21T09:28:00Z", "--by", "creation-time"], [28, 29]),
        (["s", "--from", "0", "--to", "1800000000000", "--limit", "1"], [0]),
        (["s", "--to", "1999-01-01"], []),
    ],
)
def test_what_is_found(orders: CommandLine, arguments: list[str], expected: list[int]) -> None:
    assert offsets(orders("find", *arguments)) == expected


def test_what_was_cut_goes_on(orders: CommandLine) -> None:
    ended = orders("find", "s", "--limit", "12")
    found = offsets(ended)
    match = re.fullmatch(
        r"found 12 messages: cut by the limit; there may be more, go on with --after (\S+)\n",
        ended.notes,
    )
    assert match is not None, ended.notes
    found += offsets(orders("find", "s", "--after", match[1]))
    assert found == list(range(COUNT))


def test_what_was_looked_at(orders: CommandLine) -> None:
    ended = orders("find", "t", "--key", "7", "--sql", "region = 'EU'", "--explain")
    assert offsets(ended) == [7]
    lines = ended.notes.splitlines()
    assert lines[0] == "found 1 message: the search is complete"
    assert lines[1].startswith("segments: 1 searched, 1 of them scanned, as no index has all")
    assert re.match(r"chunks: [\d,]+ read \(.*\); skipped 0 by time, 0 by key index", lines[2])
    assert re.match(r"messages: \d+ tested, \d+ ruled out", lines[3])


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nothing"], 1, "cannot search nothing: stream does not exist"),
        (["s", "--key", "7"], 1, "declares no key property: say with property where"),
        (["s", "--after", "garbage"], 1, "after is no token that a search has given"),
        (["s", "--filter", "EU"], 1, "declares no filter property"),
        (["s", "--limit", "0"], 2, "'--limit': 0 is not a whole number from 1 to 1,000,000"),
        (["s", "--limit", "1000000000"], 2, "'--limit': 1000000000 is not a whole number"),
        (["s", "--offset", "-1"], 2, "'--offset': -1 is not a whole number from 0 to"),
        (["s", "--offset", "1_0"], 2, "'--offset': 1_0 is not a whole number from 0 to"),
        (["s", "--from", "soon"], 2, "--from is 'soon', expected a number of ms since 1970"),
        (["s", "--from", "2", "--to", "1"], 2, "--to is before --from"),
        (["s", "--property", "a"], 2, "--property needs --key"),
        (["s", "--latest"], 2, "--latest needs --key"),
        (
            ["s", "--key", "1", "--property", "properties.colour"],
            2,
            "--property is 'properties.colour': properties has message_id",
        ),
        (["s", "--key", "1", "--property", ""], 2, "--property is '': the name of a property"),
        (["s", "--sql", "a ="], 2, "column 4"),
        (["s", "--sql", "a = 1", "--tags", "b"], 2, "exclude each other"),
        (["s", "--by", "moon"], 2, "--by"),
        (["s", "--by", "chunk-time"], 2, "--by needs --from or --to"),
        (["s", "--dialect", "amqp", "--tags", "a"], 2, "--dialect needs --sql"),
        (["s", "--key", "1", "--property", "x" * 256], 2, "a name of at most 255 bytes"),
    ],
)
def test_bad_input_is_told(orders: CommandLine, arguments: list[str], code: int, says: str) -> None:
    ended = orders("find", *arguments)
    assert (ended.code, ended.out) == (code, "")
    assert says in ended.notes
    assert len(ended.notes.splitlines()) == (3 if "--sql" in arguments and "column" in says else 1)

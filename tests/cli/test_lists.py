"""What is connected, routed and declared, on the command line; and habits from other ones."""

import json

import pytest

from tests.support.command_line import CommandLine


def test_connections_and_consumers(streamd: CommandLine) -> None:
    (own,) = json.loads(streamd("connection", "list", "--json").out)
    assert own["connection"]["user"] == "guest"
    assert "guest" in streamd("connections", "ls").out
    assert streamd("connection", "list", "--user", "nobody").notes == "there are no connections\n"
    assert streamd("consumers", "list").notes == "there are no consumers\n"
    refused = streamd("connection", "close")
    assert refused.code == 2
    assert "give the name of a connection, --user or --vhost" in refused.notes
    gone = streamd("connection", "close", "nothing")
    assert gone.notes == "Error: there is no connection nothing: it was closed\n"
    assert "there is no such connection" in streamd("connection", "close", "--user", "x").notes


def test_routes(streamd: CommandLine) -> None:
    created = streamd("super-stream", "create", "orders", "--key", "eu", "--key", "us")
    assert (created.code, created.notes) == (0, "created orders with 2 partitions\n")
    (row,) = json.loads(streamd("super-streams", "list", "--json").out)
    assert [part["stream"] for part in row["partitions"]] == ["orders-eu", "orders-us"]
    rows = json.loads(streamd("exchanges", "ls", "--json").out)
    assert {row["name"]: row["bindings"] for row in rows}["orders"] == 2
    bound = json.loads(streamd("binding", "list", "--stream", "orders-eu", "--json").out)
    assert [(row["source"], row["key"]) for row in bound] == [("", "orders-eu"), ("orders", "eu")]
    assert "super stream, durable" in streamd("exchange", "list").out
    assert streamd("super-stream", "rm", "orders").code == 0
    assert "there are none; create one" in streamd("super-stream", "list").notes
    both = streamd("super-stream", "create", "x", "--key", "a", "--partitions", "2")
    assert "give either --partitions or --key" in both.notes
    assert streamd("super-stream", "create", "x", "--partitions", "1", "--argument", "a").code == 2


def test_definitions_come_back(streamd: CommandLine) -> None:
    streamd("stream", "create", "s", "--max-age", "7D")
    streamd("super-stream", "create", "orders", "--partitions", "2")
    document = streamd("definitions", "export").out
    streamd("stream", "delete", "s")
    streamd("super-stream", "delete", "orders")
    taken = streamd("definitions", "import", stdin=document.encode())
    assert taken.notes.startswith("created queues 3, exchanges 1, bindings 2; ")
    assert streamd("definitions", "export").out == document
    alone = json.loads(streamd("definitions", "export", "--vhost", "/").out)
    assert {row["name"] for row in alone["queues"]} == {"s", "orders-0", "orders-1"}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("[]", "Error: <stdin>: expected a JSON object"),
        ('{"queues": 3}', "Error: <stdin>: queues is not a list of JSON objects"),
        ('{"queues": [{"name": "c", "vhost": "/", "type": "classic"}]}', "left out: queue c"),
        ('{"queues": [{"name": "", "vhost": "/", "type": "stream"}]}', "Error: <stdin>: queues"),
    ],
)
def test_definitions_that_cannot_be_taken(streamd: CommandLine, document: str, said: str) -> None:
    ended = streamd("definitions", "import", stdin=document.encode())
    assert ended.notes.startswith(said)
    assert ended.code == int(said.startswith("Error"))


def test_definitions_with_long_rows(streamd: CommandLine) -> None:
    """They are asked for in frames of the stream protocol, and the one that is wrong is named."""
    long = {"x-match": "all"} | {f"k{n}": "x" * 500 for n in range(50)}
    ends = {"vhost": "/", "source": "amq.headers", "destination": "s", "routing_key": ""}
    row = ends | {"destination_type": "queue", "arguments": long}
    queue = {"name": "s", "vhost": "/", "type": "stream"}
    document = json.dumps({"queues": [queue], "bindings": [row] * 100})
    ended = streamd("definitions", "import", stdin=document.encode())
    assert ended.notes.startswith("created queues 1; ")
    assert "Error: <stdin>: bindings, {'vhost': '/', 'source': 'amq.headers'" in ended.notes
    assert "characters, expected at most" in ended.notes
    assert len(ended.notes) < 1_000


def test_a_virtual_host_that_is_not_there(streamd: CommandLine) -> None:
    ended = streamd("definitions", "import", "--vhost", "x", stdin=b"{}")
    assert "there is no virtual host 'x'; streamd vhost add creates one" in ended.notes


def test_the_end_of_a_stream(streamd: CommandLine) -> None:
    streamd("stream", "create", "s")
    streamd("publish", "s", stdin=b"".join(b'{"body": "%d"}\n' % n for n in range(10)))

    def bodies(*options: str) -> list[str]:
        out = streamd("consume", "s", "--until-end", *options).out
        return [json.loads(line)["body"] for line in out.splitlines()]

    every = [str(n) for n in range(10)]
    assert bodies("--tail", "3") == every[-3:]
    assert bodies("--tail", "0") == []
    assert bodies("--tail", "99") == bodies("--from-beginning") == every
    assert streamd("consume", "s", "--tail", "3", "--offset", "next").code == 2


@pytest.mark.parametrize(
    ("habit", "here"),
    [
        (("streams", "ls"), ("stream", "list")),
        (("stream", "describe", "s"), ("stream", "info", "s")),
        (("users", "ls"), ("user", "list")),
        (("vhosts", "list"), ("vhost", "list")),
    ],
)
def test_habits(streamd: CommandLine, habit: tuple[str, ...], here: tuple[str, ...]) -> None:
    streamd("stream", "create", "s")
    assert streamd(*here).code == 0
    assert streamd(*habit) == streamd(*here)

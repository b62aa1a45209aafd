"""The command line as a person or a script uses it, against a real server."""

import json
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import click
import pytest
from click.testing import CliRunner

from clients import connect
from streamd.cli import main
from tests.support.process import ServerProcess


class Shell:
    """Runs commands against a server, in this process."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server

    def __call__(self, *arguments: str, stdin: str | bytes = b"", code: int = 0) -> str:
        """Run `streamd ARGUMENTS`; returns stdout. `notes` then has what went to stderr."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        ended, out, self.notes = self.run([*arguments, "--uri", self.server.uri], given)
        assert ended == code, self.notes
        assert "Traceback" not in self.notes
        return out

    def run(self, arguments: list[str], stdin: bytes) -> tuple[int, str, str]:
        """The exit code of a command, its stdout and its stderr."""
        result = CliRunner(catch_exceptions=False).invoke(main, arguments, input=stdin)
        return result.exit_code, result.stdout, result.stderr

    def lines(self, *arguments: str) -> list[dict[str, object]]:
        """The JSON lines that `streamd consume` prints up to the end."""
        return [
            json.loads(line) for line in self("consume", *arguments, "--until-end").splitlines()
        ]


class Program(Shell):
    """Runs each command in a process of its own."""

    def run(self, arguments: list[str], stdin: bytes) -> tuple[int, str, str]:
        result = subprocess.run(
            [sys.executable, "-m", "streamd", *arguments],
            input=stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )
        return result.returncode, result.stdout.decode(), result.stderr.decode()


@pytest.fixture
def streamd(shared: ServerProcess) -> Shell:
    return Shell(shared)


@pytest.fixture
def program(shared: ServerProcess) -> Program:
    return Program(shared)


@pytest.fixture
def alone(server: ServerProcess) -> Shell:
    """With a server of its own, for what concerns a whole server."""
    return Shell(server)


def flights(*carriers: str) -> str:
    rows = [{"body": f"flight {n}", "carrier": name} for n, name in enumerate(carriers)]
    return "".join(json.dumps(row) + "\n" for row in rows)


class TestStreams:
    def test_created_listed_looked_at_deleted(self, streamd: Shell) -> None:
        assert streamd("stream", "list") == ""
        assert "create one: streamd stream create NAME" in streamd.notes
        assert streamd("stream", "create", "flights", "--filter-size", "64") == ""
        assert streamd.notes == "created flights\n"
        streamd("stream", "create", "audit", "--max-age", "7D", "--chunk-max-records", "50")
        streamd("publish", "flights", stdin=flights("HA", "UA"))
        table = streamd("stream", "list")
        assert re.search(r"flights +2 +\S+ B +\S+ +- +0 +0 +20\d\d-\S+ \S+ +running", table)
        assert re.search(r"audit +0 +0 B +- +- +0 +0 +- +running", table)
        (audit, listed) = json.loads(streamd("stream", "list", "--json"))
        assert (audit["name"], listed["messages"]) == ("audit", 2)
        assert listed["arguments"] == {"stream-filter-size-bytes": "64"}
        found = json.loads(streamd("stream", "info", "flights", "--json"))
        assert found.pop("filters") == {"chunks_seen": 1, "chunks": 0, "values": 0, "places": 0}
        assert found.items() <= listed.items()
        assert re.search(r"stream-filter-size-bytes +64", streamd("stream", "info", "flights"))
        assert re.search(r"max-age +7D", streamd("stream", "info", "audit"))
        streamd("stream", "delete", "flights")
        assert streamd.notes == "deleted flights\n"
        streamd("stream", "info", "flights", code=1)
        assert "stream does not exist" in streamd.notes

    def test_truncated(self, streamd: Shell) -> None:
        streamd("stream", "create", "flights", "--chunk-max-records", "1")
        streamd("publish", "flights", stdin=flights("HA", "UA", "DL"))
        streamd("stream", "truncate", "flights", "--before", "1")
        assert streamd.notes == "flights begins at offset 1\n"
        assert [row["offset"] for row in streamd.lines("flights")] == [1, 2]
        streamd("stream", "truncate", "flights", "--before", "2000-01-01T00:00:00Z")
        assert streamd.notes == "flights begins at offset 1\n"
        streamd("stream", "truncate", "flights", "--before", "soon", code=2)
        assert "--before is 'soon', expected an offset, or a time as in" in streamd.notes
        streamd("stream", "truncate", "none", "--before", "1", code=1)
        streamd("stream", "truncate", "flights", "--before", "4", code=1)
        assert "flights ends before offset 3; that offset removes all" in streamd.notes
        assert [row["offset"] for row in streamd.lines("flights")] == [1, 2]
        streamd("stream", "truncate", "flights", "--before", "3")
        assert streamd.notes == "flights begins at offset 3\n"

    def test_stored_offsets(self, streamd: Shell) -> None:
        streamd("stream", "create", "flights")
        streamd("publish", "flights", stdin=flights("HA", "UA", "DL"))
        streamd("offset", "set", "flights", "till-3", "0")
        assert streamd.notes == "stored offset 0 for till-3 in flights\n"
        assert re.search(r"till-3 +0 +2 +\d+\.\d", streamd("offset", "list", "flights"))
        (row,) = json.loads(streamd("offset", "list", "flights", "--json"))
        assert (row["name"], row["offset"], row["messages_behind"]) == ("till-3", 0, 2)
        streamd("offset", "delete", "flights", "till-3")
        assert streamd.notes == "deleted the offset of till-3 from flights; it was 0\n"
        streamd("offset", "undo", "flights", "till-3")
        assert streamd.notes == "stored offset 0 for till-3 in flights\n"
        streamd("offset", "set", "flights", "other", "--like", "till-3")
        streamd("offset", "set", "flights", "other", "--by", "2")
        assert streamd.notes == "stored offset 2 for other in flights; it was 0\n"
        streamd("offset", "set", "flights", "other", "--by", "-3", code=1)
        assert "no stored offset says that" in streamd.notes
        streamd("offset", "set", "flights", "other", "--time", "2100-01-01T00:00:00Z")
        assert streamd.notes == "stored offset 2 for other in flights; it was 2\n"
        streamd("offset", "set", "flights", "other", "1", "--by", "1", code=2)
        streamd("offset", "delete", "flights", "till-3")
        streamd("offset", "delete", "flights", "till-3", code=1)
        assert "till-3 has stored no offset in flights" in streamd.notes
        streamd("offset", "set", "flights", "till-3", str(1 << 63), code=1)
        assert "expected a whole number up to 9223372036854775807" in streamd.notes

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            (["--filter-size", "15"], "expected a whole number from 16 to 255 bytes, or auto"),
            (["--filter-size", "256"], "stream-filter-size-bytes is '256'"),
            (["--max-age", "2x"], "expected a number and one of the units Y, M, D, h, m, s"),
            (["--argument", "max-length-bytes=x"], "max-length-bytes is 'x'"),
        ],
    )
    def test_bad_arguments(self, streamd: Shell, options: list[str], reason: str) -> None:
        streamd("stream", "create", "s", *options, code=1)
        assert reason in streamd.notes
        assert streamd.notes.count("\n") == 1

    def test_twice(self, streamd: Shell) -> None:
        streamd("stream", "create", "s")
        streamd("stream", "create", "s", code=1)
        assert streamd.notes == "Error: s exists, with the same arguments; --exist-ok takes that\n"
        streamd("stream", "create", "s", "--exist-ok")
        streamd("stream", "create", "s", "--filter-size", "20", code=1)
        assert "exists with other arguments" in streamd.notes
        streamd("stream", "create", "t", "--max-age", "120s")
        streamd("stream", "create", "t", "--max-age", "2m", "--exist-ok")
        streamd("stream", "create", "t", "--max-age", "180s", code=1)
        assert streamd.notes == (
            "Error: t exists with other arguments: max-age is 120s, not 180s\n"
        )
        assert json.loads(streamd("stream", "info", "t", "--json"))["arguments"] == {
            "max-age": "120s"
        }

    def test_an_argument_without_a_value(self, streamd: Shell) -> None:
        streamd("stream", "create", "s", "--argument", "max-age", code=2)
        assert "expected NAME=VALUE" in streamd.notes


class TestMessages:
    def test_what_goes_in_comes_out(self, program: Program) -> None:
        program("stream", "create", "s")
        line = {"body": "Größe", "n": 7, "x": 1.5, "ok": True, "none": None, "deep": {"a": [1]}}
        rows = [line, {"body": {"json": 1}}, {"only": "properties"}, {"body": ""}]
        text = "\n\n".join(json.dumps(row) for row in rows)  # empty lines are skipped
        program("publish", "s", stdin=text)
        assert program.notes == "published 4 messages to s\n"
        found = program.lines("s")
        assert [row["offset"] for row in found] == [0, 1, 2, 3]
        assert [row["body"] for row in found] == ["Größe", '{"json": 1}', "", ""]
        assert found[0]["properties"] == {
            "n": 7,
            "x": 1.5,
            "ok": True,
            "none": None,
            "deep": '{"a": [1]}',
        }
        assert found[2]["properties"] == {"only": "properties"}
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(found[0]["timestamp"]))

    def test_from_a_file(self, streamd: Shell, tmp_path: Path) -> None:
        file = tmp_path / "rows.jsonl"
        file.write_text(flights(*["HA"] * 2500))
        streamd("stream", "create", "s")
        streamd("publish", "s", str(file))
        assert streamd.notes == "published 2,500 messages to s\n"
        assert len(streamd.lines("s")) == 2500

    def test_with_filters(self, streamd: Shell) -> None:
        streamd("stream", "create", "s", "--filter-size", "64", "--chunk-max-records", "2")
        rows = flights("HA", "UA", "DL", "DL", "HA", "HA")
        streamd("publish", "s", "--filter-property", "carrier", stdin=rows)
        exact = streamd.lines("s", "--filter", "HA", "--filter-property", "carrier")
        assert [row["offset"] for row in exact] == [0, 4, 5]
        assert streamd.notes == "printed 3 of 4 delivered messages (2 chunks)\n"
        chunks = streamd.lines("s", "--filter", "HA")
        assert [row["offset"] for row in chunks] == [0, 1, 4, 5]
        both = streamd.lines(
            "s", "--filter", "UA", "--filter", "DL", "--filter-property", "carrier"
        )
        assert [row["offset"] for row in both] == [1, 2, 3]
        assert streamd.lines("s", "--filter", "XX") == []
        streamd("publish", "s", stdin=flights("none"))
        found = streamd.lines("s", "--filter", "DL", "--match-unfiltered")
        assert [row["offset"] for row in found] == [2, 3, 6]

    @pytest.mark.parametrize("command", [("consume", "s", "--filter", "a"), ("publish", "s")])
    def test_a_filter_property_that_there_is_not(self, command: tuple[str, ...]) -> None:
        found = CliRunner().invoke(main, [*command, "--filter-property", "properties.color"])
        assert found.exit_code == 2
        assert "properties has message_id, user_id, to, subject" in found.stderr

    def test_a_number_is_its_text(self, streamd: Shell) -> None:
        """Where no filter property is declared, as JSON has it."""
        streamd("stream", "create", "s")
        lines = [{"n": n} for n in (5, 2.5, True, "5", None, 6)]
        text = "\n".join(map(json.dumps, lines))
        streamd("publish", "s", "--filter-property", "n", stdin=text)
        assert streamd.notes == "published 6 messages to s\n"
        for value, offsets in {"5": [0, 3], "2.5": [1], "true": [2], "7": []}.items():
            found = streamd.lines("s", "--filter", value, "--filter-property", "n")
            assert [row["offset"] for row in found] == offsets
        both = streamd.lines("s", "--filter", "5", "--filter-property", "n", "--match-unfiltered")
        assert [row["offset"] for row in both] == [0, 3, 4]
        assert "no filter value" not in streamd.notes

    def test_a_number_is_no_filter_value(self, streamd: Shell) -> None:
        """As the server sees it: where it insists on its own reading, numbers are published."""
        strict = ("--filter-property", "n", "--filter-contract", "strict")
        streamd("stream", "create", "s", *strict)
        streamd("publish", "s", "--filter-property", "n", stdin='{"n": 5}\n{"n": "5"}\n{"n": ""}')
        told = "1 message with a number, or another value that is no text, as n: that is no filter"
        assert told in streamd.notes
        found = streamd.lines("s", "--filter", "5", "--filter-property", "n")
        assert [row["offset"] for row in found] == [1]
        assert told in streamd.notes

    def test_with_selectors(self, streamd: Shell) -> None:
        streamd("stream", "create", "s", "--filter-property", "carrier", "--filter-derive")
        streamd("selector", "add", "s", "late", "--sql", "delay > 2")
        for delay in (1, 2, 3):
            lines = [{"carrier": c, "delay": delay, "TAGS": c.lower()} for c in ("HA", "UA")]
            streamd("publish", "s", stdin="\n".join(map(json.dumps, lines)))
        found = streamd.lines("s", "--sql", "carrier = 'HA' AND delay >= 2", "--explain")
        assert [line["offset"] for line in found] == [2, 4]
        assert streamd.notes.splitlines() == [
            "selector (union): carrier = 'HA' AND delay >= 2",
            "filter values are those of carrier; some messages may have none",
            (
                "asks for chunks that may hold a message with filter value HA, "
                "or a message without a filter value"
            ),
            "chunks: 3 delivered, 1 of them without a match; 0 skipped (0 B)",
            "messages: 6 tested, 2 matched",
            "printed 2 of 6 delivered messages (3 chunks)",
        ]
        assert [line["offset"] for line in streamd.lines("s", "--tags", "ua || dl")] == [1, 3, 5]
        assert [line["offset"] for line in streamd.lines("s", "--group", "late")] == [4, 5]
        rocketmq = streamd.lines("s", "--sql", "NOT carrier", "--dialect", "rocketmq")
        assert len(rocketmq) == 6  # a string is never true there
        (row,) = json.loads(streamd("selector", "list", "s", "--json"))
        assert row["text"] == "delay > 2"
        assert "delay > 2" in streamd("selector", "list", "s")
        streamd("selector", "delete", "s", "late")
        streamd("consume", "s", "--group", "late", "--until-end", code=1)
        assert "has registered no selector" in streamd.notes

    @pytest.mark.parametrize(
        ("options", "notes"),
        [
            (
                ["--sql", "carrier == 'HA'"],
                (
                    "Error: column 10: found =; a property, a value or ( is expected\n"
                    "  carrier == 'HA'\n"
                    "           ^\n"
                ),
            ),
            (
                ["--tags", "||"],
                (
                    "Error: column 1: no tag is named; write tags with || between them, or * for "
                    "every message\n  ||\n  ^^\n"
                ),
            ),
            (
                ["--tags", "a", "--sql", "a = 1"],
                "Error: --filter, --sql and --tags exclude one another\n",
            ),
        ],
    )
    def test_bad_selectors(self, streamd: Shell, options: list[str], notes: str) -> None:
        assert streamd("consume", "none", *options, code=2) == ""
        assert streamd.notes.endswith(notes)

    def test_filters_that_find_nothing(self, streamd: Shell) -> None:
        streamd("stream", "create", "s")
        streamd("publish", "s", stdin='{"carrier": "HA"}')
        assert streamd.lines("s", "--filter", "HA", "--explain") == []
        assert "no message in the skipped chunks has a filter value" in streamd.notes

    def test_where_it_begins_and_ends(self, streamd: Shell) -> None:
        streamd("stream", "create", "s", "--chunk-max-records", "2")
        streamd("publish", "s", stdin=flights(*"abcdef"))
        time.sleep(0.05)
        moment = (
            time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
            + f".{int(time.time() % 1 * 1000):03}Z"
        )
        time.sleep(0.05)
        streamd("publish", "s", stdin=flights(*"gh"))

        def offsets(*options: str) -> list[object]:
            return [row["offset"] for row in streamd.lines("s", *options)]

        assert offsets() == offsets("--offset", "first") == list(range(8))
        assert offsets("--offset", "3") == [3, 4, 5, 6, 7]
        assert offsets("--offset", "last") == [6, 7]
        assert offsets("--offset", "next") == offsets("--offset", "100") == []
        assert offsets("--offset", moment) == [6, 7]
        assert offsets("--limit", "3") == [0, 1, 2]

    def test_bytes_that_are_not_utf8(self, program: Program) -> None:
        async def fill() -> None:
            async with connect(program.server.uri) as client:
                await client.create("s")
                async with client.producer("s") as producer:
                    await producer.send(b"\xff\x00")
                    await producer.send_encoded(b"no AMQP message")

        anyio.run(fill)
        first, second = program.lines("s")
        assert (first["body"], first["encoding"]) == ("/wA=", "base64")
        assert second["body"] == "no AMQP message"

    def test_following_until_interrupted(self, program: Program) -> None:
        program("stream", "create", "s")
        arguments = ["consume", "s", "--offset", "next", "--uri", program.server.uri]
        with subprocess.Popen(
            [sys.executable, "-m", "streamd", *arguments], stdout=subprocess.PIPE, text=True
        ) as follower:
            assert follower.stdout is not None
            while not select.select([follower.stdout], [], [], 0.2)[0]:
                program("publish", "s", stdin=flights("HA"))  # it may not have subscribed yet
            assert json.loads(follower.stdout.readline())["properties"] == {"carrier": "HA"}
            follower.send_signal(signal.SIGINT)
            assert follower.wait(10) == 130


class TestAccess:
    def test_users_of_a_running_server(self, alone: Shell) -> None:
        assert alone("user", "add", "ada", "--password", "s3cret") == ""
        assert alone.notes.startswith("added user ada; next: streamd permission set ada")
        ada = alone.server.uri.replace("guest:guest", "ada:s3cret")
        result = CliRunner().invoke(main, ["stream", "list", "--uri", ada])
        assert "virtual host access failure" in result.output
        alone("permission", "set", "ada", "--configure", "^ada-", "--read", ".*")
        assert CliRunner().invoke(main, ["stream", "create", "ada-1", "--uri", ada]).exit_code == 0
        result = CliRunner().invoke(main, ["stream", "create", "other", "--uri", ada])
        assert (result.exit_code, result.output) == (
            1,
            "Error: ada may not configure other\n",
        )
        result = CliRunner().invoke(main, ["user", "list", "--uri", ada])
        assert "ada is not an administrator" in result.output
        (found, _) = json.loads(alone("permission", "list", "--json"))
        assert found == {
            "user": "ada",
            "vhost": "/",
            "configure": "^ada-",
            "write": "",
            "read": ".*",
        }
        assert re.search(r"guest +administrator", alone("user", "list"))
        alone("user", "tags", "ada", "--tag", "management", "--tag", "monitoring")
        assert re.search(r"ada +management monitoring", alone("user", "list"))
        alone("user", "passwd", "ada", "--password", "other")
        assert (
            "authentication failure"
            in CliRunner().invoke(main, ["stream", "list", "--uri", ada]).output
        )
        alone("permission", "clear", "ada")
        alone("user", "delete", "ada")
        assert [row["name"] for row in json.loads(alone("user", "list", "--json"))] == ["guest"]
        assert "s3cret" not in alone.server.log.read_text()

    def test_virtual_hosts(self, alone: Shell) -> None:
        alone("vhost", "add", "staging")
        there = f"{alone.server.uri}staging"
        assert CliRunner().invoke(main, ["stream", "create", "s", "--uri", there]).exit_code == 0
        assert alone("stream", "list", "--json") == "[]\n"
        assert re.search(r"staging +1", alone("vhost", "list"))
        alone("vhost", "delete", "staging")
        assert "staging" not in alone("vhost", "list")

    def test_the_first_user_comes_from_the_settings(self, tmp_path: Path) -> None:
        options = ("--user", "ops", "--password", "initial")
        with ServerProcess(tmp_path / "data", *options, module="tests.support.impatient") as server:
            uri = server.uri.replace("guest:guest", "ops:initial")
            result = CliRunner().invoke(main, ["user", "list", "--json", "--uri", uri])
            assert json.loads(result.stdout) == [{"name": "ops", "tags": "administrator"}]
            result = CliRunner().invoke(main, ["stream", "list", "--uri", server.uri])
            assert "authentication failure" in result.output


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "reason", "code"),
        [
            (["stream", "delete", "none"], "cannot delete none: stream does not exist", 1),
            (["consume", "s", "--offset", "soon"], "--offset is 'soon', expected first, last", 2),
            (["consume", "s", "--match-unfiltered"], "--match-unfiltered needs --filter", 2),
            (["consume", "s", "--filter", ""], "--filter is empty", 2),
            (["consume", "s", "--limit", "0"], "0 is not a whole number of 1 or more", 2),
            (["publish", "s", "/nowhere"], "No such file", 1),
        ],
    )
    def test_one_line_says_what_is_wrong(
        self, streamd: Shell, arguments: list[str], reason: str, code: int
    ) -> None:
        assert streamd(*arguments, code=code) == ""
        assert reason in streamd.notes

    def test_a_wrong_password(self, streamd: Shell) -> None:
        uri = streamd.server.uri.replace("guest:guest", "guest:hunter2")
        result = CliRunner().invoke(main, ["stream", "list", "--uri", uri])
        assert result.exit_code == 1
        assert "authentication failure" in result.output
        assert "hunter2" not in result.output


def commands() -> list[list[str]]:
    """Every command and subcommand."""
    found = [[]]
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        found.append([name])
        found += [[name, sub] for sub in getattr(command, "commands", {})]
    return found


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_has_help_with_examples(command: list[str]) -> None:
    result = CliRunner().invoke(main, [*command, "--help"])
    assert result.exit_code == 0
    if command not in (
        [],
        ["stream"],
        ["user"],
        ["vhost"],
        ["permission"],
        ["selector"],
        ["offset"],
        ["tier"],
        ["demo"],
    ):
        assert "Example" in result.output
    assert not [line for line in result.output.splitlines() if len(line) > 80]

"""`streamd publish`: lines as they come, what became of each, and how it ends."""

import errno
import io
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from segments import Log
from segments.errors import StorageError
from streamd.cli import publish
from tests.support.command_line import CommandLine

FIRST_PUBLISH = 9  # the frame, after those of the login and for a producer


class Pipe:
    """A pipe that a program keeps open.

    Attributes:
        end: where a command reads.
    """

    def __init__(self) -> None:
        reading, self._writing = os.pipe()
        self.end = io.TextIOWrapper(os.fdopen(reading, "rb"))

    def write(self, data: bytes) -> None:
        os.write(self._writing, data)

    def close(self) -> None:
        os.close(self._writing)
        self.end.close()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _stream(streamd: CommandLine) -> None:
    assert streamd("stream", "create", "s").code == 0


def bodies(streamd: CommandLine, stream: str = "s") -> list[str]:
    rows = streamd("consume", stream, "--until-end").out.splitlines()
    return [row.partition('"body": "')[2].partition('"')[0] for row in rows]


def test_each_line_goes_as_it_comes_and_an_interrupt_tells_how_many(
    streamd: CommandLine, pipe: Pipe
) -> None:
    """The next line is written only when the one before is on its way; nothing ends the input."""
    lines = [b'{"body": "2"}\n', b'{"body":', b' "3"}\n{"body": "lost"']

    def more(number: int) -> None:
        if number == FIRST_PUBLISH:
            pipe.write(lines[0])
        elif number == FIRST_PUBLISH + 1:
            pipe.write(lines[1] + lines[2])
        elif number == FIRST_PUBLISH + 2:
            signal.raise_signal(signal.SIGINT)

    streamd.on_send = more
    pipe.write(b'{"body": "1"}\n')
    ended = streamd("publish", "s", stdin=pipe.end)
    assert (ended.code, ended.notes) == (130, "interrupted; published 3 messages to s\n")
    streamd.on_send = lambda _: None
    assert bodies(streamd) == ["1", "2", "3"]


def test_a_server_that_goes_while_no_line_comes(streamd: CommandLine, pipe: Pipe) -> None:
    streamd.on_send = lambda n: streamd.drop_connections() if n == FIRST_PUBLISH else None
    pipe.write(b"{}\n")
    ended = streamd("publish", "s", stdin=pipe.end)
    assert ended.code == 1
    assert ended.notes.startswith("Error: localhost:5552: the connection ")
    assert ended.notes.endswith("; published 0 messages to s, and may have published 1 more\n")


def test_a_second_interrupt_does_not_wait_for_confirms(
    streamd: CommandLine, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        await publish.anyio.sleep_forever()

    monkeypatch.setattr("clients.producer.Producer.flush", never)
    streamd.on_send = lambda n: n == FIRST_PUBLISH and signal.raise_signal(signal.SIGINT)
    pipe.write(b"{}\n")
    ended = streamd("publish", "s", stdin=pipe.end)
    assert ended.code == 130
    assert ended.notes.startswith("interrupted; published ")


def test_an_interrupt_while_the_server_is_away(
    streamd: CommandLine, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --retry it may be back in an hour: the command ends, and tells what is not confirmed."""

    def gone(number: int) -> None:
        if number == FIRST_PUBLISH:
            streamd.drop_connections()
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(publish, "_FLUSH_SECONDS", 0.01)
    streamd.on_send = gone
    pipe.write(b"{}\n")
    ended = streamd("publish", "s", "--retry", "30", stdin=pipe.end)
    assert ended.code == 130
    last = ended.notes.splitlines()[-1]
    assert last == "interrupted; published 0 messages to s, and may have published 1 more"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            b"not json",
            'is not JSON: Expecting value at character 1; a line looks like {"body": "hello"}',
        ),
        (b"\xff", "is not JSON: 'utf-8' codec can't decode byte 0xff"),
        (b"[1, 2]", "is not a JSON object: '[1, 2]'"),
        (b'"\x1b[31m"', "is not JSON: Invalid control character"),
        (b"[" * 100_000, "is nested too deeply"),
        (b'{"n": ' + b"9" * 5000 + b"}", "has a number that does not fit into 64 bits"),
        (b'{"n": 18446744073709551616}', "has the number 18446744073709551616, which does not fit"),
        (b'{"body": "\\ud800"}', r"has half a character, '\ud800'"),
        (b'{"\\ud800": 1}', r"has half a character, '\ud800'"),
        (b'{"p": "\\udfff"}', r"has half a character, '\udfff'"),
        (b'{"body": "' + b"x" * (1 << 20) + b'"}', "cannot be published: message is 1048584 bytes"),
    ],
)
def test_a_line_that_is_no_message(streamd: CommandLine, line: bytes, reason: str) -> None:
    stdin = b'{"body": "1"}\n' + line + b'\n\n{"body": "2"}'
    ended = streamd("publish", "s", stdin=stdin)
    assert ended.code == 1
    first, last = ended.notes.splitlines()
    assert first.startswith(f"line 2 {reason}")
    assert last == "Error: 1 line is not a message; published 2 messages to s"
    assert bodies(streamd) == ["1", "2"]


def test_more_lines_that_are_no_messages_are_counted(streamd: CommandLine) -> None:
    ended = streamd("publish", "s", stdin=b"\0\n" * 1000 + b"{}")
    assert ended.notes.count("\n") == 11
    assert ended.notes.endswith("Error: 1,000 lines are not messages; published 1 message to s\n")


def test_a_line_without_end_is_not_kept(
    streamd: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "_MAX_LINE_BYTES", 100)
    monkeypatch.setattr(publish, "_READ_BYTES", 50)
    ended = streamd("publish", "s", stdin=b'{"body": "1"}\n' + b" " * 1000 + b'\n{"body": "2"}\n')
    assert ended.notes.splitlines()[0] == "line 2 is longer than 100 bytes"
    assert bodies(streamd) == ["1", "2"]


def test_lines_that_a_producer_has_published_are_skipped_and_counted(streamd: CommandLine) -> None:
    arguments = ["publish", "s", "--producer", "job"]
    assert streamd(*arguments, stdin=b"{}\n{}\n").notes == "published 2 messages to s\n"
    again = streamd(*arguments, stdin=b'{"body": "another"}\n{"body": "file"}\n{"body": "3"}\n')
    assert (again.code, again.notes) == (
        0,
        (
            "published 1 message to s; skipped 2 lines whose numbers job had published before: "
            "lines of another file need another --producer\n"
        ),
    )
    assert bodies(streamd) == ["", "", "3"]


def test_a_producer_ends_at_a_line_that_is_no_message(streamd: CommandLine) -> None:
    """So that its corrected file can be published again: the numbers of lines decide."""
    arguments = ["publish", "s", "--producer", "job"]
    ended = streamd(*arguments, stdin=b'{"body": "1"}\nbad\n{"body": "3"}\n')
    assert ended.code == 1
    assert ended.notes.endswith("; published 1 message to s\n")
    assert ended.notes.startswith("Error: line 2 is not JSON")
    streamd(*arguments, stdin=b'{"body": "1"}\n{"body": "2"}\n{"body": "3"}\n')
    assert bodies(streamd) == ["1", "2", "3"]


def test_messages_that_the_server_refuses_are_not_counted(streamd: CommandLine) -> None:
    streamd("stream", "create", "t", "--filter-property", "p", "--filter-contract", "strict")
    arguments = ["publish", "t", "--filter-property", "q"]
    ended = streamd(*arguments, stdin=b'{"p": "a", "q": "b"}\n{}\n')
    assert ended.code == 1
    assert ended.notes.startswith("Error: 1 messages were not accepted: ")
    assert ended.notes.endswith("; published 1 message to t\n")


def test_a_producer_ends_at_a_message_that_the_server_refuses(streamd: CommandLine) -> None:
    """However often the file is published: nothing is skipped that is not stored."""
    streamd("stream", "create", "t", "--filter-property", "p", "--filter-contract", "strict")
    arguments = ["publish", "t", "--filter-property", "q", "--producer", "job"]
    right, wrong = b'{"p": "a", "q": "a", "body": "%d"}\n', b'{"p": "a", "q": "b"}\n'
    lines = [right % number for number in range(1, 501)]
    for _ in range(2):
        ended = streamd(*arguments, stdin=b"".join([*lines[:2], wrong, *lines[3:]]))
        assert ended.code == 1
        refused = "Error: line 3 is not accepted: precondition failed; nothing behind it is"
        assert ended.notes.startswith(refused)
    assert streamd(*arguments, stdin=b"".join(lines)).code == 0
    assert bodies(streamd, "t") == [str(number) for number in range(1, 501)]


def test_a_file_that_cannot_be_read(streamd: CommandLine, tmp_path: Any) -> None:
    ended = streamd("publish", "s", str(tmp_path))
    assert ended.code == 1
    assert "Is a directory" in ended.notes
    assert streamd("publish", "s", stdin=None).notes.startswith("Error: cannot read <stdin>: ")


def test_a_publisher_that_waits_is_told_why(
    streamd: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So much is on its way that the server reads nothing more from its connection."""
    monkeypatch.setattr(publish, "_PATIENCE_SECONDS", 0.05)
    append, is_full = Log.append, [True]

    def refuse_once(log: Log, *arguments: Any) -> Any:
        if is_full.pop() if is_full else False:
            raise StorageError("write", "f", OSError(errno.ENOSPC, "full"))
        return append(log, *arguments)

    monkeypatch.setattr(Log, "append", refuse_once)
    ended = streamd("publish", "s", stdin=b'{"body": "%s"}\n' % (b"x" * 40_000) * 400)
    assert ended.code == 0
    *waiting, done = ended.notes.splitlines()  # a slow machine has it wait for more than that
    assert "waiting: the disk is full" in waiting
    assert done == "published 400 messages to s"

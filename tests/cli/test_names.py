"""Names are shown as they are, whatever is in them, and never obeyed by a terminal."""

import pytest

from streamd.cli import terminal
from tests.support.command_line import CommandLine


def test_brackets(streamd: CommandLine) -> None:
    for name in ("m[prod]", "m[dev]", "[/]", "[bold]x", ":smile:"):
        assert streamd("stream", "create", name).notes == f"created {name}\n"
        assert f"{name} " in streamd("stream", "list").out
        assert f" {name}\n" in streamd("stream", "info", name).out
        assert streamd("publish", name, stdin=b"{}").notes == f"published 1 message to {name}\n"
    streamd("user", "add", "ada", "--password", "secret")
    streamd("permission", "set", "ada", "--read", "[logs].*")
    assert streamd("permission", "list").out.splitlines()[1].split() == ["ada", "/", "[logs].*"]
    streamd("selector", "add", "m[prod]", "[g]", "--sql", "a = '[/x]'")
    assert streamd("selector", "list", "m[prod]").out.splitlines()[1].split()[0] == "[g]"
    assert "a = '[/x]'" in streamd("selector", "list", "m[prod]").out


def test_what_a_terminal_would_obey(
    streamd: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    """This server refuses such names; others, and older data, may have them."""
    name = "red\x1b[31m\u202eevil"
    shown = r"'red\x1b[31m\u202eevil'"
    refused = streamd("stream", "create", name)
    assert refused.code == 1
    assert shown in refused.notes
    terminal.show_table(("stream",), [(name,)])
    terminal.note(f"created {name}")
    out, notes = capsys.readouterr()
    assert out == f"stream\n{shown}\n"
    assert notes == f"created {shown[1:-1]}\n"


def test_wide_characters_and_long_names(streamd: CommandLine) -> None:
    """A row is a line, and nothing of it is cut off, however narrow a terminal is."""
    names = ["流れ" * 60, "流れ" * 59 + "れ流", "x" * 200]
    for name in names:
        assert streamd("stream", "create", name).code == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "40")
        lines = streamd("stream", "list").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == sorted(names)
    assert all(len(line.split()) == 10 for line in lines[1:])


def test_a_password_without_a_terminal(streamd: CommandLine) -> None:
    assert streamd("user", "add", "ada", stdin=b"secret\n").code == 0
    uri = "rabbitmq-stream://ada:secret@localhost/"
    assert "virtual host access failure" in streamd("stream", "list", "--uri", uri).notes
    ended = streamd("user", "add", "bob")
    assert ended.code == 2
    assert "there is no terminal to ask for the password" in ended.notes

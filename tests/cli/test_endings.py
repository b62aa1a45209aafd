"""However a command is hindered: a result or one line, the documented exit code, no traceback.

Every command is found by itself and run against all hindrances. A new one needs a line in OPTIONS
only if it does nothing without them.
"""

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from streamd.__main__ import run
from streamd.cli import _COMMANDS, main
from tests.support.command_line import (
    CommandLine,
    Ended,
    all_commands,
    command_line,
    command_named,
)
from tests.support.process import run_streamd

OPTIONS = {
    ("connection", "close"): ["--user", "nobody"],
    ("consume",): ["--until-end"],
    ("offset", "set"): ["--by", "1"],
    ("selector", "add"): ["--sql", "a = 1"],
    ("stream", "set"): ["--max-age", "7D"],
    ("stream", "truncate"): ["--before", "5"],
    ("super-stream", "create"): ["--partitions", "2"],
    ("user", "add"): ["--password", "secret"],
    ("user", "passwd"): ["--password", "secret"],
}
COMMANDS = all_commands()
# They begin without a server.
LOCAL = [("serve",), ("tune",), ("demo",)]
LOCAL += [("print", what) for what in ("config", "unit", "dashboard", "alerts", "completion")]
REMOTE = [name for name in COMMANDS if name not in LOCAL]
ODD_NAMES = ["m[prod]", "[/bold]", "a\nb", "\x1b[31m", "流れ" * 30, "\udcff", ""]
ODD_NUMBERS = ["²", "-1", "nan", "-inf", "1e999", "0x10", "1" * 5000, ""]
ODD_ADDRESSES = [
    "",
    "localhost",
    "amqp://localhost",
    "rabbitmq-stream://",
    "rabbitmq-stream://[::1",
    "rabbitmq-stream://localhost:99999/",
    "rabbitmq-stream://localhost:²/",
    "rabbitmq-stream://localhost:-1/",
    "rabbitmq-stream://localhost/?cacertfile=x",
    "rabbitmq-stream://a\nb\x1b[31m:1/#[/]",
]
LAST_OF_LOGIN = 6  # frames that a client sends until it is logged in
SENDS_ONE = [("ping",)]  # and does not log in

by_name = pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
by_remote_name = pytest.mark.parametrize("name", REMOTE, ids=" ".join)
# In the login, which is the same for all of them, and with the first request on its way.
by_step = pytest.mark.parametrize(
    ("name", "frame"),
    [(("stream", "list"), 1), (("stream", "list"), LAST_OF_LOGIN)]
    + [(name, 1 if name in SENDS_ONE else LAST_OF_LOGIN + 1) for name in REMOTE],
)


def words(name: tuple[str, ...], value: str = "s") -> list[str]:
    """A command with the arguments that it needs, each of them `value`, a number if need be."""
    params = command_named(name).params
    needed = [p.name for p in params if isinstance(p, click.Argument) and p.required]
    values = ["5" if (needs, value) == ("to", "s") else value for needs in needed]
    return [*name, *OPTIONS.get(name, []), *(["--"] if values else []), *values]


def check(ended: Ended, *codes: int) -> None:
    """It ended as documented."""
    assert ended.code in codes, ended
    assert "bug in streamd" not in ended.notes
    assert ended.notes.count("\n") <= 1, ended.notes
    assert ended.notes.replace("\n", "").isprintable(), ended.notes
    if ended.code:
        assert ended.notes.startswith("interrupted" if ended.code == 130 else "Error: ")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with command_line(tmp_path_factory.mktemp("cli") / "data") as commands:
        yield commands


@pytest.fixture
def streamd(shared: CommandLine) -> Iterator[CommandLine]:
    """A server with a stream, a selector and a message; one for all tests."""
    if shared("stream", "create", "s").code == 0:
        shared("selector", "add", "s", "s", "--sql", "a = 1")
        shared("publish", "s", stdin=b'{"body": "x"}')
    yield shared
    shared.on_send, shared.is_away = lambda _number: None, False


@by_name
def test_everything_is_in_one_of_the_lists(name: tuple[str, ...]) -> None:
    has_address = any(p.name == "uri" for p in command_named(name).params)
    assert has_address or name in LOCAL


@by_remote_name
def test_odd_addresses(streamd: CommandLine, name: tuple[str, ...]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streamd, "is_away", True)
        for uri in ODD_ADDRESSES:
            check(streamd(*words(name)[: len(name)], "--uri", uri, *words(name)[len(name) :]), 2)


@by_remote_name
def test_no_server(streamd: CommandLine, name: tuple[str, ...]) -> None:
    streamd.is_away = True
    ended = streamd(*words(name))
    check(ended, 1)
    assert "Connection refused" in ended.notes


@by_step
def test_a_server_that_goes(streamd: CommandLine, name: tuple[str, ...], frame: int) -> None:
    streamd.on_send = lambda number: streamd.drop_connections() if number == frame else None
    ended = streamd(*words(name), stdin=b"{}\n")
    check(ended, 1)


@by_step
def test_interrupted(streamd: CommandLine, name: tuple[str, ...], frame: int) -> None:
    streamd.on_send = lambda number: _interrupt() if number == frame else None
    check(streamd(*words(name), stdin=b"{}\n"), 130)


@by_remote_name
def test_interrupted_outside_the_event_loop(
    streamd: CommandLine, name: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyio.run", lambda *_, **__: _interrupt())
    check(streamd(*words(name)), 130)


def _interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


MISSING = "stream does not exist; `streamd stream list` shows those that do"
GROUPS = sorted({name[:-1] for name in COMMANDS})


@pytest.mark.parametrize("group", GROUPS, ids=" ".join)
def test_lists_of_commands_are_not_cut_off(shared: CommandLine, group: tuple[str, ...]) -> None:
    """The first sentence of each help fits into its line of the list."""
    ended = shared(*group, "--help")
    assert "..." not in ended.out.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("consume", "none"), f"cannot read none: {MISSING}"),
        (("publish", "none"), f"cannot publish to none: {MISSING}"),
        (
            ("stream", "list", "--uri", "rabbitmq-stream://guest:wrong@localhost/"),
            "; user and password are given in --uri or STREAMD_URI",
        ),
        (
            ("stream", "list", "--uri", "rabbitmq-stream://localhost/none"),
            "; it does not exist, or the user has no permissions in it",
        ),
        (("stream", "list", "--jsno"), "Did you mean '--json'? See streamd stream list --help"),
    ],
)
def test_an_error_says_what_to_do(
    streamd: CommandLine, arguments: tuple[str, ...], advice: str
) -> None:
    ended = streamd(*arguments)
    assert ended.notes.endswith(f"{advice}\n")
    assert ended.notes.count("\n") == 1


def test_a_standing_selector_that_is_none_is_marked(streamd: CommandLine) -> None:
    """As for consume: the place is marked in a line of its own."""
    streamd("stream", "create", "s")
    ended = streamd("selector", "add", "s", "g", "--sql", "delay >")
    assert ended.code == 2
    reason, text, mark = ended.notes.splitlines()
    assert reason.startswith("Error: column 8: found the end")
    assert (text, mark) == ("  delay >", "         ^")


@by_name
def test_help_that_cannot_be_written(shared: CommandLine, name: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        check(shared(*name, "--help", stdout=full), 1)


@by_remote_name
def test_output_that_cannot_be_written(streamd: CommandLine, name: tuple[str, ...]) -> None:
    """What prints nothing does not fail for that; a reader that has left is a normal end."""
    streamd("stream", "create", "s")
    has_output = bool(streamd(*words(name)).out)
    for file, code in ((_full_disk(), 1), (_pipe_without_reader(), 0), (None, 1)):
        streamd("stream", "create", "s")
        ended = streamd(*words(name), stdout=file, is_closed=file is None)
        if file is not None:
            file.close()
        check(ended, *((code,) if has_output else (0, 1)))
        assert has_output <= (
            ended.notes.startswith("Error: cannot write to stdout: ") is bool(code)
        )


def _full_disk() -> Any:
    return open("/dev/full", "w")


def _pipe_without_reader() -> Any:
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w")


@by_remote_name
@pytest.mark.parametrize(
    "stdin", [b"", b"\0\xff\x80\n" * 3, None], ids=["empty", "binary", "closed"]
)
def test_odd_input(streamd: CommandLine, name: tuple[str, ...], stdin: bytes | None) -> None:
    given = [word for word in words(name) if word not in {"--password", "secret"}]
    ended = streamd(*given, stdin=stdin)
    if name == ("publish",) and stdin:
        assert ended.notes.count("\n") == 4
        ended = ended._replace(notes=ended.notes.splitlines()[-1])
    check(ended, 0, 1, 2)


@by_name
def test_odd_names(streamd: CommandLine, name: tuple[str, ...], tmp_path: Path) -> None:
    if name == ("demo",):
        return  # it has no argument, and takes a minute and a half
    if name == ("serve",):
        given = [[*name, "--config", odd] for odd in ODD_NAMES[:-1]]
    else:
        given = [words(name, odd) for odd in ODD_NAMES]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        for arguments in given:
            check(streamd(*arguments, stdin=b"{}"), 0, 1, 2)


@by_name
def test_odd_numbers(shared: CommandLine, name: tuple[str, ...], tmp_path: Path) -> None:
    shared.is_away = True
    numbers = (click.types.IntParamType, click.types.FloatParamType)
    for option in command_named(name).params:
        if isinstance(option, click.Option) and isinstance(option.type, numbers):
            for odd in ODD_NUMBERS:
                last = ["--config", str(tmp_path / "none")] if name == ("serve",) else []
                check(shared(*name, option.opts[0], odd, *last, *words(name)[len(name) :]), 1, 2)
    shared.is_away = False


@by_name
def test_an_option_that_does_not_exist(shared: CommandLine, name: tuple[str, ...]) -> None:
    ended = shared(*name, "--\x1b[31m\n")
    check(ended, 2)
    assert f"streamd {' '.join(name)} --help" in ended.notes


def test_a_bug_is_told_in_one_line(shared: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ExceptionGroup("of a nursery", [TypeError("two\nlines")])

    monkeypatch.setattr("anyio.run", fail)
    ended = shared("stream", "list")
    assert ended.code == 1
    assert ended.notes == (
        r"Error: this is a bug in streamd, TypeError: two\nlines; --debug shows where it is, "
        "please report it\n"
    )
    assert "Traceback" in shared("--debug", "stream", "list").notes


def test_interrupted_while_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loader:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "streamd.cli":
                raise KeyboardInterrupt

    monkeypatch.setattr(sys, "meta_path", [Loader(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "streamd.cli")
    with pytest.raises(SystemExit) as end:
        run()
    assert end.value.code == 130


@pytest.mark.parametrize("name", _COMMANDS)
def test_the_list_of_commands_says_what_their_help_begins_with(name: str) -> None:
    """It loads none of them."""
    with click.Context(main) as context:
        command = main.get_command(context, name)
    assert command is not None
    summary = _COMMANDS[name].summary
    assert " ".join((command.help or "").split()).startswith(summary.removesuffix("."))
    assert len(summary) < 72


@pytest.mark.parametrize("words", [(), ("stream",), ("user",)])
def test_help_is_shown_in_lines_without_a_command(words: tuple[str, ...]) -> None:
    ended = run_streamd(*words, code=2)
    assert ended.stderr.startswith(f"Usage: {' '.join(('streamd', *words))} [OPTIONS]")
    assert len(ended.stderr.splitlines()) > 10
    assert "\\n" not in ended.stderr


def test_serve_loads_where_types_of_click_take_no_parameter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_item: object) -> None:
        raise TypeError("type 'ParamType' is not subscriptable")

    monkeypatch.setattr(click.ParamType, "__class_getitem__", refuse, raising=False)
    spec = importlib.util.find_spec("streamd.cli.serve")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))

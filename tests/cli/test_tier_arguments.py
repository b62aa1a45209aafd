"""Options of `streamd stream create` and `set` for the tier."""

import json

import pytest

from tests.support.command_line import CommandLine

OPTIONS = {
    "--tier": ("stream-tier", "false", "true"),
    "--local-max-length-bytes": ("stream-local-max-length-bytes", "1000", "0"),
    "--local-max-age": ("stream-local-max-age", "7D", "12h"),
}


def arguments(streamd: CommandLine) -> dict[str, str]:
    found: dict[str, str] = json.loads(streamd("stream", "info", "s", "--json").out)["arguments"]
    return found


def test_declared_and_changed(streamd: CommandLine) -> None:
    given = [word for option, (_, value, _) in OPTIONS.items() for word in (option, value)]
    assert streamd("stream", "create", "s", *given).code == 0
    assert arguments(streamd) == {name: value for name, value, _ in OPTIONS.values()}
    changes = [word for option, (_, _, value) in OPTIONS.items() for word in (option, value)]
    assert streamd("stream", "set", "s", *changes).code == 0
    assert arguments(streamd) == {name: value for name, _, value in OPTIONS.values()}
    defaults = [word for option in OPTIONS for word in (option, "default")]
    assert streamd("stream", "set", "s", *defaults).code == 0
    assert arguments(streamd) == {}


@pytest.mark.parametrize("option", OPTIONS)
def test_refused(streamd: CommandLine, option: str) -> None:
    ended = streamd("stream", "create", "s", option, "perhaps")
    assert ended.code == 1
    assert ended.notes.startswith(f"Error: {OPTIONS[option][0]} is 'perhaps', expected ")

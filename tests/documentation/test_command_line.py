"""reference/command-line has every command and option, and what it says of all is so."""

import re

import click
import pytest

from docs.generated.command_line import commands
from tests.support.pages import ROOT

COMMANDS = list(commands())
PAGE = (ROOT / "docs" / "reference/command-line.md").read_text()


def section(words: str) -> str:
    (found,) = re.findall(rf"^##+ `{words}`$(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.parametrize(("words", "command"), [(w, c) for w, _, c in COMMANDS])
def test_each_command_has_its_options(words: str, command: click.Command) -> None:
    text = section(words)
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            assert parameter.make_metavar(click.Context(command)) in text
        else:
            assert any(re.search(rf"`{option}[ `]", text) for option in parameter.opts)
            assert not parameter.envvar or f"`{parameter.envvar}`" in text


def test_there_are_no_others() -> None:
    assert re.findall(r"^##+ `(.*)`$", PAGE, re.MULTILINE) == [words for words, _, _ in COMMANDS]


def test_help_says_when_something_is_the_default_in_one_way() -> None:
    """The page takes "[default: …]" at the end of a help text for what it is."""
    for _, _, command in COMMANDS:
        for option in command.params:
            text = getattr(option, "help", None) or ""
            assert "[default" not in text or text.rstrip().endswith("]")
    assert "[default" not in PAGE.replace("\\", "")

"""`streamd print`: files to begin with, for a server that is installed."""

import re
import shutil
import sys
from importlib.resources import files
from pathlib import Path

import click

from streamd.cli.terminal import write
from streamd.config import as_toml

_PROGRAM = re.compile(r"(?<=^ExecStart=)\S+", re.MULTILINE)


@click.group("print")
def print_() -> None:
    """Print a file to begin with: settings, or a unit for systemd.

    \b
    Examples:
      streamd print config > streamd.toml
      streamd print unit > /etc/systemd/system/streamd.service
    """


@print_.command()
def config() -> None:
    """Print a settings file for `streamd serve --config`.

    All settings are in it as comments, with their defaults and what they mean.

    \b
    Example:
      streamd print config > streamd.toml
      streamd serve --config streamd.toml
    """
    write(as_toml().removesuffix("\n"))


@print_.command()
def unit() -> None:
    """Print a unit for systemd, which starts the program that prints it.

    \b
    Example:
      streamd print unit > /etc/systemd/system/streamd.service
    """
    text = files("streamd.cli").joinpath("streamd.service").read_text()
    write(_PROGRAM.sub(lambda _: _program(), text).removesuffix("\n"))


def _program() -> str:
    """The path of this program, with what systemd would take for its own escaped."""
    found = Path(sys.argv[0])
    if found.name == "__main__.py":  # python -m streamd
        found = Path(sys.executable).with_name("streamd")
    path = shutil.which(str(found)) or str(found)
    return str(Path(path).absolute()).replace("%", "%%").replace(" ", "\\x20")

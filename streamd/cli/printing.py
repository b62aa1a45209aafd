"""`streamd print`: files to begin with, for a server that is installed, and for watching it."""

import re
import shutil
import sys
from importlib.resources import files
from pathlib import Path

import click

from streamd.cli.common import Commands
from streamd.cli.terminal import write
from streamd.config import as_toml

_PROGRAM = re.compile(r"(?<=^ExecStart=)\S+", re.MULTILINE)


@click.group("print", cls=Commands)
def print_() -> None:
    """Print a file to begin with: settings, a unit, alerts and others.

    \b
    Examples:
      streamd print config > streamd.toml
      streamd print unit > /etc/systemd/system/streamd.service
      streamd print dashboard > dashboard.json
      streamd print alerts > /etc/prometheus/streamd.yaml
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
    """Print a unit for systemd.

    It starts the program that prints it.

    \b
    Example:
      streamd print unit > /etc/systemd/system/streamd.service
    """
    write(_PROGRAM.sub(lambda _: _program(), _file("streamd.service")))


@print_.command()
def dashboard() -> None:
    """Print a dashboard for Grafana.

    It draws the metrics of Prometheus. In Grafana choose Dashboards, New, Import, and give it the
    file. RabbitMQ's dashboards work as well.

    \b
    Example:
      streamd print dashboard > dashboard.json
    """
    write(_file("dashboard.json"))


@print_.command()
def alerts() -> None:
    """Print alerts for Prometheus.

    It is a file for its rule_files. They look at the metrics of servers that are scraped as the job
    streamd.

    \b
    Example:
      streamd print alerts > /etc/prometheus/streamd.yaml
    """
    write(_file("alerts.yaml"))


@print_.command()
@click.option(
    "--shell",
    type=click.Choice(["bash", "zsh", "fish"]),
    default="bash",
    show_default=True,
    help="The shell that reads it.",
)
def completion(shell: str) -> None:
    """Print what makes a shell complete commands and options.

    \b
    Examples:
      streamd print completion > /etc/bash_completion.d/streamd
      streamd print completion --shell fish | source
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - for this alone

    found = get_completion_class(shell)
    assert found is not None  # noqa: S101 - click knows these shells
    command = click.get_current_context().find_root().command
    write(found(command, {}, "streamd", "_STREAMD_COMPLETE").source())


def _file(name: str) -> str:
    return files("streamd.cli").joinpath(name).read_text().removesuffix("\n")


def _program() -> str:
    """The path of this program, with what systemd would take for its own escaped."""
    found = Path(sys.argv[0])
    if found.name == "__main__.py":  # python -m streamd
        found = Path(sys.executable).with_name("streamd")
    path = shutil.which(str(found)) or str(found)
    return str(Path(path).absolute()).replace("%", "%%").replace(" ", "\\x20")

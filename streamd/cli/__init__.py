"""The command line: `streamd serve`, `stream`, `publish`, `consume`, `user` and more.

Data goes to stdout, notes to stderr. `ending.py` says how commands end, `terminal.py` how they
print. click because it gives all commands the same form of options, help and errors; rich for
tables and progress bars.
"""

import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from streamd.cli.common import Commands, load_to_stay, log
from streamd.cli.ending import exit_code_of, show_where
from streamd.cli.terminal import write


class _Place(NamedTuple):
    """Where a command is, and what the list of commands says of it.

    It is imported only when it is used, because the server is slow to load.
    """

    module: str
    name: str
    summary: str


_COMMANDS = {
    "serve": _Place("streamd.cli.serve", "serve", "Run the server until SIGINT or SIGTERM."),
    "ping": _Place("streamd.cli.ping", "ping", "Exit with 0 if a server answers, with 1 if not."),
    "status": _Place(
        "streamd.cli.status",
        "status",
        "Show how the server is doing, and exit with 1 if something is wrong.",
    ),
    "stream": _Place(
        "streamd.cli.streams", "stream", "Create, change, list, inspect and delete streams."
    ),
    "publish": _Place(
        "streamd.cli.publish",
        "publish",
        "Publish the lines of FILE, or of stdin, to the stream NAME.",
    ),
    "consume": _Place(
        "streamd.cli.consume", "consume", "Print the messages of the stream NAME as JSON lines."
    ),
    "offset": _Place(
        "streamd.cli.offsets",
        "offset",
        "List, set and delete the offsets that consumers have stored.",
    ),
    "connection": _Place("streamd.cli.connections", "connection", "List and close connections."),
    "consumer": _Place(
        "streamd.cli.connections", "consumer", "List consumers, and how far behind they are."
    ),
    "find": _Place(
        "streamd.cli.find",
        "find",
        "Find messages of the stream NAME by key, time or condition.",
    ),
    "tier": _Place(
        "streamd.cli.tier", "tier", "Look at the object store that full segments are uploaded to."
    ),
    "cluster": _Place(
        "streamd.cli.cluster",
        "cluster",
        "Look at the servers that share a tier, of which one leads.",
    ),
    "selector": _Place(
        "streamd.cli.selectors", "selector", "Register, list and delete standing selectors."
    ),
    "super-stream": _Place(
        "streamd.cli.routing", "super_stream", "Create, list and delete super streams."
    ),
    "exchange": _Place("streamd.cli.routing", "exchange", "List exchanges."),
    "binding": _Place("streamd.cli.routing", "binding", "List bindings."),
    "user": _Place(
        "streamd.cli.access", "user", "Add, list and delete users, and change passwords."
    ),
    "vhost": _Place(
        "streamd.cli.access",
        "vhost",
        "Add, list and delete virtual hosts: separate sets of streams.",
    ),
    "permission": _Place(
        "streamd.cli.access",
        "permission",
        "Set, list and clear the permissions of users in virtual hosts.",
    ),
    "definitions": _Place(
        "streamd.cli.definitions",
        "definitions",
        "Export and import everything that was declared.",
    ),
    "tune": _Place(
        "streamd.cli.tune",
        "tune",
        "Find the filter size and chunk limit that fit the history.",
    ),
    "print": _Place(
        "streamd.cli.printing",
        "print_",
        "Print a file to begin with: settings, a unit, alerts and others.",
    ),
    "demo": _Place("streamd.cli.demo.command", "demo", "Show chunk filtering on real records."),
}


class _Commands(Commands):
    def main(self, args: Sequence[str] | None = None, *_: Any, **__: Any) -> Any:  # noqa: ANN401 - as in click
        """As click's, with an end for whatever may happen."""
        if os.environ.get("_STREAMD_COMPLETE"):
            return super().main(args, "streamd")

        def run() -> None:
            given = sys.argv[1:] if args is None else list(args)
            with self.make_context("streamd", given) as context:
                self.invoke(context)

        sys.exit(exit_code_of(run))

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as in click
        """As click's; with --debug, errors are shown with the place they come from."""
        try:
            return super().invoke(ctx)
        except BaseException as error:
            if ctx.obj:
                show_where(error)
            raise

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def command_named(self, _ctx: click.Context, name: str) -> click.Command | None:
        """See Commands."""
        if name not in _COMMANDS:
            return None
        place = _COMMANDS[name]
        command: click.Command = getattr(load_to_stay(place.module), place.name)
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click's, without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.summary) for name, place in _COMMANDS.items()])


def _show_versions(context: click.Context, _parameter: click.Parameter, is_given: bool) -> None:
    if is_given:
        from streamd.cli.versions import versions  # noqa: PLC0415 - as the commands

        write(versions())
        context.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_versions,
    help="Show the versions of streamd, of its file formats and protocols, and exit.",
)
@click.option("--debug", is_flag=True, help="Log everything, and show where errors come from.")
@click.pass_context
def main(context: click.Context, *, debug: bool) -> None:
    """A stream server for RabbitMQ stream clients, and the tools to use it.

    \b
    Start a server, put something in, take some of it out:
      streamd serve
      streamd stream create flights --filter-property carrier
      streamd publish flights flights.jsonl
      streamd consume flights --filter HA --filter-property carrier --until-end
    """
    context.obj = debug
    log(logging.WARNING)


__all__ = ["main"]

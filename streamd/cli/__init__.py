"""The command line: `streamd serve`, `stream`, `publish`, `consume`, `user` and more.

Data goes to stdout, notes to stderr. `ending.py` says how commands end, `terminal.py` how they
print. click because it gives all commands the same form of options, help and errors; rich for
tables and progress bars.
"""

import gc
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from streamd.cli.common import log
from streamd.cli.ending import exit_code_of, show_where
from streamd.cli.terminal import write

# Where each command is; imported only when it is used, because the server is slow to load.
_COMMANDS = {
    "serve": "streamd.cli.serve:serve",
    "ping": "streamd.cli.ping:ping",
    "stream": "streamd.cli.streams:stream",
    "publish": "streamd.cli.publish:publish",
    "consume": "streamd.cli.consume:consume",
    "selector": "streamd.cli.selectors:selector",
    "user": "streamd.cli.access:user",
    "vhost": "streamd.cli.access:vhost",
    "permission": "streamd.cli.access:permission",
    "tune": "streamd.cli.tune:tune",
    "print": "streamd.cli.printing:print_",
    "demo": "streamd.cli.demo.command:demo",
}


class _Commands(click.Group):
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

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        gc.disable()  # what is loaded stays: to look for garbage in it costs an eighth of the time
        try:
            command: click.Command = getattr(import_module(module), name)
        finally:
            gc.enable()
        return command


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
      streamd stream create flights --filter-size 64
      streamd publish flights --filter-property carrier flights.jsonl
      streamd consume flights --filter HA --filter-property carrier --until-end
    """
    context.obj = debug
    log(logging.WARNING)


__all__ = ["main"]

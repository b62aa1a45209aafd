"""The command line: `streamd serve`, `stream`, `publish`, `consume`, `user` and more.

Data goes to stdout, notes to stderr. Exit 0: done; 2: the command was not understood; 1: refused
or failed, with one line that says why. click because it gives all commands the same form of
options, help and errors; rich for tables and progress bars.
"""

import logging
from importlib import import_module

import click

from streamd import __version__
from streamd.cli.common import log

# Where each command is; imported only when it is used, because the server is slow to load.
_COMMANDS = {
    "serve": "streamd.cli.serve:serve",
    "stream": "streamd.cli.streams:stream",
    "publish": "streamd.cli.publish:publish",
    "consume": "streamd.cli.consume:consume",
    "selector": "streamd.cli.selectors:selector",
    "user": "streamd.cli.access:user",
    "vhost": "streamd.cli.access:vhost",
    "permission": "streamd.cli.access:permission",
    "tune": "streamd.cli.tune:tune",
    "demo": "streamd.cli.demo.command:demo",
}


class _Commands(click.Group):
    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="streamd")
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

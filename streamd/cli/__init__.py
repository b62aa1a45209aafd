"""The command line: `streamd serve`, `stream`, `publish`, `consume`, `user` and more.

Data goes to stdout, notes to stderr. Exit 0: done; 2: the command was not understood; 1: refused
or failed, with one line that says why. click because options, help and errors come out alike in
every command; rich for tables and progress bars.
"""

import logging

import click

from streamd import __version__
from streamd.cli.access import permission, user, vhost
from streamd.cli.common import log
from streamd.cli.consume import consume
from streamd.cli.demo import demo
from streamd.cli.publish import publish
from streamd.cli.selectors import selector
from streamd.cli.serve import serve
from streamd.cli.streams import stream


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
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


for command in (serve, stream, publish, consume, selector, user, vhost, permission, demo):
    main.add_command(command)

__all__ = ["main"]

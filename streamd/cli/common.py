"""Shared by the commands: the server's address, running a client, errors in one line."""

import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import click
from rich.console import Console

if TYPE_CHECKING:
    from clients import Client

Result = TypeVar("Result")

_WIDTH = 100
DEFAULT_URI = "rabbitmq-stream://guest:guest@localhost:5552/"

uri_option = click.option(
    "--uri",
    default=DEFAULT_URI,
    envvar="STREAMD_URI",
    show_default=True,
    metavar="URI",
    help="The server: rabbitmq-stream://user:password@host:port/virtual-host.",
)
retry_option = click.option(
    "--retry",
    "retry_seconds",
    type=click.FloatRange(0),
    default=0,
    show_default=True,
    metavar="SECONDS",
    help="When the connection is lost, try to reconnect for this long, and go on.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")


class Failed(click.ClickException):
    """A command was refused or failed: one line, exit 1."""


class Misused(click.ClickException):
    """A command was not understood: one line, exit 2."""

    exit_code = 2


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn errors that a user has to deal with into one line; let all others pass."""
    from clients import StreamError  # noqa: PLC0415 - only commands that talk to a server need it

    try:
        yield
    except StreamError as error:
        if click.get_current_context().obj:  # --debug
            raise
        raise Failed(str(error)) from error


def run_client(
    uri: str, work: Callable[["Client"], Awaitable[Result]], retry_seconds: float = 0
) -> Result:
    """Run `work` with a client of the server at `uri`."""
    import anyio  # noqa: PLC0415 - as above

    from clients import connect  # noqa: PLC0415 - as above

    async def main() -> Result:
        async with connect(uri, name="streamd command line", retry_seconds=retry_seconds) as client:
            return await work(client)

    with one_line_errors():
        try:
            return anyio.run(main, backend="trio")
        except ValueError as error:
            raise Misused(str(error)) from error


def console() -> Console:
    """For tables: stdout, wide enough for a table even without a terminal."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH)


def notes() -> Console:
    """For notes and progress bars: stderr."""
    return Console(stderr=True, highlight=False)


def count(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: 1 message, 1,234 messages."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size(number: int) -> str:
    """A number of bytes with a unit: 84 B, 2.3 MB."""
    amount = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:  # noqa: PLR2004 - the step between decimal units
            return f"{number} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def log(level: int) -> None:
    """Log to stderr; everything if --debug was given."""
    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(message)s")
    logging.getLogger().setLevel(logging.DEBUG if click.get_current_context().obj else level)

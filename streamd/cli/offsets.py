"""`streamd offset`: what consumers have stored of how far they have come."""

from typing import TYPE_CHECKING

import click

from segments.words import whole_number
from streamd.cli.common import Commands, json_option, run_client, uri_option
from streamd.cli.terminal import Misused, note, show_table, shown, write_json

if TYPE_CHECKING:
    from clients import Client, StoredOffset


@click.group(cls=Commands)
def offset() -> None:
    """List, set and delete the offsets that consumers have stored.

    A consumer with a name stores the offset of the last message that it is done with, and goes on
    behind it the next time. One that is running does not notice a change: stop it before.
    """


@offset.command(name="list")
@click.argument("stream")
@json_option
@uri_option
def list_offsets(stream: str, uri: str, *, as_json: bool) -> None:
    """List the offsets stored in STREAM, and how far behind they are.

    Behind are the messages that follow a stored offset, and the time since the first of them was
    written.

    \b
    Example:
      streamd offset list orders
    """

    async def work(client: "Client") -> list["StoredOffset"]:
        return await client.offsets(stream)

    rows = run_client(uri, work)
    if as_json:
        write_json([row._asdict() for row in rows])
        return
    show_table(
        ("consumer", "offset", "messages behind", "seconds behind"),
        [
            (row.name, f"{row.offset:,}", f"{row.messages_behind:,}", _seconds(row.seconds_behind))
            for row in rows
        ],
        "lrrr",
    )


def _seconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds:,.1f}"


@offset.command(name="set")
@click.argument("stream")
@click.argument("consumer")
@click.argument("to", metavar="OFFSET")
@uri_option
def set_offset(stream: str, consumer: str, to: str, uri: str) -> None:
    """Store OFFSET for CONSUMER in STREAM.

    The consumer goes on with the message behind it.

    \b
    Example, to go on with message 500:
      streamd offset set orders till-3 499
    """
    number = whole_number(to)
    if number is None:
        raise Misused(f"OFFSET is {to[:40]!r}, expected a whole number")

    async def work(client: "Client") -> None:
        await client.set_offset(stream, consumer, number)

    run_client(uri, work)
    note(f"stored offset {number:,} for {shown(consumer)} in {shown(stream)}")


@offset.command()
@click.argument("stream")
@click.argument("consumer")
@uri_option
def delete(stream: str, consumer: str, uri: str) -> None:
    """Forget the offset of CONSUMER in STREAM.

    The consumer begins as if it was new.

    \b
    Example:
      streamd offset delete orders till-3
    """

    async def work(client: "Client") -> None:
        await client.delete_offset(stream, consumer)

    run_client(uri, work)
    note(f"deleted the offset of {shown(consumer)} from {shown(stream)}")

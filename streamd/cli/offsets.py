"""`streamd offset`: what consumers have stored of how far they have come."""

import sys
from typing import TYPE_CHECKING

import click
import msgspec

from segments.times import whole_ms
from segments.words import whole_number
from streamd.cli.asking import ask
from streamd.cli.common import (
    Commands,
    json_option,
    moment,
    run_client,
    uri_option,
    virtual_host,
)
from streamd.cli.terminal import Failed, Misused, note, show_table, shown, write_json
from streamd.operations.names import as_sent
from streamd.operations.streams import DeleteOffset, Moved, SetOffset

if TYPE_CHECKING:
    from clients import Client, StoredOffset


@click.group(cls=Commands)
def offset() -> None:
    """List, set and delete the offsets that consumers have stored.

    A consumer with a name stores the offset of the last message that it is done with, and goes on
    behind it the next time. While one is connected its offset is changed only with --force: it does
    not notice, and stores its own again.
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


_force_option = click.option(
    "--force", is_flag=True, help="Even while the consumer is connected; it carries on where it is."
)
_yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@offset.command(name="set")
@click.argument("stream")
@click.argument("consumer")
@click.argument("to", metavar="[OFFSET]", required=False)
@click.option(
    "--time",
    "since",
    metavar="TIME",
    help="Instead: begin with what was written since then, as in 2026-11-20T10:00:00Z.",
)
@click.option(
    "--by", type=int, metavar="N", help="Instead: move it N messages forward, or back with -N."
)
@click.option("--like", metavar="OTHER", help="Instead: the offset of the consumer OTHER.")
@_force_option
@_yes_option
@uri_option
def set_offset(  # noqa: PLR0913 - each an option
    stream: str,
    consumer: str,
    to: str | None,
    since: str | None,
    by: int | None,
    like: str | None,
    uri: str,
    *,
    force: bool,
    yes: bool,
) -> None:
    """Store OFFSET for CONSUMER in STREAM.

    The consumer goes on with the message behind it, so 499 is for 500. What it was before is kept
    for an hour: `streamd offset undo`.

    \b
    Examples:
      streamd offset set orders till-3 499
      streamd offset set orders till-3 --time 2026-11-20T00:00:00Z
      streamd offset set orders till-3 --by -1000
    """
    number = None if to is None else whole_number(to)
    if to is not None and number is None:
        raise Misused(f"OFFSET is {to[:40]!r}, expected a whole number")
    time = None if since is None else moment(since)
    if since is not None and time is None:
        raise Misused(f"--time is {since[:40]!r}, expected one as in 2026-11-20T10:00:00Z")
    if sum(way is not None for way in (to, since, by, like)) != 1:
        raise Misused("give one of OFFSET, --time, --by and --like")
    request = SetOffset(
        vhost=virtual_host(uri),
        stream=as_sent(stream),
        name=consumer,
        offset=number,
        timestamp=None if time is None else max(0, whole_ms(time)),
        by=by,
        like=like,
        force=force,
    )
    _change(uri, request, is_asked=not yes)


@offset.command()
@click.argument("stream")
@click.argument("consumer")
@_force_option
@_yes_option
@uri_option
def delete(stream: str, consumer: str, uri: str, *, force: bool, yes: bool) -> None:
    """Forget the offset of CONSUMER in STREAM.

    The consumer begins as if it was new. What it was before is kept for an hour:
    `streamd offset undo`.

    \b
    Example:
      streamd offset delete orders till-3
    """
    request = DeleteOffset(
        vhost=virtual_host(uri), stream=as_sent(stream), name=consumer, force=force
    )
    _change(uri, request, is_asked=not yes)


@offset.command()
@click.argument("stream")
@click.argument("consumer")
@click.option(
    "--force",
    is_flag=True,
    help="Even while the consumer is connected, or if it has stored another offset since.",
)
@uri_option
def undo(stream: str, consumer: str, uri: str, *, force: bool) -> None:
    """Undo the last change to the offset of CONSUMER in STREAM.

    It is known for an hour, or until the server is started again; the log has it as well.

    \b
    Example:
      streamd offset undo orders till-3
    """
    request = SetOffset(
        vhost=virtual_host(uri), stream=as_sent(stream), name=consumer, undo=True, force=force
    )
    _change(uri, request, is_asked=False)


def _change(uri: str, request: SetOffset | DeleteOffset, *, is_asked: bool) -> None:
    """Change an offset; on a terminal, say before what that means."""
    who = f"{shown(request.name)} in {shown(request.stream)}"

    async def work(client: "Client") -> Moved:
        if is_asked and sys.stdin is not None and sys.stdin.isatty():
            planned = await ask(client, msgspec.structs.replace(request, dry_run=True))
            for reader in planned.readers:
                note(f"{shown(request.name)} is connected: {reader}")
            if not click.confirm(f"{who}: {_word(planned.was)} becomes {_word(planned.now)}?"):
                raise Failed("nothing was changed")
        return await ask(client, request)

    moved = run_client(uri, work)
    before = f"; it was {moved.was:,}" if moved.was is not None else ""
    if moved.now is None:
        note(f"deleted the offset of {shown(request.name)} from {shown(request.stream)}{before}")
    else:
        note(f"stored offset {moved.now:,} for {who}{before}")


def _word(offset: int | None) -> str:
    return "no offset" if offset is None else f"offset {offset:,}"

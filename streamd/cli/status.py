"""`streamd status`: is the server well, what is wrong, and what has happened lately."""

import time
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import click
import msgspec

from segments.words import duration, percent, plural, rate, size
from streamd.cli.asking import ask
from streamd.cli.common import json_option, run_client, uri_option
from streamd.cli.terminal import escaped, shown, write, write_json
from streamd.operations.cluster import NodeFacts
from streamd.operations.server import GetOverview, Overview, ServerFacts

if TYPE_CHECKING:
    from clients import Client

_MOST_TROUBLES = 20
_MOST_RECENT = 10
_CLEAR = "\x1b[H\x1b[2J"
_WIDTH = 10  # of the first column


@click.command()
@click.option(
    "--watch",
    "every",
    type=click.FloatRange(0.2),
    metavar="SECONDS",
    help="Refresh every SECONDS.",
)
@json_option
@uri_option
def status(uri: str, every: float | None, *, as_json: bool) -> None:
    """Show how the server is doing, and exit with 1 if something is wrong.

    What is wrong comes first: streams that take no messages, a full disk, consumers that are
    minutes behind, an object store that does not answer, processes that have ended. Users with the
    tag monitoring see all of it, others their own part.

    \b
    Examples:
      streamd status
      streamd status --watch 2
      streamd status --json | jq .wrong
    """

    async def work(client: "Client") -> Overview:
        import anyio  # noqa: PLC0415 - with the client

        while True:
            found = await ask(client, GetOverview())
            if as_json:
                write_json(msgspec.to_builtins(found))
            else:
                lines = "\n".join(escaped(line) for line in _lines(uri_shown(client), found))
                write(f"{_CLEAR if every else ''}{lines}")
            if every is None:
                return found
            await anyio.sleep(every)

    if run_client(uri, work).wrong:
        raise click.exceptions.Exit(1)


def uri_shown(client: "Client") -> str:
    """The server, without the password of who asks."""
    return f"streamd {client.server_properties.get('streamd', '')}".rstrip()


def _lines(server: str, found: Overview) -> Iterator[str]:
    if found.wrong:
        yield f"{server}: {plural(len(found.wrong), 'thing')} to look at"
        for trouble in found.wrong[:_MOST_TROUBLES]:
            where = f"stream {shown(trouble.stream)} {_in(trouble.vhost)}".rstrip()
            yield f"  ! {where}: {trouble.what}" if trouble.stream else f"  ! {trouble.what}"
        if len(found.wrong) > _MOST_TROUBLES:
            yield f"  ! and {len(found.wrong) - _MOST_TROUBLES:,} more"
    elif not found.has_looked:
        yield f"{server}: streams are being opened since the start"
    else:
        yield f"{server}: all is well"
    for name, text in _rows(found):
        yield f"{name:<{_WIDTH}} {text}"
    if found.server is not None:
        yield from _recent(found.server)


def _in(vhost: str) -> str:
    return "" if vhost == "/" else f"in {shown(vhost)} "


def _rows(found: Overview) -> Iterator[tuple[str, str]]:
    totals, server = found.totals, found.server
    refusing = sum(bool(one.reason) for one in found.troubles)
    text = f"{plural(totals.streams, 'stream')}, {plural(totals.messages, 'message')}"
    no_messages = f"; {refusing:,} of them {'takes' if refusing == 1 else 'take'} no messages"
    yield "streams", f"{text}, {size(totals.size)}{no_messages if refusing else ''}"
    publishers, consumers = plural(totals.publishers, "publisher"), totals.consumers
    text = f"{plural(totals.connections, 'connection')}, {publishers}"
    yield "clients", f"{text}, {plural(consumers, 'consumer')}"
    if found.node is not None:
        yield "node", _node(found.node)
    elif found.is_read_only:
        yield "role", "read-only: another server writes"
    if server is not None:
        yield from _server_rows(server)
    for one in found.behind:
        text = f"{shown(one.who)} of {shown(one.stream)} {_in(one.vhost)}"
        behind = f"{duration(one.seconds)}, {plural(one.messages, 'message')}"
        yield "behind", f"{text.rstrip()}: {behind}"


def _node(node: NodeFacts) -> str:
    if node.role != "standby":
        return f"{node.name}, {node.role}"
    leader = node.leader or "a server without --node"
    where = f" at {node.leader_address}" if node.leader_address else ""
    seen = f", seen {duration(node.silent_seconds)} ago" if node.leader_address else ""
    return f"{node.name}, {node.role}: {leader}{where} leads{seen}"


def _server_rows(server: ServerFacts) -> Iterator[tuple[str, str]]:
    if server.history:
        now = server.history[-1]
        confirms = ""
        if now.confirm_p99 is not None:
            confirms = f"; 99 % confirmed within {duration(now.confirm_p99)}"
        text = f"{rate(now.messages_in)} published, {rate(now.messages_out)} delivered"
        yield "messages", f"{text}{confirms}"
    free = percent(server.disk_free / server.disk_total) if server.disk_total else "?"
    yield "disk", f"{size(server.disk_free)} of {size(server.disk_total)} free ({free})"
    files = "" if server.files is None else f", {server.files:,} of {server.max_files:,} files open"
    up = f"up {duration(server.uptime)}"
    yield "process", f"pid {server.pid}, {up}, {size(server.memory)} of memory{files}"
    yield "ports", ", ".join(f"{name} {address}" for name, address in server.listeners)
    if server.doors:
        yield "doors", ", ".join(_door(*door) for door in server.doors)
    yield "tier", server.tier


def _door(name: str, is_up: bool, starts: int, since_ms: int) -> str:
    seconds = max(0.0, time.time() - since_ms / 1_000)
    again = f", started {starts:,} times" if starts > 1 else ""
    return f"{name} {'up' if is_up else 'DOWN'} {duration(seconds)}{again}"


def _recent(server: ServerFacts) -> Iterator[str]:
    if not server.recent:
        return
    yield "lately, as the log has it:"
    for one in server.recent[-_MOST_RECENT:]:
        at = datetime.fromtimestamp(one.at_ms / 1_000).astimezone()
        yield f"  {at:%H:%M:%S} {'! ' if one.is_warning else ''}{one.text}"

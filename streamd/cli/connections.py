"""`streamd connection list|close`, `consumer list`: who is connected, and how far they are."""

from collections.abc import Iterator
from datetime import UTC, datetime

import click
import msgspec

from segments.words import duration, plural
from streamd.cli.asking import ask_server
from streamd.cli.common import Commands, json_option, uri_option
from streamd.cli.terminal import Failed, note, show_table, write_json
from streamd.operations.connections import CloseConnections, ConnectionDetails, ListConnections
from streamd.operations.names import as_sent

_user_option = click.option("--user", metavar="NAME", help="Only those of this user.")
_vhost_option = click.option("--vhost", metavar="NAME", help="Only those to this virtual host.")


@click.group(cls=Commands)
def connection() -> None:
    """List and close connections.

    \b
    Examples:
      streamd connection list
      streamd connection close --user ada
    """


@connection.command(name="list")
@_user_option
@_vhost_option
@json_option
@uri_option
def list_connections(uri: str, user: str | None, vhost: str | None, *, as_json: bool) -> None:
    """List open connections: your own, or all with the tag monitoring.

    \b
    Examples:
      streamd connection list
      streamd connection list --user ada --json
    """
    found = _connections(uri, user, vhost)
    if as_json:
        write_json(msgspec.to_builtins(found))
        return
    if not found:
        note("there are no connections")
        return
    show_table(
        ("connection", "user", "vhost", "protocol", "publishers", "consumers", "since", "called"),
        [tuple(_row(one)) for one in found],
        "llllrrll",
    )


def _row(one: ConnectionDetails) -> Iterator[str]:
    of = one.connection
    yield of.name
    yield of.user
    yield of.virtual_host
    yield of.protocol + (" in TLS" if of.is_tls else "")
    yield f"{len(one.publishers):,}"
    yield f"{len(one.consumers):,}"
    yield f"{datetime.fromtimestamp(of.connected_at_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S}Z"
    yield str(of.properties.get("connection_name", ""))


@connection.command()
@click.argument("name", required=False)
@_user_option
@_vhost_option
@click.option(
    "--reason",
    default="closed by an administrator",
    show_default=True,
    help="The reason that the client is given.",
)
@uri_option
def close(uri: str, name: str | None, user: str | None, vhost: str | None, reason: str) -> None:
    """Close the connection NAME, or all of a user or to a virtual host.

    Those of others are for administrators. Programs that reconnect come back; to keep a user out,
    change its password or delete it.

    \b
    Examples:
      streamd connection close "127.0.0.1:40214 -> 127.0.0.1:5552"
      streamd connection close --user ada --reason "your key has leaked"
    """
    if not (name or user or vhost):
        raise click.UsageError("give the name of a connection, --user or --vhost")
    request = CloseConnections(
        name=name or "",
        user=None if user is None else as_sent(user),
        vhost=None if vhost is None else as_sent(vhost),
        reason=reason,
    )
    closed = ask_server(uri, request)
    if not closed:
        raise Failed("there is no such connection; `streamd connection list` shows those that are")
    note(f"closed {plural(closed, 'connection')}")


@click.group(cls=Commands)
def consumer() -> None:
    """List consumers, and how far behind they are.

    \b
    Examples:
      streamd consumer list --stream orders
    """


@consumer.command(name="list")
@click.option("--stream", metavar="NAME", help="Only those of this stream.")
@_vhost_option
@json_option
@uri_option
def list_consumers(uri: str, stream: str | None, vhost: str | None, *, as_json: bool) -> None:
    """List consumers that are connected, those furthest behind first.

    Offsets that were stored by consumers that are not connected: streamd offset list STREAM.

    \b
    Examples:
      streamd consumer list
      streamd consumer list --stream orders
    """
    every = [
        (one.connection, facts)
        for one in _connections(uri, None, vhost)
        for facts in one.consumers
        if stream in (None, facts.stream)
    ]
    every.sort(key=lambda row: (-row[1].lag_seconds, -row[1].lag))
    if as_json:
        rows = [
            {"connection": of.name, "user": of.user, "vhost": of.virtual_host, **facts._asdict()}
            for of, facts in every
        ]
        write_json(msgspec.to_builtins(rows))
        return
    if not every:
        note("there are no consumers")
        return
    show_table(
        ("consumer", "stream", "vhost", "user", "connection", "at offset", "behind", "", "state"),
        [
            (
                facts.properties.get("name") or facts.properties.get("identifier") or "-",
                facts.stream,
                of.virtual_host,
                of.user,
                of.name,
                f"{facts.next_offset:,}",
                f"{facts.lag:,}",
                duration(facts.lag_seconds),
                _state(is_single=facts.is_single_active, is_active=facts.is_active),
            )
            for of, facts in every
        ],
        "lllllrrrl",
    )


def _state(*, is_single: bool, is_active: bool) -> str:
    if not is_active:
        return "waiting"
    return "single active" if is_single else "active"


def _connections(uri: str, user: str | None, vhost: str | None) -> list[ConnectionDetails]:
    return ask_server(
        uri,
        ListConnections(
            user=None if user is None else as_sent(user),
            vhost=None if vhost is None else as_sent(vhost),
        ),
    )

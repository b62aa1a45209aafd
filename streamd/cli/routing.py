"""`streamd exchange list`, `binding list`, `super-stream create|list|delete`: ways to streams."""

import json

import click
import msgspec

from segments.words import plural, size
from streamd.cli.asking import ask_server
from streamd.cli.common import Commands, json_option, uri_option, virtual_host
from streamd.cli.terminal import Misused, note, show_table, shown, write_json
from streamd.operations.names import as_sent
from streamd.operations.routing import ListBindings, ListExchanges
from streamd.operations.stream_views import ListSuperStreams
from streamd.operations.streams import CreateSuperStream, DeleteSuperStream


@click.group(cls=Commands)
def exchange() -> None:
    """List exchanges.

    They are where AMQP programs publish.

    \b
    Examples:
      streamd exchange list
    """


@exchange.command(name="list")
@json_option
@uri_option
def list_exchanges(uri: str, *, as_json: bool) -> None:
    """List the exchanges of the virtual host.

    \b
    Example:
      streamd exchange list
    """
    found = ask_server(uri, ListExchanges(vhost=virtual_host(uri)))
    if as_json:
        rows = [{**one.row._asdict(), "bindings": one.bindings} for one in found]
        write_json(msgspec.to_builtins(rows))
        return
    show_table(
        ("exchange", "type", "bindings", "features"),
        [
            (
                one.row.name or "(default)",
                str(one.row.type),
                f"{one.bindings:,}",
                ", ".join(
                    word
                    for word, has in (
                        ("super stream", one.row.is_super_stream),
                        ("durable", one.row.is_durable),
                        ("auto-delete", one.row.auto_delete),
                        ("internal", one.row.is_internal),
                    )
                    if has
                ),
            )
            for one in found
        ],
        "llrl",
    )


@click.group(cls=Commands)
def binding() -> None:
    """List bindings.

    They say which messages of an exchange go where.

    \b
    Examples:
      streamd binding list --stream orders
    """


@binding.command(name="list")
@click.option("--exchange", metavar="NAME", help="Only those from this exchange.")
@click.option("--stream", metavar="NAME", help="Only those to this stream.")
@json_option
@uri_option
def list_bindings(uri: str, exchange: str | None, stream: str | None, *, as_json: bool) -> None:
    """List the bindings of the virtual host.

    \b
    Examples:
      streamd binding list
      streamd binding list --stream orders
    """
    request = ListBindings(
        vhost=virtual_host(uri),
        source=None if exchange is None else as_sent(exchange),
        destination=None if stream is None else as_sent(stream),
    )
    found = ask_server(uri, request)
    if as_json:
        write_json(msgspec.to_builtins([dict(one._asdict()) for one in found]))
        return
    show_table(
        ("from", "to", "kind", "routing key", "headers"),
        [
            (
                one.source or "(default)",
                one.destination,
                "exchange" if one.to_exchange else "stream",
                one.key,
                json.dumps(dict(one.arguments)) if one.arguments else "",
            )
            for one in found
        ],
    )


@click.group("super-stream", cls=Commands)
def super_stream() -> None:
    """Create, list and delete super streams.

    A super stream is streams that together are one.

    \b
    Examples:
      streamd super-stream create orders --partitions 3
    """


@super_stream.command()
@click.argument("name")
@click.option("--partitions", type=int, metavar="N", help="How many: NAME-0, NAME-1 and so on.")
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="KEY",
    help="Instead, a partition NAME-KEY for each routing key; may be given several times.",
)
@click.option(
    "--argument",
    "arguments",
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument of each partition; see `streamd stream create`.",
)
@uri_option
def create(
    name: str, partitions: int | None, keys: tuple[str, ...], arguments: tuple[str, ...], uri: str
) -> None:
    """Create the super stream NAME and its partitions.

    \b
    Examples:
      streamd super-stream create orders --partitions 3
      streamd super-stream create orders --key eu --key us --argument max-age=7D
    """
    if (partitions is None) == (not keys):
        raise Misused("give either --partitions or --key")
    given = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not (key and equals):
            raise Misused(f"--argument is {argument!r}, expected NAME=VALUE")
        given[key] = value
    request = CreateSuperStream(
        vhost=virtual_host(uri),
        super_stream=as_sent(name),
        partitions=partitions or 0,
        keys=keys,
        arguments=given,
    )
    ask_server(uri, request)
    note(f"created {shown(name)} with {plural(partitions or len(keys), 'partition')}")


@super_stream.command(name="list")
@json_option
@uri_option
def list_super_streams(uri: str, *, as_json: bool) -> None:
    """List the super streams of the virtual host, with their partitions.

    \b
    Example:
      streamd super-stream list
    """
    found = ask_server(uri, ListSuperStreams(vhost=virtual_host(uri)))
    if as_json:
        rows = [
            {
                "name": one.row.name,
                "partitions": [dict(part._asdict()) for part in one.row.partitions],
                "messages": one.num_messages,
                "bytes": one.size,
            }
            for one in found
        ]
        write_json(msgspec.to_builtins(rows))
        return
    if not found:
        note("there are none; create one: streamd super-stream create NAME --partitions 3")
        return
    show_table(
        ("super stream", "partitions", "messages", "bytes"),
        [
            (
                one.row.name,
                ", ".join(part.stream for part in one.row.partitions),
                f"{one.num_messages:,}",
                size(one.size),
            )
            for one in found
        ],
        "llrr",
    )


@super_stream.command()
@click.argument("name")
@uri_option
def delete(name: str, uri: str) -> None:
    """Delete the super stream NAME with all its partitions.

    \b
    Example:
      streamd super-stream delete orders
    """
    ask_server(uri, DeleteSuperStream(vhost=virtual_host(uri), super_stream=as_sent(name)))
    note(f"deleted {shown(name)} and its partitions")

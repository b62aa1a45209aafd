"""`streamd definitions export|import`: everything that was declared, as RabbitMQ has it."""

from typing import TYPE_CHECKING, BinaryIO

import click

from segments.words import plural
from streamd.cli.asking import ClientAsker
from streamd.cli.common import Commands, run_client, uri_option
from streamd.cli.terminal import Failed, note, write_json
from streamd.operations.names import Name, as_sent

if TYPE_CHECKING:
    from clients import Client


_vhost_option = click.option("--vhost", metavar="NAME", help="Only this virtual host.")


@click.group(cls=Commands)
def definitions() -> None:
    """Export and import everything that was declared.

    One JSON document has users with hashes of their passwords, permissions, virtual hosts,
    streams, exchanges and bindings, and no messages. RabbitMQ writes and reads the same. It is for
    administrators.

    \b
    Examples:
      streamd definitions export > definitions.json
      streamd definitions import definitions.json
    """


@definitions.command()
@_vhost_option
@uri_option
def export(uri: str, vhost: str | None) -> None:
    """Print all definitions as one JSON document.

    \b
    Example:
      streamd definitions export > definitions.json
    """
    from streamd.http_api import definitions as found  # noqa: PLC0415 - takes long to load

    async def work(client: "Client") -> dict[str, object]:
        asker = ClientAsker(client, uri)
        if vhost is not None:
            return await found.definitions_of(asker, as_sent(vhost))
        return await found.all_definitions(asker)

    write_json(run_client(uri, work))


@definitions.command(name="import")
@click.argument("file", type=click.File("rb"), default="-")
@_vhost_option
@uri_option
def import_(file: BinaryIO, uri: str, vhost: str | None) -> None:
    """Create whatever FILE, or stdin, has and this server lacks.

    What the server does not have, such as classic queues, is left out and named.

    \b
    Examples:
      streamd definitions import definitions.json
      rabbitmqctl export_definitions - | streamd definitions import
    """
    from streamd.http_api import definitions as found  # noqa: PLC0415 - as above
    from streamd.http_api.messages import BadRequest, NotFound, decoded  # noqa: PLC0415 - as above

    taken = found.Taken()
    host: Name | None = None if vhost is None else as_sent(vhost)

    async def work(client: "Client") -> None:
        asker = ClientAsker(client, uri)
        await found.check_may_declare(asker, host)
        document = decoded(file.read(), found.Definitions)
        await found.take_definitions(asker, document, host, taken)

    try:
        run_client(uri, work)
    except NotFound:
        raise Failed(f"there is no virtual host {vhost!r}; streamd vhost add creates one") from None
    except BadRequest as error:
        raise Failed(f"{getattr(file, 'name', '<stdin>')}: {error}") from error
    finally:
        for one in taken.left_out:
            note(f"left out: {one}")
        if taken.new or taken.known:
            kinds = ", ".join(f"{kind} {count:,}" for kind, count in taken.new.items())
            known = plural(taken.known.total(), "thing was", "things were")
            note(f"created {kinds or 'nothing'}; {known} there already")

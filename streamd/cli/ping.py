"""`streamd ping`: is a server there, and does it answer?"""

import click

from streamd.cli.common import Number, run, uri_option
from streamd.cli.terminal import escaped, write


@click.command()
@uri_option
@click.option(
    "--timeout",
    "seconds",
    type=Number(),
    default=5,
    show_default=True,
    metavar="SECONDS",
    help="How long the server may take.",
)
def ping(uri: str, seconds: float) -> None:
    """Exit with 0 if a server answers, with 1 if not.

    It connects, inside TLS if the address says so, and asks the server what it is. It does not
    log in: user, password and virtual host in the address do not matter.

    \b
    Examples:
      streamd ping
      streamd ping --timeout 1
      streamd ping --uri rabbitmq-stream+tls://mq.example:5551?cacertfile=ca.pem
    """
    from clients.connection import probe  # noqa: PLC0415 - takes long to load
    from clients.uri import parse_uri  # noqa: PLC0415 - as above

    async def ask() -> str:
        endpoint = parse_uri(uri)
        about = await probe(endpoint, seconds)
        if "streamd" in about:
            return f"{endpoint} answers: streamd {about['streamd']}"
        return f"{endpoint} answers: {about.get('product', '?')} {about.get('version', '?')}"

    write(escaped(run(ask)))  # what a server says of itself may be anything

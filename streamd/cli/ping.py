"""`streamd ping`: is a server there, and does it answer?"""

import click

from streamd.cli.common import Number, run, uri_option
from streamd.cli.terminal import escaped, write


@click.command()
@uri_option
@click.option("--ready", is_flag=True, help="Exit with 1 also if some streams accept no messages.")
@click.option(
    "--timeout",
    "seconds",
    type=Number(),
    default=5,
    show_default=True,
    metavar="SECONDS",
    help="How long the server may take.",
)
def ping(uri: str, seconds: float, *, ready: bool) -> None:
    """Exit with 0 if a server answers, with 1 if not.

    If streams accept no messages, as with a full disk, it says so, and `streamd status` says why.

    It connects, inside TLS if the address says so, and asks the server what it is. It does not
    log in: user, password and virtual host in the address do not matter.

    \b
    Examples:
      streamd ping
      streamd ping --timeout 1
      streamd ping --ready
      streamd ping --uri rabbitmq-stream+tls://mq.example:5551?cacertfile=ca.pem
    """
    from clients.connection import probe  # noqa: PLC0415 - takes long to load
    from clients.uri import parse_uri  # noqa: PLC0415 - as above

    async def ask() -> tuple[str, str]:
        endpoint = parse_uri(uri)
        about = await probe(endpoint, seconds)
        product, trouble = about.get("product", "?"), about.get("trouble", "")
        named = f"streamd {about['streamd']}" if "streamd" in about else ""
        text = f"{endpoint} answers: {named or f'{product} ' + about.get('version', '?')}"
        return text + (f", but {trouble}" if trouble else ""), trouble

    text, trouble = run(ask)
    write(escaped(text))  # what a server says of itself may be anything
    if ready and trouble:
        raise click.exceptions.Exit(1)

"""Operations of a server, asked for by commands."""

from typing import TYPE_CHECKING, TypeVar

import msgspec

from streamd.cli.common import run_client
from streamd.hop.declared import answer_of
from streamd.hop.messages import encode
from streamd.operations.declaration import Operation
from streamd.operations.names import as_sent

if TYPE_CHECKING:
    from clients import Client

Answer = TypeVar("Answer")


async def ask(client: "Client", operation: Operation[Answer]) -> Answer:
    """Have the server carry out an operation.

    Raises:
        StreamError: the server is not a streamd, refuses it, or is gone.
    """
    answer = await client.carry_out(operation.NAME, encode(operation), changes=operation.CHANGES)
    found: Answer = msgspec.msgpack.decode(answer, type=answer_of(type(operation)))
    return found


class ClientAsker:
    """The user of a client; see `operations.declaration.Asker`.

    Args:
        client: of a streamd.
        uri: its address, with the name of the user.
    """

    def __init__(self, client: "Client", uri: str) -> None:
        from clients.uri import parse_uri  # noqa: PLC0415 - with the client

        self.name = as_sent(parse_uri(uri).user)
        self._client = client

    async def ask(self, operation: Operation[Answer]) -> Answer:
        """See Asker."""
        return await ask(self._client, operation)


def ask_server(uri: str, operation: Operation[Answer]) -> Answer:
    """As `ask`, of the server at `uri`.

    Raises:
        Failed: the server refused it, or the connection is gone.
        Misused: a field cannot be what it has to be.
    """

    async def work(client: "Client") -> Answer:
        return await ask(client, operation)

    return run_client(uri, work)

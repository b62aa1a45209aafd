"""Operations of a server, asked for by commands."""

from typing import TYPE_CHECKING, TypeVar

import msgspec

from streamd.cli.common import run_client
from streamd.hop.declared import answer_of
from streamd.hop.messages import encode
from streamd.operations.declaration import Operation

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


def ask_server(uri: str, operation: Operation[Answer]) -> Answer:
    """As `ask`, of the server at `uri`.

    Raises:
        Failed: the server refused it, or the connection is gone.
        Misused: a field cannot be what it has to be.
    """

    async def work(client: "Client") -> Answer:
        return await ask(client, operation)

    return run_client(uri, work)

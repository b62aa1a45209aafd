"""Operations from bytes that a user has sent: an answer or a refusal, whatever the bytes are."""

from contextlib import suppress

import msgspec
import pytest

from streamd.engine import Caller
from streamd.engine.by_name import carry_out
from streamd.operations.errors import Refused
from tests.support.server import Harness, Peer

ODD = [
    b"",
    b"\xc1",
    b"\x81\xa1\xff\x00",
    b"\x81\xa5vhost\xa1\xff",
    b"\x91" * 5_000,
    b"\x81\xa1x" * 5_000,
]


@pytest.mark.parametrize("name", ["stream.create", "overview.get", "none", ""])
async def test_odd_bytes_are_refused(server: Harness, name: str) -> None:
    directory = server.server.directory
    account = directory.account("guest")
    assert account is not None
    caller = Caller(directory, account)
    for fields in ODD:
        with suppress(Refused):
            await carry_out(server.server.engine, caller, name, fields)


async def test_what_has_another_field_is_not_done(server: Harness, peer: Peer) -> None:
    """Without the name that was meant, all connections would be closed."""
    directory = server.server.directory
    account = directory.account("guest")
    assert account is not None
    caller = Caller(directory, account)
    fields = msgspec.msgpack.encode({"nam": "127.0.0.1:1", "reason": ""})
    with pytest.raises(Refused, match="there is no field 'nam'"):
        await carry_out(server.server.engine, caller, "connection.close", fields)
    await peer.create("s")

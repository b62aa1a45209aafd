"""Operations from bytes that a user has sent: an answer or a refusal, whatever the bytes are."""

from contextlib import suppress

import msgspec
import pytest

from streamd.engine import Caller
from streamd.engine.by_name import carry_out
from streamd.operations.errors import Refused
from tests.support.server import Harness, Peer


@pytest.fixture
def guest(server: Harness) -> Caller:
    account = server.server.directory.account("guest")
    assert account is not None
    return Caller(server.server.directory, account)


ODD = {
    "nothing": b"",
    "no type": b"\xc1",
    "no text as a key": b"\x81\xa1\xff\x00",
    "no text": b"\x81\xa5vhost\xa1\xff",
    "deep lists": b"\x91" * 5_000,
    "deep maps": b"\x81\xa1x" * 5_000,
}


@pytest.mark.parametrize("fields", ODD.values(), ids=ODD)
@pytest.mark.parametrize("name", ["stream.create", "overview.get", "none", ""])
async def test_odd_bytes_are_refused(
    server: Harness, guest: Caller, name: str, fields: bytes
) -> None:
    with suppress(Refused):
        await carry_out(server.server.engine, guest, name, fields)


async def test_what_has_another_field_is_not_done(
    server: Harness, peer: Peer, guest: Caller
) -> None:
    """Without the name that was meant, all connections would be closed."""
    fields = msgspec.msgpack.encode({"nam": "127.0.0.1:1", "reason": ""})
    with pytest.raises(Refused, match="there is no field 'nam'"):
        await carry_out(server.server.engine, guest, "connection.close", fields)
    await peer.create("s")

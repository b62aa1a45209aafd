"""Clients that are passed from one process to another."""

import socket

import pytest
import trio

from streamd.net.links import LinkTransport, give, given
from streamd.net.transport import Address, TransportClosed

pytestmark = pytest.mark.trio


class AtTheDoor:
    """A client that has come in; see Transport."""

    peer, local = Address("10.0.0.7", 4711), Address("::1", 5671)
    is_local, is_tls, certificate_user = False, True, "ada"


def way() -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    return ends


async def test_what_is_known_of_a_client_goes_with_it() -> None:
    doors, engines = way()
    with engines:
        with doors:
            kept = [await give(doors, AtTheDoor()) for _ in range(3)]  # type: ignore[arg-type]
        passed = [transport async for transport in given(engines, None)]
    assert len(passed) == 3, "also those that came together, and before the door has gone"
    for ours, theirs in zip(kept, passed, strict=True):
        for name in ("peer", "local", "is_local", "is_tls", "certificate_user"):
            assert getattr(theirs, name) == getattr(AtTheDoor, name)
        await ours.send(b"hello")
        assert await theirs.receive() == b"hello"
        ours.close()
        assert await theirs.receive() == b""
        with pytest.raises(TransportClosed):
            await theirs.send(b"anybody?")
        theirs.close()


async def test_a_client_of_a_door_that_has_gone_is_none() -> None:
    doors, engines = way()
    ours, theirs = socket.socketpair()
    with doors, engines, theirs:
        ours.close()  # it has said nothing
        socket.send_fds(doors, [b"\0"], [theirs.fileno()])
        doors.close()
        assert [transport async for transport in given(engines, None)] == []


async def test_nobody_to_pass_a_client_to() -> None:
    doors, engines = way()
    engines.close()
    with doors, pytest.raises(BrokenPipeError):
        await give(doors, AtTheDoor())  # type: ignore[arg-type]


async def test_a_peer_that_reads_nothing_is_congested() -> None:
    doors, engines = way()
    with doors, engines:
        ours = await give(doors, AtTheDoor())  # type: ignore[arg-type]
        doors.close()
        (theirs,) = [transport async for transport in given(engines, None)]
    assert isinstance(ours, LinkTransport)
    assert not ours.is_congested
    while ours.send_some((bytes(8 << 10),)):
        pass
    assert ours.is_congested
    with trio.move_on_after(0.01) as early:
        await ours.drained()
    assert early.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.drained)
        while ours.is_congested:
            await theirs.receive()
    ours.close()
    theirs.close()

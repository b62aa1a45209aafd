"""Whatever the store has when a machine is lost: what is restored of it is right, and goes on."""

from pathlib import Path

import trio

from streamd.wire.stream import commands as c
from tests.broker.tier.support import A_FRAME, a_stream, bodies, publish, states_of, tiered
from tests.support.fake_store import FakeStore
from tests.support.server import OK, Harness, Peer

_FRAMES = 16
_ALL = bodies(0, _FRAMES * A_FRAME)


async def _work(server: Harness) -> None:
    peer = await a_stream(server)
    for first in range(0, _FRAMES * A_FRAME, 4 * A_FRAME):
        await publish(peer, first, 4)
        await server.host.find("s").set_offset("reader", first)
        await trio.sleep(3)
    await peer.create("empty")
    await trio.sleep(3)


async def _read(peer: Peer, number: int) -> list[bytes]:
    await peer.subscribe("s", credit=100)
    found = await peer.bodies(number) if number else []
    assert await peer.code(c.Unsubscribe, 1) == OK
    return found


async def test_any_state_of_the_store(tmp_path: Path, store: FakeStore) -> None:
    states = states_of(store)
    async with tiered(tmp_path / "old", store) as server:
        await _work(server)
    assert len(states) > 20
    chosen = enumerate([*states[:-1:3], states[-1]])
    ends = [await _goes_on(tmp_path / f"{n}", FakeStore(dict(o))) for n, o in chosen]
    assert ends == sorted(ends)
    assert ends[0] == 0
    assert ends[-1] > 10 * A_FRAME


async def _goes_on(folder: Path, store: FakeStore) -> int:
    """Restore what a store has; the publisher then sends everything again. What had been stored."""
    async with tiered(folder, store, restore=True) as server:
        peer = await server.peer()
        if not server.host.has_stream("s"):
            return 0
        async with server.host.find("s").opened() as log:
            is_empty = log.segments.first_offset == log.next_offset
            end = 0 if is_empty else log.segments.gaps.before(log.next_offset)
            offset = log.journal.tracking.offset(b"reader")
        assert await _read(peer, end) == _ALL[:end]
        assert offset is None or offset in range(0, len(_ALL), 4 * A_FRAME)
        await peer.declare("s", reference="p")
        for first in range(0, len(_ALL), A_FRAME):
            await peer.store(bodies(first), first_id=first + 1)
        assert await _read(peer, len(_ALL)) == _ALL
        await trio.sleep(3)
    async with tiered(folder, store) as server:  # and so it is after a restart
        assert await _read(await server.peer(), len(_ALL)) == _ALL
    return end

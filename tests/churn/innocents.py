"""Streams that the clients of a run leave alone: they must not notice the others.

One is published slowly all the time and read at the same time; another was filled before, in many
small segments. In the end both hold everything, in order, each message once.
"""

import trio

from streamd.wire.stream import commands as c
from tests.churn.doors import Broken, Network
from tests.support.server import FIRST, OK, Peer

_STILL, _SLOW = "innocent-still", "innocent-slow"
NAMES = (_STILL, _SLOW)
_READ_SECONDS = 60
_BATCH = 20


class Innocents:
    """The innocent streams of a run.

    Args:
        network: leads to the server.
        still: messages in the one that is filled before.
        pause: seconds between the messages of the other.
    """

    def __init__(self, network: Network, still: int, pause: float) -> None:
        self.faults: list[str] = []
        self._network = network
        self._still = [b"still %d" % n for n in range(still)]
        self._sent: list[bytes] = []
        self._seen: list[bytes] = []
        self._pause = pause

    async def fill(self) -> None:
        """Create both."""
        peer = await self._peer()
        for number, name in enumerate(NAMES, 1):
            await peer.create(name, stream_max_segment_size_bytes="1500")
            await peer.declare(name, number)
        for at in range(0, len(self._still), _BATCH):
            bodies = self._still[at : at + _BATCH]
            values = [b"v%d" % (at // _BATCH % 5)] * len(bodies)
            await peer.store(bodies, at + 1, 1, values=values)
        await trio.aclose_forcefully(peer.stream)

    async def live(self, steps: object) -> None:
        """Publish and read the slow one, as long as there are steps."""
        writer, reader = await self._peer(), await self._peer()
        await writer.declare(_SLOW, 1, "slow")
        await reader.subscribe(_SLOW, FIRST, 50)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, reader)
                for _ in steps:  # type: ignore[attr-defined]
                    await self._publish(writer)
                    await trio.sleep(self._pause)
                with trio.fail_after(_READ_SECONDS):
                    while len(self._seen) < len(self._sent):
                        await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
        except* (trio.EndOfChannel, trio.BrokenResourceError, OSError) as error:
            self.faults.append(f"the connection of an innocent stream ended: {error!r}")
        except* (AssertionError, trio.TooSlowError) as error:
            seen = f"{len(self._seen)} of {len(self._sent)} messages were read"
            self.faults.append(f"an innocent stream is not served: {error.exceptions!r}; {seen}")
        finally:
            for peer in (writer, reader):
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(peer.stream)

    async def _publish(self, writer: Peer) -> None:
        number = len(self._sent) + 1
        body = b"slow %d" % number
        self._sent.append(body)
        with trio.fail_after(_READ_SECONDS):
            await writer.store([body], number, values=[b"v%d" % (number % 7)])

    async def _read(self, reader: Peer) -> None:
        while True:
            self._seen += (await reader.chunk()).bodies
            await reader.send(c.Credit(1, 1))

    async def check(self) -> None:
        """Read both back to the end, and delete them.

        Raises:
            Broken: something is missing, in another order, or there twice.
        """
        if self._seen != self._sent:
            raise Broken(f"{_SLOW}: {_difference(self._seen, self._sent)}")
        peer = await self._peer()
        for name, sent in zip(NAMES, (self._still, self._sent), strict=True):
            found: list[bytes] = []
            await peer.subscribe(name, FIRST, 20)
            with trio.move_on_after(_READ_SECONDS):
                while len(found) < len(sent):
                    found += (await peer.chunk()).bodies
                    await peer.send(c.Credit(1, 1))
            if found != sent:
                raise Broken(f"{name}, read in the end: {_difference(found, sent)}")
            assert await peer.code(c.Unsubscribe, 1) == OK
        for name in NAMES:
            assert await peer.code(c.Delete, name) == OK
        await trio.aclose_forcefully(peer.stream)

    async def _peer(self) -> Peer:
        peer = await self._network.stream()
        await peer.log_in()
        return peer


def _difference(found: list[bytes], sent: list[bytes]) -> str:
    at = next(
        (n for n, pair in enumerate(zip(found, sent, strict=False)) if pair[0] != pair[1]),
        min(len(found), len(sent)),
    )
    return (
        f"{len(found)} messages instead of {len(sent)}; from {at} on {found[at : at + 3]} instead "
        f"of {sent[at : at + 3]}"
    )

"""Who publishes and reads while servers are harmed, and what they were told: it is compared.

A publisher with a name numbers its messages, a consumer reads them; rstream publishes to a stream
of its own. Whatever happens to servers: each number that was confirmed is there, once, in order,
and what was read stays where it was.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import pairwise
from random import Random

import trio

from clients import Client, StreamError, StreamNotAvailable, connect
from segments.gaps import num_lost
from tests.crash.history import History
from tests.crash.rstream import Rstream

ARGUMENTS = {
    "stream-max-segment-size-bytes": "10000",
    "stream-local-max-length-bytes": "0",
    "stream-chunk-max-records": "20",
    "stream-filter-property": "kind",
}
PATIENCE = 120  # seconds without anything; how long all takes, depends on the machine


class Ledger:
    """What publishers and consumers were told.

    Attributes:
        seen: the number of each message that somebody was given, by its offset.
        confirmed: the highest number that must be there.
        last_confirm: when one was confirmed last, by trio's clock.
        num_compared: messages that were read, and were what they should be.
        gone: offsets of messages that were lost with their machine.
        rstream: publishes, too.
        chance: decides what is left to it.
    """

    def __init__(self, seed: int) -> None:
        self.seen: dict[int, int] = {}
        self.confirmed = 0
        self.last_confirm = 0.0
        self.num_compared = 0
        self.gone: set[int] = set()
        self._rstream_told = History()
        self.rstream = Rstream(self._rstream_told, "r", "app", pause=0)
        self.chance = Random(seed)

    async def use(self, uri: str, work: Callable[[Client], Awaitable[None]]) -> None:
        """Do it until the server has gone, or refuses."""
        try:
            async with connect(uri, retry_seconds=0) as client:
                await work(client)
        except* (StreamError, OSError):
            pass

    async def publish(self, client: Client) -> None:
        """Publish the next numbers, for ever."""
        async with client.producer("s", name="p") as producer:
            number = producer.last_publishing_id
            while True:
                for _ in range(self.chance.choice((1, 20, 200))):
                    number += 1
                    await producer.send(b"%d " % number + bytes(self.chance.randrange(80)))
                await producer.flush()
                self.confirmed = max(self.confirmed, number)
                self.last_confirm = trio.current_time()
                await trio.sleep(0.01)

    async def follow(self, client: Client) -> None:
        """Read on, for ever."""
        start = max(self.seen, default=-1) + 1
        async with client.consumer("s", offset=start) as messages:
            async for message in messages:
                self.take(message.offset, int(bytes(message.body).split()[0]))

    def take(self, offset: int, number: int) -> None:
        """A message was read."""
        assert offset not in self.gone, f"{number} at {offset}, where one was that is lost"
        known = self.seen.setdefault(offset, number)
        assert known == number, f"{number} at {offset}, where {known} was"
        self.num_compared += 1

    async def check(self, uri: str) -> None:
        """All that was confirmed is there, once, in order; what was read is where it was."""
        offsets, numbers = await self.read(uri)
        if told := self._rstream_told.single:
            sent = [number for _, number in await self._messages(uri, "r")]
            self.num_compared += len(sent)
            assert sent == list(range(len(sent))), "rstream's are missing, or doubled"
            assert len(sent) > max(told), "what rstream was told is lost"
        assert numbers == list(range(1, len(numbers) + 1)), "numbers are missing, or doubled"
        assert len(numbers) >= self.confirmed, f"{self.confirmed} was confirmed, and is lost"
        lost = [at for at, after in pairwise(offsets) if num_lost(at + 1, after)]
        assert not lost, f"offsets behind {lost} are missing"
        missing = self.seen.keys() - set(offsets)
        assert not missing, f"{sorted(missing)[:5]} were read, and are gone"

    async def read(self, uri: str) -> tuple[list[int], list[int]]:
        """Offsets and numbers of all messages of the stream that is followed."""
        found = await self._messages(uri, "s")
        for offset, number in found:
            self.take(offset, number)
        return [offset for offset, _ in found], [number for _, number in found]

    async def _messages(self, uri: str, name: str) -> list[tuple[int, int]]:
        """Offset and number of each message of a stream, however long that takes."""
        with trio.fail_after(PATIENCE) as waiting:
            while True:
                found: list[tuple[int, int]] = []
                with suppress(StreamNotAvailable):  # a busy machine reads its logs for long
                    async with (
                        connect(uri) as client,
                        client.consumer(name, offset="first", until_end=True) as messages,
                    ):
                        async for message in messages:
                            found.append((message.offset, int(bytes(message.body).split()[0])))
                            waiting.deadline = trio.current_time() + PATIENCE
                    return found
                await trio.sleep(1)

"""Who publishes and reads while servers are harmed, and what they were told: it is compared.

A publisher with a name numbers its messages, a consumer reads them; rstream publishes to a stream
of its own. Whatever happens to servers: each number that was confirmed is there, once, in order,
and what was read stays where it was.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

import trio

from clients import Client, StreamError, StreamNotAvailable, connect
from tests.crash import history
from tests.crash.history import Found, History
from tests.crash.rstream import Rstream

ARGUMENTS = {
    "stream-max-segment-size-bytes": "10000",
    "stream-local-max-length-bytes": "0",
    "stream-chunk-max-records": "20",
    "stream-filter-property": "kind",
}
PATIENCE = 120  # seconds without anything; how long all takes, depends on the machine
_PUBLISHER = "p"


class Ledger:
    """What publishers and consumers were told.

    Attributes:
        told: what of the stream that is followed.
        num_compared: messages that were read, and were what they should be.
        rstream: publishes, too.
        chance: decides what is left to it.
    """

    def __init__(self, seed: int) -> None:
        self.told = History()
        self.num_compared = 0
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
        async with client.producer("s", name=_PUBLISHER) as producer:
            number = producer.last_publishing_id
            while True:
                for _ in range(self.chance.choice((1, 20, 200))):
                    number += 1
                    padding = bytes(self.chance.randrange(80))
                    await producer.send(b"%d %s " % (number, _PUBLISHER.encode()) + padding)
                await producer.flush()
                self.told.confirm(_PUBLISHER, number)
                await trio.sleep(0.01)

    async def follow(self, client: Client) -> None:
        """Read on, for ever."""
        start = max(self.told.seen, default=-1) + 1
        async with client.consumer("s", offset=start) as messages:
            async for message in messages:
                self._take(history.found(message.offset, bytes(message.body)))

    def _take(self, message: Found) -> None:
        assert message.offset not in self.told.gone, f"{message}, where one was that is lost"
        self.told.take(message)
        self.num_compared += 1

    async def check(self, uri: str) -> None:
        """All that was confirmed is there, once, in order; what was read is where it was."""
        messages = await self.read(uri)
        if told := self._rstream_told.single:
            sent = [message.number for message in await read_all(uri, "r")]
            self.num_compared += len(sent)
            assert sent == list(range(len(sent))), "rstream's are missing, or doubled"
            assert len(sent) > max(told), "what rstream was told is lost"
        history.confirmed_once(messages, self.told.confirmed)
        history.gaps_are_whole(messages)
        history.nothing_read_is_gone(messages, self.told.seen)

    async def read(self, uri: str) -> list[Found]:
        """All messages of the stream that is followed."""
        messages = await read_all(uri, "s")
        for message in messages:
            self._take(message)
        return messages

    def lose(self, end: int) -> None:
        """A machine is lost, with all messages that the store did not have, from an offset on."""
        told = self.told
        told.gone |= {offset for offset in told.seen if offset >= end}
        told.seen = {at: message for at, message in told.seen.items() if at < end}
        told.confirmed.clear()


async def read_all(uri: str, stream: str) -> list[Found]:
    """All messages of a stream, however long that takes."""
    with trio.fail_after(PATIENCE) as waiting:
        while True:
            found: list[Found] = []
            with suppress(StreamNotAvailable):  # a busy machine reads its logs for long
                async with (
                    connect(uri) as client,
                    client.consumer(stream, offset="first", until_end=True) as messages,
                ):
                    async for message in messages:
                        found.append(history.found(message.offset, bytes(message.body)))
                        waiting.deadline = trio.current_time() + PATIENCE
                return found
            await trio.sleep(1)

"""A stream that is deleted and made again, and those who read it meanwhile."""

from random import Random

import trio

from clients import Client, Message
from tests.world.witness import Sent, parse
from tests.world.witness_tier import Read
from tests.world.world import World

LIVES = "t"


class Lives:
    """Its lives, one after the other.

    Args:
        world: they are in.
        reads: gets what was read.
        arguments: of each.

    Attributes:
        gone: lives whose deletion was answered.
        torn: lives that may go on in an earlier one, as the machine was lost.
        number: of the life that is now, or about to be.
        is_going_on: it is not over yet.
    """

    def __init__(self, world: World, reads: list[Read], **arguments: str) -> None:
        self.gone: set[int] = set()
        self.torn: set[int] = set()
        self.number = 0
        self.is_going_on = False
        self._cut: dict[int, int] = {}
        self._world, self._reads = world, reads
        chance = world.chance_of("size of lives")
        self._arguments = arguments | {
            "stream-max-segment-size-bytes": chance.choice(("1500", "4000")),
            "stream-chunk-max-records": "4",
        }

    async def live(self) -> None:
        """Publish to it, cut it, and begin it again, until the world ends."""
        world, chance = self._world, self._world.chance_of("lives")

        async def work(client: Client) -> None:
            await self._begin(client)
            while not world.is_ending:
                await self._publish(client, chance)
                if chance.random() < 0.2:
                    await self._truncate(client, chance)
                if chance.random() < 0.2:
                    await client.delete(LIVES)
                    self.gone.add(self.number)
                    await self._begin(client)

        self.is_going_on = True
        while not world.is_ending:
            await world.attempt("lives", work)
            await trio.sleep(chance.choice((0.1, 1)))
        self.is_going_on = False

    async def live_on(self, client: Client) -> None:
        """Begin a last life that is stored, where there is none; what is left of others goes."""
        if not await client.exists(LIVES):
            self.number += 1
            await client.create(LIVES)
        await self._publish(client, Random(0))

    def lose(self) -> None:
        """The machine is lost; the store has the last life, or one before it."""
        self.gone.clear()
        self.torn.add(self.number)

    async def read(self, name: str, uri: str, *, is_at_once: bool = True) -> None:
        """Read all that there is of it, from its first message, again and again.

        Args:
            name: of the program.
            uri: of the server.
            is_at_once: that server knows of a deletion when that is answered.
        """
        world, chance = self._world, self._world.chance_of(name)

        async def work(client: Client) -> None:
            seen: list[tuple[int, int, int]] = []
            gone = frozenset(self.gone) if is_at_once else frozenset[int]()
            try:
                async with client.consumer(LIVES, offset="first", until_end=True) as consumer:
                    async for received in consumer:
                        sent = parse(bytes(received.body))
                        seen.append((received.offset, int(sent.who[1:]), sent.number))
                        if chance.random() < 0.05:
                            await trio.sleep(chance.choice((0.1, 3)))
            finally:
                self._reads.append(Read(seen, gone, self._cut, frozenset(self.torn)))

        while not world.is_ending:
            await world.attempt(name, work, uri=uri, retry_seconds=0)
            await trio.sleep(chance.choice((0.1, 1, 5)))

    async def _begin(self, client: Client) -> None:
        """Make it; one that is there may be of an earlier life, and goes."""
        if await client.exists(LIVES):
            await client.delete(LIVES)
            self.gone.add(self.number)
        self.number += 1
        await client.create(LIVES, arguments=self._arguments)

    async def _publish(self, client: Client, chance: Random) -> None:
        async with client.producer(LIVES, name="l") as producer:
            first = producer.last_publishing_id + 1
            for number in range(first, first + chance.choice((1, 5, 40))):
                await producer.send(Message(str(Sent(f"l{self.number}", number)).encode()))
            await producer.flush()
        await trio.sleep(chance.choice((0, 0.3, 3)))

    async def _truncate(self, client: Client, chance: Random) -> None:
        end = (await client.stats(LIVES))["committed_offset"] + 1
        before = chance.randint(max(0, end - 60), max(0, end))
        self._cut[self.number] = max(before, self._cut.get(self.number, 0))
        await client.truncate(LIVES, before=before)

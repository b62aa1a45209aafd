"""The clients of the world: programs that publish, follow and search, and are started again.

Each is a loop of programs: one runs until it has nothing more to do, it fails, or it is ended in
the middle by the world. The next one goes on with what a real one would have: what the server has
kept for its name, or what it has written down itself.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import trio

from clients import Client, Message, Producer, StreamError, connect
from streamd.wire.amqp091.methods import BasicAck
from tests.support.amqp import AmqpPeer, Delivery
from tests.world.witness import Follower, Found, Seen, Sent, Witness, parse

STREAM = "s"
KINDS, TONES = 5, 3
_RETRY_SECONDS = 30
_GONE = (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError)
END = "end"  # who publishes the last messages
LAST = [Sent(END, number) for number in range(KINDS * TONES)]  # each selection wants one
_COUNTS = (1, 1, 3, 10, 40)  # messages of a publisher at once
_AFTER_A_RESTART = 1_000


def message_of(sent: Sent) -> Message:
    """What is published."""
    number = sent.number
    properties: dict[str, Any] = {
        "kind": f"k{number % KINDS}",
        "tone": f"t{number % TONES}",
        "number": number,
        "key": str(sent),
    }
    return Message(str(sent).encode(), application_properties=properties)


def seen_of(received: Any) -> Seen:
    """What a program was given."""
    return Seen(received.offset, parse(bytes(received.body)))


class Actors:
    """See above.

    Args:
        witness: is told everything.
        chance: decides what they do.

    Attributes:
        is_ending: publishers publish no more.
        scopes: of the programs that run; the world may cancel any.
        errors: why programs have ended, for those who look for the cause of a fault.
    """

    def __init__(self, witness: Witness, chance: Random) -> None:
        self.is_ending = False
        self.scopes: dict[str, trio.CancelScope] = {}
        self.errors: list[str] = []
        self._witness = witness
        self._chance = chance

    async def create(self) -> None:
        """Make the stream; it is there once that is answered."""
        arguments = {
            "stream-filter-property": "kind,tone",
            "stream-key-properties": "key",
            "stream-chunk-max-records": str(self._chance.choice((1, 4, 16))),
            "stream-max-segment-size-bytes": str(self._chance.choice((1_500, 4_000, 20_000))),
        }
        async with connect(heartbeat=0) as client:
            await client.create(STREAM, arguments=arguments)

    # -- programs

    async def publish(self, who: str, *, is_named: bool) -> None:
        """Publish numbered messages until the world ends; all are confirmed then."""
        following = 1
        if is_named:
            self._witness.named.add(who)

        async def work(client: Client) -> None:
            nonlocal following
            async with client.producer(STREAM, name=who if is_named else "") as producer:
                if is_named:
                    following = producer.last_publishing_id + 1
                    self._told(who, following)
                else:
                    following += _AFTER_A_RESTART  # what became of the others is not known
                while not self.is_ending:
                    first, following = following, following + self._chance.choice(_COUNTS)
                    await self._publish_some(who, range(first, following), producer)

        await self._repeat(who, work)

    def _told(self, who: str, following: int) -> None:
        """The server says that all up to a number is stored."""
        told = [m for m in self._witness.sent if m.who == who and m.number < following]
        self._witness.confirm(told, trio.current_time())

    async def _publish_some(self, who: str, numbers: range, producer: Producer) -> None:
        chance, witness = self._chance, self._witness
        for number in numbers:
            sent = Sent(who, number)
            witness.sent.setdefault(sent, trio.current_time())
            number_given = number if producer.name else None
            await producer.send(message_of(sent), publishing_id=number_given)
        if chance.random() < 0.7:
            await producer.flush()
            self._told(who, numbers.stop) if producer.name else witness.confirm(
                [Sent(who, number) for number in numbers], trio.current_time()
            )
        await trio.sleep(chance.choice((0, 0.01, 0.1, 0.6)))

    async def follow(
        self,
        name: str,
        wants: Callable[[Sent], bool],
        *,
        keeps_itself: bool = False,
        **selection: Any,
    ) -> None:
        """Read all messages that are wanted, until the last one of the world."""
        follower = self._witness.followers[name] = Follower(wants)
        own: int | None = None
        missing = {sent for sent in LAST if wants(sent)}

        async def work(client: Client) -> None:
            nonlocal own
            offset: Any = "stored"
            if keeps_itself:
                offset = "first" if own is None else own + 1
            async with client.consumer(
                STREAM, offset=offset, name="" if keeps_itself else name, **selection
            ) as consumer:
                async for received in consumer:
                    seen = seen_of(received)
                    follower.seen.append(seen)
                    own = seen.offset
                    missing.discard(seen.message)
                    if not missing:
                        return
                    if not keeps_itself and self._chance.random() < 0.1:
                        await consumer.store_offset()
                    if self._chance.random() < 0.02:
                        await trio.sleep(self._chance.choice((0.05, 0.5)))

        await self._repeat(name, work)

    async def follow_amqp(
        self,
        name: str,
        wants: Callable[[Sent], bool],
        dial: Callable[[], Awaitable[AmqpPeer]],
        **arguments: Any,
    ) -> None:
        """The same over AMQP, by offsets that it keeps itself."""
        follower = self._witness.followers[name] = Follower(wants)
        missing = {sent for sent in LAST if wants(sent)}
        offset: int | str = "first"
        while missing:
            with trio.CancelScope() as scope:
                self.scopes[name] = scope
                try:
                    async with _amqp(await dial()) as peer:
                        await peer.consume(STREAM, x_stream_offset=offset, **arguments)
                        while missing and isinstance(found := await peer.next(), Delivery):
                            at = found.properties.headers["x-stream-offset"].value
                            follower.seen.append(Seen(at, parse(found.body)))
                            missing.discard(follower.seen[-1].message)
                            offset = at + 1
                            await peer.send(BasicAck(found.method.delivery_tag, False))
                except (StreamError, *_GONE) as error:
                    self.errors.append(f"{trio.current_time():.2f} {name}: {error!r}")
                except AssertionError as refusal:  # the peer was told something else than it asked
                    self.errors.append(f"{trio.current_time():.2f} {name}: {refusal}")
            self.scopes.pop(name, None)
            await trio.sleep(self._chance.choice((0.01, 0.3, 2)))

    async def search(self) -> None:
        """Look for messages that are confirmed, again and again."""

        async def work(client: Client) -> None:
            while not self.is_ending:
                await trio.sleep(self._chance.choice((0.05, 0.4)))
                await self._search_one(client)

        await self._repeat("search", work)

    async def _search_one(self, client: Client) -> None:
        known = list(self._witness.confirmed)
        if not known:
            return
        message = self._chance.choice(known)
        words: dict[str, Any] = {"key": str(message)}
        if self._chance.random() < 0.3:
            words = {"sql": f"kind = 'k{message.number % KINDS}' AND key = '{message}'"}
        if self._chance.random() < 0.3:
            words["newest"] = True
        finding = client.find(STREAM, **words)
        results = [seen_of(received) async for received in finding]
        if finding.is_all:
            self._witness.found.append(Found(message, results))

    async def truncate(self) -> None:
        """Remove messages that all followers have passed."""
        witness = self._witness
        passed = [f.seen[-1].offset if f.seen else 0 for f in witness.followers.values()]
        before = self._chance.randint(0, min(passed, default=0))
        if before <= witness.asked:
            return

        async def work(client: Client) -> None:
            witness.asked = before
            first = await client.truncate(STREAM, before=before)
            witness.begin = max(witness.begin, first)

        await self._try("truncate", work)

    async def end(self) -> None:
        """Publish the last messages, one that each follower wants."""
        self._witness.sent |= dict.fromkeys(LAST, trio.current_time())

        async def work(client: Client) -> None:
            async with client.producer(STREAM) as producer:
                for one in LAST:
                    await producer.send(message_of(one))

        await self._repeat(END, work)
        self._witness.confirm(LAST, trio.current_time())

    async def read(self) -> None:
        """Read what there is in the end."""

        async def work(client: Client) -> None:
            async with client.consumer(STREAM, offset="first", until_end=True) as consumer:
                self._witness.log = [seen_of(received) async for received in consumer]

        await self._repeat("read", work)

    async def _repeat(self, name: str, work: Callable[[Client], Awaitable[None]]) -> None:
        """Run a program until it has done its work."""
        while not await self._try(name, work):
            await trio.sleep(self._chance.choice((0.01, 0.3, 2)))

    async def _try(self, name: str, work: Callable[[Client], Awaitable[None]]) -> bool:
        """Run a program, which may fail or be ended at any step; whether it has done its work."""
        is_done = False
        with trio.CancelScope() as scope:
            self.scopes[name] = scope
            try:
                async with connect(heartbeat=0, retry_seconds=_RETRY_SECONDS) as client:
                    await work(client)
                is_done = True
            except* StreamError as group:
                now = trio.current_time()
                self.errors += [f"{now:.2f} {name}: {error!r}" for error in group.exceptions]
        self.scopes.pop(name, None)
        return is_done


@asynccontextmanager
async def _amqp(peer: AmqpPeer) -> AsyncIterator[AmqpPeer]:
    try:
        await peer.log_in()
        await peer.open()
        yield peer
    finally:
        peer.stream.send_stream.close()
        peer.stream.receive_stream.close()

"""A stream: programs that publish, follow and search, and are started again.

Each is a loop of programs: one runs until it has nothing more to do, it fails, or it is ended in
the middle by the world. The next one goes on with what a real one would have: what the server has
kept for its name, or what it has written down itself.
"""

import math
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any

import trio

from clients import Client, ConnectionLost, Message, NoOffset, Producer, StreamError, connect
from streamd.wire.amqp091.methods import BasicAck
from tests.support.amqp import Delivery
from tests.world import amqp10_peers, peers
from tests.world.box import GONE
from tests.world.machine import Machine
from tests.world.states import States
from tests.world.witness import Follower, Found, Seen, Sent, Walk, read
from tests.world.world import Program, World

STREAM = "s"
KINDS, TONES = 5, 3
SQL = "kind = 'k2' AND tone = 't1'"
END = "end"  # who publishes the last messages
LAST = [Sent(END, number) for number in range(KINDS * TONES)]  # each selection wants one
_COUNTS = (1, 1, 2, 5, 20)  # messages of a publisher at once
_WAITS = (0, 0.01, 0.1, 0.6)  # seconds between them
_PATIENCE = (math.inf, math.inf, math.inf, 0, 0.05)  # seconds until one asks again
_ROOM_SECONDS = 5  # after which it is used that there is room again
_LEAVES = 0.01  # how often a consumer ends by itself, at a message
_LIVES = (1, 5, 40, 1 << 20)  # messages of a publisher, then another name is used
_OVERLAPS = (0, 0, 1, 7, 30)  # messages that a named publisher sends again after a restart
_AFTER_A_RESTART = 1_000
_MANY, _TIRED = 60, 10  # who has published so many waits longer: long worlds cost too much
_SHORT, _LENGTH = 0.2, 12_000  # streams that keep so many bytes
# Of a short stream: what the last messages begin in, and all of them, is what it keeps.
_SHORT_SEGMENT = 4_000
_ALL = 1 << 62
_FOLDER = "streams/%2F/s"
_DERIVED = (".index", ".filter", ".keys")
_WRONG = 0.03  # messages with a filter value that they do not have, where that is refused
_EVERY, _SIZES = 50, {7: 300, 8: 300, 31: 6_000}  # of so many messages some have as many bytes


def properties_of(sent: Sent) -> dict[str, Any]:
    """What a message can be chosen by."""
    number = sent.number
    return {
        "kind": f"k{number % KINDS}",
        "tone": f"t{number % TONES}",
        "number": number,
        "key": str(sent),
    }


def message_of(sent: Sent, edition: int = 0) -> Message:
    """What is published; some are large."""
    body = f"{sent}/{edition}".ljust(_SIZES.get(sent.number % _EVERY, 0))
    return Message(body.encode(), application_properties=properties_of(sent))


def seen_of(received: Any) -> Seen:
    """What a program was given."""
    return read(received.offset, bytes(received.body))


class Messages:
    """A part of the world: see above."""

    is_kept = False

    def __init__(self, world: World) -> None:
        self._world = world
        self._witness = world.witness
        self._publishing: set[str] = set()
        self._waiting: dict[str, Follower] = {}  # those that read on this server to the end
        self._is_strict = False
        self._refusals = 0, -math.inf
        States(world, _FOLDER)

    async def prepare(self) -> None:
        """Make the stream; it is there once that is answered."""
        chance = self._world.chance_of("stream")
        arguments = {
            "stream-filter-property": "kind,tone",
            "stream-key-properties": "key",
            "stream-chunk-max-records": str(chance.choice((1, 4, 16))),
            "stream-max-segment-size-bytes": str(chance.choice((1_500, 4_000, 20_000))),
            "stream-filter-contract": chance.choice(("lenient", "strict")),
            "stream-filter-derive": chance.choice(("true", "false")),
            "stream-chunk-max-wait-ms": chance.choice(("0", "0", "50")),
        }
        self._is_strict = arguments["stream-filter-contract"] == "strict"
        if chance.random() < _SHORT:
            arguments["max-length-bytes"] = str(_LENGTH)
            segment = min(int(arguments["stream-max-segment-size-bytes"]), _SHORT_SEGMENT)
            arguments["stream-max-segment-size-bytes"] = str(segment)
            self._witness.keeps_all, self._witness.asked = False, _ALL
        async with connect(heartbeat=0) as client:
            await client.create(STREAM, arguments=arguments)

    def programs(self) -> dict[str, Program]:
        one, both = has(kind=1), has(kind=2, tone=1)
        return {
            "all": partial(self.follow, "all", lambda _: True),
            "own": partial(self.follow, "own", lambda _: True, keeps_itself=True),
            "k1": partial(self.follow, "k1", one, filter_values=["k1"], filter_value="kind"),
            "sql": partial(self.follow, "sql", both, sql=SQL),
            "amqp": partial(self.follow_amqp, "amqp", both, x_stream_sql=SQL),
            "p": partial(self.publish, "p", is_named=True),
            "q": partial(self.publish, "q", is_named=False),
            "search": self.search,
            "walk": self.walk,
            "r": partial(self.publish_again, "r"),
            "raw": partial(peers.follow, self._world, STREAM, "raw", LAST),
            "a": partial(self.publish_amqp, "a"),
            "b": self.publish_raw,
            "c": self.publish_amqp10,
            "d": partial(self.follow_amqp10, "d", lambda _: True),
            "e": partial(self.follow_amqp10, "e", both, sql=SQL),
            "f": partial(self.follow_amqp10, "f", one, stream_filter="k1"),
            "o": partial(peers.store, self._world, STREAM, "o"),
        }

    def harms(self) -> dict[str, Program]:
        return {"truncate": self.truncate, "rot": self.rot}

    # -- programs

    async def publish(self, who: str, *, is_named: bool) -> None:
        """Publish numbered messages until the world ends; all are confirmed then.

        Whose numbers are its own may have a name all the same, and let the library number them.
        """
        following, edition = 1, 0
        chance = self._world.chance_of(who)
        name = who if is_named or chance.random() < 0.5 else ""
        self._publishing.add(who)
        if is_named:
            self._witness.named.add(who)

        async def work(client: Client) -> None:
            nonlocal following, edition
            edition += 1
            async with client.producer(STREAM, name=name) as producer:
                if is_named:
                    following = producer.last_publishing_id + 1
                    self._told(who, following)
                    following = max(1, following - chance.choice(_OVERLAPS))
                else:
                    following += _AFTER_A_RESTART  # what became of the others is not known
                while not self._world.is_ending:
                    first, following = following, following + chance.choice(_COUNTS)
                    some = range(first, following)
                    await self._publish_some(who, some, producer, chance, edition)

        await self._world.repeat(who, work)
        self._publishing.discard(who)

    def _told(self, who: str, following: int) -> None:
        """The server says that all up to a number is stored."""
        told = [m for m in self._witness.sent if m.who == who and m.number < following]
        self._witness.confirm(told, trio.current_time())

    async def _publish_some(
        self, who: str, numbers: range, producer: Producer, chance: Random, edition: int
    ) -> None:
        witness = self._witness
        is_named = who in witness.named
        for number in numbers:
            sent = Sent(who, number)
            witness.sent.setdefault(sent, trio.current_time())
            given = number if is_named else None
            message = message_of(sent, edition)
            await _insist(chance, partial(producer.send, message, publishing_id=given))
        if chance.random() < 0.7:
            await _insist(chance, producer.flush)
            self._told(who, numbers.stop) if is_named else witness.confirm(
                [Sent(who, number) for number in numbers], trio.current_time()
            )
        await trio.sleep(_pause(numbers.stop, chance))

    async def publish_again(self, who: str) -> None:
        """Publish under one name after the other."""
        chance, number = self._world.chance_of(who), 0
        self._publishing.add(who)
        while not self._world.is_ending:
            number += 1
            await self._publish_life(f"{who}{number}", chance.choice(_LIVES), chance)
        self._publishing.discard(who)

    async def _publish_life(self, who: str, most: int, chance: Random) -> None:
        """Publish by a count of its own, from 0; all that is not known again."""
        witness = self._witness
        witness.named.add(who)
        first = following = edition = 0

        async def work(client: Client) -> None:
            nonlocal first, following, edition
            edition += 1
            async with client.producer(STREAM, name=who) as producer:
                following = first
                while first < most and not self._world.is_ending:
                    following += chance.choice(_COUNTS)
                    for number in range(first, following):
                        one = Sent(who, number)
                        witness.sent.setdefault(one, trio.current_time())
                        is_wrong = self._is_strict and chance.random() < _WRONG
                        value = "wrong" if is_wrong else None
                        message = message_of(one, edition)
                        send = partial(producer.send, message, filter_value=value)
                        await _insist(chance, partial(send, publishing_id=number))
                    if chance.random() < 0.7:
                        await producer.flush()
                        self._told(who, following)
                        first = following
                    await trio.sleep(_pause(following, chance))

        await self._world.repeat(who, work)

    async def publish_amqp(self, who: str) -> None:
        """See `peers.publish`."""
        self._publishing.add(who)
        await peers.publish(self._world, STREAM, who, properties_of, _pause)
        self._publishing.discard(who)

    async def publish_raw(self) -> None:
        """See `peers.publish_named`."""
        self._publishing.add("b")
        share = _WRONG if self._is_strict else 0
        await peers.publish_named(self._world, STREAM, "b", message_of, share)
        self._publishing.discard("b")

    async def publish_amqp10(self) -> None:
        """See `amqp10_peers.publish`."""
        self._publishing.add("c")
        share = _WRONG if self._is_strict else 0
        await amqp10_peers.publish(self._world, STREAM, "c", message_of, _pause, share)
        self._publishing.discard("c")

    async def follow(
        self,
        name: str,
        wants: Callable[[Sent], bool],
        *,
        keeps_itself: bool = False,
        uri: str = "",
        **selection: Any,
    ) -> None:
        """Read all messages that are wanted, until the last one of the world."""
        follower = self._witness.followers[name] = Follower(wants)
        if not uri:
            self._waiting[name] = follower
        own: int | None = None
        chance = self._world.chance_of(name)
        missing = {sent for sent in LAST if wants(sent)}

        async def work(client: Client) -> None:
            nonlocal own
            offset: Any = "stored"
            if keeps_itself:
                offset = "first" if own is None else own + 1
            follower.begins(0 if own is None or not keeps_itself else own + 1)
            boot = self._boot()  # messages that have arrived may be of the machine before
            await self._ask_for_stored(client, "" if keeps_itself else name, boot)
            async with client.consumer(
                STREAM,
                offset=offset,
                name="" if keeps_itself else name,
                credit=chance.choice((1, 2, 10)),
                **selection,
            ) as consumer:
                async for received in consumer:
                    seen = seen_of(received)
                    follower.seen.append(seen)
                    own = seen.offset
                    missing.discard(seen.message)
                    if not missing:
                        return
                    if not keeps_itself and chance.random() < 0.1:
                        await _insist(chance, consumer.store_offset)
                        if chance.random() < 0.3:
                            await self._ask_for_stored(client, name, boot, seen.offset)
                    if chance.random() < _LEAVES:
                        raise StreamError("it begins again, in the middle of a chunk")
                    if chance.random() < 0.02:
                        await trio.sleep(chance.choice((0.05, 0.5)))

        await self._world.repeat(name, work, uri=uri)

    def _boot(self) -> tuple[int, Machine]:
        """The machine, and how often it was started."""
        machine = self._world.box.machine
        return machine.num_boots, machine

    async def _ask_for_stored(
        self, client: Client, name: str, boot: tuple[int, Machine], given: int = 0
    ) -> None:
        """Ask how far a consumer has come, which has just stored an offset, perhaps."""
        if not name:
            return  # it stores none
        witness, machine = self._witness, boot[1]
        stored = await self._stored(client, name)
        if client.is_read_only or machine.broken_at is not None:
            return  # it counts until that server ends
        least = given if boot == self._boot() and not self._lacks_room() else 0
        witness.hear_stored(name, trio.current_time(), stored, least)

    def _lacks_room(self) -> bool:
        """Whether the disk refused something, or a server waited, just now: offsets wait then."""
        machine, now = self._world.box.machine, trio.current_time()
        if machine.wrong or machine.num_refused != self._refusals[0]:
            self._refusals = machine.num_refused, now
        return now < max(self._refusals[1], self._world.waited_at) + _ROOM_SECONDS

    async def _stored(self, client: Client, name: str) -> int | None:
        try:
            return await self._answer(partial(client.query_offset, STREAM, name))
        except NoOffset:
            return None

    async def _answer(self, ask: Callable[[], Awaitable[int]]) -> int:
        """python-client.md: "questions are asked again, all of them"."""
        try:
            return await ask()
        except ConnectionLost as error:
            answer = await ask()  # raises what it did before if the connection is gone for good
            if "no answer" not in str(error):
                self._witness.faults.append(f"questions are asked again: {error}")
            return answer

    async def follow_amqp(self, name: str, wants: Callable[[Sent], bool], **arguments: Any) -> None:
        """The same over AMQP, by offsets that it keeps itself."""
        world = self._world
        follower = self._waiting[name] = self._witness.followers[name] = Follower(wants)
        missing = {sent for sent in LAST if wants(sent)}
        chance = world.chance_of(name)
        offset: int | str = "first"

        async def work() -> None:
            nonlocal offset
            async with world.box.amqp() as peer:
                follower.begins(0 if isinstance(offset, str) else offset)
                prefetch = chance.choice((1, 3, 100))
                await peer.consume(STREAM, prefetch=prefetch, x_stream_offset=offset, **arguments)
                while missing and isinstance(found := await peer.next(), Delivery):
                    at = found.properties.headers["x-stream-offset"].value
                    follower.seen.append(read(at, found.body))
                    missing.discard(follower.seen[-1].message)
                    offset = at + 1
                    if chance.random() < 0.1:
                        await trio.sleep(chance.choice((0.01, 0.5)))
                    await peer.send(BasicAck(found.method.delivery_tag, False))

        while missing:
            try:
                await world.guarded(name, work)
            except* GONE:
                world.note(f"{name} lost its connection")
            except* AssertionError as refusals:  # it was told something else than it asked
                world.note(f"{name} refused", str(refusals.exceptions[0]))
            await trio.sleep(chance.choice((0.01, 0.3, 2)))

    async def follow_amqp10(self, name: str, wants: Callable[[Sent], bool], **filters: str) -> None:
        """The same over AMQP 1.0; see `amqp10_peers.follow`."""
        follower = self._waiting[name] = self._witness.followers[name] = Follower(wants)
        missing = {sent for sent in LAST if wants(sent)}
        await amqp10_peers.follow(self._world, STREAM, name, follower, missing, filters)

    async def search(self) -> None:
        """Look for messages that are confirmed, again and again."""
        chance = self._world.chance_of("search")

        async def work(client: Client) -> None:
            while not self._world.is_ending:
                await trio.sleep(
                    chance.choice((0.05, 0.4, 1)) * (1 + len(self._witness.found) / 10)
                )
                await self._search_one(client, chance)

        await self._world.repeat("search", work)

    async def _search_one(self, client: Client, chance: Random) -> None:
        known = list(self._witness.confirmed)
        if not known:
            return
        message = chance.choice(known)
        words: dict[str, Any] = {"key": str(message)}
        if chance.random() < 0.3:
            words = {"sql": f"kind = 'k{message.number % KINDS}' AND key = '{message}'"}
        if chance.random() < 0.3:
            words["newest"] = True
        finding = client.find(STREAM, **words)
        was_read_only = client.is_read_only  # who only follows may be a moment behind
        results = [seen_of(received) async for received in finding]
        if finding.is_all and not (was_read_only or client.is_read_only):
            self._witness.found.append(Found(message, results))

    async def walk(self) -> None:
        """Look for all messages of a kind, page after page, whatever happens meanwhile."""
        chance, witness = self._world.chance_of("walk"), self._witness

        async def work(client: Client) -> None:
            while not self._world.is_ending:
                await trio.sleep(chance.choice((0.1, 2)) * (1 + len(witness.walks)))
                kind, newest = chance.randrange(KINDS), chance.random() < 0.3
                was_read_only = client.is_read_only
                wants = has(kind)
                known = {sent for sent in witness.confirmed if wants(sent)}
                after, results = "", []
                while True:
                    finding = client.find(
                        STREAM, sql=f"kind = 'k{kind}'", newest=newest, limit=20, after=after
                    )
                    results += [seen_of(received) async for received in finding]
                    after = finding.after
                    if not after:
                        break
                    await trio.sleep(chance.choice((0, 0, 0.5)))
                if not (was_read_only or client.is_read_only):
                    witness.walks.append(Walk(wants, known, results, newest))

        await self._world.repeat("walk", work)

    # -- what goes wrong

    async def truncate(self) -> None:
        """Remove messages that all followers have passed."""
        witness = self._witness
        passed = [f.seen[-1].offset if f.seen else 0 for f in witness.followers.values()]
        before = self._world.chance.randint(0, min(passed, default=0))
        if before <= witness.asked:
            return

        async def work(client: Client) -> None:
            witness.asked = before
            first = await client.truncate(STREAM, before=before)
            witness.begin = max(witness.begin, first)

        await self._world.attempt("truncate", work)

    async def rot(self) -> None:
        """Files that can be made again are not what was written: nothing may be missed for it."""
        self._world.note("rotten", self._world.box.machine.rot(_DERIVED))
        if self._world.chance.random() < 0.5:  # else who has read them notices nothing
            await self._world._kill()

    # -- the end

    async def finish(self) -> None:
        """Publish the last messages, one that each follower wants."""
        while self._publishing:
            await trio.sleep(0.1)
        self._witness.sent |= dict.fromkeys(LAST, trio.current_time())
        chance = self._world.chance_of(END)

        async def work(client: Client) -> None:
            async with client.producer(STREAM) as producer:
                for one in LAST:
                    await producer.send(message_of(one))
                    if chance.random() < 0.5:
                        await trio.sleep(chance.choice((0, 0.01, 0.1)))
                    if chance.random() < 0.3:
                        await producer.flush()
                        await self._all_have(one)

        await self._world.repeat(END, work)
        self._witness.confirm(LAST, trio.current_time())

    async def _all_have(self, one: Sent) -> None:
        """Nothing else happens until all that wait for a message have it: nobody wakes them."""
        for follower in self._waiting.values():
            while follower.wants(one) and all(seen.message != one for seen in follower.seen):
                await trio.sleep(0.1)

    async def settle(self) -> None:
        """Read what there is in the end."""

        async def work(client: Client) -> None:
            async with client.consumer(STREAM, offset="first", until_end=True) as consumer:
                self._witness.log = [seen_of(received) async for received in consumer]

            for name in self._witness.stored:
                try:
                    self._witness.stored_at_end[name] = await client.query_offset(STREAM, name)
                except NoOffset:
                    self._witness.stored_at_end[name] = None
            (info,) = await client.describe(STREAM)
            self._witness.figures = info.figures

        await self._world.repeat("read", work)


async def _insist(chance: Random, work: Callable[[], Awaitable[object]]) -> None:
    """Do something; who gives it up after a while begins anew."""
    is_done = False
    while not is_done:
        with trio.move_on_after(chance.choice(_PATIENCE)):
            await work()
            is_done = True


def _pause(number: int, chance: Random) -> float:
    """Seconds until a publisher publishes more, that has come to this number."""
    tired = 1 + max(0, number % _AFTER_A_RESTART - _MANY) / _MANY * _TIRED
    return chance.choice(_WAITS) * tired


def has(kind: int, tone: int | None = None) -> Callable[[Sent], bool]:
    """What a selection wants."""

    def wants(sent: Sent) -> bool:
        return sent.number % KINDS == kind and (tone is None or sent.number % TONES == tone)

    return wants

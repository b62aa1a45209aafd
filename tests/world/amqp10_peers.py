"""Clients of AMQP 1.0 that know frames, as they may come: in pieces, aborted, with small windows.

What they check themselves goes to the witness: a message without credit, a transfer without window,
an outcome that is told twice, a drain that takes another credit back than there is, and that the
server blames them: they keep to the protocol.
"""

from collections.abc import Callable, Mapping
from random import Random

import trio

from clients import Message
from segments.message import MessageView
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import frame
from tests.support.amqp10 import Amqp10Peer, Delivery, filters
from tests.world.peers import Refused, repeat
from tests.world.witness import Follower, Sent, Witness, read
from tests.world.world import World

_AFTER_A_RESTART = 1_000  # numbers: what became of the others is not known
_COUNTS = (1, 1, 3, 10)  # messages at once
_WAITS = (0, 0.1, 2)  # seconds in which outcomes are awaited
_SIZES = (20, 200, 4_000)  # bytes of a message in a transfer
_FRAMES = (512, 512, 131_072)  # bytes that a server's frame may have
_WINDOWS = (1, 2, 7, 1_000)  # transfers that may come at once
_CREDITS = (1, 1, 2, 30)
_ENDS = (p.Detach, p.End, p.Close)
_VALUE = "x-stream-filter-value"
# Of a client that keeps to the protocol nobody has to say these.
_BLAME = ("framing", "session:", "transfer-limit", "decode", "invalid-field", "not-allowed")


def _ended(witness: Witness, name: str, error: p.Error | None) -> Refused:
    """A link, a session or the connection was ended by the server."""
    if error is not None and any(word in error.condition for word in _BLAME):
        witness.faults.append(f"blame: {name} was told {error.condition}: {error.description}")
    return Refused(error)


class _Publisher:
    """One connection of a publisher, with links that share a session.

    Attributes:
        waiting: messages without an outcome, by their delivery ids.
    """

    def __init__(self, world: World, peer: Amqp10Peer, name: str, chance: Random) -> None:
        self._witness = world.witness
        self._peer = peer
        self._name = name
        self._chance = chance
        self._transfers = self._window_end = 0
        self._counts: dict[int, int] = {}  # messages of each link
        self._limits: dict[int, int] = {}  # as many as it may have
        self._gone: dict[int, Sent] = {}  # the same, of links that are gone: one may come still
        self._links: dict[int, int] = {}  # of those that wait
        self.waiting: dict[int, Sent] = {}

    async def open(self, stream: str, num_links: int) -> None:
        """Begin the session, and attach the links."""
        self._stream = stream
        begin = await self._peer.begin()
        self._window_end = begin.incoming_window
        for handle in range(num_links):
            await self._attach(handle)

    async def _attach(self, handle: int) -> None:
        self._counts[handle] = self._limits[handle] = 0
        attach = await self._peer.attach_sender(f"/queues/{self._stream}", handle)
        if attach.target is None:
            raise Refused(await self._peer.find(p.Detach))

    async def hear(self) -> None:
        """Take what comes next from the server."""
        self._take(await self._peer.next())

    def _take(self, found: p.Performative) -> None:
        if isinstance(found, _ENDS):
            raise _ended(self._witness, self._name, found.error)
        if isinstance(found, p.Disposition):
            last = found.first if found.last is None else found.last
            for number in range(found.first, last + 1):
                sent = self.waiting.pop(number, None) or self._gone.pop(number, None)
                if sent is None:
                    self._witness.faults.append(f"outcome: {number} was told twice, or not asked")
                elif isinstance(found.state, p.Accepted):
                    self._witness.confirm([sent], trio.current_time())
        elif isinstance(found, p.Flow):
            self._window_end = (found.next_incoming_id or 0) + found.incoming_window
            if found.handle is not None:
                credit = found.link_credit or 0
                self._limits[found.handle] = (found.delivery_count or 0) + credit

    async def publish(self, sent: Sent, message: Message) -> None:
        """Publish a message on one of the links; some of it, perhaps, before another one."""
        chance = self._chance
        handle = chance.choice(list(self._counts))
        if chance.random() < 0.1:
            await self._begin_in_vain(handle)
        is_settled = chance.random() < 0.2
        self._witness.sent[sent] = trio.current_time()
        number = await self._begin(handle)
        if not is_settled:
            self.waiting[number], self._links[number] = sent, handle
        raw = message.encode()
        size = chance.choice(_SIZES)
        pieces = [raw[at : at + size] for at in range(0, len(raw), size)]
        for place, piece in enumerate(pieces):
            more = place + 1 < len(pieces)
            transfer = p.Transfer(handle, settled=is_settled, more=more)
            if not place:
                transfer = transfer._replace(delivery_id=number, delivery_tag=b"t")
            await self._transfer(transfer, piece)

    async def _begin(self, handle: int) -> int:
        """Wait until a link may have one more message; its delivery id."""
        while self._counts[handle] >= self._limits[handle]:
            await self.hear()
        self._counts[handle] += 1
        return self._peer.delivery_id()

    async def _transfer(self, transfer: p.Transfer, piece: bytes) -> None:
        while self._transfers >= self._window_end:
            await self.hear()
        self._transfers += 1
        await self._peer.send_bytes(frame(0, transfer, piece))

    async def _begin_in_vain(self, handle: int) -> None:
        """Begin a message that nobody is to store: it is aborted, or its link goes."""
        number = await self._begin(handle)
        raw = Message(f"{self._name}-aborted:{number}".encode()).encode()
        begun = p.Transfer(handle, number, b"t", 0, False, True)
        await self._transfer(begun, raw[: self._chance.choice((0, 5, len(raw)))])
        if self._chance.random() < 0.5:
            await self._transfer(p.Transfer(handle, more=False, aborted=True), b"")
            return
        while self.waiting and self._chance.random() < 0.5:
            await self.hear()
        await self._peer.send(p.Detach(handle, True))
        while not isinstance(found := await self._peer.next(), p.Detach):
            self._take(found)
        for one in [one for one in self.waiting if self._links[one] == handle]:
            self._gone[one] = self.waiting.pop(one)
        await self._attach(handle)


async def publish(
    world: World,
    stream: str,
    name: str,
    message_of: Callable[[Sent, int], Message],
    pause: Callable[[int, Random], float],
    share: float,
) -> None:
    """Publish until the world is ending; then all that is not settled has an outcome.

    Args:
        world: it lives in.
        stream: it publishes to.
        name: of the publisher.
        message_of: makes a message.
        pause: seconds until it publishes more.
        share: of messages with a filter value that they do not have, which are refused.
    """
    chance, following, edition = world.chance_of(name), 1 - _AFTER_A_RESTART, 0

    async def work() -> None:
        nonlocal following, edition
        following, edition = following + _AFTER_A_RESTART, edition + 1
        async with world.box.amqp10() as peer:
            publisher = _Publisher(world, peer, name, chance)
            await publisher.open(stream, chance.choice((1, 1, 3)))
            while not world.is_ending or publisher.waiting:
                for _ in range(0 if world.is_ending else chance.choice(_COUNTS)):
                    sent, following = Sent(name, following), following + 1
                    message = message_of(sent, edition)
                    value = message.application_properties["kind"]
                    if chance.random() < share:
                        value = "wrong"
                    if value == "wrong" or chance.random() < 0.5:
                        message.annotations = {_VALUE: value}
                    await publisher.publish(sent, message)
                with trio.move_on_after(chance.choice(_WAITS)):
                    while publisher.waiting:
                        await publisher.hear()
                await trio.sleep(pause(following, chance))

    await repeat(world, name, work, chance)


class _Reading:
    """One connection of a consumer.

    Attributes:
        asked: the offset behind the last message that was accepted.
    """

    def __init__(self, world: World, peer: Amqp10Peer, name: str, chance: Random) -> None:
        self._witness = world.witness
        self._peer = peer
        self._name = name
        self._chance = chance
        self._window = chance.choice(_WINDOWS)
        self._is_settled = chance.random() < 0.3
        self._transfers = self._room = 0  # that came, that may come
        self._count = self._credit = 0  # messages that came, that may come
        self._is_draining = False
        self._parts: list[bytes] = []
        self._first: p.Transfer | None = None

    async def open(self, stream: str, asked: int, selection: Mapping[str, str]) -> None:
        """Begin the session, and attach."""
        await self._peer.begin(window=self._window)
        self._room = self._window
        mode = p.SETTLED if self._is_settled else p.UNSETTLED
        wanted = filters(stream_offset_spec=asked or "first", **selection)
        found = await self._peer.attach_receiver(
            f"/queues/{stream}", filter=wanted, snd_settle_mode=mode
        )
        if found.source is None:
            raise Refused(await self._peer.find(p.Detach))
        if found.source.filter != wanted:
            self._witness.faults.append(f"filter: {self._name} got {found.source.filter}")

    async def next(self) -> tuple[Delivery, int | None]:
        """The next message, and its delivery id where that is to be settled."""
        while True:
            if not self._credit and not self._is_draining:
                await self._grant()
            _, found, payload = await self._peer.receive()
            if isinstance(found, p.Transfer):
                await self._take(found)
                self._parts.append(payload)
                if not found.more:
                    delivery = Delivery(self._first or found, b"".join(self._parts))
                    self._first, self._parts = None, []
                    return delivery, None if self._is_settled else delivery.transfer.delivery_id
            elif isinstance(found, p.Flow) and found.drain:
                self._drained(found)
                await trio.sleep(self._chance.choice((0, 0.1, 1)))
            elif isinstance(found, _ENDS):
                raise _ended(self._witness, self._name, found.error)

    async def _take(self, transfer: p.Transfer) -> None:
        self._transfers += 1
        self._room -= 1
        if self._room < 0:
            self._fault("a transfer came without window")
        if self._first is None:
            self._first = transfer
            self._count += 1
            self._credit -= 1
            if self._credit < 0:
                self._fault("a message came without credit")
        if not self._room or self._chance.random() < 0.1:
            self._room = self._window
            await self._peer.send(p.Flow(self._transfers, self._window, 0, 1_000))

    async def _grant(self) -> None:
        """Give credit; where it drains, the server says when it has no more to send."""
        self._credit = self._chance.choice(_CREDITS)
        self._is_draining = self._chance.random() < 0.2
        self._room = self._window
        flow = p.Flow(self._transfers, self._window, 0, 1_000, 1, self._count, self._credit)
        await self._peer.send(flow._replace(drain=self._is_draining))

    def _drained(self, flow: p.Flow) -> None:
        if flow.delivery_count != self._count + self._credit or flow.link_credit:
            self._fault(f"{flow} took back another credit than {self._credit}")
        self._count, self._credit, self._is_draining = flow.delivery_count or 0, 0, False

    def _fault(self, text: str) -> None:
        self._witness.faults.append(f"credit: {self._name}: {text}")

    async def accept(self, first: int, last: int) -> None:
        """Settle messages."""
        state = p.Accepted()
        await self._peer.send(p.Disposition(p.RECEIVER, first, last, True, state))


async def follow(
    world: World,
    stream: str,
    name: str,
    follower: Follower,
    missing: set[Sent],
    selection: Mapping[str, str],
) -> None:
    """Read messages until the last ones have come; each time from behind the last accepted one."""
    chance, asked = world.chance_of(name), 0

    async def work() -> None:
        nonlocal asked
        async with world.box.amqp10(max_frame_size=chance.choice(_FRAMES)) as peer:
            reading = _Reading(world, peer, name, chance)
            follower.begins(asked)
            await reading.open(stream, asked, selection)
            unsettled: list[tuple[int, int]] = []  # delivery ids and offsets
            while missing:
                delivery, number = await reading.next()
                offset = delivery.offset
                follower.seen.append(read(offset, MessageView(delivery.raw).body))
                missing.discard(follower.seen[-1].message)
                if number is None:
                    asked = offset + 1
                else:
                    unsettled.append((number, offset))
                if unsettled and chance.random() < 0.5:
                    await reading.accept(unsettled[0][0], unsettled[-1][0])
                    asked = unsettled[-1][1] + 1
                    unsettled.clear()
                if chance.random() < 0.02:
                    await trio.sleep(chance.choice((0.05, 0.5)))
                if chance.random() < 0.01:
                    raise Refused("it begins again")

    await repeat(world, name, work, chance)

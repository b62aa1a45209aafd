"""Clients that publish, cut, delete, change keys, and find: each answer is compared with a ledger.

They have streams of their own, where others cannot delete what is looked for; see ledger.py for
what is exact about that. Where the server is killed, all go on when it is back.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import httpx
import trio

from segments.message import Message, MessageView, Properties
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import Pair
from tests.churn.doors import Broken, Network
from tests.churn.ledger import Found, Ledger, Moment, Sent
from tests.support.server import FIRST, Peer, frame

ANSWER_SECONDS = 60
GONE = (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError, OSError)
_REGIONS = ("EU", "US", "AP")
_NUM_KEYS = 12
_COMMAND, _RARE = "command", 0.05  # the way that takes long, and how often it is taken
_MOST_FAULTS = 5
_READ_SECONDS = 30
_KEYS = ("order_id", "order_id,id", "id", "", "count,order_id,id,properties.message_id", "KEYS")
_OK, _MISSING = 1, (2,)


class Missing(Exception):
    """There is no such stream."""


class Busy(Exception):
    """Another search of the same user goes on."""


class Refusal(Exception):
    """A search is refused; why."""


class Kind(NamedTuple):
    """A stream of the seekers.

    Attributes:
        arguments: it is created with.
        most: messages that are published at once.
        padding: bytes of a message, at most.
        share: of all that is done.
    """

    arguments: dict[str, str]
    most: int
    padding: int
    share: float


KINDS = {
    "k-small": Kind(
        {
            "stream-max-segment-size-bytes": "1500",
            "stream-local-max-length-bytes": "0",
            "stream-chunk-max-records": "4",
            "stream-key-properties": "order_id",
        },
        40,
        60,
        4,
    ),
    "k-filtered": Kind(
        {
            "stream-max-segment-size-bytes": "60000",
            "stream-filter-property": "region,kind",
            "stream-key-properties": "order_id,id",
        },
        80,
        100,
        3,
    ),
    "k-kept": Kind(
        {
            "stream-max-segment-size-bytes": "8000",
            "max-length-bytes": "60000",
            "stream-local-max-length-bytes": "10000",
        },
        40,
        60,
        2,
    ),
    "k-large": Kind({"stream-key-properties": "id"}, 120, 6_000, 0.5),
}

Words = Sequence[tuple[str, str]]
Way = Callable[["Seeker", str, Words, int | None], Awaitable[list[Found]]]
Select = Callable[[str, str], Awaitable[list[Found]]]


@dataclass
class Seekers:
    """All of them, and what has come of it.

    Attributes:
        network: leads to the server.
        seed: decides what they do.
        ways: how they find, by name.
        is_killed: the server may be killed, and started again.
        streams: how many of KINDS they have.
        select: consumes what a selector wants of a stream, from its beginning to what is its end;
            None where nothing does.
    """

    network: Network
    seed: int | str
    ways: dict[str, Way]
    is_killed: bool = False
    streams: int = len(KINDS)
    select: Select | None = None

    def __post_init__(self) -> None:
        self.ledgers = {name: Ledger(name) for name in list(KINDS)[: self.streams]}
        if "k-kept" in self.ledgers:
            self.ledgers["k-kept"].has_retention = True
        self.faults: list[str] = []
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.num_found = self.num_indexed = 0
        self.http_turn = trio.Lock()  # a user has one search at a time
        self.is_up = trio.Event()
        self.is_up.set()

    @property
    def has_failed(self) -> bool:
        return len(self.faults) >= _MOST_FAULTS

    def summary(self) -> str:
        """What was done, in a line."""
        sent = [sent for ledger in self.ledgers.values() for sent in ledger.sent.values()]
        confirmed = sum(one.is_confirmed for one in sent)
        return (
            f"{confirmed:,} of {len(sent):,} messages confirmed, {self.num_found:,} found, "
            f"{self.num_indexed:,} segments searched by their keys"
        )

    async def live(self, count: int, steps: Callable[[int], Iterable[object]]) -> None:
        """So many of them, each as long as there are steps."""
        async with trio.open_nursery() as nursery:
            for number in range(count):
                seeker = Seeker(self, f"f{number}", Random(f"{self.seed}/find/{number}"))
                nursery.start_soon(seeker.run, steps(number))

    async def fill(self) -> None:
        """Create all streams."""
        seeker = Seeker(self, "first", Random(0))
        await seeker.open()
        for name in self.ledgers:
            await seeker.create(name)
        await seeker.close()

    async def check(self, keys: int = 3) -> None:
        """In the end: everything is found in every way, and read; then all is deleted.

        Args:
            keys: so many of the keys are looked for.

        Raises:
            Broken: something is not as it must be.
        """
        seeker = Seeker(self, "judge", Random(0))
        await seeker.open()
        for number, name in enumerate(self.ledgers):
            if await seeker.first(name) is None:
                continue
            for way in self.ways:
                if way == _COMMAND and number:
                    continue  # it takes long
                await seeker.find(name, way, *_everything())
                for key in range(keys):
                    await seeker.find(name, way, *_by_key(f"o{key}"))
            await seeker.read(name)
            await seeker.delete(name)
        await seeker.close()


def _everything() -> tuple[list[tuple[str, str]], Callable[[Sent], bool]]:
    return [], lambda _sent: True


def _by_key(key: str) -> tuple[list[tuple[str, str]], Callable[[Sent], bool]]:
    return [("key", key), ("property", "order_id")], lambda sent: sent.key == key


class Seeker:
    """One client.

    Args:
        all_: what it shares with others.
        name: of it, and of the consumer whose offset it stores.
        chance: decides what it does.
    """

    def __init__(self, all_: Seekers, name: str, chance: Random) -> None:
        self.name = name
        self.all = all_
        self.chance = chance
        self._next = 0
        self._doing = ""
        self._peer: Peer | None = None
        self._http: httpx.AsyncClient | None = None
        self._stored: dict[str, tuple[int | None, set[int | None]]] = {}

    # -- connections

    @property
    def peer(self) -> Peer:
        assert self._peer is not None
        return self._peer

    @property
    def http(self) -> httpx.AsyncClient:
        assert self._http is not None
        return self._http

    async def open(self) -> None:
        """Connect."""
        self._peer = await self.all.network.stream()
        await self._peer.log_in()
        self._http = self.all.network.http()

    async def close(self) -> None:
        """Drop the connections."""
        if self._peer is not None:
            await trio.aclose_forcefully(self._peer.stream)
        if self._http is not None:
            await self._http.aclose()

    async def _again(self) -> None:
        await self.close()
        while True:
            await self.all.is_up.wait()
            try:
                await self.open()
                return
            except GONE:
                if not self.all.is_killed:
                    raise
                await trio.sleep(0.05)

    async def run(self, steps: Iterable[object]) -> None:
        """One thing after the other."""
        try:
            await self._again()
            for _ in steps:
                if self.all.has_failed:
                    break
                await self._step()
        except GONE as error:
            self.all.faults.append(f"{self.name} cannot connect: {error!r}")
        finally:
            with trio.CancelScope(shield=True):
                await self.close()

    async def _step(self) -> None:
        names = list(self.all.ledgers)
        name = self.chance.choices(names, [KINDS[name].share for name in names])[0]
        works = {
            self._publish: 5,
            self._find_some: 8,
            self._cut: 1.2,
            self._set_keys: 1.2,
            self._offset: 2,
            self.read: 0.7,
            self._select: 0.7,
        }
        work = self.chance.choices(list(works), list(works.values()))[0]
        if self.chance.random() < 0.012:
            work = self.delete
        self._doing = f"{work.__name__.strip('_')} {name}"
        try:
            with trio.fail_after(ANSWER_SECONDS):
                await work(name)
            self._count(work.__name__.strip("_"))
        except Missing:
            self._count(work.__name__.strip("_"), "missing")
            await self.create(name)
        except (Broken, Refusal, trio.TooSlowError, *GONE, httpx.TransportError) as error:
            is_gone = isinstance(error, (*GONE, httpx.TransportError))
            if not (is_gone and self.all.is_killed):
                self.all.faults.append(f"{self.name}: {self._doing}: {error!r}")
            await self._again()

    def _count(self, kind: str, outcome: str = "done") -> None:
        self.all.counts["seek", kind, outcome] += 1

    # -- streams

    async def create(self, name: str) -> None:
        """Create a stream, unless it is there."""
        with suppress(*(GONE if self.all.is_killed else ())):
            pairs = tuple(Pair(*item) for item in KINDS[name].arguments.items())
            answer = await self.peer.ask(c.Create, name, pairs)
            if answer.code not in (_OK, 5):
                raise Broken(f"{name} is not created: {answer.code}")

    async def delete(self, name: str) -> None:
        """Delete a stream; what was confirmed before is gone."""
        with self.all.ledgers[name].deleting():
            code = await self.peer.code(c.Delete, name)
        if code not in (_OK, *_MISSING):
            raise Broken(f"{name} is not deleted: {code}")

    async def first(self, name: str) -> int | None:
        """Where it begins; None where there is none."""
        answer = await self.peer.ask(c.StreamStats, name)
        if answer.code != _OK:
            return None
        stats = {item.name: item.value for item in answer.statistics}
        if stats["first_chunk_id"] >= 0:
            return stats["first_chunk_id"]
        return self.all.ledgers[name].cut_to  # it is empty, or was cut before its end

    async def _manage(self, operation: str, stream: str, /, **arguments: str) -> Any:
        pairs = tuple(Pair(*item) for item in ({"stream": stream} | arguments).items())
        answer = await self.peer.ask(c.Manage, operation, pairs)
        if answer.code in _MISSING:
            raise Missing
        return answer

    async def _set_keys(self, name: str) -> None:
        moment = self.all.ledgers[name].moment()
        keys = self.chance.choice(_KEYS)
        try:
            answer = await self._manage("stream.set", name, **{"stream-key-properties": keys})
        except Missing:
            self._check_gone(name, moment)
            raise
        if answer.code != _OK:
            raise Broken(f"keys of {name} are not set to {keys}: {answer.code} {answer.reason}")

    def _check_gone(self, name: str, moment: Moment) -> None:
        """It is said not to be there."""
        if self.all.ledgers[name].is_expected(moment):
            raise Broken(f"{name} is said to be missing, and nobody has deleted it")

    async def _cut(self, name: str) -> None:
        ledger = self.all.ledgers[name]
        moment = ledger.moment()
        first, end = moment.begins_at, ledger.next_offset
        offset = first + round(max(0, end - first) * self.chance.random() ** 2)
        ledger.note_cutting(offset)
        try:
            if self.chance.random() < 0.5:
                answer = await self._manage("stream.truncate", name, offset=str(offset))
                if answer.code != _OK:
                    raise Broken(f"{name} is not truncated: {answer.code} {answer.reason}")
                (row,) = answer.rows
                found = int(dict(row)["first_offset"])
            else:
                answer = await self._ask("POST", f"stream/%2F/{name}/truncate", {"offset": offset})
                found = answer["first_offset"]
        except Missing:
            self._check_gone(name, moment)
            raise
        if moment.epoch is not None:
            ledger.note_cut(moment.epoch, offset, found)

    # -- HTTP

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        answer = await self.http.request(
            method, f"/api/{path}", content=content, auth=("guest", "guest")
        )
        if answer.status_code == 404:
            raise Missing
        if answer.status_code not in (200, 201, 204):
            raise Refusal(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
        return answer.json() if answer.content else None

    # -- publishing

    def _message(self, name: str) -> Sent:
        self._next += 1
        number = self.chance.randrange(_NUM_KEYS)
        identity = f"{self.name}-{self._next}"
        region = self.chance.choice(_REGIONS)
        padding = "x" * self.chance.randrange(KINDS[name].padding)
        body = f"{name}|{identity}|o{number}|{region}|{padding}".encode()
        return self.all.ledgers[name].note_sent(identity, f"o{number}", region, body)

    async def _publish(self, name: str) -> None:
        ledger = self.all.ledgers[name]
        self.peer.unasked.clear()
        code = await self.peer.code(c.DeclarePublisher, 1, "", name)
        if code in _MISSING:
            raise Missing
        if code != _OK:
            raise Broken(f"nobody may publish to {name}: {code}")
        epoch = ledger.epoch
        count = self.chance.randint(1, KINDS[name].most)
        messages = [self._message(name) for _ in range(count)]
        for at in range(0, count, 20):
            some = messages[at : at + 20]
            values = [sent.region.encode() for sent in some]
            await self.peer.send(frame([_encoded(sent) for sent in some], at, 1, values))
        await self._until_settled(name, messages, epoch)
        await self.peer.ask(c.DeletePublisher, 1)
        self.peer.unasked.clear()

    async def _until_settled(self, name: str, messages: list[Sent], epoch: int | None) -> None:
        left = len(messages)
        while left > 0:
            match await self.peer.next():
                case c.PublishConfirm(publishing_ids=ids):
                    left -= len(ids)
                    self.all.ledgers[name].note_confirmed([messages[number] for number in ids])
                case c.PublishError(faults=faults):
                    left -= len(faults)
                    if epoch is not None and epoch == self.all.ledgers[name].epoch:
                        raise Broken(f"publishing to {name} is refused: {faults[0]}")
                case c.MetadataUpdate(stream=stream) if stream == name:
                    return

    # -- finding

    async def _find_some(self, name: str) -> None:
        ways = list(self.all.ways)
        way = self.chance.choices(ways, [_RARE if way == _COMMAND else 1 for way in ways])[0]
        words, wanted = self._wanted(name)
        newest = self.chance.random() < 0.3
        if newest:
            words = [*words, ("order", "newest")]
        limit = self.chance.choice((None, None, 1, 7))
        if words and words[0][0] == "key" and self.chance.random() < 0.2:
            keys = [f"o{number}" for number in self.chance.sample(range(_NUM_KEYS), 3)]
            words = [("key", key) for key in keys] + [("property", "order_id"), ("latest", "true")]
            await self._find_latest(name, way, words, keys, limit)
        else:
            await self.find(name, way, words, wanted, newest=newest, limit=limit)

    def _wanted(self, name: str) -> tuple[list[tuple[str, str]], Callable[[Sent], bool]]:
        """What to look for: in words, and as a test."""
        chance, key = self.chance, f"o{self.chance.randrange(_NUM_KEYS)}"
        other, region = f"o{chance.randrange(_NUM_KEYS)}", chance.choice(_REGIONS)
        ledger = self.all.ledgers[name]
        one = chance.choice(list(ledger.sent.values())).identity if ledger.sent else "none"
        kind = _kind_of(key)
        both = f"region = '{region}' AND kind = '{kind}'"
        number = key[1:]
        choices: list[tuple[list[tuple[str, str]], Callable[[Sent], bool]]] = [
            _by_key(key),
            _by_key(key),
            ([("key", one), ("property", "id")], lambda sent: sent.identity == one),
            (
                [("key", one), ("property", "properties.message_id")],
                lambda sent: sent.identity == one,
            ),
            ([("key", number), ("property", "count")], lambda sent: sent.key == key),
            ([("key", key), ("property", "KEYS")], lambda sent: sent.key == key),
            (
                [("key", key), ("key", other), ("property", "order_id")],
                lambda sent: sent.key in (key, other),
            ),
            (
                [("key", key), ("property", "order_id"), ("sql", f"region = '{region}'")],
                lambda sent: sent.key == key and sent.region == region,
            ),
            (
                [("sql", both)],
                lambda sent: sent.region == region and _kind_of(sent.key) == kind,
            ),
        ]
        if "stream-filter-property" in KINDS[name].arguments:
            choices += [([("filter", region)], lambda sent: sent.region == region)] * 2
        if name != "k-large":
            choices.append(_everything())
        return chance.choice(choices)

    async def find(
        self,
        name: str,
        way: str,
        words: Words,
        wanted: Callable[[Sent], bool],
        *,
        newest: bool = False,
        limit: int | None = None,
    ) -> None:
        """Find, and compare."""
        what = f"{way}: find {name} {words}, {limit or 'all'} at once"
        async with self._search(name, way, words, limit, what) as (moment, found):
            if found is not None:
                first = await self.first(name)
                self.all.ledgers[name].judge(what, moment, found, first, wanted, newest=newest)

    async def _find_latest(
        self, name: str, way: str, words: Words, keys: list[str], limit: int | None
    ) -> None:
        what = f"{way}: latest of {keys} in {name}, {limit or 'all'} at once"
        async with self._search(name, way, words, limit, what) as (moment, found):
            if found is not None:
                first = await self.first(name)
                self.all.ledgers[name].judge_latest(what, moment, found, first, keys)

    @asynccontextmanager
    async def _search(
        self, name: str, way: str, words: Words, limit: int | None, what: str
    ) -> AsyncIterator[tuple[Moment, list[Found] | None]]:
        """The moment of a search, and what it has found; None where it was refused for a reason."""
        ledger = self.all.ledgers[name]
        moment = ledger.moment()
        found = None
        try:
            found = await self.all.ways[way](self, name, words, limit)
            self.all.num_found += len(found)
            self._count(f"find-{way}")
        except Missing:
            self._check_gone(name, moment)
            raise
        except Busy:
            self._count(f"find-{way}", "busy")
        except Refusal as refusal:
            if moment.epoch is not None and moment.epoch == ledger.epoch:
                raise Broken(f"{what}: refused: {refusal}") from refusal
            self._count(f"find-{way}", "refused")
        yield moment, found

    # -- reading

    async def read(self, name: str) -> None:
        """Consume from the beginning to what was the end, and compare."""
        ledger = self.all.ledgers[name]
        moment, what = ledger.moment(), f"reading {name}"
        answer = await self.peer.ask(c.StreamStats, name)
        if answer.code != _OK:
            self._check_gone(name, moment)
            raise Missing
        end = {item.name: item.value for item in answer.statistics}["committed_offset"]
        self.peer.unasked.clear()
        code = await self.peer.code(c.Subscribe, 1, name, FIRST, 10, ())
        if code != _OK:
            self._check_gone(name, moment)
            raise Missing
        found: list[Found] = []
        is_gone = False
        with trio.fail_after(_READ_SECONDS):
            while not is_gone and (not found or found[-1].offset < end) and end >= 0:
                command = await self.peer.next()
                if isinstance(command, c.MetadataUpdate):
                    is_gone = True
                elif isinstance(command, c.Delivered):
                    self.peer.unasked.insert(0, command)
                    chunk = await self.peer.chunk()
                    bodies = [MessageView(raw).body for raw in chunk.bodies]
                    found += map(Found, range(chunk.header.chunk_id, 1 << 62), bodies)
                    await self.peer.send(c.Credit(1, 1))
        if is_gone:
            self._check_gone(name, moment)
            return
        await self.peer.ask(c.Unsubscribe, 1)
        self.peer.unasked.clear()
        ledger.judge(what, moment, found, await self.first(name), lambda _sent: True)

    async def _select(self, name: str) -> None:
        """Consume with a selector over both filter properties, and compare."""
        if self.all.select is None:
            return
        ledger = self.all.ledgers[name]
        regions = self.chance.sample(_REGIONS, 2)
        kind = self.chance.choice(("late", "early"))
        sql = f"region IN ('{regions[0]}', '{regions[1]}') AND kind = '{kind}'"
        moment, what = ledger.moment(), f"consuming {name} with {sql}"
        try:
            found = await self.all.select(name, sql)
        except Missing:
            self._check_gone(name, moment)
            raise
        first = await self.first(name)
        ledger.judge(
            what,
            moment,
            found,
            first,
            lambda sent: sent.region in regions and _kind_of(sent.key) == kind,
        )

    # -- stored offsets

    async def _offset(self, name: str) -> None:
        ledger = self.all.ledgers[name]
        moment = ledger.moment()
        try:
            await self.chance.choice((self._store, self._store, self._forget, self._list))(name)
        except Missing:
            self._check_gone(name, moment)
            raise

    def _known(self, name: str) -> set[int | None]:
        epoch, values = self._stored.get(name, (None, set()))
        return set(values) if epoch == self.all.ledgers[name].epoch else {None, -1}

    def _note(self, name: str, epoch: int | None, values: set[int | None]) -> None:
        """What may be stored from now on; -1 is whatever it was."""
        self._stored[name] = epoch, values

    async def _store(self, name: str) -> None:
        ledger = self.all.ledgers[name]
        epoch, offset = ledger.epoch, self.chance.randrange(ledger.next_offset + 20)
        self._note(name, epoch, {*self._known(name), offset})
        if self.chance.random() < 0.5:
            answer = await self._manage("offset.set", name, name=self.name, offset=str(offset))
            if answer.code != _OK:
                raise Broken(f"an offset is not stored in {name}: {answer.code} {answer.reason}")
        else:
            path = f"stream/%2F/{name}/tracking/{self.name}"
            await self._ask("PUT", path, {"offset": offset})
        self._note(name, epoch, {offset})

    async def _forget(self, name: str) -> None:
        epoch, known = self.all.ledgers[name].epoch, self._known(name)
        self._note(name, epoch, {*known, None})
        answer = await self._manage("offset.delete", name, name=self.name)
        if answer.code not in (_OK, ResponseCode.PRECONDITION_FAILED):
            raise Broken(f"an offset of {name} is not deleted: {answer.code} {answer.reason}")
        self._note(name, epoch, {None})

    async def _list(self, name: str) -> None:
        ledger = self.all.ledgers[name]
        epoch, known = ledger.epoch, self._known(name)
        if self.chance.random() < 0.5:
            answer = await self._manage("offset.list", name)
            if answer.code != _OK:
                raise Broken(f"offsets of {name} are not listed: {answer.code} {answer.reason}")
            rows = map(dict, answer.rows)
            offsets = {row["name"]: int(row["offset"]) for row in rows}
        else:
            answer = await self._ask("GET", f"stream/%2F/{name}/tracking")
            offsets = answer["offsets"]
        found, first = offsets.get(self.name), await self.first(name)
        if epoch is None or epoch != ledger.epoch or -1 in known or first is None:
            return
        is_forgotten = found is None and any(n is not None and n < first for n in known)
        if found not in known and not is_forgotten:
            raise Broken(f"{self.name} has stored {found} in {name}, expected one of {known}")


def _kind_of(key: str) -> str:
    return "late" if int(key[1:]) % 3 == 0 else "early"


def _encoded(sent: Sent) -> bytes:
    properties = {
        "order_id": sent.key,
        "id": sent.identity,
        "count": int(sent.key[1:]),
        "region": sent.region,
        "kind": _kind_of(sent.key),
        "KEYS": f"{sent.identity} {sent.key}",
    }
    return Message(sent.body, Properties(message_id=sent.identity), properties).encode()


# -- ways to find


async def find_by_stream(seeker: Seeker, name: str, words: Words, limit: int | None) -> list[Found]:
    """The stream protocol, page by page."""
    found: list[Found] = []
    after: list[tuple[str, str]] = []
    while True:
        asked = tuple(Pair(*item) for item in [*words, ("limit", str(limit or 10_000)), *after])
        answer = await seeker.peer.ask(c.Find, name, asked)
        if answer.code in _MISSING:
            raise Missing
        if answer.code != _OK:
            raise Refusal(f"{answer.code} {answer.reason}")
        looked_at = {item.name: item.value for item in answer.looked_at}
        seeker.all.num_indexed += looked_at["segments_indexed"]
        found += [Found(m.offset, MessageView(m.raw).body) for m in answer.messages]
        if not answer.cut:
            return found
        after = [("after", answer.after)]


async def find_by_http(seeker: Seeker, name: str, words: Words, limit: int | None) -> list[Found]:
    """The HTTP API, page by page."""
    found: list[Found] = []
    after: list[tuple[str, str]] = []
    while True:
        asked = [*words, ("limit", str(limit or 10_000)), *after]
        path = f"/api/stream/%2F/{name}/messages"
        async with seeker.all.http_turn:
            answer = await seeker.http.get(
                path, params=httpx.QueryParams(asked), auth=("guest", "guest")
            )
        if answer.status_code == 404:
            raise Missing
        if answer.status_code == 429:
            raise Busy  # one that was given up ends a little later
        if answer.status_code != 200:
            raise Refusal(f"{answer.status_code} {answer.text}")
        page = answer.json()
        found += [Found(row["offset"], row["body"].encode()) for row in page["messages"]]
        if page["complete"]:
            return found
        after = [("after", page["next"])]


WAYS: dict[str, Way] = {"stream": find_by_stream, "http": find_by_http}

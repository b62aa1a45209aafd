"""The catalog and the log, cut apart anywhere: what a group's consumer gets is never too little.

A server registers selectors, changes and removes them, and deletes its stream, while it publishes.
The store is kept as it is after each write. Then a copy of the catalog of one moment meets the
segments of another: in a restore, and in a server that reads. Whatever a consumer is spared, a
plain reader of the same log tells what it should have got.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from segments.store.manifest import decode_manifest, encode_manifest
from streamd.broker.declared.standing_selectors import parse_standing
from streamd.broker.stream_follower import LIST_SECONDS, POLL_SECONDS
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import OffsetSpecification, Pair
from tests.broker.tier.support import SEGMENT_BYTES, is_of_log, opening, states_of, tiered
from tests.support.fake_store import FakeStore, Kept
from tests.support.marked import ONE, TWO, Read, matching, message, messages, of_group, plain
from tests.support.server import OK, Harness, Peer, harness

Objects = dict[str, Kept]
_AT_OFFSET = 4  # a kind of OffsetSpecification
_SOON = LIST_SECONDS + 2 * POLL_SECONDS


class Writer:
    """Publishes chunks of two messages, of which now and then one matches."""

    def __init__(self, server: Harness, peer: Peer, publisher: int = 1) -> None:
        self._server, self._peer, self._publisher = server, peer, publisher
        self._next = 0

    async def publish(self, chunks: int, *, is_filtered: bool = False) -> None:
        for number in range(self._next, self._next + chunks):
            first = 2 * number
            bodies = [message(d, is_filtered=is_filtered) for d in (0, number % 4)]
            await self._peer.store(bodies, first + 1, self._publisher)
        self._next += chunks
        await trio.sleep(3)

    async def put(self, text: str) -> None:
        await self._server.host.settings.put_selector("s", parse_standing("g", "union", text))

    async def remove(self) -> None:
        await self._server.host.settings.remove_selector("s", "g")


async def create(peer: Peer, publisher: int = 1, **arguments: str) -> None:
    await peer.begin("s", publisher, **{"stream_max_segment_size_bytes": SEGMENT_BYTES} | arguments)


Scenario = Callable[[Harness, Peer], Awaitable[None]]


async def remove_and_add(server: Harness, peer: Peer, **arguments: str) -> None:
    """A selector goes, and comes back; then it is another one for a while."""
    await create(peer, **arguments)
    writer = Writer(server, peer)
    await writer.put(ONE)
    await writer.publish(20)
    await writer.remove()
    await writer.publish(20)
    await writer.put(ONE)
    await writer.publish(20)
    await writer.put(TWO)
    await writer.publish(20)
    await writer.put(ONE)
    await writer.publish(20)


async def remove_and_add_confirmed(server: Harness, peer: Peer) -> None:
    """The same with a stream that the tier confirms: a reader gets chunks before segments."""
    arguments = {"stream_confirm": "store", "stream_max_segment_size_bytes": "100000"}
    await remove_and_add(server, peer, **arguments)


async def delete_and_create(server: Harness, peer: Peer) -> None:
    """A stream goes, and comes back with a filter property: that is what its messages say, too."""
    for publisher, arguments in enumerate(({}, {"stream_filter_property": "d"}, {}), 1):
        await create(peer, publisher, **arguments)
        await Writer(server, peer, publisher).publish(30, is_filtered=bool(arguments))
        assert await peer.code(c.Delete, "s") == OK
        await peer.expect(c.MetadataUpdate)
        await trio.sleep(3)


async def recorded(folder: Path, scenario: Scenario = remove_and_add) -> list[Objects]:
    """The store after each write of a server that does all of that."""
    store = FakeStore()
    states = states_of(store)
    async with tiered(folder, store) as server:
        peer = await server.peer()
        await scenario(server, peer)
    return states


def skewed(data: Objects, catalog: Objects) -> Objects:
    """Segments and manifests of one moment, with the catalog of another."""
    return {k: v for k, v in data.items() if not is_of_log(k)} | {
        k: v for k, v in catalog.items() if is_of_log(k)
    }


def unmarked(objects: Objects) -> Objects:
    """Of manifests that do not say which chunks are marked."""

    def without_marks(kept: Kept) -> Kept:
        manifest = replace(decode_manifest(kept.content), marked={})
        return Kept(encode_manifest(manifest), kept.etag, kept.modified_ms)

    return {k: without_marks(v) if k.endswith("/manifest") else v for k, v in objects.items()}


def moments(states: list[Objects]) -> Iterator[tuple[int, int]]:
    """Some of the states, with the catalog as it was then, before, and long before."""
    for n in range(len(states) - 1, -1, -9):
        for before in {n, max(0, n - 8), n // 2, 0}:
            yield n, before


@pytest.mark.parametrize("change", [dict, unmarked])
@pytest.mark.parametrize("how", ["restore", "read_only"])
async def test_a_server_that_begins(
    tmp_path: Path, change: Callable[[Objects], Objects], how: str
) -> None:
    """On a new machine, or one that reads, with a copy of the catalog that may be older."""
    states = [change(state) for state in await recorded(tmp_path / "old")]
    assert len(states) > 40
    num_checked = 0
    for n, before in moments(states):
        store = FakeStore(skewed(states[n], states[before]))
        folder = tmp_path / f"{n}-{before}"
        async with tiered(folder, store, **{how: True}) as server:
            stream = server.host.get_stream("s")
            rows = stream.standing.rows() if stream is not None else []
            if rows:
                got, text = await of_group(server), rows[0].text
                wanted = matching(await plain(server), text)
                assert matching(got, text) == wanted, (n, before)
                num_checked += len(wanted)
    assert num_checked > 100


class Consumer:
    """A client of the group: it begins again where it was whenever its subscription has ended."""

    def __init__(self, peer: Peer) -> None:
        self.found: list[Read] = []
        self.num_ended = 0
        self._peer = peer
        self._next = 0

    async def run(self) -> None:
        asked = (Pair("selector-group", "g"), Pair("selector", ONE))
        while True:
            start = OffsetSpecification(_AT_OFFSET, self._next)
            if await self._peer.code(c.Subscribe, 1, "s", start, 1_000, asked) == OK:
                await self._read()
                self.num_ended += 1
            await trio.sleep(1)

    async def _read(self) -> None:
        while not isinstance(command := await self._peer.next(), c.MetadataUpdate):
            self._peer.unasked.insert(0, command)
            chunk = await self._peer.chunk()
            self.found += [one for one in messages(chunk) if one.offset >= self._next]
            self._next = chunk.header.chunk_id + chunk.header.num_records


@pytest.mark.parametrize(
    ("scenario", "change"),
    [(remove_and_add, dict), (remove_and_add, unmarked), (remove_and_add_confirmed, dict)],
)
@pytest.mark.parametrize("lag", [-30, -1, 0, 8])
async def test_a_server_that_reads(
    tmp_path: Path, lag: int, scenario: Scenario, change: Callable[[Objects], Objects]
) -> None:
    """Its copy of the catalog is older than the segments, or newer."""
    states = [change(state) for state in await recorded(tmp_path / "old", scenario)]
    store = FakeStore(states[0])
    with opening(store):
        async with harness(tmp_path / "new", read_only=True, tier="s3://bucket/tier") as server:
            consumer = Consumer(await server.peer())
            server.start(consumer.run)
            for n in range(0, len(states), 2):
                at = min(max(n + lag, 0), len(states) - 1)
                store.objects = skewed(states[n], states[at])
                await trio.sleep(_SOON)
            store.objects = states[-1]
            await trio.sleep(2 * _SOON)
            everything = await plain(server)
            assert matching(consumer.found, ONE) == matching(everything, ONE)
            assert change is unmarked or len(consumer.found) < len(everything)


async def check_arguments(server: Harness) -> int:
    """What a stream is said to be is what its messages say; returns how many there are."""
    if not server.host.has_stream("s"):
        return 0
    found = await plain(server)
    is_filtered = "stream-filter-property" in server.host.arguments("s")
    assert {one.is_filtered for one in found} <= {is_filtered}
    return len(found)


async def test_a_restore_of_a_stream_that_was_created_again(tmp_path: Path) -> None:
    """An older copy of the catalog knows the stream of that name that was there before."""
    states = await recorded(tmp_path / "old", delete_and_create)
    num_checked = 0
    for n, before in moments(states):
        store = FakeStore(skewed(states[n], states[before]))
        async with tiered(tmp_path / f"{n}-{before}", store, restore=True) as server:
            num_checked += await check_arguments(server)
    assert num_checked > 100


@pytest.mark.parametrize("lag", [-8, 0, 8])
async def test_a_stream_that_was_created_again_is_read(tmp_path: Path, lag: int) -> None:
    states = await recorded(tmp_path / "old", delete_and_create)
    store, num_checked = FakeStore(states[0]), 0
    with opening(store):
        async with harness(tmp_path / "new", read_only=True, tier="s3://bucket/tier") as server:
            for n in range(0, len(states), 2):
                at = min(max(n + lag, 0), len(states) - 1)
                store.objects = skewed(states[n], states[at])
                await trio.sleep(_SOON)
                num_checked += await check_arguments(server)
    assert num_checked > 100

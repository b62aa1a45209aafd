"""Three nodes at virtual time, harmed at random: between requests to the store, and two at once.

    python -m tests.broker.nodes.random_harms --seeds 200

What three real processes meet in an hour (tests/crash/node_kills.py), with checks of the same
history, in a second each. A node that is paused has asked the store for something that is done, and
does not hear of it before it goes on.
"""

import argparse
import logging
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import trio
from trio.testing import MockClock

from segments.store.object_store import TierError
from streamd.wire.stream import commands as c
from tests.broker.nodes.support import STORED, Nodes, RunningNode, cluster, until
from tests.crash import history
from tests.crash.history import Found, History
from tests.support.server import FIRST, OK, Peer

_NAMES = "abc"
_PATIENCE = 600.0  # virtual seconds, until one leads and the others stand by
_READ_SECONDS = 30.0
_OPTIONS: dict[str, Any] = {"confirm": "store", "tier_roll_seconds": 3, "confirm_interval_ms": 200}


class Harmed:
    """A cluster, its clients, and what they were told."""

    def __init__(self, nodes: Nodes, seed: int, *, is_placed: bool) -> None:
        self.told = History()
        self._is_placed, self._seed = is_placed, seed
        self._nodes, self._chance = nodes, Random(seed)
        self._running: dict[str, RunningNode] = {}

    async def run(self, rounds: int) -> None:
        """Harm it so many times; raises AssertionError when all is not as it should be."""
        for name in _NAMES:
            self._start(name)
        await until(self._is_whole)
        peer = await self._leader().peer()
        where = {}
        if self._is_placed:
            await trio.sleep(20)  # until each leads its shard
            where = {"queue_leader_locator": "balanced"}
            for number in range(self._seed % len(_NAMES)):
                await peer.create(f"before-{number}", **STORED, **where)
        await peer.create("s", stream_max_segment_size_bytes="2000", **STORED, **where)
        async with trio.open_nursery() as nursery:
            for name in _NAMES:
                nursery.start_soon(self._again, name, self._publish)
                nursery.start_soon(self._again, name, self._follow)
            for _ in range(rounds):
                await trio.sleep(self._chance.uniform(1, 10))
                await self._round()
            nursery.cancel_scope.cancel()

    async def _round(self) -> None:
        harms = [self._pause, self._kill, self._stop, self._cut, self._lose_answers, self._wipe]
        async with trio.open_nursery() as nursery:
            for harm in self._chance.choices(harms, k=self._chance.choice((1, 2))):
                leader = [node.name for node in self._running.values() if node.is_leader]
                name = self._chance.choice([*leader, *leader, *_NAMES])
                nursery.start_soon(harm, name)
        with trio.move_on_after(_PATIENCE) as waiting:
            while not self._is_whole():
                await trio.sleep(0.5)
        assert not waiting.cancelled_caught, {
            name: (node.role, node.error) for name, node in self._running.items()
        }
        await self._check()

    def _start(self, name: str) -> None:
        self._running[name] = self._nodes.start(name, **_OPTIONS)

    def _is_whole(self) -> bool:
        roles = sorted(node.role for node in self._running.values())
        return roles == ["leader", "standby", "standby"]

    def _leader(self) -> RunningNode:
        return next(node for node in self._running.values() if node.is_leader)

    # -- harm

    async def _pause(self, name: str) -> None:
        """At one of its next requests; the answer comes when it goes on."""
        node, left = self._running[name], self._chance.randrange(12)
        hook = "before" if self._chance.random() < 0.5 else "after"

        def count(_name: str, _key: str) -> None:
            nonlocal left
            left -= 1
            if not left:
                node.pause()

        setattr(node.view, hook, count)
        await trio.sleep(60 ** self._chance.random())
        setattr(node.view, hook, lambda _name, _key: None)
        node.go_on()

    async def _kill(self, name: str) -> None:
        await self._down(name, RunningNode.kill)

    async def _stop(self, name: str) -> None:
        await self._down(name, RunningNode.end)

    async def _down(self, name: str, end: Callable[[RunningNode], Awaitable[None]]) -> None:
        node = self._running[name]
        node.go_on()
        await end(node)
        await trio.sleep(60 ** self._chance.random())
        if self._running[name] is node:
            self._start(name)

    async def _wipe(self, name: str) -> None:
        node = self._running[name]
        node.go_on()
        await node.kill()
        if self._running[name] is node:
            shutil.rmtree(node.folder)
            self._start(name)

    async def _cut(self, name: str) -> None:
        view = self._running[name].view
        view.is_away = True
        await trio.sleep(60 ** self._chance.random())
        view.is_away = False

    async def _lose_answers(self, name: str) -> None:
        """Requests arrive, and answers do not."""
        view = self._running[name].view

        def lose(_name: str, _key: str) -> None:
            raise TierError("the answer is lost")

        view.after = lose
        await trio.sleep(60 ** self._chance.random())
        view.after = lambda _name, _key: None

    # -- clients

    async def _again(self, name: str, work: Callable[[str, Peer], Awaitable[None]]) -> None:
        """Do it at a node whenever that serves."""
        while True:
            node = self._running[name]
            if node.server is not None:
                try:
                    await work(name, await node.peer())
                except (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError):
                    pass
                except _Refused:
                    pass
            await trio.sleep(0.5)

    async def _publish(self, name: str, peer: Peer) -> None:
        number = (await peer.ask(c.QueryPublisherSequence, name, "s")).sequence
        await _done(peer, c.DeclarePublisher, 1, name, "s")
        while True:
            count = self._chance.choice((1, 5))
            numbers = range(number + 1, number + 1 + count)
            await peer.publish([b"%d %s" % (one, name.encode()) for one in numbers], numbers[0])
            confirmed = 0
            while confirmed < count:
                command = await peer.next()
                if not isinstance(command, c.PublishConfirm):
                    raise _Refused
                confirmed += len(command.publishing_ids)
            number = numbers[-1]
            self.told.confirm(name, number)
            await trio.sleep(self._chance.uniform(0, 1))

    async def _follow(self, _name: str, peer: Peer) -> None:
        await _done(peer, c.Subscribe, 1, "s", FIRST, 10, ())
        while True:
            for one in await _messages(peer):
                self.told.take(one)

    async def _check(self) -> None:
        confirmed, seen = dict(self.told.confirmed), self.told.there()
        messages: list[Found] = []
        with trio.move_on_after(_READ_SECONDS + _READ_SECONDS * self._is_placed):
            while seen.keys() - {one.offset for one in messages} or _lacks(messages, confirmed):
                peer, messages = await self._reader(), []  # another one may lead the stream since
                with suppress(_Refused, trio.EndOfChannel, trio.BrokenResourceError):
                    while seen.keys() - {m.offset for m in messages} or _lacks(messages, confirmed):
                        messages += await _messages(peer)
                await peer.vanish()
        for one in messages:
            self.told.take(one)
        history.confirmed_once(messages, confirmed)
        history.nothing_read_is_gone(messages, seen)
        history.gaps_are_whole(messages)

    async def _reader(self) -> Peer:
        """At any node, as soon as that has the stream."""
        with trio.fail_after(_PATIENCE):
            while True:
                node = self._running[self._chance.choice(_NAMES)]
                with suppress(trio.EndOfChannel, trio.BrokenResourceError):
                    peer = await (node if self._is_placed else self._leader()).peer()
                    if await peer.code(c.Subscribe, 1, "s", FIRST, 10, ()) == OK:
                        return peer
                    await peer.vanish()
                await trio.sleep(0.5)


class _Refused(Exception):
    """A server does not do what it was asked for."""


async def _done(peer: Peer, kind: type, *fields: object) -> None:
    if await peer.code(kind, *fields) != OK:
        raise _Refused


def _lacks(messages: list[Found], confirmed: dict[str, int]) -> bool:
    there = {one.publisher: one.number for one in messages}
    return any(there.get(name, 0) < number for name, number in confirmed.items())


async def _messages(peer: Peer) -> list[Found]:
    """Those of the next chunk; another one is asked for."""
    while True:
        command = await peer.next()
        if isinstance(command, c.Delivered | c.DeliverStored):
            break
        if isinstance(command, c.MetadataUpdate):
            raise _Refused
    peer.unasked.insert(0, command)
    chunk = await peer.chunk()
    await peer.send(c.Credit(1, 1))
    first = chunk.header.chunk_id
    return [history.found(first + at, bytes(body)) for at, body in enumerate(chunk.bodies)]


async def harmed(folder: Path, seed: int, rounds: int, *, is_placed: bool = False) -> int:
    """Harm a cluster, of which one node leads a stream that was placed; how much was read."""
    async with cluster(folder) as nodes:
        one = Harmed(nodes, seed, is_placed=is_placed)
        await one.run(rounds)
        return len(one.told.seen)


def main() -> None:
    parser = argparse.ArgumentParser(description="Random harm to three nodes at virtual time.")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--placed", action="store_true", help="the stream is placed at a node")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)  # of what is harmed
    for seed in range(given.first, given.first + given.seeds):
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            clock = MockClock(autojump_threshold=0)
            work = partial(harmed, is_placed=given.placed)
            found = trio.run(work, Path(folder), seed, given.rounds, clock=clock)
            print(f"seed {seed}: {found} messages, {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()

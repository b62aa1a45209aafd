"""kill -9, again and again, under load from rstream and pika; what was confirmed is compared.

    python -m tests.crash.kills --kills 200

In turn with each flush mode. rstream publishes numbers under a name, beginning a little before the
last one that was confirmed: each must be there once, in order. pika publishes each number once:
those that were acknowledged must be there, in order. Both streams roll over all the time.
"""

import argparse
import asyncio
import contextlib
import logging
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

import pika
import pika.exceptions
import trio
from rstream import AMQPMessage, ConfirmationStatus, Producer

from clients import Client, Consumer, NoOffset, connect
from streamd.broker.streams.flusher import FlushMode
from tests.support.process import ServerProcess

_RSTREAM, _PIKA = "rstream", "pika"
_BATCH = 50
_OVERLAP = 120  # numbers published again under the same name
_SEGMENT_BYTES = 40_000
_END_SECONDS = 10  # for a client to notice that its server is gone


class Load:
    """Something that publishes numbers until its server is gone.

    Attributes:
        next_number: the first that was never published.
        confirmed: the numbers that the server has confirmed and nobody has looked for yet.
        most: the highest number that was ever confirmed, -1 before the first.
    """

    def __init__(self, publish: Callable[["Load", ServerProcess], None]) -> None:
        self.next_number = 0
        self.most = -1
        self.confirmed: set[int] = set()
        self.is_over = False
        self._publish = publish
        self._thread: threading.Thread | None = None

    def start(self, server: ServerProcess) -> None:
        self.is_over = False
        self._thread = threading.Thread(target=self._publish, args=(self, server), daemon=True)
        self._thread.start()

    def end(self) -> None:
        assert self._thread is not None
        self.is_over = True
        self._thread.join(_END_SECONDS)
        assert not self._thread.is_alive(), f"{self._publish} does not end without its server"

    def confirm(self, number: int) -> None:
        self.confirmed.add(number)
        self.most = max(self.most, number)


def _publish_with_rstream(load: Load, server: ServerProcess) -> None:
    async def publish() -> None:
        producer = Producer("localhost", server.port, username="guest", password="guest")
        await producer.start()

        def on_confirm(status: ConfirmationStatus) -> None:
            if status.is_confirmed:
                load.confirm(status.message_id - 1)

        number = max(0, load.most + 1 - _OVERLAP)
        while not load.is_over:
            batch = []
            for n in range(number, number + _BATCH):
                message = AMQPMessage(body=b"%d" % n)
                message.publishing_id = n + 1
                batch.append(message)
            number += _BATCH
            load.next_number = max(load.next_number, number)
            await producer.send_batch(
                _RSTREAM, batch, publisher_name="app", on_publish_confirm=on_confirm
            )
            await asyncio.sleep(0.001)

    async def until_over() -> None:
        task = asyncio.create_task(publish())
        while not (task.done() or load.is_over):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task], timeout=0.2)  # it may not hear of that

    # Not asyncio.run, which waits until all tasks have ended: those of a client whose server is
    # gone may never do.
    loop = asyncio.new_event_loop()
    try:
        with contextlib.suppress(Exception):
            loop.run_until_complete(until_over())
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.05))
    finally:
        loop.close()


def _publish_with_pika(load: Load, server: ServerProcess) -> None:
    with contextlib.suppress(pika.exceptions.AMQPError, OSError):
        connection = pika.BlockingConnection(pika.URLParameters(server.amqp_uri))
        channel = connection.channel()
        channel.confirm_delivery()
        while not load.is_over:
            number = load.next_number
            load.next_number = number + 1
            channel.basic_publish("", _PIKA, b"%d" % number)
            load.confirm(number)


class Victim:
    """One server with its load, killed and looked at.

    Attributes:
        num_messages: that were found and compared.
        longest_start: seconds that a start took at most.
    """

    def __init__(self, folder: Path, mode: FlushMode, random: Random) -> None:
        self.num_messages = 0
        self.longest_start = 0.0
        options = ("--flush", mode.value, "--flush-ms", "50")
        self._server = ServerProcess(folder / mode.value, *options)
        self._random = random
        self._loads = {_RSTREAM: Load(_publish_with_rstream), _PIKA: Load(_publish_with_pika)}
        self._checked = dict.fromkeys(self._loads, 0)
        self._last = dict.fromkeys(self._loads, -1)
        self._stored: int | None = None
        self._start()
        trio.run(self._create)

    def _start(self) -> None:
        began = time.monotonic()
        self._server.start()
        self.longest_start = max(self.longest_start, time.monotonic() - began)

    async def _create(self) -> None:
        async with connect(self._server.uri) as client:
            for name in self._loads:
                await client.create(name, segment_size=_SEGMENT_BYTES)

    def kill_once(self) -> None:
        """Publish for a moment, kill, start again, and look for what was confirmed."""
        for load in self._loads.values():
            load.start(self._server)
        time.sleep(self._random.uniform(0.05, 0.6))
        self._server.kill()
        for load in self._loads.values():
            load.end()
        self._start()
        trio.run(self._check)

    async def _check(self) -> None:
        async with connect(self._server.uri) as client:
            for name, load in self._loads.items():
                async with client.consumer(
                    name, offset=self._checked[name], name="app", until_end=True
                ) as consumer:
                    async for message in consumer:
                        assert message.offset == self._checked[name], "offsets have a gap"
                        number = int(message.body)
                        self._compare(name, load, message.offset, number)
                        self._checked[name] += 1
                        self.num_messages += 1
                    if name == _RSTREAM:
                        await self._check_offset(client, consumer)
                lost = {n for n in load.confirmed if name == _PIKA or n > self._last[name]}
                assert not lost, f"{name}: confirmed and lost: {sorted(lost)[:10]}"
                load.confirmed.clear()

    async def _check_offset(self, client: Client, consumer: Consumer) -> None:
        """What was stored before the kill is there, and more is stored for the next one."""
        with contextlib.suppress(NoOffset):
            assert await client.query_offset(_RSTREAM, "app") == self._stored
        if self._checked[_RSTREAM]:
            self._stored = self._checked[_RSTREAM] - 1
            await consumer.store_offset(self._stored)
            assert await client.query_offset(_RSTREAM, "app") == self._stored

    def _compare(self, name: str, load: Load, offset: int, number: int) -> None:
        if name == _RSTREAM:
            assert number == offset, f"{name}: {number} stands at offset {offset}"
        assert self._last[name] < number < load.next_number, f"{name}: {number} has no place here"
        self._last[name] = number
        load.confirmed.discard(number)

    def end(self) -> None:
        self._server.end()


def kill_many(
    folder: Path,
    kills: int,
    seed: int = 1,
    modes: Iterable[FlushMode] = FlushMode,
    tell: Callable[[int], None] = lambda _number: None,
) -> str:
    """Kill so many times; fails when something confirmed is not there. Returns a summary."""
    random, began = Random(seed), time.monotonic()
    victims = [Victim(folder, mode, random) for mode in modes]
    try:
        for number in range(kills):
            victims[number % len(victims)].kill_once()
            tell(number + 1)
    finally:
        for victim in victims:
            victim.end()
    seconds = time.monotonic() - began
    messages = sum(victim.num_messages for victim in victims)
    longest = max(victim.longest_start for victim in victims)
    return (
        f"{kills} kills survived in {seconds:.0f} s, {messages:,} messages compared, none that was "
        f"confirmed was lost, none was there twice; the longest start took {longest:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="kill -9 under load, in all three flush modes.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)  # errors of clients whose server is gone

    def tell(number: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{number} of {given.kills}", end="", file=sys.stderr)

    with tempfile.TemporaryDirectory() as folder:
        print(kill_many(Path(folder), given.kills, given.seed, tell=tell))


if __name__ == "__main__":
    main()

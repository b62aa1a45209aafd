"""What seekers need of a real server: the client library, the commands, and processes to kill."""

import json
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from random import Random

import trio

from clients import (
    ConnectionLost,
    ServerRefused,
    StreamDoesNotExist,
    StreamNotAvailable,
    connect,
)
from tests.churn.ledger import Found
from tests.churn.seekers import WAYS, Missing, Refusal, Seeker, Select, Way, Words
from tests.support.process import ServerProcess

_COMMANDS = trio.CapacityLimiter(1)  # each is a process, which takes half a second to start


def ways_to(server: ServerProcess) -> dict[str, Way]:
    """All ways to find in a server."""

    async def by_client(seeker: Seeker, name: str, words: Words, limit: int | None) -> list[Found]:
        return await _find_by_client(server.uri, seeker, name, words, limit)

    async def by_command(
        seeker: Seeker, name: str, words: Words, _limit: int | None
    ) -> list[Found]:
        return await _find_by_command(server.uri, seeker, name, words)

    return {**WAYS, "client": by_client, "command": by_command}


async def _find_by_client(
    uri: str, seeker: Seeker, name: str, words: Words, limit: int | None
) -> list[Found]:
    given = dict(words)
    many = {word: [value for asked, value in words if asked == word] for word in given}
    found: list[Found] = []
    after, is_all = "", False
    try:
        async with connect(uri, retry_seconds=20) as client:
            while not is_all:
                messages = client.find(
                    name,
                    key=many.get("key", ()),
                    properties=many.get("property", ()),
                    filter_values=many.get("filter", ()),
                    sql=given.get("sql"),
                    newest=given.get("order") == "newest",
                    latest="latest" in given,
                    limit=limit,
                    after=after,
                )
                found += [Found(one.offset, one.body) async for one in messages]
                seeker.all.num_indexed += messages.looked_at["segments_indexed"]
                after, is_all = messages.after, messages.is_all
    except StreamDoesNotExist:
        raise Missing from None
    except ConnectionLost as lost:
        raise trio.BrokenResourceError(str(lost)) from lost
    except ServerRefused as refused:
        raise Refusal(str(refused)) from refused
    return found


async def _find_by_command(uri: str, seeker: Seeker, name: str, words: Words) -> list[Found]:
    options = [part for word, value in words for part in _option(word, value)]
    command = [sys.executable, "-m", "streamd", "find", name, *options]
    command += ["--limit", "1000000", "--uri", uri]
    async with _COMMANDS:
        done = await trio.run_process(
            command, capture_stdout=True, capture_stderr=True, check=False
        )
    if done.returncode:
        if b"does not exist" in done.stderr or b"is not available" in done.stderr:
            raise Missing
        if seeker.all.is_killed:
            raise trio.BrokenResourceError(done.stderr.decode())
        raise Refusal(done.stderr.decode())
    if b"cut by" in done.stderr:
        raise Refusal(f"cut: {done.stderr.decode()}")
    rows = map(json.loads, done.stdout.splitlines())
    return [Found(row["offset"], row["body"].encode()) for row in rows]


def _option(word: str, value: str) -> tuple[str, ...]:
    if word == "order":
        return (f"--{value}",)
    return ("--latest",) if word == "latest" else (f"--{word}", value)


def selecting_from(server: ServerProcess) -> Select:
    """The client library's consumer with a selector."""

    async def select(name: str, sql: str) -> list[Found]:
        try:
            async with (
                connect(server.uri, retry_seconds=20) as client,
                client.consumer(name, offset="first", sql=sql, until_end=True) as consumer,
            ):
                return [Found(message.offset, message.body) async for message in consumer]
        except (StreamDoesNotExist, StreamNotAvailable):  # deleted before, or meanwhile
            raise Missing from None
        except ConnectionLost as lost:
            raise trio.BrokenResourceError(str(lost)) from lost

    return select


def workers_of(pid: int) -> list[int]:
    """The processes that make key tables for a server."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, path.read_text().split()):
                if b"segments.derived.key_worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(child)
    return found


class WorkerKiller:
    """Kills the process that makes key tables, now and then.

    Attributes:
        num_killed: how often.
    """

    def __init__(self, server: ServerProcess, chance: Random) -> None:
        self.num_killed = 0
        self._server = server
        self._chance = chance

    async def run(self, steps: Iterable[object]) -> None:
        """As long as there are steps."""
        for _ in steps:
            await trio.sleep(self._chance.uniform(0.05, 4))
            for pid in workers_of(self._server.pid) if self._server.is_running else ():
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    self.num_killed += 1

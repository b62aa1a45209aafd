"""A machine is lost, and another one goes on; a third one reads. Real processes, and a folder."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from clients import Client, PreconditionFailed, PublishFailed, StreamNotAvailable, connect
from segments.store.folder_store import FolderStore
from segments.store.lookup import find_stream
from segments.store.object_store import MissingError
from tests.support.process import PATIENCE_SECONDS, ServerProcess, wait_until

_MESSAGES = 3_000


class Machines:
    """Servers with the same tier."""

    def __init__(self, folder: Path, ended: ExitStack) -> None:
        self._folder = folder
        self._ended = ended
        (folder / "tier").mkdir()

    def start(self, name: str, *options: str) -> ServerProcess:
        tier = ["--tier", f"file://{self._folder}/tier", "--tier-roll-seconds", "1"]
        server = ServerProcess(self._folder / name, *tier, "--tier-delete-delay-seconds", "0")
        self._ended.callback(server.end)
        return server.start(*options)

    def has_stored(self, number: int) -> bool:
        store = FolderStore(str(self._folder / "tier"))
        try:
            segments = find_stream(store, "/", "s", 0).segments
            return sum(one.next_offset - one.base_offset for one in segments) == number
        except MissingError:
            return False


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with ExitStack() as ended:
        yield Machines(tmp_path, ended)


def _bodies(number: int) -> list[bytes]:
    return [b"message %d" % at for at in range(number)]


async def _publish(client: Client, first: int, number: int) -> None:
    async with client.producer("s", name="pub") as producer:
        for body in _bodies(number)[first:]:
            await producer.send(body)


async def _read(server: ServerProcess, number: int) -> list[bytes]:
    """All that is there, and what comes until there are so many."""
    found: list[bytes] = []
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        connect(server.uri) as client,
        client.consumer("s", offset="first") as consumer,
    ):
        async for message in consumer:
            found.append(bytes(message.body))
            if len(found) == number:
                break
    return found


@pytest.mark.slow
def test_another_machine_goes_on(machines: Machines) -> None:
    asyncio.run(_another_machine_goes_on(machines))


async def _another_machine_goes_on(machines: Machines) -> None:
    old = machines.start("old")
    async with connect(old.uri) as client:
        await client.create("s", segment_size=50_000)
        await _publish(client, 0, _MESSAGES)
    wait_until(lambda: machines.has_stored(_MESSAGES))
    reader = machines.start("reader", "--read-only")
    assert await _read(reader, _MESSAGES) == _bodies(_MESSAGES)
    old.kill()

    new = machines.start("new", "--restore")
    assert await _read(new, _MESSAGES) == _bodies(_MESSAGES)
    async with connect(new.uri) as client:  # its publisher's name and numbers go on, too
        await _publish(client, _MESSAGES, _MESSAGES + 10)
        assert await _read(new, _MESSAGES + 10) == _bodies(_MESSAGES + 10)

    old.start()  # it wakes up
    wait_until(lambda: "has taken over the tier" in old.log.read_text())
    async with connect(old.uri) as client:
        with pytest.raises((PublishFailed, StreamNotAvailable, PreconditionFailed)):
            await _publish(client, _MESSAGES, _MESSAGES + 1)
    wait_until(lambda: machines.has_stored(_MESSAGES + 10))
    assert await _read(reader, _MESSAGES + 10) == _bodies(_MESSAGES + 10)
    async with connect(reader.uri) as client:
        with pytest.raises(PreconditionFailed):
            await client.create("t")
        with pytest.raises(PreconditionFailed, match="cannot publish to s: the server is read"):
            await _publish(client, 0, 1)
    assert new.stop() == 0
    assert reader.stop() == 0
    assert await _read(machines.start("new"), _MESSAGES + 10) == _bodies(_MESSAGES + 10)


@pytest.mark.parametrize("option", ["--restore", "--read-only"])
def test_a_start_that_waits_for_the_store_can_be_stopped(tmp_path: Path, option: str) -> None:
    """It waits for up to a minute, which the log says once."""
    log = tmp_path / "log"
    command = [sys.executable, "-m", "streamd", "serve", "--data", str(tmp_path / "data"), option]
    command += ["--tier", "s3://bucket/prefix", "--tier-endpoint", "http://127.0.0.1:1"]
    for name in ("stream", "amqp", "http", "metrics"):
        command += [f"--{name}-port", "0" if name == "stream" else "off"]
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    with (
        log.open("w") as notes,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=notes, env={**os.environ, **keys}
        ) as process,
    ):
        try:
            wait_until(lambda: "it is tried again for up to 60 s" in log.read_text())
            time.sleep(1)  # it is tried some times more
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
        assert process.stdout is not None
        assert process.stdout.read() == b""
    assert log.read_text().count("it is tried again") == 1

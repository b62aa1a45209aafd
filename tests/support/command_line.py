"""Commands run in this process, with a server in memory behind them."""

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.abc
import click
import pytest
import trio

from clients import connection as client_connection
from clients.errors import ConnectionLost
from clients.uri import Endpoint
from streamd.cli import main
from streamd.connections.stream import connection
from streamd.operations.cluster import NodeReports
from streamd.operations.tier_reports import TierReports
from tests.support.client import MemoryByteStream
from tests.support.proxy import Cut
from tests.support.server import Harness, Peer, harness


class Ended(NamedTuple):
    """How a command ended.

    Attributes:
        code: its exit code.
        out, notes: what it printed on stdout and on stderr.
    """

    code: int
    out: str
    notes: str


class _CountedStream(MemoryByteStream):
    """Tells before each frame that is sent."""

    def __init__(self, peer: Peer, on_send: Callable[[], None]) -> None:
        super().__init__(peer, Cut())
        self._on_send = on_send

    async def send(self, item: bytes) -> None:
        self._on_send()
        await super().send(item)


class CommandLine:
    """`streamd ARGUMENTS` in this process; the server begins with each, on the same files.

    Attributes:
        on_send: called before each frame that a client sends, with its number, from 1.
        is_away: nobody answers at the server's address.
        running: the server, while a command is connected.
        tier: of each server.
        node: that each is of a cluster.
    """

    def __init__(self, data: Path) -> None:
        self.on_send: Callable[[int], None] = lambda _number: None
        self.is_away = False
        self.running: Harness | None = None
        self.tier: TierReports | None = None
        self.node: NodeReports | None = None
        self._data = data
        self._num_sent = 0
        self._streams: list[_CountedStream] = []

    def __call__(
        self,
        *arguments: str,
        stdin: Any = b"",
        stdout: Any = None,
        is_closed: bool = False,
    ) -> Ended:
        """Run a command.

        Args:
            arguments: as typed.
            stdin: bytes, or a file; None for a closed one.
            stdout: a file; without, what is printed is returned.
            is_closed: stdout is.
        """
        before = sys.stdin, sys.stdout, sys.stderr
        out, notes = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n") for _ in range(2))
        self._num_sent = 0
        self._streams.clear()
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin)) if isinstance(stdin, bytes) else stdin
        sys.stdout, sys.stderr = stdout or (None if is_closed else out), notes
        try:
            main(list(arguments))
        except SystemExit as end:
            code = end.code
        finally:
            sys.stdin, sys.stdout, sys.stderr = before
        assert isinstance(code, int)
        return Ended(code, *(file.buffer.getvalue().decode() for file in (out, notes)))

    async def connect(self, endpoint: Endpoint) -> anyio.abc.ByteStream:
        """Instead of a TCP connection."""
        await trio.lowlevel.checkpoint()
        if self.is_away:
            raise ConnectionLost(f"cannot connect to {endpoint}: Connection refused")
        if self.running is None:
            ready = trio.Event()
            trio.lowlevel.spawn_system_task(self._serve, ready)  # ends with the command
            await ready.wait()
        assert self.running is not None
        stream = _CountedStream(self.running.connect(), self._count)
        self._streams.append(stream)
        return stream

    def drop_connections(self) -> None:
        """As if the server had gone, and nobody came instead."""
        self.is_away = True
        for stream in self._streams:
            stream.kill()

    async def _serve(self, ready: trio.Event) -> None:
        try:
            async with harness(self._data) as self.running:
                self.running.server.broker.tier = self.tier
                self.running.server.broker.node = self.node
                ready.set()
                await trio.sleep_forever()
        finally:
            self.running = None

    def _count(self) -> None:
        self._num_sent += 1
        self.on_send(self._num_sent)


@contextmanager
def command_line(data: Path) -> Iterator[CommandLine]:
    """Commands with a server over a data folder."""
    commands = CommandLine(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_connection, "_connect", commands.connect)
        patch.setattr(connection, "REFUSAL_SECONDS", 0.1)  # seconds of real time
        patch.setattr("logging.basicConfig", lambda **_: None)
        yield commands


def all_commands() -> list[tuple[str, ...]]:
    """Every command that does something: not the groups."""

    def walk(command: click.Command, name: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if not isinstance(command, click.Group):
            yield name
            return
        context = click.Context(command)
        for word in command.list_commands(context):
            found = command.get_command(context, word)
            assert found is not None
            yield from walk(found, (*name, word))

    return list(walk(main, ()))


def command_named(name: Sequence[str]) -> click.Command:
    """The command of a name."""
    command: click.Command = main
    for word in name:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    return command

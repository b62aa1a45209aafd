"""Inputs to a server in memory, and what must hold after each of them.

The server lives; nothing was logged as an error; the connection has ended and nothing of it is
left; somebody else publishes and reads as before.
"""

import gc
import logging
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from streamd.auth.administration import Administration
from streamd.http_api import serving
from tests.fuzz import conversations
from tests.fuzz.mutate import changed, in_pieces
from tests.fuzz.requests import changed_requests
from tests.support.amqp import connect
from tests.support.server import Harness, Peer, harness

A_SERVER = 50  # inputs that one server gets
_SECONDS = 120  # of virtual time, until a connection has ended
_STREAMS = 40
_INNOCENT = "innocent"


class Broken(Exception):
    """Something that must hold does not."""


class Input(NamedTuple):
    """One input, as it arrives."""

    pieces: list[bytes]


class _Errors(logging.Handler):
    """Keeps what is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(logging.Formatter().format(record))


def _fix_stream(frame: bytes) -> bytes:
    return (len(frame) - 4).to_bytes(4, "big") + frame[4:] if len(frame) > 4 else frame


def _fix_amqp(frame: bytes) -> bytes:
    return frame[:3] + (len(frame) - 8).to_bytes(4, "big") + frame[7:-1] + b"\xce"


class Stream:
    """The stream protocol."""

    name = "stream"

    async def record(self, server: Harness) -> list[bytes]:
        return await conversations.record_stream(server)

    def change(self, frames: list[bytes], chance: Random) -> list[bytes]:
        return changed(
            frames, chance, _fix_stream, conversations.STREAM_LOGIN, conversations.SPARE_COMMANDS
        )

    def connect(self, server: Harness) -> trio.StapledStream[Any, Any]:
        return server.connect().stream


class Amqp:
    """AMQP 0-9-1."""

    name = "amqp"

    async def record(self, server: Harness) -> list[bytes]:
        return await conversations.record_amqp(server)

    def change(self, frames: list[bytes], chance: Random) -> list[bytes]:
        def fix(frame: bytes) -> bytes:
            return _fix_amqp(frame) if len(frame) > 8 else frame

        return changed(frames, chance, fix, conversations.AMQP_LOGIN, conversations.SPARE_METHODS)

    def connect(self, server: Harness) -> trio.StapledStream[Any, Any]:
        return connect(server).stream


class Named:
    """What Hypercorn asks of a socket."""

    family = socket.AF_INET

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 40_000

    getsockname = getpeername

    def close(self) -> None:
        pass


class Http:
    """The HTTP API."""

    name = "http"

    async def record(self, _server: Harness) -> list[bytes]:
        return conversations.http_requests()

    def change(self, frames: list[bytes], chance: Random) -> list[bytes]:
        return changed_requests(frames, chance)

    def connect(self, server: Harness) -> trio.StapledStream[Any, Any]:
        ours, theirs = memory_stream_pair()
        theirs.socket = Named()  # type: ignore[attr-defined]
        server.start(serving.Server(server.server.http_app(), 100).serve, theirs)
        return ours


PROTOCOLS = (Stream(), Amqp(), Http())
Protocol = Stream | Amqp | Http


class Fuzzer:
    """One protocol's inputs, identified by seed and number.

    Attributes:
        tried: how many there were.
    """

    def __init__(self, protocol: Protocol, seed: int, folder: Path) -> None:
        self.tried = 0
        self._protocol = protocol
        self._seed = seed
        self._folder = folder
        self._frames: list[bytes] = []

    def run(self, numbers: range) -> None:
        """Try the inputs of these numbers, on one server.

        Raises:
            Broken: one of them has broken something; says how to repeat it.
        """
        broken = trio.run(self._run, numbers, clock=MockClock(autojump_threshold=0))
        if broken:
            raise Broken(broken)

    async def _run(self, numbers: range) -> str:
        folder = self._folder / f"{self._protocol.name}-{numbers.start}"
        settings = {"max_streams": _STREAMS, "anonymous_user": "guest"}
        with _listening() as errors:
            async with harness(folder, **settings) as server:
                if not self._frames:
                    async with harness(folder.with_suffix(".recorded")) as other:
                        self._frames = await self._protocol.record(other)
                witness = await _Witness.make(server)
                for number in numbers:
                    try:
                        await self._try(server, witness, self.make(number), errors)
                    except Exception as error:  # noqa: BLE001 - whatever it is, it is told how to see it again
                        seen = error if isinstance(error, Broken) else repr(error)
                        name, seed = self._protocol.name, self._seed
                        again = f"python -m tests.fuzz --only {name} --seed {seed} --number"
                        return f"{again} {number}\n{seen}"
                    self.tried += 1
        return ""

    def make(self, number: int) -> Input:
        """The input of a number."""
        chance = Random(f"{self._seed}/{self._protocol.name}/{number}")
        frames = self._protocol.change(self._frames, chance)
        return Input(in_pieces(frames, chance))

    async def _try(
        self, server: Harness, witness: "_Witness", made: Input, errors: list[str]
    ) -> None:
        stream = self._protocol.connect(server)
        with trio.move_on_after(_SECONDS) as waiting:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_read_to_the_end, stream)
                await _send(stream, made.pieces)
        if waiting.cancelled_caught:
            raise Broken("the connection does not end")
        await stream.aclose()
        await wait_all_tasks_blocked()
        if errors:
            raise Broken(errors[0])
        await witness.check()


async def _send(stream: trio.StapledStream[Any, Any], pieces: list[bytes]) -> None:
    try:
        for piece in pieces:
            await stream.send_all(piece)
            await wait_all_tasks_blocked()
        await stream.send_stream.aclose()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the server has had enough


async def _read_to_the_end(stream: trio.StapledStream[Any, Any]) -> None:
    try:
        while await stream.receive_some(1 << 20):
            pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass


class _Witness:
    """Somebody else, with rights and a stream of its own."""

    def __init__(self, server: Harness, peer: Peer) -> None:
        self._server = server
        self._peer = peer
        self._next = 1

    @classmethod
    async def make(cls, server: Harness) -> "_Witness":
        broker, directory = server.server.broker, server.server.directory
        await directory.put_user(_INNOCENT, b"guest", ())
        await Administration(broker, directory).add_virtual_host(_INNOCENT, _INNOCENT)
        peer = server.connect()
        await peer.log_in(user=_INNOCENT, virtual_host=_INNOCENT)
        await peer.create(_INNOCENT)
        await peer.declare(_INNOCENT)
        await peer.subscribe(_INNOCENT, credit=30_000)
        return cls(server, peer)

    async def check(self) -> None:
        """It publishes and reads as before, and it is alone."""
        body = b"%d" % self._next
        with trio.move_on_after(_SECONDS) as waiting:
            await self._peer.publish([body], self._next)
            found = [await self._peer.next(), await self._peer.next()]
        if waiting.cancelled_caught:
            raise Broken("somebody else is not served any more")
        kinds = sorted(type(command).__name__ for command in found)
        if kinds != ["Deliver", "PublishConfirm"] or not any(
            getattr(command, "chunk", b"").endswith(body) for command in found
        ):
            raise Broken(f"somebody else gets {found}")
        self._next += 1
        server = self._server.server
        hosts = [host for name, host in server.broker.virtual_hosts.items() if name != _INNOCENT]
        streams = [stream for host in hosts for stream in host.streams()]
        left = {
            "connections": len(server._running) - 1,
            "connections in lists": len(server.connections) - 1,
            "users": sum(len(host.observers) for host in hosts),
            "groups": sum(len(host.groups._groups) for host in hosts),
            "waiters": sum(len(s.waiters) for s in streams),
        }
        if any(left.values()):
            raise Broken(f"something is left: {left}")


@contextmanager
def _listening() -> Iterator[list[str]]:
    handler = _Errors()
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield handler.found
    finally:
        root.removeHandler(handler)


def blocks_in_use() -> int:
    """Pieces of memory that are in use."""
    for _ in range(3):
        gc.collect()
    return sys.getallocatedblocks()


__all__ = ["A_SERVER", "PROTOCOLS", "Broken", "Fuzzer", "blocks_in_use"]

"""A process that works for this one, as its owner sees it; see serve.py for what runs in it.

They talk over a socket pair: messages with their length before them, from the owner also with open
files (SCM_RIGHTS). The process can be killed at any time.
"""

import socket
import subprocess
import sys
from array import array
from collections.abc import Sequence

import trio

from streamd.net.serve import LENGTH_BYTES

_MOST_BYTES = 1 << 26
_READ_BYTES = 1 << 16
_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]\n"  # it finds modules where this process does
GARBAGE = "the process has answered something else than was expected; restart the server"


class WorkerDied(Exception):
    """The process has ended, or cannot be started: its work may be tried again."""


class WorkerProcess:
    """The process, as its owner sees it; see `start`."""

    def __init__(self, process: trio.Process, connection: trio.socket.SocketType) -> None:
        self._process = process
        self._connection = connection
        self._unread = bytearray()

    @classmethod
    async def start(cls, program: str) -> "WorkerProcess":
        """Start one; not cancelled, or one might run that nobody knows.

        Args:
            program: Python; it calls `serve`.

        Raises:
            OSError: the system gives none.
            RuntimeError: the system gives no thread to start it in.
        """
        ours, theirs = trio.socket.socketpair()
        with theirs, trio.CancelScope(shield=True):
            try:
                process = await trio.lowlevel.open_process(
                    [sys.executable, "-c", _PROGRAM + program, *sys.path],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            except BaseException:
                ours.close()
                raise
        return cls(process, ours)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def ask(self, message: bytes, files: Sequence[int] = ()) -> bytes:
        """Say something and hear the answer; after an error, or when cancelled, it is to be ended.

        Args:
            message: less than 64 MiB.
            files: descriptors, which the process gets copies of.

        Raises:
            WorkerDied: the process has ended.
        """
        try:
            await self._say(len(message).to_bytes(LENGTH_BYTES, "big") + message, files)
            await self._read(LENGTH_BYTES)
            size = int.from_bytes(self._unread[:LENGTH_BYTES], "big")
            if size > _MOST_BYTES:
                raise WorkerDied(GARBAGE)
            await self._read(LENGTH_BYTES + size)
            answer = bytes(memoryview(self._unread)[LENGTH_BYTES : LENGTH_BYTES + size])
            self._unread = bytearray()  # it says nothing of its own accord
            return answer
        except OSError as error:
            raise WorkerDied(str(error)) from error

    async def _say(self, raw: bytes, files: Sequence[int]) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))] if files else []
        sent = await self._connection.sendmsg([raw], rights)
        while sent < len(raw):
            sent += await self._connection.send(memoryview(raw)[sent:])

    async def _read(self, size: int) -> None:
        """Read until there are so many bytes."""
        while len(self._unread) < size:
            got = await self._connection.recv(max(_READ_BYTES, size - len(self._unread)))
            if not got:
                code = await self._process.wait()
                raise WorkerDied(f"the process has ended with {code}")
            self._unread += got

    async def end(self) -> None:
        """End the process, and return when nothing is done in it any more."""
        with trio.CancelScope(shield=True):
            self._process.kill()
            await self._process.wait()
        self._connection.close()

"""A process that works for this one: its owner, and what runs in it.

They talk over a socket pair: messages with their length before them, from the owner also with open
files (SCM_RIGHTS). The process can be killed at any time. It ends at once with its owner, whatever
it is at and however that ends, as a thread of it waits for the end of the connection: the kernel
could do that (PR_SET_PDEATHSIG), but for the thread that has started the process, which is one of a
pool. It yields the processor, and memory, to others.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn, TypeAlias

import trio

_LENGTH_BYTES = 4
_MOST_BYTES = 1 << 26
_READ_BYTES = 1 << 16
_MOST_FILES = 16
_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]\n"  # it finds modules where this process does
_OOM_SCORE = "/proc/self/oom_score_adj"
GARBAGE = "the process has answered something else than was expected; restart the server"

Ask: TypeAlias = Callable[[bytes], tuple[bytes, list[int]]]


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
        """Of the process."""
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
            await self._say(len(message).to_bytes(_LENGTH_BYTES, "big") + message, files)
            await self._read(_LENGTH_BYTES)
            size = int.from_bytes(self._unread[:_LENGTH_BYTES], "big")
            if size > _MOST_BYTES:
                raise WorkerDied(GARBAGE)
            await self._read(_LENGTH_BYTES + size)
            answer = bytes(memoryview(self._unread)[_LENGTH_BYTES : _LENGTH_BYTES + size])
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


# -- in the process


def serve(work: Callable[[bytes, Ask], bytes], niceness: int) -> NoReturn:
    """Work for the owner of this process; it has the connection for an input.

    Args:
        work: gives the answer to a message; it may ask the owner something on the way, and gets an
            answer and descriptors, which it closes.
        niceness: see nice(2).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # at a terminal it is meant for the server
    _yield_to_others(niceness)
    with socket.socket(fileno=os.dup(0)) as connection:
        connection.setblocking(True)  # as the owner has it otherwise
        threading.Thread(target=_end_with, args=(connection.fileno(),), daemon=True).start()

        def ask(message: bytes) -> tuple[bytes, list[int]]:
            connection.sendall(len(message).to_bytes(_LENGTH_BYTES, "big") + message)
            return _hear(connection)

        message, _ = _hear(connection)
        while True:
            message, _ = ask(work(message, ask))


def _hear(connection: socket.socket) -> tuple[bytes, list[int]]:
    raw, files, _, _ = socket.recv_fds(connection, _LENGTH_BYTES, _MOST_FILES)
    while 0 < len(raw) < _LENGTH_BYTES:
        raw += connection.recv(_LENGTH_BYTES - len(raw))
    message = bytearray(int.from_bytes(raw, "big"))
    left = memoryview(message)
    while left:
        got = connection.recv_into(left)
        left = left[got:]
        if not got:
            break
    if not raw or left:
        os._exit(0)  # the owner has gone
    return bytes(message), files


def _end_with(descriptor: int) -> None:
    """End this process when the connection does, in the middle of some work perhaps."""
    watch = select.poll()
    watch.register(descriptor, 0)  # so it wakes up for the end alone
    watch.poll()
    os._exit(0)


def _yield_to_others(niceness: int) -> None:
    """Take the processor, and keep memory, only where nobody else needs it.

    Without it the work is the same, so where it is refused, as by a unit of systemd, it is left.
    """
    with suppress(OSError):
        os.nice(niceness)
    with suppress(OSError), open(_OOM_SCORE, "w") as file:
        file.write("1000")  # this process ends sooner than any other

"""What runs in a process that works for another one: see worker.py, which it does without.

It ends at once with its owner, whatever it is at and however that ends, as a thread of it waits for
the end of the connection: the kernel could do that (PR_SET_PDEATHSIG), but for the thread that has
started the process, which is one of a pool. It yields the processor, and memory, to others.
"""

import os
import select
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, TypeAlias

LENGTH_BYTES = 4  # of the length before a message
_MOST_FILES = 16
_OOM_SCORE = "/proc/self/oom_score_adj"

Ask: TypeAlias = Callable[[bytes], tuple[bytes, list[int]]]


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
            connection.sendall(len(message).to_bytes(LENGTH_BYTES, "big") + message)
            return _hear(connection)

        message, _ = _hear(connection)
        while True:
            message, _ = ask(work(message, ask))


def _hear(connection: socket.socket) -> tuple[bytes, list[int]]:
    raw, files, _, _ = socket.recv_fds(connection, LENGTH_BYTES, _MOST_FILES)
    while 0 < len(raw) < LENGTH_BYTES:
        raw += connection.recv(LENGTH_BYTES - len(raw))
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

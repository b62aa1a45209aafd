"""What the parent and its children tell each other.

One socket pair for each child, of the kind that keeps messages apart. A message is one word,
perhaps with a text behind it, perhaps with a socket: "link" brings the engine's end of the way to a
door. The parent says "beat" now and then, and a child whose event loop goes round says it back.
"""

import ctypes
import os
import signal
import socket
from typing import NamedTuple

READY, BEAT, LINK, STOP, STOP_NOW, RELOAD = "ready", "beat", "link", "stop", "stop now", "reload"
AGAIN = 75  # exit code of an engine that is to be started again, as a node of a cluster is
_MOST_BYTES = 4_096
_PR_SET_PDEATHSIG = 1


class Said(NamedTuple):
    """One message.

    Attributes:
        word: what is said.
        text: behind it.
        bound: a socket that came with it; whoever gets it closes it.
    """

    word: str
    text: str = ""
    bound: socket.socket | None = None


def pair() -> tuple[socket.socket, socket.socket]:
    """The two ends for a child: the parent's, which does not wait, and the child's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs


def say(
    control: socket.socket, word: str, text: str = "", bound: socket.socket | None = None
) -> bool:
    """Say something; False where the other end has gone, or takes nothing.

    Args:
        control: this end.
        word: see Said.
        text: together with the word less than 4 kB.
        bound: a socket that goes with it; the sender keeps its own.
    """
    data = f"{word}\n{text}".encode()
    try:
        socket.send_fds(control, [data], [] if bound is None else [bound.fileno()])
    except OSError:
        return False
    return True


def hear(control: socket.socket) -> Said | None:
    """One message; None when the other end has gone.

    Raises:
        BlockingIOError: nothing was said yet.
    """
    try:
        data, descriptors, _, _ = socket.recv_fds(control, _MOST_BYTES, 1)
    except ConnectionResetError:
        return None
    if not data:
        return None
    word, _, text = data.decode().partition("\n")
    bound = socket.socket(fileno=descriptors[0]) if descriptors else None
    return Said(word, text, bound)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, however that happens.

    Args:
        parent: the process that made this one.

    See prctl(2), PR_SET_PDEATHSIG.
    """
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return  # not Linux: the end of the control socket says it
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)

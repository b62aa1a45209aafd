"""What each child does beside its work: it shows that it lives, and hears what the parent says."""

import socket
from collections.abc import Callable

import trio

from streamd.processes.control import BEAT, Said, hear, say


async def follow(control: socket.socket, take: Callable[[Said], None]) -> None:
    """Answer the parent, and give `take` what else it says, until it has gone.

    Args:
        control: this end of the control socket, which does not wait.
        take: may keep the socket that came with a message.
    """
    while True:
        await trio.lowlevel.wait_readable(control)
        try:
            said = hear(control)
        except BlockingIOError:
            continue
        if said is None:
            return
        if said.word == BEAT:
            say(control, BEAT)
        else:
            take(said)

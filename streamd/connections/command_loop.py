"""One loop for the commands of a connection, whatever it speaks.

Theory of operation. Most commands need no waiting: publish, credit, acknowledge. They are carried
out in place as their bytes arrive, from the poller's round, without waking the connection's task.
The task has the rest. What `Commands.do_at_once` answers decides where the loop is:

    NEED_DATA    listening: bytes come in place, `do_at_once` is called for each
    NO_HURRY     the same; what comes next may be read a moment later
    MORE         there is more to do, but others have a turn first (see steps.next_turn)
    HELD         the peer has to wait (a full disk, an outbox that it does not empty)
    a command    it needs waiting: the task carries it out

                    bytes                       NEED_DATA
    LISTENING  -------------->  do_at_once  ---------------->  LISTENING
                                    |  MORE: one turn of the event loop
                                    |  HELD: `released`
                                    |  a command: `carry_out`
                                    +-------------------------> do_at_once

While the task works, nothing is read: that is how a peer is slowed down, and why its silence then
means nothing.
"""

from collections.abc import Callable
from enum import Enum
from itertools import count
from typing import Generic, Protocol, TypeVar

import trio

from streamd.connections.watch import HELD_SECONDS, Watch, Watched
from streamd.net.duplex import Duplex
from streamd.net.transport import Listening
from streamd.net.turns import next_turn

_REQUESTS_A_TURN = 8  # carried out before others have a turn: a megabyte holds 30,000
LARGE_FRAME = 2_048  # whoever sends a larger request waits until others had their turn

Command = TypeVar("Command")


class Pending(Enum):
    """Why there is no command to be waited for; see the table above."""

    NEED_DATA = "more bytes are needed"
    NO_HURRY = "more bytes are needed, and nobody waits for them"
    MORE = "there is more to do"
    HELD = "the peer has to wait"


class Commands(Protocol[Command]):
    """What a connection does with what it receives."""

    @property
    def receive_data(self) -> Callable[[bytes], None]:
        """Takes what has arrived."""

    @property
    def frame_size(self) -> int:
        """Bytes of the request that was found last."""

    @property
    def command_name(self) -> str:
        """What was found last."""

    def do_at_once(self) -> Command | Pending:
        """Carry out what has been received, up to a command that needs waiting.

        Not all of it: thousands of small commands must not keep others waiting.
        """

    async def carry_out(self, command: Command) -> None:
        """Carry out a command that needs waiting; return when the next one may be looked at."""

    async def released(self) -> None:
        """Return when the peer need not wait any longer."""


class CommandLoop(Generic[Command]):
    """The loop of one connection.

    Args:
        duplex: where bytes come from.
    """

    def __init__(self, duplex: Duplex, commands: Commands[Command], watch: Watch) -> None:
        self._duplex = duplex
        self._commands = commands
        self._watch = watch
        self._clock, self._now = watch.clock, watch.clock.now
        self._receive_data, self._do_at_once = commands.receive_data, commands.do_at_once
        self._found: Command | Pending = Pending.NEED_DATA

    async def run(self) -> None:
        """Carry out what comes, until an exception says that it is over.

        Raises:
            Ended: the peer has ended its side.
            Stopped: nothing more is taken from the peer.
            TransportClosed: the connection broke.
        """
        commands = self._commands
        self._take(b"")
        for number in count(1):
            found = self._found
            if self._watch.pause:
                with self._duplex.not_listening():
                    await trio.sleep(self._watch.take_pause())
            if found is Pending.NEED_DATA or found is Pending.NO_HURRY:
                await self._duplex.feed(self._take)
                continue
            if found is Pending.MORE:
                await next_turn()
            else:
                with self._duplex.not_listening():
                    if found is Pending.HELD:
                        await commands.released()
                    else:
                        await Watched(self._watch, commands.carry_out(found), self._name)
                if number % _REQUESTS_A_TURN == 0 or commands.frame_size > LARGE_FRAME:
                    await next_turn()
            self._take(b"")

    def _take(self, data: bytes) -> Listening:
        """Bytes have arrived, or there are some still; whether the loop goes on listening."""
        began = self._now()
        if began > self._clock.due:
            self._clock.sample(began)
        if data:
            self._receive_data(data)
        found = self._found = self._do_at_once()
        if self._now() - began > HELD_SECONDS:
            self._watch.check(began, self._name)
            if self._watch.pause:
                return Listening.NO
        if found is Pending.NEED_DATA:
            return Listening.YES
        return Listening.LATER if found is Pending.NO_HURRY else Listening.NO

    def _name(self) -> str:
        return self._commands.command_name

"""Whom a task serves: for the log, whose lines name user, virtual host, protocol and address.

Whoever serves a peer says so at the start of its task. Tasks of the server itself have nobody; they
say so where somebody else's task starts them.
"""

import logging
import time
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

# With it, as `extra`, a line is kept in memory although it is no warning.
CHANGE = {"is_change": True}
_KEPT = 50  # lines of each kind
_MOST = 1_000  # characters of a line


@dataclass(slots=True)
class Actor:
    """A peer that is served.

    Attributes:
        protocol: as people call it.
        peer: its address.
        user: that has logged in; empty before.
        virtual_host: that was entered; empty before, or where there is none.
    """

    protocol: str
    peer: str
    user: str = ""
    virtual_host: str = ""

    def __str__(self) -> str:
        host = f" in {self.virtual_host}" if self.virtual_host else ""
        return f"{self.user or 'nobody yet'}{host}, {self.protocol}, {self.peer}"


_actor: ContextVar[Actor | None] = ContextVar("actor", default=None)


def serves(actor: Actor | None) -> None:
    """From now on this task, and those that it starts, serve this peer; None for nobody."""
    _actor.set(actor)


def actor() -> Actor | None:
    """The peer that this task serves."""
    return _actor.get()


def with_actor(text: str) -> str:
    """A line of the log, with the peer that it was logged for."""
    found = _actor.get()
    if found is None:
        return text
    who = str(found)
    if text.startswith(found.peer):  # it has been named
        who = who.removesuffix(f", {found.peer}")
    return f"{text} [{who}]"


class Happened(NamedTuple):
    """A line of the log.

    Attributes:
        at_ms: when, in ms since 1970.
        text: without time and level.
        is_warning: it is a warning or worse.
    """

    at_ms: int
    text: str
    is_warning: bool


class Recent(logging.Handler):
    """Keeps the last warnings and changes of the log in memory."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._warnings: deque[Happened] = deque(maxlen=_KEPT)
        self._changes: deque[Happened] = deque(maxlen=_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        is_warning = record.levelno >= logging.WARNING
        if is_warning or hasattr(record, "is_change"):
            kept = self._warnings if is_warning else self._changes
            text = with_actor(record.getMessage()[:_MOST])
            kept.append(Happened(int(record.created * 1_000), text, is_warning))

    def since(self, seconds: float) -> list[Happened]:
        """What was logged in the last so many seconds, oldest first."""
        begin_ms = (time.time() - seconds) * 1_000
        both = [*self._warnings.copy(), *self._changes.copy()]
        return sorted(one for one in both if one.at_ms >= begin_ms)


recent = Recent()

"""Who is logged in: sessions of browsers, in memory only, so that a restart ends them all.

A session is known by a random number that the browser keeps in a cookie, and ends with whatever it
stands for: the password that was typed, the user, its last tag. It ends an hour after its last
request (an open page asks every few seconds), and twelve hours after the login at the latest. Of
one user, and of all together, there are so many at most; the one that was used longest ago goes.
"""

import secrets
from collections import OrderedDict
from dataclasses import dataclass, field

import trio

from streamd.hop.door import Session as Visitor
from streamd.operations.rights import may_come_from

IDLE_SECONDS = 3_600
SECONDS = 12 * 3_600
MAX_SESSIONS = 1_000
MAX_OF_A_USER = 20
_TOKEN_BYTES = 32


def _token() -> str:
    return secrets.token_urlsafe(_TOKEN_BYTES)


@dataclass(eq=False, slots=True)
class Session:
    """One browser that is logged in.

    Attributes:
        began_at, used_at: on the clock of the event loop, in seconds.
        identity: what its cookie says; a secret.
        csrf: what its forms say, so that no other page can send them; a secret of its own.
        notice: what the next page says once.
        has_ended: it is known no longer.
    """

    caller: Visitor
    began_at: float = field(default_factory=trio.current_time)
    used_at: float = field(default_factory=trio.current_time)
    identity: str = field(default_factory=_token, repr=False)
    csrf: str = field(default_factory=_token, repr=False)
    notice: str = ""
    has_ended: bool = False

    def take_notice(self) -> str:
        """The notice, which is shown once."""
        notice, self.notice = self.notice, ""
        return notice


class Sessions:
    """All sessions."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Session] = OrderedDict()  # the one used longest ago first

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, caller: Visitor) -> Session:
        """A new session of a user that has just logged in."""
        session = Session(caller)
        own = [s for s in self._open.values() if s.caller.name == caller.name]
        if len(own) >= MAX_OF_A_USER:
            self.end(own[0])
        if len(self._open) >= MAX_SESSIONS:
            self.end(next(iter(self._open.values())))
        self._open[session.identity] = session
        return session

    async def find(self, identity: str, address: str) -> Session | None:
        """The session that a cookie names, if it goes on."""
        session = self._open.get(identity)
        if session is None:
            return None
        await session.caller.look()
        if not self.goes_on(session) or not may_come_from(session.caller.name, address):
            self.end(session)
            return None
        session.used_at = trio.current_time()
        self._open.move_to_end(identity)
        return session

    def goes_on(self, session: Session) -> bool:
        """Whether nothing has ended a session; what takes long asks now and then."""
        now = trio.current_time()
        return (
            not session.has_ended
            and now - session.used_at < IDLE_SECONDS
            and now - session.began_at < SECONDS
            and session.caller.may_use_http
        )

    def end(self, session: Session) -> None:
        """End a session."""
        session.has_ended = True
        session.caller.leave()
        self._open.pop(session.identity, None)

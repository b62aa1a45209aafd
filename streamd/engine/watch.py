"""What is wrong, in the log: when it begins and when it ends, where nothing else writes it down."""

import logging
from collections.abc import Iterable
from itertools import islice
from typing import TypeAlias

import trio

from streamd.auth.users import UserDirectory
from streamd.engine.caller import DoorCaller
from streamd.engine.engine import Engine
from streamd.engine.overview import FURTHEST
from streamd.operations.server import GetOverview, Trouble, TroubleKind

logger = logging.getLogger(__name__)

_EVERY_SECONDS = 10.0
# Of the others their owners write a line in the moment they begin.
_UNWRITTEN = {TroubleKind.DISK, TroubleKind.FILES, TroubleKind.CLOCK, TroubleKind.BEHIND}

_Subject: TypeAlias = tuple[TroubleKind, str, str, str]


class Watch:
    """Looks again and again."""

    def __init__(self, engine: Engine, directory: UserDirectory) -> None:
        self._engine = engine
        self._caller = DoorCaller(directory, "the server")
        self._told: dict[_Subject, Trouble] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await trio.sleep(_EVERY_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Write down what has begun, and what has ended, since the last look."""
        overview = await self._engine.ask(self._caller, GetOverview())
        found = [one for one in overview.wrong if one.kind in _UNWRITTEN]
        behind, others = _sorted(found)
        if sum(one.kind is TroubleKind.BEHIND for one in found) == FURTHEST:
            # There may be more: which of them are named changes from look to look.
            told, _ = _sorted(self._told.values())
            behind = dict(islice((told | behind).items(), FURTHEST))
        now = behind | others
        for key, one in now.items():
            if key not in self._told:
                logger.warning("%s", _line(one))
        for key, one in self._told.items():
            if key not in now:
                logger.info("no longer: %s", _line(one))
        self._told = now


def _sorted(troubles: Iterable[Trouble]) -> tuple[dict[_Subject, Trouble], dict[_Subject, Trouble]]:
    """Consumers that are behind, and the others, by what they are about."""
    behind: dict[_Subject, Trouble] = {}
    others: dict[_Subject, Trouble] = {}
    for one in troubles:
        (behind if one.kind is TroubleKind.BEHIND else others)[_subject(one)] = one
    return behind, others


def _subject(one: Trouble) -> _Subject:
    return one.kind, one.vhost, one.stream, one.who


def _line(one: Trouble) -> str:
    return f"stream {one.stream}: {one.what}" if one.stream else one.what

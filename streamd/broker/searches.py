"""Searching streams for single messages: what is asked in words, and whose turn it is.

Pages are worked on beside the engine (search_places.py), which gives out places and answers what a
page asks for of the log (search_session.py). So nothing that is searched for can hold it up.
"""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace

import mmh3
import trio

from segments import Log, StorageError
from segments.search.handing import Failed, Job, Notes
from segments.search.page import Limits, Page
from segments.words import plural
from streamd.broker.catalog.writer import Check
from streamd.broker.search_places import Place
from streamd.broker.search_session import FETCH_SECONDS, Session
from streamd.broker.streams.fetcher import AwayError
from streamd.broker.streams.stream import Stream
from streamd.broker.virtual_host import VirtualHost
from streamd.operations.errors import Busy, Reason, Refused
from streamd.operations.names import Name
from streamd.operations.search_words import Asked, Words, read_words, wrong

logger = logging.getLogger(__name__)

MAX_SEARCHES = 4  # that run at the same time; others wait for their turn
MAX_WAITING = 100  # and more are refused
PAGE_BYTES = 1 << 20
MAX_OF_A_USER = 8  # that wait for their turn, of those that are asked for over HTTP
MAX_MESSAGE_BYTES = 17 << 20  # that are found: AMQP 0-9-1 publishes 16 MiB, and properties
READ_BYTES = 1 << 30
_MORE_SECONDS = 30.0  # than it may that a page takes before it is given up


class Searches:
    """All searches of a server.

    Args:
        now_ms: the wall clock.
        place: where pages are worked on.

    Attributes:
        place: see above.
        num_begun, num_refused: since the start; each page of a search counts.
        num_open: that run at the moment.
    """

    def __init__(self, now_ms: Callable[[], int], place: Place) -> None:
        self._now_ms = now_ms
        self.place = place
        self._places = trio.Semaphore(MAX_SEARCHES)
        self._num_waiting = 0
        self.num_begun = self.num_refused = self.num_open = 0
        self._users: dict[Name, _User] = {}

    @asynccontextmanager
    async def alone(self, user: Name, seconds: float = 0) -> AsyncIterator[None]:
        """A user's turn to search: there is one search at a time of those who ask over HTTP.

        Args:
            user: who searches.
            seconds: how long the turn is waited for; those who wait get it in their order.

        Raises:
            Busy: another search of this user is going on.
        """
        own = self._users.setdefault(user, _User(user))
        own.number += 1
        try:
            if own.number > 1 + (MAX_OF_A_USER if seconds else 0):
                raise own.busy()
            await own.wait(seconds)
            try:
                yield
            finally:
                own.turn.release()
        finally:
            own.number -= 1
            if not own.number:
                del self._users[user]

    def find_at_once(
        self, host: VirtualHost, name: Name, words: Sequence[tuple[str, str]], check: Check
    ) -> Page | None:
        """The page of a look-up of keys, where it takes less than to have it worked on elsewhere.

        What is given to it is what `find` is given.

        Returns:
            None where it is to be asked for with `find`; nothing was done.

        Raises:
            Refused: see `find`.
        """
        if all(word != "key" for word, _ in words):
            return None
        check()
        stream = host.find(name)
        if not stream.is_open:
            return None
        from segments.search.brief import brief_page  # noqa: PLC0415 - many servers do without

        asked = read_words(words, host.row(name).effective)
        stream.life.hold()  # it is used
        try:
            page = brief_page(stream.log, self._job(host, name, stream.log, asked, 0))
        finally:
            stream.life.release()
        self.num_begun += page is not None
        return page

    async def find(
        self,
        host: VirtualHost,
        name: Name,
        words: Words,
        check: Check,
        seconds: float,
        begin: int = 0,
    ) -> Page:
        """The next page of a search.

        Args:
            host: the virtual host of the stream.
            name: of the stream.
            words: what is asked for, see `read_words`.
            check: raises Refused when the user may not read the stream.
            seconds: the page is cut when it has taken so long.
            begin: nothing before this offset is looked at.

        Raises:
            Refused: the words cannot be understood, there is no such stream or right, or it cannot
                be read.
        """
        check()
        stream = host.find(name)
        asked = read_words(words, host.row(name).effective)
        if begin:
            offset = max(begin, asked.request.offset or 0)
            asked = asked._replace(request=replace(asked.request, offset=offset))
        async with _Place(self), stream.opened() as log:
            check()
            page = await self._page(self._job(host, name, log, asked, seconds), stream, log)
            check()
        if page.looked_at.chunks_damaged:
            lost = plural(page.looked_at.messages_lost, "message")
            chunks = plural(page.looked_at.chunks_damaged, "damaged chunk")
            logger.error("stream %s: a search has left out %s in %s", name, lost, chunks)
        return page

    def _job(self, host: VirtualHost, name: Name, log: Log, asked: Asked, seconds: float) -> Job:
        names = repr((host.name, name, log.life)).encode()
        return Job(
            asked.request,
            mmh3.hash64(names, signed=False)[0],
            self._now_ms(),
            asked.after,
            Limits(PAGE_BYTES, MAX_MESSAGE_BYTES, READ_BYTES),
            log.segments.first_offset,
            log.committed_offset,
            log.segments.gaps,
            seconds,
        )

    async def _page(self, job: Job, stream: Stream, log: Log) -> Page:
        with closing(Session(stream, log, job.seconds)) as session:
            try:
                with trio.fail_after(job.seconds + FETCH_SECONDS + _MORE_SECONDS):
                    outcome = await self.place.page(job, session)
            except trio.TooSlowError:
                text = "a step of this search takes too long: search for fewer keys, or less SQL"
                raise Refused(Reason.NOT_AVAILABLE, text) from None
            except StorageError as error:
                outcome = Failed(str(error), Notes())
            await session.take(outcome.notes)
        if log.is_closed:  # deleted meanwhile, and its files with it
            raise Refused(Reason.NOT_FOUND, stream.name)
        if job.request.keys:  # it may have found a file that is wrong
            stream.life.held.want_keys()
        if session.fault is not None:
            raise Refused(Reason.NOT_AVAILABLE, str(session.fault))
        if isinstance(outcome, Failed):
            if outcome.is_wrong:
                raise wrong(outcome.text)
            logger.error("stream %s cannot be searched: %s", stream.name, outcome.text)
            raise Refused(Reason.NOT_AVAILABLE, f"{stream.name} cannot be read")
        if outcome.is_away and not outcome.has_progressed:
            raise Refused(Reason.NOT_AVAILABLE, str(AwayError(FETCH_SECONDS)))
        return outcome.page

    async def enter(self) -> None:
        """Take a place; wait for one where there is none.

        Raises:
            Refused: too many wait already.
        """
        if self._num_waiting >= MAX_WAITING:
            self.num_refused += 1
            details = f"{MAX_WAITING} searches wait for their turn; try again later"
            raise Refused(Reason.NOT_AVAILABLE, details)
        self._num_waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._num_waiting -= 1
        self.num_begun += 1
        self.num_open += 1

    def leave(self) -> None:
        """Give the place back."""
        self.num_open -= 1
        self._places.release()


class _User:
    """The searches of a user: how many there are, and whose turn it is."""

    def __init__(self, name: Name) -> None:
        self.turn = trio.Semaphore(1)
        self.number = 0
        self._name = name

    async def wait(self, seconds: float) -> None:
        """Wait for a turn; raise Busy where it does not come in time."""
        try:
            self.turn.acquire_nowait()
        except trio.WouldBlock:
            with trio.move_on_after(seconds):
                await self.turn.acquire()
                return
            raise self.busy() from None

    def busy(self) -> Busy:
        """What those are told who get no turn."""
        return Busy(f"a search of {self._name} is going on, there may be one at a time")


class _Place:
    """A place among the searches that run."""

    def __init__(self, searches: Searches) -> None:
        self._searches = searches

    async def __aenter__(self) -> None:
        await self._searches.enter()

    async def __aexit__(self, *_: object) -> None:
        self._searches.leave()

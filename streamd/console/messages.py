"""The messages of a stream: searched, followed as they come, one in full, and as files.

A search is one page after the other, each of them a request of a second at most, so nothing is held
open here between two: the address of the next one says where the search goes on, and what it has
looked at so far. What is shown first came with the page of the form; a script asks for the rest and
puts it there, and without one a link does. So a search ends with the tab that shows it, or with its
session, which each request is asked for.

All searches of a user take turns, also those of other tabs, of the API and of downloads.
"""

import re
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from segments.message import MessageView
from segments.message_json import plain_value
from segments.search.page import FoundMessage
from segments.search.request import SearchRequest
from segments.segment import MAX_OFFSET
from segments.words import whole_number
from streamd.console import downloads
from streamd.console.message_view import (
    Row,
    conditions_of,
    filter_values_of,
    full_of,
    row_of,
)
from streamd.console.search_figures import Figures, bar_of, plan_of
from streamd.console.search_form import (
    STARTS,
    BadForm,
    SearchForm,
    Words,
    read_search_form,
)
from streamd.console.site import Page as ConsolePage, Site, is_poll, session_of
from streamd.console.snippets import Snippet, Where, snippets
from streamd.console.stream import ONE, Found, find_stream
from streamd.http_api.caller import visitor_of
from streamd.http_api.entitled import checked_by_parts
from streamd.http_api.messages import BadRequest, NotFound, encoded_in_pieces
from streamd.http_api.unsent import while_there
from streamd.net import threads
from streamd.net.turns import in_turns
from streamd.operations.argument_kinds import Plain
from streamd.operations.arguments import filter_properties
from streamd.operations.errors import Busy, Reason, Refused
from streamd.operations.names import Name
from streamd.operations.rights import Right
from streamd.operations.searching import FindMessages, FoundPage, GetMessage, OneMessage
from streamd.operations.server import GetHealth
from streamd.operations.stream_views import GetSettings

Result = TypeVar("Result")

FIRST_SECONDS = 0.3  # of searching before the page is shown
SECONDS = 1.0  # of searching for what a script adds to it
PATIENT_SECONDS = 5.0  # and for a page that goes on without one
MAX_SECONDS = 60.0  # that a script searches, unless it is told to go on
WAIT_SECONDS = 5.0  # for the other searches of the same user
TAIL_SECONDS = 0.5
TAIL = 20  # messages that are shown of each turn of the tail, of which there is one a second
PIECE = 100  # messages of each that a script adds
_DOWNLOAD_PIECE = 500
_DOWNLOAD_BYTES = 1 << 20  # that are sent at once, and encrypted
# A byte may be a value, which takes 5 µs: a page of 16 kB messages with nothing but these took two
# seconds, so larger ones are decoded in a thread.
_LARGE = 2 << 10  # bytes of a message
_IN_PIECES = 64 << 10  # of one that is written in pieces
_SEEN, _SEEN_VALUES = 20, 5  # messages that completion looks at; values of each property
_LONG = 200  # characters of a selector that takes a while
_TOO_MANY, _NOT_AVAILABLE = 429, 503
_OR = re.compile(r"\bor\b", re.IGNORECASE)


class Search(NamedTuple):
    """What a page shows of a search.

    Attributes:
        rows: messages.
        page: the last page of it.
        outcome: "all", "limit", "going" or "stopped".
        done: how much of the stream is done, 0 to 1.
    """

    rows: list[Row]
    figures: Figures
    page: FoundPage
    outcome: str
    done: float


class Seen(NamedTuple):
    """What fields of the form are completed with: names of properties, and conditions."""

    names: list[str]
    conditions: list[str]


class MessagePages:
    """Messages of streams."""

    def __init__(self, site: Site) -> None:
        self._site, self._ask = site, site.service.ask
        self._unsent = site.service.unsent
        self._downloading: set[Name] = set()  # users
        self.routes = [
            site.page(f"{ONE}/messages", self._bounded(self._show)),
            site.page(f"{ONE}/messages/download", self._download),
            site.page(f"{ONE}/messages/{{offset}}", self._bounded(self._one)),
            site.page(f"{ONE}/messages/{{offset}}/{{part}}", self._bounded(self._part)),
        ]

    def _bounded(self, page: ConsolePage) -> ConsolePage:
        """A page that is made as long as somebody waits for it, and read before there are more."""

        async def answer(request: Request) -> Response:
            user = visitor_of(request).name
            try:
                self._unsent.check(user)
            except Busy as busy:
                raise Refused(busy.reason, busy.details) from None
            return self._unsent.counted(await while_there(request, partial(page, request)), user)

        return answer

    async def _find(
        self,
        request: Request,
        stream: Found,
        words: Words,
        seconds: float,
        newest: int | None = None,
    ) -> FoundPage:
        """The next page of a search; see `FindMessages`.

        Raises:
            Busy: other searches of the same user are going on.
            Refused: see there; the login has ended.
        """
        asked = FindMessages(
            **stream.stream,
            words=tuple(words),
            seconds=seconds,
            turn_seconds=WAIT_SECONDS,
            newest=newest,
        )
        page = await self._ask(request, asked)
        if not self._site.sessions.goes_on(session_of(request)):
            raise Refused(Reason.ACCESS_REFUSED, "the login has ended")
        return page

    # -- searching

    async def _show(self, request: Request) -> Response:
        stream = await find_stream(self._site, request, Right.READ)
        arguments = (await self._ask(request, GetSettings(**stream.stream))).now
        form = read_search_form(request)
        values: dict[str, Any] = {
            **stream.values,
            "form": form,
            "starts": STARTS,
            "filter_names": filter_properties(arguments),
            "problem": None,
            "found": None,
            "seen": Seen([], []),
            "downloads": downloads,
        }
        status = 200  # also where the form is wrong: browsers complain of others
        try:
            values |= await self._searched(request, stream, form, arguments)
        except BadForm as problem:
            values["problem"] = problem
        except Busy as busy:
            values["problem"] = BadForm("", f"{busy.details}; wait for it, and search again")
            status = _TOO_MANY
        except Refused as refused:
            if refused.reason is Reason.ACCESS_REFUSED:
                raise
            if refused.reason is Reason.NOT_FOUND:
                raise NotFound from None
            values["problem"] = BadForm("", refused.details)
            if refused.reason is Reason.NOT_AVAILABLE:
                status = _NOT_AVAILABLE
        return await self._site.show(request, "messages.html", status, **values)

    async def _searched(
        self, request: Request, stream: Found, form: SearchForm, arguments: Mapping[str, Plain]
    ) -> dict[str, Any]:
        asked = await _worked_out(form, form.request, arguments)
        query = request.query_params
        if form.is_live and "next" in query:
            found = await self._follow(request, stream, form)
        else:
            found = await self._search(request, stream, form)
        page = found.page
        seen = Seen([], []) if is_poll(request) else _seen(page, form)
        return {
            "found": found,
            "seen": seen,
            "columns": [column.text() for column in form.properties],
            "asked_for": await _worked_out(form, _named_in, asked),
            "bar": bar_of(found.figures, page.num_chunks, page.size),
            "plan": await _worked_out(form, plan_of, asked, found.figures),
            "piece": self._address_of_next(stream, form, found),
            "tail": self._address(stream, form, next=page.end) if form.is_live else "",
            "num_passed": page.num_left if "next" in query else 0,
            "more": self._address(stream, form, after=page.after),
            "snippets": []
            if is_poll(request)
            else await self._snippets(request, stream, asked, form),
        }

    def _address(self, stream: Found, form: SearchForm, **more: object) -> str:
        address = ("streams", stream.vhost, stream.name, "messages")
        return self._site.url(*address, **form.query, **more)

    def _address_of_next(self, stream: Found, form: SearchForm, found: Search) -> str:
        """Where a script goes on in place; empty where it does not."""
        if found.outcome not in ("going", "stopped") or form.is_live:
            return ""
        so_far = found.figures
        if found.outcome == "stopped":
            so_far = replace(so_far, milliseconds=0)
        return self._address(stream, form, after=found.page.after, so_far=so_far)

    async def _search(self, request: Request, stream: Found, form: SearchForm) -> Search:
        query, limit = request.query_params, form.num_wanted
        after, before = query.get("after", ""), Figures.read(query.get("so_far", ""))
        seconds = FIRST_SECONDS
        if is_poll(request):
            limit -= before.found
            seconds = SECONDS
        elif after:
            seconds = PATIENT_SECONDS
        if form.is_live:
            limit = min(limit, TAIL)
        most = max(1, min(PIECE, limit) if is_poll(request) else limit)
        words = [*form.words(), ("limit", str(most)), *([("after", after)] if after else [])]
        began_at = trio.current_time()
        page = await self._find(request, stream, words, seconds)
        figures = before.plus(page, round((trio.current_time() - began_at) * 1000))
        if page.cut is None:
            outcome = "all"
        elif len(page.messages) >= limit:
            outcome = "limit"
        else:
            is_over = figures.milliseconds >= MAX_SECONDS * 1000
            outcome = "stopped" if is_over else "going"
        return await _search_of(form, figures, page, outcome)

    async def _follow(self, request: Request, stream: Found, form: SearchForm) -> Search:
        """What has come since the last turn of the tail, or some of it, the newest first."""
        begin = _offset(request.query_params["next"])
        words = [word for word in form.words() if word[0] != "order"]
        words += [("offset", str(begin)), ("limit", str(TAIL))]
        newest = None if form.has_conditions else TAIL
        page = await self._find(request, stream, words, TAIL_SECONDS, newest)
        page = msgspec.structs.replace(page, messages=page.messages[::-1])
        return await _search_of(form, Figures.read("").plus(page, 0), page, "going")

    async def _snippets(
        self, request: Request, stream: Found, asked: SearchRequest, form: SearchForm
    ) -> list[Snippet]:
        ports = (await self._ask(request, GetHealth())).ports
        where = Where(
            _host_of(request),
            ports.get("stream", 5552),
            ports.get("amqp", 5672),
            visitor_of(request).name,
            stream.vhost,
            stream.name,
        )
        return await _worked_out(form, snippets, where, form, asked)

    # -- one message

    async def _message(self, request: Request) -> tuple[Found, OneMessage]:
        stream = await find_stream(self._site, request, Right.READ)
        asked = GetMessage(
            **stream.stream,
            offset=_offset(request.path_params["offset"]),
            seconds=SECONDS,
            turn_seconds=WAIT_SECONDS,
        )
        return stream, await self._ask(request, asked)

    async def _one(self, request: Request) -> Response:
        stream, found = await self._message(request)
        message = found.message
        if message is None:
            return await self._site.show(
                request,
                "no_message.html",
                404,
                **stream.values,
                offset=_offset(request.path_params["offset"]),
                reason=found.reason,
            )
        names = found.filter_properties
        return await self._site.show(
            request,
            "message.html",
            **stream.values,
            message=message,
            full=await threads.compute(full_of, message.raw, request.query_params.get("as", "")),
            header=found.header,
            filter_values=await threads.compute(filter_values_of, message.raw, names),
            is_last=found.is_last,
        )

    async def _part(self, request: Request) -> Response:
        """The body, or all bytes of the message, to be kept in a file."""
        part = request.path_params["part"]
        if part not in ("body", "bytes"):
            raise NotFound
        stream, found = await self._message(request)
        message = found.message
        if message is None:
            raise Refused(Reason.NOT_AVAILABLE, found.reason)
        data = message.raw if part == "bytes" else await threads.compute(_body_of, message.raw)
        kind = "message" if part == "bytes" else "body"
        name = f"{stream.name}-{message.offset}-{kind}.bin"
        headers = {"content-disposition": _disposition(name, f"{message.offset}.bin")}
        return Response(data, headers=headers, media_type="application/octet-stream")

    # -- files

    async def _download(self, request: Request) -> Response:
        stream = await find_stream(self._site, request, Right.READ)
        kind = request.query_params.get("format", downloads.JSON_LINES)
        if kind not in downloads.MEDIA_TYPES:
            raise BadRequest(f"format is {kind[:40]!r}, expected jsonl or csv")
        form = read_search_form(request)._replace(is_live=False)
        try:
            form.request((await self._ask(request, GetSettings(**stream.stream))).now)
            words = form.words()
        except BadForm as problem:
            raise BadRequest(problem.reason) from None
        user = visitor_of(request).name
        if user in self._downloading:
            reason = f"a download of {user} is going on, there may be one at a time"
            raise Refused(Reason.NOT_AVAILABLE, reason)
        checked_by_parts(request)
        self._downloading.add(user)
        lines = self._lines(request, stream, words, kind)
        try:
            first = await anext(lines)  # so that what is refused becomes a page
        except BaseException:
            self._downloading.discard(user)
            raise
        disposition = _disposition(f"{stream.name}.{kind}", f"messages.{kind}")
        headers = {"content-disposition": disposition}
        done = partial(self._downloading.discard, user)
        kind = downloads.MEDIA_TYPES[kind]
        return _File(first, lines, done, headers=headers, media_type=kind)

    async def _lines(
        self, request: Request, stream: Found, words: Words, kind: str
    ) -> AsyncGenerator[bytes, None]:
        """The file, in pieces of a page each."""
        head, write, end = downloads.writers(kind)
        number = size = 0
        after, ends_at = "", trio.current_time() + downloads.MAX_SECONDS
        while True:
            most = min(_DOWNLOAD_PIECE, downloads.MAX_MESSAGES - number)
            more = [("limit", str(most)), *([("after", after)] if after else [])]
            try:
                page = await self._find(request, stream, [*words, *more], SECONDS)
            except Refused as refused:
                if not after:
                    raise
                yield end(refused.details, after)
                return
            pieces = [
                write(message)
                if len(message.raw) < _LARGE
                else await threads.compute(_write_large, write, message)
                async for message in in_turns(page.messages)
            ]
            number, size, after = number + len(pieces), size + sum(map(len, pieces)), page.after
            stopped = _stopped(number, size, trio.current_time() >= ends_at) if after else ""
            last = end(stopped, after) if stopped else b""
            data = b"".join([head, *pieces, last])
            with self._unsent.held(visitor_of(request).name, len(data)):
                for at in range(0, max(1, len(data)), _DOWNLOAD_BYTES):
                    yield data[at : at + _DOWNLOAD_BYTES]
            head = b""
            if stopped or not after:
                return


async def _search_of(form: SearchForm, figures: Figures, page: FoundPage, outcome: str) -> Search:
    columns = form.properties
    rows = [
        row_of(message, columns)
        if len(message.raw) < _LARGE
        else await threads.compute(row_of, message, columns)
        async for message in in_turns(page.messages)
    ]
    done = 1 - min(1.0, page.num_left / max(1, page.num_about))
    return Search(rows, figures, page, outcome, done)


def _seen(page: FoundPage, form: SearchForm) -> Seen:
    """What the messages of a page suggest to ask for next."""
    names: dict[str, int] = {}
    conditions: dict[str, None] = {}
    for message in page.messages[:_SEEN]:
        if len(message.raw) < _LARGE:
            for name, condition in conditions_of(message.raw):
                if condition not in conditions and names.get(name, 0) < _SEEN_VALUES:
                    names[name] = names.get(name, 0) + 1
                    conditions[condition] = None
    if len(form.sql) > _LONG or _OR.search(form.sql):  # it would be repeated; AND binds first
        return Seen(list(names), [])
    before = f"{form.sql} AND " if form.sql else ""
    return Seen(list(names), [before + condition for condition in conditions])


def _named_in(asked: SearchRequest) -> set[str]:
    """The names of the properties that a search asks for, as rows have them."""
    found = {*asked.properties} if asked.keys else set()
    if asked.filter_values:
        found |= {*asked.filter_properties[:1]}
    if asked.selector is not None:
        found |= {property_.text() for property_ in asked.selector.properties}
    return found


async def _worked_out(form: SearchForm, work: Callable[..., Result], *arguments: object) -> Result:
    """What follows from a form; in a thread where its selector is long."""
    if len(form.sql) + len(form.tags) < _LONG:
        return work(*arguments)
    return await threads.compute(work, *arguments)


def _write_large(write: downloads.Writer, message: FoundMessage) -> bytes:
    return write(message, is_large=len(message.raw) >= _IN_PIECES)


class _File(StreamingResponse):
    """A file that is made while it is sent.

    Args:
        done: is called when it was sent, or nobody wants it any more.
    """

    def __init__(
        self,
        first: bytes,
        lines: AsyncGenerator[bytes, None],
        done: Callable[[], None],
        **options: Any,  # noqa: ANN401
    ) -> None:
        async def pieces() -> AsyncGenerator[bytes, None]:
            yield first
            async for piece in lines:
                yield piece

        super().__init__(pieces(), **options)
        self._lines = lines
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See starlette."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._done()
            with trio.CancelScope(shield=True):
                await self._lines.aclose()


def _stopped(number: int, size: int, is_late: bool) -> str:
    """Why a file ends before all is in it; empty where it does not."""
    if number >= downloads.MAX_MESSAGES:
        return f"stopped after {downloads.MAX_MESSAGES:,} messages"
    if size >= downloads.MAX_BYTES:
        return f"stopped after {downloads.MAX_BYTES >> 20:,} MiB"
    return f"stopped after {downloads.MAX_SECONDS:.0f} seconds" if is_late else ""


def _offset(text: str) -> int:
    number = whole_number(text)
    if number is None:
        raise NotFound
    return min(number, MAX_OFFSET)


def _body_of(raw: bytes) -> bytes:
    """The body as bytes; an AMQP value that is neither text nor bytes as JSON."""
    view = MessageView(raw)
    value = view.value
    if value is None:
        return view.body
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode(errors="replace")
    return encoded_in_pieces(plain_value(value))


def _disposition(name: str, plain: str) -> str:
    """For a file that is kept, never shown; source: RFC 6266."""
    cleaned = "".join(c if c.isprintable() and c not in '/\\:*?"<>|' else "_" for c in name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(cleaned[-150:], safe='')}"


def _host_of(request: Request) -> str:
    try:
        return request.url.hostname or "localhost"
    except ValueError:
        return "localhost"

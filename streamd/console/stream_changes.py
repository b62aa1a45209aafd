"""Changes to a stream: its arguments, where it begins, stored offsets, selectors, its end."""

from datetime import UTC

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from segments.segment import MAX_OFFSET
from segments.selector import TAGS, Dialect
from segments.times import moment_ms
from segments.words import whole_number
from streamd.console.forms import Form
from streamd.console.site import Site
from streamd.console.stream import ONE, Found, find_stream
from streamd.console.stream_arguments import groups
from streamd.http_api.messages import BadRequest
from streamd.operations import arguments as a, streams as s
from streamd.operations.errors import Reason, Refused
from streamd.operations.rights import Right
from streamd.operations.stream_views import GetSettings, GetStream

_BAD_REQUEST = 400
_WAS = "was-"  # before the name of an argument: what the form showed
_FORGET, _UNDO = "forget", "undo"  # ways to change a stored offset
DIALECTS = (TAGS, *Dialect)


class StreamChanges:
    """Changes to a stream."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._ask = site.service.ask
        self.routes = [
            site.page(f"{ONE}/change", self._ask_change),
            site.action(f"{ONE}/change", self._change),
            site.page(f"{ONE}/truncate", self._ask_truncate),
            site.action(f"{ONE}/truncate", self._truncate),
            site.page(f"{ONE}/delete", self._ask_delete),
            site.action(f"{ONE}/delete", self._delete),
            site.action(f"{ONE}/offsets", self._move_offset),
            site.action(f"{ONE}/selectors", self._change_selector),
        ]

    async def _found(self, request: Request, right: Right = Right.CONFIGURE) -> Found:
        return await find_stream(self._site, request, right)

    def _back(self, request: Request, found: Found, notice: str) -> Response:
        return self._site.go(request, self._site.url("streams", found.vhost, found.name), notice)

    # -- arguments

    async def _ask_change(self, request: Request) -> Response:
        return await self._show_change(request, await self._found(request))

    async def _show_change(
        self,
        request: Request,
        found: Found,
        typed: dict[str, str] | None = None,
        problem: str = "",
    ) -> Response:
        settings = await self._ask(request, GetSettings(**found.stream))
        now = a.as_text(settings.now)
        asked = {key: request.query_params[key] for key in a.SETTINGS & request.query_params.keys()}
        return await self._site.show(
            request,
            "change_stream.html",
            _BAD_REQUEST if problem else 200,
            **found.values,
            groups=list(groups(a.SETTINGS.__contains__)),
            values=now | (asked if typed is None else typed),
            shown=now,
            problem=problem,
        )

    async def _change(self, request: Request, form: Form) -> Response:
        found = await self._found(request)
        changes = {
            key: text
            for key in sorted(a.SETTINGS)
            if form.has(key) and (text := a.as_typed(key, form.text(key))) != form.text(_WAS + key)
        }
        if not changes:
            return self._back(request, found, "Nothing was changed.")
        was = {key: form.text(_WAS + key) for key in changes}
        try:
            await self._ask(request, s.SetArguments(**found.stream, arguments=changes, was=was))
        except Refused as refused:
            if refused.reason is not Reason.PRECONDITION_FAILED:
                raise
            return await self._show_change(request, found, changes, refused.details)
        notice = f"Changed, from the next chunk on: {', '.join(changes)}."
        return self._back(request, found, notice)

    # -- truncating

    async def _ask_truncate(self, request: Request) -> Response:
        return await self._show_truncate(request, await self._found(request), {})

    async def _show_truncate(
        self, request: Request, found: Found, values: dict[str, str], problem: str = ""
    ) -> Response:
        details = await self._ask(request, GetStream(**found.stream))
        if details.figures is None:
            raise Refused(Reason.NOT_AVAILABLE, details.trouble or found.name)
        return await self._site.show(
            request,
            "truncate_stream.html",
            _BAD_REQUEST if problem else 200,
            **found.values,
            figures=details.figures,
            values=values,
            problem=problem,
        )

    async def _truncate(self, request: Request, form: Form) -> Response:
        found = await self._found(request)
        problem = "" if form.raw("name") == found.name else _OTHER_NAME
        try:
            asked = _truncation(found, form.text("before"))
        except BadRequest as error:
            problem = str(error)
        if problem:
            return await self._show_truncate(request, found, form.values(), problem)
        first = (await self._ask(request, asked)).first_offset
        return self._back(request, found, f"The stream begins at offset {first:,} now.")

    # -- deleting

    async def _ask_delete(self, request: Request) -> Response:
        return await self._show_delete(request, await self._found(request))

    async def _show_delete(self, request: Request, found: Found, problem: str = "") -> Response:
        details = await self._ask(request, GetStream(**found.stream))
        return await self._site.show(
            request,
            "delete_stream.html",
            _BAD_REQUEST if problem else 200,
            **found.values,
            figures=details.figures,
            problem=problem,
        )

    async def _delete(self, request: Request, form: Form) -> Response:
        found = await self._found(request)
        if form.raw("name") != found.name:
            return await self._show_delete(request, found, _OTHER_NAME)
        await self._ask(request, s.DeleteStream(**found.stream))
        notice = f"The stream {found.name} was deleted."
        return self._site.go(request, self._site.url("streams"), notice)

    # -- stored offsets

    async def _move_offset(self, request: Request, form: Form) -> Response:
        """Ask whether a stored offset is to be changed; when that was said, change it."""
        found, way = await self._found(request, Right.READ), form.text("way")
        asked = _move(found, form.raw("reference"), way, form.text("offset"))
        is_done, problem = form.has("sure"), ""
        if is_done:
            try:
                sure = replace(asked, dry_run=False, force=form.has("force"))
                moved: s.Moved = await self._ask(request, sure)
            except Refused as refused:
                if refused.reason is not Reason.PRECONDITION_FAILED:
                    raise
                is_done, problem = False, refused.details
        if not is_done:
            moved = await self._ask(request, asked)
        return await self._site.show(
            request,
            "move_offset.html",
            _BAD_REQUEST if problem else 200,
            **found.values,
            moved=moved,
            is_done=is_done,
            way=way,
            typed=form.text("offset"),
            reference=asked.name,
            problem=problem,
        )

    # -- standing selectors

    async def _change_selector(self, request: Request, form: Form) -> Response:
        found, group = await self._found(request), form.text("group")
        if form.has("delete"):
            await self._ask(request, s.DeleteSelector(**found.stream, group=form.raw("group")))
            return self._back(request, found, f"The selector of {group} was removed.")
        dialect, text = form.text("dialect"), form.text("text")
        asked = s.AddSelector(**found.stream, group=group, dialect=dialect, text=text)
        await self._ask(request, asked)
        return self._back(request, found, f"The selector of {group} was registered.")


_OTHER_NAME = "the name is not that of the stream: nothing was done"


def _number(text: str) -> int:
    number = whole_number(text, most=MAX_OFFSET)
    if number is not None:
        return number
    raise BadRequest(f"the offset is {text[:40]!r}, expected a whole number up to {MAX_OFFSET}")


def _move(found: Found, name: str, way: str, text: str) -> s.SetOffset | s.DeleteOffset:
    """What is to become of a stored offset; nothing is done yet.

    Args:
        found: the stream.
        name: of the consumer.
        way: forget, undo, or set to what is said.
        text: an offset, so many messages further or back as in +10 or -10, a time, or the name of
            another consumer.
    """
    if way == _FORGET:
        return s.DeleteOffset(vhost=found.vhost, stream=found.name, name=name, dry_run=True)
    move = s.SetOffset(vhost=found.vhost, stream=found.name, name=name, dry_run=True)
    if way == _UNDO:
        return replace(move, undo=True)
    sign, number = text[:1], text[1:]
    if sign in {"+", "-"} and number.isascii() and number.isdigit():
        return replace(move, by=_number(number) * (1 if sign == "+" else -1))
    if text.isascii() and text.isdigit():
        return replace(move, offset=_number(text))
    ms = moment_ms(text, UTC)
    if ms is not None:
        return replace(move, timestamp=max(0, ms))
    if not text:
        raise BadRequest("expected an offset, +N or -N, a time, or the name of another consumer")
    return replace(move, like=text)


def _truncation(found: Found, place: str) -> s.TruncateStream:
    """To an offset, or a time."""
    if place.isascii() and place.isdigit():
        return s.TruncateStream(vhost=found.vhost, stream=found.name, offset=_number(place))
    ms = moment_ms(place, UTC)
    if ms is None:
        expected = "an offset, or a time as in 2026-11-20T10:00:00Z"
        raise BadRequest(f"the place is {place[:40]!r}, expected {expected}")
    return s.TruncateStream(vhost=found.vhost, stream=found.name, timestamp=max(0, ms))

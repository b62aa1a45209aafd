"""Changes to a stream: its arguments, where it begins, stored offsets, selectors, its end."""

from datetime import UTC
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from segments.segment import MAX_OFFSET
from segments.selector import TAGS, Dialect
from segments.times import moment_ms
from segments.words import whole_number
from streamd.broker.catalog.writer import Check
from streamd.broker.declared import arguments as a
from streamd.broker.virtual_host import VirtualHost
from streamd.console.forms import Form
from streamd.console.site import Site
from streamd.console.stream import ONE, find_name
from streamd.console.stream_arguments import as_text, groups
from streamd.http_api.caller import caller_of
from streamd.http_api.messages import BadRequest
from streamd.operations import streams as s
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name
from streamd.operations.rights import Right

_BAD_REQUEST = 400
_WAS = "was-"  # before the name of an argument: what the form showed
DIALECTS = (TAGS, *Dialect)


class StreamChanges:
    """Changes to a stream."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._hosts = site.service.broker.virtual_hosts
        self._ask = site.service.ask
        self.routes = [
            site.page(f"{ONE}/change", self._ask_change),
            site.action(f"{ONE}/change", self._change),
            site.page(f"{ONE}/truncate", self._ask_truncate),
            site.action(f"{ONE}/truncate", self._truncate),
            site.page(f"{ONE}/delete", self._ask_delete),
            site.action(f"{ONE}/delete", self._delete),
            site.action(f"{ONE}/offsets", self._set_offset),
            site.action(f"{ONE}/selectors", self._change_selector),
        ]

    def _found(self, request: Request, right: Right) -> tuple[VirtualHost, Name, Check]:
        """The stream in the path, and what raises Refused once the user has lost the right to it.

        Raises:
            NotFound, Refused: see `find_name`; the user has not the right.
        """
        host, name = find_name(self._hosts, request)
        check = partial(caller_of(request).rights(host.name).require, right, name)
        check()
        return host, name, check

    def _back(self, request: Request, host: VirtualHost, name: Name, notice: str) -> Response:
        return self._site.go(request, self._site.url("streams", host.name, name), notice)

    # -- arguments

    async def _ask_change(self, request: Request) -> Response:
        host, name, _ = self._found(request, Right.CONFIGURE)
        return await self._show_change(request, host, name)

    async def _show_change(
        self,
        request: Request,
        host: VirtualHost,
        name: Name,
        typed: dict[str, str] | None = None,
        problem: str = "",
    ) -> Response:
        now = as_text(host.row(name).effective)
        asked = {key: request.query_params[key] for key in a.SETTINGS & request.query_params.keys()}
        return await self._site.show(
            request,
            "change_stream.html",
            _BAD_REQUEST if problem else 200,
            vhost=host.name,
            name=name,
            groups=list(groups(a.SETTINGS.__contains__)),
            values=now | (asked if typed is None else typed),
            shown=now,
            problem=problem,
        )

    async def _change(self, request: Request, form: Form) -> Response:
        host, name, check = self._found(request, Right.CONFIGURE)
        changes = {
            key: text
            for key in sorted(a.SETTINGS)
            if form.has(key) and (text := form.text(key)) != form.text(_WAS + key)
        }

        def check_same() -> None:
            check()
            now = as_text(host.row(name).effective)
            for key, text in changes.items():
                found = now.get(key, "")
                if found not in (text, form.text(_WAS + key)):
                    raise Refused(
                        Reason.PRECONDITION_FAILED,
                        f"somebody else has changed {key} meanwhile, to "
                        f"{found or 'the default'}: nothing was changed",
                    )

        if not changes:
            return self._back(request, host, name, "Nothing was changed.")
        try:
            await host.settings.set_arguments(name, changes.items(), check_same)
        except Refused as refused:
            if refused.reason is not Reason.PRECONDITION_FAILED:
                raise
            return await self._show_change(request, host, name, changes, refused.details)
        notice = f"Changed, from the next chunk on: {', '.join(changes)}."
        return self._back(request, host, name, notice)

    # -- truncating

    async def _ask_truncate(self, request: Request) -> Response:
        host, name, _ = self._found(request, Right.CONFIGURE)
        return await self._show_truncate(request, host, name, {})

    async def _show_truncate(
        self,
        request: Request,
        host: VirtualHost,
        name: Name,
        values: dict[str, str],
        problem: str = "",
    ) -> Response:
        figures = await host.find(name).read_figures()
        return await self._site.show(
            request,
            "truncate_stream.html",
            _BAD_REQUEST if problem else 200,
            vhost=host.name,
            name=name,
            figures=figures,
            values=values,
            problem=problem,
        )

    async def _truncate(self, request: Request, form: Form) -> Response:
        host, name, _ = self._found(request, Right.CONFIGURE)
        problem = "" if form.raw("name") == name else _OTHER_NAME
        try:
            asked = _truncation(host.name, name, form.text("before"))
        except BadRequest as error:
            problem = str(error)
        if problem:
            return await self._show_truncate(request, host, name, form.values(), problem)
        first = (await self._ask(request, asked)).first_offset
        return self._back(request, host, name, f"The stream begins at offset {first:,} now.")

    # -- deleting

    async def _ask_delete(self, request: Request) -> Response:
        host, name, _ = self._found(request, Right.CONFIGURE)
        return await self._show_delete(request, host, name)

    async def _show_delete(
        self, request: Request, host: VirtualHost, name: Name, problem: str = ""
    ) -> Response:
        stream = host.get_stream(name)
        return await self._site.show(
            request,
            "delete_stream.html",
            _BAD_REQUEST if problem else 200,
            vhost=host.name,
            name=name,
            figures=stream.figures if stream else None,
            problem=problem,
        )

    async def _delete(self, request: Request, form: Form) -> Response:
        host, name, _ = self._found(request, Right.CONFIGURE)
        if form.raw("name") != name:
            return await self._show_delete(request, host, name, _OTHER_NAME)
        await self._ask(request, s.DeleteStream(vhost=host.name, stream=name))
        return self._site.go(request, self._site.url("streams"), f"The stream {name} was deleted.")

    # -- stored offsets

    async def _set_offset(self, request: Request, form: Form) -> Response:
        host, name, _ = self._found(request, Right.READ)
        ends, reference = {"vhost": host.name, "stream": name}, form.raw("reference")
        if form.has("forget"):
            await self._ask(request, s.DeleteOffset(**ends, name=reference))
            notice = f"The stored offset of {reference} is forgotten."
        else:
            offset = _number(form.text("offset"))
            await self._ask(request, s.SetOffset(**ends, name=reference, offset=offset))
            notice = f"The stored offset of {reference} is {offset:,} now."
        return self._back(request, host, name, notice)

    # -- standing selectors

    async def _change_selector(self, request: Request, form: Form) -> Response:
        host, name, _ = self._found(request, Right.CONFIGURE)
        ends, group = {"vhost": host.name, "stream": name}, form.text("group")
        if form.has("delete"):
            await self._ask(request, s.DeleteSelector(**ends, group=form.raw("group")))
            return self._back(request, host, name, f"The selector of {group} was removed.")
        dialect, text = form.text("dialect"), form.text("text")
        await self._ask(request, s.AddSelector(**ends, group=group, dialect=dialect, text=text))
        return self._back(request, host, name, f"The selector of {group} was registered.")


_OTHER_NAME = "the name is not that of the stream: nothing was done"


def _number(text: str) -> int:
    number = whole_number(text, most=MAX_OFFSET)
    if number is not None:
        return number
    raise BadRequest(f"the offset is {text[:40]!r}, expected a whole number up to {MAX_OFFSET}")


def _truncation(vhost: Name, stream: Name, place: str) -> s.TruncateStream:
    """To an offset, or a time."""
    if place.isascii() and place.isdigit():
        return s.TruncateStream(vhost=vhost, stream=stream, offset=_number(place))
    ms = moment_ms(place, UTC)
    if ms is None:
        expected = "an offset, or a time as in 2026-11-20T10:00:00Z"
        raise BadRequest(f"the place is {place[:40]!r}, expected {expected}")
    return s.TruncateStream(vhost=vhost, stream=stream, timestamp=max(0, ms))

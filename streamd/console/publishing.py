"""Publishing a message to a stream, or one that is there once more."""

import binascii
import json
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from segments.amqp10 import Value
from segments.errors import FormatError
from segments.message import Message, MessageView, Properties
from segments.message_json import plain_value, properties_of
from segments.segment import MAX_OFFSET
from segments.times import moment
from segments.words import whole_number
from streamd.console.forms import Form
from streamd.console.site import Site
from streamd.console.stream import ONE, Found, find_stream
from streamd.http_api.messages import BadRequest, NotFound
from streamd.net import threads
from streamd.operations.arguments import filter_properties
from streamd.operations.errors import Reason, Refused
from streamd.operations.publishing import PublishMessage
from streamd.operations.rights import Right
from streamd.operations.searching import GetMessage
from streamd.operations.stream_views import GetSettings

_BAD_REQUEST, _NOT_AVAILABLE = 400, 503
_FORM_BYTES = 256 << 10
_MOST_TYPED = 32 << 10  # bytes of a body, or of properties, that are laid out in a form
_SECONDS = 5.0  # of looking for a message
_TEXT, _BASE64, _KEPT = "text", "base64", "kept"
_FIXED = tuple(item.name for item in fields(Properties))
_TIMES = frozenset({"absolute_expiry_time", "creation_time"})
_NUMBERED = frozenset({"message_id", "correlation_id", "group_sequence"})
_FILTER_VALUE = "x-stream-filter-value"  # an annotation of messages that came over AMQP
# What a form does not bring back as it was.
_UNTYPED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]")


class PublishPages:
    """The form for a message."""

    def __init__(self, site: Site) -> None:
        self._site, self._ask = site, site.service.ask
        self.routes = [
            site.page(f"{ONE}/publish", self._show_form),
            site.action(f"{ONE}/publish", self._publish, most=_FORM_BYTES),
        ]

    async def _show_form(self, request: Request) -> Response:
        stream = await find_stream(self._site, request, Right.WRITE)
        again = request.query_params.get("again", "")
        raw = await self._stored(request, stream, again)
        try:
            values = {} if raw is None else await threads.compute(_values, raw)
        except FormatError as error:
            details = f"message {again} cannot be published again: {error}"
            raise Refused(Reason.PRECONDITION_FAILED, details) from None
        return await self._show(request, stream, {**values, "again": again}, raw)

    async def _show(
        self,
        request: Request,
        stream: Found,
        values: Mapping[str, str],
        raw: bytes | None,
        problem: str = "",
        status: int = 200,
    ) -> Response:
        names: tuple[str, ...] = ()
        if stream.rights.may_read:
            names = filter_properties((await self._ask(request, GetSettings(**stream.stream))).now)
        return await self._site.show(
            request,
            "publish.html",
            status,
            **stream.values,
            values=values,
            size=None if raw is None else len(MessageView(raw).body),
            filter_names=names,
            problem=problem,
        )

    async def _publish(self, request: Request, form: Form) -> Response:
        stream = await find_stream(self._site, request, Right.WRITE)
        raw = await self._stored(request, stream, form.text("again"))
        try:
            message = await threads.compute(_message, form, raw)
            value = form.raw("filter").encode()
            asked = PublishMessage(**stream.stream, message=message, filter_value=value)
            offset = (await self._ask(request, asked)).offset
        except BadRequest as error:
            return await self._show(request, stream, form.values(), raw, str(error), _BAD_REQUEST)
        except Refused as refused:
            status = _NOT_AVAILABLE if refused.reason is Reason.NOT_AVAILABLE else _BAD_REQUEST
            if refused.reason not in (Reason.NOT_AVAILABLE, Reason.PRECONDITION_FAILED):
                raise
            return await self._show(request, stream, form.values(), raw, refused.details, status)
        address = ["streams", stream.vhost, stream.name]
        if stream.rights.may_read:
            address += ["messages", str(offset)]
        notice = f"Published at offset {offset:,}."
        return self._site.go(request, self._site.url(*address), notice)

    async def _stored(self, request: Request, stream: Found, again: str) -> bytes | None:
        """The message that is to be published again, as it is stored; None for a new one."""
        if not again:
            return None
        offset = whole_number(again, most=MAX_OFFSET)
        if offset is None:
            raise NotFound
        asked = GetMessage(**stream.stream, offset=offset, seconds=_SECONDS, turn_seconds=_SECONDS)
        found = await self._ask(request, asked)
        if found.message is None:
            raise Refused(Reason.NOT_AVAILABLE, found.reason)
        return found.message.raw


def _values(raw: bytes) -> dict[str, str]:
    """The form filled with a message.

    Raises:
        FormatError: a part of it cannot be read.
    """
    view = MessageView(raw)
    text = None if view.value is not None else _typed(view.body)
    given = view.annotations.get(_FILTER_VALUE)
    return {
        "form": _KEPT if text is None else _TEXT,
        "body": text or "",
        "properties": _laid_out(_plain(view.application_properties)),
        "fixed": _laid_out(_plain(_fixed_of(view.properties))),
        "filter": given if isinstance(given, str) else "",
    }


def _typed(body: bytes) -> str | None:
    """A body as it can be typed; None where a form would not bring it back byte for byte."""
    try:
        text = body.decode() if len(body) <= _MOST_TYPED else None
    except UnicodeDecodeError:
        return None
    return None if text is None or _UNTYPED.search(text) else text


def _fixed_of(properties: Properties) -> dict[str, Value]:
    found = {name: getattr(properties, name) for name in _FIXED}
    return {name: value for name, value in found.items() if value is not None}


def _plain(values: Mapping[str, Value]) -> dict[str, Any]:
    """Properties as JSON that a form shows."""
    plain: dict[str, Any] = plain_value(dict(values))
    return plain


def _laid_out(values: Mapping[str, Any]) -> str:
    if not values:
        return ""
    text = json.dumps(values, indent=2, ensure_ascii=False)
    if len(text.encode()) > _MOST_TYPED:
        raise FormatError("its properties are too long for a form")
    return text


def _message(form: Form, raw: bytes | None) -> bytes:
    """The message that a form stands for; the stored one itself where nothing was changed.

    Values that were not changed keep the types that they have in the stored one.

    Raises:
        BadRequest: the form stands for none.
    """
    try:
        view = None if raw is None else MessageView(raw)
        stored = Message() if view is None else view.to_message()
        body = _body(form, view)
        free = _object(form, "properties", "the application properties")
        fixed = _object(form, "fixed", "the properties")
        was_free, was_fixed = stored.application_properties, _fixed_of(stored.properties)
        is_same = body is None and free == _json(was_free) and fixed == _json(was_fixed)
        if raw is not None and is_same:
            return raw
        if body is not None:
            stored.body, stored.value = body, None
        stored.application_properties = _merged(free, was_free, properties_of)
        stored.properties = Properties(**_merged(fixed, was_fixed, _read_fixed))
        return stored.encode()
    except FormatError as error:
        raise BadRequest(f"the stored message cannot be read: {error}") from None
    except UnicodeEncodeError:
        raise BadRequest("content_type and content_encoding are ASCII") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise BadRequest(f"what was typed cannot be published: {error}") from None


def _body(form: Form, view: MessageView | None) -> bytes | None:
    """The body that was typed; None where it is to be that of the stored message."""
    kind, typed = form.text("form"), form.raw("body")
    if kind == _KEPT and view is not None:
        if typed:
            raise BadRequest("say that the body is text or base64, or leave it empty to keep it")
        return None
    if kind == _BASE64:
        try:
            return b64decode("".join(typed.split()), validate=True)
        except (binascii.Error, ValueError):
            raise BadRequest("the body is not base64") from None
    body = typed.encode()
    return None if view is not None and view.value is None and body == view.body else body


def _object(form: Form, name: str, what: str) -> dict[str, Any]:
    text = form.text(name)
    try:
        found = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        where = f"{error.msg} in line {error.lineno}, column {error.colno}"
        raise BadRequest(f"{what} are not JSON: {where}") from None
    except (ValueError, RecursionError):
        raise BadRequest(f"{what} are not JSON: a number is too long, or nested too deep") from None
    if not isinstance(found, dict):
        raise BadRequest(f'{what} are not a JSON object, as {{"region": "EU"}}')
    return found


def _json(values: Mapping[str, Value]) -> Any:  # noqa: ANN401 - JSON
    return json.loads(json.dumps(_plain(values)))


def _merged(typed: dict[str, Any], stored: Mapping[str, Value], read: Any) -> dict[str, Any]:  # noqa: ANN401
    """What was typed, with the stored values where they were left as they are."""
    shown = _json(stored)
    same = {n for n, v in typed.items() if n in shown and _is_same(v, shown[n])}
    known = {str(name): value for name, value in stored.items()}
    fresh = read({name: value for name, value in typed.items() if name not in same})
    return {name: known[name] if name in same else fresh[name] for name in typed}


def _is_same(one: object, other: object) -> bool:
    return json.dumps(one) == json.dumps(other)  # 1, 1.0 and true are different


def _read_fixed(typed: dict[str, Any]) -> dict[str, Any]:
    return {name: _read_one(name, value) for name, value in typed.items()}


def _read_one(name: str, value: Any) -> Any:  # noqa: ANN401 - JSON
    if name not in _FIXED:
        raise BadRequest(f"{name[:40]!r} is no property; those are {', '.join(_FIXED)}")
    if name in _TIMES:
        found = moment(value, UTC) if isinstance(value, str) else None
        if found is None:
            raise BadRequest(f"{name} is no time, as 2026-11-21T09:00:00Z")
        return found
    if name in _NUMBERED and isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str) or name == "group_sequence":
        kind = "a number" if name == "group_sequence" else "a text"
        raise BadRequest(f"the property {name} is not {kind}")
    return value.encode() if name == "user_id" else value

"""Requests to the management node and answers, as messages.

Source: OASIS HTTP over AMQP 1.0, working draft 6; rabbitmq/rabbitmq-server,
deps/rabbit/src/rabbit_amqp_management.erl.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import NamedTuple

from segments.amqp10 import Opaque, Symbol, section_code, skip_value
from segments.amqp10_codes import LISTS, NULL, Section
from segments.errors import FormatError
from streamd.wire.amqp10.errors import Condition, SessionFault
from streamd.wire.amqp10.values import Exact, read_value, write_value

_REPLY_TO = "$me"
_TO, _SUBJECT, _REPLY, _CORRELATION_ID = 2, 3, 4, 5  # places among properties
SHOWN = 40  # characters of what is refused


class Response(NamedTuple):
    """An answer; its body is null where there is nothing to say."""

    status: HTTPStatus
    body: Exact = None


class Request(NamedTuple):
    """A request.

    Attributes:
        message_id: as it was sent.
        body: null where there is none.
    """

    message_id: Opaque
    method: str
    target: str
    body: Exact

    @property
    def shown(self) -> str:
        """For people."""
        return ascii(f"{self.method} {self.target}"[: 2 * SHOWN])


class Failed(Exception):
    """A request that cannot be carried out, and why."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def bad(text: str) -> Failed:
    """A request that is wrong in itself."""
    return Failed(HTTPStatus.BAD_REQUEST, text)


class Fields:
    """The body of a request: a map of fields by their names.

    Args:
        what: a field is, for errors.
    """

    def __init__(self, what: str, body: Exact) -> None:
        if not isinstance(body, dict):
            raise bad(f"the body is no map: expected one with a name for each {what}")
        self._what = what
        self._left = dict(body)

    def has(self, name: str) -> bool:
        """Whether it is there."""
        return name in self._left

    def flag(self, name: str, *, default: bool) -> bool:
        """A boolean."""
        value = self._left.pop(name, default)
        if not isinstance(value, bool):
            raise self._refuse(name, value)
        return value

    def text(self, name: str, *, default: str | None = None) -> str:
        """A string."""
        value = self._left.pop(name, default)
        if type(value) is not str and value is not default:
            raise self._refuse(name, value)
        if value is None:
            raise bad(f"missing {self._what} {name!r}")
        return str(value)

    def arguments(self) -> Mapping[str, object]:
        """The arguments; their names may be strings or symbols."""
        value = self._left.pop("arguments", {})
        if not isinstance(value, dict):
            raise self._refuse("arguments", value)
        for name in value:
            if not isinstance(name, str):
                raise bad(f"unsupported argument {name!r:.40}: expected a string or a symbol")
        return {str(name): _plain(one) for name, one in value.items()}

    def finish(self) -> None:
        """Raise where there is a field that was not asked for."""
        for name, value in self._left.items():
            raise self._refuse(name, value)

    def _refuse(self, name: Exact, value: Exact) -> Failed:
        return bad(f"bad {self._what} {name!r:.40}: {value!r:.40}")


def _plain(value: Exact) -> object:
    return str(value) if isinstance(value, Symbol) else value


def read_request(message: bytes) -> Request:
    """The request in a message.

    Raises:
        SessionFault: there is none.
    """
    found: dict[int, Exact] = {}
    message_id, position = bytes((NULL,)), 0
    try:
        while position < len(message):
            code, at = section_code(message, position)
            position = skip_value(message, at)
            if code in (Section.PROPERTIES, Section.VALUE):
                found[code], _ = read_value(message, at)
            if code == Section.PROPERTIES:
                first = at + 1 + 2 * LISTS[message[at]]  # or else it is no list
                if found[code]:
                    message_id = message[first : skip_value(message, first)]
    except (FormatError, IndexError, KeyError) as error:
        raise SessionFault(Condition.DECODE_ERROR, f"a request is damaged: {error}") from error
    properties = [*found.get(Section.PROPERTIES, []), *[None] * _CORRELATION_ID]
    target, method = properties[_TO], properties[_SUBJECT]
    if properties[_REPLY] != _REPLY_TO or type(target) is not str or type(method) is not str:
        expected = f"the path in 'to', the method in 'subject' and {_REPLY_TO} in 'reply-to'"
        raise SessionFault(Condition.INVALID_FIELD, f"a request needs {expected}, as strings")
    return Request(Opaque(message_id), method, target, found.get(Section.VALUE))


def write_response(request: Request, response: Response) -> bytes:
    """The message that answers a request."""
    properties: list[Exact] = [None] * (_CORRELATION_ID + 1)
    properties[_SUBJECT] = str(int(response.status))
    properties[_CORRELATION_ID] = request.message_id
    sections = (
        (Section.PROPERTIES, properties),
        (Section.APPLICATION_PROPERTIES, {"http:response": "1.1"}),
        (Section.VALUE, response.body),
    )
    return b"".join(bytes((0, 0x53, code)) + write_value(value) for code, value in sections)

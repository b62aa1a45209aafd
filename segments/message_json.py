"""Messages as JSON: what `streamd consume`, `find`, HTTP and the console show, and publish."""

import base64
import json
import math
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from segments.amqp10 import Opaque, Value
from segments.errors import FormatError
from segments.message import Message, MessageView


def message_json(message: MessageView, offset: int, timestamp_ms: int) -> dict[str, Any]:
    """A message as one JSON object.

    Args:
        message: what it holds.
        offset: of it.
        timestamp_ms: when its chunk was written, in ms since 1970.
    """
    timestamp = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    found: dict[str, Any] = {"offset": offset, "timestamp": _time(timestamp)}
    for part in (_content, _application_properties, _fixed_properties):
        try:
            found |= part(message)
        except FormatError as error:
            found |= {"damaged": str(error), "raw": base64.b64encode(message.raw).decode()}
    return found


def _content(message: MessageView) -> dict[str, Any]:
    if message.value is not None:
        return {"value": plain_value(message.value)}
    try:
        return {"body": message.body.decode()}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(message.body).decode(), "encoding": "base64"}


def _application_properties(message: MessageView) -> dict[str, Any]:
    return {"properties": plain_value(message.application_properties)}


def _fixed_properties(message: MessageView) -> dict[str, Any]:
    fixed = {
        item.name: plain_value(value)
        for item in fields(message.properties)
        if (value := getattr(message.properties, item.name)) is not None
    }
    return {"message_properties": fixed} if fixed else {}


def plain_value(value: Any) -> Any:  # noqa: ANN401, PLR0911 - of any AMQP type
    """An AMQP value as a JSON value."""
    if isinstance(value, dict):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_value(item) for item in value]
    if isinstance(value, Opaque):
        return value.raw.hex()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return _time(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such numbers
    return value


def _time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_SHOWN_CHARACTERS = 60  # of a number that is too large


def message_of(found: dict[str, Any]) -> Message:
    """The message that a JSON object stands for: its key "body", all others its properties.

    Raises:
        ValueError: it cannot be published; says what it has.
    """
    body = found.get("body", "")
    text = body if isinstance(body, str) else json.dumps(body)
    others = {key: value for key, value in found.items() if key != "body"}
    return Message(_whole(text).encode(), application_properties=properties_of(others))


def properties_of(found: dict[str, Any]) -> dict[str, Value]:
    """The application properties that a JSON object stands for; what is nested becomes JSON.

    Raises:
        ValueError: one cannot be published; says what it has.
    """
    return {_whole(key): _simple(value) for key, value in found.items()}


def _simple(value: Any) -> Value:  # noqa: ANN401 - whatever JSON holds
    if isinstance(value, list | dict):
        value = json.dumps(value)
    if isinstance(value, str):
        return _whole(value)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        text = str(value)
        if len(text) > _SHOWN_CHARACTERS:
            text = f"{text[:_SHOWN_CHARACTERS]}…"
        raise ValueError(f"has the number {text}, which does not fit into 64 bits")
    found: Value = value
    return found


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"has half a character, {text[error.start]!r}") from None
    return text

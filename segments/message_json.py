"""Messages as JSON: what `streamd consume` and `find` print, and what the HTTP API answers."""

import base64
import math
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from segments.amqp10 import Opaque
from segments.errors import FormatError
from segments.message import MessageView


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

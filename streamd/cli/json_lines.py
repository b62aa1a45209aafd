"""The log as objects in JSON, one in a line: `log_format = "json"`.

Keys: time (UTC), level, logger and message; where they apply stream, connection (its peer), user,
vhost, protocol and exception (a traceback in one string). Everything is ASCII with escapes, so no
name can end a line.
"""

import json
import logging
import re
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from streamd.cli.log_lines import END, START, TRACEBACK, shortened
from streamd.net.actor import actor
from streamd.net.transport import Address

logger = logging.getLogger("streamd")

_STREAM = re.compile(r"\bstream %s")  # in a template, which is ours


class JsonLine(logging.Formatter):
    """Each record as one object in one line."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": shortened(record.getMessage(), START, END),
            **dict(_subjects(record)),
        }
        if record.exc_info:
            text = self.formatException(record.exc_info)
            fields["exception"] = shortened(text, TRACEBACK // 2, TRACEBACK // 2)
        return json.dumps({key: _as_unicode(text) for key, text in fields.items()})


def _subjects(record: logging.LogRecord) -> Iterator[tuple[str, str]]:
    """What a record is about: the stream by its template and its values, and the peer."""
    found_actor = actor()
    if found_actor is not None:
        yield "connection", found_actor.peer
        yield "protocol", found_actor.protocol
        if found_actor.user:
            yield "user", found_actor.user
        if found_actor.virtual_host:
            yield "vhost", found_actor.virtual_host
    template, values = str(record.msg), record.args
    if not isinstance(values, tuple):
        return
    found = _STREAM.search(template)
    place = template.count("%", 0, found.start()) if found else len(values)
    if place < len(values):
        yield "stream", shortened(str(values[place]), START, END)
    peer = next((str(value) for value in values if isinstance(value, Address)), None)
    if peer is not None:
        yield "connection", peer


def _as_unicode(text: str) -> str:
    """A text with halves of surrogate pairs as in Python: strict readers take no line with one."""
    return text.encode(errors="backslashreplace").decode()


def log_as_json() -> None:
    """Write the log as JSON from now on, with Python's warnings and faults nobody can catch."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLine())
    logging.basicConfig(handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    threading.excepthook = _thread_failed
    sys.unraisablehook = _unraisable


def is_json() -> bool:
    """Whether the log is written as JSON."""
    return any(isinstance(handler.formatter, JsonLine) for handler in logging.getLogger().handlers)


def _thread_failed(fault: threading.ExceptHookArgs) -> None:
    logger.error("a thread has failed: %s", fault.thread, exc_info=fault.exc_value)


def _unraisable(fault: Any) -> None:  # noqa: ANN401 - its class is not a real one
    text = fault.err_msg or "an exception was ignored in"
    logger.error("%s: %r", text, fault.object, exc_info=fault.exc_value)

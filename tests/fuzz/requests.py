"""Changes to HTTP requests: to their bytes, their paths, and to what their JSON says."""

import json
import re
from collections.abc import Sequence
from copy import deepcopy
from random import Random
from typing import Any

from tests.fuzz.mutate import changed

_LENGTH = re.compile(rb"content-length: \d+", re.IGNORECASE)
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1 << 31, 1 << 63, 1 << 70, float("inf"), float("nan"), 1e308,
    "", "x", "\ud800", "\0", "é" * 300, "a" * 5000, "1h", "amq.x", "/", "..", "(", "a{99999}",
    [], [[]], {}, {"": ""}, ["a", 1, None], {"x": {"y": []}},
)  # fmt: skip
_PARTS = ("", "%2F", "%00", "%FF", "%ED%A0%80", "..", "a" * 2000, "%252F", "*", "none", "1", "é")
_QUERIES = ("page=0", "page=99999999999", "page=-1", "page_size=0", "columns=", "name=%00", "&=&")
_HEADERS = (
    b"transfer-encoding: chunked",
    b"expect: 100-continue",
    (
        b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
    ),
    b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__",
    b"content-length: 5",
    b"authorization: Basic Z3Vlc3Q6Z3Vlc3Q=",
    b"authorization: Basic /w==",
    b"x-reason: " + b"\xff" * 300,
)
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)


def changed_requests(requests: Sequence[bytes], chance: Random) -> list[bytes]:
    """Some requests of a conversation, changed."""
    start = chance.randrange(len(requests))
    some = list(requests[start : start + chance.randint(1, 6)])
    at = chance.randrange(len(some))
    match chance.randrange(8):
        case 0 | 1 | 2:
            some[at] = with_other_values(some[at], chance)
        case 3:
            some[at] = _with_another_path(some[at], chance)
        case 4:
            head, _, body = some[at].partition(b"\r\n\r\n")
            some[at] = head + b"\r\n" + chance.choice(_HEADERS) + b"\r\n\r\n" + body
        case 5 if chance.random() < 0.2:
            some.insert(at, _PREFACE + chance.randbytes(40))
        case _:
            some = changed(some, chance, with_length, (), with_other_values)
    return some


def with_length(request: bytes) -> bytes:
    """A request whose length is that of its body."""
    head, end, body = request.partition(b"\r\n\r\n")
    return _LENGTH.sub(b"content-length: %d" % len(body), head) + end + body


def with_other_values(request: bytes, chance: Random) -> bytes:
    """A request whose JSON says something else; if it has none, whose path does."""
    head, end, body = request.partition(b"\r\n\r\n")
    if not body:
        return _with_another_path(request, chance)
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return request
    if not isinstance(value, dict | list):
        value = [value]
    for _ in range(chance.randint(1, 3)):
        _change_value(value, chance)
    text = json.dumps(value)
    if chance.random() < 0.05:
        text = text.replace("[", "[" * 50_000, 1)
    return with_length(head + end + text.encode())


def _change_value(value: Any, chance: Random) -> None:
    """Some value in it is another one, is missing, or is there twice."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = chance.choice(keys)
        inner = value[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.7:
            value = inner
            continue
        if chance.random() < 0.15:
            del value[key]
        else:
            value[key] = deepcopy(chance.choice(_VALUES))
        return


def _with_another_path(request: bytes, chance: Random) -> bytes:
    if request.count(b" ") < 2:
        return request
    method, path, rest = request.split(b" ", 2)
    parts = path.partition(b"?")[0].decode("latin-1").split("/")
    parts[chance.randrange(len(parts))] = chance.choice(_PARTS)
    made = "/".join(parts)
    if chance.random() < 0.4:
        made += "?" + chance.choice(_QUERIES)
    if chance.random() < 0.3:
        method = chance.choice((b"GET", b"PUT", b"POST", b"DELETE", b"HEAD", b"OPTIONS", b"TRACE"))
    return method + b" " + made.encode(errors="replace") + b" " + rest

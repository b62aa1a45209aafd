"""Inputs that break something: kept in files, and tried again.

A file has the name of its target and one input, or with the suffix .series all that one server got
up to the failure: then the last one alone does not break anything.
"""

import hashlib
import re
import struct
import traceback
from contextlib import suppress
from pathlib import Path

from tests.fuzz.live import Conversations
from tests.fuzz.targets import BY_NAME, Target, close
from tests.fuzz.work import TURN

SERIES = ".series"
_DIGITS = re.compile(r"\d+")
_SIZE = struct.Struct(">I")


def kind_of(error: BaseException) -> str:
    """The same for failures that probably have the same cause."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    places = [f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)[-3:]]
    logged = str(error).splitlines()[-1] if "Traceback" in str(error) else ""
    return f"{type(error).__name__} {_DIGITS.sub('', logged)[:80]} {places}"


def keep(target: Target, data: bytes, folder: Path) -> Path:
    """Write what is needed to see a failure again."""
    series = [data]
    if isinstance(target.run, Conversations):
        series = list(target.run.history) or series
    forget(target)
    raw, suffix = data, ""
    if len(series) > 1 and not is_broken_by(target, [data]):
        raw, suffix = b"".join(_SIZE.pack(len(one)) + one for one in series), SERIES
    name = hashlib.sha1(raw, usedforsecurity=False).hexdigest()[:12]
    place = folder / f"{target.name}.{name}{suffix}"
    folder.mkdir(parents=True, exist_ok=True)
    place.write_bytes(raw)
    return place


def forget(target: Target) -> None:
    """End a server that is broken."""
    with suppress(Exception):
        close(target, is_whole=False)


def is_broken_by(target: Target, series: list[bytes]) -> bool:
    """Whether these inputs, one after the other, break something."""
    try:
        try_series(target, series)
    except Exception:  # noqa: BLE001
        return True
    return False


def try_series(target: Target, series: list[bytes]) -> None:
    """Try inputs one after the other on a new server.

    Raises:
        Exception: of any kind, if something is broken.
    """
    try:
        for data in series:
            with TURN.counting():
                target.run(data)
        close(target)
    finally:
        forget(target)


def read(place: Path) -> tuple[Target, list[bytes]]:
    """What is in a file: of a failure, or of the corpus."""
    name = place.parent.name if place.parent.name in BY_NAME else place.name.split(".")[0]
    raw = place.read_bytes()
    if place.suffix != SERIES:
        return BY_NAME[name], [raw or b"\0"]
    series, at = [], 0
    while at < len(raw):
        (size,) = _SIZE.unpack_from(raw, at)
        series.append(raw[at + 4 : at + 4 + size])
        at += 4 + size
    return BY_NAME[name], series

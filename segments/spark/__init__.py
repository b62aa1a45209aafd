"""Streams in Spark: the log as a DataFrame, selectors as columns, filter sizes from history.

Needs the extra `spark` (PySpark, pyarrow, numpy); importing this module does not. Reads the files
of a stream, with or without a server that is writing to them, and writes nothing beside them.
"""

from typing import TYPE_CHECKING, Any

from segments.spark.register import register
from segments.spark.session import SparkMissing, local_session, open_session

if TYPE_CHECKING:
    from segments.spark.inventory import NotAStream
    from segments.spark.recommend import Prices
    from segments.spark.report import frames, write_report
    from segments.spark.scanning import scan
    from segments.spark.selecting import selector_column
    from segments.spark.tuning import NothingToTune, Tuning, tune
    from segments.store.object_store import TierError

_LAZY = {
    "NotAStream": "segments.spark.inventory",
    "NothingToTune": "segments.spark.tuning",
    "Prices": "segments.spark.recommend",
    "TierError": "segments.store.object_store",
    "Tuning": "segments.spark.tuning",
    "frames": "segments.spark.report",
    "scan": "segments.spark.scanning",
    "selector_column": "segments.spark.selecting",
    "tune": "segments.spark.tuning",
    "write_report": "segments.spark.report",
}

__all__ = [
    "NotAStream",
    "NothingToTune",
    "Prices",
    "SparkMissing",
    "TierError",
    "Tuning",
    "frames",
    "local_session",
    "open_session",
    "register",
    "scan",
    "selector_column",
    "tune",
    "write_report",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever it is
    """What needs the extra is imported when it is first used."""
    from importlib import import_module  # noqa: PLC0415 - only then

    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Streams in Spark: the log as a DataFrame, selectors as columns, filter sizes from history.

Needs the extra `spark` (PySpark, pyarrow, numpy); importing this module does not. Reads the files
of a stream, with or without a server that is writing to them, and writes nothing beside them.
"""

from typing import TYPE_CHECKING, Any

from segments.spark.register import register
from segments.spark.session import SparkMissing, local_session

if TYPE_CHECKING:
    from segments.spark.scanning import scan

_LAZY = {"scan": "segments.spark.scanning"}

__all__ = ["SparkMissing", "local_session", "register", "scan"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever it is
    """What needs the extra is imported when it is first used."""
    from importlib import import_module  # noqa: PLC0415 - only then

    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

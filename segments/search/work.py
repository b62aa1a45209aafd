"""Work of a search that may take long, for whoever goes through its steps."""

from collections.abc import Callable, Generator
from typing import Any

from segments.errors import SegmentsError
from segments.search.page import Step, Work


def done(do: Callable[..., Any], *arguments: Any) -> Generator[Step, Any, Any]:  # noqa: ANN401
    """The result of work that may take long.

    Raises:
        SegmentsError: the work has raised it.
    """
    found = yield Work(_outcome, (do, arguments))
    if isinstance(found, SegmentsError):
        raise found
    return found


def _outcome(do: Callable[..., Any], arguments: tuple[Any, ...]) -> object:
    """What work returns, or the error that it raises: whoever does it need not know of errors."""
    try:
        return do(*arguments)
    except SegmentsError as error:
        return error

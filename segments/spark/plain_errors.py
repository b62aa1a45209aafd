"""Errors as people see them: Spark puts the worker's traceback before the sentence."""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])


def plainly(function: _Function) -> _Function:
    """What Spark calls, its errors without the way they came.

    That holds for errors this package raises on purpose, which say in a sentence what is wrong.
    Any other keeps its traceback.
    """

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - whatever it takes and gives
        try:
            return function(*args, **options)
        except Exception as error:
            if _is_ours(error):
                raise error.with_traceback(None) from None
            raise

    @functools.wraps(function)
    def iterate(*args: Any, **options: Any) -> Iterator[Any]:  # noqa: ANN401 - as above
        try:
            yield from function(*args, **options)
        except Exception as error:
            if _is_ours(error):
                raise error.with_traceback(None) from None
            raise

    return cast("_Function", iterate if inspect.isgeneratorfunction(function) else call)


def _is_ours(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] == "segments"

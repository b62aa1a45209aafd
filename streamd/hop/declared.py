"""Operations by their names, and the types of their answers."""

import functools
from typing import Any, get_args

from streamd.operations.declaration import Operation


@functools.cache
def by_name() -> dict[str, type[Operation[Any]]]:
    """All operations that are declared in modules imported so far."""
    return {kind.NAME: kind for kind in _below(Operation) if kind.NAME}


def _below(kind: type[Operation[Any]]) -> list[type[Operation[Any]]]:
    return [found for child in kind.__subclasses__() for found in (child, *_below(child))]


@functools.cache
def answer_of(kind: type[Operation[Any]]) -> Any:  # noqa: ANN401 - a type
    """The type of an operation's answer."""
    for base in kind.__orig_bases__:  # type: ignore[attr-defined]
        for answer in get_args(base):
            return answer
    raise LookupError(f"{kind.__qualname__} does not say what answers it")

"""What each path of the API does, takes and answers, declared beside its handler.

`described` goes before a handler, whose docstring says what it does: the first line is the summary.
`openapi.py` makes a document of these and of the routes, so a path is written down once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from streamd.operations.declaration import Operation as Asked, needs_of

Schema: TypeAlias = dict[str, Any]
Handler = TypeVar("Handler", bound=Callable[..., Any])

ADMINISTRATOR = "the tag `administrator`"
MONITORING = "the tag `monitoring` or `administrator`"
ENTER = "access to the virtual host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What a handler takes and answers.

    Attributes:
        answer: the schema of an answer with status 200; a string is the name of one in `schemas`.
        rows: the name of the schema of each row, for an answer that is a list.
        has_names: the list can be searched by name.
        body: the name of the schema of the request's body.
        statuses: of answers without a body, and what they mean.
        query: parameters behind the path, and what they do.
        failures: statuses of failures that are answers of their own, with the name of a schema.
        needs: what a user needs besides a tag, where `asks` does not say it.
        asks: the operation that the engine is asked for.
        is_open: no login is needed.
    """

    answer: str | Schema | None = None
    rows: str = ""
    has_names: bool = False
    body: str = ""
    statuses: Mapping[int, str] = field(default_factory=dict)
    query: Mapping[str, Schema] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)
    needs: str = ""
    asks: type[Asked[Any]] | None = None
    is_open: bool = False

    @property
    def needed(self) -> str:
        """What a user needs besides a tag; empty for nothing."""
        needs = needs_of(self.asks) if self.asks is not None else ()
        return self.needs or " and ".join(map(str, needs))


DONE = {204: "Done."}
CREATED = {201: "Created."}
CREATED_OR_DONE = {201: "Created.", 204: "It existed, and is as the request says."}


def described(operation: Operation) -> Callable[[Handler], Handler]:
    """Declare what a handler takes and answers."""

    def note(handler: Handler) -> Handler:
        handler.operation = operation  # type: ignore[attr-defined]
        return handler

    return note


def operation_of(handler: Callable[..., Any]) -> Operation:
    """What was declared of a handler.

    Raises:
        LookupError: nothing was.
    """
    found: Operation | None = getattr(handler, "operation", None)
    if found is None:
        raise LookupError(f"{handler.__qualname__} handles a path: put @described before it")
    return found

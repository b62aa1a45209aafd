"""Operations from what a peer has sent."""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from streamd.operations.declaration import Operation
from streamd.operations.errors import Reason, Refused

Kind = TypeVar("Kind", bound=Operation[Any])

_MISSING = re.compile(r"Object missing required field `(.+?)`(?: - at `\$\.?(.*)`)?")
_WRONG = re.compile(r"(.+) - at `\$\.?(.*)`", re.DOTALL)


def read_operation(kind: type[Kind], fields: Mapping[str, Any], *, strict: bool = True) -> Kind:
    """An operation with these fields.

    Args:
        kind: of operation.
        fields: its fields; others are ignored.
        strict: False where numbers and flags come as strings.

    Raises:
        Refused: a field is missing, or is not what it has to be; says which.
    """
    try:
        operation: Kind = msgspec.convert(fields, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise Refused(Reason.PRECONDITION_FAILED, sentence_of(error)) from None
    return operation


def sentence_of(error: msgspec.ValidationError) -> str:
    """What is wrong with a field, as our sentences begin."""
    text = str(error)
    if missing := _MISSING.fullmatch(text):
        field, path = missing.groups()
        return f"{path}.{field} is missing" if path else f"{field} is missing"
    if wrong := _WRONG.fullmatch(text):
        reason, path = wrong.groups()
        return f"{path}: {reason[:1].lower()}{reason[1:]}"
    return text

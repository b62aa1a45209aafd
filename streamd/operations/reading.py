"""Operations from what a peer has sent."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from segments.typed import sentence_of
from streamd.operations.declaration import Operation
from streamd.operations.errors import Reason, Refused

Kind = TypeVar("Kind", bound=Operation[Any])


def read_operation(kind: type[Kind], fields: Mapping[str, Any], *, strict: bool = True) -> Kind:
    """An operation with these fields.

    Args:
        kind: of operation.
        fields: its fields; others are ignored.
        strict: False where numbers and flags come as strings.

    Raises:
        Refused: a field is missing, or is not what it has to be; says which.
    """
    known = {name: fields[name] for name in kind.__struct_fields__ if name in fields}
    try:
        operation: Kind = msgspec.convert(known, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise Refused(Reason.PRECONDITION_FAILED, sentence_of(error)) from None
    return operation

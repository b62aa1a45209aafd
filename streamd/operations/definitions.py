"""Definitions: what was declared, many things at once."""

from typing import Any

import msgspec

from streamd.operations.declaration import ADMINISTRATORS, Operation
from streamd.operations.routing import Bind, PutExchange
from streamd.operations.streams import CreateStream
from streamd.operations.users import PutPermission, PutUser
from streamd.operations.virtual_hosts import AddVirtualHost

DECLARING: tuple[type[Operation[Any]], ...] = (
    AddVirtualHost,
    PutUser,
    PutPermission,
    CreateStream,
    PutExchange,
    Bind,
)


class Declaration(msgspec.Struct, frozen=True):
    """One of DECLARING, by its name."""

    operation: str
    fields: msgspec.Raw


class Outcome(msgspec.Struct, frozen=True):
    """What came of a declaration.

    Attributes:
        is_new: it was not there before.
        reason: the name of a Reason where it is refused; else empty.
        details: why.
    """

    is_new: bool
    reason: str = ""
    details: str = ""


class Declare(Operation[list[Outcome]], frozen=True, kw_only=True):
    """Create what is missing, in this order, whatever one's permissions are; ends where one fails.

    Attributes:
        declarations: what is to be there.
    """

    NAME = "definitions.declare"
    NEEDS = ADMINISTRATORS
    CHANGES = True

    declarations: list[Declaration]

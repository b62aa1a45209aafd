"""What an operation is declared with."""

from enum import Enum
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from streamd.operations.names import Name
from streamd.operations.rights import ADMINISTRATOR, DOOR, MONITORING, Right

Answer = TypeVar("Answer")


class Tagged(msgspec.Struct, frozen=True):
    """The user needs one of these tags.

    Attributes:
        tags: one of them is enough.
        unless: a field; users who are named in it need no tag.
    """

    tags: tuple[str, ...]
    unless: str = ""

    def __str__(self) -> str:
        tags = " or ".join(f"`{tag}`" for tag in self.tags)
        return f"the tag {tags}" + (", except for one's own" if self.unless else "")


class Enter(msgspec.Struct, frozen=True):
    """The user needs access to the virtual host in the field `vhost`."""

    def __str__(self) -> str:
        return "access to the virtual host"


class Allowed(msgspec.Struct, frozen=True):
    """The user needs a right to what the field names, in the virtual host in `vhost`."""

    right: Right
    field: str = "stream"

    def __str__(self) -> str:
        return f"the permission to {self.right.name.lower()} the {self.field}"


Need: TypeAlias = Tagged | Enter | Allowed

ADMINISTRATORS = Tagged((ADMINISTRATOR,))
WATCHERS = Tagged((MONITORING, ADMINISTRATOR))
DOORS = Tagged((DOOR,))


class At(Enum):
    """Which node of a cluster carries out an operation."""

    HERE = "the one that is asked"
    LEADER = "the one that leads the cluster"
    WRITER = "the one that leads the stream"
    NODE = "the one that it names"
    ALL = "each of them, and what they say is joined"


class Operation(
    msgspec.Struct, Generic[Answer], frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A request to the engine; a subclass declares one, and the type of its answer.

    One with a field that it does not have is none: what a newer client means by it, `dry_run` say,
    would be left out, and the rest done.

    Attributes:
        NAME: as "user.put".
        NEEDS: what its user needs, all of them; None: whatever it shows or does depends on who
            asks.
        CHANGES: it changes something.
        AT: which node of a cluster carries it out; None for the leader where it changes something,
            else the one that is asked.
        SHOWS_FIGURES: of streams, also of those that other nodes lead.
    """

    NAME: ClassVar[str] = ""
    NEEDS: ClassVar[Need | tuple[Need, ...] | None] = None
    CHANGES: ClassVar[bool] = False
    AT: ClassVar[At | None] = None
    SHOWS_FIGURES: ClassVar[bool] = False


def needs_of(kind: type[Operation[Any]] | Operation[Any]) -> tuple[Need, ...]:
    """What the user of an operation needs, all of them."""
    needs = kind.NEEDS
    return needs if isinstance(needs, tuple) else () if needs is None else (needs,)


class Asker(Protocol):
    """Somebody who asks for operations."""

    @property
    def name(self) -> Name:
        """The name of the user."""
        ...

    async def ask(self, operation: Operation[Answer]) -> Answer:
        """Have an operation carried out.

        Raises:
            Refused: the user may not, or it cannot be done; says why.
        """
        ...


class Created(msgspec.Struct, frozen=True):
    """Something is there now as it was asked for; `is_new`: it was not there before."""

    is_new: bool


class OfHost(Operation[Answer], Generic[Answer], frozen=True, kw_only=True):
    """An operation on what is in a virtual host."""

    vhost: Name


class OfStream(OfHost[Answer], Generic[Answer], frozen=True, kw_only=True):
    """An operation on a stream."""

    stream: Name

"""What can be asked of streams and super streams: to be there, or not; and what one stream has."""

from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from segments.segment import MAX_OFFSET
from segments.selector import Dialect
from streamd.operations.declaration import Allowed, At, Created, Enter, OfHost, OfStream
from streamd.operations.names import Name
from streamd.operations.rights import Right

Offset = Annotated[int, msgspec.Meta(ge=0, le=MAX_OFFSET)]
Reference = Annotated[str, msgspec.Meta(min_length=1)]
MAX_PARTITIONS = 1_000  # of a super stream


class CreateStream(OfStream[Created], frozen=True, kw_only=True):
    """Create a stream, unless there is one with the same arguments.

    Attributes:
        arguments: by their names in the stream protocol.
    """

    NAME = "stream.create"
    NEEDS = Allowed(Right.CONFIGURE)
    CHANGES = True

    arguments: dict[str, str] = msgspec.field(default_factory=dict)


Plain: TypeAlias = str | int | float | bool


class Declared(msgspec.Struct, frozen=True):
    """A stream, and the arguments that it was declared with, by their names there."""

    stream: Name
    arguments: dict[str, Plain]


class ListDeclared(OfHost[list[Declared]], frozen=True, kw_only=True):
    """Streams as they were declared, by name."""

    NAME = "stream.declared"
    NEEDS = Enter()


class StreamMoment(NamedTuple):
    """A stream over some seconds; see `streamd.operations.server.Moment`."""

    at_ms: int
    messages_in: float
    messages_out: float
    bytes_in: float
    bytes_out: float


class DeleteStream(OfStream[None], frozen=True, kw_only=True):
    """Delete a stream with all its messages."""

    NAME = "stream.delete"
    NEEDS = Allowed(Right.CONFIGURE)
    CHANGES = True


class Partition(NamedTuple):
    """A routing key and the partition that it leads to.

    Attributes:
        order: partitions are in this order; each has its own.
    """

    key: str
    stream: Name
    order: int


class SuperStreamRow(NamedTuple):
    """One super stream; its partitions in their order."""

    virtual_host: Name
    name: Name
    partitions: tuple[Partition, ...]


class CreateSuperStream(OfHost[None], frozen=True, kw_only=True):
    """Create a super stream and its partitions, NAME-KEY for each routing key; all or none.

    The rights to read it, and to configure its partitions and write to them, are needed, too.

    Attributes:
        super_stream: its name.
        partitions: how many; their keys are 0, 1 and so on. 0 where `keys` says them.
        keys: instead, the routing keys, in order.
        arguments: of each partition, by their names in the stream protocol.
    """

    NAME = "super_stream.create"
    NEEDS = Allowed(Right.CONFIGURE, "super_stream")
    CHANGES = True

    super_stream: Name
    partitions: int = 0
    keys: tuple[str, ...] = ()
    arguments: dict[str, str] = msgspec.field(default_factory=dict)


class DeleteSuperStream(OfHost[None], frozen=True, kw_only=True):
    """Delete a super stream and its partitions; see CreateSuperStream for the rights."""

    NAME = "super_stream.delete"
    NEEDS = Allowed(Right.CONFIGURE, "super_stream")
    CHANGES = True

    super_stream: Name


class SetArguments(OfStream[None], frozen=True, kw_only=True):
    """Change arguments of a stream; they take effect with the next chunk.

    Attributes:
        arguments: by their names in the stream protocol; "" is the default.
        was: nothing is changed where one of these has another value than this, or the new one.
    """

    NAME = "stream.set"
    NEEDS = Allowed(Right.CONFIGURE)
    CHANGES = True

    arguments: dict[str, str]
    was: dict[str, str] = msgspec.field(default_factory=dict)


class Beginning(msgspec.Struct, frozen=True):
    """Where a stream begins now: the offset of its first message."""

    first_offset: int


class TruncateStream(OfStream[Beginning], frozen=True, kw_only=True):
    """Remove the oldest messages of a stream, for good; chunks are kept as a whole.

    Attributes:
        offset: of the first message to keep.
        timestamp: instead, a time in ms since 1970; older chunks go.
    """

    NAME = "stream.truncate"
    AT = At.WRITER
    NEEDS = Allowed(Right.CONFIGURE)
    CHANGES = True

    offset: Offset | None = None
    timestamp: Offset | None = None


class StoredOffset(msgspec.Struct, frozen=True):
    """An offset that a consumer has stored.

    Attributes:
        name: of the consumer.
        offset: that it has stored.
        messages_behind: that follow it.
        seconds_behind: since the first of those was written; None where that cannot be read.
    """

    name: str
    offset: int
    messages_behind: int
    seconds_behind: float | None


class ListOffsets(OfStream[list[StoredOffset]], frozen=True, kw_only=True):
    """Offsets that consumers have stored in a stream, by name."""

    NAME = "offset.list"
    AT = At.WRITER
    NEEDS = Allowed(Right.READ)


class Tracking(msgspec.Struct, frozen=True):
    """What publishers and consumers have left in a stream.

    Attributes:
        offsets: that each consumer has stored.
        writers: the last publishing id of each publisher with a name.
        consumers: how far behind they are; None where that was not asked for.
    """

    offsets: dict[str, int]
    writers: dict[str, int]
    consumers: list[StoredOffset] | None


class GetTracking(OfStream[Tracking], frozen=True, kw_only=True):
    """The offsets that consumers have stored, and the last publishing ids of publishers.

    Attributes:
        details: how far behind consumers are, too.
    """

    NAME = "tracking.get"
    AT = At.WRITER
    NEEDS = Enter()

    details: bool = False


class Moved(msgspec.Struct, frozen=True):
    """A stored offset before and after a change; None where there is none.

    Attributes:
        readers: consumers of that name that are connected: they go on where they are.
    """

    was: int | None
    now: int | None
    readers: tuple[str, ...]


class SetOffset(OfStream[Moved], frozen=True, kw_only=True):
    """Store an offset for a consumer of a stream: of the last message that it has done.

    Attributes:
        name: of the consumer.
        offset: to this one.
        timestamp: instead, to the message before the first chunk that was written then or later;
            in ms since 1970.
        by: instead, so many messages further; less than 0 for back.
        like: instead, to that of another consumer.
        undo: instead, to what it was before it was set or deleted last, at most an hour ago.
        force: also while a consumer of that name is connected; and undo a change although another
            offset was stored since.
        dry_run: only say what would be done.
    """

    NAME = "offset.set"
    AT = At.WRITER
    NEEDS = Allowed(Right.READ)
    CHANGES = True

    name: Reference
    offset: Offset | None = None
    timestamp: Offset | None = None
    by: int | None = None
    like: Reference | None = None
    undo: bool = False
    force: bool = False
    dry_run: bool = False


class DeleteOffset(OfStream[Moved], frozen=True, kw_only=True):
    """Forget the offset that a consumer of a stream has stored.

    Attributes:
        name: of the consumer.
        force: also while a consumer of that name is connected.
        dry_run: only say what would be done.
    """

    NAME = "offset.delete"
    AT = At.WRITER
    NEEDS = Allowed(Right.READ)
    CHANGES = True

    name: Reference
    force: bool = False
    dry_run: bool = False


class Selector(msgspec.Struct, frozen=True):
    """A standing selector: the messages of a group, found while they are published.

    Attributes:
        group: of consumers.
        dialect: of the text.
        text: the selector.
        since: the first offset that it was evaluated on.
        consumers: that rely on it now.
    """

    group: str
    dialect: str
    text: str
    since: int
    consumers: int


class ListSelectors(OfStream[list[Selector]], frozen=True, kw_only=True):
    """Standing selectors of a stream, by group."""

    NAME = "selector.list"
    NEEDS = Allowed(Right.READ)


class AddSelector(OfStream[None], frozen=True, kw_only=True):
    """Evaluate a group's selector on all that is published to a stream from now on."""

    NAME = "selector.add"
    NEEDS = Allowed(Right.CONFIGURE)
    CHANGES = True

    group: Reference
    dialect: str = Dialect.UNION
    text: str = ""


class DeleteSelector(OfStream[None], frozen=True, kw_only=True):
    """Stop evaluating a group's selector; its consumers must be gone."""

    NAME = "selector.delete"
    NEEDS = Allowed(Right.CONFIGURE)
    CHANGES = True

    group: Reference

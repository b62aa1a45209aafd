"""What is shown of streams and super streams."""

from typing import Generic, NamedTuple, TypeVar

import msgspec

from streamd.operations.connections import Connection, ConsumerFacts, PublisherFacts
from streamd.operations.declaration import Allowed, Enter, OfHost, OfStream, Operation
from streamd.operations.figures import Flow
from streamd.operations.names import Name
from streamd.operations.rights import Right
from streamd.operations.streams import (
    Plain,
    Selector,
    StoredOffset,
    StreamMoment,
    SuperStreamRow,
)
from streamd.operations.tier_reports import StreamTier

Facts = TypeVar("Facts", PublisherFacts, ConsumerFacts)

MOST_DESCRIBED = 500  # streams at once
MOST_ROWS = 100  # of what is on the page of a stream
MOST_FILTERS = 1_000  # chunks whose filters are looked at


class StreamSummary(msgspec.Struct, frozen=True, array_like=True):
    """A stream in a list.

    Attributes:
        messages, size: that are kept, and the bytes of their files; -1 while nobody knows.
        messages_in, messages_out: per second, in the last samples; -1 where nothing has happened.
        consumers: that read it.
        publishers: to it.
        last_ms: when its last message was stored; 0 for never, -1 while nobody knows.
        trouble: why it takes no messages, or cannot be opened; empty while all is well.
    """

    vhost: Name
    stream: Name
    messages: int
    size: int
    messages_in: float
    messages_out: float
    consumers: int
    publishers: int
    last_ms: int
    trouble: str


class ListStreams(Operation[list[StreamSummary]], frozen=True, kw_only=True):
    """Streams, by virtual host and name, as far as the user may see them.

    Attributes:
        vhost: of this virtual host alone.
    """

    NAME = "stream.list"
    SHOWS_FIGURES = True

    vhost: Name | None = None


class KeyIndex(NamedTuple):
    """How far the key index of a stream has come.

    Attributes:
        num_sealed: segments that nothing is added to any more.
        num_indexed: of those, with an index.
        num_unknown: of those, whose key file nobody has looked at since the log was opened.
        size: of key files, in bytes.
    """

    num_sealed: int
    num_indexed: int
    num_unknown: int
    size: int


class StreamFigures(msgspec.Struct, frozen=True):
    """What a stream keeps.

    Attributes:
        first_offset: of the first message that is kept.
        next_offset: after the last message.
        num_lost: messages known to be damaged.
        size: of all segment files, in bytes.
        first_timestamp_ms, last_timestamp_ms: of chunks, in ms since 1970; 0 for an empty stream.
        raised_segment_bytes: at which new segments begin, where that is more than was declared,
            because there are so many; else 0.
        keys: of its key index; None where it has no key properties.
    """

    first_offset: int
    next_offset: int
    num_messages: int
    num_lost: int
    num_chunks: int
    num_segments: int
    size: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    raised_segment_bytes: int
    keys: KeyIndex | None


class StreamDetails(msgspec.Struct, frozen=True):
    """A stream.

    Attributes:
        arguments: that it was declared with, by their names there.
        is_open: its messages can be read.
        trouble: why it takes no messages, or is not open.
        figures: None while nobody knows.
        tier: None where nothing of it is in the tier.
    """

    vhost: Name
    stream: Name
    arguments: dict[str, Plain]
    is_open: bool
    trouble: str
    figures: StreamFigures | None
    tier: StreamTier | None


class DescribeStreams(Operation[list[StreamDetails]], frozen=True, kw_only=True):
    """Streams as far as the user may see them; those that are gone are left out.

    Attributes:
        streams: virtual hosts and names, at most MOST_DESCRIBED.
    """

    NAME = "stream.describe"
    SHOWS_FIGURES = True

    streams: tuple[tuple[Name, Name], ...]


class GetStream(OfStream[StreamDetails], frozen=True, kw_only=True):
    """A stream."""

    NAME = "stream.get"
    SHOWS_FIGURES = True
    NEEDS = Enter()


class StreamRights(msgspec.Struct, frozen=True):
    """What a user may do with a stream that there is."""

    may_configure: bool
    may_read: bool
    may_write: bool


class GetStreamRights(OfStream[StreamRights], frozen=True, kw_only=True):
    """What the user may do with a stream.

    Attributes:
        needed: it is refused without this one.
    """

    NAME = "stream.rights"
    NEEDS = Enter()

    needed: Right | None = None


# -- the page of a stream


class Person(msgspec.Struct, Generic[Facts], frozen=True):
    """A consumer or publisher, and its connection."""

    connection: Connection
    facts: Facts


class People(msgspec.Struct, Generic[Facts], frozen=True):
    """Consumers or publishers of a stream, as far as the user may see them.

    Attributes:
        rows: the first ones of many.
        num_more: that are not among them, because there are too many.
        num_hidden: of other users.
    """

    rows: list[Person[Facts]]
    num_more: int
    num_hidden: int


class Block(NamedTuple):
    """One segment, or some that follow each other where there are very many.

    Attributes:
        x, width: in per cent of the picture's width.
        num_segments: that it stands for.
        num_chunks, size: of all of these, size in bytes.
        first_ms, last_ms: when the first and the last chunk were stored, 0 for never.
        num_indexed: segments whose filter index is in memory.
        num_lost: messages that are damaged.
        is_last: new messages come into it.
    """

    x: float
    width: float
    first_offset: int
    next_offset: int
    num_messages: int
    num_segments: int
    num_chunks: int
    size: int
    first_ms: int
    last_ms: int
    num_indexed: int
    num_lost: int
    is_last: bool


class Mark(NamedTuple):
    """Somebody who stands at an offset."""

    x: float
    offset: int
    title: str


class SegmentMap(NamedTuple):
    """A picture of a stream: its segments as blocks, and where consumers stand in it."""

    blocks: list[Block]
    first_offset: int
    next_offset: int
    consumers: list[Mark]
    stored: list[Mark]

    @property
    def grouped(self) -> bool:
        """Whether a block stands for several segments."""
        return any(block.num_segments > 1 for block in self.blocks)


class StreamContents(msgspec.Struct, frozen=True):
    """What an open stream has.

    Attributes:
        stored: the first offsets that consumers have stored, by name; None while the tier has not
            confirmed them.
        num_more_stored: that are not among them.
        selectors: None for those who may not see them.
        is_passing: what is wrong passes by itself.
        history: the last hour.
    """

    picture: SegmentMap
    stored: list[StoredOffset] | None
    num_more_stored: int
    selectors: list[Selector] | None
    is_passing: bool
    history: list[StreamMoment]


class StreamView(msgspec.Struct, frozen=True):
    """A stream, who uses it, and where they stand.

    Attributes:
        now: arguments that hold now, changed ones as well.
        contents: None where it is not open.
    """

    details: StreamDetails
    now: dict[str, Plain]
    rights: StreamRights
    consumers: People[ConsumerFacts]
    publishers: People[PublisherFacts]
    contents: StreamContents | None


class ShowStream(OfStream[StreamView], frozen=True, kw_only=True):
    """A stream, who uses it, and where they stand."""

    NAME = "stream.show"
    SHOWS_FIGURES = True
    NEEDS = Enter()


class Settings(msgspec.Struct, frozen=True):
    """The arguments of a stream: as they were declared, and as they are now."""

    declared: dict[str, Plain]
    now: dict[str, Plain]


class GetSettings(OfStream[Settings], frozen=True, kw_only=True):
    """The arguments of a stream."""

    NAME = "stream.settings"
    NEEDS = Enter()


class FilterReport(msgspec.Struct, frozen=True):
    """How well the filters of a stream work, of its newest chunks.

    Attributes:
        chunks: with filter values, that were looked at; the shares are 0 without any.
        fill: share of their bits that are set.
        predicted: share of chunks that would be sent in vain, by the bits of their filters.
        observed: the same, counted with values of other chunks; None where there are none.
        distinct: different filter values.
        properties: how many there are of each further filter property.
        with_sizes: filter sizes in bytes, and the predicted share with each.
        num_chunks: of the stream.
        read: what its consumers have read and skipped.
        chunks_in_vain: that AMQP consumers have read without a match.
        why_nothing: why filters save nothing; empty where they do.
    """

    chunks: int
    fill: float
    predicted: float
    observed: float | None
    distinct: int
    properties: dict[str, int]
    with_sizes: list[tuple[int, float]]
    num_chunks: int
    read: Flow
    chunks_in_vain: int
    why_nothing: str


class GetFilterReport(OfStream[FilterReport], frozen=True, kw_only=True):
    """How well the filters of a stream work."""

    NAME = "stream.filters"
    NEEDS = Allowed(Right.READ)


# -- super streams


class SuperStream(msgspec.Struct, frozen=True):
    """A super stream.

    Attributes:
        num_messages, size: of all of its partitions, as far as that is known.
    """

    row: SuperStreamRow
    num_messages: int
    size: int


class ListSuperStreams(Operation[list[SuperStream]], frozen=True, kw_only=True):
    """Super streams, by virtual host and name, as far as the user may see them.

    Attributes:
        vhost: of this virtual host alone.
    """

    NAME = "super_stream.list"

    vhost: Name | None = None


class SuperStreamDetails(msgspec.Struct, frozen=True):
    """A super stream, and what is in its partitions.

    Attributes:
        figures: of each partition; None where it is gone, or nobody knows.
        may_delete: the user may delete it, and its partitions.
    """

    row: SuperStreamRow
    figures: list[StreamFigures | None]
    may_delete: bool


class GetSuperStream(OfHost[SuperStreamDetails], frozen=True, kw_only=True):
    """A super stream.

    Attributes:
        to_delete: it is refused where the user may not delete it.
    """

    NAME = "super_stream.get"
    NEEDS = Enter()

    super_stream: Name
    to_delete: bool = False

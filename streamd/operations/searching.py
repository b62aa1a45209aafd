"""Single messages of a stream: found, or one of them with what is known of it."""

import msgspec

from segments.codec import ChunkHeader
from segments.search.page import FoundMessage, LookedAt
from streamd.operations.declaration import Allowed, At, OfStream
from streamd.operations.rights import Right
from streamd.operations.streams import Offset


class FoundPage(msgspec.Struct, frozen=True):
    """A page of what a search has found.

    Attributes:
        messages: in the order in which they are wanted.
        cut: why there may be more; None when this is all.
        after: the token to go on with, empty when this is all.
        end: offset behind the last message that all pages together are about.
        num_about: messages that all pages together are about.
        num_left: of those, that were not searched yet.
        num_chunks, size: of the stream, size in bytes.
        hint: where this page found nothing: what may be wrong with the question; often empty.
    """

    messages: list[FoundMessage]
    cut: str | None
    after: str
    looked_at: LookedAt
    end: int
    num_about: int
    num_left: int
    num_chunks: int
    size: int
    hint: str = ""


class FindMessages(OfStream[FoundPage], frozen=True, kw_only=True):
    """A page of single messages of a stream.

    One user searches once at a time; those who wait get their turns in order.

    Attributes:
        words: see `search_words.read_words`.
        seconds: the page is cut when it has taken so long.
        turn_seconds: that the turn is waited for.
        newest: at most so many of the newest messages are looked at.
    """

    NAME = "message.find"
    AT = At.WRITER
    NEEDS = Allowed(Right.READ)

    words: tuple[tuple[str, str], ...]
    seconds: float
    turn_seconds: float = 0.0
    newest: int | None = None


class OneMessage(msgspec.Struct, frozen=True):
    """A message, and what is known of it.

    Attributes:
        message: None where it cannot be shown.
        reason: why not; a sentence.
        header: of its chunk; None where that is gone by now.
        is_last: none follows it.
        filter_properties: of its stream.
    """

    message: FoundMessage | None
    reason: str
    header: ChunkHeader | None
    is_last: bool
    filter_properties: tuple[str, ...]


class GetMessage(OfStream[OneMessage], frozen=True, kw_only=True):
    """A message of a stream.

    Attributes:
        seconds, turn_seconds: see FindMessages.
    """

    NAME = "message.get"
    AT = At.WRITER
    NEEDS = Allowed(Right.READ)

    offset: Offset
    seconds: float
    turn_seconds: float = 0.0

"""What a search gives, step by step and at its end, and what it may cost."""

import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from segments.errors import SegmentsError
from segments.segment import Segment
from segments.store.cache import ColdError
from segments.tier.plan import Request


class TooLarge(SegmentsError):
    """A message is wanted that is too large for a page; says which, and what to do."""


class TooDear(Exception):
    """A page takes more than its caller has for it: it is to be searched for elsewhere."""


class StreamIsGone(SegmentsError):
    """The stream was deleted while it was searched."""


class KeysUnknown(NamedTuple):
    """Nobody has looked at the key index of a segment yet; nothing is to be sent back."""

    segment: Segment


class Missing(NamedTuple):
    """Something of a cold segment has to be fetched; True is to be sent back if it was.

    False, when there is no time for that, ends the page.

    Attributes:
        requests: that bring it, and what will be needed soon.
        is_more: what was fetched before is still needed.
    """

    error: ColdError
    requests: Sequence[Request] = ()
    is_more: bool = False


class Cut(StrEnum):
    """Why a page is not all."""

    LIMIT = "limit"
    SIZE = "size"
    BUDGET = "budget"


class FoundMessage(NamedTuple):
    """A message that was found.

    Attributes:
        timestamp_ms: when its chunk was written.
        raw: its bytes.
        chunk: offset of the first message of its chunk.
    """

    offset: int
    timestamp_ms: int
    raw: bytes
    chunk: int


class Limits(NamedTuple):
    """What a page may cost.

    Attributes:
        page_bytes: of what is found; one message may be larger.
        message_bytes: of each message; a batch may be unpacked to one that is larger.
        read_bytes: that are read for it.
        looked_into: bytes of messages that are read one by one; TooDear is raised where there are
            more.
    """

    page_bytes: int = 1 << 20
    message_bytes: int = 16 << 20
    read_bytes: int = 256 << 20
    looked_into: int = sys.maxsize


@dataclass(slots=True)
class LookedAt:
    """What a search has looked at.

    Attributes:
        segments: that were searched.
        segments_indexed: of those, with an index of the keys.
        chunks_skipped_by_time, chunks_skipped_by_keys, chunks_skipped_by_filter: not looked into.
        chunks_read: looked into.
        chunks_damaged: not searched, because what they hold is not what was written.
        messages_lost: of those, as far as is known, and of damage known before.
        messages_screened: ruled out by columns, or by their bytes.
        messages_tested: one by one.
    """

    segments: int = 0
    segments_indexed: int = 0
    chunks_skipped_by_time: int = 0
    chunks_skipped_by_keys: int = 0
    chunks_skipped_by_filter: int = 0
    chunks_read: int = 0
    chunks_damaged: int = 0
    messages_lost: int = 0
    messages_screened: int = 0
    messages_tested: int = 0
    bytes_read: int = 0

    def as_dict(self) -> dict[str, int]:
        """By name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


class Page(NamedTuple):
    """What a search has found.

    Attributes:
        messages: in the order in which they are wanted.
        cut: why there may be more; None when this is all.
        after: the token to go on with, empty when this is all.
        left: offsets that were not searched.
        end: offset behind the last message that all pages together are about.
        hint: where this page found nothing: what may be wrong with the question; often empty.
    """

    messages: list[FoundMessage]
    cut: Cut | None
    after: str
    looked_at: LookedAt
    left: range
    end: int
    hint: str = ""


Step: TypeAlias = KeysUnknown | Missing | None
Steps: TypeAlias = Generator[Step, Any, None]

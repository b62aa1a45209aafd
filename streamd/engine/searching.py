"""Single messages of a stream: found, or one of them with what is known of it."""

import logging

from segments import Log, SegmentsError
from segments.chunk_search import chunk_holding
from segments.codec import ChunkHeader
from segments.search.page import Page
from segments.segment import read_header
from streamd.engine.engine import Call, Handlers, Parts
from streamd.operations import searching as s
from streamd.operations.arguments import filter_properties
from streamd.operations.errors import Busy
from streamd.operations.search_words import Words

logger = logging.getLogger(__name__)

_HEADER_SECONDS = 5.0


class Searching:
    """Single messages of streams.

    Attributes:
        handlers: one for each operation.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts, self._searches = parts, parts.broker.searches
        self.handlers: Handlers = {s.FindMessages: self._find, s.GetMessage: self._get}

    async def _find(self, call: Call, request: s.FindMessages) -> s.FoundPage:
        stream = self._parts.host(request.vhost).find(request.stream)
        begin = 0
        if request.newest is not None:
            async with stream.opened() as log:
                begin = max(0, log.committed_offset - request.newest)
        page = await self._page(call, request, request.words, begin)
        async with stream.opened() as log:
            gaps = log.segments.gaps
            first = max(log.segments.first_offset, int(dict(request.words).get("offset", 0)))
            left = gaps.num_between(page.left.start, page.left.stop)
            return s.FoundPage(
                page.messages,
                page.cut,
                page.after,
                page.looked_at,
                page.end,
                gaps.num_between(first, max(first, page.end)),
                left + gaps.num_between(first, max(first, begin)),
                log.segments.num_chunks,
                log.segments.size,
                page.hint,
            )

    async def _page(
        self, call: Call, request: s.FindMessages | s.GetMessage, words: Words, begin: int = 0
    ) -> Page:
        host, find = self._parts.host(request.vhost), self._searches.find

        def check() -> None:
            call.check()
            if call.caller.is_node:
                host.check_led(request.stream)

        async with self._searches.alone(call.caller.name, request.turn_seconds):
            return await find(host, request.stream, words, check, request.seconds, begin)

    async def _get(self, call: Call, request: s.GetMessage) -> s.OneMessage:
        host, offset = self._parts.host(request.vhost), request.offset
        stream = host.find(request.stream)
        names = filter_properties(host.row(request.stream).effective)
        words = [("offset", str(offset)), ("limit", "1")]
        try:
            page = await self._page(call, request, words)
        except Busy as busy:
            reason = f"{busy.details}; wait for it, and load the page again"
            return s.OneMessage(None, reason, None, is_last=False, filter_properties=names)
        async with stream.opened() as log:
            if not page.messages or page.messages[0].offset != offset:
                reason = _why_not(log, offset)
                return s.OneMessage(None, reason, None, is_last=False, filter_properties=names)
            message = page.messages[0]
            is_last = offset == log.segments.gaps.before(log.committed_offset) - 1
            header = None
            try:
                header = await stream.retry_cold_read(
                    _chunk_of, log, message.chunk, seconds=_HEADER_SECONDS
                )
            except SegmentsError as error:
                logger.warning("the header of chunk %d cannot be read: %s", message.chunk, error)
        return s.OneMessage(message, "", header, is_last, names)


def _why_not(log: Log, offset: int) -> str:
    """Why a message is not there."""
    first, end = log.segments.first_offset, log.committed_offset
    last, gap = log.segments.gaps.before(end) - 1, log.segments.gaps.around(offset)
    if log.segments.is_empty:
        return "the stream is empty"
    if offset >= end:
        return f"there is no message {offset:,} yet, the newest is {last:,}"
    if offset < first:
        return f"message {offset:,} was removed, the oldest is {first:,}"
    if gap is not None:
        return (
            f"no message has offset {offset:,}: a machine went down, and the message behind "
            f"{gap.start - 1:,} is {gap.end:,}"
        )
    return f"message {offset:,} is damaged, the server's log says more"


def _chunk_of(log: Log, chunk: int) -> ChunkHeader | None:
    """The header of a chunk; None where it is gone by now, or no header.

    Raises:
        SegmentsError: it cannot be read.
    """
    if not log.segments.first_offset <= chunk < log.committed_offset:
        return None
    segment = log.segments.holding(chunk)
    place = chunk_holding(segment, chunk)
    file = segment.acquire()
    try:
        return read_header(file, place.position, place.offset)
    finally:
        segment.release()

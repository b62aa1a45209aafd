"""How far a page of a search has come: what is left of its range, what was found, and its end."""

from segments.codec import ChunkHeader
from segments.search.message_matcher import MessageTest
from segments.search.page import Cut, FoundMessage, Limits, LookedAt, TooDear, TooLarge
from segments.search.request import SearchRequest

_MESSAGE_BYTES = 128  # counted for each that is found besides its own


class Progress:
    """The progress of one page.

    Args:
        request: what is searched for.
        test: knows when there is nothing more to be found.
        limits: what a page may cost.
        end: offset behind the newest message of the search.

    Attributes:
        low, high: what is left is between them, the later one exclusive.
        end: see above.
        found: the messages.
        cut: why the page ends before the search does; None while it does not.
        looked_at: see LookedAt.
        is_over: set it to end the page soon: the budget of its caller is used up.
    """

    def __init__(self, request: SearchRequest, test: MessageTest, limits: Limits, end: int) -> None:
        self.low, self.high, self.end = 0, end, end
        self.found: list[FoundMessage] = []
        self.cut: Cut | None = None
        self.looked_at = LookedAt()
        self.is_over = False
        self._newest, self._most = request.newest, request.limit
        self._test, self._limits = test, limits
        self._size = 0
        self._left = limits.looked_into
        if request.offset is not None:
            if request.newest:
                self.high = min(self.high, request.offset + 1)
            else:
                self.low = request.offset
        self._began = self.low, self.high

    def go_on(self, position: int, end: int) -> None:
        """Begin where the page before has ended."""
        self.end = end
        if self._newest:
            self.high = min(self.high, position)
        else:
            self.low, self.high = max(self.low, position), end
        self._began = self.low, self.high

    @property
    def position(self) -> int:
        """Where the next page begins."""
        return self.high if self._newest else self.low

    @property
    def has_progressed(self) -> bool:
        """Something was searched."""
        return (self.low, self.high) != self._began

    @property
    def is_all(self) -> bool:
        """Nothing is left to be searched."""
        return self.cut is None or self.low >= self.high or self._test.is_done

    @property
    def is_cut(self) -> bool:
        """Nothing more is to be found in this page."""
        return self.cut is not None or self._test.is_done

    @property
    def must_stop(self) -> bool:
        """Nothing more is to be found, or the budget is used up."""
        is_over = self.is_over or self.looked_at.bytes_read >= self._limits.read_bytes
        # Each page gets further, or those who ask for the next would never come to an end.
        if is_over and self.cut is None and self.has_progressed:
            self.cut = Cut.BUDGET
        return self.is_cut

    def may_look_into(self, size: int) -> None:
        """Raise TooDear where messages of so many bytes are not to be read as well; see Limits."""
        self._left -= size
        if self._left < 0:
            raise TooDear

    def done(self, first: int, behind: int) -> None:
        """The messages from `first` to before `behind` were searched, with all before them."""
        if self._newest:
            self.high = max(self.low, min(self.high, first))
        else:
            self.low = max(self.low, min(self.high, behind))

    def stop_at(self, offset: int) -> None:
        """The budget is used up before this message."""
        self.cut = Cut.BUDGET
        if self._newest:
            self.high = offset + 1
        else:
            self.low = offset

    def take(self, header: ChunkHeader, place: int, number: int, raw: bytes) -> bool:
        """A message is found, by its number among those selected; whether that was the last one."""
        offset = header.chunk_id + place
        if len(raw) > self._limits.message_bytes:
            raise TooLarge(
                f"the message with offset {offset} has {len(raw):,} bytes, a search finds those of "
                f"at most {self._limits.message_bytes:,}: consume it, and search beside it with "
                "another offset"
            )
        if not self._test.takes(number):
            return False
        self.found.append(FoundMessage(offset, header.timestamp_ms, raw, header.chunk_id))
        self._size += len(raw) + _MESSAGE_BYTES
        if len(self.found) >= self._most:
            self.cut = Cut.LIMIT
        elif self._size >= self._limits.page_bytes:
            self.cut = Cut.SIZE
        if self.cut is not None:
            self.done(offset, offset + 1)
        return self.is_cut

"""What one connection publishes, gathered for each publisher and stream.

Messages that arrive in one read from the socket are given to their stream together.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

from segments.entries import ID_SIZE, Entries
from streamd.broker.streams.publication import PendingEntries, Publisher
from streamd.broker.streams.stream import Stream
from streamd.broker.targets import Target
from streamd.broker.traffic import Traffic

_MOST_SIZES = 1_000  # of messages, until they are counted


class CountedPublisher(Publisher, Protocol):
    """A publisher that counts as one once something is published."""

    def publishes(self) -> None:
        """Something is published."""


class _Gathered(NamedTuple):
    """Messages for one stream: their numbers, entries and filter values.

    Those that came together share one element of numbers, and one of entries.
    """

    numbers: list[bytes]
    entries: list[bytes]
    values: list[bytes]


class Gathering:
    """What is gathered on one connection.

    Attributes:
        new_sizes: of messages that were published, for whoever counts them.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._gathered: dict[tuple[CountedPublisher, Stream], _Gathered] = {}
        self._written: dict[Stream, None] = {}
        self._used: WeakKeyDictionary[Stream, None] = WeakKeyDictionary()
        self.new_sizes, self._count_sizes = traffic.new_sizes, traffic.count_sizes

    def add(
        self,
        publisher: CountedPublisher,
        number: int,
        raw: bytes,
        targets: Iterable[tuple[Target, bytes]],
    ) -> None:
        """Take one message for several streams, with the filter value that it has in each."""
        entry = len(raw).to_bytes(4, "big") + raw
        name = number.to_bytes(ID_SIZE, "big")
        for target, value in targets:
            gathered = self._of(publisher, target.stream)
            gathered.numbers.append(name)
            gathered.entries.append(entry)
            gathered.values.append(value)

    def add_run(
        self,
        publisher: CountedPublisher,
        numbers: bytes,
        entries: bytes,
        values: Sequence[bytes],
        stream: Stream,
    ) -> None:
        """Take several for one stream: 8 bytes of number for each, and whole entries."""
        gathered = self._of(publisher, stream)
        gathered.numbers.append(numbers)
        gathered.entries.append(entries)
        gathered.values.extend(values)

    def _of(self, publisher: CountedPublisher, stream: Stream) -> _Gathered:
        place = (publisher, stream)
        gathered = self._gathered.get(place)
        if gathered is None:
            gathered = self._gathered[place] = _Gathered([], [], [])
        return gathered

    def flush(self) -> None:
        """Give the streams what was gathered."""
        if len(self.new_sizes) > _MOST_SIZES:  # also where nothing went anywhere
            self._count_sizes()
        if not self._gathered:
            return
        gathered, self._gathered = self._gathered, {}
        for (publisher, stream), (numbers, entries, values) in gathered.items():
            count = len(values)
            filter_values = values if any(values) else None
            group = Entries(b"".join(numbers), b"".join(entries), count, count, filter_values)
            if stream.contract is not None:
                group = stream.contract.with_property_keys(group)
            self._written[stream] = None
            self._used[stream] = None
            publisher.publishes()
            stream.publish(PendingEntries(publisher, group))

    async def settled(self) -> None:
        """Return when what was given to streams is stored, or cannot be for now."""
        for stream in list(self._used):
            await stream.settled()

    def has_room(self) -> bool:
        """Whether `room` would return at once; if so, those streams need not be asked again."""
        if any(stream.is_crowded for stream in self._written):
            return False
        self._written.clear()
        return True

    async def room(self, tell: Callable[[bool], None]) -> None:
        """Return when the streams that were written to can take more.

        Args:
            tell: called with True before a wait that may take long, for disk, and False after it.
        """
        while self._written:
            stream, _ = self._written.popitem()
            is_told = bool(stream.alarm) and not stream.failed
            if is_told:
                tell(True)
            await stream.room()
            if is_told:
                tell(False)

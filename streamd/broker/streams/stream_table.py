"""The streams of one virtual host by name: their rows in the catalog, and what becomes of them."""

from streamd.broker.catalog.writer import Check
from streamd.broker.declared.rows import StreamRow
from streamd.broker.streams.stream import Stream
from streamd.operations.arguments import Arguments
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name


class StreamTable:
    """The streams of one virtual host."""

    def __init__(self, virtual_host: Name) -> None:
        self._virtual_host = virtual_host
        self._rows: dict[Name, StreamRow] = {}
        self._streams: dict[Name, Stream] = {}
        self._is_closed = False

    # -- finding

    def __contains__(self, name: Name) -> bool:
        """Whether there is a stream of that name, available or not."""
        return name in self._rows

    def names(self) -> list[Name]:
        """All streams, available or not, in order of their names."""
        return sorted(self._rows)

    def row(self, name: Name) -> StreamRow:
        """The row of stream `name`, which exists, in the catalog."""
        return self._rows[name]

    def find_row(self, name: Name) -> StreamRow | None:
        """The row of stream `name` in the catalog, if it exists."""
        return self._rows.get(name)

    def arguments(self, name: Name) -> Arguments:
        """The arguments that stream `name`, which exists, was declared with."""
        return self._rows[name].arguments

    def find(self, name: Name) -> Stream:
        """The stream `name`.

        Raises:
            Refused: there is none, or it is not available.
        """
        stream = self._streams.get(name)
        if stream is None:
            raise Refused(Reason.NOT_FOUND, name)
        if stream.life.unavailable is not None:
            raise Refused(Reason.NOT_AVAILABLE, stream.life.unavailable)
        return stream

    def get(self, name: Name) -> Stream | None:
        """The stream `name` where it exists, available or not."""
        return self._streams.get(name)

    def all(self) -> list[Stream]:
        """All streams, available or not."""
        return list(self._streams.values())

    def alarms(self) -> dict[Name, str]:
        """What keeps streams from taking messages, by name."""
        return {name: stream.alarm for name, stream in self._streams.items() if stream.alarm}

    # -- changing

    def check_there(self) -> None:
        """Raise Refused when the virtual host was deleted: nothing is added to it any more."""
        if self._is_closed:
            details = f"the virtual host {self._virtual_host} is gone"
            raise Refused(Reason.NOT_FOUND, details)

    def while_there(self, check: Check) -> Check:
        """A check that also refuses every change once the virtual host was deleted."""

        def check_all() -> None:
            self.check_there()
            check()

        return check_all

    def add(self, row: StreamRow, stream: Stream) -> None:
        """Take a stream of the catalog."""
        self._rows[row.name], self._streams[row.name] = row, stream

    def replace_row(self, row: StreamRow) -> None:
        """Replace the row of a stream."""
        self._rows[row.name] = row

    def remove(self, name: Name) -> Stream:
        """Forget a stream."""
        del self._rows[name]
        return self._streams.pop(name)

    def close(self) -> None:
        """Accept no more streams: the virtual host is deleted."""
        self._is_closed = True

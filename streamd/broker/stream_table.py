"""The streams of one virtual host by name: their rows in the catalog, and those that are open."""

from streamd.broker.arguments import Arguments
from streamd.broker.catalog_rows import StreamRow
from streamd.broker.errors import Reason, Refused
from streamd.broker.stream import Stream


class StreamTable:
    """The streams of one virtual host.

    Args:
        virtual_host: its name.
    """

    def __init__(self, virtual_host: str) -> None:
        self._virtual_host = virtual_host
        self._rows: dict[str, StreamRow] = {}
        self._open: dict[str, Stream] = {}
        self._unavailable: dict[str, str] = {}
        self._is_closed = False

    # -- finding

    def __contains__(self, name: str) -> bool:
        """Whether there is a stream of that name, available or not."""
        return name in self._rows

    def names(self) -> list[str]:
        """All streams, available or not, in order of their names."""
        return sorted(self._rows)

    def row(self, name: str) -> StreamRow:
        """The row of stream `name`, which exists, in the catalog."""
        return self._rows[name]

    def find_row(self, name: str) -> StreamRow | None:
        """The row of stream `name` in the catalog, if it exists."""
        return self._rows.get(name)

    def arguments(self, name: str) -> Arguments:
        """The arguments that stream `name`, which exists, was declared with."""
        return self._rows[name].arguments

    def find(self, name: str) -> Stream:
        """The stream `name`.

        Raises:
            Refused: it does not exist, or is not available.
        """
        stream = self._open.get(name)
        if stream is not None:
            return stream
        if name in self._unavailable:
            raise Refused(Reason.NOT_AVAILABLE, self._unavailable[name])
        raise Refused(Reason.NOT_FOUND, name)

    def find_open(self, name: str) -> Stream | None:
        """The stream `name`, if it exists and is available."""
        return self._open.get(name)

    def all_open(self) -> list[Stream]:
        """All streams that are available."""
        return list(self._open.values())

    def alarms(self) -> dict[str, str]:
        """Why streams do not accept messages, by name."""
        return self._unavailable | {
            name: stream.alarm for name, stream in self._open.items() if stream.alarm
        }

    # -- changing

    def check_there(self) -> None:
        """Raise Refused when the virtual host was deleted: nothing is added to it any more."""
        if self._is_closed:
            details = f"the virtual host {self._virtual_host} is gone"
            raise Refused(Reason.INTERNAL_ERROR, details)

    def add(self, row: StreamRow, stream: Stream) -> None:
        """Add a stream that is open."""
        self._rows[row.name], self._open[row.name] = row, stream

    def add_unavailable(self, row: StreamRow, reason: str) -> None:
        """Add a stream that cannot be opened."""
        self._rows[row.name], self._unavailable[row.name] = row, reason

    def replace_row(self, row: StreamRow) -> None:
        """Replace the row of a stream."""
        self._rows[row.name] = row

    def remove(self, name: str) -> Stream | None:
        """Forget a stream; returns it if it was available."""
        del self._rows[name]
        self._unavailable.pop(name, None)
        return self._open.pop(name, None)

    def close(self) -> None:
        """Accept no more streams: the virtual host is deleted."""
        self._is_closed = True

"""Which filter values a stream's consumers ask for: recorded for tuning its filters.

A file `asked.json` in the stream's folder, written now and then and when the log is closed: a JSON
object of values and how many subscriptions have asked for each. Nothing depends on it, so one that
cannot be read counts as empty.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePath

from segments.atomic_write import replace_file
from segments.disk import Disk
from segments.errors import StorageError

NAME = "asked.json"
MAX_VALUES = 10_000  # bounds the memory that peers can use; beyond it the rarest are forgotten
_MAX_BYTES = 16 << 20


class FilterDemand:
    """The record of one stream.

    Attributes:
        counts: subscriptions by filter value.
    """

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._path = str(PurePath(folder, NAME))
        self._is_changed = False
        self.counts = self._read() if NAME in disk.list(folder) else Counter()

    def _read(self) -> Counter[str]:
        try:
            file = self._disk.open(self._path, writable=False)
            try:
                content = file.read(_MAX_BYTES, 0)
            finally:
                file.close()
            return parse(content)
        except (StorageError, ValueError, RecursionError):
            return Counter()

    def add(self, values: Iterable[bytes]) -> None:
        """Count a subscription to some filter values; those that are not UTF-8 are left out."""
        for value in values:
            try:
                self.counts[value.decode()] += 1
            except UnicodeDecodeError:
                continue
            self._is_changed = True
        if len(self.counts) > MAX_VALUES:
            self.counts = Counter(dict(self.counts.most_common(MAX_VALUES // 2)))

    def write(self) -> None:
        """Write it to disk if it has changed.

        Raises:
            StorageError: the system refused; the next call tries again.
        """
        if self._is_changed:
            self._is_changed = False  # what is counted while this is written is for the next time
            content = json.dumps(dict(self.counts.most_common()), ensure_ascii=False, indent=1)
            try:
                replace_file(self._disk, self._path, content.encode()).close()
            except StorageError:
                self._is_changed = True
                raise


def parse(content: bytes) -> Counter[str]:
    """The counts in a file.

    Raises:
        ValueError: it is not a JSON object of counts.
    """
    found = json.loads(content)
    if not isinstance(found, dict) or not all(
        type(count) is int and count > 0 for count in found.values()
    ):
        raise ValueError("it is not a JSON object of filter values and counts above 0")
    return Counter(found)

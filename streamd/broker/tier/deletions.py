"""What is to be removed from the store, some time: it is on the device, so no restart forgets it.

A file for each task in the folder `tier-deletions` of the data folder: objects that no manifest
names any more, and that go after a grace time; or streams, whose deletion is written down before
the catalog forgets them. What such a file says is carried out as often as it takes.
"""

import json
import logging
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from segments.atomic_write import TEMPORARY_SUFFIX, replace_file
from segments.disk import Disk, OsDisk
from segments.store.object_names import StreamKey
from streamd.broker.tier.identity import random_name

logger = logging.getLogger(__name__)

DELETIONS_FOLDER = "tier-deletions"


class Deletion(NamedTuple):
    """What is to be removed.

    Attributes:
        due_ms: not before that, in ms since 1970.
    """

    name: str
    due_ms: int
    keys: tuple[str, ...] = ()
    streams: tuple[StreamKey, ...] = ()


class Deletions:
    """The tasks of one data folder. All methods block; call them in a thread."""

    def __init__(self, data: str, disk: Disk | None = None) -> None:
        self._folder = str(PurePath(data, DELETIONS_FOLDER))
        self._disk = disk or OsDisk()

    def load(self) -> list[Deletion]:
        """All that were not carried out; a file that cannot be read is left where it is.

        Raises:
            StorageError: the system refused.
        """
        if not Path(self._folder).is_dir():
            return []
        found = []
        for name in self._disk.list(self._folder):
            if name.endswith(TEMPORARY_SUFFIX):
                self._disk.remove(str(PurePath(self._folder, name)))
                continue
            try:
                found.append(self._read(name))
            except (ValueError, KeyError, TypeError):
                path = PurePath(self._folder, name)
                logger.warning(
                    "skipping %s, which is incomplete; `streamd tier gc` finds what is left", path
                )
        return sorted(found, key=lambda one: one.due_ms)

    def _read(self, name: str) -> Deletion:
        file = self._disk.open(str(PurePath(self._folder, name)), writable=False)
        try:
            line: dict[str, Any] = json.loads(file.read(file.size(), 0))
        finally:
            file.close()
        streams = tuple(StreamKey(*key) for key in line["streams"])
        return Deletion(name, int(line["due_ms"]), tuple(line["keys"]), streams)

    def add(
        self, due_ms: int, keys: Iterable[str] = (), streams: Iterable[StreamKey] = ()
    ) -> Deletion:
        """Write a task down; it is on the device when this returns.

        Raises:
            StorageError: the system refused.
        """
        deletion = Deletion(f"{random_name()}.json", due_ms, tuple(sorted(keys)), tuple(streams))
        self._disk.make_folder(self._folder)
        line = {"due_ms": due_ms, "keys": deletion.keys, "streams": deletion.streams}
        path = str(PurePath(self._folder, deletion.name))
        replace_file(self._disk, path, json.dumps(line).encode()).close()
        self._disk.sync_folder(self._folder)
        self._disk.sync_folder(str(PurePath(self._folder).parent))
        return deletion

    def done(self, deletion: Deletion) -> None:
        """Forget a deletion that was carried out, or is not to be.

        Raises:
            StorageError: the system refused.
        """
        self._disk.remove(str(PurePath(self._folder, deletion.name)))

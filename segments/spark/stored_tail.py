"""What write-ahead logs in a store have of a stream behind its manifest, see store/wal.py.

The beginning of each slot is read once; it says which streams it has something of. It is read
before the manifest, which then has what is in slots that have gone. A slot that cannot be used ends
the log: what is behind it is read when it is in the manifest.
"""

import logging
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from segments.checksum import crc32
from segments.errors import FormatError
from segments.spark import headers as columns
from segments.spark.files import Loaded, Window
from segments.spark.headers import Bytes, Headers, Numbers
from segments.spark.ranges import ask_in_order
from segments.store.manifest import Manifest
from segments.store.metadata_log import Held, look, read_on
from segments.store.object_names import WAL_FOLDER, StreamKey
from segments.store.object_store import Listed, MissingError, ObjectStore
from segments.store.wal import Section, chunks_in, decode_head, slot_in

_HEAD_BYTES = 64 << 10  # of a slot: the line that says what is in it has less in most cases
_ATTEMPTS = 5  # while slots go

_log = logging.getLogger(__name__)


class Part(NamedTuple):
    """What a slot has of the stream.

    Attributes:
        key, size: of the slot; size in bytes.
        position: of its first chunk there.
    """

    key: str
    size: int
    position: int
    section: Section


class Chunks(NamedTuple):
    """Chunks of a part, see files.SegmentFile.

    Attributes:
        positions: in the slot.
        content: of the part.
        start: its position.
    """

    positions: Numbers
    headers: Headers
    content: Bytes
    start: int

    def window(self, start: int, end: int) -> Window:
        """See files.SegmentFile."""
        return Loaded(start, self.content[start - self.start : end - self.start])


class Slots:
    """Slots of write-ahead logs, as far as they were looked at, and what they have of one stream.

    Args:
        names: virtual host and stream.
    """

    def __init__(self, names: tuple[str, str]) -> None:
        self._names = names
        self._parts: dict[str, list[Part] | None] = {}  # by key of the slot; None for a fence
        self._held: Held | None = None

    @property
    def since(self) -> int:
        """The epoch of the first manifests that count, as of the last look."""
        return 0 if self._held is None else self._held.cluster.since

    def look(self, store: ObjectStore) -> None:
        """See which there are now.

        Raises:
            FormatError: what says which logs there are cannot be used.
            TierError: the store refused.
        """
        for attempt in range(_ATTEMPTS):
            try:
                self._parts = self._found(store)
            except MissingError:  # slots have gone: the logs begin later by now
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def _found(self, store: ObjectStore) -> dict[str, list[Part] | None]:
        if self._held is None or self._held.earlier is not None:
            self._held = look(store, ask_in_order)
        else:
            self._held = ([self._held] + [held for held, _ in read_on(store, self._held)])[-1]
        if self._held is None:
            return {}
        marks = self._held.cluster.wals
        found: dict[str, list[Part] | None] = {}
        for mark in sorted(marks):
            listed = _from(store.listing(f"{WAL_FOLDER}/{mark.epoch}"), mark.begins)
            try:
                for one, parts in zip(
                    listed, ask_in_order(partial(self._parts_of, store), listed), strict=True
                ):
                    found[one.key] = parts
                    if parts is None:
                        break
            except FormatError as error:
                _log.warning("nothing is read of what is behind a slot in the store: %s", error)
                break
        return found

    def _parts_of(self, store: ObjectStore, one: Listed) -> list[Part] | None:
        if one.key in self._parts:
            return self._parts[one.key]
        content = bytes(store.get_range(one.key, 0, min(one.size, _HEAD_BYTES)))
        if content.count(b"\n", 0) < 2 and len(content) < one.size:  # noqa: PLR2004 - lines
            content = store.get(one.key, one.size).content
        try:
            slot, position = decode_head(one.key, content)
        except FormatError as error:
            raise FormatError(f"{one.key} cannot be used: {error}") from error
        found = []
        for section in slot.sections:
            if section.key[:2] == self._names:
                found.append(Part(one.key, one.size, position, section))
            position += section.size
        return None if slot.is_fence else found

    def newest(self, manifest: Manifest | None) -> Manifest | None:
        """What there is of the stream: a manifest, or one of a later life that has none yet."""
        lives: dict[StreamKey, None] = {}
        for part in self._all():
            lives[part.section.key] = None
            if part.section.is_deleted:
                del lives[part.section.key]
        key = max(lives, default=None)
        if key is None or (manifest is not None and manifest.stream.creation >= key.creation):
            return manifest
        return Manifest(stream=key, revision=0, epoch=0, writer="")

    def behind(self, manifest: Manifest) -> list[Part]:
        """Parts that a manifest has not, without a hole."""
        found, end = [], manifest.next_offset
        for part in self._all():
            section = part.section
            if section.key != manifest.stream or section.next_offset <= end:
                continue
            if section.after > end:
                break
            found.append(part)
            end = section.next_offset
        return found

    def _all(self) -> Iterator[Part]:
        return (part for parts in self._parts.values() for part in parts or ())


def _from(listed: Iterator[Listed], begins: int) -> list[Listed]:
    """Slots that follow each other from a number on."""
    numbered = {number[1]: one for one in listed if (number := slot_in(one.key)) is not None}
    found = []
    while begins in numbered:
        found.append(numbered[begins])
        begins += 1
    return found


def chunks_of(store: ObjectStore, part: Part, start: int) -> Chunks:
    """Chunks of a part from an offset on.

    Raises:
        FormatError: they are damaged.
        TierError: MissingError for one: the slot is gone, and a manifest has them.
    """
    section = part.section
    raw = store.get_range(part.key, part.position, section.size)
    if crc32(raw) != section.crc:
        raise FormatError("its checksum is wrong")
    positions, position = [], 0
    for header, _ in chunks_in(memoryview(raw)):
        if header.chunk_id >= start:
            positions.append(position)
        position += header.total_size
    content, places = np.frombuffer(raw, np.uint8), np.array(positions, np.int64)
    headers = columns.gather(content, places)
    return Chunks(places + part.position, headers, content, part.position)

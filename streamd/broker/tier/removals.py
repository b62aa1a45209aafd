"""Removing from the store what nobody needs: objects after a grace time, and deleted streams."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import trio

from segments import SegmentsError, StorageError
from segments.disk import Disk
from segments.errors import LostCopyError
from segments.store.local_copy import copy_in
from segments.store.manifest import Manifest
from segments.store.manifest_store import OvertakenError
from segments.store.object_names import StreamKey
from streamd.broker.tier import lifecycle
from streamd.broker.tier.deletions import Deletion, Deletions
from streamd.broker.tier.identity import random_name
from streamd.broker.tier.ownership import Ownership
from streamd.broker.tier.pauses import next_pause, shortened
from streamd.broker.tier.requests import ask
from streamd.broker.tier.stream_tier import TieredStream
from streamd.broker.tier.uploader import Uploader
from streamd.net import threads
from streamd.operations.names import Name, stream_folder

logger = logging.getLogger(__name__)

_DELETED_AT_ONCE = 1_000  # objects


class Removals:
    """Carries out what is written down in the data folder, while this server has the tier.

    Args:
        ownership: says when something may be removed.
        uploader: of streams that are deleted nothing is on its way any more.
        streams: of the server, which are in the tier or may come to be.
        is_end_told: write-ahead logs do not bring a stream back that is gone. Until then nothing
            of it is removed: another machine would go on in the middle of it.
        now_ms: the wall clock.
        delay_ms: that an object stays which no manifest names any more.
    """

    def __init__(
        self,
        data: str,
        disk: Disk,
        ownership: Ownership,
        uploader: Uploader,
        streams: dict[tuple[Name, Name], TieredStream],
        is_end_told: Callable[[StreamKey], bool],
        now_ms: Callable[[], int],
        delay_ms: int,
    ) -> None:
        self._data, self._disk = data, disk
        self._ownership, self._uploader, self._streams = ownership, uploader, streams
        self._is_end_told, self._now_ms, self._delay_ms = is_end_told, now_ms, delay_ms
        self._deletions = Deletions(data, disk)
        self._pending: list[Deletion] = []
        self._has_pending = trio.Event()
        self._changed = trio.lowlevel.ParkingLot()

    async def open(self) -> None:
        """Prepare what is on the disk, before logs are opened.

        Raises:
            StorageError: the system refused.
        """
        self._pending = await threads.in_thread(self._deletions.load)

    async def forget_stale(self) -> None:
        """Streams that were to be deleted, and were not: the server was killed before."""
        for deletion in [one for one in self._pending if one.streams]:
            streams = [key for key in deletion.streams if not await self._is_there(key)]
            self._pending.remove(deletion)
            if streams:
                self._pending.append(deletion._replace(streams=tuple(streams)))
            else:
                await threads.in_thread(self._deletions.done, deletion)

    async def _is_there(self, key: StreamKey) -> bool:
        host, name = Name(key.virtual_host), Name(key.stream)
        if (host, name) not in self._streams:
            return False
        folder = stream_folder(self._data, host, name)
        try:
            copy = await threads.in_thread(copy_of, self._disk, folder)
        except SegmentsError as error:  # what is in doubt is not removed
            logger.warning("stream %s stays in the tier: %s", name, error)
            return True
        return copy is not None and copy.stream == key

    async def delete_later(self, keys: set[str]) -> None:
        """Remove objects that no manifest names any more, after the grace time."""
        try:
            await self._add_deletion(self._now_ms() + self._delay_ms, keys=keys)
        except SegmentsError as error:
            logger.warning("%s objects are left in the tier, see `tier gc`: %s", len(keys), error)

    async def _add_deletion(self, due_ms: int, keys: Iterable[str]) -> None:
        add = partial(self._deletions.add, keys=tuple(keys))
        self._pending.append(await threads.in_thread(add, due_ms))
        self._has_pending.set()

    async def will_delete(self, folders: dict[Name, str], virtual_host: Name) -> Deletion | None:
        """Streams are about to be deleted: write down what is in the store of them.

        Args:
            folders: of the streams, by name.
            virtual_host: where they are.
        """
        keys = []
        for name, folder in folders.items():
            stream = self._streams.get((virtual_host, name))
            key = stream.key if stream is not None else None
            if key is None:
                key = await threads.in_thread(_key_in, self._disk, folder, virtual_host, name)
            if key is not None:
                keys.append(key)
        if not keys:
            return None
        return await self._note_deletion(keys)

    async def _note_deletion(self, keys: Iterable[StreamKey]) -> Deletion:
        """Write down streams that are to be removed; a full disk keeps nobody from deleting."""
        add = partial(self._deletions.add, streams=tuple(keys))
        try:
            return await threads.in_thread(add, self._now_ms())
        except StorageError as error:
            names = ", ".join(key.stream for key in keys)
            logger.warning("if this server ends soon, %s stays in the tier: %s", names, error)
            return Deletion(f"{random_name()}.json", self._now_ms(), streams=tuple(keys))

    async def deleted(
        self, deletion: Deletion | None, virtual_host: Name, names: Iterable[Name]
    ) -> None:
        """They are."""
        gone = [self._streams.pop((virtual_host, name), None) for name in names]
        keys = {key for stream in gone if stream is not None and (key := stream.key) is not None}
        if deletion is not None:
            self._pending.append(deletion)
            self._has_pending.set()
            keys -= set(deletion.streams)
        if keys:  # their first upload has begun meanwhile
            self._pending.append(await self._note_deletion(sorted(keys)))
            self._has_pending.set()

    def note(self, deletion: Deletion | None) -> None:
        """What was written down of streams that were gone before is to be carried out."""
        if deletion is not None:
            self._pending.append(deletion)
            self._has_pending.set()

    async def withdraw_deletion(self, deletion: Deletion | None) -> None:
        """They were not deleted after all."""
        if deletion is not None:
            await threads.in_thread(self._deletions.done, deletion)

    @property
    def of_streams(self) -> list[Deletion]:
        """Deleted streams of which something may be in the store."""
        return [one for one in self._pending if one.streams]

    async def carried_out(self, deletions: list[Deletion]) -> None:
        """Return when nothing is left of these."""
        while any(one in self._pending for one in deletions):
            await self._changed.park()

    def look(self) -> None:
        """Whether anything may be removed has changed."""
        self._has_pending.set()

    async def run(self) -> None:
        """Remove what is due, until cancelled."""
        pause = 0.0
        while True:
            self._has_pending = trio.Event()
            try:
                while self._ownership.may_write and (deletion := self._due()) is not None:
                    await self._carry_out(deletion)
                pause = 0.0
            except SegmentsError as error:
                if isinstance(error, OvertakenError):
                    await self._ownership.check_ownership()
                if not (pause or self._ownership.fence):
                    logger.warning(
                        "objects that are not needed will be removed from the tier later: %s", error
                    )
                pause = next_pause(pause)
            seconds = shortened(pause) if pause else self._seconds_to_remove()
            with trio.move_on_after(seconds):
                if pause:
                    await trio.sleep_forever()
                await self._has_pending.wait()

    def _due(self) -> Deletion | None:
        now_ms = self._now_ms()
        return next((one for one in self._allowed() if _due_ms(one) <= now_ms), None)

    def _allowed(self) -> Iterator[Deletion]:
        is_told = self._is_end_told
        return (one for one in self._pending if all(map(is_told, one.streams)))

    def _seconds_to_remove(self) -> float:
        first_ms = min(map(_due_ms, self._allowed()), default=None)
        if first_ms is None or not self._ownership.may_write:
            return float("inf")
        return max(0.0, (first_ms - self._now_ms()) / 1_000)

    async def _carry_out(self, deletion: Deletion) -> None:
        self._pending.remove(deletion)
        self._pending.append(deletion)  # others are not kept waiting when this fails
        store = self._ownership.store
        for start in range(0, len(deletion.keys), _DELETED_AT_ONCE):
            await ask(store.delete, list(deletion.keys[start : start + _DELETED_AT_ONCE]))
        for key in deletion.streams:
            for stream in list(self._uploader.streams):
                if stream.key == key:
                    await self._uploader.left(stream)
            await ask(lifecycle.delete_stream, store, key, self._ownership.identity)
        await self._ownership.check()  # else nothing of it was there to be removed
        await threads.in_thread(self._deletions.done, deletion)
        self._pending.remove(deletion)
        self._changed.unpark_all()


def _due_ms(deletion: Deletion) -> int:
    """Streams are removed at once, also where the clock was set back since they were deleted."""
    return 0 if deletion.streams else deletion.due_ms


def _key_in(disk: Disk, folder: str, virtual_host: Name, name: Name) -> StreamKey | None:
    """Where a stream is in the store, by its folder; None also where that cannot be read."""
    try:
        copy = copy_of(disk, folder)
    except LostCopyError as error:
        return StreamKey(virtual_host, name, error.creation)
    except SegmentsError:
        return None
    return None if copy is None else copy.stream


def copy_of(disk: Disk, folder: str) -> Manifest | None:
    """The copy of a stream's manifest in its folder; None where there is none.

    Raises:
        SegmentsError: it cannot be read.
    """
    return copy_in(disk, folder, disk.list(folder)) if os.path.isdir(folder) else None

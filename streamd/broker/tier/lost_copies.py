"""Streams that cannot be opened because of the tier: what is missing is brought from the store."""

import logging

import trio

from segments.disk import Disk
from segments.errors import FormatError, LostCopyError, UnrestoredError
from segments.segment import SEGMENT_SUFFIX, file_path, files_by_base
from segments.store.local_copy import LACKED, write_copy
from segments.store.lookup import folders_of
from segments.store.manifest import Manifest
from segments.store.manifest_store import KeptManifest, look_up
from segments.store.object_names import StreamKey, creation_in
from segments.store.object_store import TierError
from streamd.broker.tier.ownership import Ownership
from streamd.broker.tier.requests import ask
from streamd.broker.tier.restore import begin_without_manifest, restore_stream
from streamd.broker.tier.wal_reading import StoredTail
from streamd.net import threads
from streamd.operations.names import Name, stream_folder

logger = logging.getLogger(__name__)

_COPY_SECONDS = 10.0  # that the start of a log waits for its manifest


class LostCopies:
    """Brings back what a log needs of the store before it can be opened."""

    def __init__(self, data: str, disk: Disk, ownership: Ownership) -> None:
        self._data, self._disk, self._ownership = data, disk, ownership

    async def fetch_copy(self, key: StreamKey, folder: str, lost: LostCopyError) -> None:
        """Put the copy of a manifest, which is lost, back into a stream's folder; it is not open.

        Args:
            key: of the stream.
            folder: of the stream.
            lost: what became of the copy.

        Raises:
            TierError: the store does not answer, or has nothing that this log goes on from. The
                stream must not be opened then: consumers would miss messages, and others would
                get their offsets.
            StorageError: the system refused.
        """
        reason = ""
        with trio.move_on_after(_COPY_SECONDS) as limit:
            try:
                await self._ownership.taken()
                found = await ask(look_up, self._ownership.store, key)
                reason = await threads.in_thread(self._put_back, key, folder, found)
            except TierError as error:
                reason = str(error)
        if limit.cancelled_caught:
            reason = self._ownership.sentence or "the tier does not answer"
        if reason:
            raise TierError(f"{lost}, which cannot be done: {reason}")
        logger.warning("stream %s: %s: done", key.stream, lost)

    async def restore_again(
        self, host: Name, name: Name, unrestored: UnrestoredError, tail: StoredTail | None
    ) -> StoredTail | None:
        """Restore a stream that could not be, as something was missing in the store.

        Args:
            host: where it is.
            name: of it; it is not open.
            unrestored: why it was not restored before.
            tail: what write-ahead logs have of it, or of an earlier one of its name.

        Returns:
            What they have of it; None for nothing.

        Raises:
            UnrestoredError: it cannot be restored now either.
            StorageError: the system refused.
        """
        reason, owner = "", self._ownership
        with trio.move_on_after(_COPY_SECONDS) as limit:
            try:
                await owner.taken()
                manifest = await ask(self._restore_stream, host, name, tail)
                if tail is not None and _is_of_earlier(tail, manifest):
                    tail = None
                if manifest is None and LACKED in str(unrestored):
                    await owner.check()  # it may have been another place that had nothing
                    folder, epoch = stream_folder(self._data, host, name), owner.identity.epoch
                    await threads.in_thread(begin_without_manifest, folder, epoch, tail)
                elif manifest is None:
                    reason = "the tier does not have it any more"
            except (TierError, FormatError) as error:
                reason = str(error)
        if limit.cancelled_caught:
            reason = f"{unrestored}, and it cannot be tried again: "
            reason += self._ownership.sentence or "the tier does not answer"
        if reason:
            raise UnrestoredError(reason)
        logger.warning("stream %s: %s: it is restored now", name, unrestored)
        return tail

    def _restore_stream(self, host: Name, name: Name, tail: StoredTail | None) -> Manifest | None:
        owner = self._ownership
        folders = folders_of(owner.store, host, name)
        if tail is not None:  # what the store has of earlier ones may go later
            folders = [one for one in folders if not _is_gone(one, tail)]
        restored = restore_stream(self._data, owner.store, owner.identity, owner.since, folders)
        return None if restored is None else restored.manifest

    def _put_back(self, key: StreamKey, folder: str, found: KeptManifest | None) -> str:
        """Write a copy of what the store has; why it cannot be, empty when it is done; blocks."""
        files = files_by_base(self._disk.list(folder)).items()
        if found is None:
            if any(SEGMENT_SUFFIX not in suffixes for _, suffixes in files):
                return "the tier has no manifest of it: is it the right store?"
            mine = self._ownership.identity
            manifest = Manifest(stream=key, revision=0, epoch=mine.epoch, writer=mine.name)
        else:
            manifest = found.manifest
        if manifest.is_deleted:
            return "it is deleted in the tier"
        if self._ownership.identity.is_overtaken_by(manifest.writer, manifest.epoch):
            return "another server has written its manifest"
        newest = max((base for base, found in files if SEGMENT_SUFFIX in found), default=0)
        if newest < manifest.next_offset:
            return (
                f"the tier has messages up to offset {manifest.next_offset}, and no segment in "
                "the data folder goes on from there; start on an empty folder with --restore"
            )
        write_copy(self._disk, folder, manifest)
        named = {one.base_offset for one in manifest.segments}
        for base, suffixes in files:  # what is left of others would say that it is older again
            if base not in named and SEGMENT_SUFFIX not in suffixes:
                for suffix in suffixes:
                    self._disk.remove(file_path(folder, base, suffix))
        return ""


def _is_gone(folder: str, tail: StoredTail) -> bool:
    """By what logs have of its name, the stream in a folder of the store was deleted."""
    creation, last = creation_in(folder), tail.key.creation
    return creation < last or (tail.is_deleted and creation == last)


def _is_of_earlier(tail: StoredTail, manifest: Manifest | None) -> bool:
    """A tail is that of an earlier stream of its name, of which nothing is to come back."""
    return tail.is_deleted if manifest is None else tail.key != manifest.stream

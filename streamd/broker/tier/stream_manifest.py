"""What the store has of one stream: its manifest, read once, then written by compare-and-set.

The manifest that was to be written is remembered until it is known what became of it; the same is
tried again, byte for byte, so an answer that got lost is recognised when the store has done it.
When it is another's, the store is asked whose the tier is (ownership.py). So it is when a stream's
first manifest was written: there was none that a server which has taken the tier over meanwhile
could have changed, so nothing but that tells whether that server has seen it.

What comes from the store is never believed against the log: a manifest that cannot be of this log,
because the data folder is from an older backup say, keeps the stream from being uploaded, and from
taking messages, which would get offsets that others have in the tier.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from segments import Log
from segments.store.manifest import Manifest, StoredSegment, encode_manifest
from segments.store.manifest_store import (
    KeptManifest,
    OvertakenError,
    check_not_older,
    look_up,
    put_manifest,
)
from segments.store.object_names import StreamKey
from segments.store.object_store import ObjectStore, TierError
from segments.tier.planning import conflict, kept_segments, next_unstored
from streamd.broker.declared.rows import StreamRow
from streamd.broker.streams.log_life import StreamState
from streamd.broker.streams.open_log import OpenLog
from streamd.broker.streams.stream import Stream
from streamd.broker.tier.ownership import Ownership
from streamd.broker.tier.requests import ask
from streamd.operations.arguments import arguments_to_json
from streamd.operations.names import Name


class TieredLog(NamedTuple):
    """A stream whose log is open, while something is done for it."""

    stream: Stream
    work: OpenLog
    ownership: Ownership

    @property
    def log(self) -> Log:
        """Its log."""
        return self.work.log

    async def keep(self, manifest: Manifest) -> bool:
        """Write the copy of its manifest; whether it is on the device."""
        return await self.work.maintenance.keep_manifest(manifest)

    @property
    def key(self) -> StreamKey:
        """Its place in the store, once it has one."""
        assert self.log.stored.manifest is not None, "it was met"  # noqa: S101
        return self.log.stored.manifest.stream

    @property
    def is_gone(self) -> bool:
        """The stream was deleted."""
        return self.stream.state is StreamState.GONE

    @property
    def is_over(self) -> bool:
        """Nothing more is to be done."""
        return self.is_gone or self.log.is_closed or bool(self.ownership.fence)


class _Attempt(NamedTuple):
    """A manifest of which nobody knows whether it was written, and its forerunner."""

    before: KeptManifest | None
    wanted: Manifest


class StreamManifest:
    """The manifest of one stream.

    Args:
        ownership: gives the store, and knows whose it is.
        row: its row in the catalog, None once it is gone.
        refused: told why it is not gone on from what the store has; and whether the log and the
            store have become two.
        accepted: it is gone on from what the store has.
        delete_later: no manifest names these objects any more.

    Attributes:
        kept: what the store has, as far as is known; None for nothing.
        is_known: the store was asked, or has confirmed it.
    """

    def __init__(
        self,
        ownership: Ownership,
        virtual_host: Name,
        name: Name,
        row: Callable[[], StreamRow | None],
        refused: Callable[[str, bool], None],
        accepted: Callable[[], None],
        delete_later: Callable[[set[str]], Awaitable[None]],
    ) -> None:
        self.kept: KeptManifest | None = None
        self.is_known = False
        self._ownership = ownership
        self._virtual_host, self._name, self._row = virtual_host, name, row
        self._refused, self._accepted, self._delete_later = refused, accepted, delete_later
        self._attempt: _Attempt | None = None

    @property
    def keys_in_work(self) -> set[str]:
        """Objects that it is about to name."""
        return set() if self._attempt is None else set(self._attempt.wanted.keys())

    def store_is_wrong(self) -> None:
        """The store is another one: what was written last may be there."""
        if self._attempt is not None:  # see what the right one has
            self._attempt, self.is_known = None, False

    async def meet(self, tiered: TieredLog) -> bool:
        """Know what the store has of it; whether it is in the tier, or is to be."""
        log = tiered.log
        if self.is_known and self._attempt is None:
            return self.kept is not None or log.stored.manifest is not None or log.policy.tier
        if tiered.log.stored.manifest is None:
            if not tiered.log.policy.tier or next_unstored(tiered.log) is None:
                return tiered.log.policy.tier
            if not await self._begin(tiered):
                return False
        assert tiered.log.stored.manifest is not None  # noqa: S101 - see above
        if self._attempt is not None:
            await self.write(tiered, self._attempt.before, self._attempt.wanted)
            return not tiered.is_over
        known = tiered.log.stored.manifest
        found = await ask(look_up, self._ownership.store, known.stream, known.segments)
        return await self._take(tiered, found)

    async def _begin(self, tiered: TieredLog) -> bool:
        """Give it a place in the store, before anything is there."""
        key = StreamKey(self._virtual_host, self._name, tiered.log.life)
        manifest = self.following(tiered, None, key, ())
        return await tiered.keep(replace(manifest, revision=0))

    async def _take(self, tiered: TieredLog, found: KeptManifest | None) -> bool:
        """Go on from what the store has."""
        known = tiered.log.stored.manifest
        assert known is not None  # noqa: S101 - see `_meet`
        if found is not None and self._is_overtaken(found.manifest):
            await self._ownership.check_ownership()
            return self._refuse("another server has written its manifest")
        reason = self._doubt(tiered, known, found)
        if reason:
            return self._refuse(reason)
        if found is None:
            found_manifest = replace(known, revision=0, segments=(), tracking=None)
        else:
            found_manifest = found.manifest
            reason = conflict(tiered.log, found_manifest)
            if reason:
                advice = "it takes no messages: start on an empty data folder with --restore"
                return self._refuse(f"{reason}; {advice}", is_split=True)
        if found_manifest != known and not await tiered.keep(found_manifest):
            return False
        self.kept, self.is_known = found, True
        self._accepted()
        return True

    def _doubt(self, tiered: TieredLog, known: Manifest, found: KeptManifest | None) -> str:
        """Why what the store has cannot be gone on from, and is asked for again; else empty."""
        if found is None:
            is_new = not known.revision or known.epoch < self._ownership.since
            if is_new and all(segment.cold is None for segment in tiered.log.segments.shown):
                return ""
            return "the tier has no manifest of it: is it the right store, and is all of it there?"
        if found.manifest.is_deleted:
            return "it is deleted in the tier"
        try:
            check_not_older(self._ownership.store, known, found.manifest)
        except TierError as error:
            return str(error)
        return ""

    def following(
        self,
        tiered: TieredLog,
        before: Manifest | None,
        key: StreamKey,
        segments: tuple[StoredSegment, ...],
    ) -> Manifest:
        """The manifest after `before`, with other segments."""
        mine = self._ownership.identity
        if before is None:
            before = Manifest(stream=key, revision=0, epoch=mine.epoch, writer=mine.name)
        wanted = replace(
            before,
            revision=before.revision + 1,
            epoch=mine.epoch,
            writer=mine.name,
            next_offset=max([before.next_offset, *(one.next_offset for one in segments[-1:])]),
            segments=segments,
            marked=tiered.stream.standing.marked(),
        )
        row = None if tiered.is_gone else self._row()  # not that of a later stream of its name
        if row is None:
            return wanted
        return replace(wanted, arguments=_plain(row.arguments), settings=_plain(row.settings))

    async def write(self, tiered: TieredLog, before: KeptManifest | None, wanted: Manifest) -> bool:
        """Write a manifest, and its copy; whether it is the one in the store."""
        self._attempt = _Attempt(before, wanted)
        try:
            kept, gone = await ask(_replace, self._ownership.store, before, wanted)
        except OvertakenError:
            self._attempt, self.is_known = None, False  # look at it anew
            await self._ownership.check_ownership()
            raise
        if before is None:
            size = len(encode_manifest(wanted))
            await self._ownership.check_stored({wanted.stream.manifest: size})
            if self._ownership.fence:
                return False  # whoever has taken the tier over may not have seen it
        self._attempt, self.kept, self.is_known = None, kept, True
        if gone:
            await self._delete_later(gone)
        if not tiered.is_over:
            await tiered.keep(wanted)
        return True

    async def follow(self, tiered: TieredLog) -> bool:
        """Take segments out of the manifest that the log has dropped; whether there were any."""
        kept, first = self.kept, tiered.log.segments.kept_from
        if kept is None or kept.manifest.first_offset >= first:
            return False
        segments = kept_segments(tiered.log, kept.manifest.segments)
        if segments == kept.manifest.segments:
            return False
        wanted = self.following(tiered, kept.manifest, kept.manifest.stream, segments)
        return await self.write(tiered, kept, wanted)

    def _is_overtaken(self, found: Manifest) -> bool:
        return self._ownership.identity.is_overtaken_by(found.writer, found.epoch)

    def _refuse(self, reason: str, *, is_split: bool = False) -> bool:
        self._refused(reason, is_split)
        return False


def _replace(
    store: ObjectStore, before: KeptManifest | None, wanted: Manifest
) -> tuple[KeptManifest, set[str]]:
    """Write a manifest; gives it, and the keys that it does not name any more."""
    kept = put_manifest(store, before, wanted)
    return kept, set() if before is None else before.manifest.keys_without(wanted)


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(arguments_to_json(arguments))
    return found

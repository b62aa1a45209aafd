"""Segment files of one stream that leave the disk, as a store has them."""

import logging
from collections.abc import Callable, Sequence

from segments.policy import DEFAULT_LOCAL_BYTES
from segments.segment import Segment
from segments.store.manifest_store import is_there
from segments.store.object_store import TierError
from streamd.broker.tier.ownership import Ownership
from streamd.broker.tier.requests import ask
from streamd.broker.tier.segment_uploads import has_final_keys
from streamd.broker.tier.stream_manifest import StreamManifest, TieredLog
from streamd.operations.names import Name

logger = logging.getLogger(__name__)

SHORTAGE_SECONDS = 1.0
# A stream may exceed its local limit by so many segments while files have to stay; another one may
# be on its way to the store.
_MOST_OVER = 1


class Eviction:
    """Removes segment files of one stream, some time after they were stored.

    Args:
        ownership: gives the store, and knows whose it is.
        now_ms: the wall clock.
        delay_ms: that a file stays after it was stored.
    """

    def __init__(
        self,
        name: Name,
        ownership: Ownership,
        manifest: StreamManifest,
        now_ms: Callable[[], int],
        delay_ms: int,
    ) -> None:
        self._name, self._ownership, self._manifest = name, ownership, manifest
        self._now_ms, self._delay_ms = now_ms, delay_ms
        self._stored_ms: dict[int, int] = {}

    def note_stored(self, base_offset: int) -> None:
        """A segment has just been stored."""
        self._stored_ms[base_offset] = self._now_ms()

    def forget_before(self, offset: int) -> None:
        """Segments before this have left the log."""
        self._stored_ms = {at: ms for at, ms in self._stored_ms.items() if at >= offset}

    async def step(self, tiered: TieredLog) -> float | None:
        """Remove segment files that the local limits do not leave room for.

        Returns:
            Seconds until there is more to remove; None while that is not known.
        """
        going, again_ms = self._evictable(tiered)
        if not going:
            return None if again_ms is None else again_ms / 1_000
        there = await self._there(tiered, going)
        is_short, going = len(there) < len(going), there
        if not all(tiered.log.is_sure_of(segment.next_offset) for segment in going):
            await tiered.work.maintenance.flush(with_checkpoint=True)
        sure = [one for one in going if tiered.log.is_sure_of(one.next_offset)]
        # Where no checkpoint could be written, for want of room, say, one of them makes some.
        if going and not sure and tiered.log.journal.is_covered(going[0].next_offset):
            sure = going[:1]
        await tiered.work.maintenance.evict(sure)
        for segment in going:
            if segment.cold is not None:
                self._stored_ms.pop(segment.base_offset, None)
        if any(tiered.log.keeps(one) and one.cold is None for one in going):
            return SHORTAGE_SECONDS  # somebody works on it, or the disk refused
        if is_short:
            return 0.0
        return None if again_ms is None else again_ms / 1_000

    async def _there(self, tiered: TieredLog, going: Sequence[Segment]) -> list[Segment]:
        """The first of some segments, as far as the store has them now.

        Whatever it has confirmed, it may be another one by now, or not all of it may be there. A
        segment of which something is missing is stored again.
        """
        kept = self._manifest.kept
        assert kept is not None  # noqa: S101 - something is stored
        there: list[Segment] = []
        for segment in going:
            assert segment.stored is not None  # noqa: S101 - it may go
            try:
                if await ask(is_there, self._ownership.store, kept, segment.stored):
                    there.append(segment)
                    continue
                await self._ownership.check()
            except TierError:
                self._manifest.is_known = False  # it may be another one by now: look at it anew
                if there:
                    break
                raise
            logger.error(
                "stream %s: the tier does not have all objects of the segment from offset %s on, "
                "which its manifest names; it is uploaded again",
                *(self._name, segment.base_offset),
            )
            tiered.log.segments.forget_stored(segment)
            self._stored_ms.pop(segment.base_offset, None)
            break
        return there

    def _evictable(self, tiered: TieredLog) -> tuple[list[Segment], int | None]:
        policy, now_ms = tiered.log.policy, self._now_ms()
        most, age_ms = policy.local_max_length_bytes, policy.local_max_age_ms
        if most is None and age_ms is None:
            most = DEFAULT_LOCAL_BYTES
        over = 0 if most is None else tiered.log.segments.local_size - most
        going: list[Segment] = []
        for segment in tiered.log.segments.local:
            if not segment.num_chunks:
                continue
            if not tiered.log.segments.is_sealed(segment):
                break
            old_ms = None if age_ms is None else (segment.last_timestamp_ms or 0) + age_ms - now_ms
            if over <= 0 and (old_ms is None or old_ms > 0):
                return going, old_ms
            # Nothing has to be made from its file any more.
            is_ready = not policy.key_properties or has_final_keys(segment)
            if segment.stored is None or not is_ready:
                return going, None
            since_ms = min(self._stored_ms.get(segment.base_offset, now_ms), now_ms)
            self._stored_ms[segment.base_offset] = since_ms  # the clock may have been set back
            # The limit is worth more than the delay.
            is_much = over > _MOST_OVER * tiered.log.segment_bytes
            if since_ms + self._delay_ms > now_ms and not is_much:
                return going, since_ms + self._delay_ms - now_ms
            going.append(segment)
            over -= segment.size
        return going, None

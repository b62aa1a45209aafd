"""Streams whose sealed segments are only in an object store."""

from collections.abc import Collection, Iterable
from contextlib import suppress

from segments import Log
from segments.derived.filter_files import load_or_build
from segments.segment import (
    FILTER_SUFFIX,
    INDEX_SUFFIX,
    KEYS_SUFFIX,
    SEGMENT_SUFFIX,
    KeyState,
    Segment,
)
from segments.store.cache import CachedSegment, ColdError, Pin, Range
from segments.store.local_copy import write_copy
from segments.store.manifest import Manifest, encode_manifest
from segments.store.object_names import StreamKey
from segments.store.object_store import ObjectStore
from segments.tier.fetching import fetch_file, fetch_range
from segments.tier.plan import Request, aligned
from streamd.broker.streams.stream import Stream
from tests.support.stored_streams import EPOCH, put_segment
from tests.support.syncs import work_beside

KEY = StreamKey("/", "s", "0000018bcfe56800-5eed")
_NOTHING = Range(0, 0)
_ALL = (SEGMENT_SUFFIX, INDEX_SUFFIX, FILTER_SUFFIX, KEYS_SUFFIX)


def make_cold(
    log: Log,
    store: ObjectStore,
    *,
    seals: bool = True,
    suffixes: Collection[str] = _ALL,
    restored: bool = False,
    number: int | None = None,
) -> list[Segment]:
    """Upload sealed segments of a log, and remove their files.

    Args:
        log: open.
        store: where to.
        seals: the newest one is sealed before.
        suffixes: which files are uploaded, as far as there are any.
        restored: what is beside the segments is removed, too, as on a new machine.
        number: of the oldest segments; None for all sealed ones.

    Returns:
        Those that are cold now.
    """
    log.flush(with_checkpoint=True)
    if seals:
        log.seal()
        log.flush(with_checkpoint=True)
    sealed = [one for one in log.segments.shown if log.segments.is_sealed(one) and one.num_chunks]
    chosen = [one for one in sealed[:number] if one.cold is None]
    stored = [put_segment(store, KEY, one, suffixes) for one in chosen]
    before = log.stored.manifest.segments if log.stored.manifest is not None else ()
    manifest = Manifest(
        stream=KEY,
        revision=len(before) + 1,
        epoch=EPOCH,
        writer="test",
        next_offset=stored[-1].next_offset if stored else log.segments.first_offset,
        segments=(*before, *stored),
    )
    if not sealed:
        return []
    store.delete([KEY.manifest])
    store.create(KEY.manifest, encode_manifest(manifest))
    write_copy(sealed[0].disk, log.folder, manifest)
    log.stored.adopt(manifest)
    for segment in chosen:
        log.stored.make_cold(segment)
        segment.remove_file()
        if restored:
            segment.drop_filters()
            for suffix in (INDEX_SUFFIX, FILTER_SUFFIX, KEYS_SUFFIX):
                segment.disk.remove(segment.path(suffix))
            segment.key_state, segment.keys = KeyState.UNKNOWN, None
    return chosen


class Bringer:
    """Brings what a log without a server lacks, as somebody who reads it asks for it.

    Args:
        log: with cold segments.
        store: where those are.
    """

    def __init__(self, log: Log, store: ObjectStore) -> None:
        self._log = log
        self._store = store
        self._pins: list[Pin] = []

    def bring(self, error: ColdError, requests: Iterable[Request] = ()) -> None:
        """Fetch what an error asks for, which is kept until `release`."""
        cached = error.cached
        if error.suffix:
            requests = [Request(cached, suffix=error.suffix)]
        else:
            self._pins.append(cached.hold_some(*error.wanted))
        self.fetch(requests, error.wanted)
        if not error.suffix and cached.missing(*error.wanted):
            segment = self._log.segments.holding(cached.stored.base_offset)
            try:
                where = aligned(segment, error.wanted)
            except ColdError as other:
                self.bring(other)
            else:
                self.fetch([Request(cached, where)], error.wanted)

    def fetch(self, requests: Iterable[Request], wanted: Range = _NOTHING) -> None:
        """Fetch some more; what overlaps `wanted` is kept."""
        for cached, where, suffix in requests:
            if suffix:
                self._bring_file(cached, suffix)
                continue
            pin = fetch_range(self._store, cached, where).pin
            self._pins.append(pin)
            if not (where.start < wanted.end and wanted.start < where.end):
                self._pins.pop().release()

    def _bring_file(self, cached: CachedSegment, suffix: str) -> None:
        segment = self._log.segments.holding(cached.stored.base_offset)
        try:
            segment.open_beside(suffix).close()
        except ColdError:
            fetch_file(segment.disk, self._store, cached, suffix)
        if suffix == FILTER_SUFFIX:
            self._log.indexes.request(segment)
            load_filters(self._log)

    def release(self) -> None:
        """It was read."""
        for pin in self._pins:
            pin.release()
        self._pins.clear()


def load_filters(log: Log) -> None:
    """Load the filter indexes that are requested, as far as they are here."""
    for segment in log.indexes.take_requests():
        segment.index_done()
        with suppress(ColdError):
            filters = load_or_build(
                segment, segment.size, is_sealed=log.segments.is_sealed(segment)
            )
            if filters is not None:
                log.indexes.adopt(segment, filters, segment.size)


def make_stream_cold(stream: Stream, store: ObjectStore, **options: bool) -> list[Segment]:
    """The same on the event loop, of a stream whose log is open."""
    return work_beside(lambda: make_cold(stream.log, store, **options))

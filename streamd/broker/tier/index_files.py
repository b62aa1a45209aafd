"""Index files of cold segments that are not on this disk, as after a restore, are fetched gently.

A reader that needs one does not wait for that: it has it fetched at once. When all are here, no
question needs more of the store than the chunks that match, also while the store is slow.
"""

from collections.abc import Callable, Iterable
from pathlib import PurePath

import trio

from segments.disk import OsDisk
from segments.errors import SegmentsError
from segments.segment import DERIVED_SUFFIXES, INDEX_SUFFIX, SEGMENT_SUFFIX, file_path
from segments.store.cache import ColdError
from segments.store.local_copy import MANIFEST_FILE, read_copy
from streamd.broker.streams.fetcher import Fetcher
from streamd.broker.streams.stream import Stream
from streamd.net import threads
from streamd.net.turns import in_turns
from streamd.operations.errors import Refused

_SUFFIXES = (INDEX_SUFFIX, *DERIVED_SUFFIXES)
_STREAM_SECONDS, _FILE_SECONDS = 0.005, 0.05  # between two streams, and two files


class IndexFiles:
    """Fetches them once after the start.

    Args:
        streams: gives all streams, and their folders.
        fetcher: fetches.
    """

    def __init__(
        self, streams: Callable[[], Iterable[tuple[Stream, str]]], fetcher: Fetcher
    ) -> None:
        self._streams = streams
        self._fetcher = fetcher

    async def run(self) -> None:
        """Fetch those that are missing; returns when all are here, or cannot be."""
        await self._fetcher.store_known.wait()
        for stream, folder in list(self._streams()):
            missing = await threads.in_thread(_missing, folder)
            if missing:
                await self._fetch(stream, missing)
            await trio.sleep(_STREAM_SECONDS)

    async def _fetch(self, stream: Stream, missing: set[tuple[str, str]]) -> None:
        """Fetch files of one stream, given by the id of their objects and their suffix."""
        try:
            async with stream.opened() as log:
                async for segment in in_turns(list(log.segments.shown)):
                    cached = segment.cold
                    if cached is None or not log.keeps(segment):
                        continue
                    for suffix in _SUFFIXES:
                        if (cached.stored.uid, suffix) in missing:
                            with self._fetcher.demanded(stream) as demand:
                                await demand.fetch(ColdError(cached, suffix=suffix))
                            await trio.sleep(_FILE_SECONDS)
        except (Refused, SegmentsError):
            return  # it is gone, or its log says why


def _missing(folder: str) -> set[tuple[str, str]]:
    """Side files of cold segments that are missing in the stream's folder; blocks."""
    disk = OsDisk()
    try:
        names = set(disk.list(folder))
        manifest = read_copy(disk, folder) if MANIFEST_FILE in names else None
    except SegmentsError:
        return set()
    if manifest is None:
        return set()
    here = {str(PurePath(folder, name)) for name in names}
    return {
        (stored.uid, suffix)
        for stored in manifest.segments
        if file_path(folder, stored.base_offset, SEGMENT_SUFFIX) not in here
        for suffix in _SUFFIXES
        if suffix in stored.files and file_path(folder, stored.base_offset, suffix) not in here
    }

"""What a log knows of the store without looking at all of its segments is what there is."""

from dataclasses import replace

from hypothesis import given, strategies as st

from segments import Log
from segments.policy import LogPolicy
from segments.store.cache import TierCache
from segments.store.manifest import Manifest, StoredFile
from segments.store.object_names import StreamKey
from segments.tier.packing import stored_segment
from segments.tier.planning import conflict, kept_segments
from tests.segments.tier.test_crashes import check_known, listed_anew
from tests.support.disk import FaultyDisk
from tests.support.logs import append

KEY = StreamKey("/", "s", "018bcfe56800" + "0" * 8)
_STEPS = ("seal", "store", "store", "evict", "evict", "drop", "forget")


@given(st.lists(st.sampled_from(_STEPS), max_size=30), st.data())
def test_whatever_comes_and_goes(steps: list[str], data: st.DataObject) -> None:
    disk = FaultyDisk()
    log = Log.open("s", LogPolicy(), disk, cache=TierCache("cache", 1 << 30, disk))
    manifest = Manifest(stream=KEY, revision=0, epoch=1, writer="w")
    for number, step in enumerate(["seal", "seal", "seal", *steps]):
        if step == "seal":
            append(log, [b"message"] * data.draw(st.integers(1, 3)))
            log.seal()
            log.flush(with_checkpoint=True)
        elif step == "store" and (waiting := log.segments.unstored):  # the oldest, or another one
            chosen = data.draw(st.sampled_from(waiting))
            files = {".segment": StoredFile(chosen.size, 1), ".index": StoredFile(37, 2)}
            new = stored_segment(chosen, 1, f"{number:016x}", files)
            segments = kept_segments(log, manifest.segments, new)
            assert segments == listed_anew(log, manifest, new)
            manifest = replace(manifest, revision=number, segments=segments)
            log.stored.adopt(manifest)
        elif step == "evict":
            stored = [one for one in log.segments.local if one.stored is not None]
            for segment in stored[: data.draw(st.integers(1, 2))]:
                log.stored.make_cold(segment)
        elif step == "drop":
            going = data.draw(st.sampled_from(log.segments.shown)).base_offset
            log.truncate(going).run()
            kept = kept_segments(log, manifest.segments)
            assert kept == listed_anew(log, manifest, None)
        elif step == "forget" and len(log.segments.local) == len(
            log.segments.shown
        ):  # another store
            manifest = replace(manifest, revision=number, segments=())
            log.stored.adopt(manifest)
        check_known(log)
        assert not conflict(log, replace(manifest, next_offset=0))
    log.close()

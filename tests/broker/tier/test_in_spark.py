"""What a server has uploaded, and is no longer on its disk, is what Spark reads in the store."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from segments.spark import stored
from streamd.wire.stream import commands as c
from tests.broker.tier.support import SEGMENT_BYTES, bodies, manifest_of, passes, publish, tiered
from tests.segments.spark.test_decoding import rows
from tests.support.fake_store import FakeStore
from tests.support.server import OK


@pytest.mark.parametrize(("name", "path"), [("s", "s"), ("a/b ü~", "a%2Fb%20%C3%BC~")])
async def test_what_is_uploaded_is_read(
    tmp_path: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch, name: str, path: str
) -> None:
    monkeypatch.setattr(stored, "open_store", lambda _url, _endpoint: store)
    stored._opened.cache_clear()
    arguments = {
        "stream_max_segment_size_bytes": SEGMENT_BYTES,
        "stream_local_max_length_bytes": SEGMENT_BYTES,
    }
    async with tiered(tmp_path, store) as server:
        peer = await server.publisher(name, is_new=True, reference="p", **arguments)
        await publish(peer, 0, 5)
        await passes(5)
        await peer.vanish()
        peer = await server.peer()
        assert await peer.code(c.Delete, name) == OK
        # What is created now is another stream, in another folder.
        await peer.begin(name, reference="p", **arguments)
        await publish(peer, 0, 40)
        await passes(60)
        log = server.host.find(name).log
        assert any(segment.cold is not None for segment in log.segments.shown)
        found = rows(f"s3://bucket/tier/%2F/{path}", columns="stream,offset,body")
        end = manifest_of(store, name).next_offset
        assert len(found) == end > 500
        assert [row["body"] for row in found] == bodies(0, end)
        assert {row["stream"] for row in found} == {name}
    stored._opened.cache_clear()

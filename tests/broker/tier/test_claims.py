"""Whose a store is, and how often a server has been started."""

import errno
import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from segments import Log
from segments.disk import OsDisk
from segments.errors import CorruptError, StorageError
from segments.store.cluster import Cluster, WalMark
from segments.store.metadata_log import Row
from segments.store.object_names import CLUSTER
from segments.store.object_store import ConflictError, TierError
from streamd.broker.tier import claims
from streamd.broker.tier.claims import FasterError, FencedError
from streamd.broker.tier.identity import IDENTITY_FILE, Identity, begin_epoch
from tests.broker.tier.support import passes, tier_of, tiered
from tests.support.fake_store import FakeStore
from tests.support.logs import append
from tests.support.server import fails_to_start, with_peer

A, B = Identity("a" * 16, 5, "1" * 16), Identity("b" * 16, 3, "2" * 16)


class TestClaim:
    def test_an_empty_store_is_taken(self, store: FakeStore) -> None:
        held = claims.claim(store, A)
        tier = held.cluster.tier
        assert held.cluster == Cluster(revision=1, epoch=5, writer=A.name, start=A.start, tier=tier)
        assert len(tier) == 16
        assert claims.check(store, A) == held

    def test_our_own_is_taken_again_with_a_higher_epoch(self, store: FakeStore) -> None:
        claims.claim(store, A)
        later = A._replace(epoch=6, start="3" * 16)
        assert claims.claim(store, later).cluster.epoch == 6
        with pytest.raises(FencedError):  # a copy of the data folder is at work
            claims.check(store, A)
        older = A._replace(epoch=2, start="4" * 16)  # it is from a backup
        assert claims.claim(store, older).cluster.epoch == 7

    def test_anothers_is_not_taken(self, store: FakeStore) -> None:
        claims.claim(store, A)
        before = dict(store.objects)
        with pytest.raises(FencedError, match="epoch 5"):
            claims.claim(store, B)
        assert store.objects == before

    def test_but_when_that_is_asked_for(self, store: FakeStore) -> None:
        claims.claim(store, A)
        held = claims.claim(store, B, takes_over=True)
        assert (held.cluster.writer, held.cluster.epoch) == (B.name, 6)
        with pytest.raises(FencedError, match="epoch 6"):
            claims.check(store, A)

    @pytest.mark.parametrize("is_first", [True, False])
    def test_of_two_that_take_it_over_at_once_one_has_it(self, *, is_first: bool) -> None:
        store = FakeStore()
        if not is_first:
            claims.claim(store, A)
        other = Identity("c" * 16, 1, "9" * 16)

        def hook(call: object) -> None:
            if getattr(call, "name", "") in ("create", "replace"):
                store.before = lambda _: None
                claims.claim(store, other, takes_over=True)

        store.before = hook
        with pytest.raises(FencedError):
            claims.claim(store, B, takes_over=True)
        claims.check(store, other)

    @pytest.mark.parametrize("is_after", [False, True])
    @pytest.mark.parametrize("number", range(2))
    def test_an_answer_that_is_lost(self, store: FakeStore, number: int, *, is_after: bool) -> None:
        claims.claim(store, A)
        me = A._replace(epoch=6, start="3" * 16)
        store.fail(after=is_after, skip=number)
        for _ in range(3):
            try:
                held = claims.claim(store, me)
                break
            except TierError:
                continue
        assert claims.check(store, me) == held
        assert held.cluster.revision == 2

    def test_a_conflict_that_is_none(self, store: FakeStore) -> None:
        store.conflict(name="create")
        with pytest.raises(TierError) as caught:
            claims.claim(store, A)
        assert not isinstance(caught.value, ConflictError)
        claims.claim(store, A)

    def test_rows_are_of_who_has_the_tier(self, store: FakeStore) -> None:
        held = claims.claim(store, A)
        rows = (Row("users", {"name": "u"}, None),)
        named = claims.put_rows(store, held, rows, 7, 9)
        assert named.cluster == replace(held.cluster, revision=2)
        (entry,) = claims.go_on(store, held)[1]
        assert (entry.rows, entry.change, entry.schema) == (rows, 7, 9)
        claims.claim(store, B, takes_over=True)
        before = dict(store.objects)
        with pytest.raises(FasterError):
            claims.put_rows(store, named, rows, 8, 9)
        with pytest.raises(FencedError):
            claims.begin_since(store, named, A)
        with pytest.raises(FencedError):
            claims.mark_wals(store, A, named, lambda _: (WalMark(5, 0),))
        assert store.objects == before

    def test_what_two_changes_say_counts(self, store: FakeStore) -> None:
        """Of one server, at the same time."""
        held = claims.claim(store, A)
        claims.put_rows(store, held, (Row("users", {"name": "u"}, None),), 1, 9)
        claims.mark_wals(store, A, held, lambda wals: (*wals, WalMark(5, 0)))
        after = claims.begin_since(store, held, A)
        assert after.cluster == replace(
            held.cluster, revision=4, since=A.epoch, wals=(WalMark(5, 0),)
        )

    def test_an_object_that_cannot_be_understood_is_left_alone(self, store: FakeStore) -> None:
        claims.claim(store, A)
        store.flip(CLUSTER, 20)
        before = store.objects[CLUSTER]
        for work in (claims.claim, claims.check):
            with pytest.raises(TierError, match="cannot be used"):
                work(store, A)
        assert store.objects[CLUSTER] == before


class TestEpochs:
    def test_each_start_has_a_higher_one(self, tmp_path: Path) -> None:
        first, second = begin_epoch(str(tmp_path)), begin_epoch(str(tmp_path))
        assert (first.epoch, second.epoch) == (1, 2)
        assert first.name == second.name
        assert first.start != second.start

    def test_of_a_folder_of_an_earlier_version(self, tmp_path: Path) -> None:
        folder = tmp_path / "streams" / "host" / "s"
        for _ in range(4):
            log = Log.open(str(folder))
            append(log, [b"x"])
            log.close()
        assert begin_epoch(str(tmp_path)).epoch == 5

    @pytest.mark.parametrize("content", [b"", b"[]", b'{"version":1}', b"\xff\xff"])
    async def test_a_damaged_file_is_told(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / IDENTITY_FILE).write_bytes(content)
        with pytest.raises(CorruptError):
            begin_epoch(str(tmp_path))
        await fails_to_start(tmp_path, r"tier\.json")

    def test_one_that_cannot_be_written_is_not_used(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begin_epoch(str(tmp_path))
        before = (tmp_path / IDENTITY_FILE).read_bytes()

        def refuse(_self: object, path: str, _new: str) -> None:
            raise StorageError("rename", path, OSError(errno.EIO, "no"))

        monkeypatch.setattr(OsDisk, "rename", refuse)
        with pytest.raises(StorageError):
            begin_epoch(str(tmp_path))
        assert (tmp_path / IDENTITY_FILE).read_bytes() == before

    async def test_chunks_have_that_of_the_servers_start(self, tmp_path: Path) -> None:
        for start in itertools.count(1):
            async with with_peer(tmp_path) as (server, peer):
                if start == 1:
                    await peer.create("s")
                await peer.declare("s", reference="p")
                for _ in range(2):
                    await peer.store([b"x"], first_id=start * 10)
                    stream = server.host.find("s")
                    assert stream.log.epoch == start
                    await passes(200)
                    assert not stream.is_open
                    await peer.store([b"x"], first_id=start * 10 + 1)
                    break
            if start == 3:
                break

    async def test_it_is_raised_when_the_store_has_seen_it(self, tmp_path: Path) -> None:
        store = FakeStore()
        async with tiered(tmp_path, store) as server:
            await passes(1)
            name = tier_of(server).ownership.identity.name
        claims.claim(store, Identity(name, 70, "x"))
        async with tiered(tmp_path, store) as server:
            await passes(1)
            assert tier_of(server).ownership.identity.epoch == 71
            peer = await server.publisher("s", is_new=True)
            await peer.store([b"x"])
            assert server.host.find("s").log.epoch == 71
        assert json.loads((tmp_path / IDENTITY_FILE).read_text())["epoch"] == 71

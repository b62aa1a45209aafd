"""`tier verify` and `tier gc` know the write-ahead log."""

from dataclasses import replace
from pathlib import Path

import pytest

from segments.store.object_names import WAL_FOLDER
from segments.store.object_store import TierError
from segments.store.wal import decode_slot, encode_slot, slot_key
from streamd.operations.errors import Refused
from streamd.operations.names import Name
from tests.broker.tier.support import confirmed_by_store, passes, slots, tier_of, tiered
from tests.support.fake_store import FakeStore
from tests.support.server import Harness, Peer
from tests.support.tiers import state_of

STORE = {"stream_confirm": "store"}


def _is_fence(store: FakeStore, key: str) -> bool:
    return decode_slot(key, store.objects[key].content)[0].is_fence


async def _store(peer: Peer, *numbers: int) -> None:
    """Each in a slot of its own."""
    for number in numbers:
        await peer.store([b"%d" % number], number)
        await passes(1)


async def _faults(server: Harness) -> list[str]:
    found = await tier_of(server).verify(server.host.name, Name("s"))
    assert found.num_faults == len(found.faults)
    return [
        f"{fault.key.rpartition('/')[2].lstrip('0') or '0'}: {fault.sentence}"
        for fault in found.faults
    ]


# -- verify


async def test_slots_that_count_are_read(store: FakeStore, server: Harness) -> None:
    peer = await confirmed_by_store(server)
    await (await server.peer()).create("other", **STORE)
    await _store(peer, 1, 2, 3)
    found = await tier_of(server).verify(server.host.name, Name("s"))
    assert (found.num_objects, found.num_faults) == (3, 0)  # nothing else is stored of it
    assert found.num_bytes == sum(len(store.objects[key].content) for key in slots(store))
    with pytest.raises(Refused, match="not in the tier"):
        await tier_of(server).verify(server.host.name, Name("other"))
    await tier_of(server).confirms.shorten()
    found = await tier_of(server).verify(server.host.name, Name("s"))
    assert found.num_objects > 3  # the manifest, and what it names
    assert not found.num_faults


async def test_slots_that_are_wrong_are_named(store: FakeStore, server: Harness) -> None:
    await _store(await confirmed_by_store(server), 1, 2, 3, 4)
    damaged, gone, foreign, _ = slots(store)
    store.flip(damaged, -1)
    del store.objects[gone]
    slot, _ = decode_slot(foreign, store.objects[foreign].content)
    empty = encode_slot(type(slot)(tier=slot.tier, epoch=slot.epoch, slot=slot.slot, writer="w"))
    store.objects[foreign] = replace(store.objects[foreign], content=empty)
    assert await _faults(server) == [
        "0: the checksum of what it has of s is wrong",
        "1: it is not there",
        "2: it has nothing of s",
    ]


async def test_a_slot_that_goes_meanwhile_is_no_fault(
    store: FakeStore, server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _store(await confirmed_by_store(server), 1, 2)
    confirms = tier_of(server).confirms
    known = [confirms.slots_of] * 2  # is there one, and which
    del store.objects[slots(store)[0]]
    monkeypatch.setattr(confirms, "slots_of", lambda key: known.pop()(key) if known else set())
    assert await _faults(server) == []


# -- gc


async def _collect(server: Harness, *, dry_run: bool = False) -> list[str]:
    found = await tier_of(server).collect(dry_run=dry_run)
    assert found.is_removed is not dry_run
    assert found.num_orphans == len(found.orphans)
    return sorted(one.key for one in found.orphans if one.key.startswith(WAL_FOLDER))


async def test_slots_that_were_left_are_removed_and_fences_stay(tmp_path: Path) -> None:
    store = FakeStore()
    async with tiered(tmp_path, store) as server:
        await _store(await confirmed_by_store(server), 1, 2, 3)
        store.fail(name="delete", key=WAL_FOLDER, times=-1)
        with pytest.raises(TierError):
            await tier_of(server).confirms.shorten()
        store.heal()
        left = slots(store)
        assert len(left) == 3
        assert await _collect(server) == []  # of this start; the next one's
    async with tiered(tmp_path, store) as server:
        peer = await confirmed_by_store(server)
        await _store(peer, 4)
        mine = set(slots(store)) - set(left)
        assert await _collect(server, dry_run=True) == left
        assert set(left) < set(slots(store))
        assert await _collect(server) == left
        assert set(slots(store)) == mine
        assert await _collect(server) == []


async def test_what_counts_or_cannot_be_read_stays(tmp_path: Path, store: FakeStore) -> None:
    async with tiered(tmp_path, store) as server:
        await _store(await confirmed_by_store(server), 1, 2, 3)
    async with tiered(tmp_path, store) as server:
        await passes(1)
        epoch = tier_of(server).ownership.identity.epoch
        before = set(slots(store))
        (mark,) = (mark for mark in state_of(store).wals if mark.epoch < epoch)
        assert any(_is_fence(store, key) for key in before)
        assert await _collect(server) == []  # it is still to be read by a start
        await tier_of(server).confirms.shorten()
        (fence,) = slots(store)
        assert _is_fence(store, fence)
        # A slot of the server that is gone, behind its fence; and something that nobody can read.
        late, odd = slot_key(mark.epoch, 9), slot_key(mark.epoch, 10)
        sample = store.objects[fence]
        slot, _ = decode_slot(fence, sample.content)
        content = encode_slot(type(slot)(tier=slot.tier, epoch=mark.epoch, slot=9, writer="w"))
        store.objects[late] = replace(sample, content=content)
        store.objects[odd] = replace(sample, content=b"?")
        store.objects[slot_key(epoch + 5, 0)] = sample
        store.objects[f"{WAL_FOLDER}/x"] = sample
        assert await _collect(server) == [late]
        assert {fence, odd, slot_key(epoch + 5, 0)} < set(slots(store))

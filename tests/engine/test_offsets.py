"""Stored offsets that people change: guarded, named, and to be undone."""

from pathlib import Path
from typing import Any

import pytest

from segments.gaps import OFFSET_GAP
from streamd.engine import Caller
from streamd.operations import streams as s
from streamd.operations.errors import NoSuch, Reason, Refused
from streamd.wire.stream import commands as c
from tests.support.server import Harness, Peer, harness, with_peer

HOUR_MS = 3_600_000


class Asking:
    """Somebody who may read stream s."""

    def __init__(self, server: Harness) -> None:
        self.server = server
        account = server.server.directory.account("guest")
        assert account is not None
        self._caller = Caller(server.server.directory, account)

    async def set(self, name: str = "till", **fields: Any) -> s.Moved:
        request = s.SetOffset(vhost="/", stream="s", name=name, **fields)
        return await self.server.server.engine.ask(self._caller, request)

    async def delete(self, name: str = "till", **fields: Any) -> s.Moved:
        request = s.DeleteOffset(vhost="/", stream="s", name=name, **fields)
        return await self.server.server.engine.ask(self._caller, request)

    def stored(self) -> dict[bytes, int]:
        return self.server.host.find("s").log.journal.tracking.offsets()


@pytest.fixture
async def asking(server: Harness, peer: Peer) -> Asking:
    await peer.create("s")
    return Asking(server)


async def test_each_way(asking: Asking) -> None:
    assert (await asking.set(offset=7)) == s.Moved(None, 7, ())
    assert (await asking.set(by=-3)).now == 4
    assert (await asking.set("other", like="till")).now == 4
    assert (await asking.set(by=1, dry_run=True)).now == 5
    assert asking.stored() == {b"till": 4, b"other": 4}
    for fields in ({}, {"offset": 1, "by": 1}, {"by": 1, "undo": True}, {"by": -5}):
        with pytest.raises(Refused):
            await asking.set(**fields)
    for name, fields in (("none", {"by": 1}), ("till", {"like": "none"})):
        with pytest.raises(NoSuch, match="none has stored no offset in s"):
            await asking.set(name, **fields)
    assert asking.stored() == {b"till": 4, b"other": 4}


async def test_a_change_can_be_undone_for_an_hour(
    server: Harness, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Refused, match="nothing of till in s was changed in the last hour"):
        await asking.set(undo=True)
    await asking.set(offset=7)
    assert (await asking.delete()).was == 7
    assert asking.stored() == {}
    broker, began_ms = server.server.broker, server.server.broker.now_ms()
    monkeypatch.setattr(broker, "now_ms", lambda: began_ms + HOUR_MS - 1_000)
    assert (await asking.set(undo=True)).now == 7
    assert (await asking.set(undo=True)).now is None, "and so can that"
    assert asking.stored() == {}
    monkeypatch.setattr(broker, "now_ms", lambda: began_ms + 2 * HOUR_MS)
    with pytest.raises(Refused):
        await asking.set(undo=True)


async def test_what_the_consumer_has_done_since_is_not_undone(peer: Peer, asking: Asking) -> None:
    await asking.set(offset=100)
    await asking.set(offset=50)
    await peer.send(c.StoreOffset("till", "s", 500))
    assert (await peer.ask(c.QueryOffset, "till", "s")).offset == 500
    expected = "till has stored 500 since it was changed from 100 to 50"
    with pytest.raises(Refused, match=expected):
        await asking.set(undo=True)
    assert asking.stored() == {b"till": 500}
    assert (await asking.set(undo=True, force=True)).now == 100


async def test_by_is_messages_wherever_a_machine_has_gone_down(tmp_path: Path) -> None:
    async with with_peer(tmp_path, flush="always") as (_, peer):
        await peer.begin("s")
        await peer.store([b"x"] * 30)
    (folder,) = tmp_path.glob("streams/*/s")
    (folder / "ahead-another-boot").touch()
    async with harness(tmp_path) as server:
        peer, asking = await server.peer(), Asking(server)
        await peer.declare("s")
        await peer.store([b"y"] * 10)
        await asking.set(offset=OFFSET_GAP + 33)
        assert (await asking.set(by=-10)).now == 23
        assert (await asking.set(by=10)).now == OFFSET_GAP + 33


async def test_of_another_stream_of_that_name_nothing_is_undone(
    server: Harness, peer: Peer, asking: Asking
) -> None:
    await asking.set(offset=7)
    await asking.delete()
    await server.host.delete("s", lambda: None)
    await peer.create("s")
    with pytest.raises(Refused):
        await asking.set(undo=True)
    assert asking.stored() == {}


async def test_not_while_the_consumer_is_connected(
    peer: Peer, asking: Asking, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await asking.set(offset=7)
    await peer.subscribe("s", name="till")
    for change in (asking.set(offset=3), asking.delete()):
        with pytest.raises(Refused, match=r"till is reading s \(guest, .*\).*: stop it first"):
            await change
    assert asking.stored() == {b"till": 7}
    assert len((await asking.set(offset=3, dry_run=True)).readers) == 1
    assert (await asking.set("other", offset=3)).readers == ()
    await asking.set(offset=3, force=True)
    assert asking.stored()[b"till"] == 3
    assert "stream s: the stored offset of till was 7 and is 3" in caplog.text


async def test_what_is_only_asked_is_no_change(
    asking: Asking, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    caplog.clear()
    await asking.set(offset=7, dry_run=True)
    assert not [record for record in caplog.records if hasattr(record, "is_change")]
    await asking.set(offset=7)
    assert len([record for record in caplog.records if hasattr(record, "is_change")]) == 1


async def test_names_that_are_not_printable_come_back(server: Harness, asking: Asking) -> None:
    name = "a\u00a0b"
    async with server.host.find("s").opened():
        server.host.find("s").store_offset(name, 4)
    await asking.delete(name)
    assert (await asking.set(name, undo=True)).now == 4


async def test_a_change_that_nobody_heard_of_can_be_undone(
    server: Harness, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asking.set(offset=7)
    stream = server.host.find("s")

    async def fail() -> None:
        raise Refused(Reason.NOT_AVAILABLE, "the disk")

    with monkeypatch.context() as patch:
        patch.setattr(stream, "settled", fail)
        with pytest.raises(Refused, match="the disk"):
            await asking.set(offset=3)
    assert asking.stored() == {b"till": 3}
    assert (await asking.set(undo=True)).now == 7

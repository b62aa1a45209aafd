"""Lines of the log say for whom they were logged; tasks of the server itself have nobody."""

import logging

import pytest
import trio

from streamd.broker.supervisor import Supervisor
from streamd.net.actor import CHANGE, Actor, Recent, actor, serves, with_actor


def test_a_line_names_user_host_protocol_and_address() -> None:
    serves(Actor("stream", "10.0.0.7:4711"))
    assert with_actor("x") == "x [nobody yet, stream, 10.0.0.7:4711]"
    found = actor()
    assert found is not None
    found.user, found.virtual_host = "ada", "/"
    assert with_actor("x") == "x [ada in /, stream, 10.0.0.7:4711]"
    assert with_actor("10.0.0.7:4711: ended") == "10.0.0.7:4711: ended [ada in /, stream]"
    serves(None)
    assert with_actor("x") == "x"


async def test_tasks_of_the_server_serve_nobody() -> None:
    """Also where a connection has started them; the connection's own tasks serve its peer."""
    seen: list[object] = []

    async def look() -> None:
        seen.append(actor())

    async with trio.open_nursery() as nursery:
        supervisor = Supervisor(nursery)
        ada = Actor("stream", "10.0.0.7:4711", "ada")
        serves(ada)
        supervisor.start("looking", look)
        supervisor.start_once("looking once", look)
        nursery.start_soon(look)
    serves(None)
    assert sorted(seen, key=bool) == [None, None, ada]


def test_recent_keeps_warnings_and_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    recent = Recent()
    log = logging.Logger("test")
    log.addHandler(recent)
    log.info("connected")
    log.info("deleted stream %s", "s", extra=CHANGE)
    log.error("failed")
    assert [(one.text, one.is_warning) for one in recent.since(60)] == [
        ("deleted stream s", False),
        ("failed", True),
    ]
    for number in range(1_000):
        log.warning("%d", number)
    kept = [one.text for one in recent.since(60)]
    assert kept[0] == "deleted stream s", "warnings do not push changes out"
    assert kept[-1] == "999"
    assert len(kept) < 100
    monkeypatch.setattr("time.time", lambda: 1e12)
    assert recent.since(60) == []

"""/api/tier, and the tier in rows of streams."""

import pytest
import trio

from segments.store.object_store import TierError
from streamd.operations.tier_reports import Fault, TierState, TierStatus, plain
from tests.support.http import Http, add_user
from tests.support.server import Harness
from tests.support.tier import STATUS, FakeTier

CHANGES = (
    "tier/gc",
    "tier/upload",
    "tier/streams/%2F/s/verify",
    "tier/streams/%2F/s/upload",
)


@pytest.fixture
async def tier(server: Harness) -> FakeTier:
    await server.host.create("s", [])
    await server.host.create("outside", [])
    tier = server.server.broker.tier = FakeTier()
    tier.outside = {"outside"}
    return tier


async def test_status_is_for_those_who_see_all(server: Harness, http: Http, tier: FakeTier) -> None:
    assert await http.get("tier") == plain(STATUS)
    await add_user(server, "mona", "monitoring")
    await add_user(server, "max", "management")
    assert await http.get("tier", user="mona") == plain(STATUS)
    assert await http.code("GET", "tier", user="max") == 401
    for path in CHANGES:
        assert await http.code("POST", path, {}, user="mona") == 401
    assert tier.asked == []


async def test_a_stream(server: Harness, http: Http, tier: FakeTier) -> None:
    tier.sentence = "/data/tier-cache is full"
    stream = tier.stream("/", "s")
    assert stream is not None
    assert await http.get("tier/streams/%2F/s") == plain(stream)
    assert (await http.get("queues/%2F/s"))["tier"] == plain(stream)
    assert {row["name"]: "tier" in row for row in await http.get("queues")} == {
        "s": True,
        "outside": False,
    }
    for name in ("outside", "none"):
        assert await http.code("GET", f"tier/streams/%2F/{name}") == 404
    # Paths of the server are for those who may look at it.
    await add_user(server, "max", "management")
    for path in ("tier/streams/%2F/s", "queues/%2F/s"):
        row = await http.get(path, user="max")
        assert "/data" not in row.get("tier", row)["sentence"]


async def test_verify(http: Http, tier: FakeTier) -> None:
    tier.faults = (Fault("v1/a", "is missing"),)
    answer = await http.ask("POST", "tier/streams/%2F/s/verify")
    assert answer.json() == {
        "num_objects": 12,
        "num_bytes": 3_456,
        "num_faults": 1,
        "faults": [{"key": "v1/a", "sentence": "is missing"}],
    }
    assert await http.code("POST", "tier/streams/%2F/none/verify") == 404
    reason = await http.reason("POST", "tier/streams/%2F/outside/verify")
    assert reason == "outside is not in the tier"


async def test_gc(http: Http, tier: FakeTier) -> None:
    for body, is_dry in (({"dry_run": True}, True), ({}, False), ({"dry_run": False}, False)):
        answer = await http.ask("POST", "tier/gc", body)
        assert answer.json() == {
            "num_orphans": 1,
            "num_bytes": 12,
            "is_removed": not is_dry,
            "orphans": [{"key": "v1/x/0.segment", "size": 12}],
        }
    assert await http.reason("POST", "tier/gc", {"dry_run": "yes"}) == (
        "dry_run: expected true or false, not a text"
    )
    assert tier.asked == [("collect", True), ("collect", False), ("collect", False)]


async def test_upload(http: Http, tier: FakeTier) -> None:
    answer = await http.ask("POST", "tier/upload", {"timeout_seconds": 7})
    assert answer.json() == {
        "num_streams": 2,
        "num_bytes": 2_345,
        "num_outside": 1,
        "streams": [
            {"name": "s", "vhost": "/", "num_bytes": 2_345, "next_offset": 1_000},
            {"name": "t", "vhost": "/", "num_bytes": 0, "next_offset": 1_000},
        ],
    }
    assert (await http.ask("POST", "tier/streams/%2F/s/upload")).json()["num_outside"] == 0
    assert tier.asked == [("upload", "", 7), ("upload", "/", "s", 300)]
    assert await http.code("POST", "tier/streams/%2F/none/upload") == 404
    reason = await http.reason("POST", "tier/streams/%2F/outside/upload")
    assert reason == "outside is not uploaded to the tier: its argument stream-tier is false"
    for seconds in (True, 1.5, "5", None):
        body = {"timeout_seconds": seconds}
        reason = await http.reason("POST", "tier/upload", body)
        assert reason.startswith("timeout_seconds: expected a whole number, not ")
    for number in (0, -1, 604_801):
        says = await http.reason("POST", "tier/upload", {"timeout_seconds": number})
        assert says.startswith("timeout_seconds: expected a whole number ")


async def test_an_upload_ends_with_the_connection(http: Http, tier: FakeTier) -> None:
    tier.seconds = 1_000
    with trio.move_on_after(5):
        await http.ask("POST", "tier/upload")
    await trio.sleep(5)
    assert tier.asked == [("upload", "", 300), ("cancelled",)]


async def test_a_store_that_is_away(http: Http, tier: FakeTier) -> None:
    tier.error = TierError("s3://bucket/prefix does not answer")
    for path in CHANGES:
        answer = await http.ask("POST", path, {})
        assert answer.status_code == 503
        assert answer.json()["reason"] == "s3://bucket/prefix does not answer"


async def test_without_a_tier(server: Harness, http: Http) -> None:
    await server.host.create("s", [])
    assert await http.get("tier") == plain(TierStatus())
    assert (await http.get("tier"))["state"] == TierState.OFF
    assert await http.code("GET", "tier/streams/%2F/s") == 404
    assert "tier" not in await http.get("queues/%2F/s")
    for path in CHANGES:
        assert "has no tier" in await http.reason("POST", path, {})


async def test_arguments_in_definitions(http: Http) -> None:
    arguments = {
        "x-queue-type": "stream",
        "x-stream-tier": False,
        "x-stream-local-max-length-bytes": 0,
        "x-stream-local-max-age": "2h",
    }
    assert await http.code("PUT", "queues/%2F/s", {"arguments": arguments}) == 201
    found = await http.get("definitions")
    assert found["queues"][0]["arguments"] == arguments
    assert await http.code("DELETE", "queues/%2F/s") == 204
    answer = await http.ask("POST", "definitions", found)
    assert answer.is_success, answer.text
    assert (await http.get("queues/%2F/s"))["arguments"] == arguments

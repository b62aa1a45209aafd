"""The faults of the store in memory do what tests that use them take for granted."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from segments.store.object_store import ConflictError, DeniedError, TierError
from streamd.net import threads
from tests.support.fake_store import FakeStore, late_answers
from tests.support.server import inline


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


def refused(do: Callable[[], object], kind: type[TierError] = TierError) -> bool:
    try:
        do()
    except TierError as error:
        return type(error) is kind
    return False


def test_failures_of_some_calls(store: FakeStore) -> None:
    store.fail(DeniedError("no"), name="put", key="a/", skip=1, times=2)
    failed = [refused(lambda: store.put("a/x", b""), DeniedError) for _ in range(4)]
    assert failed == [False, True, True, False]
    store.fail(lambda call: TierError(f"{call.name} {call.number}"), times=-1, key="b/")
    with pytest.raises(TierError, match="put 5"):
        store.put("b/x", b"")
    with pytest.raises(TierError, match="get 6"):
        store.get("b/x")
    store.put("c/x", b"")
    store.heal()
    store.put("b/x", b"")


def test_listings_that_are_stale(store: FakeStore) -> None:
    store.put("v1/a/x", b"")
    store.freeze_listings()
    store.put("v1/b/x", b"")
    store.delete(["v1/a/x"])
    assert [found.key for found in store.listing("v1")] == ["v1/a/x"]
    assert store.folders("v1") == ["v1/a"]
    store.heal()
    assert store.folders("v1") == ["v1/b"]


def test_hooks_may_use_the_store(store: FakeStore) -> None:
    """As somebody else, who is quicker."""

    def intrude(_: object) -> None:
        store.before = lambda _: None
        store.put("k", b"theirs")

    store.before = intrude
    assert refused(lambda: store.create("k", b"ours"), ConflictError)
    store.after = lambda call: store.objects.clear() if call.name == "put" else None
    store.put("k", b"")
    assert store.objects == {}


def test_answers_that_come_late(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "in_thread", inline)
    store.seconds = lambda call: 30.0 if call.name == "put" else 0.0

    async def main() -> list[float]:
        times = [trio.current_time()]
        with late_answers(store):
            for name in ("get", "put"):
                store.put("k", b"")
                store.owed = 0.0
                arguments = ("k",) if name == "get" else ("k", b"")
                await threads.in_thread(getattr(store, name), *arguments)
                times.append(trio.current_time())
            store.fail()
            with pytest.raises(TierError):
                await threads.in_thread(store.put, "k", b"")
            times.append(trio.current_time())
        await threads.in_thread(store.put, "k", b"")
        return [time - times[0] for time in [*times, trio.current_time()]]

    waited = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert waited == [0, 0, 30, 60, 60]

"""What each kind of store has to do, over the fake, a folder, and real servers."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from segments.errors import StorageError
from segments.store.object_names import StreamKey
from segments.store.object_store import (
    MOST_IN_REQUEST,
    MOST_WHOLE,
    ConflictError,
    DeniedError,
    MissingError,
    ObjectStore,
    StoredObject,
    TierError,
)
from segments.store.stores import open_store, probe
from tests.support.fake_store import FakeStore
from tests.support.stores import KINDS, StoreServer, tier_in

FOLDER = "v1/%2F/a stream~0001"


@pytest.fixture(params=["fake", *KINDS])
def opened(
    request: pytest.FixtureRequest,
    store_server: Callable[[str], StoreServer],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[], ObjectStore]:
    """Opens the same store each time, as another process would."""
    if request.param == "fake":
        fake = FakeStore()
        return lambda: fake
    tier = tier_in(store_server(request.param), monkeypatch)
    return lambda: open_store(tier.url, tier.endpoint)


@pytest.fixture
def store(opened: Callable[[], ObjectStore]) -> ObjectStore:
    return opened()


def keys(store: ObjectStore, folder: str) -> list[str]:
    return sorted(found.key for found in store.listing(folder))


def test_what_has_not_changed_is_not_sent_again(store: ObjectStore) -> None:
    first = store.create("v1/x", b"one")
    assert store.get_changed("v1/x", first) is None
    second = store.replace("v1/x", b"two", first)
    assert store.get_changed("v1/x", first) == StoredObject(b"two", second)
    assert store.get_changed("v1/x", second) is None
    with pytest.raises(MissingError):
        store.get_changed("v1/y", second)


@pytest.mark.parametrize("length", [1, 39, 40, 41, 42, 66, 67, 255])
def test_the_longest_names_of_streams(store: ObjectStore, length: int) -> None:
    """Where keys become files, no part is too long for one; cut escapes are no trouble."""
    for name in ("ü" * length, "x" + "/" * length, "%" * length, "." * length):
        stream = StreamKey(name, name, "f" * 24)
        key = stream.object(2**63 - 1, 2**32, "0123456789abcdef", ".tracking")
        store.put(key, name.encode())
        assert store.get(key).content == name.encode()
        assert keys(store, stream.folder) == [key]
        store.delete([key])


def test_the_beginning_of_a_file_is_put(store: ObjectStore, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    for size in (0, 1, 10):
        store.put_file("v1/x", str(path), size)
        assert store.get("v1/x").content == b"0123456789"[:size]


def test_large_objects_come_back_whole(store: ObjectStore, tmp_path: Path) -> None:
    content = os.urandom(1 << 16) * (2 * MOST_IN_REQUEST >> 16) + b"the end"
    path = tmp_path / "file"
    path.write_bytes(content)
    store.put_file("v1/file", str(path), len(content))
    store.put("v1/buffer", memoryview(content))
    for key in ("v1/file", "v1/buffer"):
        assert store.get(key).content == content
        at = MOST_IN_REQUEST - 5
        assert bytes(store.get_range(key, at, 10)) == content[at : at + 10]
    store.delete(["v1/file", "v1/buffer"])


def test_a_file_that_is_too_short_leaves_nothing(store: ObjectStore, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(MOST_IN_REQUEST + 5)
    for size, had in ((MOST_IN_REQUEST + 6, MOST_IN_REQUEST + 5), (2 * MOST_IN_REQUEST + 1, None)):
        with pytest.raises(StorageError, match=f"it ends after {had or ''}"):
            store.put_file("v1/x", str(path), size)
    with pytest.raises(StorageError, match="No such file"):
        store.put_file("v1/x", str(tmp_path / "none"), 3)
    assert keys(store, "v1") == []


def test_what_is_not_there(store: ObjectStore) -> None:
    store.put(f"{FOLDER}/x", b"content")
    for read in (
        lambda: store.get("v1/none"),
        lambda: store.get_range("v1/none", 0, 1),
        lambda: store.get(FOLDER),
    ):
        with pytest.raises(MissingError, match=r"cannot read v1/.* it is not there"):
            read()
    assert keys(store, "v1/none") == []
    assert store.folders("v1/none") == []
    store.delete([])
    store.delete(["v1/none", f"{FOLDER}/none/deeper", f"{FOLDER}/x/none"])
    assert keys(store, "v1") == [f"{FOLDER}/x"]


@pytest.mark.parametrize(("start", "size"), [(5, 3), (7, 1), (100, 1), (0, 8)])
def test_an_object_that_ends_before_a_range(store: ObjectStore, start: int, size: int) -> None:
    store.put("v1/x", b"content")
    with pytest.raises(
        TierError, match=r"cannot read v1/x in .*the object ends before these bytes"
    ):
        store.get_range("v1/x", start, size)


def test_creating_and_replacing(store: ObjectStore) -> None:
    first = store.create("v1/x", b"1")
    with pytest.raises(ConflictError, match=r"cannot write v1/x in .*: somebody else has written"):
        store.create("v1/x", b"2")
    assert store.get("v1/x") == (b"1", first)
    second = store.replace("v1/x", b"2", first)
    with pytest.raises(ConflictError):
        store.replace("v1/x", b"3", first)
    assert store.get("v1/x") == (b"2", second)
    store.delete(["v1/x"])
    with pytest.raises(ConflictError):
        store.replace("v1/x", b"3", second)
    with pytest.raises(ConflictError):
        store.replace("v1/none/x", b"3", second)
    assert keys(store, "v1") == []
    assert store.folders("v1") == []
    store.create("v1/x", b"4")


def test_threads_that_count_lose_nothing(opened: Callable[[], ObjectStore]) -> None:
    """Each adds to a counter by compare-and-set; every addition that was reported is in it."""
    opened().create("v1/counter", b"0")

    def add(store: ObjectStore) -> int:
        conflicts = 0
        for _ in range(10):
            while True:
                found = store.get("v1/counter")
                try:
                    store.replace("v1/counter", b"%d" % (int(found.content) + 1), found.etag)
                    break
                except ConflictError:
                    conflicts += 1
        return conflicts

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, [opened() for _ in range(8)]))
    assert opened().get("v1/counter").content == b"80"


def test_listings(store: ObjectStore) -> None:
    for key in (f"{FOLDER}/a", f"{FOLDER}/b/c", f"{FOLDER}2/a", "v1/other/s~1/manifest", "v1/top"):
        store.put(key, b"12345")
    assert keys(store, FOLDER) == [f"{FOLDER}/a", f"{FOLDER}/b/c"]
    assert len(keys(store, "v1")) == 5
    assert store.folders("v1") == ["v1/%2F", "v1/other"]
    assert store.folders("v1/%2F") == [FOLDER, f"{FOLDER}2"]
    found = next(iter(store.listing("v1/other")))
    assert found.size == 5
    assert found.modified_ms > 1_600_000_000_000
    store.delete([f"{FOLDER}/a", f"{FOLDER}/b/c", f"{FOLDER}2/a"])
    assert store.folders("v1") == ["v1/other"]


def test_more_keys_than_one_answer_has(store: ObjectStore) -> None:
    wanted = [f"v1/many/{n % 3}/{n:05d}" for n in range(1_001)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda key: store.put(key, b""), wanted))
    assert keys(store, "v1") == sorted(wanted)
    assert store.folders("v1/many") == [f"v1/many/{n}" for n in range(3)]
    store.delete(wanted)
    assert keys(store, "v1") == []


def test_the_probe_finds_nothing_wrong_and_leaves_nothing(store: ObjectStore) -> None:
    assert probe(store) == ""
    left: Any = getattr(store, "objects", None)
    assert not left
    store.put("v1/x", b"")
    assert keys(store, "v1") == ["v1/x"]


def test_nothing_secret_is_shown(tier: Any) -> None:
    store = open_store(tier.url, tier.endpoint)
    shown = f"{store!r} {store}"
    assert tier.url in shown
    for secret in tier.environment.get("AWS_SECRET_ACCESS_KEY", "x" * 50), "AWS":
        assert secret not in shown
    with pytest.raises(MissingError) as missing:
        store.get("v1/none")
    assert missing.value.__cause__ is None  # the library's text has the URL and more
    assert missing.value.__suppress_context__


class TestWithoutCompareAndSet:
    """Stores that do as they are asked, and do not look."""

    def test_creates_over_what_is_there(self) -> None:
        class Creates(FakeStore):
            def create(self, key: str, content: bytes) -> str:
                self.put(key, content)
                return self.objects[key].etag

        self.check(Creates(), "it replaced an object that was to be created")

    def test_replaces_what_was_changed(self) -> None:
        class Replaces(FakeStore):
            def replace(self, key: str, content: bytes, etag: str) -> str:  # noqa: ARG002
                self.put(key, content)
                return self.objects[key].etag

        self.check(Replaces(), "it replaced an object that had been changed")

    def test_gives_back_what_was_replaced(self) -> None:
        class Caches(FakeStore):
            def get(self, key: str, most: int = MOST_WHOLE) -> Any:
                return super().get(key, most)._replace(content=b"1")

        self.check(Caches(), "it gave back another object than the one it had stored")

    def check(self, store: FakeStore, reason: str) -> None:
        told = probe(store)
        assert told == (
            "fake://store cannot compare-and-set, so only one server may use it: " + reason
        )
        assert store.objects == {}


@pytest.mark.parametrize("name", ["create", "replace"])
def test_a_write_that_was_sent_twice_says_nothing_of_the_store(name: str) -> None:
    """Its first answer was lost: the store has done it, and refuses the second."""
    for after in (False, True):
        store = FakeStore()
        store.conflict(name=name, after=after)
        with pytest.raises(TierError, match="cannot write in fake://store: 409"):
            probe(store)
        assert probe(store) == ""
        assert store.objects == {}


@pytest.mark.parametrize("name", ["create", "replace", "get", "delete"])
@pytest.mark.parametrize("error", [DeniedError("no"), TierError("away")])
def test_a_probe_that_fails_says_why_and_leaves_nothing(name: str, error: TierError) -> None:
    for after in (False, True):
        store = FakeStore()
        store.fail(error, name=name, after=after)
        with pytest.raises(type(error), match=str(error)):
            probe(store)
        assert store.objects == {} or name == "delete"


def test_a_probe_that_fails_says_the_same_each_time() -> None:
    """So that it is one line of the log, however often it is tried."""

    class Refusing(FakeStore):
        def create(self, key: str, content: bytes) -> str:
            raise DeniedError(f"cannot write {key}, {len(content)} bytes")

    told = set()
    for _ in range(2):
        with pytest.raises(DeniedError) as caught:
            probe(Refusing())
        told.add(str(caught.value))
    assert told == {"cannot write a probe, 1 bytes"}

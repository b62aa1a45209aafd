"""The object store of a world: all its servers share it, and each has a line of its own to it.

Requests take virtual time, and anything may happen to them: they fail before the store has done
them, or it has and nobody hears of it; the answer is late, or cut; a compare-and-set is refused
although the object is as it was expected. The store may be away, listings old, objects missing;
or the mount is: then the place is empty for a while, and has all that it had afterwards.
"""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

import trio

from segments.store.object_store import ConflictError, CutError, TierError
from tests.support.fake_store import WRITES, FakeStore, Kept

Objects = dict[str, Kept]
CLUSTER = "v1/cluster"
WAL = "v1/~wal/"
LOG, SNAPSHOTS = "v1/~log/", "v1/~snapshots/"
_LANDS = 0.03  # of creates under way, with each request
_CALM = (0.0, 0.0, 0.001, 0.01)  # seconds to the store, or back


class Trouble(NamedTuple):
    """How often something happens to a request, and how long one may take, one way.

    Attributes:
        part: of the keys that are concerned.
        late: creates of slots and entries that fail, and are done all the same some time, if
            they still can.
    """

    refused: float = 0
    unanswered: float = 0
    conflict: float = 0
    cut: float = 0
    seconds: tuple[float, ...] = _CALM
    part: str = ""
    late: float = 0


class Manifest(NamedTuple):
    """What the store says of a stream, read as docs/internals/tier.md says."""

    folder: str
    head: dict[str, Any]
    segments: list[dict[str, Any]]

    @property
    def first(self) -> int:
        """The first offset that it names."""
        return int(self.segments[0]["base"]) if self.segments else self.next

    @property
    def next(self) -> int:
        """Behind the last one."""
        return int(self.head["next_offset"])

    def sizes(self, *suffixes: str) -> dict[str, int]:
        """Objects that it names, and their sizes."""
        found = {
            f"{self.folder}/{one['base']:020d}.{one['epoch']}.{one['uid']}{suffix}": int(size)
            for one in self.segments
            for suffix, (size, _) in one["files"].items()
            if not suffixes or suffix in suffixes
        }
        if (tracking := self.head["tracking"]) and not suffixes:
            offset, epoch, uid, size, _ = tracking
            found[f"{self.folder}/{offset:020d}.{epoch}.{uid}.tracking"] = int(size)
        return found


def read_cluster(objects: Objects) -> dict[str, Any] | None:
    """What is known of the tier: the fold of its log, from the first snapshot on."""
    kept = objects.get(CLUSTER)
    if kept is None:
        return None
    root = json.loads(kept.content.splitlines()[0])
    first = objects.get(_first_snapshot(kept.content))
    if first is None:  # another place, that nobody has written a log into
        return {"epoch": 0, "since": 0, "wals": [], "revision": root["revision"]} | root
    found: dict[str, Any] = dict(json.loads(first.content.splitlines()[0])["cluster"])
    while (entry := objects.get(_entry_key(found["tier"], found["revision"] + 1))) is not None:
        found |= json.loads(entry.content.splitlines()[0])
    return found


def _first_snapshot(content: bytes) -> str:
    """The key of the one that a root names."""
    return SNAPSHOTS + "{tier}/{revision:020d}.{uid}".format(**json.loads(content.splitlines()[0]))


def _entry_key(tier: str, revision: int) -> str:
    return f"{LOG}{tier}/{revision:020d}"


def read_manifest(key: str, content: bytes) -> Manifest:
    """The one with this key."""
    head, *segments, _ = map(json.loads, content.splitlines())
    return Manifest(key.removesuffix("/manifest"), head, segments)


def read_manifests(objects: Objects) -> dict[str, Manifest]:
    """Those that count, by the stream: of each the newest life, unless it is deleted."""
    cluster = read_cluster(objects)
    since = 0 if cluster is None else cluster["since"]
    found: dict[str, Manifest] = {}
    for key in sorted(key for key in objects if key.endswith("/manifest")):
        manifest = read_manifest(key, objects[key].content)
        if manifest.head["epoch"] >= since and not manifest.head["deleted"]:
            found[str(manifest.head["stream"])] = manifest
    return found


class WorldStore(FakeStore):
    """See above.

    Args:
        chance: decides what happens to requests.
        now_ms: the wall clock.

    Attributes:
        trouble: what happens now.
        is_away: nothing is answered.
        right: what it has, also while the mount is missing, or another one.
        past: what it had when servers began, the oldest first.
        troubled_at: when something was wrong with it last.
        unstored: objects that a manifest named before they were there.
        removed: objects that were removed while a manifest named them.
        lost: objects that it has lost for good.
    """

    def __init__(self, chance: Random, now_ms: Callable[[], int]) -> None:
        super().__init__()
        self.trouble = Trouble()
        self.is_away = False
        self.right = self.objects
        self.past: list[Objects] = []
        self.troubled_at = -1e9
        self.unstored: list[str] = []
        self.removed: list[str] = []
        self.lost: set[str] = set()
        self._hidden: Objects = {}
        self._older: Objects = {}
        self._owner: Kept | None = None
        self._late: list[tuple[Objects, str, bytes]] = []
        self._chance = chance
        self._clock = now_ms

    @property
    def is_calm(self) -> bool:
        """Nothing is wrong with it."""
        is_whole = self.objects is self.right and not self._hidden and self._stale is None
        return is_whole and not self.is_away and self.trouble == Trouble()

    def manifests(self) -> dict[str, Manifest]:
        """See `read_manifests`."""
        return read_manifests(self.right | self._hidden)

    @property
    def has_all_manifests(self) -> bool:
        """None is missing, or older than it was."""
        return not any(key.endswith("/manifest") for key in self._hidden)

    # -- what goes wrong

    def hide(self, keys: list[str]) -> None:
        """Some objects are missing, until it is calm."""
        self._hidden |= {key: self.objects.pop(key) for key in keys}

    def age(self, key: str, older: Kept | None) -> None:
        """An object is missing, or as it was earlier, until it is calm."""
        self.hide([key])
        if older is not None:
            self.objects[key] = self._older[key] = older

    def thaw_listings(self) -> None:
        """They are as of now again."""
        self._stale = None

    def mount(self, another: Objects) -> None:
        """Another place is mounted, until it is calm; perhaps an empty one."""
        self.objects, self._owner = another, another.get(CLUSTER)

    def calm(self) -> bool:
        """Nothing is wrong any more; whether nobody has taken a place that is not the right one."""
        is_fine = self.objects is self.right or self.objects.get(CLUSTER) is self._owner
        if not self.is_calm:
            self.troubled_at = trio.current_time()
        self.objects = self.right
        for key, kept in self._hidden.items():
            if self.right.setdefault(key, kept) is self._older.get(key):
                self.right[key] = kept
        self._hidden, self._older = {}, {}
        self.heal()
        self.trouble, self.is_away = Trouble(), False
        return is_fine

    def delay(self) -> float:
        """How long a request is on its way."""
        return self._chance.choice(self.trouble.seconds)

    def meet(self, name: str, key: str) -> bool:
        """A request has come; whether its answer will be lost."""
        self.now_ms = self._clock()
        self.land(_LANDS)
        trouble, chance = self.trouble, self._chance
        if trouble.part not in key:
            trouble = Trouble()
        if not self.is_calm:
            self.troubled_at = trio.current_time()
        if self.is_away or chance.random() < trouble.refused:
            raise TierError(f"cannot reach {self}: the connection broke off")
        is_shared = name in ("create", "replace") and not key.startswith("probe-")
        if is_shared and chance.random() < trouble.conflict:
            raise ConflictError(f"cannot write in {self}: 409")
        if name == "get_range" and chance.random() < trouble.cut:
            raise CutError(f"cannot read in {self}: the object ends before these bytes")
        return chance.random() < trouble.unanswered

    def is_late(self, key: str, content: bytes) -> bool:
        """Whether a create fails now, and is done later, by and by."""
        rate = self.trouble.late if self.trouble.part in key else 0
        if not key.startswith((WAL, LOG)) or self._chance.random() >= rate:
            return False
        self._late += [(self.objects, key, content)] * self._chance.choice((1, 1, 2))
        return True

    def land(self, share: float) -> None:
        """Creates that are under way for long come to an end: where nothing is, they count."""
        landing = [one for one in self._late if self._chance.random() < share]
        for one in landing:
            self._late.remove(one)
            objects, key, content = one
            if key not in objects:
                objects[key] = Kept(content, f"late {len(self.calls)}", self.now_ms)

    # -- what must hold whenever somebody writes

    def _keep(self, key: str, content: bytes) -> str:
        if key.endswith("/manifest"):
            there = self.objects.keys() | self.right.keys() | self._hidden.keys()
            there |= self.lost
            self.unstored += sorted(read_manifest(key, content).sizes().keys() - there)
        if key == CLUSTER:
            named = _first_snapshot(content)
            self.unstored += [named] if named not in self.objects.keys() | self.right.keys() else []
        return super()._keep(key, content)

    def delete(self, keys: list[str]) -> None:
        is_right = self.objects is self.right
        manifests = read_manifests(self.right | self._hidden) if is_right else {}
        named = {key for one in manifests.values() for key in one.sizes()}
        self.removed += sorted(named & set(keys))
        super().delete(keys)
        for key in keys:
            self._hidden.pop(key, None)


class Line:
    """One server's way to the store; see segments.store.object_store.ObjectStore.

    Args:
        store: it leads to.
        wrote: is told of each object that was written or removed.
        own: what is wrong with this way alone.

    Attributes:
        is_cut: the server is no more; nothing of it reaches the store.
    """

    def __init__(
        self, store: WorldStore, wrote: Callable[[str, str], None], own: Callable[[], Trouble]
    ) -> None:
        self.is_cut = False
        self._store = store
        self._wrote = wrote
        self._own = own

    def __repr__(self) -> str:
        return repr(self._store)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self.is_cut:
                raise TierError(f"cannot reach {self}: this server is no more")
            own = self._own()
            if own.refused:
                raise TierError(f"cannot reach {self}: the way is cut")
            is_lost = self._store.meet(name, str(arguments[0])) or bool(own.unanswered)
            if name == "create" and self._store.is_late(*arguments):
                raise TierError(f"{self._store} has not answered: the connection broke off")
            found = getattr(self._store, name)(*arguments)
            if isinstance(found, Iterator):
                found = iter(list(found))
            if name in WRITES:
                keys = arguments[0] if name == "delete" else [arguments[0]]
                for key in keys:
                    self._wrote(name, key)
            if is_lost:
                raise TierError(f"{self} has not answered: the connection broke off")
            return found

        return call

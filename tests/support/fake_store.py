"""An object store in memory whose faults a test chooses, call by call.

It never sleeps and asks no clock: a test says when a call fails, before the store has done it or
after (the answer is lost), what a body looks like that was cut or damaged, and what time it is. So
it serves at virtual time, where `late_answers` makes whoever waits for a call wait longer.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import trio

from segments.disk import Buffer
from segments.store.object_store import (
    MOST_WHOLE,
    ConflictError,
    CutError,
    Listed,
    MissingError,
    StoredObject,
    TierError,
    check_size,
    ignored,
)
from segments.store.pieces import file_pieces
from streamd.net import threads

WRITES = ("put", "put_file", "create", "replace", "delete")


class Call(NamedTuple):
    """One request.

    Attributes:
        number: of all calls so far, from 1.
        name: of the method.
        key: of the object, or the folder; of `delete` the first one.
        size: bytes of the body that was sent or asked for.
    """

    number: int
    name: str
    key: str
    size: int


@dataclass
class Kept:
    """An object."""

    content: bytes
    etag: str
    modified_ms: int


@dataclass
class Fault:
    """What is wrong with which calls."""

    error: BaseException | Callable[[Call], BaseException] | None
    name: str
    key: str
    is_after: bool
    skip: int
    times: int
    change: Callable[[bytes], bytes] | None = None

    def meets(self, call: Call) -> bool:
        """Whether it is this call's turn, which counts."""
        if self.times == 0 or self.name not in ("", call.name) or self.key not in call.key:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


@dataclass
class FakeStore:
    """An ObjectStore in memory.

    Attributes:
        objects: by key; a test may read, remove and change them.
        calls: all so far.
        now_ms: what time the store has.
        before, after: called with each call, before and after the store has done it, in the thread
            that calls, without a lock: they may wait, raise, or call the store. `after` is not
            called when the store has refused.
        seconds: how long a call takes; see `late_answers`.
        owed: seconds that nobody has waited for yet.
    """

    objects: dict[str, Kept] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    now_ms: int = 1_700_000_000_000
    before: Callable[[Call], None] = lambda _call: None
    after: Callable[[Call], None] = lambda _call: None
    seconds: Callable[[Call], float] = lambda _call: 0.0
    owed: float = 0.0
    _faults: list[Fault] = field(default_factory=list)
    _stale: dict[str, Kept] | None = None
    _etags: Any = field(default_factory=lambda: itertools.count(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __repr__(self) -> str:
        return "fake://store"

    # What a test does to it.

    def fail(
        self,
        error: BaseException | Callable[[Call], BaseException] | None = None,
        *,
        name: str = "",
        key: str = "",
        after: bool = False,
        skip: int = 0,
        times: int = 1,
    ) -> None:
        """Let calls fail.

        Args:
            error: what is raised; by default TierError, as of a store that is away.
            name: only of this method.
            key: only if this is in the key.
            after: the store does it, and the answer is lost.
            skip: so many calls that it is true of go well before.
            times: so many calls fail, -1 for all.
        """
        error = error or TierError("cannot reach fake://store: the connection broke off")
        self._faults.append(Fault(error, name, key, after, skip, times))

    def conflict(self, **which: Any) -> None:
        """Let calls be refused with 409: a conflict, although the object is as it was expected."""
        self.fail(ConflictError("cannot write in fake://store: 409"), **which)

    def damage(self, change: Callable[[bytes], bytes], *, key: str = "", times: int = 1) -> None:
        """Change bodies on their way back, of `get` and `get_range`; what is kept stays whole."""
        self._faults.append(Fault(None, "", key, False, 0, times, change))

    def heal(self) -> None:
        """No more faults."""
        self._faults.clear()
        self._stale = None

    def freeze_listings(self) -> None:
        """Listings are as of now, whatever is written later, until it is healed."""
        self._stale = dict(self.objects)

    def flip(self, key: str, position: int) -> None:
        """Turn a bit of an object that is kept."""
        kept = self.objects[key]
        content = bytearray(kept.content)
        content[position] ^= 1
        self.objects[key] = Kept(bytes(content), kept.etag, kept.modified_ms)

    def shorten(self, key: str, size: int) -> None:
        """Cut an object that is kept."""
        kept = self.objects[key]
        self.objects[key] = Kept(kept.content[:size], kept.etag, kept.modified_ms)

    def count(self, name: str = "", key: str = "") -> int:
        """How many calls there were."""
        return len(self._of(name, key))

    def size(self, name: str = "", key: str = "") -> int:
        """How many bytes they moved."""
        return sum(call.size for call in self._of(name, key))

    def _of(self, name: str, key: str) -> list[Call]:
        return [call for call in self.calls if name in ("", call.name) and key in call.key]

    # What the program does with it; see ObjectStore.

    def get(self, key: str, most: int = MOST_WHOLE) -> StoredObject:
        with self._call("get", key) as call:
            kept = self._kept(key)
            self._resize(call, len(kept.content))
            content = self._changed(call, kept.content)
        check_size(f"read {key} in {self}", len(content), most)
        if len(content) < len(kept.content):
            raise TierError(f"cannot read {key} in {self}: the connection broke off")
        return StoredObject(content, kept.etag)

    def get_changed(self, key: str, etag: str) -> StoredObject | None:
        with self._call("get_changed", key) as call:
            kept = self._kept(key)
            if kept.etag == etag:
                return None
            self._resize(call, len(kept.content))
            content = self._changed(call, kept.content)
        return StoredObject(content, kept.etag)

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        with self._call("get_range", key, size) as call:
            content = self._changed(call, self._kept(key).content[start : start + size])
        if len(content) < size:
            raise CutError(f"cannot read {key} in {self}: the object ends before these bytes")
        return content

    def put(self, key: str, content: Buffer) -> None:
        with self._call("put", key, len(content)):
            self._keep(key, bytes(content))

    def put_file(
        self,
        key: str,
        path: str,
        size: int,
        at_once: int = 1,  # noqa: ARG002 - nothing takes time here
        moved: Callable[[int], None] = ignored,
    ) -> None:
        content = b"".join(file_pieces(path, size, 1 << 20))
        with self._call("put_file", key, size):
            self._keep(key, content)
        moved(size)

    def create(self, key: str, content: bytes) -> str:
        with self._call("create", key, len(content)):
            if key in self.objects:
                raise ConflictError(f"cannot write {key} in {self}: somebody else has written it")
            return self._keep(key, content)

    def replace(self, key: str, content: bytes, etag: str) -> str:
        with self._call("replace", key, len(content)):
            if key not in self.objects or self.objects[key].etag != etag:
                raise ConflictError(f"cannot write {key} in {self}: somebody else has written it")
            return self._keep(key, content)

    def listing(self, folder: str, after: str = "") -> Iterator[Listed]:
        with self._call("listing", folder):
            found = self.objects if self._stale is None else self._stale
            listed = [
                Listed(key, len(kept.content), kept.modified_ms)
                for key, kept in sorted(found.items())
                if key.startswith(f"{folder}/") and key > after
            ]
        yield from listed

    def folders(self, folder: str) -> list[str]:
        with self._call("folders", folder):
            found = self.objects if self._stale is None else self._stale
            below = [
                key.removeprefix(f"{folder}/") for key in found if key.startswith(f"{folder}/")
            ]
            return sorted({f"{folder}/{key.split('/')[0]}" for key in below if "/" in key})

    def delete(self, keys: list[str]) -> None:
        if not keys:
            return
        with self._call("delete", keys[0]):
            for key in keys:
                self.objects.pop(key, None)

    @contextmanager
    def _call(self, name: str, key: str, size: int = 0) -> Iterator[Call]:
        """One call: hooks, and faults whose turn it is, before and after what the store does."""
        with self._lock:
            call = Call(len(self.calls) + 1, name, key, size)
            self.calls.append(call)
            self.owed += self.seconds(call)
            faults = [fault for fault in self._faults if not fault.change and fault.meets(call)]
        self.before(call)
        for fault in faults:
            self._raise(fault, call, is_after=False)
        with self._lock:
            yield call
        self.after(call)
        for fault in faults:
            self._raise(fault, call, is_after=True)

    def _raise(self, fault: Fault, call: Call, *, is_after: bool) -> None:
        if fault.is_after is is_after and fault.error is not None:
            raise fault.error if isinstance(fault.error, BaseException) else fault.error(call)

    def _changed(self, call: Call, content: bytes) -> bytes:
        for fault in self._faults:
            if fault.change and fault.meets(call):
                content = fault.change(content)
        return content

    def _kept(self, key: str) -> Kept:
        if key not in self.objects:
            raise MissingError(f"cannot read {key} in {self}: it is not there")
        return self.objects[key]

    def _keep(self, key: str, content: bytes) -> str:
        etag = f'"{next(self._etags)}"'
        self.objects[key] = Kept(content, etag, self.now_ms)
        return etag

    def _resize(self, call: Call, size: int) -> None:
        self.calls[call.number - 1] = call._replace(size=size)


@contextmanager
def late_answers(store: FakeStore) -> Iterator[None]:
    """Whoever calls the store through `threads.in_thread` waits as long as `store.seconds` says.

    The store does it at once, and the answer comes late. Inside of a `harness`.
    """
    inner = threads.in_thread

    async def in_thread(work: Callable[..., Any], *arguments: object) -> Any:
        try:
            return await inner(work, *arguments)
        finally:
            owed, store.owed = store.owed, 0.0
            if owed:
                is_waited_for = threads._limiter.get() is None
                with trio.CancelScope(shield=is_waited_for):
                    await trio.sleep(owed)

    threads.in_thread = in_thread
    try:
        yield
    finally:
        threads.in_thread = inner

"""A part of a store: all keys below a prefix of their own."""

from collections.abc import Callable, Iterator

from segments.disk import Buffer
from segments.store.object_store import (
    MOST_WHOLE,
    Listed,
    ObjectStore,
    StoredObject,
    ignored,
)


class PrefixedStore:
    """The objects of a store whose keys begin with a prefix; see ObjectStore.

    Args:
        inner: the store.
        prefix: of keys in it, with a slash at the end.
    """

    def __init__(self, inner: ObjectStore, prefix: str) -> None:
        self._inner, self._prefix = inner, prefix

    def __repr__(self) -> str:
        return f"{self._inner!r}/{self._prefix[:-1]}"

    def get(self, key: str, most: int = MOST_WHOLE) -> StoredObject:  # noqa: D102 - see ObjectStore
        return self._inner.get(self._prefix + key, most)

    def get_changed(self, key: str, etag: str) -> StoredObject | None:  # noqa: D102 - see ObjectStore
        return self._inner.get_changed(self._prefix + key, etag)

    def get_range(self, key: str, start: int, size: int) -> Buffer:  # noqa: D102 - see ObjectStore
        return self._inner.get_range(self._prefix + key, start, size)

    def put(self, key: str, content: Buffer) -> None:  # noqa: D102 - see ObjectStore
        self._inner.put(self._prefix + key, content)

    def put_file(  # noqa: D102 - see ObjectStore
        self,
        key: str,
        path: str,
        size: int,
        at_once: int = 1,
        moved: Callable[[int], None] = ignored,
    ) -> None:
        self._inner.put_file(self._prefix + key, path, size, at_once, moved)

    def create(self, key: str, content: bytes) -> str:  # noqa: D102 - see ObjectStore
        return self._inner.create(self._prefix + key, content)

    def replace(self, key: str, content: bytes, etag: str) -> str:  # noqa: D102 - see ObjectStore
        return self._inner.replace(self._prefix + key, content, etag)

    def listing(  # noqa: D102 - see ObjectStore
        self, folder: str, after: str = ""
    ) -> Iterator[Listed]:
        behind = self._prefix + after if after else ""
        for one in self._inner.listing(self._prefix + folder, behind):
            yield one._replace(key=one.key.removeprefix(self._prefix))

    def folders(self, folder: str) -> list[str]:  # noqa: D102 - see ObjectStore
        found = self._inner.folders(self._prefix + folder)
        return [key.removeprefix(self._prefix) for key in found]

    def delete(self, keys: list[str]) -> None:  # noqa: D102 - see ObjectStore
        self._inner.delete([self._prefix + key for key in keys])

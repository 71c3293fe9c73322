"""Archives in memory, for tests and for trying things out. They are gone with the process."""

import itertools
import threading
import time
from collections.abc import Iterator

from sandkeep_store.archives.stores.store import ArchiveStore
from sandkeep_store.archives.stores.types import (
    CHUNK_BYTES,
    Stored,
    Waiting,
    conflict,
    missing,
)
from sandkeep_store.buckets.config import Root, is_path


class MemoryArchives(ArchiveStore):
    """See `base`."""

    def __init__(self, root: Root = Root("state", "/memory")) -> None:  # noqa: B008  # it is frozen
        super().__init__(root)
        self._objects: dict[str, tuple[Stored, bytes]] = {}
        self._generations = itertools.count(1)
        self._lock = threading.Lock()

    def objects(self, prefix: str = "") -> Iterator[Stored]:
        """See `ArchiveStore.objects`."""
        yield from [
            stored for path, (stored, _) in sorted(self._objects.items()) if path.startswith(prefix) and is_path(path)
        ]

    def put(self, path: str, content: bytes, metadata: dict[str, str], over: str | None) -> Stored:
        """Make an object appear in one step, over that generation or over none."""
        with self._lock:
            found = self._objects.get(path)
            if over != (None if found is None else found[0].generation):
                raise conflict(self.where(path))
            stored = Stored(path, len(content), str(next(self._generations)), metadata, time.time())
            self._objects[path] = (stored, content)
            return stored

    def _begin(self, path: str, metadata: dict[str, str], waiting: Waiting) -> "_MemoryUpload":
        if path in self._objects:
            raise conflict(self.where(path))
        return _MemoryUpload(self, path, metadata)

    def _stat(self, path: str) -> Stored:
        if path not in self._objects:
            raise missing(self.where(path))
        return self._objects[path][0]

    def _fetch(self, stored: Stored, offset: int) -> Iterator[bytes]:
        found, content = self._objects.get(stored.path, (None, b""))
        if found is None:
            raise missing(self.where(stored.path))
        if found.generation != stored.generation:
            raise conflict(self.where(stored.path))
        for start in range(offset, len(content), CHUNK_BYTES):
            yield content[start : start + CHUNK_BYTES]

    def _delete(self, path: str, generation: str | None) -> bool:
        with self._lock:
            found = self._objects.get(path)
            if found is not None and generation not in (None, found[0].generation):
                raise conflict(self.where(path))
            return self._objects.pop(path, None) is not None


class _MemoryUpload:
    part_bytes = CHUNK_BYTES

    def __init__(self, store: MemoryArchives, path: str, metadata: dict[str, str]) -> None:
        self._store = store
        self._path = path
        self._metadata = metadata
        self._parts: list[bytes] = []

    def send(self, part: bytes) -> None:
        self._parts.append(part)

    def finish(self, part: bytes) -> Stored:
        return self._store.put(self._path, b"".join([*self._parts, part]), self._metadata, None)

    def abort(self) -> None:
        self._parts.clear()

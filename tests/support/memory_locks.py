"""Documents in this process's memory: for tests, and for what shows how a store is meant to be."""

import threading

from sandkeep_store.locks.clock import SYSTEM, Clock
from sandkeep_store.locks.store import MAX_DOCUMENT_BYTES, Stored, Written


class MemoryStore:
    """See `DocumentStore`. All that share the object share the documents."""

    where = "memory"

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._documents: dict[str, Stored] = {}
        self._mutex = threading.Lock()
        self._last = 0

    def read(self, path: str, most: int = MAX_DOCUMENT_BYTES) -> Stored | None:
        """See `DocumentStore.read`."""
        found = self._documents.get(path)
        return found and found._replace(content=found.content[: most + 1])

    def write(self, path: str, content: bytes, over: str | None) -> Written | None:
        """See `DocumentStore.write`."""
        with self._mutex:
            found = self._documents.get(path)
            if (found and found.version) != over:
                return None
            self._last += 1
            self._documents[path] = Stored(content, str(self._last))
            return Written(str(self._last), self._clock.now().wall)

    def put(self, path: str, content: bytes | None) -> None:
        """Put bytes there, or remove what is there, as by hand."""
        with self._mutex:
            self._last += 1
            if content is None:
                self._documents.pop(path, None)
            else:
                self._documents[path] = Stored(content, str(self._last))

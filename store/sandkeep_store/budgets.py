"""Memory of long work, charged to its owner: a tree that costs its maker little can cost whoever reads it gigabytes.

Work charges its tables of files while it makes them, and gives all back when it ends.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from sandkeep.errors import StateError

MOST_BYTES: Final = 1 << 30
"""Maximum memory of all work of one owner."""

_STEP_BYTES: Final = 1 << 20
_lock: Final = threading.Lock()
_used: Final[Counter[str]] = Counter()


class _Account:
    """The memory of one piece of work."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._total_bytes = 0
        self.peaks: Counter[str] = Counter()

    def charge(self, size: int) -> None:
        with _lock:
            used = _used[self._owner] + size
            if used > MOST_BYTES:
                message = (
                    f"comparisons, snapshots and merges of these files would need more than {MOST_BYTES >> 20} MiB of"
                    " the daemon's memory with those under way: wait for these, or remove files"
                )
                raise StateError("quota_exceeded", message, quota="memory_bytes", used=used, limit=MOST_BYTES)
            _used[self._owner] = used
            self._total_bytes += size

    def close(self) -> None:
        with _lock:
            _used[self._owner] -= self._total_bytes
            if not _used[self._owner]:
                del _used[self._owner]


_account: Final[ContextVar[_Account | None]] = ContextVar("account of the memory of the work", default=None)


@contextmanager
def charging(owner: str) -> Iterator[None]:
    """Charge the tables that a block makes, and the threads that it starts, to an owner until the block ends."""
    account = _Account(owner)
    token = _account.set(account)
    try:
        yield
    finally:
        _account.reset(token)
        account.close()


class Table:
    """The memory of a growing table. Of several with one `name` in the same work there is one at a time."""

    def __init__(self, name: str = "") -> None:
        self._account = _account.get()
        self._name = name
        self._size = self._charged = 0

    def grow(self, size: int) -> None:
        """Charge so many bytes more. Raises `quota_exceeded`."""
        self._size += size
        if self._account is None or self._size < self._charged + _STEP_BYTES:
            return
        peak = self._account.peaks[self._name] if self._name else self._charged
        if self._size > peak:
            self._account.charge(self._size - peak)
            if self._name:
                self._account.peaks[self._name] = self._size
        self._charged = self._size

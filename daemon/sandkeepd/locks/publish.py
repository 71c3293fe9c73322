"""The metadata of shared sandboxes, where other daemons read them: ``sandboxes/<lock's name>/sandkeep.json``.

A sandbox is shared while its lock is held here, and there is a place for metadata (`Storage.metadata_root`). Its
document is written after each change, over the version that was read, and carries the fence of the lock: a daemon that
lost the lock, and does not know yet, cannot overwrite the next owner's document. The stores are those of locks, whose
conditional writes hold between machines; on a mounted bucket nothing does. ``metadata.json`` beside it is the part for
cloud-run-sandbox, without a fence: it is written after ours, over the version from before that.

Error handling: failed requests are retried. A lost lock ends the writing until it is taken again.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from sandkeep import events
from sandkeep.errors import SandkeepError, StateError
from sandkeep_store.buckets.config import STORAGE, Root, Storage
from sandkeep_store.eventlog.log import Recorded
from sandkeep_store.locks.fence import WRITES_AT_ONCE, Fence, read_fenced, write_conflict, write_fenced
from sandkeep_store.locks.open import open_store, where
from sandkeep_store.locks.places import part_of
from sandkeep_store.locks.store import DocumentStore
from sandkeep_store.views import metadata
from sandkeep_store.views.metadata import document
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.shared_metadata import FILE_NAME, SharedMetadata, decode, foreign_part, shared_document
from sandkeepd.core.core import Core, as_sandkeep_error
from sandkeepd.locks.leases import Leases

logger = logging.getLogger("sandkeepd")

DEBOUNCE_S: Final = 0.25
RETRY_S: Final = 5.0
LAST_S: Final = 10.0
"""Seconds that a release waits for the last document."""

FINAL_CODES: Final = ("lock_lost", "lock_damaged")


class Publisher:
    """See the module."""

    def __init__(self, core: Core, leases: Leases, storage: Storage = STORAGE) -> None:
        self._core = core
        self._leases = leases
        self._storage = storage
        self.addresses: Sequence[str] = ()
        """Addresses at which clients of other daemons find this one's stream server."""
        self._dirty: dict[str, None] = {}
        self._wake = trio.Event()
        self._writing = trio.Lock()
        self._stores: dict[str, DocumentStore] = {}
        core.log.on_commit.append(self._committed)
        leases.on_adopted = self.mark
        leases.before_release = self.finish

    def _committed(self, facts: Sequence[Recorded]) -> None:
        for fact in facts:
            if isinstance(fact.event, events.LockAcquired):
                self.mark(self._core.state.filing_id(self._core.state.locks[fact.stream]))
            elif fact.sandbox_id is not None and self._leases.holds(fact.sandbox_id):
                self.mark(fact.sandbox_id)

    def mark(self, sandbox_id: str) -> None:
        """Mark the published document of a sandbox as outdated."""
        self._dirty[sandbox_id] = None
        self._wake.set()

    async def run(self) -> None:
        """Write outdated documents, until cancelled."""
        while True:
            await self._wake.wait()
            await trio.sleep(DEBOUNCE_S)
            await self.flush()
            if self._dirty:
                await trio.sleep(RETRY_S)

    async def flush(self) -> None:
        """Write all that is out of date at this moment."""
        async with self._writing:
            self._wake = trio.Event()
            for sandbox_id in list(self._dirty):
                del self._dirty[sandbox_id]
                await self._publish(sandbox_id)

    async def finish(self, sandbox_id: str) -> None:
        """Write an outdated document before its lock is released, within `LAST_S`."""
        with trio.move_on_after(LAST_S) as scope:
            async with self._writing:
                if sandbox_id in self._dirty:
                    del self._dirty[sandbox_id]
                    await self._publish(sandbox_id)
        if scope.cancelled_caught:
            logger.warning("a lock is released over outdated metadata", extra={"sandbox": sandbox_id})

    async def publish(self, sandbox_id: str) -> None:
        """Write the document of a sandbox now. Raises `lock_lost`, `not_ready` for one that is withheld, and the errors
        of the store.
        """
        async with self._writing:
            if sandbox_id in self._core.withheld:
                message = f"sandbox {sandbox_id} lost its lock, and is not ready yet: try again in a moment"
                raise StateError("not_ready", message, sandbox_id=sandbox_id)
            self._dirty.pop(sandbox_id, None)
            try:
                await self._write(sandbox_id)
            except BaseException:
                self.mark(sandbox_id)
                raise

    async def read(self, owner: str, name: str) -> SharedMetadata | None:
        """Read the document of a shared sandbox, or that of cloud-run-sandbox; None when there is none. Raises
        `not_configured`, `snapshot_corrupt`, and the store's errors.
        """
        documents, part = self._store_of(self._storage.metadata_root()), part_of("", owner)
        for file in (FILE_NAME, metadata.FILE_NAME):
            path = _path(part, name, file)
            found = await self._leases.in_thread(partial(read_fenced, documents, path))
            if found is not None:
                return decode(found.content, f"{documents.where}/{path}")
        return None

    async def _publish(self, sandbox_id: str) -> None:
        try:
            await self._write(sandbox_id)
        except Exception as unforeseen:  # noqa: BLE001  # the document is still outdated
            error = as_sandkeep_error(unforeseen)
            logger.warning("metadata is not published", extra={"sandbox": sandbox_id, "why": error.message})
            if error.code not in FINAL_CODES:
                self.mark(sandbox_id)

    async def _write(self, sandbox_id: str) -> None:
        """Write the document of a sandbox. Raises `lock_lost`, and the store's errors."""
        sandbox, documents = self._core.state.sandboxes.get(sandbox_id), self._documents()
        if sandbox is None or documents is None or sandbox_id in self._core.withheld:
            return
        fence = self._leases.fence(sandbox_id, sandbox.owner)
        content = self._content(sandbox, fence) if fence is not None else None
        if fence is not None and content is not None:
            await self._leases.in_thread(partial(_write_both, documents, sandbox, content, fence))

    def _content(self, sandbox: SandboxState, fence: Fence) -> bytes | None:
        state, log_id = self._core.state, self._core.log.log_id
        if sandbox.spec.shared is None:
            return document(sandbox, log_id, fence.number)
        lock = next(
            lock
            for lock in reversed(state.locks.values())
            if (lock.name, lock.fence) == (fence.name, fence.number) and state.filing_id(lock) == sandbox.sandbox_id
        )
        return shared_document(state, sandbox, log_id, lock, self.addresses, self._storage.bucket_of)

    def _documents(self) -> DocumentStore | None:
        """Return the store that other daemons read; None when none is set."""
        try:
            return self._store_of(self._storage.metadata_root())
        except SandkeepError as error:
            logger.debug("metadata is not shared", extra={"why": error.message})
            return None

    def _store_of(self, root: Root) -> DocumentStore:
        place = where(root)
        if place not in self._stores:
            self._stores[place] = open_store(place)
        return self._stores[place]


def _write_both(documents: DocumentStore, sandbox: SandboxState, content: bytes, fence: Fence) -> None:
    """Write our document, and the part for cloud-run-sandbox after it. Raises as `write_fenced`. Blocks.

    A later owner writes ours with its own fence first. So whoever still writes ours after reading the part, and then
    the part over what was read, overwrites nothing of a later owner's.
    """
    # By the lock's name, which other daemons use; names are private to an owner.
    part = "" if fence.name == sandbox.sandbox_id else part_of("", sandbox.owner)
    ours, theirs = (_path(part, fence.name, file) for file in (FILE_NAME, metadata.FILE_NAME))
    told = foreign_part(content)
    for _ in range(WRITES_AT_ONCE):
        before = read_fenced(documents, theirs)
        write_fenced(documents, ours, content, fence)
        if before is not None and before.content == told:
            return
        if documents.write(theirs, told, before.version if before is not None else None) is not None:
            return
    place = f"{documents.where}/{theirs}"
    raise StateError("conflict", write_conflict(place), place=place)


def _path(part: str, name: str, file: str) -> str:
    return f"{part}/sandboxes/{name}/{file}".removeprefix("/")

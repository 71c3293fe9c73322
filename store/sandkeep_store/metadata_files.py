"""`metadata.json` on disk: written atomically, debounced, never in a request's path.

`MetadataFiles` follows the state of a running daemon. `rebuild` and `check` compare the files with the log, and need
nothing but a folded `State`.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Mapping

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import DaemonError
from sandkeep.ids import is_name
from sandkeep.model import RebuildReport
from sandkeep.system.descriptors import closing_fd
from sandkeep.system.durable import Replacement
from sandkeep_store.threads import in_thread
from sandkeep_store.views.metadata import FILE_NAME, Seen, document
from sandkeep_store.views.state import State

DEBOUNCE_S = 0.25
BATCH = 64
UNFINISHED = f".{FILE_NAME}.new"


class MetadataFiles:
    """Keeps the documents under `root` (``sandboxes/<sandbox_id>/metadata.json``) up to date with `state`."""

    def __init__(self, root: str, state: State, log_id: str) -> None:
        self.root = root
        self.failure: str | None = None
        self._state = state
        self._log_id = log_id
        self._dirty: dict[str, None] = {}
        self._wake = trio.Event()
        self._writing = trio.Lock()

    def mark(self, sandbox_id: str) -> None:
        """Say that a sandbox's document is out of date."""
        self._dirty[sandbox_id] = None
        self._wake.set()

    def pending(self) -> list[str]:
        """The sandboxes whose documents are out of date."""
        return list(self._dirty)

    async def run(self) -> None:
        """Write outdated documents, until cancelled.

        Error handling: `failure` reports a disk that cannot be written; the documents stay marked and are retried.
        """
        while True:
            await self._wake.wait()
            await trio.sleep(DEBOUNCE_S)
            await self.flush()

    async def flush(self) -> None:
        """Write all that is out of date at this moment."""
        async with self._writing:
            self._wake = trio.Event()
            pending = list(self._dirty)
            for start in range(0, len(pending), BATCH):
                await self._write_batch(pending[start : start + BATCH])

    async def _write_batch(self, sandbox_ids: list[str]) -> None:
        for sandbox_id in sandbox_ids:
            self._dirty.pop(sandbox_id, None)
        documents = {sandbox_id: self._document(sandbox_id) for sandbox_id in sandbox_ids}
        done = False
        try:
            await in_thread(_write_changed, self.root, documents)
            done, self.failure = True, None
        except OSError as error:
            self.failure = f"cannot write {FILE_NAME} below {self.root}: {error.strerror}"
        finally:
            if not done:  # also when it was cancelled before its thread began: the daemon's last `flush` writes them
                for sandbox_id in sandbox_ids:
                    self.mark(sandbox_id)

    async def rewrite(self, sandbox_id: str) -> None:
        """Write a document at once, and leave no trace of the old one. Raises `storage_unavailable`."""
        self.mark(sandbox_id)
        await self.flush()
        if self.failure:
            raise DaemonError("storage_unavailable", self.failure)

    async def discard_unfinished(self, sandbox_id: str) -> None:
        """Remove an unfinished document that a killed daemon left."""
        async with self._writing:
            with contextlib.suppress(OSError):
                os.unlink(f"{self.root}/{sandbox_id}/{UNFINISHED}")

    def _document(self, sandbox_id: str) -> bytes | None:
        sandbox = self._state.sandboxes.get(sandbox_id)
        return document(sandbox, self._log_id) if sandbox else None

    async def rebuild(self, fresh: State) -> RebuildReport:
        """Write every document anew from `fresh`, a state folded from the log alone.

        Sandboxes that moved on since `fresh` was folded are left to the ordinary writing, which has them marked.
        """
        async with self._writing:
            live = self._state.sandboxes
            now = {s.sandbox_id: s.position for s in live.values()}
            settled = [s for s in fresh.sandboxes.values() if now.get(s.sandbox_id) == s.position]
            documents = {s.sandbox_id: document(s, self._log_id) for s in settled}
            failpoints.reach("rebuild.begun")
            report = await in_thread(rebuild, self.root, documents, fresh.position)
        await self.flush()
        return report


def rebuild(root: str, documents: Mapping[str, bytes | None], position: int) -> RebuildReport:
    """Make the files below `root` hold exactly `documents`, touching no others. Raises `storage_unavailable`."""
    changed = {name: wanted for name, wanted in documents.items() if read(root, name) != wanted}
    try:
        _write_all(root, changed)
    except OSError as error:
        raise DaemonError("storage_unavailable", f"cannot write below {root}: {error.strerror}") from None
    removed = sum(wanted is None for wanted in changed.values())
    return RebuildReport(
        position=position, written=len(changed) - removed, unchanged=len(documents) - len(changed), removed=removed
    )


def check(root: str, state: State, log_id: str, *, skip: Iterable[str] = ()) -> list[str]:
    """Report, a sentence each, documents missing, damaged, or of unknown sandboxes. `skip` those being written."""
    passed_over = set(skip)
    problems = []
    for sandbox in state.sandboxes.values():
        if sandbox.sandbox_id in passed_over:
            continue
        wanted, found = document(sandbox, log_id), read(root, sandbox.sandbox_id)
        if wanted != found:
            what = (
                "is missing" if found is None else "should not be there" if wanted is None else "differs from the log"
            )
            problems.append(f"{root}/{sandbox.sandbox_id}/{FILE_NAME} {what}: `sandkeep store rebuild` writes it anew")
    problems.extend(
        f"{root}/{name} belongs to no sandbox on record: look at it and remove it"
        for name in _names(root)
        if name not in state.sandboxes
    )
    return problems


def ahead_of(root: str, log_id: str, head: int) -> list[str]:
    """Say which documents have seen events that the log does not hold: a sign that the log lost its tail."""
    problems = []
    for name in _names(root):
        seen = _seen(read(root, name))
        if seen is not None and seen.log_id == log_id and seen.position > head:
            problems.append(
                f"the event log ends at position {head}, but {root}/{name}/{FILE_NAME} has seen {seen.position}: "
                "events were lost, restore the log from a copy, or run `sandkeep store repair` without a daemon"
            )
    return problems


def newest_seen(root: str, log_id: str) -> int:
    """The highest position of a log that any document has seen."""
    seen = (_seen(read(root, name)) for name in _names(root))
    return max((s.position for s in seen if s is not None and s.log_id == log_id), default=0)


def read(root: str, sandbox_id: str) -> bytes | None:
    """The document's bytes, or None if there is none that can be read."""
    try:
        descriptor = os.open(
            f"{root}/{sandbox_id}/{FILE_NAME}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    with open(descriptor, "rb") as file:
        return file.read()


def _seen(content: bytes | None) -> Seen | None:
    try:
        return msgspec.json.decode(content, type=Seen) if content else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _names(root: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(root) if is_name(name))
    except FileNotFoundError:
        return []


def _write_changed(root: str, documents: Mapping[str, bytes | None]) -> None:
    """Reading is cheap beside an fsync, and after a start most documents are as they should be."""
    _write_all(root, {name: new for name, new in documents.items() if new is None or read(root, name) != new})


def _write_all(root: str, documents: Mapping[str, bytes | None]) -> None:
    for sandbox_id, content in documents.items():
        if content is None:
            _remove(root, sandbox_id)
        else:
            _write(root, sandbox_id, content)


def _write(root: str, sandbox_id: str, content: bytes) -> None:
    folder = f"{root}/{sandbox_id}"
    for path in (root, folder):  # and none above them: a state directory that was taken away is not begun anew
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, mode=0o755)
    with closing_fd(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as directory:
        with Replacement(FILE_NAME, temporary=UNFINISHED, directory=directory) as new:
            new.file.write(content)
            new.complete()
            failpoints.reach("metadata.written")
            if _is_directory(FILE_NAME, directory):
                displaced = f".{FILE_NAME}.displaced.{os.getpid()}"
                os.rename(FILE_NAME, displaced, src_dir_fd=directory, dst_dir_fd=directory)
        failpoints.reach("metadata.renamed")
        os.fsync(directory)


def _is_directory(name: str, directory: int) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _remove(root: str, sandbox_id: str) -> None:
    folder = f"{root}/{sandbox_id}"
    try:
        os.unlink(f"{folder}/{FILE_NAME}")
    except FileNotFoundError:
        return  # then the folder, if there is one, is not ours to remove: a sandbox may be about to be made in it
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # leaves a folder that holds anything else

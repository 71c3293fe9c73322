"""The files of merges and commits below a state directory: ``branches/ID``.

A merge with conflicts has its document, named by the event that tells of it, a spool of merged texts, and blobs of the
versions that are in conflict. Of one that is done only the record of where each path came from is left, as of a commit.
Everything here blocks.
"""

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import msgspec
from msgspec import Struct

from sandkeep import model
from sandkeep.errors import CallerError, DaemonError, DataError
from sandkeep.events import MergeRules
from sandkeep.system import durable
from sandkeep.system.descriptors import closing_fd
from sandkeep_store.archives.trees.pack import PackedArchive, write
from sandkeep_store.archives.trees.rebase import Placed, Workspace
from sandkeep_store.files.syncfs import flushing
from sandkeep_store.merging import merge as merging
from sandkeep_store.merging import resolve as resolving
from sandkeep_store.merging.layer import MergedLayer
from sandkeep_store.merging.model import Conflict, Decision, Dropped, Merge, Policy, Version, from_document, to_document
from sandkeep_store.merging.trees import Lookup, Progress, TreeState
from sandkeepd.branches.answers import as_many_as_fit, text_of
from sandkeepd.branches.choices import BASE
from sandkeepd.host.host_commit.journal import Journal, State
from sandkeepd.host.threads import Meter
from sandkeepd.providers.common.errors import storage_errors

FOLDER: Final = "branches"
SPOOL: Final = "spool"
BLOBS: Final = "blobs"
PROVENANCE: Final = "provenance"
JOURNAL: Final = "journal"
DROPPED: Final = "dropped"

_BLOCK: Final = 512
_MOST_REMEMBERED: Final = 32 << 20
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Origin(Struct, frozen=True, array_like=True):
    """One line of a record: a path, its change, and the branches that it came from."""

    path: bytes
    change: model.ChangeKind
    branches: list[str]
    how: str
    merge_id: str | None = None
    sha256: str = ""
    """Of a file that was committed, what was written; of a link its target, of a directory nothing."""
    kind: str = ""
    mode: int = 0
    size: int = 0
    choice: str = ""
    """The choice by which a conflict there was resolved."""


class Outcome(Struct, frozen=True, kw_only=True):
    """The outcome of a merge or a resolution. `record` names its document; all of it takes `size_bytes`."""

    merge: Merge
    record: str
    size_bytes: int

    @property
    def conflicts(self) -> int:
        """The number of conflicts that are left."""
        return len(self.merge.conflicts)

    @property
    def changed(self) -> int:
        """The number of paths at which the result differs from the base."""
        return len(self.merge.decisions)

    @property
    def dropped(self) -> int:
        """The number of changes of branches that the result does not have."""
        return len(self.merge.dropped)


class MergeFiles:
    """The files of all merges and commits of one state directory."""

    def __init__(self, state_dir: str) -> None:
        self.state_dir = state_dir
        self._last: tuple[str, Merge] | None = None
        """The document that was read last: callers read one page of it after the other."""

    def place(self, object_id: str) -> str:
        """Return the directory of a merge or a commit."""
        return f"{self.state_dir}/{FOLDER}/{object_id}"

    # -- merges -------------------------------------------------------------------------------------------------------

    def merge(
        self, merge_id: str, trees: Sequence[TreeState], branches: Sequence[str], rules: MergeRules,
        ignored: Sequence[bytes], meter: Meter,
    ) -> Outcome:  # fmt: skip
        """Merge the trees of branches over the first one. What is left to decide is on the disk when this returns."""
        place = self.place(merge_id)
        policy = Policy(
            rule=rules.policy, branch=rules.ours or "",
            takes={os.fsencode(path): branch for path, branch in rules.takes.items()},
        )  # fmt: skip
        shutil.rmtree(place, ignore_errors=True)
        with storage_errors(place):
            os.makedirs(f"{place}/{BLOBS}", mode=0o700)
            with flushing(place):
                opened = os.open(f"{place}/{SPOOL}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with closing_fd(opened) as spool, closing_fd(os.open(f"{place}/{BLOBS}", _DIRECTORY)) as blobs:
                    merged = merging.merge(
                        trees[0], dict(zip(branches, trees[1:], strict=True)), policy, spool=spool, blobs=blobs,
                        ignore=ignored, progress=counting(meter),
                    )  # fmt: skip
                return self._outcome(merge_id, merged)

    def _outcome(self, merge_id: str, merged: Merge) -> Outcome:
        """Write the document, which the outcome's event will name."""
        record, place = f"document-{secrets.token_hex(4)}", self.place(merge_id)
        document = to_document(merged)
        durable.replace(f"{place}/{record}", document)
        blobs = sum(entry.stat(follow_symlinks=False).st_blocks * _BLOCK for entry in os.scandir(f"{place}/{BLOBS}"))
        size = len(document) + os.stat(f"{place}/{SPOOL}").st_size + blobs
        return Outcome(merge=merged, record=record, size_bytes=size)

    def resolve(self, merge_id: str, record: str, resolutions: Mapping[bytes, resolving.Resolution]) -> Outcome:
        """Apply decisions to the conflicts of a merge. Raises `not_found`, `invalid`."""
        place = self.place(merge_id)
        merge = self._load(merge_id, record)
        with storage_errors(place), closing_fd(os.open(f"{place}/{BLOBS}", _DIRECTORY)) as blobs, flushing(place):
            resolved = resolving.resolve(merge, resolutions, blobs=blobs, now_ns=time.time_ns())
            return self._outcome(merge_id, resolved)

    def write_layer(
        self, merge_id: str, outcome: Outcome, trees: Sequence[TreeState], branches: Sequence[str], output: int,
        into: "tuple[Workspace, int] | None", meter: Meter,
    ) -> PackedArchive:  # fmt: skip
        """Write what a merge without conflicts changes of its base, the first tree, as a layer above that. With `into`
        it is one above the root file system that has this workspace.
        """
        place = self.place(merge_id)
        views = {name: tree.view for name, tree in zip(branches, trees[1:], strict=True)}
        opened_spool = os.open(f"{place}/{SPOOL}", os.O_RDONLY | os.O_CLOEXEC)
        with closing_fd(opened_spool) as spool, closing_fd(os.open(f"{place}/{BLOBS}", _DIRECTORY)) as blobs:
            layer = MergedLayer(outcome.merge, trees[0].view, views, spool=spool, blobs=blobs)
            source = layer if into is None else Placed(layer, *into)
            return write(source, output, "none", layer.remarks, moved=meter)

    def keep_provenance(self, merge_id: str, merge: Merge, base: TreeState) -> str:
        """Record where each path of a merge came from, and what is dropped; return the digest of the record."""
        with Lookup(base.view) as before:
            origins = [_origin(before, path, decision) for path, decision in merge.decisions.items()]
        if merge.dropped:
            place = self.place(merge_id)
            with storage_errors(place):
                durable.replace(f"{place}/{DROPPED}", msgspec.msgpack.encode(merge.dropped))
        return self.keep_record(merge_id, origins)

    def dropped(self, merge_id: str, record: str | None, limit: int) -> list[model.DroppedChange]:
        """Return the first changes that a merge drops. One that is done has no `record`."""
        if record is not None:
            dropped = self._load(merge_id, record).dropped
        else:
            dropped = list[Dropped]()
            with suppress(OSError), open(f"{self.place(merge_id)}/{DROPPED}", "rb") as file:
                dropped = msgspec.msgpack.decode(file.read(), type=list[Dropped])
        return [_dropped(each) for each in as_many_as_fit(dropped[:limit], lambda each: len(each.path) + 200)]

    def conflicts(self, merge_id: str, record: str, after: int, limit: int) -> tuple[list[model.Conflict], int | None]:
        """Return a page of the conflicts that are left, and where the next one begins."""
        left = self._load(merge_id, record).conflicts
        shown = [_shown(conflict) for conflict in as_many_as_fit(left[after : after + limit], _size_of)]
        end = after + len(shown)
        return shown, end if end < len(left) else None

    def read_version(self, merge_id: str, sha256: str, offset: int, size: int) -> model.FileContent:
        """Read a piece of a version in a conflict. Raises `not_found`."""
        try:
            opened = os.open(f"{self.place(merge_id)}/{BLOBS}/{sha256}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            message = "there is no such version in the conflicts of this merge: see `branch conflicts`"
            raise CallerError("not_found", message, sha256=sha256) from None
        with open(opened, "rb", buffering=0) as file:
            whole, data = os.fstat(opened).st_size, os.pread(file.fileno(), size, offset)
        return model.FileContent(
            offset=offset, data=data, size_bytes=whole, mode=0o600, eof=offset + len(data) >= whole
        )

    def _load(self, merge_id: str, record: str) -> Merge:
        path = f"{self.place(merge_id)}/{record}"
        last = self._last  # without a lock, for which the threads of all owners would wait: at worst it is read twice
        if last is not None and last[0] == path:
            return last[1]
        self._last = None
        try:
            with open(path, "rb") as file:
                document = file.read()
        except FileNotFoundError:
            message = f"the files of merge {merge_id} are gone: abandon it, and merge again"
            raise DataError("snapshot_missing", message, merge_id=merge_id) from None
        merge = from_document(document)
        if len(document) <= _MOST_REMEMBERED:
            self._last = path, merge
        return merge

    def forget_document(self, merge_id: str, record: str) -> None:
        """Remove a document of a merge that is out of date. What a dead daemon leaves of others goes with the merge."""
        _remove(f"{self.place(merge_id)}/{record}")

    def forget_work(self, merge_id: str) -> None:
        """Remove everything but the records of a merge that is done."""
        place = self.place(merge_id)
        with suppress(FileNotFoundError):
            for name in os.listdir(place):
                if name not in (PROVENANCE, DROPPED):
                    _remove(f"{place}/{name}")

    # -- records ------------------------------------------------------------------------------------------------------

    def keep_record(self, object_id: str, origins: Iterable[Origin]) -> str:
        """Write the record of a merge or a commit, durably; return its digest."""
        place = self.place(object_id)
        content = msgspec.msgpack.encode(list(origins))
        with storage_errors(place):
            os.makedirs(place, mode=0o700, exist_ok=True)
            durable.replace(f"{place}/{PROVENANCE}", content)
        return _digest(content)

    def record(self, object_id: str, digest: str) -> list[Origin]:
        """Read a record. Raises `storage_unavailable` for one that is missing or damaged."""
        return self.found_record(object_id, digest)[1]

    def found_record(self, object_id: str, digest: str | None = None) -> tuple[str, list[Origin]]:
        """Read a record, and return its digest with it: the given one, or whichever it has if no event has that yet.
        Raises `storage_unavailable`.
        """
        with suppress(OSError), open(f"{self.place(object_id)}/{PROVENANCE}", "rb") as file:
            content = file.read()
            found = _digest(content)
            if digest in (None, found):
                return found, msgspec.msgpack.decode(content, type=list[Origin])
        message = f"the record of {object_id} is missing or damaged in the state directory"
        raise DaemonError("storage_unavailable", message)

    # -- journals of commits ------------------------------------------------------------------------------------------

    @contextmanager
    def new_journal(self, commit_id: str) -> Iterator[int]:
        """Lend the journal of a commit, empty, with a durable name. Raises `storage_unavailable`."""
        directory = self.place(commit_id)
        with storage_errors(directory):
            os.makedirs(directory, mode=0o700, exist_ok=True)
            descriptor = os.open(f"{directory}/{JOURNAL}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with closing_fd(descriptor):
            with storage_errors(directory):
                for parent in (directory, f"{self.state_dir}/{FOLDER}", self.state_dir):
                    durable.sync_directory(parent)
            yield descriptor

    @contextmanager
    def journal(self, commit_id: str) -> Iterator[int | None]:
        """Lend the journal of a commit; None if it has none, as before its beginning and after its end."""
        try:
            descriptor = os.open(f"{self.place(commit_id)}/{JOURNAL}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            yield None
            return
        with closing_fd(descriptor):
            yield descriptor

    def has_journal(self, commit_id: str) -> bool:
        """Return True if a commit has a journal."""
        return os.path.exists(f"{self.place(commit_id)}/{JOURNAL}")

    def journal_state(self, commit_id: str) -> State | None:
        """Return the state of a commit's journal, which is durable then; None without one."""
        try:
            with storage_errors(self.place(commit_id)), self.journal(commit_id) as descriptor:
                return None if descriptor is None else Journal(descriptor).settled_state()
        except ValueError:
            message = (
                f"the journal of {commit_id} in the state directory is damaged: look for its backups in the target"
            )
            raise DaemonError("internal", message) from None

    def forget_journal(self, commit_id: str) -> None:
        """Remove the journal of a commit, of which nothing is in the target any more."""
        _remove(f"{self.place(commit_id)}/{JOURNAL}")

    def remove(self, object_id: str) -> None:
        """Remove all files of a merge or a commit. Safe to repeat."""
        _remove(self.place(object_id))

    def names(self) -> list[str]:
        """Return the ids of those that have files."""
        with suppress(FileNotFoundError):
            return os.listdir(f"{self.state_dir}/{FOLDER}")
        return []


def counting(meter: Meter) -> Progress:
    """Return a function that passes the sum of what it is called with to a meter."""
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        meter(done)

    return count


def _origin(before: Lookup, path: bytes, decision: Decision) -> Origin:
    change = _change(before.entry(path) is not None, decision)
    return Origin(path, change, list(decision.branches), decision.how, choice=decision.choice)


def _change(had: bool, decision: Decision) -> model.ChangeKind:
    if decision.entry is None:
        return "deleted"
    return "changed" if had else "added"


def _shown(conflict: Conflict) -> model.Conflict:
    path, raw = text_of(conflict.path)
    sides = [_side(BASE, conflict.base), *(_side(name, version) for name, version in conflict.branches.items())]
    hunks = [
        model.ConflictHunk(start=hunk.start + 1, base=hunk.base, versions=hunk.branches) for hunk in conflict.hunks
    ]
    return model.Conflict(path=path, path_bytes=raw, kind=conflict.kind, sides=sides, hunks=hunks, cut=conflict.is_cut)


def _dropped(dropped: Dropped) -> model.DroppedChange:
    path, raw = text_of(dropped.path)
    return model.DroppedChange(
        path=path, path_bytes=raw, branch=dropped.branch, hunks=dropped.hunks, lines=dropped.lines
    )


def _size_of(conflict: Conflict) -> int:
    """Return about how many bytes a conflict takes in an answer."""
    lines = [*(hunk.base for hunk in conflict.hunks), *(v for hunk in conflict.hunks for v in hunk.branches.values())]
    return len(conflict.path) + sum(len(line) for group in lines for line in group) + 200 * len(conflict.branches)


def _side(branch: str, version: Version) -> model.ConflictSide:
    entry = version.entry
    if entry is None:
        return model.ConflictSide(branch=branch)
    return model.ConflictSide(
        branch=branch, kind=entry.kind, mode=entry.mode, size_bytes=entry.size, sha256=version.sha256 or None,
        target=entry.target.decode("utf-8", "backslashreplace") if entry.kind == "symlink" else None,
    )  # fmt: skip


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)

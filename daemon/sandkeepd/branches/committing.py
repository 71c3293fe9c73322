"""Commits of branches to directories of the host, and the plans of such."""

import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from sandkeep import events, failpoints, ids
from sandkeep.errors import CallerError, SandkeepError, StateError
from sandkeep.model import Commit, CommitPath, CommitPlan
from sandkeep.protocol.methods import BranchCommit, BranchPlan
from sandkeep.system.descriptors import closing_fd
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.threads import in_thread
from sandkeep_store.views.branches import CommitState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.branches.answers import as_many_as_fit, text_of
from sandkeepd.branches.comparing import Comparing
from sandkeepd.branches.difference import Difference, Sources, changed_counts, difference, read_only
from sandkeepd.branches.lineage import Lineage, began_with
from sandkeepd.branches.merge_files import MergeFiles, Origin
from sandkeepd.branches.points import Files, Points
from sandkeepd.contract.caller import Caller, Progress
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Creation, Order
from sandkeepd.host.host_commit import client as host
from sandkeepd.host.host_commit.changes import Change
from sandkeepd.host.host_commit.journal import Journal
from sandkeepd.host.host_commit.names import STAGING_PREFIX
from sandkeepd.host.threads import in_long_thread, run_in_thread
from sandkeepd.host.unnamed_file import unnamed_file
from sandkeepd.providers.common.errors import storage_errors
from sandkeepd.snapshots.layers import LayerReferences

logger = logging.getLogger("sandkeepd")


class Committing(Creation[CommitState, Commit]):
    """``branch.commit``, ``branch.plan`` and their handlers."""

    method = "branch.commit"
    view = "commits"
    named = "commit_id"
    failure = events.BranchCommitFailed
    interrupted = "the daemon stopped during the commit, and the directory is as it was before: commit again"

    def __init__(
        self, core: Core, points: Points, layers: LayerReferences, files: MergeFiles, comparing: Comparing
    ) -> None:
        super().__init__(core)
        self._points = points
        self._layers = layers
        self._files = files
        self._comparing = comparing

    # -- handlers -----------------------------------------------------------------------------------------------------

    async def commit(self, request: Request[BranchCommit]) -> Commit:
        """Apply a branch's changes to a directory of the host."""
        command = request.params
        sandbox = rules.sandbox(self.core.state, command.sandbox_id)
        rules.require_files(sandbox)
        base_id, _ = await self._root(sandbox)
        caller = request.caller
        event = events.BranchCommitRequested(
            owner=sandbox.owner, sandbox_id=sandbox.sandbox_id, target=_absolute(command.target), uid=caller.uid,
            gid=caller.gid, groups=list(caller.groups), force=command.force, base_id=base_id,
        )  # fmt: skip
        return await self.run(NewEvent(ids.new_id(ids.COMMIT), event, None, 0), request)

    async def plan(self, request: Request[BranchPlan]) -> CommitPlan:
        """Show what a commit would do."""
        asked = request.params
        sandbox = rules.sandbox(self.core.state, asked.sandbox_id)
        rules.require_files(sandbox)
        base_id, base = await self._root(sandbox)
        target = _absolute(asked.target)
        async with self._compared(sandbox, base, target, request.progress, None) as found:
            check = partial(host.check, target, request.caller, found.changes)
            report = await in_long_thread(check)
        kinds = {change.path: _kind(change) for change in found.changes}
        named = [(each.path, each.status, each.why) for each in report.paths]
        paths = [_path(path, kinds[path], status, why) for path, status, why in named]
        paths += [_path(path, "added", "forbidden", why) for path, why in found.forbidden.items()]
        counts = {**report.counts, **({"forbidden": len(found.forbidden)} if found.forbidden else {})}
        return CommitPlan(
            sandbox_id=sandbox.sandbox_id,
            target=target,
            base_id=base_id,
            counts=counts,
            paths=list(as_many_as_fit(paths[: asked.limit], lambda path: len(path.path) + 100)),
        )

    async def origins_of(self, sandbox: SandboxState, progress: Progress) -> list[Origin]:
        """Return the origins of all that a branch changes of the image, or whatever else it descends from."""
        rules.require_files(sandbox)
        _, base = await self._root(sandbox)
        async with self._compared(sandbox, base, "", progress, None) as found:
            return found.origins

    # -- carrying out -------------------------------------------------------------------------------------------------

    async def act(self, order: Order[CommitState]) -> Sequence[NewEvent]:
        asked, commit_id = order.subject.requested, order.stream
        sandbox = self.core.state.sandboxes[asked.sandbox_id]
        _, base = await self._root(sandbox)
        with unnamed_file(self._files.state_dir) as contents:
            async with self._compared(sandbox, base, asked.target, order.progress, contents) as found:
                digest = await in_thread(self._files.keep_record, commit_id, found.origins)
                failpoints.reach("commit.planned")
                with closing_fd(read_only(contents)) as readable:
                    await order.progress(f"writing {len(found.changes)} changes to {asked.target}")
                    report = await self._apply(order, found.changes, readable)
        failpoints.reach("commit.applied")
        order.context = not report.leftover or await self._clean_up(order.subject)
        return [NewEvent(commit_id, events.BranchCommitted(**changed_counts(found.origins), provenance=digest))]

    async def _apply(self, order: Order[CommitState], changes: Sequence[Change], contents: int) -> host.Report:
        """Apply changes. First take back what commits on record here left in the target when they were cut off."""
        asked, taken_back = order.subject.requested, set[str]()
        apply = partial(_apply, self._files, order.stream, asked, changes, contents)
        while True:
            try:
                return await in_long_thread(apply)
            except StateError as error:
                earlier = self.core.state.commits.get(error.data.get("unfinished", ""))
                if earlier is None or earlier.commit_id in taken_back:
                    raise
                taken_back.add(earlier.commit_id)
            await self._take_back(earlier)

    async def _take_back(self, earlier: CommitState) -> None:
        target = earlier.requested.target
        try:
            undone = await self._undo(earlier)
        except SandkeepError as error:
            message = f"an earlier commit to {target} was interrupted, and cannot be undone: {error.message}"
            raise StateError("conflict", message) from None
        if undone.leftover:
            backups = _backups_in(target, earlier.commit_id)
            raise StateError("conflict", f"an earlier commit was interrupted, and files have changed since: {backups}")
        if earlier.status != "creating":  # else its own order looks at the journal yet
            await in_thread(self._files.forget_journal, earlier.commit_id)

    async def roll_back(self, order: Order[CommitState]) -> None:
        if not await self._is_complete(order.stream) and not (await self._undo(order.subject)).leftover:
            await in_thread(self._files.remove, order.stream)

    async def failed(self, order: Order[CommitState], error: SandkeepError) -> Sequence[NewEvent]:
        if await self._is_complete(order.stream):  # its program, or the log, failed after that
            order.context = await self._clean_up(order.subject)
            return [await self._committed(order.stream)]
        return await super().failed(order, error)

    async def succeeded(self, order: Order[CommitState], facts: Sequence[Recorded]) -> None:  # noqa: ARG002
        if order.context:
            await in_thread(self._files.forget_journal, order.stream)

    async def sweep(self, commit_id: str) -> None:
        """Remove what is left of a commit that is done, with its journal: an inode can be another directory's later."""
        commit = self.core.state.commits.get(commit_id)
        if commit is None or commit.status != "ready":
            return
        if await in_thread(self._files.has_journal, commit_id) and await self._clean_up(commit):
            await in_thread(self._files.forget_journal, commit_id)

    async def undo(self, order: Order[CommitState]) -> None:
        """See `Creation.undo`. The directory is as it was."""
        if await self._clean_up(order.subject):
            await in_thread(self._files.remove, order.stream)

    async def _clean_up(self, commit: CommitState) -> bool:
        """Remove the staging directory of a commit that is complete, or changed nothing; False if it stays.

        Error handling: it is that whatever happens. The journal, which a later attempt needs, stays with the directory.
        """
        try:
            return not (await self._undo(commit)).leftover
        except SandkeepError as error:
            extra = {"commit_id": commit.commit_id, "why": error.message}
            logger.warning("the staging directory of a commit stays", extra=extra)
            return False

    async def _undo(self, commit: CommitState) -> host.Undone:
        return await in_long_thread(partial(_undo, self._files, commit))

    async def _is_complete(self, commit_id: str) -> bool:
        with suppress(SandkeepError):
            return await in_thread(self._files.journal_state, commit_id) == "complete"
        return False

    async def _committed(self, commit_id: str) -> NewEvent:
        digest, origins = await in_thread(self._files.found_record, commit_id)
        return NewEvent(commit_id, events.BranchCommitted(**changed_counts(origins), provenance=digest))

    async def _recover(self, order: Order[CommitState]) -> None:
        """Take back what an earlier daemon had begun; or record that it was complete."""
        commit_id, target = order.stream, order.subject.requested.target
        try:
            state = await in_thread(self._files.journal_state, commit_id)
            if state == "applying":
                undone = await self._undo(order.subject)
                if undone.leftover:
                    message = f"the daemon stopped during the commit, and {undone.kept_count} files were changed since"
                    raise StateError("host_changed", f"{message}: {_backups_in(target, commit_id)}")
        except SandkeepError as error:  # such as: the directory is gone, or not to be reached any more
            await self.fail(order, error)
            return
        if state == "complete":
            order.context = await self._clean_up(order.subject)
            facts = await self.core.record([await self._committed(commit_id)], None)
            await self.succeeded(order, facts)
        else:
            await super()._recover(order)

    # -- the difference -----------------------------------------------------------------------------------------------

    async def _root(self, sandbox: SandboxState) -> tuple[str, Files]:
        """Return the oldest state that a sandbox descends from, and that is still there: most often its image."""
        asked, ancestors = sandbox.requested, Lineage(self.core.state).ancestors(sandbox)
        oldest = sorted(ancestors.values(), key=lambda kept: (kept.time_us, kept.state_id))
        return await self._points.nearest(asked.provider, oldest, asked.plan)

    @asynccontextmanager
    async def _compared(
        self, sandbox: SandboxState, base: Files, target: str, progress: Progress, contents: int | None
    ) -> AsyncIterator[Difference]:
        asked, (kind, began) = sandbox.requested, began_with(sandbox)
        merge = self.core.state.merges.get(began) if kind == "merge" else None
        merged: Mapping[bytes, Origin] = {}
        if merge is not None and merge.provenance is not None:
            origins = await in_thread(self._files.record, merge.merge_id, merge.provenance)
            merged = {origin.path: origin for origin in origins}
        written: dict[bytes, Origin] = {}
        for commit in self._earlier(sandbox, target):
            assert commit.made is not None
            record = await in_thread(self._files.record, commit.commit_id, commit.made.provenance)
            written |= {origin.path: origin for origin in record}
        start = Files(provider=asked.provider, image_id=asked.image_id, plan=asked.plan)
        async with self._comparing.present(sandbox, progress) as now, self._points.opened(base, start, now) as trees:
            sources = Sources(
                base=trees[0], start=trees[1], branch=trees[2], label=sandbox.name or sandbox.sandbox_id,
                ignored=self._points.ignored(sandbox), merge_id=merge.merge_id if merge is not None else None,
                merged=merged, written=written,
            )  # fmt: skip
            compare = partial(difference, sources, contents)
            yield await run_in_thread(compare, progress, "comparing the files")

    def _earlier(self, sandbox: SandboxState, target: str) -> list[CommitState]:
        """Return the commits to the same directory by the branch, and by those that it came from, oldest first."""
        lives = Lineage(self.core.state).lives(sandbox)

        def is_earlier(commit: CommitState) -> bool:
            return any(
                life.sandbox.sandbox_id == commit.sandbox_id
                and life.era.began_us <= commit.requested_us < life.until_us
                for life in lives
            )

        found = [
            c for c in self.core.state.commits.values()
            if c.status == "ready" and c.requested.target == target and is_earlier(c)
        ]  # fmt: skip
        return sorted(found, key=lambda commit: commit.requested_us)


def _apply(
    files: MergeFiles, commit_id: str, asked: events.BranchCommitRequested, changes: Sequence[Change], contents: int
) -> host.Report:
    force = None if asked.force else ()
    with files.new_journal(commit_id) as journal:
        return host.apply(asked.target, caller_of(asked), commit_id, changes, contents, journal, force=force)


def _undo(files: MergeFiles, commit: CommitState) -> host.Undone:
    """Take back a commit that is not complete, or clean up after one: whatever its journal says, the log is right."""
    with files.journal(commit.commit_id) as journal:
        if journal is None:
            return host.Undone(outcome="none", kept=[], kept_count=0, leftover=False)
        if commit.made is not None:
            with storage_errors():
                Journal(journal).mark("complete")
        return host.undo(commit.requested.target, caller_of(commit.requested), commit.commit_id, journal)


def _backups_in(target: str, commit_id: str) -> str:
    place = f"{target}/{os.fsdecode(STAGING_PREFIX)}{commit_id}"
    return f"they stay, with what they were before in {place}: look at that, and remove it"


def caller_of(asked: events.BranchCommitRequested) -> Caller:
    """Return the recorded credentials of whoever ordered a commit."""
    return Caller(uid=asked.uid, gid=asked.gid, groups=tuple(asked.groups))


def _absolute(target: str) -> str:
    if not target.startswith("/"):
        raise CallerError("invalid", f"target: {target[:200]!r} is not an absolute path", field="target")
    parts = [part for part in target.split("/") if part not in ("", ".")]
    return "/" + "/".join(parts)


def _kind(change: Change) -> Any:
    return "deleted" if change.new is None else "added" if change.old is None else "changed"


def _path(path: bytes, change: Any, status: str, why: str) -> CommitPath:
    text, raw = text_of(path)
    return CommitPath(path=text, path_bytes=raw, change=change, status=status, why=why)

"""The handlers of ``branch.*`` and ``sandbox.diff``."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from sandkeep.errors import CallerError
from sandkeep.model import (
    Blame,
    Branch,
    BranchList,
    ConflictList,
    FileContent,
    MergeList,
    Provenance,
    Sandbox,
)
from sandkeep.protocol.clock import rfc3339
from sandkeep.protocol.methods import (
    BranchBlame,
    BranchQuery,
    BranchRemove,
    ConflictQuery,
    MergeQuery,
    SandboxTerminate,
    VersionRead,
)
from sandkeep_store.threads import in_thread
from sandkeep_store.views.branches import MergeState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.branches.answers import as_many_as_fit, chosen, text_of
from sandkeepd.branches.committing import Committing
from sandkeepd.branches.comparing import Comparing
from sandkeepd.branches.creation import BranchCreation
from sandkeepd.branches.lineage import Lineage, began_with
from sandkeepd.branches.merge_files import MergeFiles, Origin
from sandkeepd.branches.merging import MergeParts, MergeRemoval, Merging, Resolving, require_conflicts
from sandkeepd.branches.points import Points
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Command, DirectCommand, Operation
from sandkeepd.core.paging import page
from sandkeepd.host.threads import in_long_thread
from sandkeepd.sandboxes.images import Images
from sandkeepd.sandboxes.sandboxes import Sandboxes
from sandkeepd.snapshots.layers import LayerReferences
from sandkeepd.snapshots.restore import Unpacking


class Branches:
    """The operations on branches, and the handlers that show them."""

    def __init__(
        self, core: Core, images: Images, sandboxes: Sandboxes, layers: LayerReferences, unpacking: Unpacking,
        state_dir: str,
    ) -> None:  # fmt: skip
        self._core = core
        self._termination = sandboxes.termination
        points = Points(core, sandboxes.runtimes, layers, state_dir)
        self._files = MergeFiles(state_dir)
        parts = MergeParts(sandboxes, layers, points, self._files)
        self.creation = BranchCreation(core, images, sandboxes, layers, unpacking, points)
        self.merging, self.resolving = Merging(core, parts), Resolving(core, parts)
        self.removal = MergeRemoval(core, parts)
        self.comparing = Comparing(core, points, unpacking, layers)
        self.committing = Committing(core, points, layers, self._files, self.comparing)
        self.operations: Sequence[Operation[Any, Any]] = (
            self.creation, self.merging, self.resolving, self.removal, self.committing
        )  # fmt: skip
        self.command: Command = DirectCommand("branch.remove", self._termination.again)

    async def sweep(self) -> None:
        """Remove the files of merges and commits that are on no record, and what commits that are done left in their
        targets.
        """
        # Looked for first: those that are made meanwhile are on record before they have files.
        found, state = await in_thread(self._files.names), self._core.state
        left = [name for name in found if name not in state.merges and name not in state.commits]
        for name in left:
            await in_thread(self._files.remove, name)
        for name in found:
            await self.committing.sweep(name)

    async def remove(self, request: Request[BranchRemove]) -> Sandbox:
        """End a branch."""
        asked = SandboxTerminate(sandbox_id=request.params.sandbox_id, command_id=request.params.command_id)
        return await self._termination.terminate(replace(request, params=asked))  # type: ignore[arg-type]

    def list_now(self, request: Request[BranchQuery]) -> BranchList:
        """List the caller's sandboxes with their lineage; an administrator sees all."""
        query, lineage = request.params, Lineage(self._core.state)
        mine = (
            s for s in self._core.state.sandboxes.values()
            if request.sees(s.owner) and (query.all or not s.hidden)
            and query.image_id in (None, s.requested.image_id)
        )  # fmt: skip
        found, following = page(mine, lambda sandbox: sandbox.sandbox_id, query.after, query.limit)
        return BranchList(branches=[_shown(sandbox, lineage) for sandbox in found], next=following)

    def merges_now(self, request: Request[MergeQuery]) -> MergeList:
        """List the caller's merges; an administrator sees all."""
        query, state = request.params, self._core.state

        def is_over(merge: MergeState) -> bool:
            sandbox = state.sandboxes.get(merge.sandbox_id)
            return not merge.waits and (sandbox is None or sandbox.hidden)

        mine = (m for m in state.merges.values() if request.sees(m.owner) and (query.all or not is_over(m)))
        found, following = page(mine, lambda merge: merge.merge_id, query.after, query.limit)
        return MergeList(merges=[merge.view() for merge in found], next=following)

    async def conflicts(self, request: Request[ConflictQuery]) -> ConflictList:
        """List the conflicts of a merge that are left."""
        query, merge = request.params, self._core.state.merges[request.params.merge_id]
        if merge.record is None:
            require_conflicts(merge)
            return ConflictList(conflicts=[])
        read = partial(self._files.conflicts, merge.merge_id, merge.record, query.after, query.limit)
        found, following = await in_long_thread(read)
        return ConflictList(conflicts=found, next=following)

    async def read_version(self, request: Request[VersionRead]) -> FileContent:
        """Read a piece of one version of a file in a conflict."""
        asked = request.params
        read = partial(self._files.read_version, asked.merge_id, asked.sha256, asked.offset, asked.max_bytes)
        return await in_long_thread(read)

    async def blame(self, request: Request[BranchBlame]) -> Blame:
        """Show which branch each path came from."""
        asked, is_chosen = request.params, chosen(request.params.paths)
        origins = [origin for origin in await self._origins(request) if is_chosen(origin.path)]
        wanted = origins[asked.after : asked.after + asked.limit]
        shown = [_provenance(origin) for origin in as_many_as_fit(wanted, _size_of)]
        end = asked.after + len(shown)
        return Blame(paths=shown, next=end if end < len(origins) else None)

    async def _origins(self, request: Request[BranchBlame]) -> list[Origin]:
        asked, state = request.params, self._core.state
        if sum(each is not None for each in (asked.sandbox_id, asked.merge_id, asked.commit_id)) != 1:
            message = "merge_id: give one of merge_id, commit_id and sandbox_id"
            raise CallerError("invalid", message, field="merge_id")
        if asked.sandbox_id is not None:
            return await self.committing.origins_of(state.sandboxes[asked.sandbox_id], request.progress)
        if asked.merge_id is not None:
            merge = state.merges[asked.merge_id]
            digest = merge.provenance
        else:
            commit = state.commits[asked.commit_id or ""]
            digest = commit.made.provenance if commit.made is not None else None
        if digest is None:
            message = "it was not carried out, and changed no files: give one that was"
            raise CallerError("invalid", message, field="merge_id" if asked.merge_id else "commit_id")
        return await in_thread(self._files.record, asked.merge_id or asked.commit_id or "", digest)


def _shown(sandbox: SandboxState, lineage: Lineage) -> Branch:
    kind, base_id = began_with(sandbox)
    return Branch(
        sandbox_id=sandbox.sandbox_id,
        name=sandbox.name,
        status=sandbox.status,
        provider=sandbox.requested.provider,
        owner=sandbox.owner,
        created_at=rfc3339(sandbox.requested_us),
        base=kind,
        base_id=base_id,
        image_id=sandbox.requested.image_id,
        parents=lineage.parents(sandbox),
    )


def _size_of(origin: Origin) -> int:
    return len(origin.path) + sum(map(len, origin.branches)) + 100


def _provenance(origin: Origin) -> Provenance:
    path, raw = text_of(origin.path)
    return Provenance(
        path=path, path_bytes=raw, change=origin.change, branches=origin.branches, how=origin.how, choice=origin.choice,
        merge_id=origin.merge_id,
    )  # fmt: skip

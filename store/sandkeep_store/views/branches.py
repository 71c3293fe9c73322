"""The views of merges of branches, and of commits of branches to the host."""

from typing import ClassVar

from msgspec import field

from sandkeep import events, model
from sandkeep.lifecycle import COMMIT, MERGE, Lifecycle
from sandkeep.protocol.clock import rfc3339
from sandkeep_store.views.view import ObjectState


class MergeState(ObjectState, kw_only=True, array_like=True):
    """The state of a merge. The `record` names what is kept of one with conflicts. The last order to resolve some is at
    the position `resolving`.
    """

    lifecycle: ClassVar[Lifecycle[model.MergeStatus]] = MERGE

    merge_id: str
    requested: events.BranchMergeRequested
    status: model.MergeStatus = MERGE.first
    points: list[events.Point] = field(default_factory=list)
    changed: int = 0
    conflicts: int = 0
    provenance: str | None = None
    sandbox_id: str = ""
    record: str | None = None
    size_bytes: int = 0
    resolving: int = 0
    resolve_error: tuple[str, str] | None = None
    resolve_interrupted: bool = False
    dropped: int = 0

    @property
    def waits(self) -> bool:
        """True while there is no sandbox of it, and may be one."""
        return self.status in ("creating", "conflicted", "resolving")

    def view(self) -> model.Merge:
        """Return the merge as readers see it."""
        asked = self.requested
        return model.Merge(
            merge_id=self.merge_id,
            status=self.status,
            owner=asked.owner,
            created_at=rfc3339(self.requested_us),
            branches=asked.branches,
            base_id=asked.base_id,
            policy=asked.rules.policy,
            sandbox_id=self.sandbox_id or None,
            name=asked.name,
            changed=self.changed,
            conflicts=self.conflicts,
            error=self.error[1] if self.error else None,
        )


class CommitState(ObjectState, kw_only=True, array_like=True):
    """The state of a commit to the host."""

    lifecycle: ClassVar[Lifecycle[model.CommitStatus]] = COMMIT

    commit_id: str
    requested: events.BranchCommitRequested
    status: model.CommitStatus = COMMIT.first
    made: events.BranchCommitted | None = None

    @property
    def sandbox_id(self) -> str:
        """The branch that was committed."""
        return self.requested.sandbox_id

    def view(self) -> model.Commit:
        """Return the commit as readers see it."""
        asked, made = self.requested, self.made
        return model.Commit(
            commit_id=self.commit_id,
            status=self.status,
            owner=asked.owner,
            created_at=rfc3339(self.requested_us),
            sandbox_id=asked.sandbox_id,
            target=asked.target,
            base_id=asked.base_id,
            added=made.added if made is not None else 0,
            changed=made.changed if made is not None else 0,
            deleted=made.deleted if made is not None else 0,
            error=self.error[1] if self.error else None,
        )

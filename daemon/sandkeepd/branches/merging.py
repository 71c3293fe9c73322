"""Merges of branches, the resolution of their conflicts, and giving them up.

A merge keeps a point of each branch, and merges the points over the nearest state that all branches descend from. The
result becomes a layer above that, with which a new sandbox begins. Where branches differ, the merge is on disk until it
is resolved; the points stay as long as the sandbox, which descends from them.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import trio
from msgspec import Struct

from sandkeep import events, failpoints, ids
from sandkeep.errors import CallerError, SetupError, StateError, error_from
from sandkeep.model import Conflict, DroppedChange, Merge, Merged
from sandkeep.protocol.methods import BranchAbandon, BranchMerge, BranchResolve
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.threads import in_thread
from sandkeep_store.views.branches import MergeState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.branches.choices import ALL, BASE, counted_choices, resolutions_of
from sandkeepd.branches.lineage import Lineage
from sandkeepd.branches.merge_files import MergeFiles, Outcome
from sandkeepd.branches.points import Files, Points
from sandkeepd.contract.layers import KeptArchive
from sandkeepd.core import naming, rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import RUN_AGAIN, Core
from sandkeepd.core.operation import Creation, Order, Removal
from sandkeepd.host.threads import run_in_thread
from sandkeepd.host.unnamed_file import unnamed_file
from sandkeepd.sandboxes.creation import Maker
from sandkeepd.sandboxes.sandboxes import Sandboxes
from sandkeepd.snapshots.archive_limits import own_limits
from sandkeepd.snapshots.forks import layering
from sandkeepd.snapshots.layers import LayerReferences

MOST_SHOWN = 1000
"""Maximum number of conflicts in the answer of a merge; ``branch.conflicts`` has all."""

RESERVED = (BASE, ALL)
"""Labels that no branch has in a merge, as they mean something else in a decision."""


class MergeParts(Struct, frozen=True):
    """The parts of the daemon that merges work with."""

    sandboxes: Sandboxes
    layers: LayerReferences
    points: Points
    files: MergeFiles


class Finishing(Creation[MergeState, Merged]):
    """The common part of a merge and of a resolution: with the last conflict gone, the sandbox is made. `payload` is
    the id that is reserved for it.
    """

    view = "merges"
    named = "merge_id"

    def __init__(self, core: Core, parts: MergeParts) -> None:
        super().__init__(core)
        self._parts = parts

    async def run_reserved(
        self, request: Request[Any], owner: str, asked: events.BranchMergeRequested, new: NewEvent
    ) -> Merged:
        """Give the order with a sandbox's name and quota reserved, and answer it."""
        reservations = self._parts.sandboxes.reservations
        names = [asked.name] if asked.name is not None else []
        [sandbox_id] = reservations.several(request, owner, names, 1, asked.spec)
        order = await reservations.hand_over([sandbox_id], lambda: self.begin(new, request.meta, request, sandbox_id))
        return await self.answer(request, order.stream)

    def release(self, order: Order[MergeState]) -> None:
        """End the reservation of an order that makes no sandbox: the next one may be given when it is on record."""
        self._parts.sandboxes.reservations.release(order.payload)

    async def finish(self, order: Order[MergeState], outcome: Outcome, points: list[events.Point]) -> list[NewEvent]:
        """Keep the merged files; return the outcome and the intent to make the sandbox."""
        request, asked, parts = order.request, order.subject.requested, self._parts
        assert request is not None
        provider = self.core.provider(asked.provider)
        layers = layering(provider)
        beneath = layers.layers_of(asked.base_plan)
        needs_image = layers.needs_image(asked.base_plan)
        await order.progress("keeping the merged files")
        with unnamed_file(parts.files.state_dir) as output:
            async with (
                parts.points.opened(*self._files_of(asked, points)) as trees,
                parts.points.workspace_of(asked.provider, asked.image_id) as into,
            ):
                write = partial(
                    parts.files.write_layer, order.stream, outcome, trees, sorted(asked.branches), output, into
                )
                packed = await run_in_thread(write, order.progress, "writing the merged files")
                keep = partial(parts.files.keep_provenance, order.stream, outcome.merge, trees[0])
                provenance = await in_thread(keep)
            failpoints.reach("branch.packed")
            archive = KeptArchive(
                descriptor=output, sha256=packed.sha256, limits=own_limits(packed.members, packed.content_bytes),
                is_layer=True, beneath=beneath[0] if beneath else None, image_id=asked.image_id,
            )  # fmt: skip
            await layers.fill(order.stream, archive, order.progress)
        image_id = asked.image_id if needs_image or not beneath else None
        files = await layers.files_of_layers([order.stream, *beneath], image_id)
        merged = events.BranchMerged(
            sandbox_id=order.payload, changed=outcome.changed, provenance=provenance, points=points,
            dropped=outcome.dropped,
        )  # fmt: skip
        made = parts.sandboxes.reservations.intent(
            order.payload, provider, asked.image_id, asked.spec, request.caller, request.params.secrets,
            lambda plan: {**plan, **files}, fork_id=order.stream, needs_image=layers.needs_image(files),
        )  # fmt: skip
        failpoints.reach("branch.layered")
        return [NewEvent(order.stream, merged), made]

    def _files_of(self, asked: events.BranchMergeRequested, points: Sequence[events.Point]) -> list[Files]:
        """Return the files of the base, and of each branch in the order of their names."""
        by_sandbox = {point.sandbox_id: point.files for point in points}
        plans = [asked.base_plan, *(
            {**asked.base_plan, **by_sandbox[sandbox_id]} for _, sandbox_id in sorted(asked.branches.items())
        )]  # fmt: skip
        return [Files(provider=asked.provider, image_id=asked.image_id, plan=plan) for plan in plans]

    async def recorded(self, order: Order[MergeState], facts: Sequence[Recorded]) -> None:
        if order.subject.status != "ready":
            return await super().recorded(order, facts)
        assert order.request is not None
        self._parts.sandboxes.creation.start(facts[1], payload=Maker(order.request.params.secrets))
        await in_thread(self._parts.files.forget_work, order.stream)
        return None

    async def answered(self, request: Request[Any], subject: MergeState) -> Merged:  # noqa: ARG002
        """See `Operation.answered`. Raises the error of the sandbox, if that was not made."""
        files, sandbox, conflicts = self._parts.files, None, list[Conflict]()
        if subject.status == "ready":
            sandbox = await self._parts.sandboxes.creation.made(subject.sandbox_id)
        elif subject.record is not None:
            read = partial(files.conflicts, subject.merge_id, subject.record, 0, MOST_SHOWN)
            conflicts, _ = await in_thread(read)
        dropped: list[DroppedChange] = []
        if subject.dropped:
            dropped = await in_thread(files.dropped, subject.merge_id, subject.record, MOST_SHOWN)
        return Merged(
            merge=subject.view(), sandbox=sandbox, conflicts=conflicts, dropped=dropped, dropped_count=subject.dropped
        )

    async def make_after_all(self, request: Request[Any], merge: MergeState) -> bool:
        """Make the sandbox of a finished merge if only a daemon's end kept it from being made; return True then."""
        if merge.status != "ready":
            return False
        creation = self._parts.sandboxes.creation
        sandbox = await creation.settled(merge.sandbox_id)
        unmade = sandbox.interrupted and sandbox.status == "failed"
        if unmade:
            await creation.begin_again(request, merge.sandbox_id, Maker(request.params.secrets))
        return unmade


class Merging(Finishing):
    """``branch.merge``, and its handler."""

    method = "branch.merge"
    failure = events.BranchMergeFailed
    interrupted = "the daemon stopped while the branches were being merged: merge them again"

    async def merge(self, request: Request[BranchMerge]) -> Merged:
        """Merge branches into a new sandbox."""
        core, command, parts = self.core, request.params, self._parts
        branches = self._branches(request)
        first = next(iter(branches.values()))
        for sandbox in branches.values():
            await parts.sandboxes.runtimes.adopted(sandbox.sandbox_id)
            rules.require_files(sandbox)
        rules.require_secrets(first, command.secrets)
        provider = first.requested.provider
        common = Lineage(core.state).common(list(branches.values()))
        base_id, base = await parts.points.nearest(provider, common, first.requested.plan)
        event = events.BranchMergeRequested(
            owner=first.owner,
            name=command.name,
            branches={label: sandbox.sandbox_id for label, sandbox in branches.items()},
            points={label: ids.new_id(ids.POINT) for label in branches},
            base_id=base_id,
            base_plan=dict(base.plan),
            image_id=base.image_id,
            provider=provider,
            spec=rules.like(rules.asked_spec(first.requested), command.labels),
            rules=self._rules(request, branches),
        )
        layers = layering(core.provider(provider)).layers_of(base.plan)
        with parts.layers.held(*layers):
            new = NewEvent(ids.new_id(ids.MERGE), event, None, 0)
            return await self.run_reserved(request, first.owner, event, new)

    def _branches(self, request: Request[BranchMerge]) -> dict[str, SandboxState]:
        """Return the sandboxes by what they are called. Raises `not_found`, `invalid`."""
        state, found = self.core.state, dict[str, SandboxState]()
        for name in request.params.sandbox_ids:
            sandbox = rules.sandbox(state, naming.resolve(state, "sandbox", name, "sandbox_ids", request))
            label = sandbox.name or sandbox.sandbox_id
            if sandbox in found.values():
                raise CallerError("invalid", f"sandbox_ids: {name!r} is given twice", field="sandbox_ids")
            found[sandbox.sandbox_id if label in found or label in RESERVED else label] = sandbox
        if not request.params.workspace_only and any(sandbox.spec.writable_root for sandbox in found.values()):
            message = (
                "sandbox_ids: only workspaces are merged, and one has a writable root: fork that instead, or leave out "
                "what was changed elsewhere by workspace_only"
            )
            raise SetupError("not_supported", message, field="sandbox_ids")
        for field in ("provider", "owner"):
            if len({getattr(sandbox.requested, field) for sandbox in found.values()}) > 1:
                message = f"sandbox_ids: branches of another {field} cannot be merged with these: leave them out"
                raise CallerError("invalid", message, field="sandbox_ids")
        return found

    def _rules(self, request: Request[BranchMerge], branches: Mapping[str, SandboxState]) -> events.MergeRules:
        command = request.params
        if (command.ours is not None) != (command.policy == "ours"):
            raise CallerError("invalid", "ours: give it with the policy 'ours', and only then", field="ours")

        def label(name: str, field: str) -> str:
            sandbox_id = naming.resolve(self.core.state, "sandbox", name, field, request)
            for label, sandbox in branches.items():
                if sandbox.sandbox_id == sandbox_id:
                    return label
            raise CallerError("invalid", f"{field}: {name!r} is not among the branches", field=field)

        ours = label(command.ours, "ours") if command.ours is not None else None
        takes = {path.strip("/") or ".": label(name, "takes") for path, name in command.takes.items()}
        return events.MergeRules(policy=command.policy, ours=ours, takes=takes)

    async def act(self, order: Order[MergeState]) -> Sequence[NewEvent]:
        asked, parts = order.subject.requested, self._parts
        points = await self._take_points(order)
        failpoints.reach("branch.kept")
        async with parts.points.opened(*self._files_of(asked, points)) as trees:
            first = self.core.state.sandboxes[next(iter(asked.branches.values()))]
            compute = partial(
                parts.files.merge, order.stream, trees, sorted(asked.branches), asked.rules, parts.points.ignored(first)
            )
            outcome = await run_in_thread(compute, order.progress, "merging")
        failpoints.reach("branch.compared")
        if outcome.conflicts:
            self.release(order)
            size = order.context + outcome.size_bytes
            self.charge(order, asked.owner, "snapshots", size)
            event = events.BranchConflicted(
                conflicts=outcome.conflicts, changed=outcome.changed, points=points, record=outcome.record,
                size_bytes=size, dropped=outcome.dropped,
            )  # fmt: skip
            return [NewEvent(order.stream, event)]
        return await self.finish(order, outcome, points)

    async def _take_points(self, order: Order[MergeState]) -> list[events.Point]:
        asked = order.subject.requested
        await order.progress("saving the changes of the branches")
        taken: dict[str, events.Point] = {}
        order.context = 0  # the size of the points

        failures: list[Exception] = []

        async def take(label: str, sandbox_id: str) -> None:
            sandbox, point_id = self.core.state.sandboxes[sandbox_id], asked.points[label]
            try:
                kept = await self._parts.points.take(sandbox, point_id, order.progress)
            except Exception as error:  # noqa: BLE001  # one of them is raised, not a group
                failures.append(error)
                return
            order.context += kept.size_bytes
            taken[label] = events.Point(sandbox_id=sandbox_id, point_id=point_id, files=kept.files)

        async with trio.open_nursery() as nursery:
            for label, sandbox_id in asked.branches.items():
                nursery.start_soon(take, label, sandbox_id)
        if failures:
            raise failures[0]
        return [taken[label] for label in sorted(taken)]

    async def undo(self, order: Order[MergeState]) -> None:
        await in_thread(self._parts.files.remove, order.stream)

    async def roll_back(self, order: Order[MergeState]) -> None:
        await self.undo(order)

    async def undone(self, order: Order[MergeState]) -> None:
        await self._parts.layers.drop_merge(order.subject)

    async def again(self, request: Request[Any], first: Recorded) -> Any:
        merge = await self.settled(first.stream)
        if merge.interrupted:
            return RUN_AGAIN
        await self.make_after_all(request, merge)
        return await self.answer(request, first.stream)


class Resolving(Finishing):
    """``branch.resolve``, and its handler."""

    method = "branch.resolve"
    under_way = "resolving"
    failure = events.BranchResolveFailed
    interrupted = "the daemon stopped while the conflicts were being resolved: resolve them again"

    async def resolve(self, request: Request[BranchResolve]) -> Merged:
        """Decide conflicts of a merge; without any left, its sandbox is made."""
        merge = self.core.state.merges[request.params.merge_id]
        if await self.make_after_all(request, merge):
            return await self.answer(request, merge.merge_id)
        require_conflicts(merge)
        resolutions = resolutions_of(request.params.decisions)
        event = events.BranchResolveRequested(
            decisions=len(request.params.decisions), choices=counted_choices(resolutions, merge.requested.branches)
        )
        first = self.core.state.sandboxes.get(next(iter(merge.requested.branches.values())))
        if first is not None:
            rules.require_secrets(first, request.params.secrets)
        new = NewEvent(merge.merge_id, event, None, merge.revision)
        return await self.run_reserved(request, merge.owner, merge.requested, new)

    async def act(self, order: Order[MergeState]) -> Sequence[NewEvent]:
        merge, parts = order.subject, self._parts
        assert order.request is not None
        assert merge.record is not None
        order.context = merge.record
        resolutions = resolutions_of(order.request.params.decisions)
        apply = partial(parts.files.resolve, order.stream, merge.record, resolutions)
        outcome = await run_in_thread(lambda _: apply(), order.progress, "resolving")
        failpoints.reach("branch.resolved")
        if outcome.conflicts:
            self.release(order)
            event = events.BranchResolved(
                conflicts=outcome.conflicts, changed=outcome.changed, record=outcome.record, dropped=outcome.dropped
            )
            return [NewEvent(order.stream, event)]
        return await self.finish(order, outcome, merge.points)

    async def recorded(self, order: Order[MergeState], facts: Sequence[Recorded]) -> None:
        merge = order.subject
        if merge.status == "ready":
            return await super().recorded(order, facts)
        if merge.resolve_error is not None:  # the layer may be there, and is not needed yet
            await self._parts.layers.drop(merge.requested.provider, [order.stream])
        elif order.context is not None:
            # By its name: whoever has the answer may be writing the next document already.
            await in_thread(self._parts.files.forget_document, order.stream, order.context)
        return None

    async def answer(self, request: Request[Any], stream: str) -> Merged:
        """See `Operation.answer`. Raises the error of a failed resolution."""
        merge = await self.settled(stream)
        if merge.resolve_error is not None:
            raise error_from(*merge.resolve_error, {"merge_id": stream})
        return await self.answered(request, merge)

    async def again(self, request: Request[Any], first: Recorded) -> Any:
        merge = await self.settled(first.stream)
        if merge.resolving == first.position and merge.resolve_interrupted:
            return RUN_AGAIN
        await self.make_after_all(request, merge)
        return await self.answer(request, first.stream)


class MergeRemoval(Removal[MergeState, Merge]):
    """``branch.abandon``, and its handler."""

    method = "branch.abandon"
    view = "merges"
    under_way = "removing"

    def __init__(self, core: Core, parts: MergeParts) -> None:
        super().__init__(core)
        self._parts = parts

    def may(self, subject: MergeState) -> bool:
        return subject.status == "conflicted"

    async def abandon(self, request: Request[BranchAbandon]) -> Merge:
        """Give up a merge. One that was given up is answered as it is."""
        merge = self.core.state.merges[request.params.merge_id]
        if merge.status not in ("removing", "removed"):
            require_conflicts(merge)
        await self.order(merge.merge_id, events.BranchAbandonRequested(), None, request.meta)
        return await self.answer(request, merge.merge_id)

    async def act(self, order: Order[MergeState]) -> Sequence[NewEvent]:
        then = f"merge {order.stream} is given up, and will be removed when that answers"
        remove = partial(in_thread, self._parts.files.remove, order.stream)
        await self.insist(order.stream, remove, then)
        return [NewEvent(order.stream, events.BranchAbandoned())]

    async def recorded(self, order: Order[MergeState], facts: Sequence[Recorded]) -> None:  # noqa: ARG002
        await self._parts.layers.drop_merge(order.subject)


def require_conflicts(merge: MergeState) -> None:
    """Raise `not_ready` or `conflict` for a merge that does not wait for decisions."""
    if merge.status in ("creating", "resolving"):
        raise StateError("not_ready", f"merge {merge.merge_id} is {merge.status}: wait", merge_id=merge.merge_id)
    if merge.status != "conflicted":
        message = f"merge {merge.merge_id} is {merge.status}, and has no conflicts to decide"
        raise StateError("conflict", message, merge_id=merge.merge_id)

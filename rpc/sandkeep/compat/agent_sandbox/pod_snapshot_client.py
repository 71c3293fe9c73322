"""Sandboxes whose memory and files are saved by a cluster's pod snapshots, and restored from them."""

import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandkeep.compat.agent_sandbox.cluster import PODS, Resource
from sandkeep.compat.agent_sandbox.execution import ExecutionResult
from sandkeep.compat.agent_sandbox.sandbox_client import SandboxClient
from sandkeep.errors import ProviderError, SandkeepError, StateError
from sandkeep.kubernetes import pod_snapshots
from sandkeep.kubernetes.claims import SANDBOXES, mode_patch, pod_of
from sandkeep.kubernetes.objects import Object, is_ready, name_of, text_at, value_at
from sandkeep.kubernetes.versions import AGENTS, POD_SNAPSHOTS

logger = logging.getLogger(__name__)

_CONTROLLERS: Final = (
    ("gps-system", "gke-pod-snapshot-controller"),
    ("gke-managed-pod-snapshots", "pod-snapshot-agent"),
)
"""Namespaces, each with a part of the name of the pod that makes snapshots: one's own, and the managed one's."""

_CLEANUP_TRIES: Final = 3
_CLEANUP_PAUSE_S: Final = 1.0


@dataclass
class CheckpointResult(ExecutionResult):
    """The outcome of a checkpoint. `snapshot_id` is the name of the PodSnapshot, or empty."""

    snapshot_id: str = ""


class PodSnapshotSandboxClient(SandboxClient):
    """A sandbox that can be saved, and that begins as a snapshot of an earlier one.

    `snapshot_id` is the name of any PodSnapshot, or a trigger name, which stands for the owner's latest of that name.
    Without it the sandbox begins as the latest ready one of the same owner under a policy that selects its pod, else
    anew; `restored_from` then is the name of the PodSnapshot, or None. The policies have to group by the label
    ``sandbox.users.io/sandkeep-owner``. `podsnapshot_timeout` limits each checkpoint, restore and deletion, in seconds.
    """

    def __init__(
        self,
        template_name: str,
        labels: Mapping[str, str] | None = None,
        namespace: str = "default",
        podsnapshot_timeout: float = 180,
        server_port: int = 8080,
        snapshot_id: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(template_name, labels, namespace, server_port=server_port, **options)
        self.podsnapshot_timeout = podsnapshot_timeout
        self.snapshot_id = snapshot_id
        self.restored_from: str | None = None
        self._chosen: str | None = None
        self._triggers: list[str] = []

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def snapshot_controller_ready(self) -> bool:
        """Return True if the controller of pod snapshots runs.

        If its namespaces may not be looked at, the presence of its resources has to do.
        """
        for namespace, name in _CONTROLLERS:
            try:
                pods = self._cluster.objects(PODS, namespace=namespace)
            except SandkeepError as error:
                if error.data.get("status") != 403:
                    raise
                logger.warning(
                    "the namespace of the snapshot controller may not be read", extra={"namespace": namespace}
                )
                return self._cluster.version(POD_SNAPSHOTS) is not None
            if any(
                name in name_of(pod) and text_at(pod, "status", "phase") == "Running" and is_ready(pod) for pod in pods
            ):
                return True
        return False

    def checkpoint(self, trigger_name: str) -> CheckpointResult:
        """Save the sandbox, which goes on, and wait until the snapshot can be restored.

        A failure is an exit code of 1 with its cause in `stderr`.
        """
        try:
            snapshot = self._checkpoint(trigger_name, time.monotonic() + self.podsnapshot_timeout)
        except SandkeepError as error:
            logger.warning("a checkpoint failed", extra={"trigger": trigger_name, "why": str(error)})
            return CheckpointResult("", error.message, 1)
        return CheckpointResult(f"PodSnapshotManualTrigger '{trigger_name}' created successfully.", "", 0, snapshot)

    def list_snapshots(self, policy_name: str, ready_only: bool = True) -> list[dict[str, str]]:
        """Return the snapshots under a policy, newest first, without other owners'."""
        found = [snapshot for snapshot in self._snapshots() if pod_snapshots.policy_of(snapshot) == policy_name]
        items = map(pod_snapshots.list_item, pod_snapshots.newest_first(found))
        return [item for item in items if not ready_only or item["status"] == "Ready"]

    def delete_snapshots(self, **filters: str) -> int:
        """Delete snapshots and wait until they are gone, files included. Return the number of those that are.

        `snapshot_id` alone deletes that one. Otherwise `policy_name` is needed, and all that match the other keys of
        `list_snapshots` are deleted, ready or not, but for other owners'. What is not deleted is logged.
        """
        pod_snapshots.check_filters(filters)
        deadline = time.monotonic() + self.podsnapshot_timeout
        if filters.keys() == {"snapshot_id"}:
            names = [filters["snapshot_id"]]
        elif "policy_name" in filters:
            names = [name_of(found) for found in self._snapshots() if pod_snapshots.matches(found, **filters)]
        else:
            logger.error("no snapshot is deleted: give snapshot_id alone, or policy_name and other filters")
            return 0
        deleting = [name for name in names if self._is_deleting(name)]
        return sum(self._is_gone(name, deadline) for name in deleting)

    def _is_deleting(self, name: str) -> bool:
        try:
            return self._cluster.delete(self._resource(pod_snapshots.SNAPSHOTS), name)
        except SandkeepError:
            logger.exception("a snapshot was not deleted", extra={"snapshot": name})
            return False

    def _is_gone(self, name: str, deadline: float) -> bool:
        try:
            states = self._states(pod_snapshots.SNAPSHOTS, name, deadline, f"the deletion of snapshot {name!r}")
            return any(state is None for state in states)
        except SandkeepError:
            logger.exception("a snapshot is not gone yet", extra={"snapshot": name})
            return False

    def _checkpoint(self, trigger_name: str, deadline: float) -> str:
        self._running()
        if not self.snapshot_controller_ready():
            raise StateError("not_ready", "Snapshot controller is not ready. Ensure it is installed and running.")
        triggers = self._resource(pod_snapshots.TRIGGERS)
        name = pod_snapshots.trigger_object_name(trigger_name, secrets.token_hex(5))
        self._triggers.append(name)  # before it is there: an answer can be lost
        body = pod_snapshots.trigger_body(triggers.version, name, self.pod_name or "", trigger_name, self._own_labels)
        made = self._cluster.create(triggers, body)
        snapshot = self._await_trigger(made, deadline)
        self._await_snapshot(snapshot, deadline)
        return snapshot

    def _await_trigger(self, made: Object, deadline: float) -> str:
        for trigger in self._states(pod_snapshots.TRIGGERS, name_of(made), deadline, "the snapshot", made):
            if trigger is None:
                break
            snapshot = pod_snapshots.created_snapshot(trigger)
            if snapshot is not None:
                return snapshot
        raise StateError("not_ready", f"trigger {name_of(made)!r} was deleted before its snapshot was made")

    def _await_snapshot(self, name: str, deadline: float) -> None:
        was_there = False
        for snapshot in self._states(pod_snapshots.SNAPSHOTS, name, deadline, f"snapshot {name!r}"):
            if snapshot is not None and pod_snapshots.snapshot_is_ready(snapshot):
                return
            if snapshot is None and was_there:
                break
            was_there = was_there or snapshot is not None
        raise StateError("not_ready", f"snapshot {name!r} was deleted before it was ready")

    def _snapshots(self) -> list[Object]:
        """Return the PodSnapshots of the namespace, without those that are known to be another owner's."""
        found = self._cluster.objects(self._resource(pod_snapshots.SNAPSHOTS))
        return [snapshot for snapshot in found if not pod_snapshots.is_of_another(snapshot, self.owner)]

    def _resource(self, plural: str) -> Resource:
        return self._cluster.resource(POD_SNAPSHOTS, plural)

    def _states(self, plural: str, name: str, deadline: float, awaited: str, first: Object | None = None) -> Any:
        return self._cluster.states(self._resource(plural), name, deadline, awaited, first)

    # -- restoring ----------------------------------------------------------------------------------------------------

    def _start(self, annotations: Mapping[str, str]) -> None:
        self._chosen = self._choose()
        restore = pod_snapshots.restore_annotations(self._chosen) if self._chosen else {}
        super()._start({**annotations, **restore})
        if self.restored_from is None:
            logger.info("the sandbox begins anew", extra={"sandbox": self.sandbox_name})
        else:
            logger.info("the sandbox is restored from %s", self.restored_from, extra={"sandbox": self.sandbox_name})

    def _choose(self) -> str | None:
        """Return the name of the PodSnapshot to begin with; None for a new sandbox. It is not restored yet."""
        self.restored_from = None
        if self.snapshot_id is not None:
            found = self._cluster.objects(self._resource(pod_snapshots.SNAPSHOTS))
            snapshot = pod_snapshots.find_snapshot(found, self.snapshot_id, self.owner)
            if not pod_snapshots.snapshot_is_ready(snapshot):
                message = f"PodSnapshot '{name_of(snapshot)}' is not in Ready state."
                raise StateError("snapshot_not_ready", message, snapshot_id=name_of(snapshot))
            return name_of(snapshot)
        if self._cluster.version(POD_SNAPSHOTS) is None:
            return None
        policies = self._cluster.objects(self._resource(pod_snapshots.POLICIES))
        labels = value_at(self._template(), "spec", "podTemplate", "metadata", "labels")
        labels = {**(labels if isinstance(labels, Mapping) else {}), **self.labels}
        selected = {name_of(policy) for policy in policies if pod_snapshots.policy_selects(policy, labels)}
        newest = pod_snapshots.newest_restorable(self._snapshots(), selected, self.owner)
        return None if newest is None else name_of(newest)

    def _before_ready(self, deadline: float) -> None:
        if self._chosen is None:
            return
        deadline = min(deadline, time.monotonic() + self.podsnapshot_timeout)
        self._await_annotation(self._chosen, deadline)
        if not self._is_restored(self._chosen, deadline):
            # A pod of a warm pool ran before it had the annotation. Only a new pod starts from a snapshot.
            self._restart(deadline)
            if not self._is_restored(self._chosen, deadline):
                message = f"sandbox {self.sandbox_name!r} started fresh instead of from snapshot {self._chosen!r}"
                raise ProviderError("provider_unavailable", message)
        self.restored_from = self._chosen

    def _check_pod(self, pod: Object) -> None:
        """Without an annotation the controller may restore what it thinks fits: refuse another owner's."""
        if self._chosen is not None or not pod_snapshots.says_restored(pod):
            return
        found = self._cluster.objects(self._resource(pod_snapshots.SNAPSHOTS))
        origin = pod_snapshots.origin_of(pod, found)
        if origin is None or not pod_snapshots.is_owned_by(origin, self.owner):
            message = f"pod {name_of(pod)!r} was restored from a snapshot that is not {self.owner}'s"
            advice = f"have its PodSnapshotPolicy group by the label {pod_snapshots.OWNER_LABEL}"
            raise StateError("conflict", f"{message}: {advice}", snapshot_id=origin and name_of(origin))
        self.restored_from = name_of(origin)

    def _await_annotation(self, snapshot: str, deadline: float) -> None:
        path = ("spec", "podTemplate", "metadata", "annotations", pod_snapshots.RESTORE_ANNOTATION)
        for sandbox in self._sandbox_states(deadline):
            if sandbox is not None:
                self.pod_name = pod_of(sandbox)
                if text_at(sandbox, *path) == snapshot:
                    return

    def _is_restored(self, snapshot: str, deadline: float) -> bool:
        """Wait until the pod says that it is restored, or is ready without."""
        name = self.pod_name or ""
        for pod in self._cluster.states(PODS, name, deadline, f"the restore of pod {name!r} from {snapshot!r}"):
            if pod is None or text_at(pod, "metadata", "deletionTimestamp"):
                continue
            state = pod_snapshots.restore_state(pod, snapshot)
            if state != "pending":
                return state == "restored"
        return False

    def _restart(self, deadline: float) -> None:
        """Make the sandbox start a new pod."""
        sandboxes, name = self._cluster.resource(AGENTS, SANDBOXES), self.sandbox_name or ""
        self._cluster.patch(sandboxes, name, mode_patch(sandboxes.version, running=False))
        pod_name = self.pod_name or ""
        for pod in self._cluster.states(PODS, pod_name, deadline, f"the end of pod {pod_name!r}"):
            if pod is None:
                break
        self.pod_name = pod_of(self._cluster.patch(sandboxes, name, mode_patch(sandboxes.version, running=True)))

    def _sandbox_states(self, deadline: float) -> Any:
        name = self.sandbox_name or ""
        return self._cluster.states(
            self._cluster.resource(AGENTS, SANDBOXES), name, deadline, f"the annotation of sandbox {name!r}"
        )

    # -- the end ------------------------------------------------------------------------------------------------------

    def _clean_up(self) -> None:
        """Delete this client's triggers, and not their snapshots; then the sandbox."""
        try:
            for attempt in range(_CLEANUP_TRIES if self._triggers else 0):
                time.sleep(_CLEANUP_PAUSE_S if attempt else 0)
                self._triggers = [name for name in self._triggers if not self._is_trigger_deleted(name)]
                if not self._triggers:
                    break
            if self._triggers:
                logger.error("triggers of pod snapshots are left", extra={"triggers": self._triggers})
        finally:
            super()._clean_up()

    def _is_trigger_deleted(self, name: str) -> bool:
        try:
            self._cluster.delete(self._resource(pod_snapshots.TRIGGERS), name)
        except SandkeepError as error:
            logger.warning("a trigger was not deleted", extra={"trigger": name, "why": str(error)})
            return False
        return True

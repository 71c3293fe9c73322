"""A pod as the daemon holds it.

It may be replaced by one that is restored from a snapshot of it, and the instance stays the same.
"""

from typing import Any

from msgspec.structs import replace

from sandkeepd.host.hostile_files import HostileTree
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers.common.relayed_instance import RelayedInstance
from sandkeepd.providers.kubernetes.observed import Observed, container_id
from sandkeepd.providers.kubernetes.pods import Handle, Pod


class KubernetesInstance(RelayedInstance):
    """A pod. See `RelayedInstance`."""

    def __init__(
        self, sandbox_id: str, directory: HostileTree, watcher: Watcher, *, pod: Pod, place: Handle, **more: Any
    ) -> None:
        self.pod = pod
        self.place = place
        super().__init__(
            sandbox_id, directory, watcher, remote=pod, program=place.program, directory_there=place.directory, **more
        )

    def moved_to(self, pod: Observed) -> None:
        """Follow another pod from now on, which goes on where the former was saved."""
        name, container = pod.metadata.name, container_id(pod, self.place.made.container_name)
        self.place = replace(self.place, pod=name, pod_uid=pod.metadata.uid, container_id=container)
        self.pod.name = name

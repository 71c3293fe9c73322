"""The Kubernetes provider's capabilities, and a sentence for each that is missing or that others decide on."""

from typing import Final

import trio

from sandkeep.errors import SandkeepError
from sandkeep.kubernetes import versions
from sandkeep.model import Capability, ProviderCapabilities
from sandkeep.system import extras
from sandkeepd.keeper import program
from sandkeepd.providers.common.capabilities import capability
from sandkeepd.providers.kubernetes import plan
from sandkeepd.providers.kubernetes.cluster import Cluster, machine
from sandkeepd.providers.kubernetes.forms import Forms
from sandkeepd.providers.kubernetes.objects import Objects

ASKED_S: Final = 20.0
"""Seconds that the report of capabilities may take."""

NETWORK: Final = "network none is a NetworkPolicy, which only some of the clusters' network plugins enforce"
_SECCOMP: Final = "each pod asks for the default profile of its node's runtime; templates name their own"
_RESTART: Final = "a pod's files go with it: make checkpoints or snapshots, and restore those"


async def capabilities(name: str, cluster: Cluster, objects: Objects) -> ProviderCapabilities:
    """See `Provider.capabilities`."""
    why, features = "no cluster is configured: set KUBECONFIG to a kubeconfig file", {}
    if absent := extras.missing("kubernetes", "the provider kubernetes"):
        why = absent.message
    elif cluster.is_configured:
        try:
            program.read(machine())
            why = ""
            with trio.fail_after(ASKED_S):
                features = _features(await objects.discover())
        except SandkeepError as error:
            why = error.message
        except trio.TooSlowError:
            why = "the API server is too slow"
    return ProviderCapabilities(provider=name, works=not why, why=why or None, features=features)


def _features(forms: Forms) -> dict[str, Capability]:
    no_group = "the cluster has no {}: install its controller"
    snapshots = capability(forms.pod_snapshots, no_group.format(versions.POD_SNAPSHOTS.name))
    return {
        "isolation": Capability(works=True, why="by the RuntimeClass that SANDKEEP_KUBERNETES_RUNTIME_CLASS names"),
        "sandboxes": capability(
            forms.sandboxes, f"the cluster has no {versions.AGENTS.name}: sandboxes are plain pods"
        ),
        "warm_pools": capability(forms.claims, no_group.format(versions.EXTENSIONS.name)),
        "checkpoints": snapshots,
        "seccomp": Capability(works=True, why=_SECCOMP),
        "terminals": Capability(works=True, why="in images that have tmux"),
        "limit_cpus": Capability(works=True),
        "limit_memory": Capability(works=True),
        "limit_disk": Capability(works=False, why=f"--disk is refused, as {plan.DISK}"),
        "limit_pids": Capability(works=False, why=plan.PIDS),
        "network_none": Capability(works=True, why=NETWORK),
        "network_host": Capability(works=False, why=plan.HOST_NETWORK),
        "image_directories": Capability(works=False, why=plan.REFERENCES),
        "stats": Capability(works=False, why="the daemon sees no control group of a node: use the cluster's metrics"),
        "suspend": snapshots,
        "snapshots": Capability(
            works=True, why="of the workspace, not frozen meanwhile: a file may be saved half written"
        ),
        "forks": Capability(works=True, why="by a copy of the whole workspace"),
        "incremental_snapshots": Capability(works=False, why="the daemon sees no layers of a node's containers"),
        "restart": Capability(works=False, why=_RESTART),
        "restore_over_own_files": Capability(works=False, why="a pod is not replaced in place: restore a new one"),
        "volumes": Capability(works=False, why=plan.VOLUMES),
    }

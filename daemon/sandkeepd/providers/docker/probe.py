"""The limits that a Docker engine can enforce, and the consequences for its sandboxes."""

from typing import Any

from sandkeep.model import Capability, ProviderCapabilities
from sandkeepd.keeper import program
from sandkeepd.providers.common.capabilities import capability
from sandkeepd.providers.common.own_disks import growth_feature, limit_feature
from sandkeepd.providers.docker import build_group
from sandkeepd.providers.docker.engine import Client
from sandkeepd.providers.docker.plan import NO_BRIDGE
from sandkeepd.providers.docker.snapshots import files_features, why_no_data_root


def look(client: Client) -> dict[str, Any]:
    """Return the engine's own description. Blocks."""
    found: dict[str, Any] = client.info()
    found["Networks"] = [network["Name"] for network in client.networks()]
    return found


def report(provider: str, found: dict[str, Any], own_disks: Capability, *, root: bool) -> ProviderCapabilities:
    """Convert that description into capabilities of the provider."""
    options = [option.split(",")[0].removeprefix("name=") for option in found.get("SecurityOptions") or ()]
    controls = {"cpus": "CpuCfsQuota", "memory": "MemoryLimit", "pids": "PidsLimit"}
    without = (
        "without terminals and copies of trees" if root else "without terminals, and only root's daemon reaches files"
    )
    reason = why_no_data_root(found, root=root)
    own_disks = own_disks if reason is None else Capability(works=False, why=reason)
    builds = build_group.why_missing(found, root=root)
    features = {
        "isolation": Capability(works=True),
        **{
            f"limit_{name}": capability(found.get(key), f"the engine has no control group that limits {name}")
            for name, key in controls.items()
        },
        "limit_builds": capability(builds is None, builds or ""),
        "limit_disk": limit_feature(own_disks, suspends=root),
        "grow_disk": growth_feature(own_disks),
        "live_restore": capability(
            found.get("LiveRestoreEnabled"),
            "a restart of the engine ends every container: set live-restore in its daemon.json",
        ),
        "seccomp": capability("seccomp" in options, "the engine has no seccomp: system calls are not filtered"),
        "network_bridge": capability("bridge" in found["Networks"], NO_BRIDGE),
        "images_without_shell": Capability(works=True, why=without),
        "terminals": Capability(works=True, why="in images that have tmux"),
        "suspend": Capability(works=True),
        **files_features(found, root=root),
        "uid_per_sandbox": Capability(works=False, why="processes are the image's user: give sandboxes a user"),
    }
    why = None if "rootless" not in options else "the engine is rootless, which was not tested"
    missing = program.why_missing()
    return ProviderCapabilities(provider=provider, works=missing is None, why=missing or why, features=features)

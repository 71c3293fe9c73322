"""The Modal provider's capabilities, and a sentence for each that is missing or that others decide on."""

from typing import Final

import trio

from sandkeep.errors import SandkeepError
from sandkeep.model import Capability, ProviderCapabilities
from sandkeep.system import extras
from sandkeepd.keeper import program
from sandkeepd.providers.modal import plan
from sandkeepd.providers.modal.sdk import Sdk
from sandkeepd.providers.modal.service import NO_ACCOUNT, Service

ASKED_S: Final = 20.0
"""Seconds that the report of capabilities may take."""

RESTART: Final = "a sandbox's files go with it: make snapshots, and restore those"
SUSPEND: Final = "Modal suspends no sandboxes: make a snapshot, and restore it later"


async def capabilities(name: str, service: Service) -> ProviderCapabilities:
    """See `Provider.capabilities`."""
    why = NO_ACCOUNT
    if absent := extras.missing("modal", "the provider modal"):
        why = absent.message
    elif service.is_configured:
        why = "Modal is too slow"
        with trio.move_on_after(ASKED_S):
            try:
                program.read(plan.MACHINE)
                await service.call(Sdk.hello)
                why = ""
            except SandkeepError as error:
                why = error.message
    return ProviderCapabilities(provider=name, works=not why, why=why or None, features={} if why else _FEATURES)


_FEATURES: Final = {
    "isolation": Capability(works=True, why="by Modal's own gVisor"),
    "terminals": Capability(works=True, why="in images that have tmux"),
    "limit_cpus": Capability(works=True),
    "limit_memory": Capability(works=True),
    "limit_disk": Capability(works=False, why=plan.DISK),
    "limit_pids": Capability(works=False, why=plan.PIDS),
    "network_none": Capability(works=True),
    "network_host": Capability(works=False, why=plan.HOST_NETWORK),
    "gpu": Capability(works=True, why="by the label modal.gpu"),
    "checkpoints": Capability(works=False, why="memory snapshots are an experiment of the SDK: make snapshots"),
    "stats": Capability(works=False, why="the daemon sees no control group at Modal: see modal.com"),
    "suspend": Capability(works=False, why=SUSPEND),
    "snapshots": Capability(works=True, why="of the workspace, not frozen meanwhile: a file may be saved half written"),
    "forks": Capability(works=True, why="by a copy of the whole workspace"),
    "incremental_snapshots": Capability(works=False, why="the daemon sees no layers of a sandbox at Modal"),
    "restart": Capability(works=False, why=RESTART),
    "restore_over_own_files": Capability(works=False, why="a sandbox at Modal is not replaced: restore a new one"),
    "volumes": Capability(works=False, why=plan.VOLUMES),
}

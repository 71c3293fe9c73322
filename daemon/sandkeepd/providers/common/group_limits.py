"""Changes of the limits that control groups enforce, for the providers whose sandboxes have groups of the daemon's."""

from typing import TypeVar

from msgspec.structs import replace

from sandkeep.errors import SetupError
from sandkeepd.contract.resizing import LimitChange
from sandkeepd.host.cgroups.groups import Hierarchies, Limits, require_enough_memory
from sandkeepd.providers.common.directory_provider import DirectoryPlan, enforcer

PlanT = TypeVar("PlanT", bound=DirectoryPlan)

_CONTROLLERS = {"cpus": "cpu", "memory_bytes": "memory", "pids": "pids"}


def changed(plan: PlanT, sandbox_id: str, change: LimitChange, hierarchies: Hierarchies) -> PlanT:
    """Return the plan with changed limits of its groups. Blocks. Raises `not_supported`, and `in_use` when the
    processes need more memory.
    """
    held_by, asked = dict(plan.held_by), {}
    for field, controller in _CONTROLLERS.items():
        if (value := getattr(change, field)) is None:
            continue
        limit = field.removesuffix("_bytes")
        if held_by.get(limit) == "rlimit":
            why = f"it has each process's own limit, as there was no writable {controller} control group"
            message = f"{field}: it cannot be changed while the sandbox runs: {why}: create another sandbox"
            raise SetupError("not_supported", message, field=field)
        held_by[limit], asked[field] = enforcer(limit, controller, hierarchies), value
    if change.memory_bytes is not None:
        require_enough_memory(plan.cgroups, change.memory_bytes)
    limits: Limits = replace(plan.limits, **asked)
    groups = {**hierarchies.plan(sandbox_id, limits), **plan.cgroups}
    return replace(plan, limits=limits, held_by=held_by, cgroups=groups, updated=True)

"""The providers, and how they are opened."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandkeep.settings.daemon import DISK_LIMIT, UID_BASE
from sandkeepd.contract.provider import Provider
from sandkeepd.providers.docker.provider import open_docker
from sandkeepd.providers.gvisor.provider import open_gvisor
from sandkeepd.providers.kubernetes.provider import open_kubernetes
from sandkeepd.providers.local.provider import open_local
from sandkeepd.providers.modal.provider import open_modal


@asynccontextmanager
async def open_providers(
    state_dir: str, *, log_id: str, uid_base: int | None = None, disk_limit: int | None = None
) -> AsyncIterator[dict[str, Provider]]:
    """Open every provider for the length of a block, by name. Their sandboxes outlive it.

    Opening probes nothing and starts nothing, so that a daemon always comes up; a missing capability is reported when
    asked for. By default the uids and the limit come from the settings. Raises `not_configured` when those are
    malformed.
    """
    uid_base = UID_BASE() if uid_base is None else uid_base
    disk_limit = DISK_LIMIT() if disk_limit is None else disk_limit
    async with (
        open_local(state_dir, uid_base=uid_base, disk_limit=disk_limit, log_id=log_id) as local,
        open_docker(state_dir, disk_limit=disk_limit, log_id=log_id) as docker,
        open_gvisor(state_dir, uid_base=uid_base, disk_limit=disk_limit, log_id=log_id) as gvisor,
        open_kubernetes(state_dir, log_id=log_id) as kubernetes,
        open_modal(state_dir, log_id=log_id) as modal,
    ):
        yield {provider.name: provider for provider in (local, docker, gvisor, kubernetes, modal)}

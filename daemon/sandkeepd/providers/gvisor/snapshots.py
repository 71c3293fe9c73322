"""Archives of a gVisor sandbox's files, which only the sandbox itself can read. See `Snapshotting`."""

import functools
import os
from collections.abc import Mapping
from typing import Any, Final

import trio

from sandkeep import failpoints
from sandkeep.errors import SetupError, StateError
from sandkeep.model import SandboxSpec
from sandkeep_store.archives.tar.inspect import CheckedArchive
from sandkeep_store.archives.trees.pack import NO_LIMITS, write
from sandkeep_store.archives.trees.read import Remarks
from sandkeepd.contract.caller import Progress
from sandkeepd.contract.snapshots import PackedFiles, PackRequest, Snapshotting, Source
from sandkeepd.host.cgroups.pause import Pause
from sandkeepd.host.threads import Meter, run_in_thread
from sandkeepd.host.unnamed_file import unnamed_file
from sandkeepd.keeper.copies import copying
from sandkeepd.providers.common.errors import storage_errors
from sandkeepd.providers.common.inside import WORKSPACE, inner_user
from sandkeepd.providers.common.packing import CODECS, packed_files
from sandkeepd.providers.gvisor.instance import GvisorInstance

_PIECE_BYTES: Final = 1 << 20


def _receive(pipe: int, into: int) -> None:
    """Read a pipe to its end, and close it. Raises `storage_unavailable`."""
    with open(pipe, "rb", buffering=0) as source, storage_errors():
        while data := source.read(_PIECE_BYTES):
            while data:
                data = data[os.write(into, data) :]


def _pack(received: int, request: PackRequest, moved: Meter) -> PackedFiles:
    os.lseek(received, 0, os.SEEK_SET)
    remarks = Remarks()
    archive = CheckedArchive(received, NO_LIMITS, without_device=lambda name: remarks.add(name, "device"))
    packed = write(archive, request.output, CODECS[request.format], remarks, moved=moved)
    return packed_files(packed, Pause())


class GvisorSnapshots(Snapshotting):
    """Packs those of `instances` that run. With `root` their code has a uid of its own inside."""

    takes_root = True

    def __init__(self, instances: Mapping[str, GvisorInstance], state_dir: str, *, root: bool) -> None:
        self._instances = instances
        self._state_dir = state_dir
        self._root = root

    def files_root(self, plan: Mapping[str, Any]) -> str:
        return WORKSPACE

    def workspace_in_archives(self, details: Mapping[str, Any]) -> None:
        return None

    def owner_in_archives(self, spec: SandboxSpec) -> tuple[int, int] | None:
        return inner_user(spec.user if self._root else "0")

    def why_not_incremental(self, handle: Mapping[str, Any]) -> str | None:
        return "only gVisor's kernel knows what was changed"

    async def pack(self, source: Source, request: PackRequest, progress: Progress) -> PackedFiles:
        """See `Snapshotting.pack`. The sandbox's own `tar` reads the files while all goes on; its output is verified,
        and written anew.
        """
        instance = self._instances.get(source.sandbox_id)
        if instance is None or instance.is_closed or instance.is_suspended:
            message = f"sandbox {source.sandbox_id} is not running, and only a running one can be packed: resume it"
            raise StateError("not_ready", message, sandbox_id=source.sandbox_id)
        if source.handle.get("whole") or request.include or request.exclude:
            message = "a snapshot of a gVisor sandbox has its whole workspace: leave out include and exclude"
            raise SetupError("not_supported", message)
        with unnamed_file(self._state_dir) as received:
            async with copying(instance, WORKSPACE, incoming=False, form="contents") as copy:
                await trio.to_thread.run_sync(_receive, copy.take_data(), received, abandon_on_cancel=True)
                await copy.done()
            failpoints.reach("snapshot.copied")
            return await run_in_thread(functools.partial(_pack, received, request), progress, "packing the files")

"""Archives of the workspaces of running sandboxes, which the sandbox's own `tar` reads while all goes on.

For providers whose files only the sandbox itself can read. Its output is hostile: it is verified, and written anew.
"""

import functools
import os
from collections.abc import Mapping
from typing import Final

from msgspec import structs

from sandkeep import failpoints
from sandkeep.errors import SetupError, StateError
from sandkeep.system.descriptors import write_all
from sandkeep_store.archives.tar.inspect import CheckedArchive
from sandkeep_store.archives.trees.pack import NO_LIMITS, PackedArchive, write
from sandkeep_store.archives.trees.read import Remarks
from sandkeep_store.threads import in_abandoned_thread
from sandkeepd.contract.caller import Progress
from sandkeepd.contract.instance import Instance
from sandkeepd.contract.snapshots import PackedFiles, PackRequest
from sandkeepd.host import free_space
from sandkeepd.host.cgroups.pause import Pause
from sandkeepd.host.threads import Meter, run_in_thread
from sandkeepd.host.unnamed_file import unnamed_file
from sandkeepd.keeper.copies import copying
from sandkeepd.providers.common.errors import storage_errors
from sandkeepd.providers.common.keeper_provider import HeldInstance
from sandkeepd.providers.common.packing import CODECS, packed_files

MOST_BYTES: Final = 64 << 30
"""Maximum length of the archive of a workspace."""

LIMITS: Final = structs.replace(NO_LIMITS, members=1_000_000)
"""Limits of the content. Each member takes memory of the daemon's while it is verified."""

_PIECE_BYTES: Final = 1 << 20
_LOOK_BYTES: Final = 64 << 20
"""Bytes after which the disk is looked at again."""

_COPIES: Final = 3
"""Copies of an archive that are on the disk at once: as it came, as it was written anew, and as a layer."""


async def receive(instance: Instance, workspace: str, into: int) -> None:
    """Write a tar of a sandbox's workspace to an open file, at its current position."""
    async with copying(instance, workspace, incoming=False, form="contents") as copy:
        await in_abandoned_thread(_receive, copy.take_data(), into)
        await copy.done()


def _receive(pipe: int, into: int) -> None:
    """Read a pipe to its end, and close it. Raises `storage_unavailable`, and `quota_exceeded` for an archive that is
    too long, or has no room.
    """
    size, limit = 0, 0
    with open(pipe, "rb", buffering=0) as source, storage_errors():
        while data := source.read(_PIECE_BYTES):
            size += len(data)
            if size > limit:
                more = (free_space.room(into) - (_COPIES - 1) * size) // _COPIES
                limit = min(size + min(_LOOK_BYTES, more), MOST_BYTES)
            if size > limit:
                raise _too_long(limit)
            write_all(into, data)


def _too_long(limit: int) -> StateError:
    message = (
        f"the sandbox sends more than {limit} bytes, and the daemon has no room for more: remove files there, or free "
        "space in the daemon's state directory"
    )
    return StateError("quota_exceeded", message, quota="archive", limit=limit)


def repack(received: int, request: PackRequest, moved: Meter) -> PackedArchive:
    """Verify what a sandbox sent, and write it anew."""
    os.lseek(received, 0, os.SEEK_SET)
    remarks = Remarks()
    archive = CheckedArchive(received, LIMITS, without_device=lambda name: remarks.add(name, "device"))
    return write(archive, request.output, CODECS[request.format], remarks, moved=moved)


def running(instances: Mapping[str, HeldInstance], sandbox_id: str) -> HeldInstance:
    """Return the running instance of a sandbox. Raises `not_ready`."""
    instance = instances.get(sandbox_id)
    if instance is None or instance.is_closed or instance.pause.is_on:
        message = f"sandbox {sandbox_id} is not running, and only a running one can be packed: resume it"
        raise StateError("not_ready", message, sandbox_id=sandbox_id)
    return instance


async def pack(
    instance: Instance, workspace: str, request: PackRequest, progress: Progress, state_dir: str
) -> PackedFiles:
    """Pack the workspace of a running sandbox. See `Snapshotting.pack`."""
    if request.include or request.exclude:
        message = "a snapshot of such a sandbox has its whole workspace: leave out include and exclude"
        raise SetupError("not_supported", message)
    with unnamed_file(state_dir) as received:
        await receive(instance, workspace, received)
        failpoints.reach("snapshot.copied")
        work = functools.partial(repack, received, request)
        size = os.fstat(received).st_size
        packed = await run_in_thread(work, progress, "packing the files", total_bytes=size)
        return packed_files(packed, Pause())

"""Filling the workspace of a new container with the files of a snapshot, without an image of them in the engine.

To load an image takes the engine longer than all else that a session needs to be brought back, and no other sandbox
begins with the last files of a session. So these go into the sandbox's own volume, as the lower directory of its
overlay (see `workspace`), and are removed with it. Everything here blocks.
"""

import os

from sandkeep_store.archives.tar.inspect import CheckedArchive
from sandkeep_store.archives.tar.whiteouts import is_reserved
from sandkeep_store.archives.trees.extract import extracting
from sandkeep_store.archives.trees.tree import is_in, reserved
from sandkeep_store.archives.trees.unpack import staged, swap_in
from sandkeepd.contract.layers import KeptArchive
from sandkeepd.host.threads import Meter
from sandkeepd.providers.docker.plan import Plan
from sandkeepd.providers.docker.trees import relative


def verified(archive: KeptArchive, plan: Plan, moved: Meter) -> CheckedArchive | None:
    """Verify an archive completely. Return None where its workspace cannot be unpacked as the sandbox's user: a file
    has another owner, or another name elsewhere. Raises `snapshot_corrupt`.
    """
    place, owner = place_of(plan), (plan.uid, plan.gid)
    first, is_own = CheckedArchive(archive.descriptor, archive.limits, moved=moved), True
    for member in first:
        if is_reserved(member.name):
            raise reserved(member.name)
        if is_in(member.name, place):
            stays = member.kind != "hard link" or is_in(member.target, place)
            is_own = is_own and stays and (member.uid, member.gid) == owner
    first.check_digest(archive.sha256)
    return first if is_own else None


def fill(archive: CheckedArchive, plan: Plan, target: str) -> None:
    """Unpack the workspace in a verified archive to a directory `target`. Raises `storage_unavailable`."""
    place = place_of(plan)
    with staged(target, archive.result) as stage:
        with extracting(stage, (plan.uid, plan.gid)) as extraction:
            again = archive.reread()
            for member in again:
                if is_in(member.name, place):
                    member.name = relative(member.name, place)
                    if member.kind == "hard link":
                        member.target = relative(member.target, place)
                    extraction.put(member, again.data())
        swap_in(stage, durable=False)


def place_of(plan: Plan) -> bytes:
    """Return the name of the workspace in archives."""
    return os.fsencode(plan.workspace.strip("/"))

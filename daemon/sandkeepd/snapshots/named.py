"""Snapshots that are found by a name: ``filesystem_snapshots/NAME/NAME.tar``, where cloud-run-sandbox has its own.

Such an archive holds directories of the sandbox under their paths, from the root on. It is packed and unpacked by
programs inside, as the sandbox's own user, while all goes on. So it can be unpacked in a sandbox of any provider, which
has to exist; and it comes from whoever writes to the bucket, so it is checked from its first byte to its last before.
"""

import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final

from sandkeep.errors import CallerError, DataError, StateError
from sandkeep.events import Meta
from sandkeep.ids import SNAPSHOT
from sandkeep.system.descriptors import write_all
from sandkeep_store.archives.stores.open import open_store
from sandkeep_store.archives.tar.inspect import CheckedArchive
from sandkeep_store.archives.tar.members import TOP, Member, corrupt, is_too_long, shown
from sandkeep_store.archives.trees.pack import PackedArchive, archive_writer, write
from sandkeep_store.archives.trees.read import Remarks
from sandkeep_store.archives.trees.tree import Source
from sandkeep_store.buckets.config import Place, Root
from sandkeep_store.locks.places import part_of
from sandkeep_store.threads import in_abandoned_thread
from sandkeepd.contract.caller import Progress
from sandkeepd.contract.instance import Instance
from sandkeepd.contract.snapshots import PackedFiles, PackRequest
from sandkeepd.host.cgroups.pause import Pause
from sandkeepd.host.threads import Meter, in_long_thread, run_in_thread
from sandkeepd.host.unnamed_file import unnamed_file
from sandkeepd.providers.common.packing import CODECS, packed_files
from sandkeepd.providers.common.streamed_files import LIMITS, MOST_BYTES, receive
from sandkeepd.sandboxes.files import Files
from sandkeepd.snapshots.archives import fetched

FOLDER: Final = "filesystem_snapshots"
_SUFFIXES: Final = (".tar", ".tar.gz", ".tar.zst")
_CHUNK_BYTES: Final = 1 << 20
_MAX_TOPS: Final = 64
_FOREIGN: Final = (b"tmp/sandbox_token", b"tmp/runsc_bundle_")
"""Files by which cloud-run-sandbox runs its own sandboxes."""


def path_of(owner: str, name: str) -> str:
    """Return the path of a named snapshot, in its owner's part of the store."""
    return f"{part_of(FOLDER, owner)}/{name}/{name}.tar"


def leads_out(paths: Sequence[str], root: str) -> bool:
    """Return True if a path lies outside of the directory at which the names in a provider's archives begin."""
    return any(posixpath.isabs(path) and not f"{posixpath.normpath(path)}/".startswith(f"{root}/") for path in paths)


def find(root: Root, owner: str, name: str) -> Place:
    """Return the place of the snapshot of that name, by any of the layouts of cloud-run-sandbox. Raises `not_found`,
    and the store's errors. Blocks.
    """
    store, part = open_store(root), part_of(FOLDER, owner)
    named = [f"{part}/{name}/{name}{suffix}" for suffix in _SUFFIXES]
    for path in (*named, *(f"{part}/{name}{suffix}" for suffix in _SUFFIXES)):
        with suppress(DataError):
            store.stat(path)
            return root.place(path)
    others = sorted(found.path for found in store.objects(f"{part}/{name}/") if found.path.endswith(_SUFFIXES))
    if not others:
        place = root.place(f"{part}/{name}")
        message = f"Filesystem snapshot not found: {name!r}, in {place}: make one, or leave it out"
        raise CallerError("not_found", message)
    return root.place(others[-1])


# -- packing ----------------------------------------------------------------------------------------------------------


async def pack_paths(instance: Instance, request: PackRequest, progress: Progress, state_dir: str) -> PackedFiles:
    """Pack the directories `include` of a running sandbox, under their paths. See `Snapshotting.pack`."""
    if request.exclude:
        raise CallerError("invalid", "exclude: it is not for paths outside of the workspace", field="exclude")
    with ExitStack() as opened:
        received = []
        for path in request.include:
            file = opened.enter_context(unnamed_file(state_dir))
            await receive(instance, path, file)
            os.lseek(file, 0, os.SEEK_SET)
            received.append((os.fsencode(path.strip("/")), file))
        work = partial(_join, received, request)
        packed = await run_in_thread(work, progress, "packing the files")
    return packed_files(packed, Pause())


def _join(received: Sequence[tuple[bytes, int]], request: PackRequest, moved: Meter) -> PackedArchive:
    remarks = Remarks()
    source = _Below([(path, _checked(file, remarks)) for path, file in received])
    return write(source, request.output, CODECS[request.format], remarks, moved=moved)


def _checked(archive: int, remarks: Remarks) -> CheckedArchive:
    return CheckedArchive(archive, LIMITS, without_device=lambda name: remarks.add(name, "device"))


class _Below:
    """The members of several archives, each below a path."""

    def __init__(self, archives: Sequence[tuple[bytes, Source]]) -> None:
        self._archives = archives
        self._present = archives[0][1]

    def __iter__(self) -> Iterator[Member]:
        for path, archive in self._archives:
            self._present = archive
            for member in archive:
                member.name = _below(path, member.name)
                if member.kind == "hard link":
                    member.target = _below(path, member.target)
                yield member

    def data(self) -> Iterator[memoryview]:
        """See `Source`."""
        return self._present.data()


def _below(path: bytes, name: bytes) -> bytes:
    found = path if name == TOP else path + b"/" + name
    if is_too_long(found):
        raise corrupt(f"cannot be packed: {shown(found)} is longer than a path may be", found)
    return found


# -- unpacking --------------------------------------------------------------------------------------------------------


async def unpack(
    place: Place, files: Files, sandbox_id: str, workspace: str, meta: Meta, progress: Progress, state_dir: str
) -> None:
    """Unpack a named snapshot in a running sandbox, over what is there. One of Sandkeep's own, by its id, holds the
    workspace. Raises `permission_denied` for what its user may not write, `conflict`, `snapshot_corrupt`, and the
    store's errors.
    """
    is_workspace = place.path.rpartition("/")[2].startswith(f"{SNAPSHOT}_")
    with ExitStack() as opened:
        archive = await run_in_thread(partial(_fetch, place), progress, f"reading {place}")
        opened.callback(os.close, archive)
        looking = partial(_examine, archive, is_workspace=is_workspace)
        checked, tops = await run_in_thread(looking, progress, "looking through it")
        parts = {top: opened.enter_context(unnamed_file(state_dir)) for top in tops}
        await progress("unpacking the files")
        await in_long_thread(_split, checked, parts)
        for top, part in parts.items():
            path = f"/{os.fsdecode(top)}" if top else workspace
            async with files.receive(sandbox_id, path, form="contents") as incoming:
                await in_abandoned_thread(_send, part, incoming.take_data())
                await incoming.commit(meta)


def _fetch(place: Place, moved: Meter) -> int:
    store = open_store(place.root)
    size = store.stat(place.path).size_bytes
    if size > MOST_BYTES:
        raise StateError("quota_exceeded", f"{place} is longer than {MOST_BYTES} bytes: make a smaller one")
    return fetched(store, place, size, moved)


def _examine(archive: int, moved: Meter, *, is_workspace: bool) -> tuple[CheckedArchive, list[bytes]]:
    """Return an archive to be read, and the directories at its top that hold more than directories: of a workspace,
    itself. Raises `snapshot_corrupt`.
    """
    os.lseek(archive, 0, os.SEEK_SET)
    first, tops = CheckedArchive(archive, LIMITS, moved=moved, without_device=_ignore), dict[bytes, None]()
    if is_workspace:
        return first, [b""]  # nothing goes to the sandbox before it was read to its end
    for member in first:
        if member.name.startswith(_FOREIGN) or member.kind == "directory":
            continue
        top = _top_of(member.name)
        if top == member.name:
            message = f"the snapshot has {shown(member.name)} in the root directory, where nothing can be written here"
            raise CallerError("permission_denied", message)
        tops[top] = None
        if len(tops) > _MAX_TOPS:
            raise corrupt(f"has more than {_MAX_TOPS} directories at its top", member.name)
    return first.reread(), [top for top in tops if top == _first_of(top) or _first_of(top) not in tops]


def _first_of(name: bytes) -> bytes:
    return name.partition(b"/")[0]


def _top_of(name: bytes) -> bytes:
    first, *rest = name.split(b"/", 2)
    return b"/".join([first, rest[0]]) if first == b"home" and len(rest) > 1 else first  # each user has one


def _ignore(name: bytes) -> None:
    """Leave out a device: the archives of `runsc` have them for files of the image that were deleted."""


def _split(archive: CheckedArchive, parts: Mapping[bytes, int]) -> None:
    """Write the members below each directory to an archive of their own, in an open file, with names from there on.
    Set-up files of others are left out.
    """
    with ExitStack() as opened:
        writers = {top: opened.enter_context(archive_writer(part, "none")) for top, part in parts.items()}
        for member in archive:
            names = (b"", _top_of(member.name), _first_of(member.name))
            top = next((name for name in names if name in writers), None)
            if top is None or member.name in (TOP, top) or member.name.startswith(_FOREIGN):
                continue  # the directory is there, and keeps its mode
            above = top + b"/" if top else b""
            member.name = member.name.removeprefix(above)
            if member.kind == "hard link":
                if not member.target.startswith(above):
                    raise corrupt(f"has a link {shown(member.name)} to another directory at its top", member.name)
                member.target = member.target.removeprefix(above)
            writers[top].put(member, archive.data())
    for part in parts.values():
        os.lseek(part, 0, os.SEEK_SET)


def _send(source: int, pipe: int) -> None:
    """Write a file to a pipe, and close that. The copy itself reports a reader that has gone."""
    with open(pipe, "wb", buffering=0), suppress(BrokenPipeError):
        while data := os.read(source, _CHUNK_BYTES):
            write_all(pipe, data)

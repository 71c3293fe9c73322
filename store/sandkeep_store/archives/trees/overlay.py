"""Unpacking of a layer as a lower or upper directory of an overlay.

A deleted name is a character device 0/0, and an opaque directory has an extended attribute. Both are made here, after
the extracting program has ended and nothing else touches the tree.
"""

import errno
import os
import stat
from contextlib import suppress
from typing import Final

from sandkeep.system.descriptors import closing_fd
from sandkeep_store.archives.tar import whiteouts
from sandkeep_store.archives.tar.inspect import CheckedArchive, Inspection, Moved
from sandkeep_store.archives.tar.limits import DEFAULT_LIMITS, Limits
from sandkeep_store.archives.tar.members import TOP
from sandkeep_store.archives.trees.extract import extracting, unwritable
from sandkeep_store.archives.trees.tree import Overlay
from sandkeep_store.archives.trees.unpack import staged, swap_in

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack_layer(
    archive: int,
    target: str,
    *,
    overlay: Overlay,
    owner: tuple[int, int] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    sha256: str | None = None,
    moved: Moved | None = None,
) -> Inspection:
    """Put at `target` the layer that an archive, an open file, holds, for overlays of that kind. See `unpack`."""
    first = CheckedArchive(archive, limits, layer=True, moved=moved).to_end()
    first.check_digest(sha256)
    gone: list[bytes] = []
    with staged(target, first.result) as stage:
        with extracting(stage, owner) as extraction:
            again = first.reread()
            for member in again:
                name = whiteouts.deleted_path(member.name)
                if name is None:
                    extraction.put(member, again.data())
                else:
                    gone.append(name)
        try:
            for name in gone:
                _mark(stage.tree, name, overlay, owner)
        except OSError as error:
            raise unwritable(error.strerror) from None
        swap_in(stage, durable=False)
    return first.result


def _mark(tree: bytes, gone: bytes, overlay: Overlay, owner: tuple[int, int] | None) -> None:
    """Say in the overlay's way that a name is gone; of one that ends in a slash, all that is below it elsewhere."""
    if gone.endswith(b"/"):
        directory = _opened(tree, gone.rstrip(b"/"), owner)
        with closing_fd(directory):
            _hide_below(directory, overlay)
        return
    parent, _, name = gone.rpartition(b"/")
    directory = _opened(tree, parent or TOP, owner)
    with closing_fd(directory):
        before = os.fstat(directory)
        try:
            os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=directory)
        except FileExistsError:
            _replace_below(directory, name, overlay)
        os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replace_below(directory: int, name: bytes, overlay: Overlay) -> None:
    """Make a directory opaque if the layer both deletes and recreates it, in either order. Only a directory would show
    the contents below; other types hide them anyway.
    """
    try:
        own = os.open(name, _OPEN, dir_fd=directory)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        return
    with closing_fd(own):
        _hide_below(own, overlay)


def _hide_below(directory: int, overlay: Overlay) -> None:
    os.setxattr(directory, f"{overlay}.overlay.opaque", b"y")


def _opened(tree: bytes, name: bytes, owner: tuple[int, int] | None) -> int:
    """Open a directory of the tree component by component, following no link. Missing directories are made."""
    opened = os.open(tree, _OPEN)
    for part in name.split(b"/") if name != TOP else ():
        with closing_fd(opened):
            with suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=opened)
                if owner is not None:
                    os.chown(part, *owner, dir_fd=opened, follow_symlinks=False)
            opened = os.open(part, _OPEN, dir_fd=opened)
    return opened

"""Putting a staged directory in the place of another, so that at any moment one of them is there, whole."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from sandkeep.system import staging
from sandkeep.system.durable import sync_directory
from sandkeep.system.libc import HERE, exchange
from sandkeep.system.staging import Stage
from sandkeep_store.files.syncfs import sync_filesystem

_UNABLE: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTTY, errno.EOPNOTSUPP)
_OPEN: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def swap(stage: Stage, *, durable: bool = True) -> None:
    """Exchange the stage's tree with its target. The old tree is in the stage then, and is deleted with it.

    With `durable`, the exchange and the files survive a power cut. Raises OSError; then nothing is changed.
    """
    if durable:
        sync_filesystem(stage.tree)
    with _movable(stage.tree, stage.target):
        _exchange(stage)
    if durable:
        sync_directory(os.fsdecode(os.path.dirname(os.path.abspath(stage.target))))


def _exchange(stage: Stage) -> None:
    try:
        exchange(HERE, stage.tree, HERE, stage.target)
    except FileNotFoundError:
        os.rename(stage.tree, stage.target)
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
        _exchange_by_two(stage)


def _exchange_by_two(stage: Stage) -> None:
    """Exchange by two renames, for filesystems without RENAME_EXCHANGE. For a moment the target is missing."""
    aside = os.path.join(stage.path, b"aside")
    with suppress(FileNotFoundError):
        os.rename(stage.target, aside)
    try:
        os.rename(stage.tree, stage.target)
    except OSError:
        with suppress(FileNotFoundError):
            os.rename(aside, stage.target)
        raise


@contextmanager
def _movable(*directories: bytes) -> Iterator[None]:
    """Make directories writable for a block: without root, a move needs write permission on the directory itself."""
    with ExitStack() as closing:
        for path in directories if os.geteuid() != 0 else ():
            with suppress(FileNotFoundError):
                opened = os.open(path, _OPEN)
                closing.callback(os.close, opened)
                mode = stat.S_IMODE(os.fstat(opened).st_mode)
                if not mode & stat.S_IWUSR:
                    place = f"/proc/self/fd/{opened}"
                    os.chmod(place, mode | stat.S_IRWXU)
                    closing.callback(os.chmod, place, mode)
        yield


def leftovers(directory: str) -> list[str]:
    """Return the stages that a crash left in a directory: for removal at start, before any work begins."""
    prefix = os.fsdecode(staging.PREFIX)
    try:
        return [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if name.startswith(prefix)]
    except FileNotFoundError:
        return []

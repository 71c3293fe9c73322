"""The shared files that a saved sandbox has open, which must exist when it is restored.

`runsc` restores no sandbox with an open file that does not exist; and journals of ended processes, and the files of
helper commands, are removed while descendants still have them open, or while the sandbox is suspended. So their names
are kept beside the saved state, and missing ones exist, empty, for the length of the restore: writes to them are lost
from then on, as they were before. Everything blocks.
"""

import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from sandkeepd.host.hostile_files import HostileTree
from sandkeepd.providers.common.inside import INSIDE

NAME: Final = "open.names"
"""The file with the names, each with a NUL behind it, in the directory of the saved state."""

_DELETED: Final = " (deleted)"
"""The suffix that the kernel gives to the name of an unlinked open file."""

_RELATIVE: Final = "(?:in|out/p)/[^/]+"
_IN_SANDBOX: Final = re.compile(f".*{INSIDE}/({_RELATIVE})", re.DOTALL)


def save_names(directory: str, files: HostileTree, holders: Collection[int]) -> None:
    """Write to a directory the names of those shared `files` that are open in the processes that hold them for a
    sandbox. Raises OSError.
    """
    with files.directory("out/p") as journals:
        device = os.fstat(journals).st_dev
    paths = sorted({path for pid in holders for path in _opened(pid, device)})
    with open(f"{directory}/{NAME}", "wb") as file:
        file.writelines(os.fsencode(path) + b"\0" for path in paths)


def load_names(directory: str) -> list[str] | None:
    """Return the paths, relative to the shared directory, that were kept there; None where an earlier version saved it.

    Raises OSError.
    """
    try:
        with open(f"{directory}/{NAME}", "rb") as file:
            paths = map(os.fsdecode, file.read().split(b"\0"))
    except FileNotFoundError:
        return None
    return [path for path in paths if re.fullmatch(_RELATIVE, path, re.DOTALL)]


@contextmanager
def recreated(directory: str, files: HostileTree) -> Iterator[None]:
    """Make the files that were kept there exist for the length of a block. Raises OSError."""
    made: list[str] = []
    try:
        for path in load_names(directory) or ():
            with suppress(FileExistsError):
                os.close(files.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
                made.append(path)
        yield
    finally:
        for path in made:
            with suppress(OSError):  # an empty file that stays goes with the sandbox
                files.unlink(path)


def _opened(pid: int, device: int) -> Iterator[str]:
    with suppress(OSError):  # it has ended
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # it was just closed
                link = f"/proc/{pid}/fd/{number}"
                found = os.stat(link)
                if stat.S_ISREG(found.st_mode) and found.st_dev == device:
                    path = os.readlink(link)
                    inside = _IN_SANDBOX.fullmatch(path if found.st_nlink else path.removesuffix(_DELETED))
                    if inside is not None:
                        yield inside[1]

"""The layout of the state directory.

images/IMAGE/root               the image
            /log                the id of the log that owns it
layers/NAME/root                files that sandboxes begin with besides an image's, or instead of them
           /log                 the id of the log that owns it
sandboxes/SANDBOX/upper         the sandbox's changes (or, without overlay, its copy of the image)
                 /aside         an earlier `upper`, until its replacement is settled
                 /work          the overlay's work directory
                 /mount         where a user's daemon mounts the overlay
                 /in  /out      shared with the keeper; `out` stays when the sandbox has ended
                 /in/.log       the id of the log that owns it
                 /trash /spare  on a disk of its own: being removed; files that reserve inodes
                 /volumes       on a container's disk: its own volumes, mounted where the engine keeps them
builds/IMAGE/tree               the build context of an image
disks/SANDBOX                   the image of a file system of its own, mounted at sandboxes/SANDBOX; see `disks`
trash/                          being removed
"""

import errno
import math
import os
import re
import secrets
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from sandkeep.errors import DaemonError
from sandkeep.ids import PROCESS, check_name, is_log_id
from sandkeep.system.descriptors import closing_fd
from sandkeepd.host import mounts
from sandkeepd.host.hostile_files import NotAFileError
from sandkeepd.host.processes import run_tool
from sandkeepd.keeper.journal import open_regular
from sandkeepd.providers.common.errors import stderr_of
from sandkeepd.providers.common.views import open_for_tool

MANY: Final = 1000
"""Maximum number of files handled here; more are left to a program, which does not hold the interpreter's lock."""

_JOURNAL: Final = re.compile(rf"{PROCESS}_[0-9a-z]{{26}}\.std(out|err)")

READ_MARK: Final = "read"
"""The file, in the directory of a sandbox, that exists while the sandbox is frozen only to be read. It is a suffix of
the name if the sandbox has a disk, which may be full: it is beside that then.
"""

_OUTPUT: Final = ".out"
"""The suffix of a copy of journals beside the disk from which they come. The trash would be emptied meanwhile."""

OWN_TRASH: Final = "trash"
"""The directory, on the disk of a sandbox, of what is being removed from it."""

VOLUMES: Final = "volumes"
"""The directory, on the disk of a container, of its own volumes."""

TEMPORARY: Final = ("upper", "work", "mount", "in", "aside", OWN_TRASH, VOLUMES, READ_MARK)
"""The entries removed with a sandbox. Its journals, in `out`, stay."""


_RM: Final = ("rm", "-rf", "--one-file-system", "--")
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

IMAGE_MARK: Final = "log"
LAYER_MARK: Final = "log"
SANDBOX_MARK: Final = "in/.log"
"""The files, in a directory of ours, with the id of its log."""


class Layout:
    """Paths under a state directory."""

    def __init__(self, state_dir: str) -> None:
        self.state_dir = os.path.abspath(state_dir)
        self.images = f"{self.state_dir}/images"
        self.layers = f"{self.state_dir}/layers"
        self.sandboxes = f"{self.state_dir}/sandboxes"
        self.trash = f"{self.state_dir}/trash"
        self._builds = f"{self.state_dir}/builds"
        self._disks = f"{self.state_dir}/disks"

    def prepare(self) -> None:
        """Make the directories, private to the daemon's user. Raises `storage_unavailable`."""
        try:
            for path in (self.state_dir, self.images, self.layers, self.sandboxes, self._disks, self.trash):
                os.makedirs(path, mode=0o700, exist_ok=True)
        except OSError as error:
            message = f"the state directory {self.state_dir} cannot be used: {error.strerror}: set SANDKEEP_STATE_DIR"
            raise DaemonError("storage_unavailable", message) from None

    def empty(self) -> str:
        """Return a directory without files, of which a workspace begins that no layer has. Blocks."""
        path = f"{self.state_dir}/empty"
        os.makedirs(path, mode=0o755, exist_ok=True)
        return path

    def image(self, image_id: str) -> str:
        """Return the directory of an image."""
        return f"{self.images}/{check_name(image_id, 'image_id')}"

    def layer(self, name: str) -> str:
        """Return the directory of files that sandboxes begin with."""
        return f"{self.layers}/{check_name(name, 'name')}"

    def layer_names(self) -> list[str]:
        """Return the names of all layers, complete or half made."""
        return sorted(_list(self.layers))

    def build(self, image_id: str) -> str:
        """Return the directory of an image's build context."""
        return f"{self._builds}/{check_name(image_id, 'image_id')}"

    def builds(self) -> list[str]:
        """Return the images that are being built, or were when a daemon ended."""
        return _list(self._builds)

    def sandbox(self, sandbox_id: str) -> str:
        """Return the directory of a sandbox."""
        return f"{self.sandboxes}/{check_name(sandbox_id, 'sandbox_id')}"

    def volumes(self, sandbox_id: str) -> str:
        """Return the directory of the files of a container's own volumes, which lie on its disk."""
        return f"{self.sandbox(sandbox_id)}/{VOLUMES}"

    def disk(self, sandbox_id: str) -> str:
        """Return the path of the image of a sandbox's own file system."""
        return f"{self._disks}/{check_name(sandbox_id, 'sandbox_id')}"

    def has_disk(self, sandbox_id: str) -> bool:
        """Return True if a sandbox has a file system of its own."""
        return os.path.exists(self.disk(sandbox_id))

    def disks(self) -> list[str]:
        """Return the sandboxes that have a file system of their own."""
        return [name for name in _list(self._disks) if not name.endswith((f".{READ_MARK}", _OUTPUT))]

    def output_copy(self, sandbox_id: str) -> str:
        """Return the path of the journals that are being copied from a sandbox's own file system."""
        return f"{self.disk(sandbox_id)}{_OUTPUT}"

    def read_mark(self, sandbox_id: str) -> str:
        """Return the path of the file that exists while a sandbox is frozen only to be read."""
        if self.has_disk(sandbox_id):
            return f"{self.disk(sandbox_id)}.{READ_MARK}"
        return f"{self.sandbox(sandbox_id)}/{READ_MARK}"

    def found(self) -> tuple[list[str], list[str]]:
        """Return the sandboxes that have more than journals, and the images."""
        sandboxes = {name for name in _list(self.sandboxes) if set(TEMPORARY) & set(_list(f"{self.sandboxes}/{name}"))}
        return sorted(sandboxes.union(self.disks())), sorted(_list(self.images))

    def log_of_sandbox(self, sandbox_id: str) -> str | None:
        """Return the id of the log in a sandbox's mark; None when there is none."""
        return log_of(f"{self.sandbox(sandbox_id)}/{SANDBOX_MARK}")

    def has_aside(self, sandbox_id: str) -> bool:
        """Return True if files of a sandbox were put aside."""
        return os.path.isdir(f"{self.sandbox(sandbox_id)}/aside")

    def put_aside(self, sandbox_id: str) -> None:
        """Move the files of an ended sandbox aside. Blocks."""
        directory = self.sandbox(sandbox_id)
        self.discard([f"{directory}/aside"])
        os.rename(f"{directory}/upper", f"{directory}/aside")

    def put_back(self, sandbox_id: str) -> None:
        """Undo `put_aside`. Blocks. Safe to repeat."""
        directory = self.sandbox(sandbox_id)
        if self.has_aside(sandbox_id):
            self.discard([f"{directory}/upper"])
            os.rename(f"{directory}/aside", f"{directory}/upper")

    def drop_aside(self, sandbox_id: str) -> None:
        """Remove the files that were put aside. Blocks. Safe to repeat."""
        if self.has_aside(sandbox_id):
            self.discard([f"{self.sandbox(sandbox_id)}/aside"])

    def discard(self, paths: Iterable[str]) -> None:
        """Remove trees with any content: move them to the trash at once, then delete them. Blocks. Safe to repeat."""
        self.delete(self.put_in_trash(paths))

    def put_in_trash(self, paths: Iterable[str]) -> list[str]:
        """Move trees to the trash, and return their paths there, for `delete`. What is there at the next start is
        removed. Blocks. Safe to repeat.
        """
        return [name for path in paths if (name := self._move_to_trash(path))]

    def delete(self, moved: Sequence[str]) -> None:
        """Delete what was moved to the trash. Blocks."""
        for trash in {os.path.dirname(name) for name in moved}:
            self._remove(trash, [os.path.basename(name) for name in moved if os.path.dirname(name) == trash])

    def remove_all_but_journals(self, sandbox_id: str) -> None:
        """Remove everything but journals from the journals' directory of an ended sandbox: the code inside can have put
        any number of any files there. Blocks. Safe to repeat.
        """
        try:
            directory = _open_directory(f"{self.sandbox(sandbox_id)}/out/p")
        except OSError:
            return
        with closing_fd(directory):
            if not _remove_few(directory):
                journals = ["-type", "f", "-regextype", "posix-extended", "-regex", f".*/{_JOURNAL.pattern}"]
                place = f"/proc/self/fd/{directory}/."
                find = ["find", place, "-mindepth", "1", "-maxdepth", "1", "!", "(", *journals, ")"]
                _run_with_all_rights([*find, "-exec", *_RM, "{}", "+"], directory)

    def clear(self, sandbox_id: str) -> None:
        """Remove the files of a sandbox that has ended, all but its journals. Blocks. Safe to repeat."""
        self.remove_all_but_journals(sandbox_id)
        self.discard([f"{self.sandbox(sandbox_id)}/{name}" for name in TEMPORARY])

    def left_in_trash(self) -> list[str]:
        """Return the paths in the trash, for `delete`: at a start, those that a stopped daemon has left. Blocks."""
        return [f"{self.trash}/{name}" for name in _list(self.trash)]

    def _move_to_trash(self, path: str) -> str | None:
        """Return the new path; None if there was nothing. The files of a sandbox with a disk stay on that."""
        for trash in (self.trash, f"{os.path.dirname(path)}/{OWN_TRASH}"):
            moved = f"{trash}/{secrets.token_hex(8)}"
            try:
                with suppress(FileExistsError):
                    os.mkdir(trash, 0o700)  # nothing else: a state directory that was taken away is not made anew
                os.rename(path, moved)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno == errno.EXDEV and trash == self.trash:
                    continue
                raise DaemonError("storage_unavailable", f"{path} cannot be removed: {error.strerror}") from None
            return moved
        raise AssertionError

    def _remove(self, place: str, names: Sequence[str]) -> None:
        """Remove entries of a trash. By `rm` and not Python: it goes to any depth, never follows a link, and does not
        hold the interpreter's lock meanwhile.
        """
        if not names:
            return
        try:
            trash = open_for_tool(place, mounts.TO_WRITE)
        except OSError as error:
            message = f"{place} cannot be emptied: {error.strerror}"
            raise DaemonError("storage_unavailable", message) from None
        with closing_fd(trash):
            done = _run_with_all_rights([*_RM, *(f"/proc/self/fd/{trash}/{name}" for name in names)], trash)
        if done.returncode:
            raise DaemonError("storage_unavailable", f"files could not be removed: {stderr_of(done)}")


def _run_with_all_rights(remove: Sequence[str], directory: int) -> "subprocess.CompletedProcess[bytes]":
    """Run a removal in an open directory. A user's own daemon meets directories without permissions, which are open to
    it in a namespace of its own. No mode is changed for that: hostile code could redirect the change to another file.
    """
    done = run_tool(remove, timeout_s=math.inf, descriptors=[directory])
    if done.returncode == 0:
        return done
    enter = ["unshare", "--user", "--map-root-user", "--"] if os.geteuid() != 0 else []
    return run_tool([*enter, *remove], timeout_s=math.inf, descriptors=[directory])


def _open_directory(path: str) -> int:
    """Open a directory, also one whose permissions the code inside has removed. Raises OSError."""
    with closing_fd(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as place:
        os.chmod(f"/proc/self/fd/{place}", 0o755)  # noqa: S103 - as it was made
        return os.open(".", _OPEN, dir_fd=place)


def _remove_few(directory: int) -> bool:
    """Remove files other than journals, if all entries are files, and few. Returns True if that was so."""
    with os.scandir(directory) as entries:
        seen = list(islice(entries, MANY + 1))
        if len(seen) > MANY or not all(entry.is_file(follow_symlinks=False) for entry in seen):
            return False
    for entry in seen:
        if not _JOURNAL.fullmatch(entry.name):
            os.unlink(entry.name, dir_fd=directory)
    return True


def unmount_below(directory: str) -> None:
    """Unmount everything in a directory. Blocks."""
    for place in mounts.below(directory):
        mounts.unmount(place)


def write_mark(path: str, log_id: str) -> None:
    """Write the id of the log into a new mark file of the directory around it."""
    with open(path, "x", encoding="ascii") as file:
        file.write(f"{log_id}\n")


def log_of(path: str) -> str | None:
    """Return the log's id in such a file; None when there is none."""
    try:
        with open(open_regular(path), "rb") as file:
            text = file.read(256).decode(errors="replace").strip()
    except (OSError, NotAFileError):
        return None
    return text if is_log_id(text) else None


def _list(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []

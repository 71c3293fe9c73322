"""A staging directory beside a destination, for a tree that appears there atomically.

A helper program waits for this process's end, however that comes, ends the programs that still write there, and removes
the directory. Whoever may write beside the destination can give the directory's name to another one, or to a link: so
it is opened once, and nothing is done by its name but to remove it when it is empty.
"""

import errno
import os
import stat
import subprocess
import tempfile
from contextlib import suppress
from typing import Final, Self

from sandkeep.errors import CallerError, SandkeepError, StateError

PREFIX: Final = b".sandkeep-"

# It is told nothing: its input ends when its starter lets go, or dies. It leads a process group, whose others it ends.
# SIGTERM does not end them all: the first process of a jail's namespace ignores it, and waits for ever if its bwrap
# (0.8) was killed before it let it go on. So the last thing is to kill the group, of which the shell itself is one.
_REMOVE: Final = """
trap '' INT TERM HUP
read -r _
kill -TERM 0
for _ in 1 2 3 4 5 6 7 8 9 10; do
	rm -rf -- tree aside 2>/dev/null && { [ ! "$1" -ef . ] || rmdir -- "$1" 2>/dev/null; } && break
	[ "$(id -u)" = 0 ] || find . -type d ! -perm -700 -exec chmod u+rwx {} \\; 2>/dev/null
	rm -rf -- tree aside 2>/dev/null && { [ ! "$1" -ef . ] || rmdir -- "$1" 2>/dev/null; } && break
	sleep 0.3
done
kill -KILL 0
"""


class Stage:
    """A private directory beside `target`, for the length of a block; in it is `tree`, empty, for the caller: a path
    for this process, or the working directory of its programs. `named_tree` is the same by names.

    It is in a target that is a directory already, unless that is to be replaced and the stage `beside` it.
    """

    def __init__(self, target: bytes, *, beside: bool = False) -> None:
        self.target = target
        self.into = os.path.isdir(target) and not beside
        full = os.path.realpath(target)
        place = full if self.into else os.path.dirname(full)
        if not os.path.isdir(place):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place)
        self.path = tempfile.mkdtemp(prefix=PREFIX, dir=place)
        self.named_tree = os.path.join(self.path, b"tree")
        self._directory = -1
        try:
            self._directory = _opened(self.path)
            here = b"/proc/self/fd/%d" % self._directory
            self.tree = here + b"/tree"
            os.mkdir(self.tree, 0o755)
            self._remover = subprocess.Popen(
                ["/bin/sh", "-c", _REMOVE, "sh", self.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
                cwd=here,
                env={"PATH": f"{os.environ.get('PATH', '')}:{os.defpath}"},
            )
        except BaseException:
            self._give_up()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._remover.stdin is not None
        self._remover.stdin.close()
        self._remover.wait()
        os.close(self._directory)

    def _give_up(self) -> None:
        with suppress(OSError):
            if self._directory >= 0:
                with suppress(FileNotFoundError):
                    os.rmdir(self.tree)
                os.close(self._directory)
            os.rmdir(self.path)

    @property
    def group(self) -> int:
        """The process group of programs that write in `tree`: they end with the stage, even if we are killed."""
        return self._remover.pid

    def only_entry(self) -> bytes:
        """The path of the one thing that was made in `tree`. Raises `invalid` when there are none or several."""
        names = os.listdir(self.tree)
        if len(names) != 1:
            raise CallerError(
                "invalid", f"the archive has {len(names)} top-level entries instead of one: nothing was copied"
            )
        return os.path.join(self.tree, names[0])

    def commit(self, made: bytes) -> bytes:
        """Make something effective, and answer where it is: at the target, or in it if that is a directory.

        A tree is merged with one that is there; each file of it appears whole. Raises `conflict` before anything is
        changed, for a file where a directory is and the reverse; and OSError.
        """
        if self.into:
            there = os.path.join(self.target, os.path.basename(made))
            self._install(made, there)
            return there
        self._install(made, os.path.realpath(self.target))
        return self.target

    def merge_into_target(self) -> bytes:
        """Merge `tree` into the target, a directory, which is made if it is missing. See `commit`."""
        self._install(self.tree, os.path.realpath(self.target))
        return self.target

    def _install(self, made: bytes, there: bytes) -> None:
        parent = os.open(os.path.dirname(there) or b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for act in (False, True):
                _install_entry(made, os.path.basename(there), parent, there, act=act)
        except RecursionError:
            message = "its directories are nested too deeply to be merged: choose another target"
            raise CallerError("invalid", f"{message}; nothing was copied", field="target") from None
        finally:
            os.close(parent)


def _opened(path: bytes) -> int:
    """Open a new directory. Raises FileNotFoundError if somebody has put another one there meanwhile."""
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    info = os.fstat(opened)
    if info.st_uid != os.geteuid() or info.st_mode & 0o077 or os.listdir(opened):
        os.close(opened)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return opened


def _install_entry(made: bytes, name: bytes, parent: int, shown: bytes, *, act: bool) -> None:
    """Move one entry to its place, a name in an open directory; or, without `act`, check that it could be.

    Existing directories are opened one by one and never through a link, so that another writer there cannot redirect
    it.
    """
    is_tree = stat.S_ISDIR(os.lstat(made).st_mode)
    try:
        is_there = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        is_there = None
    if is_there and is_tree != stat.S_ISDIR(is_there.st_mode):
        kind = "a directory" if not is_tree else "not a directory"
        raise conflict(shown, kind)
    if is_there and not is_tree and not _is_replaceable(is_there.st_mode, os.lstat(made).st_mode):
        raise conflict(shown, "neither a file nor a link")
    if is_tree and is_there:
        _merge(made, name, parent, shown, act=act)
    elif act:
        try:
            _move(made, name, parent, is_tree=is_tree)
        except OSError as error:
            if not is_tree or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            _merge(made, name, parent, shown, act=True)  # another process made it at that moment
    elif not os.access(b".", os.W_OK | os.X_OK, dir_fd=parent, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.path.dirname(shown))


def _is_replaceable(there: int, made: int) -> bool:
    """Return True if an entry may be replaced. A caller who names a device does not mean to remove it."""
    return stat.S_ISREG(there) or stat.S_ISLNK(there) or stat.S_IFMT(there) == stat.S_IFMT(made)


def _merge(made: bytes, name: bytes, parent: int, shown: bytes, *, act: bool) -> None:
    there = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        for entry in sorted(os.listdir(made)):
            _install_entry(os.path.join(made, entry), entry, there, os.path.join(shown, entry), act=act)
    finally:
        os.close(there)


def _move(made: bytes, name: bytes, parent: int, *, is_tree: bool) -> None:
    """Move by renaming. Moving a directory needs write permission on it."""
    mode = stat.S_IMODE(os.lstat(made).st_mode)
    if not is_tree or mode & stat.S_IWUSR:
        os.rename(made, name, dst_dir_fd=parent)
        return
    os.chmod(made, mode | stat.S_IRWXU)
    opened = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.rename(made, name, dst_dir_fd=parent)
    finally:
        os.fchmod(opened, mode)
        os.close(opened)


def conflict(path: bytes, kind: str) -> SandkeepError:
    """The error for something of another kind that is in the way."""
    message = f"{os.fsdecode(path)!r} is there, and is {kind}: remove it, or choose another target; nothing was copied"
    return StateError("conflict", message, field="target")

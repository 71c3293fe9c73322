"""The machine's registry of host uids: the sandbox of each uid, of any daemon.

All root daemons of a machine share one directory, which only root may enter. An entry is a symbolic link named by the
uid; it leads nowhere, and its target names the holder. The kernel makes a link together with its target and refuses a
second one of the same name: a claim is one system call, is never half made, and two daemons cannot both make it. An
entry that is no link, or is unreadable, keeps its uid from being used and is left alone.

Everything blocks, for some microseconds on a tmpfs. Raises `provider_unavailable` when the directory cannot be used.
"""

import contextlib
import errno
import fcntl
import functools
import os
import stat
import time
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, get_args

from sandkeep.errors import ProviderError, SetupError
from sandkeep.settings.daemon import UID_REGISTRY
from sandkeepd.host.processes import boot_id

State = Literal["claimed", "resting", "stuck", "images", "unreadable"]

LOCK_DEADLINE_S: Final = 5.0
"""Seconds to wait for another daemon's scan of the registry, which takes milliseconds."""

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOBODY: Final = "-"


class Entry(NamedTuple):
    """The holder of a uid. `since` counts seconds of this boot; `home` is the state directory of the log."""

    state: State
    log_id: str = ""
    sandbox_id: str = ""
    home: str = ""
    boot: str = ""
    since: int = 0

    @property
    def is_stale(self) -> bool:
        """Tell if it was made before the machine was booted: no process of then can be left."""
        return self.state != "unreadable" and self.boot != this_boot()


class Registry:
    """The registry in the directory `path`, which is made when it is first needed."""

    def __init__(self, path: str) -> None:
        self.path = path

    def add(self, uid: int, entry: Entry) -> bool:
        """Make the entry of a uid; False when it has one."""
        with self._opened() as directory:
            try:
                os.symlink(_written(entry), str(uid), dir_fd=directory)
            except FileExistsError:
                return False
        return True

    def read(self, uid: int) -> Entry | None:
        """The entry of a uid, None when it has none."""
        with self._opened() as directory:
            return _read(str(uid), directory)

    def replace(self, uid: int, entry: Entry) -> None:
        """Replace the entry of a uid, atomically. Only for its owner, or under the lock."""
        with self._opened() as directory:
            beside = f".{uid}.{os.getpid()}"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside, dir_fd=directory)
            os.symlink(_written(entry), beside, dir_fd=directory)
            os.rename(beside, str(uid), src_dir_fd=directory, dst_dir_fd=directory)

    def remove(self, uid: int) -> None:
        """Remove the entry of a uid. Only for its owner, or under the lock. Safe to repeat."""
        with self._opened() as directory, contextlib.suppress(FileNotFoundError):
            os.unlink(str(uid), dir_fd=directory)

    def entries(self) -> dict[int, Entry]:
        """Return all entries, ignoring names that are no numbers."""
        with self._opened() as directory:
            found = {int(name): _read(name, directory) for name in os.listdir(directory) if _is_uid(name)}
        return {uid: entry for uid, entry in found.items() if entry is not None}

    @contextlib.contextmanager
    def locked(self, wait_s: float = LOCK_DEADLINE_S) -> Iterator[None]:
        """Lock the entries of others, to remove or replace them. Raises `provider_unavailable` after `wait_s`."""
        deadline = time.monotonic() + wait_s
        with self._opened() as directory:
            while not _has_locked(directory):
                if time.monotonic() >= deadline:
                    problem = f"the uid registry {self.path} is locked by another process: see `fuser {self.path}`"
                    raise ProviderError("provider_unavailable", problem)
                time.sleep(0.01)
            yield  # the lock goes with the descriptor

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """The directory, opened anew each time: it may have been removed, and made again by another daemon."""
        directory = -1
        try:
            directory = self._open()
            self._check(os.fstat(directory))
            yield directory
        except OSError as error:
            problem = f"the uid registry {self.path} cannot be used: {error.strerror or error}"
            remedy = f"root's daemon must be able to write there, or set {UID_REGISTRY.name}"
            raise ProviderError("provider_unavailable", f"{problem}: {remedy}") from None
        finally:
            if directory >= 0:
                os.close(directory)

    def _open(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return os.open(self.path, _OPEN)
        os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path, mode=0o700)
        return os.open(self.path, _OPEN)

    def _check(self, found: os.stat_result) -> None:
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise SetupError(
                "not_configured",
                f"the uid registry {self.path} is open to others than root: remove it if nobody uses it, or see who "
                f"made it, and `chown root {self.path}; chmod 0700 {self.path}`",
            )


@functools.cache
def this_boot() -> str:
    """Id that the kernel gives its present boot."""
    return boot_id()


def now() -> int:
    """The seconds since this boot, also those in which the machine slept."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME))


def _has_locked(directory: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _written(entry: Entry) -> str:
    whose = [entry.log_id or _NOBODY, entry.sandbox_id or _NOBODY, entry.home or _NOBODY]
    return " ".join([entry.state, entry.boot or this_boot(), str(entry.since or now()), *whose])


def _read(name: str, directory: int) -> Entry | None:
    try:
        fields = os.readlink(name, dir_fd=directory).split(" ", 5)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:  # it is no link
            return Entry("unreadable")
        raise
    if len(fields) != 6 or fields[0] not in get_args(State) or not (fields[2].isascii() and fields[2].isdigit()):
        return Entry("unreadable")
    log_id, sandbox_id, home = ("" if word == _NOBODY else word for word in fields[3:])
    state: State = fields[0]  # type: ignore[assignment]  # it is one of them
    return Entry(state, log_id, sandbox_id, home, fields[1], int(fields[2][:18]))


def _is_uid(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= 10 and name == str(int(name))

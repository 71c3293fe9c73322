"""Directories below ``~/.crafty/local_sandboxes``: the workspaces of local sandboxes.

A local sandbox has its workspace in a mount namespace that nobody else sees, and the kernel shows that to root, and to
the user of a user's daemon, below ``/proc``: the directory is a link to there. For others the caller's process copies
the workspace out, with the caller's rights. The daemon touches no home.

The files are those of code that nobody trusts: a link in them leads on from here, to files of this machine.
"""

import fcntl
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from sandkeep import model
from sandkeep.blocking import Client
from sandkeep.errors import SandkeepError
from sandkeep.system.trees import remove_tree
from sandkeep.transfer import copy_out

PARENT: Final = "~/.crafty/local_sandboxes"


def path_of(sandbox_id: str) -> Path:
    """Return the path of a sandbox's directory, which need not be there."""
    return Path(os.path.expanduser(PARENT), sandbox_id)


def show(client: Client, sandbox: model.Sandbox) -> None:
    """Make the directory of a running sandbox its workspace; for those who cannot reach that, a copy as it is now, in
    place of an earlier one.

    A failure is a warning, and leaves what is there: code in the sandbox can make files unreadable, and nobody needs a
    writable home to use sandboxes.
    """
    path = path_of(sandbox.sandbox_id)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (own := _reachable(sandbox)) is not None:
            _link(path, own)
        else:
            _replace(client, sandbox, path)
    except (SandkeepError, OSError) as error:
        warnings.warn(f"{path} does not show the sandbox's code as it is now: {error}", stacklevel=4)


def remove(sandbox_id: str) -> None:
    """Remove a sandbox's directory, if there is one."""
    path = path_of(sandbox_id)
    if path.is_symlink():
        path.unlink(missing_ok=True)
    elif path.is_dir():
        remove_tree(str(path))


def _reachable(sandbox: model.Sandbox) -> str | None:
    """Return the path of a sandbox's workspace itself, if this process may use it."""
    path = sandbox.isolation.host_path if sandbox.isolation else None
    with suppress(OSError):
        if path is not None and os.stat(path):
            return path
    return None


def _link(path: Path, target: str) -> None:
    """Link to a workspace: anew, as a restarted sandbox has another one."""
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as work:
        link = Path(work, "link")
        link.symlink_to(target)
        with _alone(path.parent):
            if path.is_dir() and not path.is_symlink():
                path.rename(Path(work, "earlier"))
            link.replace(path)


def _replace(client: Client, sandbox: model.Sandbox, path: Path) -> None:
    workspace = sandbox.isolation.workspace if sandbox.isolation else "/workspace"
    work = tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        fresh = f"{work}/fresh"
        os.mkdir(fresh, 0o700)
        copy_out(client, sandbox.sandbox_id, f"{workspace}/.", fresh)
        with _alone(path.parent):
            with suppress(FileNotFoundError):
                os.rename(path, f"{work}/earlier")
            os.rename(fresh, path)
    finally:
        remove_tree(work)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold a lock on a directory, so that of copies at the same time each is in place once."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

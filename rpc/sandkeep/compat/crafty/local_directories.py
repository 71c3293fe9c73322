"""Directories below ``~/.crafty/local_sandboxes`` that show the code of local sandboxes.

A local sandbox has its files in a mount namespace that nobody else sees. The caller's process copies its working
directory out, with the caller's rights: the daemon touches no home, and a link in the sandbox is a link here.
"""

import fcntl
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from sandkeep import model
from sandkeep.blocking import Client
from sandkeep.errors import SandkeepError
from sandkeep.system.trees import remove_tree
from sandkeep.transfer import copy_out

PARENT: Final = "~/.crafty/local_sandboxes"


def path_of(sandbox_id: str) -> str:
    """Return the path of a sandbox's directory, which need not be there."""
    return os.path.join(os.path.expanduser(PARENT), sandbox_id)


def show(client: Client, sandbox: model.Sandbox) -> None:
    """Copy the code of a running sandbox, as it is now, to its directory, in place of an earlier copy.

    A failure is a warning, and leaves an earlier copy: code in the sandbox can make files unreadable, and nobody needs
    a writable home to use sandboxes.
    """
    path = path_of(sandbox.sandbox_id)
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        _replace(client, sandbox, path)
    except (SandkeepError, OSError) as error:
        warnings.warn(f"{path} does not show the sandbox's code as it is now: {error}", stacklevel=4)


def remove(sandbox_id: str) -> None:
    """Remove a sandbox's directory, if there is one."""
    path = path_of(sandbox_id)
    if os.path.isdir(path) and not os.path.islink(path):
        remove_tree(path)


def _replace(client: Client, sandbox: model.Sandbox, path: str) -> None:
    parent, name = os.path.split(path)
    workspace = sandbox.isolation.workspace if sandbox.isolation else "/workspace"
    work = tempfile.mkdtemp(prefix=f".{name}.", dir=parent)
    try:
        fresh = f"{work}/fresh"
        os.mkdir(fresh, 0o700)
        copy_out(client, sandbox.sandbox_id, f"{workspace}/.", fresh)
        with _alone(parent):
            with suppress(FileNotFoundError):
                os.rename(path, f"{work}/earlier")
            os.rename(fresh, path)
    finally:
        remove_tree(work)


@contextmanager
def _alone(directory: str) -> Iterator[None]:
    """Hold a lock on a directory, so that of copies at the same time each is in place once."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

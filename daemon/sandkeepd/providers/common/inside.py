"""Paths, variables, user and `/etc` of a sandbox whose root the daemon builds itself, with bubblewrap or `runsc`."""

import os
from collections.abc import Collection
from typing import Final

from sandkeep.errors import CallerError

HOME: Final = "/home/sandbox"
WORKSPACE: Final = "/workspace"
INSIDE: Final = "/run/sandkeep"
"""The directory inside a sandbox that it shares with the daemon."""

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MARK: Final = "SANDKEEP_SANDBOX"
"""The environment variable by which the processes of a sandbox are found without any other record."""
LOG_MARK: Final = "SANDKEEP_LOG"
"""The environment variable with the log's id. A sandbox's first processes have it, and those that run unisolated."""


def environment(sandbox_id: str) -> dict[str, str]:
    """Return the environment variables that every process starts with."""
    return {"PATH": PATH, "HOME": HOME, "USER": "sandbox", MARK: sandbox_id}


def marks(sandbox_id: str, log_id: str) -> dict[str, str]:
    """Return the environment variables by which the first processes of a sandbox are found."""
    return {MARK: sandbox_id, LOG_MARK: log_id} if log_id else {MARK: sandbox_id}


def inner_user(user: str | None) -> tuple[int, int]:
    """Return the uid and gid inside. Raises `invalid`."""
    if user is None:
        return 1000, 1000
    uid, colon, gid = user.partition(":")
    if not _is_id(uid) or (colon and not _is_id(gid)):
        raise CallerError("invalid", f"user: {user[:80]!r} is not a uid such as 1000, or uid:gid", field="user")
    return int(uid), int(gid) if colon else int(uid)


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def write_etc(
    directory: str, sandbox_id: str, uid: int, gid: int, *, host_network: bool, only: Collection[str] | None = None
) -> None:
    """Write the files of `/etc`, or `only` some, without facts about the host. With the host's network, its resolver's
    settings too.
    """
    os.mkdir(directory, 0o755)
    resolver = _host_resolver() if host_network else ""
    user = "" if uid == 0 else f"sandbox:x:{uid}:{gid}:sandbox:{HOME}:/bin/sh\n"
    group = "" if gid == 0 else f"sandbox:x:{gid}:\n"
    root = f"root:x:0:0:root:{HOME if uid == 0 else '/root'}:/bin/sh\n"
    texts = {
        "passwd": f"{root}{user}nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
        "group": f"root:x:0:\n{group}nogroup:x:65534:\n",
        "hosts": f"127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {sandbox_id[:63]}\n",
        "resolv.conf": resolver,
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    }
    for name in texts if only is None else only:
        with open(f"{directory}/{name}", "w", encoding="utf-8") as file:
            file.write(texts[name])


def _host_resolver() -> str:
    try:
        with open("/etc/resolv.conf", encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""

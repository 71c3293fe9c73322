"""Limits of resources that the kernel counts by user, and a sandbox's share of each.

Where sandboxes share one user, with each other or with the host's root, user namespaces separate them: the kernel
counts usage in a namespace both for its user there, with a ceiling of its own, and for the user outside.
"""

import os
from typing import Final

SHARE: Final = 8
"""A sandbox gets this fraction of the limit of the daemon's user: enough to watch some ten thousand files."""

_PLACE: Final = "/proc/sys/user"
_COUNTED: Final = ("inotify", "fanotify")


def ceilings() -> dict[str, int]:
    """Ceilings of a sandbox's user namespace, by the names of `/proc/sys/user`."""
    found = dict[str, int]()
    for name in os.listdir(_PLACE):
        if name.startswith("max_") and name.split("_")[1] in _COUNTED:
            with open(f"{_PLACE}/{name}", encoding="ascii") as file:
                found[name] = max(1, int(file.read()) // SHARE)
    return found

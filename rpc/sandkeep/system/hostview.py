"""The part of this machine's files that bubblewrap shows to jailed programs: the programs themselves."""

import os
from collections.abc import Iterator, Sequence
from typing import Final

LOADER: Final = ("/usr", "/etc/ld.so.cache")
"""Paths needed to start a program."""

_TOP_LINKS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


def bind_arguments(paths: Sequence[str] = LOADER) -> Iterator[str]:
    """Yield the arguments that bind existing `paths` of the host read-only. For ``/usr`` its links at the top, or
    directories on machines of another order, come with it.
    """
    for path in paths:
        if os.path.exists(path):
            yield from ("--ro-bind", path, path)
    for name in _TOP_LINKS:
        if os.path.islink(f"/{name}"):
            yield from ("--symlink", os.readlink(f"/{name}"), f"/{name}")
        elif os.path.isdir(f"/{name}"):
            yield from ("--ro-bind", f"/{name}", f"/{name}")

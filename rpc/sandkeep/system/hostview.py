"""What bubblewrap shows of this machine to programs that are to run, and to see little: the programs themselves."""

import os
from collections.abc import Iterator, Sequence
from typing import Final

LOADER: Final = ("/usr", "/etc/ld.so.cache")
"""What it takes to start a program."""

_TOP_LINKS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


def shown(paths: Sequence[str] = LOADER) -> Iterator[str]:
    """The arguments that show `paths` of the host, as far as they are there, to be read only. ``/usr`` is one of them:
    what leads there, or is it on machines of another order, comes with it.
    """
    for path in paths:
        if os.path.exists(path):
            yield from ("--ro-bind", path, path)
    for name in _TOP_LINKS:
        if os.path.islink(f"/{name}"):
            yield from ("--symlink", os.readlink(f"/{name}"), f"/{name}")
        elif os.path.isdir(f"/{name}"):
            yield from ("--ro-bind", f"/{name}", f"/{name}")

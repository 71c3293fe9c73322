"""Writable shared mappings of processes: files they may change without a system call.

Once such a page was written to, the kernel does not notice further writes until it has flushed the page. So a file's
times are unreliable while it is mapped.
"""

import re
from collections.abc import Iterable
from typing import Final

MOST_BYTES: Final = 32 * 1024 * 1024
"""Maximum bytes read of the kernel's lists of mappings, of all processes together."""

_SHARED: Final = re.compile(rb"^\S+ .w.s \S+ \S+ \S+ +(/.*)$", re.MULTILINE)
_ESCAPE: Final = re.compile(rb"\\012")


def mapped_files(pids: Iterable[int], directory: str) -> set[bytes] | None:
    """Return paths below `directory` that the processes can write to in memory; None if too many. Blocks."""
    found: set[bytes] = set()
    above = directory.encode().rstrip(b"/") + b"/"
    left = MOST_BYTES
    for pid in pids:
        content = _maps(pid, left)
        left -= len(content)
        if left <= 0:
            return None
        paths = (_ESCAPE.sub(b"\n", path) for path in _SHARED.findall(content))
        found.update(path.removeprefix(above) for path in paths if path.startswith(above))
    return found


def _maps(pid: int, most: int) -> bytes:
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            return file.read(most)
    except OSError:  # it has ended
        return b""

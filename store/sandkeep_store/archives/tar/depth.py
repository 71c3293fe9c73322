"""The maximum depth of a tree that is copied, packed, unpacked or compared, in names and in bytes.

GNU cp and others resolve the whole path of each file: the time for a chain of directories grows with the square of its
length, and beyond PATH_MAX, 4,096 bytes, no path reaches the end: a few thousand empty files below 500 long names have
half a gigabyte of paths. Deeper trees may exist in a sandbox, which `rm` removes.
"""

from typing import Final

from sandkeep.errors import StateError
from sandkeep_store.archives.tar.members import shown

MOST_LEVELS: Final = 512
"""Maximum number of names in a path."""

MOST_BYTES: Final = 3840
"""Maximum size of a path: it is a part of the path of a file on the host, or in another sandbox."""

SHALLOW: Final = MOST_BYTES // 256
"""Number of levels at which no path can be too long yet: a name has at most 255 bytes."""


def require_depth(name: bytes) -> None:
    """Raise `tree_too_deep` for the path of a file that is too deep in its tree."""
    if name.count(b"/") >= MOST_LEVELS:
        raise _too_deep(name)


def require_path(name: bytes) -> None:
    """Raise `tree_too_deep` for the path of a file in a sandbox that is too deep in its tree, or too long."""
    if len(name) > MOST_BYTES or name.count(b"/") >= MOST_LEVELS:
        raise _too_deep(name)


def _too_deep(name: bytes) -> StateError:
    top = b"/".join(name.removeprefix(b"./").split(b"/", 3)[:3])
    is_long = len(name) > MOST_BYTES
    what = f"paths of more than {MOST_BYTES} bytes" if is_long else f"more than {MOST_LEVELS} levels of directories"
    message = f"below {shown(top)} there are {what}: remove or flatten the directories"
    return StateError("tree_too_deep", message)

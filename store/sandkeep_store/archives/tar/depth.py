"""The maximum depth of a tree that is copied, packed, unpacked or compared.

GNU cp and others resolve the whole path of each file: the time for a chain of directories grows with the square of its
length, and beyond 2,047 levels no path reaches the end. Deeper trees may exist in a sandbox, which `rm` removes.
"""

from typing import Final

from sandkeep.errors import StateError
from sandkeep_store.archives.tar.members import shown

MOST_LEVELS: Final = 512
"""Maximum number of names in a path."""


def require_depth(name: bytes) -> None:
    """Raise `tree_too_deep` for the path of a file that is too deep in its tree."""
    if name.count(b"/") >= MOST_LEVELS:
        raise too_deep(name)


def too_deep(name: bytes) -> StateError:
    """Return the error for a tree with that path in it."""
    top = b"/".join(name.removeprefix(b"./").split(b"/", 3)[:3])
    message = f"below {shown(top)} there are more than {MOST_LEVELS} levels of directories: remove or flatten them"
    return StateError("tree_too_deep", message)

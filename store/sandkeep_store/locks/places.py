"""The parts of a place of locks, one for each owner. Pure.

Lock names are private to an owner: his locks lie in a part of his own, so that he neither waits for others' locks nor
sees them. Those of root, and of the user as whom the daemon runs, lie in the place itself, where other programs look
for them.
"""

import os
import re
from typing import Final

_PART: Final = re.compile(r"(.+)/(owners/[a-z]+-[^/]+)")


def part_of(where: str, owner: str) -> str:
    """Return an owner's part of a place; for root and the daemon's user, the place itself."""
    return where if owner in ("uid:0", f"uid:{os.geteuid()}") else f"{where}/owners/{owner.replace(':', '-')}"


def belongs_to_another(where: str, owner: str) -> bool:
    """Return True if a place is the part of another owner."""
    whole, part = split(where)
    return bool(part) and where != part_of(whole, owner)


def split(where: str) -> tuple[str, str]:
    """A place as the whole and the owner's part in it, which is empty for the whole."""
    found = _PART.fullmatch(where)
    return (found[1], found[2]) if found is not None else (where, "")

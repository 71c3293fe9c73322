"""The parts of a place of locks, one for each owner. Pure.

An owner's names are his own: his locks lie in a part of the place that is his, so that he neither waits for anybody
else's nor learns of it. Those of root, or of whoever's own daemon it is, lie where all programs look for them.
"""

import os
import re
from typing import Final

_PART: Final = re.compile(r"(.+)/(owners/[a-z]+-[0-9]+)")


def part_of(where: str, owner: str) -> str:
    """The name of what of a place is an owner's; of root, and of whom the daemon runs as, it is the place itself."""
    return where if owner in ("uid:0", f"uid:{os.geteuid()}") else f"{where}/owners/{owner.replace(':', '-')}"


def is_anothers(where: str, owner: str) -> bool:
    """Tell if a place is the part of somebody else than an owner."""
    whole, part = split(where)
    return bool(part) and where != part_of(whole, owner)


def split(where: str) -> tuple[str, str]:
    """A place as the whole and the owner's part in it, which is empty for the whole."""
    found = _PART.fullmatch(where)
    return (found[1], found[2]) if found is not None else (where, "")

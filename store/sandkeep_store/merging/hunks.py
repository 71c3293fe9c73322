"""Clashes as they are shown: decoded, and cut."""

from collections.abc import Sequence
from typing import Final

from sandkeep_store.merging.model import MOST_SHOWN_BYTES, ShownHunk
from sandkeep_store.merging.text import Clash

MOST_IN_ALL: Final = 16 << 20
"""Size of the text in the hunks of all conflicts of a merge; further ones have none."""


class Shown:
    """Makes hunks for all conflicts of one merge, as long as there is room."""

    def __init__(self) -> None:
        self._room = MOST_IN_ALL

    def hunks(self, clashes: Sequence[Clash], names: Sequence[str]) -> tuple[list[ShownHunk], bool]:
        """Return the hunks of a conflict, and True if they are cut."""
        left = most = min(MOST_SHOWN_BYTES, self._room)
        hunks: list[ShownHunk] = []
        for clash in clashes:
            if left <= 0:
                break
            base, left = _decoded(clash.base, left)
            branches: dict[str, list[str]] = {}
            for number, lines in clash.versions.items():
                branches[names[number]], left = _decoded(lines, left)
            hunks.append(ShownHunk(start=clash.start, base=base, branches=branches))
        self._room -= most - max(left, 0)
        return hunks, left < 0 or len(hunks) < len(clashes)


def _decoded(lines: Sequence[bytes], left: int) -> tuple[list[str], int]:
    """Decode lines while there is room; return what room is left then, less than none if lines were cut."""
    found: list[str] = []
    for line in lines:
        if left < 0:
            break
        found.append(line[: left + 1].decode("utf-8", "backslashreplace"))
        left -= len(line) + 1
    return found, left

"""Which names of a source are one file: needed before its members come, when some of the names will not count."""

import os
import stat
from typing import Final

from sandkeep_store.archives.members import Member, corrupt

MAX_BYTES: Final = 64 << 20
"""How much memory the names may take."""
_NAME_BYTES: Final = 200


class HardLinks:
    """For each name that is not its file's only one: all of them. Whoever has one of the lists, has them all."""

    def __init__(self) -> None:
        self._groups: dict[bytes, list[bytes]] = {}
        self._bytes = 0

    def add(self, member: Member) -> None:
        """Take a member of an archive. Raises `snapshot_corrupt` when there are too many."""
        if member.kind == "hard link":
            self.join(member.target, member.name)

    def join(self, name: bytes, other: bytes) -> None:
        """Say that two names are one file."""
        group = self._groups.setdefault(name, [name])
        if self._groups.setdefault(other, group) is group and other not in group[-1:] and other != name:
            group.append(other)
            self._bytes += _NAME_BYTES + len(other)
        if self._bytes > MAX_BYTES:
            raise corrupt("cannot be combined with others: it has too many hard links", other)

    def of(self, name: bytes) -> list[bytes] | None:
        """The names of a file; None when it has no other."""
        return self._groups.get(name)

    def __bool__(self) -> bool:
        return bool(self._groups)


def in_tree(top: int) -> HardLinks:
    """The hard links of an open directory. Blocks."""
    found = HardLinks()
    first: dict[tuple[int, int], bytes] = {}
    for directory, _, names, opened in os.fwalk(b".", dir_fd=top):
        for name in names:
            status = os.stat(name, dir_fd=opened, follow_symlinks=False)
            if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                path = os.path.join(directory, name).removeprefix(b"./")
                found.join(first.setdefault((status.st_dev, status.st_ino), path), path)
    return found

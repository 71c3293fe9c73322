"""Hard links of a source: the groups of names of one file. Needed before its members are read, as some names may be
hidden.
"""

import subprocess
from typing import Final

from sandkeep.errors import ProviderError
from sandkeep_store.archives.tar.members import Member, corrupt

MAX_BYTES: Final = 64 << 20
"""Maximum memory for the names, in bytes."""
_NAME_BYTES: Final = 200


class HardLinks:
    """For each name of a file with several: the list of all of them, shared between the names."""

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
    """The hard links of an open directory, which may be of any depth. Blocks."""
    found = HardLinks()
    first: dict[tuple[bytes, bytes], bytes] = {}
    argv = ["find", ".", "!", "-type", "d", "-links", "+1", "-printf", r"%D %i %P\0"]
    with subprocess.Popen(
        argv, cwd=f"/proc/self/fd/{top}", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
    ) as finder:  # fmt: skip
        assert finder.stdout is not None
        content = finder.stdout.read()
    if finder.returncode:
        raise ProviderError("provider_unavailable", "the image's files cannot be listed: try again")
    for line in content.split(b"\0")[:-1]:
        device, inode, path = line.split(b" ", 2)
        found.join(first.setdefault((device, inode), path), path)
    return found

"""Consistency checks over the members of an archive: no path goes through a link, and no name has two types.

The effect of the archive on a disk is tracked in memory, 16 bytes a name: keyed hashes, so that an attacker cannot
construct collisions.
"""

from array import array
from typing import Final

from sandkeep_store.archives.tar.members import TOP, Kind, Member, corrupt, shown

_DIRECTORY, _FILE, _LINK, _DEVICE = 1, 2, 3, 4
_CODES: Final[dict[Kind, int]] = {
    "directory": _DIRECTORY, "file": _FILE, "fifo": _FILE, "symlink": _LINK, "character device": _DEVICE,
    "block device": _DEVICE,
}  # fmt: skip
_WORDS: Final = ("nothing", "a directory", "a file", "a symbolic link", "a device")
_HASH: Final = (1 << 64) - 8
"""The bits of an entry that are the hash; the others are the code."""

_SMALL: Final = 1 << 12


class Names:
    """A code for each of many names. Two names count as one in one of 10^8 archives with a million members."""

    def __init__(self) -> None:
        self._table = array("Q", bytes(8 * _SMALL))
        self._mask = _SMALL - 1
        self._used = 0

    def get(self, name: bytes) -> int:
        """The code of a name; 0 for one that was not set."""
        return self._table[self._place(hash(name) & _HASH)] & 7

    def set(self, name: bytes, code: int) -> None:
        """Set the code of a name."""
        wanted = hash(name) & _HASH
        place = self._place(wanted)
        if not self._table[place]:
            self._used += 1
        self._table[place] = wanted | code
        if self._used * 2 > self._mask:
            self._grow()

    def _place(self, wanted: int) -> int:
        table, mask = self._table, self._mask
        place = wanted >> 3 & mask
        while (found := table[place]) and found & _HASH != wanted:
            place = place + 1 & mask
        return place

    def _grow(self) -> None:
        old = self._table
        self._table = array("Q", bytes(2 * len(old) * 8))
        self._mask = len(self._table) - 1
        for entry in old:
            if entry:
                self._table[self._place(entry & _HASH)] = entry


class Contents:
    """The members of one archive so far.

    Where a symbolic link leads does not matter: it is content, which means something inside the sandbox only.
    """

    def __init__(self) -> None:
        self._names = Names()
        self._parent = b""
        self.duplicates = 0

    def add(self, member: Member) -> int:
        """Take one more; answer how many directories above it are there by that only.

        Raises `snapshot_corrupt` when it does not fit.
        """
        name, kind = member.name, member.kind
        if name == TOP:
            if kind != "directory":
                raise corrupt(f"is not safe to extract: its top is a {kind}")
            return 0
        parent = name.rpartition(b"/")[0]
        implied = 0
        if parent != self._parent:
            implied = self._go_into(parent, name)
            self._parent = parent
        code = self._code_of_target(member) if kind == "hard link" else _CODES[kind]
        before = self._names.get(name)
        if not before:
            self._names.set(name, code)
        elif before != code:
            raise corrupt(f"is not safe to extract: {shown(name)} is {_WORDS[before]} and then {_WORDS[code]}", name)
        elif code != _DIRECTORY:
            self.duplicates += 1
        return implied

    def _go_into(self, parent: bytes, name: bytes) -> int:
        """See that nothing above a name is other than a directory; answer how many of these were not there."""
        implied = 0
        while parent and (code := self._names.get(parent)) != _DIRECTORY:
            if code:
                raise corrupt(
                    f"is not safe to extract: {shown(name)} goes through {shown(parent)}, which is {_WORDS[code]}", name
                )
            self._names.set(parent, _DIRECTORY)
            implied += 1
            parent = parent.rpartition(b"/")[0]
        return implied

    def _code_of_target(self, member: Member) -> int:
        code = self._names.get(member.target)
        if code not in (_FILE, _LINK) or member.target == member.name:
            raise corrupt(
                f"is not safe to extract: {shown(member.name)} is a hard link to {shown(member.target)}, "
                "which is no file that came before it",
                member.name,
            )
        return code

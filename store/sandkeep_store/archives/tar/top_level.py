"""The kind of files in an archive, by the names at its top: those of a workspace, or of a whole root file system."""

from typing import Final, Literal

from sandkeep_store.archives.tar.members import Member

Files = Literal["workspace", "root"]

WORKSPACES: Final = (b"workspace", b"workspaces")
"""The directories that `tar -C / workspace` puts above everything: that of containers, and AstraForge's of pods."""

_OF_A_ROOT: Final = frozenset({b"etc", b"usr"})


class TopLevel:
    """The names at the top of an archive, in memory that does not depend on their number.

    A root has ``etc`` and ``usr``, or the directory `beside`, unless that is None: the workspace in the root.
    """

    def __init__(self, beside: bytes | None) -> None:
        self._beside = beside.partition(b"/")[0] if beside is not None else None
        self._found: set[bytes] = set()
        self._first: bytes | None = None
        self.is_in_workspace = True
        """True if all members are one of `WORKSPACES` and what is below it, so that this is no part of their names.

        An archive with a member for its own top, ``.``, says where its names begin.
        """

    def add(self, member: Member) -> None:
        """Take one more member."""
        first, slash, _ = member.name.partition(b"/")
        is_directory = bool(slash) or member.kind == "directory"
        self._first = first if self._first is None else self._first
        if first not in WORKSPACES or first != self._first or not is_directory:
            self.is_in_workspace = False
        if first in _OF_A_ROOT or (first == self._beside and is_directory):
            self._found.add(first)

    @property
    def files(self) -> Files:
        """The kind of files."""
        is_root = self._found >= _OF_A_ROOT or self._beside in self._found
        return "root" if is_root and not self.is_in_workspace else "workspace"

"""Changes of a commit, in memory and as JSON.

Paths and link targets are bytes; in JSON they are Latin-1, one character for each byte.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

Kind: TypeAlias = Literal["file", "directory", "symlink"]

PERMISSIONS: Final = 0o777
"""The bits of a mode that are compared and set. A branch sets no set-uid bit on the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file, directory or symbolic link. A new file's content is at `offset` in the file of contents."""

    kind: Kind
    mode: int = 0
    size: int = 0
    sha256: str = ""
    target: bytes = b""
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The difference at one path, relative to the target: `old` in the branch's base, `new` in the branch."""

    path: bytes
    old: Entry | None
    new: Entry | None

    @property
    def sets_mode(self) -> bool:
        """Return True if the branch chose the mode: the entry is new or of a new kind, or its mode was changed."""
        if self.new is None or self.new.kind == "symlink":
            return False
        if self.old is None or self.old.kind != self.new.kind:
            return True
        return (self.old.mode ^ self.new.mode) & PERMISSIONS != 0


def change_to_json(change: Change) -> list[Any]:
    """Return the change as JSON values."""
    return [change.path.decode("latin-1"), _entry_to_json(change.old), _entry_to_json(change.new)]


def change_from_json(values: list[Any]) -> Change:
    """Return the change of `change_to_json`."""
    path, old, new = values
    return Change(path=path.encode("latin-1"), old=_entry_from_json(old), new=_entry_from_json(new))


def _entry_to_json(entry: Entry | None) -> list[Any] | None:
    if entry is None:
        return None
    target = entry.target.decode("latin-1")
    return [entry.kind, entry.mode, entry.size, entry.sha256, target, entry.offset]


def _entry_from_json(values: list[Any] | None) -> Entry | None:
    if values is None:
        return None
    kind, mode, size, sha256, target, offset = values
    return Entry(kind=kind, mode=mode, size=size, sha256=sha256, target=target.encode("latin-1"), offset=offset)

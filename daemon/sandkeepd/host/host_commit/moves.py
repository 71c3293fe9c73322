"""Steps of a commit, each one atomic call, forward and back.

A step has a slot of the staging directory. Before `create` and `replace` the slot holds the new entry; after `replace`
and `remove` it holds the old one. So the slot tells whether a step was made, also after a crash, and a step back can be
repeated. A `mode` step has no slot: the mode itself tells.
"""

import os
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

from sandkeep.system.libc import exchange, move
from sandkeepd.host.host_commit.changes import PERMISSIONS
from sandkeepd.host.host_commit.staging import Staging
from sandkeepd.host.host_commit.tree import Seen, Tree, digest, entries, look, set_permissions

Act: TypeAlias = Literal["create", "replace", "remove", "mode"]

IMPLICIT: Final = -1
"""The place of a step that belongs to no change: a directory that the host lacks above a forced path."""


class ChangedError(Exception):
    """The host changed an entry between its inspection and its step."""

    def __init__(self, place: int, why: str) -> None:
        super().__init__(why)
        self.place = place
        self.why = why


@dataclass(slots=True, kw_only=True)
class Step:
    """A step. `old` is the entry that is there before; the others describe the new one: its identity and content."""

    act: Act
    place: int
    slot: int
    path: bytes
    old: Seen | None = None
    mode: int = 0
    kind: str = ""
    inode: int = 0
    size: int = 0
    sha256: str = ""
    target: bytes = b""

    @property
    def name(self) -> bytes:
        """The name of its slot."""
        return b"%d" % self.slot

    def to_json(self) -> dict[str, Any]:
        """Return the step for the journal."""
        return {**asdict(self), "path": self.path.decode("latin-1"), "target": self.target.decode("latin-1")}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Step":
        """Return the step of `to_json`. Raises TypeError, KeyError."""
        old = Seen(**values["old"]) if values["old"] is not None else None
        path, target = (values[key].encode("latin-1") for key in ("path", "target"))
        return cls(**{**values, "old": old, "path": path, "target": target})


@dataclass(frozen=True, slots=True)
class Kept:
    """A path that undoing left as the host has it now; `slot` holds its old entry, if there is one to keep."""

    path: bytes
    why: str
    slot: int | None


class Moves:
    """Makes steps, and takes them back, between a tree and a staging directory."""

    def __init__(self, tree: Tree, staging: Staging) -> None:
        self._tree = tree
        self._slots = staging.slots

    # -- forward ------------------------------------------------------------------------------------------------------

    def make(self, step: Step) -> bool:
        """Make a step; False for a directory that is not empty, and stays. Raises ChangedError, OSError."""
        try:
            with self._tree.parent(step.path) as (parent, name):
                forward = {
                    "create": self._create,
                    "replace": self._replace,
                    "remove": self._remove,
                    "mode": self._set_mode,
                }
                return forward[step.act](step, parent, name)
        except FileNotFoundError:
            raise ChangedError(step.place, "missing") from None
        except FileExistsError:
            raise ChangedError(step.place, "exists") from None

    def _create(self, step: Step, parent: int, name: bytes) -> bool:
        move(self._slots, step.name, parent, name)
        return True

    def _replace(self, step: Step, parent: int, name: bytes) -> bool:
        self._check(step, look(parent, name))
        assert step.old is not None
        if step.old.kind == "directory" and entries(parent, name):
            raise ChangedError(step.place, "content")
        exchange(self._slots, step.name, parent, name)
        moved = look(self._slots, step.name)
        if not step.old.is_moved(moved) or not self._is_empty(step.name, moved):
            exchange(self._slots, step.name, parent, name)
            raise ChangedError(step.place, "content")
        return True

    def _remove(self, step: Step, parent: int, name: bytes) -> bool:
        self._check(step, look(parent, name))
        assert step.old is not None
        if step.old.kind == "directory" and entries(parent, name):
            return False
        move(parent, name, self._slots, step.name)
        moved = look(self._slots, step.name)
        same, empty = step.old.is_moved(moved), self._is_empty(step.name, moved)
        if not same or not empty:
            move(self._slots, step.name, parent, name)
        if not same:
            raise ChangedError(step.place, "content")
        return empty

    def _set_mode(self, step: Step, parent: int, name: bytes) -> bool:
        assert step.old is not None
        if not set_permissions(parent, name, step.old, step.mode):
            raise ChangedError(step.place, "mode")
        return True

    def _check(self, step: Step, now: Seen | None) -> None:
        if now is None:
            raise ChangedError(step.place, "missing")
        if step.old is None or not step.old.is_same(now):
            raise ChangedError(step.place, "content" if step.old and now.kind == step.old.kind else "kind")

    def _is_empty(self, slot: bytes, seen: Seen | None) -> bool:
        return seen is None or seen.kind != "directory" or not entries(self._slots, slot)

    def check_slot(self, step: Step) -> None:
        """Raise ChangedError if the old entry in the slot was changed, through a file that was open before."""
        if step.act in ("replace", "remove") and step.old and not step.old.is_moved(look(self._slots, step.name)):
            raise ChangedError(step.place, "content")

    # -- back ---------------------------------------------------------------------------------------------------------

    def take_back(self, step: Step) -> Kept | None:
        """Take a step back if it was made; return what the host's own changes keep from that. Raises OSError."""
        if step.act == "mode":
            return self._reset_mode(step)
        held = look(self._slots, step.name)
        is_new = held is not None and held.inode == step.inode
        if is_new or (held is None and step.act == "remove"):
            return None
        slot = step.slot if held is not None else None
        try:
            with self._tree.parent(step.path) as (parent, name):
                back = {"create": self._uncreate, "replace": self._unreplace, "remove": self._unremove}
                why = back[step.act](step, parent, name)
        except FileNotFoundError:
            why = "missing"
        except FileExistsError:
            why = "exists"
        return Kept(step.path, why, slot) if why else None

    def backup_of(self, step: Step) -> int | None:
        """Return the slot of a step if it holds the old entry. Raises OSError."""
        held = look(self._slots, step.name)
        return step.slot if held is not None and held.inode != step.inode else None

    def put_back(self, slot: bytes, path: bytes) -> bool:
        """Move a directory from a slot to its old path, if nothing is there."""
        try:
            with self._tree.parent(path) as (parent, name):
                move(self._slots, slot, parent, name)
        except OSError:
            return False
        return True

    def _reset_mode(self, step: Step) -> Kept | None:
        old = step.old
        assert old is not None
        try:
            with self._tree.parent(step.path) as (parent, name):
                now = look(parent, name)
                if now is None or (now.device, now.inode, now.kind) != (self._tree.device, old.inode, old.kind):
                    return None
                if (now.mode ^ step.mode) & PERMISSIONS:
                    return None  # never set, or set again by the host
                if now.kind == "file" and (now.size, now.mtime_ns) != (old.size, old.mtime_ns):
                    return Kept(step.path, "content", None)  # maybe another file, with a secret, and its old inode
                set_permissions(parent, name, now, old.mode)
        except FileNotFoundError:
            return None
        return None

    def _uncreate(self, step: Step, parent: int, name: bytes) -> str:
        now = look(parent, name)
        if now is None:
            return "missing"
        if not self._is_ours(step, parent, name, now):
            return "content"
        move(parent, name, self._slots, step.name)
        if self._is_ours(step, self._slots, step.name, look(self._slots, step.name)):
            return ""
        move(self._slots, step.name, parent, name)
        return "content"

    def _unreplace(self, step: Step, parent: int, name: bytes) -> str:
        if not self._is_old(step):
            return "backup_missing"
        now = look(parent, name)
        if now is None:
            return "missing"
        if not self._is_ours(step, parent, name, now):
            return "content"
        exchange(self._slots, step.name, parent, name)
        if self._is_ours(step, self._slots, step.name, look(self._slots, step.name)):
            return ""
        exchange(self._slots, step.name, parent, name)
        return "content"

    def _unremove(self, step: Step, parent: int, name: bytes) -> str:
        if not self._is_old(step):
            return "backup_missing"
        move(self._slots, step.name, parent, name)
        return ""

    def _is_old(self, step: Step) -> bool:
        """Return True if the slot holds the entry that the commit moved there."""
        held = look(self._slots, step.name)
        return held is not None and step.old is not None and (held.inode, held.kind) == (step.old.inode, step.old.kind)

    def _is_ours(self, step: Step, parent: int, name: bytes, seen: Seen | None) -> bool:
        """Return True if the entry is the one that the commit put there, with its content."""
        # Not the journal's device: its number may be another one since the machine was started again.
        if seen is None or (seen.device, seen.inode, seen.kind) != (self._tree.device, step.inode, step.kind):
            return False
        if seen.kind == "directory":
            return not entries(parent, name)
        if seen.kind == "symlink":
            return os.readlink(name, dir_fd=parent) == step.target
        try:
            return seen.size == step.size and digest(parent, name, seen) == step.sha256
        except PermissionError:  # the host made it unreadable
            return False

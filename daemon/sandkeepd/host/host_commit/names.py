"""Paths that no commit may touch, whatever the daemon asks for."""

import os
import re
from collections.abc import Callable, Collection, Iterator
from typing import Final

STAGING_PREFIX: Final = b".sandkeep-commit-"

# What Unicode calls default-ignorable: a case-insensitive directory may compare names without these.
_IGNORABLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_GIT: Final = (".git", "git~1")  # the second is its short name on FAT and NTFS
_MARKS: Final = ("head", "objects", "refs", "commondir")


def why_forbidden(path: bytes) -> str | None:
    """Return why a commit may not touch the path, or None: absolute, empty, dots, git, staging."""
    if path.startswith(b"/"):
        return "absolute"
    parts = path.split(b"/")
    if b"" in parts or b"\0" in path:
        return "empty"
    if b"." in parts or b".." in parts:
        return "dots"
    if any(is_git(part) for part in parts):
        return "git"
    if any(part.lower().startswith(STAGING_PREFIX) for part in parts):
        return "staging"
    return None


def is_git(name: bytes) -> bool:
    """Return True for ``.git`` in any spelling that some file system takes for it: git runs programs named there."""
    return _folded(name) in _GIT


def _folded(name: bytes) -> str:
    """Return the name as the file systems compare it that take most names for the same."""
    text = name.decode("utf-8", "ignore")
    if not name.isascii():
        text = _IGNORABLE.sub("", text)
    return text.casefold().split(":")[0].rstrip(" .")


def folded_mark(path: bytes) -> tuple[str, ...] | None:
    """Return the folded components of a path whose last one is of a bare repository; None for other paths."""
    if _folded(path.rpartition(b"/")[2]) not in _MARKS:
        return None
    return tuple(map(_folded, path.split(b"/")))


class Repositories:
    """Directories that git takes for a bare repository, by the names in them: it obeys the configuration there. `has`
    returns True if something has a path.
    """

    def __init__(self, has: Callable[[bytes], bool]) -> None:
        self._has = has
        self._inside: dict[bytes, bool] = {}

    def contain(self, path: bytes) -> bool:
        """Return True if the path is beneath one, at any depth. The top is the empty path."""
        inside = self._inside.get(parent_of(path))
        if inside is None:
            inside = False
            for directory in (b"", *ancestors(path)):
                inside = self._inside[directory] = inside or self._is_one(directory)
        return inside

    def _is_one(self, directory: bytes) -> bool:
        def has(name: str) -> bool:
            return self._has(os.path.join(directory, name.encode("ascii")))

        return has("HEAD") and (has("commondir") or (has("objects") and has("refs")))


def ancestors(path: bytes) -> Iterator[bytes]:
    """Yield the directories above a relative path, the outermost first; not the target itself."""
    end = path.find(b"/")
    while end >= 0:
        yield path[:end]
        end = path.find(b"/", end + 1)


def parent_of(path: bytes) -> bytes:
    """Return the path of the directory that holds `path`; empty for the target."""
    return path.rpartition(b"/")[0]


def depth(path: bytes) -> int:
    """Return the number of directories above the path."""
    return path.count(b"/")


def staging_id(names: Collection[bytes]) -> str | None:
    """Return the id in the first of these names that a staging directory could have."""
    for name in sorted(names):
        if name.startswith(STAGING_PREFIX):
            return name[len(STAGING_PREFIX) :].decode("latin-1")
    return None

"""Paths that no commit may touch, whatever the daemon asks for."""

import re
from collections.abc import Collection, Iterator
from typing import Final

STAGING_PREFIX: Final = b".sandkeep-commit-"

# What Unicode calls default-ignorable: a case-insensitive directory may compare names without these.
_IGNORABLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_GIT: Final = (".git", "git~1")  # the second is its short name on FAT and NTFS


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
    text = name.decode("utf-8", "ignore")
    if not name.isascii():
        text = _IGNORABLE.sub("", text)
    return text.casefold().split(":")[0].rstrip(" .") in _GIT


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

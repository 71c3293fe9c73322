"""Whiteouts: the names by which OCI layers mark deletions.

``dir/.wh.NAME`` in a layer deletes ``dir/NAME`` and its contents from the layers below; ``dir/.wh..wh..opq`` hides all
that these have in ``dir``. No file may have such a name.
"""

from typing import Final

from sandkeep.errors import CallerError
from sandkeep_store.archives.tar.members import Member, corrupt, shown

PREFIX: Final = b".wh."
OPAQUE: Final = b".wh..wh..opq"


def whiteout(name: bytes) -> bytes:
    """The name by which a layer says that `name` is gone. Raises `invalid` for one of which no layer can."""
    if is_reserved(name):
        message = f"{shown(name)} was deleted, and layers cannot record that of names with .wh.: make a full snapshot"
        raise CallerError("invalid", message, member=shown(name)[1:-1])
    directory, slash, last = name.rpartition(b"/")
    return directory + slash + PREFIX + last


def opaque(directory: bytes) -> bytes:
    """The name by which a layer says that nothing below counts in a directory."""
    return OPAQUE if directory == b"." else directory + b"/" + OPAQUE


def is_reserved(name: bytes) -> bool:
    """Return True if a name contains the whiteout prefix at any depth, and so cannot be a file's name."""
    return name.startswith(PREFIX) or b"/" + PREFIX in name


def check_whiteout(member: Member) -> None:
    """Raise `snapshot_corrupt` for a name that begins like one of these, but is none."""
    if not is_reserved(member.name):
        return
    directory, _, last = member.name.rpartition(b"/")
    gone = last.removeprefix(PREFIX)
    if is_reserved(directory) or gone == last or gone in (b"", b".", b".."):
        raise _nonsense(member)
    if gone.startswith(PREFIX) and last != OPAQUE:
        raise _nonsense(member)
    if member.kind != "file" or member.whole_size:
        raise _nonsense(member)


def _nonsense(member: Member) -> Exception:
    return corrupt(f"is not safe to extract: {shown(member.name)} is no valid whiteout", member.name)


def deleted_path(name: bytes) -> bytes | None:
    """Return the path that a whiteout deletes, with a final slash for an opaque directory; None for a file."""
    directory, slash, last = name.rpartition(b"/")
    if not last.startswith(PREFIX):
        return None
    return (directory or b".") + b"/" if last == OPAQUE else directory + slash + last.removeprefix(PREFIX)

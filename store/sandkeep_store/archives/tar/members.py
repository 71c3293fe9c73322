"""Members of an archive, and rules for their names."""

from array import array
from typing import Final, Literal

from msgspec import Struct, field

from sandkeep.errors import DataError, SandkeepError

Kind = Literal["file", "directory", "symlink", "hard link", "fifo", "character device", "block device"]

TOP: Final = b"."
"""The name of the tree itself."""

MAX_NAME_BYTES: Final = 4095
"""Maximum length of a path in the kernel (PATH_MAX without the NUL)."""
_MAX_PART_BYTES: Final = 255

_SHOWN_CHARACTERS: Final = 200


class Member(Struct, kw_only=True):
    """One thing in a tree.

    `name` is relative to the top, without ``.``, ``..`` and needless slashes; a link's `target` is as it was written,
    a hard link's a name like `name`. `size` is how many bytes follow in the archive, `whole_size` how long the file is:
    more, when it has holes. Then `extents` holds pairs of offset and length.
    """

    name: bytes
    kind: Kind
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    size: int = 0
    whole_size: int = 0
    target: bytes = b""
    device: tuple[int, int] = (0, 0)
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    extents: "array[int] | None" = None


def shown(name: bytes) -> str:
    """A name as it is put into a sentence: short, and of printable characters only."""
    text = name.decode("utf-8", "backslashreplace")
    text = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
    if len(text) > _SHOWN_CHARACTERS:
        text = f"{text[: _SHOWN_CHARACTERS // 2]}...{text[-_SHOWN_CHARACTERS // 2 :]}"
    return f"'{text}'"


def corrupt(sentence: str, member: bytes | None = None) -> SandkeepError:
    """The error for an archive that is damaged or not safe to extract."""
    data = {} if member is None else {"member": shown(member)[1:-1]}
    return DataError("snapshot_corrupt", f"the archive {sentence}", **data)


def normalized_name(raw: bytes) -> bytes:
    """The name of a member, as all else here has it. Raises `snapshot_corrupt` for one that leads elsewhere."""
    if raw[:1] == b"/":
        raise corrupt(f"is not safe to extract: {shown(raw)} is an absolute path", raw)
    parts = raw.split(b"/")
    if b".." in parts:
        raise corrupt(f"is not safe to extract: {shown(raw)} leads upwards", raw)
    if not raw or b"\0" in raw:
        raise corrupt(f"is damaged: {shown(raw)} is no name", raw)
    if b"" in parts or b"." in parts:
        parts = [part for part in parts if part not in (b"", b".")]
        raw = b"/".join(parts) or TOP
    return raw


def is_too_long(name: bytes) -> bool:
    """Return True if a name, or a component of it, is longer than the kernel allows."""
    if len(name) <= _MAX_PART_BYTES:
        return False
    return len(name) > MAX_NAME_BYTES or max(map(len, name.split(b"/"))) > _MAX_PART_BYTES


def is_archived(xattr: bytes) -> bool:
    """Return True for an extended attribute that archives store: ``user.*`` except those of overlayfs."""
    return xattr.startswith(b"user.") and not xattr.startswith(b"user.overlay.")

"""Identifiers: prefixed, time-ordered and safe in a URL, a file name and a shell word.

An id is a three-letter prefix that names its kind, an underscore, and 26 characters of Crockford's base 32 in lower
case: 48 bits of milliseconds since 1970 and 80 random bits (the layout of a ULID, https://github.com/ulid/spec).
Sorting ids as text sorts them by the time they were made.

A caller chooses names: of a sandbox, unique among its owner's that have not ended; of a process, unique among those of
its sandbox that have not ended. Names and ids follow one rule, `NAME_PATTERN`, but no name looks like an id
(`check_new_name`). Images have names of their own, `IMAGE_NAME_PATTERN`, as those of other engines; an artifact's name
is that of a file, `FILE_NAME_PATTERN`.
"""

import os
import re
import time
from typing import Final

from sandkeep.errors import CallerError

IMAGE: Final = "img"
SANDBOX: Final = "sbx"
PROCESS: Final = "prc"
SNAPSHOT: Final = "snp"
CHECKPOINT: Final = "ckp"
SESSION: Final = "ses"
ARTIFACT: Final = "art"
VOLUME: Final = "vol"
"""Of the creation, or the removal, of a named volume."""
LOCK: Final = "lck"
FORK: Final = "frk"
MERGE: Final = "mrg"
COMMIT: Final = "cmt"
POINT: Final = "pnt"
"""Of the files that a sandbox had at one moment, kept for a comparison or a merge."""

PREFIXES: Final = frozenset(
    {IMAGE, SANDBOX, PROCESS, SNAPSHOT, CHECKPOINT, SESSION, ARTIFACT, VOLUME, LOCK, FORK, MERGE, COMMIT, POINT}
)

# `$` alone would also accept a final newline in Python; `(?!\n)` means the same in Python and in JSON Schema's dialect.
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$(?!\n)"
MAX_NAME_LENGTH: Final = 64
IMAGE_NAME_PATTERN: Final = (
    r"^[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$(?!\n)"
)
SHOWN_PATTERN: Final = (
    r"^[^\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]+$(?!\n)"
)
"""Text that is seen as it is: without control characters, those that turn the direction of writing, or hide."""

FILE_NAME_PATTERN: Final = r"^(?![. ]+$)(?!.*/)" + SHOWN_PATTERN.removeprefix("^")
DEFAULT_TAG: Final = ":latest"

_NAME = re.compile(NAME_PATTERN)
_REPLACEMENT = re.compile(r"\.[0-9a-f]{16}$")
_LOG_ID = re.compile(r"log_[0-9a-z]{26}")
_LENGTH: Final = 30
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS: Final = tuple(a + b for a in _ALPHABET for b in _ALPHABET)


def new_id(prefix: str) -> str:
    """Make an id of the kind that `prefix` names, for instance ``new_id(SANDBOX)``."""
    number = (time.time_ns() // 1_000_000 << 80) | int.from_bytes(os.urandom(10), "big")
    return prefix + "_" + "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])


def is_name(text: str) -> bool:
    """Return True if `text` is valid as an id or a name."""
    return _NAME.match(text) is not None


def is_log_id(text: str) -> bool:
    """Return True if `text` is the id of an event log."""
    return _LOG_ID.fullmatch(text) is not None


def check_name(text: str, field: str) -> str:
    """Return `text` if it may be a name; raise `invalid`, naming `field`, if not."""
    if is_name(text):
        return text
    raise CallerError(
        "invalid",
        f"{field}: {text[:80]!r} is not a name: use 1 to 64 letters, digits, '_', '.' or '-', first a letter or digit",
        field=field,
    )


def looks_like_id(text: str) -> bool:
    """Return True if `text` has the prefix of an id of any kind."""
    kind, underscore, _ = text.partition("_")
    return bool(underscore) and kind in (*PREFIXES, "log")


def is_whole(text: str) -> bool:
    """Return True if `text` is an id in full, not the beginning of one."""
    return looks_like_id(text) and len(text) == _LENGTH


def image_name(text: str) -> str:
    """Return the name of an image as it is recorded: ``py`` and ``py:latest`` are the same."""
    return text.removesuffix(DEFAULT_TAG)


def check_new_name(text: str, field: str) -> str:
    """Return the name that a caller gives to an object; raise `invalid`, naming `field`, if it may not have that.

    One rule for sandboxes, branches, sessions, processes, snapshots, checkpoints, volumes and API keys. Locks may also
    have the id of the object that they are for.
    """
    return refuse_id(check_name(text, field), field)


def refuse_id(text: str, field: str) -> str:
    """Return a new name; raise `invalid`, naming `field`, if it looks like an id of any kind."""
    if looks_like_id(text):
        raise CallerError("invalid", f"{field}: a name may not look like an id: choose another", field=field)
    return text


def regular_name(container: str) -> str:
    """Return the name that a container, or a volume, has when it is its sandbox's only one: one that is to replace
    another has a mark at its end.
    """
    return _REPLACEMENT.sub("", container)

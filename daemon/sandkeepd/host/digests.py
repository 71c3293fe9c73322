"""Digests of the files of checkpoints, as text with the algorithm: ``blake3:…`` or ``sha256:…``, in hexadecimal.

A checkpoint is digested beside `runsc`, which has use for every processor, both when it is made and when it is
restored. BLAKE3 (https://github.com/BLAKE3-team/BLAKE3-specs) takes a quarter of the time that SHA-256 takes, and a
tenth where the processor has no instructions for that. Checkpoints in a bucket have SHA-256, as archives there do.
"""

import hashlib
from typing import Any, Final

from sandkeep.errors import DataError

BLAKE3: Final = "blake3"
SHA256: Final = "sha256"


class Digest:
    """A digest that is being made."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._hasher: Any
        if kind == BLAKE3:
            import blake3  # a library that is loaded where there are checkpoints

            self._hasher = blake3.blake3()
        else:
            self._hasher = hashlib.sha256()

    def update(self, data: bytes) -> None:
        """Take some more bytes."""
        self._hasher.update(data)

    def text(self) -> str:
        """Return the digest, with its kind."""
        return f"{self._kind}:{self._hasher.hexdigest()}"


def algorithm_of(digest: str) -> str:
    """Return a digest's algorithm. Raises `snapshot_corrupt` for an unknown one."""
    kind = digest.partition(":")[0]
    if kind not in (BLAKE3, SHA256):
        message = f"the checkpoint has a digest of unknown kind {kind[:20]!r}: restore it with the version that made it"
        raise DataError("snapshot_corrupt", message)
    return kind

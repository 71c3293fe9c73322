"""The key of the digests by which a log recognizes repeated commands.

Arguments may be secret and short, such as a PIN, so an unkeyed digest would reveal them. The key is in no event and no
export: it is a file of its own beside the log. Each digest names its key. A digest made with a lost key matches
nothing, and proves no difference either.
"""

import logging
import os
import secrets
from hashlib import blake2b
from typing import Final

from sandkeep.errors import DaemonError
from sandkeep_store.files import private_file

FILE_NAME: Final = "commands.key"
_KEY_BYTES: Final = 32
_DIGEST_BYTES: Final = 16
_NAME_BYTES: Final = 4

logger: Final = logging.getLogger("sandkeepd")


class CommandKey:
    """One key. Its name tells it from others, and nothing of it."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._name = blake2b(b"name", key=key, digest_size=_NAME_BYTES).hexdigest()

    def keyed(self, fingerprint: str) -> str:
        """The fingerprint of a command, a method and a digest, with a digest in its place that only this key makes."""
        digest = blake2b(fingerprint.encode(), key=self._key, digest_size=_DIGEST_BYTES).hexdigest()
        return f"{without_digest(fingerprint)} {self._name}:{digest}"

    def derived(self, purpose: str) -> str:
        """Return 32 hexadecimal digits that only this key makes, for another purpose than digests."""
        return blake2b(b"derived\0" + purpose.encode(), key=self._key, digest_size=_DIGEST_BYTES).hexdigest()

    def ensure_keyed(self, fingerprint: str) -> str:
        """A fingerprint that is on record, keyed if it was not."""
        return self.keyed(fingerprint) if " " in fingerprint and not is_keyed(fingerprint) else fingerprint

    def made(self, fingerprint: str) -> bool:
        """Tell if the digest of a fingerprint is one of this key's."""
        return fingerprint.partition(" ")[2].startswith(f"{self._name}:")


def is_keyed(fingerprint: str) -> bool:
    """Tell if the digest was made by a key. Those of daemons before there were keys were not."""
    return ":" in fingerprint


def without_digest(fingerprint: str) -> str:
    """Method of a fingerprint, without its digest."""
    return fingerprint.partition(" ")[0]


def open_key(state_dir: str) -> CommandKey:
    """The key of the log in a directory; a new one when there is none, or one that others could know. Blocks.

    One that cannot be written, as the disk is full, holds until the daemon stops.
    """
    path = f"{state_dir}/{FILE_NAME}"
    key = private_file.read(path, "the key of commands")
    if key is not None and len(key) == _KEY_BYTES:
        return CommandKey(key)
    if os.path.lexists(path):
        logger.warning("begun anew: commands given again are conflicts for a day", extra={"path": path})
    return _begin(path)


def _begin(path: str) -> CommandKey:
    key = secrets.token_bytes(_KEY_BYTES)
    try:
        private_file.write(path, key)
    except DaemonError as error:  # a full disk is no reason not to start
        extra = {"why": error.message}
        logger.warning("cannot be written: commands given again after a restart are conflicts", extra=extra)
    return CommandKey(key)

"""Tokens that identify owners on TCP, where the kernel does not vouch for peers.

A token is a uid and a MAC that only this daemon can compute. So none is stored: the file has one key, and the number of
renewals of each owner.
"""

import base64
import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
import trio
from msgspec import Struct, field

from sandkeep.errors import DaemonError
from sandkeep_store.files import private_file
from sandkeep_store.threads import in_thread

logger = logging.getLogger("sandkeepd")

FILE_NAME: Final = "stream.json"
_TOKEN: Final = re.compile(r"skt_([0-9]{1,10})_([A-Za-z0-9_-]{43})")
_KEY_BYTES: Final = 32


class StoredToken(Struct, frozen=True, kw_only=True):
    """The content of the file: the key, and each uid's generation, which a renewal raises."""

    key: bytes
    generations: dict[str, int] = field(default_factory=dict)


class Tokens:
    """Makes and knows the owners' tokens. The file is in the state directory, for the daemon's eyes only."""

    def __init__(self, state_dir: str) -> None:
        self._path = f"{state_dir}/{FILE_NAME}"
        self._renewal_lock = trio.Lock()
        self._in_use: dict[int, set[trio.CancelScope]] = {}
        self._stored = self._load() or self._create()

    def token(self, uid: int) -> str:
        """The token that stands for a user until it is renewed."""
        return f"skt_{uid}_{self._code(uid)}"

    async def renew(self, uid: int) -> str:
        """Replace a user's token, and close connections with the old one. Raises `storage_unavailable`."""
        async with self._renewal_lock:
            count = self._stored.generations.get(str(uid), 0) + 1
            stored = msgspec.structs.replace(self._stored, generations={**self._stored.generations, str(uid): count})
            with trio.CancelScope(shield=True):
                await in_thread(self._write, stored)
            self._stored = stored
            for scope in self._in_use.pop(uid, ()):
                scope.cancel()
        return self.token(uid)

    @contextmanager
    def while_valid(self, uid: int) -> Iterator[None]:
        """Run a block on the strength of a user's token: it is cancelled when that is renewed."""
        with trio.CancelScope() as scope:
            self._in_use.setdefault(uid, set()).add(scope)
            try:
                yield
            finally:
                in_use = self._in_use.get(uid, set())
                in_use.discard(scope)
                if not in_use:
                    self._in_use.pop(uid, None)

    def uid_of(self, token: str) -> int | None:
        """Return the uid of a valid token, else None."""
        found = _TOKEN.fullmatch(token)
        if found is None:
            return None
        uid = int(found[1])
        return uid if hmac.compare_digest(found[2], self._code(uid)) else None

    def _code(self, uid: int) -> str:
        message = f"sandkeep.stream\0uid:{uid}\0{self._stored.generations.get(str(uid), 0)}".encode()
        digest = hmac.new(self._stored.key, message, hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def _load(self) -> StoredToken | None:
        content = private_file.read(self._path, "the stream server's tokens")
        if content is None:
            return None
        try:
            stored = msgspec.json.decode(content, type=StoredToken)
        except msgspec.DecodeError:
            logger.warning("the stream server's tokens are damaged: all are worthless now", extra={"path": self._path})
            return None
        return stored if len(stored.key) == _KEY_BYTES else None

    def _create(self) -> StoredToken:
        stored = StoredToken(key=secrets.token_bytes(_KEY_BYTES))
        try:
            self._write(stored)
        except DaemonError as error:  # a full disk is no reason not to start
            logger.warning("tokens hold only until the daemon stops", extra={"why": error.message})
        return stored

    def _write(self, stored: StoredToken) -> None:
        private_file.write(self._path, msgspec.json.encode(stored))

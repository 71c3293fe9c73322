"""API keys: they identify owners over HTTP, where the kernel vouches for nobody.

A key is 256 random bits, so the file has its SHA-256: nobody can guess a key from that, and a slow hash, which is for
passwords that people choose, would only cost each request its time.
"""

import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
import trio
from msgspec import Struct, field

from sandkeep.errors import CallerError, DaemonError, StateError
from sandkeep.ids import check_new_name
from sandkeep.model import ApiKey, KeyList, NewKey
from sandkeep.protocol.clock import now_us, rfc3339
from sandkeep.protocol.methods import KeyRef, NoParams
from sandkeep_store.files import private_file
from sandkeepd.core.access import Request
from sandkeepd.core.peer import Peer

logger: Final = logging.getLogger("sandkeepd")

FILE_NAME: Final = "http-keys.json"
NOBODY: Final = 65534
"""The uid and gid of holders of keys: they have no rights of any user of this machine."""

_PREFIX: Final = "skk_"
_KEY_BYTES: Final = 32


class StoredKey(Struct, frozen=True, kw_only=True):
    """A key as it is stored."""

    sha256: bytes
    created_at: str


class StoredKeys(Struct, frozen=True, kw_only=True):
    """The content of the file."""

    keys: dict[str, StoredKey] = field(default_factory=dict)


class Keys:
    """Makes, knows and forgets API keys; the handlers of ``key.*``. The file is in the state directory."""

    def __init__(self, state_dir: str) -> None:
        self._path = f"{state_dir}/{FILE_NAME}"
        self._change = trio.Lock()
        self._in_use: dict[str, set[trio.CancelScope]] = {}
        self._is_damaged = False
        self._stored = self._load()

    def peer_of(self, key: str) -> Peer | None:
        """Return the peer that a key stands for; None if it is not valid."""
        digest = _digest(key)
        found = None
        for name, stored in self._stored.items():  # all of them, so that the time tells nothing
            if hmac.compare_digest(stored.sha256, digest):
                found = name
        return None if found is None else Peer(uid=NOBODY, gid=NOBODY, key=found)

    @contextmanager
    def while_valid(self, name: str) -> Iterator[trio.CancelScope]:
        """Run a block on the strength of a key: it is cancelled, by the scope, when that is removed."""
        with trio.CancelScope() as scope:
            in_use = self._in_use.setdefault(name, set())
            in_use.add(scope)
            try:
                yield scope
            finally:
                in_use.discard(scope)
                if not in_use and self._in_use.get(name) is in_use:
                    del self._in_use[name]

    async def create(self, request: Request[KeyRef]) -> NewKey:
        """Create a key. Raises `conflict` if there is one of that name, `storage_unavailable`."""
        if self._is_damaged:  # the new file would have that key alone
            message = f"{self._path} is damaged, or others could write it: restore or remove it, and restart the daemon"
            raise DaemonError("storage_unavailable", message)
        name = check_new_name(request.params.name, "name")
        key = _PREFIX + secrets.token_urlsafe(_KEY_BYTES)
        async with self._change:
            if name in self._stored:
                raise StateError("conflict", f"there is a key {name} already: remove it first, or choose another name")
            stored = StoredKey(sha256=_digest(key), created_at=rfc3339(now_us()))
            await self._store({**self._stored, name: stored})
        return NewKey(name=name, owner=_owner(name), key=key)

    async def remove(self, request: Request[KeyRef]) -> ApiKey:
        """Remove a key, and end what streams on its strength. Raises `not_found`, `storage_unavailable`."""
        name = request.params.name
        async with self._change:
            if (stored := self._stored.get(name)) is None:
                raise CallerError("not_found", f"there is no key {name}: `sandkeep key ls` lists them", name=name)
            await self._store({other: kept for other, kept in self._stored.items() if other != name})
            for scope in self._in_use.pop(name, ()):
                scope.cancel()
        return _view(name, stored)

    def list_now(self, _: Request[NoParams]) -> KeyList:
        """List the keys by their names."""
        return KeyList(keys=[_view(name, stored) for name, stored in sorted(self._stored.items())])

    async def _store(self, keys: dict[str, StoredKey]) -> None:
        with trio.CancelScope(shield=True):
            content = msgspec.json.encode(StoredKeys(keys=keys))
            await trio.to_thread.run_sync(private_file.write, self._path, content)
        self._stored = keys

    def _load(self) -> dict[str, StoredKey]:
        content = private_file.read(self._path, "the API keys")
        if content is None:
            self._is_damaged = os.path.lexists(self._path)
            return {}
        try:
            return msgspec.json.decode(content, type=StoredKeys).keys
        except msgspec.DecodeError:
            logger.warning("the API keys are damaged: none is valid now", extra={"path": self._path})
            self._is_damaged = True
            return {}


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _owner(name: str) -> str:
    return Peer(uid=NOBODY, gid=NOBODY, key=name).owner


def _view(name: str, stored: StoredKey) -> ApiKey:
    return ApiKey(name=name, owner=_owner(name), created_at=stored.created_at)

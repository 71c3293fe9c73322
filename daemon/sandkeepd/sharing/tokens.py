"""Tokens of shared sandboxes: who knows one may attach to its sandbox. Only its hash is stored.

A token is derived from a secret of the daemon's, so that a creation that is answered twice gives the same one.
"""

import hashlib
import hmac

from sandkeep.errors import CallerError
from sandkeep_store.eventlog.fingerprint_key import CommandKey


def token_of(key: CommandKey, sandbox_id: str) -> str:
    """Return the token of a sandbox that this daemon makes: 32 hexadecimal digits."""
    return key.derived(f"token of {sandbox_id}")


def hash_of(token: str) -> str:
    """Return the hash by which a token is known."""
    return hashlib.sha256(token.encode()).hexdigest()


def check_token(given: str | None, token_sha256: str, name: str) -> None:
    """Raise `permission_denied` unless a token is the one with that hash, in constant time."""
    if given is None or not hmac.compare_digest(hash_of(given).encode(), token_sha256.encode()):
        why = "has another token" if given is not None else "exists already: give its token, or choose another id"
        message = f"sandbox_token: the shared sandbox {name!r} {why}"
        raise CallerError("permission_denied", message, field="sandbox_token")

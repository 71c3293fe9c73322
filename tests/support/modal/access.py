"""Tokens of workspaces, and those that the service gives out: for its second version, and for the command router."""

import base64
import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

from grpclib import GRPCError, Status

LIFETIME_S = 3600
GRACE_S = 60
"""A token is taken for so long after its end, lest tests with short ones depend on the time that a request takes."""


class Access:
    """The caller. A token belongs to a workspace; a workspace sees only its own objects."""

    def __init__(self) -> None:
        self._secrets: dict[str, tuple[str, str]] = {}
        self._issued: dict[str, tuple[str, float]] = {}
        self._lifetime_s: float = LIFETIME_S

    def issue(self, workspace: str) -> dict[str, str]:
        """Make a token for a workspace, as its settings give it to users."""
        token = {"id": f"ak-{secrets.token_hex(11)}", "secret": f"as-{secrets.token_hex(11)}"}
        self._secrets[token["id"]] = (token["secret"], workspace)
        return token

    def revoke(self, token_id: str) -> None:
        """Refuse a token from now on."""
        self._secrets.pop(token_id, None)

    def authenticate(self, metadata: Mapping[str, Any]) -> str:
        """Return the workspace of a request to the control plane. Raises GRPCError."""
        token_id = metadata.get("x-modal-token-id")
        if not token_id:
            raise GRPCError(Status.UNAUTHENTICATED, "Token missing.")
        secret, workspace = self._secrets.get(str(token_id), ("", ""))
        if not workspace or not secrets.compare_digest(secret, str(metadata.get("x-modal-token-secret", ""))):
            raise GRPCError(Status.UNAUTHENTICATED, "Token ID or secret is invalid.")
        return workspace

    def grant(self, subject: str) -> str:
        """Make a token, in the form of a JWT, that stands for a subject until it expires."""
        expires = time.time() + self._lifetime_s
        parts = ({"alg": "none"}, {"exp": expires, "sub": subject, "jti": secrets.token_hex(8)})
        token = ".".join([*(_encode(part) for part in parts), "signature"])
        self._issued[token] = (subject, expires)
        return token

    def check(self, token: str, subject: str) -> None:
        """Raise GRPCError if a token does not stand for a subject, or not any more."""
        known, expires = self._issued.get(token, ("", 0.0))
        if not known or expires + GRACE_S < time.time():
            raise GRPCError(Status.UNAUTHENTICATED, "The token is invalid or has expired.")
        if known != subject:
            raise GRPCError(Status.PERMISSION_DENIED, "The token is for another object.")

    def script(self, lifetime_s: float) -> None:
        """Change for how long tokens are valid that are granted from now on; refuse those that have expired."""
        self._lifetime_s = lifetime_s
        now = time.time()
        self._issued = {token: entry for token, entry in self._issued.items() if entry[1] > now}


def _encode(part: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")

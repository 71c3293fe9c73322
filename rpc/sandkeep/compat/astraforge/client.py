"""The client of sessions over the HTTP gateway."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, overload
from urllib.parse import quote, urlencode

from msgspec import Struct, field

from sandkeep.clients.gateway import Gateway
from sandkeep.errors import SandkeepError

logger = logging.getLogger("sandkeep.compat.astraforge")

SESSIONS: Final = "/sandbox/sessions/"
_CORRUPT: Final = "snapshot_corrupt"
_NOT_RESTORED: Final = ("not_found", "snapshot_missing", _CORRUPT)


class SandboxSession(Struct, frozen=True, kw_only=True, rename={"session_id": "id"}):
    """A session. `status` is starting, ready, failed or terminated."""

    session_id: str
    status: str
    image: str = ""
    mode: str = ""
    idle_timeout_sec: int | None = None
    max_lifetime_sec: int | None = None
    created_at: str | None = None
    updated_at: str | None = None
    workspace_path: str | None = None
    restore_snapshot_id: str | None = None
    expires_at: str | None = None
    error_message: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


class SandboxArtifact(Struct, frozen=True, kw_only=True, rename={"artifact_id": "id"}):
    """An exported file. `download_url` is empty unless the session or the daemon has a base of such addresses."""

    artifact_id: str
    filename: str
    content_type: str
    size_bytes: int
    download_url: str = ""


class CommandOutcome(Struct, frozen=True):
    """The outcome of a command: its streams are UTF-8, with U+FFFD for what is invalid."""

    exit_code: int
    stdout: str
    stderr: str
    truncated: bool

    @property
    def output(self) -> str:
        """Its stdout, then its stderr."""
        return self.stdout + self.stderr


class DeepAgentClient:
    """A client of the gateway at `base_url`, by default ``ASTRA_FORGE_API_URL``, with a key, by default
    ``ASTRA_FORGE_API_KEY``. `timeout` limits each wait for the gateway to go on, in seconds; None is no limit.
    """

    def __init__(
        self, base_url: str | None = None, api_key: str | None = None, *, timeout: float | None = None
    ) -> None:
        self._gateway = Gateway(base_url, api_key, timeout)

    def create_sandbox_session(self, session_params: Mapping[str, Any] | None = None) -> SandboxSession:
        """Make a session ready: that of ``session_params["id"]``, which may be ready, or a new one.

        If a snapshot is missing or corrupt it is created without the id; and without `restore_snapshot_id` only if that
        archive is corrupt. Both are logged as warnings.
        """
        asked = {name: value for name, value in (session_params or {}).items() if value is not None}
        while True:
            try:
                return self._gateway.fetch(SandboxSession, "POST", SESSIONS, asked)
            except SandkeepError as error:
                given_up = _to_give_up(asked, error)
                if given_up is None:
                    raise
                why = {"why": str(error), given_up: asked.pop(given_up)}
                logger.warning("creating a session without its %s, which failed", given_up, extra=why)

    def list_sandbox_sessions(self) -> list[SandboxSession]:
        """Return the newest 1,000 sessions, newest first, also those that have ended."""
        return self._gateway.fetch(list[SandboxSession], "GET", SESSIONS)

    def get_sandbox_session(self, session_id: str) -> SandboxSession:
        """Return a session as it is. Raises `not_found`."""
        return self._gateway.fetch(SandboxSession, "GET", _of(session_id))

    def heartbeat_sandbox_session(self, session_id: str) -> dict[str, Any]:
        """Keep a session from being idle. Return it as the gateway shows it, with `status` and `last_heartbeat_at`."""
        return self._gateway.fetch(dict[str, Any], "POST", _of(session_id, "heartbeat/"))

    def stop_sandbox_session(self, session_id: str) -> None:
        """End a session's sandbox, after a snapshot of its files."""
        self._gateway.request("POST", _of(session_id, "stop/"))

    def delete_sandbox_session(self, session_id: str) -> None:
        """Do as `stop_sandbox_session`: the session stays on record, and its next use brings it back."""
        self._gateway.request("DELETE", _of(session_id))

    def execute(
        self,
        session_id: str,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        timeout: float | None = None,
    ) -> CommandOutcome:
        """Run a command, argv or a text for ``sh -c``. After `timeout` seconds it ends with exit code 124."""
        asked = {"command": command, "cwd": cwd, "timeout_sec": timeout}
        return self._gateway.fetch(CommandOutcome, "POST", _of(session_id, "exec/"), asked)

    def upload_file(self, session_id: str, path: str, content: str | bytes, encoding: str = "utf-8") -> dict[str, Any]:
        """Write a file, and the directories above it. A relative path begins at the workspace. Return the path and
        size, and the `exit_code` 0: failures are raised.
        """
        data = content.encode(encoding) if isinstance(content, str) else content
        return self._gateway.fetch(dict[str, Any], "POST", _of(session_id, "files/upload/", path=path), data)

    @overload
    def get_file_content(self, session_id: str, path: str, encoding: None = None) -> bytes: ...
    @overload
    def get_file_content(self, session_id: str, path: str, encoding: str) -> str: ...
    def get_file_content(self, session_id: str, path: str, encoding: str | None = None) -> bytes | str:
        """Return the bytes of a file; with `encoding` its text, with U+FFFD for what is invalid."""
        content = self._gateway.request("GET", _of(session_id, "files/content/", path=path))
        return content if encoding is None else content.decode(encoding, "replace")

    def export_file(
        self, session_id: str, path: str, *, filename: str | None = None, content_type: str | None = None
    ) -> SandboxArtifact:
        """Copy a file, or a directory as a ``tar.gz``, to where it outlives the sandbox."""
        asked = {"path": path, "filename": filename, "content_type": content_type}
        return self._gateway.fetch(SandboxArtifact, "POST", _of(session_id, "files/export/"), asked)

    def get_artifact_content(self, session_id: str, artifact_id: str) -> bytes:
        """Return the bytes of an artifact."""
        return self._gateway.request("GET", _of(session_id, f"artifacts/{quote(artifact_id, safe='')}/content/"))


def _of(session_id: str, below: str = "", /, **query: str) -> str:
    """Return a path below a session's."""
    # Names that are not UTF-8 are refused by the gateway.
    asked = f"?{urlencode(query, errors='surrogateescape')}" if query else ""
    return f"{SESSIONS}{quote(session_id, safe='', errors='surrogateescape')}/{below}{asked}"


def _to_give_up(asked: Mapping[str, Any], error: SandkeepError) -> str | None:
    """Return the parameter without which creation is tried again after an error; None if the error is final."""
    restores = "restore_snapshot_id" in asked
    if "id" in asked and (error.code == _CORRUPT or (restores and error.code in _NOT_RESTORED)):
        return "id"
    return "restore_snapshot_id" if restores and error.code == _CORRUPT else None

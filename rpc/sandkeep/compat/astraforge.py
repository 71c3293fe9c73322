"""The toolkit of *AstraForge*: its client of sessions, and its backend for agents, over our HTTP gateway.

    backend = SandboxBackend(runtime, session_params={"image": "python:3.12"})
    print(backend.execute("make test").output)

    client = DeepAgentClient("unix:/run/sandkeep/http.sock", api_key=key)
    session = client.create_sandbox_session({"id": "job-7", "image": "python:3.12"})
    client.upload_file(session.session_id, "in.txt", content="hello")
    text = client.get_file_content(session.session_id, "in.txt", encoding="utf-8")

`DeepAgentClient` has the toolkit's functions for sessions, and none for conversations with agents. `SandboxBackend`
works in one session, which it makes ready before each use: one that ended comes back with its files.

Every call blocks. Threads may share both. Errors are `sandkeep.errors.SandkeepError`, with the code that the gateway
answered.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, overload
from urllib.parse import quote, urlencode

from msgspec import Struct, field

from sandkeep.clients.gateway import Gateway
from sandkeep.errors import CallerError, SandkeepError
from sandkeep.settings.astraforge import READY_POLL_INTERVAL, READY_TIMEOUT

__all__ = ["DeepAgentClient", "ExecuteResponse", "FileResponse", "SandboxArtifact", "SandboxBackend", "SandboxSession"]

logger = logging.getLogger(__name__)

SESSIONS: Final = "/sandbox/sessions/"
_CORRUPT: Final = "snapshot_corrupt"
_NOT_RESTORED: Final = ("not_found", "snapshot_missing", _CORRUPT)
_FILE_ERRORS: Final = {
    "not_found": "file_not_found",
    "permission_denied": "permission_denied",
    "invalid": "invalid_path",
}


class SandboxSession(Struct, frozen=True, kw_only=True, rename={"session_id": "id"}):
    """A session. `status` is starting, ready, failed, expired or terminated."""

    session_id: str
    status: str
    image: str = ""
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


class ExecuteResponse(Struct, frozen=True):
    """The outcome of a command: its stdout, then its stderr, as UTF-8 with U+FFFD for what is invalid."""

    output: str
    exit_code: int
    truncated: bool


class FileResponse(Struct, frozen=True):
    """The outcome for one of several files. `error` is file_not_found, permission_denied or invalid_path."""

    path: str
    content: bytes | None = None
    error: str | None = None


class DeepAgentClient:
    """A client of the gateway at `base_url`, by default ``ASTRA_FORGE_API_URL``, with a key, by default
    ``ASTRA_FORGE_API_KEY``. `timeout_s` limits each wait for the gateway to go on; None is no limit.
    """

    def __init__(
        self, base_url: str | None = None, api_key: str | None = None, *, timeout_s: float | None = None
    ) -> None:
        self._gateway = Gateway(base_url, api_key, timeout_s)

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
        """Return the sessions that have not ended, at most 1,000."""
        return self._gateway.fetch(list[SandboxSession], "GET", SESSIONS)

    def get_sandbox_session(self, session_id: str) -> SandboxSession:
        """Return a session as it is. Raises `not_found`."""
        return self._gateway.fetch(SandboxSession, "GET", _of(session_id))

    def heartbeat_sandbox_session(self, session_id: str) -> SandboxSession:
        """Keep a session from being idle."""
        return self._gateway.fetch(SandboxSession, "POST", _of(session_id, "heartbeat/"))

    def stop_sandbox_session(self, session_id: str) -> None:
        """End a session's sandbox, after a snapshot of its files."""
        self._gateway.request("POST", _of(session_id, "stop/"))

    def delete_sandbox_session(self, session_id: str) -> None:
        """Do as `stop_sandbox_session`: the session stays on record, and its next use brings it back."""
        self._gateway.request("DELETE", _of(session_id))

    def execute(
        self, session_id: str, command: str | Sequence[str], *, timeout: float | None = None
    ) -> ExecuteResponse:
        """Run a command, argv or a text for ``sh -c``. After `timeout` seconds it ends with exit code 124."""
        asked = {"command": command, "timeout_sec": timeout}
        done = self._gateway.fetch(dict[str, Any], "POST", _of(session_id, "exec/"), asked)
        return ExecuteResponse(done["stdout"] + done["stderr"], done["exit_code"], done["truncated"])

    def upload_file(self, session_id: str, path: str, content: str | bytes) -> None:
        """Write a file, and the directories above it; text as UTF-8. A relative path begins at the workspace."""
        data = content.encode() if isinstance(content, str) else content
        target, directory = _of(session_id, "files/upload/", path=path), os.path.dirname(path)
        try:
            self._gateway.request("POST", target, data)
        except CallerError as error:
            if error.code != "not_found" or not directory:
                raise
            self.execute(session_id, ["mkdir", "-p", "--", directory])
            self._gateway.request("POST", target, data)

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


class SandboxBackend:
    """Commands and files in one session: that of ``configurable.sandbox_session_id`` in `rt`, a runtime or its
    configuration, or of ``session_params["id"]``, else a new one. It is made when it is first used.
    """

    def __init__(
        self,
        rt: Any = None,
        base_url: str | None = None,
        api_key: str | None = None,
        session_params: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        self.client = DeepAgentClient(base_url, api_key, timeout_s=timeout_s)
        self._params = dict(session_params or {})
        own_id = self._params.pop("id", None)
        self._session_id: str | None = _pinned(rt) or own_id
        self._turn = threading.Lock()

    @property
    def id(self) -> str:
        """Return the id of the session, which is made ready."""
        return self.ensure_ready().session_id

    def ensure_ready(self) -> SandboxSession:
        """Return the session, once it is ready. One that ended is brought back with its files.

        If it is still starting after ``ASTRA_FORGE_SANDBOX_READY_TIMEOUT``, another one is made, with the files of its
        latest snapshot, and used from then on; so is one that `create_sandbox_session` makes under another id.
        """
        with self._turn:
            known = self._settled(self._session_id) if self._session_id else None
            if known is not None and known.status == "ready":
                return known
            ready = self.client.create_sandbox_session(self._params | self._again(known))
            self._session_id = ready.session_id
            return ready

    def _again(self, known: SandboxSession | None) -> dict[str, Any]:
        """Return the parameters that depend on the session as it is now."""
        if known is None:
            return {"id": self._session_id}
        if known.status != "starting":
            # The gateway picks the latest snapshot, also one that it takes right now as it ends the last sandbox.
            return {"id": known.session_id, "restore_snapshot_id": None}
        logger.warning("a session does not get ready: making another", extra={"session": known.session_id})
        return {"restore_snapshot_id": known.metadata.get("latest_snapshot_id") or known.restore_snapshot_id}

    def _settled(self, session_id: str) -> SandboxSession | None:
        """Return a session once it is not starting any more, or time is up; None if there is none."""
        deadline = time.monotonic() + READY_TIMEOUT()
        while True:
            try:
                session = self.client.get_sandbox_session(session_id)
            except CallerError as error:
                if error.code != "not_found":
                    raise
                return None
            left = deadline - time.monotonic()
            if session.status != "starting" or left <= 0:
                return session
            time.sleep(min(READY_POLL_INTERVAL(), left))

    def execute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        """Run a shell command; see `DeepAgentClient.execute`."""
        return self.client.execute(self.id, command, timeout=timeout)

    def upload_files(self, files: Sequence[tuple[str, bytes]]) -> list[FileResponse]:
        """Write files. Raises errors that are not about a path."""
        upload = partial(self.client.upload_file, self.id)
        return [_outcome(path, partial(upload, path, content)) for path, content in files]

    def download_files(self, paths: Sequence[str]) -> list[FileResponse]:
        """Read files. Raises errors that are not about a path."""
        download = partial(self.client.get_file_content, self.id)
        return [_outcome(path, partial(download, path)) for path in paths]


def _outcome(path: str, transfer: Callable[[], bytes | None]) -> FileResponse:
    try:
        return FileResponse(path, transfer())
    except CallerError as error:
        if error.code not in _FILE_ERRORS:
            raise
        return FileResponse(path, error=_FILE_ERRORS[error.code])


def _pinned(rt: Any) -> str | None:
    """Return ``configurable.sandbox_session_id`` of a runtime or a configuration; None without one."""
    config = getattr(rt, "config", rt)
    configurable = config.get("configurable") if isinstance(config, Mapping) else None
    return configurable.get("sandbox_session_id") if isinstance(configurable, Mapping) else None

"""The backend of an agent: commands and files in one session, as AstraForge's toolkit and deepagents call them."""

import logging
import posixpath
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from msgspec import Struct

from sandkeep.compat.astraforge import deepagents, globs
from sandkeep.compat.astraforge.client import CommandOutcome, DeepAgentClient, SandboxSession
from sandkeep.errors import CallerError
from sandkeep.settings.astraforge import READY_POLL_INTERVAL, READY_TIMEOUT

logger = logging.getLogger("sandkeep.compat.astraforge")

_FILE_ERRORS: Final = {
    "not_found": "file_not_found",
    "permission_denied": "permission_denied",
    "invalid": "invalid_path",
}
_EMPTY: Final = "System reminder: File exists but has empty contents"
_STAT: Final = "stat -c '%F|%s|%Y|%n' {} +"
_ENTRY: Final = re.compile(r"^([a-z ]+)\|(\d+)\|(\d+)\|(/)", re.MULTILINE)
"""The beginning of an entry: the rest, up to the next one, is its path, which may have line feeds."""

_MATCH: Final = re.compile(r"([^\n]*?):(\d+):([^\n]*)")
_PYTHON: Final = 'exec "$(command -v python3 || command -v python || echo python3)" -c "$0"'


class FileResponse(Struct, frozen=True):
    """The outcome for one of several files. `error` is file_not_found, permission_denied or invalid_path."""

    path: str
    content: bytes | None = None
    error: str | None = None


class Written(Struct, frozen=True):
    """The outcome of a write or an edit: the path, or why not. `files_update` is for backends in an agent's state."""

    path: str | None = None
    error: str | None = None
    occurrences: int | None = None
    files_update: None = None


class OutsideRootError(Exception):
    """A path is outside the directory that an agent is allowed to use."""


class SandboxBackend(deepagents.Backend):
    """Commands and files in one session: that of `session_id`, of ``configurable.sandbox_session_id`` in `rt`, a
    runtime or its configuration, or of ``session_params["id"]``, else a new one. It is made when it is first used.

    Paths that are not absolute, and ``/`` itself, begin at `root_dir`. Methods for files refuse paths outside
    `allowed_root`, as `execute`, `shell` and `python_exec` cannot. `timeout` limits each wait for the gateway to go on,
    in seconds; None is no limit.
    """

    def __init__(
        self,
        rt: Any = None,
        base_url: str | None = None,
        api_key: str | None = None,
        session_params: Mapping[str, Any] | None = None,
        *,
        session_id: str | None = None,
        root_dir: str = "/workspace",
        allowed_root: str | None = "/workspace",
        timeout: float | None = None,
        debug: bool | None = None,
    ) -> None:
        self.client = DeepAgentClient(base_url, api_key, timeout=timeout)
        self.rt = rt
        self.root_dir = root_dir
        self.allowed_root = posixpath.normpath(allowed_root or "/workspace")
        self._debug = bool(debug)
        self._params = dict(session_params or {})
        own_id = self._params.pop("id", None)
        self._session_id: str | None = session_id or _pinned(rt) or own_id
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
                return self._in(known)
            ready = self.client.create_sandbox_session(self._params | self._again(known))
            self._session_id = ready.session_id
            return self._in(ready)

    def _in(self, session: SandboxSession) -> SandboxSession:
        """Let relative paths begin at the workspace of a session, as it is told."""
        self.root_dir = session.workspace_path or self.root_dir
        return session

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

    # -- commands -----------------------------------------------------------------------------------------------------

    def execute(self, command: str, *, timeout: float | None = None) -> CommandOutcome:
        """Run a shell command; see `DeepAgentClient.execute`."""
        return self._run(command, timeout=timeout)

    def shell(self, command: str, cwd: str | None = None, timeout: float | None = 30) -> str:
        """Return the stdout of a shell command, or, if it fails, its stderr or its exit code as a sentence."""
        return _text(self._run(command, cwd=cwd, timeout=timeout), "Command failed with exit code")

    def python_exec(self, code: str, timeout: float | None = 30) -> str:
        """Return the stdout of a Python program, or, if it fails, its stderr. The sandbox needs a Python."""
        return _text(self._run(["sh", "-c", _PYTHON, code], timeout=timeout), "Python failed with exit code")

    def _run(
        self, command: str | Sequence[str], *, cwd: str | None = None, timeout: float | None = None
    ) -> CommandOutcome:
        done = self.client.execute(self.id, command, cwd=cwd, timeout=timeout)
        if self._debug:
            logger.debug("a command ended", extra={"command": command, "exit_code": done.exit_code})
        return done

    # -- files --------------------------------------------------------------------------------------------------------

    def download(self, path: str) -> bytes:
        """Return the bytes of a file. Raises `not_found`, and OutsideRootError."""
        return self.client.get_file_content(self.id, self._path(path))

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> Any:
        """Return lines of a file, `limit` from line `offset`, counted from 0: a ``ReadResult`` for a deepagents that
        has those, else a text with numbers before the lines. An error is returned as one.
        """
        try:
            content = self.download(file_path).decode("utf-8", "replace")
        except OutsideRootError as error:
            return _unread(str(error))
        except CallerError as error:
            if error.code not in _FILE_ERRORS:
                raise
            return _unread(f"File '{file_path}' not found" if error.code == "not_found" else error.message)
        lines, first = content.split("\n"), max(0, offset)
        if lines[-1] == "":
            lines.pop()
        shown = lines[first : first + limit] if limit > 0 else []
        if lines and first >= len(lines):
            return _unread(f"Line offset {offset} exceeds file length ({len(lines)} lines)")
        window: dict[str, Any] = {}
        if shown:
            last = first + len(shown)
            window = {"start_line": first + 1, "end_line": last, "total_lines": len(lines)}
            window["next_offset"] = last if last < len(lines) else None
        found = deepagents.result("ReadResult", file_data={"content": "\n".join(shown), "encoding": "utf-8"}, **window)
        if found is not None:
            return found
        return "\n".join(f"{first + i:6d}\t{line}" for i, line in enumerate(shown, 1)) if lines else _EMPTY

    def write(self, file_path: str, content: str) -> Written:
        """Write a new file, and the directories above it. One that exists is an error: edit it."""
        return self._change(file_path, lambda path: self._new(path, file_path, content))

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> Written:
        """Replace a text in a file, which is in it once unless `replace_all`."""
        return self._change(file_path, lambda path: self._edited(path, file_path, old_string, new_string, replace_all))

    def _change(self, file_path: str, change: Callable[[str], tuple[str, int | None]]) -> Written:
        """Write what `change` returns: the content, and the number of replacements."""
        try:
            path = self._path(file_path)
            content, occurrences = change(path)
            self.client.upload_file(self.id, path, content)
        except (OutsideRootError, _RefusedError) as error:
            return Written(error=str(error))
        except CallerError as error:
            if error.code not in _FILE_ERRORS:
                raise
            return Written(error=error.message)
        return Written(path, occurrences=occurrences)

    def _new(self, path: str, file_path: str, content: str) -> tuple[str, None]:
        if self._run(["test", "-e", path, "-o", "-L", path]).exit_code == 0:
            raise _RefusedError(
                f"Cannot write to {file_path}: it exists already. Read and edit it, or write elsewhere."
            )
        return content, None

    def _edited(self, path: str, file_path: str, old: str, new: str, replace_all: bool) -> tuple[str, int]:
        try:
            content = self.client.get_file_content(self.id, path).decode()
        except UnicodeDecodeError:
            raise _RefusedError(f"Error: '{file_path}' is not text") from None
        except CallerError as error:
            if error.code != "not_found":
                raise
            raise _RefusedError(f"Error: File '{file_path}' not found") from None
        count = content.count(old) if old else 0
        if not count:
            raise _RefusedError(f"Error: String not found in file: '{old}'")
        if count > 1 and not replace_all:
            raise _RefusedError(f"Error: String '{old}' is {count} times in the file: give more of it, or replace_all")
        return content.replace(old, new), count

    def ls_info(self, path: str) -> list[dict[str, Any]]:
        """List the files of a directory by path; none if it is missing or outside the root."""
        try:
            target = self._path(path)
        except OutsideRootError:
            return []
        return self._found(f"{shlex.quote(target)}/ -mindepth 1 -maxdepth 1", target)

    def glob_info(self, pattern: str, path: str = "/") -> list[dict[str, Any]]:
        """List the regular files below a directory that match a pattern, by path."""
        try:
            target = self._path(path)
        except OutsideRootError:
            return []
        wanted, prefix = globs.matcher(pattern), target.rstrip("/") + "/"
        found = self._found(f"{shlex.quote(target)}/ -type f", target)
        return [entry for entry in found if wanted.fullmatch(entry["path"].removeprefix(prefix))]

    def grep_raw(self, pattern: str, path: str | None = None, glob: str | None = None) -> list[dict[str, Any]] | str:
        """Return the lines that match an extended regular expression, in files whose path matches `glob`; or why it
        cannot be searched for.
        """
        try:
            re.compile(pattern)
        except re.error as error:
            return f"Invalid regex pattern: {error}"
        return self._grep("-E", pattern, path, glob)

    def _grep(self, kind: str, pattern: str, path: str | None, glob: str | None) -> list[dict[str, Any]] | str:
        try:
            target = self._path(path or "")
        except OutsideRootError as error:
            return str(error)
        done = self._run(["grep", "-rHIn", kind, "-e", pattern, "--", target])
        if done.exit_code > 1 and not done.stdout:
            return f"grep failed: {done.stderr.strip() or done.exit_code}"
        wanted, prefix = globs.matcher(glob) if glob else None, target.rstrip("/") + "/"
        return [
            {"path": found[1], "line": int(found[2]), "text": found[3]}
            for found in map(_MATCH.fullmatch, done.stdout.splitlines())
            if found and (wanted is None or wanted.fullmatch(found[1].removeprefix(prefix)))
        ]

    def _found(self, search: str, target: str) -> list[dict[str, Any]]:
        done = self._run(f"find {search} -exec {_STAT}")
        if done.truncated:
            logger.warning("a list of files is not complete", extra={"path": target})
        return sorted(_entries(done.stdout, target), key=lambda entry: str(entry["path"]))

    def upload_files(self, files: Sequence[tuple[str, bytes]]) -> list[FileResponse]:
        """Write files. Raises errors that are not about a path."""
        return [_outcome(path, partial(self._upload, path, content)) for path, content in files]

    def _upload(self, path: str, content: bytes) -> None:
        self.client.upload_file(self.id, self._path(path), content)

    def download_files(self, paths: Sequence[str]) -> list[FileResponse]:
        """Read files. Raises errors that are not about a path."""
        return [_outcome(path, partial(self.download, path)) for path in paths]

    def _path(self, path: str) -> str:
        """Return the path in the sandbox. Raises OutsideRootError."""
        full = posixpath.normpath(posixpath.join(self.root_dir, "" if path == "/" else path))
        if not f"{full}/".startswith(f"{self.allowed_root.rstrip('/')}/"):
            raise OutsideRootError(f"Path '{path}' is outside allowed root {self.allowed_root}")
        return full

    # -- a later deepagents -------------------------------------------------------------------------------------------

    def ls(self, path: str) -> Any:
        """Return `ls_info` as a ``LsResult``."""
        return deepagents.result("LsResult", entries=self.ls_info(path))

    def glob(self, pattern: str, path: str | None = None) -> Any:
        """Return `glob_info` as a ``GlobResult``."""
        return deepagents.result("GlobResult", matches=self.glob_info(pattern, path or "/"))

    def grep(self, pattern: str, path: str | None = None, glob: str | None = None) -> Any:
        """Return the lines with a text, which is no expression, as a ``GrepResult``."""
        found = self._grep("-F", pattern, path, glob)
        values = {"error": found} if isinstance(found, str) else {"matches": found}
        return deepagents.result("GrepResult", **values)


class _RefusedError(Exception):
    """A change of a file that is not made."""


def _text(done: CommandOutcome, failed: str) -> str:
    return done.stdout if done.exit_code == 0 else done.stderr or f"{failed} {done.exit_code}"


def _unread(why: str) -> Any:
    return deepagents.result("ReadResult", error=why) or f"Error: {why}"


def _entries(listed: str, target: str) -> Iterator[dict[str, Any]]:
    """Parse lines of `_STAT`. ``find DIR/`` follows a link to a directory, and names its files below ``DIR/``."""
    marks = list(_ENTRY.finditer(listed))
    for mark, end in zip(marks, [*(mark.start() for mark in marks[1:]), len(listed)], strict=True):
        name = listed[mark.start(4) : end].removesuffix("\n")
        path = target.rstrip("/") + "/" + name.removeprefix(f"{target}/").lstrip("/")
        modified = datetime.fromtimestamp(int(mark[3]), UTC).isoformat()
        yield {"path": path, "is_dir": mark[1] == "directory", "size": int(mark[2]), "modified_at": modified}


def _outcome(path: str, transfer: Callable[[], bytes | None]) -> FileResponse:
    try:
        return FileResponse(path, transfer())
    except OutsideRootError:
        return FileResponse(path, error="permission_denied")
    except CallerError as error:
        if error.code not in _FILE_ERRORS:
            raise
        return FileResponse(path, error=_FILE_ERRORS[error.code])


def _pinned(rt: Any) -> str | None:
    """Return ``configurable.sandbox_session_id`` of a runtime or a configuration; None without one."""
    config = getattr(rt, "config", rt)
    configurable = config.get("configurable") if isinstance(config, Mapping) else None
    return configurable.get("sandbox_session_id") if isinstance(configurable, Mapping) else None

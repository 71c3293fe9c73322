"""The routes of sessions: which parameters a request gives to which method, and what is replied."""

import base64
import binascii
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from sandkeep.errors import CallerError, SandkeepError, SetupError, StateError
from sandkeep.model import (
    Artifact,
    ArtifactList,
    ExecResult,
    FileWritten,
    SandboxStatsList,
    Session,
    SessionEnsured,
    SessionList,
)
from sandkeepd.http import quantities, views
from sandkeepd.http.bodies import (
    Artifacts,
    CommandBody,
    ExportBody,
    ListQuery,
    SessionBody,
    SessionQuery,
    SnapshotBody,
    Snapshots,
    UploadBody,
    Uploaded,
)
from sandkeepd.http.exchange import Asked, Headers, Reply
from sandkeepd.http.gateway import Gateway
from sandkeepd.http.row import PREFIX, Row, Values

LEAST_IDLE_S: Final = 60
LEAST_LIFETIME_S: Final = 300
INLINE_BYTES: Final = 64 * 1024
"""Maximum size of an artifact whose bytes are in the answer to its export."""

_UNUSABLE: Final = ("snapshot_missing", "snapshot_corrupt")
_NOT_RESTORED: Final = (*_UNUSABLE, "not_found", "snapshot_not_ready")


# -- making ready -----------------------------------------------------------------------------------------------------


async def ensure(gateway: Gateway, row: Row, asked: Asked) -> None:
    """Make a session ready: 201 if a sandbox was made for it, 200 if it was ready."""
    body: SessionBody = asked.body
    try:
        done: SessionEnsured = await gateway.call(asked, row.operation, _ensured(body))
    except CallerError as error:
        if error.data.get("field") != "idle_timeout_s":
            raise
        message = "idle_timeout_sec cannot exceed max_lifetime_sec"
        raise CallerError("invalid", message, field="idle_timeout_sec") from None
    location = (b"location", views.path_of(done.session.session_id).encode())
    await asked.reply(Reply(201 if done.created else 200, views.session(done.session), [location]))


def _seconds(field: str, seconds: int | None, least: int) -> int | None:
    if seconds and seconds < least:
        raise CallerError("invalid", f"{field}: must be at least {least}, or 0 for never", field=field)
    return seconds


def _ensured(body: SessionBody) -> Values:
    """Return the parameters: no more than the body has, so that a repeated request has the same ones."""
    metadata = dict(body.metadata)
    if body.workspace_uid:
        metadata[views.WORKSPACE_UID] = body.workspace_uid
    values = {
        "id": body.id,
        "mode": body.mode,
        "image": body.image,
        "restore_snapshot_id": body.restore_snapshot_id,
        "cpus": _quantity("cpu", body.cpu, quantities.cpus),
        "memory_bytes": _quantity("memory", body.memory, quantities.size),
        "disk_bytes": _quantity("ephemeral_storage", body.ephemeral_storage, quantities.size),
        "idle_timeout_s": _seconds("idle_timeout_sec", body.idle_timeout_sec, LEAST_IDLE_S),
        "max_lifetime_s": _seconds("max_lifetime_sec", body.max_lifetime_sec, LEAST_LIFETIME_S),
        "artifact_base_url": body.artifact_base_url,
        "env": body.env,
        "secrets": body.secrets,
        "labels": body.labels,
        "metadata": metadata or None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _quantity(field: str, text: str | None, parse: Callable[[str], float]) -> float | None:
    try:
        return parse(text) if text else None
    except ValueError as error:
        raise CallerError("invalid", f"{field}: {error}", field=field) from None


def ensure_problem(asked: Asked, error: SandkeepError) -> int | None:
    """Return the status of a failed creation: 404 if the snapshot that was to be restored cannot be, whether the
    request names it or the session had it last; else 400.
    """
    if error.code in ("invalid", "permission_denied", "conflict", "internal") or asked.body is None:
        return None
    return 404 if error.code in (_UNUSABLE if asked.body.restore_snapshot_id is None else _NOT_RESTORED) else 400


# -- sessions ---------------------------------------------------------------------------------------------------------


async def session(gateway: Gateway, row: Row, asked: Asked) -> None:
    """Answer a session with what it used."""
    found: Session = await gateway.call(asked, row.operation, {"session_id": asked.id})
    counts: dict[str, Any] = {"artifacts_count": gateway.core.quotas.artifacts_of(found.key)}
    if found.status == "ready":
        with suppress(StateError):  # its sandbox has just ended
            used: SandboxStatsList = await gateway.call(asked, "sandbox.stats", {"sandbox_id": found.sandbox_id})
            for each in used.sandboxes:
                counts |= {"cpu_seconds": each.cpu_s, "storage_bytes": each.disk_bytes}
    await asked.reply(Reply(200, replace(views.session(found), **counts)))


def list_params(asked: Asked) -> Values:
    """Return the parameters of a list of sessions."""
    query: SessionQuery = asked.query
    return {"all": query.all, "newest_first": True, "after": query.after, "limit": query.limit}


def list_reply(asked: Asked, found: SessionList) -> Reply:
    """Reply a list of sessions, newest first; a header says where it goes on."""
    query: SessionQuery = asked.query
    more = f"all={'true' if query.all else 'false'}&"
    return Reply(200, [views.session(each) for each in found.sessions], _link(views.SESSIONS, found.next, query, more))


def _link(path: str, following: str | None, query: SessionQuery | ListQuery, more: str = "") -> Headers:
    if following is None:
        return ()
    return [(b"link", f'<{PREFIX}{path}?{more}after={following}&limit={query.limit}>; rel="next"'.encode())]


async def no_view(gateway: Gateway, row: Row, asked: Asked) -> None:
    """Refuse: there is no picture of a sandbox to stream."""
    await gateway.call(asked, row.operation, {"session_id": asked.id})
    message = "a sandbox has no screen to view: follow its events at stream/, or its terminals with `sandkeep attach`"
    raise SetupError("not_supported", message)


# -- in the sandbox ---------------------------------------------------------------------------------------------------


def command_params(asked: Asked) -> Values:
    """Return the parameters of a command."""
    body: CommandBody = asked.body
    optional = {"working_dir": body.cwd, "timeout_s": body.timeout_sec}
    given = {name: value for name, value in optional.items() if value}
    return {"sandbox_id": asked.id, "command": body.command, "env": body.env, **given}


def command_reply(asked: Asked, found: ExecResult) -> Reply:
    """Reply the outcome of a command."""
    body: CommandBody = asked.body
    return Reply(200, views.outcome(found, stdout=body.capture_stdout, stderr=body.capture_stderr))


def upload_params(asked: Asked) -> Values:
    """Return the parameters of a small file. Raises `invalid` for what is not base64, which may have line breaks."""
    body: UploadBody = asked.body
    try:
        is_text = body.encoding == "utf-8"
        data = body.content.encode() if is_text else base64.b64decode("".join(body.content.split()), validate=True)
    except (binascii.Error, ValueError):
        raise CallerError("invalid", "content: must be base64, as `encoding` says", field="content") from None
    return {"sandbox_id": asked.id, "path": body.path, "data": data, "parents": True}


async def upload(gateway: Gateway, row: Row, asked: Asked) -> None:
    """Write a small file. One that cannot be written is answered as a command that fails, which tools show to their
    agents.
    """
    body: UploadBody = asked.body
    try:
        written: FileWritten = await gateway.call(asked, row.operation, upload_params(asked))
        shown = views.uploaded(written)
    except SandkeepError as error:
        if error.code != "disk_limit" and error.data.get("field") != "path":
            raise
        shown = Uploaded(path=body.path, size_bytes=0, exit_code=1, stderr=f"{error.message}\n")
    await asked.reply(Reply(200, shown))


# -- artifacts --------------------------------------------------------------------------------------------------------


def export_params(asked: Asked) -> Values:
    """Return the parameters of an export."""
    body: ExportBody = asked.body
    given = {"name": body.filename, "media_type": body.content_type}
    optional = {name: value for name, value in given.items() if value}
    return {"sandbox_id": asked.id, "path": body.path, "inline_bytes": INLINE_BYTES, **optional}


def export_reply(asked: Asked, found: Artifact) -> Reply:
    """Reply a new artifact."""
    shown = views.artifact(asked.id, found)
    return Reply(201, shown, [(b"location", shown.content_url.encode())])


def artifacts_params(asked: Asked) -> Values:
    """Return the parameters of a list of artifacts."""
    query: ListQuery = asked.query
    return {"session_id": asked.id, "newest_first": True, "after": query.after, "limit": query.limit}


def artifacts_reply(asked: Asked, found: ArtifactList) -> Reply:
    """Reply a list of artifacts, newest first; a header says where it goes on."""
    headers = _link(f"{views.SESSIONS}{asked.id}/artifacts/", found.next, asked.query)
    artifacts = [views.artifact(asked.id, each) for each in found.artifacts]
    return Reply(200, Artifacts(session_id=asked.id, artifacts=artifacts), headers)


# -- snapshots --------------------------------------------------------------------------------------------------------


def snapshot_params(asked: Asked) -> Values:
    """Return the parameters of a new snapshot."""
    body: SnapshotBody = asked.body
    labels = {} if body.label is None else {views.LABEL: body.label}
    return {"sandbox_id": asked.id, "include": body.include_paths, "exclude": body.exclude_paths, "labels": labels}


async def snapshots(gateway: Gateway, row: Row, asked: Asked) -> None:
    """Answer the snapshots of a session, of all the sandboxes that it had, newest first."""
    query: ListQuery = asked.query
    session: Session = await gateway.call(asked, row.operation, {"session_id": asked.id})
    ids = [each for each in reversed(session.snapshot_ids) if query.after is None or each < query.after]
    page = ids[: query.limit]
    found = [await gateway.call(asked, "snapshot.get", {"snapshot_id": each}) for each in page]
    following = page[-1] if len(ids) > len(page) else None
    headers = _link(f"{views.SESSIONS}{asked.id}/snapshots/", following, query)
    shown = Snapshots(session_id=asked.id, snapshots=[views.snapshot(each) for each in found])
    await asked.reply(Reply(200, shown, headers))

"""The table of routes, from which the application and its OpenAPI document are made."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from sandkeepd.http import bodies, events, files, sessions, views
from sandkeepd.http.row import Row

_OF_SESSION: Final = "/sessions/{id}/"
_IN_SANDBOX: Final = (501, 507)
"""Statuses of problems of routes that need a running sandbox: its provider cannot do it, or its disk is full."""


def _session(verb: str, path: str, operation: str, summary: str, **more: Any) -> Row:
    return Row(verb=verb, path=_OF_SESSION + path, operation=operation, summary=summary, **more)


_close: Final = partial(
    _session,
    operation="session.close",
    summary="End a session, after a snapshot.",
    statuses=(204,),
    problems=_IN_SANDBOX,
)
_command: Final = partial(
    _session,
    "POST",
    operation="sandbox.exec",
    body=bodies.CommandBody,
    answer=bodies.CommandOutcome,
    params=sessions.command_params,
    reply=sessions.command_reply,
    problems=_IN_SANDBOX,
)
_snapshot: Final = partial(
    _session,
    "POST",
    operation="snapshot.create",
    body=bodies.SnapshotBody,
    answer=bodies.SnapshotView,
    statuses=(201,),
    params=sessions.snapshot_params,
    show=views.snapshot,
    problems=_IN_SANDBOX,
)

ROWS: Final[Sequence[Row]] = (
    Row(
        verb="POST",
        path="/sessions/",
        operation="session.ensure",
        summary="Make a session ready: find it, create it, or bring it back. 201 if a sandbox was made for it.",
        body=bodies.SessionBody,
        answer=bodies.SessionView,
        statuses=(200, 201),
        problem=sessions.ensure_problem,
        serve=sessions.ensure,
    ),
    Row(
        verb="GET",
        path="/sessions/",
        operation="session.list",
        summary="List your sessions, newest first.",
        query=bodies.SessionQuery,
        answer=list[bodies.SessionView],
        params=sessions.list_params,
        reply=sessions.list_reply,
    ),
    _session("GET", "", "session.get", "Show a session.", answer=bodies.SessionView, serve=sessions.session),
    _close("DELETE", ""),
    _close("POST", "stop/"),
    _command("exec/", summary="Run a command to its end."),
    _command("shell/", summary="Run a command to its end."),
    _session(
        "POST",
        "upload/",
        "sandbox.write_file",
        "Write a small file.",
        body=bodies.UploadBody,
        answer=bodies.Uploaded,
        serve=sessions.upload,
        problems=_IN_SANDBOX,
    ),
    _session(
        "POST",
        "files/upload/",
        "sandbox.copy_in",
        "Write a file of any size: the body is its content.",
        query=bodies.UploadQuery,
        answer=bodies.Uploaded,
        takes=files.OCTETS,
        serve=files.upload,
        problems=(408, *_IN_SANDBOX),
    ),
    _session(
        "GET",
        "files/content/",
        "sandbox.copy_out",
        "Read a file of any size.",
        query=bodies.ContentQuery,
        params=files.copy_params,
        sends=files.OCTETS,
        serve=files.content,
        problems=_IN_SANDBOX,
    ),
    _snapshot("snapshot/", summary="Snapshot the files of a session."),
    _snapshot("snapshots/", summary="Snapshot the files of a session."),
    _session(
        "GET",
        "snapshots/",
        "session.get",
        "List the snapshots of a session, newest first.",
        query=bodies.ListQuery,
        answer=bodies.Snapshots,
        serve=sessions.snapshots,
    ),
    Row(
        verb="POST",
        path="/snapshots/",
        operation="snapshot.import",
        summary="Import an archive as a snapshot: the body, of any size, is a tar of the files.",
        query=bodies.ImportQuery,
        answer=bodies.SnapshotView,
        statuses=(201,),
        takes=files.OCTETS,
        serve=files.import_archive,
        problems=(408, 501),
    ),
    _session(
        "POST",
        "files/export/",
        "artifact.export",
        "Export a file or directory as an artifact.",
        body=bodies.ExportBody,
        answer=bodies.ArtifactView,
        statuses=(201,),
        params=sessions.export_params,
        reply=sessions.export_reply,
        problems=_IN_SANDBOX,
    ),
    _session(
        "GET",
        "artifacts/",
        "artifact.list",
        "List the artifacts of a session, newest first.",
        query=bodies.ListQuery,
        answer=bodies.Artifacts,
        params=sessions.artifacts_params,
        reply=sessions.artifacts_reply,
    ),
    _session(
        "GET",
        "artifacts/{artifact_id}/content/",
        "artifact.open",
        "Read an artifact.",
        sends=files.OCTETS,
        serve=files.artifact,
    ),
    _session(
        "POST",
        "heartbeat/",
        "session.heartbeat",
        "Keep a session from being idle.",
        answer=bodies.SessionView,
        show=views.session,
    ),
    _session(
        "GET",
        "debug-connection/",
        "session.get",
        "Show how an administrator reaches the sandbox.",
        answer=bodies.DebugConnection,
        show=views.debug_connection,
    ),
    _session(
        "GET",
        "stream/",
        "event.list",
        "Follow the events of a session's sandbox, as server-sent events.",
        query=events.StreamQuery,
        sends=events.MEDIA_TYPE,
        problems=(410,),
        serve=events.events,
    ),
    _session(
        "GET", "stream/view/", "session.get", "Not there: a sandbox has no screen.", statuses=(), problems=(501,),
        serve=sessions.no_view,
    ),
    Row(
        verb="GET",
        path="/events/",
        operation="event.list",
        summary="Follow the events of your objects, as server-sent events.",
        query=events.EventsQuery,
        sends=events.MEDIA_TYPE,
        problems=(410,),
        serve=events.events,
    ),
)  # fmt: skip

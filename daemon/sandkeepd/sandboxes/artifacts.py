"""Artifacts: the operations on them, and the handlers that show them."""

import hashlib
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from msgspec.structs import replace

from sandkeep import events, ids
from sandkeep.errors import ProviderError, StateError
from sandkeep.model import Artifact, ArtifactList
from sandkeep.protocol.methods import ArtifactExport, ArtifactQuery, ArtifactRef, ArtifactRemove
from sandkeep.settings.storage import ARTIFACT_BASE_URL
from sandkeep.system.descriptors import closing_fd
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.threads import in_thread
from sandkeep_store.views.artifacts import ArtifactState
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Creation, Operation, Order, Removal
from sandkeepd.core.paging import page
from sandkeepd.sandboxes.artifact_files import ArtifactFiles
from sandkeepd.sandboxes.files import Files
from sandkeepd.sandboxes.runtimes import Runtimes

MOST_DIGESTS: Final = 4096
"""Number of digests that are remembered; others are computed when they are asked for."""


class ArtifactExporting(Creation[ArtifactState, Artifact]):
    """``artifact.export``: a file is copied out of a sandbox."""

    method = "artifact.export"
    view = "artifacts"
    named = "artifact_id"
    failure = events.ArtifactExportFailed
    interrupted = "the daemon stopped while it was being exported: export it again"

    def __init__(self, core: Core, runtimes: Runtimes, files: ArtifactFiles, shown: "ArtifactViews") -> None:
        super().__init__(core)
        self._runtimes = runtimes
        self._files = files
        self._shown = shown

    async def act(self, order: Order[ArtifactState]) -> Sequence[NewEvent]:
        asked = order.subject.requested
        order.resources.callback(self.core.quotas.release, order.stream)

        def reserve(size: int) -> None:
            """Reserve what is written by now, so that exports at the same time stay within the quota together."""
            try:
                self.core.quotas.reserve(order.request, asked.owner, {order.stream: {"artifacts": size}})
            except StateError:
                message = "the artifact is larger than the space left for artifacts: export less, or remove artifacts"
                raise ProviderError("disk_limit", message) from None

        with self._runtimes.reading(asked.sandbox_id):
            made = await self._files.export(asked.sandbox_id, order.stream, asked.path, reserve=reserve)
        self._shown.remember(order.stream, made.digest)
        event = events.ArtifactExported(
            name=asked.name or made.filename,
            media_type=asked.media_type or made.content_type,
            size_bytes=made.size_bytes,
        )
        return [NewEvent(order.stream, event)]

    async def roll_back(self, order: Order[ArtifactState]) -> None:
        await self.undo(order)

    async def undo(self, order: Order[ArtifactState]) -> None:
        await in_thread(self._files.remove, order.subject.sandbox_id, order.stream)

    async def answered(self, request: Request[ArtifactExport], subject: ArtifactState) -> Artifact:
        return await self._shown.with_content(subject, request.params.inline_bytes)


class ArtifactRemoval(Removal[ArtifactState, Artifact]):
    """``artifact.remove``."""

    method = "artifact.remove"
    view = "artifacts"
    under_way = "deleting"

    def __init__(self, core: Core, files: ArtifactFiles, shown: "ArtifactViews") -> None:
        super().__init__(core)
        self._files = files
        self._shown = shown

    async def act(self, order: Order[ArtifactState]) -> Sequence[NewEvent]:
        then = f"the removal of artifact {order.stream} is on record, and will be carried out when it answers"
        sandbox_id = order.subject.sandbox_id

        async def remove() -> None:
            await in_thread(self._files.remove, sandbox_id, order.stream)

        await self.insist(order.stream, remove, then)
        return [NewEvent(order.stream, events.ArtifactRemoved())]

    async def answered(self, request: Request[Any], subject: ArtifactState) -> Artifact:  # noqa: ARG002
        return self._shown.view(subject)


class ArtifactViews:
    """Artifacts as readers see them, with what is on no record: digests, addresses, bytes."""

    def __init__(self, core: Core, files: ArtifactFiles) -> None:
        self._core = core
        self._files = files
        self._digests: dict[str, str] = {}

    def remember(self, artifact_id: str, digest: str) -> None:
        """Keep a digest."""
        self._digests[artifact_id] = digest
        if len(self._digests) > MOST_DIGESTS:
            del self._digests[next(iter(self._digests))]

    def view(self, artifact: ArtifactState) -> Artifact:
        """Return it without its digest and bytes."""
        session = self._core.state.sessions.get(artifact.requested.session_id or "")
        base = (session.spec.artifact_base_url if session is not None else None) or ARTIFACT_BASE_URL()
        path = posixpath.normpath(f"/{artifact.requested.path.lstrip('/')}")  # no part of it leads above the base
        url = f"{base.rstrip('/')}{quote(path)}" if base else None
        return artifact.view(session.session_id if session is not None else None, url)

    async def with_content(self, artifact: ArtifactState, inline_bytes: int) -> Artifact:
        """Return it with its digest, and with its bytes if they are no more than that."""
        found = self.view(artifact)
        if artifact.status != "ready":
            return found
        data = None
        if inline_bytes and found.size_bytes <= inline_bytes:
            data = await in_thread(self._read, artifact)
        digest = self._digests.get(artifact.artifact_id)
        if digest is None:
            digest = await in_thread(self._digest, artifact)
            self.remember(artifact.artifact_id, digest)
        return replace(found, digest=digest, data=data)

    def _read(self, artifact: ArtifactState) -> bytes:
        with open(self._files.open(artifact.sandbox_id, artifact.artifact_id), "rb") as file:
            return file.read()

    def _digest(self, artifact: ArtifactState) -> str:
        with open(self._files.open(artifact.sandbox_id, artifact.artifact_id), "rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


class Artifacts:
    """The operations, and the handlers of ``artifact.*``."""

    def __init__(self, core: Core, runtimes: Runtimes, files: Files, state_dir: str) -> None:
        self._core = core
        self._files = ArtifactFiles(state_dir, files)
        self._shown = ArtifactViews(core, self._files)
        self._exporting = ArtifactExporting(core, runtimes, self._files, self._shown)
        self._removal = ArtifactRemoval(core, self._files, self._shown)
        self.operations: Sequence[Operation[Any, Any]] = (self._exporting, self._removal)
        self.sweep = self._files.sweep

    @property
    def _known(self) -> Mapping[str, ArtifactState]:
        return self._core.state.artifacts

    async def export(self, request: Request[ArtifactExport]) -> Artifact:
        """Copy a file or directory out of a sandbox."""
        command, state = request.params, self._core.state
        sandbox = rules.sandbox(state, command.sandbox_id)
        rules.require_running(sandbox)
        self._core.quotas.require(request, sandbox.owner, "artifacts")
        session = state.session_of(sandbox)
        event = events.ArtifactExportRequested(
            owner=sandbox.owner,
            sandbox_id=sandbox.sandbox_id,
            session_id=session.key if session is not None else None,
            path=command.path,
            name=command.name,
            media_type=command.media_type,
        )
        return await self._exporting.run(NewEvent(ids.new_id(ids.ARTIFACT), event, None, 0), request)

    async def get(self, request: Request[ArtifactRef]) -> Artifact:
        """Show an artifact."""
        return await self._shown.with_content(self._known[request.params.artifact_id], request.params.inline_bytes)

    async def open(self, request: Request[ArtifactRef]) -> Artifact:
        """Give the caller an artifact as an open file. Raises `not_ready` for one that is not there."""
        artifact = self._known[request.params.artifact_id]
        if artifact.status != "ready":
            message = f"artifact {artifact.artifact_id} is {artifact.status}: export it again"
            raise StateError("not_ready", message, artifact_id=artifact.artifact_id)
        opened = await in_thread(self._files.open, artifact.sandbox_id, artifact.artifact_id)
        with closing_fd(opened):
            await request.give([opened])
        return self._shown.view(artifact)

    def list_now(self, request: Request[ArtifactQuery]) -> ArtifactList:
        """List the caller's artifacts; an administrator sees all."""
        query = request.params
        mine = (a for a in self._known.values() if request.sees(a.owner) and _matches(a, query))
        found, following = page(
            mine, lambda artifact: artifact.artifact_id, query.after, query.limit, backwards=query.newest_first
        )
        return ArtifactList(artifacts=[self._shown.view(artifact) for artifact in found], next=following)

    async def remove(self, request: Request[ArtifactRemove]) -> Artifact:
        """Remove an artifact. One that was removed is answered as it is."""
        artifact = self._known[request.params.artifact_id]
        if artifact.status == "creating":
            raise StateError("not_ready", "it is still being exported: wait, then remove it")
        await self._removal.order(artifact.artifact_id, events.ArtifactRemoveRequested(), None, request.meta)
        return await self._removal.answer(request, artifact.artifact_id)


def _matches(artifact: ArtifactState, query: ArtifactQuery) -> bool:
    asked = artifact.requested
    return (
        (query.all or not artifact.ended)
        and query.sandbox_id in (None, asked.sandbox_id)
        and query.session_id in (None, asked.session_id)
    )

"""Sessions: the handlers, and the way of other methods to the sandbox of a session."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias
from uuid import uuid4

from msgspec.structs import replace

from sandkeep import events, ids
from sandkeep.errors import CallerError, ProviderError, StateError
from sandkeep.model import SandboxSpec, Session, SessionEnsured, SessionList, SessionMode, SessionSpec
from sandkeep.protocol.clock import now_us
from sandkeep.protocol.methods import (
    ImageCreate,
    SandboxCreate,
    SandboxResume,
    SessionClose,
    SessionEnsure,
    SessionQuery,
    SessionRef,
)
from sandkeep.settings.daemon import SESSION_IMAGE
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.sessions import SessionState
from sandkeepd.contract.provider import Provider
from sandkeepd.core import naming, rules
from sandkeepd.core.access import Request, part_of_request
from sandkeepd.core.core import Core, Tries
from sandkeepd.core.operation import Operation
from sandkeepd.core.paging import page
from sandkeepd.core.turns import Turns
from sandkeepd.sandboxes.creation import check_volumes
from sandkeepd.sandboxes.images import Images
from sandkeepd.sandboxes.sandboxes import Sandboxes
from sandkeepd.sessions.activity import Activity, Clock, awake_us, steady_us
from sandkeepd.sessions.reaper import Reaper
from sandkeepd.sessions.saving import Saving
from sandkeepd.sessions.starting import SessionStart, Start
from sandkeepd.sessions.stopping import SessionStop
from sandkeepd.snapshots.restore import Restores
from sandkeepd.snapshots.snapshots import Snapshots

_OF_SANDBOX: Final = (
    "cpus", "memory_bytes", "pids", "disk_bytes", "network", "user", "read_only", "working_dir", "volumes", "env",
    "labels",
)  # fmt: skip
"""Parameters of ``session.ensure`` that are properties of its sandboxes."""

KUBERNETES: Final = "kubernetes"
"""The provider of sessions in the mode ``k8s``."""

_Limits: TypeAlias = tuple[float | None, float | None]
"""The idle timeout and the longest life in seconds; None for never."""

_LIMITS_OF_KEY: Final[_Limits] = (300.0, 3600.0)
"""Limits of a new session of an API key: of a client over HTTP."""


class Sessions:
    """The parts, and the handlers of ``session.*``."""

    def __init__(
        self, core: Core, images: Images, sandboxes: Sandboxes, snapshots: Snapshots, restores: Restores,
        clock: Clock = now_us, steady: Clock = steady_us, awake: Clock = awake_us,
    ) -> None:  # fmt: skip
        self._core = core
        self._images = images
        self._sandboxes = sandboxes
        self._saving = Saving(core, snapshots, sandboxes.resumption)
        self._turns = Turns()
        self.activity = Activity(clock, steady)
        self.start = SessionStart(core, sandboxes, restores, self.ensure)
        self.stop = SessionStop(core, sandboxes.termination, self._saving, self.activity, self.view, awake)
        self.reaper = Reaper(core, self.stop, self.activity, steady, sandboxes.runtimes.is_copied)
        self.operations: Sequence[Operation[Any, Any]] = (self.start, self.stop)

    # -- looking ------------------------------------------------------------------------------------------------------

    def get_now(self, request: Request[SessionRef]) -> Session:
        """Show a session."""
        return self.view(self._core.state.sessions[request.params.session_id])

    def list_now(self, request: Request[SessionQuery]) -> SessionList:
        """List the caller's sessions; an administrator sees all."""
        query, over = request.params, ("failed", "expired", "terminated")
        shown = (
            session
            for session in self._core.state.sessions.values()
            if request.sees(session.owner) and (query.all or session.status_with(self._sandbox(session)) not in over)
        )
        found, following = page(
            shown, lambda session: session.key, query.after, query.limit, backwards=query.newest_first
        )
        return SessionList(sessions=[self.view(session) for session in found], next=following)

    def heartbeat_now(self, request: Request[SessionRef]) -> Session:
        """Keep a session from being idle. It brings back none that has ended."""
        session = self._core.state.sessions[request.params.session_id]
        self.activity.beat(session)
        return self.view(session)

    def view(self, session: SessionState) -> Session:
        """Return a session as readers see it."""
        sandbox = self._sandbox(session)
        active = self.activity.last(session, sandbox).wall_us if sandbox is not None else None
        return session.view(
            sandbox, active_us=active, heartbeat_us=self.activity.heartbeat_us(session), note=_note(session, sandbox)
        )

    def _sandbox(self, session: SessionState) -> SandboxState | None:
        return self._core.state.sandboxes.get(session.sandbox_id or "")

    # -- making ready -------------------------------------------------------------------------------------------------

    def ensure_now(self, request: Request[SessionEnsure]) -> Any:
        """Answer for a session that is ready; NotImplemented for any other."""
        session = self._core.state.session_called(request.owner, request.params.id or "")
        if session is None or not session.is_ready(self._sandbox(session)):
            return NotImplemented
        _check(request.params, session)
        self.activity.use(session)
        return SessionEnsured(session=self.view(session), created=False, restored_from=session.restored_from)

    async def ensure(self, request: Request[SessionEnsure]) -> SessionEnsured:
        """Make a session ready. Of concurrent calls for one, the first does it, and all get its result."""
        asked = request.params
        session_id = ids.check_new_name(asked.id, "id") if asked.id is not None else str(uuid4())
        _check(asked, self._core.state.session_called(request.owner, session_id))
        session, created = await self._ensure(request, session_id, asked)
        return SessionEnsured(session=self.view(session), created=created, restored_from=session.restored_from)

    async def bring_back(self, request: Request[Any], session: SessionState) -> str:
        """Make a session ready for another method; return the id of its sandbox. The caller is told if that was
        needed.
        """
        if not session.is_ready(self._sandbox(session)):
            asked = SessionEnsure(id=session.session_id)
            part = part_of_request(request, "session.ensure", asked)
            _, created = await self._ensure(part, session.session_id, asked, request.method.name)
            if created:
                files = f"snapshot {session.restored_from}" if session.restored_from else "its image"
                message = f"session {session.session_id} was brought back, with the files of {files}"
                lost = f": later changes are lost: {session.lost}" if session.lost is not None else ""
                await request.progress(message + lost)
        self.activity.use(session)
        assert session.sandbox_id is not None
        return session.sandbox_id

    async def _ensure(
        self, request: Request[Any], session_id: str, asked: SessionEnsure, reason: str = "session.ensure"
    ) -> tuple[SessionState, bool]:
        """Return the session, once it is ready, and whether a sandbox was made for it by this call."""
        key = request.owner, session_id
        known, waited = self._core.state.session_called(*key), self._turns.is_taken(key)
        before = known.position if known is not None else 0
        async with self._turns.of(key):
            session = self._core.state.session_called(*key)
            if session is not None:
                self.activity.use(session)  # now: an end under way does not give up files that somebody waits for
                await self._settled(session)
                if waited and session.status == "failed" and session.position > before:
                    raise self.start.error_of(session)  # that of the call that was waited for
                if await self._is_ready(request, session, asked):
                    self.activity.use(session)
                    return session, False
            return await self._start(request, session_id, session, asked, reason), True

    async def _settled(self, session: SessionState) -> None:
        """Wait until a start or an end of an earlier daemon, or of the reaper, is over."""
        await self._core.settled(session.key, lambda: session.status not in ("starting", "stopping"))

    async def _is_ready(self, request: Request[Any], session: SessionState, asked: SessionEnsure) -> bool:
        """Tell if the session's sandbox runs, after a suspended one was resumed."""
        sandbox = self._sandbox(session)
        if session.status == "ready" and sandbox is not None:
            if sandbox.status in ("suspending", "suspended", "resuming"):
                resume = SandboxResume(sandbox_id=sandbox.sandbox_id, secrets=asked.secrets)
                await self._sandboxes.resumption.ensure(part_of_request(request, "sandbox.resume", resume))
            elif sandbox.status == "restoring":
                await self._core.settled(sandbox.sandbox_id, lambda: sandbox.status != "restoring")
        return session.is_ready(sandbox)

    async def _start(
        self, request: Request[Any], session_id: str, session: SessionState | None, asked: SessionEnsure, reason: str
    ) -> SessionState:
        core = self._core
        image_id, spec = await self._spec(request, session_id, session, asked)
        last = self._sandbox(session) if session is not None else None
        if last is not None:
            rules.require_secrets(last, asked.secrets)
        self._snapshot_for(session, asked)  # before anything is given up for it
        lost = None
        if session is not None and last is not None:
            lost = await self._end_last(session, last, asked)
            await self._settled(session)  # an end may have been ordered meanwhile
        if lost is None and session is not None and session.stopped is not None and not _gives_up(asked):
            lost = session.stopped.unsaved
        event = events.SessionStartRequested(
            owner=request.owner,
            session_id=session_id,
            spec=spec,
            restored_from=self._snapshot_for(session, asked),
            reason=reason,
        )
        key = session.key if session is not None else ids.new_id(ids.SESSION)
        revision = session.revision if session is not None else 0
        start = Start(request, image_id, asked.secrets, lost)
        await self.start.run(NewEvent(key, event, key, revision), request, start)
        return core.state.sessions[key]

    async def _end_last(self, session: SessionState, sandbox: SandboxState, asked: SessionEnsure) -> str | None:
        """End what is left of the last sandbox, and return why its files are lost, if they are. Raises the error of a
        snapshot that failed.
        """
        lost = None
        if sandbox.hidden:
            return None
        if not _gives_up(asked) and await self._saving.can_save(sandbox):
            _, lost = await self._saving.save_or_explain(session, sandbox, "revival")
        await self._sandboxes.termination.end(sandbox.sandbox_id, "requested")
        await self._sandboxes.termination.settled(sandbox.sandbox_id)
        return lost

    def _snapshot_for(self, session: SessionState | None, asked: SessionEnsure) -> str | None:
        """Return the snapshot that a new sandbox of the session begins with; None for its image."""
        if asked.restore_snapshot_id is not None:
            return rules.ready_snapshot(self._core.state, asked.restore_snapshot_id).snapshot_id
        return None if session is None or asked.fresh else self._last_files(session)

    def _last_files(self, session: SessionState) -> str | None:
        """Return the newest snapshot of a session's workspace since it was last made ready, else the one that it began
        with then, or, if that was deleted, the newest that is left; None for its image.
        """
        snapshots, began_with = self._core.state.snapshots, session.requested.restored_from
        known = (snapshots[snapshot_id] for snapshot_id in session.snapshot_ids if snapshot_id in snapshots)
        whole = [snapshot for snapshot in known if snapshot.has_workspace(self._core.state.sandboxes)]
        if whole and whole[-1].requested_us >= session.requested_us:
            return whole[-1].snapshot_id
        if began_with is None or (began_with in snapshots and snapshots[began_with].status == "ready"):
            return began_with
        return whole[-1].snapshot_id if whole else None

    # -- the spec -----------------------------------------------------------------------------------------------------

    async def _spec(
        self, request: Request[Any], session_id: str, session: SessionState | None, asked: SessionEnsure
    ) -> tuple[str, SessionSpec]:
        """Return the image and the spec of a session that is to be made ready: as it was before, with what is asked
        for. Raises `invalid` and others of ``sandbox.create``.
        """
        before = session.spec if session is not None else None
        image = asked.image or (before.image if before is not None else SESSION_IMAGE())
        if image is None:
            message = f"image: a new session needs one, as {SESSION_IMAGE.name} is not set: give an id or a reference"
            raise CallerError("invalid", message, field="image")
        core, snapshot_id = self._core, self._snapshot_for(session, asked)
        if asked.image is None and snapshot_id is not None:  # it has all files: the image may be gone
            image_id, provider = snapshot_id, core.provider_of(core.state.snapshots[snapshot_id])
        else:
            image_id = await self._image_id(request, image, asked.mode)
            provider = core.provider_of_image(image_id)
            rules.ready_image(core.state, image_id)
            made_by = core.provider_of(core.state.snapshots[snapshot_id]) if snapshot_id is not None else provider
            if made_by is not provider:
                message = f"image: it is for {provider.name} sandboxes, and snapshot {snapshot_id} is of {made_by.name}"
                raise CallerError("invalid", f"{message} ones: leave one of them out, or give fresh", field="image")
        mode = _mode_of(provider, asked)
        given = {name: value for name in _OF_SANDBOX if (value := getattr(asked, name)) is not None}
        if before is not None:
            given = {name: getattr(before.sandbox, name) for name in _OF_SANDBOX} | given
        command = SandboxCreate(image_id=image_id, name=session_id, **given)
        sandbox = rules.sandbox_spec(
            command, network=provider.default_network(), memory_bytes=provider.default_memory()
        )
        check_volumes(request, command.volumes)
        default = _LIMITS_OF_KEY if request.peer.key is not None else (None, None)
        spec = _spec_of(asked, before, image, replace(sandbox, session_id=session_id), default)
        life_s = provider.default_lifetime() if spec.max_lifetime_s is None else spec.max_lifetime_s
        spec = replace(spec, mode=mode, max_lifetime_s=life_s)
        self._require_free(request.owner, session_id)
        return image_id, spec

    def _require_free(self, owner: str, session_id: str) -> None:
        """Raise `conflict` if another sandbox of the owner has the name that the session's will have."""
        named = self._core.state.sandbox_named(owner, session_id)
        if named is not None and not named.hidden and named.spec.session_id != session_id:
            message = f"you have a sandbox called {session_id!r}, which belongs to no session: choose another id"
            raise StateError("conflict", message, session_id=session_id)

    async def _image_id(self, request: Request[Any], image: str, mode: SessionMode | None) -> str:
        """Return the id of the caller's image of that id or reference, which is made if need be."""
        state, provider = self._core.state, None
        if mode == "k8s":
            provider = KUBERNETES
            if why := (await self._core.provider(provider).capabilities()).why:
                raise ProviderError("provider_unavailable", f"mode: {why}", field="mode")
        named = state.image_named(request.owner, ids.image_name(image))
        if image in state.images or ids.looks_like_id(image) or (named is not None and not named.ended):
            return rules.image(state, naming.resolve(state, "image", image, "image", request)).image_id
        if image.startswith(("/", ".", "~")):
            message = f"image: {image[:80]!r} is a path: make an image of it (`image.create`), and give its id"
            raise CallerError("invalid", message, field="image")
        known = naming.image_of_reference(
            state.images.values(), image, request.owner,
            lambda image: (image.requested.provider == KUBERNETES) is (provider == KUBERNETES),
        )  # fmt: skip
        if known is not None:
            return known.image_id
        create = ImageCreate(source=image, provider=provider)
        made = await self._images.create(part_of_request(request, "image.create", create))
        return made.image_id

    # -- ending -------------------------------------------------------------------------------------------------------

    async def close(self, request: Request[SessionClose]) -> Session:
        """End a session's sandbox, after a snapshot. One that has ended is answered as it is."""
        session, tries = self._core.state.sessions[request.params.session_id], Tries()
        while True:
            await self._settled(session)
            sandbox = self._sandbox(session)
            if session.status in ("expired", "terminated") or (
                session.status == "failed" and (sandbox is None or sandbox.hidden)
            ):
                return self.view(session)
            try:
                await self.stop.order(session, "stop", request.meta, snapshot=request.params.snapshot)
            except StateError as conflict:
                await tries.again(conflict)
                continue
            return await self.stop.answer(request, session.key)


def _note(session: SessionState, sandbox: SandboxState | None) -> str | None:
    """Return a note on a session that is not what it seems to be."""
    if session.status == "ready" and session.stop is not None and session.error:
        why = session.error[1]
        return f"it was to end ({session.stop.reason}), but its files could not be saved, and it is kept: {why}"
    if session.stopped is not None and session.stopped.unsaved is not None:
        why = session.stopped.unsaved
        return f"it ended although its files could not be saved, and their last changes are lost: {why}"
    if session.lost is not None:
        return f"the last changes of its files before it was brought back are lost: {session.lost}"
    if session.status == "ready" and sandbox is not None and sandbox.status == "suspended":
        return "its sandbox is suspended: a use of the session resumes it"
    if session.status == "ready" and sandbox is not None:
        return sandbox.handle.get("not_adopted")
    return None


def _check(asked: SessionEnsure, session: SessionState | None) -> None:
    """Raise `conflict` or `invalid` for parameters that no start could have, ready or not."""
    if session is not None:
        if asked.mode not in (None, session.spec.mode) and session.status == "ready":
            message = f"session {session.session_id} is ready in mode {session.spec.mode}: close it first"
            raise StateError("conflict", message, session_id=session.session_id)
        _limits(asked, (session.spec.idle_timeout_s, session.spec.max_lifetime_s))


def _limits(asked: SessionEnsure, own: _Limits) -> _Limits:
    """Return the limits of time that are asked for, else the session's `own`. Raises `invalid`."""
    idle = own[0] if asked.idle_timeout_s is None else asked.idle_timeout_s or None
    life = own[1] if asked.max_lifetime_s is None else asked.max_lifetime_s or None
    if idle is not None and life is not None and idle > life:
        message = "idle_timeout_s cannot exceed max_lifetime_s"
        raise CallerError("invalid", message, field="idle_timeout_s")
    return idle, life


def _mode_of(provider: Provider, asked: SessionEnsure) -> SessionMode:
    """Return the mode of a session on a provider. Raises `invalid` if another is asked for."""
    mode: SessionMode = "k8s" if provider.name == KUBERNETES else "docker"
    if asked.mode not in (None, mode):
        message = f"image: it is for {provider.name} sandboxes: give a reference, or an image for the mode {asked.mode}"
        raise CallerError("invalid", message, field="image")
    return mode


def _gives_up(asked: SessionEnsure) -> bool:
    """Tell if a caller does not want the session's last files."""
    return asked.fresh or asked.restore_snapshot_id is not None


def _spec_of(
    asked: SessionEnsure, before: SessionSpec | None, image: str, sandbox: SandboxSpec, default: _Limits
) -> SessionSpec:
    """Return the spec with the limits of time and the rest: those asked for, else the session's own, else, for a new
    one, the default. Raises `invalid`.
    """
    own = default if before is None else (before.idle_timeout_s, before.max_lifetime_s)
    idle, life = _limits(asked, own)
    return SessionSpec(
        image=image,
        sandbox=sandbox,
        idle_timeout_s=idle,
        max_lifetime_s=life,
        artifact_base_url=asked.artifact_base_url or (before.artifact_base_url if before is not None else None),
        metadata=asked.metadata if asked.metadata is not None else before.metadata if before is not None else {},
    )

"""Creation and attachment of shared sandboxes: the handlers of ``sandbox.create`` and ``sandbox.attach_shared``.

Whatever the sandbox begins with, the order is the same: settings, token, lock, metadata once more, and then the
sandbox goes on record. So nobody makes one that another daemon has, and none is disturbed by a caller without its
token. The lock is taken for the id that the sandbox will have; `keeping` releases it when there is no such sandbox.
"""

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import msgspec
import trio
from msgspec.structs import replace

from sandkeep import events, ids
from sandkeep.errors import CallerError, DataError, SandkeepError, SetupError, StateError, error_from
from sandkeep.model import Sandbox, SandboxSpec, SavedSandbox, SharedImage, Sharing
from sandkeep.protocol.clock import now_us, rfc3339
from sandkeep.protocol.methods import (
    METHODS,
    CheckpointRestore,
    LockAcquire,
    Params,
    SandboxAttachShared,
    SandboxCreate,
    SnapshotRestore,
)
from sandkeep_store.buckets.config import STORAGE, Artifact, Root, Storage
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.checkpoints import CheckpointState
from sandkeep_store.views.images import ImageState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.shared_metadata import Shared, SharedMetadata
from sandkeep_store.views.snapshots import SnapshotState
from sandkeepd.checkpoints.restoration import CheckpointRestoration, checkpointing
from sandkeepd.contract.provider import Provider
from sandkeepd.core import rules
from sandkeepd.core.access import Request, check_allowed, part_of_request
from sandkeepd.core.core import RUN_AGAIN, Core
from sandkeepd.core.operation import DirectCommand
from sandkeepd.locks.locks import LockService
from sandkeepd.locks.publish import Publisher
from sandkeepd.sandboxes.creation import Maker, check_volumes
from sandkeepd.sandboxes.images import Images
from sandkeepd.sandboxes.sandboxes import Sandboxes
from sandkeepd.sharing.images import SharedImages
from sandkeepd.sharing.tokens import check_token, hash_of, token_of
from sandkeepd.snapshots.archive_paths import place_of
from sandkeepd.snapshots.restore import Restores
from sandkeepd.snapshots.snapshots import snapshotting

LOOK_S: Final = 1.0
"""Seconds between two looks of a waiter at whether it was refused."""

RELEASE_S: Final = 10.0
"""Seconds that a refusal waits for the release of the lock that was taken for it."""

P = TypeVar("P", bound=Params)


class Attachment:
    """See the module."""

    def __init__(
        self, core: Core, images: Images, sandboxes: Sandboxes, restores: Restores, checkpoints: CheckpointRestoration,
        locks: LockService, publisher: Publisher, shared_images: SharedImages, storage: Storage = STORAGE,
    ) -> None:  # fmt: skip
        self._core = core
        self._holds = images.holds
        self._sandboxes = sandboxes
        self._restores = restores
        self._checkpoints = checkpoints
        self._locks = locks
        self._publisher = publisher
        self._images = shared_images
        self._storage = storage
        self.starting: set[str] = set()
        """Sandboxes whose lock is taken, or about to be, and which are not on record yet."""
        self.commands: Sequence[DirectCommand] = (
            DirectCommand("sandbox.create", self._again), DirectCommand("sandbox.attach_shared", self._again)
        )  # fmt: skip

    # -- making -------------------------------------------------------------------------------------------------------

    async def create(self, request: Request[SandboxCreate]) -> Sandbox:
        """Make a sandbox and start it; attach one that is shared under that id already."""
        command = request.params
        name = command.gcs_sandbox_id
        if name is None:
            for field in ("enable_checkpoint", "enable_handoff", "enable_checkpoint_at_idle", "sandbox_token"):
                if getattr(command, field):
                    raise CallerError(
                        "invalid", f"{field}: it is for shared sandboxes: give gcs_sandbox_id", field=field
                    )
            return await self._sandboxes.creation.create(request)
        ids.check_new_name(name, "gcs_sandbox_id")
        if command.name not in (None, name):
            raise CallerError("invalid", "name: a shared sandbox is called by its gcs_sandbox_id: leave it out")
        movable = command.enable_handoff or command.enable_checkpoint_at_idle
        self._storage.require_sharing(
            checkpoints=movable or command.enable_checkpoint,
            beside_metadata=command.enable_checkpoint and not command.enable_handoff,
        )
        found = await self._publisher.read(request.owner, name)
        if found is None or found.is_removed:
            return await self._make(request, name)
        check_token(command.sandbox_token, _token_hash(found), name)
        assert command.sandbox_token is not None
        attach = SandboxAttachShared(
            gcs_sandbox_id=name, sandbox_token=command.sandbox_token, secrets=command.secrets,
            command_id=command.command_id,
        )  # fmt: skip
        return await self._attach(_as(request, "sandbox.attach_shared", attach), found)

    async def _make(self, request: Request[SandboxCreate], name: str) -> Sandbox:
        core, command = self._core, request.params
        provider = core.provider_of_image(command.image_id)
        image, spec = rules.create_sandbox(
            core.state, command, network=provider.default_network(), memory_bytes=provider.default_memory()
        )
        check_volumes(request, command.volumes)
        sharing = Sharing(
            gcs_sandbox_id=name, enable_handoff=command.enable_handoff,
            enable_checkpoint_at_idle=command.enable_checkpoint_at_idle, created_at=rfc3339(now_us()),
        )  # fmt: skip
        is_saved = sharing.is_movable or command.enable_checkpoint
        saves_memory = self._require_savable(provider, movable=is_saved)
        told = await self._images.describe(request, image, archive=saves_memory)
        held, reserved = self._holds.held(image.image_id), self._sandboxes.reservations.one(request, name, spec)
        with held, reserved as sandbox_id:
            token = command.sandbox_token or token_of(core.log.command_key, sandbox_id)
            spec = replace(spec, shared=replace(sharing, token_sha256=hash_of(token)))
            new = await self._intended(request, image, provider, sandbox_id, spec, told, is_saved=is_saved)
            beside = command.enable_checkpoint and not command.enable_handoff
            async with self._locked(request, name, sandbox_id, 0.0, beside_metadata=beside):
                found = await self._publisher.read(request.owner, name)
                if found is not None and not found.is_removed:
                    message = f"another daemon has just made the shared sandbox {name!r}: attach to it"
                    raise StateError("conflict", message, gcs_sandbox_id=name)
                await self._sandboxes.creation.begin(new, request.meta, request, Maker(command.secrets))
        return await self._made(sandbox_id, token, "requested")

    def _require_savable(self, provider: Provider, *, movable: bool) -> bool:
        """Return True if the provider saves sandboxes with their memory. Raises `not_configured` unless one that is
        surely to be saved can be saved where others find it; another need not be.
        """
        if not movable:
            return False
        if provider.checkpoints is None:
            snapshotting(provider)
            self._storage.require("snapshot", bucket=True)
        return provider.checkpoints is not None

    async def _intended(
        self, request: Request[SandboxCreate], image: ImageState, provider: Provider, sandbox_id: str,
        spec: SandboxSpec, told: SharedImage, *, is_saved: bool,
    ) -> NewEvent:  # fmt: skip
        """Return the intent. Raises `not_supported` unless one that is to be saved can be, before any lock is taken."""
        new = self._sandboxes.reservations.intent(
            sandbox_id, provider, image.image_id, spec, request.caller, request.params.secrets, first_image=told
        )
        plan = self._sandboxes.reservations.plan(sandbox_id)
        why = provider.checkpoints.why_no_checkpoint(plan) if told.path is not None and provider.checkpoints else None
        if why is not None:
            raise SetupError("not_supported", f"it could not be handed over: {why}")
        if is_saved and provider.checkpoints is None:
            await snapshotting(provider).require_packable(plan)
        return new

    async def _made(self, sandbox_id: str, token: str | None, or_else: str) -> Sandbox:
        """Wait until a sandbox runs, and other daemons can read of it. If they cannot, end it for the other reason."""
        made = await self._sandboxes.creation.made(sandbox_id)
        try:
            await self._publisher.publish(sandbox_id)
        except SandkeepError:
            await self._sandboxes.termination.end(sandbox_id, or_else)
            raise
        return replace(made, sandbox_token=token)

    async def _again(self, request: Request[Any], first: Recorded) -> Any:
        made = await self._sandboxes.creation.again(request, first)
        if made is RUN_AGAIN or not isinstance(made, Sandbox) or made.spec.shared is None:
            return made
        token = token_of(self._core.log.command_key, made.sandbox_id)
        return replace(made, sandbox_token=token if hash_of(token) == made.spec.shared.token_sha256 else None)

    # -- attaching ----------------------------------------------------------------------------------------------------

    async def attach(self, request: Request[SandboxAttachShared]) -> Sandbox:
        """Attach a sandbox that is shared."""
        command = request.params
        name = ids.check_new_name(command.gcs_sandbox_id, "gcs_sandbox_id")
        self._storage.require_sharing(beside_metadata=True)
        found = await self._publisher.read(request.owner, name)
        if found is None or found.is_removed:
            raise _no_such(name)
        check_token(command.sandbox_token, _token_hash(found), name)
        return await self._attach(request, found)

    async def _attach(self, request: Request[SandboxAttachShared], found: SharedMetadata) -> Sandbox:
        command, state = request.params, self._core.state
        name, shared = command.gcs_sandbox_id, _shared(found)
        here = state.sandbox_named(request.owner, name)
        if here is not None and here.status in ("creating", "stopping"):
            await self._core.settled(here.sandbox_id, lambda: here.status not in ("creating", "stopping"))
        lost = here if here is not None and self._is_lost(here) else None
        if here is not None and not here.hidden and lost is None:
            raise _in_use(here, name)
        provider = self._core.provider(shared.provider)
        spec = _checked_spec(request, shared)
        assert spec.shared is not None
        beside = not spec.shared.enable_handoff
        self._storage.require_sharing(checkpoints=spec.shared.is_movable, beside_metadata=beside)
        self._require_savable(provider, movable=spec.shared.is_movable)
        if not _has_memory(provider, shared) and (shared.saved is not None or provider.checkpoints is None):
            _require_secrets(shared, command.secrets)
        # Made before the lock is asked for, so that nobody waits for it.
        image_id = await self._image(request, shared, provider) if _needs_image(provider, shared) else None
        with self._sandboxes.reservations.one(
            request, name, spec, instead_of=lost.sandbox_id if lost is not None else None
        ) as sandbox_id:
            async with self._locked(request, name, sandbox_id, command.timeout_s, beside_metadata=beside):
                now = await self._publisher.read(request.owner, name)
                if now is None or now.is_removed:
                    raise _no_such(name)
                check_token(command.sandbox_token, _token_hash(now), name)
                if image_id is None and _needs_image(provider, _shared(now)):  # it was saved meanwhile
                    image_id = await self._image(request, _shared(now), provider)
                if lost is not None:
                    await self._end_lost(lost, _shared(now))
                await self._restore(request, sandbox_id, spec, _shared(now), image_id)
        # Not as requested, which would tell all daemons that there is no such sandbox any more.
        return await self._made(sandbox_id, None, "detached")

    def _is_lost(self, sandbox: SandboxState) -> bool:
        """Return True if another daemon has had a sandbox since its lock was lost here, where it stands still."""
        lock = rules.shared_lock(self._core.state, sandbox.sandbox_id)
        return not sandbox.hidden and sandbox.moved_to is not None and lock is not None and lock.ended

    async def _end_lost(self, sandbox: SandboxState, shared: Shared) -> None:
        """End what was left of a sandbox here, as what other daemons saved of it takes its place."""
        if shared.saved is not None:
            await self._sandboxes.termination.end(sandbox.sandbox_id, "attached_again")
            await self._sandboxes.termination.settled(sandbox.sandbox_id)

    async def _image(self, request: Request[SandboxAttachShared], shared: Shared, provider: Provider) -> str:
        if shared.image is None:
            raise DataError("snapshot_corrupt", "the metadata of the shared sandbox does not name its image")
        return await self._images.find(request, shared.image, provider, by_archive=_has_memory(provider, shared))

    async def _restore(
        self, request: Request[SandboxAttachShared], sandbox_id: str, spec: SandboxSpec, shared: Shared,
        image_id: str | None,
    ) -> None:  # fmt: skip
        saved, command = shared.saved, request.params
        if saved is None:
            message = f"the shared sandbox {command.gcs_sandbox_id!r} was never saved, and its daemon has lost it"
            raise DataError("snapshot_missing", f"{message}: create it with another id")
        place = place_of(self._root(saved), saved.path)
        facts = {"saved": saved, "first_image": shared.image}
        if saved.kind == "snapshot":
            _require_secrets(shared, command.secrets)
            snapshot = self._snapshot(request, shared, saved, place, image_id)
            restore = SnapshotRestore(
                snapshot_id=snapshot.snapshot_id, name=command.gcs_sandbox_id, secrets=command.secrets,
                command_id=command.command_id,
            )  # fmt: skip
            part = _as(request, "snapshot.restore", restore)
            await self._restores.begin(part, snapshot, sandbox_id, spec, restored_from=saved.id, **facts)
            return
        checkpointing(self._core.provider(shared.provider))
        assert image_id is not None
        checkpoint = CheckpointState(
            checkpoint_id=saved.id, status="ready", requested_us=now_us(), revision=1,
            requested=events.CheckpointCreateRequested(
                owner=request.owner, sandbox_id=sandbox_id, image_id=image_id, provider=shared.provider, spec=spec,
                place=place, leave_running=False, secrets=shared.secrets, facts=saved.facts,
            ),
            stored=events.CheckpointStored(files=saved.files, processes=len(saved.processes)),
        )  # fmt: skip
        again = CheckpointRestore(checkpoint_id=saved.id, command_id=command.command_id)
        await self._checkpoints.begin_one(
            _as(request, "checkpoint.restore", again), checkpoint, sandbox_id, spec, **facts
        )

    def _snapshot(
        self, request: Request[Any], shared: Shared, saved: SavedSandbox, place: Any, image_id: str | None
    ) -> SnapshotState:
        """Return a snapshot that is on record elsewhere. Its files are kept here under an id of their own: others may
        have the one that is told.
        """
        snapshotter = snapshotting(self._core.provider(shared.provider))
        return SnapshotState(
            snapshot_id=ids.new_id(ids.SNAPSHOT), status="ready", requested_us=now_us(), revision=1,
            requested=events.SnapshotCreateRequested(
                owner=request.owner, kind="full", format=saved.format, places=[place], image_id=image_id,
                provider=shared.provider, root=snapshotter.files_root({}),
            ),
            stored=events.SnapshotStored(
                digest=saved.digest, size_bytes=saved.size_bytes, member_count=0, content_bytes=0, format=saved.format
            ),
        )  # fmt: skip

    def _root(self, saved: SavedSandbox) -> Root:
        """Return the place of what was saved, as this daemon reaches it. Raises `not_configured` for another bucket."""
        kind: Artifact = "checkpoint" if saved.kind == "checkpoint" else "snapshot"
        root = self._storage.require(kind, bucket=True)
        here = self._storage.bucket_of(root.where, root.base)
        if here != saved.bucket:
            message = f"the {kind} is in the bucket {saved.bucket!r}, and this daemon has its own in {here!r}"
            raise SetupError("not_configured", f"{message}: set the same for both", bucket=saved.bucket)
        return root

    # -- the lock -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _locked(
        self, request: Request[Any], name: str, sandbox_id: str, timeout_s: float, *, beside_metadata: bool
    ) -> AsyncIterator[None]:
        """Take the lock for a sandbox that goes on record in the block. If it does not, the lock is released before the
        caller hears of it: he may try again at once.
        """
        self.starting.add(sandbox_id)
        try:
            where = self._locks.place(request, name, beside_metadata=beside_metadata)
            lock_id = await self._take(request, name, sandbox_id, timeout_s, where)
            try:
                yield
            except BaseException:
                if sandbox_id not in self._core.state.sandboxes:
                    with trio.move_on_after(RELEASE_S, shield=True):
                        lock = self._core.state.locks[lock_id]
                        await self._locks.free(lock)
                        await self._core.settled(lock_id, lambda: lock.ended)
                raise
        finally:
            self.starting.discard(sandbox_id)

    async def _take(self, request: Request[Any], name: str, sandbox_id: str, timeout_s: float, where: str) -> str:
        """Take the lock; return its id. Raises as ``lock.acquire`` does, and the reason why the daemon that has it
        cannot give it up.
        """
        part = part_of_request(request, "lock.acquire", LockAcquire(name=name, timeout_s=timeout_s))
        event = events.LockAcquireRequested(
            owner=request.owner, name=name, where=where, owner_id=str(uuid.uuid4()),
            timeout_s=timeout_s, sandbox_id=sandbox_id,
        )  # fmt: skip
        if timeout_s <= 0:
            return (await self._locks.take(part, event)).lock_id
        outcome: list[SandkeepError | str] = []
        async with trio.open_nursery() as nursery:

            async def take() -> None:
                try:
                    outcome.append((await self._locks.take(part, event)).lock_id)
                except SandkeepError as error:
                    outcome.append(error)
                nursery.cancel_scope.cancel()

            async def hear() -> None:
                outcome.append(await self._refusal(request.owner, name, event.owner_id))
                nursery.cancel_scope.cancel()

            nursery.start_soon(take)
            nursery.start_soon(hear)
        if isinstance(outcome[0], SandkeepError):
            raise outcome[0]
        return outcome[0]

    async def _refusal(self, owner: str, name: str, owner_id: str) -> SandkeepError:
        """Wait until the daemon that has the sandbox tells that it cannot give it up to this owner of the lock."""
        while True:
            await trio.sleep(LOOK_S)
            try:
                found = await self._publisher.read(owner, name)
            except SandkeepError:
                continue  # the lock's own store tells soon enough
            refused = found.shared.refused if found is not None and found.shared is not None else None
            if refused is not None and refused.waiter == owner_id:
                message = f"the daemon that has the shared sandbox {name!r} did not hand it over: {refused.message}"
                return error_from("conflict", message, {"gcs_sandbox_id": name, "cause": refused.code})


def _as(request: Request[Any], method: str, params: P) -> Request[P]:
    """Return the same command as if it were of another method."""
    made: Request[P] = replace(request, method=METHODS[method], params=params)
    return made


def _shared(found: SharedMetadata) -> Shared:
    """Return our part of a document. Raises `snapshot_missing` for one of cloud-run-sandbox that was never saved, and
    `not_supported` for others of it: what they saved runs that program's first process, and not the keeper, by which
    commands are run here; no version of `runsc` adds one to a saved sandbox.
    """
    if found.shared is not None:
        return found.shared
    whose = f"the shared sandbox {found.sandbox_id!r} is one of cloud-run-sandbox"
    saved = found.latest_sandbox_checkpoint or found.latest_checkpoint
    if saved is None:
        raise DataError("snapshot_missing", f"{whose}, and was never saved: attach to it there")
    where = f"{saved.bucket}/{saved.path}" if saved.bucket is not None else saved.path
    message = f"{whose}: its checkpoint {where} holds no keeper, by which commands run in a sandbox here"
    remedy = "attach to it there, and bring its files by a filesystem snapshot"
    raise SetupError("not_supported", f"{message}: {remedy}", checkpoint=where)


def _token_hash(found: SharedMetadata) -> str:
    spec = _shared(found).spec
    return spec.shared.token_sha256 if spec.shared is not None else ""


def _no_such(name: str) -> CallerError:
    message = f"gcs_sandbox_id: no daemon shares a sandbox {name!r} here: create it"
    return CallerError("not_found", message, gcs_sandbox_id=name)


def _checked_spec(request: Request[Any], shared: Shared) -> SandboxSpec:
    """Return the spec of a sandbox that is on record elsewhere, if the caller may have it here. Whoever writes to the
    bucket is no administrator of this machine, even if the caller is. Raises `snapshot_corrupt`, and as
    ``sandbox.create`` does.
    """
    spec = shared.spec
    given = {name: getattr(spec, name) for name in _OF_SPEC}
    try:
        command = msgspec.convert({"image_id": "shared", **msgspec.to_builtins(given)}, SandboxCreate)
    except msgspec.ValidationError as error:
        raise DataError("snapshot_corrupt", f"the metadata of the shared sandbox is damaged: {error}") from None
    if spec.shared is None or spec.shared.gcs_sandbox_id != request.params.gcs_sandbox_id:
        raise DataError("snapshot_corrupt", "the metadata of the shared sandbox is that of another one")
    vouched = replace(request, admin=request.admin and request.params.allow_host)
    try:
        check_allowed(vouched, METHODS["sandbox.create"], command)
        check_volumes(vouched, command.volumes)
    except CallerError as error:
        message = f"the metadata of the shared sandbox requests what only administrators may grant: {error.message}"
        remedy = "if you know who made it, attach with allow_host"
        raise CallerError("permission_denied", f"{message}; {remedy}", **error.data) from None
    checked = rules.sandbox_spec(command, network=spec.network, memory_bytes=spec.memory_bytes)
    return replace(checked, shared=spec.shared)


_OF_SPEC: Final = tuple(name for name in SandboxSpec.__struct_fields__ if name not in ("session_id", "shared"))


def _require_secrets(shared: Shared, given: dict[str, str]) -> None:
    """Raise `secret_missing` unless all secrets that the sandbox had are there again."""
    missing = [name for name in shared.secrets if name not in given]
    if missing:
        message = f"the shared sandbox had secrets, which are not stored: give {', '.join(missing[:3])} again"
        raise StateError("secret_missing", message, secrets=missing)


def _has_memory(provider: Provider, shared: Shared) -> bool:
    """Return True if a sandbox was saved with its memory, or surely will be."""
    if shared.saved is not None:
        return shared.saved.kind == "checkpoint"
    return provider.checkpoints is not None and shared.spec.shared is not None and shared.spec.shared.is_movable


def _needs_image(provider: Provider, shared: Shared) -> bool:
    """Return True if a sandbox needs its image: for its memory, or where sandboxes that begin with all their files need
    one all the same, for how to run them.
    """
    return provider.builder is not None or _has_memory(provider, shared)


def _in_use(sandbox: SandboxState, name: str) -> StateError:
    message = f"sandbox {sandbox.sandbox_id} is called {name!r}, and has not ended here: use it"
    if sandbox.spec.shared is not None:
        message += ", or detach it, to attach it elsewhere; rm would end it for all, with what was saved of it"
    else:
        message += ", or rm it, which deletes its files"
    return StateError("in_use", message, sandbox_id=sandbox.sandbox_id)

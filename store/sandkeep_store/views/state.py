"""All views in one state, moved on by one fold, so that they always stand at the same position."""

from collections import deque
from collections.abc import Iterator

from sandkeep.events import DAEMON_STREAM, Event
from sandkeep.ids import LOCK
from sandkeep_store.locks.places import belongs_to_another
from sandkeep_store.views.artifacts import ArtifactState
from sandkeep_store.views.branches import CommitState, MergeState
from sandkeep_store.views.checkpoints import CheckpointState
from sandkeep_store.views.images import ImageState
from sandkeep_store.views.locks import LockState
from sandkeep_store.views.log import LogState
from sandkeep_store.views.objects import Objects
from sandkeep_store.views.processes import ProcessState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.sessions import SessionState
from sandkeep_store.views.snapshots import ForkState, SnapshotState
from sandkeep_store.views.view import HANDLERS, Fact
from sandkeep_store.views.volumes import VolumeState


class State:
    """The state after the event at `position`. Only `apply` changes it."""

    def __init__(self) -> None:
        self.position = 0
        self.cached_upto = 0
        """Up to where it is from a cached fold, and nobody has looked at the events themselves."""
        self.log = LogState()
        self.images: Objects[ImageState] = Objects()
        self.sandboxes: Objects[SandboxState] = Objects()
        self.processes: dict[str, ProcessState] = {}
        self.snapshots: Objects[SnapshotState] = Objects()
        self.checkpoints: Objects[CheckpointState] = Objects()
        self.forks: dict[str, ForkState] = {}
        self.merges: Objects[MergeState] = Objects()
        self.commits: Objects[CommitState] = Objects()
        self.artifacts: Objects[ArtifactState] = Objects()
        self.volumes: Objects[VolumeState] = Objects()
        self.sessions: Objects[SessionState] = Objects()
        self.locks: Objects[LockState] = Objects()
        self.ended_locks: deque[str] = deque()
        self._names: dict[tuple[str, str], str] = {}
        self._image_names: dict[tuple[str, str], str] = {}
        self._session_ids: dict[tuple[str, str], SessionState] = {}

    def apply(self, event: Event, fact: Fact) -> None:
        """Move on by one event."""
        HANDLERS[event.__class__](self, event, fact)
        self.position = fact.position

    def owner_of(self, stream: str, sandbox_id: str | None) -> str | None:
        """Return the owner of an event's object; None for the daemon's own. A lock's is not that of the sandbox."""
        if stream.startswith(f"{LOCK}_"):
            lock = self.locks.get(stream)
            return lock.owner if lock else None
        if (session := self.sessions.get(stream)) is not None:
            return session.owner
        checkpoint = self.checkpoints.get(stream)  # it may be there longer than its sandbox
        if checkpoint is not None:
            return checkpoint.owner
        if sandbox_id is not None:
            sandbox = self.sandboxes.get(sandbox_id)
            return sandbox.owner if sandbox else None
        if stream == DAEMON_STREAM:
            return None
        found = (
            self.images.get(stream) or self.snapshots.get(stream) or self.artifacts.get(stream)
            or self.merges.get(stream) or self.commits.get(stream) or self.volumes.get(stream)
        )  # fmt: skip
        if found is None and (branches := self.forks.get(stream)) is not None and branches.of_branches:
            return branches.owner
        return found.owner if found else None

    def sandbox_named(self, owner: str, name: str) -> SandboxState | None:
        """The owner's sandbox of that name: of several the last, as all the others have ended."""
        return self.sandboxes.get(self._names.get((owner, name), ""))

    def sandbox_of_lock(self, owner: str, name: str, where: str) -> SandboxState | None:
        """Return the sandbox that an owner's lock of that name, in that place, guards: the one of that id, unless the
        place belongs to another owner than the sandbox; or the owner's own of that name.
        """
        sandbox = self.sandboxes.get(name)
        if sandbox is not None and not belongs_to_another(where, sandbox.owner):
            return sandbox
        return self.sandbox_named(owner, name)

    def filing_id(self, lock: LockState) -> str:
        """Return the id under which the events of a lock are filed: that of the sandbox that it was taken for, or see
        `filing_id_for`.
        """
        return lock.sandbox_id or self.filing_id_for(lock.lock_id, lock.owner, lock.name, lock.where)

    def filing_id_for(self, lock_id: str, owner: str, name: str, where: str) -> str:
        """Return the id under which the events of such a lock are filed: that of the sandbox that it guards, or its
        name, or its own id where that name is the id of another owner's sandbox.
        """
        sandbox = self.sandbox_of_lock(owner, name, where)
        if sandbox is not None:
            return sandbox.sandbox_id
        return lock_id if name in self.sandboxes else name

    def session_called(self, owner: str, session_id: str) -> SessionState | None:
        """The owner's session of that id."""
        return self._session_ids.get((owner, session_id))

    def session_of(self, sandbox: SandboxState) -> SessionState | None:
        """The session that a sandbox belongs to."""
        name = sandbox.spec.session_id
        return self._session_ids.get((sandbox.owner, name)) if name is not None else None

    def expires_us(self, sandbox: SandboxState) -> int | None:
        """Return the end of its longest life: of that of its session, if it belongs to one."""
        session = self.session_of(sandbox)
        return sandbox.expires_us if session is None else session.expires_us(sandbox)

    def index_session(self, session: SessionState) -> None:
        """A session was added."""
        self._session_ids[session.owner, session.session_id] = session

    def forget_session(self, key: str) -> None:
        """Remove a session."""
        session = self.sessions.pop(key, None)
        if session is not None:
            self._session_ids.pop((session.owner, session.session_id), None)

    def index_name(self, sandbox: SandboxState) -> None:
        """A sandbox was added; its name means it from now on."""
        if sandbox.name is not None:
            self._names[sandbox.owner, sandbox.name] = sandbox.sandbox_id

    def index_names(self) -> None:
        """Rebuild the index of names, after sandboxes were removed or read from a file."""
        self._names.clear()
        for sandbox in sorted(self.sandboxes.values(), key=lambda s: (not s.hidden, s.requested_us)):
            self.index_name(sandbox)

    def image_named(self, owner: str, name: str) -> ImageState | None:
        """The owner's image of that name, or the last that had it."""
        return self.images.get(self._image_names.get((owner, name), ""))

    def name_image(self, image: ImageState, name: str) -> None:
        """Give an image a name. Another one of its owner's that has it loses it."""
        self.take_image_name(self.image_named(image.owner, name), name)
        image.names = [*image.names, name]
        self._image_names[image.owner, name] = image.image_id

    def take_image_name(self, image: ImageState | None, name: str) -> None:
        """Take a name away from an image, if it has it."""
        if image is not None and name in image.names:
            image.names = [other for other in image.names if other != name]
            self._image_names.pop((image.owner, name), None)

    def index_image_names(self) -> None:
        """Build the index of the names of images, after they were read from a file."""
        self._image_names.clear()
        for image in self.images.values():
            for name in image.names:
                self._image_names[image.owner, name] = image.image_id

    def image_users(self, image_id: str) -> Iterator[SandboxState]:
        """The sandboxes that still need an image."""
        return (s for s in self.sandboxes.values() if s.requested.image_id == image_id and s.needs_image)

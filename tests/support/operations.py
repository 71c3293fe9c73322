"""Operations as they are declared, and how each is called, by the parameters of its method."""

import inspect
import os
import shutil
from pathlib import Path
from typing import Any

from msgspec import NODEFAULT
from msgspec.structs import fields
from tests.crash.story import Story
from tests.support.expect import refused, until

from sandkeep import archives
from sandkeep.ids import SNAPSHOT, new_id
from sandkeep.protocol.methods import METHODS
from sandkeep_store.locks.lease import Locks
from sandkeep_store.locks.open import open_store
from sandkeepd.core.operation import Operation
from sandkeepd.host.cgroups import freezer

BESIDES: dict[str, dict[str, str]] = {
    "OwnRestore": {"snapshot_id": "snapshot_id"},
    "CheckpointReturn": {"checkpoint_id": "checkpoint_id"},
    "SessionStart": {"id": "name", "image": "image_id"},
    "Handover": {"sandbox_id": "shared_sandbox_id"},
    "BranchCreation": {"sandbox_id": "sandbox_id"},
}
"""Parameters that an operation needs though its method does without."""

FIRST = {"Resumption": "sandbox.suspend", "LockReturn": "lock.acquire", "VolumeRemoval": "volume.create"}
"""The method that brings a subject to where an operation begins with it."""

OF_TWO_DAEMONS = ("SharedImageCreation",)
"""Operations on what another daemon has left, which `tests.integration.test_losses` kills."""

UPKEEP_OF_LOG = "sandkeepd.eventlog."
"""Modules of operations on the log, which `tests.crash.growing` calls on an old log."""

STEALS = "LockSteal"

DOCKERS = "Volume"
"""The prefix of operations that only the provider docker has."""

SUSPEND = ("Suspension", "CheckpointCreation")

SHARED = "sandbox-1f2e"

EARLY, LATER = "touch early", "touch later"
"""Commands for a new sandbox, whose effect is in all that is made of it, and for after its snapshot or checkpoint,
whose effect a restore undoes.
"""


def operations(
    kind: type[Operation[Any, Any]] = Operation, within: str = "sandkeepd."
) -> list[type[Operation[Any, Any]]]:
    """Every operation that is declared in modules of that prefix."""
    below = [kind, *(each for child in kind.__subclasses__() for each in operations(child, within))]
    found = {
        each for each in below
        if hasattr(each, "method") and not inspect.isabstract(each) and each.__module__.startswith(within)
    }  # fmt: skip
    return sorted(found, key=lambda each: each.__name__)


class World:
    """Objects for operations, made on demand: an image, a sandbox of it, a snapshot or checkpoint of that.

    Everything in it goes by `clear`.
    """

    def __init__(self, story: Story, source: str, provider: str) -> None:
        self._story = story
        self.source = source
        self._provider = provider
        self._made: dict[str, str] = {}
        self._others = Locks(open_store(story.daemon.env["SANDBOX_LOCK_MOUNT_PATH"]))
        """Somebody else, who locks beside the daemon."""
        self.command = ["true"]
        self.name = "named"
        self.path = "file"
        self.token = ""
        self.orphan = ""
        """An archive that no event references."""

    @property
    def image_id(self) -> str:
        return self._of("image_id", lambda: self._story.ask("image.create", self.source, provider=self._provider))

    @property
    def sandbox_id(self) -> str:
        if "sandbox_id" not in self._made:
            self._story.ask("sandbox.exec", self._of("sandbox_id", self._create), EARLY)
        return self._made["sandbox_id"]

    def _create(self) -> Any:
        return self._story.ask("sandbox.create", self.image_id)

    @property
    def snapshot_id(self) -> str:
        return self._of("snapshot_id", lambda: self._story.ask("snapshot.create", self.sandbox_id))

    @property
    def artifact_id(self) -> str:
        return self._of("artifact_id", lambda: self._story.ask("artifact.export", self.sandbox_id, "file"))

    @property
    def session_id(self) -> str:
        return self._of(
            "session_id", lambda: self._story.ask("session.ensure", id=self.name, image=self.image_id).session
        )

    @property
    def shared_sandbox_id(self) -> str:
        def create() -> Any:
            made = self._story.ask("sandbox.create", self.image_id, gcs_sandbox_id=SHARED)
            self.token = made.sandbox_token
            return made

        if "shared_sandbox_id" not in self._made:
            self._made["shared_sandbox_id"] = create().sandbox_id
            self._story.ask("sandbox.exec", SHARED, EARLY)
        return self._made["shared_sandbox_id"]

    @property
    def checkpoint_id(self) -> str:
        return self._of(
            "checkpoint_id", lambda: self._story.ask("checkpoint.create", self.sandbox_id, leave_running=True)
        )

    @property
    def sandbox_ids(self) -> list[str]:
        """Two branches that changed different files alike, and none differently."""
        if "other_id" not in self._made:
            self._story.ask("sandbox.exec", self.sandbox_id, "echo one >file")
            self._made["other_id"] = self._story.ask("sandbox.create", self.image_id).sandbox_id
            self._story.ask("sandbox.exec", self._made["other_id"], EARLY)
        return [self.sandbox_id, self._made["other_id"]]

    @property
    def merge_id(self) -> str:
        """A merge with a conflict."""
        if "merge_id" not in self._made:
            self._story.ask("sandbox.exec", self.sandbox_ids[1], "echo other >file")
            self._made["merge_id"] = self._story.ask("branch.merge", self.sandbox_ids).merge.merge_id
        return self._made["merge_id"]

    @property
    def decisions(self) -> list[dict[str, str]]:
        return [{"path": "file", "take": self.sandbox_ids[0]}]

    @property
    def target(self) -> str:
        """A directory of the host like the image."""
        made = f"{self._story.daemon.root}/target"
        if not os.path.exists(made):
            shutil.copytree(self.source, made)
        return made

    def _of(self, field: str, make: Any) -> str:
        if field not in self._made:
            self._made[field] = getattr(make(), field)
        return self._made[field]

    def archive(self) -> str:
        """The file of an exported snapshot."""
        path = os.path.join(self._story.daemon.root, "moved.tar.gz")
        if not os.path.exists(path):
            self._story.look(lambda client: archives.export_to(client, self.snapshot_id, path))
        return path

    def arguments(self, operation: type[Operation[Any, Any]]) -> dict[str, Any]:
        """Return the parameters for a call of its method, of objects that are made for it."""
        params = METHODS[operation.method].params
        needed = {f.name: f.name for f in fields(params) if f.default is NODEFAULT and f.default_factory is NODEFAULT}
        needed |= BESIDES.get(operation.__name__, {})
        return {name: getattr(self, attribute) for name, attribute in needed.items()}

    def prepare(self, operation: type[Operation[Any, Any]]) -> None:
        """Make all that it is about."""
        if operation.method == "snapshot.import":
            self.archive()
            return
        if operation.method == "snapshot.gc":
            self.orphan = os.path.join(self._story.daemon.state_dir, "archives", "sbx_gone", f"{new_id(SNAPSHOT)}.tar")
            os.makedirs(os.path.dirname(self.orphan), mode=0o700)
            Path(self.orphan).touch()
        if operation.method == "store.prune":
            self.ended = str(self._story.ask("sandbox.create", self.image_id).sandbox_id)
            self.process = str(self._story.ask("sandbox.exec", self.ended, "echo output").process_id)
            self._story.ask("sandbox.terminate", self.ended)
        arguments = self.arguments(operation)
        if operation.__name__ in FIRST:
            self._story.ask(FIRST[operation.__name__], **arguments)
        if operation.__name__ == STEALS:
            self._others.acquire(self.name)
        if operation.method == "sandbox.restore":
            self._story.ask("sandbox.exec", self.sandbox_id, LATER)

    def call(self, operation: type[Operation[Any, Any]]) -> Any:
        """Call its method, again until it is answered."""
        story = self._story
        if operation.method == "snapshot.import":
            command_id, path = new_id("cmd"), self.archive()
            story.acknowledged[command_id] = operation.method
            return story.look(lambda client: archives.import_from(client, path, command_id=command_id))
        force = {"force": True} if operation.__name__ == STEALS else {}
        return story.ask(operation.method, **self.arguments(operation), **force)

    def check(self, operation: type[Operation[Any, Any]]) -> None:
        """See that what was answered is so: sandboxes run and have the files that they should have, or stand still; a
        lock that is taken cannot be had by others, and one that was given back can; an unowned archive is gone.
        """
        story, name = self._story, operation.__name__
        if operation.method == "lock.acquire":
            refused("lock_contended", self._others.acquire, self.name)
        elif operation.method == "lock.release":
            self._others.acquire(self.name, timeout_s=1).release()
        elif operation.method == "sandbox.detach":
            assert story.look(lambda client: client.sandbox.get(self.shared_sandbox_id)).status == "stopped"
            self._others.acquire(SHARED, timeout_s=1).release()
            story.ask("sandbox.attach_shared", SHARED, self.token)
        elif operation.__name__.startswith(DOCKERS):
            found = [volume.name for volume in story.look(lambda client: client.volume.list().volumes)]
            assert found == ([self.name] if operation.method == "volume.create" else [])
        elif operation.method == "branch.commit":
            assert sorted(os.listdir(self.target)) == ["early", "file"]
        elif operation.method == "store.prune":
            refused("compacted", story.look, lambda client: client.process.read(self.ended, self.process))
        elif operation.method in ("branch.merge", "branch.resolve"):
            [merge] = story.look(lambda client: client.branch.merges().merges)
            assert merge.status == "ready"
            assert story.ask("sandbox.exec", merge.sandbox_id, "cat file").stdout == b"one\n"
        assert not os.path.exists(self.orphan)
        has_early = "sandbox_id" in self._made or "shared_sandbox_id" in self._made
        files = b"early\nfile\n" if has_early else b"file\n"
        for sandbox in story.look(lambda client: client.sandbox.list().sandboxes):
            if sandbox.status == "running":
                assert story.ask("sandbox.exec", sandbox.sandbox_id, "ls").stdout == files
                continue
            assert (sandbox.sandbox_id, name in SUSPEND) == (self.sandbox_id, True)
            plan = story.look(lambda client: client.sandbox.history(self.sandbox_id).events)[0].data["plan"]
            assert self._provider != "local" or freezer.are_frozen(plan["cgroups"])

    def clear(self) -> None:
        """End and remove everything that there is."""
        story = self._story
        for volume in story.look(lambda client: client.volume.list().volumes) if self._provider == "docker" else ():
            story.ask("volume.remove", volume.name)
        for lock in story.look(lambda client: client.lock.list().locks):
            if lock.sandbox_id is None:
                story.ask("lock.release", lock.lock_id)
        for snapshot in story.look(lambda client: client.snapshot.list().snapshots):
            story.ask("snapshot.delete", snapshot.snapshot_id)
        for artifact in story.look(lambda client: client.artifact.list().artifacts):
            story.ask("artifact.remove", artifact.artifact_id)
        for checkpoint in story.look(lambda client: client.checkpoint.list().checkpoints):
            story.ask("checkpoint.delete", checkpoint.checkpoint_id)
        for merge in story.look(lambda client: client.branch.merges().merges):
            if merge.status == "conflicted":
                story.ask("branch.abandon", merge.merge_id)
        for sandbox in story.look(lambda client: client.sandbox.list().sandboxes):
            story.ask("sandbox.terminate", sandbox.sandbox_id)
        for image in story.look(lambda client: client.image.list().images):
            story.ask("image.remove", image.image_id)
        # That of a sandbox is released once its end was answered.
        until(lambda: story.look(lambda client: client.lock.list().locks) == [])

"""What is kept of a sandbox's files, while the daemon may die: snapshots, forks and restores."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.crash.story import Story
from tests.support.expect import until

from sandkeep import archives
from sandkeep.ids import new_id

KEEPING: Final = ("snapshot.", "sandbox.fork", "sandbox.restor", "layer.", "fork.", "restore.", "replace.")
"""Prefixes of the points and events that only this tells of."""


def tell(story: Story, source: str, **image_of: Any) -> None:
    """Snapshots over each other, a fork and its own fork, restores into new sandboxes and over the own files; then all
    of it goes, the oldest first. `image_of` is how the image is made.
    """
    image = story.ask("image.create", source, **image_of).image_id
    box = made(story, story.ask("sandbox.create", image))
    run(story, box, "echo 1 >one; rm file")
    full = story.ask("snapshot.create", box)
    run(story, box, "echo 2 >two; rm one")
    second = story.ask("snapshot.create", box, incremental=True)
    assert second.parent_id == full.snapshot_id
    restored = made(story, story.ask("snapshot.restore", second.snapshot_id))
    assert run(story, restored, "ls") == b"two\n"
    forks = [made(story, fork) for fork in story.ask("sandbox.fork", restored, count=2).sandboxes]
    run(story, forks[0], "echo 3 >three")
    run(story, restored, "rm two")
    assert [run(story, fork, "ls") for fork in forks] == [b"three\ntwo\n", b"two\n"]
    overwritten(story, box, full.snapshot_id)
    assert run(story, box, "ls") == b"one\n"
    with away(story.daemon.env["FILESYSTEM_SNAPSHOT_MOUNT_PATH"]):
        late = story.ask("snapshot.create", box)
    until_sent(story, late.snapshot_id)
    promoted = story.ask("snapshot.promote", second.snapshot_id)
    theirs = brought_in(story, second.snapshot_id, image if image_of else None)
    for snapshot_id in (late.snapshot_id, full.snapshot_id, second.snapshot_id, theirs):
        story.ask("snapshot.delete", snapshot_id)
    for sandbox_id in story.sandboxes:
        story.ask("sandbox.terminate", sandbox_id)
    for image_id in (promoted.image_id, image):
        story.ask("image.remove", image_id)


@contextmanager
def away(mount: str) -> Iterator[None]:
    """For the length of a block a mount is not there."""
    os.rename(mount, f"{mount}.away")
    yield
    os.rename(f"{mount}.away", mount)


def until_sent(story: Story, snapshot_id: str) -> None:
    """Wait until a snapshot is where it was to be."""
    until(lambda: story.look(lambda client: client.snapshot.get(snapshot_id)).places[0].where == "mount")


def made(story: Story, sandbox: Any) -> str:
    """A sandbox that was made, to be ended with the others."""
    story.sandboxes.append(sandbox.sandbox_id)
    return str(sandbox.sandbox_id)


def run(story: Story, box: str, script: str) -> bytes:
    """What a script prints that succeeds."""
    ran = story.ask("sandbox.exec", box, script)
    assert ran.exit_code == 0, ran
    return bytes(ran.stdout)


def overwritten(story: Story, box: str, snapshot_id: str) -> None:
    """Restore over the own files. A daemon that dies meanwhile may leave the sandbox ended, with the files it had."""
    command_id = new_id("cmd")

    def restore(client: Any) -> Any:
        if client.sandbox.get(box).status == "failed":
            client.sandbox.resume(box)
        return client.sandbox.restore(box, snapshot_id, command_id=command_id)

    assert story.look(restore).status == "running"
    story.acknowledged[command_id] = "sandbox.restore"


def brought_in(story: Story, snapshot_id: str, image_id: str | None) -> str:
    """A snapshot exported and brought in again, as another, of an image if it is not of a local sandbox."""
    path = os.path.join(story.daemon.root, "moved.tar.gz")
    story.look(lambda client: archives.export_to(client, snapshot_id, path))
    command_id = new_id("cmd")
    theirs = story.look(lambda client: archives.import_from(client, path, command_id=command_id, image_id=image_id))
    story.acknowledged[command_id] = "snapshot.import"
    return str(theirs.snapshot_id)

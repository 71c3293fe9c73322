"""Places of archives: stores as they go on record, and the path of an archive in one."""

from sandkeep import model
from sandkeep_store.buckets.config import Root
from sandkeep_store.views.sandboxes import SandboxState


def place_of(root: Root, path: str) -> model.Place:
    """Return the recorded form of a place."""
    return model.Place(where=root.where, base=root.base, path=path, uri=str(root.place(path)))


def root_of(place: model.Place) -> Root:
    """The store that something on record lies in."""
    return Root(place.where, place.base)  # type: ignore[arg-type]  # it was one when it was recorded


def group_of(sandbox: SandboxState) -> str:
    """Return the directory of a sandbox's archives: its session, else the sandbox itself.

    Two owners may have sessions of one id. Their archives lie in one directory, which is the daemon's alone, and have
    the ids of snapshots for names, so that none has another's.
    """
    return sandbox.spec.session_id or sandbox.sandbox_id


def path_in(root: Root, snapshot_id: str, group: str, written_as: model.ArchiveFormat) -> str:
    """The path of an archive. Those of a mount or of a GCS bucket lie each in a directory of their own; elsewhere those
    of one `group` lie together.
    """
    name = f"{snapshot_id}.{written_as}"
    return f"filesystem_snapshots/{snapshot_id}/{name}" if root.where in ("mount", "gcs") else f"{group}/{name}"

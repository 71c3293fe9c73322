"""The one accessor of the storage settings: the roots of archives, metadata and locks.

Nothing is read at start: each variable is parsed when a request needs it, and `not_configured` names the one that is
malformed or missing. Only this module chooses the root of an artifact, in this order:

    its mount path, its GCS bucket, the S3 bucket, SANDBOX_SNAPSHOT_DIR, the state directory

so that a mount wins over the bucket that is mounted there. Artifacts of a shared sandbox, or requested in a bucket,
never fall through to this machine's own disk.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from sandkeep.errors import CallerError, SetupError
from sandkeep.settings import daemon
from sandkeep.settings import storage as rows

Artifact: TypeAlias = Literal["snapshot", "checkpoint", "metadata"]
Where: TypeAlias = Literal["mount", "gcs", "s3", "directory", "state"]

LONGEST_PATH: Final = 1024
"""Maximum bytes in a relative path, by GCS and S3."""
LONGEST_NAME: Final = 255
"""Maximum bytes in one component of a path, by file systems."""
PARTIAL: Final = ".partial"
"""Directory of unfinished archives; no path may begin so."""


@dataclass(frozen=True, slots=True)
class Root:
    """A store of archives: `base` is an absolute directory of a mount, of `SANDBOX_SNAPSHOT_DIR` or of the state
    directory, or the name of a bucket.
    """

    where: Where
    base: str

    def place(self, path: str) -> "Place":
        """Return the place of a relative path in this root. Raises `invalid` for a path that leads out."""
        return Place(self, checked_path(path))

    @property
    def is_shared(self) -> bool:
        """True if other machines see it too."""
        return self.where in ("mount", "gcs", "s3")

    @property
    def is_bucket(self) -> bool:
        """True if it is accessed over the network, by an SDK."""
        return self.where in ("gcs", "s3")


@dataclass(frozen=True, slots=True)
class Place:
    """Location of one artifact: a relative path in a `Root`."""

    root: Root
    path: str

    def __str__(self) -> str:
        """An absolute path, or ``gs://BUCKET/PATH`` or ``s3://BUCKET/PATH``."""
        scheme = {"gcs": "gs://", "s3": "s3://"}.get(self.root.where, "")
        return f"{scheme}{self.root.base}/{self.path}"


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Connection settings of the S3 bucket. `endpoint_url` None is Amazon's own."""

    bucket: str
    endpoint_url: str | None
    region: str | None
    use_ssl: bool


_MOUNTS: Final[dict[Artifact, daemon.Setting[str | None]]] = {
    "snapshot": rows.SNAPSHOT_MOUNT_PATH,
    "checkpoint": rows.CHECKPOINT_MOUNT_PATH,
    "metadata": rows.METADATA_MOUNT_PATH,
}
_BUCKETS: Final[dict[Artifact, daemon.Setting[str | None]]] = {
    "snapshot": rows.SNAPSHOT_BUCKET,
    "checkpoint": rows.CHECKPOINT_BUCKET,
    "metadata": rows.METADATA_BUCKET,
}


class Storage:
    """The storage settings, each parsed when it is asked for. `environ` is for tests; the process's own otherwise."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = environ

    # -- where an artifact lies ----------------------------------------------------------------------------------------

    def root(self, artifact: Artifact, *, shared: bool = False) -> Root:
        """Return the root for new artifacts of this kind; with `shared`, one that other machines see, or
        `not_configured`.
        """
        for root in self._shared_roots(artifact):
            return root
        if shared:
            others = (_MOUNTS[artifact], *([rows.S3_BUCKET] if artifact != "metadata" else []))
            raise _unset(f"keep a {artifact} where other machines find it", _BUCKETS[artifact], *others)
        return self.local_root()

    def local_root(self) -> Root:
        """The directory of this machine: where archives are made, and kept when they go nowhere else."""
        directory = rows.SNAPSHOT_DIR(self._environ)
        if directory is not None:
            return Root("directory", directory)
        return self.state_root()

    def state_root(self) -> Root:
        """The place in the state directory, where archives may be left from before another was set."""
        return Root("state", os.path.join(daemon.STATE_DIR(self._environ), "archives"))

    def roots(self, artifact: Artifact) -> tuple[Root, ...]:
        """Every place that such an artifact may lie in by these settings, the preferred one first."""
        return (*self._shared_roots(artifact), self.local_root())

    def archive_directories(self) -> list[str]:
        """Return the directories besides the state directory that archives lie in on this machine. No image and no
        archive may hold them, even if they lie in its source.

        A malformed setting gives none: it is reported where archives are to be stored by it.
        """
        found = []
        for setting in (rows.SNAPSHOT_DIR, *_MOUNTS.values()):
            with suppress(SetupError):
                found.append(setting(self._environ))
        return [directory for directory in found if directory is not None]

    def _shared_roots(self, artifact: Artifact) -> Iterator[Root]:
        mount = _MOUNTS[artifact](self._environ)
        if mount is not None:
            yield Root("mount", mount)
        bucket = _BUCKETS[artifact](self._environ)
        if bucket is not None:
            yield Root("gcs", bucket)
        if artifact != "metadata":  # it belongs with the lock, which is in GCS
            bucket = rows.S3_BUCKET(self._environ)
            if bucket is not None:
                yield Root("s3", bucket)

    # -- locks ---------------------------------------------------------------------------------------------------------

    def lock_root(self, *, beside_metadata: bool = False) -> Root:
        """Return the root of locks: the directory, the GCS bucket, or S3's, and with `beside_metadata` at last the GCS
        bucket of metadata, where cloud-run-sandbox has them; `not_configured` if none is set.
        """
        mount = rows.LOCK_MOUNT_PATH(self._environ)
        if mount is not None:
            return Root("mount", mount)
        bucket = rows.LOCK_BUCKET(self._environ)
        if bucket is not None:
            return self._reachable(Root("gcs", bucket))
        bucket = rows.S3_BUCKET(self._environ)
        if bucket is not None:
            return self._reachable(Root("s3", bucket))
        bucket = rows.METADATA_BUCKET(self._environ) if beside_metadata else None
        if bucket is not None:
            return self._reachable(Root("gcs", bucket))
        raise _unset("keep locks", rows.LOCK_BUCKET, rows.LOCK_MOUNT_PATH, rows.S3_BUCKET)

    def metadata_root(self) -> Root:
        """Return the root of the documents that other daemons read; `not_configured` if none is set in which one writer
        can be told from another: a mount is only for reading, unless locks are in a directory, too.
        """
        bucket = rows.METADATA_BUCKET(self._environ)
        if bucket is not None:
            return self._reachable(Root("gcs", bucket))
        mount, locks = rows.METADATA_MOUNT_PATH(self._environ), self.lock_root()
        if mount is not None and locks.where == "mount":
            return Root("mount", mount)
        if locks.where == "s3":
            return locks
        purpose = "keep the metadata of shared sandboxes"
        if mount is not None:
            purpose += f": {rows.METADATA_MOUNT_PATH.name} alone does not do, as no writer of a mounted bucket can tell"
            purpose += " if another was first"
        raise _unset(purpose, rows.METADATA_BUCKET)

    def require_sharing(self, *, checkpoints: bool = False, beside_metadata: bool = False) -> None:
        """Raise `not_configured` unless a sandbox can be shared, and `checkpoints` with it. See `lock_root`."""
        self.lock_root(beside_metadata=beside_metadata)
        self.metadata_root()
        if checkpoints:
            self.require("checkpoint", bucket=True)

    def bucket_of(self, where: str, base: str) -> str:
        """Return the bucket by which other daemons know a root: that which is mounted there, or the mount itself."""
        kinds: tuple[Artifact, ...] = ("checkpoint", "snapshot") if where == "mount" else ()
        for artifact in kinds:
            if _MOUNTS[artifact](self._environ) == base:
                return _BUCKETS[artifact](self._environ) or base
        return base

    def require(self, artifact: Artifact, *, bucket: bool = False) -> Root:
        """Return the root for a request's artifact, before the request has any effect. `bucket`: the caller wants it
        where other machines see it.
        """
        return self._reachable(self.root(artifact, shared=bucket))

    def _reachable(self, root: Root) -> Root:
        """A root for which no setting is malformed that says how to reach it."""
        if root.where == "s3":
            self.s3()
        elif root.where == "gcs":
            self.gcs_emulator()
        return root

    # -- how to reach a service ----------------------------------------------------------------------------------------

    def s3(self) -> S3Settings:
        """Return the connection settings of S3; `not_configured` without a bucket."""
        bucket = rows.S3_BUCKET(self._environ)
        if bucket is None:
            raise _unset("use S3", rows.S3_BUCKET)
        secure = rows.S3_USE_SSL(self._environ)
        address = rows.S3_ENDPOINT_URL(self._environ)
        if address is not None and "://" not in address:
            address = f"{'https' if secure else 'http'}://{address}"
        return S3Settings(bucket, address, rows.S3_REGION(self._environ), secure)

    def gcs_emulator(self) -> str | None:
        """The URL of the emulator to use instead of Google's service."""
        return rows.EMULATOR(self._environ)


STORAGE: Final = Storage()
"""The settings of this process."""


def checked_path(path: str) -> str:
    """`path`, when it is a relative path that stays inside its store and means the same in all of them.

    Raises `invalid`: paths come from events, metadata documents and listings, and others wrote some of those.
    """
    why = _fault_of(path)
    if why is not None:
        raise CallerError("invalid", f"{path[:200]!r} is no path of an archive: {why}", field="path")
    return path


def is_path(path: str) -> bool:
    """Return True if `checked_path` accepts the path."""
    return _fault_of(path) is None


def _fault_of(path: str) -> str | None:
    if not path:
        return "it is empty"
    if not path.isprintable():
        return "it has characters that cannot be printed"
    if path.split("/", maxsplit=1)[0] == PARTIAL:
        return f"{PARTIAL} is where unfinished archives lie"
    if len(path.encode()) > LONGEST_PATH:
        return f"it is longer than {LONGEST_PATH} bytes"
    for name in path.split("/"):
        if name in ("", ".", ".."):
            return "it has to be relative, without empty parts, '.' and '..'"
        if len(name.encode()) > LONGEST_NAME:
            return f"a part of it is longer than {LONGEST_NAME} bytes"
    return None


def _unset(purpose: str, *any_of: daemon.Setting[str | None]) -> SetupError:
    """Return the error for a request that needs one of these variables, the recommended one first."""
    names = [setting.name for setting in any_of]
    *most, last = names
    listed = f"{', '.join(most)} or {last}" if most else last
    return SetupError(
        "not_configured",
        f"to {purpose}, set {listed} in the daemon's environment: {'none is' if most else 'it is not'} set there",
        setting=names[0],
    )

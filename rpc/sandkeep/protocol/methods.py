"""The table of methods: each with its parameters, result, access, deadline and a one-line summary.

The server dispatches by it, all clients are made from it, and ``rpc.discover`` and the reference are written from it.
"""

import enum
from itertools import zip_longest
from typing import Annotated, Any, Final, Literal

from msgspec import NODEFAULT, Meta, Struct, field

from sandkeep import model
from sandkeep.errors import CallerError
from sandkeep.model import (
    Command,
    Environment,
    FileName,
    ImageName,
    ImageWord,
    Labels,
    Name,
    Offset,
    Path,
    Seconds,
    Secrets,
)

OWNER_PATTERN: Final = r"^(uid:[0-9]{1,10}|key:[A-Za-z0-9][A-Za-z0-9_.-]{0,63})$(?!\n)"
Owner = Annotated[str, Meta(pattern=OWNER_PATTERN, description="An owner: uid: and digits, or key: and a key's name.")]
Limit = Annotated[int, Meta(ge=1, le=1000)]
Wait = Annotated[float, Meta(ge=0, le=60)]
MAX_AGE_S: Final = 100 * 366 * 86_400
MAX_FORKS: Final = 256
"""Maximum number of sandboxes that one `sandbox.fork` makes."""

MAX_CHANGES: Final = 100_000
"""Maximum number of paths in one answer about changes of files."""

MAX_TEXT_BYTES: Final = 1024 * 1024
"""Maximum bytes of the text of one `sandbox.diff`."""

MAX_WRITE_BYTES: Final = 8 * 1024 * 1024
"""Maximum bytes of one `sandbox.write_file`. Larger files go by `sandbox.copy_in`, or the stream server."""

MAX_LOCK_WAIT_S: Final = 3600.0
METADATA_DEPTH: Final = 64
"""Maximum depth of a session's metadata, which whoever reads events has to decode, too."""

TerminalSide = Annotated[int, Meta(ge=1, le=1000)]
TerminalName = Annotated[
    str,
    Meta(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9+._-]*$(?!\n)", description="A terminal's name, as in $TERM."),
]
PathBytes = Annotated[bytes, Meta(min_length=1, max_length=4096)]
Cpus = Annotated[float, Meta(ge=0.01, le=1024)]
MemoryBytes = Annotated[int, Meta(ge=4 * 1024 * 1024, le=2**50)]
ProcessLimit = Annotated[int, Meta(ge=8, le=4_000_000)]
User = Annotated[str, Meta(pattern=r"^[0-9]{1,9}(:[0-9]{1,9})?$(?!\n)", description="UID or UID:GID, in digits.")]
Volumes = Annotated[list[model.Volume], Meta(max_length=32)]
DiskBytes = Annotated[int, Meta(ge=1024 * 1024, le=2**60)]
Token = Annotated[str, Meta(max_length=128)]
SandboxToken = Annotated[str, Meta(min_length=16, max_length=128)]
MediaType = Annotated[
    str,
    Meta(
        max_length=255,
        pattern=r"^[a-zA-Z0-9!#$&^_.+-]+/[a-zA-Z0-9!#$&^_.+-]+(; ?[a-zA-Z0-9=._+-]+)*$(?!\n)",
        description="A media type, such as text/plain.",
    ),
]
Ignored = Annotated[
    list[
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=255,
                pattern=r"^(?!\.{1,2}$)[^/\x00]+$(?!\n)",
                description="A file's name, without '/', and not '.' or '..'.",
            ),
        ]
    ],
    Meta(max_length=64),
]
Patterns = Annotated[
    list[
        Annotated[
            str,
            Meta(min_length=1, max_length=1024, pattern=r"^[^\x00\n]+$(?!\n)", description="One line, without NUL."),
        ]
    ],
    Meta(max_length=64),
]
Reference = Annotated[
    str, Meta(min_length=1, max_length=512, description="The reference of a container image, such as python:3.11-slim.")
]
Position = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Where = Position | Token
"""A place in the log: a position, as `sandkeep history` shows it, or a token of that log, which names it by its end."""

EventType = Annotated[
    str, Meta(max_length=64, pattern=r"^[a-z_]+(\.[a-z_]+)?$(?!\n)", description="A type, or its first word.")
]
Signal = Annotated[
    str,
    Meta(pattern=r"^(SIG)?[A-Z0-9+]{1,12}$(?!\n)", description="A signal's name, with or without SIG, or its number."),
]


class Access(enum.Enum):
    """The callers that may call a method."""

    ANYONE = "anyone who may connect"
    OWNER = "the owner of the object named, or an administrator"
    ADMIN = "administrators"


class Params(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Parameters by name; unknown ones are refused. Their representation shows no values, which may be secret."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.__struct_fields__)})"


class Mutation(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a method that changes something. A `command_id` given again within a day, with the same
    parameters, gives the first answer again.
    """

    command_id: Name | None = None


class NoParams(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A method without parameters."""


class Hello(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`client` is recorded with each event that this connection causes."""

    client: Annotated[
        str, Meta(min_length=1, max_length=64, pattern=r"^[ -~]+$(?!\n)", description="Printable ASCII characters.")
    ]


class ImageCreate(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`source` is an absolute path, read with the caller's own rights, or the reference of a container image.

    Without a `provider` a plain directory is for ``local``; one that holds a Dockerfile, the path of a Dockerfile and a
    reference are for ``docker``. `dockerfile` is the Dockerfile's path below the directory, if it is not the usual one.
    With `base`, a reference, the directory is put onto that image, as its ``/workspace``, even if it holds a
    Dockerfile. `clean` makes a new image even if one of the same content exists, and builds without the cache. An
    administrator can make it for another `owner`, such as ``key:ci``. Of a plain directory its ``.sandkeepignore``, or
    else its ``.dockerignore``, says what is left out; then `patterns`, by the same rules, such as ``docs/*.html``, or
    ``!docs/a.html`` for an exception; and the names of `ignore` are left out, at any depth. Without
    `ignore_files` these files do not count.

    The owner can use `name`, such as ``py:3.12``, wherever an `image_id` is asked for. An older image that has it loses
    it.
    """

    source: Path
    provider: Name | None = None
    base: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    dockerfile: Path | None = None
    clean: bool = False
    labels: Labels = field(default_factory=dict)
    owner: Owner | None = None
    ignore: Ignored = field(default_factory=list)
    patterns: Patterns = field(default_factory=list)
    ignore_files: bool = True
    name: ImageName | None = None


class ImageRef(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image."""

    image_id: ImageWord


class ImageRemove(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The image to remove; refused with `in_use` while a sandbox needs it. One that is given by one of several names
    only loses that, and the answer's status is still ``ready``.
    """

    image_id: ImageWord


class ImageTag(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The image that its owner means by `name` from now on. Another one that has the name loses it."""

    image_id: ImageWord
    name: ImageName


class ImageUntag(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The image, and the name to take from it. `not_found` if the image is not called so."""

    image_id: ImageWord
    name: ImageName


class ImagePublish(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `owners` who may use the image of the Docker engine that `reference` means now; everybody, if there are none.

    It is made an image of the caller's own, which is the one that is published until the same reference is published
    again, wherever its tag is moved.
    """

    reference: Reference
    owners: Annotated[list[Owner], Meta(max_length=256)] = field(default_factory=list)


class ImageUnpublish(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published reference. Images that others have made by it stay theirs."""

    reference: Reference


class ImageQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`all` adds those that failed or were removed. With `published` the list has the images that are published to the
    caller instead, for an administrator all that are published.
    """

    all: bool = False
    published: bool = False
    after: Name | None = None
    limit: Limit = 1000


class SandboxCreate(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The properties of the sandbox. `secrets` are given to its processes' environment and stored nowhere. The default
    `network` is that of its provider, none unless an administrator said otherwise. `volumes` that are directories of
    the host are for administrators. A limit of `disk_bytes` is exact, or refused; without it the limit is approximate.

    With a `writable_root` a container's own root file system is not read-only, so that programs can be installed;
    snapshots and forks hold what was changed there. An administrator can forbid it, and there is no `disk_bytes` with
    it, as only the workspace has an exact one.

    With a `name`, which is unique among the owner's sandboxes that have not ended, the owner can use that wherever a
    `sandbox_id` is asked for.

    With a `gcs_sandbox_id`, which is then its name, it is shared with other daemons: see `model.Sharing`. If there is
    one of that id already, it is attached as by `sandbox.attach_shared`, with its `sandbox_token`, and none is made.
    One with `enable_checkpoint` needs a place for checkpoints; without `enable_handoff` its lock can lie in the bucket
    of its metadata if there is none for locks.
    """

    image_id: ImageWord
    name: Name | None = None
    provider: Name | None = None
    cpus: Cpus | None = None
    memory_bytes: MemoryBytes | None = None
    pids: ProcessLimit | None = None
    disk_bytes: DiskBytes | None = None
    network: model.Network | None = None
    user: User | None = None
    read_only: bool = False
    working_dir: Path | None = None
    isolation: model.IsolationMode = "default"
    volumes: Volumes = field(default_factory=list)
    env: Environment = field(default_factory=dict)
    secrets: Secrets = field(default_factory=dict)
    labels: Labels = field(default_factory=dict)
    idle_timeout_s: Seconds | None = None
    max_lifetime_s: Seconds | None = None
    gcs_sandbox_id: Name | None = None
    enable_checkpoint: bool = False
    enable_handoff: bool = False
    enable_checkpoint_at_idle: bool = False
    sandbox_token: SandboxToken | None = None
    writable_root: bool = False


class SandboxAttachShared(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shared sandbox `gcs_sandbox_id` goes on here: it is restored as it was saved last. While another daemon has
    it, the call waits up to `timeout_s` for that one to save it and give it up.

    One that was saved with its memory needs its image: one of the same content that is here, or else the copy that its
    first daemon left. `secrets` are given to the processes of one that was saved without.

    Its properties come from the bucket. Those that only administrators may give a sandbox (the host's network or
    directories, no isolation) are refused, unless an administrator accepts them with `allow_host`.
    """

    gcs_sandbox_id: Name
    sandbox_token: SandboxToken
    timeout_s: Annotated[float, Meta(ge=0, le=MAX_LOCK_WAIT_S)] = 120.0
    secrets: Secrets = field(default_factory=dict)
    allow_host: bool = False


class SandboxDetach(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shared sandbox to save where other daemons find it, and to give up. It ends here."""

    sandbox_id: Name


class SessionEnsure(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The session `id` of the caller's, or a new one, is made ready. One that is ready stays as it is.

    A new sandbox has the files of the snapshot `restore_snapshot_id`; without one of the session's latest, if there is
    any; with `fresh` those of the image alone. The other properties are as for `sandbox.create`, but for the `image`,
    which can be the reference of a container image, too, and the limits of time, which are the session's.
    Those that are left out are as they were when the session was made ready before. `mode` ``docker`` means the image's
    provider on this machine.
    """

    id: Name | None = None
    image: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    mode: model.SessionMode | None = None
    restore_snapshot_id: Name | None = None
    fresh: bool = False
    cpus: Cpus | None = None
    memory_bytes: MemoryBytes | None = None
    pids: ProcessLimit | None = None
    disk_bytes: DiskBytes | None = None
    network: model.Network | None = None
    user: User | None = None
    read_only: bool | None = None
    working_dir: Path | None = None
    volumes: Volumes | None = None
    env: Environment | None = None
    secrets: Secrets = field(default_factory=dict)
    labels: Labels | None = None
    idle_timeout_s: Annotated[float, Meta(ge=0, le=31_536_000, description="0 means never.")] | None = None
    max_lifetime_s: Annotated[float, Meta(ge=0, le=31_536_000, description="0 means never.")] | None = None
    artifact_base_url: (
        Annotated[str, Meta(max_length=2048, pattern=r"^[!-~]*$(?!\n)", description="A URL, in ASCII without spaces.")]
        | None
    ) = None
    metadata: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not _is_within(self.metadata, METADATA_DEPTH):
            message = f"metadata: must not be nested deeper than {METADATA_DEPTH} levels"
            raise CallerError("invalid", message, field="metadata")


def _is_within(value: Any, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return depth > 0 and all(_is_within(each, depth - 1) for each in inner)


class SessionRef(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session, by the id that its owner calls it, or by its key."""

    session_id: Name


class SessionQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`all` adds those that failed or ended. They come oldest first, unless `newest_first`."""

    all: bool = False
    newest_first: bool = False
    after: Name | None = None
    limit: Limit = 1000


class SessionClose(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The session whose sandbox is ended, after a snapshot called ``auto-stop``, unless `snapshot` is false. If that
    fails, the sandbox goes on. The session can be used again: that makes another sandbox.
    """

    session_id: Name
    snapshot: bool = True


class SessionHistory(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`after` is a token from an earlier page."""

    session_id: Name
    after: Token | None = None
    limit: Limit = 1000


class ArtifactExport(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file or directory to export; a directory becomes a ``tar.gz``. `name` and `media_type` are guessed by `path`,
    which begins at the sandbox's working directory unless it is absolute. Up to `inline_bytes` are in the answer.
    """

    sandbox_id: Name
    path: Path
    name: FileName | None = None
    media_type: MediaType | None = None
    inline_bytes: Annotated[int, Meta(ge=0, le=model.MAX_INLINE_BYTES)] = 0


class ArtifactRef(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An artifact. Its bytes are in the answer if they are no more than `inline_bytes`."""

    artifact_id: Name
    inline_bytes: Annotated[int, Meta(ge=0, le=model.MAX_INLINE_BYTES)] = 0


class ArtifactQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filters: a sandbox, a session. `all` adds those that failed or were removed. They come oldest first, unless
    `newest_first`.
    """

    sandbox_id: Name | None = None
    session_id: Name | None = None
    all: bool = False
    newest_first: bool = False
    after: Name | None = None
    limit: Limit = 1000


class ArtifactRemove(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The artifact to remove."""

    artifact_id: Name


class VolumeCreate(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The volume that the caller means by `name` in the `volumes` of a new sandbox. An administrator can make it for
    another `owner`.
    """

    name: Name
    provider: Name = "docker"
    owner: Owner | None = None


class VolumeQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The provider, and for administrators an owner; all owners if it is left out."""

    provider: Name = "docker"
    owner: Owner | None = None


class VolumeRemove(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The volume to remove, with all files in it. An administrator can remove that of another `owner`."""

    name: Name
    provider: Name = "docker"
    owner: Owner | None = None


class ProviderChoose(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """With `enabled`, containers are preferred."""

    enabled: bool = True


class QuotaQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`owner` is the caller if it is left out; administrators can ask for another, such as ``uid:1000``."""

    owner: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class SandboxRef(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sandbox."""

    sandbox_id: Name


class SandboxQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`all` adds those that ended. `labels` all match."""

    all: bool = False
    after: Name | None = None
    limit: Limit = 1000
    labels: Labels = field(default_factory=dict)


class StatsQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Without `sandbox_id`: all the caller's running sandboxes."""

    sandbox_id: Name | None = None
    after: Name | None = None
    limit: Limit = 1000


class SandboxExec(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command to run to its end: a list of words, or one text for ``sh -c``. `stdin` is all that it can read."""

    sandbox_id: Name
    command: Command
    env: Environment = field(default_factory=dict)
    secrets: Secrets = field(default_factory=dict)
    working_dir: Path | None = None
    stdin: Annotated[bytes, Meta(max_length=8 * 1024 * 1024)] | None = None
    timeout_s: Seconds | None = None
    inline_bytes: Annotated[int, Meta(ge=0, le=model.MAX_INLINE_BYTES)] = model.MAX_INLINE_BYTES
    durable: bool = False


class SandboxTerminate(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sandbox to end, with all that runs in it. Its journals stay readable."""

    sandbox_id: Name


class SandboxUpdate(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sandbox, and its new limits; those left out stay as they are. A disk of its own can grow, also while it is
    written to, and not shrink; without one `disk_bytes` is refused. No provider can change the `network` of a sandbox:
    that is refused.
    """

    sandbox_id: Name
    disk_bytes: DiskBytes | None = None
    memory_bytes: MemoryBytes | None = None
    cpus: Cpus | None = None
    pids: ProcessLimit | None = None
    network: model.Network | None = None


class SandboxSuspend(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sandbox to suspend: all its processes are frozen."""

    sandbox_id: Name


class SandboxResume(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sandbox to resume. One that was lost or failed is restarted from its files, where its provider can; it
    needs its `secrets` again then, as they are stored nowhere.
    """

    sandbox_id: Name
    secrets: Secrets = field(default_factory=dict)


class SandboxRestore(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sandbox whose own files are replaced by those of a snapshot, or which returns to its state at a checkpoint:
    give one of both.

    For files it is restarted. While processes run in it that is refused with `in_use`, unless `end_processes` is true.
    For a snapshot it needs its `secrets` again, as they are stored nowhere.
    """

    sandbox_id: Name
    snapshot_id: Name | None = None
    checkpoint_id: Name | None = None
    end_processes: bool = False
    secrets: Secrets = field(default_factory=dict)


class SandboxRestoreAt(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sandbox from whose past a new one is made, as it was at a moment: after the event at `position`, or at
    `time`, in RFC 3339 with any offset. Give one of both.

    The newest of its snapshots and checkpoints at or before then is used, unless deleted. `name` is the new one's. The
    sandbox itself is not changed, and may have ended. The rest is as for `snapshot.restore`.
    """

    sandbox_id: Name
    position: Where | None = None
    time: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    name: Name | None = None
    labels: Labels = field(default_factory=dict)
    env: Environment = field(default_factory=dict)
    secrets: Secrets = field(default_factory=dict)


class SandboxFork(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sandbox to fork, and the `count` of forks, which start with its present files. They have its
    specification, with `labels` besides its own, and none of its processes. `names`, if given, are as many as the
    `count`. Its secrets have to be given again.
    """

    sandbox_id: Name
    count: Annotated[int, Meta(ge=1, le=MAX_FORKS)] = 1
    names: Annotated[list[Name], Meta(max_length=MAX_FORKS)] = field(default_factory=list)
    labels: Labels = field(default_factory=dict)
    secrets: Secrets = field(default_factory=dict)


class SandboxDiff(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The differences from `base`, a sandbox, snapshot or image, to the sandbox's workspace: what only the sandbox has
    is added. Without `base` they are those from the files that it began with; with `reverse`, those from the sandbox to
    `base`. At most `limit` paths are named, at or below `paths` if there are any. `unified` gives
    texts, of at most `max_bytes`; with `lines` lines are counted.
    """

    sandbox_id: Name
    base: ImageWord | None = None
    paths: Annotated[list[Path], Meta(max_length=256)] = field(default_factory=list)
    unified: bool = False
    lines: bool = False
    reverse: bool = False
    limit: Annotated[int, Meta(ge=1, le=MAX_CHANGES)] = 10_000
    max_bytes: Annotated[int, Meta(ge=0, le=MAX_TEXT_BYTES)] = MAX_TEXT_BYTES


class BranchCreate(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of `count` new branches: a directory `source` (an absolute path, read with the caller's own rights, of
    which an image for `provider` is made without the names `ignore`), an image, a snapshot, or a sandbox, of which they
    have the present files. They have the specification of a sandbox or snapshot, with `labels` besides. `names`, if
    given, are as many as the `count`. Secrets have to be given again.
    """

    source: Path | None = None
    ignore: Ignored = field(default_factory=list)
    provider: Name | None = None
    image_id: ImageWord | None = None
    snapshot_id: Name | None = None
    sandbox_id: Name | None = None
    count: Annotated[int, Meta(ge=1, le=MAX_FORKS)] = 1
    names: Annotated[list[Name], Meta(max_length=MAX_FORKS)] = field(default_factory=list)
    labels: Labels = field(default_factory=dict)
    secrets: Secrets = field(default_factory=dict)


class BranchQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The branches of an image alone, or all. `all` adds those that ended."""

    image_id: ImageWord | None = None
    all: bool = False
    after: Name | None = None
    limit: Limit = 1000


class BranchMerge(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sandboxes to merge into a new one, which is called `name` and has the specification of the first, with
    `labels` besides; secrets have to be given again.

    What is changed in one, or in several alike, is taken over; lines are merged. Of what is changed differently,
    `policy` makes a conflict (``fail``), takes the version of the branch `ours`, all versions one after the other
    (``union``), or all between ``markers``. At the paths of `takes`, and below them, the version of
    the branch given there is taken.

    Only workspaces are merged. Sandboxes with a writable root are refused, unless `workspace_only`: outside of its
    workspace the new one is as their common base then.
    """

    sandbox_ids: Annotated[list[Name], Meta(min_length=1, max_length=MAX_FORKS)]
    name: Name | None = None
    policy: model.MergePolicy = "fail"
    ours: Name | None = None
    takes: Annotated[dict[Path, Name], Meta(max_length=1024)] = field(default_factory=dict)
    labels: Labels = field(default_factory=dict)
    secrets: Secrets = field(default_factory=dict)
    workspace_only: bool = False


class BranchResolve(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Decisions on conflicts of a merge. When none is left, its sandbox is made; also if that was interrupted before by
    the end of a daemon.
    """

    merge_id: Name
    decisions: Annotated[list[model.Resolution], Meta(min_length=1, max_length=10_000)]
    secrets: Secrets = field(default_factory=dict)


class MergeQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`all` adds those that failed or were given up, and those whose sandbox ended."""

    all: bool = False
    after: Name | None = None
    limit: Limit = 1000


class ConflictQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The conflicts of a merge that are left. `after` is the `next` of an earlier page."""

    merge_id: Name
    after: Offset = 0
    limit: Limit = 1000


class VersionRead(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Up to `max_bytes`, from `offset`, of a version of a file in a conflict, by its digest."""

    merge_id: Name
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)", description="64 hexadecimal digits, in lower case.")]
    offset: Offset = 0
    max_bytes: Annotated[int, Meta(ge=0, le=model.MAX_READ_BYTES)] = model.MAX_READ_BYTES


class BranchAbandon(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The merge to give up, which has conflicts."""

    merge_id: Name


class BranchRemove(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The branch to remove: the sandbox is ended. What came from it stays whole."""

    sandbox_id: Name


class BranchPlan(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A branch, and the directory to which its changes would be committed: an absolute path, with the caller's own
    rights. At most `limit` paths are named.
    """

    sandbox_id: Name
    target: Path
    limit: Annotated[int, Meta(ge=1, le=MAX_CHANGES)] = 10_000


class BranchCommit(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A branch, and the directory to which its changes are committed: an absolute path, with the caller's own rights.
    Files that were changed there meanwhile are refused unless `force` is true.
    """

    sandbox_id: Name
    target: Path
    force: bool = False


class BranchBlame(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A merge, a commit, or a branch, whose present changes are told. `after` is the `next` of an earlier page."""

    sandbox_id: Name | None = None
    merge_id: Name | None = None
    commit_id: Name | None = None
    paths: Annotated[list[Path], Meta(max_length=256)] = field(default_factory=list)
    after: Offset = 0
    limit: Limit = 1000


class SnapshotCreate(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sandbox to snapshot. Of its files, only those at or below the paths of `include` are taken, and none at or
    below those of `exclude`; paths begin at the sandbox's workspace unless they are absolute.

    `incremental` stores the differences from the snapshot `parent_id`, or from the sandbox's last suitable one, else
    from its image. With `archive` ``bucket`` the archive has to be stored where other machines can read it; with
    ``named`` it lies there by the snapshot's name, as ``filesystem_snapshots/NAME/NAME.tar``, where other daemons and
    cloud-run-sandbox find it. There can be one of a name.

    With a path of `include` outside of the workspace, the archive holds these directories alone, under their paths from
    the root on. Sandboxes cannot begin with that, but for those of Docker.
    """

    sandbox_id: Name
    name: Name | None = None
    labels: Labels = field(default_factory=dict)
    include: Annotated[list[Path], Meta(max_length=256)] = field(default_factory=list)
    exclude: Annotated[list[Path], Meta(max_length=256)] = field(default_factory=list)
    format: Literal["tar", "tar.gz", "tar.zst"] = "tar.gz"
    incremental: bool = False
    parent_id: Name | None = None
    archive: Literal["bucket", "named"] | None = None


class SnapshotRef(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A snapshot."""

    snapshot_id: Name


class SnapshotQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filters: a sandbox, a name, labels that all match. `all` adds those that failed or were deleted."""

    sandbox_id: Name | None = None
    name: Name | None = None
    labels: Labels = field(default_factory=dict)
    all: bool = False
    after: Name | None = None
    limit: Limit = 1000


class SnapshotDelete(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The snapshot to delete. Incremental ones that build on it stay whole."""

    snapshot_id: Name


class SnapshotRestore(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The snapshot that a new sandbox starts from. It has the specification of the snapshot's sandbox, with `labels`
    and `env` besides, and with `idle_timeout_s` if that is given; secrets have to be given again.
    """

    snapshot_id: Name
    name: Name | None = None
    labels: Labels = field(default_factory=dict)
    env: Environment = field(default_factory=dict)
    secrets: Secrets = field(default_factory=dict)
    idle_timeout_s: Seconds | None = None


class SnapshotImport(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An archive to import: a tar of the files of a workspace, or of a whole root file system, plain or compressed by
    gzip or zstd.

    The descriptor is the writing end of a pipe. The archive is `size_bytes` long, so that a truncated one is
    detected, and has the digest, ``sha256:…``, if one is given. With `image_id`, sandboxes that are restored from it
    run as those of that image, by its provider; Docker's need one. The files are not compared with the image.

    The names in it tell which files it holds. If all are below ``workspace/``, or ``workspaces/``, that is stripped.
    With ``etc`` and ``usr`` it is a root, for which an image of Docker or gVisor is needed; else a workspace, which
    with an image of Docker takes the place of the image's own. `files` says it instead, and nothing is stripped then.

    An administrator can import it for another `owner`, such as ``key:ci``.
    """

    size_bytes: Annotated[int, Meta(ge=0, le=2**62)]
    digest: (
        Annotated[
            str,
            Meta(
                pattern=r"^sha256:[0-9a-f]{64}$(?!\n)",
                description="The word sha256: and 64 hexadecimal digits, in lower case.",
            ),
        ]
        | None
    ) = None
    image_id: ImageWord | None = None
    format: model.ArchiveFormat = "tar.gz"
    name: Name | None = None
    labels: Labels = field(default_factory=dict)
    archive: Literal["bucket"] | None = None
    files: Literal["workspace", "root"] | None = None
    owner: Owner | None = None


class SnapshotPromote(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The snapshot to create an image from. The image does not depend on it afterwards.

    The owner can use `name` wherever an `image_id` is asked for. An older image that has it loses it.
    """

    snapshot_id: Name
    labels: Labels = field(default_factory=dict)
    name: ImageName | None = None


class SnapshotGc(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`dry_run` only reports the objects that would be removed."""

    dry_run: bool = False


class StorePrune(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Removes the output of ended sandboxes, and images without a name that nothing needs; with `all` also those that
    have names. With `older_than_s` only output of sandboxes that ended longer ago, and images made longer ago.
    `dry_run` only reports them. An administrator prunes everybody's, others their own.
    """

    all: bool = False
    older_than_s: Seconds | None = None
    dry_run: bool = False


class CheckpointCreate(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sandbox to checkpoint with its processes. It is suspended by that, unless `leave_running` is true. With
    `archive` ``bucket`` the checkpoint has to be stored where other machines can read it.
    """

    sandbox_id: Name
    name: Name | None = None
    labels: Labels = field(default_factory=dict)
    leave_running: bool = False
    archive: Literal["bucket"] | None = None


class CheckpointRef(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A checkpoint."""

    checkpoint_id: Name


class CheckpointQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filters: a sandbox, a name, labels that all match. `all` adds those that failed or were deleted."""

    sandbox_id: Name | None = None
    name: Name | None = None
    labels: Labels = field(default_factory=dict)
    all: bool = False
    after: Name | None = None
    limit: Limit = 1000


class CheckpointDelete(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The checkpoint to delete. A sandbox that was suspended with it, and those that were made of it, stay whole."""

    checkpoint_id: Name


class CheckpointRestore(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The checkpoint from which `count` new sandboxes are created, with `labels` besides those of its sandbox. `names`,
    if given, are as many as the `count`.
    """

    checkpoint_id: Name
    count: Annotated[int, Meta(ge=1, le=MAX_FORKS)] = 1
    names: Annotated[list[Name], Meta(max_length=MAX_FORKS)] = field(default_factory=list)
    labels: Labels = field(default_factory=dict)


class HistoryQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`after` is a token from an earlier page."""

    sandbox_id: Name
    after: Token | None = None
    limit: Limit = 1000


class ProcessLaunch(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command to start. With `stdin` it reads the data of `process.write_stdin`; otherwise it has none.

    A `name` is unique among the processes of the sandbox that have not ended, and refers to the newest that has it.

    With `tty` it gets a terminal of `rows` and `cols`, which can be attached to, and its input and output are that
    terminal's: there is no separate stderr. With `durable` its output is on disk before its end is recorded; if the
    disk fails to take it, the daemon's log says so.
    """

    sandbox_id: Name
    command: Command
    name: Name | None = None
    env: Environment = field(default_factory=dict)
    secrets: Secrets = field(default_factory=dict)
    working_dir: Path | None = None
    stdin: bool = False
    tty: bool = False
    rows: TerminalSide = 24
    cols: TerminalSide = 80
    timeout_s: Seconds | None = None
    durable: bool = False


class ProcessCancel(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `command_id` of a `sandbox.exec` or `process.launch` whose caller gave it up.

    Its process gets INT, and KILL if it still runs 2 seconds later. A launch that has not begun never does. A suspended
    sandbox's process is left as it is.
    """

    launch: Name


class ProcessAttach(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process with a terminal. `term` is the kind of the client's own, as ``$TERM``; `read_only` discards input."""

    sandbox_id: Name
    name: Name
    rows: TerminalSide = 24
    cols: TerminalSide = 80
    term: TerminalName = "xterm-256color"
    read_only: bool = False


class ProcessResize(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The size of a process's terminal while no client is attached; each attached client brings a size of its own."""

    sandbox_id: Name
    name: Name
    rows: TerminalSide
    cols: TerminalSide


class FileRead(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Up to `max_bytes` of a file from `offset`. A path that is not UTF-8 is given in `path_bytes` instead of `path`;
    one that is not absolute begins at the sandbox's working directory.
    """

    sandbox_id: Name
    path: Path | None = None
    path_bytes: PathBytes | None = None
    offset: Offset = 0
    max_bytes: Annotated[int, Meta(ge=0, le=model.MAX_READ_BYTES)] = model.MAX_READ_BYTES


class FileWrite(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file's whole new content, which replaces the old one atomically. An existing file keeps its mode unless
    `mode` says another; `parents` makes directories that are missing.
    """

    sandbox_id: Name
    path: Path | None = None
    path_bytes: PathBytes | None = None
    data: Annotated[bytes, Meta(max_length=MAX_WRITE_BYTES)]
    mode: Annotated[int, Meta(ge=0, le=0o777)] | None = None
    parents: bool = False


class DirectoryQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A directory. `after` is the `next` of an earlier page."""

    sandbox_id: Name
    path: Path | None = None
    path_bytes: PathBytes | None = None
    after: Annotated[str, Meta(max_length=1024)] | None = None
    limit: Limit = 1000


class CopyOut(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file or tree, returned as a tar archive with one entry at its top, under its name; with `contents` a
    directory's entries are at the top instead. A link is copied as a link. With `as_bytes` the path is that of a
    regular file, and its content is returned without an archive around it.

    The descriptor is the reading end of a pipe. Only the answer confirms that the archive was complete.
    """

    sandbox_id: Name
    path: Path | None = None
    path_bytes: PathBytes | None = None
    contents: bool = False
    as_bytes: bool = False


class CopyIn(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The destination of a file or tree, which is sent as a tar archive with one entry at its top. In an existing
    directory it gets the name that it has in the archive; a tree is merged with one of that name. With `contents` the
    archive's entries are merged into the directory `path`, which is made if it is missing. With `as_bytes` the path is
    that of a regular file, and its new content is sent without an archive around it.

    The descriptor is the writing end of a pipe. The call lasts as long as the copy, and the copy is invisible until
    `sandbox.copy_commit` is called with its `transfer_id`, a new one for each copy, on another connection. A caller who
    disconnects before that undoes it.
    """

    sandbox_id: Name
    transfer_id: Name
    path: Path | None = None
    path_bytes: PathBytes | None = None
    contents: bool = False
    as_bytes: bool = False


class CopyCommit(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A copy under way whose whole archive was written."""

    sandbox_id: Name
    transfer_id: Name


class Shutdown(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Without parameters of its own."""


class StreamQuery(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`renew` invalidates the caller's earlier token."""

    renew: bool = False


class ProcessRef(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process, by its process_id or how that begins, or the newest of a name."""

    sandbox_id: Name
    name: Name


class ProcessQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Without `sandbox_id`: all the caller's processes. `all` adds ended ones, and the last of the unnamed."""

    sandbox_id: Name | None = None
    all: bool = False
    after: Name | None = None
    limit: Limit = 1000


class ProcessWait(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Without `timeout_s` it waits until the process has ended."""

    sandbox_id: Name
    name: Name
    timeout_s: Seconds | None = None


class ProcessSignal(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The signal goes to the whole process group."""

    sandbox_id: Name
    name: Name
    signal: Signal = "TERM"


class ProcessWriteStdin(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`data` is written whole, or up to `written_bytes` of the answer; `eof` closes the input after it."""

    sandbox_id: Name
    name: Name
    data: Annotated[bytes, Meta(max_length=1024 * 1024)] = b""
    eof: bool = False


class Written(Struct, frozen=True, kw_only=True):
    """The number of bytes that the process's input took."""

    written_bytes: int


class CancelledLaunch(Struct, frozen=True, kw_only=True):
    """The process of a cancelled launch; none if it had not begun."""

    process_id: str | None = None


class ProcessRead(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Up to `max_bytes` of each stream from its offset. It waits up to `wait_s` for new data, or for the end.

    `since`, a time in RFC 3339 with any offset, replaces the offsets: output that came earlier is skipped, but for a
    moment's. With `times` the answer says when each piece came.
    """

    sandbox_id: Name
    name: Name
    stdout_offset: Offset = 0
    stderr_offset: Offset = 0
    max_bytes: Annotated[int, Meta(ge=0, le=model.MAX_READ_BYTES)] = 1024 * 1024
    wait_s: Wait = 0
    times: bool = False
    since: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


class LockAcquire(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lock to acquire, by its name: that of the shared sandbox. While another owner holds it, the call
    waits up to `timeout_s`, unless another one waits already; with 0 not at all. A caller who disconnects cancels the
    wait.
    """

    name: Name
    timeout_s: Annotated[float, Meta(ge=0, le=MAX_LOCK_WAIT_S)] = 30.0


class LockRef(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lock, by its name, which means its last acquisition here, or by its lock_id or how that begins."""

    name: Name


class LockRelease(Mutation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lock to release, by its name or its lock_id. With `force` the lock of that name is freed from any owner, and
    a damaged document is repaired; its owner loses it, and writes nothing more under it.
    """

    name: Name
    force: bool = False


class KeyRef(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An API key, by its name. What it owns, ``key:NAME`` owns, also after the key was removed and made anew."""

    name: Name


class LockQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`all` adds the acquisitions that ended or failed."""

    all: bool = False
    after: Name | None = None
    limit: Limit = 1000


class EventQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Events after a token, oldest first; with nothing new it waits up to `wait_s` for some. No `after`: from the
    first there is.

    ``after="now"`` answers no event, and the token of this moment. `after` may also be a time, in RFC 3339 with any
    offset: then the events from that time on, without archived ones.
    """

    after: Token | None = None
    sandbox_id: Name | None = None
    type: EventType | None = None
    limit: Limit = 1000
    wait_s: Wait = 0


class StateQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sandbox, and the position of any event, its own or another's; a token stands for the position at its end. Of
    processes and snapshots the last `limit` are answered.
    """

    sandbox_id: Name
    position: Where
    limit: Limit = 1000


class StoreCompact(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Archive events of objects that ended longer ago than `older_than_s` (default: the daemon's setting)."""

    older_than_s: Annotated[float, Meta(ge=86_400, le=MAX_AGE_S)] | None = None


class StoreRedact(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The event whose content is removed for good."""

    position: Annotated[int, Meta(ge=1, le=2**63 - 1)]


Kind = Literal["sandbox", "image", "snapshot", "checkpoint", "session", "artifact", "merge", "commit"]
"""Kinds of objects that a parameter may name."""


class Method(Struct, frozen=True, kw_only=True):
    """One row. `deadline_s` is None for a method whose caller chooses the time to wait, or that cannot wait at all.

    With `descriptors` the answer comes with open descriptors (SCM_RIGHTS), attached to a notification before it. The
    caller must be allowed to see every object that a parameter of `references` names; `admin_if` are values that only
    an administrator may give; `intent` is the event that is durable before a mutation acts (or when it is complete, for
    writes of files: to write one twice does no harm), and by which a repeated command is known. Mutations without one,
    such as a write to a process's input, are remembered beside the log. A method with `needs_caller` is cancelled when
    its caller disconnects; every other mutation continues. One that `revives` makes the session first whose id is given
    for a `sandbox_id`, if it is not ready.
    """

    name: str
    summary: str
    result: Any
    params: type[Params] = NoParams
    access: Access = Access.ANYONE
    mutates: bool = False
    descriptors: int = 0
    intent: str | None = None
    deadline_s: float | None = None
    admin_if: dict[str, Any] = field(default_factory=dict)
    needs_caller: bool = False
    revives: bool = False
    references: dict[str, Kind] = field(default_factory=dict)


REFERENCES: Final[dict[str, Kind]] = {
    "sandbox_id": "sandbox",
    "image_id": "image",
    "snapshot_id": "snapshot",
    "parent_id": "snapshot",
    "checkpoint_id": "checkpoint",
    "restore_snapshot_id": "snapshot",
    "session_id": "session",
    "artifact_id": "artifact",
    "merge_id": "merge",
    "commit_id": "commit",
}
"""The parameters that name an object, in any method, and its kind. It may go by a name that its owner gave, an image
also by the reference that it was made from, and any by an unambiguous beginning of its id.
"""


def _method(name: str, summary: str, result: Any, params: type[Params] = NoParams, **rest: Any) -> Method:
    """Return a row. A method that must be given an object is for its owner."""
    mutates = issubclass(params, Mutation)
    names, defaults = params.__struct_fields__, params.__struct_defaults__  # `structs.fields` reads all annotations
    named = {name: REFERENCES[name] for name in names if name in REFERENCES}
    backwards = zip_longest(reversed(names), reversed(defaults), fillvalue=NODEFAULT)
    if any(name in named and default is NODEFAULT for name, default in backwards):
        rest.setdefault("access", Access.OWNER)
    return Method(name=name, summary=summary, result=result, params=params, mutates=mutates, references=named, **rest)


_M = _method
_ADMIN: Final[dict[str, Any]] = {"access": Access.ADMIN}

METHODS: Final[dict[str, Method]] = {
    row.name: row
    for row in (
        _M("rpc.discover", "Describe every method, as an OpenRPC document.", dict[str, Any]),
        _M(
            "rpc.hello",
            "Record the client's name for this connection, and return the id of the event log.",
            model.Welcome,
            Hello,
        ),
        _M("daemon.ping", "Check that the daemon answers.", model.Pong),
        _M("daemon.status", "Show the daemon's status.", model.DaemonStatus),
        _M(
            "daemon.capabilities",
            "Show which features work on this machine, and why others do not.",
            model.Capabilities,
            deadline_s=30.0,
        ),
        _M(
            "daemon.shutdown", "Stop the daemon; sandboxes and processes keep running.", model.Empty, Shutdown, **_ADMIN
        ),
        _M("quota.get", "Show an owner's quotas and their usage.", model.QuotaList, QuotaQuery),
        _M(
            "image.create",
            "Create an image from a directory, a Dockerfile or a container image.",
            model.Image,
            ImageCreate,
            intent="image.create_requested",
            deadline_s=3600.0,
        ),
        _M("image.list", "List images.", model.ImageList, ImageQuery),
        _M("image.get", "Show an image.", model.Image, ImageRef),
        _M("image.tag", "Give an image a name.", model.Image, ImageTag, intent="image.tagged", deadline_s=60.0),
        _M(
            "image.untag",
            "Take a name from an image.",
            model.Image,
            ImageUntag,
            intent="image.untagged",
            deadline_s=60.0,
        ),
        _M(
            "image.publish",
            "Let others use an image of the Docker engine.",
            model.Image,
            ImagePublish,
            intent="image.published",
            deadline_s=3600.0,
            **_ADMIN,
        ),
        _M(
            "image.unpublish",
            "Withdraw a published image.",
            model.Image,
            ImageUnpublish,
            intent="image.unpublished",
            deadline_s=60.0,
            **_ADMIN,
        ),
        _M(
            "image.remove",
            "Remove an image.",
            model.Image,
            ImageRemove,
            intent="image.remove_requested",
            deadline_s=600.0,
        ),
        _M(
            "volume.create",
            "Create a named volume.",
            model.NamedVolume,
            VolumeCreate,
            intent="volume.create_requested",
            deadline_s=60.0,
        ),
        _M(
            "volume.list",
            "List named volumes, with the sandboxes that mount them.",
            model.NamedVolumeList,
            VolumeQuery,
            deadline_s=60.0,
        ),
        _M(
            "volume.remove",
            "Remove a named volume that no sandbox mounts.",
            model.NamedVolume,
            VolumeRemove,
            intent="volume.remove_requested",
            deadline_s=60.0,
        ),
        _M(
            "provider.choose",
            "Choose a provider: docker if it works here and is wanted, else local.",
            model.ProviderChoice,
            ProviderChoose,
            intent="provider.fell_back",
            deadline_s=60.0,
        ),
        _M(
            "session.ensure",
            "Make a session ready: find it, create it, or bring it back from its latest snapshot.",
            model.SessionEnsured,
            SessionEnsure,
            intent="session.start_requested",
            deadline_s=6 * 3600.0,
            admin_if={"network": "host"},
        ),
        _M("session.get", "Show a session.", model.Session, SessionRef),
        _M("session.list", "List sessions.", model.SessionList, SessionQuery),
        _M("session.heartbeat", "Keep a session from being idle.", model.Session, SessionRef),
        _M(
            "session.close",
            "End the sandbox of a session, after a snapshot.",
            model.Session,
            SessionClose,
            intent="session.stop_requested",
            deadline_s=6 * 3600.0,
        ),
        _M("session.history", "List the events of a session itself.", model.EventPage, SessionHistory),
        _M(
            "artifact.export",
            "Copy a file or directory out of a sandbox, where it outlives that.",
            model.Artifact,
            ArtifactExport,
            intent="artifact.export_requested",
            deadline_s=3600.0,
            revives=True,
        ),
        _M("artifact.get", "Show an artifact, with its digest.", model.Artifact, ArtifactRef, deadline_s=600.0),
        _M("artifact.list", "List artifacts.", model.ArtifactList, ArtifactQuery),
        _M(
            "artifact.open",
            "Hand over an artifact as an open file.",
            model.Artifact,
            ArtifactRef,
            descriptors=1,
            deadline_s=60.0,
        ),
        _M(
            "artifact.remove",
            "Remove an artifact.",
            model.Artifact,
            ArtifactRemove,
            intent="artifact.remove_requested",
            deadline_s=600.0,
        ),
        _M(
            "sandbox.create",
            "Create and start a sandbox from an image.",
            model.Sandbox,
            SandboxCreate,
            intent="sandbox.create_requested",
            deadline_s=120.0,
            admin_if={"network": "host", "isolation": "none"},
        ),
        _M(
            "sandbox.attach_shared",
            "Attach a sandbox that another daemon shares, as it was saved last.",
            model.Sandbox,
            SandboxAttachShared,
            intent="sandbox.create_requested",
            deadline_s=MAX_LOCK_WAIT_S + 600.0,
        ),
        _M(
            "sandbox.detach",
            "Save a shared sandbox, and let other daemons have it.",
            model.Sandbox,
            SandboxDetach,
            intent="lock.handover_requested",
            deadline_s=3600.0,
        ),
        _M("sandbox.get", "Show a sandbox.", model.Sandbox, SandboxRef),
        _M("sandbox.list", "List sandboxes.", model.SandboxList, SandboxQuery),
        _M(
            "sandbox.stats",
            "Show the resource usage of running sandboxes: CPU, memory, processes, I/O.",
            model.SandboxStatsList,
            StatsQuery,
            deadline_s=30.0,
        ),
        _M(
            "sandbox.exec",
            "Run a command to its end and return its output.",
            model.ExecResult,
            SandboxExec,
            intent="process.launch_requested",
            revives=True,
        ),
        _M(
            "sandbox.terminate",
            "Terminate a sandbox and all its processes.",
            model.Sandbox,
            SandboxTerminate,
            intent="sandbox.terminate_requested",
            deadline_s=120.0,
        ),
        _M(
            "sandbox.update",
            "Change limits of a sandbox, while it runs.",
            model.Sandbox,
            SandboxUpdate,
            intent="sandbox.updated",
            deadline_s=600.0,
        ),
        _M(
            "sandbox.suspend",
            "Freeze a sandbox.",
            model.Sandbox,
            SandboxSuspend,
            intent="sandbox.suspend_requested",
            deadline_s=600.0,
        ),
        _M(
            "sandbox.resume",
            "Resume a suspended sandbox, or restart a lost or failed one from its files.",
            model.Sandbox,
            SandboxResume,
            intent="sandbox.resume_requested",
            deadline_s=600.0,
        ),
        _M(
            "sandbox.fork",
            "Create sandboxes with the files of another.",
            model.ForkResult,
            SandboxFork,
            intent="sandbox.fork_requested",
            deadline_s=3600.0,
            revives=True,
        ),
        _M(
            "sandbox.diff",
            "Compare another sandbox, a snapshot, an image, or its own first files with a sandbox's workspace.",
            model.Diff,
            SandboxDiff,
            deadline_s=600.0,
            revives=True,
        ),
        _M(
            "sandbox.restore",
            "Replace a sandbox's files with those of a snapshot, or restore it to a checkpoint.",
            model.Sandbox,
            SandboxRestore,
            intent="sandbox.restore_requested",
            deadline_s=3600.0,
        ),
        _M(
            "sandbox.restore_at",
            "Create a sandbox from the newest snapshot or checkpoint of another at or before a moment.",
            model.RestoredAt,
            SandboxRestoreAt,
            intent="sandbox.create_requested",
            deadline_s=6 * 3600.0,
        ),
        _M("sandbox.read_file", "Read a piece of a file.", model.FileContent, FileRead, deadline_s=60.0, revives=True),
        _M(
            "sandbox.write_file",
            "Write a file atomically.",
            model.FileWritten,
            FileWrite,
            intent="sandbox.file_written",
            deadline_s=120.0,
            revives=True,
        ),
        _M(
            "sandbox.list_dir",
            "List the files of a directory.",
            model.DirectoryList,
            DirectoryQuery,
            deadline_s=60.0,
            revives=True,
        ),
        _M(
            "sandbox.copy_out",
            "Hand over a pipe from which a file or tree is read as a tar archive.",
            model.Copied,
            CopyOut,
            descriptors=1,
            revives=True,
        ),
        _M(
            "sandbox.copy_in",
            "Hand over a pipe to which a file or tree is written as a tar archive.",
            model.Copied,
            CopyIn,
            descriptors=1,
            revives=True,
        ),
        _M(
            "sandbox.copy_commit",
            "Commit a copy into a sandbox, once all of it was written.",
            model.Copied,
            CopyCommit,
            intent="sandbox.file_written",
        ),
        _M("sandbox.history", "List the events of a sandbox and its processes.", model.EventPage, HistoryQuery),
        _M(
            "branch.create",
            "Create branches of a directory, an image, a snapshot or a sandbox.",
            model.BranchCreateResult,
            BranchCreate,
            intent="branch.create_requested",
            deadline_s=3600.0,
        ),
        _M("branch.list", "List sandboxes with their bases and lineage.", model.BranchList, BranchQuery),
        _M(
            "branch.diff",
            "Compare a branch with its base or with another: see sandbox.diff.",
            model.Diff,
            SandboxDiff,
            deadline_s=600.0,
            revives=True,
        ),
        _M(
            "branch.merge",
            "Merge branches into a new sandbox, over their nearest common base.",
            model.Merged,
            BranchMerge,
            intent="branch.merge_requested",
            deadline_s=6 * 3600.0,
        ),
        _M(
            "branch.resolve",
            "Decide conflicts of a merge, and go on with it.",
            model.Merged,
            BranchResolve,
            intent="branch.resolve_requested",
            deadline_s=6 * 3600.0,
        ),
        _M("branch.merges", "List merges.", model.MergeList, MergeQuery),
        _M("branch.conflicts", "List the conflicts of a merge.", model.ConflictList, ConflictQuery, deadline_s=60.0),
        _M(
            "branch.read_version",
            "Read a piece of one version of a file in a conflict.",
            model.FileContent,
            VersionRead,
            deadline_s=60.0,
        ),
        _M(
            "branch.abandon",
            "Give up a merge that has conflicts.",
            model.Merge,
            BranchAbandon,
            intent="branch.abandon_requested",
            deadline_s=600.0,
        ),
        _M(
            "branch.plan",
            "Show what a commit of a branch would do to a directory of the host.",
            model.CommitPlan,
            BranchPlan,
            deadline_s=600.0,
        ),
        _M(
            "branch.commit",
            "Apply a branch's changes to a directory of the host, all or none.",
            model.Commit,
            BranchCommit,
            intent="branch.commit_requested",
            deadline_s=3600.0,
        ),
        _M(
            "branch.blame",
            "Show which branch each path of a merge, a commit or a branch came from.",
            model.Blame,
            BranchBlame,
            deadline_s=600.0,
        ),
        _M(
            "branch.remove",
            "End a branch.",
            model.Sandbox,
            BranchRemove,
            intent="sandbox.terminate_requested",
            deadline_s=600.0,
        ),
        _M(
            "process.launch",
            "Start a command in the background.",
            model.Process,
            ProcessLaunch,
            intent="process.launch_requested",
            deadline_s=60.0,
            revives=True,
        ),
        _M("process.get", "Show a process.", model.Process, ProcessRef),
        _M("process.list", "List processes.", model.ProcessList, ProcessQuery),
        _M("process.wait", "Wait until a process exits.", model.Process, ProcessWait),
        _M(
            "process.signal",
            "Send a signal to a process and its group.",
            model.Process,
            ProcessSignal,
            intent="process.signalled",
            deadline_s=30.0,
        ),
        _M(
            "process.cancel",
            "End the process of a launch that its caller gave up.",
            CancelledLaunch,
            ProcessCancel,
            deadline_s=30.0,
        ),
        _M(
            "process.write_stdin",
            "Write to a process's input, or close it.",
            Written,
            ProcessWriteStdin,
            deadline_s=60.0,
        ),
        _M("process.read", "Read the output of a process, from byte offsets.", model.ProcessOutput, ProcessRead),
        _M(
            "process.open_output",
            "Hand over the journals of a process, as descriptors for reading.",
            model.OpenOutput,
            ProcessRef,
            descriptors=2,
            deadline_s=60.0,
        ),
        _M(
            "process.attach",
            "Attach to the terminal of a process.",
            model.Attachment,
            ProcessAttach,
            descriptors=1,
            deadline_s=60.0,
        ),
        _M(
            "process.resize",
            "Resize the terminal of a process that has no client attached.",
            model.Process,
            ProcessResize,
            deadline_s=30.0,
        ),
        _M(
            "snapshot.create",
            "Snapshot the files of a sandbox as an archive.",
            model.Snapshot,
            SnapshotCreate,
            intent="snapshot.create_requested",
            deadline_s=6 * 3600.0,
            revives=True,
        ),
        _M("snapshot.list", "List snapshots.", model.SnapshotList, SnapshotQuery),
        _M("snapshot.get", "Show a snapshot.", model.Snapshot, SnapshotRef),
        _M(
            "snapshot.delete",
            "Delete a snapshot.",
            model.Snapshot,
            SnapshotDelete,
            intent="snapshot.delete_requested",
            deadline_s=600.0,
        ),
        _M(
            "snapshot.restore",
            "Create and start a sandbox from a snapshot.",
            model.Sandbox,
            SnapshotRestore,
            intent="sandbox.create_requested",
            deadline_s=6 * 3600.0,
        ),
        _M(
            "snapshot.export",
            "Hand over the files of a snapshot as one whole archive, an open file.",
            model.SnapshotExport,
            SnapshotRef,
            descriptors=1,
            deadline_s=6 * 3600.0,
        ),
        _M(
            "snapshot.import",
            "Hand over a pipe for an archive from elsewhere, which becomes a snapshot.",
            model.Snapshot,
            SnapshotImport,
            intent="snapshot.create_requested",
            descriptors=1,
            needs_caller=True,
        ),
        _M(
            "snapshot.promote",
            "Create an image from a snapshot.",
            model.Image,
            SnapshotPromote,
            intent="image.create_requested",
            deadline_s=6 * 3600.0,
        ),
        _M(
            "snapshot.gc",
            "Delete expired snapshots, and archives that no event references.",
            model.SnapshotGcReport,
            SnapshotGc,
            **_ADMIN,
            deadline_s=3600.0,
        ),
        _M(
            "checkpoint.create",
            "Checkpoint a sandbox with its processes.",
            model.Checkpoint,
            CheckpointCreate,
            intent="checkpoint.create_requested",
            deadline_s=3600.0,
            revives=True,
        ),
        _M("checkpoint.list", "List checkpoints.", model.CheckpointList, CheckpointQuery),
        _M("checkpoint.get", "Show a checkpoint.", model.Checkpoint, CheckpointRef),
        _M(
            "checkpoint.delete",
            "Delete a checkpoint.",
            model.Checkpoint,
            CheckpointDelete,
            intent="checkpoint.delete_requested",
            deadline_s=600.0,
        ),
        _M(
            "checkpoint.restore",
            "Create sandboxes from a checkpoint, with its processes running.",
            model.CheckpointRestoreResult,
            CheckpointRestore,
            intent="checkpoint.restore_requested",
            deadline_s=3600.0,
        ),
        _M(
            "stream.access",
            "Return the stream server's addresses, and for TCP the caller's token and the server's pin.",
            model.StreamAccess,
            StreamQuery,
            deadline_s=30.0,
        ),
        _M(
            "lock.acquire",
            "Acquire the lock of a shared sandbox, and hold it until it is released.",
            model.Lock,
            LockAcquire,
            intent="lock.acquire_requested",
            deadline_s=MAX_LOCK_WAIT_S + 60.0,
            needs_caller=True,
        ),
        _M(
            "lock.release",
            "Release a lock.",
            model.Lock,
            LockRelease,
            access=Access.OWNER,
            intent="lock.release_requested",
            deadline_s=120.0,
            admin_if={"force": True},
        ),
        _M("lock.get", "Show a lock.", model.Lock, LockRef, access=Access.OWNER),
        _M("lock.list", "List the locks that this daemon holds.", model.LockList, LockQuery),
        _M(
            "key.create",
            "Create an API key for the HTTP gateway. It is shown once.",
            model.NewKey,
            KeyRef,
            **_ADMIN,
            deadline_s=30.0,
        ),
        _M("key.list", "List the API keys of the HTTP gateway.", model.KeyList, **_ADMIN),
        _M(
            "key.remove",
            "Remove an API key: it is refused from now on.",
            model.ApiKey,
            KeyRef,
            **_ADMIN,
            deadline_s=30.0,
        ),
        _M("event.list", "List events in commit order.", model.EventPage, EventQuery),
        _M(
            "event.state_at",
            "Show a sandbox as it was after an event.",
            model.SandboxAt,
            StateQuery,
            deadline_s=600.0,
        ),
        _M(
            "store.verify",
            "Check the event log and every metadata.json.",
            model.VerifyReport,
            **_ADMIN,
            deadline_s=3600.0,
        ),
        _M(
            "store.compact",
            "Archive the events of objects that ended long ago.",
            model.CompactReport,
            StoreCompact,
            **_ADMIN,
        ),
        _M(
            "store.prune",
            "Remove the output of ended sandboxes, and images that nothing needs.",
            model.PruneReport,
            StorePrune,
            deadline_s=3600.0,
        ),
        _M(
            "store.redact",
            "Remove a caller's data in an event from the log and the archive.",
            model.RedactReport,
            StoreRedact,
            **_ADMIN,
            deadline_s=3600.0,
        ),
        _M(
            "store.rebuild",
            "Rebuild every metadata.json from the event log.",
            model.RebuildReport,
            **_ADMIN,
            deadline_s=3600.0,
        ),
    )
}

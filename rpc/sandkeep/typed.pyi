"""The methods and handles of the clients. Written by `make docs`: do not edit."""

# ruff: noqa: A002, PYI021

import builtins
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from os import PathLike
from typing import Any, Literal, Self

from sandkeep import model
from sandkeep.protocol import methods

class _SandboxView:
    info: model.Sandbox
    @property
    def id(self) -> str: ...
    @property
    def sandbox_id(self) -> str: ...
    @property
    def image_id(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def status(self) -> model.SandboxStatus: ...
    @property
    def owner(self) -> str: ...
    @property
    def created_at(self) -> str: ...
    @property
    def spec(self) -> model.SandboxSpec: ...
    @property
    def secrets(self) -> list[str]: ...
    @property
    def isolation(self) -> model.Isolation | None: ...
    @property
    def running_processes(self) -> int: ...
    @property
    def exec_count(self) -> int: ...
    @property
    def ended_at(self) -> str | None: ...
    @property
    def terminated_reason(self) -> str | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def position(self) -> int: ...
    @property
    def last_status(self) -> str | None: ...
    @property
    def note(self) -> str | None: ...
    @property
    def forked_from(self) -> str | None: ...
    @property
    def restored_from(self) -> str | None: ...
    @property
    def latest_snapshot_id(self) -> str | None: ...
    @property
    def latest_checkpoint_id(self) -> str | None: ...
    @property
    def name(self) -> str | None: ...
    @property
    def suspended_reason(self) -> str | None: ...
    @property
    def limits_met(self) -> dict[Literal["disk", "memory", "pids", "time"], int]: ...
    @property
    def moved_to(self) -> list[str] | None: ...
    @property
    def sandbox_token(self) -> str | None: ...
    @property
    def expires_at(self) -> str | None: ...
    @property
    def container_id(self) -> str | None: ...
    @property
    def container_name(self) -> str | None: ...
    @property
    def modal_sandbox_id(self) -> str | None: ...
    @property
    def ssh_address(self) -> str | None: ...

class _ProcessView:
    info: model.Process
    @property
    def id(self) -> str: ...
    @property
    def process_id(self) -> str: ...
    @property
    def sandbox_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def named(self) -> bool: ...
    @property
    def command(self) -> list[str]: ...
    @property
    def status(self) -> model.ProcessStatus: ...
    @property
    def requested_at(self) -> str: ...
    @property
    def command_cut(self) -> bool: ...
    @property
    def working_dir(self) -> str | None: ...
    @property
    def env(self) -> list[str]: ...
    @property
    def secrets(self) -> list[str]: ...
    @property
    def stdin(self) -> bool: ...
    @property
    def tty(self) -> bool: ...
    @property
    def tmux_session(self) -> str | None: ...
    @property
    def timeout_s(self) -> float | None: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def started_at(self) -> str | None: ...
    @property
    def ended_at(self) -> str | None: ...
    @property
    def exit_code(self) -> int | None: ...
    @property
    def timed_out(self) -> bool: ...
    @property
    def oom_killed(self) -> bool: ...
    @property
    def last_signal(self) -> str | None: ...
    @property
    def stdout_bytes(self) -> int | None: ...
    @property
    def stderr_bytes(self) -> int | None: ...
    @property
    def kill_scope(self) -> str: ...
    @property
    def error(self) -> str | None: ...
    @property
    def limits_met(self) -> list[Literal["disk", "memory", "pids", "time"]]: ...

class _ImageView:
    info: model.Image
    @property
    def id(self) -> str: ...
    @property
    def image_id(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def kind(self) -> model.ImageKind: ...
    @property
    def source(self) -> str: ...
    @property
    def status(self) -> model.ImageStatus: ...
    @property
    def owner(self) -> str: ...
    @property
    def created_at(self) -> str: ...
    @property
    def base(self) -> str | None: ...
    @property
    def dockerfile(self) -> str | None: ...
    @property
    def docker_image_id(self) -> str | None: ...
    @property
    def docker_image_tag(self) -> str | None: ...
    @property
    def modal_image_id(self) -> str | None: ...
    @property
    def digest(self) -> str | None: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def file_count(self) -> int: ...
    @property
    def skipped_count(self) -> int: ...
    @property
    def skipped(self) -> list[model.SkippedFile]: ...
    @property
    def labels(self) -> dict[str, str]: ...
    @property
    def error(self) -> str | None: ...
    @property
    def names(self) -> list[str]: ...
    @property
    def published(self) -> dict[str, list[str]]: ...

class _NamedVolumeView:
    info: model.NamedVolume
    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def engine_name(self) -> str: ...
    @property
    def created_at(self) -> str | None: ...
    @property
    def sandbox_ids(self) -> list[str]: ...

class _SnapshotView:
    info: model.Snapshot
    @property
    def id(self) -> str: ...
    @property
    def snapshot_id(self) -> str: ...
    @property
    def status(self) -> model.SnapshotStatus: ...
    @property
    def kind(self) -> model.SnapshotKind: ...
    @property
    def format(self) -> model.ArchiveFormat: ...
    @property
    def owner(self) -> str: ...
    @property
    def created_at(self) -> str: ...
    @property
    def sandbox_id(self) -> str | None: ...
    @property
    def image_id(self) -> str | None: ...
    @property
    def provider(self) -> str | None: ...
    @property
    def parent_id(self) -> str | None: ...
    @property
    def name(self) -> str | None: ...
    @property
    def labels(self) -> dict[str, str]: ...
    @property
    def root(self) -> str: ...
    @property
    def include(self) -> list[str]: ...
    @property
    def exclude(self) -> list[str]: ...
    @property
    def imported(self) -> bool: ...
    @property
    def places(self) -> list[model.Place]: ...
    @property
    def digest(self) -> str | None: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def member_count(self) -> int: ...
    @property
    def content_bytes(self) -> int: ...
    @property
    def pause_ms(self) -> float | None: ...
    @property
    def remarks(self) -> dict[str, int]: ...
    @property
    def error(self) -> str | None: ...
    @property
    def note(self) -> str | None: ...
    @property
    def modal_image_id(self) -> str | None: ...

class _CheckpointView:
    info: model.Checkpoint
    @property
    def id(self) -> str: ...
    @property
    def checkpoint_id(self) -> str: ...
    @property
    def status(self) -> model.SnapshotStatus: ...
    @property
    def owner(self) -> str: ...
    @property
    def created_at(self) -> str: ...
    @property
    def sandbox_id(self) -> str: ...
    @property
    def image_id(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def leave_running(self) -> bool: ...
    @property
    def place(self) -> model.Place: ...
    @property
    def name(self) -> str | None: ...
    @property
    def labels(self) -> dict[str, str]: ...
    @property
    def facts(self) -> dict[str, str]: ...
    @property
    def files(self) -> list[model.CheckpointFile]: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def processes(self) -> int: ...
    @property
    def pause_ms(self) -> float | None: ...
    @property
    def error(self) -> str | None: ...

class _ArtifactView:
    info: model.Artifact
    @property
    def id(self) -> str: ...
    @property
    def artifact_id(self) -> str: ...
    @property
    def status(self) -> model.SnapshotStatus: ...
    @property
    def owner(self) -> str: ...
    @property
    def sandbox_id(self) -> str: ...
    @property
    def session_id(self) -> str | None: ...
    @property
    def path(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def media_type(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def digest(self) -> str | None: ...
    @property
    def download_url(self) -> str | None: ...
    @property
    def data(self) -> bytes | None: ...
    @property
    def created_at(self) -> str: ...
    @property
    def error(self) -> str | None: ...

class _SessionView:
    info: model.Session
    @property
    def id(self) -> str: ...
    @property
    def session_id(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def status(self) -> model.SessionStatus: ...
    @property
    def spec(self) -> model.SessionSpec: ...
    @property
    def provider(self) -> str | None: ...
    @property
    def image_id(self) -> str | None: ...
    @property
    def sandbox_id(self) -> str | None: ...
    @property
    def ref(self) -> str | None: ...
    @property
    def workspace_path(self) -> str | None: ...
    @property
    def created_at(self) -> str: ...
    @property
    def started_at(self) -> str | None: ...
    @property
    def expires_at(self) -> str | None: ...
    @property
    def last_activity_at(self) -> str | None: ...
    @property
    def last_heartbeat_at(self) -> str | None: ...
    @property
    def ended_at(self) -> str | None: ...
    @property
    def terminated_reason(self) -> str | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def error_code(self) -> str | None: ...
    @property
    def restored_from(self) -> str | None: ...
    @property
    def latest_snapshot_id(self) -> str | None: ...
    @property
    def snapshot_ids(self) -> list[str]: ...
    @property
    def starts(self) -> int: ...
    @property
    def note(self) -> str | None: ...
    @property
    def position(self) -> int: ...

class AsyncRpcMethods:
    async def discover(self, *, progress: Callable[[str], None] | None = None) -> dict[str, Any]:
        """Describe every method, as an OpenRPC document.

        `progress` is called with the messages of a long call.
        """
    async def hello(self, client: str, *, progress: Callable[[str], None] | None = None) -> model.Welcome:
        """Record the client's name for this connection, and return the id of the
        event log.

        `client` is recorded with each event that this connection causes.

        `progress` is called with the messages of a long call.
        """

class AsyncDaemonMethods:
    async def ping(self, *, progress: Callable[[str], None] | None = None) -> model.Pong:
        """Check that the daemon answers.

        `progress` is called with the messages of a long call.
        """
    async def status(self, *, progress: Callable[[str], None] | None = None) -> model.DaemonStatus:
        """Show the daemon's status.

        `progress` is called with the messages of a long call.
        """
    async def capabilities(self, *, progress: Callable[[str], None] | None = None) -> model.Capabilities:
        """Show which features work on this machine, and why others do not.

        `progress` is called with the messages of a long call.
        """
    async def shutdown(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Empty:
        """Stop the daemon; sandboxes and processes keep running.

        Without parameters of its own.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class AsyncQuotaMethods:
    async def get(
        self,
        owner: str | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.QuotaList:
        """Show an owner's quotas and their usage.

        `owner` is the caller if it is left out; administrators can ask for
        another, such as ``uid:1000``.

        `progress` is called with the messages of a long call.
        """

class AsyncImageMethods:
    async def create(
        self,
        source: str | PathLike[str],
        provider: str | None = None,
        base: str | None = None,
        dockerfile: str | PathLike[str] | None = None,
        clean: bool = False,
        labels: dict[str, str] = {},
        owner: str | None = None,
        ignore: Sequence[str] = [],
        patterns: Sequence[str] = [],
        ignore_files: bool = True,
        name: str | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Image:
        """Create an image from a directory, a Dockerfile or a container image.

        `source` is an absolute path, read with the caller's own rights, or the
        reference of a container image.

        Without a `provider` a plain directory is for ``local``; one that holds
        a Dockerfile, the path of a Dockerfile and a reference are for
        ``docker``. `dockerfile` is the Dockerfile's path below the directory,
        if it is not the usual one. With `base`, a reference, the directory is
        put onto that image, as its ``/workspace``, even if it holds a
        Dockerfile. `clean` makes a new image even if one of the same content
        exists, and builds without the cache. An administrator can make it for
        another `owner`, such as ``key:ci``. Of a plain directory its
        ``.sandkeepignore``, or else its ``.dockerignore``, says what is left
        out; then `patterns`, by the same rules, such as ``docs/*.html``, or
        ``!docs/a.html`` for an exception; and the names of `ignore` are left
        out, at any depth. Without `ignore_files` these files do not count.

        The owner can use `name`, such as ``py:3.12``, wherever an `image_id` is
        asked for. An older image that has it loses it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        all: bool = False,
        published: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ImageList:
        """List images.

        `all` adds those that failed or were removed. With `published` the list
        has the images that are published to the caller instead, for an
        administrator all that are published.

        `progress` is called with the messages of a long call.
        """
    async def get(self, image_id: str, *, progress: Callable[[str], None] | None = None) -> model.Image:
        """Show an image.

        An image.

        `progress` is called with the messages of a long call.
        """
    async def tag(
        self,
        image_id: str,
        name: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Image:
        """Give an image a name.

        The image that its owner means by `name` from now on. Another one that
        has the name loses it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def untag(
        self,
        image_id: str,
        name: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Image:
        """Take a name from an image.

        The image, and the name to take from it. `not_found` if the image is not
        called so.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def publish(
        self,
        reference: str,
        owners: Sequence[str] = [],
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Image:
        """Let others use an image of the Docker engine.

        The `owners` who may use the image of the Docker engine that `reference`
        means now; everybody, if there are none.

        It is made an image of the caller's own, which is the one that is
        published until the same reference is published again, wherever its tag
        is moved.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def unpublish(
        self,
        reference: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Image:
        """Withdraw a published image.

        A published reference. Images that others have made by it stay theirs.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def remove(
        self,
        image_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Image:
        """Remove an image.

        The image to remove; refused with `in_use` while a sandbox needs it. One
        that is given by one of several names only loses that, and the answer's
        status is still ``ready``.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class AsyncVolumeMethods:
    async def create(
        self,
        name: str,
        provider: str = "docker",
        owner: str | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.NamedVolume:
        """Create a named volume.

        The volume that the caller means by `name` in the `volumes` of a new
        sandbox. An administrator can make it for another `owner`.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        provider: str = "docker",
        owner: str | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.NamedVolumeList:
        """List named volumes, with the sandboxes that mount them.

        The provider, and for administrators an owner; all owners if it is left
        out.

        `progress` is called with the messages of a long call.
        """
    async def remove(
        self,
        name: str,
        provider: str = "docker",
        owner: str | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.NamedVolume:
        """Remove a named volume that no sandbox mounts.

        The volume to remove, with all files in it. An administrator can remove
        that of another `owner`.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class AsyncProviderMethods:
    async def choose(
        self,
        enabled: bool = True,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.ProviderChoice:
        """Choose a provider: docker if it works here and is wanted, else local.

        With `enabled`, containers are preferred.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class AsyncSessionMethods:
    async def ensure(
        self,
        id: str | None = None,
        image: str | None = None,
        mode: Literal["docker", "k8s"] | None = None,
        restore_snapshot_id: str | None = None,
        fresh: bool = False,
        cpus: float | None = None,
        memory_bytes: int | None = None,
        pids: int | None = None,
        disk_bytes: int | None = None,
        network: Literal["none", "host", "bridge"] | None = None,
        user: str | None = None,
        read_only: bool | None = None,
        working_dir: str | PathLike[str] | None = None,
        volumes: Sequence[model.Volume] | None = None,
        env: dict[str, str] | None = None,
        secrets: dict[str, str] = {},
        labels: dict[str, str] | None = None,
        idle_timeout_s: float | None = None,
        max_lifetime_s: float | None = None,
        artifact_base_url: str | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.SessionEnsured:
        """Make a session ready: find it, create it, or bring it back from its
        latest snapshot.

        The session `id` of the caller's, or a new one, is made ready. One that
        is ready stays as it is.

        A new sandbox has the files of the snapshot `restore_snapshot_id`;
        without one of the session's latest, if there is any; with `fresh` those
        of the image alone. The other properties are as for `sandbox.create`,
        but for the `image`, which can be the reference of a container image,
        too, and the limits of time, which are the session's. Those that are
        left out are as they were when the session was made ready before. `mode`
        ``docker`` means the image's provider on this machine.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def get(self, session_id: str, *, progress: Callable[[str], None] | None = None) -> model.Session:
        """Show a session.

        A session, by the id that its owner calls it, or by its key.

        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        all: bool = False,
        newest_first: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SessionList:
        """List sessions.

        `all` adds those that failed or ended. They come oldest first, unless
        `newest_first`.

        `progress` is called with the messages of a long call.
        """
    async def heartbeat(
        self,
        session_id: str,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Session:
        """Keep a session from being idle.

        A session, by the id that its owner calls it, or by its key.

        `progress` is called with the messages of a long call.
        """
    async def close(
        self,
        session_id: str,
        snapshot: bool = True,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Session:
        """End the sandbox of a session, after a snapshot.

        The session whose sandbox is ended, after a snapshot called
        ``auto-stop``, unless `snapshot` is false. If that fails, the sandbox
        goes on. The session can be used again: that makes another sandbox.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def history(
        self,
        session_id: str,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.EventPage:
        """List the events of a session itself.

        `after` is a token from an earlier page.

        `progress` is called with the messages of a long call.
        """

class AsyncArtifactMethods:
    async def export(
        self,
        sandbox_id: str,
        path: str | PathLike[str],
        name: str | None = None,
        media_type: str | None = None,
        inline_bytes: int = 0,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Artifact:
        """Copy a file or directory out of a sandbox, where it outlives that.

        The file or directory to export; a directory becomes a ``tar.gz``.
        `name` and `media_type` are guessed by `path`, which begins at the
        sandbox's working directory unless it is absolute. Up to `inline_bytes`
        are in the answer.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def get(
        self,
        artifact_id: str,
        inline_bytes: int = 0,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Artifact:
        """Show an artifact, with its digest.

        An artifact. Its bytes are in the answer if they are no more than
        `inline_bytes`.

        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        sandbox_id: str | None = None,
        session_id: str | None = None,
        all: bool = False,
        newest_first: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ArtifactList:
        """List artifacts.

        Filters: a sandbox, a session. `all` adds those that failed or were
        removed. They come oldest first, unless `newest_first`.

        `progress` is called with the messages of a long call.
        """
    async def remove(
        self,
        artifact_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Artifact:
        """Remove an artifact.

        The artifact to remove.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class AsyncSandboxMethods:
    async def create(
        self,
        image_id: str,
        name: str | None = None,
        provider: str | None = None,
        cpus: float | None = None,
        memory_bytes: int | None = None,
        pids: int | None = None,
        disk_bytes: int | None = None,
        network: Literal["none", "host", "bridge"] | None = None,
        user: str | None = None,
        read_only: bool = False,
        working_dir: str | PathLike[str] | None = None,
        isolation: Literal["default", "none"] = "default",
        volumes: Sequence[model.Volume] = [],
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        labels: dict[str, str] = {},
        idle_timeout_s: float | None = None,
        max_lifetime_s: float | None = None,
        gcs_sandbox_id: str | None = None,
        enable_handoff: bool = False,
        enable_checkpoint_at_idle: bool = False,
        sandbox_token: str | None = None,
        writable_root: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Create and start a sandbox from an image.

        The properties of the sandbox. `secrets` are given to its processes'
        environment and stored nowhere. The default `network` is that of its
        provider, none unless an administrator said otherwise. `volumes` that
        are directories of the host are for administrators. A limit of
        `disk_bytes` is exact, or refused; without it the limit is approximate.

        With a `writable_root` a container's own root file system is not
        read-only, so that programs can be installed; snapshots and forks hold
        what was changed there. An administrator can forbid it, and there is no
        `disk_bytes` with it, as only the workspace has an exact one.

        With a `name`, which is unique among the owner's sandboxes that have not
        ended, the owner can use that wherever a `sandbox_id` is asked for.

        With a `gcs_sandbox_id`, which is then its name, it is shared with other
        daemons: see `model.Sharing`. If there is one of that id already, it is
        attached as by `sandbox.attach_shared`, with its `sandbox_token`, and
        none is made.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def attach_shared(
        self,
        gcs_sandbox_id: str,
        sandbox_token: str,
        timeout_s: float = 120.0,
        secrets: dict[str, str] = {},
        allow_host: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Attach a sandbox that another daemon shares, as it was saved last.

        The shared sandbox `gcs_sandbox_id` goes on here: it is restored as it
        was saved last. While another daemon has it, the call waits up to
        `timeout_s` for that one to save it and give it up.

        One that was saved with its memory needs its image: one of the same
        content that is here, or else the copy that its first daemon left.
        `secrets` are given to the processes of one that was saved without.

        Its properties come from the bucket. Those that only administrators may
        give a sandbox (the host's network or directories, no isolation) are
        refused, unless an administrator accepts them with `allow_host`.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def detach(
        self,
        sandbox_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Save a shared sandbox, and let other daemons have it.

        The shared sandbox to save where other daemons find it, and to give up.
        It ends here.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def get(self, sandbox_id: str, *, progress: Callable[[str], None] | None = None) -> model.Sandbox:
        """Show a sandbox.

        A sandbox.

        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        labels: dict[str, str] = {},
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SandboxList:
        """List sandboxes.

        `all` adds those that ended. `labels` all match.

        `progress` is called with the messages of a long call.
        """
    async def stats(
        self,
        sandbox_id: str | None = None,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SandboxStatsList:
        """Show the resource usage of running sandboxes: CPU, memory, processes,
        I/O.

        Without `sandbox_id`: all the caller's running sandboxes.

        `progress` is called with the messages of a long call.
        """
    async def exec(
        self,
        sandbox_id: str,
        command: Sequence[str] | str,
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        working_dir: str | PathLike[str] | None = None,
        stdin: bytes | str | None = None,
        timeout_s: float | None = None,
        inline_bytes: int = 1048576,
        durable: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.ExecResult:
        """Run a command to its end and return its output.

        A command to run to its end: a list of words, or one text for ``sh -c``.
        `stdin` is all that it can read.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def terminate(
        self,
        sandbox_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Terminate a sandbox and all its processes.

        The sandbox to end, with all that runs in it. Its journals stay
        readable.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def update(
        self,
        sandbox_id: str,
        disk_bytes: int | None = None,
        memory_bytes: int | None = None,
        cpus: float | None = None,
        pids: int | None = None,
        network: Literal["none", "host", "bridge"] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Change limits of a sandbox, while it runs.

        The sandbox, and its new limits; those left out stay as they are. A disk
        of its own can grow, also while it is written to, and not shrink;
        without one `disk_bytes` is refused. No provider can change the
        `network` of a sandbox: that is refused.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def suspend(
        self,
        sandbox_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Freeze a sandbox.

        The sandbox to suspend: all its processes are frozen.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def resume(
        self,
        sandbox_id: str,
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Resume a suspended sandbox, or restart a lost or failed one from its
        files.

        The sandbox to resume. One that was lost or failed is restarted from its
        files, where its provider can; it needs its `secrets` again then, as
        they are stored nowhere.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def fork(
        self,
        sandbox_id: str,
        count: int = 1,
        names: Sequence[str] = [],
        labels: dict[str, str] = {},
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.ForkResult:
        """Create sandboxes with the files of another.

        The sandbox to fork, and the `count` of forks, which start with its
        present files. They have its specification, with `labels` besides its
        own, and none of its processes. `names`, if given, are as many as the
        `count`. Its secrets have to be given again.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def diff(
        self,
        sandbox_id: str,
        base: str | None = None,
        paths: Sequence[str | PathLike[str]] = [],
        unified: bool = False,
        lines: bool = False,
        reverse: bool = False,
        limit: int = 10000,
        max_bytes: int = 1048576,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Diff:
        """Compare another sandbox, a snapshot, an image, or its own first files
        with a sandbox's workspace.

        The differences from `base`, a sandbox, snapshot or image, to the
        sandbox's workspace: what only the sandbox has is added. Without `base`
        they are those from the files that it began with; with `reverse`, those
        from the sandbox to `base`. At most `limit` paths are named, at or below
        `paths` if there are any. `unified` gives texts, of at most `max_bytes`;
        with `lines` lines are counted.

        `progress` is called with the messages of a long call.
        """
    async def restore(
        self,
        sandbox_id: str,
        snapshot_id: str | None = None,
        checkpoint_id: str | None = None,
        end_processes: bool = False,
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Replace a sandbox's files with those of a snapshot, or restore it to a
        checkpoint.

        The sandbox whose own files are replaced by those of a snapshot, or
        which returns to its state at a checkpoint: give one of both.

        For files it is restarted. While processes run in it that is refused
        with `in_use`, unless `end_processes` is true. For a snapshot it needs
        its `secrets` again, as they are stored nowhere.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def restore_at(
        self,
        sandbox_id: str,
        position: int | str | None = None,
        time: str | None = None,
        name: str | None = None,
        labels: dict[str, str] = {},
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.RestoredAt:
        """Create a sandbox from the newest snapshot or checkpoint of another at or
        before a moment.

        The sandbox from whose past a new one is made, as it was at a moment:
        after the event at `position`, or at `time`, in RFC 3339 with any
        offset. Give one of both.

        The newest of its snapshots and checkpoints at or before then is used,
        unless deleted. `name` is the new one's. The sandbox itself is not
        changed, and may have ended. The rest is as for `snapshot.restore`.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def read_file(
        self,
        sandbox_id: str,
        path: str | PathLike[str] | None = None,
        path_bytes: bytes | str | None = None,
        offset: int = 0,
        max_bytes: int = 4194304,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.FileContent:
        """Read a piece of a file.

        Up to `max_bytes` of a file from `offset`. A path that is not UTF-8 is
        given in `path_bytes` instead of `path`; one that is not absolute begins
        at the sandbox's working directory.

        `progress` is called with the messages of a long call.
        """
    async def write_file(
        self,
        sandbox_id: str,
        path: str | PathLike[str] | None = None,
        path_bytes: bytes | str | None = None,
        *,
        data: bytes | str,
        mode: int | None = None,
        parents: bool = False,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.FileWritten:
        """Write a file atomically.

        A file's whole new content, which replaces the old one atomically. An
        existing file keeps its mode unless `mode` says another; `parents` makes
        directories that are missing.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def list_dir(
        self,
        sandbox_id: str,
        path: str | PathLike[str] | None = None,
        path_bytes: bytes | str | None = None,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.DirectoryList:
        """List the files of a directory.

        A directory. `after` is the `next` of an earlier page.

        `progress` is called with the messages of a long call.
        """
    async def copy_commit(
        self,
        sandbox_id: str,
        transfer_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Copied:
        """Commit a copy into a sandbox, once all of it was written.

        A copy under way whose whole archive was written.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def history(
        self,
        sandbox_id: str,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.EventPage:
        """List the events of a sandbox and its processes.

        `after` is a token from an earlier page.

        `progress` is called with the messages of a long call.
        """

class AsyncBranchMethods:
    async def create(
        self,
        source: str | PathLike[str] | None = None,
        ignore: Sequence[str] = [],
        provider: str | None = None,
        image_id: str | None = None,
        snapshot_id: str | None = None,
        sandbox_id: str | None = None,
        count: int = 1,
        names: Sequence[str] = [],
        labels: dict[str, str] = {},
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.BranchCreateResult:
        """Create branches of a directory, an image, a snapshot or a sandbox.

        The base of `count` new branches: a directory `source` (an absolute
        path, read with the caller's own rights, of which an image for
        `provider` is made without the names `ignore`), an image, a snapshot, or
        a sandbox, of which they have the present files. They have the
        specification of a sandbox or snapshot, with `labels` besides. `names`,
        if given, are as many as the `count`. Secrets have to be given again.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        image_id: str | None = None,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.BranchList:
        """List sandboxes with their bases and lineage.

        The branches of an image alone, or all. `all` adds those that ended.

        `progress` is called with the messages of a long call.
        """
    async def diff(
        self,
        sandbox_id: str,
        base: str | None = None,
        paths: Sequence[str | PathLike[str]] = [],
        unified: bool = False,
        lines: bool = False,
        reverse: bool = False,
        limit: int = 10000,
        max_bytes: int = 1048576,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Diff:
        """Compare a branch with its base or with another: see sandbox.diff.

        The differences from `base`, a sandbox, snapshot or image, to the
        sandbox's workspace: what only the sandbox has is added. Without `base`
        they are those from the files that it began with; with `reverse`, those
        from the sandbox to `base`. At most `limit` paths are named, at or below
        `paths` if there are any. `unified` gives texts, of at most `max_bytes`;
        with `lines` lines are counted.

        `progress` is called with the messages of a long call.
        """
    async def merge(
        self,
        sandbox_ids: Sequence[str],
        name: str | None = None,
        policy: Literal["fail", "ours", "union", "markers"] = "fail",
        ours: str | None = None,
        takes: dict[str, str] = {},
        labels: dict[str, str] = {},
        secrets: dict[str, str] = {},
        workspace_only: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Merged:
        """Merge branches into a new sandbox, over their nearest common base.

        The sandboxes to merge into a new one, which is called `name` and has
        the specification of the first, with `labels` besides; secrets have to
        be given again.

        What is changed in one, or in several alike, is taken over; lines are
        merged. Of what is changed differently, `policy` makes a conflict
        (``fail``), takes the version of the branch `ours`, all versions one
        after the other (``union``), or all between ``markers``. At the paths of
        `takes`, and below them, the version of the branch given there is taken.

        Only workspaces are merged. Sandboxes with a writable root are refused,
        unless `workspace_only`: outside of its workspace the new one is as
        their common base then.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def resolve(
        self,
        merge_id: str,
        decisions: Sequence[model.Resolution],
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Merged:
        """Decide conflicts of a merge, and go on with it.

        Decisions on conflicts of a merge. When none is left, its sandbox is
        made; also if that was interrupted before by the end of a daemon.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def merges(
        self,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.MergeList:
        """List merges.

        `all` adds those that failed or were given up, and those whose sandbox
        ended.

        `progress` is called with the messages of a long call.
        """
    async def conflicts(
        self,
        merge_id: str,
        after: int = 0,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ConflictList:
        """List the conflicts of a merge.

        The conflicts of a merge that are left. `after` is the `next` of an
        earlier page.

        `progress` is called with the messages of a long call.
        """
    async def read_version(
        self,
        merge_id: str,
        sha256: str,
        offset: int = 0,
        max_bytes: int = 4194304,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.FileContent:
        """Read a piece of one version of a file in a conflict.

        Up to `max_bytes`, from `offset`, of a version of a file in a conflict,
        by its digest.

        `progress` is called with the messages of a long call.
        """
    async def abandon(
        self,
        merge_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Merge:
        """Give up a merge that has conflicts.

        The merge to give up, which has conflicts.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def plan(
        self,
        sandbox_id: str,
        target: str | PathLike[str],
        limit: int = 10000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.CommitPlan:
        """Show what a commit of a branch would do to a directory of the host.

        A branch, and the directory to which its changes would be committed: an
        absolute path, with the caller's own rights. At most `limit` paths are
        named.

        `progress` is called with the messages of a long call.
        """
    async def commit(
        self,
        sandbox_id: str,
        target: str | PathLike[str],
        force: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Commit:
        """Apply a branch's changes to a directory of the host, all or none.

        A branch, and the directory to which its changes are committed: an
        absolute path, with the caller's own rights. Files that were changed
        there meanwhile are refused unless `force` is true.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def blame(
        self,
        sandbox_id: str | None = None,
        merge_id: str | None = None,
        commit_id: str | None = None,
        paths: Sequence[str | PathLike[str]] = [],
        after: int = 0,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Blame:
        """Show which branch each path of a merge, a commit or a branch came from.

        A merge, a commit, or a branch, whose present changes are told. `after`
        is the `next` of an earlier page.

        `progress` is called with the messages of a long call.
        """
    async def remove(
        self,
        sandbox_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """End a branch.

        The branch to remove: the sandbox is ended. What came from it stays
        whole.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class AsyncProcessMethods:
    async def launch(
        self,
        sandbox_id: str,
        command: Sequence[str] | str,
        name: str | None = None,
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        working_dir: str | PathLike[str] | None = None,
        stdin: bool = False,
        tty: bool = False,
        rows: int = 24,
        cols: int = 80,
        timeout_s: float | None = None,
        durable: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Process:
        """Start a command in the background.

        A command to start. With `stdin` it reads the data of
        `process.write_stdin`; otherwise it has none.

        A `name` is unique among the processes of the sandbox that have not
        ended, and refers to the newest that has it.

        With `tty` it gets a terminal of `rows` and `cols`, which can be
        attached to, and its input and output are that terminal's: there is no
        separate stderr. With `durable` its output is on disk before its end is
        recorded; if the disk fails to take it, the daemon's log says so.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def get(
        self,
        sandbox_id: str,
        name: str,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Process:
        """Show a process.

        A process, by its process_id or how that begins, or the newest of a
        name.

        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        sandbox_id: str | None = None,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ProcessList:
        """List processes.

        Without `sandbox_id`: all the caller's processes. `all` adds ended ones,
        and the last of the unnamed.

        `progress` is called with the messages of a long call.
        """
    async def wait(
        self,
        sandbox_id: str,
        name: str,
        timeout_s: float | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Process:
        """Wait until a process exits.

        Without `timeout_s` it waits until the process has ended.

        `progress` is called with the messages of a long call.
        """
    async def signal(
        self,
        sandbox_id: str,
        name: str,
        signal: str = "TERM",
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Process:
        """Send a signal to a process and its group.

        The signal goes to the whole process group.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def cancel(
        self,
        launch: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> methods.CancelledLaunch:
        """End the process of a launch that its caller gave up.

        The `command_id` of a `sandbox.exec` or `process.launch` whose caller
        gave it up.

        Its process gets INT, and KILL if it still runs 2 seconds later. A
        launch that has not begun never does. A suspended sandbox's process is
        left as it is.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def write_stdin(
        self,
        sandbox_id: str,
        name: str,
        data: bytes | str = b"",
        eof: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> methods.Written:
        """Write to a process's input, or close it.

        `data` is written whole, or up to `written_bytes` of the answer; `eof`
        closes the input after it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def read(
        self,
        sandbox_id: str,
        name: str,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        max_bytes: int = 1048576,
        wait_s: float = 0,
        times: bool = False,
        since: str | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ProcessOutput:
        """Read the output of a process, from byte offsets.

        Up to `max_bytes` of each stream from its offset. It waits up to
        `wait_s` for new data, or for the end.

        `since`, a time in RFC 3339 with any offset, replaces the offsets:
        output that came earlier is skipped, but for a moment's. With `times`
        the answer says when each piece came.

        `progress` is called with the messages of a long call.
        """
    async def resize(
        self,
        sandbox_id: str,
        name: str,
        rows: int,
        cols: int,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Process:
        """Resize the terminal of a process that has no client attached.

        The size of a process's terminal while no client is attached; each
        attached client brings a size of its own.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class AsyncSnapshotMethods:
    async def create(
        self,
        sandbox_id: str,
        name: str | None = None,
        labels: dict[str, str] = {},
        include: Sequence[str | PathLike[str]] = [],
        exclude: Sequence[str | PathLike[str]] = [],
        format: Literal["tar.gz", "tar.zst"] = "tar.gz",
        incremental: bool = False,
        parent_id: str | None = None,
        archive: Literal["bucket"] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Snapshot:
        """Snapshot the files of a sandbox as an archive.

        The sandbox to snapshot. Of its files, only those at or below the paths
        of `include` are taken, and none at or below those of `exclude`; paths
        begin at the sandbox's workspace unless they are absolute.

        `incremental` stores the differences from the snapshot `parent_id`, or
        from the sandbox's last suitable one, else from its image. With
        `archive` ``bucket`` the archive has to be stored where other machines
        can read it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        sandbox_id: str | None = None,
        name: str | None = None,
        labels: dict[str, str] = {},
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SnapshotList:
        """List snapshots.

        Filters: a sandbox, a name, labels that all match. `all` adds those that
        failed or were deleted.

        `progress` is called with the messages of a long call.
        """
    async def get(self, snapshot_id: str, *, progress: Callable[[str], None] | None = None) -> model.Snapshot:
        """Show a snapshot.

        A snapshot.

        `progress` is called with the messages of a long call.
        """
    async def delete(
        self,
        snapshot_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Snapshot:
        """Delete a snapshot.

        The snapshot to delete. Incremental ones that build on it stay whole.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def restore(
        self,
        snapshot_id: str,
        name: str | None = None,
        labels: dict[str, str] = {},
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        idle_timeout_s: float | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Create and start a sandbox from a snapshot.

        The snapshot that a new sandbox starts from. It has the specification of
        the snapshot's sandbox, with `labels` and `env` besides, and with
        `idle_timeout_s` if that is given; secrets have to be given again.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def promote(
        self,
        snapshot_id: str,
        labels: dict[str, str] = {},
        name: str | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Image:
        """Create an image from a snapshot.

        The snapshot to create an image from. The image does not depend on it
        afterwards.

        The owner can use `name` wherever an `image_id` is asked for. An older
        image that has it loses it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def gc(
        self,
        dry_run: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.SnapshotGcReport:
        """Delete expired snapshots, and archives that no event references.

        `dry_run` only reports the objects that would be removed.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class AsyncCheckpointMethods:
    async def create(
        self,
        sandbox_id: str,
        name: str | None = None,
        labels: dict[str, str] = {},
        leave_running: bool = False,
        archive: Literal["bucket"] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Checkpoint:
        """Checkpoint a sandbox with its processes.

        The sandbox to checkpoint with its processes. It is suspended by that,
        unless `leave_running` is true. With `archive` ``bucket`` the checkpoint
        has to be stored where other machines can read it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        sandbox_id: str | None = None,
        name: str | None = None,
        labels: dict[str, str] = {},
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.CheckpointList:
        """List checkpoints.

        Filters: a sandbox, a name, labels that all match. `all` adds those that
        failed or were deleted.

        `progress` is called with the messages of a long call.
        """
    async def get(
        self,
        checkpoint_id: str,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Checkpoint:
        """Show a checkpoint.

        A checkpoint.

        `progress` is called with the messages of a long call.
        """
    async def delete(
        self,
        checkpoint_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Checkpoint:
        """Delete a checkpoint.

        The checkpoint to delete. A sandbox that was suspended with it, and
        those that were made of it, stay whole.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def restore(
        self,
        checkpoint_id: str,
        count: int = 1,
        names: Sequence[str] = [],
        labels: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.CheckpointRestoreResult:
        """Create sandboxes from a checkpoint, with its processes running.

        The checkpoint from which `count` new sandboxes are created, with
        `labels` besides those of its sandbox. `names`, if given, are as many as
        the `count`.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class AsyncStreamMethods:
    async def access(
        self,
        renew: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.StreamAccess:
        """Return the stream server's addresses, and for TCP the caller's token and
        the server's pin.

        `renew` invalidates the caller's earlier token.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class AsyncLockMethods:
    async def acquire(
        self,
        name: str,
        timeout_s: float = 30.0,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Lock:
        """Acquire the lock of a shared sandbox, and hold it until it is released.

        The lock to acquire, by its name: that of the shared sandbox. While
        another owner holds it, the call waits up to `timeout_s`, unless another
        one waits already; with 0 not at all. A caller who disconnects cancels
        the wait.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def release(
        self,
        name: str,
        force: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Lock:
        """Release a lock.

        The lock to release, by its name or its lock_id. With `force` the lock
        of that name is freed from any owner, and a damaged document is
        repaired; its owner loses it, and writes nothing more under it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def get(self, name: str, *, progress: Callable[[str], None] | None = None) -> model.Lock:
        """Show a lock.

        A lock, by its name, which means its last acquisition here, or by its
        lock_id or how that begins.

        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.LockList:
        """List the locks that this daemon holds.

        `all` adds the acquisitions that ended or failed.

        `progress` is called with the messages of a long call.
        """

class AsyncKeyMethods:
    async def create(self, name: str, *, progress: Callable[[str], None] | None = None) -> model.NewKey:
        """Create an API key for the HTTP gateway. It is shown once.

        An API key, by its name. What it owns, ``key:NAME`` owns, also after the
        key was removed and made anew.

        `progress` is called with the messages of a long call.
        """
    async def list(self, *, progress: Callable[[str], None] | None = None) -> model.KeyList:
        """List the API keys of the HTTP gateway.

        `progress` is called with the messages of a long call.
        """
    async def remove(self, name: str, *, progress: Callable[[str], None] | None = None) -> model.ApiKey:
        """Remove an API key: it is refused from now on.

        An API key, by its name. What it owns, ``key:NAME`` owns, also after the
        key was removed and made anew.

        `progress` is called with the messages of a long call.
        """

class AsyncEventMethods:
    async def list(
        self,
        after: str | None = None,
        sandbox_id: str | None = None,
        type: str | None = None,
        limit: int = 1000,
        wait_s: float = 0,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.EventPage:
        """List events in commit order.

        Events after a token, oldest first; with nothing new it waits up to
        `wait_s` for some. No `after`: from the first there is.

        ``after="now"`` answers no event, and the token of this moment. `after`
        may also be a time, in RFC 3339 with any offset: then the events from
        that time on, without archived ones.

        `progress` is called with the messages of a long call.
        """
    async def state_at(
        self,
        sandbox_id: str,
        position: int | str,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SandboxAt:
        """Show a sandbox as it was after an event.

        A sandbox, and the position of any event, its own or another's; a token
        stands for the position at its end. Of processes and snapshots the last
        `limit` are answered.

        `progress` is called with the messages of a long call.
        """

class AsyncStoreMethods:
    async def verify(self, *, progress: Callable[[str], None] | None = None) -> model.VerifyReport:
        """Check the event log and every metadata.json.

        `progress` is called with the messages of a long call.
        """
    async def compact(
        self,
        older_than_s: float | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.CompactReport:
        """Archive the events of objects that ended long ago.

        Archive events of objects that ended longer ago than `older_than_s`
        (default: the daemon's setting).

        `progress` is called with the messages of a long call.
        """
    async def prune(
        self,
        all: bool = False,
        older_than_s: float | None = None,
        dry_run: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.PruneReport:
        """Remove the output of ended sandboxes, and images that nothing needs.

        Removes the output of ended sandboxes, and images without a name that
        nothing needs; with `all` also those that have names. With
        `older_than_s` only output of sandboxes that ended longer ago, and
        images made longer ago. `dry_run` only reports them. An administrator
        prunes everybody's, others their own.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def redact(
        self,
        position: int,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.RedactReport:
        """Remove a caller's data in an event from the log and the archive.

        The event whose content is removed for good.

        `progress` is called with the messages of a long call.
        """
    async def rebuild(self, *, progress: Callable[[str], None] | None = None) -> model.RebuildReport:
        """Rebuild every metadata.json from the event log.

        `progress` is called with the messages of a long call.
        """

class AsyncMethods:
    rpc: AsyncRpcMethods
    daemon: AsyncDaemonMethods
    quota: AsyncQuotaMethods
    image: AsyncImageMethods
    volume: AsyncVolumeMethods
    provider: AsyncProviderMethods
    session: AsyncSessionMethods
    artifact: AsyncArtifactMethods
    sandbox: AsyncSandboxMethods
    branch: AsyncBranchMethods
    process: AsyncProcessMethods
    snapshot: AsyncSnapshotMethods
    checkpoint: AsyncCheckpointMethods
    stream: AsyncStreamMethods
    lock: AsyncLockMethods
    key: AsyncKeyMethods
    event: AsyncEventMethods
    store: AsyncStoreMethods
    sandboxes: AsyncSandboxes
    processes: AsyncProcesses
    images: AsyncImages
    volumes: AsyncVolumes
    snapshots: AsyncSnapshots
    checkpoints: AsyncCheckpoints
    artifacts: AsyncArtifacts
    sessions: AsyncSessions

class AsyncSandbox(_SandboxView):
    async def detach(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSandbox:
        """Save a shared sandbox, and let other daemons have it.

        The shared sandbox to save where other daemons find it, and to give up.
        It ends here.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def refresh(self, *, progress: Callable[[str], None] | None = None) -> AsyncSandbox:
        """Get the present view of the object as `info`, and return the handle."""
    async def exec(
        self,
        command: Sequence[str] | str,
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        working_dir: str | PathLike[str] | None = None,
        stdin: bytes | str | None = None,
        timeout_s: float | None = None,
        inline_bytes: int = 1048576,
        durable: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.ExecResult:
        """Run a command to its end and return its output.

        A command to run to its end: a list of words, or one text for ``sh -c``.
        `stdin` is all that it can read.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def terminate(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSandbox:
        """Terminate a sandbox and all its processes.

        The sandbox to end, with all that runs in it. Its journals stay
        readable.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def update(
        self,
        disk_bytes: int | None = None,
        memory_bytes: int | None = None,
        cpus: float | None = None,
        pids: int | None = None,
        network: Literal["none", "host", "bridge"] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSandbox:
        """Change limits of a sandbox, while it runs.

        The sandbox, and its new limits; those left out stay as they are. A disk
        of its own can grow, also while it is written to, and not shrink;
        without one `disk_bytes` is refused. No provider can change the
        `network` of a sandbox: that is refused.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def suspend(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSandbox:
        """Freeze a sandbox.

        The sandbox to suspend: all its processes are frozen.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def resume(
        self,
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSandbox:
        """Resume a suspended sandbox, or restart a lost or failed one from its
        files.

        The sandbox to resume. One that was lost or failed is restarted from its
        files, where its provider can; it needs its `secrets` again then, as
        they are stored nowhere.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def fork(
        self,
        count: int = 1,
        names: Sequence[str] = [],
        labels: dict[str, str] = {},
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncSandbox]:
        """Create sandboxes with the files of another.

        The sandbox to fork, and the `count` of forks, which start with its
        present files. They have its specification, with `labels` besides its
        own, and none of its processes. `names`, if given, are as many as the
        `count`. Its secrets have to be given again.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def diff(
        self,
        base: str | AsyncSandbox | AsyncSnapshot | AsyncImage | None = None,
        paths: Sequence[str | PathLike[str]] = [],
        unified: bool = False,
        lines: bool = False,
        reverse: bool = False,
        limit: int = 10000,
        max_bytes: int = 1048576,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Diff:
        """Compare another sandbox, a snapshot, an image, or its own first files
        with a sandbox's workspace.

        The differences from `base`, a sandbox, snapshot or image, to the
        sandbox's workspace: what only the sandbox has is added. Without `base`
        they are those from the files that it began with; with `reverse`, those
        from the sandbox to `base`. At most `limit` paths are named, at or below
        `paths` if there are any. `unified` gives texts, of at most `max_bytes`;
        with `lines` lines are counted.

        `progress` is called with the messages of a long call.
        """
    async def restore(
        self,
        snapshot_id: str | AsyncSnapshot | None = None,
        checkpoint_id: str | AsyncCheckpoint | None = None,
        end_processes: bool = False,
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSandbox:
        """Replace a sandbox's files with those of a snapshot, or restore it to a
        checkpoint.

        The sandbox whose own files are replaced by those of a snapshot, or
        which returns to its state at a checkpoint: give one of both.

        For files it is restarted. While processes run in it that is refused
        with `in_use`, unless `end_processes` is true. For a snapshot it needs
        its `secrets` again, as they are stored nowhere.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def restore_at(
        self,
        position: int | str | None = None,
        time: str | None = None,
        name: str | None = None,
        labels: dict[str, str] = {},
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSandbox:
        """Create a sandbox from the newest snapshot or checkpoint of another at or
        before a moment.

        The sandbox from whose past a new one is made, as it was at a moment:
        after the event at `position`, or at `time`, in RFC 3339 with any
        offset. Give one of both.

        The newest of its snapshots and checkpoints at or before then is used,
        unless deleted. `name` is the new one's. The sandbox itself is not
        changed, and may have ended. The rest is as for `snapshot.restore`.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def history(
        self,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.EventPage:
        """List the events of a sandbox and its processes.

        `after` is a token from an earlier page.

        `progress` is called with the messages of a long call.
        """
    async def snapshot(
        self,
        name: str | None = None,
        labels: dict[str, str] = {},
        include: Sequence[str | PathLike[str]] = [],
        exclude: Sequence[str | PathLike[str]] = [],
        format: Literal["tar.gz", "tar.zst"] = "tar.gz",
        incremental: bool = False,
        parent_id: str | AsyncSnapshot | None = None,
        archive: Literal["bucket"] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSnapshot:
        """Snapshot the files of a sandbox as an archive.

        The sandbox to snapshot. Of its files, only those at or below the paths
        of `include` are taken, and none at or below those of `exclude`; paths
        begin at the sandbox's workspace unless they are absolute.

        `incremental` stores the differences from the snapshot `parent_id`, or
        from the sandbox's last suitable one, else from its image. With
        `archive` ``bucket`` the archive has to be stored where other machines
        can read it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def checkpoint(
        self,
        name: str | None = None,
        labels: dict[str, str] = {},
        leave_running: bool = False,
        archive: Literal["bucket"] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncCheckpoint:
        """Checkpoint a sandbox with its processes.

        The sandbox to checkpoint with its processes. It is suspended by that,
        unless `leave_running` is true. With `archive` ``bucket`` the checkpoint
        has to be stored where other machines can read it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def events(
        self,
        after: str | None = None,
        *,
        type: str | None = None,
        follow: bool = True,
    ) -> AsyncIterator[model.Event]:
        """Iterate over the sandbox's events after a token, and wait for more,
        unless `follow` is false.
        """
    @property
    def processes(self) -> AsyncSandboxProcesses: ...
    @property
    def snapshots(self) -> AsyncSandboxSnapshots: ...
    @property
    def checkpoints(self) -> AsyncSandboxCheckpoints: ...
    @property
    def artifacts(self) -> AsyncSandboxArtifacts: ...
    @property
    def files(self) -> AsyncSandboxFiles: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None: ...

class AsyncProcess(_ProcessView):
    async def refresh(self, *, progress: Callable[[str], None] | None = None) -> AsyncProcess:
        """Get the present view of the object as `info`, and return the handle."""
    async def wait(
        self,
        timeout_s: float | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncProcess:
        """Wait until a process exits.

        Without `timeout_s` it waits until the process has ended.

        `progress` is called with the messages of a long call.
        """
    async def signal(
        self,
        signal: str = "TERM",
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncProcess:
        """Send a signal to a process and its group.

        The signal goes to the whole process group.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def write_stdin(
        self,
        data: bytes | str = b"",
        eof: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> methods.Written:
        """Write to a process's input, or close it.

        `data` is written whole, or up to `written_bytes` of the answer; `eof`
        closes the input after it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def read(
        self,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        max_bytes: int = 1048576,
        wait_s: float = 0,
        times: bool = False,
        since: str | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ProcessOutput:
        """Read the output of a process, from byte offsets.

        Up to `max_bytes` of each stream from its offset. It waits up to
        `wait_s` for new data, or for the end.

        `since`, a time in RFC 3339 with any offset, replaces the offsets:
        output that came earlier is skipped, but for a moment's. With `times`
        the answer says when each piece came.

        `progress` is called with the messages of a long call.
        """
    async def resize(
        self,
        rows: int,
        cols: int,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncProcess:
        """Resize the terminal of a process that has no client attached.

        The size of a process's terminal while no client is attached; each
        attached client brings a size of its own.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def output(
        self,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        *,
        follow: bool = True,
        times: bool = False,
        since: str | None = None,
    ) -> AsyncIterator[model.ProcessOutput]:
        """Iterate over the output from byte offsets until the process's end;
        without `follow`, the present output. `times` and `since` are those of
        `process.read`.
        """

class AsyncImage(_ImageView):
    async def refresh(self, *, progress: Callable[[str], None] | None = None) -> AsyncImage:
        """Get the present view of the object as `info`, and return the handle."""
    async def tag(
        self,
        name: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncImage:
        """Give an image a name.

        The image that its owner means by `name` from now on. Another one that
        has the name loses it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def untag(
        self,
        name: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncImage:
        """Take a name from an image.

        The image, and the name to take from it. `not_found` if the image is not
        called so.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def remove(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncImage:
        """Remove an image.

        The image to remove; refused with `in_use` while a sandbox needs it. One
        that is given by one of several names only loses that, and the answer's
        status is still ``ready``.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class AsyncVolume(_NamedVolumeView):
    async def remove(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncVolume:
        """Remove a named volume that no sandbox mounts.

        The volume to remove, with all files in it. An administrator can remove
        that of another `owner`.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class AsyncSnapshot(_SnapshotView):
    async def refresh(self, *, progress: Callable[[str], None] | None = None) -> AsyncSnapshot:
        """Get the present view of the object as `info`, and return the handle."""
    async def delete(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSnapshot:
        """Delete a snapshot.

        The snapshot to delete. Incremental ones that build on it stay whole.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def restore(
        self,
        name: str | None = None,
        labels: dict[str, str] = {},
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        idle_timeout_s: float | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSandbox:
        """Create and start a sandbox from a snapshot.

        The snapshot that a new sandbox starts from. It has the specification of
        the snapshot's sandbox, with `labels` and `env` besides, and with
        `idle_timeout_s` if that is given; secrets have to be given again.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def promote(
        self,
        labels: dict[str, str] = {},
        name: str | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncImage:
        """Create an image from a snapshot.

        The snapshot to create an image from. The image does not depend on it
        afterwards.

        The owner can use `name` wherever an `image_id` is asked for. An older
        image that has it loses it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class AsyncCheckpoint(_CheckpointView):
    async def refresh(self, *, progress: Callable[[str], None] | None = None) -> AsyncCheckpoint:
        """Get the present view of the object as `info`, and return the handle."""
    async def delete(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncCheckpoint:
        """Delete a checkpoint.

        The checkpoint to delete. A sandbox that was suspended with it, and
        those that were made of it, stay whole.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def restore(
        self,
        count: int = 1,
        names: Sequence[str] = [],
        labels: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncSandbox]:
        """Create sandboxes from a checkpoint, with its processes running.

        The checkpoint from which `count` new sandboxes are created, with
        `labels` besides those of its sandbox. `names`, if given, are as many as
        the `count`.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class AsyncArtifact(_ArtifactView):
    async def refresh(
        self,
        inline_bytes: int = 0,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncArtifact:
        """Get the present view of the object as `info`, and return the handle."""
    async def remove(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncArtifact:
        """Remove an artifact.

        The artifact to remove.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class AsyncSession(_SessionView):
    async def refresh(self, *, progress: Callable[[str], None] | None = None) -> AsyncSession:
        """Get the present view of the object as `info`, and return the handle."""
    async def heartbeat(self, *, progress: Callable[[str], None] | None = None) -> AsyncSession:
        """Keep a session from being idle.

        A session, by the id that its owner calls it, or by its key.

        `progress` is called with the messages of a long call.
        """
    async def close(
        self,
        snapshot: bool = True,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSession:
        """End the sandbox of a session, after a snapshot.

        The session whose sandbox is ended, after a snapshot called
        ``auto-stop``, unless `snapshot` is false. If that fails, the sandbox
        goes on. The session can be used again: that makes another sandbox.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def history(
        self,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.EventPage:
        """List the events of a session itself.

        `after` is a token from an earlier page.

        `progress` is called with the messages of a long call.
        """

class AsyncSandboxes:
    async def create(
        self,
        image_id: str | AsyncImage,
        name: str | None = None,
        provider: str | None = None,
        cpus: float | None = None,
        memory_bytes: int | None = None,
        pids: int | None = None,
        disk_bytes: int | None = None,
        network: Literal["none", "host", "bridge"] | None = None,
        user: str | None = None,
        read_only: bool = False,
        working_dir: str | PathLike[str] | None = None,
        isolation: Literal["default", "none"] = "default",
        volumes: Sequence[model.Volume] = [],
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        labels: dict[str, str] = {},
        idle_timeout_s: float | None = None,
        max_lifetime_s: float | None = None,
        gcs_sandbox_id: str | None = None,
        enable_handoff: bool = False,
        enable_checkpoint_at_idle: bool = False,
        sandbox_token: str | None = None,
        writable_root: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSandbox:
        """Create and start a sandbox from an image.

        The properties of the sandbox. `secrets` are given to its processes'
        environment and stored nowhere. The default `network` is that of its
        provider, none unless an administrator said otherwise. `volumes` that
        are directories of the host are for administrators. A limit of
        `disk_bytes` is exact, or refused; without it the limit is approximate.

        With a `writable_root` a container's own root file system is not
        read-only, so that programs can be installed; snapshots and forks hold
        what was changed there. An administrator can forbid it, and there is no
        `disk_bytes` with it, as only the workspace has an exact one.

        With a `name`, which is unique among the owner's sandboxes that have not
        ended, the owner can use that wherever a `sandbox_id` is asked for.

        With a `gcs_sandbox_id`, which is then its name, it is shared with other
        daemons: see `model.Sharing`. If there is one of that id already, it is
        attached as by `sandbox.attach_shared`, with its `sandbox_token`, and
        none is made.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def attach_shared(
        self,
        gcs_sandbox_id: str,
        sandbox_token: str,
        timeout_s: float = 120.0,
        secrets: dict[str, str] = {},
        allow_host: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSandbox:
        """Attach a sandbox that another daemon shares, as it was saved last.

        The shared sandbox `gcs_sandbox_id` goes on here: it is restored as it
        was saved last. While another daemon has it, the call waits up to
        `timeout_s` for that one to save it and give it up.

        One that was saved with its memory needs its image: one of the same
        content that is here, or else the copy that its first daemon left.
        `secrets` are given to the processes of one that was saved without.

        Its properties come from the bucket. Those that only administrators may
        give a sandbox (the host's network or directories, no isolation) are
        refused, unless an administrator accepts them with `allow_host`.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def get(
        self,
        sandbox_id: str | AsyncSandbox,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSandbox:
        """Show a sandbox.

        A sandbox.

        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        all: bool = False,
        labels: dict[str, str] = {},
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncSandbox]:
        """List sandboxes.

        `all` adds those that ended. `labels` all match.

        `progress` is called with the messages of a long call.
        """
    async def stats(
        self,
        sandbox_id: str | AsyncSandbox | None = None,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SandboxStatsList:
        """Show the resource usage of running sandboxes: CPU, memory, processes,
        I/O.

        Without `sandbox_id`: all the caller's running sandboxes.

        `progress` is called with the messages of a long call.
        """

class AsyncSandboxProcesses:
    async def launch(
        self,
        command: Sequence[str] | str,
        name: str | None = None,
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        working_dir: str | PathLike[str] | None = None,
        stdin: bool = False,
        tty: bool = False,
        rows: int = 24,
        cols: int = 80,
        timeout_s: float | None = None,
        durable: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncProcess:
        """Start a command in the background.

        A command to start. With `stdin` it reads the data of
        `process.write_stdin`; otherwise it has none.

        A `name` is unique among the processes of the sandbox that have not
        ended, and refers to the newest that has it.

        With `tty` it gets a terminal of `rows` and `cols`, which can be
        attached to, and its input and output are that terminal's: there is no
        separate stderr. With `durable` its output is on disk before its end is
        recorded; if the disk fails to take it, the daemon's log says so.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def get(self, name: str, *, progress: Callable[[str], None] | None = None) -> AsyncProcess:
        """Show a process.

        A process, by its process_id or how that begins, or the newest of a
        name.

        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncProcess]:
        """List processes.

        Without `sandbox_id`: all the caller's processes. `all` adds ended ones,
        and the last of the unnamed.

        `progress` is called with the messages of a long call.
        """

class AsyncSandboxSnapshots:
    async def create(
        self,
        name: str | None = None,
        labels: dict[str, str] = {},
        include: Sequence[str | PathLike[str]] = [],
        exclude: Sequence[str | PathLike[str]] = [],
        format: Literal["tar.gz", "tar.zst"] = "tar.gz",
        incremental: bool = False,
        parent_id: str | AsyncSnapshot | None = None,
        archive: Literal["bucket"] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSnapshot:
        """Snapshot the files of a sandbox as an archive.

        The sandbox to snapshot. Of its files, only those at or below the paths
        of `include` are taken, and none at or below those of `exclude`; paths
        begin at the sandbox's workspace unless they are absolute.

        `incremental` stores the differences from the snapshot `parent_id`, or
        from the sandbox's last suitable one, else from its image. With
        `archive` ``bucket`` the archive has to be stored where other machines
        can read it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        name: str | None = None,
        labels: dict[str, str] = {},
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncSnapshot]:
        """List snapshots.

        Filters: a sandbox, a name, labels that all match. `all` adds those that
        failed or were deleted.

        `progress` is called with the messages of a long call.
        """

class AsyncSandboxCheckpoints:
    async def create(
        self,
        name: str | None = None,
        labels: dict[str, str] = {},
        leave_running: bool = False,
        archive: Literal["bucket"] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncCheckpoint:
        """Checkpoint a sandbox with its processes.

        The sandbox to checkpoint with its processes. It is suspended by that,
        unless `leave_running` is true. With `archive` ``bucket`` the checkpoint
        has to be stored where other machines can read it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        name: str | None = None,
        labels: dict[str, str] = {},
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncCheckpoint]:
        """List checkpoints.

        Filters: a sandbox, a name, labels that all match. `all` adds those that
        failed or were deleted.

        `progress` is called with the messages of a long call.
        """

class AsyncSandboxArtifacts:
    async def export(
        self,
        path: str | PathLike[str],
        name: str | None = None,
        media_type: str | None = None,
        inline_bytes: int = 0,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncArtifact:
        """Copy a file or directory out of a sandbox, where it outlives that.

        The file or directory to export; a directory becomes a ``tar.gz``.
        `name` and `media_type` are guessed by `path`, which begins at the
        sandbox's working directory unless it is absolute. Up to `inline_bytes`
        are in the answer.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        session_id: str | AsyncSession | None = None,
        all: bool = False,
        newest_first: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncArtifact]:
        """List artifacts.

        Filters: a sandbox, a session. `all` adds those that failed or were
        removed. They come oldest first, unless `newest_first`.

        `progress` is called with the messages of a long call.
        """

class AsyncProcesses:
    async def launch(
        self,
        sandbox_id: str | AsyncSandbox,
        command: Sequence[str] | str,
        name: str | None = None,
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        working_dir: str | PathLike[str] | None = None,
        stdin: bool = False,
        tty: bool = False,
        rows: int = 24,
        cols: int = 80,
        timeout_s: float | None = None,
        durable: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncProcess:
        """Start a command in the background.

        A command to start. With `stdin` it reads the data of
        `process.write_stdin`; otherwise it has none.

        A `name` is unique among the processes of the sandbox that have not
        ended, and refers to the newest that has it.

        With `tty` it gets a terminal of `rows` and `cols`, which can be
        attached to, and its input and output are that terminal's: there is no
        separate stderr. With `durable` its output is on disk before its end is
        recorded; if the disk fails to take it, the daemon's log says so.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def get(
        self,
        sandbox_id: str | AsyncSandbox,
        name: str,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncProcess:
        """Show a process.

        A process, by its process_id or how that begins, or the newest of a
        name.

        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        sandbox_id: str | AsyncSandbox | None = None,
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncProcess]:
        """List processes.

        Without `sandbox_id`: all the caller's processes. `all` adds ended ones,
        and the last of the unnamed.

        `progress` is called with the messages of a long call.
        """

class AsyncImages:
    async def create(
        self,
        source: str | PathLike[str],
        provider: str | None = None,
        base: str | AsyncSandbox | AsyncSnapshot | AsyncImage | None = None,
        dockerfile: str | PathLike[str] | None = None,
        clean: bool = False,
        labels: dict[str, str] = {},
        owner: str | None = None,
        ignore: Sequence[str] = [],
        patterns: Sequence[str] = [],
        ignore_files: bool = True,
        name: str | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncImage:
        """Create an image from a directory, a Dockerfile or a container image.

        `source` is an absolute path, read with the caller's own rights, or the
        reference of a container image.

        Without a `provider` a plain directory is for ``local``; one that holds
        a Dockerfile, the path of a Dockerfile and a reference are for
        ``docker``. `dockerfile` is the Dockerfile's path below the directory,
        if it is not the usual one. With `base`, a reference, the directory is
        put onto that image, as its ``/workspace``, even if it holds a
        Dockerfile. `clean` makes a new image even if one of the same content
        exists, and builds without the cache. An administrator can make it for
        another `owner`, such as ``key:ci``. Of a plain directory its
        ``.sandkeepignore``, or else its ``.dockerignore``, says what is left
        out; then `patterns`, by the same rules, such as ``docs/*.html``, or
        ``!docs/a.html`` for an exception; and the names of `ignore` are left
        out, at any depth. Without `ignore_files` these files do not count.

        The owner can use `name`, such as ``py:3.12``, wherever an `image_id` is
        asked for. An older image that has it loses it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        all: bool = False,
        published: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncImage]:
        """List images.

        `all` adds those that failed or were removed. With `published` the list
        has the images that are published to the caller instead, for an
        administrator all that are published.

        `progress` is called with the messages of a long call.
        """
    async def get(
        self,
        image_id: str | AsyncImage,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncImage:
        """Show an image.

        An image.

        `progress` is called with the messages of a long call.
        """
    async def publish(
        self,
        reference: str,
        owners: Sequence[str] = [],
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncImage:
        """Let others use an image of the Docker engine.

        The `owners` who may use the image of the Docker engine that `reference`
        means now; everybody, if there are none.

        It is made an image of the caller's own, which is the one that is
        published until the same reference is published again, wherever its tag
        is moved.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def unpublish(
        self,
        reference: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncImage:
        """Withdraw a published image.

        A published reference. Images that others have made by it stay theirs.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class AsyncVolumes:
    async def create(
        self,
        name: str,
        provider: str = "docker",
        owner: str | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncVolume:
        """Create a named volume.

        The volume that the caller means by `name` in the `volumes` of a new
        sandbox. An administrator can make it for another `owner`.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        provider: str = "docker",
        owner: str | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncVolume]:
        """List named volumes, with the sandboxes that mount them.

        The provider, and for administrators an owner; all owners if it is left
        out.

        `progress` is called with the messages of a long call.
        """

class AsyncSnapshots:
    async def create(
        self,
        sandbox_id: str | AsyncSandbox,
        name: str | None = None,
        labels: dict[str, str] = {},
        include: Sequence[str | PathLike[str]] = [],
        exclude: Sequence[str | PathLike[str]] = [],
        format: Literal["tar.gz", "tar.zst"] = "tar.gz",
        incremental: bool = False,
        parent_id: str | AsyncSnapshot | None = None,
        archive: Literal["bucket"] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSnapshot:
        """Snapshot the files of a sandbox as an archive.

        The sandbox to snapshot. Of its files, only those at or below the paths
        of `include` are taken, and none at or below those of `exclude`; paths
        begin at the sandbox's workspace unless they are absolute.

        `incremental` stores the differences from the snapshot `parent_id`, or
        from the sandbox's last suitable one, else from its image. With
        `archive` ``bucket`` the archive has to be stored where other machines
        can read it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        sandbox_id: str | AsyncSandbox | None = None,
        name: str | None = None,
        labels: dict[str, str] = {},
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncSnapshot]:
        """List snapshots.

        Filters: a sandbox, a name, labels that all match. `all` adds those that
        failed or were deleted.

        `progress` is called with the messages of a long call.
        """
    async def get(
        self,
        snapshot_id: str | AsyncSnapshot,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSnapshot:
        """Show a snapshot.

        A snapshot.

        `progress` is called with the messages of a long call.
        """
    async def gc(
        self,
        dry_run: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.SnapshotGcReport:
        """Delete expired snapshots, and archives that no event references.

        `dry_run` only reports the objects that would be removed.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class AsyncCheckpoints:
    async def create(
        self,
        sandbox_id: str | AsyncSandbox,
        name: str | None = None,
        labels: dict[str, str] = {},
        leave_running: bool = False,
        archive: Literal["bucket"] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncCheckpoint:
        """Checkpoint a sandbox with its processes.

        The sandbox to checkpoint with its processes. It is suspended by that,
        unless `leave_running` is true. With `archive` ``bucket`` the checkpoint
        has to be stored where other machines can read it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        sandbox_id: str | AsyncSandbox | None = None,
        name: str | None = None,
        labels: dict[str, str] = {},
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncCheckpoint]:
        """List checkpoints.

        Filters: a sandbox, a name, labels that all match. `all` adds those that
        failed or were deleted.

        `progress` is called with the messages of a long call.
        """
    async def get(
        self,
        checkpoint_id: str | AsyncCheckpoint,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncCheckpoint:
        """Show a checkpoint.

        A checkpoint.

        `progress` is called with the messages of a long call.
        """

class AsyncArtifacts:
    async def export(
        self,
        sandbox_id: str | AsyncSandbox,
        path: str | PathLike[str],
        name: str | None = None,
        media_type: str | None = None,
        inline_bytes: int = 0,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncArtifact:
        """Copy a file or directory out of a sandbox, where it outlives that.

        The file or directory to export; a directory becomes a ``tar.gz``.
        `name` and `media_type` are guessed by `path`, which begins at the
        sandbox's working directory unless it is absolute. Up to `inline_bytes`
        are in the answer.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def get(
        self,
        artifact_id: str | AsyncArtifact,
        inline_bytes: int = 0,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncArtifact:
        """Show an artifact, with its digest.

        An artifact. Its bytes are in the answer if they are no more than
        `inline_bytes`.

        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        sandbox_id: str | AsyncSandbox | None = None,
        session_id: str | AsyncSession | None = None,
        all: bool = False,
        newest_first: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncArtifact]:
        """List artifacts.

        Filters: a sandbox, a session. `all` adds those that failed or were
        removed. They come oldest first, unless `newest_first`.

        `progress` is called with the messages of a long call.
        """

class AsyncSessions:
    async def ensure(
        self,
        id: str | None = None,
        image: str | None = None,
        mode: Literal["docker", "k8s"] | None = None,
        restore_snapshot_id: str | AsyncSnapshot | None = None,
        fresh: bool = False,
        cpus: float | None = None,
        memory_bytes: int | None = None,
        pids: int | None = None,
        disk_bytes: int | None = None,
        network: Literal["none", "host", "bridge"] | None = None,
        user: str | None = None,
        read_only: bool | None = None,
        working_dir: str | PathLike[str] | None = None,
        volumes: Sequence[model.Volume] | None = None,
        env: dict[str, str] | None = None,
        secrets: dict[str, str] = {},
        labels: dict[str, str] | None = None,
        idle_timeout_s: float | None = None,
        max_lifetime_s: float | None = None,
        artifact_base_url: str | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSession:
        """Make a session ready: find it, create it, or bring it back from its
        latest snapshot.

        The session `id` of the caller's, or a new one, is made ready. One that
        is ready stays as it is.

        A new sandbox has the files of the snapshot `restore_snapshot_id`;
        without one of the session's latest, if there is any; with `fresh` those
        of the image alone. The other properties are as for `sandbox.create`,
        but for the `image`, which can be the reference of a container image,
        too, and the limits of time, which are the session's. Those that are
        left out are as they were when the session was made ready before. `mode`
        ``docker`` means the image's provider on this machine.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    async def get(
        self,
        session_id: str | AsyncSession,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSession:
        """Show a session.

        A session, by the id that its owner calls it, or by its key.

        `progress` is called with the messages of a long call.
        """
    async def list(
        self,
        all: bool = False,
        newest_first: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncSession]:
        """List sessions.

        `all` adds those that failed or ended. They come oldest first, unless
        `newest_first`.

        `progress` is called with the messages of a long call.
        """

class AsyncSandboxFiles:
    async def read(self, path: str | PathLike[str], *, max_bytes: int = 268435456) -> bytes:
        """Read a whole file. One that is written meanwhile may come as parts of
        both versions.

        Raises `not_found` for a path that is no file, and `invalid` for a file
        of more than `max_bytes`.
        """
    async def read_text(
        self,
        path: str | PathLike[str],
        encoding: str = "utf-8",
        *,
        max_bytes: int = 268435456,
    ) -> str:
        """Read a whole file as text; see `read`. Raises UnicodeDecodeError for one
        that is not in that encoding.
        """
    async def write(
        self,
        path: str | PathLike[str],
        data: bytes | str,
        *,
        mode: int | None = None,
    ) -> model.FileWritten:
        """Write a whole file atomically, and make directories that are missing.
        Text is written as UTF-8.

        An existing file keeps its mode unless `mode` says another. Raises
        `invalid` for more than 8 MiB: `sandkeep.transfer` copies larger files.
        """
    async def ls(self, path: str | PathLike[str] = ".") -> builtins.list[model.FileEntry]:
        """List the files of a directory by name. Raises `not_found` for a path
        that is no directory, and `invalid` for one with more than 100,000
        files.
        """

class BlockingRpcMethods:
    def discover(self, *, progress: Callable[[str], None] | None = None) -> dict[str, Any]:
        """Describe every method, as an OpenRPC document.

        `progress` is called with the messages of a long call.
        """
    def hello(self, client: str, *, progress: Callable[[str], None] | None = None) -> model.Welcome:
        """Record the client's name for this connection, and return the id of the
        event log.

        `client` is recorded with each event that this connection causes.

        `progress` is called with the messages of a long call.
        """

class BlockingDaemonMethods:
    def ping(self, *, progress: Callable[[str], None] | None = None) -> model.Pong:
        """Check that the daemon answers.

        `progress` is called with the messages of a long call.
        """
    def status(self, *, progress: Callable[[str], None] | None = None) -> model.DaemonStatus:
        """Show the daemon's status.

        `progress` is called with the messages of a long call.
        """
    def capabilities(self, *, progress: Callable[[str], None] | None = None) -> model.Capabilities:
        """Show which features work on this machine, and why others do not.

        `progress` is called with the messages of a long call.
        """
    def shutdown(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Empty:
        """Stop the daemon; sandboxes and processes keep running.

        Without parameters of its own.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class BlockingQuotaMethods:
    def get(
        self,
        owner: str | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.QuotaList:
        """Show an owner's quotas and their usage.

        `owner` is the caller if it is left out; administrators can ask for
        another, such as ``uid:1000``.

        `progress` is called with the messages of a long call.
        """

class BlockingImageMethods:
    def create(
        self,
        source: str | PathLike[str],
        provider: str | None = None,
        base: str | None = None,
        dockerfile: str | PathLike[str] | None = None,
        clean: bool = False,
        labels: dict[str, str] = {},
        owner: str | None = None,
        ignore: Sequence[str] = [],
        patterns: Sequence[str] = [],
        ignore_files: bool = True,
        name: str | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Image:
        """Create an image from a directory, a Dockerfile or a container image.

        `source` is an absolute path, read with the caller's own rights, or the
        reference of a container image.

        Without a `provider` a plain directory is for ``local``; one that holds
        a Dockerfile, the path of a Dockerfile and a reference are for
        ``docker``. `dockerfile` is the Dockerfile's path below the directory,
        if it is not the usual one. With `base`, a reference, the directory is
        put onto that image, as its ``/workspace``, even if it holds a
        Dockerfile. `clean` makes a new image even if one of the same content
        exists, and builds without the cache. An administrator can make it for
        another `owner`, such as ``key:ci``. Of a plain directory its
        ``.sandkeepignore``, or else its ``.dockerignore``, says what is left
        out; then `patterns`, by the same rules, such as ``docs/*.html``, or
        ``!docs/a.html`` for an exception; and the names of `ignore` are left
        out, at any depth. Without `ignore_files` these files do not count.

        The owner can use `name`, such as ``py:3.12``, wherever an `image_id` is
        asked for. An older image that has it loses it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        all: bool = False,
        published: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ImageList:
        """List images.

        `all` adds those that failed or were removed. With `published` the list
        has the images that are published to the caller instead, for an
        administrator all that are published.

        `progress` is called with the messages of a long call.
        """
    def get(self, image_id: str, *, progress: Callable[[str], None] | None = None) -> model.Image:
        """Show an image.

        An image.

        `progress` is called with the messages of a long call.
        """
    def tag(
        self,
        image_id: str,
        name: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Image:
        """Give an image a name.

        The image that its owner means by `name` from now on. Another one that
        has the name loses it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def untag(
        self,
        image_id: str,
        name: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Image:
        """Take a name from an image.

        The image, and the name to take from it. `not_found` if the image is not
        called so.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def publish(
        self,
        reference: str,
        owners: Sequence[str] = [],
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Image:
        """Let others use an image of the Docker engine.

        The `owners` who may use the image of the Docker engine that `reference`
        means now; everybody, if there are none.

        It is made an image of the caller's own, which is the one that is
        published until the same reference is published again, wherever its tag
        is moved.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def unpublish(
        self,
        reference: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Image:
        """Withdraw a published image.

        A published reference. Images that others have made by it stay theirs.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def remove(
        self,
        image_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Image:
        """Remove an image.

        The image to remove; refused with `in_use` while a sandbox needs it. One
        that is given by one of several names only loses that, and the answer's
        status is still ``ready``.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class BlockingVolumeMethods:
    def create(
        self,
        name: str,
        provider: str = "docker",
        owner: str | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.NamedVolume:
        """Create a named volume.

        The volume that the caller means by `name` in the `volumes` of a new
        sandbox. An administrator can make it for another `owner`.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        provider: str = "docker",
        owner: str | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.NamedVolumeList:
        """List named volumes, with the sandboxes that mount them.

        The provider, and for administrators an owner; all owners if it is left
        out.

        `progress` is called with the messages of a long call.
        """
    def remove(
        self,
        name: str,
        provider: str = "docker",
        owner: str | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.NamedVolume:
        """Remove a named volume that no sandbox mounts.

        The volume to remove, with all files in it. An administrator can remove
        that of another `owner`.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class BlockingProviderMethods:
    def choose(
        self,
        enabled: bool = True,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.ProviderChoice:
        """Choose a provider: docker if it works here and is wanted, else local.

        With `enabled`, containers are preferred.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class BlockingSessionMethods:
    def ensure(
        self,
        id: str | None = None,
        image: str | None = None,
        mode: Literal["docker", "k8s"] | None = None,
        restore_snapshot_id: str | None = None,
        fresh: bool = False,
        cpus: float | None = None,
        memory_bytes: int | None = None,
        pids: int | None = None,
        disk_bytes: int | None = None,
        network: Literal["none", "host", "bridge"] | None = None,
        user: str | None = None,
        read_only: bool | None = None,
        working_dir: str | PathLike[str] | None = None,
        volumes: Sequence[model.Volume] | None = None,
        env: dict[str, str] | None = None,
        secrets: dict[str, str] = {},
        labels: dict[str, str] | None = None,
        idle_timeout_s: float | None = None,
        max_lifetime_s: float | None = None,
        artifact_base_url: str | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.SessionEnsured:
        """Make a session ready: find it, create it, or bring it back from its
        latest snapshot.

        The session `id` of the caller's, or a new one, is made ready. One that
        is ready stays as it is.

        A new sandbox has the files of the snapshot `restore_snapshot_id`;
        without one of the session's latest, if there is any; with `fresh` those
        of the image alone. The other properties are as for `sandbox.create`,
        but for the `image`, which can be the reference of a container image,
        too, and the limits of time, which are the session's. Those that are
        left out are as they were when the session was made ready before. `mode`
        ``docker`` means the image's provider on this machine.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def get(self, session_id: str, *, progress: Callable[[str], None] | None = None) -> model.Session:
        """Show a session.

        A session, by the id that its owner calls it, or by its key.

        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        all: bool = False,
        newest_first: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SessionList:
        """List sessions.

        `all` adds those that failed or ended. They come oldest first, unless
        `newest_first`.

        `progress` is called with the messages of a long call.
        """
    def heartbeat(self, session_id: str, *, progress: Callable[[str], None] | None = None) -> model.Session:
        """Keep a session from being idle.

        A session, by the id that its owner calls it, or by its key.

        `progress` is called with the messages of a long call.
        """
    def close(
        self,
        session_id: str,
        snapshot: bool = True,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Session:
        """End the sandbox of a session, after a snapshot.

        The session whose sandbox is ended, after a snapshot called
        ``auto-stop``, unless `snapshot` is false. If that fails, the sandbox
        goes on. The session can be used again: that makes another sandbox.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def history(
        self,
        session_id: str,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.EventPage:
        """List the events of a session itself.

        `after` is a token from an earlier page.

        `progress` is called with the messages of a long call.
        """

class BlockingArtifactMethods:
    def export(
        self,
        sandbox_id: str,
        path: str | PathLike[str],
        name: str | None = None,
        media_type: str | None = None,
        inline_bytes: int = 0,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Artifact:
        """Copy a file or directory out of a sandbox, where it outlives that.

        The file or directory to export; a directory becomes a ``tar.gz``.
        `name` and `media_type` are guessed by `path`, which begins at the
        sandbox's working directory unless it is absolute. Up to `inline_bytes`
        are in the answer.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def get(
        self,
        artifact_id: str,
        inline_bytes: int = 0,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Artifact:
        """Show an artifact, with its digest.

        An artifact. Its bytes are in the answer if they are no more than
        `inline_bytes`.

        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        sandbox_id: str | None = None,
        session_id: str | None = None,
        all: bool = False,
        newest_first: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ArtifactList:
        """List artifacts.

        Filters: a sandbox, a session. `all` adds those that failed or were
        removed. They come oldest first, unless `newest_first`.

        `progress` is called with the messages of a long call.
        """
    def remove(
        self,
        artifact_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Artifact:
        """Remove an artifact.

        The artifact to remove.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class BlockingSandboxMethods:
    def create(
        self,
        image_id: str,
        name: str | None = None,
        provider: str | None = None,
        cpus: float | None = None,
        memory_bytes: int | None = None,
        pids: int | None = None,
        disk_bytes: int | None = None,
        network: Literal["none", "host", "bridge"] | None = None,
        user: str | None = None,
        read_only: bool = False,
        working_dir: str | PathLike[str] | None = None,
        isolation: Literal["default", "none"] = "default",
        volumes: Sequence[model.Volume] = [],
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        labels: dict[str, str] = {},
        idle_timeout_s: float | None = None,
        max_lifetime_s: float | None = None,
        gcs_sandbox_id: str | None = None,
        enable_handoff: bool = False,
        enable_checkpoint_at_idle: bool = False,
        sandbox_token: str | None = None,
        writable_root: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Create and start a sandbox from an image.

        The properties of the sandbox. `secrets` are given to its processes'
        environment and stored nowhere. The default `network` is that of its
        provider, none unless an administrator said otherwise. `volumes` that
        are directories of the host are for administrators. A limit of
        `disk_bytes` is exact, or refused; without it the limit is approximate.

        With a `writable_root` a container's own root file system is not
        read-only, so that programs can be installed; snapshots and forks hold
        what was changed there. An administrator can forbid it, and there is no
        `disk_bytes` with it, as only the workspace has an exact one.

        With a `name`, which is unique among the owner's sandboxes that have not
        ended, the owner can use that wherever a `sandbox_id` is asked for.

        With a `gcs_sandbox_id`, which is then its name, it is shared with other
        daemons: see `model.Sharing`. If there is one of that id already, it is
        attached as by `sandbox.attach_shared`, with its `sandbox_token`, and
        none is made.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def attach_shared(
        self,
        gcs_sandbox_id: str,
        sandbox_token: str,
        timeout_s: float = 120.0,
        secrets: dict[str, str] = {},
        allow_host: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Attach a sandbox that another daemon shares, as it was saved last.

        The shared sandbox `gcs_sandbox_id` goes on here: it is restored as it
        was saved last. While another daemon has it, the call waits up to
        `timeout_s` for that one to save it and give it up.

        One that was saved with its memory needs its image: one of the same
        content that is here, or else the copy that its first daemon left.
        `secrets` are given to the processes of one that was saved without.

        Its properties come from the bucket. Those that only administrators may
        give a sandbox (the host's network or directories, no isolation) are
        refused, unless an administrator accepts them with `allow_host`.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def detach(
        self,
        sandbox_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Save a shared sandbox, and let other daemons have it.

        The shared sandbox to save where other daemons find it, and to give up.
        It ends here.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def get(self, sandbox_id: str, *, progress: Callable[[str], None] | None = None) -> model.Sandbox:
        """Show a sandbox.

        A sandbox.

        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        labels: dict[str, str] = {},
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SandboxList:
        """List sandboxes.

        `all` adds those that ended. `labels` all match.

        `progress` is called with the messages of a long call.
        """
    def stats(
        self,
        sandbox_id: str | None = None,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SandboxStatsList:
        """Show the resource usage of running sandboxes: CPU, memory, processes,
        I/O.

        Without `sandbox_id`: all the caller's running sandboxes.

        `progress` is called with the messages of a long call.
        """
    def exec(
        self,
        sandbox_id: str,
        command: Sequence[str] | str,
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        working_dir: str | PathLike[str] | None = None,
        stdin: bytes | str | None = None,
        timeout_s: float | None = None,
        inline_bytes: int = 1048576,
        durable: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.ExecResult:
        """Run a command to its end and return its output.

        A command to run to its end: a list of words, or one text for ``sh -c``.
        `stdin` is all that it can read.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def terminate(
        self,
        sandbox_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Terminate a sandbox and all its processes.

        The sandbox to end, with all that runs in it. Its journals stay
        readable.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def update(
        self,
        sandbox_id: str,
        disk_bytes: int | None = None,
        memory_bytes: int | None = None,
        cpus: float | None = None,
        pids: int | None = None,
        network: Literal["none", "host", "bridge"] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Change limits of a sandbox, while it runs.

        The sandbox, and its new limits; those left out stay as they are. A disk
        of its own can grow, also while it is written to, and not shrink;
        without one `disk_bytes` is refused. No provider can change the
        `network` of a sandbox: that is refused.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def suspend(
        self,
        sandbox_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Freeze a sandbox.

        The sandbox to suspend: all its processes are frozen.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def resume(
        self,
        sandbox_id: str,
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Resume a suspended sandbox, or restart a lost or failed one from its
        files.

        The sandbox to resume. One that was lost or failed is restarted from its
        files, where its provider can; it needs its `secrets` again then, as
        they are stored nowhere.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def fork(
        self,
        sandbox_id: str,
        count: int = 1,
        names: Sequence[str] = [],
        labels: dict[str, str] = {},
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.ForkResult:
        """Create sandboxes with the files of another.

        The sandbox to fork, and the `count` of forks, which start with its
        present files. They have its specification, with `labels` besides its
        own, and none of its processes. `names`, if given, are as many as the
        `count`. Its secrets have to be given again.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def diff(
        self,
        sandbox_id: str,
        base: str | None = None,
        paths: Sequence[str | PathLike[str]] = [],
        unified: bool = False,
        lines: bool = False,
        reverse: bool = False,
        limit: int = 10000,
        max_bytes: int = 1048576,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Diff:
        """Compare another sandbox, a snapshot, an image, or its own first files
        with a sandbox's workspace.

        The differences from `base`, a sandbox, snapshot or image, to the
        sandbox's workspace: what only the sandbox has is added. Without `base`
        they are those from the files that it began with; with `reverse`, those
        from the sandbox to `base`. At most `limit` paths are named, at or below
        `paths` if there are any. `unified` gives texts, of at most `max_bytes`;
        with `lines` lines are counted.

        `progress` is called with the messages of a long call.
        """
    def restore(
        self,
        sandbox_id: str,
        snapshot_id: str | None = None,
        checkpoint_id: str | None = None,
        end_processes: bool = False,
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Replace a sandbox's files with those of a snapshot, or restore it to a
        checkpoint.

        The sandbox whose own files are replaced by those of a snapshot, or
        which returns to its state at a checkpoint: give one of both.

        For files it is restarted. While processes run in it that is refused
        with `in_use`, unless `end_processes` is true. For a snapshot it needs
        its `secrets` again, as they are stored nowhere.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def restore_at(
        self,
        sandbox_id: str,
        position: int | str | None = None,
        time: str | None = None,
        name: str | None = None,
        labels: dict[str, str] = {},
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.RestoredAt:
        """Create a sandbox from the newest snapshot or checkpoint of another at or
        before a moment.

        The sandbox from whose past a new one is made, as it was at a moment:
        after the event at `position`, or at `time`, in RFC 3339 with any
        offset. Give one of both.

        The newest of its snapshots and checkpoints at or before then is used,
        unless deleted. `name` is the new one's. The sandbox itself is not
        changed, and may have ended. The rest is as for `snapshot.restore`.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def read_file(
        self,
        sandbox_id: str,
        path: str | PathLike[str] | None = None,
        path_bytes: bytes | str | None = None,
        offset: int = 0,
        max_bytes: int = 4194304,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.FileContent:
        """Read a piece of a file.

        Up to `max_bytes` of a file from `offset`. A path that is not UTF-8 is
        given in `path_bytes` instead of `path`; one that is not absolute begins
        at the sandbox's working directory.

        `progress` is called with the messages of a long call.
        """
    def write_file(
        self,
        sandbox_id: str,
        path: str | PathLike[str] | None = None,
        path_bytes: bytes | str | None = None,
        *,
        data: bytes | str,
        mode: int | None = None,
        parents: bool = False,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.FileWritten:
        """Write a file atomically.

        A file's whole new content, which replaces the old one atomically. An
        existing file keeps its mode unless `mode` says another; `parents` makes
        directories that are missing.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def list_dir(
        self,
        sandbox_id: str,
        path: str | PathLike[str] | None = None,
        path_bytes: bytes | str | None = None,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.DirectoryList:
        """List the files of a directory.

        A directory. `after` is the `next` of an earlier page.

        `progress` is called with the messages of a long call.
        """
    def copy_commit(
        self,
        sandbox_id: str,
        transfer_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Copied:
        """Commit a copy into a sandbox, once all of it was written.

        A copy under way whose whole archive was written.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def history(
        self,
        sandbox_id: str,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.EventPage:
        """List the events of a sandbox and its processes.

        `after` is a token from an earlier page.

        `progress` is called with the messages of a long call.
        """

class BlockingBranchMethods:
    def create(
        self,
        source: str | PathLike[str] | None = None,
        ignore: Sequence[str] = [],
        provider: str | None = None,
        image_id: str | None = None,
        snapshot_id: str | None = None,
        sandbox_id: str | None = None,
        count: int = 1,
        names: Sequence[str] = [],
        labels: dict[str, str] = {},
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.BranchCreateResult:
        """Create branches of a directory, an image, a snapshot or a sandbox.

        The base of `count` new branches: a directory `source` (an absolute
        path, read with the caller's own rights, of which an image for
        `provider` is made without the names `ignore`), an image, a snapshot, or
        a sandbox, of which they have the present files. They have the
        specification of a sandbox or snapshot, with `labels` besides. `names`,
        if given, are as many as the `count`. Secrets have to be given again.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        image_id: str | None = None,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.BranchList:
        """List sandboxes with their bases and lineage.

        The branches of an image alone, or all. `all` adds those that ended.

        `progress` is called with the messages of a long call.
        """
    def diff(
        self,
        sandbox_id: str,
        base: str | None = None,
        paths: Sequence[str | PathLike[str]] = [],
        unified: bool = False,
        lines: bool = False,
        reverse: bool = False,
        limit: int = 10000,
        max_bytes: int = 1048576,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Diff:
        """Compare a branch with its base or with another: see sandbox.diff.

        The differences from `base`, a sandbox, snapshot or image, to the
        sandbox's workspace: what only the sandbox has is added. Without `base`
        they are those from the files that it began with; with `reverse`, those
        from the sandbox to `base`. At most `limit` paths are named, at or below
        `paths` if there are any. `unified` gives texts, of at most `max_bytes`;
        with `lines` lines are counted.

        `progress` is called with the messages of a long call.
        """
    def merge(
        self,
        sandbox_ids: Sequence[str],
        name: str | None = None,
        policy: Literal["fail", "ours", "union", "markers"] = "fail",
        ours: str | None = None,
        takes: dict[str, str] = {},
        labels: dict[str, str] = {},
        secrets: dict[str, str] = {},
        workspace_only: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Merged:
        """Merge branches into a new sandbox, over their nearest common base.

        The sandboxes to merge into a new one, which is called `name` and has
        the specification of the first, with `labels` besides; secrets have to
        be given again.

        What is changed in one, or in several alike, is taken over; lines are
        merged. Of what is changed differently, `policy` makes a conflict
        (``fail``), takes the version of the branch `ours`, all versions one
        after the other (``union``), or all between ``markers``. At the paths of
        `takes`, and below them, the version of the branch given there is taken.

        Only workspaces are merged. Sandboxes with a writable root are refused,
        unless `workspace_only`: outside of its workspace the new one is as
        their common base then.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def resolve(
        self,
        merge_id: str,
        decisions: Sequence[model.Resolution],
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Merged:
        """Decide conflicts of a merge, and go on with it.

        Decisions on conflicts of a merge. When none is left, its sandbox is
        made; also if that was interrupted before by the end of a daemon.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def merges(
        self,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.MergeList:
        """List merges.

        `all` adds those that failed or were given up, and those whose sandbox
        ended.

        `progress` is called with the messages of a long call.
        """
    def conflicts(
        self,
        merge_id: str,
        after: int = 0,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ConflictList:
        """List the conflicts of a merge.

        The conflicts of a merge that are left. `after` is the `next` of an
        earlier page.

        `progress` is called with the messages of a long call.
        """
    def read_version(
        self,
        merge_id: str,
        sha256: str,
        offset: int = 0,
        max_bytes: int = 4194304,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.FileContent:
        """Read a piece of one version of a file in a conflict.

        Up to `max_bytes`, from `offset`, of a version of a file in a conflict,
        by its digest.

        `progress` is called with the messages of a long call.
        """
    def abandon(
        self,
        merge_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Merge:
        """Give up a merge that has conflicts.

        The merge to give up, which has conflicts.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def plan(
        self,
        sandbox_id: str,
        target: str | PathLike[str],
        limit: int = 10000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.CommitPlan:
        """Show what a commit of a branch would do to a directory of the host.

        A branch, and the directory to which its changes would be committed: an
        absolute path, with the caller's own rights. At most `limit` paths are
        named.

        `progress` is called with the messages of a long call.
        """
    def commit(
        self,
        sandbox_id: str,
        target: str | PathLike[str],
        force: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Commit:
        """Apply a branch's changes to a directory of the host, all or none.

        A branch, and the directory to which its changes are committed: an
        absolute path, with the caller's own rights. Files that were changed
        there meanwhile are refused unless `force` is true.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def blame(
        self,
        sandbox_id: str | None = None,
        merge_id: str | None = None,
        commit_id: str | None = None,
        paths: Sequence[str | PathLike[str]] = [],
        after: int = 0,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Blame:
        """Show which branch each path of a merge, a commit or a branch came from.

        A merge, a commit, or a branch, whose present changes are told. `after`
        is the `next` of an earlier page.

        `progress` is called with the messages of a long call.
        """
    def remove(
        self,
        sandbox_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """End a branch.

        The branch to remove: the sandbox is ended. What came from it stays
        whole.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class BlockingProcessMethods:
    def launch(
        self,
        sandbox_id: str,
        command: Sequence[str] | str,
        name: str | None = None,
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        working_dir: str | PathLike[str] | None = None,
        stdin: bool = False,
        tty: bool = False,
        rows: int = 24,
        cols: int = 80,
        timeout_s: float | None = None,
        durable: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Process:
        """Start a command in the background.

        A command to start. With `stdin` it reads the data of
        `process.write_stdin`; otherwise it has none.

        A `name` is unique among the processes of the sandbox that have not
        ended, and refers to the newest that has it.

        With `tty` it gets a terminal of `rows` and `cols`, which can be
        attached to, and its input and output are that terminal's: there is no
        separate stderr. With `durable` its output is on disk before its end is
        recorded; if the disk fails to take it, the daemon's log says so.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def get(
        self,
        sandbox_id: str,
        name: str,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Process:
        """Show a process.

        A process, by its process_id or how that begins, or the newest of a
        name.

        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        sandbox_id: str | None = None,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ProcessList:
        """List processes.

        Without `sandbox_id`: all the caller's processes. `all` adds ended ones,
        and the last of the unnamed.

        `progress` is called with the messages of a long call.
        """
    def wait(
        self,
        sandbox_id: str,
        name: str,
        timeout_s: float | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Process:
        """Wait until a process exits.

        Without `timeout_s` it waits until the process has ended.

        `progress` is called with the messages of a long call.
        """
    def signal(
        self,
        sandbox_id: str,
        name: str,
        signal: str = "TERM",
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Process:
        """Send a signal to a process and its group.

        The signal goes to the whole process group.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def cancel(
        self,
        launch: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> methods.CancelledLaunch:
        """End the process of a launch that its caller gave up.

        The `command_id` of a `sandbox.exec` or `process.launch` whose caller
        gave it up.

        Its process gets INT, and KILL if it still runs 2 seconds later. A
        launch that has not begun never does. A suspended sandbox's process is
        left as it is.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def write_stdin(
        self,
        sandbox_id: str,
        name: str,
        data: bytes | str = b"",
        eof: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> methods.Written:
        """Write to a process's input, or close it.

        `data` is written whole, or up to `written_bytes` of the answer; `eof`
        closes the input after it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def read(
        self,
        sandbox_id: str,
        name: str,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        max_bytes: int = 1048576,
        wait_s: float = 0,
        times: bool = False,
        since: str | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ProcessOutput:
        """Read the output of a process, from byte offsets.

        Up to `max_bytes` of each stream from its offset. It waits up to
        `wait_s` for new data, or for the end.

        `since`, a time in RFC 3339 with any offset, replaces the offsets:
        output that came earlier is skipped, but for a moment's. With `times`
        the answer says when each piece came.

        `progress` is called with the messages of a long call.
        """
    def resize(
        self,
        sandbox_id: str,
        name: str,
        rows: int,
        cols: int,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Process:
        """Resize the terminal of a process that has no client attached.

        The size of a process's terminal while no client is attached; each
        attached client brings a size of its own.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class BlockingSnapshotMethods:
    def create(
        self,
        sandbox_id: str,
        name: str | None = None,
        labels: dict[str, str] = {},
        include: Sequence[str | PathLike[str]] = [],
        exclude: Sequence[str | PathLike[str]] = [],
        format: Literal["tar.gz", "tar.zst"] = "tar.gz",
        incremental: bool = False,
        parent_id: str | None = None,
        archive: Literal["bucket"] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Snapshot:
        """Snapshot the files of a sandbox as an archive.

        The sandbox to snapshot. Of its files, only those at or below the paths
        of `include` are taken, and none at or below those of `exclude`; paths
        begin at the sandbox's workspace unless they are absolute.

        `incremental` stores the differences from the snapshot `parent_id`, or
        from the sandbox's last suitable one, else from its image. With
        `archive` ``bucket`` the archive has to be stored where other machines
        can read it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        sandbox_id: str | None = None,
        name: str | None = None,
        labels: dict[str, str] = {},
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SnapshotList:
        """List snapshots.

        Filters: a sandbox, a name, labels that all match. `all` adds those that
        failed or were deleted.

        `progress` is called with the messages of a long call.
        """
    def get(self, snapshot_id: str, *, progress: Callable[[str], None] | None = None) -> model.Snapshot:
        """Show a snapshot.

        A snapshot.

        `progress` is called with the messages of a long call.
        """
    def delete(
        self,
        snapshot_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Snapshot:
        """Delete a snapshot.

        The snapshot to delete. Incremental ones that build on it stay whole.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def restore(
        self,
        snapshot_id: str,
        name: str | None = None,
        labels: dict[str, str] = {},
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        idle_timeout_s: float | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Create and start a sandbox from a snapshot.

        The snapshot that a new sandbox starts from. It has the specification of
        the snapshot's sandbox, with `labels` and `env` besides, and with
        `idle_timeout_s` if that is given; secrets have to be given again.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def promote(
        self,
        snapshot_id: str,
        labels: dict[str, str] = {},
        name: str | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Image:
        """Create an image from a snapshot.

        The snapshot to create an image from. The image does not depend on it
        afterwards.

        The owner can use `name` wherever an `image_id` is asked for. An older
        image that has it loses it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def gc(
        self,
        dry_run: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.SnapshotGcReport:
        """Delete expired snapshots, and archives that no event references.

        `dry_run` only reports the objects that would be removed.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class BlockingCheckpointMethods:
    def create(
        self,
        sandbox_id: str,
        name: str | None = None,
        labels: dict[str, str] = {},
        leave_running: bool = False,
        archive: Literal["bucket"] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Checkpoint:
        """Checkpoint a sandbox with its processes.

        The sandbox to checkpoint with its processes. It is suspended by that,
        unless `leave_running` is true. With `archive` ``bucket`` the checkpoint
        has to be stored where other machines can read it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        sandbox_id: str | None = None,
        name: str | None = None,
        labels: dict[str, str] = {},
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.CheckpointList:
        """List checkpoints.

        Filters: a sandbox, a name, labels that all match. `all` adds those that
        failed or were deleted.

        `progress` is called with the messages of a long call.
        """
    def get(self, checkpoint_id: str, *, progress: Callable[[str], None] | None = None) -> model.Checkpoint:
        """Show a checkpoint.

        A checkpoint.

        `progress` is called with the messages of a long call.
        """
    def delete(
        self,
        checkpoint_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Checkpoint:
        """Delete a checkpoint.

        The checkpoint to delete. A sandbox that was suspended with it, and
        those that were made of it, stay whole.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def restore(
        self,
        checkpoint_id: str,
        count: int = 1,
        names: Sequence[str] = [],
        labels: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.CheckpointRestoreResult:
        """Create sandboxes from a checkpoint, with its processes running.

        The checkpoint from which `count` new sandboxes are created, with
        `labels` besides those of its sandbox. `names`, if given, are as many as
        the `count`.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class BlockingStreamMethods:
    def access(
        self,
        renew: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.StreamAccess:
        """Return the stream server's addresses, and for TCP the caller's token and
        the server's pin.

        `renew` invalidates the caller's earlier token.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class BlockingLockMethods:
    def acquire(
        self,
        name: str,
        timeout_s: float = 30.0,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Lock:
        """Acquire the lock of a shared sandbox, and hold it until it is released.

        The lock to acquire, by its name: that of the shared sandbox. While
        another owner holds it, the call waits up to `timeout_s`, unless another
        one waits already; with 0 not at all. A caller who disconnects cancels
        the wait.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def release(
        self,
        name: str,
        force: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Lock:
        """Release a lock.

        The lock to release, by its name or its lock_id. With `force` the lock
        of that name is freed from any owner, and a damaged document is
        repaired; its owner loses it, and writes nothing more under it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def get(self, name: str, *, progress: Callable[[str], None] | None = None) -> model.Lock:
        """Show a lock.

        A lock, by its name, which means its last acquisition here, or by its
        lock_id or how that begins.

        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.LockList:
        """List the locks that this daemon holds.

        `all` adds the acquisitions that ended or failed.

        `progress` is called with the messages of a long call.
        """

class BlockingKeyMethods:
    def create(self, name: str, *, progress: Callable[[str], None] | None = None) -> model.NewKey:
        """Create an API key for the HTTP gateway. It is shown once.

        An API key, by its name. What it owns, ``key:NAME`` owns, also after the
        key was removed and made anew.

        `progress` is called with the messages of a long call.
        """
    def list(self, *, progress: Callable[[str], None] | None = None) -> model.KeyList:
        """List the API keys of the HTTP gateway.

        `progress` is called with the messages of a long call.
        """
    def remove(self, name: str, *, progress: Callable[[str], None] | None = None) -> model.ApiKey:
        """Remove an API key: it is refused from now on.

        An API key, by its name. What it owns, ``key:NAME`` owns, also after the
        key was removed and made anew.

        `progress` is called with the messages of a long call.
        """

class BlockingEventMethods:
    def list(
        self,
        after: str | None = None,
        sandbox_id: str | None = None,
        type: str | None = None,
        limit: int = 1000,
        wait_s: float = 0,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.EventPage:
        """List events in commit order.

        Events after a token, oldest first; with nothing new it waits up to
        `wait_s` for some. No `after`: from the first there is.

        ``after="now"`` answers no event, and the token of this moment. `after`
        may also be a time, in RFC 3339 with any offset: then the events from
        that time on, without archived ones.

        `progress` is called with the messages of a long call.
        """
    def state_at(
        self,
        sandbox_id: str,
        position: int | str,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SandboxAt:
        """Show a sandbox as it was after an event.

        A sandbox, and the position of any event, its own or another's; a token
        stands for the position at its end. Of processes and snapshots the last
        `limit` are answered.

        `progress` is called with the messages of a long call.
        """

class BlockingStoreMethods:
    def verify(self, *, progress: Callable[[str], None] | None = None) -> model.VerifyReport:
        """Check the event log and every metadata.json.

        `progress` is called with the messages of a long call.
        """
    def compact(
        self,
        older_than_s: float | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.CompactReport:
        """Archive the events of objects that ended long ago.

        Archive events of objects that ended longer ago than `older_than_s`
        (default: the daemon's setting).

        `progress` is called with the messages of a long call.
        """
    def prune(
        self,
        all: bool = False,
        older_than_s: float | None = None,
        dry_run: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.PruneReport:
        """Remove the output of ended sandboxes, and images that nothing needs.

        Removes the output of ended sandboxes, and images without a name that
        nothing needs; with `all` also those that have names. With
        `older_than_s` only output of sandboxes that ended longer ago, and
        images made longer ago. `dry_run` only reports them. An administrator
        prunes everybody's, others their own.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def redact(self, position: int, *, progress: Callable[[str], None] | None = None) -> model.RedactReport:
        """Remove a caller's data in an event from the log and the archive.

        The event whose content is removed for good.

        `progress` is called with the messages of a long call.
        """
    def rebuild(self, *, progress: Callable[[str], None] | None = None) -> model.RebuildReport:
        """Rebuild every metadata.json from the event log.

        `progress` is called with the messages of a long call.
        """

class BlockingMethods:
    rpc: BlockingRpcMethods
    daemon: BlockingDaemonMethods
    quota: BlockingQuotaMethods
    image: BlockingImageMethods
    volume: BlockingVolumeMethods
    provider: BlockingProviderMethods
    session: BlockingSessionMethods
    artifact: BlockingArtifactMethods
    sandbox: BlockingSandboxMethods
    branch: BlockingBranchMethods
    process: BlockingProcessMethods
    snapshot: BlockingSnapshotMethods
    checkpoint: BlockingCheckpointMethods
    stream: BlockingStreamMethods
    lock: BlockingLockMethods
    key: BlockingKeyMethods
    event: BlockingEventMethods
    store: BlockingStoreMethods
    sandboxes: Sandboxes
    processes: Processes
    images: Images
    volumes: Volumes
    snapshots: Snapshots
    checkpoints: Checkpoints
    artifacts: Artifacts
    sessions: Sessions

class Sandbox(_SandboxView):
    def detach(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Sandbox:
        """Save a shared sandbox, and let other daemons have it.

        The shared sandbox to save where other daemons find it, and to give up.
        It ends here.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def refresh(self, *, progress: Callable[[str], None] | None = None) -> Sandbox:
        """Get the present view of the object as `info`, and return the handle."""
    def exec(
        self,
        command: Sequence[str] | str,
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        working_dir: str | PathLike[str] | None = None,
        stdin: bytes | str | None = None,
        timeout_s: float | None = None,
        inline_bytes: int = 1048576,
        durable: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.ExecResult:
        """Run a command to its end and return its output.

        A command to run to its end: a list of words, or one text for ``sh -c``.
        `stdin` is all that it can read.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def terminate(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Sandbox:
        """Terminate a sandbox and all its processes.

        The sandbox to end, with all that runs in it. Its journals stay
        readable.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def update(
        self,
        disk_bytes: int | None = None,
        memory_bytes: int | None = None,
        cpus: float | None = None,
        pids: int | None = None,
        network: Literal["none", "host", "bridge"] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Sandbox:
        """Change limits of a sandbox, while it runs.

        The sandbox, and its new limits; those left out stay as they are. A disk
        of its own can grow, also while it is written to, and not shrink;
        without one `disk_bytes` is refused. No provider can change the
        `network` of a sandbox: that is refused.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def suspend(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Sandbox:
        """Freeze a sandbox.

        The sandbox to suspend: all its processes are frozen.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def resume(
        self,
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Sandbox:
        """Resume a suspended sandbox, or restart a lost or failed one from its
        files.

        The sandbox to resume. One that was lost or failed is restarted from its
        files, where its provider can; it needs its `secrets` again then, as
        they are stored nowhere.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def fork(
        self,
        count: int = 1,
        names: Sequence[str] = [],
        labels: dict[str, str] = {},
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Sandbox]:
        """Create sandboxes with the files of another.

        The sandbox to fork, and the `count` of forks, which start with its
        present files. They have its specification, with `labels` besides its
        own, and none of its processes. `names`, if given, are as many as the
        `count`. Its secrets have to be given again.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def diff(
        self,
        base: str | Sandbox | Snapshot | Image | None = None,
        paths: Sequence[str | PathLike[str]] = [],
        unified: bool = False,
        lines: bool = False,
        reverse: bool = False,
        limit: int = 10000,
        max_bytes: int = 1048576,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Diff:
        """Compare another sandbox, a snapshot, an image, or its own first files
        with a sandbox's workspace.

        The differences from `base`, a sandbox, snapshot or image, to the
        sandbox's workspace: what only the sandbox has is added. Without `base`
        they are those from the files that it began with; with `reverse`, those
        from the sandbox to `base`. At most `limit` paths are named, at or below
        `paths` if there are any. `unified` gives texts, of at most `max_bytes`;
        with `lines` lines are counted.

        `progress` is called with the messages of a long call.
        """
    def restore(
        self,
        snapshot_id: str | Snapshot | None = None,
        checkpoint_id: str | Checkpoint | None = None,
        end_processes: bool = False,
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Sandbox:
        """Replace a sandbox's files with those of a snapshot, or restore it to a
        checkpoint.

        The sandbox whose own files are replaced by those of a snapshot, or
        which returns to its state at a checkpoint: give one of both.

        For files it is restarted. While processes run in it that is refused
        with `in_use`, unless `end_processes` is true. For a snapshot it needs
        its `secrets` again, as they are stored nowhere.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def restore_at(
        self,
        position: int | str | None = None,
        time: str | None = None,
        name: str | None = None,
        labels: dict[str, str] = {},
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Sandbox:
        """Create a sandbox from the newest snapshot or checkpoint of another at or
        before a moment.

        The sandbox from whose past a new one is made, as it was at a moment:
        after the event at `position`, or at `time`, in RFC 3339 with any
        offset. Give one of both.

        The newest of its snapshots and checkpoints at or before then is used,
        unless deleted. `name` is the new one's. The sandbox itself is not
        changed, and may have ended. The rest is as for `snapshot.restore`.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def history(
        self,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.EventPage:
        """List the events of a sandbox and its processes.

        `after` is a token from an earlier page.

        `progress` is called with the messages of a long call.
        """
    def snapshot(
        self,
        name: str | None = None,
        labels: dict[str, str] = {},
        include: Sequence[str | PathLike[str]] = [],
        exclude: Sequence[str | PathLike[str]] = [],
        format: Literal["tar.gz", "tar.zst"] = "tar.gz",
        incremental: bool = False,
        parent_id: str | Snapshot | None = None,
        archive: Literal["bucket"] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Snapshot:
        """Snapshot the files of a sandbox as an archive.

        The sandbox to snapshot. Of its files, only those at or below the paths
        of `include` are taken, and none at or below those of `exclude`; paths
        begin at the sandbox's workspace unless they are absolute.

        `incremental` stores the differences from the snapshot `parent_id`, or
        from the sandbox's last suitable one, else from its image. With
        `archive` ``bucket`` the archive has to be stored where other machines
        can read it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def checkpoint(
        self,
        name: str | None = None,
        labels: dict[str, str] = {},
        leave_running: bool = False,
        archive: Literal["bucket"] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Checkpoint:
        """Checkpoint a sandbox with its processes.

        The sandbox to checkpoint with its processes. It is suspended by that,
        unless `leave_running` is true. With `archive` ``bucket`` the checkpoint
        has to be stored where other machines can read it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def events(
        self,
        after: str | None = None,
        *,
        type: str | None = None,
        follow: bool = True,
    ) -> Iterator[model.Event]:
        """Iterate over the sandbox's events after a token, and wait for more,
        unless `follow` is false.
        """
    @property
    def processes(self) -> SandboxProcesses: ...
    @property
    def snapshots(self) -> SandboxSnapshots: ...
    @property
    def checkpoints(self) -> SandboxCheckpoints: ...
    @property
    def artifacts(self) -> SandboxArtifacts: ...
    @property
    def files(self) -> SandboxFiles: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None: ...

class Process(_ProcessView):
    def refresh(self, *, progress: Callable[[str], None] | None = None) -> Process:
        """Get the present view of the object as `info`, and return the handle."""
    def wait(
        self,
        timeout_s: float | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> Process:
        """Wait until a process exits.

        Without `timeout_s` it waits until the process has ended.

        `progress` is called with the messages of a long call.
        """
    def signal(
        self,
        signal: str = "TERM",
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Process:
        """Send a signal to a process and its group.

        The signal goes to the whole process group.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def write_stdin(
        self,
        data: bytes | str = b"",
        eof: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> methods.Written:
        """Write to a process's input, or close it.

        `data` is written whole, or up to `written_bytes` of the answer; `eof`
        closes the input after it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def read(
        self,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        max_bytes: int = 1048576,
        wait_s: float = 0,
        times: bool = False,
        since: str | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ProcessOutput:
        """Read the output of a process, from byte offsets.

        Up to `max_bytes` of each stream from its offset. It waits up to
        `wait_s` for new data, or for the end.

        `since`, a time in RFC 3339 with any offset, replaces the offsets:
        output that came earlier is skipped, but for a moment's. With `times`
        the answer says when each piece came.

        `progress` is called with the messages of a long call.
        """
    def resize(
        self,
        rows: int,
        cols: int,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Process:
        """Resize the terminal of a process that has no client attached.

        The size of a process's terminal while no client is attached; each
        attached client brings a size of its own.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def output(
        self,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        *,
        follow: bool = True,
        times: bool = False,
        since: str | None = None,
    ) -> Iterator[model.ProcessOutput]:
        """Iterate over the output from byte offsets until the process's end;
        without `follow`, the present output. `times` and `since` are those of
        `process.read`.
        """

class Image(_ImageView):
    def refresh(self, *, progress: Callable[[str], None] | None = None) -> Image:
        """Get the present view of the object as `info`, and return the handle."""
    def tag(
        self,
        name: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Image:
        """Give an image a name.

        The image that its owner means by `name` from now on. Another one that
        has the name loses it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def untag(
        self,
        name: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Image:
        """Take a name from an image.

        The image, and the name to take from it. `not_found` if the image is not
        called so.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def remove(self, *, command_id: str | None = None, progress: Callable[[str], None] | None = None) -> Image:
        """Remove an image.

        The image to remove; refused with `in_use` while a sandbox needs it. One
        that is given by one of several names only loses that, and the answer's
        status is still ``ready``.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class Volume(_NamedVolumeView):
    def remove(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Volume:
        """Remove a named volume that no sandbox mounts.

        The volume to remove, with all files in it. An administrator can remove
        that of another `owner`.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class Snapshot(_SnapshotView):
    def refresh(self, *, progress: Callable[[str], None] | None = None) -> Snapshot:
        """Get the present view of the object as `info`, and return the handle."""
    def delete(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Snapshot:
        """Delete a snapshot.

        The snapshot to delete. Incremental ones that build on it stay whole.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def restore(
        self,
        name: str | None = None,
        labels: dict[str, str] = {},
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        idle_timeout_s: float | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Sandbox:
        """Create and start a sandbox from a snapshot.

        The snapshot that a new sandbox starts from. It has the specification of
        the snapshot's sandbox, with `labels` and `env` besides, and with
        `idle_timeout_s` if that is given; secrets have to be given again.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def promote(
        self,
        labels: dict[str, str] = {},
        name: str | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Image:
        """Create an image from a snapshot.

        The snapshot to create an image from. The image does not depend on it
        afterwards.

        The owner can use `name` wherever an `image_id` is asked for. An older
        image that has it loses it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class Checkpoint(_CheckpointView):
    def refresh(self, *, progress: Callable[[str], None] | None = None) -> Checkpoint:
        """Get the present view of the object as `info`, and return the handle."""
    def delete(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Checkpoint:
        """Delete a checkpoint.

        The checkpoint to delete. A sandbox that was suspended with it, and
        those that were made of it, stay whole.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def restore(
        self,
        count: int = 1,
        names: Sequence[str] = [],
        labels: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Sandbox]:
        """Create sandboxes from a checkpoint, with its processes running.

        The checkpoint from which `count` new sandboxes are created, with
        `labels` besides those of its sandbox. `names`, if given, are as many as
        the `count`.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class Artifact(_ArtifactView):
    def refresh(self, inline_bytes: int = 0, *, progress: Callable[[str], None] | None = None) -> Artifact:
        """Get the present view of the object as `info`, and return the handle."""
    def remove(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Artifact:
        """Remove an artifact.

        The artifact to remove.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class Session(_SessionView):
    def refresh(self, *, progress: Callable[[str], None] | None = None) -> Session:
        """Get the present view of the object as `info`, and return the handle."""
    def heartbeat(self, *, progress: Callable[[str], None] | None = None) -> Session:
        """Keep a session from being idle.

        A session, by the id that its owner calls it, or by its key.

        `progress` is called with the messages of a long call.
        """
    def close(
        self,
        snapshot: bool = True,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Session:
        """End the sandbox of a session, after a snapshot.

        The session whose sandbox is ended, after a snapshot called
        ``auto-stop``, unless `snapshot` is false. If that fails, the sandbox
        goes on. The session can be used again: that makes another sandbox.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def history(
        self,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.EventPage:
        """List the events of a session itself.

        `after` is a token from an earlier page.

        `progress` is called with the messages of a long call.
        """

class Sandboxes:
    def create(
        self,
        image_id: str | Image,
        name: str | None = None,
        provider: str | None = None,
        cpus: float | None = None,
        memory_bytes: int | None = None,
        pids: int | None = None,
        disk_bytes: int | None = None,
        network: Literal["none", "host", "bridge"] | None = None,
        user: str | None = None,
        read_only: bool = False,
        working_dir: str | PathLike[str] | None = None,
        isolation: Literal["default", "none"] = "default",
        volumes: Sequence[model.Volume] = [],
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        labels: dict[str, str] = {},
        idle_timeout_s: float | None = None,
        max_lifetime_s: float | None = None,
        gcs_sandbox_id: str | None = None,
        enable_handoff: bool = False,
        enable_checkpoint_at_idle: bool = False,
        sandbox_token: str | None = None,
        writable_root: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Sandbox:
        """Create and start a sandbox from an image.

        The properties of the sandbox. `secrets` are given to its processes'
        environment and stored nowhere. The default `network` is that of its
        provider, none unless an administrator said otherwise. `volumes` that
        are directories of the host are for administrators. A limit of
        `disk_bytes` is exact, or refused; without it the limit is approximate.

        With a `writable_root` a container's own root file system is not
        read-only, so that programs can be installed; snapshots and forks hold
        what was changed there. An administrator can forbid it, and there is no
        `disk_bytes` with it, as only the workspace has an exact one.

        With a `name`, which is unique among the owner's sandboxes that have not
        ended, the owner can use that wherever a `sandbox_id` is asked for.

        With a `gcs_sandbox_id`, which is then its name, it is shared with other
        daemons: see `model.Sharing`. If there is one of that id already, it is
        attached as by `sandbox.attach_shared`, with its `sandbox_token`, and
        none is made.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def attach_shared(
        self,
        gcs_sandbox_id: str,
        sandbox_token: str,
        timeout_s: float = 120.0,
        secrets: dict[str, str] = {},
        allow_host: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Sandbox:
        """Attach a sandbox that another daemon shares, as it was saved last.

        The shared sandbox `gcs_sandbox_id` goes on here: it is restored as it
        was saved last. While another daemon has it, the call waits up to
        `timeout_s` for that one to save it and give it up.

        One that was saved with its memory needs its image: one of the same
        content that is here, or else the copy that its first daemon left.
        `secrets` are given to the processes of one that was saved without.

        Its properties come from the bucket. Those that only administrators may
        give a sandbox (the host's network or directories, no isolation) are
        refused, unless an administrator accepts them with `allow_host`.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def get(self, sandbox_id: str | Sandbox, *, progress: Callable[[str], None] | None = None) -> Sandbox:
        """Show a sandbox.

        A sandbox.

        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        all: bool = False,
        labels: dict[str, str] = {},
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Sandbox]:
        """List sandboxes.

        `all` adds those that ended. `labels` all match.

        `progress` is called with the messages of a long call.
        """
    def stats(
        self,
        sandbox_id: str | Sandbox | None = None,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SandboxStatsList:
        """Show the resource usage of running sandboxes: CPU, memory, processes,
        I/O.

        Without `sandbox_id`: all the caller's running sandboxes.

        `progress` is called with the messages of a long call.
        """

class SandboxProcesses:
    def launch(
        self,
        command: Sequence[str] | str,
        name: str | None = None,
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        working_dir: str | PathLike[str] | None = None,
        stdin: bool = False,
        tty: bool = False,
        rows: int = 24,
        cols: int = 80,
        timeout_s: float | None = None,
        durable: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Process:
        """Start a command in the background.

        A command to start. With `stdin` it reads the data of
        `process.write_stdin`; otherwise it has none.

        A `name` is unique among the processes of the sandbox that have not
        ended, and refers to the newest that has it.

        With `tty` it gets a terminal of `rows` and `cols`, which can be
        attached to, and its input and output are that terminal's: there is no
        separate stderr. With `durable` its output is on disk before its end is
        recorded; if the disk fails to take it, the daemon's log says so.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def get(self, name: str, *, progress: Callable[[str], None] | None = None) -> Process:
        """Show a process.

        A process, by its process_id or how that begins, or the newest of a
        name.

        `progress` is called with the messages of a long call.
        """
    def list(self, all: bool = False, *, progress: Callable[[str], None] | None = None) -> builtins.list[Process]:
        """List processes.

        Without `sandbox_id`: all the caller's processes. `all` adds ended ones,
        and the last of the unnamed.

        `progress` is called with the messages of a long call.
        """

class SandboxSnapshots:
    def create(
        self,
        name: str | None = None,
        labels: dict[str, str] = {},
        include: Sequence[str | PathLike[str]] = [],
        exclude: Sequence[str | PathLike[str]] = [],
        format: Literal["tar.gz", "tar.zst"] = "tar.gz",
        incremental: bool = False,
        parent_id: str | Snapshot | None = None,
        archive: Literal["bucket"] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Snapshot:
        """Snapshot the files of a sandbox as an archive.

        The sandbox to snapshot. Of its files, only those at or below the paths
        of `include` are taken, and none at or below those of `exclude`; paths
        begin at the sandbox's workspace unless they are absolute.

        `incremental` stores the differences from the snapshot `parent_id`, or
        from the sandbox's last suitable one, else from its image. With
        `archive` ``bucket`` the archive has to be stored where other machines
        can read it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        name: str | None = None,
        labels: dict[str, str] = {},
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Snapshot]:
        """List snapshots.

        Filters: a sandbox, a name, labels that all match. `all` adds those that
        failed or were deleted.

        `progress` is called with the messages of a long call.
        """

class SandboxCheckpoints:
    def create(
        self,
        name: str | None = None,
        labels: dict[str, str] = {},
        leave_running: bool = False,
        archive: Literal["bucket"] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Checkpoint:
        """Checkpoint a sandbox with its processes.

        The sandbox to checkpoint with its processes. It is suspended by that,
        unless `leave_running` is true. With `archive` ``bucket`` the checkpoint
        has to be stored where other machines can read it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        name: str | None = None,
        labels: dict[str, str] = {},
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Checkpoint]:
        """List checkpoints.

        Filters: a sandbox, a name, labels that all match. `all` adds those that
        failed or were deleted.

        `progress` is called with the messages of a long call.
        """

class SandboxArtifacts:
    def export(
        self,
        path: str | PathLike[str],
        name: str | None = None,
        media_type: str | None = None,
        inline_bytes: int = 0,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Artifact:
        """Copy a file or directory out of a sandbox, where it outlives that.

        The file or directory to export; a directory becomes a ``tar.gz``.
        `name` and `media_type` are guessed by `path`, which begins at the
        sandbox's working directory unless it is absolute. Up to `inline_bytes`
        are in the answer.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        session_id: str | Session | None = None,
        all: bool = False,
        newest_first: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Artifact]:
        """List artifacts.

        Filters: a sandbox, a session. `all` adds those that failed or were
        removed. They come oldest first, unless `newest_first`.

        `progress` is called with the messages of a long call.
        """

class Processes:
    def launch(
        self,
        sandbox_id: str | Sandbox,
        command: Sequence[str] | str,
        name: str | None = None,
        env: dict[str, str] = {},
        secrets: dict[str, str] = {},
        working_dir: str | PathLike[str] | None = None,
        stdin: bool = False,
        tty: bool = False,
        rows: int = 24,
        cols: int = 80,
        timeout_s: float | None = None,
        durable: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Process:
        """Start a command in the background.

        A command to start. With `stdin` it reads the data of
        `process.write_stdin`; otherwise it has none.

        A `name` is unique among the processes of the sandbox that have not
        ended, and refers to the newest that has it.

        With `tty` it gets a terminal of `rows` and `cols`, which can be
        attached to, and its input and output are that terminal's: there is no
        separate stderr. With `durable` its output is on disk before its end is
        recorded; if the disk fails to take it, the daemon's log says so.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def get(
        self,
        sandbox_id: str | Sandbox,
        name: str,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> Process:
        """Show a process.

        A process, by its process_id or how that begins, or the newest of a
        name.

        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        sandbox_id: str | Sandbox | None = None,
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Process]:
        """List processes.

        Without `sandbox_id`: all the caller's processes. `all` adds ended ones,
        and the last of the unnamed.

        `progress` is called with the messages of a long call.
        """

class Images:
    def create(
        self,
        source: str | PathLike[str],
        provider: str | None = None,
        base: str | Sandbox | Snapshot | Image | None = None,
        dockerfile: str | PathLike[str] | None = None,
        clean: bool = False,
        labels: dict[str, str] = {},
        owner: str | None = None,
        ignore: Sequence[str] = [],
        patterns: Sequence[str] = [],
        ignore_files: bool = True,
        name: str | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Image:
        """Create an image from a directory, a Dockerfile or a container image.

        `source` is an absolute path, read with the caller's own rights, or the
        reference of a container image.

        Without a `provider` a plain directory is for ``local``; one that holds
        a Dockerfile, the path of a Dockerfile and a reference are for
        ``docker``. `dockerfile` is the Dockerfile's path below the directory,
        if it is not the usual one. With `base`, a reference, the directory is
        put onto that image, as its ``/workspace``, even if it holds a
        Dockerfile. `clean` makes a new image even if one of the same content
        exists, and builds without the cache. An administrator can make it for
        another `owner`, such as ``key:ci``. Of a plain directory its
        ``.sandkeepignore``, or else its ``.dockerignore``, says what is left
        out; then `patterns`, by the same rules, such as ``docs/*.html``, or
        ``!docs/a.html`` for an exception; and the names of `ignore` are left
        out, at any depth. Without `ignore_files` these files do not count.

        The owner can use `name`, such as ``py:3.12``, wherever an `image_id` is
        asked for. An older image that has it loses it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        all: bool = False,
        published: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Image]:
        """List images.

        `all` adds those that failed or were removed. With `published` the list
        has the images that are published to the caller instead, for an
        administrator all that are published.

        `progress` is called with the messages of a long call.
        """
    def get(self, image_id: str | Image, *, progress: Callable[[str], None] | None = None) -> Image:
        """Show an image.

        An image.

        `progress` is called with the messages of a long call.
        """
    def publish(
        self,
        reference: str,
        owners: Sequence[str] = [],
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Image:
        """Let others use an image of the Docker engine.

        The `owners` who may use the image of the Docker engine that `reference`
        means now; everybody, if there are none.

        It is made an image of the caller's own, which is the one that is
        published until the same reference is published again, wherever its tag
        is moved.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def unpublish(
        self,
        reference: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Image:
        """Withdraw a published image.

        A published reference. Images that others have made by it stay theirs.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class Volumes:
    def create(
        self,
        name: str,
        provider: str = "docker",
        owner: str | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Volume:
        """Create a named volume.

        The volume that the caller means by `name` in the `volumes` of a new
        sandbox. An administrator can make it for another `owner`.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        provider: str = "docker",
        owner: str | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Volume]:
        """List named volumes, with the sandboxes that mount them.

        The provider, and for administrators an owner; all owners if it is left
        out.

        `progress` is called with the messages of a long call.
        """

class Snapshots:
    def create(
        self,
        sandbox_id: str | Sandbox,
        name: str | None = None,
        labels: dict[str, str] = {},
        include: Sequence[str | PathLike[str]] = [],
        exclude: Sequence[str | PathLike[str]] = [],
        format: Literal["tar.gz", "tar.zst"] = "tar.gz",
        incremental: bool = False,
        parent_id: str | Snapshot | None = None,
        archive: Literal["bucket"] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Snapshot:
        """Snapshot the files of a sandbox as an archive.

        The sandbox to snapshot. Of its files, only those at or below the paths
        of `include` are taken, and none at or below those of `exclude`; paths
        begin at the sandbox's workspace unless they are absolute.

        `incremental` stores the differences from the snapshot `parent_id`, or
        from the sandbox's last suitable one, else from its image. With
        `archive` ``bucket`` the archive has to be stored where other machines
        can read it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        sandbox_id: str | Sandbox | None = None,
        name: str | None = None,
        labels: dict[str, str] = {},
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Snapshot]:
        """List snapshots.

        Filters: a sandbox, a name, labels that all match. `all` adds those that
        failed or were deleted.

        `progress` is called with the messages of a long call.
        """
    def get(self, snapshot_id: str | Snapshot, *, progress: Callable[[str], None] | None = None) -> Snapshot:
        """Show a snapshot.

        A snapshot.

        `progress` is called with the messages of a long call.
        """
    def gc(
        self,
        dry_run: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.SnapshotGcReport:
        """Delete expired snapshots, and archives that no event references.

        `dry_run` only reports the objects that would be removed.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """

class Checkpoints:
    def create(
        self,
        sandbox_id: str | Sandbox,
        name: str | None = None,
        labels: dict[str, str] = {},
        leave_running: bool = False,
        archive: Literal["bucket"] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Checkpoint:
        """Checkpoint a sandbox with its processes.

        The sandbox to checkpoint with its processes. It is suspended by that,
        unless `leave_running` is true. With `archive` ``bucket`` the checkpoint
        has to be stored where other machines can read it.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        sandbox_id: str | Sandbox | None = None,
        name: str | None = None,
        labels: dict[str, str] = {},
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Checkpoint]:
        """List checkpoints.

        Filters: a sandbox, a name, labels that all match. `all` adds those that
        failed or were deleted.

        `progress` is called with the messages of a long call.
        """
    def get(
        self,
        checkpoint_id: str | Checkpoint,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> Checkpoint:
        """Show a checkpoint.

        A checkpoint.

        `progress` is called with the messages of a long call.
        """

class Artifacts:
    def export(
        self,
        sandbox_id: str | Sandbox,
        path: str | PathLike[str],
        name: str | None = None,
        media_type: str | None = None,
        inline_bytes: int = 0,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Artifact:
        """Copy a file or directory out of a sandbox, where it outlives that.

        The file or directory to export; a directory becomes a ``tar.gz``.
        `name` and `media_type` are guessed by `path`, which begins at the
        sandbox's working directory unless it is absolute. Up to `inline_bytes`
        are in the answer.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def get(
        self,
        artifact_id: str | Artifact,
        inline_bytes: int = 0,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> Artifact:
        """Show an artifact, with its digest.

        An artifact. Its bytes are in the answer if they are no more than
        `inline_bytes`.

        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        sandbox_id: str | Sandbox | None = None,
        session_id: str | Session | None = None,
        all: bool = False,
        newest_first: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Artifact]:
        """List artifacts.

        Filters: a sandbox, a session. `all` adds those that failed or were
        removed. They come oldest first, unless `newest_first`.

        `progress` is called with the messages of a long call.
        """

class Sessions:
    def ensure(
        self,
        id: str | None = None,
        image: str | None = None,
        mode: Literal["docker", "k8s"] | None = None,
        restore_snapshot_id: str | Snapshot | None = None,
        fresh: bool = False,
        cpus: float | None = None,
        memory_bytes: int | None = None,
        pids: int | None = None,
        disk_bytes: int | None = None,
        network: Literal["none", "host", "bridge"] | None = None,
        user: str | None = None,
        read_only: bool | None = None,
        working_dir: str | PathLike[str] | None = None,
        volumes: Sequence[model.Volume] | None = None,
        env: dict[str, str] | None = None,
        secrets: dict[str, str] = {},
        labels: dict[str, str] | None = None,
        idle_timeout_s: float | None = None,
        max_lifetime_s: float | None = None,
        artifact_base_url: str | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Session:
        """Make a session ready: find it, create it, or bring it back from its
        latest snapshot.

        The session `id` of the caller's, or a new one, is made ready. One that
        is ready stays as it is.

        A new sandbox has the files of the snapshot `restore_snapshot_id`;
        without one of the session's latest, if there is any; with `fresh` those
        of the image alone. The other properties are as for `sandbox.create`,
        but for the `image`, which can be the reference of a container image,
        too, and the limits of time, which are the session's. Those that are
        left out are as they were when the session was made ready before. `mode`
        ``docker`` means the image's provider on this machine.

        `command_id` is an idempotency key: a repeated call has its effect once.
        `progress` is called with the messages of a long call.
        """
    def get(self, session_id: str | Session, *, progress: Callable[[str], None] | None = None) -> Session:
        """Show a session.

        A session, by the id that its owner calls it, or by its key.

        `progress` is called with the messages of a long call.
        """
    def list(
        self,
        all: bool = False,
        newest_first: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Session]:
        """List sessions.

        `all` adds those that failed or ended. They come oldest first, unless
        `newest_first`.

        `progress` is called with the messages of a long call.
        """

class SandboxFiles:
    def read(self, path: str | PathLike[str], *, max_bytes: int = 268435456) -> bytes:
        """Read a whole file. One that is written meanwhile may come as parts of
        both versions.

        Raises `not_found` for a path that is no file, and `invalid` for a file
        of more than `max_bytes`.
        """
    def read_text(
        self,
        path: str | PathLike[str],
        encoding: str = "utf-8",
        *,
        max_bytes: int = 268435456,
    ) -> str:
        """Read a whole file as text; see `read`. Raises UnicodeDecodeError for one
        that is not in that encoding.
        """
    def write(
        self,
        path: str | PathLike[str],
        data: bytes | str,
        *,
        mode: int | None = None,
    ) -> model.FileWritten:
        """Write a whole file atomically, and make directories that are missing.
        Text is written as UTF-8.

        An existing file keeps its mode unless `mode` says another. Raises
        `invalid` for more than 8 MiB: `sandkeep.transfer` copies larger files.
        """
    def ls(self, path: str | PathLike[str] = ".") -> builtins.list[model.FileEntry]:
        """List the files of a directory by name. Raises `not_found` for a path
        that is no directory, and `invalid` for one with more than 100,000
        files.
        """

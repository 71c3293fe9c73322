"""The methods and handles of the clients. Written by `make docs`: do not edit."""

# ruff: noqa: A002, PYI021

import builtins
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from os import PathLike
from typing import Any, Literal, Self

from sandkeep import model
from sandkeep.protocol import methods

class AsyncRpcMethods:
    async def discover(self, *, progress: Callable[[str], None] | None = None) -> dict[str, Any]:
        """Describe every method, as an OpenRPC document."""
    async def hello(self, client: str, *, progress: Callable[[str], None] | None = None) -> model.Welcome:
        """Record the client's name for this connection, and return the id of the event log."""

class AsyncDaemonMethods:
    async def ping(self, *, progress: Callable[[str], None] | None = None) -> model.Pong:
        """Check that the daemon answers."""
    async def status(self, *, progress: Callable[[str], None] | None = None) -> model.DaemonStatus:
        """Show the daemon's status."""
    async def capabilities(self, *, progress: Callable[[str], None] | None = None) -> model.Capabilities:
        """Show which features work on this machine, and why others do not."""
    async def shutdown(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Empty:
        """Stop the daemon; sandboxes and processes keep running."""

class AsyncQuotaMethods:
    async def get(
        self,
        owner: str | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.QuotaList:
        """Show an owner's quotas and their usage."""

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
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Image:
        """Create an image from a directory, a Dockerfile or a container image."""
    async def list(
        self,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ImageList:
        """List images."""
    async def get(self, image_id: str, *, progress: Callable[[str], None] | None = None) -> model.Image:
        """Show an image."""
    async def remove(
        self,
        image_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Image:
        """Remove an image."""

class AsyncProviderMethods:
    async def choose(
        self,
        enabled: bool = True,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.ProviderChoice:
        """Choose a provider: docker if it works here and is wanted, else local."""

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
        """Make a session ready: find it, create it, or bring it back from its latest snapshot."""
    async def get(self, session_id: str, *, progress: Callable[[str], None] | None = None) -> model.Session:
        """Show a session."""
    async def list(
        self,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SessionList:
        """List sessions."""
    async def heartbeat(
        self,
        session_id: str,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Session:
        """Keep a session from being idle."""
    async def close(
        self,
        session_id: str,
        snapshot: bool = True,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Session:
        """End the sandbox of a session, after a snapshot."""
    async def history(
        self,
        session_id: str,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.EventPage:
        """List the events of a session itself."""

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
        """Copy a file or directory out of a sandbox, where it outlives that."""
    async def get(
        self,
        artifact_id: str,
        inline_bytes: int = 0,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Artifact:
        """Show an artifact, with its digest."""
    async def list(
        self,
        sandbox_id: str | None = None,
        session_id: str | None = None,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ArtifactList:
        """List artifacts."""
    async def remove(
        self,
        artifact_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Artifact:
        """Remove an artifact."""

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
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Create and start a sandbox from an image."""
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
        """Attach a sandbox that another daemon shares, as it was saved last."""
    async def detach(
        self,
        sandbox_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Save a shared sandbox, and let other daemons have it."""
    async def get(self, sandbox_id: str, *, progress: Callable[[str], None] | None = None) -> model.Sandbox:
        """Show a sandbox."""
    async def list(
        self,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SandboxList:
        """List sandboxes."""
    async def stats(
        self,
        sandbox_id: str | None = None,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SandboxStatsList:
        """Show the resource usage of running sandboxes: CPU, memory, processes, I/O."""
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
        """Run a command to its end and return its output."""
    async def terminate(
        self,
        sandbox_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Terminate a sandbox and all its processes."""
    async def update(
        self,
        sandbox_id: str,
        disk_bytes: int,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Change the disk limit of a sandbox."""
    async def suspend(
        self,
        sandbox_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Freeze a sandbox."""
    async def resume(
        self,
        sandbox_id: str,
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Resume a suspended sandbox, or restart a lost or failed one from its files."""
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
        """Create sandboxes with the files of another."""
    async def diff(
        self,
        sandbox_id: str,
        other: str | None = None,
        paths: Sequence[str | PathLike[str]] = [],
        unified: bool = False,
        lines: bool = False,
        limit: int = 10000,
        max_bytes: int = 1048576,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Diff:
        """Compare a sandbox's workspace with another, a snapshot, an image, or its beginning."""
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
        """Replace a sandbox's files with those of a snapshot, or restore it to a checkpoint."""
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
        """Create a sandbox from the newest snapshot or checkpoint of another at or before a moment."""
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
        """Read a piece of a file."""
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
        """Write a file atomically."""
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
        """List the files of a directory."""
    async def copy_commit(
        self,
        sandbox_id: str,
        transfer_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Copied:
        """Commit a copy into a sandbox, once all of it was written."""
    async def history(
        self,
        sandbox_id: str,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.EventPage:
        """List the events of a sandbox and its processes."""

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
        """Create branches of a directory, an image, a snapshot or a sandbox."""
    async def list(
        self,
        image_id: str | None = None,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.BranchList:
        """List sandboxes with their bases and lineage."""
    async def diff(
        self,
        sandbox_id: str,
        other: str | None = None,
        paths: Sequence[str | PathLike[str]] = [],
        unified: bool = False,
        lines: bool = False,
        limit: int = 10000,
        max_bytes: int = 1048576,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Diff:
        """Compare a branch with its base or with another: see sandbox.diff."""
    async def merge(
        self,
        sandbox_ids: Sequence[str],
        name: str | None = None,
        policy: Literal["fail", "ours", "union", "markers"] = "fail",
        ours: str | None = None,
        takes: dict[str, str] = {},
        labels: dict[str, str] = {},
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Merged:
        """Merge branches into a new sandbox, over their nearest common base."""
    async def resolve(
        self,
        merge_id: str,
        decisions: Sequence[model.Resolution],
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Merged:
        """Decide conflicts of a merge, and go on with it."""
    async def merges(
        self,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.MergeList:
        """List merges."""
    async def conflicts(
        self,
        merge_id: str,
        after: int = 0,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ConflictList:
        """List the conflicts of a merge."""
    async def read_version(
        self,
        merge_id: str,
        sha256: str,
        offset: int = 0,
        max_bytes: int = 4194304,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.FileContent:
        """Read a piece of one version of a file in a conflict."""
    async def abandon(
        self,
        merge_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Merge:
        """Give up a merge that has conflicts."""
    async def plan(
        self,
        sandbox_id: str,
        target: str | PathLike[str],
        limit: int = 10000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.CommitPlan:
        """Show what a commit of a branch would do to a directory of the host."""
    async def commit(
        self,
        sandbox_id: str,
        target: str | PathLike[str],
        force: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Commit:
        """Apply a branch's changes to a directory of the host, all or none."""
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
        """Show which branch each path of a merge, a commit or a branch came from."""
    async def remove(
        self,
        sandbox_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """End a branch."""

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
        """Start a command in the background."""
    async def get(
        self,
        sandbox_id: str,
        name: str,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Process:
        """Show a process."""
    async def list(
        self,
        sandbox_id: str | None = None,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ProcessList:
        """List processes."""
    async def wait(
        self,
        sandbox_id: str,
        name: str,
        timeout_s: float | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Process:
        """Wait until a process exits."""
    async def signal(
        self,
        sandbox_id: str,
        name: str,
        signal: str = "TERM",
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Process:
        """Send a signal to a process and its group."""
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
        """Write to a process's input, or close it."""
    async def read(
        self,
        sandbox_id: str,
        name: str,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        max_bytes: int = 1048576,
        wait_s: float = 0,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ProcessOutput:
        """Read the output of a process, from byte offsets."""
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
        """Resize the terminal of a process that has no client attached."""

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
        """Snapshot the files of a sandbox as an archive."""
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
        """List snapshots."""
    async def get(self, snapshot_id: str, *, progress: Callable[[str], None] | None = None) -> model.Snapshot:
        """Show a snapshot."""
    async def delete(
        self,
        snapshot_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Snapshot:
        """Delete a snapshot."""
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
        """Create and start a sandbox from a snapshot."""
    async def promote(
        self,
        snapshot_id: str,
        labels: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Image:
        """Create an image from a snapshot."""
    async def gc(
        self,
        dry_run: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.SnapshotGcReport:
        """Delete expired snapshots, and archives that no event references."""

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
        """Checkpoint a sandbox with its processes."""
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
        """List checkpoints."""
    async def get(
        self,
        checkpoint_id: str,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Checkpoint:
        """Show a checkpoint."""
    async def delete(
        self,
        checkpoint_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Checkpoint:
        """Delete a checkpoint."""
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
        """Create sandboxes from a checkpoint, with its processes running."""

class AsyncStreamMethods:
    async def access(
        self,
        renew: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.StreamAccess:
        """Return the stream server's addresses, and for TCP the caller's token and the server's pin."""

class AsyncLockMethods:
    async def acquire(
        self,
        name: str,
        timeout_s: float = 30.0,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Lock:
        """Acquire the lock of a shared sandbox, and hold it until it is released."""
    async def release(
        self,
        name: str,
        force: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Lock:
        """Release a lock."""
    async def get(self, name: str, *, progress: Callable[[str], None] | None = None) -> model.Lock:
        """Show a lock."""
    async def list(
        self,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.LockList:
        """List the locks that this daemon holds."""

class AsyncKeyMethods:
    async def create(self, name: str, *, progress: Callable[[str], None] | None = None) -> model.NewKey:
        """Create an API key for the HTTP gateway. It is shown once."""
    async def list(self, *, progress: Callable[[str], None] | None = None) -> model.KeyList:
        """List the API keys of the HTTP gateway."""
    async def remove(self, name: str, *, progress: Callable[[str], None] | None = None) -> model.ApiKey:
        """Remove an API key: it is refused from now on."""

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
        """List events in commit order."""
    async def state_at(
        self,
        sandbox_id: str,
        position: int | str,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SandboxAt:
        """Show a sandbox as it was after an event."""

class AsyncStoreMethods:
    async def verify(self, *, progress: Callable[[str], None] | None = None) -> model.VerifyReport:
        """Check the event log and every metadata.json."""
    async def compact(
        self,
        older_than_s: float | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.CompactReport:
        """Archive the events of objects that ended long ago."""
    async def redact(
        self,
        position: int,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.RedactReport:
        """Remove a caller's data in an event from the log and the archive."""
    async def rebuild(self, *, progress: Callable[[str], None] | None = None) -> model.RebuildReport:
        """Rebuild every metadata.json from the event log."""

class AsyncMethods:
    rpc: AsyncRpcMethods
    daemon: AsyncDaemonMethods
    quota: AsyncQuotaMethods
    image: AsyncImageMethods
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
    snapshots: AsyncSnapshots
    checkpoints: AsyncCheckpoints
    artifacts: AsyncArtifacts

class AsyncSandbox:
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
    async def detach(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSandbox:
        """Save a shared sandbox, and let other daemons have it."""
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
        """Run a command to its end and return its output."""
    async def terminate(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSandbox:
        """Terminate a sandbox and all its processes."""
    async def update(
        self,
        disk_bytes: int,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSandbox:
        """Change the disk limit of a sandbox."""
    async def suspend(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSandbox:
        """Freeze a sandbox."""
    async def resume(
        self,
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSandbox:
        """Resume a suspended sandbox, or restart a lost or failed one from its
        files."""
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
        """Create sandboxes with the files of another."""
    async def diff(
        self,
        other: str | None = None,
        paths: Sequence[str | PathLike[str]] = [],
        unified: bool = False,
        lines: bool = False,
        limit: int = 10000,
        max_bytes: int = 1048576,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Diff:
        """Compare a sandbox's workspace with another, a snapshot, an image, or its
        beginning."""
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
        checkpoint."""
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
        before a moment."""
    async def history(
        self,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.EventPage:
        """List the events of a sandbox and its processes."""
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
        """Snapshot the files of a sandbox as an archive."""
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
        """Checkpoint a sandbox with its processes."""
    def events(
        self,
        after: str | None = None,
        *,
        type: str | None = None,
        follow: bool = True,
    ) -> AsyncIterator[model.Event]:
        """Iterate over the sandbox's events after a token, and wait for more,
        unless `follow` is false."""
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

class AsyncProcess:
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
    async def refresh(self, *, progress: Callable[[str], None] | None = None) -> AsyncProcess:
        """Get the present view of the object as `info`, and return the handle."""
    async def wait(
        self,
        timeout_s: float | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncProcess:
        """Wait until a process exits."""
    async def signal(
        self,
        signal: str = "TERM",
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncProcess:
        """Send a signal to a process and its group."""
    async def write_stdin(
        self,
        data: bytes | str = b"",
        eof: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> methods.Written:
        """Write to a process's input, or close it."""
    async def read(
        self,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        max_bytes: int = 1048576,
        wait_s: float = 0,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ProcessOutput:
        """Read the output of a process, from byte offsets."""
    async def resize(
        self,
        rows: int,
        cols: int,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncProcess:
        """Resize the terminal of a process that has no client attached."""
    def output(
        self,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        *,
        follow: bool = True,
    ) -> AsyncIterator[model.ProcessOutput]:
        """Iterate over the output from byte offsets until the process's end;
        without `follow`, the present output."""

class AsyncImage:
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
    async def refresh(self, *, progress: Callable[[str], None] | None = None) -> AsyncImage:
        """Get the present view of the object as `info`, and return the handle."""
    async def remove(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncImage:
        """Remove an image."""

class AsyncSnapshot:
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
    async def refresh(self, *, progress: Callable[[str], None] | None = None) -> AsyncSnapshot:
        """Get the present view of the object as `info`, and return the handle."""
    async def delete(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSnapshot:
        """Delete a snapshot."""
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
        """Create and start a sandbox from a snapshot."""
    async def promote(
        self,
        labels: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncImage:
        """Create an image from a snapshot."""

class AsyncCheckpoint:
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
    async def refresh(self, *, progress: Callable[[str], None] | None = None) -> AsyncCheckpoint:
        """Get the present view of the object as `info`, and return the handle."""
    async def delete(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncCheckpoint:
        """Delete a checkpoint."""
    async def restore(
        self,
        count: int = 1,
        names: Sequence[str] = [],
        labels: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncSandbox]:
        """Create sandboxes from a checkpoint, with its processes running."""

class AsyncArtifact:
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
        """Remove an artifact."""

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
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSandbox:
        """Create and start a sandbox from an image."""
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
        """Attach a sandbox that another daemon shares, as it was saved last."""
    async def get(
        self,
        sandbox_id: str | AsyncSandbox,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSandbox:
        """Show a sandbox."""
    async def list(
        self,
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncSandbox]:
        """List sandboxes."""
    async def stats(
        self,
        sandbox_id: str | AsyncSandbox | None = None,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SandboxStatsList:
        """Show the resource usage of running sandboxes: CPU, memory, processes,
        I/O."""

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
        """Start a command in the background."""
    async def get(self, name: str, *, progress: Callable[[str], None] | None = None) -> AsyncProcess:
        """Show a process."""
    async def list(
        self,
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncProcess]:
        """List processes."""

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
        """Snapshot the files of a sandbox as an archive."""
    async def list(
        self,
        name: str | None = None,
        labels: dict[str, str] = {},
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncSnapshot]:
        """List snapshots."""

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
        """Checkpoint a sandbox with its processes."""
    async def list(
        self,
        name: str | None = None,
        labels: dict[str, str] = {},
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncCheckpoint]:
        """List checkpoints."""

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
        """Copy a file or directory out of a sandbox, where it outlives that."""
    async def list(
        self,
        session_id: str | None = None,
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncArtifact]:
        """List artifacts."""

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
        """Start a command in the background."""
    async def get(
        self,
        sandbox_id: str | AsyncSandbox,
        name: str,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncProcess:
        """Show a process."""
    async def list(
        self,
        sandbox_id: str | AsyncSandbox | None = None,
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncProcess]:
        """List processes."""

class AsyncImages:
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
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncImage:
        """Create an image from a directory, a Dockerfile or a container image."""
    async def list(
        self,
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncImage]:
        """List images."""
    async def get(
        self,
        image_id: str | AsyncImage,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncImage:
        """Show an image."""

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
        """Snapshot the files of a sandbox as an archive."""
    async def list(
        self,
        sandbox_id: str | AsyncSandbox | None = None,
        name: str | None = None,
        labels: dict[str, str] = {},
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncSnapshot]:
        """List snapshots."""
    async def get(
        self,
        snapshot_id: str | AsyncSnapshot,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncSnapshot:
        """Show a snapshot."""
    async def gc(
        self,
        dry_run: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.SnapshotGcReport:
        """Delete expired snapshots, and archives that no event references."""

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
        """Checkpoint a sandbox with its processes."""
    async def list(
        self,
        sandbox_id: str | AsyncSandbox | None = None,
        name: str | None = None,
        labels: dict[str, str] = {},
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncCheckpoint]:
        """List checkpoints."""
    async def get(
        self,
        checkpoint_id: str | AsyncCheckpoint,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncCheckpoint:
        """Show a checkpoint."""

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
        """Copy a file or directory out of a sandbox, where it outlives that."""
    async def get(
        self,
        artifact_id: str | AsyncArtifact,
        inline_bytes: int = 0,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> AsyncArtifact:
        """Show an artifact, with its digest."""
    async def list(
        self,
        sandbox_id: str | AsyncSandbox | None = None,
        session_id: str | None = None,
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[AsyncArtifact]:
        """List artifacts."""

class AsyncSandboxFiles:
    async def read(self, path: str | PathLike[str]) -> bytes:
        """Read a whole file. One that is written meanwhile may come as parts of
        both versions."""
    async def read_text(self, path: str | PathLike[str], encoding: str = "utf-8") -> str:
        """Read a whole file as text; see `read`. Raises UnicodeDecodeError for one
        that is not in that encoding."""
    async def write(
        self,
        path: str | PathLike[str],
        data: bytes | str,
        *,
        mode: int | None = None,
    ) -> model.FileWritten:
        """Write a whole file atomically, and make directories that are missing.
        Text is written as UTF-8."""
    async def ls(self, path: str | PathLike[str] = ".") -> builtins.list[model.FileEntry]:
        """List the files of a directory by name. Raises `not_found` for a path
        that is no directory."""

class BlockingRpcMethods:
    def discover(self, *, progress: Callable[[str], None] | None = None) -> dict[str, Any]:
        """Describe every method, as an OpenRPC document."""
    def hello(self, client: str, *, progress: Callable[[str], None] | None = None) -> model.Welcome:
        """Record the client's name for this connection, and return the id of the event log."""

class BlockingDaemonMethods:
    def ping(self, *, progress: Callable[[str], None] | None = None) -> model.Pong:
        """Check that the daemon answers."""
    def status(self, *, progress: Callable[[str], None] | None = None) -> model.DaemonStatus:
        """Show the daemon's status."""
    def capabilities(self, *, progress: Callable[[str], None] | None = None) -> model.Capabilities:
        """Show which features work on this machine, and why others do not."""
    def shutdown(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Empty:
        """Stop the daemon; sandboxes and processes keep running."""

class BlockingQuotaMethods:
    def get(
        self,
        owner: str | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.QuotaList:
        """Show an owner's quotas and their usage."""

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
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Image:
        """Create an image from a directory, a Dockerfile or a container image."""
    def list(
        self,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ImageList:
        """List images."""
    def get(self, image_id: str, *, progress: Callable[[str], None] | None = None) -> model.Image:
        """Show an image."""
    def remove(
        self,
        image_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Image:
        """Remove an image."""

class BlockingProviderMethods:
    def choose(
        self,
        enabled: bool = True,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.ProviderChoice:
        """Choose a provider: docker if it works here and is wanted, else local."""

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
        """Make a session ready: find it, create it, or bring it back from its latest snapshot."""
    def get(self, session_id: str, *, progress: Callable[[str], None] | None = None) -> model.Session:
        """Show a session."""
    def list(
        self,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SessionList:
        """List sessions."""
    def heartbeat(self, session_id: str, *, progress: Callable[[str], None] | None = None) -> model.Session:
        """Keep a session from being idle."""
    def close(
        self,
        session_id: str,
        snapshot: bool = True,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Session:
        """End the sandbox of a session, after a snapshot."""
    def history(
        self,
        session_id: str,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.EventPage:
        """List the events of a session itself."""

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
        """Copy a file or directory out of a sandbox, where it outlives that."""
    def get(
        self,
        artifact_id: str,
        inline_bytes: int = 0,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Artifact:
        """Show an artifact, with its digest."""
    def list(
        self,
        sandbox_id: str | None = None,
        session_id: str | None = None,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ArtifactList:
        """List artifacts."""
    def remove(
        self,
        artifact_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Artifact:
        """Remove an artifact."""

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
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Create and start a sandbox from an image."""
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
        """Attach a sandbox that another daemon shares, as it was saved last."""
    def detach(
        self,
        sandbox_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Save a shared sandbox, and let other daemons have it."""
    def get(self, sandbox_id: str, *, progress: Callable[[str], None] | None = None) -> model.Sandbox:
        """Show a sandbox."""
    def list(
        self,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SandboxList:
        """List sandboxes."""
    def stats(
        self,
        sandbox_id: str | None = None,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SandboxStatsList:
        """Show the resource usage of running sandboxes: CPU, memory, processes, I/O."""
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
        """Run a command to its end and return its output."""
    def terminate(
        self,
        sandbox_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Terminate a sandbox and all its processes."""
    def update(
        self,
        sandbox_id: str,
        disk_bytes: int,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Change the disk limit of a sandbox."""
    def suspend(
        self,
        sandbox_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Freeze a sandbox."""
    def resume(
        self,
        sandbox_id: str,
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """Resume a suspended sandbox, or restart a lost or failed one from its files."""
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
        """Create sandboxes with the files of another."""
    def diff(
        self,
        sandbox_id: str,
        other: str | None = None,
        paths: Sequence[str | PathLike[str]] = [],
        unified: bool = False,
        lines: bool = False,
        limit: int = 10000,
        max_bytes: int = 1048576,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Diff:
        """Compare a sandbox's workspace with another, a snapshot, an image, or its beginning."""
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
        """Replace a sandbox's files with those of a snapshot, or restore it to a checkpoint."""
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
        """Create a sandbox from the newest snapshot or checkpoint of another at or before a moment."""
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
        """Read a piece of a file."""
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
        """Write a file atomically."""
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
        """List the files of a directory."""
    def copy_commit(
        self,
        sandbox_id: str,
        transfer_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Copied:
        """Commit a copy into a sandbox, once all of it was written."""
    def history(
        self,
        sandbox_id: str,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.EventPage:
        """List the events of a sandbox and its processes."""

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
        """Create branches of a directory, an image, a snapshot or a sandbox."""
    def list(
        self,
        image_id: str | None = None,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.BranchList:
        """List sandboxes with their bases and lineage."""
    def diff(
        self,
        sandbox_id: str,
        other: str | None = None,
        paths: Sequence[str | PathLike[str]] = [],
        unified: bool = False,
        lines: bool = False,
        limit: int = 10000,
        max_bytes: int = 1048576,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Diff:
        """Compare a branch with its base or with another: see sandbox.diff."""
    def merge(
        self,
        sandbox_ids: Sequence[str],
        name: str | None = None,
        policy: Literal["fail", "ours", "union", "markers"] = "fail",
        ours: str | None = None,
        takes: dict[str, str] = {},
        labels: dict[str, str] = {},
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Merged:
        """Merge branches into a new sandbox, over their nearest common base."""
    def resolve(
        self,
        merge_id: str,
        decisions: Sequence[model.Resolution],
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Merged:
        """Decide conflicts of a merge, and go on with it."""
    def merges(
        self,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.MergeList:
        """List merges."""
    def conflicts(
        self,
        merge_id: str,
        after: int = 0,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ConflictList:
        """List the conflicts of a merge."""
    def read_version(
        self,
        merge_id: str,
        sha256: str,
        offset: int = 0,
        max_bytes: int = 4194304,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.FileContent:
        """Read a piece of one version of a file in a conflict."""
    def abandon(
        self,
        merge_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Merge:
        """Give up a merge that has conflicts."""
    def plan(
        self,
        sandbox_id: str,
        target: str | PathLike[str],
        limit: int = 10000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.CommitPlan:
        """Show what a commit of a branch would do to a directory of the host."""
    def commit(
        self,
        sandbox_id: str,
        target: str | PathLike[str],
        force: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Commit:
        """Apply a branch's changes to a directory of the host, all or none."""
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
        """Show which branch each path of a merge, a commit or a branch came from."""
    def remove(
        self,
        sandbox_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Sandbox:
        """End a branch."""

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
        """Start a command in the background."""
    def get(
        self,
        sandbox_id: str,
        name: str,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Process:
        """Show a process."""
    def list(
        self,
        sandbox_id: str | None = None,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ProcessList:
        """List processes."""
    def wait(
        self,
        sandbox_id: str,
        name: str,
        timeout_s: float | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Process:
        """Wait until a process exits."""
    def signal(
        self,
        sandbox_id: str,
        name: str,
        signal: str = "TERM",
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Process:
        """Send a signal to a process and its group."""
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
        """Write to a process's input, or close it."""
    def read(
        self,
        sandbox_id: str,
        name: str,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        max_bytes: int = 1048576,
        wait_s: float = 0,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ProcessOutput:
        """Read the output of a process, from byte offsets."""
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
        """Resize the terminal of a process that has no client attached."""

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
        """Snapshot the files of a sandbox as an archive."""
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
        """List snapshots."""
    def get(self, snapshot_id: str, *, progress: Callable[[str], None] | None = None) -> model.Snapshot:
        """Show a snapshot."""
    def delete(
        self,
        snapshot_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Snapshot:
        """Delete a snapshot."""
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
        """Create and start a sandbox from a snapshot."""
    def promote(
        self,
        snapshot_id: str,
        labels: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Image:
        """Create an image from a snapshot."""
    def gc(
        self,
        dry_run: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.SnapshotGcReport:
        """Delete expired snapshots, and archives that no event references."""

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
        """Checkpoint a sandbox with its processes."""
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
        """List checkpoints."""
    def get(self, checkpoint_id: str, *, progress: Callable[[str], None] | None = None) -> model.Checkpoint:
        """Show a checkpoint."""
    def delete(
        self,
        checkpoint_id: str,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Checkpoint:
        """Delete a checkpoint."""
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
        """Create sandboxes from a checkpoint, with its processes running."""

class BlockingStreamMethods:
    def access(
        self,
        renew: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.StreamAccess:
        """Return the stream server's addresses, and for TCP the caller's token and the server's pin."""

class BlockingLockMethods:
    def acquire(
        self,
        name: str,
        timeout_s: float = 30.0,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Lock:
        """Acquire the lock of a shared sandbox, and hold it until it is released."""
    def release(
        self,
        name: str,
        force: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.Lock:
        """Release a lock."""
    def get(self, name: str, *, progress: Callable[[str], None] | None = None) -> model.Lock:
        """Show a lock."""
    def list(
        self,
        all: bool = False,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.LockList:
        """List the locks that this daemon holds."""

class BlockingKeyMethods:
    def create(self, name: str, *, progress: Callable[[str], None] | None = None) -> model.NewKey:
        """Create an API key for the HTTP gateway. It is shown once."""
    def list(self, *, progress: Callable[[str], None] | None = None) -> model.KeyList:
        """List the API keys of the HTTP gateway."""
    def remove(self, name: str, *, progress: Callable[[str], None] | None = None) -> model.ApiKey:
        """Remove an API key: it is refused from now on."""

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
        """List events in commit order."""
    def state_at(
        self,
        sandbox_id: str,
        position: int | str,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SandboxAt:
        """Show a sandbox as it was after an event."""

class BlockingStoreMethods:
    def verify(self, *, progress: Callable[[str], None] | None = None) -> model.VerifyReport:
        """Check the event log and every metadata.json."""
    def compact(
        self,
        older_than_s: float | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.CompactReport:
        """Archive the events of objects that ended long ago."""
    def redact(self, position: int, *, progress: Callable[[str], None] | None = None) -> model.RedactReport:
        """Remove a caller's data in an event from the log and the archive."""
    def rebuild(self, *, progress: Callable[[str], None] | None = None) -> model.RebuildReport:
        """Rebuild every metadata.json from the event log."""

class BlockingMethods:
    rpc: BlockingRpcMethods
    daemon: BlockingDaemonMethods
    quota: BlockingQuotaMethods
    image: BlockingImageMethods
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
    snapshots: Snapshots
    checkpoints: Checkpoints
    artifacts: Artifacts

class Sandbox:
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
    def detach(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Sandbox:
        """Save a shared sandbox, and let other daemons have it."""
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
        """Run a command to its end and return its output."""
    def terminate(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Sandbox:
        """Terminate a sandbox and all its processes."""
    def update(
        self,
        disk_bytes: int,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Sandbox:
        """Change the disk limit of a sandbox."""
    def suspend(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Sandbox:
        """Freeze a sandbox."""
    def resume(
        self,
        secrets: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Sandbox:
        """Resume a suspended sandbox, or restart a lost or failed one from its
        files."""
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
        """Create sandboxes with the files of another."""
    def diff(
        self,
        other: str | None = None,
        paths: Sequence[str | PathLike[str]] = [],
        unified: bool = False,
        lines: bool = False,
        limit: int = 10000,
        max_bytes: int = 1048576,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.Diff:
        """Compare a sandbox's workspace with another, a snapshot, an image, or its
        beginning."""
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
        checkpoint."""
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
        before a moment."""
    def history(
        self,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.EventPage:
        """List the events of a sandbox and its processes."""
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
        """Snapshot the files of a sandbox as an archive."""
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
        """Checkpoint a sandbox with its processes."""
    def events(
        self,
        after: str | None = None,
        *,
        type: str | None = None,
        follow: bool = True,
    ) -> Iterator[model.Event]:
        """Iterate over the sandbox's events after a token, and wait for more,
        unless `follow` is false."""
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

class Process:
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
    def refresh(self, *, progress: Callable[[str], None] | None = None) -> Process:
        """Get the present view of the object as `info`, and return the handle."""
    def wait(
        self,
        timeout_s: float | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> Process:
        """Wait until a process exits."""
    def signal(
        self,
        signal: str = "TERM",
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Process:
        """Send a signal to a process and its group."""
    def write_stdin(
        self,
        data: bytes | str = b"",
        eof: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> methods.Written:
        """Write to a process's input, or close it."""
    def read(
        self,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        max_bytes: int = 1048576,
        wait_s: float = 0,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.ProcessOutput:
        """Read the output of a process, from byte offsets."""
    def resize(
        self,
        rows: int,
        cols: int,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Process:
        """Resize the terminal of a process that has no client attached."""
    def output(
        self,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        *,
        follow: bool = True,
    ) -> Iterator[model.ProcessOutput]:
        """Iterate over the output from byte offsets until the process's end;
        without `follow`, the present output."""

class Image:
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
    def refresh(self, *, progress: Callable[[str], None] | None = None) -> Image:
        """Get the present view of the object as `info`, and return the handle."""
    def remove(self, *, command_id: str | None = None, progress: Callable[[str], None] | None = None) -> Image:
        """Remove an image."""

class Snapshot:
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
    def refresh(self, *, progress: Callable[[str], None] | None = None) -> Snapshot:
        """Get the present view of the object as `info`, and return the handle."""
    def delete(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Snapshot:
        """Delete a snapshot."""
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
        """Create and start a sandbox from a snapshot."""
    def promote(
        self,
        labels: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Image:
        """Create an image from a snapshot."""

class Checkpoint:
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
    def refresh(self, *, progress: Callable[[str], None] | None = None) -> Checkpoint:
        """Get the present view of the object as `info`, and return the handle."""
    def delete(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Checkpoint:
        """Delete a checkpoint."""
    def restore(
        self,
        count: int = 1,
        names: Sequence[str] = [],
        labels: dict[str, str] = {},
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Sandbox]:
        """Create sandboxes from a checkpoint, with its processes running."""

class Artifact:
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
    def refresh(self, inline_bytes: int = 0, *, progress: Callable[[str], None] | None = None) -> Artifact:
        """Get the present view of the object as `info`, and return the handle."""
    def remove(
        self,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Artifact:
        """Remove an artifact."""

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
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Sandbox:
        """Create and start a sandbox from an image."""
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
        """Attach a sandbox that another daemon shares, as it was saved last."""
    def get(self, sandbox_id: str | Sandbox, *, progress: Callable[[str], None] | None = None) -> Sandbox:
        """Show a sandbox."""
    def list(self, all: bool = False, *, progress: Callable[[str], None] | None = None) -> builtins.list[Sandbox]:
        """List sandboxes."""
    def stats(
        self,
        sandbox_id: str | Sandbox | None = None,
        after: str | None = None,
        limit: int = 1000,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> model.SandboxStatsList:
        """Show the resource usage of running sandboxes: CPU, memory, processes,
        I/O."""

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
        """Start a command in the background."""
    def get(self, name: str, *, progress: Callable[[str], None] | None = None) -> Process:
        """Show a process."""
    def list(self, all: bool = False, *, progress: Callable[[str], None] | None = None) -> builtins.list[Process]:
        """List processes."""

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
        """Snapshot the files of a sandbox as an archive."""
    def list(
        self,
        name: str | None = None,
        labels: dict[str, str] = {},
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Snapshot]:
        """List snapshots."""

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
        """Checkpoint a sandbox with its processes."""
    def list(
        self,
        name: str | None = None,
        labels: dict[str, str] = {},
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Checkpoint]:
        """List checkpoints."""

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
        """Copy a file or directory out of a sandbox, where it outlives that."""
    def list(
        self,
        session_id: str | None = None,
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Artifact]:
        """List artifacts."""

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
        """Start a command in the background."""
    def get(
        self,
        sandbox_id: str | Sandbox,
        name: str,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> Process:
        """Show a process."""
    def list(
        self,
        sandbox_id: str | Sandbox | None = None,
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Process]:
        """List processes."""

class Images:
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
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Image:
        """Create an image from a directory, a Dockerfile or a container image."""
    def list(self, all: bool = False, *, progress: Callable[[str], None] | None = None) -> builtins.list[Image]:
        """List images."""
    def get(self, image_id: str | Image, *, progress: Callable[[str], None] | None = None) -> Image:
        """Show an image."""

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
        """Snapshot the files of a sandbox as an archive."""
    def list(
        self,
        sandbox_id: str | Sandbox | None = None,
        name: str | None = None,
        labels: dict[str, str] = {},
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Snapshot]:
        """List snapshots."""
    def get(self, snapshot_id: str | Snapshot, *, progress: Callable[[str], None] | None = None) -> Snapshot:
        """Show a snapshot."""
    def gc(
        self,
        dry_run: bool = False,
        *,
        command_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> model.SnapshotGcReport:
        """Delete expired snapshots, and archives that no event references."""

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
        """Checkpoint a sandbox with its processes."""
    def list(
        self,
        sandbox_id: str | Sandbox | None = None,
        name: str | None = None,
        labels: dict[str, str] = {},
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Checkpoint]:
        """List checkpoints."""
    def get(
        self,
        checkpoint_id: str | Checkpoint,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> Checkpoint:
        """Show a checkpoint."""

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
        """Copy a file or directory out of a sandbox, where it outlives that."""
    def get(
        self,
        artifact_id: str | Artifact,
        inline_bytes: int = 0,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> Artifact:
        """Show an artifact, with its digest."""
    def list(
        self,
        sandbox_id: str | Sandbox | None = None,
        session_id: str | None = None,
        all: bool = False,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> builtins.list[Artifact]:
        """List artifacts."""

class SandboxFiles:
    def read(self, path: str | PathLike[str]) -> bytes:
        """Read a whole file. One that is written meanwhile may come as parts of
        both versions."""
    def read_text(self, path: str | PathLike[str], encoding: str = "utf-8") -> str:
        """Read a whole file as text; see `read`. Raises UnicodeDecodeError for one
        that is not in that encoding."""
    def write(
        self,
        path: str | PathLike[str],
        data: bytes | str,
        *,
        mode: int | None = None,
    ) -> model.FileWritten:
        """Write a whole file atomically, and make directories that are missing.
        Text is written as UTF-8."""
    def ls(self, path: str | PathLike[str] = ".") -> builtins.list[model.FileEntry]:
        """List the files of a directory by name. Raises `not_found` for a path
        that is no directory."""

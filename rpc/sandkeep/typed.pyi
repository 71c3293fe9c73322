"""The methods of both clients. Written by `make docs`: do not edit."""

# ruff: noqa: A002, PYI021

from collections.abc import Callable, Sequence
from typing import Any, Literal

from sandkeep import model
from sandkeep.protocol import methods

class TrioRpc:
    async def discover(
        self,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> dict[str, Any]:
        """Describe every method, as an OpenRPC document."""
    async def hello(
        self,
        client: str,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Welcome:
        """Tell the client's name, for the record; hear which event log it is."""

class TrioDaemon:
    async def ping(
        self,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Pong:
        """See that the daemon answers."""
    async def status(
        self,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.DaemonStatus:
        """How the daemon is and what it looks after."""
    async def capabilities(
        self,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Capabilities:
        """What works on this machine, and why something does not."""
    async def shutdown(
        self,
        *,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Empty:
        """Stop the daemon; sandboxes and processes go on."""

class TrioImage:
    async def create(
        self,
        source: str,
        *,
        provider: str | None = ...,
        base: str | None = ...,
        dockerfile: str | None = ...,
        clean: bool = ...,
        labels: dict[str, str] = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Image:
        """Make an image of a directory, by a Dockerfile, or of a container image."""
    async def list(
        self,
        *,
        all: bool = ...,
        after: str | None = ...,
        limit: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.ImageList:
        """List images."""
    async def get(
        self,
        image_id: str,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Image:
        """Show an image."""
    async def remove(
        self,
        image_id: str,
        *,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Image:
        """Remove an image."""

class TrioProvider:
    async def choose(
        self,
        *,
        enabled: bool = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.ProviderChoice:
        """Which provider to use: docker if it works here and is wanted, else local."""

class TrioSandbox:
    async def create(
        self,
        image_id: str,
        *,
        name: str | None = ...,
        provider: str | None = ...,
        cpus: float | None = ...,
        memory_bytes: int | None = ...,
        pids: int | None = ...,
        disk_bytes: int | None = ...,
        network: Literal["none", "host", "bridge"] | None = ...,
        user: str | None = ...,
        read_only: bool = ...,
        working_dir: str | None = ...,
        isolation: Literal["default", "none"] = ...,
        volumes: Sequence[model.Volume] = ...,
        env: dict[str, str] = ...,
        secrets: dict[str, str] = ...,
        labels: dict[str, str] = ...,
        idle_timeout_s: float | None = ...,
        max_lifetime_s: float | None = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Sandbox:
        """Make a sandbox from an image and start it."""
    async def get(
        self,
        sandbox_id: str,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Sandbox:
        """Show a sandbox."""
    async def list(
        self,
        *,
        all: bool = ...,
        after: str | None = ...,
        limit: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.SandboxList:
        """List sandboxes."""
    async def stats(
        self,
        *,
        sandbox_id: str | None = ...,
        after: str | None = ...,
        limit: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.SandboxStatsList:
        """What running sandboxes use: cpu time, memory, processes, input and output."""
    async def exec(
        self,
        sandbox_id: str,
        command: Sequence[str] | str,
        *,
        env: dict[str, str] = ...,
        secrets: dict[str, str] = ...,
        working_dir: str | None = ...,
        stdin: bytes | None = ...,
        timeout_s: float | None = ...,
        inline_bytes: int = ...,
        durable: bool = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.ExecResult:
        """Run a command to its end and answer its output."""
    async def terminate(
        self,
        sandbox_id: str,
        *,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Sandbox:
        """End a sandbox and all that runs in it."""
    async def suspend(
        self,
        sandbox_id: str,
        *,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Sandbox:
        """Have everything in a sandbox stand still."""
    async def resume(
        self,
        sandbox_id: str,
        *,
        secrets: dict[str, str] = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Sandbox:
        """Have a suspended sandbox go on, or start one that was lost or failed anew on its files."""
    async def fork(
        self,
        sandbox_id: str,
        *,
        count: int = ...,
        names: Sequence[str] = ...,
        labels: dict[str, str] = ...,
        secrets: dict[str, str] = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.ForkResult:
        """Make sandboxes that begin with the files of one."""
    async def restore(
        self,
        sandbox_id: str,
        *,
        snapshot_id: str | None = ...,
        checkpoint_id: str | None = ...,
        end_processes: bool = ...,
        secrets: dict[str, str] = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Sandbox:
        """Replace a sandbox's own files by those of a snapshot, or have it be what it was at a checkpoint."""
    async def restore_at(
        self,
        sandbox_id: str,
        *,
        position: int | str | None = ...,
        time: str | None = ...,
        name: str | None = ...,
        labels: dict[str, str] = ...,
        env: dict[str, str] = ...,
        secrets: dict[str, str] = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.RestoredAt:
        """Make a sandbox from the newest of what was kept of one at or before a moment, and start it."""
    async def read_file(
        self,
        sandbox_id: str,
        *,
        path: str | None = ...,
        path_bytes: bytes | None = ...,
        offset: int = ...,
        max_bytes: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.FileContent:
        """Read a piece of a file."""
    async def write_file(
        self,
        sandbox_id: str,
        data: bytes,
        *,
        path: str | None = ...,
        path_bytes: bytes | None = ...,
        mode: int | None = ...,
        parents: bool = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.FileWritten:
        """Write a file, whole or not at all."""
    async def list_dir(
        self,
        sandbox_id: str,
        *,
        path: str | None = ...,
        path_bytes: bytes | None = ...,
        after: str | None = ...,
        limit: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.DirectoryList:
        """List the files of a directory."""
    async def copy_commit(
        self,
        sandbox_id: str,
        transfer_id: str,
        *,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Copied:
        """Make a copy into a sandbox effective, now that all of it was written."""
    async def history(
        self,
        sandbox_id: str,
        *,
        after: str | None = ...,
        limit: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.EventPage:
        """The events of a sandbox and of its processes."""

class TrioProcess:
    async def launch(
        self,
        sandbox_id: str,
        command: Sequence[str] | str,
        *,
        name: str | None = ...,
        env: dict[str, str] = ...,
        secrets: dict[str, str] = ...,
        working_dir: str | None = ...,
        stdin: bool = ...,
        tty: bool = ...,
        rows: int = ...,
        cols: int = ...,
        timeout_s: float | None = ...,
        durable: bool = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Process:
        """Start a command in the background."""
    async def get(
        self,
        sandbox_id: str,
        name: str,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Process:
        """Show a process."""
    async def list(
        self,
        *,
        sandbox_id: str | None = ...,
        all: bool = ...,
        after: str | None = ...,
        limit: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.ProcessList:
        """List processes."""
    async def wait(
        self,
        sandbox_id: str,
        name: str,
        *,
        timeout_s: float | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Process:
        """Wait until a process has ended."""
    async def signal(
        self,
        sandbox_id: str,
        name: str,
        *,
        signal: str = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Process:
        """Send a signal to a process and its group."""
    async def write_stdin(
        self,
        sandbox_id: str,
        name: str,
        *,
        data: bytes = ...,
        eof: bool = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> methods.Written:
        """Write to a process's input, or close it."""
    async def read(
        self,
        sandbox_id: str,
        name: str,
        *,
        stdout_offset: int = ...,
        stderr_offset: int = ...,
        max_bytes: int = ...,
        wait_s: float = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.ProcessOutput:
        """Read what a process wrote, from byte offsets."""
    async def resize(
        self,
        sandbox_id: str,
        name: str,
        rows: int,
        cols: int,
        *,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Process:
        """Resize the terminal of a process that nobody is attached to."""

class TrioSnapshot:
    async def create(
        self,
        sandbox_id: str,
        *,
        name: str | None = ...,
        labels: dict[str, str] = ...,
        include: Sequence[str] = ...,
        exclude: Sequence[str] = ...,
        format: Literal["tar.gz", "tar.zst"] = ...,
        incremental: bool = ...,
        parent_id: str | None = ...,
        archive: Literal["bucket"] | None = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Snapshot:
        """Keep the files of a sandbox as an archive."""
    async def list(
        self,
        *,
        sandbox_id: str | None = ...,
        name: str | None = ...,
        labels: dict[str, str] = ...,
        all: bool = ...,
        after: str | None = ...,
        limit: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.SnapshotList:
        """List snapshots."""
    async def get(
        self,
        snapshot_id: str,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Snapshot:
        """Show a snapshot."""
    async def delete(
        self,
        snapshot_id: str,
        *,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Snapshot:
        """Delete a snapshot."""
    async def restore(
        self,
        snapshot_id: str,
        *,
        name: str | None = ...,
        labels: dict[str, str] = ...,
        env: dict[str, str] = ...,
        secrets: dict[str, str] = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Sandbox:
        """Make a sandbox with the files of a snapshot and start it."""
    async def promote(
        self,
        snapshot_id: str,
        *,
        labels: dict[str, str] = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Image:
        """Make an image of a snapshot."""
    async def gc(
        self,
        *,
        dry_run: bool = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.SnapshotGcReport:
        """Delete snapshots that retention lets go, and archives that no event owns."""

class TrioCheckpoint:
    async def create(
        self,
        sandbox_id: str,
        *,
        name: str | None = ...,
        labels: dict[str, str] = ...,
        leave_running: bool = ...,
        archive: Literal["bucket"] | None = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Checkpoint:
        """Keep a sandbox with all that runs in it."""
    async def list(
        self,
        *,
        sandbox_id: str | None = ...,
        name: str | None = ...,
        labels: dict[str, str] = ...,
        all: bool = ...,
        after: str | None = ...,
        limit: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.CheckpointList:
        """List checkpoints."""
    async def get(
        self,
        checkpoint_id: str,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Checkpoint:
        """Show a checkpoint."""
    async def delete(
        self,
        checkpoint_id: str,
        *,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Checkpoint:
        """Delete a checkpoint."""
    async def restore(
        self,
        checkpoint_id: str,
        *,
        count: int = ...,
        names: Sequence[str] = ...,
        labels: dict[str, str] = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.CheckpointRestoreResult:
        """Make sandboxes of a checkpoint, in which all goes on that ran."""

class TrioStream:
    async def access(
        self,
        *,
        renew: bool = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.StreamAccess:
        """Where the stream server listens, and for TCP the caller's token and the server's pin."""

class TrioLock:
    async def acquire(
        self,
        name: str,
        *,
        timeout_s: float = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Lock:
        """Take the lock of a sandbox that daemons share, and keep it until it is released."""
    async def release(
        self,
        name: str,
        *,
        force: bool = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Lock:
        """Give a lock back."""
    async def get(
        self,
        name: str,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Lock:
        """Show a lock as this daemon has it."""
    async def list(
        self,
        *,
        all: bool = ...,
        after: str | None = ...,
        limit: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.LockList:
        """List the locks that this daemon holds."""

class TrioEvent:
    async def list(
        self,
        *,
        after: str | None = ...,
        sandbox_id: str | None = ...,
        type: str | None = ...,
        limit: int = ...,
        wait_s: float = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.EventPage:
        """Events in the order they were committed."""
    async def state_at(
        self,
        sandbox_id: str,
        position: int | str,
        *,
        limit: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.SandboxAt:
        """Show a sandbox as the record had it after any event."""

class TrioStore:
    async def verify(
        self,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.VerifyReport:
        """Check the event log and every metadata.json."""
    async def compact(
        self,
        *,
        older_than_s: float | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.CompactReport:
        """Move the events of what ended long ago into the archive."""
    async def redact(
        self,
        position: int,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.RedactReport:
        """Take what a caller put into an event out of the log and the archive."""
    async def rebuild(
        self,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.RebuildReport:
        """Write every metadata.json anew from the event log."""

class TrioMethods:
    rpc: TrioRpc
    daemon: TrioDaemon
    image: TrioImage
    provider: TrioProvider
    sandbox: TrioSandbox
    process: TrioProcess
    snapshot: TrioSnapshot
    checkpoint: TrioCheckpoint
    stream: TrioStream
    lock: TrioLock
    event: TrioEvent
    store: TrioStore

class BlockingRpc:
    def discover(
        self,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> dict[str, Any]:
        """Describe every method, as an OpenRPC document."""
    def hello(
        self,
        client: str,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Welcome:
        """Tell the client's name, for the record; hear which event log it is."""

class BlockingDaemon:
    def ping(
        self,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Pong:
        """See that the daemon answers."""
    def status(
        self,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.DaemonStatus:
        """How the daemon is and what it looks after."""
    def capabilities(
        self,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Capabilities:
        """What works on this machine, and why something does not."""
    def shutdown(
        self,
        *,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Empty:
        """Stop the daemon; sandboxes and processes go on."""

class BlockingImage:
    def create(
        self,
        source: str,
        *,
        provider: str | None = ...,
        base: str | None = ...,
        dockerfile: str | None = ...,
        clean: bool = ...,
        labels: dict[str, str] = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Image:
        """Make an image of a directory, by a Dockerfile, or of a container image."""
    def list(
        self,
        *,
        all: bool = ...,
        after: str | None = ...,
        limit: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.ImageList:
        """List images."""
    def get(
        self,
        image_id: str,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Image:
        """Show an image."""
    def remove(
        self,
        image_id: str,
        *,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Image:
        """Remove an image."""

class BlockingProvider:
    def choose(
        self,
        *,
        enabled: bool = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.ProviderChoice:
        """Which provider to use: docker if it works here and is wanted, else local."""

class BlockingSandbox:
    def create(
        self,
        image_id: str,
        *,
        name: str | None = ...,
        provider: str | None = ...,
        cpus: float | None = ...,
        memory_bytes: int | None = ...,
        pids: int | None = ...,
        disk_bytes: int | None = ...,
        network: Literal["none", "host", "bridge"] | None = ...,
        user: str | None = ...,
        read_only: bool = ...,
        working_dir: str | None = ...,
        isolation: Literal["default", "none"] = ...,
        volumes: Sequence[model.Volume] = ...,
        env: dict[str, str] = ...,
        secrets: dict[str, str] = ...,
        labels: dict[str, str] = ...,
        idle_timeout_s: float | None = ...,
        max_lifetime_s: float | None = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Sandbox:
        """Make a sandbox from an image and start it."""
    def get(
        self,
        sandbox_id: str,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Sandbox:
        """Show a sandbox."""
    def list(
        self,
        *,
        all: bool = ...,
        after: str | None = ...,
        limit: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.SandboxList:
        """List sandboxes."""
    def stats(
        self,
        *,
        sandbox_id: str | None = ...,
        after: str | None = ...,
        limit: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.SandboxStatsList:
        """What running sandboxes use: cpu time, memory, processes, input and output."""
    def exec(
        self,
        sandbox_id: str,
        command: Sequence[str] | str,
        *,
        env: dict[str, str] = ...,
        secrets: dict[str, str] = ...,
        working_dir: str | None = ...,
        stdin: bytes | None = ...,
        timeout_s: float | None = ...,
        inline_bytes: int = ...,
        durable: bool = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.ExecResult:
        """Run a command to its end and answer its output."""
    def terminate(
        self,
        sandbox_id: str,
        *,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Sandbox:
        """End a sandbox and all that runs in it."""
    def suspend(
        self,
        sandbox_id: str,
        *,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Sandbox:
        """Have everything in a sandbox stand still."""
    def resume(
        self,
        sandbox_id: str,
        *,
        secrets: dict[str, str] = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Sandbox:
        """Have a suspended sandbox go on, or start one that was lost or failed anew on its files."""
    def fork(
        self,
        sandbox_id: str,
        *,
        count: int = ...,
        names: Sequence[str] = ...,
        labels: dict[str, str] = ...,
        secrets: dict[str, str] = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.ForkResult:
        """Make sandboxes that begin with the files of one."""
    def restore(
        self,
        sandbox_id: str,
        *,
        snapshot_id: str | None = ...,
        checkpoint_id: str | None = ...,
        end_processes: bool = ...,
        secrets: dict[str, str] = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Sandbox:
        """Replace a sandbox's own files by those of a snapshot, or have it be what it was at a checkpoint."""
    def restore_at(
        self,
        sandbox_id: str,
        *,
        position: int | str | None = ...,
        time: str | None = ...,
        name: str | None = ...,
        labels: dict[str, str] = ...,
        env: dict[str, str] = ...,
        secrets: dict[str, str] = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.RestoredAt:
        """Make a sandbox from the newest of what was kept of one at or before a moment, and start it."""
    def read_file(
        self,
        sandbox_id: str,
        *,
        path: str | None = ...,
        path_bytes: bytes | None = ...,
        offset: int = ...,
        max_bytes: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.FileContent:
        """Read a piece of a file."""
    def write_file(
        self,
        sandbox_id: str,
        data: bytes,
        *,
        path: str | None = ...,
        path_bytes: bytes | None = ...,
        mode: int | None = ...,
        parents: bool = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.FileWritten:
        """Write a file, whole or not at all."""
    def list_dir(
        self,
        sandbox_id: str,
        *,
        path: str | None = ...,
        path_bytes: bytes | None = ...,
        after: str | None = ...,
        limit: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.DirectoryList:
        """List the files of a directory."""
    def copy_commit(
        self,
        sandbox_id: str,
        transfer_id: str,
        *,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Copied:
        """Make a copy into a sandbox effective, now that all of it was written."""
    def history(
        self,
        sandbox_id: str,
        *,
        after: str | None = ...,
        limit: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.EventPage:
        """The events of a sandbox and of its processes."""

class BlockingProcess:
    def launch(
        self,
        sandbox_id: str,
        command: Sequence[str] | str,
        *,
        name: str | None = ...,
        env: dict[str, str] = ...,
        secrets: dict[str, str] = ...,
        working_dir: str | None = ...,
        stdin: bool = ...,
        tty: bool = ...,
        rows: int = ...,
        cols: int = ...,
        timeout_s: float | None = ...,
        durable: bool = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Process:
        """Start a command in the background."""
    def get(
        self,
        sandbox_id: str,
        name: str,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Process:
        """Show a process."""
    def list(
        self,
        *,
        sandbox_id: str | None = ...,
        all: bool = ...,
        after: str | None = ...,
        limit: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.ProcessList:
        """List processes."""
    def wait(
        self,
        sandbox_id: str,
        name: str,
        *,
        timeout_s: float | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Process:
        """Wait until a process has ended."""
    def signal(
        self,
        sandbox_id: str,
        name: str,
        *,
        signal: str = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Process:
        """Send a signal to a process and its group."""
    def write_stdin(
        self,
        sandbox_id: str,
        name: str,
        *,
        data: bytes = ...,
        eof: bool = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> methods.Written:
        """Write to a process's input, or close it."""
    def read(
        self,
        sandbox_id: str,
        name: str,
        *,
        stdout_offset: int = ...,
        stderr_offset: int = ...,
        max_bytes: int = ...,
        wait_s: float = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.ProcessOutput:
        """Read what a process wrote, from byte offsets."""
    def resize(
        self,
        sandbox_id: str,
        name: str,
        rows: int,
        cols: int,
        *,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Process:
        """Resize the terminal of a process that nobody is attached to."""

class BlockingSnapshot:
    def create(
        self,
        sandbox_id: str,
        *,
        name: str | None = ...,
        labels: dict[str, str] = ...,
        include: Sequence[str] = ...,
        exclude: Sequence[str] = ...,
        format: Literal["tar.gz", "tar.zst"] = ...,
        incremental: bool = ...,
        parent_id: str | None = ...,
        archive: Literal["bucket"] | None = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Snapshot:
        """Keep the files of a sandbox as an archive."""
    def list(
        self,
        *,
        sandbox_id: str | None = ...,
        name: str | None = ...,
        labels: dict[str, str] = ...,
        all: bool = ...,
        after: str | None = ...,
        limit: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.SnapshotList:
        """List snapshots."""
    def get(
        self,
        snapshot_id: str,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Snapshot:
        """Show a snapshot."""
    def delete(
        self,
        snapshot_id: str,
        *,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Snapshot:
        """Delete a snapshot."""
    def restore(
        self,
        snapshot_id: str,
        *,
        name: str | None = ...,
        labels: dict[str, str] = ...,
        env: dict[str, str] = ...,
        secrets: dict[str, str] = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Sandbox:
        """Make a sandbox with the files of a snapshot and start it."""
    def promote(
        self,
        snapshot_id: str,
        *,
        labels: dict[str, str] = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Image:
        """Make an image of a snapshot."""
    def gc(
        self,
        *,
        dry_run: bool = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.SnapshotGcReport:
        """Delete snapshots that retention lets go, and archives that no event owns."""

class BlockingCheckpoint:
    def create(
        self,
        sandbox_id: str,
        *,
        name: str | None = ...,
        labels: dict[str, str] = ...,
        leave_running: bool = ...,
        archive: Literal["bucket"] | None = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Checkpoint:
        """Keep a sandbox with all that runs in it."""
    def list(
        self,
        *,
        sandbox_id: str | None = ...,
        name: str | None = ...,
        labels: dict[str, str] = ...,
        all: bool = ...,
        after: str | None = ...,
        limit: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.CheckpointList:
        """List checkpoints."""
    def get(
        self,
        checkpoint_id: str,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Checkpoint:
        """Show a checkpoint."""
    def delete(
        self,
        checkpoint_id: str,
        *,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Checkpoint:
        """Delete a checkpoint."""
    def restore(
        self,
        checkpoint_id: str,
        *,
        count: int = ...,
        names: Sequence[str] = ...,
        labels: dict[str, str] = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.CheckpointRestoreResult:
        """Make sandboxes of a checkpoint, in which all goes on that ran."""

class BlockingStream:
    def access(
        self,
        *,
        renew: bool = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.StreamAccess:
        """Where the stream server listens, and for TCP the caller's token and the server's pin."""

class BlockingLock:
    def acquire(
        self,
        name: str,
        *,
        timeout_s: float = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Lock:
        """Take the lock of a sandbox that daemons share, and keep it until it is released."""
    def release(
        self,
        name: str,
        *,
        force: bool = ...,
        command_id: str | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Lock:
        """Give a lock back."""
    def get(
        self,
        name: str,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.Lock:
        """Show a lock as this daemon has it."""
    def list(
        self,
        *,
        all: bool = ...,
        after: str | None = ...,
        limit: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.LockList:
        """List the locks that this daemon holds."""

class BlockingEvent:
    def list(
        self,
        *,
        after: str | None = ...,
        sandbox_id: str | None = ...,
        type: str | None = ...,
        limit: int = ...,
        wait_s: float = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.EventPage:
        """Events in the order they were committed."""
    def state_at(
        self,
        sandbox_id: str,
        position: int | str,
        *,
        limit: int = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.SandboxAt:
        """Show a sandbox as the record had it after any event."""

class BlockingStore:
    def verify(
        self,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.VerifyReport:
        """Check the event log and every metadata.json."""
    def compact(
        self,
        *,
        older_than_s: float | None = ...,
        progress: Callable[[str], None] | None = ...,
    ) -> model.CompactReport:
        """Move the events of what ended long ago into the archive."""
    def redact(
        self,
        position: int,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.RedactReport:
        """Take what a caller put into an event out of the log and the archive."""
    def rebuild(
        self,
        *,
        progress: Callable[[str], None] | None = ...,
    ) -> model.RebuildReport:
        """Write every metadata.json anew from the event log."""

class BlockingMethods:
    rpc: BlockingRpc
    daemon: BlockingDaemon
    image: BlockingImage
    provider: BlockingProvider
    sandbox: BlockingSandbox
    process: BlockingProcess
    snapshot: BlockingSnapshot
    checkpoint: BlockingCheckpoint
    stream: BlockingStream
    lock: BlockingLock
    event: BlockingEvent
    store: BlockingStore

"""The methods of both clients. Written by `make docs`: do not edit."""

# ruff: noqa: PYI021

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict, Unpack

from sandkeep import model
from sandkeep.protocol import methods

# The optional parameters of each method, for both clients.

class _Call(TypedDict, total=False):
    progress: Callable[[str], None] | None

class _Change(_Call, total=False):
    command_id: str | None

class _QuotaQuery(_Call, total=False):
    owner: str | None

class _ImageCreate(_Change, total=False):
    name: str | None
    provider: str | None
    base: str | None
    dockerfile: str | None
    clean: bool
    labels: dict[str, str]
    owner: str | None
    ignore: Sequence[str]
    patterns: Sequence[str]
    ignore_files: bool

class _ImageQuery(_Call, total=False):
    all: bool
    after: str | None
    limit: int

class _ProviderChoose(_Change, total=False):
    enabled: bool

class _SessionEnsure(_Change, total=False):
    id: str | None
    image: str | None
    mode: Literal["docker", "k8s"] | None
    restore_snapshot_id: str | None
    fresh: bool
    cpus: float | None
    memory_bytes: int | None
    pids: int | None
    disk_bytes: int | None
    network: Literal["none", "host", "bridge"] | None
    user: str | None
    read_only: bool | None
    working_dir: str | None
    volumes: Sequence[model.Volume] | None
    env: dict[str, str] | None
    secrets: dict[str, str]
    labels: dict[str, str] | None
    idle_timeout_s: float | None
    max_lifetime_s: float | None
    artifact_base_url: str | None
    metadata: dict[str, Any] | None

class _SessionQuery(_Call, total=False):
    all: bool
    after: str | None
    limit: int

class _SessionClose(_Change, total=False):
    snapshot: bool

class _SessionHistory(_Call, total=False):
    after: str | None
    limit: int

class _ArtifactExport(_Change, total=False):
    name: str | None
    media_type: str | None
    inline_bytes: int

class _ArtifactRef(_Call, total=False):
    inline_bytes: int

class _ArtifactQuery(_Call, total=False):
    sandbox_id: str | None
    session_id: str | None
    all: bool
    after: str | None
    limit: int

class _SandboxCreate(_Change, total=False):
    name: str | None
    provider: str | None
    cpus: float | None
    memory_bytes: int | None
    pids: int | None
    disk_bytes: int | None
    network: Literal["none", "host", "bridge"] | None
    user: str | None
    read_only: bool
    working_dir: str | None
    isolation: Literal["default", "none"]
    volumes: Sequence[model.Volume]
    env: dict[str, str]
    secrets: dict[str, str]
    labels: dict[str, str]
    idle_timeout_s: float | None
    max_lifetime_s: float | None
    gcs_sandbox_id: str | None
    enable_handoff: bool
    enable_checkpoint_at_idle: bool
    sandbox_token: str | None
    writable_root: bool

class _SandboxAttachShared(_Change, total=False):
    timeout_s: float
    secrets: dict[str, str]
    allow_host: bool

class _SandboxQuery(_Call, total=False):
    all: bool
    after: str | None
    limit: int

class _StatsQuery(_Call, total=False):
    sandbox_id: str | None
    after: str | None
    limit: int

class _SandboxExec(_Change, total=False):
    env: dict[str, str]
    secrets: dict[str, str]
    working_dir: str | None
    stdin: bytes | None
    timeout_s: float | None
    inline_bytes: int
    durable: bool

class _SandboxUpdate(_Change, total=False):
    cpus: float | None
    memory_bytes: int | None
    pids: int | None
    disk_bytes: int | None
    network: Literal["none", "host", "bridge"] | None

class _SandboxResume(_Change, total=False):
    secrets: dict[str, str]

class _SandboxFork(_Change, total=False):
    count: int
    names: Sequence[str]
    labels: dict[str, str]
    secrets: dict[str, str]

class _SandboxDiff(_Call, total=False):
    other: str | None
    paths: Sequence[str]
    unified: bool
    lines: bool
    limit: int
    max_bytes: int

class _SandboxRestore(_Change, total=False):
    snapshot_id: str | None
    checkpoint_id: str | None
    end_processes: bool
    secrets: dict[str, str]

class _SandboxRestoreAt(_Change, total=False):
    position: int | str | None
    time: str | None
    name: str | None
    labels: dict[str, str]
    env: dict[str, str]
    secrets: dict[str, str]

class _FileRead(_Call, total=False):
    path: str | None
    path_bytes: bytes | None
    offset: int
    max_bytes: int

class _FileWrite(_Change, total=False):
    path: str | None
    path_bytes: bytes | None
    mode: int | None
    parents: bool

class _DirectoryQuery(_Call, total=False):
    path: str | None
    path_bytes: bytes | None
    after: str | None
    limit: int

class _HistoryQuery(_Call, total=False):
    after: str | None
    limit: int

class _BranchCreate(_Change, total=False):
    source: str | None
    ignore: Sequence[str]
    provider: str | None
    image_id: str | None
    snapshot_id: str | None
    sandbox_id: str | None
    count: int
    names: Sequence[str]
    labels: dict[str, str]
    secrets: dict[str, str]

class _BranchQuery(_Call, total=False):
    image_id: str | None
    all: bool
    after: str | None
    limit: int

class _BranchMerge(_Change, total=False):
    name: str | None
    policy: Literal["fail", "ours", "union", "markers"]
    ours: str | None
    takes: dict[str, str]
    labels: dict[str, str]
    secrets: dict[str, str]

class _BranchResolve(_Change, total=False):
    secrets: dict[str, str]

class _MergeQuery(_Call, total=False):
    all: bool
    after: str | None
    limit: int

class _ConflictQuery(_Call, total=False):
    after: int
    limit: int

class _VersionRead(_Call, total=False):
    offset: int
    max_bytes: int

class _BranchPlan(_Call, total=False):
    limit: int

class _BranchCommit(_Change, total=False):
    force: bool

class _BranchBlame(_Call, total=False):
    sandbox_id: str | None
    merge_id: str | None
    commit_id: str | None
    paths: Sequence[str]
    after: int
    limit: int

class _ProcessLaunch(_Change, total=False):
    name: str | None
    env: dict[str, str]
    secrets: dict[str, str]
    working_dir: str | None
    stdin: bool
    tty: bool
    rows: int
    cols: int
    timeout_s: float | None
    durable: bool

class _ProcessQuery(_Call, total=False):
    sandbox_id: str | None
    all: bool
    after: str | None
    limit: int

class _ProcessWait(_Call, total=False):
    timeout_s: float | None

class _ProcessSignal(_Change, total=False):
    signal: str

class _ProcessWriteStdin(_Change, total=False):
    data: bytes
    eof: bool

class _ProcessRead(_Call, total=False):
    stdout_offset: int
    stderr_offset: int
    max_bytes: int
    wait_s: float

class _SnapshotCreate(_Change, total=False):
    name: str | None
    labels: dict[str, str]
    include: Sequence[str]
    exclude: Sequence[str]
    format: Literal["tar.gz", "tar.zst"]
    incremental: bool
    parent_id: str | None
    archive: Literal["bucket"] | None

class _SnapshotQuery(_Call, total=False):
    sandbox_id: str | None
    name: str | None
    labels: dict[str, str]
    all: bool
    after: str | None
    limit: int

class _SnapshotRestore(_Change, total=False):
    name: str | None
    labels: dict[str, str]
    env: dict[str, str]
    secrets: dict[str, str]
    idle_timeout_s: float | None

class _SnapshotPromote(_Change, total=False):
    labels: dict[str, str]

class _SnapshotGc(_Change, total=False):
    dry_run: bool

class _CheckpointCreate(_Change, total=False):
    name: str | None
    labels: dict[str, str]
    leave_running: bool
    archive: Literal["bucket"] | None

class _CheckpointQuery(_Call, total=False):
    sandbox_id: str | None
    name: str | None
    labels: dict[str, str]
    all: bool
    after: str | None
    limit: int

class _CheckpointRestore(_Change, total=False):
    count: int
    names: Sequence[str]
    labels: dict[str, str]

class _StreamQuery(_Change, total=False):
    renew: bool

class _LockAcquire(_Change, total=False):
    timeout_s: float

class _LockRelease(_Change, total=False):
    force: bool

class _LockQuery(_Call, total=False):
    all: bool
    after: str | None
    limit: int

class _EventQuery(_Call, total=False):
    after: str | None
    sandbox_id: str | None
    type: str | None
    limit: int
    wait_s: float

class _StateQuery(_Call, total=False):
    limit: int

class _StoreCompact(_Call, total=False):
    older_than_s: float | None

class TrioRpc:
    async def discover(self, **options: Unpack[_Call]) -> dict[str, Any]:
        """Describe every method, as an OpenRPC document."""
    async def hello(self, client: str, **options: Unpack[_Call]) -> model.Welcome:
        """Record the client's name for this connection, and return the id of the event log."""

class TrioDaemon:
    async def ping(self, **options: Unpack[_Call]) -> model.Pong:
        """Check that the daemon answers."""
    async def status(self, **options: Unpack[_Call]) -> model.DaemonStatus:
        """Show the daemon's status."""
    async def capabilities(self, **options: Unpack[_Call]) -> model.Capabilities:
        """Show which features work on this machine, and why others do not."""
    async def shutdown(self, **options: Unpack[_Change]) -> model.Empty:
        """Stop the daemon; sandboxes and processes keep running."""

class TrioQuota:
    async def get(self, **options: Unpack[_QuotaQuery]) -> model.QuotaList:
        """Show an owner's quotas and their usage."""

class TrioImage:
    async def create(self, source: str, **options: Unpack[_ImageCreate]) -> model.Image:
        """Create an image from a directory, a Dockerfile or a container image."""
    async def list(self, **options: Unpack[_ImageQuery]) -> model.ImageList:
        """List images."""
    async def get(self, image_id: str, **options: Unpack[_Call]) -> model.Image:
        """Show an image."""
    async def tag(self, image_id: str, name: str, **options: Unpack[_Change]) -> model.Image:
        """Give an image a name."""
    async def remove(self, image_id: str, **options: Unpack[_Change]) -> model.Image:
        """Remove an image."""

class TrioProvider:
    async def choose(self, **options: Unpack[_ProviderChoose]) -> model.ProviderChoice:
        """Choose a provider: docker if it works here and is wanted, else local."""

class TrioSession:
    async def ensure(self, **options: Unpack[_SessionEnsure]) -> model.SessionEnsured:
        """Make a session ready: find it, create it, or bring it back from its latest snapshot."""
    async def get(self, session_id: str, **options: Unpack[_Call]) -> model.Session:
        """Show a session."""
    async def list(self, **options: Unpack[_SessionQuery]) -> model.SessionList:
        """List sessions."""
    async def heartbeat(self, session_id: str, **options: Unpack[_Call]) -> model.Session:
        """Keep a session from being idle."""
    async def close(self, session_id: str, **options: Unpack[_SessionClose]) -> model.Session:
        """End the sandbox of a session, after a snapshot."""
    async def history(self, session_id: str, **options: Unpack[_SessionHistory]) -> model.EventPage:
        """List the events of a session itself."""

class TrioArtifact:
    async def export(self, sandbox_id: str, path: str, **options: Unpack[_ArtifactExport]) -> model.Artifact:
        """Copy a file or directory out of a sandbox, where it outlives that."""
    async def get(self, artifact_id: str, **options: Unpack[_ArtifactRef]) -> model.Artifact:
        """Show an artifact, with its digest."""
    async def list(self, **options: Unpack[_ArtifactQuery]) -> model.ArtifactList:
        """List artifacts."""
    async def remove(self, artifact_id: str, **options: Unpack[_Change]) -> model.Artifact:
        """Remove an artifact."""

class TrioSandbox:
    async def create(self, image_id: str, **options: Unpack[_SandboxCreate]) -> model.Sandbox:
        """Create and start a sandbox from an image."""
    async def attach_shared(
        self, gcs_sandbox_id: str, sandbox_token: str, **options: Unpack[_SandboxAttachShared]
    ) -> model.Sandbox:
        """Attach a sandbox that another daemon shares, as it was saved last."""
    async def detach(self, sandbox_id: str, **options: Unpack[_Change]) -> model.Sandbox:
        """Save a shared sandbox, and let other daemons have it."""
    async def get(self, sandbox_id: str, **options: Unpack[_Call]) -> model.Sandbox:
        """Show a sandbox."""
    async def list(self, **options: Unpack[_SandboxQuery]) -> model.SandboxList:
        """List sandboxes."""
    async def stats(self, **options: Unpack[_StatsQuery]) -> model.SandboxStatsList:
        """Show the resource usage of running sandboxes: CPU, memory, processes, I/O."""
    async def exec(
        self, sandbox_id: str, command: Sequence[str] | str, **options: Unpack[_SandboxExec]
    ) -> model.ExecResult:
        """Run a command to its end and return its output."""
    async def terminate(self, sandbox_id: str, **options: Unpack[_Change]) -> model.Sandbox:
        """Terminate a sandbox and all its processes."""
    async def update(self, sandbox_id: str, **options: Unpack[_SandboxUpdate]) -> model.Sandbox:
        """Change limits of a sandbox, while it runs."""
    async def suspend(self, sandbox_id: str, **options: Unpack[_Change]) -> model.Sandbox:
        """Freeze a sandbox."""
    async def resume(self, sandbox_id: str, **options: Unpack[_SandboxResume]) -> model.Sandbox:
        """Resume a suspended sandbox, or restart a lost or failed one from its files."""
    async def fork(self, sandbox_id: str, **options: Unpack[_SandboxFork]) -> model.ForkResult:
        """Create sandboxes with the files of another."""
    async def diff(self, sandbox_id: str, **options: Unpack[_SandboxDiff]) -> model.Diff:
        """Compare a sandbox's workspace with another, a snapshot, an image, or its beginning."""
    async def restore(self, sandbox_id: str, **options: Unpack[_SandboxRestore]) -> model.Sandbox:
        """Replace a sandbox's files with those of a snapshot, or restore it to a checkpoint."""
    async def restore_at(self, sandbox_id: str, **options: Unpack[_SandboxRestoreAt]) -> model.RestoredAt:
        """Create a sandbox from the newest snapshot or checkpoint of another at or before a moment."""
    async def read_file(self, sandbox_id: str, **options: Unpack[_FileRead]) -> model.FileContent:
        """Read a piece of a file."""
    async def write_file(self, sandbox_id: str, data: bytes, **options: Unpack[_FileWrite]) -> model.FileWritten:
        """Write a file atomically."""
    async def list_dir(self, sandbox_id: str, **options: Unpack[_DirectoryQuery]) -> model.DirectoryList:
        """List the files of a directory."""
    async def copy_commit(self, sandbox_id: str, transfer_id: str, **options: Unpack[_Change]) -> model.Copied:
        """Commit a copy into a sandbox, once all of it was written."""
    async def history(self, sandbox_id: str, **options: Unpack[_HistoryQuery]) -> model.EventPage:
        """List the events of a sandbox and its processes."""

class TrioBranch:
    async def create(self, **options: Unpack[_BranchCreate]) -> model.BranchCreateResult:
        """Create branches of a directory, an image, a snapshot or a sandbox."""
    async def list(self, **options: Unpack[_BranchQuery]) -> model.BranchList:
        """List sandboxes with their bases and lineage."""
    async def diff(self, sandbox_id: str, **options: Unpack[_SandboxDiff]) -> model.Diff:
        """Compare a branch with its base or with another: see sandbox.diff."""
    async def merge(self, sandbox_ids: Sequence[str], **options: Unpack[_BranchMerge]) -> model.Merged:
        """Merge branches into a new sandbox, over their nearest common base."""
    async def resolve(
        self, merge_id: str, decisions: Sequence[model.Resolution], **options: Unpack[_BranchResolve]
    ) -> model.Merged:
        """Decide conflicts of a merge, and go on with it."""
    async def merges(self, **options: Unpack[_MergeQuery]) -> model.MergeList:
        """List merges."""
    async def conflicts(self, merge_id: str, **options: Unpack[_ConflictQuery]) -> model.ConflictList:
        """List the conflicts of a merge."""
    async def read_version(self, merge_id: str, sha256: str, **options: Unpack[_VersionRead]) -> model.FileContent:
        """Read a piece of one version of a file in a conflict."""
    async def abandon(self, merge_id: str, **options: Unpack[_Change]) -> model.Merge:
        """Give up a merge that has conflicts."""
    async def plan(self, sandbox_id: str, target: str, **options: Unpack[_BranchPlan]) -> model.CommitPlan:
        """Show what a commit of a branch would do to a directory of the host."""
    async def commit(self, sandbox_id: str, target: str, **options: Unpack[_BranchCommit]) -> model.Commit:
        """Apply a branch's changes to a directory of the host, all or none."""
    async def blame(self, **options: Unpack[_BranchBlame]) -> model.Blame:
        """Show which branch each path of a merge, a commit or a branch came from."""
    async def remove(self, sandbox_id: str, **options: Unpack[_Change]) -> model.Sandbox:
        """End a branch."""

class TrioProcess:
    async def launch(
        self, sandbox_id: str, command: Sequence[str] | str, **options: Unpack[_ProcessLaunch]
    ) -> model.Process:
        """Start a command in the background."""
    async def get(self, sandbox_id: str, name: str, **options: Unpack[_Call]) -> model.Process:
        """Show a process."""
    async def list(self, **options: Unpack[_ProcessQuery]) -> model.ProcessList:
        """List processes."""
    async def wait(self, sandbox_id: str, name: str, **options: Unpack[_ProcessWait]) -> model.Process:
        """Wait until a process exits."""
    async def signal(self, sandbox_id: str, name: str, **options: Unpack[_ProcessSignal]) -> model.Process:
        """Send a signal to a process and its group."""
    async def write_stdin(self, sandbox_id: str, name: str, **options: Unpack[_ProcessWriteStdin]) -> methods.Written:
        """Write to a process's input, or close it."""
    async def read(self, sandbox_id: str, name: str, **options: Unpack[_ProcessRead]) -> model.ProcessOutput:
        """Read the output of a process, from byte offsets."""
    async def resize(
        self, sandbox_id: str, name: str, rows: int, cols: int, **options: Unpack[_Change]
    ) -> model.Process:
        """Resize the terminal of a process that has no client attached."""

class TrioSnapshot:
    async def create(self, sandbox_id: str, **options: Unpack[_SnapshotCreate]) -> model.Snapshot:
        """Snapshot the files of a sandbox as an archive."""
    async def list(self, **options: Unpack[_SnapshotQuery]) -> model.SnapshotList:
        """List snapshots."""
    async def get(self, snapshot_id: str, **options: Unpack[_Call]) -> model.Snapshot:
        """Show a snapshot."""
    async def delete(self, snapshot_id: str, **options: Unpack[_Change]) -> model.Snapshot:
        """Delete a snapshot."""
    async def restore(self, snapshot_id: str, **options: Unpack[_SnapshotRestore]) -> model.Sandbox:
        """Create and start a sandbox from a snapshot."""
    async def promote(self, snapshot_id: str, **options: Unpack[_SnapshotPromote]) -> model.Image:
        """Create an image from a snapshot."""
    async def gc(self, **options: Unpack[_SnapshotGc]) -> model.SnapshotGcReport:
        """Delete expired snapshots, and archives that no event references."""

class TrioCheckpoint:
    async def create(self, sandbox_id: str, **options: Unpack[_CheckpointCreate]) -> model.Checkpoint:
        """Checkpoint a sandbox with its processes."""
    async def list(self, **options: Unpack[_CheckpointQuery]) -> model.CheckpointList:
        """List checkpoints."""
    async def get(self, checkpoint_id: str, **options: Unpack[_Call]) -> model.Checkpoint:
        """Show a checkpoint."""
    async def delete(self, checkpoint_id: str, **options: Unpack[_Change]) -> model.Checkpoint:
        """Delete a checkpoint."""
    async def restore(self, checkpoint_id: str, **options: Unpack[_CheckpointRestore]) -> model.CheckpointRestoreResult:
        """Create sandboxes from a checkpoint, with its processes running."""

class TrioStream:
    async def access(self, **options: Unpack[_StreamQuery]) -> model.StreamAccess:
        """Return the stream server's addresses, and for TCP the caller's token and the server's pin."""

class TrioLock:
    async def acquire(self, name: str, **options: Unpack[_LockAcquire]) -> model.Lock:
        """Acquire the lock of a shared sandbox, and hold it until it is released."""
    async def release(self, name: str, **options: Unpack[_LockRelease]) -> model.Lock:
        """Release a lock."""
    async def get(self, name: str, **options: Unpack[_Call]) -> model.Lock:
        """Show a lock."""
    async def list(self, **options: Unpack[_LockQuery]) -> model.LockList:
        """List the locks that this daemon holds."""

class TrioKey:
    async def create(self, name: str, **options: Unpack[_Call]) -> model.NewKey:
        """Create an API key for the HTTP gateway. It is shown once."""
    async def list(self, **options: Unpack[_Call]) -> model.KeyList:
        """List the API keys of the HTTP gateway."""
    async def remove(self, name: str, **options: Unpack[_Call]) -> model.ApiKey:
        """Remove an API key: it is refused from now on."""

class TrioEvent:
    async def list(self, **options: Unpack[_EventQuery]) -> model.EventPage:
        """List events in commit order."""
    async def state_at(self, sandbox_id: str, position: int | str, **options: Unpack[_StateQuery]) -> model.SandboxAt:
        """Show a sandbox as it was after an event."""

class TrioStore:
    async def verify(self, **options: Unpack[_Call]) -> model.VerifyReport:
        """Check the event log and every metadata.json."""
    async def compact(self, **options: Unpack[_StoreCompact]) -> model.CompactReport:
        """Archive the events of objects that ended long ago."""
    async def redact(self, position: int, **options: Unpack[_Call]) -> model.RedactReport:
        """Remove a caller's data in an event from the log and the archive."""
    async def rebuild(self, **options: Unpack[_Call]) -> model.RebuildReport:
        """Rebuild every metadata.json from the event log."""

class TrioMethods:
    rpc: TrioRpc
    daemon: TrioDaemon
    quota: TrioQuota
    image: TrioImage
    provider: TrioProvider
    session: TrioSession
    artifact: TrioArtifact
    sandbox: TrioSandbox
    branch: TrioBranch
    process: TrioProcess
    snapshot: TrioSnapshot
    checkpoint: TrioCheckpoint
    stream: TrioStream
    lock: TrioLock
    key: TrioKey
    event: TrioEvent
    store: TrioStore

class BlockingRpc:
    def discover(self, **options: Unpack[_Call]) -> dict[str, Any]:
        """Describe every method, as an OpenRPC document."""
    def hello(self, client: str, **options: Unpack[_Call]) -> model.Welcome:
        """Record the client's name for this connection, and return the id of the event log."""

class BlockingDaemon:
    def ping(self, **options: Unpack[_Call]) -> model.Pong:
        """Check that the daemon answers."""
    def status(self, **options: Unpack[_Call]) -> model.DaemonStatus:
        """Show the daemon's status."""
    def capabilities(self, **options: Unpack[_Call]) -> model.Capabilities:
        """Show which features work on this machine, and why others do not."""
    def shutdown(self, **options: Unpack[_Change]) -> model.Empty:
        """Stop the daemon; sandboxes and processes keep running."""

class BlockingQuota:
    def get(self, **options: Unpack[_QuotaQuery]) -> model.QuotaList:
        """Show an owner's quotas and their usage."""

class BlockingImage:
    def create(self, source: str, **options: Unpack[_ImageCreate]) -> model.Image:
        """Create an image from a directory, a Dockerfile or a container image."""
    def list(self, **options: Unpack[_ImageQuery]) -> model.ImageList:
        """List images."""
    def get(self, image_id: str, **options: Unpack[_Call]) -> model.Image:
        """Show an image."""
    def tag(self, image_id: str, name: str, **options: Unpack[_Change]) -> model.Image:
        """Give an image a name."""
    def remove(self, image_id: str, **options: Unpack[_Change]) -> model.Image:
        """Remove an image."""

class BlockingProvider:
    def choose(self, **options: Unpack[_ProviderChoose]) -> model.ProviderChoice:
        """Choose a provider: docker if it works here and is wanted, else local."""

class BlockingSession:
    def ensure(self, **options: Unpack[_SessionEnsure]) -> model.SessionEnsured:
        """Make a session ready: find it, create it, or bring it back from its latest snapshot."""
    def get(self, session_id: str, **options: Unpack[_Call]) -> model.Session:
        """Show a session."""
    def list(self, **options: Unpack[_SessionQuery]) -> model.SessionList:
        """List sessions."""
    def heartbeat(self, session_id: str, **options: Unpack[_Call]) -> model.Session:
        """Keep a session from being idle."""
    def close(self, session_id: str, **options: Unpack[_SessionClose]) -> model.Session:
        """End the sandbox of a session, after a snapshot."""
    def history(self, session_id: str, **options: Unpack[_SessionHistory]) -> model.EventPage:
        """List the events of a session itself."""

class BlockingArtifact:
    def export(self, sandbox_id: str, path: str, **options: Unpack[_ArtifactExport]) -> model.Artifact:
        """Copy a file or directory out of a sandbox, where it outlives that."""
    def get(self, artifact_id: str, **options: Unpack[_ArtifactRef]) -> model.Artifact:
        """Show an artifact, with its digest."""
    def list(self, **options: Unpack[_ArtifactQuery]) -> model.ArtifactList:
        """List artifacts."""
    def remove(self, artifact_id: str, **options: Unpack[_Change]) -> model.Artifact:
        """Remove an artifact."""

class BlockingSandbox:
    def create(self, image_id: str, **options: Unpack[_SandboxCreate]) -> model.Sandbox:
        """Create and start a sandbox from an image."""
    def attach_shared(
        self, gcs_sandbox_id: str, sandbox_token: str, **options: Unpack[_SandboxAttachShared]
    ) -> model.Sandbox:
        """Attach a sandbox that another daemon shares, as it was saved last."""
    def detach(self, sandbox_id: str, **options: Unpack[_Change]) -> model.Sandbox:
        """Save a shared sandbox, and let other daemons have it."""
    def get(self, sandbox_id: str, **options: Unpack[_Call]) -> model.Sandbox:
        """Show a sandbox."""
    def list(self, **options: Unpack[_SandboxQuery]) -> model.SandboxList:
        """List sandboxes."""
    def stats(self, **options: Unpack[_StatsQuery]) -> model.SandboxStatsList:
        """Show the resource usage of running sandboxes: CPU, memory, processes, I/O."""
    def exec(self, sandbox_id: str, command: Sequence[str] | str, **options: Unpack[_SandboxExec]) -> model.ExecResult:
        """Run a command to its end and return its output."""
    def terminate(self, sandbox_id: str, **options: Unpack[_Change]) -> model.Sandbox:
        """Terminate a sandbox and all its processes."""
    def update(self, sandbox_id: str, **options: Unpack[_SandboxUpdate]) -> model.Sandbox:
        """Change limits of a sandbox, while it runs."""
    def suspend(self, sandbox_id: str, **options: Unpack[_Change]) -> model.Sandbox:
        """Freeze a sandbox."""
    def resume(self, sandbox_id: str, **options: Unpack[_SandboxResume]) -> model.Sandbox:
        """Resume a suspended sandbox, or restart a lost or failed one from its files."""
    def fork(self, sandbox_id: str, **options: Unpack[_SandboxFork]) -> model.ForkResult:
        """Create sandboxes with the files of another."""
    def diff(self, sandbox_id: str, **options: Unpack[_SandboxDiff]) -> model.Diff:
        """Compare a sandbox's workspace with another, a snapshot, an image, or its beginning."""
    def restore(self, sandbox_id: str, **options: Unpack[_SandboxRestore]) -> model.Sandbox:
        """Replace a sandbox's files with those of a snapshot, or restore it to a checkpoint."""
    def restore_at(self, sandbox_id: str, **options: Unpack[_SandboxRestoreAt]) -> model.RestoredAt:
        """Create a sandbox from the newest snapshot or checkpoint of another at or before a moment."""
    def read_file(self, sandbox_id: str, **options: Unpack[_FileRead]) -> model.FileContent:
        """Read a piece of a file."""
    def write_file(self, sandbox_id: str, data: bytes, **options: Unpack[_FileWrite]) -> model.FileWritten:
        """Write a file atomically."""
    def list_dir(self, sandbox_id: str, **options: Unpack[_DirectoryQuery]) -> model.DirectoryList:
        """List the files of a directory."""
    def copy_commit(self, sandbox_id: str, transfer_id: str, **options: Unpack[_Change]) -> model.Copied:
        """Commit a copy into a sandbox, once all of it was written."""
    def history(self, sandbox_id: str, **options: Unpack[_HistoryQuery]) -> model.EventPage:
        """List the events of a sandbox and its processes."""

class BlockingBranch:
    def create(self, **options: Unpack[_BranchCreate]) -> model.BranchCreateResult:
        """Create branches of a directory, an image, a snapshot or a sandbox."""
    def list(self, **options: Unpack[_BranchQuery]) -> model.BranchList:
        """List sandboxes with their bases and lineage."""
    def diff(self, sandbox_id: str, **options: Unpack[_SandboxDiff]) -> model.Diff:
        """Compare a branch with its base or with another: see sandbox.diff."""
    def merge(self, sandbox_ids: Sequence[str], **options: Unpack[_BranchMerge]) -> model.Merged:
        """Merge branches into a new sandbox, over their nearest common base."""
    def resolve(
        self, merge_id: str, decisions: Sequence[model.Resolution], **options: Unpack[_BranchResolve]
    ) -> model.Merged:
        """Decide conflicts of a merge, and go on with it."""
    def merges(self, **options: Unpack[_MergeQuery]) -> model.MergeList:
        """List merges."""
    def conflicts(self, merge_id: str, **options: Unpack[_ConflictQuery]) -> model.ConflictList:
        """List the conflicts of a merge."""
    def read_version(self, merge_id: str, sha256: str, **options: Unpack[_VersionRead]) -> model.FileContent:
        """Read a piece of one version of a file in a conflict."""
    def abandon(self, merge_id: str, **options: Unpack[_Change]) -> model.Merge:
        """Give up a merge that has conflicts."""
    def plan(self, sandbox_id: str, target: str, **options: Unpack[_BranchPlan]) -> model.CommitPlan:
        """Show what a commit of a branch would do to a directory of the host."""
    def commit(self, sandbox_id: str, target: str, **options: Unpack[_BranchCommit]) -> model.Commit:
        """Apply a branch's changes to a directory of the host, all or none."""
    def blame(self, **options: Unpack[_BranchBlame]) -> model.Blame:
        """Show which branch each path of a merge, a commit or a branch came from."""
    def remove(self, sandbox_id: str, **options: Unpack[_Change]) -> model.Sandbox:
        """End a branch."""

class BlockingProcess:
    def launch(self, sandbox_id: str, command: Sequence[str] | str, **options: Unpack[_ProcessLaunch]) -> model.Process:
        """Start a command in the background."""
    def get(self, sandbox_id: str, name: str, **options: Unpack[_Call]) -> model.Process:
        """Show a process."""
    def list(self, **options: Unpack[_ProcessQuery]) -> model.ProcessList:
        """List processes."""
    def wait(self, sandbox_id: str, name: str, **options: Unpack[_ProcessWait]) -> model.Process:
        """Wait until a process exits."""
    def signal(self, sandbox_id: str, name: str, **options: Unpack[_ProcessSignal]) -> model.Process:
        """Send a signal to a process and its group."""
    def write_stdin(self, sandbox_id: str, name: str, **options: Unpack[_ProcessWriteStdin]) -> methods.Written:
        """Write to a process's input, or close it."""
    def read(self, sandbox_id: str, name: str, **options: Unpack[_ProcessRead]) -> model.ProcessOutput:
        """Read the output of a process, from byte offsets."""
    def resize(self, sandbox_id: str, name: str, rows: int, cols: int, **options: Unpack[_Change]) -> model.Process:
        """Resize the terminal of a process that has no client attached."""

class BlockingSnapshot:
    def create(self, sandbox_id: str, **options: Unpack[_SnapshotCreate]) -> model.Snapshot:
        """Snapshot the files of a sandbox as an archive."""
    def list(self, **options: Unpack[_SnapshotQuery]) -> model.SnapshotList:
        """List snapshots."""
    def get(self, snapshot_id: str, **options: Unpack[_Call]) -> model.Snapshot:
        """Show a snapshot."""
    def delete(self, snapshot_id: str, **options: Unpack[_Change]) -> model.Snapshot:
        """Delete a snapshot."""
    def restore(self, snapshot_id: str, **options: Unpack[_SnapshotRestore]) -> model.Sandbox:
        """Create and start a sandbox from a snapshot."""
    def promote(self, snapshot_id: str, **options: Unpack[_SnapshotPromote]) -> model.Image:
        """Create an image from a snapshot."""
    def gc(self, **options: Unpack[_SnapshotGc]) -> model.SnapshotGcReport:
        """Delete expired snapshots, and archives that no event references."""

class BlockingCheckpoint:
    def create(self, sandbox_id: str, **options: Unpack[_CheckpointCreate]) -> model.Checkpoint:
        """Checkpoint a sandbox with its processes."""
    def list(self, **options: Unpack[_CheckpointQuery]) -> model.CheckpointList:
        """List checkpoints."""
    def get(self, checkpoint_id: str, **options: Unpack[_Call]) -> model.Checkpoint:
        """Show a checkpoint."""
    def delete(self, checkpoint_id: str, **options: Unpack[_Change]) -> model.Checkpoint:
        """Delete a checkpoint."""
    def restore(self, checkpoint_id: str, **options: Unpack[_CheckpointRestore]) -> model.CheckpointRestoreResult:
        """Create sandboxes from a checkpoint, with its processes running."""

class BlockingStream:
    def access(self, **options: Unpack[_StreamQuery]) -> model.StreamAccess:
        """Return the stream server's addresses, and for TCP the caller's token and the server's pin."""

class BlockingLock:
    def acquire(self, name: str, **options: Unpack[_LockAcquire]) -> model.Lock:
        """Acquire the lock of a shared sandbox, and hold it until it is released."""
    def release(self, name: str, **options: Unpack[_LockRelease]) -> model.Lock:
        """Release a lock."""
    def get(self, name: str, **options: Unpack[_Call]) -> model.Lock:
        """Show a lock."""
    def list(self, **options: Unpack[_LockQuery]) -> model.LockList:
        """List the locks that this daemon holds."""

class BlockingKey:
    def create(self, name: str, **options: Unpack[_Call]) -> model.NewKey:
        """Create an API key for the HTTP gateway. It is shown once."""
    def list(self, **options: Unpack[_Call]) -> model.KeyList:
        """List the API keys of the HTTP gateway."""
    def remove(self, name: str, **options: Unpack[_Call]) -> model.ApiKey:
        """Remove an API key: it is refused from now on."""

class BlockingEvent:
    def list(self, **options: Unpack[_EventQuery]) -> model.EventPage:
        """List events in commit order."""
    def state_at(self, sandbox_id: str, position: int | str, **options: Unpack[_StateQuery]) -> model.SandboxAt:
        """Show a sandbox as it was after an event."""

class BlockingStore:
    def verify(self, **options: Unpack[_Call]) -> model.VerifyReport:
        """Check the event log and every metadata.json."""
    def compact(self, **options: Unpack[_StoreCompact]) -> model.CompactReport:
        """Archive the events of objects that ended long ago."""
    def redact(self, position: int, **options: Unpack[_Call]) -> model.RedactReport:
        """Remove a caller's data in an event from the log and the archive."""
    def rebuild(self, **options: Unpack[_Call]) -> model.RebuildReport:
        """Rebuild every metadata.json from the event log."""

class BlockingMethods:
    rpc: BlockingRpc
    daemon: BlockingDaemon
    quota: BlockingQuota
    image: BlockingImage
    provider: BlockingProvider
    session: BlockingSession
    artifact: BlockingArtifact
    sandbox: BlockingSandbox
    branch: BlockingBranch
    process: BlockingProcess
    snapshot: BlockingSnapshot
    checkpoint: BlockingCheckpoint
    stream: BlockingStream
    lock: BlockingLock
    key: BlockingKey
    event: BlockingEvent
    store: BlockingStore

"""The interface of a provider: what isolates sandboxes and runs their processes.

Lifecycle
    `plan` checks a request and decides all that must be on record before anything happens; it has no effect, except
    that it may claim what others must not get meanwhile (see `Claiming`), and raises `not_supported` for what this
    machine cannot hold. After the intent is durable, `create` acts by that plan and answers a running `Instance`. When
    a daemon starts, `adopt` turns a plan and the handle of an earlier `create` into an Instance again, or answers None
    when the sandbox is gone. `terminate` ends whatever there is of a sandbox, complete or half made, and is safe to
    repeat. `found` lists the sandboxes that the provider holds anything of, so that it can be seen what there is;
    `clean_up` removes what no event owns.

Words
    *plan*: a small JSON document, durable before the act; the same plan always means the same resources.
    *handle*: a small JSON document, durable after it; what it takes to find the running sandbox again.
    *spec*: what the caller asked for, with the daemon's defaults filled in.

Errors
    Everything raised is a `SandkeepError`. A provider translates what its tools say; nothing of theirs goes through.
    When the engine that it depends on does not answer, it raises `provider_unavailable` at once, with `engine` in the
    error's data: what is on record then waits for that engine, and nobody waits with it.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct, field

from sandkeep.model import (
    ArchiveFormat,
    FileContent,
    FileEntry,
    ImageKind,
    Isolation,
    Network,
    ProviderCapabilities,
    SandboxSpec,
    SkippedFile,
)
from sandkeep_store.archives.tar.limits import Limits

Progress = Callable[[str], Awaitable[None]]
InputNote = Callable[[int, int], None]


def unnoted(taken: int, trying: int) -> None:
    """For input whose progress nobody puts down."""


class Caller(Struct, frozen=True, kw_only=True):
    """With whose rights a host path is touched."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


class ImageRequest(Struct, frozen=True, kw_only=True):
    """What an image is to be made of. `source` is the absolute path of a directory, to be put onto the image `base`
    where the provider has such, or built by the `dockerfile` below it; or a reference. With `clean` nothing is taken
    from earlier builds.
    """

    kind: ImageKind
    source: str
    base: str | None = None
    dockerfile: str | None = None
    clean: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""


class ImportedImage(Struct, frozen=True, kw_only=True):
    """What came of an import. `digest` is ``sha256:…`` and names the content: of a directory it is computed from names,
    types, modes, link targets and contents. `details` are what the provider wants to be given when it plans a sandbox.
    """

    digest: str
    size_bytes: int
    file_count: int = 0
    skipped_count: int = 0
    skipped: list[SkippedFile] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


class Terminal(Struct, frozen=True, kw_only=True):
    """The terminal that a process is to have: its size, and what its tmux session is called."""

    rows: int
    cols: int
    session: str


class Launch(Struct, frozen=True, kw_only=True):
    """A process to start. `command` is a list of words; `secrets` must not reach a disk, an argv or a log.

    `stdin` is None for none, bytes for all there will be, True for a pipe that `Instance.write_stdin` feeds. With a
    `terminal` it is left alone: the process reads what is typed.
    One that is `quick` is expected to end soon: that it was started may be told some milliseconds later, with its end.
    """

    process_id: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    stdin: bytes | bool | None = None
    terminal: Terminal | None = None
    quick: bool = False

    def __repr__(self) -> str:
        return f"Launch({self.process_id})"


class Exit(Struct, frozen=True, kw_only=True):
    """How a process ended: its exit code, or None when nobody saw it (`lost`), with a sentence why."""

    exit_code: int | None
    message: str | None = None


class Ending(Struct, frozen=True, kw_only=True):
    """How a sandbox came to be gone, with a sentence why.

    ``failed``: it ended by itself; ``lost``: its provider has it no more, as when somebody removed it from outside;
    ``disk_limit``: it was ended, as it had written more than it may.
    """

    kind: Literal["failed", "lost", "disk_limit"]
    message: str


class Chunk(Struct, frozen=True, kw_only=True):
    """Bytes of one stream of a journal from `offset`; `size` is the whole stream's length at that moment.

    `offset` is further on than what was asked for when the beginning was dropped; `note` says so. `missing`: there is
    no such file.
    """

    offset: int
    data: bytes
    size: int
    note: str | None = None
    missing: bool = False


class Dropped(NamedTuple):
    """What of a sandbox's output was dropped: that of so many processes that ended, and so many bytes of others'."""

    processes: int = 0
    cut_bytes: int = 0


class Ledger(Protocol):
    """What the log owns of a provider's, at the moment of asking."""

    def owns_sandbox(self, sandbox_id: str) -> bool:
        """Whether there is such a sandbox, and it has not ended."""
        ...

    def knows_sandbox(self, sandbox_id: str) -> bool:
        """Whether there is such a sandbox, or was one whose journals are kept."""
        ...

    def owns_image(self, image_id: str) -> bool:
        """Whether there is such an image, and it was not removed."""
        ...

    def owns_layer(self, name: str) -> bool:
        """Whether a sandbox that has not ended, or that is about to be made, begins with kept files of that name."""
        ...

    def plans(self) -> Mapping[str, dict[str, Any]]:
        """The plans of the sandboxes that have not ended, by their ids."""
        ...


class Swept(Struct, frozen=True, kw_only=True):
    """What a provider held that the log does not own, in words: `removed`, and left because it is another log's."""

    removed: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)


class Directory(Struct, frozen=True, kw_only=True):
    """Some files of a directory; `last` is the name after which there are more, None when there are none."""

    entries: list[FileEntry]
    last: bytes | None


class CommandFailedError(Exception):
    """A helper command failed: with its exit code, None when nobody saw it, and what it said on stderr."""

    def __init__(self, exit_code: int | None, stderr: bytes) -> None:
        super().__init__(exit_code, stderr)
        self.exit_code = exit_code
        self.stderr = stderr


class PipedCommand(Protocol):
    """A helper command inside a sandbox that is connected by pipes: one for its data, one by which it is directed.

    What it says, in lines, was said inside the sandbox.
    """

    def take_data(self) -> int:
        """The daemon's end of the data pipe, blocking, which the caller closes. It is the only one on its side."""
        ...

    async def expect(self, word: str) -> str:
        """Wait for the command's next line, which must begin with `word`; answer the rest of it.

        Raises `CommandFailedError` when it ends instead, or says something else.
        """
        ...

    def tell(self, word: str) -> None:
        """Direct the command."""
        ...

    def leave_alone(self) -> None:
        """From now on it runs to its end, also when the daemon stops."""
        ...

    async def end(self) -> str:
        """Wait until the command has ended well; answer the rest of what it said. Raises `CommandFailedError`."""
        ...


class Instance(Protocol):
    """A running sandbox, as the daemon holds it. Closing it lets go of descriptors only; the sandbox goes on.

    `no_terminals` and `no_copies` say why its processes can have no terminals, and why trees are not copied into it and
    out of it, as in an image without the programs for that.
    """

    sandbox_id: str
    isolation: Isolation
    handle: dict[str, Any]
    no_terminals: str | None
    no_copies: str | None

    async def launch(self, launch: Launch) -> int:
        """Start a process and answer its pid inside the sandbox, once it is certain that it was started.

        Raises `provider_unavailable` when the sandbox does not take the request in time, `conflict` when a process of
        this id was started before, `not_ready` when the sandbox has ended. Cancelled: it may or may not have been
        started; `find` tells.
        """
        ...

    async def find(self, process_id: str) -> int | None:
        """The pid of a process that was started, running or ended; None if it never was. For a daemon that starts
        anew.
        """
        ...

    async def wait(self, process_id: str) -> Exit:
        """Wait until a process that was started has ended. Any number may wait; asked again it answers the same."""
        ...

    def exit_of(self, process_id: str) -> Exit | None:
        """How the process ended, if that is known already."""
        ...

    async def signal(self, process_id: str, signal: int, *, order: int | None = None) -> None:
        """Send a signal to the process's group. A process that has ended is no error.

        `order` is a number by which `was_signalled` knows it, also that of a later daemon.
        """
        ...

    async def was_signalled(self, process_id: str, order: int) -> bool:
        """Whether the signal of that number was sent, as the sandbox tells; or the process has ended."""
        ...

    async def write_stdin(
        self, process_id: str, data: bytes, *, eof: bool, done: int = 0, note: InputNote = unnoted
    ) -> int:
        """Write to the process's input without blocking others, wait for room, answer how many bytes were taken.

        With `eof` the input is closed after it. The first `done` bytes were taken before. `note` is told, before each
        step, how many have been by now, and how many of the next may be taken by it. Raises `not_ready` when the
        process has no input or has ended.
        """
        ...

    def read(self, process_id: str, stream: str, offset: int, max_bytes: int) -> Chunk:
        """Read the journal of ``stdout`` or ``stderr``. Never blocks; beyond the end there are no bytes."""
        ...

    def sizes(self, process_id: str) -> tuple[int, int]:
        """How long the journals of ``stdout`` and ``stderr`` are. Never blocks."""
        ...

    async def wait_output(self, process_id: str, stdout_offset: int, stderr_offset: int) -> None:
        """Return when the journal holds more than that, or the process has ended. It may also return early."""
        ...

    def sync(self, process_id: str) -> None:
        """Force the journal to the disk. Blocks: call it in a thread."""
        ...

    def forget(self, process_id: str) -> None:
        """Let go of what is held for a process that has ended and whose end is on record. Its journal stays."""
        ...

    async def ended(self) -> Ending:
        """Wait until the sandbox itself is gone, and say why, as far as that is known."""
        ...

    async def run_command(
        self,
        command: Sequence[str],
        stdin: bytes | None = None,
        *,
        working_dir: str | None = None,
        most_bytes: int = 65_536,
    ) -> tuple[int | None, bytes, bytes]:
        """Run a helper command to its end outside the record; answer exit code, stdout (`most_bytes` of it) and stderr.

        Cancelled, it is ended: by SIGTERM first, so that it can remove what it began.
        """
        ...

    def run_piped(
        self, command: Sequence[str], *, incoming: bool, working_dir: str | None = None
    ) -> AbstractAsyncContextManager[PipedCommand]:
        """Run a helper command outside the record for the length of a block.

        Descriptor 3 is its end of the data pipe: read from when data is `incoming`, else written to. Descriptor 4 is
        where it reads what it is told; that ends when the daemon dies. It says ``ready`` first, on its stdout.
        At the block's end it is ended by SIGTERM, if it has not ended before; it then removes what it began.
        """
        ...

    async def is_alive(self) -> bool:
        """Whether the sandbox takes requests."""
        ...

    async def read_piece(self, path: str, offset: int, max_bytes: int) -> FileContent:
        """Up to `max_bytes` of a file from `offset`, read as the sandbox's own user.

        Raises `not_found`, `invalid` (not a file), `permission_denied`.
        """
        ...

    async def write_whole(self, path: str, data: bytes, *, mode: int | None = None, parents: bool = False) -> None:
        """Write a file as the sandbox's own user, whole or not at all; with `parents` also the directories above it.

        Raises as `read_piece` does, and `disk_limit`.
        """
        ...

    async def list_directory(self, path: str, after: bytes, limit: int) -> Directory:
        """Up to `limit` files of a directory, by the bytes of their names, that come after the name `after`."""
        ...

    async def open_terminal(self, process_id: str, *, rows: int, cols: int, term: str, read_only: bool = False) -> int:
        """Attach a new viewer to the process's terminal; answer the controlling side of the viewer's own terminal.

        That is an open descriptor, not blocking, which the caller closes: the viewer goes when the last copy of it is
        closed, also after the daemon's death. What it shows was written inside the sandbox. `term` is the kind of
        terminal that the viewer's owner has. Raises `provider_unavailable` with what tmux said.
        """
        ...

    async def resize_terminal(self, process_id: str, *, rows: int, cols: int) -> None:
        """Give the process's terminal a size, until the next viewer brings its own."""
        ...

    async def type_into(self, process_id: str, data: bytes, *, eof: bool) -> int:
        """Type bytes into the process's terminal, exactly these; with `eof` also its end-of-file character. Answers
        how many bytes were typed.
        """
        ...

    async def aclose(self) -> None:
        """Let go of it. The sandbox and its processes go on."""
        ...


@runtime_checkable
class Claiming(Protocol):
    """What a provider can do beyond `Provider` when `plan` claims what nobody else on the machine may have meanwhile.

    A claim goes with `terminate`. What a daemon claimed that died before the plan was on record goes with `clean_up`.
    """

    def withdraw(self, sandbox_id: str, plan: dict[str, Any]) -> None:
        """Give back what was claimed for a plan that did not get on record. Does not block."""
        ...

    def claim_again(self, sandbox_id: str, plan: dict[str, Any]) -> dict[str, Any]:
        """Claim what a plan says of a sandbox that was not made; answer the plan, changed where that is another's now.

        Does not block. Raises `provider_unavailable`.
        """
        ...


@runtime_checkable
class Measuring(Protocol):
    """What an instance can do beyond `Instance` when the kernel counts what the sandbox uses."""

    def groups(self) -> Mapping[str, str]:
        """The directories of the sandbox's control groups, by controller. No effect; does not block."""
        ...


@runtime_checkable
class Pausing(Protocol):
    """What an instance can do beyond `Instance` when its sandbox can be suspended: nothing in it runs then, and all of
    it stays as it is. Requests to it wait meanwhile, without a deadline. `no_pauses` says why it cannot after all.
    """

    no_pauses: str | None

    async def suspend(self) -> None:
        """Have everything in it stand still. Safe to repeat. Raises `provider_unavailable` at once when the engine does
        not answer; when it is interrupted, `is_paused` tells what came of it.
        """
        ...

    async def resume(self) -> None:
        """Have everything in it go on. Safe to repeat. Raises as `suspend` does."""
        ...

    def is_paused(self) -> bool:
        """Whether it stands still, whoever brought that about. An instance that was just adopted knows."""
        ...

    async def pause_changed(self, paused: bool) -> None:
        """Wait until `is_paused` is not `paused` any more."""
        ...


@runtime_checkable
class Building(Protocol):
    """What a provider can do beyond `Provider` when it makes images also by Dockerfiles, and of references."""

    def default_base(self) -> str:
        """The reference of the image that a plain directory is put onto when its caller names none."""
        ...


class Provider(Protocol):
    """A back end that isolates. See the module's text for the lifecycle."""

    name: str

    async def capabilities(self) -> ProviderCapabilities:
        """What works here, and why something does not. Never raises; bounded in time."""
        ...

    async def import_image(
        self, image_id: str, request: ImageRequest, caller: Caller, progress: Progress
    ) -> ImportedImage:
        """Make an image, reading the caller's directory with his rights and no others. On any error nothing is left of
        it. A provider that is no `Building` is asked for plain directories only.
        """
        ...

    async def remove_image(self, image_id: str) -> None:
        """Remove what there is of an image, complete or half made. Safe to repeat."""
        ...

    def default_network(self) -> Network:
        """The network of sandboxes that did not ask for one. Raises `not_configured`."""
        ...

    def plan(
        self,
        sandbox_id: str,
        image_id: str,
        spec: SandboxSpec,
        caller: Caller,
        taken: Sequence[dict[str, Any]],
        *,
        details: Mapping[str, Any],
        owner: str,
    ) -> dict[str, Any]:
        """Decide what `create` will do. `taken` are the plans of the provider's sandboxes that have not ended;
        `details` are those that the import of the image answered, and `owner` is whose it will be. No effect but that
        of a `Claiming` provider.
        """
        ...

    async def create(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Mapping[str, str], plan: dict[str, Any]
    ) -> Instance:
        """Make and start a sandbox. On any error, cancellation included, nothing is left of it."""
        ...

    async def adopt(
        self, sandbox_id: str, spec: SandboxSpec, plan: dict[str, Any], isolation: Isolation, handle: dict[str, Any]
    ) -> Instance | Ending | None:
        """Take over a sandbox that an earlier daemon started. None: it is gone for good. Where it cannot be taken over,
        it is ended, and the answer says why.
        """
        ...

    async def terminate(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> None:
        """End a sandbox and remove its files, but not its journals. Safe to repeat, and for a sandbox half made."""
        ...

    async def forget(self, sandbox_ids: Sequence[str]) -> None:
        """Remove what is left of sandboxes that have ended: their journals. Safe to repeat, and for sandboxes of other
        providers.
        """
        ...

    async def found(self) -> tuple[list[str], list[str]]:
        """The ids of the sandboxes and of the images that the provider holds anything of."""
        ...

    async def clean_up(self, ledger: Ledger) -> Swept:
        """Remove what the log does not own, of whatever kind: what an earlier daemon left, or was not to know of.

        What carries the id of another log is left, since it may be in use, and told. Safe to repeat, and while
        sandboxes are made and ended.
        """
        ...

    def last_exits(self, sandbox_id: str, process_ids: Sequence[str]) -> dict[str, Exit]:
        """How processes of a sandbox that is gone had ended before, as far as what is left of it tells."""
        ...

    def read_ended(self, sandbox_id: str, process_id: str, stream: str, offset: int, max_bytes: int) -> Chunk:
        """Read a journal of a sandbox that has ended."""
        ...

    def trim_output(self, sandbox_id: str, running: Collection[str], most_bytes: int) -> Dropped:
        """Have the journals of a sandbox occupy no more than that: of processes that are not `running` they go, oldest
        first; then the beginning of others. Blocks: call it in a thread. Raises OSError.
        """
        ...

    def drop_output(self, sandbox_id: str, process_ids: Collection[str]) -> None:
        """Remove the journals of processes that have ended. Safe to repeat. Blocks. Raises OSError."""
        ...

    def open_journal(self, sandbox_id: str, process_id: str, stream: str, uid: int) -> int:
        """Open a journal, of a sandbox that runs or has ended, to be given to a caller of that uid, who may read it and
        nothing else, whatever the file's mode.

        One that is not there is empty. Raises `conflict` when the code inside put something else in its place,
        `not_supported` where it could be run or written to by that caller.
        """
        ...

    async def aclose(self) -> None:
        """Let go of everything. Sandboxes go on."""
        ...


@runtime_checkable
class Reviving(Protocol):
    """What a provider can do beyond `Provider` when a sandbox that has ended by itself can be started anew on the files
    that it left. Its journals and what they tell of processes that have ended stay.
    """

    async def revive(
        self,
        sandbox_id: str,
        image_id: str,
        spec: SandboxSpec,
        secrets: Mapping[str, str],
        plan: dict[str, Any],
        handle: dict[str, Any],
    ) -> Instance:
        """Start a sandbox anew; whatever still runs of it is ended first. `handle` is that of the instance before.

        On any error, cancellation included, nothing of it runs, and what files there were are there. Raises
        `not_ready` with why when they are gone.
        """
        ...

    async def halt(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> None:
        """End what runs of a sandbox whose revival was interrupted, and leave its files. Safe to repeat."""
        ...


@runtime_checkable
class Recovering(Protocol):
    """What a provider can do beyond `Provider` when it depends on an engine that may be down for a while."""

    async def recovered(self) -> None:
        """Wait until the engine answers again, of which an error has told that it did not."""
        ...


class Source(Struct, frozen=True, kw_only=True):
    """A sandbox whose files are to be read, whether it runs or not: what is on record of it."""

    sandbox_id: str
    image_id: str
    plan: dict[str, Any]
    handle: dict[str, Any]


class Frozen(Struct, frozen=True, kw_only=True):
    """What came of a copy of what a sandbox changed: the `files` that others can begin with, and whether some of them
    are the image's. The sandbox stood still for `pause_ms`; None where it could not.
    """

    files: dict[str, Any]
    needs_image: bool
    pause_ms: float | None
    size_bytes: int


class PackRequest(Struct, frozen=True, kw_only=True):
    """How a sandbox's files are to be packed, into the empty file that the descriptor `output` is of.

    With `over` only what differs is packed: from what the sandbox began with, or from what it was when
    `parent_catalogue` was written. What the archive holds is written to the file `catalogue`, for archives that will be
    over this one. No kept files are called `name`, as those may be that it takes meanwhile.
    """

    name: str
    output: int
    catalogue: str
    format: ArchiveFormat
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    over: Literal["nothing", "start", "parent"] = "nothing"
    parent_catalogue: str | None = None


class PackedFiles(Struct, frozen=True, kw_only=True):
    """What an archive that was packed holds. `pause_ms` is as in `Frozen`. `remarks` counts what is not in it as it
    was, by why.
    """

    sha256: str
    size_bytes: int
    member_count: int
    content_bytes: int
    pause_ms: float | None
    remarks: dict[str, int] = field(default_factory=dict)


@runtime_checkable
class Snapshotting(Protocol):
    """What a provider can do beyond `Provider` when the files of a sandbox can be kept as an archive."""

    def files_root(self, plan: Mapping[str, Any]) -> str:
        """The directory in the sandbox at which the names in its archives begin."""
        ...

    def owner_in_archives(self, spec: SandboxSpec) -> tuple[int, int] | None:
        """Whom everything in its archives belongs to, as uid and gid; None where each file has an owner of its own."""
        ...

    def why_not_incremental(self, handle: Mapping[str, Any]) -> str | None:
        """Why no archive can be made of what differs from what the sandbox began with; None when one can."""
        ...

    async def pack(self, source: Source, request: PackRequest, progress: Progress) -> PackedFiles:
        """Pack the files as they are at one moment. On any error, cancellation included, nothing is left of it, and
        the sandbox goes on. Raises `not_ready` when the files are gone, `storage_unavailable`.
        """
        ...


class KeptArchive(Struct, frozen=True, kw_only=True):
    """An archive of a snapshot, in an open file, that files are to be made of.

    One that `is_layer` holds what differs from the files kept under the name `beneath`, or from the image `image_id`.
    Else it holds all, and `image_id` is the image that the sandbox was made of, if one was; `details` are the image's.
    """

    descriptor: int
    sha256: str
    limits: Limits
    is_layer: bool = False
    beneath: str | None = None
    image_id: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Layering(Protocol):
    """What a provider can do beyond `Provider` when sandboxes can begin with other files than an image's.

    Such files are kept under a name of their own as long as a sandbox needs them, and shared by all that do. What it
    takes to find them is a small JSON document, `files`, which goes on record as a part of a sandbox's plan.
    """

    no_forks: str | None
    """Why nothing of what a sandbox changed can be kept so, if that is the case."""

    async def freeze(self, name: str, source: Source) -> Frozen:
        """Keep a copy of what a sandbox changed, as it is at one moment. The sandbox goes on. On any error nothing is
        left of it.
        """
        ...

    async def filled(self, names: Sequence[str], image_id: str | None) -> dict[str, Any]:
        """The `files` that consist of what was kept under these names, each hiding parts of the next, and of an image
        beneath them or of nothing. No effect. Raises `not_supported` where that cannot be.
        """
        ...

    async def is_filled(self, name: str) -> bool:
        """Whether files of that name are there, and complete."""
        ...

    async def fill(self, name: str, archive: KeptArchive, progress: Progress) -> None:
        """Keep the files of an archive; those that are to be beneath them are there. All of it is looked through before
        anything is made of it. On any error nothing is left of them. Raises `snapshot_corrupt`, `storage_unavailable`.
        """
        ...

    def layered(self, plan: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
        """The plan of a sandbox that begins with these files."""
        ...

    def needs_image(self, files: Mapping[str, Any]) -> bool:
        """Whether some of these files are the image's."""
        ...

    def layers_of(self, plan: Mapping[str, Any]) -> Sequence[str]:
        """The names of the kept files that a plan needs, each hiding parts of the next."""
        ...

    async def open_image(self, image_id: str) -> int:
        """The files of an image as an open directory, for reading. Raises `not_found`."""
        ...

    async def promote(
        self, image_id: str, files: Mapping[str, Any], beneath: str | None, progress: Progress
    ) -> ImportedImage:
        """Make an image of such files, as a whole. On any error nothing is left of it."""
        ...

    async def discard_layers(self, names: Collection[str]) -> None:
        """Remove kept files that no sandbox needs. Safe to repeat."""
        ...


@runtime_checkable
class Replacing(Protocol):
    """What a provider can do beyond `Provider` when the files of a sandbox can be replaced by others, as a whole."""

    def replaced(self, plan: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
        """The plan by which a sandbox of that plan is started with these files instead of its own."""
        ...

    async def replace_files(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Mapping[str, str],
        plans: tuple[dict[str, Any], dict[str, Any]], handle: dict[str, Any],
    ) -> Instance:  # fmt: skip
        """End what runs in a sandbox, put its files aside and start it by the second of its `plans`.

        The files of before stay aside until `drop_replaced`. On any error they are put back, and nothing of it runs.
        """
        ...

    async def put_back(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> bool:
        """End what runs of a sandbox whose files were about to be replaced, if they were, and have it be what it was;
        answer whether anything was ended. Safe to repeat.
        """
        ...

    async def drop_replaced(self, sandbox_id: str) -> None:
        """Remove what was put aside. Safe to repeat."""
        ...


class Checkpointed(Struct, frozen=True, kw_only=True):
    """What came of a checkpoint: for how long the sandbox stood still, if it goes on; and the `digests` of those of its
    files of which they are known (see `digests`), with their sizes.
    """

    pause_ms: float | None
    digests: dict[str, tuple[str, int]] = field(default_factory=dict)


@runtime_checkable
class Checkpointing(Protocol):
    """What a provider can do beyond `Provider` when sandboxes can be kept with all that runs in them.

    A checkpoint is some files in a directory. It can be brought back any number of times, on this machine or on one
    that `why_not_here` has nothing against.
    """

    def why_no_checkpoint(self, plan: Mapping[str, Any]) -> str | None:
        """Why no checkpoint can be made of a sandbox of that plan; None when one can."""
        ...

    def plan_like(self, plan: Mapping[str, Any], planned: Mapping[str, Any]) -> dict[str, Any]:
        """The plan of a sandbox that is brought back from a checkpoint of one of the plan `plan`, and that gets what
        was `planned` for it.
        """
        ...

    def facts(self) -> dict[str, str]:
        """What of this machine the checkpoints that are made here depend on. May block. Raises
        `provider_unavailable`.
        """
        ...

    def why_not_here(self, facts: Mapping[str, str]) -> str | None:
        """Why what was made where that was so cannot be brought back here, in words; None when it can. May block."""
        ...

    async def checkpoint(
        self, sandbox_id: str, directory: str, process_ids: Collection[str], *, leave_running: bool
    ) -> Checkpointed:
        """Keep a sandbox in an empty directory. It goes on, or else is suspended. `process_ids` are those on record as
        running. On any error it runs, unless it has ended; what is in the directory then is of no use.
        """
        ...

    async def create_saved(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, plan: dict[str, Any], secrets: Collection[str],
        directory: str,
    ) -> Instance:  # fmt: skip
        """Make a sandbox of a checkpoint. `secrets` are the names of those in it. On any error, cancellation included,
        nothing is left of it.
        """
        ...

    async def return_to(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, plans: tuple[dict[str, Any], dict[str, Any]],
        handle: dict[str, Any], directory: str,
    ) -> Instance:  # fmt: skip
        """End what runs in a sandbox and have it be what it was when the checkpoint was made; its plan is the second of
        `plans` then. What its processes wrote since stays. On any error it is what it was before, if it ran.
        """
        ...

    async def rename(self, sandbox_id: str, process_id: str, new: str) -> None:
        """Have a process of a sandbox that was brought back be called by another id from now on, before it is asked
        after.
        """
        ...

"""The interface of a provider: a back end that isolates sandboxes and runs their processes.

Lifecycle
    `plan` checks a request and decides all that must be on record before any effect; it has no effect itself, except
    that it may claim exclusive resources (see `claims`), and raises `not_supported` for a request that this machine
    cannot fulfil. After the intent is durable, `create` acts by that plan and returns a running `Instance`. When a
    daemon starts, `adopt` turns a plan and the handle of an earlier `create` into an Instance again, or returns None
    when the sandbox is gone. `terminate` ends a sandbox, complete or half made, and is safe to repeat. `found` lists
    the sandboxes and images of which the provider holds anything; `clean_up` removes objects that no event owns.

Words
    *plan*: a small JSON document, durable before the act; the same plan always means the same resources.
    *handle*: a small JSON document, durable after it; it identifies the running sandbox for `adopt`.
    *spec*: the caller's request, with the daemon's defaults filled in.

Errors
    Everything raised is a `SandkeepError`. A provider translates the errors of its tools; none of theirs goes through.
    When the engine that it depends on does not answer, it raises `provider_unavailable` at once, with `engine` in the
    error's data: recorded work then waits for that engine, and no caller waits with it. See `engine`.

Parts
    A provider is composed: a capability of only some is an object behind an attribute of it, None where it is missing.
    Each has a protocol in a module of its own, with an example of the daemon's calls: `snapshots`, `layers` (forks
    and restores), `replacement`, `resizing`, `checkpoints`, `revival`, `claims`, `engine`, `builder`, `volumes`; of an
    instance, `pauses`. To suspend, fork or restore where the part is missing is refused with `not_supported`.

Example: the life of a sandbox
    A client makes an image of a directory. Its outcome is recorded with the result of `make`::

        made = await provider.images.make("img_1", request, caller, progress)

    And a sandbox of it. `taken` are the plans of the provider's other sandboxes, from which this one's resources have
    to differ::

        plan = provider.plan("sbx_1", "img_1", spec, caller, taken, details=made.details, owner="uid:1000")
        ...                                                  # on record: sandbox.create_requested with the plan
        instance = await provider.create("sbx_1", "img_1", spec, secrets, plan)
        ...                                                  # on record: sandbox.created with instance.handle

    A process, followed by the readers of its output, and by the task that waits for its end::

        await instance.launch(Launch(process_id="prc_1", command=["make"]))
        await instance.wait_output("prc_1", 0, 0)
        chunk = instance.read("prc_1", "stdout", 0, 65536)
        exit = await instance.wait("prc_1")                  # on record: process.exited
        instance.forget("prc_1")

    The daemon stops, and the next one finds the sandbox on record. The sandbox ran on meanwhile::

        await instance.aclose()
        await provider.aclose()
        ...
        instance = await provider.adopt("sbx_1", spec, plan, isolation, handle)
        await instance.find("prc_2")                         # of each process on record as running
        await provider.clean_up(ledger)                      # removes objects that no event owns

    From the moment of `create` or `adopt` a task waits for the sandbox to end by itself. When it does, that is recorded
    and the sandbox can be revived, if there is `revival`; the daemon calls `terminate` when a client asks for it::

        ending = await instance.ended()                      # on record: sandbox.failed, or lost
        await instance.aclose()

    At the end its files go, and its journals stay until `forget`. A death of the daemon within `create` leads here,
    too, with an empty handle, as none is on record::

        await provider.terminate("sbx_1", plan, handle)
        await provider.cleared("sbx_1")                      # on record: sandbox.terminated
        provider.read_ended("sbx_1", "prc_1", "stdout", 0, 65536)
        await provider.forget(["sbx_1"])
        await provider.images.remove("img_1")

`docs/how-to/write-a-provider.md` has a provider in full.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from sandkeep.model import Isolation, Network, ProviderCapabilities, SandboxSpec
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.checkpoints import Checkpointing
from sandkeepd.contract.claims import Claiming
from sandkeepd.contract.engine import Recovering
from sandkeepd.contract.images import Building, Images
from sandkeepd.contract.instance import Ending, Instance
from sandkeepd.contract.layers import Layering
from sandkeepd.contract.ledger import Ledger, Swept
from sandkeepd.contract.processes import Chunk, Dropped, Exit
from sandkeepd.contract.replacement import Replacing
from sandkeepd.contract.resizing import Resizing
from sandkeepd.contract.revival import Reviving
from sandkeepd.contract.snapshots import Snapshotting
from sandkeepd.contract.volumes import Volumes


class Parts(Protocol):
    """The capabilities of only some back ends: each is an object of its own behind an attribute, None where it is
    missing.
    """

    builder: Building | None = None
    checkpoints: Checkpointing | None = None
    claims: Claiming | None = None
    engine: Recovering | None = None
    layers: Layering | None = None
    replacement: Replacing | None = None
    resizing: Resizing | None = None
    revival: Reviving | None = None
    snapshots: Snapshotting | None = None
    volumes: Volumes | None = None


class Provider(Parts, Protocol):
    """A back end that isolates. See the module's text for the lifecycle.

    Sandboxes older than `longest_lifetime_s`, in seconds, are ended by the back end itself; None where it ends none.
    """

    name: str
    longest_lifetime_s: float | None = None

    @property
    def images(self) -> Images:
        """Makes images, and removes them."""
        ...

    async def capabilities(self) -> ProviderCapabilities:
        """Return the capabilities of this machine, with a reason for each missing one. Never raises; has a deadline."""
        ...

    def default_network(self) -> Network:
        """Return the default network of sandboxes. Raises `not_configured`."""
        ...

    def default_memory(self) -> int | None:
        """Return the default memory limit of sandboxes; None where memory is not counted for a sandbox as a whole."""
        ...

    def default_lifetime(self) -> float | None:
        """Return the default lifetime of sandboxes, in seconds; None for no end. It is finite where they cost money
        while they stand, and `create` then has the back end end them a little later, if no daemon has.
        """
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
        """Decide on the acts of `create`. `taken` are the plans of the provider's sandboxes that have not ended;
        `details` are those that the import of the image returned, and `owner` is the sandbox's future owner. No effect
        but a claim, where there are `claims`.
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
        """Take over a sandbox that an earlier daemon started. None: it is gone for good. If it cannot be taken over, it
        is ended, and the returned `Ending` has the reason.
        """
        ...

    async def terminate(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> None:
        """End a sandbox, and remove its files, but not its journals, or begin to. Safe to repeat, also while files are
        being removed, and for a sandbox half made.
        """
        ...

    async def cleared(self, sandbox_id: str) -> None:
        """Wait, however long that takes, for the removal of files that `terminate` has begun, and raise its error."""
        ...

    async def forget(self, sandbox_ids: Sequence[str]) -> None:
        """Remove the journals of sandboxes that have ended. Safe to repeat, and for sandboxes of other providers."""
        ...

    async def found(self) -> tuple[list[str], list[str]]:
        """Return the ids of the sandboxes and of the images of which the provider holds anything."""
        ...

    async def clean_up(self, ledger: Ledger) -> Swept:
        """Remove objects of any kind that the log does not own: left by an earlier daemon, or unknown to it.

        Objects with the id of another log are left, since they may be in use, and reported. Safe to repeat, and while
        sandboxes are made and ended.
        """
        ...

    def last_exits(self, sandbox_id: str, process_ids: Sequence[str]) -> dict[str, Exit]:
        """Return the exits of processes of a sandbox that is gone, as far as its remains show them."""
        ...

    def read_ended(self, sandbox_id: str, process_id: str, stream: str, offset: int, max_bytes: int) -> Chunk:
        """Read a journal of a sandbox that has ended."""
        ...

    def trim_output(self, sandbox_id: str, running: Collection[str], most_bytes: int) -> Dropped:
        """Limit the size of a sandbox's journals to `most_bytes`: drop those of processes that are not `running`,
        oldest first; then the beginning of others. Returns what was dropped and what is left. Blocks: call it in a
        thread. Raises OSError.
        """
        ...

    def drop_output(self, sandbox_id: str, process_ids: Collection[str]) -> None:
        """Remove the journals of processes that have ended. Safe to repeat. Blocks. Raises OSError."""
        ...

    def open_journal(self, sandbox_id: str, process_id: str, stream: str, uid: int) -> int:
        """Open a journal, of a running or an ended sandbox, to be given to a caller of that uid, who may only read it,
        regardless of the file's mode.

        A missing journal is empty. Raises `conflict` when the code inside put something else in its place,
        `not_supported` where that caller could execute it or write to it.
        """
        ...

    async def aclose(self) -> None:
        """Release all resources. Sandboxes go on."""
        ...

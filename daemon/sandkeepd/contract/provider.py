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

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from sandkeep.model import Isolation, Network, ProviderCapabilities, SandboxSpec
from sandkeepd.contract.caller import Caller, Progress
from sandkeepd.contract.images import ImageRequest, ImportedImage
from sandkeepd.contract.instance import Ending, Instance
from sandkeepd.contract.ledger import Ledger, Swept
from sandkeepd.contract.processes import Chunk, Dropped, Exit


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

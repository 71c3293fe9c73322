"""Lookup of processes by the names and ids that callers give, in the view and in the log."""

from sandkeep import ids
from sandkeep.errors import CallerError
from sandkeep_store.eventlog.codec import CODEC
from sandkeep_store.eventlog.log import Recorded
from sandkeep_store.views.processes import ProcessState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.state import State
from sandkeepd.core import naming, rules
from sandkeepd.core.core import Core
from sandkeepd.core.holds import Holds


class ProcessLookup:
    """Finds processes. `naming` holds names that are about to be used, as ``SANDBOX_ID/NAME``."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.naming = Holds()

    async def find(self, sandbox_id: str, name: str) -> ProcessState:
        """Return a process by its name or id; one too old for the view is read from its stream in the log. Raises
        `not_found`.
        """
        sandbox = rules.sandbox(self._core.state, sandbox_id)
        found = sandbox.named.get(name) or self._core.state.processes.get(name)
        if found is None or found.sandbox_id != sandbox_id:  # a foreign process takes as long as a missing one
            found = await self._from_log(sandbox, name)
        if found is None:
            found = self._beginning_with(sandbox, name)
        if found is None:
            raise CallerError(
                "not_found", f"sandbox {sandbox_id} has no process {name!r}", sandbox_id=sandbox_id, name=name
            )
        return found

    def _beginning_with(self, sandbox: SandboxState, text: str) -> ProcessState | None:
        """Return the one process of the view whose id begins so. Raises `invalid` if there are several, and
        `not_found` if the text is too short.
        """
        if not naming.is_beginning(text, ids.PROCESS, "process", "name"):
            return None
        known = (*sandbox.active.values(), *sandbox.recent_named, *sandbox.recent_unnamed)
        found = {process.process_id: process for process in known if process.process_id.startswith(text)}
        if len(found) > 1:
            raise naming.ambiguous(text, "name", "ids of processes begin so", sorted(found))
        return next(iter(found.values()), None)

    async def _from_log(self, sandbox: SandboxState, process_id: str) -> ProcessState | None:
        if not process_id.startswith(ids.PROCESS + "_"):
            return None
        facts: list[Recorded] = []
        while more := await self._core.log.read(
            facts[-1].position if facts else 0, 100, stream=process_id, sandbox_id=sandbox.sandbox_id
        ):
            facts += more
        return fold_process(facts, sandbox.sandbox_id)


def fold_process(facts: list[Recorded], sandbox_id: str) -> ProcessState | None:
    """Return the state of one process, from the events of its stream alone; None when it is of another sandbox."""
    apart = State()
    for fact in facts:
        if fact.sandbox_id != sandbox_id:
            return None
        apart.apply(CODEC.decode(fact.position, fact.type, fact.version, fact.data), fact)
    return next(iter(apart.processes.values()), None)

"""Sandboxes: the parts that make, keep, change and end them, and the handlers that show them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from sandkeep.model import Sandbox, SandboxList
from sandkeep.protocol.clock import optional_rfc3339
from sandkeep.protocol.methods import SandboxQuery, SandboxRef
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Operation
from sandkeepd.core.paging import page
from sandkeepd.sandboxes.creation import SandboxCreation
from sandkeepd.sandboxes.images import Images
from sandkeepd.sandboxes.reservations import Reservations
from sandkeepd.sandboxes.runtimes import Runtimes
from sandkeepd.sandboxes.suspend import Resumption, Suspension
from sandkeepd.sandboxes.termination import Termination
from sandkeepd.sandboxes.updates import Updates


class Sandboxes:
    """The parts, and the handlers of ``sandbox.get`` and ``sandbox.list``."""

    def __init__(self, core: Core, images: Images) -> None:
        self._core = core
        self.runtimes = Runtimes(core)
        self.reservations = Reservations(core)
        self.termination = Termination(core, self.runtimes)
        self.creation = SandboxCreation(core, images, self.reservations, self.runtimes, self.termination)
        self.suspension = Suspension(core, self.runtimes)
        self.resumption = Resumption(core, self.runtimes)
        self.updates = Updates(core, self.runtimes)
        self.operations: Sequence[Operation[Any, Any]] = (
            self.creation, self.suspension, self.resumption, self.termination
        )  # fmt: skip

    def get_now(self, request: Request[SandboxRef]) -> Sandbox:
        """Show a sandbox, with a note if it is at a limit."""
        sandbox = rules.sandbox(self._core.state, request.params.sandbox_id)
        found, runtime = self._view(sandbox), self.runtimes.by_id.get(sandbox.sandbox_id)
        if found.note is None and sandbox.status == "running" and runtime is not None:
            note = runtime.limits.note()
            found = msgspec.structs.replace(found, note=note) if note else found
        return found

    def _view(self, sandbox: SandboxState) -> Sandbox:
        """Return the sandbox from the log, with a note while it is unconfirmed since the start. One found lost is
        confirmed, even before its adoption is finished.
        """
        sandbox_id, settled = sandbox.sandbox_id, sandbox.status in rules.SETTLED
        note = self._core.stalled(sandbox_id) if settled else self.runtimes.note_of(sandbox_id)
        found = msgspec.structs.replace(sandbox.view(), note=note) if note else sandbox.view()
        if sandbox.spec.session_id is None or sandbox.ended_us is not None:
            return found
        return msgspec.structs.replace(found, expires_at=optional_rfc3339(self._core.state.expires_us(sandbox)))

    def list_now(self, request: Request[SandboxQuery]) -> SandboxList:
        """List the caller's sandboxes; an administrator sees all."""
        query = request.params
        shown = (
            s
            for s in self._core.state.sandboxes.values()
            if request.sees(s.owner)
            and (query.all or not s.hidden)
            and query.labels.items() <= s.requested.spec.labels.items()
        )
        found, following = page(shown, lambda sandbox: sandbox.sandbox_id, query.after, query.limit)
        return SandboxList(sandboxes=[self._view(sandbox) for sandbox in found], next=following)

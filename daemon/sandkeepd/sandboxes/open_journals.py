"""Open descriptors of journals for callers, so that output does not pass through the daemon."""

import os
from contextlib import ExitStack

from sandkeep.model import OpenOutput
from sandkeep.protocol.methods import ProcessRef
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.sandboxes.output_reader import require_kept
from sandkeepd.sandboxes.processes import Processes


class Journals:
    """The handler of ``process.open_output``."""

    def __init__(self, core: Core, processes: Processes) -> None:
        self._core = core
        self._processes = processes

    async def open_output(self, request: Request[ProcessRef]) -> OpenOutput:
        """Give the caller both journals of a process, which may have ended, as may its sandbox.

        Raises `compacted` when they are not kept any more, `not_supported` where that would be more than to let it be
        read.
        """
        process = await self._processes.lookup.find(request.params.sandbox_id, request.params.name)
        view = process.view()  # looked at before the journals: with an ended process, they are all there is
        require_kept(process, self._processes.outputs.read_journal(process, "stdout", 0, 0))
        uid = request.caller.uid
        provider = self._core.provider(self._core.state.sandboxes[process.sandbox_id].requested.provider)
        with ExitStack() as opened:
            given = []
            for stream in ("stdout", "stderr"):
                given.append(provider.open_journal(process.sandbox_id, process.process_id, stream, uid))
                opened.callback(os.close, given[-1])
            stdout_bytes, stderr_bytes = (os.fstat(descriptor).st_size for descriptor in given)
            await request.give(given)
        return OpenOutput(process=view, stdout_bytes=stdout_bytes, stderr_bytes=stderr_bytes)

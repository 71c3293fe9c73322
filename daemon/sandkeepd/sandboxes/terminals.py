"""Terminals of processes, for clients: attached to by a descriptor, and resized."""

import os

from sandkeep.model import Attachment, Process
from sandkeep.protocol.methods import ProcessAttach, ProcessResize
from sandkeepd.core.access import Request
from sandkeepd.sandboxes.processes import Processes


class Terminals:
    """The handlers of ``process.attach`` and ``process.resize``."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    async def attach(self, request: Request[ProcessAttach]) -> Attachment:
        """Give the caller the controlling side of a terminal in which tmux shows the process."""
        query = request.params
        process = await self._processes.lookup.find(query.sandbox_id, query.name)
        fd = await self._processes.open_terminal(process, query.rows, query.cols, query.term, read_only=query.read_only)
        try:
            await request.give([fd])
        finally:
            os.close(fd)
        return Attachment(process=process.view())

    async def resize(self, request: Request[ProcessResize]) -> Process:
        """Give the process's terminal a size."""
        query = request.params
        process = await self._processes.lookup.find(query.sandbox_id, query.name)
        terminals = await self._processes.reach_terminal(process)
        await terminals.resize_terminal(process.process_id, rows=query.rows, cols=query.cols)
        return process.view()

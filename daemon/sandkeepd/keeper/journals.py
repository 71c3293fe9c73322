"""The journals of a sandbox that runs: read, waited for, and forced to the disk. Nothing waits for a reader's sake."""

import os
from contextlib import ExitStack

import trio

from sandkeepd.contract.processes import Chunk
from sandkeepd.host.hostile_files import HostileTree, NotAFileError
from sandkeepd.keeper import journal, requests
from sandkeepd.keeper.processes import Known
from sandkeepd.keeper.watcher import Watcher, grown


class Journals:
    """The output of one sandbox's processes, in `out`."""

    def __init__(self, out: HostileTree, watcher: Watcher) -> None:
        self._out = out
        self._watcher = watcher

    def read(self, process_id: str, stream: str, offset: int, max_bytes: int) -> Chunk:
        """See `Instance.read`."""
        return journal.read_journal(self._out, requests.check_process_id(process_id), stream, offset, max_bytes)

    def sizes(self, process_id: str) -> tuple[int, int]:
        """See `Instance.sizes`."""
        return journal.sizes(self._out, requests.check_process_id(process_id))

    async def wait(self, process_id: str, process: Known, stdout_offset: int, stderr_offset: int) -> None:
        """See `Instance.wait_output`."""
        more = trio.Event()
        with ExitStack() as stack:
            process.followers.add(more.set)
            stack.callback(process.followers.discard, more.set)
            for stream, offset in (("stdout", stdout_offset), ("stderr", stderr_offset)):
                if process.exit or self._follow(process_id, stream, offset, more, stack):
                    return
            await more.wait()

    def _follow(self, process_id: str, stream: str, offset: int, more: trio.Event, stack: ExitStack) -> bool:
        """Set `more` when the stream grows; return True if it is longer than `offset` already."""
        try:
            fd = journal.open_journal(self._out, process_id, stream)
        except (OSError, NotAFileError):
            return False
        try:
            stack.enter_context(self._watcher.watching(fd, more.set))
            return grown(fd, offset)
        finally:
            os.close(fd)

    def sync(self, process_id: str) -> None:
        """See `Instance.sync`."""
        for stream in ("stdout", "stderr"):
            try:
                fd = journal.open_journal(self._out, process_id, stream)
            except (OSError, NotAFileError):
                continue
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

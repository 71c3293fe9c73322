"""Copying of a client's pipe into a file, without a thread that waits for the client.

The number of threads is limited for the whole daemon, and a client may write nothing for ever.
"""

import errno
import fcntl
import hashlib
import os
import select
from typing import Final

import trio

from sandkeep.errors import DaemonError, DataError
from sandkeep.protocol.amounts import of_total
from sandkeep.system.descriptors import write_all
from sandkeep_store.threads import in_thread
from sandkeepd.contract.caller import Progress
from sandkeepd.host.threads import PROGRESS_PERIOD_S

_CHUNK_BYTES: Final = 1 << 20
_AT_ONCE_BYTES: Final = 64 << 20
_MOMENT_MS: Final = 20
"""Milliseconds a thread waits for more data: starting one for every small piece would take longer."""


class Intake:
    """The data of the pipe `source`, which must have `size_bytes`, on its way to the file `target`."""

    def __init__(self, source: int, target: int, size_bytes: int) -> None:
        self._source = source
        self._target = target
        self._expected = size_bytes
        self._digest = hashlib.sha256()
        self._size = 0
        os.set_blocking(source, False)

    async def run(self, progress: Progress) -> str:
        """Take all of it, and answer its digest. Raises `snapshot_corrupt` unless it is so long."""
        told = trio.current_time()
        await progress("taking the archive")
        while not await in_thread(self._take):
            if trio.current_time() - told > PROGRESS_PERIOD_S:
                told = trio.current_time()
                await progress(f"taking the archive: {of_total(self._size, self._expected)}")
            await trio.lowlevel.wait_readable(self._source)
        if self._size != self._expected:
            came = "more" if self._size > self._expected else self._size
            message = f"the archive was announced with {self._expected} bytes, and {came} arrived: send it again"
            raise DataError("snapshot_corrupt", message)
        return self._digest.hexdigest()

    def _take(self) -> bool:
        """Read available data, and data that arrives at once; return True at the end. Blocks for a moment."""
        enough = self._size + _AT_ONCE_BYTES
        soon = select.poll()
        soon.register(self._source, select.POLLIN)
        while self._size < enough and soon.poll(_MOMENT_MS):
            try:
                chunk = os.read(self._source, _CHUNK_BYTES)
            except BlockingIOError:  # a client of our own user can read from it, too
                return False
            self._size += len(chunk)
            if not chunk or self._size > self._expected:
                return True
            self._digest.update(chunk)
            self._write(chunk)
        return False

    def _write(self, chunk: bytes) -> None:
        try:
            write_all(self._target, chunk)
        except OSError as error:
            why = error.strerror or os.strerror(errno.EIO)
            raise DaemonError("storage_unavailable", f"the archive cannot be written: {why}: make room there") from None


def enlarge(pipe: int) -> None:
    """Enlarge a pipe to the size of one read, if its owner may have that."""
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _CHUNK_BYTES)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOMEM):
            raise

"""Copies into a sandbox and out of it, as tar streams between a caller and a script that runs inside.

The bytes do not pass through the daemon: it hands over a pipe's end, gets the outcome from the script, and commits the
copy. See `copy.sh` for the protocol.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from sandkeep.errors import SetupError
from sandkeep.ids import new_id
from sandkeep_store.archives.tar.depth import MOST_LEVELS
from sandkeepd.contract.commands import CommandFailedError, PipedCommand
from sandkeepd.contract.instance import Instance
from sandkeepd.keeper.failure import failure
from sandkeepd.keeper.files import working_dir_for
from sandkeepd.keeper.pipes import HELPER

_SCRIPT: Final = Path(__file__).with_name("copy.sh").read_text(encoding="utf-8")

Form = Literal["whole", "contents", "bytes"]
"""A tar archive of a file or tree under its name, one of a directory's contents, or the bytes of a file."""


class Extent(Struct, frozen=True, kw_only=True):
    """The kind of a copy, its number of entries, the bytes of its files, and its `path` in the sandbox."""

    kind: Literal["file", "tree"]
    files: int
    size_bytes: int
    path: str = ""


class Copy:
    """A copy under way. `take_data` answers the daemon's end of the tar stream, which the caller closes."""

    def __init__(self, command: PipedCommand, path: str) -> None:
        self._command = command
        self._path = path
        self.take_data = command.take_data

    async def staged(self) -> Extent:
        """Wait until the whole stream is in the sandbox, beside its target. Raises the copy's error."""
        with self._translated():
            message = await self._command.expect("staged")
        return self._extent(message)

    async def commit(self) -> Extent:
        """Make the staged copy effective; from here on it completes even if its caller is cancelled."""
        self._command.leave_alone()
        self._command.tell("commit")
        return await self.done()

    async def done(self) -> Extent:
        """Wait for the end of the copy. Raises its error."""
        with self._translated():
            word, _, message = (await self._command.end()).partition(" ")
        return self._extent(message if word == "done" else "")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except CommandFailedError as error:
            raise failure(error.stderr, error.exit_code, self._path) from None

    def _extent(self, message: str) -> Extent:
        kind, files, size, path = (*message.split(" ", 3), "", "", "", "")[:4]
        if kind not in ("file", "tree") or not _is_count(files) or not _is_count(size):
            raise failure(b"the sandbox sent a malformed answer about the copy", 1, self._path)
        return Extent(kind="file" if kind == "file" else "tree", files=int(files), size_bytes=int(size), path=path)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


@asynccontextmanager
async def copying(instance: Instance, path: str, *, incoming: bool, form: Form) -> AsyncIterator[Copy]:
    """Copy to or from `path` within a block. An incoming copy that is not committed in it is undone."""
    if instance.no_copies is not None:
        raise SetupError("not_supported", instance.no_copies)
    command = ["sh", "-c", _SCRIPT, "sh", "receive" if incoming else "send", path]
    command += [form, new_id(HELPER), str(MOST_LEVELS + 1)]
    try:
        async with instance.run_piped(command, incoming=incoming, working_dir=working_dir_for(path)) as piped:
            yield Copy(piped, path)
    except CommandFailedError as error:
        raise failure(error.stderr, error.exit_code, path) from None

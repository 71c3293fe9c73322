"""Operations of handles that the table does not have, written once for all clients.

They are generators that yield calls, each a row, arguments by position and by name, and get their results.
"""

import os
from collections.abc import Callable, Generator
from typing import Any, Final

from msgspec import Struct

from sandkeep import model
from sandkeep.clients.steps import Step, Steps
from sandkeep.errors import CallerError
from sandkeep.protocol.methods import MAX_WRITE_BYTES, METHODS

MAX_FILE_BYTES: Final = 256 * 1024 * 1024
"""Maximum bytes of a file that is read into memory: a sandbox can have one of any size, which costs it nothing."""

MAX_ENTRIES: Final = 100_000
"""Maximum files of a directory that is listed whole."""

_LARGER: Final = "copy larger files by sandkeep.transfer.copy"


class Files:
    """The files of a sandbox. Paths begin at its working directory unless they are absolute."""

    _ids: tuple[str, ...]

    def read(self, path: str | os.PathLike[str], *, max_bytes: int = MAX_FILE_BYTES) -> Generator[Step, Any, bytes]:
        """Read a whole file. One that is written meanwhile may come as parts of both versions.

        Raises `not_found` for a path that is no file, and `invalid` for a file of more than `max_bytes`.
        """
        data = bytearray()
        while True:
            piece = yield METHODS["sandbox.read_file"], self._ids, {**path_params(path), "offset": len(data)}
            data += piece.data
            if max(piece.size_bytes, len(data)) > max_bytes:
                message = f"{os.fspath(path)!r} has more than {max_bytes} bytes: raise max_bytes, or {_LARGER}_out"
                raise CallerError("invalid", message, max_bytes=max_bytes)
            if piece.eof or not piece.data:
                return bytes(data)

    def read_text(
        self, path: str | os.PathLike[str], encoding: str = "utf-8", *, max_bytes: int = MAX_FILE_BYTES
    ) -> Generator[Step, Any, str]:
        """Read a whole file as text; see `read`. Raises UnicodeDecodeError for one that is not in that encoding."""
        data = yield from Files.read(self, path, max_bytes=max_bytes)
        return data.decode(encoding)

    def write(
        self, path: str | os.PathLike[str], data: bytes | str, *, mode: int | None = None
    ) -> Generator[Step, Any, model.FileWritten]:
        """Write a whole file atomically, and make directories that are missing. Text is written as UTF-8.

        An existing file keeps its mode unless `mode` says another. Raises `invalid` for more than 8 MiB:
        `sandkeep.transfer` copies larger files.
        """
        content: Any = data.encode() if isinstance(data, str) else data
        if not isinstance(content, bytes | bytearray | memoryview):
            raise CallerError("invalid", f"data: must be bytes or str, not {type(data).__name__}", field="data")
        if isinstance(content, bytes | bytearray) and len(content) > MAX_WRITE_BYTES:
            message = f"data: {len(content)} bytes are more than the {MAX_WRITE_BYTES} of one write: {_LARGER}_in"
            raise CallerError("invalid", message, field="data")
        given = {**path_params(path), "data": content, "mode": mode, "parents": True}
        written: model.FileWritten = yield METHODS["sandbox.write_file"], self._ids, given
        return written

    def ls(self, path: str | os.PathLike[str] = ".") -> Generator[Step, Any, list[model.FileEntry]]:
        """List the files of a directory by name. Raises `not_found` for a path that is no directory, and `invalid` for
        one with more than 100,000 files.
        """
        found: list[model.FileEntry] = []
        after = None
        while True:
            page = yield METHODS["sandbox.list_dir"], self._ids, {**path_params(path), "after": after}
            found += page.entries
            if (after := page.next) is None:
                return found
            if len(found) >= MAX_ENTRIES:
                message = f"{os.fspath(path)!r} has more than {MAX_ENTRIES} files: use client.sandbox.list_dir"
                raise CallerError("invalid", message)


def path_params(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> dict[str, Any]:
    """Return a path inside as the parameter of a method: `path`, or `path_bytes` if it is not UTF-8."""
    given = os.fsencode(path)
    try:
        return {"path": given.decode()}
    except UnicodeDecodeError:
        return {"path_bytes": given}


def end(ids: tuple[str, ...]) -> Steps[None]:
    """End a sandbox at the end of a ``with`` statement."""
    yield METHODS["sandbox.terminate"], ids, {}


def output(
    self: Any,
    stdout_offset: int = 0,
    stderr_offset: int = 0,
    *,
    follow: bool = True,
    times: bool = False,
    since: str | None = None,
) -> Any:
    """Iterate over the output from byte offsets until the process's end; without `follow`, the present output. `times`
    and `since` are those of `process.read`.
    """
    where = (*self._ids, stdout_offset, stderr_offset)
    return self._transport.client.read_output(*where, follow=follow, times=times, since=since)


def events(self: Any, after: str | None = None, *, type: str | None = None, follow: bool = True) -> Any:
    """Iterate over the sandbox's events after a token, and wait for more, unless `follow` is false."""
    return self._transport.client.follow_events(after, sandbox_id=self.id, type=type, follow=follow)


ITERATORS: Final[dict[str, tuple[str, Callable[..., Any], type[Struct]]]] = {
    "process": ("output", output, model.ProcessOutput),
    "sandbox": ("events", events, model.Event),
}

"""Files of sandboxes: read, written and listed by RPC; copied, whole trees of them, through pipes.

All of it happens inside, as the sandbox's own user (see `keeper.files` and `keeper.copies`). The daemon handles only
the ends of a copy: it hands the caller a pipe, or serves one itself to a websocket, and commits incoming data.

A copy into a sandbox has a task in the nursery of its sandbox, because a commit must go on when the caller
has gone. Until then the caller keeps the copy alive.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

import trio

from sandkeep import events, failpoints
from sandkeep.errors import CallerError, SandkeepError, StateError
from sandkeep.events import Meta
from sandkeep.model import Copied, DirectoryList, FileContent, FileWritten
from sandkeep.protocol.methods import CopyCommit, CopyIn, CopyOut, DirectoryQuery, FileRead, FileWrite
from sandkeep_store.eventlog.codec import CODEC
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.threads import in_thread
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Command, DirectCommand
from sandkeepd.keeper import copies
from sandkeepd.keeper.copies import Copy, Extent, Form
from sandkeepd.sandboxes.runtimes import Runtime, Runtimes, start_in

STREAM: Final = "files"
"""Suffix of the streams of these events, after the sandbox's id: the sandbox's own stream waits for its end."""


class Incoming:
    """A copy that is coming into a sandbox. It is undone unless it is committed.

    `take_data` answers the end of the pipe that the archive is written to, blocking and with nobody else's hands on it:
    the caller closes it, and that is the archive's end.
    """

    def __init__(self) -> None:
        self._scope = trio.CancelScope()
        self._opened = trio.Event()
        self._confirmed = trio.Event()
        self._finished = trio.Event()
        self._meta = Meta()
        self._data = -1
        self._outcome: Copied | SandkeepError | None = None

    def take_data(self) -> int:
        """The writing end of the pipe, which is the caller's from now on."""
        data, self._data = self._data, -1
        return data

    async def commit(self, meta: Meta) -> Copied:
        """Make the copy effective as soon as it has arrived completely, and return its description. From now on that
        happens even if the caller goes.

        Raises `conflict` (a file where a directory is, or the reverse; nothing was changed then), `disk_limit`,
        `permission_denied`, `invalid` for a malformed archive.
        """
        if not self._confirmed.is_set():
            self._meta = meta
            self._confirmed.set()
        return await self.result()

    async def result(self) -> Copied:
        """Wait until the copy was committed and is effective, or has failed."""
        await self._finished.wait()
        if isinstance(self._outcome, Copied):
            return self._outcome
        raise self._outcome or StateError("not_ready", "the sandbox ended, or the daemon stopped, during the copy")

    async def opened(self) -> None:
        """Wait until the sandbox takes data. Raises the copy's error."""
        await self._opened.wait()
        if self._finished.is_set():
            await self.result()

    async def leave(self) -> None:
        """End the caller's part. An uncommitted copy is undone when this returns."""
        if self._data >= 0:
            os.close(self.take_data())
        if not self._confirmed.is_set():
            self._scope.cancel()
            with trio.CancelScope(shield=True):
                await self._finished.wait()

    async def receive(self, copy: Copy, record: Callable[[Extent, Meta], Awaitable[Copied]]) -> None:
        """Wait for the archive and for the caller's word, and make it effective."""
        self._data = copy.take_data()
        self._opened.set()
        await copy.staged()
        await self._confirmed.wait()
        failpoints.reach("copy.staged")
        extent = await copy.commit()
        failpoints.reach("copy.committed")
        self._outcome = await record(extent, self._meta)

    async def run(self, work: Callable[["Incoming"], Awaitable[None]]) -> None:
        """Run the copy to its end, success or failure."""
        try:
            with self._scope:
                await work(self)
        except SandkeepError as error:
            self._outcome = error
        finally:
            self._finished.set()
            self._opened.set()


class Outgoing:
    """A copy that is leaving a sandbox. `take_data` answers the end of the pipe that the archive is read from."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy
        self.take_data = copy.take_data

    async def result(self) -> Copied:
        """Wait until the whole archive was written, and read. Only then it is certain that nothing is missing."""
        return _copied(await self._copy.done())


class Files:
    """The handlers of ``sandbox.read_file``, ``write_file``, ``list_dir`` and ``copy_*``."""

    def __init__(self, core: Core, runtimes: Runtimes) -> None:
        self._core = core
        self._runtimes = runtimes
        self._transfers: dict[tuple[str, str], Incoming] = {}
        self.commands: Sequence[Command] = (
            DirectCommand("sandbox.write_file", self._write_again),
            DirectCommand("sandbox.copy_commit", self._commit_again),
        )

    # -- single files -------------------------------------------------------------------------------------------------

    async def read_file(self, request: Request[FileRead]) -> FileContent:
        """Read a piece of a file."""
        query = request.params
        path = path_of(query)
        runtime = await self._reach(query.sandbox_id)
        return await runtime.instance.read_piece(path, query.offset, query.max_bytes)

    async def list_dir(self, request: Request[DirectoryQuery]) -> DirectoryList:
        """List the files of a directory."""
        query = request.params
        path = path_of(query)
        after = unquote_to_bytes(query.after or "")
        runtime = await self._reach(query.sandbox_id)
        found = await runtime.instance.list_directory(path, after, query.limit)
        following = None if found.last is None else quote_from_bytes(found.last, safe=" ")
        return DirectoryList(entries=found.entries, next=following)

    async def write_file(self, request: Request[FileWrite]) -> FileWritten:
        """Write a file whole."""
        command = request.params
        path = path_of(command)
        runtime = await self._reach(command.sandbox_id)
        self._core.require_sound()  # before any effect
        await runtime.instance.write_whole(path, command.data, mode=command.mode, parents=command.parents)
        failpoints.reach("file.written")
        event = events.SandboxFileWritten(path=plain(path), kind="file", size_bytes=len(command.data))
        await self._record(command.sandbox_id, event, request.meta)
        return await _written(command.data, event)

    async def _write_again(self, request: Request[FileWrite], first: Recorded) -> FileWritten:
        """The answer to a command that was given before."""
        answer = await _written(request.params.data, event := _event_of(first))
        if event.path != plain(path_of(request.params)) or event.sha256 not in (None, answer.sha256):
            message = f"command_id {request.command_id!r} was given with another file: use a new one"
            raise StateError("conflict", message, command_id=request.command_id)
        return answer

    # -- copies -------------------------------------------------------------------------------------------------------

    async def copy_out(self, request: Request[CopyOut]) -> Copied:
        """Give the caller the end of a pipe from which an archive is read, and wait until that has ended."""
        query = request.params
        async with self.send(query.sandbox_id, path_of(query), form=_form_of(query)) as outgoing:
            await _give(request, outgoing.take_data())
            return await outgoing.result()

    async def copy_in(self, request: Request[CopyIn]) -> Copied:
        """Give the caller the end of a pipe to which an archive is written, and wait for `copy_commit`."""
        query = request.params
        key = (query.sandbox_id, query.transfer_id)
        async with self.receive(query.sandbox_id, path_of(query), form=_form_of(query)) as incoming:
            if key in self._transfers:
                message = f"transfer_id {query.transfer_id!r} is in use: give each copy a new one"
                raise StateError("conflict", message, transfer_id=query.transfer_id)
            self._transfers[key] = incoming
            try:
                await _give(request, incoming.take_data())
                return await incoming.result()
            finally:
                del self._transfers[key]

    async def copy_commit(self, request: Request[CopyCommit]) -> Copied:
        """Make a copy effective that is complete, as only the caller can know."""
        command = request.params
        incoming = self._transfers.get((command.sandbox_id, command.transfer_id))
        if incoming is None:
            message = (
                f"there is no copy {command.transfer_id!r} under way: it failed, or its caller went away; begin anew"
            )
            raise CallerError("not_found", message, transfer_id=command.transfer_id)
        return await incoming.commit(request.meta)

    async def _commit_again(self, request: Request[CopyCommit], first: Recorded) -> Copied:  # noqa: ARG002
        """The answer to a command that was given before."""
        event = _event_of(first)
        return Copied(path=event.path, files=event.files, size_bytes=event.size_bytes)

    @asynccontextmanager
    async def send(self, sandbox_id: str, path: str, *, form: Form) -> AsyncIterator[Outgoing]:
        """Copy a file or tree out of a sandbox, for the length of a block. See `Outgoing`.

        `path` begins at the sandbox's working directory unless it is absolute; bytes that are no UTF-8 are in it as
        surrogates. Raises `not_found`, `permission_denied`, `invalid`, `not_ready`.
        """
        runtime = await self._reach(sandbox_id)
        with self._runtimes.copying(sandbox_id):
            async with copies.copying(runtime.instance, path, incoming=False, form=form) as copy:
                outgoing = Outgoing(copy)
                try:
                    yield outgoing
                finally:
                    left = outgoing.take_data()
                    if left >= 0:
                        os.close(left)

    @asynccontextmanager
    async def receive(self, sandbox_id: str, path: str, *, form: Form) -> AsyncIterator[Incoming]:
        """Copy a file or tree into a sandbox, for the length of a block. See `Incoming`, and `send` for `path`."""
        runtime = await self._reach(sandbox_id)
        self._core.require_sound()  # before any effect
        incoming = Incoming()
        work = partial(incoming.run, partial(self._receive, runtime, path, form))
        if not start_in(runtime, work, self._core, f"copy into {sandbox_id}"):
            raise StateError("not_ready", f"sandbox {sandbox_id} is being ended", sandbox_id=sandbox_id)
        try:
            await incoming.opened()
            yield incoming
        finally:
            await incoming.leave()

    async def _receive(self, runtime: Runtime, path: str, form: Form, incoming: Incoming) -> None:
        record = partial(self._record_copy, runtime.instance.sandbox_id)
        with self._runtimes.copying(runtime.instance.sandbox_id):
            async with copies.copying(runtime.instance, path, incoming=True, form=form) as copy:
                await incoming.receive(copy, record)

    async def _record_copy(self, sandbox_id: str, extent: Extent, meta: Meta) -> Copied:
        event = events.SandboxFileWritten(
            path=extent.path, kind=extent.kind, size_bytes=extent.size_bytes, files=extent.files
        )
        await self._record(sandbox_id, event, meta)
        return _copied(extent)

    # -- common parts -------------------------------------------------------------------------------------------------

    async def _reach(self, sandbox_id: str) -> Runtime:
        return await self._runtimes.running(rules.sandbox(self._core.state, sandbox_id))

    async def _record(self, sandbox_id: str, event: events.SandboxFileWritten, meta: Meta) -> None:
        await self._core.intend(NewEvent(f"{sandbox_id}/{STREAM}", event, sandbox_id), meta)


async def _give(request: Request[CopyIn] | Request[CopyOut], descriptor: int) -> None:
    """Hand a descriptor over: the caller then has the only one."""
    try:
        await request.give([descriptor])
    finally:
        os.close(descriptor)


def _form_of(params: CopyIn | CopyOut) -> Form:
    """Return the form of the stream. Raises `invalid`."""
    if params.contents and params.as_bytes:
        raise CallerError("invalid", "as_bytes: it is for a file, and contents for a directory", field="as_bytes")
    return "bytes" if params.as_bytes else "contents" if params.contents else "whole"


def path_of(params: FileRead | FileWrite | DirectoryQuery | CopyIn | CopyOut) -> str:
    """The path that was given in one of two ways; bytes that are no UTF-8 are in it as surrogates. Raises `invalid`."""
    if (params.path is None) == (params.path_bytes is None):
        raise CallerError("invalid", "path: give either path or path_bytes", field="path")
    path = params.path if params.path is not None else (params.path_bytes or b"").decode("utf-8", "surrogateescape")
    if "\0" in path:
        raise CallerError("invalid", "path_bytes: no path has a NUL in it", field="path_bytes")
    return path


def plain(path: str) -> str:
    """A path as it can be told in JSON."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


async def _written(data: bytes, event: events.SandboxFileWritten) -> FileWritten:
    """Answer the writer of a file. The digest is for the writer alone: an event would reveal it to all readers of
    events.
    """
    digest = await in_thread(lambda: sha256(data).hexdigest())
    return FileWritten(path=event.path, size_bytes=event.size_bytes, sha256=digest)


def _copied(extent: Extent) -> Copied:
    return Copied(path=extent.path, files=extent.files, size_bytes=extent.size_bytes)


def _event_of(first: Recorded) -> events.SandboxFileWritten:
    event = CODEC.decode(first.position, first.type, first.version, first.data)
    assert isinstance(event, events.SandboxFileWritten)
    return event

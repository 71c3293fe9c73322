"""Sandboxes over the protocol of *cloud-run-sandbox*, on trio. One that moves to another daemon is followed there.

    async with create(address, token, pin=pin, enable_sandbox_handoff=True) as sandbox:
        print((await sandbox.run("python", "print(6 * 7)")).stdout)

The daemon speaks it if SANDKEEP_CLOUD_RUN_IMAGE is set. A sandbox has one client at a time, which does one thing at a
time: a second task's call raises `in_use`. The call after a cancelled one first kills the command of that.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
import trio
from msgspec import Struct
from trio_websocket import ConnectionClosed

from sandkeep.errors import CallerError, DaemonError, ProviderError, SandkeepError, StateError
from sandkeep.protocol.wire import Connection
from sandkeep.settings.daemon import remote_address
from sandkeep.stream.dial import Dialer, close, raise_lost, unwrap_single_exception

__all__ = ["CloudRunSandbox", "Result", "attach", "create"]

PATIENCE_S: Final = 60.0
"""Seconds in which a sandbox that moved has to be attached where it goes on."""

MAX_MOVES: Final = 8
"""Number of moves in a row that are followed, without a command that completes between them."""

_PAUSE_S: Final = 0.2
_NOTICE_S: Final = 2.0
"""Seconds in which a daemon that refused a command, because the sandbox leaves, tells that it does."""

_NORMAL: Final = 1000
_NOT_FATAL: Final = (
    "SANDBOX_EXECUTION_ERROR", "SANDBOX_EXECUTION_IN_PROGRESS_ERROR", "SANDBOX_FILESYSTEM_SNAPSHOT_ERROR"
)  # fmt: skip
"""Refusals after which the connection stays. While the sandbox is leaving, they hold for this daemon alone."""


class Result(Struct, frozen=True):
    """Output of a command, as text, and its exit code."""

    stdout: str
    stderr: str
    exit_code: int | None


class _Said(Struct, frozen=True):
    """A message of the daemon's."""

    event: str = ""
    status: str = ""
    data: str = ""
    message: str = ""
    exit_code: int | None = None
    sandbox_id: str = ""
    sandbox_token: str = ""
    moved_to: list[str] | None = None


class _MovedError(Exception):
    """The sandbox goes on at these addresses."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__(addresses)
        self.addresses = addresses


class CloudRunSandbox:
    """A sandbox to which this client is attached, made by `create` and `attach`.

    `address` is that of the daemon which has it now. What is done after a move is done there. Raises `not_ready` when
    the sandbox has ended, or moved while a command of its ran: that was killed, and `moved_to` is in the error.
    """

    def __init__(self, nursery: trio.Nursery, address: str, place: str, connection: Connection) -> None:
        self.address = address
        self.sandbox_id = self.sandbox_token = ""
        self._nursery = nursery
        self._connection = connection
        self._places = [place]
        """Addresses, with their pins, one of which has the sandbox."""
        self._is_here = True
        """False from a move until the sandbox is attached again."""
        self._moves = 0
        self._leaving = False
        self._began = False
        self._busy = False
        self._astray = False
        """True if the answer to an earlier call may still come on this connection."""

    async def run(self, language: str, code: str, stdin: str = "") -> Result:
        """Run code, ``python`` or ``bash``, and return what it wrote. `stdin` goes to its input, which stays open."""
        output = {"stdout": "", "stderr": ""}
        done = await self._do("SANDBOX_EXECUTION_DONE", output, stdin, language=language, code=code)
        return Result(output["stdout"], output["stderr"], done.exit_code)

    async def snapshot(self, name: str) -> None:
        """Save the files under a name, for `filesystem_snapshot_name` of `create`."""
        await self._do("SANDBOX_FILESYSTEM_SNAPSHOT_CREATED", action="snapshot_filesystem", name=name)

    async def checkpoint(self) -> None:
        """Save a shared sandbox and end it here. It can be attached wherever its bucket is reached."""
        await self._do("SANDBOX_CHECKPOINTED", action="checkpoint")

    async def kill(self) -> None:
        """End the sandbox."""
        await self._do("SANDBOX_KILLED", action="kill_sandbox")

    # -- messages -----------------------------------------------------------------------------------------------------

    async def _do(self, done: str, output: dict[str, str] | None = None, stdin: str = "", **asked: str) -> _Said:
        """Ask for something, and return the message that it is done; output is added to `output`.

        What did not begin before a move is asked for again, after it.
        """
        with self._turn():
            if self._astray:
                await self._return()
            while True:
                try:
                    await self._say(**asked)
                    said = await self._answer(done, output, stdin)
                except _MovedError as moved:
                    await self._follow(moved.addresses)
                    if self._began:
                        message = (
                            "the sandbox moved while its command ran, which was killed: run it again if that is safe"
                        )
                        raise StateError("not_ready", message, moved_to=[self.address]) from None
                    continue
                if said is not None:
                    self._moves = 0
                    return said

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self._busy:
            raise StateError("in_use", "another task uses this sandbox object: do one thing at a time")
        self._busy = True
        try:
            yield
        except SandkeepError:
            raise
        except BaseException:
            self._astray = True
            raise
        finally:
            self._busy = False

    async def _answer(self, done: str, output: dict[str, str] | None, stdin: str) -> _Said | None:
        """Return the message that it is done; None if it was refused for a move that failed: ask again."""
        self._began = False
        while True:
            said = await self._next()
            if output is not None and said.event in output:
                output[said.event] += said.data
            elif said.status == done:
                return said
            elif said.status == "SANDBOX_EXECUTION_RUNNING":
                self._began = True
                if stdin:
                    await self._say(event="stdin", data=stdin)
            elif said.status == "SANDBOX_STDIN_ERROR" and not self._began:
                pass  # the input of the command before, which ended without it
            elif said.status and said.message:
                if not self._began and said.status in _NOT_FATAL and await self._stayed(said.status):
                    return None
                self._astray = said.status == "SANDBOX_STDIN_ERROR"
                raise _error_of(said)

    async def _stayed(self, refusal: str) -> bool:
        """Wait until a sandbox that is leaving runs on here. Return False if it is not leaving."""
        with trio.move_on_after(_NOTICE_S if refusal == "SANDBOX_EXECUTION_ERROR" else 0):
            while not self._leaving:
                await self._next()
        was_leaving = self._leaving
        while self._leaving:
            await self._next()
        return was_leaving

    async def _return(self) -> None:
        """Attach anew, and kill the command of an earlier call: nothing of it can then be taken for a later one's."""
        try:
            await self._attach()
            status = ""
            while status != "SANDBOX_EXECUTION_FORCE_KILL_ERROR" or self._leaving:  # until no command runs
                if status:
                    await trio.sleep(_PAUSE_S)
                await self._say(action="kill_process")
                status = ""
                while status not in ("SANDBOX_EXECUTION_FORCE_KILLED", "SANDBOX_EXECUTION_FORCE_KILL_ERROR"):
                    status = (await self._next()).status
        except _MovedError as moved:  # without the command
            await self._follow(moved.addresses)
        except CallerError as error:
            if self._is_here and "address" not in error.data:
                raise _ended() from None
            raise
        self._astray = False

    async def _say(self, **message: Any) -> None:
        """Send a message. One to a connection that has ended is dropped: `_next` says why that did."""
        with suppress(ConnectionClosed):
            await self._connection.send_message(msgspec.json.encode(message).decode())

    async def _next(self) -> _Said:
        """Return the next message. Raises `not_ready` at the end, and `_MovedError`."""
        try:
            message = await self._connection.get_message()
        except ConnectionClosed as closed:
            if closed.reason is not None and closed.reason.code == _NORMAL:
                raise _ended() from None
            raise_lost(closed)
        said = _parse(message)
        if said is None:
            self._astray = True
            raise DaemonError("internal", "the stream server sent a message that this client does not know")
        if said.moved_to is not None:
            raise _MovedError(said.moved_to)
        if said.status in ("SANDBOX_LOCK_RELEASE_REQUESTED", "SANDBOX_CHECKPOINTING"):
            self._leaving = True
        elif said.status == "SANDBOX_RUNNING":
            self._leaving = False
        return said

    async def begin(self, options: Mapping[str, Any] | None = None) -> None:
        """Wait until the sandbox runs, one of those options if they are given. `create` and `attach` do it."""
        if options is not None:
            await self._say(**options)
        try:
            await self._until_running()
        except _MovedError as moved:
            await self._follow(moved.addresses)

    async def _until_running(self) -> None:
        while True:
            said = await self._next()
            if said.status and said.message:
                raise _error_of(said)
            if said.event == "sandbox_id":
                self.sandbox_id, self.sandbox_token = said.sandbox_id, said.sandbox_token
            elif said.status == "SANDBOX_RUNNING":
                return

    async def close(self) -> None:
        """Be its client no more."""
        await close(self._connection)

    async def _follow(self, addresses: list[str]) -> None:
        """Attach where the sandbox goes on. The daemon there gets the sandbox's token alone."""
        while True:
            await self.close()
            self._places, self._is_here = [address for address in addresses if _has_pin(address)], False
            self._moves += 1
            if not self._places or not self.sandbox_id:
                raise StateError("not_ready", "the daemon gave no address with a pin for the sandbox that moved")
            if self._moves > MAX_MOVES:
                raise StateError(
                    "not_ready", f"the sandbox moved {MAX_MOVES} times, and ran nothing: attach to it again"
                )
            if self._moves > 1:
                await trio.sleep(_PAUSE_S)
            try:
                await self._attach()
            except _MovedError as moved:
                addresses = moved.addresses
            else:
                return

    async def _attach(self) -> None:
        """Attach where the sandbox is, as soon as that is possible. Raises `_MovedError`."""
        error: SandkeepError = StateError("not_ready", "the daemon that has the sandbox does not answer")
        places = self._places
        with trio.move_on_after(PATIENCE_S):
            while places:
                for place in places:
                    try:
                        await self._attach_at(place)
                    except SandkeepError as failure:
                        error = failure
                        if isinstance(failure, CallerError) and (self._is_here or "address" in failure.data):
                            places = [other for other in places if other != place]  # another server, or no sandbox
                    else:
                        return
                await trio.sleep(_PAUSE_S)
        raise error

    async def _attach_at(self, place: str) -> None:
        await self.close()
        target = _attach_target(self.sandbox_id, self.sandbox_token)
        self._connection = await Dialer(place, None, None, 0).open(self._nursery, target)
        try:
            await self._until_running()
        except BaseException:
            await self.close()
            raise
        if not self._is_here:
            self.address = place
        self._places, self._is_here = [place], True


@asynccontextmanager
async def create(
    address: str, token: str | None = None, *, pin: str | None = None, **options: Any
) -> AsyncIterator[CloudRunSandbox]:
    """Create a sandbox, and be its client for the length of a block; it stays until its idle timeout or `kill`.

    `token` and `pin` are as for `StreamClient`. `options` are `idle_timeout` (seconds), `enable_checkpoint`,
    `enable_idle_timeout_auto_checkpoint`, `enable_sandbox_handoff` and `filesystem_snapshot_name`.
    """
    async with _opened(address, token, pin, "/create") as sandbox:
        await sandbox.begin(options)
        yield sandbox


@asynccontextmanager
async def attach(
    address: str, sandbox_id: str, sandbox_token: str, token: str | None = None, *, pin: str | None = None
) -> AsyncIterator[CloudRunSandbox]:
    """Be the client of a sandbox. One that was saved, or that another daemon has and may hand over, comes here, and
    becomes that of the user whose `token` it is; where the daemon has it already, the sandbox's own is enough.
    """
    async with _opened(address, token, pin, _attach_target(sandbox_id, sandbox_token)) as sandbox:
        sandbox.sandbox_id, sandbox.sandbox_token = sandbox_id, sandbox_token
        await sandbox.begin()
        yield sandbox


@asynccontextmanager
async def _opened(address: str, token: str | None, pin: str | None, target: str) -> AsyncIterator[CloudRunSandbox]:
    with unwrap_single_exception():
        async with trio.open_nursery() as nursery:
            dialer = Dialer(address, token, pin, 0)
            place = f"{address.partition('#')[0]}#{pin}" if pin and address.startswith("tls://") else address
            sandbox = CloudRunSandbox(nursery, address, place, await dialer.open(nursery, target))
            try:
                yield sandbox
            finally:
                await sandbox.close()


def _attach_target(sandbox_id: str, sandbox_token: str) -> str:
    return f"/attach/{quote(sandbox_id, safe='')}?{urlencode({'sandbox_token': sandbox_token})}"


def _has_pin(address: str) -> bool:
    """Return True for ``tls://HOST:PORT#PIN``. A daemon may send its clients nowhere else."""
    try:
        remote_address(address.partition("#")[0])
        Dialer(address, None, None, 0)
    except (ValueError, SandkeepError):
        return False
    return address.startswith("tls://")


def _parse(message: str | bytes) -> _Said | None:
    """Return the daemon's message; None if it is none."""
    if isinstance(message, bytes):
        return None
    try:
        return msgspec.json.decode(message, type=_Said)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


def _ended() -> StateError:
    return StateError("not_ready", "the sandbox has ended, or was saved: attach to it again")


def _error_of(said: _Said) -> SandkeepError:
    match said.status:
        case "SANDBOX_NOT_FOUND":
            return CallerError("not_found", said.message)
        case "SANDBOX_PERMISSION_DENIAL_ERROR":
            return CallerError("permission_denied", said.message)
        case "SANDBOX_IN_USE" | "SANDBOX_EXECUTION_IN_PROGRESS_ERROR":
            return StateError("in_use", said.message)
        case "SANDBOX_CREATION_ERROR" | "SANDBOX_RESTORE_ERROR" | "SANDBOX_ERROR":
            return ProviderError("provider_unavailable", said.message)
        case _:
            return StateError("not_ready", said.message)

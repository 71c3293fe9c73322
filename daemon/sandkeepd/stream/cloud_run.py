"""``/create`` and ``/attach/SANDBOX``: the websocket protocol of wlhee/cloud-run-sandbox, for its clients.

One client is attached to a sandbox, and one command of its runs at a time. What a client sends is a JSON object: the
options of a new sandbox first, then code to run, input for it, or an action. What it gets are statuses, output and
errors; an error is always two messages, its status first. A client that was cut off reconnects, and gets the output
from where it was. When the sandbox is handed over, the last status tells where it goes on, in `moved_to`.
"""

import codecs
import json
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Final, Literal

import msgspec
import trio
from msgspec import Meta, Struct
from msgspec.structs import replace

from sandkeep import events, ids
from sandkeep.errors import CallerError, SandkeepError, StateError
from sandkeep.model import Name, Sandbox
from sandkeep.protocol.methods import (
    ImageCreate,
    ProcessLaunch,
    ProcessSignal,
    ProcessWriteStdin,
    SandboxAttachShared,
    SandboxCreate,
    SandboxDetach,
    SandboxResume,
    SandboxTerminate,
    SnapshotCreate,
    SnapshotRestore,
)
from sandkeep.settings.daemon import CLOUD_RUN_IMAGE
from sandkeep_store.eventlog.log import Recorded
from sandkeep_store.views.processes import ProcessState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.core.call import Handler as Handle
from sandkeepd.core.core import Core
from sandkeepd.sandboxes.processes import Processes
from sandkeepd.sessions.activity import Activity
from sandkeepd.sharing.tokens import check_token, hash_of, token_of
from sandkeepd.stream.session import Client, Handler, Session

PATHS: Final = ("create", "attach")
PIECE_BYTES: Final = 64 * 1024
MOVED_S: Final = 10.0
"""Seconds for which a client is kept to be told where its sandbox goes on."""

LANGUAGES: Final = {"python": ("python3", "-u", "-c"), "bash": ("bash", "-c")}
_DONE, _GONE, _FATAL = 1000, 1011, 4000
_STREAMS: Final = ("stdout", "stderr")


class Options(Struct, frozen=True):
    """The first message on ``/create``. Unknown keys are ignored, here and below."""

    idle_timeout: Annotated[float, Meta(ge=0, le=3.2e9)] = 300
    enable_checkpoint: bool = False
    enable_idle_timeout_auto_checkpoint: bool = False
    enable_sandbox_handoff: bool = False
    filesystem_snapshot_name: Name | None = None

    @property
    def is_shared(self) -> bool:
        """True if the sandbox outlives its daemon."""
        return self.enable_checkpoint or self.enable_idle_timeout_auto_checkpoint or self.enable_sandbox_handoff


class Message(Struct, frozen=True):
    """Any later message."""

    language: str | None = None
    code: str | None = None
    event: Literal["stdin"] | None = None
    data: str = ""
    action: str | None = None
    name: str | None = None


class Execution:
    """The last command of a sandbox, and the bytes of its output that were sent as text."""

    def __init__(self, process: ProcessState) -> None:
        self.process = process
        self.sent = dict.fromkeys(_STREAMS, 0)
        self.is_told = False
        """True once its end was sent."""


class CloudRun:
    """The endpoint; see the module. `handle` answers calls."""

    def __init__(self, core: Core, handle: Handle, processes: Processes, activity: Activity) -> None:
        self.core = core
        self.handle = handle
        self.processes = processes
        self.activity = activity
        self._attached: set[str] = set()
        self._executions: dict[str, Execution] = {}

    async def __call__(self, client: Client) -> Handler:
        """The endpoint: everything is told in the conversation, as the clients expect. Raises `not_configured`."""
        if CLOUD_RUN_IMAGE() is None:
            message = f"the protocol of cloud-run-sandbox is off: set {CLOUD_RUN_IMAGE.name}"
            raise CallerError("not_found", message, setting=CLOUD_RUN_IMAGE.name)
        return lambda session: Conversation(self, client, session).run()

    def has_token(self, name: str, token: str) -> str | None:
        """Return the owner of the sandbox of that name that has the token; None if there is none."""
        for sandbox in self.core.state.sandboxes.values():
            if sandbox.name == name and not sandbox.hidden:
                with suppress(CallerError):
                    check_token(token, self.token_hash(sandbox), name)
                    return sandbox.owner
        return None

    def token_hash(self, sandbox: SandboxState) -> str:
        """Return the hash of a sandbox's token. One that is not shared has that of this daemon."""
        if sandbox.spec.shared is not None:
            return sandbox.spec.shared.token_sha256
        return hash_of(token_of(self.core.log.command_key, sandbox.sandbox_id))

    @contextmanager
    def attached(self, sandbox_id: str) -> Iterator[None]:
        """Be the client of a sandbox for the length of a block. Raises `in_use` if there is one."""
        if sandbox_id in self._attached:
            raise StateError("in_use", "another client is attached to the sandbox: let it disconnect first")
        self._attached.add(sandbox_id)
        try:
            with self.activity.attached(sandbox_id):
                yield
        finally:
            self._attached.discard(sandbox_id)

    def execution(self, sandbox_id: str) -> Execution | None:
        """Return the last command of a sandbox."""
        return self._executions.get(sandbox_id)

    def begin(self, sandbox_id: str, process: ProcessState) -> Execution:
        """Note a command that was started. Those of sandboxes that have ended are forgotten."""
        state = self.core.state.sandboxes
        for gone in [key for key in self._executions if key not in state or state[key].hidden]:
            del self._executions[gone]
        made = self._executions[sandbox_id] = Execution(process)
        return made


class _EndError(Exception):
    """Ends a conversation with a close code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Conversation:
    """One client's."""

    def __init__(self, server: CloudRun, client: Client, session: Session) -> None:
        self._server = server
        self._core = server.core
        self._client = client
        self._session = session
        self._sandbox_id = ""
        self._killing = False
        self._facts, self._heard = trio.open_memory_channel[Recorded](1000)

    async def run(self) -> None:
        """Serve the client until it goes, or its sandbox does."""
        code = _DONE
        try:
            try:
                await self._begin()
            except* _EndError as end:
                raise _first(end) from None
        except _EndError as end:
            code = end.code
        await self._session.close(code)

    async def _begin(self) -> None:
        path, *rest = self._client.target.parts
        if path == "create":
            await self._create()
        else:
            await self._attach(rest[0])

    # -- the sandbox --------------------------------------------------------------------------------------------------

    async def _create(self) -> None:
        try:
            options = msgspec.json.decode(await self._session.receive_text(), type=Options)
        except (msgspec.MsgspecError, RecursionError) as error:
            await self._fail(
                "SANDBOX_CREATION_ERROR", f"the first message is not understood: {str(error)[:200]}", _FATAL
            )
            return
        await self._status("SANDBOX_CREATING")
        try:
            made = await self._made(options)
        except SandkeepError as error:
            await self._fail("SANDBOX_CREATION_ERROR", error.message, _FATAL)
            return
        token = made.sandbox_token or token_of(self._core.log.command_key, made.sandbox_id)
        await self._send(event="sandbox_id", sandbox_id=made.name, sandbox_token=token)
        await self._converse(made.sandbox_id)

    async def _made(self, options: Options) -> Sandbox:
        name = f"sandbox-{secrets.token_hex(4)}"
        idle = options.idle_timeout or None
        if options.filesystem_snapshot_name is not None:
            if options.is_shared:
                message = "a sandbox of a filesystem snapshot cannot be checkpointed here: leave one of them out"
                raise CallerError("invalid", message, field="filesystem_snapshot_name")
            snapshot_id = self._snapshot_called(options.filesystem_snapshot_name)
            restored: Sandbox = await self._call(
                "snapshot.restore", SnapshotRestore(snapshot_id=snapshot_id, name=name)
            )
            return restored
        image_id = await self._image()
        command = SandboxCreate(image_id=image_id, name=name, idle_timeout_s=idle)
        if options.is_shared:
            command = replace(
                command, gcs_sandbox_id=name, enable_handoff=options.enable_sandbox_handoff,
                enable_checkpoint_at_idle=options.enable_idle_timeout_auto_checkpoint,
            )  # fmt: skip
        made: Sandbox = await self._call("sandbox.create", command)
        return made

    async def _image(self) -> str:
        image = CLOUD_RUN_IMAGE() or ""
        if ids.looks_like_id(image):
            return image
        return str((await self._call("image.create", ImageCreate(source=image))).image_id)

    def _snapshot_called(self, name: str) -> str:
        owner = self._client.peer.owner
        for snapshot in reversed(self._core.state.snapshots.values()):
            if (snapshot.requested.name, snapshot.owner, snapshot.status) == (name, owner, "ready"):
                return snapshot.snapshot_id
        raise CallerError("not_found", f"there is no filesystem snapshot {name!r}: make one, or leave it out")

    async def _attach(self, name: str) -> None:
        token = self._client.target.query.get("sandbox_token", b"").decode("ascii", "replace")
        here = self._core.state.sandbox_named(self._client.peer.owner, name)
        try:
            if here is None or here.hidden:
                sandbox_id = await self._attach_shared(name, token)
            else:
                check_token(token, self._server.token_hash(here), name)
                sandbox_id = here.sandbox_id
                if here.status == "suspended":
                    await self._status("SANDBOX_RESTORING")
                    await self._call("sandbox.resume", SandboxResume(sandbox_id=sandbox_id))
        except SandkeepError as error:
            status, code = _REFUSALS.get(error.code, ("SANDBOX_RESTORE_ERROR", _FATAL))
            await self._fail(status, error.message, code)
            return
        await self._converse(sandbox_id)

    async def _attach_shared(self, name: str, token: str) -> str:
        try:
            command = msgspec.convert({"gcs_sandbox_id": name, "sandbox_token": token}, SandboxAttachShared)
        except msgspec.ValidationError:
            raise CallerError("permission_denied", "sandbox_token: it is no token: give that of the sandbox") from None
        await self._status("SANDBOX_RESTORING")
        await self._status("SANDBOX_LOCK_ACQUIRING")
        found: Sandbox = await self._call("sandbox.attach_shared", command)
        await self._status("SANDBOX_LOCK_ACQUIRED")
        return found.sandbox_id

    # -- the conversation ---------------------------------------------------------------------------------------------

    async def _converse(self, sandbox_id: str) -> None:
        self._sandbox_id = sandbox_id
        heard = self._core.log.on_commit
        heard.append(self._committed)
        try:
            with self._server.attached(sandbox_id):
                await self._status("SANDBOX_RUNNING")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._tell_of_events)
                    while True:
                        await self._serve(await self._session.receive_text(), nursery)
        except StateError as error:
            if error.code != "in_use":
                raise
            await self._fail("SANDBOX_IN_USE", error.message, _GONE)
        finally:
            heard.remove(self._committed)

    async def _serve(self, text: str | bytes, nursery: trio.Nursery) -> None:
        try:
            message = msgspec.json.decode(text, type=Message)
        except (msgspec.MsgspecError, RecursionError) as error:
            await self._error("SANDBOX_EXECUTION_ERROR", f"the message is not understood: {str(error)[:200]}")
            return
        actions: dict[str, Callable[[Message], Awaitable[None]]] = {
            "checkpoint": self._checkpoint, "snapshot_filesystem": self._snapshot, "kill_process": self._kill_process,
            "kill_sandbox": self._kill_sandbox,
        }  # fmt: skip
        if message.event == "stdin":
            await self._write(message.data)
        elif message.action == "reconnect":
            execution = self._server.execution(self._sandbox_id)
            if execution is not None and not execution.is_told:
                await self._status("SANDBOX_EXECUTION_RUNNING")
                nursery.start_soon(self._tell_of_output, execution)
        elif message.action in actions:
            nursery.start_soon(self._act, actions[message.action], message)
        elif message.language is not None and message.code is not None:
            await self._execute(message.language, message.code, nursery)
        else:
            await self._error("SANDBOX_EXECUTION_ERROR", "the message is not understood: give language and code")

    @property
    def _running(self) -> Execution | None:
        execution = self._server.execution(self._sandbox_id)
        return execution if execution is not None and not execution.process.ended else None

    async def _execute(self, language: str, code: str, nursery: trio.Nursery) -> None:
        argv = LANGUAGES.get(language)
        if argv is None:
            known = ", ".join(LANGUAGES)
            await self._error("SANDBOX_EXECUTION_UNSUPPORTED_LANGUAGE_ERROR", f"{language[:80]!r} is none of {known}")
            return
        if self._running is not None:
            await self._error("SANDBOX_EXECUTION_IN_PROGRESS_ERROR", "a command runs already: wait, or kill_process")
            return
        try:
            command = ProcessLaunch(sandbox_id=self._sandbox_id, command=[*argv, code], stdin=True)
            launched = await self._call("process.launch", command)
        except SandkeepError as error:
            await self._error("SANDBOX_EXECUTION_ERROR", error.message)
            return
        execution = self._server.begin(self._sandbox_id, self._core.state.processes[launched.process_id])
        await self._status("SANDBOX_EXECUTION_RUNNING")
        nursery.start_soon(self._tell_of_output, execution)

    async def _write(self, data: str) -> None:
        running = self._running
        try:
            if running is None:
                raise StateError("not_ready", "no command runs that reads input")
            name, content = running.process.process_id, data.encode("utf-8", "replace")
            written = ProcessWriteStdin(sandbox_id=self._sandbox_id, name=name, data=content)
            await self._call("process.write_stdin", written)
        except SandkeepError as error:
            await self._error("SANDBOX_STDIN_ERROR", error.message)

    async def _tell_of_output(self, execution: Execution) -> None:
        """Send output from where it was, as text, and at last the end."""
        process, outputs = execution.process, self._server.processes.outputs
        read = dict(execution.sent)
        decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in _STREAMS}
        while True:
            ended, more = process.ended, False
            for name in _STREAMS:
                await self._session.room()
                chunk = outputs.read_journal(process, name, read[name], PIECE_BYTES)
                read[name] = chunk.offset + len(chunk.data)
                text = decoders[name].decode(chunk.data, final=ended and not chunk.data)
                if text:
                    await self._send(event=name, data=text)
                execution.sent[name] = read[name] - len(decoders[name].getstate()[0])
                more = more or bool(chunk.data)
            if ended and not more:
                if not execution.is_told:
                    execution.is_told = True
                    code = process.exit_code
                    await self._send(event="status_update", status="SANDBOX_EXECUTION_DONE", exit_code=code)
                return
            if not more:
                await outputs.wait_for_more(process, read["stdout"], read["stderr"])

    # -- actions ------------------------------------------------------------------------------------------------------

    async def _act(self, action: Callable[[Message], Awaitable[None]], message: Message) -> None:
        await action(message)

    async def _checkpoint(self, message: Message) -> None:  # noqa: ARG002  # the shape of actions
        if self._running is not None:
            await self._error("SANDBOX_EXECUTION_IN_PROGRESS_ERROR", "a command runs: wait, or kill_process")
            return
        try:
            await self._call("sandbox.detach", SandboxDetach(sandbox_id=self._sandbox_id))
        except SandkeepError as error:
            await self._fail("SANDBOX_CHECKPOINT_ERROR", f"{error.message}: it runs on", _FATAL)

    async def _snapshot(self, message: Message) -> None:
        await self._status("SANDBOX_FILESYSTEM_SNAPSHOT_CREATING")
        try:
            name = ids.check_name(message.name or "", "name")
            await self._call("snapshot.create", SnapshotCreate(sandbox_id=self._sandbox_id, name=name))
        except SandkeepError as error:
            await self._error("SANDBOX_FILESYSTEM_SNAPSHOT_ERROR", error.message)
            return
        await self._status("SANDBOX_FILESYSTEM_SNAPSHOT_CREATED")

    async def _kill_process(self, message: Message) -> None:  # noqa: ARG002  # the shape of actions
        running = self._running
        try:
            if running is None:
                raise StateError("not_ready", "no command runs")
            name = running.process.process_id
            await self._call("process.signal", ProcessSignal(sandbox_id=self._sandbox_id, name=name, signal="KILL"))
        except SandkeepError as error:
            await self._error("SANDBOX_EXECUTION_FORCE_KILL_ERROR", error.message)
            return
        await self._status("SANDBOX_EXECUTION_FORCE_KILLED")

    async def _kill_sandbox(self, message: Message) -> None:  # noqa: ARG002  # the shape of actions
        self._killing = True
        await self._status("SANDBOX_KILLING")
        try:
            await self._call("sandbox.terminate", SandboxTerminate(sandbox_id=self._sandbox_id))
        except SandkeepError as error:
            self._killing = False
            await self._error("SANDBOX_KILL_ERROR", error.message)

    # -- what happens to the sandbox ----------------------------------------------------------------------------------

    def _committed(self, facts: Sequence[Recorded]) -> None:
        for fact in facts:
            if fact.sandbox_id == self._sandbox_id and isinstance(fact.event, _TOLD):
                with suppress(trio.WouldBlock):
                    self._facts.send_nowait(fact)

    async def _tell_of_events(self) -> None:
        async for fact in self._heard:
            match fact.event:
                case events.LockHandoverRequested(reason=reason):
                    if reason == "handed_over":
                        await self._status("SANDBOX_LOCK_RELEASE_REQUESTED")
                    await self._status("SANDBOX_CHECKPOINTING")
                case events.LockHandoverFailed():
                    await self._status("SANDBOX_RUNNING")
                case events.LockReleaseRequested():
                    if (running := self._running) is not None:
                        running.is_told = True
                        await self._status("SANDBOX_EXECUTION_FORCE_KILLED")
                    await self._status("SANDBOX_DELETING")
                    await self._status("SANDBOX_LOCK_RELEASING")
                case events.LockReleased():
                    await self._status("SANDBOX_LOCK_RELEASED")
                case events.LockLost(message=why) | events.LockExpired(message=why):
                    await self._fail("SANDBOX_LOCK_RENEWAL_ERROR", why, _FATAL)
                case events.SandboxFailed(message=why) | events.SandboxLost(message=why):
                    await self._fail("SANDBOX_ERROR", why, _FATAL)
                case events.SandboxTerminated():
                    await self._end()

    async def _end(self) -> None:
        if self._killing:
            await self._status("SANDBOX_KILLED")
            raise _EndError(_DONE)
        await self._status("SANDBOX_DELETED")
        sandbox = self._core.state.sandboxes[self._sandbox_id]
        locks = (lock for lock in self._core.state.locks.values() if lock.sandbox_id == self._sandbox_id)
        handover = next((lock.handover for lock in locks if lock.handover is not None), None)
        if handover is not None:
            if handover.waiter is not None:
                with trio.move_on_after(MOVED_S):
                    await self._core.settled(self._sandbox_id, lambda: sandbox.moved_to is not None)
            moved = {"moved_to": sandbox.moved_to} if sandbox.moved_to else {}
            await self._send(event="status_update", status="SANDBOX_CHECKPOINTED", **moved)
        raise _EndError(_DONE)

    # -- sending ------------------------------------------------------------------------------------------------------

    async def _call(self, method: str, params: Any) -> Any:
        return await self._server.handle(self._client.call(method, params))

    async def _send(self, **message: Any) -> None:
        await self._session.send_text(json.dumps(message))

    async def _status(self, status: str) -> None:
        await self._send(event="status_update", status=status)

    async def _error(self, status: str, message: str) -> None:
        await self._send(event="status_update", status=status, message=message)
        await self._send(event="error", message=message)

    async def _fail(self, status: str, message: str, code: int) -> None:
        await self._error(status, message)
        raise _EndError(code)


_TOLD: Final = (
    events.LockHandoverRequested, events.LockHandoverFailed, events.LockReleaseRequested, events.LockReleased,
    events.LockLost, events.LockExpired, events.SandboxFailed, events.SandboxLost, events.SandboxTerminated,
)  # fmt: skip
_REFUSALS: Final = {
    "not_found": ("SANDBOX_NOT_FOUND", _GONE),
    "not_configured": ("SANDBOX_NOT_FOUND", _GONE),
    "invalid": ("SANDBOX_NOT_FOUND", _GONE),
    "permission_denied": ("SANDBOX_PERMISSION_DENIAL_ERROR", _FATAL),
    "lock_contended": ("SANDBOX_IN_USE", _GONE),
    "in_use": ("SANDBOX_IN_USE", _GONE),
}


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    """Return the first exception of a group of groups."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found

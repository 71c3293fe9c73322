"""``/create`` and ``/attach/SANDBOX``: the websocket protocol of wlhee/cloud-run-sandbox, for its clients.

One client is attached to a sandbox, and one command of its runs at a time. What a client sends is a JSON object: the
options of a new sandbox first, then code to run, input for it, or an action. What it gets are statuses, output and
errors; an error is always two messages, its status first. A client that was cut off reconnects, and gets the output
from where it was. When the sandbox is handed over, the last status tells where it goes on, in `moved_to`.
"""

import codecs
import json
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
import trio
from msgspec import Meta, Struct
from msgspec.structs import replace

from sandkeep import events, ids
from sandkeep.errors import CallerError, SandkeepError, StateError
from sandkeep.model import Name, Sandbox
from sandkeep.protocol.methods import (
    DirectoryQuery,
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
    SnapshotDelete,
)
from sandkeep.settings.daemon import CLOUD_RUN_IMAGE
from sandkeep_store.buckets.config import STORAGE, Place
from sandkeep_store.eventlog.log import Recorded
from sandkeep_store.threads import in_thread
from sandkeep_store.views.processes import ProcessState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.shared_metadata import SharedMetadata
from sandkeep_store.views.snapshots import SnapshotState
from sandkeepd.contract.caller import no_progress
from sandkeepd.core import rules
from sandkeepd.core.access import own_request
from sandkeepd.core.call import Handler as Handle
from sandkeepd.core.core import Core
from sandkeepd.providers.common.inside import HOME
from sandkeepd.sandboxes.files import Files
from sandkeepd.sandboxes.processes import Processes
from sandkeepd.sessions.activity import Activity
from sandkeepd.sharing.tokens import check_token, hash_of, token_of
from sandkeepd.snapshots import named
from sandkeepd.stream.session import Client, Handler, Session, validated

logger = logging.getLogger("sandkeepd")

PATHS: Final = ("create", "attach")
PIECE_BYTES: Final = 64 * 1024
MOVED_S: Final = 10.0
"""Seconds for which a client is kept to be told where its sandbox goes on."""

KILL_S: Final = 10.0
"""Seconds for a command to end that is killed before a hand-over."""

GATHER_S: Final = 0.01
"""Seconds in which output that follows is sent with the first: unbuffered programs write a line and its end apart."""

LEAVING_S: Final = 60.0
"""Seconds for which a client waits for the outcome of a hand-over, to attach."""

DROP_S: Final = 10.0
"""Seconds to end a sandbox whose client left before it knew its id."""

MAX_INPUTS: Final = 8
"""Messages of input that wait for the command to read; more are left in the socket, with all that follows."""

GUESTS: Final = 8
"""Maximum connections to a sandbox of those who were let in by its token."""

MAX_CODE_BYTES: Final = 128 * 1024 - 1
"""Linux's limit of an argument, MAX_ARG_STRLEN, without its end."""

MAX_FACTS: Final = 100
"""Events of a sandbox that are kept for a client that does not read. The last ones tell its end."""

LANGUAGES: Final = {"python": ("python3", "-u", "-c"), "bash": ("bash", "-c")}
_DONE, _GONE, _FATAL = 1000, 1011, 4000
_STREAMS: Final = ("stdout", "stderr")

M = TypeVar("M", "Options", "Message")

Find = Callable[[str, str], Awaitable[SharedMetadata | None]]
"""Reads the document of an owner's shared sandbox of a name; see `Publisher.read`."""


class Guest(Client, frozen=True):
    """A client that was let in by the token of a sandbox alone, as its owner."""

    sandbox_id: str


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
        self.is_killed = False
        """True if the daemon kills it for a hand-over."""


class CloudRun:
    """The endpoint; see the module. `handle` answers calls."""

    def __init__(
        self, core: Core, handle: Handle, processes: Processes, activity: Activity, files: Files, find: Find,
        state_dir: str,
    ) -> None:  # fmt: skip
        self.core = core
        self.handle = handle
        self.processes = processes
        self.activity = activity
        self.files = files
        self.find = find
        self.state_dir = state_dir
        self._attached: dict[str, trio.Lock] = {}
        """The sandboxes that have a client, with a lock that is held while a command starts."""
        self._executions: dict[str, Execution] = {}

    async def __call__(self, client: Client) -> Handler:
        """The endpoint: everything is told in the conversation, as the clients expect. Raises `not_configured`."""
        if CLOUD_RUN_IMAGE() is None:
            message = f"the protocol of cloud-run-sandbox is off: set {CLOUD_RUN_IMAGE.name}"
            raise CallerError("not_found", message, setting=CLOUD_RUN_IMAGE.name)
        return lambda session: Conversation(self, client, session).run()

    def sandbox_of_token(self, name: str, token: str) -> SandboxState | None:
        """Return the last sandbox of that name that has the token, if it is here or was given up."""
        for sandbox in reversed(self.core.state.sandboxes.values()):
            if sandbox.name == name:
                with suppress(CallerError):
                    check_token(token, self.token_hash(sandbox), name)
                    if not sandbox.hidden or self.has_left(sandbox):
                        return sandbox
        return None

    def has_left(self, sandbox: SandboxState) -> bool:
        """Return True if a sandbox was given up, or another daemon took it."""
        lock = rules.shared_lock(self.core.state, sandbox.sandbox_id)
        handover = lock.handover if lock is not None else None
        is_given_up = sandbox.hidden and handover is not None and sandbox.terminated_reason == handover.reason
        return is_given_up or sandbox.moved_to is not None

    def is_leaving(self, sandbox_id: str) -> bool:
        """Return True while a sandbox is being handed over."""
        lock = rules.shared_lock(self.core.state, sandbox_id)
        return lock is not None and lock.status in rules.LEAVING

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
        self._attached[sandbox_id] = trio.Lock()
        try:
            with self.activity.attached(sandbox_id):
                yield
        finally:
            del self._attached[sandbox_id]

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

    @asynccontextmanager
    async def starting(self, sandbox_id: str) -> AsyncIterator[None]:
        """Start a command in the block. Raises `not_ready` while the sandbox is being handed over."""
        async with self._attached[sandbox_id]:
            if self.is_leaving(sandbox_id):
                raise StateError("not_ready", "the sandbox is being saved: wait until it runs, here or elsewhere")
            yield

    async def end_execution(self, sandbox: SandboxState) -> None:
        """Kill the command of a sandbox that is about to be saved, so that it does not go on elsewhere unseen. Raises
        no `SandkeepError`.
        """
        execution, why = None, "it does not end"
        with trio.move_on_after(KILL_S):
            if (starting := self._attached.get(sandbox.sandbox_id)) is not None:
                async with starting:
                    pass  # no other begins now, as the lock of the sandbox is being handed over
            execution = self.execution(sandbox.sandbox_id)
            if execution is None or execution.process.ended:
                return
            execution.is_killed, process = True, execution.process
            try:
                kill = ProcessSignal(sandbox_id=sandbox.sandbox_id, name=process.process_id, signal="KILL")
                await self.processes.signal(own_request(sandbox.owner, "process.signal", kill))
                await self.core.settled(process.process_id, lambda: process.ended)
            except SandkeepError as error:
                why = error.message
        if execution is None or not execution.process.ended:
            if execution is not None:
                execution.is_killed = False
            logger.warning("a command is not killed", extra={"sandbox": sandbox.sandbox_id, "why": why})


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
        self._telling = False
        self._checkpointing = False
        """True from when this client was told that its sandbox is saved, as it asked for it."""
        self._acting: set[str] = set()
        self._facts: deque[Recorded] = deque(maxlen=MAX_FACTS)
        self._heard = trio.Event()
        self._typed, self._inputs = trio.open_memory_channel[tuple[Execution | None, str]](MAX_INPUTS)

    async def run(self) -> None:
        """Serve the client until it goes, or its sandbox does."""
        code = _DONE
        try:
            await self._begin()
        except* _EndError as end:
            code = _code_of(end)
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
            options = _decoded(await self._session.receive_text(), Options)
        except CallerError as error:
            await self._fail("SANDBOX_CREATION_ERROR", f"the first message is not understood: {error.message}", _FATAL)
            return
        await self._status("SANDBOX_CREATING")
        name, is_told = f"sandbox-{secrets.token_hex(4)}", False
        try:
            if options.enable_sandbox_handoff:
                await self._status("SANDBOX_LOCK_ACQUIRING")
            made = await self._made(options, name)
            if options.enable_sandbox_handoff:
                await self._status("SANDBOX_LOCK_ACQUIRED")
            token = made.sandbox_token or token_of(self._core.log.command_key, made.sandbox_id)
            await self._send(event="sandbox_id", sandbox_id=made.name, sandbox_token=token)
            is_told = True
        except SandkeepError as error:
            await self._fail("SANDBOX_CREATION_ERROR", error.message, _FATAL)
            return
        finally:
            if not is_told:
                await self._drop(name)
        await self._converse(made.sandbox_id)

    async def _drop(self, name: str) -> None:
        """End a sandbox that nobody can attach to, as its client has gone."""
        with trio.move_on_after(DROP_S) as scope:
            scope.shield = True
            sandbox = self._core.state.sandbox_named(self._client.peer.owner, name)
            if sandbox is not None and not sandbox.hidden:
                with suppress(SandkeepError):  # it says why in the log
                    await self._call("sandbox.terminate", SandboxTerminate(sandbox_id=sandbox.sandbox_id))

    async def _made(self, options: Options, name: str) -> Sandbox:
        idle, place = options.idle_timeout or None, None
        if options.is_shared:
            STORAGE.require("checkpoint", bucket=True)
        if options.filesystem_snapshot_name is not None:
            place = await self._snapshot_called(options.filesystem_snapshot_name)
        image_id = await self._image()
        command = SandboxCreate(image_id=image_id, name=name, idle_timeout_s=idle)
        if options.is_shared:
            command = replace(
                command, gcs_sandbox_id=name, enable_checkpoint=True, enable_handoff=options.enable_sandbox_handoff,
                enable_checkpoint_at_idle=options.enable_idle_timeout_auto_checkpoint,
            )  # fmt: skip
        made: Sandbox = await self._call("sandbox.create", command)
        if place is not None:
            workspace = made.isolation.workspace if made.isolation is not None else "/"
            await named.unpack(
                place, self._server.files, made.sandbox_id, workspace, events.Meta(), no_progress,
                self._server.state_dir,
            )  # fmt: skip
        return made

    async def _image(self) -> str:
        image = CLOUD_RUN_IMAGE() or ""
        if ids.looks_like_id(image):
            return image
        return str((await self._call("image.create", ImageCreate(source=image))).image_id)

    async def _snapshot_called(self, name: str) -> Place:
        """Return where a snapshot lies. Raises `not_configured`, `not_found`, and the store's errors."""
        ids.check_new_name(name, "filesystem_snapshot_name")
        root = STORAGE.require("snapshot", bucket=True)
        return await in_thread(named.find, root, self._client.peer.owner, name)

    async def _attach(self, name: str) -> None:
        token = self._client.target.query.get("sandbox_token", b"").decode("ascii", "replace")
        guest = self._client.sandbox_id if isinstance(self._client, Guest) else None
        state = self._core.state
        here = state.sandboxes.get(guest) if guest else state.sandbox_named(self._client.peer.owner, name)
        try:
            if not token:
                raise CallerError("permission_denied", "sandbox_token: it is missing: give that of the sandbox")
            if guest is None and (here is None or here.hidden):
                sandbox_id = await self._attach_shared(name, token)
            else:
                sandbox_id = await self._attach_here(here, name, token)
        except SandkeepError as error:
            status, code = _REFUSALS.get(error.code, ("SANDBOX_RESTORE_ERROR", _FATAL))
            await self._fail(status, error.message, code)
            return
        await self._converse(sandbox_id)

    async def _attach_here(self, here: SandboxState | None, name: str, token: str) -> str:
        if here is not None:
            check_token(token, self._server.token_hash(here), name)
            await self._stayed(here)
            if self._server.has_left(here):
                await self._tell_left(here)
                raise _EndError(_DONE)
        if here is None or here.hidden:
            raise CallerError("not_found", f"the sandbox {name!r} has ended")
        if here.status == "suspended":
            await self._status("SANDBOX_RESTORING")
            await self._call("sandbox.resume", SandboxResume(sandbox_id=here.sandbox_id))
        return here.sandbox_id

    async def _stayed(self, sandbox: SandboxState) -> None:
        """Wait for the outcome of a hand-over that is under way. Raises `not_ready` if there is none in time."""
        lock = rules.shared_lock(self._core.state, sandbox.sandbox_id)
        if lock is None or lock.status not in (*rules.LEAVING, "released"):
            return
        with trio.move_on_after(LEAVING_S) as scope:
            await self._core.settled(lock.lock_id, lambda: lock.status not in rules.LEAVING)
            await self._core.settled(
                sandbox.sandbox_id,
                lambda: lock.status != "released" or sandbox.hidden or sandbox.moved_to is not None,
            )
        if scope.cancelled_caught:
            raise StateError("not_ready", "the sandbox is still being handed over: try again")

    async def _attach_shared(self, name: str, token: str) -> str:
        ids.check_new_name(name, "sandbox_id")
        STORAGE.require_sharing(beside_metadata=True)
        await self._status("SANDBOX_RESTORING")
        found = await self._server.find(self._client.peer.owner, name)
        if found is None or found.is_removed:
            raise CallerError("not_found", f"there is no sandbox {name!r}: create one")
        try:
            command = msgspec.convert({"gcs_sandbox_id": name, "sandbox_token": token}, SandboxAttachShared)
        except msgspec.ValidationError:
            raise CallerError(
                "permission_denied", "sandbox_token: it is not a token: give that of the sandbox"
            ) from None
        if found.enable_sandbox_handoff:
            await self._status("SANDBOX_LOCK_ACQUIRING")
        attached: Sandbox = await self._call("sandbox.attach_shared", command)
        if found.enable_sandbox_handoff:
            await self._status("SANDBOX_LOCK_ACQUIRED")
        return attached.sandbox_id

    # -- the conversation ---------------------------------------------------------------------------------------------

    async def _converse(self, sandbox_id: str) -> None:
        self._sandbox_id = sandbox_id
        heard = self._core.log.on_commit
        heard.append(self._committed)
        try:
            with self._server.attached(sandbox_id):
                if self._core.state.sandboxes[sandbox_id].hidden:  # meanwhile
                    await self._end()
                await self._status("SANDBOX_RUNNING")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._tell_of_events)
                    nursery.start_soon(self._write_inputs)
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
            message = _decoded(text, Message)
        except CallerError as error:
            await self._error("SANDBOX_EXECUTION_ERROR", f"the message is not understood: {error.message}")
            return
        if message.event == "stdin":
            await self._typed.send((self._running, message.data))
        elif message.action == "reconnect":
            execution = self._server.execution(self._sandbox_id)
            if execution is not None and not execution.is_told and not self._telling:
                await self._status("SANDBOX_EXECUTION_RUNNING")
                self._tell(execution, nursery)
        elif message.action in _ACTIONS:
            await self._begin_action(message.action, message, nursery)
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
            message = f"Unsupported language: {language[:80]!r}. Supported languages are: {known}"
            await self._error("SANDBOX_EXECUTION_UNSUPPORTED_LANGUAGE_ERROR", message)
            return
        if self._running is not None or self._telling:
            # Not SANDBOX_EXECUTION_IN_PROGRESS_ERROR: to upstream's clients that is the answer to a checkpoint.
            message = "An execution is already in progress: wait, or kill_process"
            await self._error("SANDBOX_EXECUTION_ERROR", message)
            return
        try:
            if len(code.encode()) > MAX_CODE_BYTES:
                message = f"the code is longer than {MAX_CODE_BYTES} bytes: write it to a file, by input, and run that"
                raise CallerError("invalid", message)
            command = validated(ProcessLaunch, sandbox_id=self._sandbox_id, command=[*argv, code], stdin=True)
            async with self._server.starting(self._sandbox_id):
                launched = await self._call("process.launch", command)
                process = self._core.state.processes[launched.process_id]
                execution = self._server.begin(self._sandbox_id, process)
        except SandkeepError as error:
            await self._error("SANDBOX_EXECUTION_ERROR", error.message)
            return
        await self._status("SANDBOX_EXECUTION_RUNNING")
        self._tell(execution, nursery)

    def _tell(self, execution: Execution, nursery: trio.Nursery) -> None:
        """Start the one task that sends output."""
        self._telling = True
        nursery.start_soon(self._tell_of_output, execution)

    async def _write_inputs(self) -> None:
        async for running, data in self._inputs:
            await self._write(running, data)

    async def _write(self, running: Execution | None, data: str) -> None:
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
                self._telling = False
                if not execution.is_killed:
                    await self._tell_done(execution)
                elif not self._server.is_leaving(self._sandbox_id):  # else that has an outcome first
                    await self._tell_killed()
                return
            if not more:
                await outputs.wait_for_more(process, read["stdout"], read["stderr"])
                await trio.sleep(GATHER_S)

    # -- actions ------------------------------------------------------------------------------------------------------

    async def _begin_action(self, action: str, message: Message, nursery: trio.Nursery) -> None:
        """Begin an action, if none is under way. Each kind of kill has a place of its own."""
        place = action if action.startswith("kill_") else ""
        if place in self._acting:
            await self._error(_ACTIONS[action], "another action is in progress: wait until it is done")
            return
        self._acting.add(place)
        nursery.start_soon(self._act, action, place, message)

    async def _act(self, action: str, place: str, message: Message) -> None:
        acts: dict[str, Callable[[Message], Awaitable[None]]] = {
            "checkpoint": self._checkpoint, "snapshot_filesystem": self._snapshot, "kill_process": self._kill_process,
            "kill_sandbox": self._kill_sandbox,
        }  # fmt: skip
        try:
            await acts[action](message)
        finally:
            self._acting.discard(place)

    async def _checkpoint(self, message: Message) -> None:  # noqa: ARG002  # the shape of actions
        self._checkpointing = True
        try:
            await self._status("SANDBOX_CHECKPOINTING")
            await self._save()
        finally:
            self._checkpointing = False

    async def _save(self) -> None:
        if self._running is not None:
            message = "Cannot checkpoint while an execution is in progress: wait, or kill_process"
            await self._error("SANDBOX_EXECUTION_IN_PROGRESS_ERROR", message)
            return
        while True:
            try:
                await self._call("sandbox.detach", SandboxDetach(sandbox_id=self._sandbox_id))
            except SandkeepError as error:
                if error.code == "conflict" and self._server.is_leaving(self._sandbox_id):
                    continue  # another hand-over has begun: its outcome is awaited
                if not self._killing:
                    await self._fail("SANDBOX_CHECKPOINT_ERROR", f"{error.message}: it runs on", _FATAL)
            return

    async def _snapshot(self, message: Message) -> None:
        await self._status("SANDBOX_FILESYSTEM_SNAPSHOT_CREATING")
        try:
            STORAGE.require("snapshot", bucket=True)
            name = ids.check_new_name(message.name or "", "name")
            for earlier in self._snapshots_called(name):
                await self._call("snapshot.delete", SnapshotDelete(snapshot_id=earlier.snapshot_id))
            command = SnapshotCreate(
                sandbox_id=self._sandbox_id, name=name, include=await self._directories(), archive="named"
            )
            await self._call("snapshot.create", command)
        except SandkeepError as error:
            await self._error("SANDBOX_FILESYSTEM_SNAPSHOT_ERROR", error.message)
            return
        await self._status("SANDBOX_FILESYSTEM_SNAPSHOT_CREATED")

    async def _directories(self) -> list[str]:
        """Return what a snapshot holds: the workspace, `/tmp` and the home directory, where a sandbox's archives hold
        the workspace alone; else all that they hold.
        """
        asked = self._core.state.sandboxes[self._sandbox_id].requested
        able = self._core.provider(asked.provider).snapshots
        root = able.files_root(asked.plan) if able is not None else "/"
        if root == "/":
            return []
        found = [root, "/tmp"]  # noqa: S108 - inside
        with suppress(SandkeepError):  # a whole image has no home directory
            await self._call("sandbox.list_dir", DirectoryQuery(sandbox_id=self._sandbox_id, path=HOME, limit=1))
            found.append(HOME)
        return found

    def _snapshots_called(self, name: str) -> list[SnapshotState]:
        """Return those that the sandbox has in the place of a name. Raises `conflict` for another sandbox's."""
        state, owner = self._core.state, self._client.peer.owner
        mine = self._server.token_hash(state.sandboxes[self._sandbox_id])  # it has the same after it moved
        path, found = named.path_of(owner, name), []
        for snapshot in state.snapshots.values():
            if snapshot.status == "ready" and snapshot.places[0].path == path:
                other = state.sandboxes.get(snapshot.sandbox_id or "")
                if other is None or self._server.token_hash(other) != mine:
                    raise StateError("conflict", f"another sandbox has a snapshot {name!r}: choose another name")
                found.append(snapshot)
        return found

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
            return
        if self._server.has_left(self._core.state.sandboxes[self._sandbox_id]):
            await self._error("SANDBOX_KILL_ERROR", "the sandbox was saved, and may go on elsewhere: attach to kill it")

    # -- what happens to the sandbox ----------------------------------------------------------------------------------

    def _committed(self, facts: Sequence[Recorded]) -> None:
        for fact in facts:
            if fact.sandbox_id == self._sandbox_id and isinstance(fact.event, _TOLD):
                self._facts.append(fact)
                self._heard.set()

    async def _tell_of_events(self) -> None:
        while True:
            if not self._facts:
                self._heard = trio.Event()
                await self._heard.wait()
            await self._tell_of(self._facts.popleft().event)

    async def _tell_of(self, event: events.Event | None) -> None:
        match event:
            case events.LockHandoverRequested(reason=reason):
                if reason == "handed_over":
                    await self._status("SANDBOX_LOCK_RELEASE_REQUESTED")
                if not self._checkpointing:
                    await self._status("SANDBOX_CHECKPOINTING")
            case events.LockHandoverFailed():
                await self._tell_killed()
                sandbox = self._core.state.sandboxes[self._sandbox_id]
                with trio.move_on_after(MOVED_S):
                    await self._core.settled(self._sandbox_id, lambda: sandbox.status not in ("suspended", "resuming"))
                await self._status("SANDBOX_RUNNING")
            case events.LockReleaseRequested():
                if (running := self._running) is not None:
                    running.is_killed = True  # by its end here
                await self._tell_killed()
                await self._status("SANDBOX_DELETING")
                await self._lock_status("SANDBOX_LOCK_RELEASING")
            case events.LockReleased():
                await self._lock_status("SANDBOX_LOCK_RELEASED")
            case events.LockLost(message=why) | events.LockExpired(message=why):
                await self._fail_unless_killing("SANDBOX_LOCK_RENEWAL_ERROR", why)
            case events.SandboxFailed(message=why) | events.SandboxLost(message=why):
                await self._fail_unless_killing("SANDBOX_ERROR", why)
            case events.SandboxTerminated():
                await self._end()

    async def _lock_status(self, status: str) -> None:
        """Send a status of the lock. In cloud-run-sandbox only what can be handed over has one."""
        shared = self._core.state.sandboxes[self._sandbox_id].spec.shared
        if shared is not None and shared.enable_handoff:
            await self._status(status)

    async def _fail_unless_killing(self, status: str, message: str) -> None:
        """End the conversation by an error, unless the client wants the sandbox to end: that has its own outcome."""
        if not self._killing:
            await self._fail(status, message, _FATAL)

    async def _tell_done(self, execution: Execution) -> None:
        if not execution.is_told:
            execution.is_told = True
            code = execution.process.exit_code
            await self._send(event="status_update", status="SANDBOX_EXECUTION_DONE", exit_code=code)

    async def _tell_killed(self) -> None:
        """Tell, once, that the command was killed for a hand-over, if it was."""
        execution = self._server.execution(self._sandbox_id)
        if execution is not None and execution.is_killed and not execution.is_told:
            execution.is_told = True
            await self._status("SANDBOX_EXECUTION_FORCE_KILLED")

    async def _end(self) -> None:
        sandbox = self._core.state.sandboxes[self._sandbox_id]
        has_left = self._server.has_left(sandbox)
        if self._killing and not has_left:
            await self._status("SANDBOX_KILLED")
            raise _EndError(_DONE)
        await self._status("SANDBOX_DELETED")
        if has_left:
            await self._tell_left(sandbox)
        raise _EndError(_DONE)

    async def _tell_left(self, sandbox: SandboxState) -> None:
        """Tell that a sandbox was saved, and where it goes on, as soon as that is known."""
        lock = rules.shared_lock(self._core.state, sandbox.sandbox_id)
        if lock is not None and lock.handover is not None and lock.handover.waiter is not None:
            with trio.move_on_after(MOVED_S):
                await self._core.settled(sandbox.sandbox_id, lambda: sandbox.moved_to is not None)
        moved = {"moved_to": sandbox.moved_to} if sandbox.moved_to else {}
        await self._send(event="status_update", status="SANDBOX_CHECKPOINTED", **moved)

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
_ACTIONS: Final = {
    "checkpoint": "SANDBOX_CHECKPOINT_ERROR",
    "snapshot_filesystem": "SANDBOX_FILESYSTEM_SNAPSHOT_ERROR",
    "kill_process": "SANDBOX_EXECUTION_FORCE_KILL_ERROR",
    "kill_sandbox": "SANDBOX_KILL_ERROR",
}
"""The actions, and the statuses of their errors."""

_REFUSALS: Final = {
    "not_found": ("SANDBOX_NOT_FOUND", _GONE),
    "not_configured": ("SANDBOX_NOT_FOUND", _GONE),
    "invalid": ("SANDBOX_NOT_FOUND", _GONE),
    "permission_denied": ("SANDBOX_PERMISSION_DENIAL_ERROR", _FATAL),
    "lock_contended": ("SANDBOX_IN_USE", _GONE),
    "in_use": ("SANDBOX_IN_USE", _GONE),
}


def _code_of(ends: BaseExceptionGroup[_EndError]) -> int:
    """Return the close code of the first end in a group of groups."""
    first = ends.exceptions[0]
    return first.code if isinstance(first, _EndError) else _code_of(first)


def _decoded(got: str | bytes, wanted: type[M]) -> M:
    """Return a message of a client. Raises `invalid`."""
    if isinstance(got, bytes):
        raise CallerError("invalid", "it is binary: send text frames")
    try:
        return msgspec.json.decode(got, type=wanted)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CallerError("invalid", str(error)[:200]) from None

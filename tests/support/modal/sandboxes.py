"""Sandboxes: from their creation until they end by themselves, by a timeout, or because somebody terminates them."""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from grpclib import GRPCError, Status
from modal_proto import api_pb2
from tests.support.doubles.processes import Launcher, StartError
from tests.support.modal import containers, fs_tool
from tests.support.modal.access import Access
from tests.support.modal.containers import PATH, Container
from tests.support.modal.execs import Exec, start_exec
from tests.support.modal.images import Image, Images
from tests.support.modal.objects import App, Objects, Owned, new_id
from tests.support.modal.tunnels import Tunnels

Result = api_pb2.GenericResult
_SECOND: Final = "V"
"""Ends the ids of sandboxes and tasks of the second version."""


@dataclass(kw_only=True)
class Sandbox(Owned):
    """A sandbox and its task. `scheduled` is set once its container runs, `ended` once it has a result."""

    task_id: str
    app_id: str
    environment: str
    definition: Any
    image: Image
    layers: list[Path]
    variables: dict[str, str]
    tags: dict[str, str]
    second: bool
    created_at: float
    network: Any
    name: str
    container: Container | None = None
    entrypoint: Exec | None = None
    execs: dict[str, Exec] = field(default_factory=dict)
    starting: dict[str, asyncio.Lock] = field(default_factory=dict)
    result: Any = None
    is_over: bool = False
    scheduled: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: asyncio.Future[Any] | None = None
    stdin_index: int = 0
    tunnels: Tunnels = field(init=False)
    _users: int = 0
    _idle: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.tunnels = Tunnels(self.busy)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Keep it from ending because it is idle: for processes, writes to stdin and connections of tunnels."""
        self._users += 1
        if self._idle:
            self._idle.cancel()
        try:
            yield
        finally:
            self._users -= 1
            self.watch_idleness()

    def watch_idleness(self) -> None:
        """Begin to count the time for which it is idle."""
        if not self._users and self.definition.idle_timeout_secs:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(
                self.definition.idle_timeout_secs, self.stop, Result.GENERIC_STATUS_IDLE_TIMEOUT
            )

    def stop(self, status: int) -> None:
        """Let it end with a status; the first one counts."""
        if self.stopping is not None and not self.stopping.done():
            self.stopping.set_result(Result(status=status))

    async def running(self) -> Container:
        """Wait until it is scheduled; return its container. Raises GRPCError if it has ended."""
        await self.scheduled.wait()
        if self.is_over or self.container is None:
            raise GRPCError(Status.NOT_FOUND, f"Task {self.task_id} has finished")
        return self.container


class Sandboxes:
    """Starts sandboxes, and owns their tasks."""

    def __init__(self, objects: Objects, images: Images, access: Access, launcher: Launcher, directory: Path) -> None:
        self._objects = objects
        self._images = images
        self._access = access
        self._launcher = launcher
        self._directory = directory
        self._by_task: dict[str, Sandbox] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_created = 0.0

    def create(
        self, app: App, definition: Any, variables: Mapping[str, str], tags: Mapping[str, str], *, second: bool
    ) -> Sandbox:
        """Create a sandbox, which starts in the background. Raises GRPCError."""
        image = self._images.built(definition.image_id, app.workspace)
        layers = [*self._images.mounts(definition.mount_ids, app.workspace), *image.layers]
        if definition.name and self.named(app, definition.name):
            raise GRPCError(
                Status.ALREADY_EXISTS, f"Sandbox with name '{definition.name}' already exists in app '{app.name}'"
            )
        suffix = _SECOND if second else ""
        self._last_created = max(time.time(), self._last_created + 1e-4)  # pages of lists go by it
        made = self._objects.add(
            Sandbox(
                id=new_id("sb") + suffix,
                workspace=app.workspace,
                task_id=new_id("ta") + suffix,
                app_id=app.id,
                environment=app.environment,
                definition=definition,
                image=image,
                layers=layers,
                variables=dict(variables),
                tags=dict(tags),
                second=second,
                created_at=self._last_created,
                network=definition.network_access,
                name=definition.name,
            )
        )
        self._by_task[made.task_id] = made
        made.stopping = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._run(made))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return made

    async def close(self) -> None:
        """Terminate all, and wait until they are gone."""
        for sandbox in self._by_task.values():
            sandbox.stop(Result.GENERIC_STATUS_TERMINATED)
        await asyncio.gather(*self._tasks)

    def of_task(self, task_id: str) -> Sandbox:
        """Return the sandbox of a task. Raises GRPCError."""
        found = self._by_task.get(task_id)
        if found is None:
            raise GRPCError(Status.NOT_FOUND, f"Task {task_id} not found")
        return found

    def named(self, app: App, name: str, *, ended: bool = False) -> Sandbox | None:
        """Return the sandbox of an app that has a name: the one that runs, else the last one if it may have ended."""
        found = [one for one in self._objects.all(Sandbox, app.workspace) if (one.app_id, one.name) == (app.id, name)]
        running = [one for one in found if one.result is None]
        return next(iter(running or (found[:-2:-1] if ended else [])), None)

    def listed(self, workspace: str, request: Any) -> Iterable[Sandbox]:
        """Return what a request for a list wants, the newest first."""
        wanted = {tag.tag_name: tag.tag_value for tag in request.tags}.items()
        for one in reversed(self._objects.all(Sandbox, workspace)):
            if (
                (not request.app_id or one.app_id == request.app_id)
                and (not request.environment_name or one.environment == request.environment_name)
                and (not request.before_timestamp or one.created_at < request.before_timestamp)
                and (request.include_finished or one.result is None)
                and wanted <= one.tags.items()
            ):
                yield one

    async def _run(self, sandbox: Sandbox) -> None:
        try:
            sandbox.container = await containers.start_container(
                self._launcher, self._directory / sandbox.id, sandbox.layers, "modal"
            )
            result = await self._follow(sandbox)
        except StartError as error:
            result = Result(status=Result.GENERIC_STATUS_INIT_FAILURE, exception=str(error), exitcode=128)
        sandbox.is_over = True  # its processes end before it has its result
        await sandbox.tunnels.close()
        if sandbox.container:
            await sandbox.container.stop()
        every = [*sandbox.execs.values(), *([sandbox.entrypoint] if sandbox.entrypoint else [])]
        await asyncio.gather(*(one.close() for one in every))
        sandbox.result = result
        sandbox.ended.set()
        sandbox.scheduled.set()
        if sandbox.container:
            await sandbox.container.remove()

    async def _follow(self, sandbox: Sandbox) -> Any:
        """Start the command of a sandbox, and wait until it ends, or until the sandbox has to. Raises StartError."""
        assert sandbox.container
        assert sandbox.stopping
        waits: list[asyncio.Future[Any]] = [sandbox.stopping]
        definition = sandbox.definition
        argv = [*sandbox.image.entrypoint, *(definition.entrypoint_args or sandbox.image.command)]
        if argv:
            idle = contextlib.nullcontext()  # a command that only waits is no use
            sandbox.entrypoint = await self.start(sandbox, argv, {}, definition.workdir, definition.pty_info, busy=idle)
            waits.append(asyncio.create_task(sandbox.entrypoint.wait()))
        await sandbox.tunnels.open(sandbox.container.pid, definition.open_ports.ports)
        sandbox.scheduled.set()
        sandbox.watch_idleness()
        done, _ = await asyncio.wait(
            waits, timeout=definition.timeout_secs or None, return_when=asyncio.FIRST_COMPLETED
        )
        if sandbox.stopping.done():
            return sandbox.stopping.result()
        if not done:
            return Result(status=Result.GENERIC_STATUS_TIMEOUT)
        code = sandbox.entrypoint.code if sandbox.entrypoint else 0
        status = Result.GENERIC_STATUS_FAILURE if code else Result.GENERIC_STATUS_SUCCESS
        return Result(status=status, exitcode=code)

    async def snapshot(self, sandbox: Sandbox) -> Image:
        """Make an image of the files of a sandbox. Raises GRPCError."""
        layer = await self._images.snapshot(await sandbox.running())
        return self._images.add(sandbox.workspace, [layer, *sandbox.layers], sandbox.image)

    async def start(
        self,
        sandbox: Sandbox,
        argv: list[str],
        variables: Mapping[str, str],
        workdir: str,
        pty: Any,
        discard: frozenset[int] = frozenset(),
        busy: AbstractContextManager[None] | None = None,
    ) -> Exec:
        """Start a process in a sandbox whose container runs, which is busy with it. Raises StartError."""
        assert sandbox.container
        image = sandbox.image
        terminal = {"TERM": pty.env_term or "xterm-256color"} if pty.enabled else {}
        env = {
            "PATH": PATH,
            "HOME": "/root",
            "MODAL_SANDBOX_ID": sandbox.id,
            "MODAL_TASK_ID": sandbox.task_id,
            **image.variables,
            **terminal,
            **sandbox.variables,
            **variables,
        }
        source = fs_tool.SOURCE if argv[0] == fs_tool.PATH else None
        cwd = workdir or sandbox.definition.workdir or image.workdir
        spec = containers.process(argv, env, cwd, tty=pty.enabled, source=source)
        size = (pty.winsz_rows, pty.winsz_cols) if pty.enabled else (0, 0)
        return await start_exec(sandbox.container, spec, busy or sandbox.busy(), discard=discard, size=size)


async def wait(sandbox: Sandbox, timeout_s: float) -> None:
    """Wait until a sandbox has ended, but only so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await sandbox.ended.wait()

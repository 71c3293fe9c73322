"""The task command router: processes in sandboxes, their streams, and snapshots of files."""

import asyncio
import time
from typing import Any

from grpclib import GRPCError, Status
from modal_proto import api_pb2
from modal_proto import task_command_router_pb2 as router_pb2
from tests.support.doubles.processes import StartError
from tests.support.modal.access import Access
from tests.support.modal.execs import Exec
from tests.support.modal.images import Images
from tests.support.modal.sandbox_calls import variables_of
from tests.support.modal.sandboxes import Sandbox, Sandboxes
from tests.support.modal.server import Call, Plane, Replies, serves


class Router(Plane):
    """Requests of the SDK with the token of one task."""

    def __init__(self, images: Images, access: Access, sandboxes: Sandboxes) -> None:
        super().__init__()
        self._images = images
        self._access = access
        self._sandboxes = sandboxes

    def admit(self, call: Call, request: Any) -> None:
        """Check the token of the task."""
        is_stream = call.name == "TaskExecStdinWriteStream"
        if is_stream and not request.HasField("start"):
            raise GRPCError(Status.INVALID_ARGUMENT, "the first message of a stream has to be its start")
        task_id = request.start.task_id if is_stream else request.task_id
        token = str(call.metadata.get("authorization", "")).removeprefix("Bearer ")
        self._access.check(token, task_id)

    async def _running(self, request: Any) -> Sandbox:
        sandbox = self._sandboxes.of_task(request.task_id)
        await sandbox.running()
        return sandbox

    async def _exec(self, request: Any) -> Exec:
        sandbox = await self._running(request)
        found = sandbox.execs.get(request.exec_id)
        if found is None:
            raise GRPCError(Status.NOT_FOUND, f"Exec {request.exec_id} not found")
        return found

    # Processes

    @serves("TaskExecStart")
    async def start(self, request: Any, call: Call) -> Any:
        sandbox = await self._running(request)
        if not request.command_args:
            raise GRPCError(Status.INVALID_ARGUMENT, "command_args is empty")
        if request.stderr_config == router_pb2.TASK_EXEC_STDERR_CONFIG_STDOUT:
            raise GRPCError(Status.INVALID_ARGUMENT, "stderr cannot go to stdout")
        async with sandbox.starting.setdefault(request.exec_id, asyncio.Lock()):
            if request.exec_id not in sandbox.execs:  # a request that is repeated starts nothing
                sandbox.execs[request.exec_id] = await self._start(sandbox, request)
        return router_pb2.TaskExecStartResponse()

    async def _start(self, sandbox: Sandbox, request: Any) -> Exec:
        variables = variables_of(self._images, request.secret_sources, sandbox.workspace)
        discard = set()
        if request.stdout_config == router_pb2.TASK_EXEC_STDOUT_CONFIG_DEVNULL:
            discard.add(1)
        if request.stderr_config == router_pb2.TASK_EXEC_STDERR_CONFIG_DEVNULL:
            discard.add(2)
        argv = list(request.command_args)
        try:
            started = await self._sandboxes.start(
                sandbox, argv, variables, request.workdir, request.pty_info, frozenset(discard)
            )
        except StartError as error:
            await sandbox.running()  # which says so if it has ended meanwhile
            raise GRPCError(Status.INVALID_ARGUMENT, f"failed to start {argv[0]!r}: {error}") from None
        if request.timeout_secs:
            loop = asyncio.get_running_loop()
            loop.call_later(request.timeout_secs, started.kill)
        return started

    @serves("TaskExecWait")
    async def wait(self, request: Any, call: Call) -> Any:
        return router_pb2.TaskExecWaitResponse(**_status(await (await self._exec(request)).wait()))

    @serves("TaskExecPoll")
    async def poll(self, request: Any, call: Call) -> Any:
        code = (await self._exec(request)).code
        return router_pb2.TaskExecPollResponse(**({} if code is None else _status(code)))

    # Their streams

    @serves("TaskExecStdioRead")
    async def read(self, request: Any, call: Call) -> Replies:
        found = await self._exec(request)
        is_stdout = request.file_descriptor == router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT
        async for data in found.outputs[1 if is_stdout else 2].read(request.offset):
            yield router_pb2.TaskExecStdioReadResponse(data=data)

    @serves("TaskExecStdinWrite")
    async def write(self, request: Any, call: Call) -> Any:
        found = await self._exec(request)
        await found.stdin.put(request.offset, request.data, eof=request.eof)
        return router_pb2.TaskExecStdinWriteResponse()

    @serves("TaskExecStdinWriteStream")
    async def write_stream(self, request: Any, call: Call) -> Any:
        found = await self._exec(request.start)
        offset = request.start.offset
        if offset != found.stdin.written:
            raise GRPCError(Status.FAILED_PRECONDITION, f"stdin has {found.stdin.written} bytes, and not {offset}")
        async for part in call.stream:
            if part.HasField("end"):
                await found.stdin.put(offset, b"", eof=True)
                return router_pb2.TaskExecStdinWriteStreamResponse()
            if not part.HasField("data"):
                raise GRPCError(Status.INVALID_ARGUMENT, "a message of a stream has to have data")
            await found.stdin.put(offset, part.data, eof=False)
            offset += len(part.data)
        raise GRPCError(Status.CANCELLED, "the stream ended before its end")

    @serves("TaskExecStdinStatus")
    async def stdin_status(self, request: Any, call: Call) -> Any:
        stdin = (await self._exec(request)).stdin
        return router_pb2.TaskExecStdinStatusResponse(num_bytes_written=stdin.written, closed=stdin.closed)

    # The command of the sandbox

    @serves("SandboxStdioReadV2")
    async def read_entrypoint(self, request: Any, call: Call) -> Replies:
        sandbox = self._sandboxes.of_task(request.task_id)
        await sandbox.scheduled.wait()
        if sandbox.entrypoint is None:
            await sandbox.ended.wait()
            return
        is_stdout = request.file_descriptor == router_pb2.SANDBOX_STDIO_FILE_DESCRIPTOR_STDOUT
        offset = request.offset
        async for data in sandbox.entrypoint.outputs[1 if is_stdout else 2].read(offset):
            yield router_pb2.SandboxStdioReadV2Response(data=data, starting_offset=offset)
            offset += len(data)

    @serves("SandboxStdinWriteV2")
    async def write_entrypoint(self, request: Any, call: Call) -> Any:
        sandbox = await self._running(request)
        if sandbox.entrypoint is None:
            raise GRPCError(Status.FAILED_PRECONDITION, "The sandbox runs no command")
        with sandbox.busy():
            await sandbox.entrypoint.stdin.put(request.offset, request.data, eof=request.eof)
        return router_pb2.SandboxStdinWriteV2Response()

    @serves("SandboxWaitUntilReady")
    async def wait_until_ready(self, request: Any, call: Call) -> Any:
        sandbox = await self._running(request)
        probe = sandbox.definition.readiness_probe
        try:
            async with asyncio.timeout(request.timeout):
                while not await self._is_ready(sandbox, probe):
                    await asyncio.sleep((probe.interval_ms or 100) / 1000)
        except TimeoutError:
            raise GRPCError(Status.DEADLINE_EXCEEDED, "The sandbox is not ready") from None
        return router_pb2.SandboxWaitUntilReadyTcrResponse(ready_at=time.time())

    async def _is_ready(self, sandbox: Sandbox, probe: Any) -> bool:
        """Ask the probe of a sandbox; without one it is ready."""
        container = await sandbox.running()
        match probe.WhichOneof("probe_oneof"):
            case "tcp_port":
                return await sandbox.tunnels.reaches(container.pid, probe.tcp_port)
            case "exec_command":
                argv = list(probe.exec_command.argv)
                try:
                    started = await self._sandboxes.start(sandbox, argv, {}, "", api_pb2.PTYInfo(), frozenset((1, 2)))
                except StartError:
                    return False
                return await started.wait() == 0
        return True

    # Files

    @serves("TaskSnapshotFilesystem")
    async def snapshot(self, request: Any, call: Call) -> Any:
        sandbox = await self._running(request)
        return router_pb2.TaskSnapshotFilesystemResponse(image_id=(await self._sandboxes.snapshot(sandbox)).id)

    @serves("TaskSnapshotDirectory")
    async def snapshot_directory(self, request: Any, call: Call) -> Any:
        sandbox = await self._running(request)
        layer = await self._images.snapshot(await sandbox.running(), request.path.decode())
        made = self._images.add(sandbox.workspace, [layer])
        return router_pb2.TaskSnapshotDirectoryResponse(image_id=made.id)

    @serves("TaskSetNetworkAccess")
    async def set_network(self, request: Any, call: Call) -> Any:
        sandbox = await self._running(request)
        sandbox.network = request.network_access
        return router_pb2.TaskSetNetworkAccessResponse()


def _status(code: int) -> dict[str, int]:
    """Tell exit codes and signals apart, as the service does."""
    return {"signal": code - 128} if code > 128 else {"code": code}

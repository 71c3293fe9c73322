"""Calls of the control plane for sandboxes, of both versions."""

import asyncio
import codecs
from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from modal_proto import api_pb2
from tests.support.modal import sandboxes
from tests.support.modal.access import Access
from tests.support.modal.control_plane import ControlPlane
from tests.support.modal.images import Images
from tests.support.modal.objects import App, Objects
from tests.support.modal.sandboxes import Sandbox, Sandboxes
from tests.support.modal.server import Call, Replies, serves

PAGE: Final = 20
_AUTHORIZED: Final = {"SandboxGetCommandRouterAccess", "SandboxSetName"}


def variables_of(images: Images, sources: Iterable[Any], workspace: str | None) -> dict[str, str]:
    """Return the variables of secrets that are sent along or referenced. Raises GRPCError."""
    found: dict[str, str] = {}
    for source in sources:
        if source.WhichOneof("source") == "secret_id":
            found |= images.secrets([source.secret_id], workspace)
        else:
            found |= dict(source.env.contents)
    return found


class SandboxPlane(ControlPlane):
    """The whole control plane."""

    router_url: str = ""

    def __init__(self, objects: Objects, images: Images, access: Access, sandboxes: Sandboxes) -> None:
        super().__init__(objects, images, access)
        self.sandboxes = sandboxes

    def admit(self, call: Call, request: Any) -> None:
        """Find the workspace; calls of the second version also need a token of the service."""
        super().admit(call, request)
        if call.name.startswith("Sandbox") and (call.name.endswith("V2") or call.name in _AUTHORIZED):
            self.access.check(str(call.metadata.get("x-modal-auth-token", "")), call.workspace)

    def _find(self, request: Any, call: Call) -> Sandbox:
        return self.objects.find(Sandbox, request.sandbox_id, call.workspace)

    def _access(self, sandbox: Sandbox) -> dict[str, str]:
        """Return the way to the command router. Raises GRPCError if a sandbox of the first version has ended; those of
        the second one still give their output.
        """
        if sandbox.result is not None and not sandbox.second:
            raise GRPCError(Status.FAILED_PRECONDITION, f"Sandbox {sandbox.id} has already finished")
        return {"url": self.router_url, "jwt": self.access.grant(sandbox.task_id)}

    # From the beginning to the end

    @serves("SandboxCreateV2")
    async def create_second(self, request: Any, call: Call) -> Any:
        definition = request.definition
        if definition.resources.gpu_config.gpu_type or definition.pty_info.enabled or definition.nfs_mounts:
            raise GRPCError(Status.INVALID_ARGUMENT, "GPUs, network file systems and PTYs need the first version")
        variables = variables_of(self.images, request.secret_sources, call.workspace)
        made = self._create(request, call, variables, second=True)
        return api_pb2.SandboxCreateV2Response(
            sandbox_id=made.id,
            task_id=made.task_id,
            metadata=_metadata(made),
            command_router_access=api_pb2.CommandRouterAccess(**self._access(made)),
        )

    @serves("SandboxCreate")
    async def create_first(self, request: Any, call: Call) -> Any:
        variables = self.images.secrets(request.definition.secret_ids, call.workspace)
        made = self._create(request, call, variables, second=False)
        return api_pb2.SandboxCreateResponse(sandbox_id=made.id, metadata=_metadata(made))

    def _create(self, request: Any, call: Call, variables: dict[str, str], *, second: bool) -> Sandbox:
        app = self.objects.find(App, request.app_id, call.workspace)
        tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        return self.sandboxes.create(app, request.definition, variables, tags, second=second)

    @serves("SandboxWait", "SandboxWaitV2")
    async def wait(self, request: Any, call: Call) -> Any:
        sandbox = self._find(request, call)
        if request.timeout:
            await sandboxes.wait(sandbox, request.timeout)
        return api_pb2.SandboxWaitResponse(result=sandbox.result, metadata=_metadata(sandbox))

    @serves("SandboxTerminate", "SandboxTerminateV2")
    async def terminate(self, request: Any, call: Call) -> Any:
        sandbox = self._find(request, call)
        existing = sandbox.result
        sandbox.stop(api_pb2.GenericResult.GENERIC_STATUS_TERMINATED)
        return api_pb2.SandboxTerminateResponse(existing_result=existing)

    # Finding them

    @serves("SandboxGetFromName", "SandboxGetFromNameV2")
    async def by_name(self, request: Any, call: Call) -> Any:
        environment = self.objects.environment(call.workspace, request.environment_name)
        second = call.name.endswith("V2")
        for app in self.objects.all(App, call.workspace):
            if (app.name, app.environment) == (request.app_name, environment):
                found = self.sandboxes.named(app, request.sandbox_name, ended=request.include_terminated)
                if found and found.second == second:
                    return api_pb2.SandboxGetFromNameResponse(sandbox_id=found.id, metadata=_metadata(found))
        raise GRPCError(
            Status.NOT_FOUND, f"Sandbox with name '{request.sandbox_name}' not found in app '{request.app_name}'"
        )

    @serves("SandboxList", "SandboxListV2")
    async def list(self, request: Any, call: Call) -> Any:
        second = call.name.endswith("V2")
        found = [one for one in self.sandboxes.listed(call.workspace, request) if second or not one.second]
        return api_pb2.SandboxListResponse(sandboxes=[_info(one) for one in found[:PAGE]])

    @serves("SandboxTagsGet", "SandboxTagsGetV2")
    async def tags(self, request: Any, call: Call) -> Any:
        return api_pb2.SandboxTagsGetResponse(tags=_tags(self._find(request, call)))

    @serves("SandboxTagsSet", "SandboxTagsSetV2")
    async def set_tags(self, request: Any, call: Call) -> Any:
        self._find(request, call).tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        return Empty()

    @serves("SandboxSetName")
    async def set_name(self, request: Any, call: Call) -> Any:
        sandbox = self._find(request, call)
        app = self.objects.find(App, sandbox.app_id, call.workspace)
        if not request.name:
            raise GRPCError(Status.INVALID_ARGUMENT, "name is required")
        if sandbox.name not in ("", request.name):
            raise GRPCError(Status.FAILED_PRECONDITION, f"Sandbox {sandbox.id} already has a name")
        if self.sandboxes.named(app, request.name) not in (None, sandbox):
            raise GRPCError(Status.ALREADY_EXISTS, f"Sandbox with name '{request.name}' already exists")
        sandbox.name = request.name
        return api_pb2.SandboxSetNameResponse()

    # The way to their processes

    @serves("SandboxGetTaskId", "SandboxGetTaskIdV2")
    async def task_id(self, request: Any, call: Call) -> Any:
        sandbox = self._find(request, call)
        return api_pb2.SandboxGetTaskIdResponse(task_id=sandbox.task_id, task_result=sandbox.result)

    @serves("SandboxGetCommandRouterAccess")
    async def access_second(self, request: Any, call: Call) -> Any:
        if request.WhichOneof("target") == "task_id":
            sandbox = self.sandboxes.of_task(request.task_id)
            sandbox = self.objects.find(Sandbox, sandbox.id, call.workspace)
        else:
            sandbox = self._find(request, call)
        return api_pb2.SandboxGetCommandRouterAccessResponse(**self._access(sandbox))

    @serves("TaskGetCommandRouterAccess")
    async def access_first(self, request: Any, call: Call) -> Any:
        sandbox = self.objects.find(Sandbox, self.sandboxes.of_task(request.task_id).id, call.workspace)
        return api_pb2.TaskGetCommandRouterAccessResponse(**self._access(sandbox))

    @serves("SandboxGetTunnels", "SandboxGetTunnelsV2")
    async def tunnels(self, request: Any, call: Call) -> Any:
        sandbox = self._find(request, call)
        try:
            async with asyncio.timeout(request.timeout):
                await sandbox.scheduled.wait()
        except TimeoutError:
            result = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_TIMEOUT)
            return api_pb2.SandboxGetTunnelsResponse(result=result)
        if sandbox.result is not None:
            raise GRPCError(Status.FAILED_PRECONDITION, f"Sandbox {sandbox.id} has already finished")
        return api_pb2.SandboxGetTunnelsResponse(tunnels=sandbox.tunnels.data)

    @serves("SandboxSnapshotFs")
    async def snapshot(self, request: Any, call: Call) -> Any:
        sandbox = self._find(request, call)
        made = await self.sandboxes.snapshot(sandbox)
        result = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)
        return api_pb2.SandboxSnapshotFsResponse(image_id=made.id, result=result)

    # Stdio of the first version

    @serves("SandboxGetLogs")
    async def logs(self, request: Any, call: Call) -> Replies:
        """Yield output as text; an entry is named by the bytes up to its end, since the last complete character."""
        sandbox = self._find(request, call)
        await sandbox.scheduled.wait()
        offset = int(request.last_entry_id or 0)
        if sandbox.entrypoint:
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            output = sandbox.entrypoint.outputs[1 if request.file_descriptor == api_pb2.FILE_DESCRIPTOR_STDOUT else 2]
            try:
                async with asyncio.timeout(request.timeout or None):
                    async for data in output.read(offset):
                        offset += len(data)
                        text = decoder.decode(data)
                        entry = str(offset - len(decoder.getstate()[0]))
                        yield _log(request, entry, text)
            except TimeoutError:
                return
            if rest := decoder.decode(b"", final=True):
                yield _log(request, str(offset), rest)
        yield api_pb2.TaskLogsBatch(entry_id=str(offset), eof=True)

    @serves("SandboxStdinWrite")
    async def write_stdin(self, request: Any, call: Call) -> Any:
        sandbox = self._find(request, call)
        if sandbox.result is not None:
            raise GRPCError(Status.FAILED_PRECONDITION, f"Sandbox {sandbox.id} has already terminated")
        await sandbox.running()
        if sandbox.entrypoint is None:
            raise GRPCError(Status.FAILED_PRECONDITION, "The sandbox runs no command")
        stdin = sandbox.entrypoint.stdin
        if request.index > sandbox.stdin_index:  # one that is repeated has been written
            sandbox.stdin_index = request.index
            with sandbox.busy():
                await stdin.put(stdin.written, request.input, eof=request.eof)
        return api_pb2.SandboxStdinWriteResponse()


def _log(request: Any, entry: str, text: str) -> Any:
    item = api_pb2.TaskLogs(data=text, file_descriptor=request.file_descriptor)
    return api_pb2.TaskLogsBatch(entry_id=entry, items=[item], sandbox_id=request.sandbox_id)


def _metadata(sandbox: Sandbox) -> Any:
    return api_pb2.SandboxHandleMetadata(app_id=sandbox.app_id, result=sandbox.result)


def _tags(sandbox: Sandbox) -> list[Any]:
    return [api_pb2.SandboxTag(tag_name=name, tag_value=value) for name, value in sandbox.tags.items()]


def _info(sandbox: Sandbox) -> Any:
    definition = sandbox.definition
    return api_pb2.SandboxInfo(
        id=sandbox.id,
        created_at=sandbox.created_at,
        task_info=api_pb2.TaskInfo(id=sandbox.task_id, sandbox_id=sandbox.id, result=sandbox.result),
        app_id=sandbox.app_id,
        tags=_tags(sandbox),
        name=sandbox.name,
        image_id=definition.image_id,
        regions=definition.scheduler_placement.regions,
        timeout_secs=definition.timeout_secs,
        metadata=_metadata(sandbox),
    )

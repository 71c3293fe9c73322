"""Requests that Modal's own mock servicer refuses, sent as they are to a service of either kind."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self
from urllib.parse import urlsplit

from tests.support.kubernetes.images import BUSYBOX


class Caller:
    """A client of one of the services, which sends requests as they are."""

    def __init__(self, service: dict[str, Any]) -> None:
        import modal

        self.url = service["url"]
        self.token = service["token"]
        self.headers = {
            "x-modal-python-version": "3.11.7",
            "x-modal-client-version": modal.__version__,
            "x-modal-client-type": "1",
            "x-modal-token-id": self.token["id"],
            "x-modal-token-secret": self.token["secret"],
        }
        self.jwt = ""
        self._channels: list[Any] = []
        self._sandbox_ids: list[str] = []
        self.task_id = self.sandbox_id = self.app_id = self.image_id = ""

    def _channel(self, url: str) -> Any:
        from grpclib.client import Channel

        from modal._utils.grpc_utils import custom_detail_codec

        parts = urlsplit(url)
        self._channels.append(Channel(parts.hostname, parts.port, status_details_codec=custom_detail_codec))
        return self._channels[-1]

    async def __aenter__(self) -> Self:
        from modal_proto import api_grpc, api_pb2

        self.client = api_grpc.ModalClientStub(self._channel(self.url))
        granted = await self.call("AuthTokenGet", api_pb2.AuthTokenGetRequest())
        self.headers["x-modal-auth-token"] = granted.token
        creation = api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING
        app = await self.call(
            "AppGetOrCreate", api_pb2.AppGetOrCreateRequest(app_name="app", object_creation_type=creation)
        )
        image = api_pb2.Image(dockerfile_commands=[f"FROM {BUSYBOX}"])
        made = await self.call(
            "ImageGetOrCreate",
            api_pb2.ImageGetOrCreateRequest(app_id=app.app_id, image=image, builder_version="2025.06"),
        )
        self.app_id, self.image_id = app.app_id, made.image_id
        await self.create()
        return self

    async def __aexit__(self, *_: object) -> None:
        from modal_proto import api_pb2

        for sandbox_id in self._sandbox_ids:
            await self.call("SandboxTerminateV2", api_pb2.SandboxTerminateRequest(sandbox_id=sandbox_id))
        for channel in self._channels:
            channel.close()

    async def create(self) -> str:
        """Create a sandbox, to which requests go from then on; return its id."""
        from modal_proto import api_pb2, task_command_router_grpc

        definition = api_pb2.Sandbox(image_id=self.image_id, entrypoint_args=["sleep", "1000"], timeout_secs=300)
        made = await self.call(
            "SandboxCreateV2", api_pb2.SandboxCreateV2Request(app_id=self.app_id, definition=definition)
        )
        self.sandbox_id, self.task_id = made.sandbox_id, made.task_id
        self.jwt = made.command_router_access.jwt
        self._sandbox_ids.append(made.sandbox_id)
        channel = self._channel(made.command_router_access.url)
        self.router = task_command_router_grpc.TaskCommandRouterStub(channel)
        return self.sandbox_id

    async def call(self, name: str, request: Any, **headers: str | None) -> Any:
        metadata = {key: value for key, value in {**self.headers, **headers}.items() if value is not None}
        return await getattr(self.client, name)(request, metadata=metadata)

    async def route(self, name: str, request: Any) -> Any:
        return await getattr(self.router, name)(request, metadata={"authorization": f"Bearer {self.jwt}"})

    async def stream(self, *requests: Any) -> None:
        """Write to a process's stdin by a stream."""
        method = self.router.TaskExecStdinWriteStream
        async with method.open(metadata={"authorization": f"Bearer {self.jwt}"}) as stream:
            for number, request in enumerate(requests, 1):
                await stream.send_message(request, end=number == len(requests))
            await stream.recv_message()


async def without_its_version(caller: Caller) -> None:
    from modal_proto import api_pb2

    await caller.call("AuthTokenGet", api_pb2.AuthTokenGetRequest(), **{"x-modal-client-version": None})


async def as_another_type(caller: Caller) -> None:
    from modal_proto import api_pb2

    await caller.call("AuthTokenGet", api_pb2.AuthTokenGetRequest(), **{"x-modal-client-type": "77"})


async def with_a_wrong_token(caller: Caller) -> None:
    from modal_proto import api_pb2

    await caller.call("AuthTokenGet", api_pb2.AuthTokenGetRequest(), **{"x-modal-token-secret": "as-wrong"})


async def an_app_that_is_not_there(caller: Caller) -> None:
    from modal_proto import api_pb2

    await caller.call("AppGetOrCreate", api_pb2.AppGetOrCreateRequest(app_name="none"))


async def an_image_that_is_not_there(caller: Caller) -> None:
    from modal_proto import api_pb2

    await caller.call("ImageFromId", api_pb2.ImageFromIdRequest(image_id="im-none"))


async def a_name_that_is_not_there(caller: Caller) -> None:
    from modal_proto import api_pb2

    request = api_pb2.SandboxGetFromNameRequest(sandbox_name="none", app_name="app")
    await caller.call("SandboxGetFromNameV2", request)


async def set_name(caller: Caller, name: str, sandbox_id: str = "") -> None:
    from modal_proto import api_pb2

    request = api_pb2.SandboxSetNameRequest(sandbox_id=sandbox_id or caller.sandbox_id, name=name)
    await caller.call("SandboxSetName", request)


async def an_empty_name(caller: Caller) -> None:
    await set_name(caller, "")


async def a_second_name(caller: Caller) -> None:
    await set_name(caller, "first")
    await set_name(caller, "first")  # again is no fault
    await set_name(caller, "second")


async def the_name_of_another(caller: Caller) -> None:
    one, other = await caller.create(), await caller.create()
    if one == other:  # its servicer has one sandbox, and takes any id
        one, other = "sb-one", "sb-other"
    await set_name(caller, "taken", one)
    await set_name(caller, "taken", other)


async def a_secret_that_is_there(caller: Caller) -> None:
    from modal_proto import api_pb2

    creation = api_pb2.OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS
    for _ in range(2):
        request = api_pb2.SecretGetOrCreateRequest(
            deployment_name="secret", object_creation_type=creation, env_dict={"A": "1"}
        )
        await caller.call("SecretGetOrCreate", request)


async def input_after_the_end(caller: Caller) -> None:
    from modal_proto import api_pb2

    definition = api_pb2.Sandbox(image_id=caller.image_id, entrypoint_args=["cat"], timeout_secs=300)
    made = await caller.call("SandboxCreate", api_pb2.SandboxCreateRequest(app_id=caller.app_id, definition=definition))
    await caller.call("SandboxTerminate", api_pb2.SandboxTerminateRequest(sandbox_id=made.sandbox_id))
    await caller.call("SandboxWait", api_pb2.SandboxWaitRequest(sandbox_id=made.sandbox_id, timeout=60))
    request = api_pb2.SandboxStdinWriteRequest(sandbox_id=made.sandbox_id, input=b"x", index=1)
    await caller.call("SandboxStdinWrite", request)


async def start(caller: Caller, **options: Any) -> None:
    from modal_proto import task_command_router_pb2 as router

    request = router.TaskExecStartRequest(
        task_id=caller.task_id, exec_id="exec", command_args=["cat"], stdout_config=router.TASK_EXEC_STDOUT_CONFIG_PIPE,
        **options,
    )  # fmt: skip
    await caller.route("TaskExecStart", request)


async def stderr_into_stdout(caller: Caller) -> None:
    from modal_proto import task_command_router_pb2 as router

    await start(caller, stderr_config=router.TASK_EXEC_STDERR_CONFIG_STDOUT)


async def a_stream_without_a_start(caller: Caller) -> None:
    from modal_proto import task_command_router_pb2 as router

    await caller.stream(router.TaskExecStdinWriteStreamRequest(data=b"x"))


async def streamed(caller: Caller, offset: int, *more: Any) -> None:
    from modal_proto import task_command_router_pb2 as router

    await start(caller)
    begin = router.TaskExecStdinWriteStreamStart(task_id=caller.task_id, exec_id="exec", offset=offset)
    await caller.stream(router.TaskExecStdinWriteStreamRequest(start=begin), *more)


async def a_stream_with_a_gap(caller: Caller) -> None:
    await streamed(caller, 7)


async def a_stream_of_nothing(caller: Caller) -> None:
    from modal_proto import task_command_router_pb2 as router

    await streamed(caller, 0, router.TaskExecStdinWriteStreamRequest())


Case = Callable[[Caller], Awaitable[None]]

CASES: dict[Case, str] = {
    without_its_version: "FAILED_PRECONDITION",
    as_another_type: "FAILED_PRECONDITION",
    with_a_wrong_token: "UNAUTHENTICATED",
    an_app_that_is_not_there: "NOT_FOUND",
    an_image_that_is_not_there: "NOT_FOUND",
    a_name_that_is_not_there: "NOT_FOUND",
    an_empty_name: "INVALID_ARGUMENT",
    a_second_name: "FAILED_PRECONDITION",
    the_name_of_another: "ALREADY_EXISTS",
    a_secret_that_is_there: "ALREADY_EXISTS",
    input_after_the_end: "FAILED_PRECONDITION",
    stderr_into_stdout: "INVALID_ARGUMENT",
    a_stream_without_a_start: "INVALID_ARGUMENT",
    a_stream_with_a_gap: "FAILED_PRECONDITION",
    a_stream_of_nothing: "INVALID_ARGUMENT",
}
"""Cases, and the statuses with which Modal's own mock servicer refuses them. That fails by an assertion in one, with a
status that says no more.
"""


def answer(service: dict[str, Any], case: Case) -> str:
    """Return the status with which a service answers."""
    from grpclib import GRPCError

    async def ask() -> str:
        async with Caller(service) as caller:
            try:
                await case(caller)
            except GRPCError as error:
                return error.status.name
            return "OK"

    return asyncio.run(ask())

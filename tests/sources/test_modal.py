"""Modal's own mock servicer beside our double: what it refuses of a sandbox's calls, the double refuses as well.

Its servicer has one sandbox that always runs, and starts processes on this machine, so a daemon cannot run on it.
It runs with the release of the client that it is of, and two packages of which Sandkeep needs none:

    pip install --no-deps --target $SANDKEEP_SOURCES/modal-packages modal==1.5.4 pyjwt pytest-asyncio
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Self
from urllib.parse import urlsplit

import pytest
from tests.sources.repositories import repository
from tests.support.kubernetes.images import BUSYBOX
from tests.support.modal.service import start_modal

pytestmark = [pytest.mark.needs(name) for name in ("source:modal-client", "root", "busybox", "modal")]

PACKAGES = "modal-packages"


@pytest.fixture(scope="module")
def theirs() -> Iterator[dict[str, Any]]:
    packages = repository(PACKAGES)
    if not packages.is_dir():
        pytest.skip(f"{packages} is not there: {__doc__.strip().splitlines()[-1].strip()}")
    argv = [sys.executable, "tests/sources/modal_servicer.py", repository("modal-client") / "py/test/conftest.py"]
    environment = {**os.environ, "PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.communicate(b"")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    from tests.support.kubernetes import images

    roots = images.unpack(tmp_path_factory.mktemp("images"))
    with start_modal(tmp_path_factory.mktemp("modal"), {BUSYBOX: roots[BUSYBOX]}) as service:
        yield {"url": service.url, "token": service.token}


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
        self.task_id = self.sandbox_id = self.app_id = self.image_id = ""

    def _channel(self, url: str) -> Any:
        from grpclib.client import Channel
        from modal._utils.grpc_utils import custom_detail_codec

        parts = urlsplit(url)
        return Channel(parts.hostname, parts.port, status_details_codec=custom_detail_codec)

    async def __aenter__(self) -> Self:
        from modal_proto import api_grpc, api_pb2

        self.control = self._channel(self.url)
        self.client = api_grpc.ModalClientStub(self.control)
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
        self.control.close()
        self.routed.close()

    async def create(self) -> str:
        """Create a sandbox, to which requests go from then on; return its id."""
        from modal_proto import api_pb2, task_command_router_grpc

        definition = api_pb2.Sandbox(image_id=self.image_id, entrypoint_args=["sleep", "1000"], timeout_secs=300)
        made = await self.call(
            "SandboxCreateV2", api_pb2.SandboxCreateV2Request(app_id=self.app_id, definition=definition)
        )
        self.sandbox_id, self.task_id = made.sandbox_id, made.task_id
        self.jwt = made.command_router_access.jwt
        self.routed = self._channel(made.command_router_access.url)
        self.router = task_command_router_grpc.TaskCommandRouterStub(self.routed)
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

CASES: list[Case] = [
    without_its_version, as_another_type, with_a_wrong_token, an_app_that_is_not_there, an_image_that_is_not_there,
    a_name_that_is_not_there, an_empty_name, a_second_name, the_name_of_another, a_secret_that_is_there,
    input_after_the_end, stderr_into_stdout, a_stream_without_a_start, a_stream_with_a_gap, a_stream_of_nothing,
]  # fmt: skip

BY_ASSERTION = {stderr_into_stdout}
"""Its servicer fails in these, with a status that says no more than that."""


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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_its_servicer_refuses_our_double_refuses(ours: dict[str, Any], theirs: dict[str, Any], case: Case) -> None:
    expected, found = answer(theirs, case), answer(ours, case)
    assert expected != "OK"
    if case in BY_ASSERTION:
        assert found != "OK"
    else:
        assert found == expected

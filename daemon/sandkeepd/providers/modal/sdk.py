"""Modal's SDK as the provider uses it. All coroutines here run in the SDK's loop, see `loop`, and raise its errors.

The SDK's public objects are made for blocking callers, each call a hand-over between threads. The classes beneath
them, with an underscore, are the same without that.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

if TYPE_CHECKING:
    from modal._image import _Image
    from modal.app import _App
    from modal.client import _Client
    from modal.container_process import _ContainerProcess
    from modal.sandbox._sandbox import _Sandbox

CLOSE_S: Final = 5.0

MOST_LISTED: Final = 100_000
"""Maximum number of sandboxes that a list is read of."""

MOST_LOG_BYTES: Final = 4096
"""The end of a failed build's log that its error shows."""

STREAM_MARK: Final = "SANDKEEP_STREAM"
"""The variable, in the environment of an exec, that tells which daemon began it."""

SNAPSHOT_S: Final = 300
"""Seconds that an image of a sandbox may take."""

ENDED_S: Final = 30
"""Seconds that the service may take to end a sandbox that was terminated."""


class Account(Struct, frozen=True, kw_only=True):
    """The way to Modal; what is empty is what the SDK's own settings say."""

    server_url: str = ""
    token_id: str = ""
    token_secret: str = ""
    environment: str = ""


class Seen(Struct, frozen=True, kw_only=True):
    """A sandbox in a list: its id, and the tags with which it was made."""

    modal_id: str
    tags: dict[str, str]


class Result(Struct, frozen=True, kw_only=True):
    """The end of a sandbox, as the service tells it: the name of a status, an exit code, and a sentence or nothing."""

    status: str
    exit_code: int
    message: str


class NotConfiguredError(Exception):
    """Raised when there is no token."""


class MalformedTokenError(Exception):
    """Raised for a token that cannot be sent: the SDK's own error quotes it."""


def config_path() -> str:
    """Return the path of the SDK's file of settings."""
    return os.environ.get("MODAL_CONFIG_PATH") or os.path.expanduser("~/.modal.toml")


class Sdk:
    """A client of the service, and one app of it. `connect` makes it."""

    def __init__(self, client: "_Client", app_name: str, environment: str) -> None:
        self._client = client
        self._app_name = app_name
        self.environment = environment
        self._app: _App | None = None
        self._workspace: str | None = None

    @classmethod
    async def connect(cls, account: Account, app_name: str) -> "Sdk":
        """Connect to the service. Raises NotConfiguredError, MalformedTokenError."""
        from modal.client import _Client
        from modal.config import config
        from modal_proto import api_pb2

        token_id = account.token_id or config.get("token_id")
        token_secret = account.token_secret or config.get("token_secret")
        if not token_id or not token_secret:
            raise NotConfiguredError
        if not all(part.isascii() and part.isprintable() for part in (token_id, token_secret)):
            raise MalformedTokenError
        server_url = account.server_url or config["server_url"]
        client = _Client(server_url, api_pb2.CLIENT_TYPE_CLIENT, (token_id, token_secret))
        try:
            await client._open()  # type: ignore[no-untyped-call]  # noqa: SLF001
        except BaseException:
            await client.close()
            raise
        return cls(client, app_name, account.environment or config.get("environment") or "")

    async def close(self) -> None:
        """Close the connections."""
        from modal._environments import ENVIRONMENT_CACHE

        await self._client.close()
        ENVIRONMENT_CACHE.clear()  # its entries are of this client

    async def hello(self) -> None:
        """Ask the service whether it is there, and accepts the token."""
        await self._client.hello()  # type: ignore[no-untyped-call]

    async def workspace(self) -> str:
        """Return the name of the token's workspace."""
        if self._workspace is None:
            from google.protobuf.empty_pb2 import Empty

            found = await self._client._stub.WorkspaceNameLookup(Empty())  # noqa: SLF001
            self._workspace = found.workspace_name or found.username
        return self._workspace

    async def app(self) -> "_App":
        """Return the app, which is made if it is missing."""
        if self._app is None:
            from modal.app import _App

            self._app = await _App.lookup(
                self._app_name, client=self._client, environment_name=self.environment or None, create_if_missing=True
            )
        return self._app

    def forget_app(self) -> None:
        """Look the app up again before the next use: somebody may have deleted it."""
        self._app = None

    # Images

    async def build_reference(self, reference: str, *, anew: bool) -> str:
        """Make an image of a container image in a registry; return its id."""
        from modal._image import _Image

        return await self._build(_Image.from_registry(reference, force_build=anew))

    async def build_dockerfile(
        self, dockerfile: str, context: str, ignore: Sequence[str], build_args: Mapping[str, str], *, anew: bool
    ) -> str:
        """Make an image by a Dockerfile; return its id. Both paths are the daemon's own."""
        from modal._image import _Image
        from modal.file_pattern_matcher import FilePatternMatcher

        wanted = _Image.from_dockerfile(
            dockerfile, context_dir=context, ignore=FilePatternMatcher(*ignore), build_args=dict(build_args),
            force_build=anew,
        )  # fmt: skip
        return await self._build(wanted)

    async def _build(self, image: "_Image") -> str:
        from modal.exception import ImageBuildError

        try:
            await image.build(await self.app())
        except ImageBuildError as error:
            log = ""
            with suppress(Exception):
                log = await asyncio.wait_for(self._log_of(error.image_id), CLOSE_S)
            if not log:
                raise
            raise ImageBuildError(log, error.image_id) from None
        return str(image.object_id)

    async def _log_of(self, image_id: str) -> str:
        """Return the end of the log of a build."""
        from modal_proto import api_pb2

        request = api_pb2.ImageJoinStreamingRequest(image_id=image_id, timeout=1, include_logs_for_finished=True)
        found = ""
        async for response in self._client._stub.ImageJoinStreaming.unary_stream(request):  # noqa: SLF001
            for entry in response.task_logs:
                found = (found + entry.data)[-MOST_LOG_BYTES:]
            if response.result.status:
                break
        return found

    async def delete_image(self, image_id: str) -> None:
        """Delete an image. Safe to repeat."""
        from modal.exception import NotFoundError
        from modal_proto import api_pb2

        with suppress(NotFoundError):  # as `modal.experimental.image_delete`
            await self._client._stub.ImageDelete(api_pb2.ImageDeleteRequest(image_id=image_id))  # noqa: SLF001

    async def snapshot(self, sandbox: "_Sandbox") -> str:
        """Make an image of all files of a sandbox; return its id. Modal keeps it for 30 days."""
        image = await sandbox.snapshot_filesystem(timeout=SNAPSHOT_S)
        return str(image.object_id)

    async def has_image(self, image_id: str) -> bool:
        """Return True if there is an image of that id."""
        from modal.exception import NotFoundError
        from modal_proto import api_pb2

        try:
            await self._client._stub.ImageFromId(api_pb2.ImageFromIdRequest(image_id=image_id))  # noqa: SLF001
        except NotFoundError:
            return False
        return True

    # Sandboxes

    async def create(self, argv: Sequence[str], image_id: str, **options: Any) -> "_Sandbox":
        """Make a sandbox of an image. See the SDK's `Sandbox.create` for the options."""
        from modal._image import _Image
        from modal.sandbox._sandbox import _Sandbox

        image = _Image._new_hydrated(image_id, self._client, None)  # noqa: SLF001 - asking for it takes a request
        return await _Sandbox.create(*argv, app=await self.app(), image=image, client=self._client, **options)

    async def attach(self, modal_id: str) -> "_Sandbox":
        """Return a sandbox that is known to run, without a request."""
        from modal.sandbox._sandbox import _Sandbox

        return _Sandbox._new_hydrated(modal_id, self._client, None)  # noqa: SLF001

    async def tunnel(self, sandbox: "_Sandbox", port: int, timeout_s: int) -> tuple[str, int]:
        """Return the public host and port that lead to a port of a sandbox, once it runs."""
        from modal.exception import InternalError

        tunnels = await sandbox.tunnels(timeout_s)
        if port not in tunnels:
            raise InternalError(f"there is no tunnel to port {port}")
        return tunnels[port].tcp_socket

    async def named(self, name: str) -> list[Seen]:
        """Return the running sandboxes of the app that have a name, of both of the SDK's versions."""
        from modal.exception import NotFoundError
        from modal.sandbox._impl_v1 import SandboxImplV1
        from modal.sandbox._impl_v2 import SandboxImplV2
        from modal.sandbox._sandbox import _Sandbox

        found = []
        for version in (SandboxImplV2, SandboxImplV1):
            with suppress(NotFoundError):
                sandbox = await _Sandbox._from_name(  # noqa: SLF001 - the public one depends on a setting
                    version, self._app_name, name, self.environment or None, self._client
                )
                found.append(Seen(modal_id=sandbox.object_id, tags=await sandbox.get_tags()))
        return found

    async def running(self, tags: Mapping[str, str]) -> list[Seen]:
        """Return the running sandboxes of the app with at least these tags, of both versions."""
        from modal.sandbox._common import tag_protos, tags_from_protos
        from modal.sandbox._impl_v2 import SandboxImplV2
        from modal_proto import api_pb2

        app_id = (await self.app()).app_id or ""
        found, before = dict[str, Seen](), 0.0
        while len(found) < MOST_LISTED:
            request = api_pb2.SandboxListRequest(app_id=app_id, before_timestamp=before, tags=tag_protos(dict(tags)))
            page = (await SandboxImplV2.list_page(self._client, request)).sandboxes
            earlier = len(found)
            found |= {each.id: Seen(modal_id=each.id, tags=tags_from_protos(each.tags)) for each in page}
            if not page or len(found) == earlier:
                break
            before = page[-1].created_at
        return list(found.values())

    async def result_of(self, modal_id: str) -> Result | None:
        """Return the end of a sandbox; None while it runs. Raises `NotFoundError`."""
        from modal.sandbox._sandbox import _Sandbox
        from modal_proto import api_pb2

        sandbox = await _Sandbox.from_id(modal_id, self._client)
        result = sandbox._impl.result  # noqa: SLF001 - the public exit code has no reason
        if result is None or not result.status:
            return None
        status = api_pb2.GenericResult.GenericStatus.Name(result.status).removeprefix("GENERIC_STATUS_")
        return Result(status=status, exit_code=result.exitcode, message=result.exception)

    async def terminate(self, modal_id: str) -> None:
        """End a sandbox, and wait until it has ended. Safe to repeat, and for one that is gone."""
        from modal.exception import NotFoundError

        sandbox = await self.attach(modal_id)
        with suppress(NotFoundError):
            await sandbox.terminate()
            await asyncio.wait_for(sandbox.wait(raise_on_termination=False), ENDED_S)


async def start(
    sandbox: "_Sandbox", command: Sequence[str], size: tuple[int, int] | None, *, stderr: bool, mark: str
) -> "_ContainerProcess[bytes]":
    """Start a command in a sandbox, on a terminal of that size, if any. `mark` is in its environment."""
    from modal.stream_type import StreamType
    from modal_proto import api_pb2

    terminal = None
    if size is not None:
        terminal = api_pb2.PTYInfo(
            enabled=True, winsz_rows=size[0], winsz_cols=size[1], env_term="xterm-256color",
            pty_type=api_pb2.PTYInfo.PTY_TYPE_SHELL, no_terminate_on_idle_stdin=True,
        )  # fmt: skip
    errors = StreamType.PIPE if stderr and size is None else StreamType.DEVNULL
    process: Any = await sandbox._exec(  # noqa: SLF001 - the public one takes the size of the daemon's own terminal
        *command, pty_info=terminal, text=False, stderr=errors, env={STREAM_MARK: mark}
    )
    return process  # type: ignore[no-any-return]

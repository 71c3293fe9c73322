"""A sandbox at Modal in which a keeper serves: its handle, its first command, and how commands run in it."""

import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from sandkeep.errors import SandkeepError
from sandkeepd.host.hostile_files import HostileTree
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers.common.inside import INSIDE, WORKSPACE
from sandkeepd.providers.common.relayed_instance import LONGEST_PAUSE_S, RelayedInstance
from sandkeepd.providers.modal.exec import ModalStream, open_exec
from sandkeepd.providers.modal.sdk import STREAM_MARK
from sandkeepd.providers.modal.service import Service

if TYPE_CHECKING:
    from modal.sandbox._sandbox import _Sandbox

DIRECTORY: Final = f"{INSIDE}/io"
PROGRAM: Final = f"{INSIDE}/keeper"
"""The keeper's directory and its program. A snapshot of all files has both, and is rid of them as it begins."""

_FIRST: Final = """
umask 022
rm -rf "$1" && { [ -z "$4" ] || rm -rf "$2"; } && mkdir -p "$1" "$2" && : >"$1/$5" &&
printf %s "$3" | base64 -d >"$1/keeper.new" && chmod 755 "$1/keeper.new" &&
mv "$1/keeper.new" "$1/keeper" && cd "$2" && exec "$1/keeper" -p "$1/io"
"""
_BEHIND: Final = """
tries=0 mark=$1
shift
while ! { [ -e "$mark" ] && [ -p "$0/in/.control" ]; } && [ "$tries" -lt 500 ]; do
    tries=$((tries + 1))
    sleep 0.02 2>/dev/null || sleep 1
done
exec "$@"
"""
_END_EARLIER: Final = """
for each in /proc/[0-9]*; do
    case $(tr '\\0' ' ' <"$each/cmdline" 2>&-) in "$0 -x "*) ;; *) continue;; esac
    case $(tr '\\0' ' ' <"$each/environ" 2>&-) in *"$1"*) ;; *) kill "${each#/proc/}";; esac
done 2>&-
"""


class Handle(Struct, frozen=True, kw_only=True):
    """The running sandbox. Its id means something only in the workspace, and to a token of it.

    `secrets` are the names of the shared ones; `name` is for references to the sandbox. `ssh_address` is the public
    ``HOST:PORT`` that leads to its SSH server.
    """

    modal_sandbox_id: str
    workspace_name: str
    app: str
    environment: str = ""
    workspace: str = WORKSPACE
    secrets: list[str] = field(default_factory=list)
    name: str = ""
    ssh_address: str | None = None


def first_argv(program: bytes, sandbox_id: str, *, empties: bool = False) -> list[str]:
    """Return the first command of a sandbox, with the keeper in it: they end together. It holds no secret.

    With `empties` the workspace begins without the image's files. A file named by the sandbox tells its directory from
    that of a snapshot with which it began.
    """
    keeper = base64.b64encode(program).decode()
    return ["sh", "-c", _FIRST, "sh", INSIDE, WORKSPACE, keeper, "empty" if empties else "", sandbox_id]


class ModalRemote:
    """Runs commands in a sandbox. See `Remote`."""

    def __init__(self, service: Service, sandbox: "_Sandbox", modal_id: str, sandbox_id: str) -> None:
        self._sandbox_id = sandbox_id
        self._service = service
        self.sandbox = sandbox
        self.name = f"sandbox {modal_id} at Modal"

    def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bool = True,
        stderr: bool = True,
        size: tuple[int, int] | None = None,
    ) -> AbstractAsyncContextManager[ModalStream]:
        """See `Remote.exec`."""
        return open_exec(self._service, self.sandbox, command, stderr=stderr, size=size)

    @asynccontextmanager
    async def channel(self, command: Sequence[str]) -> AsyncIterator[ModalStream]:
        """See `Remote.channel`. The command starts once the keeper serves, which takes a moment in a new sandbox."""
        argv = ["sh", "-c", _BEHIND, DIRECTORY, f"{INSIDE}/{self._sandbox_id}", *command]
        async with AsyncExitStack() as stack:
            async with self._service.opening:
                stream = await stack.enter_async_context(open_exec(self._service, self.sandbox, argv))
            yield stream

    async def recovered(self) -> None:
        """See `Remote.recovered`."""
        await self._service.recovered()

    def longest_pause_s(self) -> float:
        """See `Remote.longest_pause_s`."""
        return LONGEST_PAUSE_S

    async def end_earlier(self) -> None:
        """End helper commands of an earlier daemon: nothing at Modal ends an exec when its client has gone."""
        ours = f"{STREAM_MARK}={self._service.mark}"
        async with self.exec(["sh", "-c", _END_EARLIER, PROGRAM, ours], stderr=False) as stream:
            await stream.wait()

    def release(self) -> None:
        """Close the connection to the sandbox's machine."""
        self._service.loop.spawn(self.sandbox.detach)


class ModalInstance(RelayedInstance):
    """A sandbox at Modal. See `RelayedInstance`."""

    def __init__(
        self, sandbox_id: str, directory: HostileTree, watcher: Watcher, *, remote: ModalRemote, place: Handle,
        **more: Any,
    ) -> None:  # fmt: skip
        self.place = place
        self.at_modal = remote
        super().__init__(
            sandbox_id, directory, watcher, remote=remote, program=PROGRAM, directory_there=DIRECTORY, **more
        )

    def sweep(self) -> None:
        """See `RelayedInstance.sweep`. A question is a call: a sandbox in which nothing runs is asked nothing."""
        if not self.is_idle or self.relay.first_unconfirmed is not None:
            super().sweep()

    async def _end_earlier(self) -> None:
        with suppress(SandkeepError):
            await self.at_modal.end_earlier()
        await super()._end_earlier()

    async def aclose(self) -> None:
        was_closed = self.is_closed
        await super().aclose()
        if not was_closed:
            self.at_modal.release()

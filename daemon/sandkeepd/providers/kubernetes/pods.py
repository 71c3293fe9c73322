"""A pod in which a keeper serves: where it is, and how commands run beside it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import trio
from msgspec import Struct, field

from sandkeep.errors import ProviderError
from sandkeepd.providers.kubernetes.cluster import Cluster
from sandkeepd.providers.kubernetes.exec import ExecStream, open_exec
from sandkeepd.providers.kubernetes.objects import Made

COPY_S: Final = 60.0
"""Seconds that the copying of the keeper may take."""

TURN_S: Final = 2.0
"""Seconds after which a channel that is being opened is not counted any more."""

LONGEST_PAUSE_S: Final = 1.0
EACH_S: Final = 0.02
"""Seconds between attempts to open the channel of a pod whose node does not answer, and for each such pod."""

_COPY: Final = """
umask 022
for place in /tmp /var/tmp /run "$PWD"; do
    place=$place/.sandkeep
    mkdir -p "$place" 2>/dev/null && [ -w "$place" ] && break
done
head -c "$0" >"$place/keeper.new" && chmod 755 "$place/keeper.new" && mv "$place/keeper.new" "$place/keeper" || exit
"$place/keeper" -d "$place/io" && echo "$place" && pwd
"""


class Handle(Struct, frozen=True, kw_only=True):
    """The running sandbox: its object, its pod, and the keeper in that. `secrets` are the names of the shared ones."""

    namespace: str
    made: Made
    pod: str
    pod_uid: str
    program: str
    directory: str
    workspace: str
    secrets: list[str] = field(default_factory=list)
    name: str = ""
    """The pod with its namespace, for references to the sandbox."""
    cluster: str = ""
    """The address of the API server, and the namespace; empty in handles of earlier versions."""
    container_id: str = ""
    """The container in which the keeper runs: one that is started again has none. Empty in earlier handles."""


class Pod:
    """Runs commands in a container of a pod, which is named: others may have put more into it."""

    def __init__(self, cluster: Cluster, namespace: str, name: str, container: str | None = None) -> None:
        self._cluster = cluster
        self.namespace = namespace
        self.name = name
        self._container = container

    @asynccontextmanager
    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bool = True,
        stderr: bool = True,
        size: tuple[int, int] | None = None,
    ) -> AsyncIterator[ExecStream]:
        """See `Remote.exec` and `open_exec`."""
        api = await self._cluster.api()
        async with open_exec(
            api.configuration, self.namespace, self.name, command, container=self._container, stdin=stdin,
            stderr=stderr, tty=size is not None,
        ) as stream:  # fmt: skip
            if size is not None:
                await stream.resize(*size)
            yield stream

    @asynccontextmanager
    async def channel(self, command: Sequence[str]) -> AsyncIterator[ExecStream]:
        """Run a command as `exec` does, in its turn: few of all pods' channels are opened at a time."""
        broken = self._cluster.broken
        async with AsyncExitStack() as stack:
            async with _turn(self._cluster.opening):
                broken.add(self)
                stream = await stack.enter_async_context(self.exec(command))
                stream.probe()
                broken.discard(self)
            yield stream

    async def recovered(self) -> None:
        """See `Remote.recovered`."""
        await self._cluster.recovered()

    def longest_pause_s(self) -> float:
        """See `Remote.longest_pause_s`. The more pods cannot be reached, the less often each is tried."""
        return max(LONGEST_PAUSE_S, EACH_S * len(self._cluster.broken))

    async def copy_keeper(self, program: bytes) -> tuple[str, str]:
        """Put the keeper into a container that runs already, and start it there; return its directory, and the one in
        which the container's programs start.

        Raises `provider_unavailable` where the container has no shell, or no directory that it can write to.
        """
        output = b""
        with trio.move_on_after(COPY_S):
            async with self.exec(["sh", "-c", _COPY, str(len(program))]) as stream:
                await stream.send_all(program)
                while data := await stream.receive_some():
                    output += data[: 4096 - len(output)]
                place, _, workspace = output.decode(errors="surrogateescape").rstrip("\n").partition("\n")
                if await stream.wait() == 0 and place.startswith("/") and workspace.startswith("/"):
                    return place, workspace
                raise _not_copied(stream.stderr)
        raise _not_copied(b"it took too long")


@asynccontextmanager
async def _turn(limiter: trio.CapacityLimiter) -> AsyncIterator[None]:
    """Count a block as under way, for `TURN_S` at most: those of a node that hangs must not hold up all others."""
    turn, scope = object(), trio.CancelScope()

    async def give_up() -> None:
        with scope:
            await trio.sleep(TURN_S)
        limiter.release_on_behalf_of(turn)

    await limiter.acquire_on_behalf_of(turn)
    trio.lowlevel.spawn_system_task(give_up)
    try:
        yield
    finally:
        scope.cancel()


def _not_copied(stderr: bytes) -> ProviderError:
    why = " ".join(stderr.decode(errors="replace").split())[:300] or "it has no shell"
    message = (
        f"cannot install the keeper in the template's container: {why}: it needs sh, and a /tmp that can be written"
    )
    return ProviderError("provider_unavailable", message)

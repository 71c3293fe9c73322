"""The daemon's reports about itself."""

import os
from collections import Counter
from collections.abc import Container
from itertools import chain

import trio

from sandkeep.model import (
    Capabilities,
    Capability,
    ClientLimits,
    DaemonStatus,
    Empty,
    Pong,
    ProviderCapabilities,
    Welcome,
)
from sandkeep.protocol import jsonrpc
from sandkeep.protocol.clock import now_us, rfc3339
from sandkeep.protocol.lines import MAX_LINE_BYTES
from sandkeep.protocol.methods import Hello, NoParams, Shutdown
from sandkeep.settings.daemon import CLIENT_MEMORY
from sandkeep.system import extras
from sandkeep.version import VERSION
from sandkeepd.api import server
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.serving import limits
from sandkeepd.stream import server as stream_server


class Software:
    """The handlers of ``daemon.*``."""

    def __init__(self, core: Core, state_dir: str, socket: str, stopping: trio.Event) -> None:
        self.core = core
        self.state_dir = state_dir
        self.socket = socket
        self.server: server.Server | None = None
        self.stream: list[str] = []
        self.http: list[str] = []
        self.serving = trio.Event()
        """Set when requests are answered: then the rest of the start begins."""
        self.adopting: Container[str] = ()
        self._stopping = stopping
        self._started_us = now_us()
        self._pong = Pong(version=VERSION, pid=os.getpid())

    def hello(self, request: Request[Hello]) -> Welcome:
        """Return the identity of the daemon."""
        return Welcome(version=VERSION, log_id=self.core.log.log_id, limits=_limits_of(request.peer.uid))

    def ping(self, request: Request[NoParams]) -> Pong:
        """See that the daemon answers."""
        return self._pong

    def status(self, request: Request[NoParams]) -> DaemonStatus:
        """Return the daemon's status, counting objects that the caller may see."""
        core = self.core
        sandboxes = [s for s in core.state.sandboxes.values() if request.sees(s.owner)]
        images = [i for i in core.state.images.values() if request.sees(i.owner)]
        problems = self._problems()
        return DaemonStatus(
            version=VERSION,
            pid=os.getpid(),
            uid=os.geteuid(),
            state_dir=self.state_dir,
            socket=self.socket,
            log_id=core.log.log_id,
            position=core.log.head,
            started_at=rfc3339(self._started_us),
            healthy=not problems,
            problems=problems,
            owner=request.owner,
            admin=request.admin,
            sandboxes=dict(Counter(s.status for s in sandboxes)),
            images=dict(Counter(i.status for i in images)),
            running_processes=sum(len(s.active) for s in sandboxes),
            connections=self.server.statistics().connections if self.server is not None else 0,
            resident_bytes=resident_bytes(),
            stream=self.stream,
            http=self.http,
            not_adopted=sum(s.sandbox_id in self.adopting for s in sandboxes),
            foreign=list(dict.fromkeys(chain.from_iterable(core.foreign.values()))) if request.admin else [],
        )

    def summary(self) -> str:
        """Return a one-line status for administrators."""
        running = [s for s in self.core.state.sandboxes.values() if s.status == "running"]
        processes = sum(len(s.active) for s in running)
        figures = f"{_counted(len(running), 'sandbox', 'es')}, {_counted(processes, 'process', 'es')} running"
        return "; ".join([figures, *self._problems()])

    def _problems(self) -> list[str]:
        core = self.core
        return [problem for problem in (*core.problems, core.log.failure, core.files.failure) if problem]

    async def capabilities(self, request: Request[NoParams]) -> Capabilities:
        """Return the capabilities of this machine, asking all providers concurrently."""
        found: dict[str, ProviderCapabilities] = {}

        async def ask(name: str) -> None:
            found[name] = await self.core.providers[name].capabilities()

        async with trio.open_nursery() as nursery:
            for name in self.core.providers:
                nursery.start_soon(ask, name)
        buckets = {extra: _bucket_capability(extra) for extra in ("gcs", "s3")}
        return Capabilities(providers=[found[name] for name in sorted(found)], buckets=buckets)

    async def shutdown(self, request: Request[Shutdown]) -> Empty:
        """Stop the daemon, once this call is answered; sandboxes and processes go on."""
        self.core.nursery.start_soon(self._stop_soon)
        await trio.lowlevel.checkpoint()
        return Empty()

    async def _stop_soon(self) -> None:
        await trio.sleep(0.05)  # lets the answer out
        self._stopping.set()


def _bucket_capability(extra: str) -> Capability:
    """Return whether archives and locks can be in buckets of a service, by what is installed."""
    absent = extras.missing(extra, f"an archive in {extra.upper()}")
    return Capability(works=absent is None, why=absent.message if absent else None)


def _limits_of(uid: int) -> ClientLimits:
    return ClientLimits(
        message_bytes=MAX_LINE_BYTES,
        batch=jsonrpc.MAX_BATCH,
        calls=limits.MAX_CALLS,
        connections=server.MAX_CONNECTIONS if uid else None,
        websockets=stream_server.MAX_CONNECTIONS if uid else None,
        held_bytes=CLIENT_MEMORY(),
        stalled_s=server.SEND_DEADLINE_S,
    )


def _counted(number: int, noun: str, plural: str) -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"


def resident_bytes() -> int:
    """Return the daemon's resident memory in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

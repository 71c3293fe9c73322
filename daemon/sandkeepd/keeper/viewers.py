"""Terminals of running processes: their viewers, and typed input."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import trio

from sandkeep.errors import StateError
from sandkeep.ids import new_id
from sandkeepd.contract.instance import Instance
from sandkeepd.contract.processes import Launch
from sandkeepd.host.processes import Identity, identify
from sandkeepd.keeper import journal, terminal
from sandkeepd.keeper.channel import Channel
from sandkeepd.keeper.pty import open_peer, open_pty
from sandkeepd.keeper.shared_directory import SharedDirectory


class Viewers:
    """The terminals of one sandbox, whose first process `handle` names. Viewers are processes without a trace."""

    def __init__(
        self, instance: Instance, channel: Channel, shared: SharedDirectory, handle: Mapping[str, Any]
    ) -> None:
        self._instance = instance
        self._channel = channel
        self._shared = shared
        self._handle = handle
        self._attaching: set[str] = set()
        self._peers: dict[str, int] = {}
        """The other sides of the terminals of viewers, until these have ended."""
        self._earlier: frozenset[str] = frozenset()

    async def attach(self, process_id: str, *, rows: int, cols: int, term: str, read_only: bool) -> int:
        """See `Instance.open_terminal`."""
        if self._channel.get_process(process_id).exit:
            raise StateError("not_ready", f"process {process_id} has ended", process_id=process_id)
        fd, number = self._open_pty(rows, cols)
        viewer = new_id(terminal.VIEWER)
        self._attaching.add(viewer)
        journals = self._shared.journals
        try:
            self._peers[viewer] = open_peer(fd)
            command = terminal.viewer_argv(self._shared.sockets, process_id, number, term, read_only=read_only)
            await self._instance.launch(Launch(process_id=viewer, command=command, working_dir=journals))
            if not await terminal.wait_shown(fd, self._channel.processes[viewer].ended):
                raise terminal.not_attached(self._instance.read(viewer, "stderr", 0, 500).data)
        except BaseException:
            trio.lowlevel.notify_closing(fd)
            os.close(fd)  # which ends the viewer
            raise
        finally:
            self._attaching.discard(viewer)
            if viewer not in self._channel.processes or self._instance.exit_of(viewer):
                self._remove(viewer)
        return fd

    def _open_pty(self, rows: int, cols: int) -> tuple[int, int]:
        """A new terminal in the sandbox. Its first process is looked at last, as its pid may become another's."""
        first = msgspec.convert(self._handle["first"], Identity)
        fd, number = open_pty(f"/proc/{first.pid}/root", self._shared.input_owner, rows, cols)
        if identify(first.pid) == first:
            return fd, number
        os.close(fd)
        raise StateError("not_ready", f"sandbox {self._instance.sandbox_id} has ended: create another")

    def on_answer(self, answer: journal.Answer) -> None:
        """Remove the files of a viewer that has ended, of this daemon or an earlier one."""
        name = answer.process_id
        if terminal.is_viewer(name) and answer.is_final and (name in self._channel.processes or name in self._earlier):
            self._remove(name)

    def remember_earlier(self) -> None:
        """Take note of the viewers that came to an earlier daemon."""
        self._earlier = frozenset(filter(terminal.is_viewer, self._shared.names()))

    def remove_all(self) -> None:
        """The sandbox is gone, and all viewers with it."""
        self.close()
        with suppress(OSError):
            for viewer in filter(terminal.is_viewer, self._shared.names()):
                self._remove(viewer)

    def _remove(self, viewer: str) -> None:
        if viewer not in self._attaching:
            self._close_peer(viewer)
            self._channel.processes.pop(viewer, None)
            self._shared.remove_helper(viewer)

    def _close_peer(self, viewer: str) -> None:
        if (peer := self._peers.pop(viewer, None)) is not None:
            os.close(peer)

    def close(self) -> None:
        """Let go of the terminals of viewers, which go on."""
        for viewer in list(self._peers):
            self._close_peer(viewer)

    def kill_stuck_tmux(self, process_id: str) -> None:
        """Kill the tmux of a killed process, if it has one: a hanging tmux would hide the process's end."""
        self._tell(f"{process_id}.told", terminal.STUCK)

    def _tell(self, fifo: str, line: bytes) -> None:
        """Write a line into a FIFO of the sandbox, if there is one and it is not full. Does not wait."""
        fd = self._shared.open_fifo(fifo)
        if fd is not None:
            with suppress(OSError):
                os.write(fd, line)
            os.close(fd)

    async def resize(self, process_id: str, rows: int, cols: int) -> None:
        """See `Instance.resize_terminal`."""
        await self._ask_tmux(terminal.resize_argv(self._shared.sockets, process_id, rows, cols))

    async def type_into(self, process_id: str, data: bytes, *, eof: bool) -> int:
        """See `Instance.type_into`."""
        async with self._channel.get_process(process_id).input_lock:
            if typed := terminal.with_eof(data, eof=eof):
                await self._ask_tmux(
                    terminal.paste_argv(self._shared.sockets, process_id, new_id(terminal.VIEWER)), typed
                )
        return len(data)

    async def _ask_tmux(self, command: Sequence[str], stdin: bytes | None = None) -> None:
        try:
            with trio.fail_after(terminal.DEADLINE_S):
                code, _, stderr = await self._instance.run_command(command, stdin, working_dir=self._shared.journals)
        except trio.TooSlowError:
            raise terminal.no_answer() from None
        if code != 0:
            raise terminal.refused(stderr)

"""Freezing of a control group, for two reasons: during a read, or suspended until it is resumed.

Both may overlap in any order; neither undoes the other, and the group is thawed when both have ended. While it is
frozen only for a read, there is a file, its *mark*. From that the next daemon knows that the group has to be thawed: a
suspended group has no mark, and stays frozen.

Everything here blocks, but for a reader's `Turn`.
"""

import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import trio

from sandkeep.errors import DaemonError, ProviderError, StateError
from sandkeep_store.threads import check_cancelled
from sandkeepd.host.cgroups.placement import read, write

DEADLINE_S: Final = 10.0
"""Seconds a process may take to freeze: it may wait in the kernel for a disk."""

STUCK: Final = "a process in the sandbox does not freeze: it may be waiting for a disk; try again later"
_LOOK_EVERY_S: Final = 0.0002


class Switch(NamedTuple):
    """The file that freezes a group, and the values to write."""

    file: str
    freeze: str
    thaw: str


def switch_of(groups: Mapping[str, str]) -> Switch | None:
    """Return the freezer of the groups: version 1 has a hierarchy for it, version 2 a file in every group."""
    first = f"{groups['freezer']}/freezer.state" if "freezer" in groups else ""
    if first and os.access(first, os.W_OK):
        return Switch(first, "FROZEN", "THAWED")
    for directory in groups.values():
        second = f"{directory}/cgroup.freeze"
        if os.access(second, os.W_OK):
            return Switch(second, "1", "0")
    return None


def thaw(groups: Mapping[str, str]) -> None:
    """Thaw the groups, frozen for any reason. Safe to repeat, and for groups that are not there."""
    switch = switch_of(groups)
    if switch is not None:
        with suppress(OSError):
            write(switch.file, switch.thaw)


def end(groups: Mapping[str, str]) -> None:
    """Thaw the groups of a sandbox that is being killed, and let nobody freeze them any more: a killed process that is
    frozen does not end. Safe to repeat. The next sandbox of the same groups begins with `recover`.
    """
    state = freezer_state_of(groups)
    if state is not None:
        state.is_over = True  # first: whoever freezes looks again afterwards
        thaw(groups)


def are_frozen(groups: Mapping[str, str]) -> bool:
    """Return True if the groups are frozen, for any reason."""
    switch = switch_of(groups)
    return switch is not None and _is_frozen(switch)


class Turn:
    """The turn to read a sandbox, of one reader at a time, first come first served. It is waited for without a thread,
    so that readers of one sandbox delay nobody else; a wait can be cancelled.
    """

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(1)

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[Callable[[], None]]:
        """Hold the turn for the length of a block, or until the function that it yields is called, from any thread."""
        reader, is_over = object(), False
        await self._limiter.acquire_on_behalf_of(reader)
        token = trio.lowlevel.current_trio_token()

        def end() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self._limiter.release_on_behalf_of(reader)

        try:
            yield lambda: token.run_sync_soon(end)
        finally:
            end()


class FreezerState:
    """The shared state of all users of one group's freezer. A reader has its `turn` for the time of its read."""

    def __init__(self) -> None:
        self.turn = Turn()
        self.changing = threading.Lock()
        """Held while it is frozen or thawed, or while that changes hands: for `DEADLINE_S` at most, by the one reader,
        whose thread takes it, or by the one order that suspends or resumes.
        """
        self.is_being_read = False
        self.is_over = False
        """True once the sandbox is being killed. See `end`."""
        self.is_frozen_for_read = False
        """True while it is frozen only for a read."""


_states: Final[WeakValueDictionary[str, FreezerState]] = WeakValueDictionary()
_states_lock: Final = threading.Lock()


def freezer_state(name: str) -> FreezerState:
    """Return the one state of that name."""
    with _states_lock:
        return _states.setdefault(name, FreezerState())


def freezer_state_of(groups: Mapping[str, str]) -> FreezerState | None:
    """Return the shared freezer state of a sandbox's groups; None without a freezer."""
    switch = switch_of(groups)
    return freezer_state(switch.file) if switch is not None else None


class Freezer:
    """Freezes a sandbox's group by its `switch`. `mark` is the path of its mark."""

    def __init__(self, switch: Switch, mark: str) -> None:
        self._switch = switch
        self._mark = mark
        self.state = freezer_state(switch.file)

    # For those who read

    def begin_reading(self) -> None:
        """Freeze for a read, unless frozen already. Raises `provider_unavailable` and `storage_unavailable`."""
        with self.state.changing:
            if not _is_frozen(self._switch):
                self._write_mark()
                self._freeze()
            self.state.is_being_read = True

    def end_reading(self) -> bool:
        """Thaw after a read, unless suspended. Return True if it was frozen all the time."""
        with self.state.changing:
            self.state.is_being_read = False
            stood = self.state.is_frozen_for_read or _is_frozen(self._switch)
            if self.state.is_frozen_for_read:
                self._thaw()
        return stood

    # For those who suspend

    def suspend(self) -> None:
        """Freeze until resumed, also during a read. Raises `provider_unavailable`."""
        with self.state.changing:
            self._remove_mark()
            self._freeze()

    def resume(self) -> None:
        """Thaw, or let the present read thaw at its end. Raises `provider_unavailable`, and `storage_unavailable`."""
        with self.state.changing:
            if self.state.is_being_read and _is_frozen(self._switch):
                self._write_mark()
                return
            self._thaw()
            wait_until(
                lambda: not _is_frozen(self._switch), "a parent of the sandbox's control group is frozen: thaw it"
            )

    def is_suspended(self) -> bool | None:
        """Return True if it is frozen other than for a read; None while that is changing. Does not wait."""
        if not self.state.changing.acquire(blocking=False):
            return None
        try:
            return not self.state.is_frozen_for_read and _is_frozen(self._switch)
        finally:
            self.state.changing.release()

    # The group and its mark

    def _freeze(self) -> None:
        try:
            wait_until(lambda: self.state.is_over or self._stands_still())
            if self.state.is_over:
                raise StateError("not_ready", "the sandbox is being ended")
        except OSError as error:
            self._thaw()
            message = f"the sandbox's control group cannot be frozen: {error.strerror}: check that the sandbox runs"
            raise ProviderError("provider_unavailable", message) from None
        except BaseException:
            self._thaw()
            raise

    def _stands_still(self) -> bool:
        """Ask the kernel to freeze the group, and return True if it has. Version 1 loses the request for a process that
        forks in that moment, whose group then freezes for ever: only asked again, it asks each process again.
        """
        write(self._switch.file, self._switch.freeze)
        return _is_frozen(self._switch)

    def _thaw(self) -> None:
        with suppress(OSError):  # the group of a sandbox that has ended is gone
            write(self._switch.file, self._switch.thaw)
        self._remove_mark()

    def _write_mark(self) -> None:
        try:
            os.close(os.open(self._mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        except OSError as error:
            message = f"the state directory cannot be written: {error.strerror}: {self._mark}: make room there"
            raise DaemonError("storage_unavailable", message) from None
        self.state.is_frozen_for_read = True

    def _remove_mark(self) -> None:
        self.state.is_frozen_for_read = False
        with suppress(FileNotFoundError):
            os.unlink(self._mark)


def freezer_of(groups: Mapping[str, str], mark: str) -> Freezer | None:
    """Return the freezer of the groups; None if there is none."""
    switch = switch_of(groups)
    return Freezer(switch, mark) if switch is not None else None


def recover(groups: Mapping[str, str], mark: str) -> None:
    """Thaw the groups if an earlier daemon, and its guard, died during a read. Safe to repeat."""
    state = freezer_state_of(groups)
    if state is not None:
        state.is_over = False
    if os.path.exists(mark):
        thaw(groups)
        with suppress(FileNotFoundError):
            os.unlink(mark)


def wait_until(done: Callable[[], bool], otherwise: str = STUCK) -> None:
    """Wait until something about processes is so. Raises `provider_unavailable`, with a sentence, if it takes long."""
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        if time.monotonic() > deadline:
            raise ProviderError("provider_unavailable", otherwise)
        check_cancelled()
        time.sleep(_LOOK_EVERY_S)


def _is_frozen(switch: Switch) -> bool:
    if switch.file.endswith("freezer.state"):
        return read(switch.file).strip() == "FROZEN"
    return "frozen 1" in read(f"{os.path.dirname(switch.file)}/cgroup.events").splitlines()

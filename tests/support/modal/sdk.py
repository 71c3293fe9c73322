"""The real SDK, set up for a service of ours in this process, without anything of it that stays."""

import asyncio
import contextlib
import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.expect import until
from tests.support.modal.service import Modal


@contextlib.contextmanager
def open_sdk(service: Modal, **settings: str) -> Iterator[Any]:
    """Yield the module `modal`. `settings` are further variables of its environment.

    The SDK has a thread with an event loop, and connections that it closes when objects are collected. At the end they
    are closed, and the descriptors of this process are as before.
    """
    before = open_sockets()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**service.environment, **settings}.items():
            patch.setenv(name, value)
        import modal

        try:
            yield modal
        finally:
            _close()
    until(lambda: open_sockets() <= before, seen=lambda: open_sockets() - before)


def _close() -> None:
    from modal import _environments
    from modal._utils.async_utils import synchronizer

    _environments.ENVIRONMENT_CACHE.clear()  # its entries belong to one service
    loop = synchronizer._get_loop(start=False)
    if loop is None:
        return
    asyncio.run_coroutine_threadsafe(_close_connections(), loop).result()
    synchronizer._close_loop()  # cancels its tasks, and with them closes its clients


async def _close_connections() -> None:
    """Close the channels of this event loop: the SDK would leave them to the garbage collector."""
    from grpclib.client import Channel

    loop = asyncio.get_running_loop()
    for found in gc.get_objects():
        if issubclass(type(found), Channel) and found._loop is loop:
            found.close()
    await asyncio.sleep(0)


def open_sockets() -> set[tuple[str, str]]:
    """Return the sockets and event queues of this process, by their numbers."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{number}")
            if target.startswith(("socket:", "anon_inode:")):
                found.add((number, target))
    return found

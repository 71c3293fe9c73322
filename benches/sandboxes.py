"""What the benches of the local provider share: a provider for a while, and images that cost no writing."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from statistics import median

from sandkeep.ids import IMAGE, SANDBOX, new_id
from sandkeep.model import SandboxSpec
from sandkeep.settings.daemon import UID_BASE
from sandkeepd.contract.caller import Caller
from sandkeepd.host.processes import TOOL_ENV
from sandkeepd.providers.local.provider import LocalInstance, LocalProvider, open_local

BARE = [
    "bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib",
    "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
]  # fmt: skip
"""The floor of everything that isolates: bubblewrap with nothing of ours."""


@asynccontextmanager
async def provider() -> AsyncIterator[LocalProvider]:
    state_dir = tempfile.mkdtemp(prefix="sandkeep-bench-")
    try:
        async with open_local(state_dir, uid_base=UID_BASE(), disk_limit=100 << 30) as local:
            await local.abilities()
            yield local
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)


def image(local: LocalProvider, files: int, size_bytes: int) -> str:
    """An image of so many files and bytes, as an import leaves it. Its blocks are reserved, not written."""
    image_id = new_id(IMAGE)
    root = f"{local.layout.image(image_id)}/root"
    for number in range(files):
        directory = f"{root}/{number // 100}"
        if number % 100 == 0:
            os.makedirs(directory)
        with open(f"{directory}/{number}", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size_bytes // files)
    os.makedirs(root, exist_ok=True)
    if local.root:
        subprocess.run(["chown", "-R", f"{UID_BASE()}:{UID_BASE()}", root], check=True)
    return image_id


async def create(local: LocalProvider, image_id: str) -> tuple[LocalInstance, dict[str, object]]:
    sandbox_id = new_id(SANDBOX)
    caller = Caller(uid=os.geteuid(), gid=os.getegid())
    plan = local.plan(sandbox_id, image_id, SandboxSpec(), caller, [], details={}, owner="uid:0")
    return await local.create(sandbox_id, image_id, SandboxSpec(), {}, plan), plan


def by_hand(argv: list[str]) -> None:
    """Run a program of the floor. The daemon's own `run_tool` would take our precedence from it."""
    subprocess.run(argv, env=TOOL_ENV, stdin=subprocess.DEVNULL, check=True)


def timed(work: Callable[[], object]) -> float:
    """Milliseconds that `work` took."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def ms(samples: list[float]) -> str:
    return f"{median(samples):.1f} ms"

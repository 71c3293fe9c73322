"""`runsc` by hand: the floor of gVisor sandboxes. Nothing that is measured here runs any of our code.

Its root directory is put together like a sandbox's, once for all, by mounts that nobody else sees: those of one thread,
in which everything is started. Each container is run by the words that the daemon uses too, without our keeper.
"""

import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sandkeep.model import SandboxSpec
from sandkeepd.host import mounts
from sandkeepd.host.cgroups.groups import Limits
from sandkeepd.providers.common.directory_provider import Lower
from sandkeepd.providers.gvisor import bundle as gvisor_bundle
from sandkeepd.providers.gvisor.bundle import Bundle
from sandkeepd.providers.gvisor.plan import Plan

T = TypeVar("T")
DEADLINE_S = 60.0

FLAGS = ["--platform=ptrace", "--network=none", "--ignore-cgroups", "--overlay2=root:memory"]


class Raw:
    """Containers over the files of one directory."""

    def __init__(self, root: str, thread: ThreadPoolExecutor) -> None:
        self._root = root
        self._thread = thread
        self._numbers = itertools.count(1)
        self._command = ["runsc", f"--root={root}/runsc", *FLAGS]

    def _do(self, work: Callable[[], T]) -> T:
        """Do something where the root directory is seen."""
        return self._thread.submit(work).result()

    def _runsc(self, *words: str, **options: Any) -> "subprocess.Popen[bytes]":
        options = {"stdin": subprocess.DEVNULL, **options}
        return subprocess.Popen([*self._command, *words], **options)

    def prepare(self, files: str, uid: int) -> None:
        """Put the root directory together, and what configurations are made of. `files` are of that host uid."""

        def work() -> None:
            os.makedirs(f"{self._root}/runsc")
            self._bundle = bundle(self._root)
            place = mounts.enter_private_namespace()
            self._bundle = msgspec.structs.replace(
                self._bundle, root=gvisor_bundle.mount_root(place, [Lower(root=files, uid=uid)], self._bundle)
            )
            os.unlink(f"{self._bundle.root}/etc/ld.so.preload")

        self._do(work)

    def bundle(self, command: Sequence[str]) -> str:
        """A new bundle, of containers that run this."""
        directory = f"{self._root}/bundle-{next(self._numbers)}"
        os.mkdir(directory)
        gvisor_bundle.write_configuration(self._bundle, f"{directory}/config.json")
        configuration = msgspec.json.decode(Path(f"{directory}/config.json").read_bytes())
        configuration["process"]["args"] = list(command)
        configuration["mounts"] = [one for one in configuration["mounts"] if one["type"] != "bind"]
        Path(f"{directory}/config.json").write_bytes(msgspec.json.encode(configuration))
        return directory

    # What is measured

    def first_output(self, place: str) -> float:
        """Seconds until the first line of what runs in a new container, which ends with that."""

        def work() -> float:
            begun = time.perf_counter()
            process = self._runsc("run", "--bundle", place, self.name(), stdout=subprocess.PIPE)
            assert process.stdout is not None
            assert process.stdout.readline() == b"hello\n"
            took = time.perf_counter() - begun
            process.stdout.close()
            assert process.wait() == 0
            return took

        return self._do(work)

    def start(self, place: str) -> str:
        """A container that has said that it is ready."""
        container, log = self.name(), f"{place}/log"
        self._run("run", "--detach", "--bundle", place, container, log=log)
        deadline = time.monotonic() + DEADLINE_S
        while "ready" not in Path(log).read_text():
            assert time.monotonic() < deadline, Path(log).read_text()
            time.sleep(0.01)
        return container

    def exec(self, container: str, *command: str) -> float:
        """Seconds that a command takes in a container that runs."""
        return self._run("exec", container, *command)

    def checkpoint(self, container: str, image: str) -> float:
        """Seconds until a container is saved, with which it ends. What is left of it is removed then."""
        os.mkdir(image)
        took = self._run("checkpoint", f"--image-path={image}", container)
        self.delete(container)
        return took

    def restore(self, place: str, image: str, count: int = 1) -> tuple[float, list[str]]:
        """Seconds until it goes on in new containers, all at once; and these."""
        containers = [self.name() for _ in range(count)]
        took = self._all([
            ["restore", "--detach", "--bundle", place, f"--image-path={image}", container] for container in containers
        ], f"{place}/log")  # fmt: skip
        return took, containers

    # Around that

    def name(self) -> str:
        return f"bench-{os.getpid()}-{next(self._numbers)}"

    def delete(self, container: str) -> None:
        self._run("delete", "-force", container)

    def _run(self, *words: str, log: str | None = None) -> float:
        return self._all([list(words)], log)

    def _all(self, lines: list[list[str]], log: str | None) -> float:
        """Run several at once to their ends; answer how long that took. They say what they say into the log."""

        def work() -> float:
            with open(log or os.devnull, "ab") as output:
                begun = time.perf_counter()
                running = [self._runsc(*words, stdout=output, stderr=output) for words in lines]
                codes = [process.wait() for process in running]
                took = time.perf_counter() - begun
            assert not any(codes), (lines[0], codes, Path(log or os.devnull).read_text()[-2000:])
            return took

        return self._do(work)

    def clear(self) -> None:
        """End what runs."""
        listed = subprocess.run([*self._command, "list", "-quiet"], capture_output=True, check=True)
        for container in listed.stdout.decode().split():
            self.delete(container)


def bundle(root: str) -> Bundle:
    """What the daemon would make of a plain sandbox."""
    plan = Plan(
        uid=1000, gid=1000, network="none", rootless=False, writable=True, limits=Limits(memory_bytes=None, cpus=None),
        disk_bytes=1 << 30,
    )  # fmt: skip
    return Bundle(sandbox_id="bench", directory=root, root="", plan=plan, spec=SandboxSpec(), whole=False)


@contextmanager
def raw(root: str, files: str, uid: int) -> Iterator[Raw]:
    """`runsc` on these files, with its state in a new directory `root`."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        made = Raw(root, thread)
        try:
            made.prepare(files, uid)
            yield made
        finally:
            made.clear()
            shutil.rmtree(root)

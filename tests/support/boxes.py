"""Sandboxes that tests read from, write to and copy with, and whether anything is left of that."""

import io
import os
import signal
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sandkeep.errors import SandkeepError
from sandkeep.ids import new_id


def group_of(sandbox_id: str) -> Path:
    """The directory of a sandbox's group that limits its processes. Groups of other tests vanish meanwhile, at which
    `Path.glob` would fail.
    """
    walk = os.walk("/sys/fs/cgroup")
    return next(Path(at) for at, _, files in walk if at.endswith(f".{sandbox_id}") and "pids.max" in files)


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Let whatever a block waits for come to an end, also what waits in the kernel for a pipe."""

    def end(number: int, frame: Any) -> None:
        raise AssertionError(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Box:
    """A sandbox, a client, and what tests do with them again and again."""

    provider = "local"

    def __init__(self, daemon: Any, client: Any, sandbox_id: str) -> None:
        self.daemon = daemon
        self.client = client
        self.id = sandbox_id

    def sh(self, script: str, *words: str) -> bytes:
        """What a script writes that runs inside, and must succeed."""
        done = self.client.sandbox.exec(self.id, ["sh", "-c", script, "sh", *words])
        assert done.exit_code == 0, done
        return bytes(done.stdout)

    def read(self, path: str, **more: Any) -> Any:
        return self.client.sandbox.read_file(self.id, path=path, **more)

    def write(self, path: str, data: bytes, **more: Any) -> Any:
        return self.client.sandbox.write_file(self.id, path=path, data=data, **more)

    def listing(self, path: str = ".", **more: Any) -> Any:
        return self.client.sandbox.list_dir(self.id, path=path, **more)

    def events(self) -> list[Any]:
        found = self.client.sandbox.history(self.id).events
        return [event for event in found if event.type == "sandbox.file_written"]

    @contextmanager
    def copying_in(self, path: str = ".", **more: Any) -> Iterator[tuple[Any, str, int]]:
        """A copy into it under way: the call, its transfer_id, and the descriptor to write to, closed at the end."""
        transfer_id = new_id("cpy")
        with self.client.with_descriptors(
            "sandbox.copy_in", self.id, transfer_id=transfer_id, path=path, **more
        ) as call:
            [pipe] = call.receive()
            with open(pipe, "wb", buffering=0, closefd=True) as file:
                yield call, transfer_id, file

    def copy_in(self, archive: bytes, path: str = ".", **more: Any) -> Any:
        """Copy an archive in, confirmed."""
        with self.copying_in(path, **more) as (call, transfer_id, pipe):
            with suppress(BrokenPipeError):  # it may have failed already: the call tells
                pipe.write(archive)
            pipe.close()
            with suppress(SandkeepError):
                self.client.sandbox.copy_commit(self.id, transfer_id)
            return call.answer()

    def copy_out(self, path: str, **more: Any) -> tuple[bytes, Any]:
        """The archive that comes out, and the answer."""
        with self.client.with_descriptors("sandbox.copy_out", self.id, path=path, **more) as call:
            [pipe] = call.receive()
            with open(pipe, "rb") as file:
                archive = file.read()
            return archive, call.answer()

    def staged(self) -> bytes:
        """What copies have left beside their targets, or have there now."""
        return self.sh("find /workspace /tmp /home -name '.sandkeep-hlp_*' -prune; true")  # it may go meanwhile

    def left(self) -> list[str]:
        """What is left of any helper: files on either side, processes, and what was staged."""
        directory = f"/proc/{self.daemon.process.pid}/root{self.daemon.state_dir}/sandboxes/{self.id}"  # its disk, too
        names = [name for part in ("in", "out/p") for name in os.listdir(f"{directory}/{part}")]
        running = self.sh("for p in /proc/[0-9]*; do tr '\\0\\n' '  ' <$p/cmdline; echo; done 2>/dev/null")
        assert b"/run/sandkeep/in" in running or b"for p in" in running  # there is something to be seen
        return [
            *(name for name in names if name.startswith("hlp")),
            *(line[-200:] for line in os.fsdecode(running).splitlines() if " receive " in line or " send " in line),
            *os.fsdecode(self.staged()).splitlines(),
        ]

    def is_tidy(self) -> bool:
        """Whether nothing of that is left."""
        return not self.left()


@contextmanager
def new_box(daemon: Any, image: str, **options: Any) -> Iterator[Box]:
    with daemon.connect() as client:
        made = Box(daemon, client, client.sandbox.create(image, **options).sandbox_id)
        yield made
        client.sandbox.terminate(made.id)


def archive(*members: tuple[str, bytes | None] | tarfile.TarInfo, contents: bytes = b"") -> bytes:
    """A tar archive of files, directories (None), and members as they are given, filled from `contents`.

    A member with pax headers has them.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                _add(tar, member, contents)
                continue
            info = tarfile.TarInfo(member[0])
            info.type = tarfile.DIRTYPE if member[1] is None else tarfile.REGTYPE
            info.mode = 0o755 if member[1] is None else 0o644
            info.size = len(member[1] or b"")
            tar.addfile(info, io.BytesIO(member[1] or b""))
    return out.getvalue()


def _add(tar: tarfile.TarFile, member: tarfile.TarInfo, contents: bytes) -> None:
    tar.format = tarfile.PAX_FORMAT if member.pax_headers else tarfile.GNU_FORMAT
    if member.size <= len(contents):
        tar.addfile(member, io.BytesIO(contents[: member.size]))
        return
    tar.addfile(member)  # only the header: it promises more than there is
    assert tar.fileobj is not None
    tar.fileobj.write(contents)

"""What tests of snapshots and forks do over and over, with a real daemon and local sandboxes."""

import io
import os
import tarfile
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.expect import until

_DOCKER = pytest.mark.needs("docker")

on_both_deep = pytest.mark.parametrize(
    "provider", ["local", pytest.param("docker", marks=[_DOCKER, pytest.mark.soak])], indirect=True
)
"""Marks tests of what holds of local sandboxes and of those on Docker, where `test_docker_keeping` tells it as well."""


def sh(client: Any, box: str, script: str) -> str:
    """Run a script that succeeds in a sandbox, and answer what it printed."""
    ran = client.sandbox.exec(box, ["sh", "-c", script])
    assert ran.exit_code == 0, (ran.stdout, ran.stderr)
    return str(ran.stdout.decode())


_LIST = r"""
find . -mindepth 1 -printf '%P\t%y %m %l\n' 2>/dev/null
find . -type f -exec cksum {} + 2>/dev/null | while read -r sum size path; do
    printf '#%s\t%s\n' "$path" $sum-$size
done
"""  # twenty times as fast as a SHA-256, and no file here is made to have another's checksum


def tree(client: Any, box: str) -> dict[str, str]:
    """All that can be seen in a sandbox's workspace: what everything is, and of files the checksum and size."""
    return dict(line.split("\t", 1) for line in sh(client, box, _LIST).splitlines())


_WRITER = """
import mmap, sys
file = open("mapped", "r+b")
memory = mmap.mmap(file.fileno(), 0)
for line in sys.stdin:
    memory[0] = ord(line[0])
    print(line, flush=True)
"""


def write_mapped(client: Any, box: str) -> Callable[[bytes], None]:
    """Make the file ``mapped``; return a function that writes a letter to its beginning, in memory. The process
    ``writer`` does that.
    """
    sh(client, box, "head -c 100000 /dev/zero >mapped")
    client.process.launch(box, ["python3", "-c", _WRITER], name="writer", stdin=True)

    def write(letter: bytes) -> None:
        client.process.write_stdin(box, "writer", letter + b"\n")
        until(lambda: client.process.read(box, "writer").stdout.endswith(letter + b"\n\n"))

    return write


def keep_settled(client: Any, box: str) -> None:
    """Make a full snapshot, and increments until these are empty: what is new may still change."""
    client.snapshot.create(box)
    until(lambda: client.snapshot.create(box, incremental=True).member_count == 1)


def paths(client: Any, box: str) -> set[str]:
    """What of that there is."""
    return {name for name in tree(client, box) if not name.startswith("#")}


def exported(client: Any, snapshot_id: str) -> bytes:
    """A snapshot as the archive that its owner gets."""
    with client.with_descriptors("snapshot.export", snapshot_id) as handed:
        [descriptor] = handed.receive()
        with open(descriptor, "rb") as file:
            content = file.read()
        assert handed.answer().size_bytes == len(content)
    return content


def names(archive: bytes) -> list[str]:
    """The names in an archive."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return sorted(member.name for member in tar)


def imported(client: Any, archive: bytes, **options: Any) -> Any:
    """An archive as a snapshot."""
    size = options.pop("size_bytes", len(archive))
    with client.with_descriptors("snapshot.import", size, **options) as handed:
        [descriptor] = handed.receive()
        try:
            with open(descriptor, "wb", buffering=0) as pipe:
                pipe.write(archive)
        except BrokenPipeError:
            pass  # the call tells why
        return handed.answer()


def archive(*members: tuple[str, Any], mode: str = "w:gz") -> bytes:
    """An archive made by Python: of names with a text, or with a `tarfile.TarInfo` to be changed."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as tar:
        for name, what in members:
            info = tarfile.TarInfo(name)
            data = b""
            if callable(what):
                what(info)
            else:
                data = what.encode()
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return made.getvalue()


def layers(daemon: Any) -> list[str]:
    """The kept files that there are."""
    place = f"{daemon.state_dir}/layers"
    return sorted(os.listdir(place)) if os.path.isdir(place) else []

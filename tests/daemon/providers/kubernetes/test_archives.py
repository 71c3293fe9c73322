"""Archives of workspaces from pods whose `tar` is hostile: names, sizes, counts, and output that never ends."""

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from tests.daemon.providers.kubernetes.conftest import ExecInstance
from tests.support.expect import refused_async
from tests.support.patience import patient

from sandkeep.errors import SandkeepError
from sandkeepd.contract.snapshots import PackRequest
from sandkeepd.host import free_space
from sandkeepd.host.threads import Meter
from sandkeepd.host.unnamed_file import unnamed_file
from sandkeepd.providers.common import streamed_files

MIB = 1 << 20
ENDLESS = "case $1 in --version) echo GNU ;; *) exec cat /dev/zero ;; esac"


@pytest.fixture
def tar(tmp_path: Path, instance: ExecInstance) -> Callable[[str], None]:
    """Replaces the sandbox's tar by a script."""
    programs = tmp_path / "bin"
    programs.mkdir()

    def replace(script: str) -> None:
        (programs / "tar").write_text(f"#!/bin/sh\n{script}\n")
        (programs / "tar").chmod(0o755)

    (tmp_path / "workspace").mkdir()
    prepare(instance, f"PATH={programs}:{os.environ['PATH']}; export PATH")
    return replace


def prepare(instance: ExecInstance, prefix: str) -> None:
    """Run helper commands with another environment, as the code inside can have them."""
    run = instance.run_piped

    def run_piped(command: list[str], **options: object) -> object:
        shell, flag, script, *rest = command
        return run([shell, flag, f"{prefix}\n{script}", *rest], **options)  # type: ignore[arg-type]

    instance.run_piped = run_piped  # type: ignore[method-assign, assignment]


async def test_output_that_never_ends(
    instance: ExecInstance, tar: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar(ENDLESS)
    monkeypatch.setattr(streamed_files, "MOST_BYTES", 8 * MIB)
    with trio.fail_after(patient(120)), unnamed_file(str(tmp_path)) as received:
        error = await refused_async(
            "quota_exceeded", streamed_files.receive(instance, str(tmp_path / "workspace"), received)
        )
        assert error.data["limit"] == 8 * MIB
        assert os.fstat(received).st_size <= 9 * MIB


async def test_the_free_space_of_the_host_is_kept(
    instance: ExecInstance, tar: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar(ENDLESS)
    with trio.fail_after(patient(120)), unnamed_file(str(tmp_path)) as received:
        monkeypatch.setattr(free_space, "room", lambda fd: 12 * MIB - os.fstat(fd).st_size)
        await refused_async("quota_exceeded", streamed_files.receive(instance, str(tmp_path / "workspace"), received))
        assert os.fstat(received).st_size <= 5 * MIB, "two more copies have no room"


def archive(*names: str, link: str | None = None, kind: bytes | None = None) -> bytes:
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as out:
            for name in names:
                member = tarfile.TarInfo(name)
                if kind is not None:
                    member.type, member.linkname = kind, link or ""
                out.addfile(member)
        return file.getvalue()


ARCHIVES = {
    "a way up": archive("./a", "./../../etc/passwd"),
    "an absolute name": archive("/etc/passwd"),
    "a hard link out": archive("./a", link="../../etc/shadow", kind=tarfile.LNKTYPE),
    "too many": archive(*(f"./{number}" for number in range(101))),
    "too deep": archive("./" + "/".join("d" * 200)),
    "nothing": b"",
    "no tar": b"hello" * 1000,
    "half": archive("./a", "./b")[:700],
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_what_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        streamed_files, "LIMITS", type(streamed_files.LIMITS)(members=100, content_bytes=1 << 40, ratio=1 << 40)
    )
    with unnamed_file(str(tmp_path)) as received, unnamed_file(str(tmp_path)) as packed:
        os.write(received, ARCHIVES[name])
        request = PackRequest(name="n", output=packed, catalogue="", format="tar")
        with pytest.raises(SandkeepError) as caught:
            streamed_files.repack(received, request, Meter())
    assert caught.value.code == "snapshot_corrupt"
    assert os.listdir(tmp_path) == []

"""ArtifactFiles of real sandboxes: exported as they are, or not at all."""

import gzip
import io
import posixpath
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support.expect import refused_async
from tests.support.inside import Inside, inside

from sandkeep.errors import ProviderError
from sandkeep.settings.daemon import UID_BASE
from sandkeepd.providers.local.provider import open_local
from sandkeepd.sandboxes.artifact_files import ArtifactFiles
from sandkeepd.sandboxes.files import Files

pytestmark = pytest.mark.needs("bwrap")

MANY = 1 << 40


def at_most(max_bytes: int, sizes: list[int] | None = None) -> Callable[[int], None]:
    """Return what reserves a size, and notes it in `sizes`."""

    def reserve(size: int) -> None:
        if size > max_bytes:
            raise ProviderError("disk_limit", "it is too large")
        if sizes is not None:
            sizes.append(size)

    return reserve


class House:
    """A daemon with a local sandbox, and its artifacts."""

    def __init__(self, daemon: Inside, state_dir: str, box: str) -> None:
        self.daemon = daemon
        self.box = box
        self.directory = Path(state_dir, "artifacts")
        self.artifacts = ArtifactFiles(state_dir, Files(daemon.core, daemon.sandboxes.runtimes))

    async def sh(self, script: str) -> None:
        ran = await self.daemon.call("sandbox.exec", sandbox_id=self.box, command=["sh", "-c", script])
        assert ran.exit_code == 0, ran.stderr

    async def export(self, path: str, artifact_id: str = "art_1", max_bytes: int = MANY) -> tuple[Any, bytes]:
        """Export a file, and read it again."""
        sizes: list[int] = []
        made = await self.artifacts.export(self.box, artifact_id, path, reserve=at_most(max_bytes, sizes))
        with open(self.artifacts.open(self.box, artifact_id), "rb") as file:
            content = file.read()
        assert sizes == sorted(sizes)
        assert sizes[-1] == made.size_bytes
        assert (made.size_bytes, made.digest) == (len(content), f"sha256:{sha256(content).hexdigest()}")
        return made, content

    def left(self) -> list[str]:
        """All files that there are."""
        return sorted(str(path.relative_to(self.directory)) for path in self.directory.rglob("*") if path.is_file())


@asynccontextmanager
async def house_in(state_dir: str, source: str) -> AsyncIterator[House]:
    async with inside(
        state_dir,
        opened=lambda place, log_id: open_local(place, uid_base=UID_BASE(), disk_limit=1 << 40, log_id=log_id),
    ) as daemon:
        box = (await daemon.call("sandbox.create", image_id=await daemon.image(source))).sandbox_id
        try:
            yield House(daemon, state_dir, box)
        finally:
            with trio.CancelScope(shield=True):
                await daemon.call("sandbox.terminate", sandbox_id=box)


async def test_files_are_kept_as_they_are_with_the_types_of_their_names(state_dir: str, source: str) -> None:
    async with house_in(state_dir, source) as house:
        await house.sh(
            "printf 'a,b\\n' >table.csv; : >empty; head -c 5000000 /dev/urandom >big.bin; cp big.bin a.tar.gz"
        )
        await house.sh("mkdir 'd\"r'; echo x >'d\"r/ü n;.JSON'; ln -s ../table.csv 'd\"r/link.txt'")
        found = [
            ("table.csv", "table.csv", "text/csv"), ("/workspace/empty", "empty", "application/octet-stream"),
            ("big.bin", "big.bin", "application/octet-stream"), ("./a.tar.gz", "a.tar.gz", "application/gzip"),
            ('d"r/ü n;.JSON', "ü n;.JSON", "application/json"), ('d"r/link.txt', "link.txt", "text/plain"),
        ]  # fmt: skip
        for number, (path, name, kind) in enumerate(found):
            made, content = await house.export(path, f"art_{number}")
            assert (made.filename, made.content_type) == (name, kind)
            read = await house.daemon.call("sandbox.read_file", sandbox_id=house.box, path=path)
            assert content[: len(read.data)] == read.data
        assert house.left() == [f"{house.box}/art_{number}" for number in range(len(found))]
        assert all((house.directory / name).stat().st_mode & 0o077 == 0 for name in house.left())
        house.artifacts.remove(house.box, "art_0")
        house.artifacts.remove(house.box, "art_0")
        with pytest.raises(Exception, match="not_found"):
            house.artifacts.open(house.box, "art_0")


async def test_a_directory_is_kept_with_its_name_at_the_top(state_dir: str, source: str) -> None:
    async with house_in(state_dir, source) as house:
        await house.sh("mkdir -p out/sub; echo 1 >out/sub/file; ln -s /etc/passwd out/link")
        for number, path in enumerate(("out", "/workspace/out/", "out/sub/..", "out/.")):
            made, content = await house.export(path, f"art_{number}")
            assert (made.filename, made.content_type) == ("out.tar.gz", "application/gzip")
            with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content))) as archive:
                assert sorted(map(posixpath.normpath, archive.getnames())) == [
                    "out",
                    "out/link",
                    "out/sub",
                    "out/sub/file",
                ]
                assert archive.getmember("./out/link").issym()


async def test_what_fails_leaves_nothing(state_dir: str, source: str) -> None:
    async with house_in(state_dir, source) as house:
        await house.sh("mkfifo pipe; echo secret >closed; chmod 0 closed; head -c 3000000 /dev/urandom >big; mkdir d")
        await house.sh("cp big d/big; ln -s nowhere gone")
        for path, code in (
            ("nothing", "not_found"), ("gone", "invalid"), ("pipe", "invalid"), ("closed", "permission_denied"),
            ("/", "invalid"), ("hello/", "not_found"),
        ):  # fmt: skip
            await refused_async(code, house.artifacts.export(house.box, "art_1", path, reserve=at_most(MANY)))
        for path in ("big", "d"):
            await refused_async(
                "disk_limit", house.artifacts.export(house.box, "art_1", path, reserve=at_most(1 << 20))
            )
        assert house.left() == []
        made, _ = await house.export("big", max_bytes=3000000)
        assert made.size_bytes == 3000000
        await refused_async("conflict", house.artifacts.export(house.box, "art_1", "hello", reserve=at_most(MANY)))
        assert house.left() == [f"{house.box}/art_1"]


async def test_who_gives_up_leaves_nothing(state_dir: str, source: str) -> None:
    """A file without an end is read until its caller goes."""
    async with house_in(state_dir, source) as house:
        await house.sh("mkdir d; truncate -s 500G d/holes")
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def export() -> None:
                    await house.artifacts.export(house.box, "art_1", "d/holes", reserve=at_most(MANY))

                nursery.start_soon(export)
                while not any(path.stat().st_size for path in (house.directory / ".partial").glob("*")):
                    await trio.sleep(0.01)
                scope.cancel()
        assert scope.cancelled_caught
        assert house.left() == []
        assert (await house.export("hello"))[1] == b"hello\n"


async def test_exports_at_the_same_time_stay_within_the_quota_together(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDKEEP_QUOTA", "artifacts=16M")
    monkeypatch.setenv("SANDKEEP_QUOTA_ADMIN", "1")
    async with house_in(state_dir, source) as house:
        await house.sh("truncate -s 500G holes; head -c 15M /dev/zero >large")
        most = 0

        async def export() -> None:
            call = house.daemon.call("artifact.export", sandbox_id=house.box, path="holes")
            await refused_async("disk_limit", call)

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, house.daemon.core.quotas.used("uid:0", "artifacts"))
                files = (house.directory / ".partial").glob("*")
                with suppress(FileNotFoundError):
                    assert sum(file.stat().st_size for file in files) <= (16 + 4) << 20, "each has a piece more at most"
                await trio.sleep(0)

        async with trio.open_nursery() as watching:
            watching.start_soon(watch)
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(export)
            watching.cancel_scope.cancel()
        assert 0 < most <= 16 << 20
        assert (house.left(), house.daemon.core.quotas.used("uid:0", "artifacts")) == ([], 0)
        made = await house.daemon.call("artifact.export", sandbox_id=house.box, path="large")
        assert house.daemon.core.quotas.used("uid:0", "artifacts") == made.size_bytes == 15 << 20

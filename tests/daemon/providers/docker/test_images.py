"""Images of a real engine: built, taken by reference, put onto a base, looked into, removed; and by hostile callers."""

import gc
import os
import signal
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from glob import glob
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support import rootfs
from tests.support.engine import PrivateEngine
from tests.support.expect import refused_async, until_async
from tests.support.ledgers import Owning
from tests.support.patience import patient
from tests.support.registry import Registry, serving

from sandkeep.errors import CallerError, ProviderError, SandkeepError
from sandkeep.ids import IMAGE, new_id
from sandkeepd.contract.caller import Caller, Progress
from sandkeepd.contract.images import ImageRequest, ImageTooLargeError, ImportedImage
from sandkeepd.providers.docker import references
from sandkeepd.providers.docker.builder import UNFINISHED_LABEL
from sandkeepd.providers.docker.container import LOG_LABEL, SANDBOX_LABEL
from sandkeepd.providers.docker.engine import Engine
from sandkeepd.providers.docker.image_probe import PROBE_LABEL
from sandkeepd.providers.docker.provider import DockerProvider, open_docker

pytestmark = pytest.mark.needs("docker")

ME = Caller(uid=os.geteuid(), gid=os.getegid())
BUSYBOX = "test/busybox:1"


class World:
    """A provider over a private engine, and a directory of a caller's."""

    def __init__(self, engine: PrivateEngine, provider: DockerProvider, place: Path, log_id: str) -> None:
        self.engine = engine
        self.provider = provider
        self.place = place
        self.log_id = log_id
        self.told: list[str] = []

    async def hear(self, words: str) -> None:
        self.told.append(words)

    def write(self, **files: str | bytes) -> None:
        """Files of the caller's; two underscores are a slash."""
        for name, content in files.items():
            path = self.place / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    async def image(
        self, image_id: str | None = None, *, progress: Progress | None = None, caller: Caller = ME, **fields: Any
    ) -> tuple[str, ImportedImage]:
        image_id = image_id or new_id(IMAGE)
        fields = {"kind": "dockerfile", "source": str(self.place), "owner": "uid:0", "published": None, **fields}
        made = await self.provider.images.make(image_id, ImageRequest(**fields), caller, progress or self.hear)
        return image_id, made

    async def built(self, dockerfile: str, **fields: Any) -> tuple[str, ImportedImage]:
        self.write(Dockerfile=dockerfile)
        return await self.image(**fields)

    async def image_with_shell(self, script: str, more: str = "") -> ImportedImage:
        """An image whose shell is a script of busybox's."""
        self.write(sh=f"#!/bin/busybox ash\n{script}\n")
        (self.place / "sh").chmod(0o755)
        swap = "COPY sh /evil\nRUN rm /bin/sh && ln -s /evil /bin/sh\n"
        _, made = await self.built(f"FROM {BUSYBOX}\n{swap}{more}")
        return made

    async def fails(self, code: str, dockerfile: str | None = None, **fields: Any) -> str:
        """What a build or an import that fails says."""
        before = self.everything()
        made = self.image(**fields) if dockerfile is None else self.built(dockerfile, **fields)
        error = await refused_async(code, made)
        assert self.everything() == before
        return error.message

    def everything(self) -> list[str]:
        """The tags, dangling images of ours, containers and copies that there are."""
        images = self.engine.get("/images/json")
        tags = [tag for image in images for tag in image["RepoTags"] or ()]
        unfinished = [i["Id"] for i in images if (i["Labels"] or {}).get(UNFINISHED_LABEL) and "<none>:<none>" in tags]
        builds = self.provider.layout.builds()
        return sorted([*tags, *unfinished, *(c["Id"] for c in self.engine.get("/containers/json?all=1")), *builds])

    def env(self, made: ImportedImage) -> list[str]:
        """The environment that the engine says an image has."""
        variables: list[str] = self.engine.get(f"/images/{made.details['docker_image_id']}/json")["Config"]["Env"]
        return variables

    def files(self, image_id: str) -> dict[str, Any]:
        """The entries of an image's last layers, by name."""
        import io
        import json
        import tarfile

        status, saved = self.engine.ask("GET", f"/images/sandkeep:{image_id}/get")
        assert status == 200
        with tarfile.open(fileobj=io.BytesIO(saved)) as archive:
            listed = archive.extractfile("manifest.json")
            assert listed is not None
            found: dict[str, Any] = {}
            for name in json.load(listed)[0]["Layers"][1:]:
                with tarfile.open(fileobj=archive.extractfile(name)) as layer:
                    found |= {entry.name: entry for entry in layer}
        return found


@pytest.fixture
async def world(dockerd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setenv("SANDBOX_DOCKER_NETWORK", "none")
    dockerd.busybox()
    place = tmp_path / "project"
    place.mkdir()
    log_id = new_id("log")
    async with open_docker(
        str(tmp_path / "state"), disk_limit=1 << 30, log_id=log_id, engine=Engine(dockerd.socket)
    ) as provider:
        yield World(dockerd, provider, place, log_id)
        for image_id in await provider.images.found():
            await provider.images.remove(image_id)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as made:
        yield made


# -- building ---------------------------------------------------------------------------------------------------------


async def test_a_build_is_told_step_by_step(world: World) -> None:
    world.write(greeting="hello\n")
    image_id, made = await world.built(f"FROM {BUSYBOX}\nCOPY greeting /greeting\nRUN cat /greeting; id -u\nUSER 7:8\n")
    told = [words for words in world.told if words.startswith("step")]
    assert told[0] == f"step 1/4: FROM {BUSYBOX}"
    assert told[-1] == "step 4/4: USER 7:8"
    assert made.digest == made.details["docker_image_id"] == world.engine.get(f"/images/sandkeep:{image_id}/json")["Id"]
    assert made.details["docker_image_tag"] == f"sandkeep:{image_id}"
    assert made.details["user"] == (7, 8)
    assert made.size_bytes > 1_000_000
    assert world.provider.layout.builds() == []


async def test_a_step_that_fails_is_named_with_what_it_said_last(world: World) -> None:
    lines = "; ".join(f"echo line {number}" for number in range(40))
    said = await world.fails(
        "invalid",
        f"FROM {BUSYBOX}\n\n# a comment\nENV A=b\n"
        f"RUN exec 2>&1; {lines}; \\\n  printf 'worst\\033[31m of all\\n' >&2; exit 7\nRUN true\n",
    )
    first, *last = said.split("\n")
    assert "step 3/4 (line 5, RUN exec 2>&1; echo line 0;" in first, first
    assert "exit code 7" in first
    assert last[-2:] == ["line 39", "worst of all"]
    assert "line 1" not in last


@pytest.mark.parametrize(
    ("dockerfile", "words"),
    [
        (f"FROM {BUSYBOX}\nCOPY nothing /\n", "step 2/2 (line 2, COPY nothing /)"),
        (f"FROM {BUSYBOX}\nCOPY ../../etc/passwd /\n", "step 2/2 (line 2, COPY ../../etc/passwd /)"),
        (f"FROM {BUSYBOX}\nFLY away\n", "'FLY' is no instruction"),
        (f"FROM {BUSYBOX}\nRUN /none\n", "exit code 127"),
        ("RUN true\n", "no FROM"),
        ("FROM sandkeep:img_1\n", "is Sandkeep's name for an image"),
        (f"FROM {BUSYBOX}\nADD http://localhost/x /\n", "ADD fetches nothing"),
        (f"FROM {BUSYBOX}\nRUN --mount=type=cache,target=/x true\n", "BuildKit"),
    ],
)
async def test_what_cannot_be_built(world: World, dockerfile: str, words: str) -> None:
    said = await world.fails("invalid", dockerfile)
    assert words in said, said


@pytest.mark.soak
async def test_builds_have_no_network_when_sandboxes_have_none(world: World) -> None:
    world.write(Dockerfile=f"FROM {BUSYBOX}\nRUN ls /sys/class/net >/devices; exit 3\n")
    assert "exit code 3" in await world.fails("invalid")
    image_id, _ = await world.built(f"FROM {BUSYBOX}\nRUN ls /sys/class/net | tr '\\n' ' ' | grep -qx 'lo '\n")
    assert image_id


async def test_equal_content_is_one_image_and_clean_builds_another(world: World) -> None:
    world.write(a="1", Dockerfile=f"FROM {BUSYBOX}\nCOPY a /a\nRUN date +%N >/when\n")
    _, first = await world.image()
    asked = world.told.count("inspecting the image")
    other_id, same = await world.image()
    assert world.told.count("inspecting the image") == asked
    assert same.details == {**first.details, "docker_image_tag": f"sandkeep:{other_id}"}
    _, other = await world.image(clean=True)
    world.write(a="2")
    _, changed = await world.image()
    assert first.digest == same.digest
    assert len({first.digest, other.digest, changed.digest}) == 3


async def test_what_is_ignored_is_not_sent(world: World) -> None:
    world.write(
        a="", b="", logs__x="", logs__keep="", node__modules__x="", deep__node__modules__x="",
        Dockerfile=f"FROM {BUSYBOX}\nCOPY . /all/\n",
    )  # fmt: skip
    (world.place / ".dockerignore").write_text("b\nlogs/*\n!logs/keep\n**/modules\nDockerfile\n")
    image_id, _ = await world.image()
    names = {name.removeprefix("all/") for name in world.files(image_id) if name.startswith("all/")}
    assert names == {"a", "logs", "logs/keep", "node", "deep", "deep/node", ".dockerignore"}


@pytest.mark.soak
async def test_our_own_files_are_not_in_what_is_built(world: World) -> None:
    image_id, _ = await world.built(f"FROM {BUSYBOX}\nCOPY . /all/\n")
    assert {name for name in world.files(image_id) if name.startswith("all/")} == {"all/Dockerfile"}


async def test_a_malformed_ignore_file_is_told(world: World) -> None:
    (world.place / ".dockerignore").write_text("a\n[z-a]\n")
    assert ".dockerignore: line 2" in await world.fails("invalid", f"FROM {BUSYBOX}\nCOPY . /\n")


@pytest.mark.soak
async def test_a_dockerfile_elsewhere(world: World) -> None:
    world.write(sub__Dockerfile=f"FROM {BUSYBOX}\nCOPY a /a\n", a="")
    image_id, _ = await world.image(dockerfile="sub/Dockerfile")
    assert "a" in world.files(image_id)


@pytest.mark.parametrize(
    "target", ["/etc/hostname", pytest.param("../../../../../../etc/hostname", marks=pytest.mark.soak)]
)
async def test_links_lead_nowhere_outside(world: World, target: str) -> None:
    """A Dockerfile that is a link is looked for inside; what is copied is the link, or fails."""
    (world.place / "link").symlink_to(target)
    (world.place / "Dockerfile").symlink_to(target)
    assert "not found under" in await world.fails("invalid")
    (world.place / "Dockerfile").unlink()
    await world.fails("invalid", f"FROM {BUSYBOX}\nCOPY link/ /there\n")
    (world.place / "dir").mkdir()
    (world.place / "dir" / "link").symlink_to(target)
    image_id, _ = await world.built(f"FROM {BUSYBOX}\nCOPY dir/ /there/\n")
    assert world.files(image_id)["there/link"].linkname == target


async def test_the_directory_is_read_with_the_callers_rights(world: World) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can read for others")
    for path in (world.place, *world.place.parents):
        if path.name.startswith(("pytest-", "popen-", "test_", "project")):
            path.chmod(0o755)
    world.write(Dockerfile=f"FROM {BUSYBOX}\nCOPY . /\n", secret="x")
    (world.place / "secret").chmod(0o600)
    said = await world.fails("permission_denied", caller=Caller(uid=40_000, gid=40_000))
    assert "secret" in said


@pytest.mark.soak
async def test_a_build_that_prints_without_end_costs_no_memory(world: World) -> None:
    """What it prints is looked at as it comes, and progress told now and then."""
    import resource

    world.write(Dockerfile=f"FROM {BUSYBOX}\nRUN yes | head -c 60000000; head -c 3000000 /dev/zero; exit 1\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "exit code 1" in await world.fails("invalid")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000
    assert len(world.told) < 400
    assert all("\0" not in words for words in world.told)


@pytest.mark.soak
async def test_a_large_context_is_streamed(world: World) -> None:
    import resource

    with (world.place / "large").open("wb") as file:
        file.truncate(200 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    image_id, _ = await world.built(f"FROM {BUSYBOX}\nCOPY large /large\n")
    assert world.engine.get(f"/images/sandkeep:{image_id}/json")["Size"] > 200 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000


async def test_a_build_that_is_broken_off_leaves_nothing(world: World) -> None:
    before = world.everything()
    running = trio.Event()

    async def hear(words: str) -> None:
        if "here it is" in words:
            running.set()

    script = "RUN touch /x\nRUN echo here it is; sleep 1000\n"
    world.write(Dockerfile=f"FROM {BUSYBOX}\n{script}")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: world.image(progress=hear))
        with trio.fail_after(patient(60)):
            await running.wait()
        nursery.cancel_scope.cancel()
    # The engine removes the container of a step by itself.
    await until_async(lambda: not set(world.everything()) - set(before))


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_an_engine_that_is_killed_while_it_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits is told at once, and the step's processes end; the rest is removed once there is an engine again."""
    monkeypatch.setenv("SANDBOX_DOCKER_NETWORK", "none")
    engine = PrivateEngine(tempfile.mkdtemp(prefix="skt-engine-"))
    running = trio.Event()

    async def hear(words: str) -> None:
        if "here it is" in words:
            running.set()

    try:
        engine.start()
        engine.busybox()
        place = tmp_path / "project"
        place.mkdir()
        async with open_docker(
            str(tmp_path / "state"), disk_limit=1 << 30, log_id="log_x", engine=Engine(engine.socket)
        ) as provider:
            world = World(engine, provider, place, "log_x")
            before = world.everything()
            world.write(Dockerfile=f"FROM {BUSYBOX}\nRUN touch /x\nRUN echo here it is; sleep 1000\n")
            async with trio.open_nursery() as nursery:

                async def build() -> None:
                    with pytest.raises(ProviderError, match="provider_unavailable"):
                        await world.image(progress=hear)

                nursery.start_soon(build)
                with trio.fail_after(patient(60)):
                    await running.wait()
                await trio.to_thread.run_sync(engine.stop, signal.SIGKILL)
            assert provider.layout.builds() == []
            assert glob("/sys/fs/cgroup/**/sandkeep_builds/log_x.*", recursive=True) == []
            await trio.to_thread.run_sync(engine.start)
            assert world.everything() != before
            await provider.images.clean_up(Owning())
            assert world.everything() == before
    finally:
        engine.clear()
        gc.collect()  # the SDK leaves a socket open that could not connect in the moment of the kill


@pytest.mark.soak
async def test_leavings_stay_while_another_build_is_under_way(world: World) -> None:
    """It may have taken up an image that a failed one had made."""
    gate = trio.Event()
    failed = trio.Event()

    async def slowly(words: str) -> None:
        if words.startswith("step 2/"):
            gate.set()
            await failed.wait()

    async with trio.open_nursery() as nursery:
        world.write(Dockerfile=f"FROM {BUSYBOX}\nENV A=b\nRUN touch /mine\n")
        nursery.start_soon(lambda: world.image(progress=slowly))
        with trio.fail_after(patient(60)):
            await gate.wait()
        world.write(Dockerfile=f"FROM {BUSYBOX}\nENV C=d\nRUN false\n")
        with pytest.raises(CallerError):
            await world.image()
        unfinished = [i for i in world.engine.get("/images/json") if (i["Labels"] or {}).get(UNFINISHED_LABEL)]
        assert unfinished
        failed.set()
    left = [i for i in world.engine.get("/images/json") if (i["Labels"] or {}).get(UNFINISHED_LABEL) == world.log_id]
    assert left == []


# -- references -------------------------------------------------------------------------------------------------------


async def test_what_the_engine_has_is_not_pulled(world: World) -> None:
    known = world.engine.get(f"/images/{BUSYBOX}/json")
    image_id, made = await world.image(kind="reference", source=BUSYBOX)
    assert made.digest == known["Id"]
    assert made.details["docker_image_tag"] == BUSYBOX
    assert f"sandkeep:{image_id}" in world.engine.get(f"/images/{BUSYBOX}/json")["RepoTags"]
    assert not any("pulling" in words for words in world.told)
    await world.provider.images.remove(image_id)
    assert world.engine.get(f"/images/{BUSYBOX}/json")["RepoTags"] == known["RepoTags"]


async def test_what_it_has_not_is_pulled_and_clean_pulls_anew(world: World, registry: Registry) -> None:
    reference = registry.put("ada/tool:1", rootfs.busybox(), Env=["PATH=/bin", "v=1"], User="1234")
    _, first = await world.image(kind="reference", source=reference)
    assert f"pulling {reference}" in world.told
    assert "v=1" in world.env(first)
    assert first.details["user"] == (1234, 1234)
    registry.put("ada/tool:1", rootfs.busybox(), Env=["PATH=/bin", "v=2"])
    _, same = await world.image(kind="reference", source=reference)
    image_id, anew = await world.image(kind="reference", source=reference, clean=True)
    assert same.digest == first.digest
    assert "v=2" in world.env(anew)
    registry.manifests.clear()
    _, kept = await world.image(kind="reference", source=reference, clean=True)
    assert kept.digest == anew.digest
    assert any(words.startswith(f"using the engine's copy of {reference}") for words in world.told)
    await world.provider.images.remove(image_id)


@pytest.mark.soak
async def test_a_reference_by_its_digest(world: World, registry: Registry) -> None:
    import hashlib

    registry.put("ada/pinned:1", rootfs.busybox(), Env=["PATH=/bin", "pinned=1"])
    digest = hashlib.sha256(registry.manifests["ada/pinned:1"]).hexdigest()
    _, made = await world.image(kind="reference", source=f"{registry.address}/ada/pinned@sha256:{digest}")
    assert "pinned=1" in world.env(made)


async def test_bases_are_pulled(world: World, registry: Registry) -> None:
    reference = registry.put("ada/base:1", rootfs.busybox(), Env=["PATH=/bin", "base=1"])
    _, made = await world.built(f"ARG WHAT=base\nFROM {reference.replace('base', '$WHAT')} AS one\nFROM one\n")
    assert "base=1" in world.env(made)


@pytest.mark.parametrize(
    ("status", "code", "words"), [(401, "permission_denied", "log in"), (403, "permission_denied", "log in")]
)
async def test_a_registry_that_refuses(world: World, registry: Registry, status: int, code: str, words: str) -> None:
    registry.refusing["ada/private"] = status
    source = f"{registry.address}/ada/private:1"
    assert words in await world.fails(code, kind="reference", source=source)


async def test_a_reference_that_nobody_knows(world: World, registry: Registry) -> None:
    said = await world.fails("not_found", kind="reference", source=f"{registry.address}/ada/nothing:1")
    assert "ada/nothing:1" in said


async def test_a_registry_that_cannot_be_reached(world: World) -> None:
    said = await world.fails("provider_unavailable", kind="reference", source="127.0.0.1:1/nothing")
    assert "127.0.0.1:1/nothing" in said


async def test_a_layer_without_end_is_taken_up_to_the_limit(world: World, registry: Registry) -> None:
    """An engine takes all of it, and looks at its digest afterwards."""
    reference = registry.put("ada/endless:1", rootfs.bare(), Env=["PATH=/bin"])
    registry.is_endless = True
    before = world.everything()
    with pytest.raises(ImageTooLargeError), trio.fail_after(patient(60)):
        await world.image(kind="reference", source=reference, most_bytes=10 << 20)
    assert world.everything() == before
    with trio.fail_after(patient(60)):
        await trio.to_thread.run_sync(registry.cut.wait)


async def test_a_registry_that_stops_within_a_layer(
    world: World, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = registry.put("ada/slow:1", rootfs.bare(), Env=["PATH=/bin"])
    registry.hold = threading.Event()
    monkeypatch.setattr(references, "SILENCE_S", 2.0)
    said = await world.fails("provider_unavailable", kind="reference", source=reference)
    assert "nothing came of it for 2 s" in said


async def test_a_pull_that_is_broken_off(world: World, registry: Registry) -> None:
    reference = registry.put("ada/slow:1", rootfs.bare(), Env=["PATH=/bin"])
    registry.hold = threading.Event()
    pulling = trio.Event()

    async def hear(words: str) -> None:
        if words.startswith("pulling"):
            pulling.set()

    before = world.everything()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: world.image(kind="reference", source=reference, progress=hear))
        with trio.fail_after(patient(60)):
            await pulling.wait()
        nursery.cancel_scope.cancel()
    assert world.everything() == before


async def test_the_beginning_of_an_id_finds_nobodys_image(world: World) -> None:
    """As would an engine: what another user has built would be found by trying."""
    image_id, made = await world.built(f"FROM {BUSYBOX}\nENV SECRET=1\n")
    beginning = made.digest.removeprefix("sha256:")[:12]
    for source in (made.digest, beginning, f"sandkeep:{image_id}", f"docker.io/library/sandkeep:{image_id}"):
        with pytest.raises(SandkeepError) as caught:
            await world.image(kind="reference", source=source)
        assert caught.value.code in ("invalid", "not_found", "provider_unavailable")
        with pytest.raises(CallerError, match="invalid"):
            await world.built(f"FROM {source}\n")
        with pytest.raises(CallerError, match="invalid"):
            await world.built(f"FROM {BUSYBOX}\nCOPY --from={source} /bin /x\n")


async def test_what_a_base_adds_to_builds_is_looked_at_too(world: World, registry: Registry) -> None:
    reference = registry.put("ada/evil:1", rootfs.busybox(), Env=["PATH=/bin"], OnBuild=["ADD http://localhost/x /x"])
    with pytest.raises(CallerError, match="ADD fetches nothing"):
        await world.built(f"FROM {reference}\n")


# -- a directory on a base --------------------------------------------------------------------------------------------


async def test_a_directory_is_put_onto_its_base_for_its_user(world: World) -> None:
    world.write(a="1", sub__b="2", Dockerfile="FROM nothing\n", left_out="3")
    (world.place / ".dockerignore").write_text("left_*\n")
    (world.place / "link").symlink_to("a")
    (world.place / "sub" / "run").write_text("#!/bin/sh\n")
    (world.place / "sub" / "run").chmod(0o750)
    base = world.engine.derived("test/owned:1", f"FROM {BUSYBOX}\nUSER 1234:1234\n")
    image_id, made = await world.image(kind="directory", base=base)
    found = world.files(image_id)
    assert {name for name in found if name.startswith("workspace/")} == {
        f"workspace/{name}" for name in ("a", "sub", "sub/b", "sub/run", "link", "Dockerfile", ".dockerignore")
    }
    assert (found["workspace/a"].uid, found["workspace/a"].gid) == (1234, 1234)
    assert found["workspace/sub/run"].mode & 0o777 == 0o750
    assert found["workspace/link"].linkname == "a"
    assert (made.details["workdir"], made.details["writable"]) == ("/workspace", True)


@pytest.mark.soak
async def test_an_empty_directory_on_a_base(world: World) -> None:
    _, made = await world.image(kind="directory", base=BUSYBOX)
    assert made.details["workdir"] == "/workspace"


@pytest.mark.soak
async def test_sandboxes_that_run_as_somebody_else_own_their_workspace(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOX_DOCKER_USER", "4321:8765")
    world.write(a="1")
    image_id, _ = await world.image(kind="directory", base=BUSYBOX)
    assert (world.files(image_id)["workspace/a"].uid, world.files(image_id)["workspace/a"].gid) == (4321, 8765)


# -- what is found out ------------------------------------------------------------------------------------------------


@pytest.mark.soak
async def test_what_an_image_has(world: World) -> None:
    _, made = await world.image(kind="reference", source=world.engine.tools())
    assert made.details["shell"] == "/bin/sh"
    assert made.details["tmux"] is True
    assert made.details["why"] is None
    assert made.details["user"] == (0, 0)


async def test_an_image_without_a_shell(world: World) -> None:
    _, made = await world.image(kind="reference", source=world.engine.bare())
    assert made.details["shell"] is None
    assert made.details["why"] == "its image has no shell"


@pytest.mark.soak
async def test_the_user_of_an_image_without_a_shell(world: World) -> None:
    name = world.engine.derived("test/bareguest:1", f"FROM {world.engine.bare()}\nUSER guest\n")
    _, made = await world.image(kind="reference", source=name)
    assert made.details["user"] == (1234, 1234)


@pytest.mark.soak
async def test_a_shell_elsewhere(world: World) -> None:
    name = world.engine.derived(
        "test/elsewhere:1",
        f"FROM {BUSYBOX}\nRUN mkdir -p /opt/bin && cp /bin/busybox /opt/bin/busybox && "
        "/opt/bin/busybox --install -s /opt/bin && rm -r /bin\nENV PATH=/opt/bin\n",
    )
    _, made = await world.image(kind="reference", source=name)
    assert made.details["shell"] == "/opt/bin/sh"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 3", "ended with 3"),
        ("echo hi; echo sh /bin/sh; echo end", "does not work"),
        pytest.param("echo sandkeep-probe; echo sh /bin/evil; exit 0", "does not work", marks=pytest.mark.soak),
        pytest.param("while :; do :; done", "did not answer", marks=pytest.mark.soak),
        pytest.param("yes", "did not answer", marks=pytest.mark.soak),
    ],
)
async def test_a_shell_that_lies(world: World, script: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandkeepd.providers.docker.image_probe.ANSWER_S", 3)
    made = await world.image_with_shell(script)
    assert made.details["shell"] is None
    assert why in made.details["why"]
    assert world.engine.containers(PROBE_LABEL) == []


@pytest.mark.soak
async def test_what_a_shell_may_say_is_bounded(world: World) -> None:
    lies = "sandkeep-probe\nsh ../x\ntmux ../y\nuid 99999999999\ngid 0\nend"
    made = await world.image_with_shell(f"echo '{lies}'")
    assert made.details["shell"] is None
    assert made.details["user"] == (0, 0)


async def test_the_probe_can_do_nothing(world: World) -> None:
    """Its own user, no rights, no network, nothing to write: as the image itself reports."""
    script = "(id -u; grep CapBnd /proc/self/status; echo $(ls /sys/class/net); touch /x) 2>&1; exit 9"
    made = await world.image_with_shell(script, "USER 77\n")
    assert "'77\\nCapBnd:\\t0000000000000000\\nlo\\ntouch: /x: Read-only" in made.details["why"]


@pytest.mark.soak
async def test_a_workspace_that_its_user_cannot_write(world: World) -> None:
    _, made = await world.built(
        f"FROM {BUSYBOX}\nRUN mkdir /mine && chown 5:6 /mine && chmod 755 /mine\nWORKDIR /mine\nUSER 7\n"
    )
    assert (made.details["workdir"], made.details["writable"]) == ("/mine", False)
    _, made = await world.built(
        f"FROM {BUSYBOX}\nRUN mkdir /mine && chown 5:6 /mine && chmod 755 /mine\nWORKDIR /mine\nUSER 5\n"
    )
    assert made.details["writable"] is True


@pytest.mark.soak
async def test_a_user_that_the_image_does_not_know(world: World) -> None:
    await world.fails("invalid", f"FROM {BUSYBOX}\nUSER nobody-knows\n")


# -- removing ---------------------------------------------------------------------------------------------------------


async def test_removing_is_safe_to_repeat_and_takes_the_image_along(world: World) -> None:
    image_id, made = await world.built(f"FROM {BUSYBOX}\nENV GONE=1\n")
    await world.provider.images.remove(image_id)
    await world.provider.images.remove(image_id)
    status, _ = world.engine.ask("GET", f"/images/{made.digest}/json")
    assert status == 404


@pytest.mark.soak
async def test_removing_one_of_two_equal_images(world: World) -> None:
    world.write(Dockerfile=f"FROM {BUSYBOX}\nENV TWICE=1\n")
    first, made = await world.image()
    second, _ = await world.image()
    await world.provider.images.remove(second)
    assert world.engine.get(f"/images/sandkeep:{first}/json")["Id"] == made.digest


@pytest.mark.soak
async def test_an_image_that_somebody_else_uses_loses_only_our_name(world: World) -> None:
    image_id, made = await world.built(f'FROM {BUSYBOX}\nCMD ["sleep","1000"]\n')
    status, body = world.engine.ask("POST", "/containers/create?name=theirs", {"Image": made.digest})
    assert status == 201, body
    world.engine.ask("POST", "/containers/theirs/start")
    try:
        await world.provider.images.remove(image_id)
        assert world.engine.ask("GET", f"/images/sandkeep:{image_id}/json")[0] == 404
        assert world.engine.get("/containers/theirs/json")["State"]["Running"]
    finally:
        world.engine.ask("DELETE", "/containers/theirs?force=1")
        world.engine.ask("DELETE", f"/images/{made.digest}")


@pytest.mark.parametrize("labels", [[SANDBOX_LABEL], [PROBE_LABEL], [SANDBOX_LABEL, UNFINISHED_LABEL]])
async def test_labels_of_an_image_prove_nothing(world: World, labels: list[str]) -> None:
    """Whoever makes an image sets them, and all its containers have them: also those that others run of it."""
    values = " ".join(f"{name}={world.log_id}" for name in [LOG_LABEL, *labels])
    world.engine.derived("theirs:1", f"FROM {BUSYBOX}\nLABEL {values}\n")
    world.engine.ask("POST", "/containers/create?name=theirs", {"Image": "theirs:1"})
    try:
        await world.provider.clean_up(Owning())
        await world.provider.images.clean_up(Owning())
        await world.provider.terminate(world.log_id, {}, {})
        await world.provider.cleared(world.log_id)
        assert [c["Names"] for c in world.engine.get("/containers/json?all=1")] == [["/theirs"]]
        assert world.log_id not in (await world.provider.found())[0]
    finally:
        world.engine.ask("DELETE", "/containers/theirs?force=1")
        world.engine.ask("DELETE", "/images/theirs:1")
        world.engine._images.discard("theirs:1")


async def test_what_no_event_owns_is_removed_and_what_is_anothers_is_told(world: World) -> None:
    owned, _ = await world.built(f"FROM {BUSYBOX}\nENV OWNED=1\n")
    stray, _ = await world.built(f"FROM {BUSYBOX}\nENV STRAY=1\n")
    labels = {PROBE_LABEL: "img_gone", LOG_LABEL: world.log_id}
    world.engine.ask("POST", "/containers/create?name=probing", {"Image": BUSYBOX, "Labels": labels})
    labels = {UNFINISHED_LABEL: world.log_id}
    world.engine.ask("POST", "/containers/create?name=building", {"Image": BUSYBOX, "Labels": labels})
    theirs = {LOG_LABEL: world.log_id}
    world.engine.ask("POST", "/containers/create?name=theirs", {"Image": BUSYBOX, "Labels": theirs})
    world.engine.derived("sandkeep:img_foreign", f"FROM {BUSYBOX}\nLABEL {LOG_LABEL}=log_another\n")
    os.makedirs(world.provider.layout.build("img_half"))
    try:
        swept = await world.provider.images.clean_up(Owning(images=[owned]))
        assert f"image {stray}" in swept.removed
        assert f"image {owned}" not in swept.removed
        assert "image sandkeep:img_foreign" in swept.foreign
        names = [c["Names"][0] for c in world.engine.get("/containers/json?all=1")]
        assert names == ["/theirs"]
        assert world.provider.layout.builds() == []
        assert await world.provider.images.found() == [owned]
        assert (await world.provider.images.clean_up(Owning(images=[owned]))).removed == []
    finally:
        world.engine.ask("DELETE", "/containers/theirs?force=1")
        world.engine.ask("DELETE", "/images/sandkeep:img_foreign")
        world.engine._images.discard("sandkeep:img_foreign")


async def test_without_an_engine(tmp_path: Path) -> None:
    async with open_docker(
        str(tmp_path / "state"), disk_limit=1 << 30, log_id="log_x", engine=Engine(str(tmp_path / "none.sock"))
    ) as provider:
        (tmp_path / "Dockerfile").write_text("FROM scratch\n")
        for request in (
            ImageRequest(kind="reference", source="python", owner="uid:0"),
            ImageRequest(kind="dockerfile", source=str(tmp_path), owner="uid:0"),
        ):
            with pytest.raises(ProviderError, match="provider_unavailable"):
                await provider.images.make("img_1", request, ME, _silent)
        with pytest.raises(ProviderError, match="provider_unavailable"):
            await provider.images.remove("img_1")
        assert provider.layout.builds() == []


async def _silent(words: str) -> None:
    assert words

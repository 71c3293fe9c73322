"""Paths of the caller's machine in calls: relative ones are the caller's; text that could be two things is refused."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.support.clients import KINDS, Kind
from tests.support.expect import refused

from sandkeep.clients.host_paths import image_source
from sandkeep.errors import CallerError

pytestmark = pytest.mark.needs("bwrap")


@pytest.fixture
def daemon(new_daemon: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunningDaemon:
    """A daemon that finds no engine, in another directory than its callers'."""
    (tmp_path / "here" / "project" / "inner").mkdir(parents=True)
    (tmp_path / "here" / "project" / "hello").write_text("hello\n")
    monkeypatch.chdir(tmp_path / "here")
    daemon: RunningDaemon = new_daemon()
    daemon.start(DOCKER_HOST=f"unix://{tmp_path}/no-docker")  # no test asks a real registry
    return daemon


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_path_is_the_callers_and_never_a_reference(daemon: RunningDaemon, kind: Kind) -> None:
    async def body(client: Any) -> None:
        sources: list[Any] = [
            Path("project"),
            Path("project/../project"),
            "./project",
            "project/",
            Path.cwd() / "project",
        ]
        images = {(await client.image.create(source)).image_id for source in sources}
        images |= {(await client.images.create(source)).image_id for source in sources}
        assert len(images) == 1
        image = await client.image.get(images.pop())
        assert (image.source, image.kind) == (f"{os.getcwd()}/project", "directory")
        [branch] = (await client.branch.create(source=Path("project"))).sandboxes
        with pytest.raises(CallerError) as target:
            await client.branch.plan(branch.sandbox_id, Path("absent"))
        assert f"{os.getcwd()}/absent" in target.value.message

    kind.run(daemon.socket, body)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_text_that_could_be_both_is_refused_with_both_ways(daemon: RunningDaemon, kind: Kind) -> None:
    async def body(client: Any) -> None:
        for create in (client.image.create, client.images.create):
            with pytest.raises(CallerError) as both:
                await create("project")
            assert "./project" in both.value.message
            assert "docker.io/library/project" in both.value.message
            with pytest.raises(CallerError, match=r"a path is no reference"):
                await create("./project", base=Path("project"))
        with pytest.raises(CallerError, match=r"a path is no reference"):
            await client.session.ensure("s", image=Path("project"))

    kind.run(daemon.socket, body)


def test_the_command_and_the_clients_agree(daemon: RunningDaemon) -> None:
    both = daemon.cli("image", "create", "project", cwd=os.getcwd())
    assert both.returncode == 1
    for way in (b"./project", b"docker.io/library/project"):
        assert way in both.stderr
    given = daemon.cli("image", "create", "./project", cwd=os.getcwd())
    assert given.returncode == 0
    with daemon.connect() as client:
        assert client.image.create(Path("project")).image_id == given.stdout.decode().strip()
        refused("provider_unavailable", lambda: client.image.create("absent"))
        assert "no directory" in refused("invalid", lambda: client.image.create(Path("absent"))).message
        refused("invalid", lambda: client.image.create(""))


@pytest.mark.parametrize(
    ("source", "meaning"),
    [
        ("python:3.12", "python:3.12"),
        ("docker.io/library/project", "docker.io/library/project"),
        ("registry.example/team/app", "registry.example/team/app"),
        ("My Project", "/My Project"),
        ("_private", "/_private"),
        (".", ""),
        ("project/inner/", "/project/inner"),
        (Path("plain"), "/plain"),
        (Path("~"), "/~"),
        ("/etc", "/etc"),
    ],
)
def test_every_source_means_one_thing(
    source: Any, meaning: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    for name in ("project/inner", "My Project", "_private", "registry.example/team/app"):
        (here / name).mkdir(parents=True)
    (here / "plain").write_text("")
    monkeypatch.chdir(here)
    is_relative = meaning.startswith("/") and meaning != "/etc"
    assert image_source(source) == (f"{here}{meaning}" if is_relative or not meaning else meaning)


@pytest.mark.parametrize("source", ["project", "project/inner", "localhost", "dockerfile", "notes.txt"])
def test_a_name_that_could_be_both_names_the_way_that_each_is_taken(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project" / "inner").mkdir(parents=True)
    (tmp_path / "localhost").mkdir()
    (tmp_path / "dockerfile").write_text("FROM scratch\n")
    (tmp_path / "notes.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CallerError) as both:
        image_source(source)
    words = both.value.message.replace(",", "").split()
    directory, reference = (next(word for word in words if word.startswith(start)) for start in ("./", "docker.io/"))
    assert image_source(directory) == f"{tmp_path}/{source}"
    assert image_source(reference) == reference
    assert image_source(source, needs_directory=True) == f"{tmp_path}/{source}"

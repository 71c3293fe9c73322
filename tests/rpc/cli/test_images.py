"""Images for Docker by the command, against a real daemon and a real engine: which provider gets what, and what is
shown.
"""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon, daemon_in
from tests.support.expect import until

from sandkeep.cli.exit_codes import COMPLETE_VARIABLE
from sandkeep.compat import crafty

pytestmark = [pytest.mark.needs("bwrap"), pytest.mark.needs("docker")]

BUSYBOX = "test/busybox:1"


@pytest.fixture(scope="module")
def daemon(places: str, dockerd: Any) -> Iterator[RunningDaemon]:
    dockerd.busybox()
    settings = {"SANDBOX_DOCKER_NETWORK": "none", "SANDKEEP_DOCKER_BASE": BUSYBOX}
    with daemon_in(places, DOCKER_HOST=dockerd.host, **settings) as made:
        made.start()
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "hello").write_text("hello\n")
    return tmp_path


def made(daemon: RunningDaemon, *words: str, **options: Any) -> dict[str, Any]:
    """Make an image and answer what is known of it."""
    done = daemon.cli("image", "create", *words, **options)
    assert done.returncode == 0, done.stderr.decode()
    shown = daemon.cli("image", "get", done.stdout.decode().strip(), "--json")
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def fails(daemon: RunningDaemon, *words: str, **options: Any) -> str:
    done = daemon.cli("image", "create", *words, **options)
    assert done.returncode == 1, done.stdout
    return done.stderr.decode()


def test_a_directory_is_local_until_it_holds_a_dockerfile(daemon: RunningDaemon, project: Path) -> None:
    plain = made(daemon, str(project))
    assert (plain["provider"], plain["kind"], plain["docker_image_id"]) == ("local", "directory", None)
    (project / "Dockerfile").write_text(f"FROM {BUSYBOX}\nCOPY hello /workspace/\nWORKDIR /workspace\n")
    built = made(daemon, ".", cwd=project)
    assert (built["provider"], built["kind"], built["dockerfile"]) == ("docker", "dockerfile", "Dockerfile")
    assert built["docker_image_id"] == built["digest"]
    assert built["docker_image_tag"] == f"sandkeep:{built['image_id']}"
    assert made(daemon, str(project / "Dockerfile"))["image_id"] == built["image_id"]
    assert made(daemon, str(project), "--clean")["image_id"] != built["image_id"]
    assert made(daemon, str(project), "--provider", "local")["provider"] == "local"


def test_a_plain_directory_for_docker_gets_a_base(daemon: RunningDaemon, project: Path) -> None:
    found = made(daemon, str(project), "--provider", "docker")
    assert (found["provider"], found["kind"], found["base"]) == ("docker", "directory", BUSYBOX)
    assert made(daemon, str(project), "--base", BUSYBOX)["image_id"] == found["image_id"]


def test_what_is_no_path_is_a_reference(daemon: RunningDaemon, project: Path) -> None:
    found = made(daemon, BUSYBOX, cwd=project)
    assert (found["provider"], found["kind"], found["source"]) == ("docker", "reference", BUSYBOX)
    assert found["docker_image_tag"] == BUSYBOX
    box = daemon.cli("create", f"docker.io/{BUSYBOX}").stdout.decode().strip()
    assert json.loads(daemon.cli("get", box, "--json").stdout)["image_id"] == found["image_id"]
    assert daemon.cli("rm", box).returncode == 0
    (project / "test").mkdir()
    (project / "test" / "busybox:1").mkdir()
    assert f"give ./{BUSYBOX} for the directory, docker.io/{BUSYBOX} for the image" in fails(
        daemon, BUSYBOX, cwd=project
    )
    assert made(daemon, f"./{BUSYBOX}", cwd=project)["kind"] == "directory"
    assert "there is no directory" in fails(daemon, "./nothing", cwd=project)


def test_a_sandbox_of_what_was_built(daemon: RunningDaemon, project: Path) -> None:
    (project / "Dockerfile").write_text(f"FROM {BUSYBOX}\nCOPY hello /workspace/\nWORKDIR /workspace\nUSER 1234\n")
    image = made(daemon, str(project))["image_id"]
    box = daemon.cli("create", image).stdout.decode().strip()
    done = daemon.cli("exec", box, "--", "sh", "-c", "cat hello; id -u")
    assert done.stdout.decode() == "hello\n1234\n"
    assert b"is used by" in daemon.cli("image", "rm", image).stderr
    assert daemon.cli("rm", box).returncode == 0
    assert daemon.cli("image", "rm", image).returncode == 0


def test_what_is_listed_and_shown(daemon: RunningDaemon, project: Path) -> None:
    found = made(daemon, str(project), "--base", BUSYBOX)
    listed = daemon.cli("image", "ls").stdout.decode()
    (line,) = [line for line in listed.splitlines() if line.startswith(found["image_id"])]
    assert found["docker_image_id"].removeprefix("sha256:")[:12] in line.split()
    shown = daemon.cli("image", "get", found["image_id"]).stdout.decode()
    for words in (f"docker image  {found['docker_image_id']}", f"docker tag    sandkeep:{found['image_id']}", BUSYBOX):
        assert words in shown
    told = daemon.cli("events").stdout.decode()
    assert f"{project} on {BUSYBOX}" in told


def test_a_build_that_fails_says_where(daemon: RunningDaemon, project: Path) -> None:
    (project / "Dockerfile").write_text(f"FROM {BUSYBOX}\nRUN echo too bad; exit 9\n")
    said = fails(daemon, str(project))
    assert "step 2/2 (line 2, RUN echo too bad; exit 9) with exit code 9 [invalid]\n  too bad\n" in said


def test_what_makes_no_sense_is_refused_before_anything_happens(daemon: RunningDaemon, project: Path) -> None:
    before = json.loads(daemon.cli("status", "--json").stdout)["position"]
    (project / "notes.txt").write_text("")
    for words in (
        ["python", "--base", "x"], ["python", "--provider", "local"], [".", "--dockerfile", "none"], ["no such:name"],
        [".", "--provider", "local", "--base", "x"], ["notes.txt"], [".", "--base", "x", "--dockerfile", "hello"],
        ["sandkeep:img_1"], ["/none"], [".", "--provider", "nomad"],
    ):  # fmt: skip
        assert fails(daemon, *words, cwd=project)
    assert json.loads(daemon.cli("status", "--json").stdout)["position"] == before


def test_progress_is_told_to_who_asks(daemon: RunningDaemon, project: Path) -> None:
    (project / "Dockerfile").write_text(f"FROM {BUSYBOX}\nRUN echo {os.path.basename(project)}\n")
    told: list[str] = []
    with daemon.connect() as client:
        client.image.create(str(project), progress=told.append)
    assert f"step 1/2: FROM {BUSYBOX}" in told


def test_the_records_of_crafty_name_what_docker_has(
    daemon: RunningDaemon, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDKEEP_SOCKET", daemon.socket)
    (project / "Dockerfile").write_text(f"FROM {BUSYBOX}\nCOPY hello /hello\n")
    record = crafty.get_image(crafty.create_image(str(project), False, crafty.Provider.DOCKER))
    assert isinstance(record, crafty.DockerImageRecord)
    assert record.docker_image_tag == f"sandkeep:{record.image_id}"
    assert record.docker_image_id is not None


def test_references_are_completed(daemon: RunningDaemon, project: Path) -> None:
    made(daemon, BUSYBOX)
    for line in ("sandkeep image create test/bu", "sandkeep image create . --base test/bu"):
        asked = partial(daemon.cli, line, env={COMPLETE_VARIABLE: "fish"}, cwd=project)
        until(lambda asked=asked: f"word\t{BUSYBOX}" in asked().stdout.decode())
    done = daemon.cli("sandkeep image create ./", env={COMPLETE_VARIABLE: "fish"}, cwd=project)
    assert done.stdout.decode().startswith("file\t./")

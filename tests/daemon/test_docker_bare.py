"""Images without a shell, with a real daemon on a real engine: nothing of them is run that it was not asked for."""

import contextlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandkeep.errors import SandkeepError

pytestmark = pytest.mark.needs("docker", "root", "busybox")


@pytest.fixture
def daemon(new_daemon: Callable[[], Any], dockerd: Any) -> Any:
    made = new_daemon()
    made.env["DOCKER_HOST"] = dockerd.host
    made.start()
    with made.connect() as client:
        image = client.image.create(dockerd.bare(), provider="docker").image_id
        client.sandbox.create(image, name="box")
    return made


def test_the_view_says_so_and_commands_run(daemon: Any) -> None:
    with daemon.connect() as client:
        (docker,) = [each for each in client.daemon.capabilities().providers if each.provider == "docker"]
        assert docker.features["images_without_shell"].works
        notes = client.sandbox.get("box").isolation.notes
        assert any("no shell" in note and "Docker engine" in note for note in notes)
        done = client.sandbox.exec("box", ["cat", "-", "/nothing"], stdin=b"in")
        assert (done.exit_code, done.stdout, b"/nothing" in done.stderr) == (1, b"in", True)
        done = client.sandbox.exec("box", "echo a shell is not there")
        assert (done.exit_code in (126, 127), done.stdout) == (True, b"")
        assert client.sandbox.exec("box", ["sleep", "1000"], timeout_s=0.3).timed_out
    assert daemon.cli("exec", "box", "--", "echo", "hi").stdout == b"hi\n"


REFUSED: dict[str, Callable[[Any], Any]] = {
    "secret": lambda client: client.sandbox.exec("box", ["echo"], secrets={"S": "x"}),
    "terminal": lambda client: client.process.launch("box", ["echo"], name="tty", tty=True),
    "shared secret": lambda client: client.sandbox.create(client.image.list().images[0].image_id, secrets={"S": "x"}),
}


def test_files_and_what_there_is_not(daemon: Any, tmp_path: Path) -> None:
    with daemon.connect() as client:
        client.sandbox.write_file("box", path="new/file", data=b"data", parents=True, mode=0o640)
        assert client.sandbox.read_file("box", path="new/file").data == b"data"
        assert client.sandbox.exec("box", ["cat", "new/file"]).stdout == b"data"
        assert [entry.name for entry in client.sandbox.list_dir("box", path="new").entries] == ["file"]
        for name, refused in REFUSED.items():
            with pytest.raises(SandkeepError) as caught:
                refused(client)
            assert caught.value.code == "not_supported", name
    done = daemon.cli("cp", "box:/etc", str(tmp_path / "etc"), check=False)
    assert (done.returncode != 0, b"no shell" in done.stderr) == (True, True)


def test_the_daemon_dies_under_them(daemon: Any) -> None:
    """What ended meanwhile and what runs on are known again; what was written meanwhile is not, and that is said."""
    with daemon.connect() as client:
        client.process.launch("box", ["cat", "/etc/group"], name="early")
        client.process.wait("box", "early")
        client.process.launch("box", ["sleep", "1"], name="meanwhile")
        client.process.launch("box", ["sleep", "1000"], name="lasting")
    daemon.kill()
    daemon.start()
    with daemon.connect() as client:
        assert client.process.wait("box", "meanwhile", timeout_s=40).exit_code == 0
        assert client.process.get("box", "lasting").status == "running"
        assert "lost" in client.process.read("box", "lasting").note
        assert client.process.read("box", "early").stdout.startswith(b"root:")
        assert client.process.read("box", "early").note is None
        client.process.signal("box", "lasting", signal="TERM")
        assert client.process.wait("box", "lasting", timeout_s=40).exit_code == 128 + signal.SIGTERM
        assert client.sandbox.exec("box", ["echo", "on"]).stdout == b"on\n"
        client.sandbox.terminate("box")
        assert client.process.read("box", "early").stdout.startswith(b"root:")
        assert "lost" in client.process.read("box", "lasting").note


@pytest.mark.parametrize("point", ["launch.written", "launch.sent", "launch.answered"])
def test_a_process_is_started_once_whenever_the_daemon_dies(daemon: Any, dockerd: Any, point: str) -> None:
    daemon.stop()
    daemon.start(SANDKEEP_FAILPOINT=point)

    def launch(client: Any) -> Any:
        return client.process.launch("box", ["sleep", "1000"], name="one", command_id="once")

    with contextlib.suppress(SandkeepError, OSError), daemon.connect(patience_s=0) as client:
        launch(client)
    daemon.process.wait(30)
    daemon.start()
    with daemon.connect() as client:
        assert launch(client).status == "running"
        box = client.sandbox.get("box").sandbox_id
        running = dockerd.get(f"/containers/sandbox-{box}/top")["Processes"]
        assert sum("sleep" in " ".join(words) for words in running) == 1
        client.process.signal("box", "one", signal="TERM")
        assert client.process.wait("box", "one", timeout_s=40).exit_code == 143

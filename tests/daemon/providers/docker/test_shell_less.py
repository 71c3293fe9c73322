"""Images without a shell, with a real daemon on a real engine: all is as elsewhere but for what takes a shell."""

import contextlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.app.test_adoption import recorded
from tests.support.expect import refused, until
from tests.support.patience import patient

from sandkeep.errors import SandkeepError

pytestmark = pytest.mark.needs("docker", "root", "busybox")


@pytest.fixture
def daemon(new_daemon: Callable[[], Any], dockerd: Any) -> Any:
    made = new_daemon()
    made.env["DOCKER_HOST"] = dockerd.host
    made.start()
    with made.connect() as client:
        image = client.image.create(dockerd.bare(), provider="docker").image_id
        client.sandbox.create(image, name="box", secrets={"TOKEN": "s3cret"})
    return made


def test_commands_run_and_the_view_says_what_there_is_not(daemon: Any) -> None:
    with daemon.connect() as client:
        (docker,) = [each for each in client.daemon.capabilities().providers if each.provider == "docker"]
        assert docker.features["images_without_shell"].works
        assert any("no shell" in note for note in client.sandbox.get("box").isolation.notes)
        done = client.sandbox.exec("box", ["cat", "-", "/nothing"], stdin=b"in")
        assert (done.exit_code, done.stdout, b"/nothing" in done.stderr) == (1, b"in", True)
        done = client.sandbox.exec("box", "echo a shell is not there")
        assert (done.exit_code, done.stdout) == (127, b"")
        assert client.sandbox.exec("box", ["sleep", "1000"], timeout_s=0.3).timed_out
        shown = client.sandbox.exec("box", ["cat", "/proc/self/environ"], secrets={"OWN": "x"}).stdout.split(b"\0")
        assert {b"TOKEN=s3cret", b"OWN=x"} < set(shown)
    assert daemon.cli("exec", "box", "--", "echo", "hi").stdout == b"hi\n"


def test_files_and_what_there_is_not(daemon: Any, tmp_path: Path) -> None:
    with daemon.connect() as client:
        client.sandbox.write_file("box", path="new/file", data=b"data", parents=True, mode=0o640)
        assert client.sandbox.read_file("box", path="new/file").data == b"data"
        assert client.sandbox.exec("box", ["cat", "new/file"]).stdout == b"data"
        assert [entry.name for entry in client.sandbox.list_dir("box", path="new").entries] == ["file"]
        told = refused("not_supported", client.process.launch, "box", ["echo"], name="tty", tty=True)
        assert "no shell" in told.message
    done = daemon.cli("cp", "box:/etc", str(tmp_path / "etc"), check=False)
    assert (done.returncode != 0, b"no shell" in done.stderr) == (True, True)


def test_the_daemon_dies_under_them(daemon: Any) -> None:
    """What they write meanwhile is in their journals, and how they ended is known."""
    with daemon.connect() as client:
        client.process.launch("box", ["sleep", "1"], name="meanwhile")
        client.process.launch("box", ["yes"], name="lasting")
        client.process.launch("box", ["cat"], name="reader", stdin=True)
    daemon.kill()
    lasting = next(f.stream for f in recorded(daemon.state_dir) if getattr(f.event, "name", "") == "lasting")
    [journal] = Path(daemon.state_dir).glob(f"sandboxes/*/out/p/{lasting}.stdout")
    written = until(lambda: journal.stat().st_size)
    until(lambda: journal.stat().st_size > written)
    daemon.start()
    with daemon.connect() as client:
        assert client.process.wait("box", "meanwhile", timeout_s=patient(40)).exit_code == 0
        client.process.signal("box", "lasting", signal="TERM")
        assert client.process.wait("box", "lasting", timeout_s=patient(40)).exit_code == 128 + signal.SIGTERM
        read = client.process.read("box", "lasting", stdout_offset=written - 2, max_bytes=4)
        assert (read.stdout, read.note) == (b"y\ny\n" if written % 2 == 0 else b"\ny\ny", None)
        client.process.write_stdin("box", "reader", b"still there", eof=True)
        assert client.process.wait("box", "reader", timeout_s=patient(40)).exit_code == 0
        assert client.process.read("box", "reader").stdout == b"still there"


@pytest.mark.parametrize("point", ["launch.written", "launch.sent", "launch.answered"])
def test_a_process_is_started_once_whenever_the_daemon_dies(daemon: Any, dockerd: Any, point: str) -> None:
    daemon.stop()
    daemon.start(SANDKEEP_FAILPOINT=point)

    def launch(client: Any) -> Any:
        return client.process.launch("box", ["sleep", "1000"], name="one", command_id="once")

    with contextlib.suppress(SandkeepError, OSError), daemon.connect(patience_s=0) as client:
        launch(client)
    daemon.process.wait(patient(60))
    daemon.start()
    with daemon.connect() as client:
        assert launch(client).status == "running"
        box = client.sandbox.get("box").sandbox_id

        def sleeping() -> int:
            running = dockerd.get(f"/containers/sandbox-{box}/top")["Processes"]
            return sum("sleep" in " ".join(words) for words in running)

        until(sleeping)  # it runs from its fork on, which is before it is the program
        assert sleeping() == 1
        client.process.signal("box", "one", signal="TERM")
        assert client.process.wait("box", "one", timeout_s=patient(40)).exit_code == 143

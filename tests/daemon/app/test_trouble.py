"""What a daemon says when its surroundings are not right: one sentence that tells what to do, and nothing half made."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.support import disks, template
from tests.support.expect import until
from tests.support.patience import patient
from tests.support.users import as_user, command_as

from sandkeep.blocking import connect
from sandkeep.errors import SandkeepError
from sandkeep.settings.all import ALL_SETTINGS
from sandkeepd.app.settings import check_settings

USER = 40_002


def fails_to_start(root: str, **environment: str) -> str:
    """What a daemon that cannot start says; it ends with 1."""
    env = {**os.environ, "SANDKEEP_STATE_DIR": f"{root}/state", "SANDKEEP_SOCKET": f"{root}/sock", **environment}
    done = template.run([sys.executable, "-m", "sandkeepd.main"], env, patient(30))
    said = done.stderr.decode()
    assert done.returncode == 1, said
    lines = said.strip().splitlines()
    assert len(lines) == 1, said
    assert lines[0].startswith("sandkeepd: ")
    return lines[0]


@pytest.fixture
def root(places: str) -> str:
    folder = tempfile.mkdtemp(dir=places)
    os.chmod(folder, 0o711)
    return folder


@pytest.fixture
def source(root: str) -> str:
    folder = Path(root, "source")
    folder.mkdir()
    folder.joinpath("hello").write_text("hello\n")
    for path, mode in ((folder, 0o755), (folder / "hello", 0o644)):
        path.chmod(mode)
    return str(folder)


# -- at the start -----------------------------------------------------------------------------------------------------


def test_a_socket_path_that_is_too_long(root: str) -> None:
    said = fails_to_start(root, SANDKEEP_SOCKET=f"{root}/{'x' * 120}")
    assert "SANDKEEP_SOCKET" in said
    assert "shorter" in said
    assert os.listdir(root) == []


def test_a_second_daemon_on_the_same_state(running_daemon: Any, root: str) -> None:
    said = fails_to_start(root, SANDKEEP_STATE_DIR=running_daemon.state_dir)
    assert "another daemon" in said.lower()


def test_a_second_daemon_on_the_same_socket(running_daemon: Any, root: str) -> None:
    assert "already listening" in fails_to_start(root, SANDKEEP_SOCKET=running_daemon.socket)
    assert os.listdir(root) == []
    with running_daemon.connect() as client:
        client.daemon.ping()


@pytest.mark.needs("root")
def test_a_read_only_state_directory(root: str) -> None:
    state = Path(root, "state")
    state.mkdir(0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", state], check=True)
    try:
        said = fails_to_start(root)
    finally:
        disks.umount(str(state))
    assert "make it writable, or set SANDKEEP_STATE_DIR" in said
    assert os.listdir(state) == []


def test_a_file_in_place_of_the_state_directory(root: str) -> None:
    Path(root, "state").write_text("mine")
    assert "SANDKEEP_STATE_DIR" in fails_to_start(root)
    assert Path(root, "state").read_text() == "mine"


def test_a_malformed_setting(root: str) -> None:
    assert "SANDKEEP_DISK_LIMIT='lots'" in fails_to_start(root, SANDKEEP_DISK_LIMIT="lots")
    said = fails_to_start(root, SANDKEEP_QUOTA="sandboxes=lots")
    assert "SANDKEEP_QUOTA='sandboxes=lots' cannot be used: give sandboxes a whole number, or unlimited" in said
    assert "SANDKEEP_SESSION_KEEP='abc'" in fails_to_start(root, SANDKEEP_SESSION_KEEP="abc")  # read hours later


def test_no_malformed_setting_is_answered_in_the_words_of_python() -> None:
    said = []
    for name, setting in ALL_SETTINGS.items():
        for text in ("abc", "-1", "nan", "1e400"):
            try:
                setting({name: text})
            except SandkeepError as error:
                said.append(error.message)
    assert said
    assert [message for message in said if "literal" in message or "convert" in message] == []


def test_a_misspelt_setting_is_warned_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("SANDKEEP_SESION_KEEP", "SANDKEEP_FAILPOINT", "SANDKEEP_XYZ", "OTHER_SESSION_KEEP"):
        monkeypatch.setenv(name, "1h")
    check_settings()
    assert [(record.name_given, record.did_you_mean) for record in caplog.records] == [  # type: ignore[attr-defined]
        ("SANDKEEP_SESION_KEEP", "SANDKEEP_SESSION_KEEP")
    ]


def test_clients_are_told_why_a_service_could_not_start(new_daemon: Callable[[], Any]) -> None:
    """A service manager that has given up listens no more, and clients do not wait for what cannot come."""
    daemon = new_daemon()
    daemon.start()
    with connect(daemon.socket, patience_s=1e9) as client:
        client.daemon.ping()
        daemon.stop()
        own = {"SANDKEEP_STATE_DIR": daemon.state_dir, "SANDKEEP_SOCKET": daemon.socket}
        fails_to_start(daemon.root, SANDKEEP_LOG_LEVEL="loud", **own)
        assert no_daemon(daemon.socket).startswith(f"no daemon is listening on {daemon.socket}: ")  # started by hand
        said = fails_to_start(daemon.root, SANDKEEP_LOG_LEVEL="loud", NOTIFY_SOCKET="/nobody", **own)
        told = f"the daemon of {daemon.socket} could not start: {said.removeprefix('sandkeepd: ')}"
        assert no_daemon(daemon.socket) == told
        with pytest.raises(SandkeepError) as caught:
            client.daemon.ping()
        assert (caught.value.code, caught.value.message) == ("not_ready", told)
        daemon.start()
        client.daemon.ping()
    daemon.stop()
    assert no_daemon(daemon.socket).startswith(f"no daemon is listening on {daemon.socket}: ")


def no_daemon(path: str) -> str:
    """What a client says that finds nobody listening."""
    with pytest.raises(SandkeepError) as caught:
        connect(path)
    assert caught.value.code == "not_ready"
    return caught.value.message


def test_a_state_directory_of_another_version(new_daemon: Callable[[], Any]) -> None:
    daemon = new_daemon()
    daemon.start()
    daemon.stop()
    path = Path(daemon.state_dir, "events.db")
    original = path.read_bytes()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = 999 WHERE key = 'schema'")
    db.close()
    newer = path.read_bytes()
    assert newer != original
    assert "version" in fails_to_start(daemon.root, SANDKEEP_STATE_DIR=daemon.state_dir)
    assert path.read_bytes() == newer
    path.write_bytes(original)


def test_a_log_that_lost_its_end_is_refused(running_daemon: Any, source: str) -> None:
    """metadata.json has seen more than the log holds: nothing is changed until somebody looks."""
    daemon = running_daemon
    with daemon.connect() as client:
        image_id = client.image.create(source).image_id
        box = client.sandbox.create(image_id).sandbox_id
    daemon.stop()
    document = Path(daemon.state_dir, "sandboxes", box, "metadata.json")
    original = document.read_text()
    position = original.partition('"position": ')[2].partition(",")[0]
    document.write_text(original.replace(f'"position": {position},', '"position": 900,'))
    daemon.start()
    with daemon.connect() as client:
        status = client.daemon.status()
        assert not status.healthy
        assert "has seen 900" in status.problems[0]
        with pytest.raises(SandkeepError) as caught:
            client.sandbox.create(image_id)
        assert caught.value.code == "storage_unavailable"
    daemon.stop()
    document.write_text(original)
    daemon.start()
    with daemon.connect() as client:
        assert client.daemon.status().healthy
        assert client.sandbox.get(box).status == "running"


def test_a_damaged_row_is_refused(running_daemon: Any, source: str) -> None:
    daemon = running_daemon
    with daemon.connect() as client:
        client.image.create(source)
    daemon.stop()
    with sqlite3.connect(f"{daemon.state_dir}/events.db") as db:
        db.execute("UPDATE events SET data = CAST(replace(data, 'local', 'lokal') AS BLOB) WHERE position = 2")
    db.close()
    daemon.start()
    with daemon.connect() as client:
        status = client.daemon.status()
        assert not status.healthy
        assert "position 2" in status.problems[0]
        assert not client.store.verify().ok


# -- while it runs ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(new_daemon: Callable[[], Any]) -> Iterator[Any]:
    """A daemon whose state directory is a disk of 24 MB."""
    daemon = new_daemon()
    os.mkdir(daemon.state_dir, 0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=0700", "tmpfs", daemon.state_dir], check=True)
    daemon.start()
    yield daemon
    daemon.clear()
    disks.umount(daemon.state_dir)


@pytest.mark.needs("root")
@pytest.mark.needs("bwrap")
def test_a_full_disk(small_disk: Any, source: str) -> None:
    """Changes are refused with a sentence, reads and ending go on, and all goes on by itself when there is room
    again.
    """
    big = Path(source, "big")
    big.write_bytes(os.urandom(30_000_000))
    big.chmod(0o644)
    with small_disk.connect() as client:
        with pytest.raises(SandkeepError) as caught:
            client.image.create(source)
        assert caught.value.code == "storage_unavailable"
        assert os.listdir(f"{small_disk.state_dir}/images") == []
        big.unlink()
        image_id = client.image.create(source).image_id
        box, other = (client.sandbox.create(image_id).sandbox_id for _ in range(2))
        filler = Path(small_disk.state_dir, "filler")
        disks.fill(filler)
        refusals = [refusal for _ in range(300) if (refusal := _refusal(client, box))]
        assert refusals, "the disk never was full"
        assert {refusal.code for refusal in refusals} == {"storage_unavailable"}, refusals
        assert Path(small_disk.state_dir, "ballast").stat().st_size  # kept for those that must not fail
        assert client.sandbox.get(box).status == "running"
        assert client.sandbox.terminate(other).status == "stopped"
        filler.unlink()
        until(lambda: _refusal(client, box) is None)
        assert client.sandbox.exec(box, ["cat", "hello"]).stdout == b"hello\n"
        # `metadata.json` is written a moment after the log.
        until(lambda: client.daemon.status().problems == [], seen=lambda: client.daemon.status().problems)
        client.sandbox.terminate(box)
        assert client.store.verify().problems == []


def _refusal(client: Any, box: str) -> SandkeepError | None:
    try:
        client.sandbox.exec(box, ["true"])
    except SandkeepError as error:
        return error
    return None


# -- a user's own daemon ----------------------------------------------------------------------------------------------


@pytest.fixture
def users_daemon(root: str) -> Iterator[str]:
    """The socket of a daemon that an ordinary user runs."""
    home = Path(root, "home")
    home.mkdir()
    os.chown(home, USER, USER)
    argv = [sys.executable, "-m", "sandkeepd.main", "--state-dir", f"{home}/state", "--socket", f"{home}/sock"]
    daemon = subprocess.Popen(command_as(USER, argv), env={**os.environ, "HOME": str(home)}, cwd="/")
    until(lambda: listens(f"{home}/sock") or daemon.poll() is not None)
    assert daemon.poll() is None
    yield f"{home}/sock"
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(patient(60)) == 0


def listens(path: str) -> bool:
    """Return True if somebody does there: for a moment there is a socket on which nobody does yet."""
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex(path) == 0


@pytest.mark.needs("root")
@pytest.mark.needs("bwrap")
def test_the_main_job_by_a_users_daemon(users_daemon: str, source: str) -> None:
    def work() -> tuple[Any, ...]:
        with connect(users_daemon) as client:
            box = client.sandbox.create(client.image.create(source).image_id).sandbox_id
            result = client.sandbox.exec(
                box, ["sh", "-c", "cat hello; echo more >>hello; ls /root; id -u"], secrets={"S": "x"}
            )
            view = client.sandbox.get(box)
            client.sandbox.terminate(box)
            return result.stdout, view.isolation, view.owner, client.sandbox.list().sandboxes

    stdout, isolation, owner, left = as_user(USER, work)
    assert stdout == b"hello\n1000\n"
    assert isolation.host_uid == USER
    assert isolation.mechanism == "bubblewrap"
    assert owner == f"uid:{USER}"
    assert left == []


@pytest.mark.needs("root")
def test_nobody_else_may_connect_to_a_users_daemon(users_daemon: str) -> None:
    def reach() -> str:
        try:
            with connect(users_daemon) as client:
                client.daemon.ping()
        except SandkeepError as error:
            return error.code
        return "reached"

    assert as_user(USER + 1, reach) == "permission_denied"
    assert as_user(USER, reach) == "reached"


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- >&- 2>&-"])
def test_a_daemon_without_streams(closed: str, new_daemon: Callable[[], RunningDaemon]) -> None:
    daemon = new_daemon()
    words = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "sandkeepd.main"]
    daemon.process = subprocess.Popen(words, env=daemon.env)
    daemon._wait_until_it_answers(daemon.process)
    with daemon.connect() as client:
        assert client.daemon.ping().pid == daemon.process.pid

"""SSH servers of sandboxes at Modal: a real client, a real server, and the tunnel between them."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon, daemon_in
from tests.support import sshd
from tests.support.expect import refused
from tests.support.kubernetes.images import TOOLS
from tests.support.patience import patient

from sandkeep.compat import crafty
from sandkeep.compat.crafty import Provider, ssh
from sandkeep.model import Sandbox, SandboxSpec

pytestmark = [
    pytest.mark.needs("root"), pytest.mark.needs("modal"),
    pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no SSH client on this machine"),
]  # fmt: skip


@pytest.fixture(scope="module")
def daemon(places: str, modal: Any) -> Iterator[RunningDaemon]:
    with daemon_in(places, **modal.environment) as daemon:
        daemon.start()
        yield daemon


@pytest.fixture(autouse=True)
def home(daemon: RunningDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SANDKEEP_SOCKET", daemon.socket)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> str:
    project = tmp_path_factory.mktemp("project")
    if why := sshd.lay_out(project / "files", tmp_path_factory.mktemp("sshd")):
        pytest.skip(why)
    (project / "Dockerfile").write_text(f"FROM {TOOLS}\nCOPY files /\nWORKDIR /workspace\n")
    return str(project)


def said(command: list[str], *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*command, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patient(180)
    )


def test_a_client_gets_in_with_its_key_and_trusts_no_other_server(project: str, home: Path, modal: Any) -> None:
    image_id = crafty.create_image(project, False, Provider.MODAL)
    sandbox_id = crafty.create_sandbox(image_id, Provider.MODAL)
    access = crafty.get_ssh(sandbox_id)
    assert access.identity_file.stat().st_mode & 0o777 == 0o600
    assert access.identity_file.parent.stat().st_mode & 0o777 == 0o700
    assert home in access.known_hosts_file.parents
    crafty.get_executor(sandbox_id).write_file("/workspace/note", "from outside\n")
    done = said(access.command, "cat /workspace/note; echo $SSH_HOST_KEY.$SSH_AUTHORIZED_KEY; exit 7")
    assert (done.returncode, done.stdout) == (7, "from outside\n.\n"), done.stderr
    assert crafty.list_processes() == ()

    other = home / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    stranger = [str(other) if word == str(access.identity_file) else word for word in access.command]
    done = said(stranger, "true")
    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr

    known = access.known_hosts_file
    name, kind, _ = known.read_text().split()
    known.write_text(f"{name} {kind} {Path(f'{other}.pub').read_text().split()[1]}\n")
    done = said(access.command, "true")
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr

    crafty.terminate_sandbox(sandbox_id)
    assert not access.identity_file.exists()
    refused("not_found", crafty.get_ssh, sandbox_id)


def test_the_server_outlives_the_daemon(project: str, daemon: RunningDaemon) -> None:
    sandbox_id = crafty.create_sandbox(crafty.create_image(project, False, Provider.MODAL), Provider.MODAL, ssh=True)
    access = crafty.get_ssh(sandbox_id)
    daemon.kill()
    try:
        done = said(access.command, "echo alone")
        assert (done.returncode, done.stdout) == (0, "alone\n"), done.stderr
    finally:
        daemon.start()
    assert said(crafty.get_ssh(sandbox_id).command, "echo again").stdout == "again\n"
    crafty.terminate_sandbox(sandbox_id)


def test_an_image_without_a_server_leaves_no_sandbox(home: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "Dockerfile").write_text(f"FROM {TOOLS}\n")
    image_id = crafty.create_image(str(project), False, Provider.MODAL)
    error = refused("not_supported", crafty.create_sandbox, image_id, Provider.MODAL, ssh=True)
    assert "install openssh-server in its image (there is no sshd)" in error.message
    assert crafty.list_sandboxes() == ()
    assert list((home / ".crafty" / "ssh").iterdir()) == []
    for options, code in (({}, "not_found"), ({"ssh": False}, "not_supported")):
        plain = crafty.create_sandbox(image_id, Provider.MODAL, **options)
        assert "openssh-server" in refused(code, crafty.get_ssh, plain).message
        crafty.terminate_sandbox(plain)


def test_only_modal_has_tunnels() -> None:
    error = refused("not_supported", crafty.create_sandbox, "img_1", Provider.LOCAL, ssh=True)
    assert "connect_to_sandbox" in error.message


@pytest.mark.parametrize("address", ["-oProxyCommand=x:22", "host:port", "a b:22", "host", "host:22\n", "h;x:22"])
def test_an_address_that_is_none_reaches_no_client(address: str) -> None:
    sandbox = Sandbox(
        sandbox_id="sbx_1", image_id="img_1", provider="modal", status="running", owner="uid:0",
        created_at="2026-11-28T00:00:00Z", spec=SandboxSpec(), ssh_address=address,
    )  # fmt: skip
    refused("not_supported", ssh.record, sandbox)

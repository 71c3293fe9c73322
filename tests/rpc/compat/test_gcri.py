"""The sandboxes of *GCRI*: the same suite over both strategies, and which of them is chosen."""

import logging
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.conftest import RunningDaemon

from sandkeep.compat import gcri
from sandkeep.compat.gcri import DockerSandbox, LocalSandbox, SandboxConfig, get_sandbox
from sandkeep.errors import SandkeepError

pytestmark = [pytest.mark.needs("bwrap"), pytest.mark.needs("docker")]


@pytest.fixture(scope="module")
def daemon(places: str, dockerd: Any) -> Iterator[RunningDaemon]:
    made = RunningDaemon(tempfile.mkdtemp(dir=places))
    os.chmod(made.root, 0o711)
    made.start(DOCKER_HOST=dockerd.host, SANDBOX_DOCKER_NETWORK="none")
    yield made
    made.clear()


@pytest.fixture(params=[DockerSandbox, LocalSandbox], ids=["docker", "local"])
def sandbox(
    request: pytest.FixtureRequest, daemon: RunningDaemon, dockerd: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[gcri.SandboxStrategy]:
    monkeypatch.setenv("SANDKEEP_SOCKET", daemon.socket)
    made = request.param(SandboxConfig(image=dockerd.python(), network_mode="none", timeout=20))
    yield made
    made.clean_up_all()


@pytest.fixture
def project(tmp_path: Path) -> str:
    for name in ("main.txt", ".git/config", "venv/x", "sub/node_modules/x", "sub/__pycache__/x", ".gcri/x", "sub/kept"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "link").symlink_to("/etc/hostname")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    return str(tmp_path)


def test_a_branch_has_the_project_without_what_is_ignored(sandbox: Any, project: str) -> None:
    container_id = sandbox.setup_branch(0, 1, project)
    assert re.fullmatch(r"gcri_(branch|local)_0_1_[0-9a-f]{8}", container_id)
    found = sandbox.execute_command(container_id, "find . -mindepth 1 | LC_ALL=C sort")
    assert found.split() == ["./binary", "./dangling", "./link", "./main.txt", "./sub", "./sub/kept"]
    assert sandbox.execute_command(container_id, "pwd; readlink link dangling; wc -c <binary").split() == [
        "/workspace", "/etc/hostname", "nowhere", "256",
    ]  # fmt: skip


def test_what_commands_say_is_in_the_words_of_the_originals(sandbox: Any, project: str) -> None:
    container_id = sandbox.setup_branch(0, 0, project)

    def run(command: str) -> str:
        answer: str = sandbox.execute_command(container_id, command)
        return answer

    assert run("echo out; echo err >&2; echo more") == "out\nmore\nerr\n"
    assert run("exit 3") == "Exit Code 3"
    assert run("true") == "(Success, no output)"
    assert run("echo kept >made; false || cat made") == "kept\n"
    assert run("printf '\\377'") == "�"
    assert [sandbox.execute_command(container_id, f"echo; exit {code}").exit_code for code in (0, 9)] == [0, 9]


def test_a_command_that_takes_too_long_is_ended_with_all_it_started(sandbox: Any, project: str) -> None:
    container_id = sandbox.setup_branch(0, 0, project)
    sandbox.config = SandboxConfig(timeout=0.5)
    said = sandbox.execute_command(container_id, "sleep 777 & sleep 777")
    assert said == "Error: Command timed out after 0.5 seconds."
    sandbox.config = SandboxConfig(timeout=30)
    count = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 77[7]'"
    assert sandbox.execute_command(container_id, count) == "0\n"


def test_a_python_program_leaves_no_script(sandbox: Any, project: str) -> None:
    container_id = sandbox.setup_branch(0, 0, project)
    code = "import os, sys\nprint(sorted(f for f in os.listdir() if f.startswith('_script_')) != [])\nsys.exit(4)"
    said = sandbox.execute_python(container_id, code)
    assert (said, said.exit_code) == ("True\n", 4)
    assert sandbox.execute_python(container_id, "EOF\n'''") != ""
    assert "_script_" not in sandbox.execute_command(container_id, "ls")


def test_branches_are_known_by_their_numbers_and_apart(sandbox: Any, project: str) -> None:
    one, two = sandbox.setup_branch(1, 0, project), sandbox.setup_branch(1, 1, project)
    assert (sandbox.get_container(1, 0), sandbox.get_container(1, 1)) == (one, two)
    sandbox.execute_command(one, "echo mine >main.txt")
    assert sandbox.execute_command(two, "cat main.txt") == "main.txt\n"
    sandbox.clean_up_container(one)
    with pytest.raises(SandkeepError, match="not_found"):
        sandbox.get_container(1, 0)
    assert sandbox.execute_command(one, "true").startswith("Error: ")
    assert sandbox.execute_command(two, "echo here") == "here\n"
    sandbox.clean_up_all()
    assert sandbox.execute_command(two, "true").startswith("Error: ")
    sandbox.clean_up_container(one)


def test_a_branch_that_cannot_be_set_up_leaves_nothing(sandbox: Any, daemon: RunningDaemon) -> None:
    with pytest.raises(SandkeepError, match="not_found"):
        sandbox.setup_branch(0, 0, "/no/such/project")
    with daemon.connect() as client:
        assert client.sandbox.list().sandboxes == []


def test_much_output_comes_whole(sandbox: Any, project: str) -> None:
    container_id = sandbox.setup_branch(0, 0, project)
    said = sandbox.execute_command(container_id, "head -c 3000000 /dev/zero | tr '\\0' x; echo end >&2")
    assert (len(said), said[-4:]) == (3_000_004, "end\n")


# -- choosing ---------------------------------------------------------------------------------------------------------


def test_docker_is_chosen_where_it_works_and_local_where_it_is_not_wanted(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDKEEP_SOCKET", daemon.socket)
    chosen = get_sandbox(SimpleNamespace(sandbox=SimpleNamespace(image="x", timeout=5)))
    assert isinstance(chosen, DockerSandbox)
    assert chosen.config == SandboxConfig(image="x", timeout=5)
    assert isinstance(get_sandbox(SimpleNamespace(sandbox=SimpleNamespace(enabled=False))), LocalSandbox)
    assert isinstance(get_sandbox(SimpleNamespace()), DockerSandbox)
    with daemon.connect() as client:
        assert not [e for e in client.event.list().events if e.type == "provider.fell_back"]


def test_without_docker_it_falls_back_with_a_warning_and_on_record(
    new_daemon: Any, project: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without = new_daemon()
    without.start(DOCKER_HOST=f"unix://{without.root}/none.sock")
    monkeypatch.setenv("SANDKEEP_SOCKET", without.socket)
    with caplog.at_level(logging.WARNING, "sandkeep.compat.gcri"):
        assert isinstance(get_sandbox(SimpleNamespace(sandbox=SandboxConfig())), LocalSandbox)
    assert caplog.messages == ["Docker unavailable, falling back to LocalSandbox"]
    with without.connect() as client:
        chosen = client.provider.choose(command_id="c")
        assert client.provider.choose(command_id="c") == chosen
        assert (chosen.provider, chosen.fell_back) == ("local", True)
        assert client.provider.choose(enabled=False).fell_back is False
        fell = [event.data for event in client.event.list().events if event.type == "provider.fell_back"]
        assert len(fell) == 2
        assert (fell[0]["asked"], fell[0]["used"]) == ("docker", "local")
        assert "is not running" in fell[0]["why"]
        for wanted in ({"source": "python"}, {"source": project, "provider": "docker"}):
            with pytest.raises(SandkeepError, match="provider_unavailable"):
                client.image.create(**wanted)


def test_a_configuration_that_makes_no_sense() -> None:
    with pytest.raises(SandkeepError, match=r"config\.sandbox"):
        get_sandbox(SimpleNamespace(sandbox=SimpleNamespace(timeout="soon")))

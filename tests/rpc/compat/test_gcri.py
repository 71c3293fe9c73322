"""The sandboxes of *GCRI*: the same suite over both strategies, and which of them is chosen."""

import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker import APIClient
from tests.conftest import ENGINES, RunningDaemon, daemon_in
from tests.support.expect import refused

from sandkeep.compat import gcri
from sandkeep.compat.gcri import (
    IGNORED_AT_HEAD,
    DockerSandbox,
    LocalSandbox,
    SandboxConfig,
    SandboxProtocol,
    docker_available,
    get_sandbox,
)
from sandkeep.errors import SandkeepError

pytestmark = pytest.mark.needs("bwrap")

LINES = "".join(f"line {number}\n" for number in range(1, 21))


@pytest.fixture(scope="module")
def daemon(request: pytest.FixtureRequest, places: str) -> Iterator[RunningDaemon]:
    host = request.getfixturevalue("dockerd").host if ENGINES["docker"]() is None else f"unix://{places}/none.sock"
    with daemon_in(places, DOCKER_HOST=host, SANDBOX_DOCKER_NETWORK="none") as made:
        made.start()
        yield made


@pytest.fixture(
    params=[pytest.param(DockerSandbox, marks=pytest.mark.needs("docker"), id="docker"), LocalSandbox],
    ids=["docker", "local"],
)
def sandbox(
    request: pytest.FixtureRequest, daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> Iterator[gcri.SandboxStrategy]:
    monkeypatch.setenv("SANDKEEP_SOCKET", daemon.socket)
    image = {"image": request.getfixturevalue("dockerd").python()} if request.param is DockerSandbox else {}
    made = request.param({**image, "network_mode": "none", "timeout": 20})
    yield made
    made.clean_up_all()


not_in_docker = pytest.mark.parametrize(
    "sandbox",
    [
        pytest.param(DockerSandbox, marks=[pytest.mark.needs("docker"), pytest.mark.soak], id="docker"),
        pytest.param(LocalSandbox, id="local"),
    ],
    indirect=True,
)
"""For what both strategies have from their one base, where the engine has no part in it. The soak has it in Docker."""


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
    assert found.split() == [
        "./.gcri_baseline", "./binary", "./dangling", "./link", "./main.txt", "./sub", "./sub/kept",
    ]  # fmt: skip
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
    assert (said.timed_out, said.exit_code == 0) == (True, False)
    for seconds in (1.5, 30.5):  # it may not have begun in the first of them
        sandbox.config = SandboxConfig(timeout=seconds)
        said = sandbox.execute_command(container_id, "echo so far; echo failed >&2; sleep 777")
        if "failed" in said:
            break
    assert said == f"Error: Command timed out after {seconds} seconds.\nso far\nfailed\n"
    sandbox.config = SandboxConfig(timeout=30)
    count = "cat /proc/[0-9]*/cmdline 2>&- | tr '\\0' ' ' | grep -c 'sleep 77[7]'"
    assert sandbox.execute_command(container_id, count) == "0\n"


@not_in_docker
def test_a_python_program_leaves_no_script(sandbox: Any, project: str) -> None:
    container_id = sandbox.setup_branch(0, 0, project)
    code = "import os, sys\nprint(sorted(f for f in os.listdir() if f.startswith('_script_')) != [])\nsys.exit(4)"
    said = sandbox.execute_python(container_id, code)
    assert (said, said.exit_code) == ("True\n", 4)
    assert sandbox.execute_python(container_id, "EOF\n'''") != ""
    assert "_script_" not in sandbox.execute_command(container_id, "ls")


@not_in_docker
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


@not_in_docker
def test_all_branches_end_also_those_set_up_twice(sandbox: Any, project: str, daemon: RunningDaemon) -> None:
    def set_up(branch: int) -> str:
        container_id: str = sandbox.setup_branch(0, branch, project)
        return container_id

    with ThreadPoolExecutor(3) as threads:  # which all make an image
        ids = list(threads.map(set_up, (0, 0, 1)))
    assert (sandbox.get_container(0, 0) in ids[:2], len(set(ids))) == (True, 3)
    with daemon.connect() as client:
        assert len({branch.base_id for branch in client.branch.list().branches}) == 1
        sandbox.clean_up_all()
        assert (client.sandbox.list().sandboxes, client.image.list().images) == ([], [])


@not_in_docker
def test_much_output_comes_whole(sandbox: Any, project: str) -> None:
    container_id = sandbox.setup_branch(0, 0, project)
    said = sandbox.execute_command(container_id, "head -c 3000000 /dev/zero | tr '\\0' x; echo end >&2")
    assert (len(said), said[-4:]) == (3_000_004, "end\n")


# -- verification and results -----------------------------------------------------------------------------------------


@not_in_docker
def test_one_source_is_used_again_and_copied_for_those_that_come_later(
    sandbox: Any, project: str, daemon: RunningDaemon
) -> None:
    ids = {branch: sandbox.setup_branch(0, branch, project) for branch in range(3)}
    sandbox.execute_command(ids[1], "echo mine >made")
    same, alike = {"index": 0, "source_indices": [1]}, SimpleNamespace(index=5, source_indices=[1, 1])
    verified = sandbox.setup_verification_branches(0, [same, alike], ids)
    assert verified == {0: ids[1], 5: sandbox.get_container(0, "v_5")}
    assert sandbox.get_container(0, "v_0") == sandbox.get_container(0, 1) == ids[1] != verified[5]
    assert sandbox.execute_command(verified[5], "cat made; echo other >made") == "mine\n"
    assert sandbox.execute_command(ids[1], "cat made") == "mine\n"
    for unused in (0, 2):
        refused("not_found", sandbox.get_container, 0, unused)
    later = sandbox.setup_verification_branches(0, [{"index": 1, "source_indices": [1]}], {1: ids[1]})
    assert later[1] not in {ids[1], verified[5]}
    with daemon.connect() as client:
        assert len(client.sandbox.list().sandboxes) == 3
        sandbox.clean_up_all()
        assert (client.sandbox.list().sandboxes, client.image.list().images) == ([], [])


def test_several_sources_are_merged_and_committed_without_what_is_ignored(sandbox: Any, tmp_path: Path) -> None:
    """Neither do unchanged files undo changes, nor deleted ones come back; caches are in nobody's way."""
    host = tmp_path / "host"
    for name, text in (("lines", LINES), ("old", "old\n"), (".git/config", "g\n"), ("d/__pycache__/x", "host\n")):
        (host / name).parent.mkdir(parents=True, exist_ok=True)
        (host / name).write_text(text)
    ids = {branch: sandbox.setup_branch(7, branch, str(host)) for branch in range(3)}
    for branch, command in enumerate((
        "sed -i 's/line 2$/TWO/' lines; rm old; mkdir -p d/__pycache__; echo a >d/__pycache__/x",
        "sed -i 's/line 19$/NINETEEN/' lines; mkdir d/sub; echo new >d/sub/new; chmod 755 d/sub/new",
        "mkdir d/__pycache__ venv; echo b >d/__pycache__/x; echo v >venv/v",
    )):  # fmt: skip
        assert sandbox.execute_command(ids[branch], command) == "(Success, no output)"
    verified = sandbox.setup_verification_branches(7, [{"index": 0, "source_indices": [0, 1, 2]}], ids)[0]
    assert re.fullmatch(r"gcri_merged_[0-9a-f]{8}", verified)
    assert sandbox.execute_command(verified, "ls venv; cat lines; test -e old || echo gone") == (
        LINES.replace("line 2\n", "TWO\n").replace("line 19", "NINETEEN")
        + "gone\nls: cannot access 'venv': No such file or directory\n"
    )
    assert sandbox.execute_command(verified, "mkdir venv; echo v >venv/v") == "(Success, no output)"
    assert sandbox.commit_to_host(verified, str(host)) is None
    found = {str(path.relative_to(host)) for path in host.rglob("*") if path.is_file()}
    assert found == {"lines", ".git/config", "d/__pycache__/x", "d/sub/new"}
    assert "TWO" in (host / "lines").read_text()
    assert "NINETEEN" in (host / "lines").read_text()
    assert (host / "d/__pycache__/x").read_text() == "host\n"
    assert (host / "d/sub/new").stat().st_mode & 0o777 == 0o755


@not_in_docker
def test_a_host_that_changed_is_not_overwritten(sandbox: Any, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a\n")
    container_id = sandbox.setup_branch(0, 0, str(tmp_path))
    sandbox.execute_command(container_id, "echo mine >a; echo mine >b; mkdir __pycache__; echo c >__pycache__/c")
    (tmp_path / "a").write_text("theirs\n")
    refused("host_changed", sandbox.commit_to_host, container_id, str(tmp_path))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "theirs\n"}
    (tmp_path / "a").write_text("a\n")
    sandbox.commit_to_host(container_id, str(tmp_path))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "mine\n", "b": "mine\n"}
    sandbox.execute_command(container_id, "echo again >a; rm b")
    sandbox.commit_to_host(container_id, str(tmp_path))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "again\n"}


@not_in_docker
def test_a_conflict_leaves_nothing_and_is_decided_by_selection_or_policy(
    sandbox: Any, tmp_path: Path, daemon: RunningDaemon
) -> None:
    (tmp_path / "lines").write_text(LINES)
    ids = {branch: sandbox.setup_branch(0, branch, str(tmp_path)) for branch in range(3)}
    for branch in (0, 1):
        sandbox.execute_command(ids[branch], f"sed -i 's/line 2$/of {branch}/' lines; echo {branch} >same")
    both = {"index": 2, "source_indices": [0, 1]}
    single = [{"index": 0, "source_indices": [0]}, {"index": 1, "source_indices": [0]}]
    error = refused("merge_conflict", sandbox.setup_verification_branches, 0, [*single, both], ids)
    assert [conflict["path"] for conflict in error.data["conflicts"]] == ["lines", "same"]
    assert (error.data["index"], error.data["source_indices"]) == (2, [0, 1])
    assert "lines, same" in error.message
    refused("not_found", sandbox.get_container, 0, "v_0")
    with daemon.connect() as client:
        assert {box.name for box in client.sandbox.list().sandboxes} == set(ids.values())
        assert {merge.status for merge in client.branch.merges().merges} <= {"ready"}
    chosen = sandbox.setup_verification_branches(
        0, [{**both, "file_selection": {"/workspace/lines": 1, "same": 0}}], ids
    )
    assert sandbox.execute_command(chosen[2], "grep of lines; cat same") == "of 1\n0\n"
    sandbox.config = gcri.config.configuration({"merge_policy": "ours", "file_selection": {"same": 1, "other": 0}})
    chosen = sandbox.setup_verification_branches(0, [both], {0: ids[0], 1: ids[1]})
    assert sandbox.execute_command(chosen[2], "grep of lines; cat same") == "of 0\n1\n"
    with daemon.connect() as client:
        sandbox.clean_up_all()
        assert (client.sandbox.list().sandboxes, client.image.list().images) == ([], [])


@not_in_docker
def test_merged_containers_have_the_later_version_of_what_clashes(
    sandbox: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The originals' own manager goes on with the first source, were this an error."""
    (tmp_path / "lines").write_text(LINES)
    (tmp_path / "gone").write_text("gone\n")
    ids = [sandbox.setup_branch(0, branch, str(tmp_path)) for branch in range(3)]
    sandbox.execute_command(ids[0], "sed -i 's/line 2$/TWO/; s/line 9$/of 0/' lines; echo 0 >same; echo edit >gone")
    sandbox.execute_command(ids[1], "sed -i 's/line 9$/of 1/' lines; echo 1 >same; rm gone")
    assert sandbox.merge_containers([ids[0], ids[0]], str(tmp_path)) == ids[0]
    refused("invalid", sandbox.merge_containers, [], str(tmp_path))
    merged = sandbox.merge_containers(ids, str(tmp_path))
    assert re.fullmatch(r"gcri_merged_[0-9a-f]{8}", merged)
    text = LINES.replace("line 2\n", "TWO\n").replace("line 9", "of 1")
    expected = {"lines": text, "same": "1\n", "gone": "edit\n"}
    assert sandbox.get_container_files(merged) == expected
    assert "changed differently, and taken from the later branch: gone, lines, same" in caplog.messages

    sandbox.config = SandboxConfig(merge_policy="fail")
    assert "gone, lines, same" in refused("merge_conflict", sandbox.merge_containers, ids, str(tmp_path)).message

    clone = sandbox.clone_container(merged, 1, 0)
    assert sandbox.get_container(1, 0) == clone != merged
    sandbox.execute_command(clone, "echo more >more; mkdir venv; echo v >venv/v")
    assert sandbox.get_container_files(clone) == {**expected, "more": "more\n"}
    assert "more" not in sandbox.get_container_files(merged)
    sandbox.commit_to_host(clone, str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"lines", "same", "gone", "more"}
    sandbox.clean_up_container(clone)
    assert sandbox.get_container_files(clone) == {}


def test_argv_is_executed_as_it_is(sandbox: Any, project: str) -> None:
    container_id = sandbox.setup_branch(0, 0, project)

    def run(*argv: str, **options: bool) -> str:
        output: str = sandbox._execute_in_container(container_id, list(argv), **options)
        return output

    assert run("printf", "%s|", "a  b", "$HOME") == "a  b|$HOME|"
    assert run("sh", "-c", "echo out; echo err >&2") == "out\nerr\n"
    assert run("sh", "-c", "echo out; echo err >&2", stdout_only=True) == "out\n"
    assert run("true", stdout_only=True) == ""
    assert run("sh", "-c", "echo out; echo err >&2; exit 4", stdout_only=True) == "Error (exit 4): err"
    big = run("sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x", stdout_only=True)
    assert len(big) == 3_000_000
    found = run("find", ".", "-newer", ".gcri_baseline", "-type", "f", stdout_only=True)
    assert found == ""


@pytest.mark.needs("docker")
def test_containers_are_written_to_outside_of_the_workspace_if_configured(
    daemon: RunningDaemon, dockerd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`docker` finds them by their ids, in a label."""
    monkeypatch.setenv("SANDKEEP_SOCKET", daemon.socket)
    pip = "RUN printf '#!/bin/sh\\necho pip \"$@\" >>/usr/installed\\n' >/usr/bin/pip && chmod 755 /usr/bin/pip"
    image = dockerd.derived("test/pip:1", f"FROM {dockerd.python()}\n{pip}\n")
    (tmp_path / "requirements.txt").write_text("something\n")
    sandbox = DockerSandbox({"image": image, "network_mode": "none", "timeout": 60, "writable_root": True})
    try:
        ids = [sandbox.setup_branch(0, branch, str(tmp_path)) for branch in range(2)]
        for branch, container_id in enumerate(ids):
            command = f"cat /usr/installed; echo tool >/usr/tool; chown 1:1 /usr/tool; echo {branch} >{branch}"
            assert sandbox.execute_command(container_id, command) == "pip install -q -r requirements.txt\n"
        clone = sandbox.clone_container(ids[0], 1, 0)
        assert sandbox.execute_command(clone, "cat /usr/tool") == "tool\n"
        verified = sandbox.setup_verification_branches(
            0, [{"index": 0, "source_indices": [0, 1]}], dict(enumerate(ids))
        )
        said = sandbox.execute_command(verified[0], "cat 0 1 /usr/installed; ls /usr/tool; echo x >/usr/x")
        assert said.startswith("0\n1\npip install -q -r requirements.txt\nls: cannot access '/usr/tool'")
        with APIClient(dockerd.host) as engine:
            for container_id in (*ids, clone, verified[0]):
                [container] = engine.containers(filters={"label": f"gcri.name={container_id}"})
                assert container["State"] == "running"
    finally:
        sandbox.clean_up_all()


@pytest.mark.parametrize(
    ("branch", "field"),
    [
        ({"index": 0, "source_indices": [4]}, "source_indices"),
        ({"index": 0, "source_indices": []}, "source_indices"),
        ({"index": 0}, "source_indices"),
        ({"index": 0, "source_indices": ["0"]}, "source_indices"),
        ({"source_indices": [0]}, "index"),
        (SimpleNamespace(index="a", source_indices=[0]), "index"),
        ({"index": 1, "source_indices": [0]}, "index"),
        ({"index": 0, "source_indices": [0], "file_selection": {"a": 1}}, "file_selection"),
    ],
)
def test_aggregated_branches_that_make_no_sense(branch: Any, field: str) -> None:
    """They are refused before anything happens: there is no daemon."""
    known = {0: "one", 1: "two"}
    first = {"index": 1, "source_indices": [0, 1]}
    error = refused("invalid", LocalSandbox().setup_verification_branches, 0, [first, branch], known)
    assert error.data["field"] == field


def test_a_selection_of_an_unknown_branch() -> None:
    sandbox = LocalSandbox({"file_selection": {"a": 7}})
    error = refused("invalid", sandbox.setup_verification_branches, 0, [], {0: "one"})
    assert (error.data["field"], "'a' is of branch 7" in error.message) == ("file_selection", True)


def test_both_strategies_have_the_protocol() -> None:
    names = {name for name in vars(SandboxProtocol) if not name.startswith("_")}
    assert names == {
        "setup_branch", "setup_verification_branches", "execute_command", "execute_python", "commit_to_host",
        "clean_up_container", "clean_up_all", "get_container",
    }  # fmt: skip
    assert isinstance(DockerSandbox(), SandboxProtocol)
    assert isinstance(LocalSandbox(), SandboxProtocol)
    assert not isinstance(SimpleNamespace(), SandboxProtocol)


# -- choosing ---------------------------------------------------------------------------------------------------------


@pytest.mark.needs("docker")
def test_docker_is_chosen_where_it_works_and_local_where_it_is_not_wanted(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDKEEP_SOCKET", daemon.socket)
    chosen = get_sandbox(SimpleNamespace(sandbox=SimpleNamespace(image="x", timeout=5)))
    assert isinstance(chosen, DockerSandbox)
    assert chosen.config == SandboxConfig(image="x", timeout=5)
    assert isinstance(get_sandbox(SimpleNamespace(sandbox=SimpleNamespace(enabled=False))), LocalSandbox)
    assert isinstance(get_sandbox(SimpleNamespace()), DockerSandbox)
    for config in ({"enabled": False}, {"sandbox": {"enabled": False}}, SimpleNamespace(enabled=False)):
        assert isinstance(get_sandbox(config), LocalSandbox)
    assert docker_available()
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
    assert not docker_available()
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


# -- configuration ----------------------------------------------------------------------------------------------------


class ADict(dict[str, Any]):
    """As GCRI's own: attributes are items, and there is every attribute."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name, ADict())


@pytest.mark.parametrize(
    "config",
    [
        {"sandbox": {"enabled": False, "cpu_limit": 2}, "num_branches": 2},
        {"enabled": False, "cpu_limit": 2},
        ADict(sandbox=ADict(enabled=False, cpu_limit=2)),
        ADict(enabled=False, cpu_limit=2),
        SimpleNamespace(sandbox=SimpleNamespace(enabled=False, cpu_limit=2), num_branches=2),
        SimpleNamespace(sandbox={"enabled": False, "cpu_limit": 2}),
        SimpleNamespace(enabled=False, cpu_limit=2),
        SandboxConfig(enabled=False, cpu_limit=2),
    ],
)
def test_a_configuration_in_every_form(config: Any) -> None:
    assert LocalSandbox(config).config == SandboxConfig(enabled=False, cpu_limit=2)


def test_the_defaults() -> None:
    for empty in (None, {}, {"sandbox": {}}, {"sandbox": None}, SimpleNamespace(), ADict(sandbox=ADict())):
        assert DockerSandbox(empty).config == SandboxConfig()
    default = SandboxConfig()
    assert (default.image, default.timeout, default.memory_limit, default.cpu_limit) == (
        "python:3.11-slim", 60, "512m", 1.0,
    )  # fmt: skip
    assert (default.network_mode, default.enabled, default.merge_policy) == ("bridge", True, None)
    assert default.ignore == (".git", "__pycache__", "venv", "node_modules", ".gcri")
    assert (*default.ignore, "env", ".idea", ".vscode") == IGNORED_AT_HEAD


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (SimpleNamespace(sandbox=SimpleNamespace(timeout="soon")), "timeout"),
        ({"enabled": "no"}, "enabled"),
        ({"enabeld": False}, "enabeld"),
        ({"sandbox": {"timeout": 5, "cpus": 1}}, "cpus"),
        (SimpleNamespace(sandbox=SimpleNamespace(memory="1g")), "memory"),
        ({"timeout": 0}, "timeout"),
        ({"memory_limit": "much"}, "memory_limit"),
        ({"memory_limit": 512}, "memory_limit"),
        ({"network_mode": "some"}, "network_mode"),
        ({"file_selection": {"a": "b"}}, "file_selection"),
        ({"sandbox": True}, "config.sandbox"),
        ("docker", "config"),
        ([], "config"),
    ],
)
def test_a_configuration_that_makes_no_sense(config: Any, field: str) -> None:
    error = refused("invalid", get_sandbox, config)
    assert (error.data["field"], field in error.message) == (field, True)

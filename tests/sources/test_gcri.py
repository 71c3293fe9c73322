"""The `SandboxManager` and the graph of GCRI, unmodified but for the function that gives it a sandbox."""

import importlib
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.conftest import ENGINES, RunningDaemon, daemon_in
from tests.sources.repositories import repository
from tests.support.patience import patient

from sandkeep.compat.gcri import get_sandbox

pytestmark = [pytest.mark.needs("source:GCRI"), pytest.mark.needs("bwrap")]

LINES = "".join(f"line {number}\n" for number in range(1, 21))


@pytest.fixture(scope="module")
def daemon(request: pytest.FixtureRequest, places: str) -> Iterator[RunningDaemon]:
    host = request.getfixturevalue("dockerd").host if ENGINES["docker"]() is None else f"unix://{places}/none.sock"
    with daemon_in(places, DOCKER_HOST=host, SANDBOX_DOCKER_NETWORK="none") as made:
        made.start()
        yield made


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its module of the manager, without the packages above, which import language models. loguru is a logger."""
    for name, about in {
        "loguru": {"logger": logging.getLogger("loguru")},
        "gcri": {"__path__": [str(repository("GCRI") / "gcri")]},
    }.items():
        module = ModuleType(name)
        vars(module).update(about)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("gcri.tools", "gcri.tools.docker_sandbox", "gcri.tools.utils"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("gcri.tools.utils")
    monkeypatch.setattr(module, "get_sandbox", get_sandbox)
    return module


@pytest.fixture(params=[pytest.param("docker", marks=pytest.mark.needs("docker")), "local"])
def manager(
    request: pytest.FixtureRequest, daemon: RunningDaemon, upstream: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Any]:  # fmt: skip
    monkeypatch.setenv("SANDKEEP_SOCKET", daemon.socket)
    project = tmp_path / "project"
    project.mkdir()
    (project / "lines").write_text(LINES)
    (project / "plain").write_text("plain\n")
    image = request.getfixturevalue("dockerd").python() if request.param == "docker" else "python:3.11-slim"
    sandbox = {
        "image": image, "timeout": 60, "memory_limit": "512m", "cpu_limit": 1.0, "network_mode": "none",
        "enabled": request.param == "docker",
    }  # fmt: skip
    config = SimpleNamespace(project_dir=str(project), run_dir=str(project / ".gcri"), sandbox=sandbox)
    made = upstream.SandboxManager(config)
    made.setup()
    yield made
    made.clean_up()
    with daemon.connect() as client:
        assert client.sandbox.list().sandboxes == []


def test_manager_runs_iterations_unmodified(manager: Any, caplog: pytest.LogCaptureFixture) -> None:
    ids = {branch: manager.setup_branch(0, branch) for branch in range(3)}
    run = manager.docker_sandbox.execute_command
    for branch, command in enumerate((
        "sed -i 's/line 2$/TWO/' lines; echo 0 >new; printf 'a\\377' >binary",
        "sed -i 's/line 19$/NINETEEN/' lines; echo 1 >new",
        "rm plain",
    )):  # fmt: skip
        assert run(ids[branch], command) == "(Success, no output)"
    two, nineteen = LINES.replace("line 2\n", "TWO\n"), LINES.replace("line 19", "NINETEEN")
    assert manager.get_branch_files(0) == {
        0: {"lines": two, "new": "0\n", "binary": "a�"}, 1: {"lines": nineteen, "new": "1\n"},
    }  # fmt: skip

    # Its aggregator reads files so, and goes by the marker of the setup.
    newer = ["find", "/workspace", "-newer", "/workspace/.gcri_baseline", "-type", "f"]
    listed = manager.docker_sandbox._execute_in_container(ids[1], newer, stdout_only=True)
    assert sorted(listed.split()) == ["/workspace/lines", "/workspace/new"]
    missing = manager.docker_sandbox._execute_in_container(ids[1], ["cat", "no such"], stdout_only=True)
    assert missing.startswith("Error (exit 1): ")

    base, summary = manager.create_base_sandbox([0], 0)
    assert summary.startswith("3 files from branches [0]: ")
    assert run(base, "cat new") == "0\n"
    base, summary = manager.create_base_sandbox([0, 1, 2], 0)
    assert summary.startswith("3 files from branches [0, 1, 2]: ")
    branch = manager.setup_branch_from_base(1, 0, base)
    assert re.fullmatch(r"gcri_(branch|local)_1_0_[0-9a-f]{8}", branch)
    merged = two.replace("line 19", "NINETEEN")
    assert (
        run(branch, "cat lines new; ls plain") == f"{merged}1\nls: cannot access 'plain': No such file or directory\n"
    )
    assert "changed differently, and taken from the later branch: new" in caplog.messages

    aggregated = [SimpleNamespace(index=0, source_indices=[0, 1]), SimpleNamespace(index=1, source_indices=[2])]
    verified = manager.setup_verification_branches(0, aggregated, ids)
    assert verified[1] == ids[2]
    assert verified[0] not in ids.values()
    assert run(verified[0], "cat lines new") == f"{merged}1\n"
    manager.commit_winning_branch(verified[0])
    project = Path(manager.project_dir)
    assert sorted(path.name for path in project.iterdir()) == [".gcri", "binary", "lines", "new", "plain"]
    assert (project / "lines").read_text() == merged
    assert manager.get_branch_files(1)[0]["new"] == "1\n"
    manager.docker_sandbox.clean_up_container(branch)
    assert manager.get_branch_files(1) == {}


@pytest.mark.parametrize("provider", [pytest.param("docker", marks=pytest.mark.needs("docker")), "local"])
def test_graph_runs_unmodified(
    request: pytest.FixtureRequest, daemon: RunningDaemon, provider: str, tmp_path: Path
) -> None:
    """Two iterations of its graph, whose models are a script: tools, the aggregator, the curation, and the commit."""
    python = repository("GCRI") / ".venv/bin/python"
    if not python.exists():
        pytest.skip(f"{python} is not there: tests/sources/README.md says how to make it")
    project, template = tmp_path / "project", tmp_path / "refinement.txt"
    project.mkdir()
    (project / "lines").write_text("0\n1\n2\n")
    template.write_text("{task} {strategy}")
    image = request.getfixturevalue("dockerd").python() if provider == "docker" else "python:3.11-slim"
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [str(python), str(tests / "support/gcri_graph.py"), str(project), provider, image, str(template)],
        cwd=project,
        env={
            "PATH": os.environ["PATH"], "PYTHONPATH": f"{repository('GCRI')}:{tests.parent / 'rpc'}",
            "SANDKEEP_SOCKET": daemon.socket,
        },
        capture_output=True, text=True, timeout=patient(300), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["result"] == {"decision": True, "final_output": "done", "best_branch_index": 0}, done.stderr
    assert seen["base"].startswith("7 files from branches [0, 1]: ")
    answers = {name: [answer for _, answer in each] for name, each in seen["answers"].items()}
    listed, lines, missing, *written, script, _ = answers["0 Hypothesis 1"]
    assert ".gcri_baseline" in listed
    assert (lines, missing) == ("0\n1\n2\n", "cat: 'no such': No such file or directory\n")
    assert written == [
        f'Successfully wrote to "{project}/made/by-1.py" in workspace.', 'Successfully wrote to "shared" in workspace.',
        "(Success, no output)", "Exit Code 3", "/workspace/made/by-1.py\n", "(Success, no output)",
        "./shared:1:of 1\n",
    ]  # fmt: skip
    assert re.fullmatch(r"\['.gcri_baseline', '_script_\w+.py', 'lines', 'made', 'shared'\]\n", script)
    assert answers["0 Verification 1"] == ["0\nline 1\n2\nof 1\n"] * 2
    assert answers["0 Decision"][:3] == ["of 0\n", "of 1\n", "of 2\n"]
    begun = "of 1\nby-python\nlines\nmade\nrefined-0\nrefined-1\nshared\n"  # the later branch's version of a file
    assert [answers[f"1 Hypothesis {branch}"][0] for branch in range(3)] == [begun] * 3
    files = {str(path.relative_to(project)): path.read_text() for path in project.rglob("*") if path.is_file()}
    assert {path: content for path, content in files.items() if not path.startswith(".gcri/")} == {
        "by-python": "yes", "final": "final 0\n", "lines": "0\nline 1\n2\n", "made/by-0.py": "print(0)\n",
        "made/by-1.py": "print(1)\n", "refined-0": "refined 0\n", "refined-1": "refined 1\n", "shared": "of 1\n",
    }  # fmt: skip
    with daemon.connect() as client:
        assert client.sandbox.list().sandboxes == []

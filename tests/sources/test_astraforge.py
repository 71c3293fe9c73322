"""AstraForge's toolkit, unmodified, its agents and its notebooks, against a gateway of ours."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sources.repositories import repository
from tests.support import astraforge_program
from tests.support.gateway import Gateway, gateway_in
from tests.support.patience import patient

pytestmark = pytest.mark.needs("source:AstraForge", "bwrap", "root")

PROGRAMS = Path(__file__).parents[1] / "support"
SDK = Path(__file__).parents[2] / "rpc"


def interpreter(name: str) -> str:
    python = repository("AstraForge") / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{python} is not there: tests/sources/README.md says how to make it")
    return str(python)


@pytest.fixture(scope="module")
def gateway(places: str) -> Iterator[Gateway]:
    with gateway_in(places) as gateway:
        python = Path(gateway.daemon.root, "image", "bin", "python")  # as the images of AstraForge call it
        python.parent.mkdir()
        python.write_text('#!/bin/sh\nexec python3 "$@"\n')
        python.chmod(0o755)
        with gateway.daemon.connect() as admin:
            gateway.image_id = admin.image.create(str(python.parents[1]), owner="key:ci").image_id
        gateway.daemon.stop()
        gateway.daemon.start(SANDKEEP_SESSION_IMAGE=gateway.image_id)
        with gateway.daemon.connect() as admin:
            gateway.unix, gateway.tcp = admin.daemon.status().http
        yield gateway
        assert "defect" not in gateway.daemon.said()


def run(gateway: Gateway, python: str, program: str, *arguments: str) -> Any:
    """What a program printed, as JSON: the SDK is on its path, and nothing else of ours."""
    command = [python, str(PROGRAMS / program), *arguments]
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(SDK),
        "ASTRA_FORGE_API_URL": f"http://127.0.0.1:{gateway.port}/api",
        "ASTRA_FORGE_API_KEY": gateway.key,
    }
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=patient(300))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("environment", "module"),
    [
        (".venv", "astraforge_toolkit"),
        (".venv", "sandkeep.compat.astraforge"),
        (".venv-newest", "sandkeep.compat.astraforge"),
    ],
)
def test_every_method(gateway: Gateway, environment: str, module: str) -> None:
    session_id = f"methods-{environment}-{module}".replace(".", "-")
    address = f"http://127.0.0.1:{gateway.port}/api"
    arguments = (module, address, gateway.key, gateway.image_id, session_id)
    seen = run(gateway, interpreter(environment), "astraforge_program.py", *arguments)
    astraforge_program.check(seen, session_id)


@pytest.mark.parametrize(
    ("environment", "module"),
    [
        (".venv", "astraforge_toolkit"),
        (".venv", "sandkeep.compat.astraforge"),
        (".venv-newest", "sandkeep.compat.astraforge"),
    ],
)
def test_an_agent_with_scripted_tool_calls(gateway: Gateway, environment: str, module: str) -> None:
    session_id = f"agent-{environment}-{module}".replace(".", "-")
    seen = run(gateway, interpreter(environment), "astraforge_agent.py", module, gateway.image_id, session_id)
    assert [word for word, answer in seen if "rror" in answer] == []
    answers = dict(seen)
    assert "one" in answers["read_file"]
    assert "first" in answers["grep"]
    assert "/workspace/a.txt" in answers["ls"]
    assert "/workspace/a.txt" in answers["glob"]
    if module != "astraforge_toolkit":  # its backend runs no commands for agents
        assert "first" in answers["execute"]


@pytest.mark.parametrize(
    ("notebook", "agents"),
    [
        ("examples/deepagent_client_quickstart.ipynb", 1),
        ("examples/deepagent_ralph_mode.ipynb", 1),
        ("examples/sandbox_file_roundtrip.ipynb", 0),
        ("astraforge-python-package/examples/local_api_test.ipynb", 2),
    ],
)
def test_notebook(gateway: Gateway, notebook: str, agents: int) -> None:
    path = str(repository("AstraForge") / notebook)
    seen = run(gateway, interpreter(".venv"), "astraforge_notebook.py", path)
    assert [word for word, answer in seen if "rror" in answer] == []
    assert seen.count(["sandbox_shell", "$ cd /workspace && python3 main.py\n[stdout]\nhello world"]) == agents

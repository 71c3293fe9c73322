"""The setting that switches the gateway on, and the packages that it needs."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import RunningDaemon

from sandkeep.errors import SetupError
from sandkeep.settings import daemon as settings

WITHOUT = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("hypercorn", "starlette"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("", ()),
        ("none", ()),
        ("unix:/run/x.sock", ("unix:/run/x.sock",)),
        ("tcp:127.0.0.1:80", ("tcp://127.0.0.1:80",)),
        ("tcp://[::1]:0, unix:/a unix:/b", ("tcp://[::1]:0", "unix:/a", "unix:/b")),
    ],
)
def test_addresses(text: str, addresses: tuple[str, ...]) -> None:
    assert settings.HTTP({"SANDKEEP_HTTP": text}) == addresses


@pytest.mark.parametrize(
    "text",
    ["tcp://0.0.0.0:80", "tcp://localhost:80", "tls://127.0.0.1:80", "http://127.0.0.1:80", "unix:x", "tcp:", "80"],
)
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(SetupError, match="SANDKEEP_HTTP"):
        settings.HTTP({"SANDKEEP_HTTP": text})


def test_a_daemon_does_not_import_the_libraries_of_engines_and_of_the_gateway() -> None:
    program = "import sys, sandkeepd.main, sandkeepd.app.daemon; print(sorted(set(sys.modules) & set(sys.argv)))"
    libraries = ["hypercorn", "starlette", "anyio", "h2", "modal", "kubernetes", "docker", "requests"]
    done = subprocess.run([sys.executable, "-c", program, *libraries], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_missing_packages_are_named(new_daemon: Callable[[], RunningDaemon], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    daemon = new_daemon()
    daemon.env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), daemon.env.get("PYTHONPATH", "")])
    with pytest.raises(RuntimeError, match=r"the package starlette is missing: run `.* -m pip install 'starlette"):
        daemon.start(SANDKEEP_HTTP=f"unix:{tmp_path}/sock")
    daemon.start()


def test_a_port_that_is_taken_is_named(new_daemon: Callable[[], RunningDaemon]) -> None:
    daemon = new_daemon()
    busy = pytest.raises(RuntimeError, match="set SANDKEEP_HTTP to another port")
    with socket.create_server(("127.0.0.1", 0)) as taken, busy:
        daemon.start(SANDKEEP_HTTP=f"tcp://127.0.0.1:{taken.getsockname()[1]}")
    daemon.start()

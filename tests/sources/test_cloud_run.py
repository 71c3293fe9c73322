"""The programs of wlhee/cloud-run-sandbox: the six examples of its Python client, unmodified but for the address and a
context for TLS, over directories and a GCS bucket; its `GCSLock` against a daemon's locks; its reader of metadata.
"""

import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.sources.repositories import python_of, repository
from tests.support.patience import patient
from tests.support.sharing import of_directory

pytestmark = pytest.mark.needs("source:cloud-run-sandbox", "root", "bwrap")

NAME = "cloud-run-sandbox"
EXAMPLES = {
    "basic": "Hello from bash!",
    "checkpoint": "The file content was restored correctly!",
    "filesystem_snapshot": "The file content was restored correctly!",
    "handoff": "Handoff successful!",
    "lifecycle": "Sandbox killed.",
    "reconnect": "Long-running script finished.",
}
"""The examples, and what each prints when all is well."""


class Service:
    """Two daemons that speak the protocol, as two instances of a service, and the address of each."""

    def __init__(self, new_daemon: Callable[[], RunningDaemon], root: Path, provider: str) -> None:
        (root / "image").mkdir()
        self.daemons = [new_daemon(), new_daemon()]
        self.urls = []
        settings = of_directory(root)
        for daemon in self.daemons:
            daemon.env |= {**settings, "SANDKEEP_STREAM": "tls://127.0.0.1:0"}
            daemon.start()
            with daemon.connect() as client:
                image = client.image.create(str(root / "image"), provider=provider)
            daemon.stop()
            daemon.start(SANDKEEP_CLOUD_RUN_IMAGE=image.image_id)
            with daemon.connect() as client:
                access = client.stream.access()
            self.urls.append(access.addresses[0].replace("tls://", f"wss://any:{access.token}@"))
        trusted = root / "trusted.pem"
        keys = [Path(daemon.state_dir, "stream.pem").read_text() for daemon in self.daemons]
        trusted.write_text("".join(key[key.index("-----BEGIN CERTIFICATE") :] for key in keys))
        (root / "certifi.py").write_text(f"def where():\n    return {str(trusted)!r}\n")
        self.root = root

    def run(self, example: str) -> str:
        here, there = self.urls
        env = {
            "PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(self.root), "CLOUD_RUN_URL": here,
            "CLOUD_RUN_URL_HANDOFF": there, "CLOUD_RUN_URL_CHECKPOINT": here, "CLOUD_RUN_URL_RESTORE": there,
        }  # fmt: skip
        program = [str(python_of(NAME)), str(repository(NAME) / f"examples/python/{example}.py")]
        with open(self.root / "said", "w+", encoding="utf-8") as said:
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(program, env=env, stdout=said, stderr=said, timeout=patient(120), check=False)
            said.seek(0)
            return said.read()


@pytest.mark.parametrize("provider", ["local", pytest.param("gvisor", marks=pytest.mark.needs("runsc"))])
@pytest.mark.parametrize("example", EXAMPLES)
def test_example(new_daemon: Any, tmp_path: Path, example: str, provider: str) -> None:
    said = Service(new_daemon, tmp_path, provider).run(example)
    assert EXAMPLES[example] in said, said
    assert "error occurred" not in said, said

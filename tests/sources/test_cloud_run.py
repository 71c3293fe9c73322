"""The programs of wlhee/cloud-run-sandbox: the examples of its clients in Python and in TypeScript, unmodified but for
the address and trust in its certificate, over directories; its `GCSLock` against a daemon's locks; its reader of
metadata.
"""

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.sources.repositories import python_of, repository
from tests.support.expect import until
from tests.support.patience import patient
from tests.support.sharing import ID, Cluster, of_directory

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

    def run(self, program: list[str], stdin: str = "") -> str:
        here, there = self.urls
        env = {
            "PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(self.root), "CLOUD_RUN_URL": here,
            "CLOUD_RUN_URL_HANDOFF": there, "CLOUD_RUN_URL_CHECKPOINT": here, "CLOUD_RUN_URL_RESTORE": there,
            "NODE_EXTRA_CA_CERTS": str(self.root / "trusted.pem"), "SSL_CERT_FILE": str(self.root / "trusted.pem"),
        }  # fmt: skip
        with open(self.root / "said", "w+", encoding="utf-8") as said:
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    program, cwd=repository(NAME), env=env, input=stdin, text=True, stdout=said, stderr=said,
                    timeout=patient(120), check=False,
                )  # fmt: skip
            said.seek(0)
            return said.read()


RUNS = [
    *(pytest.param(example, "gvisor", marks=pytest.mark.needs("runsc")) for example in EXAMPLES),
    # What is attached without its memory has no `/tmp`, which `checkpoint` looks at.
    *((example, "local") for example in EXAMPLES if example != "checkpoint"),
]


@pytest.mark.parametrize(("example", "provider"), RUNS)
def test_example(new_daemon: Any, tmp_path: Path, example: str, provider: str) -> None:
    said = Service(new_daemon, tmp_path, provider).run([str(python_of(NAME)), f"examples/python/{example}.py"])
    assert EXAMPLES[example] in said, said
    assert "error occurred" not in said, said


@pytest.mark.needs("node")
@pytest.mark.parametrize(("example", "provider"), [
    *((example, "local") for example in EXAMPLES if example not in ("checkpoint", "reconnect")),
    pytest.param("checkpoint", "gvisor", marks=pytest.mark.needs("runsc")),
])  # fmt: skip
def test_example_in_typescript(new_daemon: Any, tmp_path: Path, example: str, provider: str) -> None:
    said = Service(new_daemon, tmp_path, provider).run([ts_node(), "-T", f"examples/js/{example}.ts"])
    assert EXAMPLES[example] in said, said
    assert "error occurred" not in said, said


@pytest.mark.needs("node")
def test_interactive_shell(new_daemon: Any, tmp_path: Path) -> None:
    program = [ts_node(), "-T", "examples/js/interactive_shell.ts"]
    said = Service(new_daemon, tmp_path, "local").run(program, "echo answer-$((6 * 7))\nexit\n")
    assert "answer-42" in said, said
    assert "error occurred" not in said, said


NOT_OURS = {
    "attach_not_found": "has the server's own settings changed",
    "checkpoint_and_restore": "writes to /, which only root may",
    "filesystem_snapshot_and_create": "writes to /, of which a snapshot holds nothing",
    "restore_failure": "removes files from the server's own directory",
}
"""Tests of their server that are left out, and why."""


@pytest.mark.needs("runsc")
def test_tests_of_their_server(new_daemon: Any, tmp_path: Path) -> None:
    service = Service(new_daemon, tmp_path, "gvisor")
    plugin = Path(__file__).with_name("cloud_run_server.py")
    shutil.copy(plugin, tmp_path)
    said = service.run([
        str(python_of(NAME)), "-m", "pytest", "-p", plugin.stem, "-p", "no:cacheprovider", "-q",
        "tests/integration/test_websocket_server.py", "-k", f"not ({' or '.join(NOT_OURS)})",
    ])  # fmt: skip
    assert "8 passed" in said, said


def ts_node() -> str:
    path = repository(NAME) / "node_modules/.bin/ts-node"
    if not path.exists():
        pytest.skip(f"{path} is not there: tests/sources/README.md says how to make it")
    return str(path)


READER = """
import json, sys
from dataclasses import asdict
from src.sandbox.config import GCSConfig
from src.sandbox.handle import SandboxHandle
config = GCSConfig(metadata_mount_path=sys.argv[1])
print(json.dumps(asdict(SandboxHandle._read_metadata_from_gcs(config, sys.argv[2]))))
"""

LOCKING = """
import asyncio, sys
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from src.sandbox.lock.gcs import GCSLock

async def main():
    client = storage.Client(project="any", credentials=AnonymousCredentials())
    lock = GCSLock.from_path(sys.argv[1], owner_id="theirs", lease_sec=20, client=client)
    asked = asyncio.Event()
    async def give_up():
        asked.set()
    lock.on_release_requested(give_up)
    await lock.acquire(timeout_sec=100)
    print("theirs", flush=True)
    await asyncio.wait_for(asked.wait(), 100)
    await lock.release()
    print("given up", flush=True)

asyncio.run(main())
"""


def start(program: str, *argv: str, **env: str) -> subprocess.Popen[str]:
    """Start a program of ours that uses theirs, in their repository."""
    command = [str(python_of(NAME)), "-c", program, *argv]
    inherited = {"PATH": os.environ["PATH"], "PYTHONPATH": str(repository(NAME))}
    return subprocess.Popen(command, cwd=repository(NAME), env={**inherited, **env}, stdout=subprocess.PIPE, text=True)


@pytest.mark.needs("runsc")
def test_their_reader_reads_our_documents(new_daemon: Any, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    settings = of_directory(tmp_path)
    group = Cluster(new_daemon, 1, settings, tmp_path / "source", "gvisor")
    group.start()
    group.create(idle_timeout_s=300)
    with group.daemons[0].connect() as client:
        client.sandbox.detach(ID)
    with start(READER, settings["SANDBOX_METADATA_MOUNT_PATH"], ID) as program:
        found = json.loads(program.communicate(timeout=patient(60))[0].splitlines()[-1])
    assert (found["sandbox_id"], found["idle_timeout"], found["enable_sandbox_handoff"]) == (ID, 300, True)
    assert found["enable_sandbox_checkpoint"] is True
    saved = found["latest_sandbox_checkpoint"]
    assert Path(settings["SANDBOX_CHECKPOINT_MOUNT_PATH"], saved["path"]).is_dir()


def document(gcs: Any, bucket: str) -> Any:
    """Return the lock's document."""
    path = f"{gcs.url}/storage/v1/b/{bucket}/o/sandboxes%2Fbox%2Flock.json?alt=media"
    with urllib.request.urlopen(path) as answer:
        return json.load(answer)


@pytest.mark.needs("gcs")
def test_their_lock_and_a_daemons_wait_for_each_other(running_daemon: Any, gcs: Any, gcs_bucket: str) -> None:
    daemon = running_daemon
    daemon.stop()
    daemon.start(SANDBOX_LOCK_BUCKET=gcs_bucket, STORAGE_EMULATOR_HOST=gcs.url)
    with daemon.connect() as client:
        client.lock.acquire("box")
        path = f"gs://{gcs_bucket}/sandboxes/box/lock.json"
        with start(LOCKING, path, STORAGE_EMULATOR_HOST=gcs.url) as program:
            assert program.stdout is not None
            until(lambda: document(gcs, gcs_bucket)["waitingOwnerId"], patient(60))
            client.lock.release("box")
            assert program.stdout.readline() == "theirs\n"
            assert client.lock.acquire("box", timeout_s=patient(60)).status == "held"
            assert program.stdout.readline() == "given up\n"
        client.lock.release("box")

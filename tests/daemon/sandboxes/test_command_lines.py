"""Visibility of others' sandboxes to every user of the machine: command lines, sockets, control groups and mounts."""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.support.inside import inside
from tests.support.suspending_daemons import DISK, UID_BASE

from sandkeepd.host import spawn
from sandkeepd.providers.local.provider import open_local

LOOK = """
cd /proc
cat [0-9]*/cmdline [0-9]*/comm 2>/dev/null | tr '\\0' '\\n'
echo the rest
cat [0-9]*/environ [0-9]*/mountinfo [0-9]*/cgroup self/mounts net/unix 2>/dev/null | tr '\\0' '\\n'
"""
ASIDE = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
GIVEN = ("of-a-label", "of-env", "of-launch-env", "of-a-secret", "of-input", "of-content", "of-a-source")
"""What a caller gives a daemon, and what the code in a sandbox does not say of itself by its own command line."""


def tell(client: Any, source: str) -> str:
    """Give all that to a daemon; answer the sandbox, in which a process runs."""
    image = client.image.create(source, labels={"a": "of-a-label"}).image_id
    box = str(
        client.sandbox.create(
            image, env={"A": "of-env"}, labels={"a": "of-a-label"}, secrets={"B": "of-a-secret"}
        ).sandbox_id
    )
    client.process.launch(box, ["sleep", "1000"], env={"A": "of-launch-env"}, secrets={"B": "of-a-secret"}, name="p")
    client.sandbox.exec(box, "cat >/dev/null", stdin=b"of-input")
    client.sandbox.write_file(box, path="file", data=b"of-content")
    return box


@pytest.mark.needs("bwrap", "root")
def test_what_others_see_while_a_sandbox_runs(running_daemon: RunningDaemon) -> None:
    source = f"{running_daemon.root}/of-a-source"
    os.mkdir(source, 0o755)
    with running_daemon.connect() as client:
        box = tell(client, source)
        image, log = client.sandbox.get(box).image_id, client.daemon.status().log_id
        said = subprocess.run([*ASIDE, "sh", "-c", LOOK], capture_output=True, check=False).stdout
        commands, _, rest = said.decode("utf-8", "replace").partition("\nthe rest\n")
        assert "sleep\n1000\n" in commands  # by nature
        assert box in rest  # in the path of a mount, which the kernel shows everybody
        assert [line for line in commands.splitlines() if any(word in line for word in (*GIVEN, box, image, log))] == []
        assert [line for line in rest.splitlines() if any(word in line for word in GIVEN)] == []


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of all command lines that the daemon starts programs with."""
    words: list[str] = []
    start, begin = spawn.start, subprocess.Popen.__init__

    def start_and_tell(argv: Sequence[str], *rest: Any) -> int:
        words.extend(argv)
        return start(argv, *rest)

    def begin_and_tell(self: Any, argv: Sequence[str], *rest: Any, **more: Any) -> None:
        words.extend(map(str, argv))
        begin(self, argv, *rest, **more)

    monkeypatch.setattr(spawn, "start", start_and_tell)
    monkeypatch.setattr(subprocess.Popen, "__init__", begin_and_tell)
    return words


@pytest.fixture
def source(places: str) -> str:
    above = Path(tempfile.mkdtemp(dir=places))
    above.chmod(0o755)
    (above / "of-a-source").mkdir(mode=0o755)
    (above / "of-a-source" / "file").write_text("of-content")
    return str(above / "of-a-source")


@pytest.mark.needs("bwrap")
async def test_no_command_line_tells_what_a_caller_gave(state_dir: str, source: str, started: list[str]) -> None:
    """Not even for the instant of a start, while only few would see it."""
    local = partial(open_local, uid_base=UID_BASE, disk_limit=DISK)
    async with inside(state_dir, opened=lambda state_dir, log_id: local(state_dir, log_id=log_id)) as daemon:
        image = await daemon.image(source, labels={"a": "of-a-label"})
        create = partial(daemon.call, "sandbox.create", image_id=image, secrets={"B": "of-a-secret"})
        box = (await create(env={"A": "of-env"}, labels={"a": "of-a-label"})).sandbox_id
        more = {"env": {"A": "of-launch-env"}, "secrets": {"B": "of-a-secret"}}
        await daemon.call("sandbox.exec", sandbox_id=box, command="cat", stdin=b"of-input", **more)
        await daemon.call("sandbox.write_file", sandbox_id=box, path="file", data=b"of-content")
        await daemon.call("sandbox.terminate", sandbox_id=box)
    assert {"bwrap", "tar", "sh"} <= set(started)
    assert [word for word in started for given in GIVEN if given in word] == []

"""What the kernel has for all on the machine together, and how much of it one sandbox gets: until it is refused more,
while the machine's own is far from used up.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests import ceilings
from tests.conftest import RunningDaemon
from tests.users import NOBODY, command_as

from sandkeep.errors import ProviderError
from sandkeepd.keeper import pty

TERMINALS = "while exec {fd}<>/dev/ptmx; do n=$((n + 1)); done 2>/dev/null; echo $n; sleep 1000"


class Pool(NamedTuple):
    """A daemon, and what makes images for one of its providers."""

    kind: str
    daemon: RunningDaemon
    image: str

    def box(self, client: Any) -> str:
        return str(client.sandbox.create(self.image).sandbox_id)


@pytest.fixture(scope="module", params=["local", "user", "docker"])
def pool(request: pytest.FixtureRequest, places: str) -> Iterator[Pool]:
    """Local sandboxes of root's daemon and of a user's, and containers with an image whose user is root. The
    user's has a user namespace of its own, so that the test is that user to it.
    """
    daemon = RunningDaemon(tempfile.mkdtemp(dir=places))
    os.chmod(daemon.root, 0o777)
    given: dict[str, Any] = {"provider": "docker" if request.param == "docker" else "local"}
    if request.param == "docker":
        engine = request.getfixturevalue("dockerd")
        daemon.env["DOCKER_HOST"] = engine.host
        given["base"] = engine.python()
    if request.param == "user":
        daemon.program = command_as(NOBODY, [sys.executable, ceilings.__file__, "--", *daemon.program])
        daemon.env["HOME"] = daemon.root
    daemon.start()
    os.mkdir(f"{daemon.root}/image")
    with daemon.connect() as client:
        yield Pool(request.param, daemon, str(client.image.create(f"{daemon.root}/image", **given).image_id))
    daemon.clear()


def in_use() -> int:
    return int(Path("/proc/sys/kernel/pty/nr").read_text())


def attach(client: Any, box: str, name: str) -> None:
    with client.with_descriptors("process.attach", box, name) as handed:
        os.close(handed.receive()[0])
        handed.answer()


@pytest.mark.needs("bwrap", "root", "tmux")
def test_terminals(pool: Pool) -> None:
    with pool.daemon.connect() as client:
        box, other = pool.box(client), pool.box(client)
        client.process.launch(box, "echo here; cat", name="shown", tty=True)
        client.process.launch(box, ["bash", "-c", TERMINALS], name="greedy")
        said = client.process.read(box, "greedy", wait_s=30).stdout
        assert int(said) == pty.MOST - 1
        assert in_use() < 2000
        with pytest.raises(ProviderError, match="128 terminals"):
            attach(client, box, "shown")
        client.process.launch(other, "exit 3", name="served", tty=True)
        assert client.process.wait(other, "served", timeout_s=30).exit_code == 3
        client.process.signal(box, "greedy", signal="KILL")
        client.process.launch(box, "exit 4", name="again", tty=True)
        assert client.process.wait(box, "again", timeout_s=30).exit_code == 4
        client.sandbox.terminate(box)
        client.sandbox.terminate(other)

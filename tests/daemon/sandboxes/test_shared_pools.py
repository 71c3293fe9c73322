"""Kernel resources that all on the machine share, and how much of it one sandbox gets: until it is refused more,
while the machine's own is far from used up.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.conftest import RunningDaemon, daemon_in
from tests.support import ceilings as own
from tests.support.expect import until
from tests.support.patience import patient
from tests.support.snapshots import sh
from tests.support.users import NOBODY, command_as

from sandkeep.errors import ProviderError
from sandkeepd.host.pools import ceilings
from sandkeepd.keeper import pty

INSTANCES = """
mkdir /tmp/many && cd /tmp/many && touch 1
for i in $(seq 1 $(($1 + 8))); do tail -f 1 2>../refused.$i >/dev/null & pids="$pids $!"; done
refused() { grep -l "Too many open files" ../refused.* | wc -l; }
until [ "$(refused)" -ge 8 ]; do sleep 0.05; done
kill $pids
echo refused $(refused)
"""
"""Takes eight instances more than there are for it, and sees that those are refused."""

WATCHES = """
mkdir -p /tmp/many && cd /tmp/many && rm -f ../told.* && seq 1 $1 | xargs touch
at=1
while [ $at -le $1 ]; do
    tail -q -f $(seq $at $((at + 5999)) | head -n $(($1 - at + 1))) >/dev/null 2>../told.$at &
    at=$((at + 6000))
done
while sleep 0.1; do
    ! grep -qsE "No space left|exhausted" ../told.* || break
    [ "$(cat /proc/[0-9]*/fdinfo/* 2>/dev/null | grep -c "^inotify wd")" != $1 ] || { echo all; break; }
done
echo over
sleep 1000
"""
"""Takes so many watches, and says whether it has all."""

TERMINALS = "while exec {fd}<>/dev/ptmx; do n=$((n + 1)); done 2>/dev/null; echo $n; sleep 1000"


class Pool(NamedTuple):
    """A daemon, and what makes images for one of its providers."""

    kind: str
    daemon: RunningDaemon
    image: str

    @property
    def provider(self) -> str:
        return "docker" if self.kind == "docker" else "local"

    def box(self, client: Any) -> str:
        return str(client.sandbox.create(self.image).sandbox_id)


@pytest.fixture(scope="module", params=["local", "user", "docker"])
def pool(request: pytest.FixtureRequest, places: str) -> Iterator[Pool]:
    """Local sandboxes of root's daemon and of a user's, and containers with an image whose user is root. The
    user's has a user namespace of its own, so that the test is that user to it.
    """
    given: dict[str, Any] = {"provider": "docker" if request.param == "docker" else "local"}
    with daemon_in(places) as daemon:
        os.chmod(daemon.root, 0o777)
        if request.param == "docker":
            engine = request.getfixturevalue("dockerd")
            daemon.env["DOCKER_HOST"] = engine.host
            given["base"] = engine.tools()
        if request.param == "user":
            limits = [f"{name}={8 * most}" for name, most in ceilings().items()]
            daemon.program = command_as(NOBODY, [sys.executable, own.__file__, *limits, "--", *daemon.program])
            daemon.env["HOME"] = daemon.root
        daemon.start()
        os.mkdir(f"{daemon.root}/image")
        with daemon.connect() as client:
            yield Pool(request.param, daemon, str(client.image.create(f"{daemon.root}/image", **given).image_id))


def in_use() -> int:
    return int(Path("/proc/sys/kernel/pty/nr").read_text())


@pytest.mark.needs("bwrap", "root")
@pytest.mark.parametrize("pool", ["user", "docker"], indirect=True)
def test_inotify(pool: Pool) -> None:
    """That of local sandboxes of root's daemon is each one's own: they have users of their own."""
    share = ceilings()
    watches = share["max_inotify_watches"]
    with pool.daemon.connect() as client:
        box, other = pool.box(client), pool.box(client)
        done = client.sandbox.exec(
            box, ["sh", "-c", INSTANCES, "sh", str(share["max_inotify_instances"])], timeout_s=240
        )
        assert done.stdout == b"refused 8\n", done
        assert watch(client, box, "more", watches + 1) == b"over\n"
        client.process.signal(box, "more", signal="KILL")  # its children end a moment later
        until(lambda: client.sandbox.exec(box, "! grep -qs '^inotify wd' /proc/[0-9]*/fdinfo/*").exit_code == 0)
        assert watch(client, box, "all", watches) == b"all\nover\n"
        assert watch(client, other, "beside", 10) == b"all\nover\n"
        (provider,) = (p for p in client.daemon.capabilities().providers if p.provider == pool.provider)
        assert provider.features["file_watches"].works
        client.sandbox.terminate(box)
        client.sandbox.terminate(other)


def watch(client: Any, box: str, name: str, count: int) -> bytes:
    client.process.launch(box, ["sh", "-c", WATCHES, "sh", str(count)], name=name)
    data = b""
    while not data.endswith(b"over\n"):
        piece = client.process.read(box, name, stdout_offset=len(data), wait_s=30)
        assert piece.stdout, client.process.read(box, name).stderr
        data += piece.stdout
    return data


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
        assert int(said) == pty.MAX_TERMINALS - 1
        assert in_use() < 2000
        with pytest.raises(ProviderError, match="128 terminals"):
            attach(client, box, "shown")
        client.process.launch(other, "exit 3", name="served", tty=True)
        assert client.process.wait(other, "served", timeout_s=patient(30)).exit_code == 3
        client.process.signal(box, "greedy", signal="KILL")
        until(lambda: int(sh(client, box, "ls /dev/pts | wc -l")) < pty.MAX_TERMINALS // 2)
        client.process.launch(box, "exit 4", name="again", tty=True)
        assert client.process.wait(box, "again", timeout_s=patient(30)).exit_code == 4
        client.sandbox.terminate(box)
        client.sandbox.terminate(other)

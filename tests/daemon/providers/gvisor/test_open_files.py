"""Files that something in a gVisor sandbox has open, and that were removed: it is brought back nevertheless."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.counting import counting
from tests.support.expect import until

from sandkeepd.host.hostile_files import HostileRoot
from sandkeepd.keeper import journal_trimming
from sandkeepd.providers.gvisor import open_files

pytestmark = pytest.mark.needs("runsc")

TICKING = counting("/tmp/ticks", pause_s=0.1)


@pytest.fixture(scope="module")
def image(shared_daemon: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    with shared_daemon.connect() as client:
        return str(client.image.create(str(tmp_path_factory.mktemp("empty")), provider="gvisor").image_id)


class Ticking:
    """A sandbox in which something goes on that holds the journals of a process which has ended."""

    def __init__(self, daemon: Any, client: Any, image: str) -> None:
        self._daemon = daemon
        self._client = client
        self.id = client.sandbox.create(image).sandbox_id
        done = client.sandbox.exec(self.id, f"echo begun; ({TICKING}) &")
        assert done.stdout.startswith(b"begun\n")
        self.process_id = done.process_id

    def drop_output(self) -> None:
        """Remove those journals, as is done when there is too much output."""
        journal_trimming.drop(HostileRoot(self._daemon.state_dir).tree(f"sandboxes/{self.id}/out"), [self.process_id])

    def journals(self, sandbox_id: str) -> list[str]:
        held = os.listdir(f"{self._daemon.state_dir}/sandboxes/{sandbox_id}/out/p")
        return [name for name in held if name.startswith(self.process_id)]

    def ticks(self, sandbox_id: str) -> int:
        return int(self._client.sandbox.exec(sandbox_id, ["cat", "/tmp/ticks"]).stdout or 0)

    def goes_on(self, sandbox_id: str, since: int) -> None:
        until(lambda: self.ticks(sandbox_id) > since + 3)


@pytest.fixture
def ticking(shared_daemon: Any, client: Any, image: str) -> Any:
    made = Ticking(shared_daemon, client, image)
    yield made
    client.sandbox.terminate(made.id)


@pytest.mark.parametrize("while_suspended", [False, True])
def test_removed_output_keeps_no_sandbox_suspended(client: Any, ticking: Ticking, while_suspended: bool) -> None:
    before = ticking.ticks(ticking.id)
    for _ in range(2):
        if not while_suspended:
            ticking.drop_output()
        client.sandbox.suspend(ticking.id)
        ticking.drop_output()
        client.sandbox.resume(ticking.id)
        assert ticking.journals(ticking.id) == [], "they were there for a moment only"
        ticking.goes_on(ticking.id, before)


@pytest.mark.parametrize("suspended", [False, True])
def test_nor_a_checkpoint_from_being_restored(client: Any, ticking: Ticking, suspended: bool) -> None:
    before = ticking.ticks(ticking.id)
    ticking.drop_output()
    if suspended:
        client.sandbox.suspend(ticking.id)
    made = client.checkpoint.create(ticking.id, leave_running=not suspended)
    (other,) = (sandbox.sandbox_id for sandbox in client.checkpoint.restore(made.checkpoint_id).sandboxes)
    if suspended:
        client.sandbox.resume(ticking.id)
    for sandbox_id in (ticking.id, other):
        assert ticking.journals(sandbox_id) == []
        ticking.goes_on(sandbox_id, before)
    client.sandbox.terminate(other)


def test_output_that_is_there_stays_what_it_is(client: Any, ticking: Ticking) -> None:
    before = client.process.read(ticking.id, ticking.process_id).stdout
    client.sandbox.suspend(ticking.id)
    assert client.process.read(ticking.id, ticking.process_id).stdout.startswith(before)
    client.sandbox.resume(ticking.id)
    until(lambda: len(client.process.read(ticking.id, ticking.process_id).stdout) > len(before) + 6)
    lines = client.process.read(ticking.id, ticking.process_id).stdout.split()
    assert lines == [b"begun", *(b"%d" % number for number in range(1, len(lines)))]


# -- the names, which may be hostile ----------------------------------------------------------------------------------


def test_names_are_those_that_are_open_whatever_they_are(tmp_path: Path) -> None:
    place = tmp_path / "run/sandkeep"
    for path in ("in", "out/p", "out/other"):
        (place / path).mkdir(parents=True)
    names = [b"plain", b"with\nline", b"ends (deleted)", b"\xff\xfe", b"gone", b"gone (deleted)"]
    opened = [os.open(os.fsencode(place / "out/p") + b"/" + name, os.O_RDWR | os.O_CREAT) for name in names]
    opened.append(os.open(place / "in/request", os.O_RDWR | os.O_CREAT))
    opened.append(os.open(place / "out/other/file", os.O_RDWR | os.O_CREAT))
    for name in (b"gone", b"gone (deleted)"):
        os.unlink(os.fsencode(place / "out/p") + b"/" + name)
    (tmp_path / "saved").mkdir()
    open_files.save_names(str(tmp_path / "saved"), HostileRoot(str(place)).tree(), [os.getpid()])
    kept = open_files.load_names(str(tmp_path / "saved"))
    for fd in opened:
        os.close(fd)
    assert kept is not None
    assert sorted(map(os.fsencode, kept)) == sorted([b"in/request", *(b"out/p/" + name for name in names)])


@pytest.mark.parametrize("path", ["in/../../x", "/etc/x", "out/exits", "out/p/../exits", "out/p/..", "in/", "x", ""])
def test_what_a_checkpoint_names_is_made_in_its_two_places_alone(tmp_path: Path, path: str) -> None:
    place = tmp_path / "shared"
    for directory in ("in", "out/p"):
        (place / directory).mkdir(parents=True)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / open_files.NAME).write_bytes(b"in/good\0" + os.fsencode(path) + b"\0")
    with open_files.recreated(str(tmp_path / "saved"), HostileRoot(str(place)).tree()):
        files = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file())
        assert files == ["saved/open.names", "shared/in/good"]
    assert not (place / "in/good").exists()

"""What root does with files that a gVisor sandbox shares with it, or begins with: nothing in them leads it elsewhere.

What is planted here may also have come with a checkpoint, or be what a kernel does that hostile code has taken over.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.boxes import at_most
from tests.support.exchanges import Closed

from sandkeep.errors import SandkeepError
from sandkeep.model import SandboxSpec
from sandkeepd.host.cgroups.groups import Hierarchies, Limits
from sandkeepd.host.hostile_files import HostileRoot
from sandkeepd.providers.common.directory_provider import Lower
from sandkeepd.providers.gvisor import bundle as gvisor_bundle
from sandkeepd.providers.gvisor import checkpoints, start
from sandkeepd.providers.gvisor.bundle import Bundle
from sandkeepd.providers.gvisor.plan import Plan
from sandkeepd.providers.gvisor.start import EXITS, Job

pytestmark = pytest.mark.needs("root")

STRANGER = 54_321
SPARSE_BYTES = 64 << 20
FEW_BYTES = 1 << 20

_COMES_AND_GOES = """
import os, sys
os.chdir(sys.argv[1])
print("begun", flush=True)
while True:
    for number in range(40):
        open(str(number), "w").close()
    for number in range(40):
        os.unlink(str(number))
"""


@pytest.fixture
def closed(places: str) -> Iterator[Closed]:
    made = Closed(Path(tempfile.mkdtemp(dir=places)) / "closed")
    yield made
    made.require_untouched()


def plan(*, rootless: bool = False) -> Plan:
    return Plan(
        uid=STRANGER,
        gid=STRANGER,
        network="none",
        rootless=rootless,
        writable=True,
        limits=Limits(),
        disk_bytes=1 << 30,
    )


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """One whose directories are there, and that is saved."""
    (tmp_path / "sandboxes").mkdir()
    made = Job(
        sandbox_id="box", directory=str(tmp_path / "sandboxes" / "box"), bundle=str(tmp_path / "bundle"),
        root=str(tmp_path / "runsc"), lowers=[], plan=plan(), spec=SandboxSpec(), hierarchies=Hierarchies(),
        log_id="a" * 16, secrets=[], files=HostileRoot(str(tmp_path / "sandboxes")).tree("box"),
    )  # fmt: skip
    start.make_directories(made)
    Path(made.saved).mkdir()
    return made


def test_what_is_the_codes_own_is_given_to_it(job: Job) -> None:
    for name in ("out/p", "out/exits"):
        found = os.lstat(f"{job.directory}/{name}")
        assert (found.st_uid, found.st_gid) == (STRANGER, STRANGER)


@pytest.mark.parametrize("name", ["exits", "p"])
def test_no_link_is_given_away(job: Job, closed: Closed, name: str) -> None:
    place = Path(job.directory, "out", name)
    place.rename(f"{place}.before")
    place.symlink_to(closed.place / ("f1" if name == "exits" else "."))
    with pytest.raises(SandkeepError):
        start.make_directories(job)
    closed.require_untouched()


@pytest.mark.parametrize("work", [start.make_directories, start.put_aside])
def test_nobody_is_waited_for(job: Job, work: Callable[[Job], None]) -> None:
    os.unlink(f"{job.directory}/out/exits")
    os.mkfifo(f"{job.directory}/out/exits")
    with at_most(60), pytest.raises(SandkeepError):
        work(job)


def test_nothing_is_kept_that_a_link_leads_to(job: Job, closed: Closed) -> None:
    os.unlink(f"{job.directory}/out/exits")
    os.symlink(closed.place / "f1", f"{job.directory}/out/exits")
    with pytest.raises(SandkeepError):
        start.put_aside(job)
    assert not os.path.exists(f"{job.saved}/{EXITS}")


def sparse(path: str) -> bytes:
    """Make a file with a little in it, and a long hole before and after that."""
    os.truncate(path, SPARSE_BYTES)
    with open(path, "r+b") as file:
        file.seek(SPARSE_BYTES // 2)
        file.write(b"an answer\n")
    return _digest(path)


def _digest(path: str) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def test_holes_stay_holes(job: Job) -> None:
    """Else the code inside has the daemon fill the disk far beyond what the sandbox may have."""
    exits = f"{job.directory}/out/exits"
    before = sparse(exits)
    Path(job.saved, start.IMAGE).touch()
    start.put_aside(job)
    kept = f"{job.bundle}/aside/{EXITS}"
    assert os.stat(kept).st_blocks * 512 < FEW_BYTES
    assert _digest(kept) == before
    os.unlink(exits)
    assert not start.put_back(job)
    found = os.stat(exits)
    assert (found.st_uid, found.st_size) == (STRANGER, SPARSE_BYTES)


def test_holes_stay_holes_on_another_file_system(job: Job) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        kept = f"{other}/kept"
        Path(kept).touch()
        assert os.stat(kept).st_dev != os.stat(job.directory).st_dev
        before = sparse(kept)
        start._replace_answers(job, kept)
    exits = f"{job.directory}/out/exits"
    found = os.stat(exits)
    assert found.st_uid == STRANGER
    assert found.st_blocks * 512 < FEW_BYTES
    assert _digest(exits) == before


def test_journals_that_come_and_go_hold_up_no_checkpoint(job: Job) -> None:
    journals = f"{job.directory}/out/p"
    Path(journals, "stays").touch()
    Path(journals, "link").symlink_to("stays")
    with subprocess.Popen([sys.executable, "-c", _COMES_AND_GOES, journals], stdout=subprocess.PIPE) as code:
        try:
            assert code.stdout is not None
            assert code.stdout.readline() == b"begun\n"
            for _ in range(500):
                found = checkpoints._files_in(job.files, "out/p")
                assert "stays" in found
                assert "link" not in found
        finally:
            code.kill()


# What a sandbox begins with may be what hostile code has left


def test_nothing_of_the_host_is_found_by_links_of_an_image(tmp_path: Path, closed: Closed) -> None:
    (closed.place / "sh").touch()
    closed.changed()
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "bin").symlink_to(closed.place)
    (tmp_path / "image" / "workspace").symlink_to(closed.place)
    lowers = [Lower(root=str(tmp_path / "image"), uid=0)]
    assert not gvisor_bundle.is_root_file_system(lowers)
    assert gvisor_bundle.workspace_of(lowers, whole=True) == "/"


@pytest.mark.parametrize("target", ["usr/bin", "/usr/bin"])
def test_links_of_an_image_lead_to_what_is_in_it(tmp_path: Path, target: str) -> None:
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "bin").symlink_to(target)
    lowers = [Lower(root=str(tmp_path), uid=0)]
    assert not gvisor_bundle.is_root_file_system(lowers)
    (tmp_path / "usr" / "bin" / "sh").symlink_to("dash")
    assert gvisor_bundle.is_root_file_system(lowers)


@pytest.mark.parametrize("inside", ["run", "run/sandkeep"])
def test_nothing_is_made_where_links_of_an_image_lead(job: Job, tmp_path: Path, closed: Closed, inside: str) -> None:
    """A rootless `runsc` has a copy of its image, and places in it for what is mounted there."""
    image, root = tmp_path / "image", tmp_path / "rootfs"
    (image / inside).parent.mkdir(parents=True)
    (image / inside).symlink_to(closed.place)
    bundle = Bundle(
        sandbox_id="box",
        directory=job.directory,
        root=str(root),
        plan=plan(rootless=True),
        spec=SandboxSpec(),
        whole=True,
    )
    with suppress(OSError):
        gvisor_bundle.copy_root(str(root), [Lower(root=str(image), uid=0)], bundle)
    closed.require_untouched()
    if os.path.exists(root):
        assert not os.listdir(root / "run")

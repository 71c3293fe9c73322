"""Walks of root's through files that hostile code changes at the same time: nothing leads it out of them.

Nothing here relies on it that a sandbox stands still: what changes the files has the uid of the sandbox's code, and is
in none of its control groups. See `tests.support.exchanges`.
"""

import errno
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.support.boxes import at_most
from tests.support.exchanges import SECRET, Closed, exchanged, plant
from tests.support.snapshots import sh
from tests.support.soak import times
from tests.support.users import as_user, let_in

from sandkeep.errors import DaemonError, ProviderError, SandkeepError
from sandkeepd.providers.common import disk_usage, tree_copies
from sandkeepd.providers.common.layout import Layout
from sandkeepd.providers.common.tree_copies import copy_tree
from sandkeepd.providers.common.views import shown, writable
from sandkeepd.providers.gvisor import checkpoints
from sandkeepd.providers.local.precopy import COPIED_FILES

T = TypeVar("T")

pytestmark = pytest.mark.needs("root", "bwrap")

ROUNDS, ROUNDS_SOAK = 3, times(12)
STRANGER = 54_321
PAIRS = 10
"""More than `exchanged` has unless it is told: where it is not the files in directories that count."""


@pytest.fixture(params=[ROUNDS, pytest.param(ROUNDS_SOAK, marks=pytest.mark.soak)])
def rounds(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def closed(places: str) -> Iterator[Closed]:
    made = Closed(Path(tempfile.mkdtemp(dir=places)) / "closed")
    yield made
    made.require_untouched()


@pytest.fixture(scope="module")
def image(client: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    source = tmp_path_factory.mktemp("source")
    let_in(source)
    (source / "file").write_text("from the image\n")
    return str(client.image.create(str(source)).image_id)


class Box:
    """A local sandbox, its user, and where the host keeps what it changed."""

    def __init__(self, daemon: Any, client: Any, image: str, closed: Closed) -> None:
        made = client.sandbox.create(image)
        self.id = made.sandbox_id
        self.uid = made.isolation.host_uid
        self.upper = Path(f"{daemon.state_dir}/sandboxes/{self.id}/upper")
        plant(self.upper, closed, self.uid)


@pytest.fixture
def box(shared_daemon: Any, client: Any, image: str, closed: Closed) -> Iterator[Box]:
    made = Box(shared_daemon, client, image, closed)
    yield made
    client.sandbox.terminate(made.id)


def found_in(client: Any, sandbox_id: str, places: str = ".") -> str:
    """Whatever of the secret can be seen in a sandbox."""
    return sh(client, sandbox_id, f"grep -rl '{SECRET}' {places} 2>/dev/null; true")


def require_nothing_in(archive: bytes) -> None:
    """Fail if anything of the secret is in an archive."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isreg() else None
            assert file is None or SECRET.encode() not in file.read()


def attempt(call: Callable[..., T], *arguments: Any, **more: Any) -> T | None:
    """Call what may fail, as code that does this is no better served."""
    try:
        return call(*arguments, **more)
    except SandkeepError:
        return None


def require_nothing_kept(client: Any, box: str, **options: Any) -> None:
    """Make a snapshot, and look for the secret in its archive."""
    made = attempt(client.snapshot.create, box, **options)
    if made is not None:
        require_nothing_in(Path(made.places[0].base, made.places[0].path).read_bytes())


def test_a_fork_holds_nothing_that_links_lead_to(client: Any, box: Box, rounds: int) -> None:
    for _ in range(rounds):
        with exchanged(box.upper, box.uid):
            made = attempt(client.sandbox.fork, box.id)
        for fork in made.sandboxes if made else ():
            found = found_in(client, fork.sandbox_id)
            client.sandbox.terminate(fork.sandbox_id)
            assert found == ""


@pytest.mark.parametrize("many", [False, True], ids=["copied", "copied in passes"])
@pytest.mark.parametrize("options", [{}, {"incremental": True}, {"include": ["d1", "d2/f1", "l3"]}])
def test_an_archive_holds_nothing_that_links_lead_to(
    client: Any, box: Box, many: bool, options: Any, rounds: int
) -> None:
    if many:
        for number in range(COPIED_FILES):
            (box.upper / f"more{number}").touch()
    for _ in range(rounds):
        with exchanged(box.upper, box.uid):
            require_nothing_kept(client, box.id, **options)


def test_an_increment_holds_nothing_that_links_lead_to(client: Any, box: Box, rounds: int) -> None:
    """It is read by the names that the sandbox's files had a moment before."""
    for _ in range(rounds):
        client.snapshot.create(box.id, incremental=True)
        with exchanged(box.upper, box.uid):
            require_nothing_kept(client, box.id, incremental=True)


def test_what_is_measured_is_the_sandboxs(box: Box, closed: Closed, rounds: int) -> None:
    os.truncate(closed.place / "f1", 0)
    with open(closed.place / "f1", "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, 64 << 20)
    closed.changed()
    for _ in range(rounds):
        with exchanged(box.upper, box.uid):
            assert disk_usage.occupied_bytes([str(box.upper)], 0, {}, [], root=True) < 32 << 20


def test_a_sandbox_ends_that_changes_its_files_meanwhile(
    client: Any, shared_daemon: Any, image: str, closed: Closed, rounds: int
) -> None:
    for _ in range(rounds):
        box = Box(shared_daemon, client, image, closed)
        with exchanged(box.upper, box.uid):
            attempt(client.sandbox.terminate, box.id)
        client.sandbox.terminate(box.id)
        assert not box.upper.exists()
        closed.require_untouched()


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(str(tmp_path / "state"))
    made.prepare()
    return made


@pytest.mark.parametrize("what", ["discard", "tidy"])
def test_what_is_removed_is_the_sandboxs(layout: Layout, closed: Closed, what: str, rounds: int) -> None:
    """Also when it cannot be removed at once, as it is being changed."""
    for number in range(2 * rounds):
        place = Path(layout.sandbox(f"box{number}"), "out", "p")
        place.mkdir(parents=True)
        os.chown(place, STRANGER, STRANGER)
        plant(place, closed, STRANGER, pairs=PAIRS, files=1)
        work = layout.remove_all_but_journals if what == "tidy" else lambda name: layout.discard([layout.sandbox(name)])
        with exchanged(place, STRANGER, pairs=PAIRS, most_s=0), suppress(DaemonError):
            work(f"box{number}")
        work(f"box{number}")
        assert not place.exists() or os.listdir(place) == []
        closed.require_untouched()


def test_a_copy_is_not_written_through_a_link(tmp_path: Path, closed: Closed) -> None:
    """As of a name that is there twice, when a directory is changed while it is read: first a link, and then a file."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "name").write_text("from inside")
    (target / "name").symlink_to(closed.place / "f1")
    with shown(str(source), above=str(tmp_path)) as opened, pytest.raises(ProviderError):
        copy_tree(opened, str(target))


_HOLD = """
import fcntl, os, signal, sys
os.setresuid(*3 * [int(sys.argv[2])])
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(os.open("file", os.O_RDWR, dir_fd=int(sys.argv[1])), fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
signal.pause()
"""


@contextmanager
def leased(directory: Path) -> Iterator[None]:
    """Have the owner of a file hold up whoever opens it, for the length of a block: the kernel waits for him 45 s."""
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    words = [sys.executable, "-c", _HOLD, str(top), str(STRANGER)]
    with subprocess.Popen(words, pass_fds=[top], stdout=subprocess.PIPE) as holder:
        os.close(top)
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            holder.kill()


def test_a_copy_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_copies, "STUCK_S", 1)
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("from inside")
    os.chown(source / "file", STRANGER, STRANGER)
    with (
        leased(source),
        shown(str(source), above=str(tmp_path)) as opened,
        pytest.raises(ProviderError, match="not be opened"),
    ):
        copy_tree(opened, str(tmp_path / "copy"))


def test_a_copy_ends_whatever_files_become(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    """A FIFO that is opened for a file keeps its reader waiting for ever."""
    monkeypatch.setattr(tree_copies, "STUCK_S", 1)
    source = tmp_path / "source"
    source.mkdir()
    for number in range(PAIRS):
        (source / f"d{number}").write_text("harmless")
        os.mkfifo(source / f"l{number}")
    os.chown(source, STRANGER, STRANGER)
    with exchanged(source, STRANGER, pairs=PAIRS, most_s=0.001), at_most(120):
        for number in range(rounds):
            with shown(str(source), above=str(tmp_path)) as opened, suppress(ProviderError):
                copy_tree(opened, str(tmp_path / f"copy{number}"))


def test_a_checkpoint_holds_nothing_that_links_lead_to(tmp_path: Path, closed: Closed) -> None:
    """What a gVisor sandbox shares with the daemon goes with it: here a link has come into the place of all journals
    since they were looked at.
    """
    box, archive = tmp_path / "box", tmp_path / "archive"
    (box / "in").mkdir(parents=True)
    (box / "out").mkdir()
    (box / "out" / "exits").touch()
    (box / "out" / "p").symlink_to(closed.place)
    with pytest.raises(DaemonError, match="cannot be written"):
        checkpoints._pack_shared(str(box), str(archive), ["out/p/f1"])
    assert SECRET.encode() not in archive.read_bytes()


def test_root_that_may_not_mount_measures_and_removes(layout: Layout) -> None:
    box = Path(layout.sandbox("box"))
    box.mkdir()
    (box / "file").write_bytes(bytes(1 << 20))
    work = (
        "import sys; from sandkeepd.providers.common import disk_usage\n"
        "from sandkeepd.providers.common.layout import Layout\n"
        "layout = Layout(sys.argv[1])\n"
        "print(disk_usage.occupied_bytes([layout.sandbox('box')], 0, {}, [], root=True) >= 1 << 20)\n"
        "layout.discard([layout.sandbox('box')])"
    )
    argv = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-c", work]
    assert subprocess.run([*argv, layout.state_dir], capture_output=True, check=True).stdout == b"True\n"
    assert os.listdir(layout.trash) == []
    assert not box.exists()


@pytest.mark.parametrize("layers", [1, 2])
def test_a_users_daemon_has_such_mounts_made(closed: Closed, layers: int) -> None:
    base = Path(tempfile.mkdtemp(dir=closed.place.parent.parent))
    roots = [base / f"layer{number}" for number in range(layers)]
    for place in (*roots, base / "layers"):
        place.mkdir()
    (roots[0] / "link").symlink_to(".")
    (roots[0] / "file").write_text("harmless")
    for path in (base, *base.rglob("*")):
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)

    def tries() -> list[int | None]:
        with shown(*map(str, roots), above=str(base)) as read, writable(str(roots[0])) as written:
            return [
                _error(lambda: os.open("file", os.O_RDONLY, dir_fd=read)),
                _error(lambda: os.open("link/file", os.O_RDONLY, dir_fd=read)),
                _error(lambda: os.open("new", os.O_WRONLY | os.O_CREAT, dir_fd=read)),
                _error(lambda: os.open("link/new", os.O_WRONLY | os.O_CREAT, dir_fd=written)),
                _error(lambda: os.open("new", os.O_WRONLY | os.O_CREAT, dir_fd=written)),
            ]

    assert as_user(STRANGER, tries) == [None, errno.ELOOP, errno.EROFS, errno.ELOOP, None]


def _error(work: Callable[[], int]) -> int | None:
    try:
        os.close(work())
    except OSError as error:
        return error.errno
    return None

"""Packing: a tree as an archive that any tar reads, whatever is in the tree and whatever becomes of it meanwhile."""

import io
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from random import Random

import pytest
from tests.support import trees
from tests.support.trees import NEW, described

from sandkeep.errors import SandkeepError
from sandkeep_store.archives.tar.inspect import CheckedArchive, inspect
from sandkeep_store.archives.trees import pack as packing
from sandkeep_store.archives.trees.pack import PackedArchive, pack
from sandkeep_store.archives.trees.unpack import unpack

Pack = Callable[..., PackedArchive]
OWNER = (70_001, 70_001) if os.geteuid() == 0 else None


@pytest.fixture
def place() -> Iterator[str]:
    """A directory with an empty `tree`, on a disk that knows holes and attributes."""
    with tempfile.TemporaryDirectory(prefix="skt-pack-") as root:
        os.mkdir(f"{root}/tree")
        os.chmod(root, 0o755)
        yield root


@pytest.fixture
def packed(place: str) -> Pack:
    """Packs `tree` into `archive`."""

    def work(tree: str = "tree", **options: object) -> PackedArchive:
        with trees.opened(f"{place}/{tree}") as top, trees.opened(f"{place}/archive", NEW) as output:
            return pack(top, output, **options)  # type: ignore[arg-type]

    return work


def names(place: str) -> list[str]:
    """What the archive holds, in order."""
    with trees.opened(f"{place}/archive") as archive:
        return [os.fsdecode(member.name) for member in CheckedArchive(archive, packing.NO_LIMITS)]


def write(path: str, content: bytes = b"") -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


# -- there and back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["gzip", "zstd", "none"])
def test_a_tree_comes_back_as_it_was(place: str, packed: Pack, codec: str) -> None:
    trees.Gardener(f"{place}/tree", Random(3)).work(80)
    made = packed(codec=codec)
    with trees.opened(f"{place}/archive") as archive:
        found = inspect(archive, made.limits)
        unpack(archive, f"{place}/back", limits=made.limits, sha256=made.sha256, owner=OWNER)
    assert described(f"{place}/back") == described(f"{place}/tree")
    told = (made.codec, made.sha256, made.size_bytes, made.members, made.content_bytes, made.data_bytes)
    assert told == (
        codec, found.sha256, found.size_bytes, found.members, found.content_bytes, found.data_bytes
    )  # fmt: skip
    assert made.size_bytes == os.path.getsize(f"{place}/archive")


def test_the_same_tree_gives_the_same_bytes(place: str, packed: Pack) -> None:
    gardener = trees.Gardener(f"{place}/tree", Random(5))
    gardener.work(50)
    write(f"{place}/tree/large", Random(1).randbytes(3_000_000))
    first = packed()
    assert packed() == first
    subprocess.run(["cp", "-a", f"{place}/tree", f"{place}/copy"], check=True)
    assert packed("copy").sha256 == first.sha256


@pytest.mark.needs("bsdtar")
@pytest.mark.parametrize("codec", ["gzip", "zstd"])
@pytest.mark.parametrize("program", ["tar", "bsdtar", "python"])
def test_other_programs_read_it(place: str, packed: Pack, codec: str, program: str) -> None:
    if (codec, program) == ("zstd", "python"):
        return  # only since 3.14
    write(f"{place}/tree/d/a", b"x" * 3000)
    write(f"{place}/tree/{'n' * 120}/{'m' * 120}", b"long")
    os.link(f"{place}/tree/d/a", f"{place}/tree/hard")
    os.symlink("d/a", f"{place}/tree/link")
    write(f"{place}/tree/sparse")
    os.truncate(f"{place}/tree/sparse", 1 << 20)
    packed(codec=codec)
    os.mkdir(f"{place}/back")
    if program == "python":
        with tarfile.open(f"{place}/archive") as tar:
            if hasattr(tarfile, "tar_filter"):  # since 3.11.4
                tar.extraction_filter = tarfile.tar_filter
            tar.extractall(f"{place}/back")
    else:
        subprocess.run([program, "-xpf", f"{place}/archive", "-C", f"{place}/back"], check=True)
    told, back = described(f"{place}/tree"), described(f"{place}/back")
    if program == "python":  # does not keep the last digits of a time
        told, back = ({name: it[:-2] for name, it in tree.items()} for tree in (told, back))
    if program == "bsdtar":  # leaves the time of the directory that it is begun in
        assert told.pop(b".")[:2] == back.pop(b".")[:2]
    assert back == told


@pytest.mark.needs("root")
def test_it_belongs_to_whom_one_says(place: str, packed: Pack) -> None:
    write(f"{place}/tree/a")
    os.chown(f"{place}/tree/a", 3_000_000, 3_000_001)
    packed()
    with tarfile.open(f"{place}/archive") as tar:
        assert (tar.getmember("a").uid, tar.getmember("a").gid) == (3_000_000, 3_000_001)
    packed(owner=(1000, 1001))
    with tarfile.open(f"{place}/archive") as tar:
        assert {(info.uid, info.gid, info.uname) for info in tar} == {(1000, 1001, "")}


def test_no_bits_are_kept_that_give_rights(place: str, packed: Pack) -> None:
    write(f"{place}/tree/a")
    os.chmod(f"{place}/tree/a", 0o6755)
    os.mkdir(f"{place}/tree/d")
    os.chmod(f"{place}/tree/d", 0o3777)
    packed()
    with tarfile.open(f"{place}/archive") as tar:
        assert (tar.getmember("a").mode, tar.getmember("d").mode) == (0o755, 0o1777)


@pytest.mark.needs("root")
def test_only_a_users_own_attributes_are_kept(place: str, packed: Pack) -> None:
    write(f"{place}/tree/a")
    for name in ("user.k", "user.overlay.opaque", "trusted.overlay.opaque", "trusted.k", "security.k"):
        os.setxattr(f"{place}/tree/a", name, b"secret")
    packed(codec="none")
    with open(f"{place}/archive", "rb") as file:
        content = file.read()
    assert content.count(b"secret") == 1
    assert b"SCHILY.xattr.user.k=secret" in content


@pytest.mark.needs("root")
def test_what_is_closed_to_its_owner_is_packed_too(place: str, packed: Pack) -> None:
    write(f"{place}/tree/d/a", b"mine")
    for path in ("d/a", "d", ""):
        os.chown(f"{place}/tree/{path}", 5000, 5000)
        os.chmod(f"{place}/tree/{path}", 0)
    packed(reader=(5000, 5000))
    assert names(place) == [".", "d", "d/a"]


def test_holes_take_no_room(place: str, packed: Pack) -> None:
    write(f"{place}/tree/a", b"begins")
    os.truncate(f"{place}/tree/a", 1 << 40)
    made = packed(codec="none")
    assert made.size_bytes < 1 << 16
    assert made.content_bytes == 1 << 40


# -- what goes in, and what does not ----------------------------------------------------------------------------------


def test_paths_are_included_and_excluded_literally(place: str, packed: Pack) -> None:
    for path in ("a/b/c", "a/b/d", "a/x", "e*", "e1", "f/g", "-n/m"):
        write(f"{place}/tree/{path}")
    packed(include=[b"a/b", b"./f/", b"-n", b"a/b/c"], exclude=[b"a/b/d", b"f/g"])
    assert names(place) == [".", "-n", "-n/m", "a", "a/b", "a/b/c", "f"]
    packed(exclude=[b"e*", b"a", b"nowhere"])
    assert names(place) == [".", "-n", "-n/m", "e1", "f", "f/g"]
    packed(include=[b"a/b", b"f"], exclude=[b"a"])
    assert names(place) == [".", "f", "f/g"]


def test_links_between_paths_that_are_included_are_links_of_the_archive(place: str, packed: Pack) -> None:
    write(f"{place}/tree/a/b/one", b"x")
    os.link(f"{place}/tree/a/b/one", f"{place}/tree/a/b/two")
    made = packed(include=[b"a/b"])
    with trees.opened(f"{place}/archive") as archive:
        unpack(archive, f"{place}/back", limits=made.limits)
    assert os.path.samefile(f"{place}/back/a/b/one", f"{place}/back/a/b/two")


@pytest.mark.parametrize("path", [b"/etc", b"../tree", b"a/../../b", b"a\0b"])
def test_paths_out_of_the_tree_are_refused(packed: Pack, path: bytes) -> None:
    for field in ("include", "exclude"):
        with pytest.raises(SandkeepError) as caught:
            packed(**{field: [path]})
        assert (caught.value.code, caught.value.data) == ("invalid", {"field": field})


@pytest.mark.parametrize("path", [b"nothing", b"file/below", b"link/passwd", b"d/nothing"])
def test_what_is_to_be_included_must_be_there(place: str, packed: Pack, path: bytes) -> None:
    write(f"{place}/tree/file")
    os.mkdir(f"{place}/tree/d")
    os.symlink("/etc", f"{place}/tree/link")
    with pytest.raises(SandkeepError) as caught:
        packed(include=[path])
    assert caught.value.code == "not_found"


def test_a_link_that_is_included_is_a_link(place: str, packed: Pack) -> None:
    os.symlink("/etc", f"{place}/tree/link")
    packed(include=[b"link"])
    assert names(place) == [".", "link"]


def test_the_place_of_archives_is_never_in_one(place: str, packed: Pack) -> None:
    for path in ("a", "d/archives/1.tar.gz", "d/z"):
        write(f"{place}/tree/{path}")
    os.symlink(f"{place}/tree/d", f"{place}/way")
    made = packed(never=[f"{place}/way/archives", f"{place}/nowhere"])
    assert names(place) == [".", "a", "d", "d/z"]
    assert made.remarks.counts == {}


@pytest.mark.needs("root")
def test_nor_where_it_turns_up_under_another_name(place: str, packed: Pack) -> None:
    from sandkeepd.host import mounts

    write(f"{place}/archives/1.tar.gz")
    os.mkdir(f"{place}/tree/d")
    write(f"{place}/tree/z")
    mounts.mount(f"{place}/archives", f"{place}/tree/d", None, mounts.MS_BIND)
    try:
        made = packed(never=[f"{place}/archives"])
    finally:
        mounts.unmount(f"{place}/tree/d")
    assert names(place) == [".", "z"]
    assert made.remarks.counts == {"kept out": 1}


def test_sockets_are_left_out_and_told(place: str, packed: Pack) -> None:
    write(f"{place}/tree/a")
    os.mkfifo(f"{place}/tree/pipe")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(f"{place}/tree")
        server.bind("so\nck\\et")
        os.chdir(here)
        made = packed()
    assert names(place) == [".", "a", "pipe"]
    assert made.remarks.counts == {"socket": 1}
    assert [(it.name, it.what) for it in made.remarks.first] == [(r"so\nck\et", "socket")]


@pytest.mark.needs("root")
def test_devices_are_left_out_and_told(place: str, packed: Pack) -> None:
    os.mknod(f"{place}/tree/null", 0o020666, os.makedev(1, 3))
    os.mknod(f"{place}/tree/gone", 0o020666, 0)
    made = packed()
    assert (names(place), made.remarks.counts) == (["."], {"device": 2})


@pytest.mark.needs("root")
def test_other_filesystems_are_left_out_and_told(place: str, packed: Pack) -> None:
    from sandkeepd.host import mounts

    os.mkdir(f"{place}/tree/d")
    mounts.mount("none", f"{place}/tree/d", "tmpfs", 0)
    try:
        write(f"{place}/tree/d/a")
        made = packed()
    finally:
        mounts.unmount(f"{place}/tree/d")
    assert (names(place), made.remarks.counts) == ([".", "d"], {"other filesystem": 1})


def test_names_longer_than_paths_may_be_are_left_out_and_told(place: str, packed: Pack) -> None:
    depth = 25
    opened = os.open(f"{place}/tree", os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("n" * 200, dir_fd=opened)
        above, opened = opened, os.open("n" * 200, os.O_RDONLY, dir_fd=opened)
        os.close(above)
    os.close(opened)
    made = packed()
    assert set(made.remarks.counts) == {"name too long"}
    assert len(names(place)) + made.remarks.counts["name too long"] == depth + 1
    with trees.opened(f"{place}/archive") as archive:
        unpack(archive, f"{place}/back", limits=made.limits)
    subprocess.run(["rm", "-rf", f"{place}/tree"], check=True)


# -- a tree that changes ----------------------------------------------------------------------------------------------


def changing(place: str, packed: Pack, change: Callable[[], None], after: int) -> PackedArchive:
    """Pack the tree, and change it when so many bytes are through: what is behind them is still to be read."""
    done = []

    def moved(passed: int) -> None:
        if passed >= after and not done:
            done.append(change())

    made = packed(moved=moved)
    assert done
    return made


MIB = 1 << 20


def test_a_file_that_goes_away_is_told(place: str, packed: Pack) -> None:
    write(f"{place}/tree/a", os.urandom(8 * MIB))
    write(f"{place}/tree/b")
    write(f"{place}/tree/d/c")
    made = changing(place, packed, lambda: subprocess.run(["rm", "-r", f"{place}/tree/b", f"{place}/tree/d"]), MIB)
    assert names(place) == [".", "a"]
    assert made.remarks.counts["vanished"] == 2


def test_a_file_that_grows_is_told(place: str, packed: Pack) -> None:
    write(f"{place}/tree/a", os.urandom(8 * MIB))

    def grow() -> None:
        with open(f"{place}/tree/a", "ab") as file:
            file.write(b"more")

    made = changing(place, packed, grow, MIB)
    assert [(it.name, it.what) for it in made.remarks.first] == [("a", "changed")]
    assert made.content_bytes == 8 * MIB


def test_a_file_that_shrinks_is_told_and_the_rest_is_whole(place: str, packed: Pack) -> None:
    write(f"{place}/tree/a", os.urandom(8 * MIB))
    write(f"{place}/tree/b", b"whole")
    made = changing(place, packed, lambda: os.truncate(f"{place}/tree/a", 5), MIB)
    assert made.remarks.counts["shrank"] == 1
    with tarfile.open(f"{place}/archive") as tar:
        assert tar.getmember("a").size == 8 * MIB
        found = tar.extractfile("b")
        assert found is not None
        assert found.read() == b"whole"


def test_a_tree_that_goes_away_is_told(place: str, packed: Pack) -> None:
    write(f"{place}/tree/a", os.urandom(8 * MIB))
    made = changing(place, packed, lambda: subprocess.run(["rm", "-r", f"{place}/tree"]), MIB)
    assert made.members == 2


# -- what fails -------------------------------------------------------------------------------------------------------


def children() -> list[str]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return file.read().split()


def test_a_full_disk_is_told(place: str) -> None:
    write(f"{place}/tree/a", os.urandom(3 * MIB))
    before = children()
    for codec in ("gzip", "zstd", "none"):
        full = trees.opened("/dev/full", os.O_WRONLY)
        with trees.opened(f"{place}/tree") as top, full as output, pytest.raises(SandkeepError) as caught:
            pack(top, output, codec=codec)  # type: ignore[arg-type]
        assert caught.value.code == "storage_unavailable"
        assert "No space left" in caught.value.message
    assert children() == before


def test_a_reader_that_goes_away_is_told(place: str) -> None:
    write(f"{place}/tree/a", os.urandom(3 * MIB))
    read, writing = os.pipe()
    os.close(read)
    with trees.opened(f"{place}/tree") as top, pytest.raises(SandkeepError) as caught:
        pack(top, writing)
    os.close(writing)
    assert caught.value.code == "storage_unavailable"


def test_it_can_be_stopped_at_any_moment(place: str, packed: Pack) -> None:
    write(f"{place}/tree/a", os.urandom(5 * MIB))
    before = children()

    def moved(passed: int) -> None:
        raise InterruptedError(passed)

    for codec in ("gzip", "zstd", "none"):
        with pytest.raises(InterruptedError):
            packed(moved=moved, codec=codec)
    assert children() == before


def test_what_cannot_be_read_makes_no_archive(place: str, packed: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    from sandkeep_store.archives.trees import read

    for script, words in (
        ("echo 'tar: ./a: Read error at byte 0: Input/output error' >&2; exit 2", "Read error"),
        ("kill -9 $$", "it ended with -9"),
        ("exit 3", "it ended with 3"),
        ("printf x; exit 0", "cut short"),
    ):
        monkeypatch.setattr(read, "_TAR", ("sh", "-c", script))
        with pytest.raises(SandkeepError) as caught:
            packed()
        assert (caught.value.code, words in caught.value.message) == ("provider_unavailable", True), caught.value


def test_how_much_is_packed_is_told(place: str, packed: Pack) -> None:
    write(f"{place}/tree/a", os.urandom(5 * MIB))
    told: list[int] = []
    packed(moved=told.append)
    assert told == sorted(told)
    assert told[-1] >= 5 * MIB


# -- soaking ----------------------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_two_gigabytes_take_little_memory(place: str, codec: str) -> None:
    script = """
import os, resource, sys
from sandkeep_store.archives.tar.inspect import inspect
from sandkeep_store.archives.trees.pack import pack
from sandkeep_store.archives.trees.unpack import unpack
root, codec = sys.argv[1:]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
output = os.open(root + "/archive", os.O_RDWR | os.O_CREAT)
made = pack(os.open(root + "/tree", os.O_RDONLY), output, codec=codec)
unpack(output, root + "/back", limits=made.limits)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    block = Random(1).randbytes(1 << 20)
    for number in range(20):
        write(f"{place}/tree/{number}", b"".join(block[at:] + block[:at] for at in range(100)))
    done = subprocess.run([sys.executable, "-c", script, place, codec], check=True, stdout=subprocess.PIPE)
    assert int(done.stdout) < 64 << 10


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100))
def test_random_trees_come_back_as_they_were(place: str, packed: Pack, seed: int) -> None:
    trees.Gardener(f"{place}/tree", Random(seed)).work(100)
    made = packed(codec=["gzip", "zstd", "none"][seed % 3])
    with trees.opened(f"{place}/archive") as archive:
        unpack(archive, f"{place}/back", limits=made.limits, owner=OWNER)
    assert described(f"{place}/back") == described(f"{place}/tree")


def test_a_tree_of_nothing_is_an_archive_of_its_top(place: str, packed: Pack) -> None:
    os.chmod(f"{place}/tree", 0o750)
    assert packed().members == 1
    with open(f"{place}/archive", "rb") as file, tarfile.open(fileobj=io.BytesIO(file.read())) as tar:
        assert [(info.name, info.mode) for info in tar] == [(".", 0o750)]

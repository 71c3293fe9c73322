"""Unpacking: a tree made beside its place in a jail, from archives that anybody made, and swapped in or not at all."""

import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator

import pytest
from tests.store.archives.tar.test_inspect import CODECS, HOSTILE
from tests.support import tars, trees
from tests.support.expect import until
from tests.support.tars import archive, member
from tests.support.trees import NEW, described

from sandkeep.errors import SandkeepError
from sandkeep.system import libc
from sandkeep_store.archives.tar.inspect import Inspection
from sandkeep_store.archives.tar.members import Member
from sandkeep_store.archives.trees import extract, jail, swap
from sandkeep_store.archives.trees.extract import extracting
from sandkeep_store.archives.trees.pack import pack
from sandkeep_store.archives.trees.unpack import staged, unpack

Unpack = Callable[..., Inspection]
SANDBOX = (70_001, 70_002)


@pytest.fixture
def place() -> Iterator[str]:
    """A directory on a disk, which nobody but its user may enter, as a state directory is."""
    with tempfile.TemporaryDirectory(prefix="skt-unpack-") as root:
        yield root


@pytest.fixture
def unpacked(place: str) -> Unpack:
    """Unpacks bytes, or the file `archive`, at `target`."""

    def work(data: bytes | None = None, **options: object) -> Inspection:
        if data is not None:
            with open(f"{place}/archive", "wb") as file:
                file.write(data)
        with trees.opened(f"{place}/archive") as descriptor:
            return unpack(descriptor, f"{place}/target", **options)  # type: ignore[arg-type]

    return work


def write(path: str, content: bytes = b"") -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def leftovers(place: str) -> list[str]:
    return sorted(set(os.listdir(place)) - {"archive", "target"})


# -- archives of others -----------------------------------------------------------------------------------------------


def source(place: str) -> str:
    """A tree with what all programs and formats know."""
    top = f"{place}/source"
    write(f"{top}/d/file", b"x" * 3000)
    write(f"{top}/d/{'n' * 80}", b"long")
    write(f"{top}/d/\u00fc")
    os.chmod(f"{top}/d/file", 0o640)
    os.link(f"{top}/d/file", f"{top}/hard")
    os.symlink("d/file", f"{top}/link")
    os.mkdir(f"{top}/closed")
    write(f"{top}/closed/inside")
    os.chmod(f"{top}/closed", 0o555)
    for directory, names, files in os.walk(top, topdown=False):
        for name in [*names, *files]:
            os.utime(os.path.join(directory, name), (1_500_000_000, 1_500_000_000), follow_symlinks=False)
    os.utime(top, (1_400_000_000, 1_400_000_000))
    return top


@pytest.mark.needs("bsdtar")
@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tar.zst"])
@pytest.mark.parametrize(
    "command",
    [
        "tar --format=gnu", "tar --format=posix", "tar --format=ustar", "tar --format=v7",
        "bsdtar --format=pax", "bsdtar --format=ustar", "bsdtar --format=gnutar", "bsdtar",
    ],
)  # fmt: skip
def test_archives_of_tar_and_bsdtar_come_back(place: str, unpacked: Unpack, command: str, suffix: str) -> None:
    top = source(place)
    subprocess.run([*command.split(), "-caf", f"{place}/a{suffix}", "-C", top, "."], check=True)
    os.rename(f"{place}/a{suffix}", f"{place}/archive")
    unpacked()
    assert described(f"{place}/target") == described(top)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_of_python_come_back(place: str, unpacked: Unpack, form: int) -> None:
    top = source(place)
    with tarfile.open(f"{place}/archive", "w:gz", format=form) as tar:
        tar.add(top, ".")
    unpacked()
    assert described(f"{place}/target") == described(top)


@pytest.mark.parametrize("form", ["sparse-version=0.0", "sparse-version=0.1", "sparse-version=1.0", "format=gnu"])
def test_holes_come_back_in_every_form(place: str, unpacked: Unpack, form: str) -> None:
    with open(os.open(f"{place}/holes", NEW), "wb") as file:
        for at in range(60):
            file.seek(at << 16)
            file.write(b"data %d" % at)
        file.truncate(8 << 20)
    words = ["tar", "-cSf", f"{place}/archive", "-C", place]
    words += [f"--{form}", *([] if "gnu" in form else ["--format=posix"]), "holes"]
    subprocess.run(words, check=True)
    assert unpacked().content_bytes == 8 << 20
    assert os.stat(f"{place}/target/holes").st_blocks * 512 < 1 << 20
    with open(f"{place}/target/holes", "rb") as back, open(f"{place}/holes", "rb") as file:
        while chunk := file.read(1 << 20):
            assert back.read(1 << 20) == chunk
        assert not back.read()


def test_what_is_only_part_of_names_is_made_too(place: str, unpacked: Unpack) -> None:
    unpacked(archive(member(b"a/b/c", mtime=5), member(b"a/b/", b"5", mode=0o700, mtime=7)))
    found = {name: described(f"{place}/target")[name][1:3] for name in (b"a", b"a/b")}
    assert found == {b"a": ("0o755", 5 * 10**9), b"a/b": ("0o700", 7 * 10**9)}


def test_of_two_of_one_name_the_last_counts(place: str, unpacked: Unpack) -> None:
    twice = [member(b"a", data=b"one", mode=0o400), member(b"h", b"1", target=b"a"), member(b"a", data=b"two")]
    links = [member(b"l", b"2", target=b"a"), member(b"l", b"2", target=b"h"), member(b"d/", b"5", mode=0o700)]
    assert unpacked(archive(*twice, *links, member(b"d/", b"5", mode=0o711))).duplicates == 2
    found = described(f"{place}/target")
    assert [read(f"{place}/target/{name}") for name in ("a", "h", "l")] == [b"two", b"one", b"one"]
    assert (found[b"a"][3], found[b"d"][1]) == ("0o644", "0o711")


# -- whose it is ------------------------------------------------------------------------------------------------------


@pytest.mark.needs("root", "bwrap")
def test_all_belongs_to_the_owner_and_gives_no_rights(place: str, unpacked: Unpack) -> None:
    data = [member(b"./", b"5", mode=0o2755), member(b"d/", b"5", mode=0o7777), member(b"d/a", mode=0o6755, uid=0)]
    unpacked(archive(*data, member(b"d/h", b"1", target=b"d/a"), member(b"p", b"6"), member(b"e/f/g")), owner=SANDBOX)
    for directory, names, files in os.walk(f"{place}/target"):
        for name in ["", *names, *files]:
            status = os.lstat(os.path.join(directory, name))
            assert (status.st_uid, status.st_gid) == SANDBOX, name
            assert not status.st_mode & 0o6000, name
    assert described(f"{place}/target")[b"d"][1] == "0o1777"


@pytest.mark.needs("root")
def test_attributes_of_others_are_not_made(place: str, unpacked: Unpack) -> None:
    wanted = {
        b"user.k": b"v",
        b"user.overlay.opaque": b"y",
        b"trusted.overlay.opaque": b"y",
        b"security.capability": b"x",
    }
    records = {b"SCHILY.xattr." + name: value for name, value in wanted.items()}
    unpacked(archive(tars.extended(records), member(b"d/", b"5"), tars.extended(records), member(b"d/a")))
    for path in ("d", "d/a"):
        assert os.listxattr(f"{place}/target/{path}") == ["user.k"]


@pytest.mark.needs("root")
def test_attributes_come_back_on_what_its_owner_may_not_write_to(place: str, unpacked: Unpack) -> None:
    attribute = tars.extended({b"SCHILY.xattr.user.k": b"v"})
    closed = [attribute + member(b"d/", b"5", mode=0o500, mtime=5), attribute + member(b"d/a", mode=0o444, mtime=6)]
    unpacked(archive(*closed, attribute + member(b"b", mode=0), member(b"b", mode=0o400, mtime=7)), owner=SANDBOX)
    found = described(f"{place}/target")
    assert found[b"d"][1:] == ("0o500", 5 * 10**9, {"user.k": b"v"})
    assert found[b"d/a"][3:] == ("0o444", 6 * 10**9, {"user.k": b"v"})
    assert found[b"b"][3:] == ("0o400", 7 * 10**9, {})


def test_names_of_attributes_that_wait_for_the_end_count_as_memory(
    place: str, unpacked: Unpack, monkeypatch: pytest.MonkeyPatch
) -> None:
    attributes = tars.extended(b"".join(tars.record(b"SCHILY.xattr.user.%03d" % number, b"x") for number in range(100)))
    data = archive(*(attributes + member(b"%02d" % number, mode=0o444) for number in range(50)))
    monkeypatch.setattr(extract, "_MOST_LATE_BYTES", 100_000)  # of which values and members have 30,000
    with pytest.raises(SandkeepError, match=r"too much before '0[0-9]' can be made at the end only"):
        unpacked(data, owner=SANDBOX)
    assert leftovers(place) == []


# -- in its place, or not at all --------------------------------------------------------------------------------------


def test_what_was_there_is_replaced(place: str, unpacked: Unpack) -> None:
    write(f"{place}/target/old/file")
    os.chmod(f"{place}/target/old", 0)
    unpacked(archive(member(b"new")))
    assert os.listdir(f"{place}/target") == ["new"]
    assert leftovers(place) == []


def test_where_names_cannot_be_exchanged_it_is_replaced_all_the_same(
    place: str, unpacked: Unpack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libc, "_NUMBER", -1)  # as where the kernel has none
    unpacked(archive(member(b"first")))
    unpacked(archive(member(b"second")))
    assert os.listdir(f"{place}/target") == ["second"]
    assert leftovers(place) == []


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_nothing_of_what_would_do_harm_is_extracted(
    place: str, unpacked: Unpack, monkeypatch: pytest.MonkeyPatch, what: str, codec: str
) -> None:
    monkeypatch.setattr(jail, "start_extracting", None)  # nothing gets as far as that
    write(f"{place}/target/old")
    with pytest.raises(SandkeepError) as caught:
        unpacked(CODECS[codec](HOSTILE[what][0]))
    assert caught.value.code == "snapshot_corrupt"
    assert os.listdir(f"{place}/target") == ["old"]
    assert leftovers(place) == []


@pytest.mark.needs("root")
@pytest.mark.parametrize("jailed", [pytest.param(True, marks=pytest.mark.needs("bwrap")), False])
def test_links_that_lead_out_come_back_as_links_and_nothing_is_touched_where_they_lead(
    place: str, unpacked: Unpack, monkeypatch: pytest.MonkeyPatch, jailed: bool
) -> None:
    if not jailed:
        monkeypatch.setattr(jail, "bubblewrap", lambda: None)
    os.chmod(place, 0o777)  # the extracting program may write there, as far as the kernel is concerned
    write(f"{place}/outside/file", b"outside")
    for path in (f"{place}/outside", f"{place}/outside/file"):
        os.chown(path, *SANDBOX)
        os.utime(path, (1_500_000_000, 1_500_000_000))
    before = described(f"{place}/outside")
    outside = os.fsencode(f"{place}/outside")
    unpacked(
        archive(
            member(b"absolute", b"2", target=outside + b"/file"),
            member(b"above", b"2", target=b"../outside"),
            member(b"above", b"2", target=b"../outside/file", mtime=7),  # replaces the link, not the directory
            member(b"hard", b"1", target=b"absolute"),
            member(b"again", b"1", target=b"hard"),
            member(b"d/", b"5", mode=0o1700, mtime=5),
            member(b"d/up", b"2", target=b"../../outside", mode=0o777),
        ),
        owner=SANDBOX,
    )
    links = {b"absolute": outside + b"/file", b"above": b"../outside/file", b"hard": outside + b"/file"}
    links |= {b"again": outside + b"/file", b"d/up": b"../../outside"}
    for name, target in links.items():
        assert os.readlink(os.path.join(os.fsencode(place), b"target", name)) == target
    assert described(f"{place}/outside") == before
    assert set(os.listdir(place)) == {"archive", "outside", "target"}
    unpacked(archive(member(b"new")), owner=SANDBOX)  # removing the links removes nothing else
    assert described(f"{place}/outside") == before


@pytest.mark.needs("root", "bwrap")
def test_should_a_member_go_through_a_link_it_stays_in_the_jail(place: str) -> None:
    """The members of an archive are checked; this is what is left if that failed."""
    os.chmod(place, 0o777)
    os.mkdir(f"{place}/outside", 0o777)
    os.chmod(f"{place}/outside", 0o777)

    def extract() -> None:
        with staged(f"{place}/target", EMPTY) as stage, extracting(stage, SANDBOX) as made:
            made.put(Member(name=b"l", kind="symlink", target=os.fsencode(f"{place}/outside")))
            made.put(Member(name=b"l/a", kind="file"))

    with pytest.raises(SandkeepError, match="cannot be extracted here"):
        extract()
    assert os.listdir(f"{place}/outside") == []


def test_another_archive_than_was_recorded_is_refused(place: str, unpacked: Unpack) -> None:
    data = archive(member(b"a"))
    found = unpacked(data)
    unpacked(data, sha256=found.sha256)
    with pytest.raises(SandkeepError, match="its digest is another"):
        unpacked(archive(member(b"b")), sha256=found.sha256)
    assert os.listdir(f"{place}/target") == ["a"]


def test_an_archive_that_changes_while_it_is_read_is_refused(place: str, unpacked: Unpack) -> None:
    told: list[int] = []

    def moved(passed: int) -> None:
        told.append(passed)
        if len(told) == 1:
            with open(f"{place}/archive", "r+b") as file:
                file.write(archive(member(b"b")))

    write(f"{place}/target/old")
    with pytest.raises(SandkeepError, match="was changed while it was read"):
        unpacked(archive(member(b"a")), moved=moved)
    assert os.listdir(f"{place}/target") == ["old"]


def test_it_can_be_stopped_while_it_extracts(place: str, unpacked: Unpack) -> None:
    told: list[int] = []

    def moved(passed: int) -> None:
        told.append(passed)
        if len(told) > 12:
            raise InterruptedError

    write(f"{place}/target/old")
    before = {*threading.enumerate()}
    with pytest.raises(InterruptedError):
        unpacked(archive(member(b"a", data=bytes(10 << 20))), moved=moved)
    assert {*threading.enumerate()} <= before
    assert os.listdir(f"{place}/target") == ["old"]
    assert leftovers(place) == []


def test_a_place_that_is_not_there_is_told(place: str) -> None:
    write(f"{place}/archive", archive(member(b"a")))
    with trees.opened(f"{place}/archive") as descriptor, pytest.raises(SandkeepError) as caught:
        unpack(descriptor, f"{place}/nothing/target")
    assert caught.value.code == "storage_unavailable"


EMPTY = Inspection(codec="none", sha256="", size_bytes=0, members=0, content_bytes=0, data_bytes=0)


@pytest.mark.needs("root")
@pytest.mark.parametrize("full", ["size=1m", "size=8m,nr_inodes=8"])
@pytest.mark.parametrize("foreseen", [True, False])
def test_a_full_disk_leaves_what_was_there(
    place: str, full: str, foreseen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sandkeepd.host import mounts

    if not foreseen:  # others take the room when it was looked for already
        monkeypatch.setattr("sandkeep_store.archives.trees.unpack.staged", lambda target, *_: staged(target, EMPTY))
    data = archive(*(member(b"%d" % number, data=bytes(range(256)) * 800) for number in range(10)))
    write(f"{place}/data", data)
    os.mkdir(f"{place}/disk")
    mounts.mount("none", f"{place}/disk", "tmpfs", 0, full)
    try:
        write(f"{place}/disk/target/old")
        with trees.opened(f"{place}/data") as descriptor, pytest.raises(SandkeepError) as caught:
            unpack(descriptor, f"{place}/disk/target")
        assert caught.value.code == "storage_unavailable"
        assert "No space left" in caught.value.message
        assert os.listdir(f"{place}/disk/target") == ["old"]
        assert os.listdir(f"{place}/disk") == ["target"]
    finally:
        mounts.unmount(f"{place}/disk")


CRASHING = """
import os, signal, sys
from sandkeep_store.archives.trees import swap, unpack
place, when = sys.argv[1:]
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
told = []
def moved(passed):
    told.append(passed)
    if when == str(len(told)):
        die()
if when == "extracted":
    unpack.swap_in = die
if when == "exchanged":
    swap.sync_directory = die
unpack.unpack(os.open(place + "/archive", os.O_RDONLY), place + "/target", moved=moved)
"""


@pytest.mark.parametrize("when", ["1", "9", "20", "extracted", "exchanged"])
def test_a_crash_leaves_one_or_the_other_whole(place: str, when: str) -> None:
    write(f"{place}/target/old/file", b"old")
    write(f"{place}/archive", archive(*(member(b"%d" % number, data=bytes(1 << 20)) for number in range(10))))
    done = subprocess.run([sys.executable, "-c", CRASHING, place, when], check=False)
    assert done.returncode == -signal.SIGKILL
    found = sorted(os.listdir(f"{place}/target"))
    assert found == ([str(number) for number in range(10)] if when == "exchanged" else ["old"])
    # Another program removes them, once it sees that the first has died.
    until(lambda: not leftovers(place), seen=lambda: leftovers(place))


def test_what_a_machine_that_went_down_left_is_found(place: str) -> None:
    os.mkdir(f"{place}/.sandkeep-abc")
    os.mkdir(f"{place}/target")
    assert swap.leftovers(place) == [f"{place}/.sandkeep-abc"]
    assert swap.leftovers(f"{place}/nowhere") == []


# -- the jail ---------------------------------------------------------------------------------------------------------

ESCAPE = """
id -u; id -g
for path in /etc/passwd /etc/shadow /root /home /proc/1/environ /var; do
    [ ! -e $path ] || ls -d $path
done
ls /
for path in /usr/x /x ../x /tmp/x "$1"/x; do true >"$path" && echo "wrote $path"; done
true >inside && echo "wrote inside"
grep -i -E 'CapEff|NoNewPrivs' /proc/self/status
cat /sys/class/net/*/address
exec cat >inside
"""


def escaped(place: str, unpacked: Unpack, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a program says that tries to leave its jail."""
    heard = f"{place}/heard"
    program = ["sh", "-c", f"exec >&2 2>&-; {ESCAPE}", "sh", place]
    monkeypatch.setattr(jail, "_TAR", program)
    start = jail.start_extracting

    def listening(tree: bytes, owner: tuple[int, int] | None, said: object, *, group: int) -> object:
        with open(heard, "wb") as file:
            return start(tree, owner, file, group=group)

    monkeypatch.setattr(jail, "start_extracting", listening)
    unpacked(archive(member(b"a")), owner=SANDBOX)
    with open(heard) as file:
        return file.read().splitlines()


@pytest.mark.needs("root", "bwrap")
def test_the_extracting_program_sees_and_writes_nothing_but_the_tree(
    place: str, unpacked: Unpack, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = escaped(place, unpacked, monkeypatch)
    assert said[:2] == [str(SANDBOX[0]), str(SANDBOX[1])]
    assert [line for line in said if line.startswith("wrote")] == ["wrote inside"]
    assert set(said[2:]) <= {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "tree", "usr", "wrote inside"}
    assert os.path.exists(f"{place}/target/inside")


@pytest.mark.needs("root")
def test_without_bubblewrap_it_still_writes_nothing_else(
    place: str, unpacked: Unpack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jail, "bubblewrap", lambda: None)
    os.chmod(place, 0o777)
    said = escaped(place, unpacked, monkeypatch)
    assert said[:2] == [str(SANDBOX[0]), str(SANDBOX[1])]
    assert [line for line in said if line.startswith("wrote")] == ["wrote inside"]
    assert {line.split()[-1] for line in said if line.startswith(("CapEff", "NoNewPrivs"))} == {"0" * 16, "1"}


@pytest.mark.needs("root")
def test_without_bubblewrap_it_comes_back_the_same(
    place: str, unpacked: Unpack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jail, "bubblewrap", lambda: None)
    top = source(place)
    with trees.opened(top) as tree, trees.opened(f"{place}/archive", NEW) as output:
        pack(tree, output)
    unpacked(owner=SANDBOX)
    assert described(f"{place}/target") == described(top)
    assert os.stat(f"{place}/target/d/file").st_uid == SANDBOX[0]


@pytest.mark.needs("root", "bwrap")
def test_a_users_own_daemon_does_the_same(place: str) -> None:
    os.chmod(place, 0o755)
    os.mkdir(f"{place}/mine")
    os.chown(f"{place}/mine", *SANDBOX)
    script = """
import os, sys
from sandkeep_store.archives.trees.pack import pack
from sandkeep_store.archives.tar.inspect import Inspection
from sandkeep_store.archives.trees.unpack import unpack
place = sys.argv[1]
os.mkdir(place + "/tree")
os.makedirs(place + "/tree/closed/inside")
open(place + "/tree/closed/inside/a", "w").close()
os.symlink("/usr", place + "/tree/link")
os.chmod(place + "/tree/closed/inside", 0)
os.chmod(place + "/tree/closed", 0o500)
os.chmod(place + "/tree", 0o555)
output = os.open(place + "/archive", os.O_RDWR | os.O_CREAT)
made = pack(os.open(place + "/tree", os.O_RDONLY), output)
for _ in range(2):
    unpack(output, place + "/back", limits=made.limits)
"""
    rights = ["setpriv", "--reuid", str(SANDBOX[0]), "--regid", str(SANDBOX[1]), "--clear-groups"]
    os.chmod(place, 0o755)
    done = subprocess.run(
        [*rights, sys.executable, "-c", script, f"{place}/mine"], capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    assert described(f"{place}/mine/back") == described(f"{place}/mine/tree")


def test_what_the_program_says_is_told(place: str, unpacked: Unpack, monkeypatch: pytest.MonkeyPatch) -> None:
    for script, code in (
        ("cat >/dev/null; echo 'tar: a: Cannot open: No space left on device' >&2; exit 2", "storage_unavailable"),
        ("exec <&-; echo 'tar: a: Cannot open: Disk quota exceeded' >&2; exit 2", "storage_unavailable"),
        ("cat >/dev/null; echo 'tar: a: Cannot open: Nonsense' >&2; exit 2", "snapshot_corrupt"),
        ("kill -9 $$", "provider_unavailable"),
    ):
        monkeypatch.setattr(jail, "bubblewrap", lambda: None)
        monkeypatch.setattr(jail, "_TAR", ("sh", "-c", script))
        with pytest.raises(SandkeepError) as caught:
            unpacked(archive(member(b"a", data=bytes(5 << 20))))
        assert caught.value.code == code, caught.value
    assert leftovers(place) == []

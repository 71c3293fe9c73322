"""Importing a directory: exactly what is there, with the caller's rights and no others."""

import contextlib
import errno
import os
import shlex
import socket
import stat
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from tests.support import disks
from tests.support.documents import directory
from tests.support.expect import until_async
from tests.support.patience import patient

from sandkeep.errors import CallerError, DaemonError, SandkeepError, StateError
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.images import ImportedImage
from sandkeepd.host import caller_paths, processes
from sandkeepd.host.caller_paths import digest_tree, import_tree
from sandkeepd.host.threads import Meter, run_in_thread

ROOT = os.geteuid() == 0
ME = Caller(uid=os.geteuid(), gid=os.getegid())
OTHER = 40_003
STRANGER = Caller(uid=40_001, gid=40_001)
OWNER = 1_950_000_000 if ROOT else None


async def quiet(sentence: str) -> None:
    del sentence


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    directory.mkdir()
    for path in (tmp_path, *tmp_path.parents):
        if path.name.startswith(("pytest-", "popen-", "test_")) and path.stat().st_uid == os.geteuid():
            path.chmod(0o755)
    directory.chmod(0o755)
    return directory


async def take(
    source: Path, target: Path, caller: Caller = ME, hide: Sequence[str] = ("/nonexistent",)
) -> ImportedImage:
    return await import_tree(
        str(source), caller, str(target), owner=OWNER, hide=hide, progress=quiet, check_size=lambda _: None
    )


async def test_progress_has_the_total_of_the_files(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "deep").mkdir()
    (source / "one").write_bytes(b"x" * 1000)
    (source / "deep" / "two").write_bytes(b"x" * 234)
    (source / "link").symlink_to("one")
    meters: list[Meter] = []

    async def watched(work: Callable[[Meter], Any], *words: Any, **options: Any) -> Any:
        return await run_in_thread(lambda meter: (meters.append(meter), work(meter))[1], *words, **options)

    monkeypatch.setattr(caller_paths, "run_in_thread", watched)
    await take(source, tmp_path / "target")
    assert [meter.total_bytes for meter in meters] == [1234]
    assert meters[0].bytes > 1234, "what tar has written, with its headers"


async def test_a_tree_arrives_as_it_is(source: Path, tmp_path: Path) -> None:
    names = [b"plain", b"-rf", b" space ", b"new\nline", b"back\\slash", b"\xff\xfe", "é𝄞".encode(), b"*?[", b"x" * 255]
    for number, name in enumerate(names):
        path = os.fsencode(source) + b"/" + name
        with open(path, "wb") as file:
            file.write(bytes(range(256)) * number)
        os.chmod(path, 0o400 + number)
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
    (source / "empty").mkdir(mode=0o750)
    (source / "empty").chmod(0o1777)
    (source / "dangling").symlink_to("/no/such/file")
    (source / "up").symlink_to("../../..")
    os.link(source / "plain", source / "hard")
    os.mkfifo(source / "fifo")
    (source / "sparse").touch()
    os.truncate(source / "sparse", 50_000_000)
    os.utime(source / "empty", (5, 5))
    target = tmp_path / "target"
    result = await take(source, target)
    for name in [*names, b"empty", b"dangling", b"up", b"hard", b"fifo", b"sparse"]:
        before, after = (os.lstat(os.fsencode(top) + b"/" + name) for top in (source, target))
        assert before.st_mode == after.st_mode, name
        assert before.st_size == after.st_size or stat.S_ISDIR(before.st_mode)
        if not stat.S_ISLNK(before.st_mode):
            assert int(before.st_mtime) == int(after.st_mtime), name
        assert after.st_uid == (OWNER if ROOT else os.geteuid())
        if stat.S_ISREG(before.st_mode):
            assert (
                Path(os.fsdecode(os.fsencode(source) + b"/" + name)).read_bytes()
                == (target / os.fsdecode(name)).read_bytes()
            )
    assert os.readlink(target / "dangling") == "/no/such/file"
    assert os.readlink(target / "up") == "../../.."
    assert (target / "plain").stat().st_ino == (target / "hard").stat().st_ino
    assert (target / "sparse").stat().st_blocks * 512 < 1_000_000
    assert result.file_count == len(names) + 7
    assert result.skipped_count == 0
    assert result.digest == digest_tree(str(source))[0]


def test_digest_tells_contents_and_sizes_apart_but_no_holes(tmp_path: Path) -> None:
    """Read to its end, a file of 8 TiB would occupy a thread for hours."""
    size, piece = 1 << 43, 1 << 20
    for name in ("hole", "zeros", "data", "elsewhere", "longer"):
        (tmp_path / name).mkdir()
        with open(tmp_path / name / "file", "wb") as file:
            if name == "zeros":
                file.write(bytes(3 * piece))
            if name in ("data", "elsewhere"):
                for offset in (5, 700, 3 * piece - 1):  # several extents of one piece, and one over a boundary
                    file.seek(offset + (name == "elsewhere"))
                    file.write(b"xy")
            file.truncate(size + (name == "longer"))
    digests = {name: digest_tree(str(tmp_path / name))[0] for name in os.listdir(tmp_path)}
    assert digests["hole"] == digests["zeros"]
    assert len(set(digests.values())) == 4


async def test_setuid_bits_are_dropped(source: Path, tmp_path: Path) -> None:
    (source / "tool").touch()
    (source / "tool").chmod(0o6755)
    (source / "dir").mkdir()
    (source / "dir").chmod(0o2755)
    await take(source, tmp_path / "target")
    assert stat.S_IMODE((tmp_path / "target" / "tool").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "target" / "dir").stat().st_mode) == 0o755


async def test_sockets_and_devices_are_skipped_and_told(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("a socket")
    (source / "kept").touch()
    expected = {"a socket": "socket"}
    if ROOT:
        os.mknod(source / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        expected["device"] = "device"
    result = await take(source, tmp_path / "target")
    assert {file.path: file.why for file in result.skipped} == expected
    assert result.skipped_count == len(expected)
    assert os.listdir(tmp_path / "target") == ["kept"]


async def test_many_skipped_files_are_counted_and_some_named(source: Path, tmp_path: Path) -> None:
    if not ROOT:
        pytest.skip("making devices takes root")
    for number in range(130):
        os.mknod(source / f"d{number}", stat.S_IFCHR, os.makedev(1, 3))
    result = await take(source, tmp_path / "target")
    assert (result.skipped_count, len(result.skipped)) == (130, 100)


@pytest.mark.parametrize("name", ["none", "file", "file/below"])
async def test_what_is_no_directory(source: Path, tmp_path: Path, name: str) -> None:
    (source / "file").touch()
    with pytest.raises(CallerError) as raised:
        await take(source / name, tmp_path / "target")
    assert raised.value.code == "invalid"
    assert str(source / name) in raised.value.message
    with pytest.raises(CallerError, match="absolute"):
        await take(Path("relative"), tmp_path / "target")


@pytest.mark.needs("root")
@pytest.mark.parametrize("where", ["file", "dir", "top", "parent"])
async def test_what_the_caller_may_not_read(source: Path, tmp_path: Path, where: str) -> None:
    (source / "open").touch()
    (source / "deep" / "closed").mkdir(parents=True)
    (source / "deep" / "closed" / "x").touch()
    asked, named = source, source / "deep" / "closed"
    if where == "file":
        named = source / "deep" / "secret"
        named.write_text("root's")
        named.chmod(0o600)
    elif where == "dir":
        named.chmod(0o700)
    elif where == "top":
        asked = named
        named.chmod(0o700)
    else:
        asked = named = source / "deep" / "closed"
        (source / "deep").chmod(0o700)
    with pytest.raises(CallerError) as raised:
        await take(asked, tmp_path / "target", STRANGER)
    assert raised.value.code == "permission_denied"
    assert str(named) in raised.value.message
    assert (await take(source, tmp_path / "mine")).file_count > 3  # root may


@pytest.mark.needs("root")
async def test_a_group_of_the_callers_counts(source: Path, tmp_path: Path) -> None:
    (source / "shared").write_text("x")
    os.chown(source / "shared", 0, 40_777)
    (source / "shared").chmod(0o640)
    with pytest.raises(CallerError, match="permission_denied"):
        await take(source, tmp_path / "one", STRANGER)
    await take(source, tmp_path / "two", Caller(uid=40_001, gid=40_001, groups=(40_777,)))
    assert (tmp_path / "two" / "shared").read_text() == "x"


async def test_a_user_can_only_act_for_himself(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(CallerError, match="permission_denied"):
        await take(source, tmp_path / "target", STRANGER)


async def test_the_daemons_own_directories_are_not_copied_into_themselves(source: Path) -> None:
    state, archives = source / "a" / "state", source / "-ar chives*"
    for place in (state, archives):
        place.mkdir(parents=True)
        (place / "big").write_text("x")
    (source / "a" / "kept").write_text("y")
    result = await take(source, state / "target", hide=[str(state), "/nonexistent", str(archives)])
    assert result.file_count == 3
    assert sorted(os.listdir(state / "target")) == ["a"]
    assert sorted(os.listdir(state / "target" / "a")) == ["kept"]


async def test_equal_trees_have_equal_digests(source: Path, tmp_path: Path) -> None:
    (source / "b").write_text("1")
    (source / "a").mkdir()
    (source / "a" / "c").write_text("2")
    first = await take(source, tmp_path / "one")
    os.utime(source / "b", (1, 1))
    assert (await take(source, tmp_path / "two")).digest == first.digest
    (source / "b").chmod(0o755)
    changed = await take(source, tmp_path / "three")
    assert changed.digest != first.digest
    (source / "a" / "c").rename(source / "c")
    assert (await take(source, tmp_path / "four")).digest != changed.digest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no mounts here: {errno.errorcode[1]}")
    yield place
    disks.umount(str(place))


@pytest.mark.needs("root")
async def test_a_full_disk(source: Path, small_disk: Path) -> None:
    (source / "big").write_bytes(b"x" * 3_000_000)
    with pytest.raises(DaemonError, match="storage_unavailable"):
        await take(source, small_disk / "target")


# -- callers who mean harm ---------------------------------------------------------------------------------------------


async def test_a_tree_deeper_than_paths_can_tell(places: str, tmp_path: Path) -> None:
    """All its paths together would be gigabytes."""
    with directory(places) as source:  # not below `tmp_path`: what pytest removes it with is not made for such depths
        here = os.open(source, os.O_RDONLY)
        for _ in range(5000):
            os.mkdir("d", dir_fd=here)
            below = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(here)
        with pytest.raises(StateError, match="more than 512 levels"):
            await take(source, tmp_path / "target")


async def test_what_the_kernel_shows_as_files(tmp_path: Path) -> None:
    for name in ("/proc", "/sys"):
        with pytest.raises(CallerError, match="choose another directory"):
            await take(Path(name), tmp_path / "target")


async def test_a_file_without_end(source: Path, tmp_path: Path) -> None:
    (source / "sparse").touch()
    os.truncate(source / "sparse", 1 << 41)
    with pytest.raises(CallerError, match=r"more than 1 TiB: sparse"):
        await take(source, tmp_path / "target")


def _meddle(monkeypatch: pytest.MonkeyPatch, which: int, script: str) -> None:
    """Have the caller replace a program that runs as himself: the first surveys, the second reads."""
    honest, asked = caller_paths._as_caller, iter(range(100))

    def meddled(caller: Caller) -> list[str]:
        mine = caller.uid != OTHER and next(asked) == which
        return ["sh", "-c", script, "sh"] if mine else honest(caller)

    monkeypatch.setattr(caller_paths, "_as_caller", meddled)


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    "script",
    ["while :; do echo x; done", "while :; do echo x >&2; done & exec sleep 1000", "exec sleep 1000"],
    ids=["endless names", "endless complaints", "silence"],
)
async def test_a_survey_without_end(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """It is refused where it is too much, and otherwise ended with whoever waits for it; other callers go on."""
    _meddle(monkeypatch, 0, script)
    with trio.move_on_after(patient(60)) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_refused, source, tmp_path / "one")
            await _others_go_on(tmp_path)
            if "echo x; done" not in script or ">&2" in script:
                scope.cancel()
    assert scope.cancelled_caught == (not script.endswith("echo x; done"))


async def _refused(source: Path, target: Path) -> None:
    with pytest.raises(CallerError, match="longer than the kernel takes"):
        await take(source, target)


async def _others_go_on(tmp_path: Path) -> None:
    await trio.testing.wait_all_tasks_blocked()
    (tmp_path / "other").mkdir()
    other = Caller(uid=OTHER, gid=OTHER)
    (tmp_path / "other").chmod(0o755)
    await take(tmp_path / "other", tmp_path / "two", other)


@pytest.mark.needs("root")
async def test_an_import_that_hangs_ends_with_the_daemon(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _meddle(monkeypatch, 1, "sleep 1000 & exec sleep 1000")  # one of them keeps the pipe open
    with trio.move_on_after(patient(60)) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, source, tmp_path / "one")
            await _others_go_on(tmp_path)
            scope.cancel()
    assert scope.cancelled_caught
    await until_async(lambda: processes.pids_where(processes.owned_by(OWNER or -1)) == [])


def _stream(path: Path, *members: tuple[str, bytes, str, int]) -> None:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for name, kind, target, mode in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode, member.uid = kind, target, mode, 0
            archive.addfile(member)
    path.chmod(0o644)


async def test_a_stream_that_the_caller_made_up(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it says, it is written into the image and nowhere else, and without setuid bits."""
    outside = tmp_path / "outside"
    outside.mkdir()
    outside.chmod(0o777)
    (outside / "victim").touch()
    (outside / "victim").chmod(0o666)
    _stream(
        tmp_path / "stream", (f"{outside}/absolute", tarfile.REGTYPE, "", 0o644),
        ("../../../../../../.." + f"{outside}/dots", tarfile.REGTYPE, "", 0o644),
        ("link", tarfile.SYMTYPE, str(outside), 0o777), ("link/through", tarfile.REGTYPE, "", 0o644),
        ("hard", tarfile.LNKTYPE, str(outside / "victim"), 0o644), ("suid", tarfile.REGTYPE, "", 0o6755),
        ("dir", tarfile.DIRTYPE, "", 0o6755),
    )  # fmt: skip
    _meddle(monkeypatch, 1, f"exec cat {shlex.quote(str(tmp_path / 'stream'))}")
    with contextlib.suppress(SandkeepError):
        await take(source, tmp_path / "target")
    assert os.listdir(outside) == ["victim"]
    assert (outside / "victim").stat().st_nlink == 1
    _stream(tmp_path / "stream", ("suid", tarfile.REGTYPE, "", 0o6755), ("dir", tarfile.DIRTYPE, "", 0o6755))
    _meddle(monkeypatch, 1, f"exec cat {shlex.quote(str(tmp_path / 'stream'))}")
    await take(source, tmp_path / "second")
    assert {stat.S_IMODE((tmp_path / "second" / name).stat().st_mode) for name in ("suid", "dir")} == {0o755}


@pytest.mark.needs("root")
async def test_a_device_in_a_stream_that_the_caller_made_up(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(tmp_path / "stream", "w") as archive:
        member = tarfile.TarInfo("node")
        member.type, member.devmajor, member.devminor = tarfile.BLKTYPE, 8, 0
        archive.addfile(member)
    _meddle(monkeypatch, 1, f"exec cat {shlex.quote(str(tmp_path / 'stream'))}")
    with pytest.raises(SandkeepError, match="could not be written"):
        await take(source, tmp_path / "target")
    assert not (tmp_path / "target" / "node").exists()


async def test_a_look_tells_what_the_caller_finds(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "Dockerfile").write_text("FROM scratch\n")
    assert await caller_paths.look(str(tmp_path), ME, "Dockerfile") == "directory"
    assert await caller_paths.look(str(tmp_path), ME, "sub/Dockerfile") == "dockerfile"
    assert await caller_paths.look(str(tmp_path / "sub"), ME, "Dockerfile") == "dockerfile"
    assert await caller_paths.look(str(tmp_path / "sub" / "Dockerfile"), ME, "Dockerfile") == "file"
    with pytest.raises(CallerError, match="there is no directory"):
        await caller_paths.look(str(tmp_path / "none"), ME, "Dockerfile")


async def test_a_look_has_the_callers_rights(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can look for others")
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    tmp_path.chmod(0o700)
    with pytest.raises(CallerError, match="permission_denied"):
        await caller_paths.look(str(tmp_path), Caller(uid=40_000, gid=40_000), "Dockerfile")

"""Importing a directory: exactly what is there, with the caller's rights and no others."""

import errno
import os
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandkeep.errors import CallerError, DaemonError
from sandkeepd.hostpath import digest_tree, import_tree
from sandkeepd.providers.base import Caller, ImportedImage

ROOT = os.geteuid() == 0
ME = Caller(uid=os.geteuid(), gid=os.getegid())
STRANGER = Caller(uid=40_001, gid=40_001)
OWNER = 1_900_000_000 if ROOT else None


async def quiet(sentence: str) -> None:
    del sentence


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    directory.mkdir()
    for path in (tmp_path, *tmp_path.parents):
        if path.name.startswith(("pytest-", "test_")) and path.stat().st_uid == os.geteuid():
            path.chmod(0o755)
    directory.chmod(0o755)
    return directory


async def take(source: Path, target: Path, caller: Caller = ME, hide: str = "/nonexistent") -> ImportedImage:
    return await import_tree(str(source), caller, str(target), owner=OWNER, hide=hide, progress=quiet)


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


async def test_the_state_directory_is_not_copied_into_itself(source: Path) -> None:
    state = source / "a" / "state"
    state.mkdir(parents=True)
    (state / "big").write_text("x")
    (source / "a" / "kept").write_text("y")
    result = await take(source, state / "target", hide=str(state))
    assert result.file_count == 3
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
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.needs("root")
async def test_a_full_disk(source: Path, small_disk: Path) -> None:
    (source / "big").write_bytes(b"x" * 3_000_000)
    with pytest.raises(DaemonError, match="storage_unavailable"):
        await take(source, small_disk / "target")

"""Which archives a workspace can be filled with, and which are refused."""

import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import refused
from tests.support.tars import END, header

from sandkeep_store.archives.tar.limits import DEFAULT_LIMITS
from sandkeepd.contract.layers import KeptArchive
from sandkeepd.host.threads import Meter
from sandkeepd.providers.docker import plan
from sandkeepd.providers.docker.filling import fill, verified

USER = 1234
Archive = Callable[..., KeptArchive]


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    opened = []

    def make(*headers: bytes) -> KeptArchive:
        content = b"".join([header(b"workspace", b"5", mode=0o700, uid=USER, gid=USER), *headers, END])
        path = tmp_path / "archive"
        path.write_bytes(content)
        opened.append(os.open(path, os.O_RDONLY))
        return KeptArchive(descriptor=opened[-1], sha256=sha256(content).hexdigest(), limits=DEFAULT_LIMITS)

    yield make
    for descriptor in opened:
        os.close(descriptor)


def planned() -> plan.Plan:
    return plan.Plan(
        name="x", owner="uid:0", image="x", uid=USER, gid=USER, shell="/bin/sh", tmux=False, workspace="/workspace",
        writable=True, workspace_volume=None, read_only_root=True, network="none", seccomp="default", pids=1,
        memory_bytes=None, cpus=None, disk_bytes=1, scratch_bytes=1,
    )  # fmt: skip


def own(name: bytes, kind: bytes = b"0", **fields: Any) -> bytes:
    return header(name, kind, **{"uid": USER, "gid": USER, **fields})


@pytest.mark.needs("root", "bwrap")
def test_the_workspace_is_unpacked_without_its_place(archive: Archive, tmp_path: Path) -> None:
    checked = verified(
        archive(header(b"etc", b"5"), own(b"workspace/a"), own(b"workspace/b", b"1", target=b"workspace/a")),
        planned(), Meter(),
    )  # fmt: skip
    assert checked is not None
    target = tmp_path / "filled"
    fill(checked, planned(), str(target))
    assert sorted(path.name for path in target.iterdir()) == ["a", "b"]
    assert (target / "a").stat().st_ino == (target / "b").stat().st_ino
    assert (target.stat().st_mode & 0o777, target.stat().st_uid) == (0o700, USER)


@pytest.mark.parametrize(
    "member",
    [
        own(b"workspace/a", uid=0),
        own(b"workspace/a", gid=0),
        own(b"etc/a") + own(b"workspace/a", b"1", target=b"etc/a"),
    ],
)
def test_what_its_user_cannot_make_is_left_to_the_engine(archive: Archive, member: bytes) -> None:
    assert verified(archive(member), planned(), Meter()) is None


@pytest.mark.parametrize(
    "members",
    [
        own(b"workspace/../a"),
        own(b"workspace/a", b"2", target=b"/etc") + own(b"workspace/a/b"),
        own(b"workspace/a", b"3", uid=USER),
    ],
)
def test_hostile_archives_are_refused(archive: Archive, members: bytes) -> None:
    refused("snapshot_corrupt", verified, archive(members), planned(), Meter())


def test_a_whiteout_is_no_file_of_a_workspace(archive: Archive) -> None:
    refused("invalid", verified, archive(own(b"workspace/.wh.a")), planned(), Meter())


def test_another_archive_than_the_recorded_one_is_refused(archive: Archive) -> None:
    kept = archive(own(b"workspace/a"))
    other = KeptArchive(descriptor=kept.descriptor, sha256="0" * 64, limits=DEFAULT_LIMITS)
    refused("snapshot_corrupt", verified, other, planned(), Meter())

"""Archives under other names: without their leading directory, and as layers over an image."""

import os
from pathlib import Path

import pytest
from tests.support.tars import archive, member

from sandkeep.errors import SandkeepError
from sandkeep_store.archives.tar.inspect import CheckedArchive
from sandkeep_store.archives.tar.limits import DEFAULT_LIMITS
from sandkeep_store.archives.trees.rebase import Rebased, Workspace

DEV = Workspace(path=b"home/dev", owner=(7, 8))


def rebased(
    place: Path, data: bytes, *, strip: bool = False, into: Workspace | None = None
) -> list[tuple[object, ...]]:
    """The members that an archive has then, with their data."""
    (place / "archive").write_bytes(data)
    opened = [os.open(place / "archive", os.O_RDONLY), os.open(place, os.O_RDONLY)]
    try:
        source = Rebased(CheckedArchive(opened[0], DEFAULT_LIMITS), strip=strip, into=into, image=opened[1])
        found = []
        for it in source:
            it_is = (it.name, it.kind, it.target, b"".join(map(bytes, source.data())))
            found.append(it_is if into is None else (*it_is, it.uid, it.gid))
        return found
    finally:
        for descriptor in opened:
            os.close(descriptor)


def test_a_leading_directory_goes_from_names_and_hard_links_only(tmp_path: Path) -> None:
    data = archive(
        member(b"workspace/", b"5"),
        member(b"workspace/a", data=b"x"),
        member(b"workspace/h", b"1", target=b"workspace/a"),
        member(b"workspace/l", b"2", target=b"workspace/a"),
    )
    assert rebased(tmp_path, data, strip=True) == [
        (b".", "directory", b"", b""),
        (b"a", "file", b"", b"x"),
        (b"h", "hard link", b"a", b""),
        (b"l", "symlink", b"workspace/a", b""),
    ]


def test_a_layer_has_the_images_directories_and_hides_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    status = (tmp_path / "home").stat()
    data = archive(
        member(b"./", b"5", uid=1), member(b"d/", b"5"), member(b"a", data=b"x", uid=1), member(b"d/", b"5"),
        member(b"h", b"1", target=b"a"),
    )  # fmt: skip
    assert rebased(tmp_path, data, into=DEV) == [
        (b"home", "directory", b"", b"", status.st_uid, status.st_gid),
        (b"home/dev", "directory", b"", b"", 7, 8),
        (b"home/dev/.wh..wh..opq", "file", b"", b"", 0, 0),
        (b"home/dev/d", "directory", b"", b"", 7, 8),
        (b"home/dev/a", "file", b"", b"x", 7, 8),
        (b"home/dev/h", "hard link", b"home/dev/a", b"", 7, 8),
    ]


def test_a_name_that_would_mark_a_deletion_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandkeepError, match=r"\.wh\.") as caught:
        rebased(tmp_path, archive(member(b"d/.wh.a")), into=DEV)
    assert caught.value.code == "invalid"


@pytest.mark.parametrize("name", ["home", "home/dev"])
@pytest.mark.parametrize("target", ["/etc", "../..", "file"])
def test_nothing_is_read_where_links_of_an_image_lead(tmp_path: Path, name: str, target: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to(target)
    with pytest.raises(SandkeepError, match="cannot be replaced") as caught:
        rebased(tmp_path, archive(member(b"a")), into=DEV)
    assert caught.value.code == "not_supported"


def test_a_name_that_gets_too_long_is_refused(tmp_path: Path) -> None:
    name = b"/".join([b"n" * 200] * 20)
    deep = archive(b"".join((member(b"x", b"L", name + b"\0"), member(b"a"))))
    assert len(rebased(tmp_path, deep)) == 1
    with pytest.raises(SandkeepError, match="longer than a path"):
        rebased(tmp_path, deep, into=Workspace(path=b"w" * 100, owner=(0, 0)))

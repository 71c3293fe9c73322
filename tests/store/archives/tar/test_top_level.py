"""Archives of a workspace and of a whole root, told apart by their names."""

import pytest

from sandkeep_store.archives.tar.members import Kind, Member
from sandkeep_store.archives.tar.top_level import TopLevel


def seen(beside: bytes | None, *names: str) -> tuple[str, bool]:
    top = TopLevel(beside)
    for name in names:
        kind: Kind = "directory" if name.endswith("/") else "symlink" if name.endswith("@") else "file"
        top.add(Member(name=name.rstrip("/@").encode(), kind=kind))
    return top.files, top.is_in_workspace


@pytest.mark.parametrize(
    "names",
    [
        ("workspace/",), ("workspace/", "workspace/etc/", "workspace/usr/"), ("workspace/file",),
        ("workspace/workspace/", "workspace/workspace/x"), ("workspaces/", "workspaces/file"),
    ],
)  # fmt: skip
def test_a_workspace_with_its_directory(names: tuple[str, ...]) -> None:
    for beside in (None, b"workspace", b"home/dev"):
        assert seen(beside, *names) == ("workspace", True)


@pytest.mark.parametrize(
    "names",
    [
        ("file",), ("./", "workspace/"), ("workspace/", "./"), ("workspace/", "bin/"), ("workspace",), ("workspace@",),
        ("workspace/", "workspaces/"), ("bin/", "etc/", "lib/", "lib64@", "include/", "share/", "var/"),
        ("usr/", "file"),
    ],
)  # fmt: skip
def test_a_workspace_alone(names: tuple[str, ...]) -> None:
    assert seen(None, *names) == ("workspace", False)
    assert seen(b"home/dev", *names) == ("workspace", False)


def test_a_whole_root() -> None:
    for beside in (None, b"workspace", b"home/dev"):
        assert seen(beside, "./", "etc/", "usr/bin/tool", "workspace/") == ("root", False)
    assert seen(b"workspace", "tool", "workspace/") == ("root", False)
    assert seen(b"home/dev", "tool", "home/dev/file") == ("root", False)
    assert seen(b"home/dev", "tool", "home") == ("workspace", False)

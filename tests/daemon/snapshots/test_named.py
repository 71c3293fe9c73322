"""Named snapshots as parts, one for each directory at their top."""

import io
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.support.expect import refused
from tests.support.tars import END, header

from sandkeepd.host.threads import Meter
from sandkeepd.snapshots.named import _examine, _split

Parts = dict[str, list[str]]
Divide = Callable[..., Parts]


@pytest.fixture
def divide(tmp_path: Path) -> Iterator[Divide]:
    """Return the names in each part of an archive with these headers."""
    opened = list[int]()

    def make(headers: Sequence[bytes], *, is_workspace: bool = False, then: bytes = b"") -> Parts:
        path = tmp_path / "archive"
        path.write_bytes(b"".join([*headers, END]))
        opened.append(os.open(path, os.O_RDONLY))
        archive, tops = _examine(opened[-1], Meter(), is_workspace=is_workspace)
        if then:
            path.write_bytes(then)
        parts = {top: os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number, top in enumerate(tops)}
        opened.extend(parts.values())
        _split(archive, parts)
        return {os.fsdecode(top): names(part) for top, part in parts.items()}

    yield make
    for descriptor in opened:
        os.close(descriptor)


def names(part: int) -> list[str]:
    with open(part, "rb", closefd=False) as file, tarfile.open(fileobj=io.BytesIO(file.read())) as archive:
        return [f"{each.name}->{each.linkname}" if each.linkname else each.name for each in archive]


def test_each_directory_with_files_is_a_part_with_names_from_there_on(divide: Divide) -> None:
    members = [
        header(b"usr/", b"5"), header(b"usr/a"), header(b"empty/", b"5"), header(b"home/", b"5"),
        header(b"home/x/", b"5"), header(b"home/x/b", b"2", target=b"usr/a"), header(b"usr/lib/", b"5"),
        header(b"home/y/c"), header(b"usr/lib/d", b"1", target=b"usr/a"), header(b"tmp/sandbox_token"),
        header(b"usr/device", b"3"),
    ]  # fmt: skip
    assert divide(members) == {"usr": ["a", "lib", "lib/d->a"], "home/x": ["b->usr/a"], "home/y": ["c"]}


def test_a_home_with_files_of_its_own_is_one_part(divide: Divide) -> None:
    for members in ([b"home/x/a", b"home/b"], [b"home/b", b"home/x/a"]):
        assert divide([header(name) for name in members]) == {"home": [name.decode()[5:] for name in members]}


def test_a_workspace_is_one_part(divide: Divide) -> None:
    assert divide([header(b"a"), header(b"device", b"3"), header(b"b/c")], is_workspace=True) == {"": ["a", "b/c"]}


def test_links_stay_in_their_part(divide: Divide) -> None:
    refused("snapshot_corrupt", divide, [header(b"usr/a"), header(b"home/x/b", b"1", target=b"usr/a")])


def test_an_archive_that_changes_between_the_reads_is_refused(divide: Divide) -> None:
    refused("snapshot_corrupt", divide, [header(b"usr/a")], then=header(b"usr/b") + END)


def test_few_parts_and_none_in_the_root(divide: Divide) -> None:
    refused("snapshot_corrupt", divide, [header(b"%d/a" % number) for number in range(65)])
    refused("permission_denied", divide, [header(b"a")])

"""Parts of a place of locks: whose they are is told by their names."""

import pytest

from sandkeep_store.locks.places import belongs_to_another, part_of, split


@pytest.mark.parametrize("whole", ["gs://bucket", "s3://bucket", "/a/owners/uid-7"])
@pytest.mark.parametrize("owner", ["uid:1000", "key:ci", "key:build-2.x_y"])
def test_a_part_is_told_from_the_whole(whole: str, owner: str) -> None:
    part = part_of(whole, owner)
    assert split(part) == (whole, part.removeprefix(f"{whole}/"))
    assert not belongs_to_another(part, owner)
    assert belongs_to_another(part, "uid:1001")
    assert part_of(whole, "uid:0") == whole

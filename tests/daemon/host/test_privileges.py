"""Rights of a thread of root's meanwhile, and afterwards again, as the kernel tells."""

import os
from pathlib import Path

import pytest

from sandkeepd.host.privileges import file_user
from sandkeepd.host.processes import in_fresh_thread

pytestmark = pytest.mark.needs("root")


def _told(field: str) -> list[str]:
    lines = Path("/proc/thread-self/status").read_text().splitlines()
    return next(line.split()[1:] for line in lines if line.startswith(f"{field}:"))


def test_files_are_made_as_a_user_with_all_capabilities(tmp_path: Path) -> None:
    def work() -> list[tuple[str, int]]:
        told = []
        for number in range(3):
            path = tmp_path / str(number)
            if number == 1:
                with file_user(70_000):
                    path.touch()  # in a directory of root's
                    told.append((_told("Uid")[3], int(_told("CapEff")[0], 16)))
            else:
                path.touch()
                told.append((_told("Uid")[3], int(_told("CapEff")[0], 16)))
        return told

    before, within, after = in_fresh_thread(work)
    assert within == ("70000", before[1])
    assert after == before
    assert [os.stat(tmp_path / str(number)).st_uid for number in range(3)] == [0, 70_000, 0]

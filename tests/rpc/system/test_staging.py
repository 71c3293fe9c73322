"""Staging directories in places where others may rename what they find."""

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from sandkeep.system import confined
from sandkeep.system.staging import Stage


@pytest.fixture
def target(tmp_path: Path) -> Path:
    directory = tmp_path / "target"
    directory.mkdir()
    return directory


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A directory that looks like a stage."""
    directory = tmp_path / "victim"
    (directory / "tree").mkdir(parents=True)
    (directory / "tree" / "kept").write_text("kept")
    return directory


def replace(stage: Stage, victim: Path, *, by_link: bool) -> None:
    """Give the name of a stage to another directory, or to a link to it."""
    named = Path(os.fsdecode(stage.path))
    os.rename(named, named.with_name("moved"))
    if by_link:
        named.symlink_to(victim)
    else:
        os.rename(victim, named)
        victim.symlink_to(named)


def names(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def extract(stage: Stage) -> None:
    """Have a program write a file in a stage, as copies do."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("new"), io.BytesIO())
    argv = ["tar", "--extract", "--file=-", "--directory", "."]
    program = confined.start(argv, stage.tree, cwd=stage.tree, stdin=subprocess.PIPE)
    program.communicate(archive.getvalue())
    assert program.returncode == 0


def test_nothing_stays_of_it(target: Path) -> None:
    with Stage(os.fsencode(target)) as stage:
        extract(stage)
        assert len(os.listdir(target)) == 1
        stage.commit(stage.only_entry())
    assert os.listdir(target) == ["new"]
    with Stage(os.fsencode(target)) as stage:
        os.makedirs(stage.tree + b"/closed/below")
        os.chmod(stage.tree + b"/closed", 0o500)
    assert os.listdir(target) == ["new"]


@pytest.mark.parametrize("by_link", [True, False])
def test_nothing_is_written_by_its_name(target: Path, victim: Path, by_link: bool) -> None:
    """Whoever may write beside it could send what a sandbox has to any directory of the caller's."""
    with Stage(os.fsencode(target)) as stage:
        replace(stage, victim, by_link=by_link)
        extract(stage)
        stage.commit(stage.only_entry())
    assert (target / "new").exists()
    assert names(victim) == {"tree", "tree/kept"}


def test_a_directory_that_is_not_new_is_not_used(target: Path, victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.mkdtemp", lambda **_: os.fsencode(victim))
    for mode in (0o700, 0o777):
        victim.chmod(mode)
        with pytest.raises(FileNotFoundError):
            Stage(os.fsencode(target))
    assert names(victim) == {"tree", "tree/kept"}

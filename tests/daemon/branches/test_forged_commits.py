"""Staging directories in a target that no commit on record made: they are neither undone nor believed."""

import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import refused
from tests.support.snapshots import sh
from tests.support.users import NOBODY, as_client

from sandkeep.system.trees import remove_tree

pytestmark = [pytest.mark.needs("bwrap"), pytest.mark.needs("root")]

MALLORY = 40_013
"""Owns the target: he may rename what others commit to it, and chose what the branch has."""

STAGING = ".sandkeep-commit-"


@pytest.fixture
def target() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="skt-forged-"))
    try:
        directory.chmod(0o777)
        os.chown(directory, MALLORY, MALLORY)
        yield directory
    finally:
        remove_tree(str(directory))


@pytest.fixture(params=[0, NOBODY], ids=["root", "user"])
def ask(request: pytest.FixtureRequest, shared_daemon: Any, client: Any, target: Path) -> Iterator[Callable[..., Any]]:
    """Calls the daemon as a committer who has a branch of the target, `branch`."""
    uid = request.param

    def call(work: Callable[[Any], Any]) -> Any:
        return work(client) if uid == 0 else as_client(shared_daemon, uid, work)

    call(lambda it: it.branch.create(source=str(target), names=["branch"]).sandboxes[0].sandbox_id)
    yield call
    call(lambda it: it.branch.remove("branch").sandbox_id)


def commit(target: Path) -> Callable[[Any], str]:
    return lambda client: client.branch.commit("branch", str(target)).commit_id


def conflict(target: Path) -> Callable[[Any], str]:
    return lambda client: refused("conflict", client.branch.commit, "branch", str(target)).message


def step(payload: Path) -> dict[str, Any]:
    """A step back that would make `payload` set-uid."""
    info = payload.lstat()
    seen = {
        "kind": "file", "device": info.st_dev, "inode": info.st_ino, "size": info.st_size, "mode": 0o4755,
        "mtime_ns": info.st_mtime_ns, "ctime_ns": info.st_ctime_ns, "uid": info.st_uid, "gid": info.st_gid,
    }  # fmt: skip
    return {
        "act": "mode", "place": 0, "slot": 1, "path": "payload", "old": seen, "mode": 0o755, "kind": "", "inode": 0,
        "size": 0, "sha256": "", "target": "",
    }  # fmt: skip


def test_a_forged_journal_gives_no_rights(ask: Callable[..., Any], target: Path) -> None:
    """The branch brings a directory with a journal, which the owner of the target renames: it belongs to the committer
    then, as a staging directory would.
    """
    ask(lambda client: sh(client, "branch", "echo evil >payload; chmod 755 payload"))
    ask(commit(target))
    journal = json.dumps({"version": 1, "steps": [step(target / "payload")]})
    ask(lambda client: sh(client, "branch", f"mkdir -p d/slots; echo '{journal}' >d/journal; chmod 755 d"))
    ask(commit(target))
    os.rename(target / "d", target / f"{STAGING}cmt_x")
    ask(lambda client: sh(client, "branch", "rm -r d; echo more >more"))
    message = ask(conflict(target))
    assert stat.S_IMODE((target / "payload").stat().st_mode) == 0o755
    assert f"{target}/{STAGING}cmt_x" in message
    assert sorted(os.listdir(target)) == [f"{STAGING}cmt_x", "payload"]
    os.rename(target / f"{STAGING}cmt_x", target / "d")
    ask(commit(target))
    assert sorted(os.listdir(target)) == ["more", "payload"]


def test_a_directory_named_as_an_earlier_commit_is_left_alone(ask: Callable[..., Any], target: Path) -> None:
    """That commit is on record, and complete: its name gives nobody the right to have files removed."""
    ask(lambda client: sh(client, "branch", "mkdir -p d/slots; echo kept >d/slots/1"))
    earlier = ask(commit(target))
    os.rename(target / "d", target / f"{STAGING}{earlier}")
    ask(lambda client: sh(client, "branch", "rm -r d; echo more >more"))
    assert f"{target}/{STAGING}{earlier}" in ask(conflict(target))
    assert (target / f"{STAGING}{earlier}" / "slots" / "1").read_text() == "kept\n"

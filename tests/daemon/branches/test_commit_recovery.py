"""Commits whose program and daemon both died, and what the next daemon believes of them."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.host.test_host_commit import ME, Branch
from tests.support.expect import refused, until
from tests.support.snapshots import sh

from sandkeep.errors import SandkeepError
from sandkeep.system.descriptors import closing_fd
from sandkeepd.host.host_commit import client as host
from sandkeepd.host.host_commit.journal import Journal

pytestmark = pytest.mark.needs("bwrap")

FILES = {"edited": "base\n", "removed": "base\n"}
ENDS = ("branch.committed", "branch.commit_failed")
DONE = {"edited": "branch\n", "new": "new\n"}


class Cut:
    """A daemon that died during a commit to `target`, of which a program then does a part."""

    def __init__(self, daemon: Any, target: Path, scratch: Path) -> None:
        self.daemon = daemon
        self.target = target
        for name, content in FILES.items():
            (target / name).write_text(content)
        daemon.start(SANDKEEP_FAILPOINT="commit.planned")
        with daemon.connect(patience_s=0) as client:
            client.branch.create(source=str(target), names=["branch"])
            sh(client, "branch", "echo branch >edited; rm removed; echo new >new")
            with pytest.raises(SandkeepError):
                client.branch.commit("branch", str(target))
        daemon.process.wait()
        daemon.process = None
        [self.commit_id] = os.listdir(f"{daemon.state_dir}/branches")
        self.journal = Path(daemon.state_dir, "branches", self.commit_id, "journal")
        self.staging = target / f".sandkeep-commit-{self.commit_id}"
        branch = Branch(scratch)
        branch("edited", b"base\n", b"branch\n")("removed", b"base\n", None)("new", None, b"new\n")
        self._branch = branch

    def do_part(self, point: str) -> None:
        """Have the program of the commit die at a point."""
        with closing_fd(os.open(self.journal, os.O_RDWR | os.O_CREAT, 0o600)) as journal:
            with pytest.raises(SandkeepError):
                host.apply(
                    str(self.target), ME, self.commit_id, self._branch.changes, self._branch.fd, journal,
                    failpoints=[f"kill:{point}"],
                )  # fmt: skip
            self._branch.close()

    def files(self) -> dict[str, str]:
        """The files of the target, without staging directories."""
        return {path.name: path.read_text() for path in self.target.iterdir() if path.is_file()}

    def end(self, client: Any) -> str:
        """Wait for the commit's outcome; return the type of its event."""

        def outcome() -> str | None:
            events = [*client.event.list(limit=1000).events]
            return next((e.type for e in reversed(events) if e.stream == self.commit_id and e.type in ENDS), None)

        return str(until(outcome))


@pytest.fixture
def cut(new_daemon: Callable[[], Any], tmp_path: Path) -> Iterator[Cut]:
    target = tmp_path / "target"
    target.mkdir()
    cut = Cut(new_daemon(), target, tmp_path)
    yield cut
    if cut.daemon.process is None:
        cut.daemon.start()
    with cut.daemon.connect() as client, suppress(SandkeepError):
        client.branch.remove("branch")


@pytest.mark.parametrize("point", ["staging:2", "staged:1", "journal:1", "move:2", "flushed:1", "complete:1"])
def test_the_next_daemon_takes_it_back_or_has_it_on_record(cut: Cut, point: str) -> None:
    cut.do_part(point)
    cut.daemon.start()
    is_complete = point == "complete:1"
    with cut.daemon.connect() as client:
        assert cut.end(client) == ("branch.committed" if is_complete else "branch.commit_failed")
        assert cut.files() == (DONE if is_complete else FILES)
        assert not cut.staging.exists()
        assert not cut.journal.exists()
        client.branch.commit("branch", str(cut.target))
        assert cut.files() == DONE


def test_a_renamed_staging_directory_is_taken_back_once_it_is_there_again(cut: Cut) -> None:
    cut.do_part("move:2")
    half, aside = cut.files(), cut.target / "aside"
    os.rename(cut.staging, aside)
    cut.daemon.start()
    with cut.daemon.connect() as client:
        assert cut.end(client) == "branch.commit_failed"
        assert cut.files() == half
        os.rename(aside, cut.staging)
        client.branch.commit("branch", str(cut.target))
        assert cut.files() == DONE
        assert sorted(os.listdir(cut.target)) == sorted(DONE)
    assert not cut.journal.exists()


def test_another_directory_in_the_place_of_the_target_is_left_alone(cut: Cut) -> None:
    cut.do_part("moved:1")
    aside = cut.target.with_name("aside")
    os.rename(cut.target, aside)
    (cut.staging / "slots").mkdir(parents=True)
    (cut.staging / "slots" / "1").write_text("kept\n")
    (cut.target / "edited").write_text("branch\n")
    cut.daemon.start()
    with cut.daemon.connect() as client:
        assert cut.end(client) == "branch.commit_failed"
        message = refused("conflict", client.branch.commit, "branch", str(cut.target)).message
        assert "is no longer the directory" in message
    assert cut.files() == {"edited": "branch\n"}
    assert (cut.staging / "slots" / "1").read_text() == "kept\n"


def test_a_commit_on_record_as_done_is_not_taken_back(cut: Cut) -> None:
    """Whatever a journal says that was not durable: the log is right."""
    cut.do_part("complete:1")
    with closing_fd(os.open(cut.target, os.O_RDONLY)) as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        cut.daemon.start()
        with cut.daemon.connect() as client:
            assert cut.end(client) == "branch.committed"
    with closing_fd(os.open(cut.journal, os.O_RDWR)) as journal:
        Journal(journal).mark("applying")
    with cut.daemon.connect() as client:
        sh(client, "branch", "echo more >more")
        client.branch.commit("branch", str(cut.target))
    assert cut.files() == {**DONE, "more": "more\n"}
    assert not cut.staging.exists()


def test_what_a_done_commit_left_is_removed_by_the_next_daemon(cut: Cut) -> None:
    cut.do_part("complete:1")
    with closing_fd(os.open(cut.target, os.O_RDONLY)) as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        cut.daemon.start()
        with cut.daemon.connect() as client:
            assert cut.end(client) == "branch.committed"
        cut.daemon.stop()
    assert cut.staging.exists()
    cut.daemon.start()
    until(lambda: not cut.journal.exists())
    assert not cut.staging.exists()
    assert cut.files() == DONE


def test_files_that_were_changed_since_stay_with_their_backups(cut: Cut) -> None:
    cut.do_part("moved:1")
    (cut.target / "edited").write_text("host\n")
    cut.daemon.start()
    with cut.daemon.connect() as client:
        assert cut.end(client) == "branch.commit_failed"
        assert cut.files() == {**FILES, "edited": "host\n"}
        for _ in range(2):  # the journal is there as long as the backups are
            assert str(cut.staging) in refused("conflict", client.branch.commit, "branch", str(cut.target)).message
        assert "base\n" in [slot.read_text() for slot in (cut.staging / "slots").iterdir()]


def test_another_daemon_does_not_take_it_back(cut: Cut, new_daemon: Callable[[], Any]) -> None:
    cut.do_part("move:2")
    half = cut.files()
    other = new_daemon()
    other.start()
    with other.connect() as client:
        client.branch.create(source=str(cut.target), names=["branch"])
        sh(client, "branch", "echo more >more")
        assert str(cut.staging) in refused("conflict", client.branch.commit, "branch", str(cut.target)).message
        assert cut.files() == half
        cut.daemon.start()
        with cut.daemon.connect() as first:
            cut.end(first)
        assert cut.files() == FILES
        client.branch.commit("branch", str(cut.target))
        assert cut.files() == {**FILES, "more": "more\n"}

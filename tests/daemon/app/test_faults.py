"""Disks that fail under a real daemon with real sandboxes: but for reading and ending, everything is refused with a
sentence; nothing that was acknowledged is lost; and it goes on by itself where that can be.
"""

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash.story import environments, events_of
from tests.support import disks, template
from tests.support.expect import refused, until
from tests.support.patience import patient

from sandkeep.errors import SandkeepError

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("bwrap")]


@pytest.fixture
def source(tmp_path: Path) -> str:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "hello").write_text("hello\n")
    folder.chmod(0o755)
    return str(folder)


@pytest.fixture
def daemon(new_daemon: Callable[[], Any]) -> Any:
    """A daemon that is not started; its state directory is there and empty."""
    daemon = new_daemon()
    os.mkdir(daemon.state_dir, 0o700)
    return daemon


@pytest.fixture
def thin(daemon: Any, tmp_path: Path) -> Iterator[disks.Thin]:
    below = tmp_path / "below"
    below.mkdir()
    with disks.thin(str(below), daemon.state_dir) as disk:
        yield disk
        _clear(daemon)
    os.rmdir(daemon.state_dir)


@pytest.fixture
def ext4(daemon: Any, tmp_path: Path) -> Iterator[disks.Ext4]:
    with disks.ext4(str(tmp_path), daemon.state_dir) as disk:
        yield disk
        _clear(daemon)
    os.rmdir(daemon.state_dir)


@pytest.fixture
def small(daemon: Any) -> Iterator[str]:
    """A state directory of 24 MB."""
    disks.mount("-t", "tmpfs", "-o", "size=24m,mode=0700", "tmpfs", daemon.state_dir)
    yield daemon.state_dir
    _clear(daemon)
    disks.umount(daemon.state_dir)
    os.rmdir(daemon.state_dir)


def _clear(daemon: Any) -> None:
    """End everything, also what a failed test left on a disk that takes no record of it."""
    if daemon.process is None or daemon.process.poll() is not None:
        daemon.process = None
        return
    with daemon.connect() as client:
        for box in client.sandbox.list().sandboxes:
            with contextlib.suppress(SandkeepError):
                client.sandbox.terminate(box.sandbox_id)
    daemon.kill()


def end(client: Any, box: str) -> None:
    """Terminate a sandbox; that may find its way into the log or not."""
    with contextlib.suppress(SandkeepError):
        client.sandbox.terminate(box)


def begin(daemon: Any, source: str) -> tuple[str, str]:
    """Start a daemon and two sandboxes, in each of which something runs."""
    daemon.start()
    with daemon.connect() as client:
        image = client.image.create(source).image_id
        boxes = [client.sandbox.create(image).sandbox_id for _ in range(2)]
        for box in boxes:
            client.process.launch(box, name="long", command="echo begun; sleep 1000")
            until(lambda box=box: client.process.read(box, "long").stdout)
    return boxes[0], boxes[1]


def runs(box: str) -> bool:
    """Whether anything of a sandbox runs on this machine."""
    mark = f"SANDKEEP_SANDBOX={box}".encode()
    return any(mark in env for _, env in environments())


def reads_go_on(client: Any, box: str) -> None:
    client.daemon.ping()
    assert box in [sandbox.sandbox_id for sandbox in client.sandbox.list().sandboxes]
    assert client.sandbox.get(box).status == "running"


def sound(daemon: Any) -> None:
    """The daemon has stopped: everything is in order."""
    command = [sys.executable, "-m", "sandkeep_store.main", "verify", "--state-dir", daemon.state_dir]
    done = template.run(command, daemon.env, patient(60))
    assert done.returncode == 0, done.stdout + done.stderr


# -- a disk that fails ------------------------------------------------------------------------------------------------


def test_an_fsync_that_fails(daemon: Any, thin: disks.Thin, source: str) -> None:
    """What was acknowledged is on the device; what was refused is not; and it goes on when the disk does."""
    box, other = begin(daemon, source)
    told = []
    with daemon.connect() as client:
        thin.begin_to_fail()
        refusals: list[SandkeepError] = []
        while not refusals:
            try:
                told.append(client.process.launch(box, command=["true"], env={"FILL": "x" * 20_000}).process_id)
            except SandkeepError as error:
                refusals.append(error)
        assert refusals[0].code == "storage_unavailable"
        assert "repair the disk" in refusals[0].message
        reads_go_on(client, box)
        assert not client.daemon.status().healthy
        end(client, other)  # its record may find a place on the device that was written before
        assert not runs(other)
        assert runs(box)
        thin.work_again()
        until(lambda: client.daemon.status().healthy)
        until(lambda: client.sandbox.get(other).status == "stopped")
        told.append(client.process.launch(box, command=["true"]).process_id)
        assert client.sandbox.terminate(box).status == "stopped"
        assert client.store.verify().problems == []
    daemon.kill()
    thin.again()
    sound(daemon)
    launched = {fact.stream for fact in events_of(daemon.state_dir) if fact.type == "process.launch_requested"}
    assert set(told) <= launched


def test_a_file_system_that_becomes_read_only(daemon: Any, ext4: disks.Ext4, source: str) -> None:
    """The kernel allows no way back but to unmount it, so the machine's administrator ends the daemon."""
    box, other = begin(daemon, source)
    with daemon.connect() as client:
        before = client.daemon.status().position
        ext4.become_read_only()
        for change in (
            lambda: client.sandbox.exec(box, ["true"]),
            lambda: client.image.create(source),
            lambda: client.process.signal(box, name="long", signal="TERM"),
        ):
            assert "repair the disk" in refused("storage_unavailable", change).message
        reads_go_on(client, box)
        status = client.daemon.status()
        assert not status.healthy
        assert ext4.at in status.problems[0]
        assert daemon.cli("status").stdout.count(b"repair the disk")
        refused("storage_unavailable", lambda: client.sandbox.terminate(other))
        assert not runs(other)
        assert runs(box)
        refused("storage_unavailable", lambda: client.sandbox.terminate(box))
        assert not runs(box)
    daemon.kill()
    ext4.again()
    daemon.start()
    with daemon.connect() as client:
        until(lambda: client.sandbox.get(other).status != "running")
        assert client.daemon.status().healthy
        assert client.event.list(limit=1000).events[before - 1].position == before
        assert client.store.verify().problems == []


def test_a_disk_that_is_full_when_the_daemon_starts(daemon: Any, small: str, source: str) -> None:
    """It starts, so that sandboxes can be ended, and by itself goes on when there is room."""
    box, other = begin(daemon, source)
    daemon.kill()
    filler = Path(small, "filler")
    disks.fill(filler)
    daemon.start()
    with daemon.connect() as client:
        until(lambda: not client.daemon.status().healthy)
        assert "free space" in " ".join(client.daemon.status().problems)
        reads_go_on(client, box)
        end(client, other)
        assert not runs(other)
        filler.unlink()
        until(lambda: client.daemon.status().healthy)
        until(lambda: client.sandbox.get(other).status == "stopped")
        assert client.sandbox.exec(box, ["cat", "hello"]).stdout == b"hello\n"
        assert client.sandbox.terminate(box).status == "stopped"
        assert client.store.verify().problems == []


def test_input_is_refused_on_a_full_disk_and_taken_later(daemon: Any, small: str, source: str) -> None:
    box, _ = begin(daemon, source)
    with daemon.connect() as client:
        client.process.launch(box, name="cat", command=["cat"], stdin=True)
        filler = Path(small, "filler")
        disks.fill(filler)
        refused("storage_unavailable", lambda: client.process.write_stdin(box, name="cat", data=b"x" * 60_000))
        assert client.store.verify().problems == []
        filler.unlink()
        until(lambda: client.daemon.status().healthy)
        client.process.write_stdin(box, name="cat", data=b"typed\n", eof=True)
        assert client.process.wait(box, "cat").exit_code == 0
        client.sandbox.terminate(box)


# -- files that go, or are exchanged, while the daemon runs ------------------------------------------------------------


def _move(path: Path) -> Callable[[], object]:
    path.rename(f"{path}.away")
    return lambda: Path(f"{path}.away").rename(path)


def _remove_and_copy(path: Path) -> Callable[[], object]:
    """Another file in its place, with the same bytes."""
    undo = _move(path)
    shutil.copy(f"{path}.away", path)
    return undo


@pytest.mark.parametrize(
    ("what", "way"), [("state", _move), ("state/events.db", _remove_and_copy), ("state/events.db-wal", _move)]
)
def test_a_log_that_is_taken_away(daemon: Any, source: str, what: str, way: Callable[[Path], Any]) -> None:
    """Nothing is acknowledged that nobody would find again."""
    box, other = begin(daemon, source)
    undo = way(Path(daemon.root, what))
    with daemon.connect() as client:
        said = refused("storage_unavailable", lambda: client.sandbox.exec(box, ["true"])).message
        assert "was removed or replaced while the daemon ran" in said
        assert client.daemon.status().problems[0] == said
        reads_go_on(client, box)
        refused("storage_unavailable", lambda: client.sandbox.terminate(other))
        assert not runs(other)
        undo()
        until(lambda: client.daemon.status().healthy)
        until(lambda: client.sandbox.get(other).status == "stopped")
        assert client.sandbox.exec(box, ["cat", "hello"]).stdout == b"hello\n"
        client.sandbox.terminate(box)
        assert client.store.verify().problems == []


def test_a_log_that_is_gone_is_not_begun_anew(daemon: Any, source: str) -> None:
    begin(daemon, source)
    daemon.stop()
    undo = _move(Path(daemon.state_dir, "events.db"))
    with pytest.raises(RuntimeError, match=r"is gone, but .*has seen .* restore the state"):
        daemon.start()
    assert not Path(daemon.state_dir, "events.db").exists()
    daemon.process = None
    undo()
    daemon.start()


# -- a log that is damaged --------------------------------------------------------------------------------------------


def test_with_a_damaged_log_sandboxes_are_listed_and_ended_and_a_repair_goes_on(daemon: Any, source: str) -> None:
    box, other = begin(daemon, source)
    with daemon.connect() as client:
        for _ in range(5):
            client.sandbox.exec(box, ["true"])
        last = client.daemon.status().position
    daemon.kill()
    before = {fact.position: fact.data for fact in events_of(daemon.state_dir)}
    path = Path(daemon.state_dir, "events.db")
    content = path.read_bytes()
    at = content.rindex(b'{"exit_code":0')
    path.write_bytes(content[:at] + b"[" + content[at + 1 :])
    daemon.start()
    with daemon.connect() as client:
        status = client.daemon.status()
        assert not status.healthy
        assert "store repair" in status.problems[0]
        assert not client.store.verify().ok
        refused("storage_unavailable", lambda: client.sandbox.exec(box, ["true"]))
        refused("storage_unavailable", lambda: client.store.rebuild())
        reads_go_on(client, box)
        assert "cannot go on record" in refused("storage_unavailable", lambda: client.sandbox.terminate(other)).message
        assert not runs(other)
        assert runs(box)
    daemon.stop()
    told = daemon.cli("store", "repair", "--state-dir", daemon.state_dir)
    done = daemon.cli("store", "repair", "--state-dir", daemon.state_dir, "--yes")
    assert (told.returncode, done.returncode) == (1, 0)
    lost = [line for line in done.stdout.decode().splitlines() if line.startswith("the event at position ")]
    assert len(lost) == 1
    position = int(lost[0].split()[4])
    after = {fact.position: fact.data for fact in events_of(daemon.state_dir)}
    assert {at for at in before if after[at] != before[at]} == {position}
    daemon.start()
    with daemon.connect() as client:
        until(lambda: client.sandbox.get(other).status == "lost")
        assert client.sandbox.exec(box, ["cat", "hello"]).stdout == b"hello\n"
        assert client.daemon.status().healthy
        assert client.daemon.status().position > last
        client.sandbox.terminate(box)
        assert client.store.verify().problems == []


def test_documents_that_are_damaged_are_found_and_made_anew(daemon: Any, source: str) -> None:
    box, other = begin(daemon, source)
    folder = Path(daemon.state_dir, "sandboxes")

    def directory(path: Path) -> None:
        path.unlink()
        path.mkdir()

    def link(path: Path) -> None:
        path.unlink()
        path.symlink_to("/etc/passwd")

    with daemon.connect() as client:
        until(lambda: client.store.verify().ok)
        for damage in (Path.unlink, directory, link, lambda path: path.write_bytes(b"\xff{")):
            damage(folder / box / "metadata.json")
            problems = client.store.verify().problems
            assert len(problems) == 1
            assert "store rebuild" in problems[0]
            client.store.rebuild()
            assert client.store.verify().ok
            assert Path("/etc/passwd").read_text().startswith("root:")
        (folder / other / "metadata.json").unlink()
        client.sandbox.exec(other, ["true"])
        until(lambda: client.store.verify().ok)
        for each in (box, other):
            client.sandbox.terminate(each)


def test_a_signal_is_all_that_a_stopped_daemon_needs(daemon: Any, small: str, source: str) -> None:
    """It stops in good order on a full disk, and the next one adopts."""
    box, _ = begin(daemon, source)
    filler = Path(small, "filler")
    disks.fill(filler)
    assert daemon.end(signal.SIGTERM) == 0
    filler.unlink()
    daemon.start()
    with daemon.connect() as client:
        assert client.sandbox.exec(box, ["cat", "hello"]).stdout == b"hello\n"


def test_output_that_is_lost_is_told(daemon: Any, source: str) -> None:
    """A journal that was removed, cut, or replaced, also of a sandbox that has ended."""
    box, other = begin(daemon, source)
    with daemon.connect() as client:
        client.sandbox.terminate(other)
        ran = client.sandbox.exec(box, ["sh", "-c", "echo out; echo err >&2"]).process_id
        client.sandbox.terminate(box)
        journal = Path(daemon.state_dir, "sandboxes", box, "out", "p", f"{ran}.stdout")

        def told() -> str | None:
            piece = client.process.read(box, ran)
            assert (piece.stderr, piece.ended) == (b"err\n", True)
            note: str | None = piece.note
            return note

        assert told() is None
        with journal.open("ab") as file:
            file.write(b"later\n")
        assert told() is None
        os.truncate(journal, 2)
        assert told() == "the journal of stdout holds 2 of the 4 bytes that were recorded: the rest is lost"
        journal.unlink()
        assert told() == "the journal of stdout holds 0 of the 4 bytes that were recorded: the rest is lost"
        journal.mkdir()
        assert "replaced" in str(told())
        done = daemon.cli("logs", box, ran)
        assert b"replaced the journal of stdout" in done.stderr
        assert client.daemon.status().healthy


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"no database" * 1000)])
def test_what_is_remembered_of_commands_is_damaged(daemon: Any, source: str, damage: Callable[[Path], object]) -> None:
    """It is begun anew, which is logged; nothing else depends on it."""
    box, other = begin(daemon, source)
    path = Path(daemon.state_dir, "commands.db")
    with daemon.connect() as client:
        client.process.launch(box, name="cat", command=["cat"], stdin=True)
        client.process.write_stdin(box, name="cat", data=b"one\n")
    daemon.kill()
    for end in ("-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    damage(path)
    daemon.start()
    with daemon.connect() as client:
        client.process.write_stdin(box, name="cat", data=b"two\n", eof=True)
        assert client.process.wait(box, "cat").exit_code == 0
        assert b"".join(piece.stdout for piece in client.read_output(box, "cat")) == b"one\ntwo\n"
        assert client.store.verify().problems == []
        for each in (box, other):
            client.sandbox.terminate(each)

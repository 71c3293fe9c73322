"""metadata.json on disk: whole or not at all, rebuilt byte for byte, damage told."""

import os
from pathlib import Path

import pytest
import trio
from tests.store.views.test_views import Log, ended, running_sandbox

from sandkeep import events
from sandkeep_store import metadata_files
from sandkeep_store.metadata_files import MetadataFiles
from sandkeep_store.views.metadata import document
from sandkeep_store.views.state import State


@pytest.fixture
def log() -> Log:
    log = Log()
    running_sandbox(log)
    ended(log, "prc_1", "web", 3)
    running_sandbox(log, "sbx_b")
    return log


def files_of(root: Path, state: State) -> MetadataFiles:
    files = MetadataFiles(str(root), state, "log-1")
    for sandbox_id in state.sandboxes:
        files.mark(sandbox_id)
    return files


def content(root: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in root.glob("*/metadata.json")}


async def test_it_writes_what_is_marked(tmp_path: Path, log: Log) -> None:
    state = log.fold()
    files = files_of(tmp_path, state)
    await files.flush()
    assert content(tmp_path) == {name: document(s, "log-1") for name, s in state.sandboxes.items()}
    assert files.pending() == []
    assert not list(tmp_path.glob("*/.metadata*"))


async def test_what_is_as_it_should_be_is_not_written_again(tmp_path: Path, log: Log) -> None:
    """A daemon that starts marks all documents."""
    files = files_of(tmp_path, log.fold())
    await files.flush()
    before = {path: path.stat().st_ino for path in tmp_path.glob("*/metadata.json")}
    files.mark("sbx_a")
    await files.flush()
    assert {path: path.stat().st_ino for path in tmp_path.glob("*/metadata.json")} == before


async def test_its_task_writes_after_a_pause(tmp_path: Path, log: Log, autojump_clock: trio.testing.MockClock) -> None:
    files = files_of(tmp_path, log.fold())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(files.run)
        await trio.sleep(metadata_files.DEBOUNCE_S * 2)
        while len(content(tmp_path)) < 2:
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


async def test_a_disk_that_refuses_is_told_and_tried_again(tmp_path: Path, log: Log) -> None:
    root = tmp_path / "root"
    root.write_text("in the way")
    files = files_of(root, log.fold())
    await files.flush()
    assert files.failure is not None
    assert "cannot write" in files.failure
    assert sorted(files.pending()) == ["sbx_a", "sbx_b"]
    root.unlink()
    await files.flush()
    assert files.failure is None
    assert len(content(root)) == 2


@pytest.mark.parametrize("damage", ["remove", "truncate", "flip", "directory", "symlink"])
async def test_rebuild_is_byte_identical_whatever_happened_to_the_file(tmp_path: Path, log: Log, damage: str) -> None:
    state = log.fold()
    files = files_of(tmp_path, state)
    await files.flush()
    before = content(tmp_path)
    path = tmp_path / "sbx_a" / "metadata.json"
    outside = tmp_path / "outside"
    outside.write_text("mine")
    match damage:
        case "remove":
            path.unlink()
        case "truncate":
            path.write_bytes(path.read_bytes()[:40])
        case "flip":
            path.write_bytes(path.read_bytes().replace(b"running", b"rumming"))
        case "directory":
            path.unlink()
            path.mkdir()
        case "symlink":
            path.unlink()
            path.symlink_to(outside)
    problems = metadata_files.check(str(tmp_path), state, "log-1")
    assert any("sbx_a" in problem for problem in problems)
    report = await files.rebuild(log.fold())
    assert content(tmp_path) == before
    assert (report.written, report.unchanged) == (1, 1)
    assert outside.read_text() == "mine"
    assert not path.is_symlink()


async def test_rebuild_leaves_alone_what_moved_on(tmp_path: Path, log: Log) -> None:
    """A sandbox with events later than the fold is written from the live state, not from the older one."""
    old = log.fold()
    log.add("sbx_a", events.SandboxAdopted(), "sbx_a")
    state = log.fold()
    files = files_of(tmp_path, state)
    await files.rebuild(old)
    assert content(tmp_path)["sbx_a"] == document(state.sandboxes["sbx_a"], "log-1")


def test_a_log_shorter_than_what_was_seen_is_told(tmp_path: Path, log: Log) -> None:
    state = log.fold()
    metadata_files.rebuild(str(tmp_path), {"sbx_a": document(state.sandboxes["sbx_a"], "log-1")}, state.position)
    seen = state.sandboxes["sbx_a"].position
    assert metadata_files.ahead_of(str(tmp_path), "log-1", seen) == []
    problems = metadata_files.ahead_of(str(tmp_path), "log-1", seen - 1)
    assert len(problems) == 1
    assert f"has seen {seen}" in problems[0]
    assert metadata_files.ahead_of(str(tmp_path), "another", 0) == []


def test_garbage_in_place_of_documents_does_not_stop_the_check(tmp_path: Path) -> None:
    for name, text in (("sbx_x", b"\xff\xfe"), ("sbx_y", b"{}"), ("sbx_z", b'{"log_id":"l","position":"9"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metadata.json").write_bytes(text)
    os.mkfifo(tmp_path / "sbx_z" / "fifo")
    assert metadata_files.ahead_of(str(tmp_path), "l", 0) == []
    problems = metadata_files.check(str(tmp_path), State(), "l")
    assert len(problems) == 3
    assert all("no sandbox on record" in problem for problem in problems)


def test_a_fifo_in_place_of_a_document_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "sbx_x").mkdir()
    os.mkfifo(tmp_path / "sbx_x" / "metadata.json")
    assert metadata_files.read(str(tmp_path), "sbx_x") is None


async def test_the_folder_of_a_sandbox_that_is_about_to_be_made_stays(tmp_path: Path, log: Log) -> None:
    """It has no document yet, and its provider has made the folder just now."""
    files = files_of(tmp_path, log.fold())
    (tmp_path / "sbx_new").mkdir()
    files.mark("sbx_new")
    await files.flush()
    assert (tmp_path / "sbx_new").is_dir()


async def test_what_was_cancelled_before_it_began_is_still_outdated(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that stops writes once more what its task did not get to."""
    files = files_of(tmp_path, log.fold())

    async def cancelled_first(*_: object, **__: object) -> None:
        scope.cancel()
        await trio.lowlevel.checkpoint_if_cancelled()  # as `run_sync` does before it begins a thread

    with monkeypatch.context() as patched, trio.CancelScope() as scope:
        patched.setattr(trio.to_thread, "run_sync", cancelled_first)
        await files.flush()
    assert scope.cancelled_caught
    assert content(tmp_path) == {}
    await files.flush()
    assert len(content(tmp_path)) == 2

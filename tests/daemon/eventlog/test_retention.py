"""What ended long ago: gone from every answer, with its output, and in the archive; what is here is not touched."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support import log_stories
from tests.support.inside import Inside, inside

from sandkeep.errors import SandkeepError
from sandkeep.events import Meta
from sandkeep.protocol.clock import now_us
from sandkeep_store import metadata_files
from sandkeep_store.eventlog.log import EventLog
from sandkeep_store.upkeep import offline, segments
from sandkeepd.eventlog import retention
from sandkeepd.sandboxes.output_times import Mark, OutputTimes

HOUR_US = 3600 * 10**6


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "source").mkdir()
    return str(tmp_path / "source")


async def _refusal(daemon: Inside, method: str, **params: Any) -> SandkeepError:
    with pytest.raises(SandkeepError) as caught:
        await daemon.call(method, **params)
    return caught.value


async def test_a_sandbox_that_was_archived_is_not_found_and_leaves_nothing(tmp_path: Path, source: str) -> None:
    state_dir = str(tmp_path / "state")
    async with inside(state_dir) as daemon:
        image_id = await daemon.image(source)
        for box in ("old", "new"):
            await daemon.call("sandbox.create", image_id=image_id, name=box)
            await daemon.call("sandbox.exec", sandbox_id=box, command="echo hello")
        old, new = daemon.id_of("old"), daemon.id_of("new")
        token = (await daemon.call("event.list", limit=1)).next
        await daemon.call("sandbox.terminate", sandbox_id="old")
        assert (await daemon.call("sandbox.history", sandbox_id="old")).events
        await daemon.core.files.flush()
        assert os.path.isdir(f"{state_dir}/sandboxes/{old}/out")
        times = OutputTimes(state_dir)
        for box in (old, new):
            times.append(box, "prc_1", [Mark(1, 1, 1)])

        report = await daemon.retention.archive(now_us() + HOUR_US, Meta())
        assert report.sandboxes == 1
        for method in ("sandbox.get", "sandbox.history", "sandbox.terminate", "process.list"):
            for called in ("old", old):
                error = await _refusal(daemon, method, sandbox_id=called)
                assert error.code == "not_found"
                assert "was archived" in error.message
        assert [s.sandbox_id for s in (await daemon.call("sandbox.list", all=True)).sandboxes] == [new]
        assert (await _refusal(daemon, "event.list", after=token)).code == "compacted"
        await daemon.core.files.flush()
        assert os.listdir(f"{state_dir}/sandboxes") == times.sandboxes() == [new]
        assert (await daemon.call("store.verify")).problems == []
        assert (await daemon.call("store.rebuild")).removed == 0

        done = await daemon.call("sandbox.exec", sandbox_id="new", command="echo again")
        assert done.stdout == b"again\n"
        types = await daemon.types("new")
        assert types[:2] == ["sandbox.create_requested", "sandbox.created"]
        assert types.count("process.launch_requested") == 2
        await daemon.call("sandbox.create", image_id=image_id, name="old")
        for box in ("old", "new"):
            await daemon.call("sandbox.terminate", sandbox_id=box)
        await daemon.core.files.flush()
    assert offline.verify(state_dir).problems == []


async def test_pages_of_a_history_go_on_where_events_left(tmp_path: Path, source: str) -> None:
    async with inside(str(tmp_path / "state")) as daemon:
        image_id = await daemon.image(source)
        for box in ("here", "gone"):
            await daemon.call("sandbox.create", image_id=image_id, name=box)
        await daemon.call("sandbox.terminate", sandbox_id="gone")
        await daemon.retention.archive(now_us() + HOUR_US, Meta())
        page = await daemon.call("sandbox.history", sandbox_id="here", limit=1)
        rest = await daemon.call("sandbox.history", sandbox_id="here", after=page.next)
        assert [event.type for event in (*page.events, *rest.events)] == ["sandbox.create_requested", "sandbox.created"]
        await daemon.call("sandbox.terminate", sandbox_id="here")


async def test_it_happens_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "FIRST_AFTER_S", 0)
    monkeypatch.setattr(retention, "LEAST_EVENTS", 1)
    log_stories.write(str(tmp_path / "events.db"), [*log_stories.tangle(1), *log_stories.crowded("sbx_a", 1)])
    async with inside(str(tmp_path)) as daemon:
        core = daemon.core
        ended = [s for s in core.state.sandboxes.values() if s.hidden]
        core.nursery.start_soon(daemon.retention.run)
        while not core.state.log.archived_before_us or core.state.log.compacting:
            await core.log.wait(core.log.head)
        assert ended
        assert not any(s.hidden for s in core.state.sandboxes.values())


async def test_what_is_little_waits_until_it_is_worth_a_segment(tmp_path: Path) -> None:
    log_stories.write(str(tmp_path / "events.db"), log_stories.tangle(1))
    async with inside(str(tmp_path)) as daemon:
        report = await daemon.retention.archive(now_us(), Meta(), least=10_000)
        assert (report.events, daemon.core.log.first_position) == (0, 1)


async def test_with_a_damaged_log_nothing_is_moved(tmp_path: Path) -> None:
    log_stories.write(str(tmp_path / "events.db"), log_stories.tangle(1))
    async with inside(str(tmp_path)) as daemon:
        daemon.core.problems.append("the log is damaged")
        assert (await _refusal(daemon, "store.compact")).message == "the log is damaged"


def test_without_a_daemon(tmp_path: Path) -> None:
    log_stories.write(str(tmp_path / "events.db"), log_stories.tangle(1))
    log = EventLog.open(str(tmp_path / "events.db"))
    state = offline.fold(log)
    log.close()
    offline.rebuild(str(tmp_path))
    ended = {name for name, s in state.sandboxes.items() if s.hidden}
    times = OutputTimes(str(tmp_path))
    for name in state.sandboxes:
        times.append(name, "prc_1", [Mark(1, 1, 1)])
    command = [sys.executable, "-m", "sandkeep_store.main", "compact", "--json", "--state-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, check=True)
    report = msgspec.json.decode(done.stdout)
    assert report["sandboxes"] == len(ended) > 0
    assert segments.names(str(tmp_path)) == report["segments"]
    assert not ended & {*metadata_files._names(f"{tmp_path}/sandboxes"), *times.sandboxes()}
    assert offline.verify(str(tmp_path)).problems == []
    refused = subprocess.run([*command, "--older-than", "3h"], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "at least 24h" in refused.stderr

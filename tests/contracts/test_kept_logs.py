"""Logs that earlier versions wrote are opened, folded, gone on with and served as they were.

`logs/NAME` holds one with the views that its own version had of it; `tests/support/keep_log.py` writes them. None is
changed: `SHA256SUMS` holds them.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.conftest import RunningDaemon
from tests.contracts.test_golden_events import is_in
from tests.support import replay
from tests.support.expect import until

from sandkeep.events import EVENTS, Meta, SandboxAdopted
from sandkeep_store.eventlog.log import EventLog, NewEvent
from sandkeep_store.upkeep import offline
from sandkeepd.app import daemon as app

KEPT = sorted(path for path in replay.LOGS.iterdir())


@pytest.fixture(params=KEPT, ids=lambda path: path.name)
def kept(request: pytest.FixtureRequest) -> Path:
    """The folder of a log."""
    path: Path = request.param
    return path


@pytest.fixture
def state_dir(kept: Path, tmp_path: Path) -> Path:
    """A copy of the state directory that it was in."""
    replay.unpack(kept, tmp_path / "state")
    return tmp_path / "state"


def missing(then: Any, now: Any, where: str = "") -> list[str]:
    """Where what was seen then is not what is seen now, which may be more."""
    if isinstance(then, dict) and isinstance(now, dict):
        gone = [f"{where}/{key} is gone" for key in then if key not in now]
        return [*gone, *(said for key in then if key in now for said in missing(then[key], now[key], f"{where}/{key}"))]
    return [] if is_in(then, now) else [f"{where}: {then!r} became {now!r}"]


def views_of(kept: Path) -> dict[str, Any]:
    """Its views, as the version saw them that wrote it."""
    views: dict[str, Any] = json.loads((kept / replay.VIEWS).read_text())
    return views


def test_its_views_are_what_they_were(kept: Path, state_dir: Path) -> None:
    then = views_of(kept)
    now = replay.opened(state_dir, replay.views)
    assert missing(then, now) == []
    assert {kind: set(views) for kind, views in now.items() if kind in then} == {k: set(v) for k, v in then.items()}


def test_it_is_sound_and_its_documents_are_what_they_were(kept: Path, state_dir: Path) -> None:
    """Written anew they say all that they said; those of another version are told as such until then."""
    offline.rebuild(str(state_dir))
    assert offline.verify(str(state_dir)).problems == []
    then = views_of(kept)["documents"]
    now = {path.parent.name: json.loads(path.read_text()) for path in state_dir.glob("sandboxes/*/metadata.json")}
    assert missing({name: then[name] for name in now}, now) == []
    assert set(now) == set(then)


async def test_it_goes_on(kept: Path, state_dir: Path) -> None:
    """Events are appended to it, and an event is taken out; opened again it is sound."""
    log = EventLog.open(f"{state_dir}/events.db")
    head = log.head
    try:
        async with app.running_log(log):
            await log.append([NewEvent("sbx_new", SandboxAdopted(), "sbx_new")], Meta(owner="uid:1"))
            await log.redact(head)
            await log.wipe()
    finally:
        log.close()
    assert (await trio.to_thread.run_sync(offline.compact, str(state_dir), -3600)).events > 0
    assert replay.opened(state_dir, lambda log: (log.verify(), log.head > head)) == ([], True)


@pytest.mark.needs("bwrap")
def test_a_daemon_serves_it(kept: Path, new_daemon: Callable[[], RunningDaemon]) -> None:
    """What ran when it was kept is lost by now, which goes on record; all else is as it was."""
    daemon, then = new_daemon(), views_of(kept)
    replay.unpack(kept, Path(daemon.state_dir))
    running = {name for name, sandbox in then["sandboxes"].items() if sandbox["status"] == "running"}
    daemon.start()
    with daemon.connect() as client:
        until(lambda: not any(client.sandbox.get(name).status == "running" for name in running))
        now = {sandbox.sandbox_id: sandbox for sandbox in client.sandbox.list(all=True).sandboxes}
        assert {name for name in running if now[name].status != "lost"} == set()
        same = {n for n in then["sandboxes"] if n not in running and now[n].status == then["sandboxes"][n]["status"]}
        assert same == set(then["sandboxes"]) - running
        assert {image.image_id for image in client.image.list(all=True).images} == set(then["images"])
        assert {snapshot.snapshot_id for snapshot in client.snapshot.list(all=True).snapshots} == set(then["snapshots"])
        for name in then["sandboxes"]:
            assert client.sandbox.history(name).events
        assert client.store.verify().problems == []
        source = Path(daemon.root, "source")
        source.mkdir(mode=0o755)
        box = client.sandbox.create(client.image.create(str(source)).image_id).sandbox_id
        assert client.sandbox.exec(box, "echo new").stdout == b"new\n"


def test_every_event_is_in_one_of_them(tmp_path: Path) -> None:
    found: set[str] = set()
    for kept in KEPT:
        state_dir = tmp_path / kept.name
        replay.unpack(kept, state_dir)
        found |= set(replay.opened(state_dir, lambda log, at=state_dir: replay.types(at, log)))
        shutil.rmtree(state_dir)
    assert set(EVENTS) <= found, "keep a log with what is new: python -m tests.support.keep_log VERSION"

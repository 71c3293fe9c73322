"""What is known of snapshots and forks, from their events; what of that may leave the log, and when."""

from pathlib import Path

import msgspec
from tests.store.upkeep.test_compaction import NOBODY, Opened, opened, positions_in_log

from sandkeep import events, model
from sandkeep.events import Event
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.upkeep import offline, state_cache
from sandkeep_store.views.chains import chain, children
from sandkeep_store.views.metadata import document

PLACE = model.Place(where="gcs", base="bucket", path="p/p.tar.gz", uri="gs://bucket/p/p.tar.gz")
ISOLATION = model.Isolation(mechanism="fake", files="copy")


class Told(Opened):
    """A log in which things are told in few words."""

    async def tell(self, stream: str, *told: Event, box: str | None = None) -> None:
        """Append events of one stream."""
        await self.log.append([NewEvent(stream, event, box) for event in told], NOBODY)

    async def box(self, name: str, *, ended: bool = False, **asked: object) -> None:
        """A sandbox that runs, or ran."""
        requested = {"owner": "uid:1", "image_id": "img_1", "provider": "local", "spec": model.SandboxSpec(), **asked}
        await self.tell(
            name, events.SandboxCreateRequested(**requested), events.SandboxCreated(isolation=ISOLATION), box=name
        )  # type: ignore[arg-type]
        if ended:
            end = [events.SandboxTerminateRequested(reason="requested"), events.SandboxTerminated(reason="requested")]
            await self.tell(name, *end, box=name)

    async def snapshot(self, name: str, box: str | None, *more: Event, parent: str | None = None) -> None:
        """A snapshot that was stored, and what became of it."""
        kind: model.SnapshotKind = "incremental" if parent else "full"
        asked = events.SnapshotCreateRequested(
            owner="uid:1", kind=kind, format="tar.gz", places=[PLACE], sandbox_id=box, parent_id=parent
        )
        stored = events.SnapshotStored(
            digest="sha256:00", size_bytes=7, member_count=1, content_bytes=9, format="tar.gz", pause_ms=1.5
        )
        await self.tell(name, asked, stored, *more, box=box)


DELETED = (events.SnapshotDeleteRequested(), events.SnapshotDeleted())


async def test_a_sandbox_tells_of_the_snapshots_that_there_are(tmp_path: Path) -> None:
    async with opened(tmp_path, Told) as told:
        await told.box("box")
        for name in ("snp_1", "snp_2"):
            await told.snapshot(name, "box")
        await told.tell("snp_2", events.SnapshotDeleteRequested(), box="box")
        found = told.state.sandboxes["box"]
        assert found.view().latest_snapshot_id == "snp_1"
        written = msgspec.json.decode(document(found, "log_1") or b"")
        assert written["latest_snapshot"] == {"bucket": "bucket", "path": "p/p.tar.gz"}
        assert [one["snapshot_id"] for one in written["snapshots"]] == ["snp_1"]
        assert written["position"] == told.log.head
        assert told.state.owner_of("snp_1", None) == "uid:1"


async def test_what_builds_on_what(tmp_path: Path) -> None:
    async with opened(tmp_path, Told) as told:
        await told.box("box")
        await told.snapshot("snp_1", "box")
        await told.snapshot("snp_2", "box", parent="snp_1")
        await told.snapshot("snp_3", "box", parent="snp_2")
        state = told.state
        assert [one.snapshot_id for one in chain(state, state.snapshots["snp_3"])] == ["snp_3", "snp_2", "snp_1"]
        kept = [events.SnapshotDeleteRequested(), events.SnapshotDeleted(kept=True)]
        await told.tell("snp_2", *kept, box="box")
        assert [one.snapshot_id for one in children(state, "snp_1")] == ["snp_2"]
        assert (state.snapshots["snp_2"].view().places, state.snapshots["snp_2"].status) == ([PLACE], "deleted")
        await told.tell("snp_3", *DELETED, box="box")
        await told.tell("snp_2", events.SnapshotDeleted(), box="box")
        assert list(children(state, "snp_1")) == []
        assert state.snapshots["snp_2"].view().places == []


async def test_a_restore_changes_what_a_sandbox_is(tmp_path: Path) -> None:
    async with opened(tmp_path, Told) as told:
        await told.box("box", plan={"layers": []})
        asked = events.SandboxRestoreRequested(snapshot_id="snp_1", plan={"layers": ["snp_1"]}, needs_image=False)
        await told.tell("box", asked, box="box")
        box = told.state.sandboxes["box"]
        assert (box.status, box.plans, box.needs_image) == ("restoring", [{"layers": []}, {"layers": ["snp_1"]}], True)
        failed = events.SandboxRestoreFailed(code="not_ready", message="no", interrupted=True)
        await told.tell("box", failed, box="box")
        assert (box.status, box.plans, box.restored_from) == ("running", [{"layers": []}], None)
        await told.tell("box", asked, events.SandboxRestored(snapshot_id="snp_1", isolation=ISOLATION), box="box")
        assert (box.status, box.plans, box.restored_from) == ("running", [{"layers": ["snp_1"]}], "snp_1")
        assert not box.needs_image
        await told.tell(
            "box", asked, events.SandboxRestoreFailed(code="not_ready", message="no", ended=True), box="box"
        )
        assert (box.status, box.error) == ("failed", ("not_ready", "no"))


async def test_it_is_the_same_from_a_cached_fold(tmp_path: Path) -> None:
    async with opened(tmp_path, Told) as told:
        await told.box("box")
        await told.snapshot("snp_1", "box")
        await told.snapshot("snp_2", None, *DELETED)
        await told.tell("frk_1", events.SandboxForkRequested(sandbox_ids=["other"]), box="box")
        state_cache.save(str(tmp_path), told.state, told.log)
        again = state_cache.load(str(tmp_path), told.log)
        assert again is not None
        truth = offline.fold(told.log)
        assert list(state_cache.records(again, told.log)) == list(state_cache.records(truth, told.log))
        assert again.forks["frk_1"].sandbox_ids == ["other"]
        assert again.snapshots["snp_2"].status == "deleted"


async def test_what_has_a_snapshot_stays_in_the_log(tmp_path: Path) -> None:
    async with opened(tmp_path, Told) as told:
        await told.box("kept", ended=True)
        await told.snapshot("snp_kept", "kept")
        await told.box("gone", ended=True)
        await told.snapshot("snp_gone", "gone", *DELETED)
        await told.tell(
            "frk_gone", events.SandboxForkRequested(sandbox_ids=[]), events.SandboxForked(pause_ms=1), box="gone"
        )
        report = await told.compact()
        assert report.sandboxes == 1
        assert (set(told.state.sandboxes), set(told.state.snapshots), told.state.forks) == ({"kept"}, {"snp_kept"}, {})
        await told.tell("snp_kept", *DELETED, box="kept")
        await told.compact()
        assert (told.state.sandboxes, told.state.snapshots) == ({}, {})
        assert set(told.state.sandboxes) == set(offline.fold(told.log).sandboxes)


async def test_of_a_sandbox_that_stays_what_ended_goes(tmp_path: Path) -> None:
    async with opened(tmp_path, Told) as told:
        await told.box("box")
        await told.snapshot("snp_gone", "box", *DELETED)
        await told.snapshot("snp_kept", "box")
        await told.snapshot("snp_base", "box", events.SnapshotDeleteRequested(), events.SnapshotDeleted(kept=True))
        await told.snapshot("snp_top", "box", parent="snp_base")
        await told.snapshot("snp_theirs", None, *DELETED)
        await told.tell(
            "frk_done", events.SandboxForkRequested(sandbox_ids=[]), events.SandboxForked(pause_ms=1), box="box"
        )
        await told.tell("frk_begun", events.SandboxForkRequested(sandbox_ids=["x"]), box="box")
        before = len(positions_in_log(tmp_path))
        await told.compact()
        assert set(told.state.snapshots) == {"snp_kept", "snp_base", "snp_top"}
        assert set(told.state.forks) == {"frk_begun"}
        again = offline.fold(told.log)
        assert set(again.snapshots) == {"snp_kept", "snp_base", "snp_top"}
        assert set(again.forks) == {"frk_begun"}
        assert len(positions_in_log(tmp_path)) < before

"""Tell a daemon of today all that can happen, and keep its log for all versions to come.

    python -m tests.support.keep_log NAME        writes tests/contracts/logs/NAME, and NAME-archived

By hand, as root, where bubblewrap, runsc and dockerd are; once for each version that is given out, or whose events are
new. What was kept before is never made anew. What no order brings about is appended as its golden example.
"""

import contextlib
import json
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import trio
from tests.conftest import RunningDaemon
from tests.support import replay
from tests.support.engine import PrivateEngine
from tests.support.expect import refused, until
from tests.support.golden import EXAMPLES

from sandkeep import archives
from sandkeep.events import EVENTS, Event, Meta
from sandkeep_store.eventlog.codec import CODEC
from sandkeep_store.eventlog.log import EventLog, NewEvent
from sandkeep_store.upkeep import offline
from sandkeep_store.upkeep.repair import repair

ALICE: Final = "uid:1000"


def main(name: str) -> None:
    """Tell the story in a temporary directory, and keep what came of it: before most of it is archived, and after."""
    with tempfile.TemporaryDirectory(prefix="skt-") as root, engine(f"{root}/engine") as docker:
        os.chmod(root, 0o711)
        daemon = RunningDaemon(root)
        places = {key: f"{root}/{key}" for key in ("mount", "archives", "locks", "checkpoints")}
        for place in places.values():
            os.mkdir(place, 0o700)
        daemon.env |= {
            "FILESYSTEM_SNAPSHOT_MOUNT_PATH": places["mount"],
            "SANDBOX_SNAPSHOT_DIR": places["archives"],
            "SANDBOX_LOCK_MOUNT_PATH": places["locks"],
            "DOCKER_HOST": docker.host,
        }
        source = Path(root, "source")
        source.mkdir()
        source.chmod(0o755)
        Path(source, "file").write_text("from the image\n")
        story = Story(daemon, str(source), places)
        try:
            story.tell(docker)
            keep(story.state_dir, replay.LOGS / name)
            story.archive()
            keep(story.state_dir, replay.LOGS / f"{name}-archived")
        finally:
            daemon.clear()


@contextlib.contextmanager
def engine(root: str) -> Iterator[PrivateEngine]:
    """A Docker engine for the length of a block."""
    made = PrivateEngine(root)
    made.start()
    try:
        yield made
    finally:
        made.clear()


class Story:
    """All that is told to one daemon."""

    def __init__(self, daemon: RunningDaemon, source: str, places: dict[str, str]) -> None:
        self.daemon = daemon
        self.source = source
        self.places = places
        self.state_dir = Path(daemon.state_dir)

    def tell(self, docker: PrivateEngine) -> None:
        """From the first start to a log that no daemon uses, with a sandbox in it that runs."""
        self.daemon.start()
        self._with(self._images)
        self._with(lambda client: self._docker(client, docker.busybox()))
        self._with(self._checkpoints)
        self._with(self._keeping)
        self._with(self._branches)
        self._with(self._sessions)
        self._with(self._locks)
        box, lost = self._with(self._processes)
        self._end_outside(lost)
        self.daemon.start()
        self._with(lambda client: self._anew(client, lost))
        self._with(lambda client: client.sandbox.exec(box, "echo adopted"))
        self.daemon.stop()
        self._damage()
        self._append_what_is_missing()

    def archive(self) -> None:
        """All that is over goes into the archive, and a daemon begins anew with what is left."""
        offline.compact(str(self.state_dir), -3600)
        self.daemon.start()
        self._with(self._last)
        self.daemon.stop()

    def _with(self, work: Callable[[Any], Any]) -> Any:
        with self.daemon.connect() as client:
            return work(client)

    def _images(self, client: Any) -> None:
        self.image = client.image.create(self.source, labels={"team": "blue"}).image_id
        client.image.create(self.source, labels={"team": "blue"})
        client.image.tag(self.image, "py:3.12")
        other = client.image.create(self.source, clean=True, name="py:3.12").image_id
        client.image.remove(other)
        refused("invalid", client.image.create, f"{self.source}/absent")
        client.provider.choose(enabled=True)

    def _docker(self, client: Any, name: str) -> None:
        image = client.image.create(name).image_id
        box = client.sandbox.create(image, env={"A": "b"}, memory_bytes=1 << 28, labels={"case": "docker"}).sandbox_id
        client.sandbox.exec(box, "echo out")
        client.sandbox.suspend(box)
        client.sandbox.resume(box)
        client.sandbox.terminate(box)
        for volume in ("kept", "removed"):
            client.volume.create(volume)
        client.volume.remove("removed")

    def _processes(self, client: Any) -> tuple[str, str]:
        box = client.sandbox.create(
            self.image, name="named", secrets={"TOKEN": "s3cret"}, labels={"a": "b"}, pids=64, idle_timeout_s=9e5
        ).sandbox_id
        refused("invalid", client.sandbox.create, self.image, name="refused", network="no such network")
        client.sandbox.exec(box, "echo out; echo err >&2; exit 3", stdin=b"4711", command_id="first")
        client.sandbox.exec(box, ["no such program"])
        client.process.launch(box, ["sh", "-c", "sleep 1000"], name="sleeper", env={"A": "b"}, secrets={"B": "c"})
        client.process.launch(box, ["cat"], name="cat", stdin=True)
        client.process.write_stdin(box, "cat", data=b"1\n", command_id="second")
        for name in ("victim", "another"):
            client.process.launch(box, ["sleep", "1000"], name=name)
            client.process.signal(box, name, signal="KILL")
            client.process.wait(box, name)
        client.sandbox.exec(box, "sleep 1000", timeout_s=0.1)
        client.sandbox.write_file(box, path="written", data=b"content")
        client.sandbox.suspend(box)
        client.sandbox.resume(box)
        lost = client.sandbox.create(self.image).sandbox_id
        client.process.launch(lost, ["sleep", "1000"], name="sleeper")
        return box, lost

    def _end_outside(self, lost: str) -> None:
        """A sandbox is killed while no daemon runs, and is lost; another while one runs, and has failed."""
        with self.daemon.connect() as client:
            failed = client.sandbox.create(self.image).sandbox_id
            first = self._handle(failed)
            os.kill(first, 9)
            until(lambda: client.sandbox.get(failed).status == "failed")
            gone = self._handle(lost)
        self.daemon.kill()
        os.kill(gone, 9)

    def _handle(self, box: str) -> int:
        """The first process of a sandbox, as the host sees it."""
        with self.daemon.connect() as client:
            (made,) = [e for e in client.sandbox.history(box).events if e.type == "sandbox.created"]
        return int(made.data["handle"]["first"]["pid"])

    def _anew(self, client: Any, lost: str) -> None:
        until(lambda: client.sandbox.get(lost).status == "lost")
        client.sandbox.resume(lost)
        client.sandbox.terminate(lost)

    def _keeping(self, client: Any) -> None:
        box = client.sandbox.create(self.image).sandbox_id
        client.sandbox.exec(box, "echo 1 >one; rm file")
        client.snapshot.create(box, exclude=["one"], format="tar.zst")
        full = client.snapshot.create(box, name="full", labels={"a": "b"}).snapshot_id
        second = client.snapshot.create(box, incremental=True, format="tar.zst").snapshot_id
        restored = client.snapshot.restore(second).sandbox_id
        for fork in client.sandbox.fork(restored, count=2).sandboxes:
            client.sandbox.terminate(fork.sandbox_id)
        client.sandbox.restore(box, full)
        os.rename(self.places["mount"], f"{self.places['mount']}.away")
        late = client.snapshot.create(box).snapshot_id
        os.rename(f"{self.places['mount']}.away", self.places["mount"])
        until(lambda: client.snapshot.get(late).places[0].where == "mount")
        client.snapshot.promote(second)
        moved = f"{self.daemon.root}/moved.tar.gz"
        archives.export_to(client, second, moved)
        archives.import_from(client, moved)
        client.snapshot.delete(late)
        client.sandbox.restore_at(box, position=client.sandbox.history(box).events[-1].position)
        for sandbox in client.sandbox.list().sandboxes:
            if sandbox.sandbox_id != box:
                client.sandbox.terminate(sandbox.sandbox_id)
        client.snapshot.create(box, incremental=True)
        client.sandbox.terminate(box)

    def _branches(self, client: Any) -> None:
        """Branches that are merged without a conflict, and with one; a commit, and one that is refused."""
        client.branch.create(image_id=self.image, count=2, names=["fast", "careful"], labels={"a": "b"})
        client.sandbox.exec("fast", "echo fast >new; echo 1 >both")
        client.sandbox.exec("careful", "echo careful >file; echo 2 >both")
        [third] = client.branch.create(sandbox_id="fast", names=["third"]).sandboxes
        client.branch.merge(["fast", third.sandbox_id], name="merged")
        given_up = client.branch.merge(["fast", "careful"]).merge.merge_id
        client.branch.abandon(given_up)
        merge_id = client.branch.merge(["fast", "careful"], name="both", takes={"absent": "fast"}).merge.merge_id
        refused("not_found", client.branch.resolve, merge_id, decisions=[{"path": "absent", "delete": True}])
        client.branch.resolve(merge_id, decisions=[{"path": "both", "take": "fast"}])
        refused("invalid", client.branch.merge, ["fast", "careful"], policy="ours", ours="merged")
        target = f"{self.daemon.root}/target"
        shutil.copytree(self.source, target)
        client.branch.commit("both", target)
        refused("invalid", client.branch.commit, "careful", f"{target}/absent")
        for name in ("fast", "careful", "third", "merged", "both"):
            client.branch.remove(name)

    def _checkpoints(self, client: Any) -> None:
        image = client.image.create(self.source, provider="gvisor").image_id
        box = client.sandbox.create(image).sandbox_id
        client.process.launch(box, ["sh", "-c", "while :; do sleep 1; done"], name="counter")
        kept = client.checkpoint.create(box, name="kept", leave_running=True).checkpoint_id
        other = client.checkpoint.create(box, leave_running=True).checkpoint_id
        made = client.checkpoint.restore(kept, labels={"a": "b"}).sandboxes
        client.sandbox.restore(box, checkpoint_id=kept)
        client.sandbox.suspend(box)
        client.sandbox.resume(box)
        client.checkpoint.delete(other)
        for name in (box, *(sandbox.sandbox_id for sandbox in made)):
            client.sandbox.terminate(name)

    def _sessions(self, client: Any) -> None:
        """One that was closed, brought back and runs; one whose image has gone; artifacts."""
        box = client.session.ensure("kept", image=self.image).session.sandbox_id
        client.sandbox.write_file(box, path="result", data=b"42")
        kept, removed = (client.artifact.export(box, "result", name=name).artifact_id for name in ("kept", "removed"))
        client.artifact.remove(removed)
        refused("not_found", client.artifact.export, box, "absent")
        client.session.close("kept")
        assert client.sandbox.exec("kept", "cat result").stdout == b"42"
        refused("not_found", client.session.ensure, "failed", image="img_absent")
        client.session.ensure("closed", image=self.image)
        client.session.close("closed", snapshot=False)
        assert client.artifact.get(kept).status == "ready"

    def _locks(self, client: Any) -> None:
        client.lock.acquire("shared", timeout_s=0)
        refused("lock_contended", client.lock.acquire, "shared", timeout_s=0)
        client.lock.release("shared")
        client.lock.release("shared", force=True)
        client.lock.acquire("again", timeout_s=0)
        client.lock.release("again")

    def _last(self, client: Any) -> None:
        """After all that: what was put into an event is taken out, and a sandbox is left to run."""
        box = client.sandbox.create(self.image, labels={"last": "yes"}).sandbox_id
        done = client.sandbox.exec(box, "echo redacted")
        (position,) = [
            event.position
            for event in client.sandbox.history(box).events
            if event.type == "process.launch_requested" and event.stream == done.process_id
        ]
        client.store.redact(position)
        client.process.launch(box, ["sleep", "1000"], name="sleeper")

    def _damage(self) -> None:
        """One event is damaged on the disk, and a repair puts another in its place."""
        path = f"{self.state_dir}/{offline.LOG_NAME}"
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            position = "SELECT max(position) FROM events WHERE type = 'process.signalled'"
            db.execute(f"UPDATE events SET crc = crc + 1 WHERE position = ({position})")
        assert repair(str(self.state_dir), yes=True).mended
        shutil.rmtree(f"{self.state_dir}/quarantine")

    def _append_what_is_missing(self) -> None:
        """Golden examples, each after what it is an outcome of, of things that are over in the end."""
        there = replay.opened(self.state_dir, lambda log: replay.types(self.state_dir, log))
        missing = [kind for name, kind in EVENTS.items() if name not in there and not name.startswith("log.")]
        print("not brought about:", *(kind.type for kind in missing), file=sys.stderr)
        log = EventLog.open(f"{self.state_dir}/{offline.LOG_NAME}")
        try:
            trio.run(_append, log, missing)
        finally:
            log.close()


async def _append(log: EventLog, missing: list[type[Event]]) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        for number, kind in enumerate(missing):
            for stream, event, sandbox_id in _life(kind, f"x{number}"):
                await log.append([NewEvent(stream, event, sandbox_id)], Meta(owner=ALICE, client="golden"))
        nursery.cancel_scope.cancel()


_PREFIXES: Final = {
    "image": "img",
    "session": "ses",
    "artifact": "art",
    "volume": "vol",
    "process": "prc",
    "snapshot": "snp",
    "checkpoint": "ckp",
    "lock": "lck",
}
_BEGINNINGS: Final = {
    "image": "image.create_requested",
    "session": "session.start_requested",
    "artifact": "artifact.export_requested",
    "process": "process.launch_requested",
    "snapshot": "snapshot.create_requested",
    "checkpoint": "checkpoint.create_requested",
    "lock": "lock.acquire_requested",
}
_BRANCH_PREFIXES: Final = {"create": "frk", "commit": "cmt"}
"""Of the streams of ``branch.*`` by the first word of the event; all others are of merges."""


def _life(kind: type[Event], name: str) -> Iterator[tuple[str, Event, str | None]]:
    """What comes before an event, the event, and what it takes for all that to be over."""
    noun, _, verb = kind.type.partition(".")
    if noun == "branch":
        yield from _life_of_branches(kind, verb, name)
        return
    if noun not in ("sandbox", *_PREFIXES):
        yield "daemon", golden(kind.type), None
        return
    asked = next((asked for asked, row in EVENTS.items() if kind.type in row.outcomes), None)
    box = f"sbx_{name}" if noun in ("sandbox", "process") else None
    if box is not None:
        yield box, golden("sandbox.create_requested"), box
        yield box, golden("sandbox.created"), box
    stream = box if box is not None and noun == "sandbox" else f"{_PREFIXES.get(noun)}_{name}"
    if "fork" in verb or (noun, verb.startswith("restore")) == ("checkpoint", True):
        stream = f"frk_{name}"
    elif noun in _BEGINNINGS and _BEGINNINGS[noun] not in (asked, kind.type):
        yield stream, golden(_BEGINNINGS[noun]), box
    if asked is not None:
        yield stream, golden(asked), box
    yield stream, golden(kind.type), box
    if box is not None:
        yield box, golden("sandbox.terminate_requested"), box
        yield box, golden("sandbox.terminated"), box


def _life_of_branches(kind: type[Event], verb: str, name: str) -> Iterator[tuple[str, Event, str | None]]:
    prefix = next((prefix for word, prefix in _BRANCH_PREFIXES.items() if verb.startswith(word)), "mrg")
    stream = f"{prefix}_{name}"
    asked = next((asked for asked, row in EVENTS.items() if kind.type in row.outcomes), None)
    if prefix == "mrg" and asked not in (None, "branch.merge_requested"):
        yield stream, golden("branch.merge_requested"), None
        yield stream, golden("branch.conflicted"), None
    if asked is not None:
        yield stream, golden(asked), None
    yield stream, golden(kind.type), None


def golden(type: str) -> Event:
    """The last example of an event that this version knows."""
    known = [e for e in EXAMPLES if e.type == type and e.version <= EVENTS[type].version]
    last = max(known, key=lambda example: (example.version, example.number))
    return CODEC.decode(1, type, last.version, last.data)


def keep(state_dir: Path, target: Path) -> None:
    """Keep the log, and its views as this version has them."""
    found = replay.opened(state_dir, replay.views)
    target.mkdir(parents=True)
    (target / replay.VIEWS).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    replay.pack(state_dir, target / replay.STATE)


if __name__ == "__main__":
    main(sys.argv[1])

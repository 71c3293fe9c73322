"""Exactly once, of what is done with the files of sandboxes; as `test_repeats`, with a world of its own."""

import os
from typing import Any

import pytest
from tests.daemon.api.test_repeats import ELSEWHERE, Case, made_once

from sandkeep.ids import SNAPSHOT, new_id


class World:
    """A real daemon with sandboxes and snapshots of one."""

    def __init__(self, daemon: Any, source: str) -> None:
        self.daemon = daemon
        with daemon.connect() as client:
            image = client.image.create(source).image_id
            self.box, self.over = (client.sandbox.create(image).sandbox_id for _ in range(2))
            self.kept, self.doomed = (client.snapshot.create(self.box).snapshot_id for _ in range(2))
            self.position = client.daemon.status().position
            self.end_one(client)
        self.orphan()

    def orphan(self) -> None:
        """Put an archive that nobody owns among the others."""
        with open(f"{self.daemon.state_dir}/archives/{self.box}/{new_id(SNAPSHOT)}.tar.gz", "wb"):
            pass

    def end_one(self, client: Any) -> None:
        """Make a sandbox that has ended, and has output."""
        box = client.sandbox.create(client.sandbox.get(self.box).image_id).sandbox_id
        client.sandbox.exec(box, "echo output")
        client.process.wait(box, client.process.launch(box, "echo output").process_id)
        client.sandbox.terminate(box)

    def events(self, kind: str) -> int:
        with self.daemon.connect() as client:
            return sum(1 for _ in client.follow_events(type=kind, follow=False))

    def files(self, box: str) -> list[str]:
        with self.daemon.connect() as client:
            return [os.fsdecode(entry.name) for entry in client.sandbox.list_dir(box, path=".").entries]


CASES = {
    "snapshot.create": Case(
        lambda w: {"sandbox_id": w.box, "labels": {"case": "1"}},
        {"labels": {}},
        lambda w: w.events("snapshot.create_requested") == 3,
        lambda w, client: client.sandbox.write_file(w.box, path="later", data=b""),
    ),
    "snapshot.delete": Case(
        lambda w: {"snapshot_id": w.doomed}, {"snapshot_id": "other"}, lambda w: w.events("snapshot.deleted") == 1
    ),
    "snapshot.gc": Case(
        lambda w: {},
        {"dry_run": True},
        lambda w: w.events("archive.removed") == 1,
        lambda w, client: w.orphan(),
        like=lambda answer: None,  # it tells what would go by now
    ),
    "store.prune": Case(
        lambda w: {},
        {"dry_run": True},
        lambda w: w.events("output.remove_requested") == 1,
        lambda w, client: w.end_one(client),
        like=lambda answer: None,  # it tells what would go by now
    ),
    "snapshot.promote": Case(
        lambda w: {"snapshot_id": w.kept, "labels": {"case": "1"}},
        {"labels": {}},
        lambda w: w.events("image.create_requested") == 2,
    ),
    "snapshot.restore": Case(
        lambda w: {"snapshot_id": w.kept, "labels": {"case": "1"}},
        {"labels": {}},
        lambda w: w.events("sandbox.create_requested") == 7,
        like=lambda answer: answer["sandbox_id"],
    ),
    "sandbox.restore_at": Case(
        lambda w: {"sandbox_id": w.box, "position": w.position},
        {"labels": {"case": "1"}},
        lambda w: w.events("sandbox.create_requested") == 7,
        like=lambda answer: [answer["sandbox"]["sandbox_id"], answer["moment"], answer["events_between"]],
    ),
    "sandbox.fork": Case(
        lambda w: {"sandbox_id": w.box, "labels": {"case": "1"}},
        {"labels": {}},
        lambda w: w.events("sandbox.forked") == 1,
        like=lambda answer: [one["sandbox_id"] for one in answer["sandboxes"]],
    ),
    "sandbox.restore": Case(
        lambda w: {"sandbox_id": w.over, "snapshot_id": w.kept},
        {"snapshot_id": "other"},
        lambda w: (w.events("sandbox.restored"), w.files(w.over)) == (1, ["hello", "later"]),
        lambda w, client: client.sandbox.write_file(w.over, path="later", data=b""),
        like=lambda answer: answer["sandbox_id"],
    ),
}


@pytest.mark.needs("bwrap")
def test_every_change_is_made_once(running_daemon: Any, source: str) -> None:
    assert {*CASES} == {name for name, file in ELSEWHERE.items() if file.endswith("test_repeats_of_snapshots.py")}
    made_once(running_daemon, World(running_daemon, source), CASES)

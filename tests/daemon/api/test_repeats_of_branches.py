"""Exactly once, of what is done with branches; as `test_repeats`, with a world of its own."""

import os
import shutil
from typing import Any

import pytest
from tests.daemon.api.test_repeats import ELSEWHERE, Case, made_once


class World:
    """A real daemon with branches, and merges of them that have a conflict."""

    def __init__(self, daemon: Any, source: str) -> None:
        self.daemon = daemon
        self.target = f"{daemon.root}/target"
        shutil.copytree(source, self.target)
        with daemon.connect() as client:
            self.image = client.image.create(source).image_id
            made = client.branch.create(image_id=self.image, count=4).sandboxes
            self.one, self.two, self.third, self.doomed = (sandbox.sandbox_id for sandbox in made)
            client.sandbox.exec(self.one, "echo 1 >both")
            client.sandbox.exec(self.two, "echo 2 >both")
            self.open, self.hopeless = (client.branch.merge([self.one, self.two]).merge.merge_id for _ in range(2))

    def events(self, kind: str) -> int:
        with self.daemon.connect() as client:
            return sum(1 for _ in client.follow_events(type=kind, follow=False))


def sandbox_of(answer: dict[str, Any]) -> str:
    return str(answer["sandbox"]["sandbox_id"])


CASES = {
    "branch.create": Case(
        lambda w: {"sandbox_id": w.one, "count": 2, "labels": {"case": "1"}},
        {"labels": {}},
        lambda w: w.events("branch.created") == 2,
        like=lambda answer: [one["sandbox_id"] for one in answer["sandboxes"]],
    ),
    "branch.merge": Case(
        lambda w: {"sandbox_ids": [w.one, w.third]},
        {"policy": "union"},
        lambda w: w.events("branch.merge_requested") == 3,
        like=sandbox_of,
    ),
    "branch.resolve": Case(
        lambda w: {"merge_id": w.open, "decisions": [{"path": "both", "take": w.one}]},
        {"decisions": [{"path": "both", "delete": True}]},
        lambda w: w.events("branch.resolve_requested") == 1,
        like=sandbox_of,
    ),
    "branch.abandon": Case(
        lambda w: {"merge_id": w.hopeless}, {"merge_id": "other"}, lambda w: w.events("branch.abandoned") == 1
    ),
    "branch.commit": Case(
        lambda w: {"sandbox_id": w.one, "target": w.target},
        {"force": True},
        lambda w: w.events("branch.committed") == 1 and not os.path.exists(f"{w.target}/both"),
        lambda w, client: os.path.exists(f"{w.target}/both") and os.unlink(f"{w.target}/both"),
    ),
    "branch.remove": Case(
        lambda w: {"sandbox_id": w.doomed}, {"sandbox_id": "other"}, lambda w: w.events("sandbox.terminated") == 1
    ),
}


@pytest.mark.needs("bwrap")
def test_every_change_is_made_once(running_daemon: Any, source: str) -> None:
    assert {*CASES} == {name for name, file in ELSEWHERE.items() if file.endswith("test_repeats_of_branches.py")}
    made_once(running_daemon, World(running_daemon, source), CASES)

"""Branches that are made, merged, resolved and committed, while the daemon may die."""

import os
import shutil
from typing import Any, Final

from tests.crash.keeping import made, run
from tests.crash.story import Story

BRANCHING: Final = ("branch.", "commit.")
"""Prefixes of the points and events that only this tells of."""


def tell(story: Story, source: str, **image_of: Any) -> None:
    """Branches of an image and of a sandbox; merges of them, one given up and one resolved; and commits. Then all of it
    goes. `image_of` is how the image is made.
    """
    image = story.ask("image.create", source, **image_of).image_id
    branches = story.ask("branch.create", image_id=image, count=2, names=["fast", "careful"])
    fast, careful = [made(story, branch) for branch in branches.sandboxes]
    run(story, fast, "echo fast >new; echo 1 | tee both >too; rm file")
    run(story, careful, "echo careful >other; echo 2 | tee both >too")
    [third] = [made(story, branch) for branch in story.ask("branch.create", sandbox_id=fast, names=["third"]).sandboxes]
    run(story, third, "echo third >third")
    merged = made(story, story.ask("branch.merge", [fast, third], name="merged").sandbox)
    assert run(story, merged, "ls; cat both") == b"both\nnew\nthird\ntoo\n1\n"
    given_up = story.ask("branch.merge", [merged, careful]).merge
    assert given_up.status == "conflicted"
    story.ask("branch.abandon", given_up.merge_id)
    conflicted = story.ask("branch.merge", [merged, careful], name="all").merge
    left = story.ask("branch.resolve", conflicted.merge_id, decisions=[{"path": "too", "delete": True}])
    assert [conflict.path for conflict in left.conflicts] == ["both"]
    resolved = story.ask("branch.resolve", conflicted.merge_id, decisions=[{"path": "both", "take": "careful"}])
    last = made(story, resolved.sandbox)
    assert run(story, last, "ls; cat both") == b"both\nnew\nother\nthird\n2\n"
    target = f"{story.daemon.root}/target"
    shutil.copytree(source, target)
    committed = story.ask("branch.commit", last, target)
    assert (committed.added, committed.changed, committed.deleted) == (4, 0, 1)
    assert sorted(os.listdir(target)) == ["both", "new", "other", "third"]
    run(story, last, "rm other; echo more >>new")
    again = story.ask("branch.commit", last, target)
    assert (again.added, again.changed, again.deleted) == (0, 1, 1)
    assert sorted(os.listdir(target)) == ["both", "new", "third"]
    for sandbox_id in story.sandboxes:
        story.ask("branch.remove", sandbox_id)
    story.ask("image.remove", image)

"""Branches of gVisor sandboxes, of which whole copies are made."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.snapshots import paths, sh
from tests.support.users import let_in

pytestmark = pytest.mark.needs("runsc")


def test_branches_are_made_compared_and_merged(client: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "text").write_text("one\ntwo\nthree\nfour\nfive\n")
    let_in(source)
    client.branch.create(source=str(source), provider="gvisor", count=2, names=["one", "two"])
    sh(client, "one", "sed -i 1s/one/ONE/ text; echo new >new")
    sh(client, "two", "sed -i 5s/five/FIVE/ text; mkdir empty")
    changed = client.sandbox.diff("one").files
    assert [(change.path, change.change) for change in changed] == [("new", "added"), ("text", "changed")]
    merged = client.branch.merge(["one", "two"], name="both")
    assert merged.merge.status == "ready"
    assert sh(client, "both", "cat text") == "ONE\ntwo\nthree\nfour\nFIVE\n"
    [copy] = client.branch.create(sandbox_id="both").sandboxes
    assert paths(client, copy.sandbox_id) == {"text", "new", "empty"}
    client.branch.commit(copy.sandbox_id, str(source))
    assert sorted(path.name for path in source.iterdir()) == ["empty", "new", "text"]
    for sandbox in client.sandbox.list().sandboxes:
        client.branch.remove(sandbox.sandbox_id)

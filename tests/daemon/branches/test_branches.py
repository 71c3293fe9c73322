"""Branches with a real daemon: made, compared, merged, resolved and given up; lineage, and what is left of it."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import refused, until
from tests.support.snapshots import paths, sh, tree
from tests.support.users import command_as, let_in

from sandkeep.ids import new_id

pytestmark = pytest.mark.needs("bwrap")

on_both = pytest.mark.parametrize(
    "provider", ["local", pytest.param("docker", marks=pytest.mark.needs("docker"))], indirect=True
)
in_docker_by_the_soak = pytest.mark.parametrize(
    "provider",
    ["local", pytest.param("docker", marks=[pytest.mark.needs("docker"), pytest.mark.soak])],
    indirect=True,
)
TEXT = "".join(f"line {number}\n" for number in range(1, 21))


@pytest.fixture(scope="module")
def client(keeping_daemon: Any) -> Any:
    with keeping_daemon.connect() as client:
        yield client


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("source")
    let_in(made)
    (made / "text").write_text(TEXT)
    (made / "dir").mkdir()
    (made / "dir" / "old").write_text("old\n")
    (made / "gone").write_text("gone\n")
    return made


@pytest.fixture(scope="module")
def image(client: Any, image_of: dict[str, Any], source: Path) -> str:
    return str(client.image.create(str(source), **image_of).image_id)


@pytest.fixture
def clean(client: Any, keeping_daemon: Any) -> Any:
    """All branches end with the test, and nothing is left of what was kept for them."""
    yield
    for merge in client.branch.merges().merges:
        if merge.status == "conflicted":
            client.branch.abandon(merge.merge_id)
    for sandbox in client.sandbox.list().sandboxes:
        client.branch.remove(sandbox.sandbox_id)
    layers = f"{keeping_daemon.state_dir}/layers"
    until(lambda: not os.path.isdir(layers) or not os.listdir(layers))


def branches(client: Any, image: str, *names: str) -> list[str]:
    made = client.branch.create(image_id=image, count=len(names), names=list(names))
    return [sandbox.sandbox_id for sandbox in made.sandboxes]


def changes(client: Any, box: str, **options: Any) -> dict[str, str]:
    return {change.path: change.change for change in client.sandbox.diff(box, **options).files}


def edit(client: Any, box: str, line: int, text: str) -> None:
    sh(client, box, f"sed -i '{line}s/.*/{text}/' text")


# -- making ------------------------------------------------------------------------------------------------------------


def test_branches_of_a_directory(client: Any, source: Path, clean: None) -> None:
    (source / "node_modules").mkdir()
    (source / "node_modules" / "x[y").write_text("")
    try:
        made = client.branch.create(
            source=str(source), count=2, names=["one", "two"], ignore=["node_modules", "[a-z]*"], labels={"a": "b"}
        )
    finally:
        (source / "node_modules" / "x[y").unlink()
        (source / "node_modules").rmdir()
    assert [sandbox.name for sandbox in made.sandboxes] == ["one", "two"]
    assert paths(client, "one") == {"text", "dir", "dir/old", "gone"}
    assert client.sandbox.get("two").spec.labels == {"a": "b"}
    again = client.branch.create(source=str(source), ignore=["[a-z]*", "node_modules"])
    assert again.source_id == made.source_id  # one image for equal content
    assert refused("invalid", client.branch.create).data["field"] == "source"
    refused("invalid", client.branch.create, source=str(source), image_id=made.source_id)
    refused("conflict", client.branch.create, image_id=made.source_id, names=["one"])
    refused("invalid", client.branch.create, image_id=made.source_id, count=2, names=["three"])
    refused("invalid", client.branch.create, source="relative")
    refused("not_found", client.branch.create, image_id="img_absent")


@on_both
def test_branches_of_a_sandbox_and_of_a_snapshot(client: Any, image: str, clean: None) -> None:
    [first] = branches(client, image, "first")
    sh(client, first, "echo changed >text; rm -r dir; mkdir -m 700 dir; echo new >dir/new")
    kept = client.snapshot.create(first).snapshot_id
    sh(client, first, "echo later >later")
    of_sandbox = client.branch.create(sandbox_id=first, count=2)
    of_snapshot = client.branch.create(snapshot_id=kept, count=2, names=["three", "four"])
    for sandbox in of_sandbox.sandboxes:
        assert tree(client, sandbox.sandbox_id) == tree(client, first)
        assert changes(client, sandbox.sandbox_id) == {}
    for sandbox in of_snapshot.sandboxes:
        assert paths(client, sandbox.sandbox_id) == {"text", "dir", "dir/new", "gone"}
    told = {branch.sandbox_id: branch for branch in client.branch.list().branches}
    shown = told[of_sandbox.sandboxes[0].sandbox_id]
    assert (shown.base, shown.parents, shown.image_id) == ("fork", [first], image)
    shown = told[of_snapshot.sandboxes[1].sandbox_id]
    assert (shown.base, shown.base_id, shown.parents, shown.name) == ("snapshot", kept, [first], "four")
    assert (told[first].base, told[first].base_id, told[first].parents) == ("image", image, [])
    client.snapshot.delete(kept)


def test_a_command_is_carried_out_once(client: Any, image: str, clean: None) -> None:
    one = client.branch.create(image_id=image, count=2, command_id="create-once")
    again = client.branch.create(image_id=image, count=2, command_id="create-once")
    boxes = [sandbox.sandbox_id for sandbox in one.sandboxes]
    assert [sandbox.sandbox_id for sandbox in again.sandboxes] == boxes
    sh(client, boxes[0], "echo 1 >both")
    sh(client, boxes[1], "echo 2 >both")
    merge = client.branch.merge(boxes, command_id="merge-once").merge
    assert client.branch.merge(boxes, command_id="merge-once").merge == merge
    decided = [{"path": "both", "take": boxes[0]}]
    made = client.branch.resolve(merge.merge_id, decisions=decided, command_id="resolve-once")
    again = client.branch.resolve(merge.merge_id, decisions=decided, command_id="resolve-once")
    assert again.sandbox.sandbox_id == made.sandbox.sandbox_id


# -- comparing ---------------------------------------------------------------------------------------------------------


@in_docker_by_the_soak
def test_differences(client: Any, image: str, clean: None) -> None:
    one, two = branches(client, image, "one", "two")
    edit(client, one, 3, "LINE 3")
    sh(client, one, "rm gone; mkdir -p new/deep; printf 'no end' >new/deep/file; chmod 700 dir; ln -s text link")
    edit(client, two, 3, "LINE 3")
    found = client.sandbox.diff(one, lines=True, unified=True)
    told = {change.path: change for change in found.files}
    assert {path: change.change for path, change in told.items()} == {
        "text": "changed", "gone": "deleted", "new": "added", "new/deep": "added", "new/deep/file": "added",
        "dir": "changed", "link": "added",
    }  # fmt: skip
    assert (found.added, found.changed, found.deleted, found.truncated) == (4, 2, 1, False)
    assert (told["text"].added_lines, told["text"].removed_lines) == (1, 1)
    assert (told["dir"].mode, told["dir"].mode_before) == (0o700, 0o755)
    assert found.base_id == image
    assert "-line 3\n+LINE 3\n" in found.unified
    assert "\\ No newline at end of file" in found.unified
    assert "text" not in changes(client, one, base="two")
    assert changes(client, one, base="two") == {p: c for p, c in changes(client, one).items() if p != "text"}
    assert changes(client, one, base=image) == changes(client, one)
    opposite = {"added": "deleted", "deleted": "added", "changed": "changed"}
    backwards = client.sandbox.diff(one, base=image, reverse=True, unified=True)
    assert {f.path: f.change for f in backwards.files} == {p: opposite[c] for p, c in changes(client, one).items()}
    assert "+line 3\n" in backwards.unified
    assert "-LINE 3\n" in backwards.unified
    assert changes(client, one, paths=["new"]) == {"new": "added", "new/deep": "added", "new/deep/file": "added"}
    cut = client.sandbox.diff(one, limit=2)
    assert (len(cut.files), cut.added, cut.truncated) == (2, 4, True)
    kept = client.snapshot.create(one, incremental=True).snapshot_id
    sh(client, one, "echo more >>text")
    assert changes(client, one, base=kept) == {"text": "changed"}
    assert changes(client, "two", base=kept) != {}
    client.snapshot.delete(kept)
    refused("not_found", client.sandbox.diff, one, base="absent")


def test_much_is_shown_as_far_as_an_answer_goes(client: Any, image: str, clean: None) -> None:
    """Names and lines that take six times their length in JSON, and many of them."""
    one, two = branches(client, image, "one", "two")
    for box, letter in ((one, "a"), (two, "b")):
        script = f"""
import os
for number in range(12):
    with open(f"text-{{number}}", "w") as file:
        file.write("\\x01{letter}\\n" * 10_000)
for number in range(100):
    folder = f"{{number:04}}/" + "/".join(["\\x01" * 250] * 10)
    os.makedirs(folder)
    open(f"{{folder}}/{letter}", "w").close()
"""
        assert client.sandbox.exec(box, ["python3", "-c", script]).exit_code == 0
    merged = client.branch.merge([one, two])
    assert merged.merge.conflicts == 12
    assert 0 < len(merged.conflicts) <= 12
    found, after = list[str](), 0
    while after is not None:
        page = client.branch.conflicts(merged.merge.merge_id, after=after)
        found, after = [*found, *(conflict.path for conflict in page.conflicts)], page.next
    assert sorted(found) == sorted(f"text-{number}" for number in range(12))
    shown = client.sandbox.diff(one, unified=True, limit=100_000)
    assert (shown.added, shown.truncated) == (12 + 100 * 12, True)
    assert 0 < len(shown.files) < shown.added
    assert client.branch.blame(sandbox_id=one).next is not None


def test_nothing_of_a_hostile_sandbox_is_followed(client: Any, image: str, clean: None) -> None:
    [one] = branches(client, image, "one")
    sh(client, one, "rm -r dir; ln -s /etc dir; ln -s /etc/passwd passwd; mkfifo fifo; ln -s .. up")
    sh(client, one, "printf x >'a\nb'; printf y >\"$(printf 'nul\\377')\"")
    sh(client, one, "python3 -c \"import socket as s; s.socket(1).bind('sock')\"")
    found = client.sandbox.diff(one, unified=True)
    told = {change.path: change for change in found.files}
    assert (told["dir"].kind, told["dir"].kind_before) == ("symlink", "directory")
    assert told["dir/old"].change == "deleted"
    assert told["nul\\xff"].path_bytes == b"nul\xff"
    assert "a\nb" in told
    assert "sock" not in told
    assert "root:" not in found.unified


def test_of_others_nobody_hears(client: Any, image: str, shared_daemon: Any, clean: None) -> None:
    one, two = branches(client, image, "one", "two")
    sh(client, one, "echo 1 >both")
    sh(client, two, "echo 2 >both")
    merge_id = client.branch.merge([one, two]).merge.merge_id
    script = f"""
import sys
from sandkeep.blocking import connect
from sandkeep.errors import SandkeepError
with connect({shared_daemon.socket!r}) as client:
    calls = [
        lambda: client.sandbox.diff({one!r}), lambda: client.branch.create(sandbox_id={one!r}),
        lambda: client.branch.create(image_id={image!r}), lambda: client.branch.merge([{one!r}, {two!r}]),
        lambda: client.branch.conflicts({merge_id!r}), lambda: client.branch.abandon({merge_id!r}),
        lambda: client.branch.resolve({merge_id!r}, decisions=[dict(path="both", delete=True)]),
        lambda: client.branch.read_version({merge_id!r}, sha256="0" * 64),
        lambda: client.branch.plan({one!r}, target="/tmp"), lambda: client.branch.commit({one!r}, target="/tmp"),
        lambda: client.branch.blame(merge_id={merge_id!r}), lambda: client.branch.remove({one!r}),
    ]
    for call in calls:
        try:
            call()
        except SandkeepError as error:
            assert error.code == "not_found", error
        else:
            raise AssertionError("it was answered")
    assert client.branch.list().branches == [] == client.branch.merges().merges
"""
    import subprocess
    import sys

    done = subprocess.run(command_as(65534, [sys.executable, "-c", script]), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


# -- merging -----------------------------------------------------------------------------------------------------------


@on_both
def test_what_branches_changed_comes_together(client: Any, image: str, clean: None) -> None:
    one, two, three = branches(client, image, "one", "two", "three")
    edit(client, one, 2, "ONE")
    sh(client, one, "rm gone; mkdir empty; ln -s text link; echo n >dir/new; chmod 750 dir")
    edit(client, two, 18, "TWO")
    sh(client, two, "chmod 755 text; rm gone; mkdir empty; head -c 100000 /dev/urandom >random; mkdir -m 700 closed")
    sh(client, three, "printf '\\0binary' >dir/old; echo young >dir/young; ln text hard")
    made = client.branch.merge([three, one, two], name="all", labels={"x": "y"})
    assert (made.merge.status, made.merge.base_id, made.merge.conflicts) == ("ready", image, 0)
    assert made.merge.branches == {"one": one, "two": two, "three": three}
    box = made.sandbox.sandbox_id
    assert sh(client, box, "cat text") == TEXT.replace("line 2\n", "ONE\n").replace("line 18\n", "TWO\n")
    assert paths(client, box) == {
        "text", "hard", "dir", "dir/old", "dir/new", "dir/young", "empty", "link", "random", "closed"
    }  # fmt: skip
    merged = tree(client, box)
    theirs = tree(client, two)
    assert (merged["random"], merged["#./random"]) == (theirs["random"], theirs["#./random"])
    assert (merged["text"].split()[:2], merged["dir"].split()[1], merged["closed"].split()[1]) == (
        ["f", "755"], "750", "700",
    )  # fmt: skip
    assert client.sandbox.get(box).spec.labels == {"x": "y"}
    origins = {path.path: path for path in client.branch.blame(merge_id=made.merge.merge_id).paths}
    assert (origins["text"].branches, origins["text"].how) == (["one", "two"], "merged")
    assert (origins["gone"].branches, origins["gone"].how, origins["gone"].change) == (
        ["one", "two"], "alike", "deleted",
    )  # fmt: skip
    assert (origins["random"].branches, origins["random"].how, origins["random"].change) == (["two"], "taken", "added")
    assert changes(client, box) == {}
    again = client.branch.merge([one, two, three]).sandbox.sandbox_id
    assert tree(client, again) == merged


def test_the_base_is_the_nearest_that_all_descend_from(client: Any, image: str, clean: None) -> None:
    [first] = branches(client, image, "first")
    sh(client, first, "echo first >first")
    second, third = [s.sandbox_id for s in client.branch.create(sandbox_id=first, count=2).sandboxes]
    sh(client, first, "rm first; echo on >on")  # it goes on beside those that were made of it
    sh(client, second, "echo second >>first")
    [deep] = [s.sandbox_id for s in client.branch.create(sandbox_id=third).sandboxes]
    edit(client, deep, 5, "DEEP")
    of_second = client.branch.list().branches
    fork = next(branch.base_id for branch in of_second if branch.sandbox_id == second)
    assert client.branch.merge([second, deep]).merge.base_id == fork
    # What the first deleted, the second edited: they have met since.
    met = client.branch.merge([first, second])
    assert (met.merge.base_id, [c.kind for c in met.conflicts]) == (fork, ["deleted"])
    [other] = branches(client, image, "other")
    assert client.branch.merge([other, deep]).merge.base_id == image


def test_a_restore_begins_a_new_era(client: Any, image: str, clean: None) -> None:
    """A state kept of a sandbox before a restore over its own files is an ancestor only as far as the snapshot is."""
    [first] = branches(client, image, "first")
    edit(client, first, 1, "1")
    [second] = [s.sandbox_id for s in client.branch.create(sandbox_id=first).sandboxes]
    edit(client, first, 1, "2")
    kept = client.snapshot.create(first).snapshot_id
    client.sandbox.restore(first, kept)
    edit(client, second, 20, "second")
    merged = client.branch.merge([first, second])
    assert merged.merge.base_id.startswith("frk_")
    assert sh(client, merged.sandbox.sandbox_id, "sed -n '1p;20p' text") == "2\nsecond\n"
    assert client.branch.list().branches[0].parents == []
    client.snapshot.delete(kept)


def test_lineages_of_any_depth(client: Any, image: str, clean: None) -> None:
    """Each merge doubles the ways back; each fork adds a generation."""
    one, two = branches(client, image, "one", "two")
    for number in range(14):
        sh(client, one, f"echo {number} >one-{number}")
        pair = [client.branch.merge([one, two]).sandbox.sandbox_id for _ in range(2)]
        for box in (one, two):
            client.branch.remove(box)
        one, two = pair
    assert client.branch.merge([one, two]).merge.status == "ready"
    assert {f"one-{number}" for number in range(14)} < paths(client, two)
    assert len(client.branch.blame(sandbox_id=two).paths) == 14


def test_a_branch_may_be_called_as_what_decisions_mean(client: Any, image: str, clean: None) -> None:
    every, base = branches(client, image, "all", "base")
    sh(client, every, "echo 1 >both")
    sh(client, base, "echo 2 >both")
    merge = client.branch.merge(["all", "base"]).merge
    assert merge.branches == {every: every, base: base}
    made = client.branch.resolve(merge.merge_id, decisions=[{"path": "both", "take": base}])
    assert sh(client, made.sandbox.sandbox_id, "cat both") == "2\n"


def test_a_merge_descends_from_its_branches_as_they_were(client: Any, image: str, clean: None) -> None:
    one, two = branches(client, image, "one", "two")
    edit(client, one, 4, "ONE")
    edit(client, two, 9, "TWO")
    both = client.branch.merge([one, two], name="both").sandbox.sandbox_id
    edit(client, one, 4, "ONE MORE")  # the merge has the line as it was before
    edit(client, both, 15, "BOTH")
    last = client.branch.merge(["both", "one"])
    assert last.merge.base_id.startswith("pnt_")
    expected = TEXT.replace("line 4\n", "ONE MORE\n").replace("line 9\n", "TWO\n").replace("line 15\n", "BOTH\n")
    assert sh(client, last.sandbox.sandbox_id, "cat text") == expected
    for name in ("one", "two", "both"):
        client.branch.remove(name)
    assert sh(client, last.sandbox.sandbox_id, "cat text") == expected


def test_merges_that_cannot_be(client: Any, image: str, source: Path, clean: None) -> None:
    one, two = branches(client, image, "one", "two")
    other = client.branch.create(
        image_id=client.image.create(str(source), clean=True).image_id
    ).sandboxes[0].sandbox_id  # fmt: skip
    refused("conflict", client.branch.merge, [one, other])
    refused("not_found", client.branch.merge, [one, "absent"])
    refused("invalid", client.branch.merge, [one, "one"])
    refused("invalid", client.branch.merge, [])
    refused("invalid", client.branch.merge, [one, two], policy="ours")
    refused("invalid", client.branch.merge, [one, two], ours="one")
    refused("invalid", client.branch.merge, [one, two], policy="ours", ours=other)
    refused("invalid", client.branch.merge, [one, two], takes={"x": other})
    refused("conflict", client.branch.merge, [one, two], name="one")
    client.branch.remove(two)
    refused("not_ready", client.branch.merge, [one, two])
    alone = client.branch.merge([one])
    assert (alone.merge.changed, tree(client, alone.sandbox.sandbox_id)) == (0, tree(client, one))


# -- conflicts ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def conflicted(client: Any, image: str, clean: None) -> Any:
    one, two = branches(client, image, "one", "two")
    edit(client, one, 3, "ONE")
    edit(client, two, 3, "TWO")
    sh(client, one, "echo edited >gone; printf '\\0one' >binary; rm -r dir; echo file >dir; echo fine >fine")
    sh(client, two, "rm gone; printf '\\0two' >binary; echo more >>dir/old")
    return client.branch.merge([one, two], name="merged")


def test_conflicts_are_data(client: Any, conflicted: Any) -> None:
    merge = conflicted.merge
    assert (merge.status, merge.conflicts, conflicted.sandbox) == ("conflicted", 4, None)
    told = {conflict.path: conflict for conflict in conflicted.conflicts}
    assert {path: conflict.kind for path, conflict in told.items()} == {
        "text": "content", "gone": "deleted", "binary": "added", "dir": "kind",
    }  # fmt: skip
    [hunk] = told["text"].hunks
    assert (hunk.start, hunk.base, hunk.versions) == (3, ["line 3\n"], {"one": ["ONE\n"], "two": ["TWO\n"]})
    sides = {side.branch: side for side in told["gone"].sides}
    assert (sides["two"].kind, sides["one"].size_bytes) == (None, 7)
    version = client.branch.read_version(merge.merge_id, sha256=sides["one"].sha256)
    assert (version.data, version.eof, version.size_bytes) == (b"edited\n", True, 7)
    refused("not_found", client.branch.read_version, merge.merge_id, sha256="0" * 64)
    page = client.branch.conflicts(merge.merge_id, limit=3)
    rest = client.branch.conflicts(merge.merge_id, after=page.next)
    assert [c.path for c in (*page.conflicts, *rest.conflicts)] == [c.path for c in conflicted.conflicts]
    assert [found.merge_id for found in client.branch.merges().merges] == [merge.merge_id]
    refused("in_use", client.image.remove, conflicted.merge.base_id)


def test_they_are_decided_path_by_path(client: Any, conflicted: Any, shared_daemon: Any) -> None:
    merge_id = conflicted.merge.merge_id
    for name in ("one", "two"):
        client.branch.remove(name)  # what is needed of them is kept
    refused("invalid", client.branch.resolve, merge_id, decisions=[{"path": "text"}])
    refused("invalid", client.branch.resolve, merge_id, decisions=[{"path": "text", "take": "one", "delete": True}])
    refused("invalid", client.branch.resolve, merge_id, decisions=[{"take": "one"}])
    refused("invalid", client.branch.resolve, merge_id, decisions=[{"path": "text", "take": "three"}])
    refused("not_found", client.branch.resolve, merge_id, decisions=[{"path": "fine", "take": "one"}])
    refused("not_found", client.branch.resolve, new_id("mrg"), decisions=[{"path": "fine", "take": "one"}])
    assert client.branch.merges().merges[0].conflicts == 4
    left = client.branch.resolve(merge_id, decisions=[{"path": "text", "data": b"decided\n"}])
    assert (left.merge.status, left.merge.conflicts, left.sandbox) == ("conflicted", 3, None)
    left = client.branch.resolve(
        merge_id, decisions=[{"path_bytes": b"binary", "take": "two"}, {"path": "gone", "take": "base"}]
    )
    assert [conflict.path for conflict in left.conflicts] == ["dir"]
    place = f"{shared_daemon.state_dir}/branches/{merge_id}"
    until(lambda: sum(name.startswith("document-") for name in os.listdir(place)) == 1)
    made = client.branch.resolve(merge_id, decisions=[{"path": "dir", "take": "one"}])
    assert (made.merge.status, made.merge.conflicts, made.sandbox.name) == ("ready", 0, "merged")
    assert sh(client, "merged", "cat text gone dir fine; od -c binary | head -1") == (
        "decided\ngone\nfile\nfine\n0000000  \\0   t   w   o\n"
    )
    origins = {path.path: path.how for path in client.branch.blame(merge_id=merge_id).paths}
    assert (origins["text"], origins["fine"]) == ("resolved", "taken")
    until(lambda: sorted(os.listdir(place)) == ["dropped", "provenance"])  # the answer does not wait for that
    refused("conflict", client.branch.resolve, merge_id, decisions=[{"path": "dir", "take": "one"}])
    refused("conflict", client.branch.abandon, merge_id)


def test_decisions_that_say_two_things_are_refused(client: Any, conflicted: Any) -> None:
    merge_id = conflicted.merge.merge_id
    for decisions in (
        [{"path": "text", "delete": True, "whole": True}],
        [{"path": "text", "take": "one", "whole": True, "line": 3}],
        [{"path": "text", "take": "one", "line": 3}, {"path": "text", "take": "two"}],
        [{"path": "text", "take": "one", "line": 3}, {"path": "text", "take": "two", "line": 3}],
        [{"path": "text", "take": "one", "line": 4}],
        [{"path": "dir", "take": "one", "line": 1}],
        [{"path": "text", "take": "x" * 200}],
    ):
        refused("invalid", client.branch.resolve, merge_id, decisions=decisions)
    assert client.branch.merges().merges[0].conflicts == 4


def test_what_is_dropped_is_answered_again(client: Any, conflicted: Any, shared_daemon: Any) -> None:
    merge_id = conflicted.merge.merge_id
    whole = [{"path": "text", "take": "one", "whole": True}]
    left = client.branch.resolve(merge_id, decisions=whole, command_id="whole-once")
    assert [(each.path, each.branch, each.hunks, each.lines) for each in left.dropped] == [("text", "two", 1, 2)]
    assert client.branch.resolve(merge_id, decisions=whole, command_id="whole-once").dropped == left.dropped
    others = [{"path": path, "take": "one"} for path in ("gone", "binary", "dir")]
    made = client.branch.resolve(merge_id, decisions=others, command_id="rest-once")
    assert [each.path for each in made.dropped] == ["text", "gone", "binary", "dir/old"]
    assert made.dropped_count == 4
    place = f"{shared_daemon.state_dir}/branches/{merge_id}"
    until(lambda: sorted(os.listdir(place)) == ["dropped", "provenance"])
    assert client.branch.resolve(merge_id, decisions=others, command_id="rest-once").dropped == made.dropped
    told = [each for each in client.event.list(type="branch.resolve_requested").events if each.stream == merge_id]
    assert [each.data["choices"] for each in told] == [{"one (whole)": 1}, {"one": 3}]


def test_a_merge_that_is_given_up(client: Any, conflicted: Any, shared_daemon: Any) -> None:
    merge_id = conflicted.merge.merge_id
    assert client.branch.abandon(merge_id).status == "removed"
    assert client.branch.abandon(merge_id).status == "removed"
    assert client.branch.merges().merges == []
    assert [merge.status for merge in client.branch.merges(all=True).merges if merge.merge_id == merge_id] == [
        "removed"
    ]
    assert not os.path.exists(f"{shared_daemon.state_dir}/branches/{merge_id}")
    refused("conflict", client.branch.resolve, merge_id, decisions=[{"path": "text", "take": "one"}])
    refused("invalid", client.branch.blame, merge_id=merge_id)


def test_policies(client: Any, image: str, clean: None) -> None:
    one, two, three = branches(client, image, "one", "two", "three")
    for box, word in ((one, "ONE"), (two, "TWO")):
        edit(client, box, 3, word)
    sh(client, two, "echo also >also")

    def text(**rules: Any) -> str:
        return sh(client, client.branch.merge([one, two, three], **rules).sandbox.sandbox_id, "sed -n 2,4p text; ls")

    rest = "also\ndir\ngone\ntext\n"
    assert text(policy="ours", ours="two") == f"line 2\nTWO\nline 4\n{rest}"
    assert text(policy="union") == "line 2\nONE\nTWO\nalso\ndir\ngone\ntext\n"
    assert text(takes={"text": "one"}) == f"line 2\nONE\nline 4\n{rest}"
    assert text(takes={"/": "three"}) == "line 2\nline 3\nline 4\ndir\ngone\ntext\n"
    marked = client.branch.merge([one, two], policy="markers").sandbox.sandbox_id
    assert (
        sh(client, marked, "sed -n 3,9p text") == "<<<<<<< one\nONE\n||||||| base\nline 3\n=======\nTWO\n>>>>>>> two\n"
    )
    assert client.branch.merge([one, two], policy="ours", ours="one").merge.conflicts == 0
    assert client.branch.merge([one, two, three], policy="ours", ours="three").merge.conflicts == 1


def test_ignored_names_are_no_branchs(client: Any, source: Path, clean: None) -> None:
    """Paths that the image was made without are neither compared nor merged, wherever they are."""
    made = client.branch.create(source=str(source), count=2, names=["one", "two"], ignore=["cache", ".git"])
    assert len(made.sandboxes) == 2
    for name in ("one", "two"):
        sh(
            client,
            name,
            f"mkdir -p cache dir/cache; echo {name} >cache/x; echo {name} >dir/cache/y; echo {name} >{name}",
        )
    assert changes(client, "one") == {"one": "added"}
    merged = client.branch.merge(["one", "two"])
    assert merged.merge.status == "ready"
    assert {"one", "two"} < paths(client, merged.sandbox.sandbox_id)
    assert not any("cache" in path for path in paths(client, merged.sandbox.sandbox_id))

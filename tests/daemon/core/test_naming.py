"""Names of objects as callers give them: decided from the state alone, so these tests are plain calls."""

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from tests.store.views.test_views import Log, running_sandbox
from tests.support.expect import refused

from sandkeep import events, ids
from sandkeep.errors import SandkeepError
from sandkeepd.core import naming


class Asker(NamedTuple):
    owner: str
    admin: bool = False


ADA, BOB, ROOT = Asker("uid:7"), Asker("uid:8"), Asker("uid:0", admin=True)


def image(log: Log, image_id: str, *, owner: str = "uid:7", source: str = "/src", **fields: Any) -> None:
    kind: Any = "directory" if source.startswith("/") else "reference"
    asked = events.ImageCreateRequested(owner=owner, provider="fake", kind=kind, source=source, **fields)
    log.add(image_id, asked)
    log.add(image_id, events.ImageCreated(digest="sha256:0", size_bytes=10, file_count=2))


def snapshot(log: Log, snapshot_id: str, name: str | None, *, owner: str = "uid:7") -> None:
    asked = events.SnapshotCreateRequested(owner=owner, kind="full", format="tar", name=name, places=[])
    log.add(snapshot_id, asked)
    stored = events.SnapshotStored(
        digest="sha256:0", format="tar", size_bytes=1, member_count=1, content_bytes=1, pause_ms=0.0, remarks={}
    )
    log.add(snapshot_id, stored)


def test_an_unambiguous_beginning_of_an_id() -> None:
    log = Log()
    image(log, "img_01aaa1")
    image(log, "img_01aab1")
    running_sandbox(log, "sbx_01aaa1")
    state = log.fold()
    assert naming.resolve(state, "image", "img_01aaa", "image_id", ADA) == "img_01aaa1"
    assert naming.resolve(state, "sandbox", "sbx_01aa", "sandbox_id", ADA) == "sbx_01aaa1"
    error = refused("invalid", naming.resolve, state, "image", "img_01aa", "image_id", ADA)
    assert error.data["candidates"] == ["img_01aaa1", "img_01aab1"]
    assert "give more of one of img_01aaa1, img_01aab1" in error.message
    for text in ("01aaa1", "img", "img01aaa", "sbx_02aa", "snp_0", ""):
        refused("not_found", naming.resolve, state, "sandbox", text, "sandbox_id", ADA)


def test_no_empty_variable_is_the_beginning_of_an_id() -> None:
    log = Log()
    running_sandbox(log, "sbx_01aaa1")
    image(log, "img_0")
    state = log.fold()
    for text in ("sbx_", "sbx_0", "sbx_01a"):
        error = refused("not_found", naming.resolve, state, "sandbox", text, "sandbox_id", ADA)
        assert f"there is no sandbox '{text}': the beginning of an id needs at least 4 characters" in error.message
    assert naming.resolve(state, "image", "img_0", "image_id", ADA) == "img_0"  # a whole one


def test_an_error_lists_three_candidates() -> None:
    log = Log()
    for number in range(9):
        image(log, f"img_01aa{number}")
    error = refused("invalid", naming.resolve, log.fold(), "image", "img_01aa", "image_id", ADA)
    assert error.data["candidates"] == ["img_01aa0", "img_01aa1", "img_01aa2"]
    assert error.message.endswith("img_01aa2 and more")


def test_others_objects_are_neither_found_nor_candidates() -> None:
    log = Log()
    image(log, "img_01aaa1", owner="uid:7", source="python:3.12")
    image(log, "img_01aab1", owner="uid:8")
    log.add("img_01aaa1", events.ImageTagged(name="py"))
    snapshot(log, "snp_01aaa1", "before")
    state = log.fold()
    assert naming.resolve(state, "image", "img_01aa", "image_id", BOB) == "img_01aab1"
    for kind, text in (("image", "img_01aaa"), ("image", "py"), ("image", "python:3.12"), ("snapshot", "before")):
        error = refused("not_found", naming.resolve, state, kind, text, "image_id", BOB)
        assert "01aaa1" not in error.message.replace(text, "")
    # An administrator sees all ids; names are those of the caller alone.
    assert naming.resolve(state, "image", "img_01aaa", "image_id", ROOT) == "img_01aaa1"
    assert refused("invalid", naming.resolve, state, "image", "img_01aa", "image_id", ROOT).data["candidates"]
    refused("not_found", naming.resolve, state, "image", "py", "image_id", ROOT)


def test_a_name_of_an_image_moves() -> None:
    log = Log()
    image(log, "img_01aaa1")
    image(log, "img_01aab1")
    log.add("img_01aaa1", events.ImageTagged(name="py:3.12"))
    log.add("img_01aaa1", events.ImageTagged(name="py"))
    state = log.fold()
    assert state.images["img_01aaa1"].view().names == ["py:3.12", "py"]
    assert naming.resolve(state, "image", "py:latest", "image_id", ADA) == "img_01aaa1"
    log.add("img_01aab1", events.ImageTagged(name="py"))
    log.add("img_01aaa1", events.ImageUntagged(name="py"))
    state = log.fold()
    assert naming.resolve(state, "image", "py", "image_id", ADA) == "img_01aab1"
    assert naming.resolve(state, "image", "py:3.12", "image_id", ADA) == "img_01aaa1"
    assert (state.images["img_01aaa1"].names, state.images["img_01aab1"].names) == (["py:3.12"], ["py"])


def test_an_image_by_the_reference_that_it_was_made_from() -> None:
    log = Log()
    image(log, "img_01aaa1", source="python:3.12")
    image(log, "img_01aab1", source="docker.io/library/python:3.12")
    image(log, "img_01aac1", source="python")
    log.add("img_01aaa1", events.ImageTagged(name="python:3.11"))
    state = log.fold()
    assert naming.resolve(state, "image", "python:3.12", "image_id", ADA) == "img_01aab1"  # the newest
    assert naming.resolve(state, "image", "python:latest", "image_id", ADA) == "img_01aac1"
    assert naming.resolve(state, "image", "python:3.11", "image_id", ADA) == "img_01aaa1"  # a name comes first
    log.add("img_01aab1", events.ImageRemoveRequested())
    assert naming.resolve(log.fold(), "image", "python:3.12", "image_id", ADA) == "img_01aaa1"


def test_a_snapshot_by_its_name() -> None:
    log = Log()
    snapshot(log, "snp_01aaa1", "before")
    state = log.fold()
    assert naming.resolve(state, "snapshot", "before", "snapshot_id", ADA) == "snp_01aaa1"
    snapshot(log, "snp_01aab1", "before")
    error = refused("invalid", naming.resolve, log.fold(), "snapshot", "before", "snapshot_id", ADA)
    assert error.data["candidates"] == ["snp_01aab1", "snp_01aaa1"]  # the newest first
    log.add("snp_01aab1", events.SnapshotDeleteRequested())
    log.add("snp_01aab1", events.SnapshotDeleted())
    assert naming.resolve(log.fold(), "snapshot", "before", "snapshot_id", ADA) == "snp_01aaa1"
    log.add("snp_01aaa1", events.SnapshotDeleteRequested())
    log.add("snp_01aaa1", events.SnapshotDeleted())
    assert naming.resolve(log.fold(), "snapshot", "before", "snapshot_id", ADA) == "snp_01aab1"  # a repeated deletion


def test_removed_objects_are_no_candidates_and_leave_the_index() -> None:
    log = Log()
    for number in range(3000):
        image(log, f"img_0000{number:05}")
    state = log.fold()
    refused("invalid", naming.resolve, state, "image", "img_0000", "image_id", ADA)
    for number in range(2999):
        state.images.pop(f"img_0000{number:05}")
    assert naming.resolve(state, "image", "img_0000", "image_id", ADA) == "img_000002999"
    state.images["img_000000000"] = state.images["img_000002999"]
    refused("invalid", naming.resolve, state, "image", "img_0000", "image_id", ADA)


def test_a_search_among_a_hundred_thousand_sandboxes_looks_at_few() -> None:
    log = Log()
    running_sandbox(log, "sbx_zzzz1")
    state = log.fold()
    one = state.sandboxes["sbx_zzzz1"]
    for _ in range(100_000):
        state.sandboxes[ids.new_id(ids.SANDBOX)] = one
    naming.resolve(state, "sandbox", "sbx_zzzz", "sandbox_id", ADA)  # indexes them
    state.sandboxes[ids.new_id(ids.SANDBOX)] = one
    for text in ("sbx_zzzz", "sbx_0000"):
        looked_at = calls_of(lambda text=text: naming.find(state, "sandbox", text, "sandbox_id", ADA))
        assert looked_at < 500, text


def calls_of(work: Callable[[], object]) -> int:
    """The number of calls and lines that some work takes."""
    count = 0

    def trace(*_: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    sys.settrace(trace)
    try:
        with suppress(SandkeepError):
            work()
    finally:
        sys.settrace(None)
    return count

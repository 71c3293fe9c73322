"""Sessions of local sandboxes, with a real daemon: pinned, brought back, ended, and used wherever a sandbox can be."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import refused, until
from tests.support.snapshots import sh

pytestmark = pytest.mark.needs("bwrap")


def test_a_pinned_session_is_found_again(client: Any, image: str) -> None:
    first = client.session.ensure(id="pinned", image=image, labels={"a": "b"})
    assert (first.created, first.session.status, first.session.session_id) == (True, "ready", "pinned")
    second = client.session.ensure(id="pinned")
    assert (second.created, second.session.sandbox_id) == (False, first.session.sandbox_id)
    box = client.sandbox.get("pinned")
    assert (box.sandbox_id, box.name, box.spec.session_id) == (first.session.sandbox_id, "pinned", "pinned")
    assert first.session.ref == f"local://{box.sandbox_id}"
    assert sh(client, "pinned", "echo here") == "here\n"


def test_a_session_without_an_id_gets_one(client: Any, image: str) -> None:
    made = client.session.ensure(image=image).session
    assert len(made.session_id) == 36
    assert client.session.get(made.session_id).sandbox_id == made.sandbox_id


def test_closing_keeps_the_files_and_use_brings_them_back(client: Any, image: str) -> None:
    first = client.session.ensure(id="kept", image=image).session
    sh(client, "kept", "echo mine >file")
    closed = client.session.close("kept")
    assert (closed.status, closed.terminated_reason) == ("terminated", "stop")
    [snapshot] = closed.snapshot_ids
    assert client.snapshot.get(snapshot).name == "auto-stop"
    assert client.session.close("kept").status == "terminated"
    assert sh(client, "kept", "cat file") == "mine\n"
    again = client.session.get("kept")
    assert (again.status, again.restored_from, again.starts) == ("ready", snapshot, 2)
    assert again.sandbox_id != first.sandbox_id
    types = [event.type for event in client.session.history("kept").events]
    assert types == [
        "session.start_requested", "session.started", "session.stop_requested", "session.stopped",
        "session.start_requested", "session.started",
    ]  # fmt: skip


def test_concurrent_calls_have_one_winner(shared_daemon: Any, image: str) -> None:
    def ensure(_: int) -> Any:
        with shared_daemon.connect() as client:
            return client.session.ensure(id="crowded", image=image)

    with ThreadPoolExecutor(200) as pool:
        made = list(pool.map(ensure, range(200)))
    assert [one.created for one in made].count(True) == 1
    assert len({one.session.sandbox_id for one in made}) == 1


def test_a_session_whose_sandbox_was_ended_is_brought_back(client: Any, image: str) -> None:
    client.session.ensure(id="ended", image=image)
    client.sandbox.terminate("ended")
    assert client.session.get("ended").status == "terminated"
    again = client.session.ensure(id="ended")
    assert (again.created, again.session.status) == (True, "ready")


def test_fresh_gives_the_files_of_the_image(client: Any, image: str) -> None:
    client.session.ensure(id="fresh", image=image)
    sh(client, "fresh", "echo mine >file")
    client.session.close("fresh")
    assert client.session.ensure(id="fresh", fresh=True).restored_from is None
    assert client.sandbox.exec("fresh", "test -e file").exit_code != 0


def test_a_snapshot_on_request_is_the_one_that_a_revival_begins_with(client: Any, image: str) -> None:
    client.session.ensure(id="asked", image=image)
    sh(client, "asked", "echo 1 >file")
    snapshot = client.snapshot.create("asked").snapshot_id
    assert client.session.get("asked").latest_snapshot_id == snapshot
    sh(client, "asked", "echo 2 >file")
    client.session.close("asked", snapshot=False)
    assert sh(client, "asked", "cat file") == "1\n"


def test_a_snapshot_of_a_part_brings_nothing_back(client: Any, image: str) -> None:
    client.session.ensure(id="part", image=image)
    sh(client, "part", "echo 1 >file; echo 2 >other")
    client.snapshot.create("part")
    client.snapshot.create("part", include=["other"])
    client.session.close("part", snapshot=False)
    assert sh(client, "part", "cat file other") == "1\n2\n"


def test_snapshots_of_files_that_were_given_up_bring_nothing_back(client: Any, image: str) -> None:
    client.session.ensure(id="given", image=image)
    sh(client, "given", "echo mine >file")
    first = client.session.close("given").latest_snapshot_id
    client.session.ensure(id="given", fresh=True)
    client.session.close("given", snapshot=False)
    assert client.session.ensure(id="given").restored_from is None
    sh(client, "given", "echo newer >file")
    newest = client.session.close("given").latest_snapshot_id
    client.session.ensure(id="given", restore_snapshot_id=first)
    client.session.close("given", snapshot=False)
    assert client.session.ensure(id="given").restored_from == first
    client.snapshot.delete(first)
    client.session.close("given", snapshot=False)
    assert client.session.ensure(id="given").restored_from == newest


def test_limits_of_time_end_it_with_a_snapshot(client: Any, image: str) -> None:
    client.session.ensure(id="idle", image=image, idle_timeout_s=1.0, max_lifetime_s=600.0)
    sh(client, "idle", "echo mine >file")
    until(lambda: client.session.get("idle").status == "expired")
    session = client.session.get("idle")
    assert session.terminated_reason == "idle_timeout"
    assert client.snapshot.get(session.latest_snapshot_id).name == "auto-idle_timeout"
    assert sh(client, "idle", "cat file") == "mine\n"


def test_bad_input_leaves_nothing_behind(client: Any, image: str) -> None:
    assert "image" in refused("invalid", client.session.ensure, id="bad").message
    assert "path" in refused("invalid", client.session.ensure, id="bad", image="/etc").message
    refused("not_found", client.session.ensure, id="bad", image="img_nothing")
    assert (
        "exceed"
        in refused(
            "invalid", client.session.ensure, id="bad", image=image, idle_timeout_s=700, max_lifetime_s=600
        ).message
    )
    refused("provider_unavailable", client.session.ensure, id="bad", image=image, mode="k8s")
    refused("not_found", client.session.get, "bad")


def test_another_sandbox_of_that_name_is_a_conflict(client: Any, image: str) -> None:
    client.sandbox.create(image, name="named")
    assert "no session" in refused("conflict", client.session.ensure, id="named", image=image).message


def test_addresses_of_artifacts_are_encoded(client: Any, image: str) -> None:
    base = "https://files.example/base/"
    refused("invalid", client.session.ensure, id="export", image=image, artifact_base_url=f"{base}\r\nX: y")
    client.session.ensure(id="export", image=image, artifact_base_url=base)
    for path in ("a b\r\nX: y", "d/../a b\r\nX: y", "../workspace/a b\r\nX: y"):
        client.sandbox.write_file("export", path="d/x", data=b"", parents=True)
        client.sandbox.write_file("export", path=path, data=b"x")
        below = "workspace/" if path.startswith("..") else ""
        assert client.artifact.export("export", path).download_url == f"{base}{below}a%20b%0D%0AX%3A%20y"


def test_a_session_outlives_its_image(client: Any, tmp_path: Path) -> None:
    (tmp_path / "unlike").write_text("others")
    image = client.image.create(str(tmp_path)).image_id
    client.session.ensure(id="imageless", image=image)
    sh(client, "imageless", "echo mine >file")
    client.session.close("imageless")
    client.image.remove(image)
    assert sh(client, "imageless", "cat file") == "mine\n"
    assert client.session.close("imageless").spec.image == image
    refused("not_ready", client.session.ensure, id="imageless", fresh=True)
    assert sh(client, "imageless", "cat file") == "mine\n"


def test_a_sandbox_that_got_the_name_meanwhile_is_used_by_it(client: Any, image: str) -> None:
    client.session.ensure(id="taken", image=image)
    sh(client, "taken", "echo session >file")
    client.session.close("taken")
    client.sandbox.create(image, name="taken")
    sh(client, "taken", "echo sandbox >file")
    refused("conflict", client.session.ensure, id="taken")
    assert sh(client, "taken", "cat file") == "sandbox\n"
    client.sandbox.terminate("taken")
    assert sh(client, "taken", "cat file") == "session\n"

"""Objects by the names that they were given and by how their ids begin, as they are typed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.printed import one

pytestmark = pytest.mark.needs("bwrap")


def refusal(done: subprocess.CompletedProcess[bytes]) -> str:
    assert done.returncode == 1, done.stdout.decode()
    return done.stderr.decode()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "hello").write_text("hello\n")
    return tmp_path


def test_a_name_is_free_again_after_rm(shared_daemon: Any, image: str) -> None:
    cli = shared_daemon.cli
    first = one(cli("create", image, "--name", "web"))
    assert "choose another name" in refusal(cli("create", image, "--name", "web"))
    assert one(cli("rm", "web")) == first
    second = one(cli("create", image, "--name", "web"))
    assert one(cli("exec", "web", "--", "echo", "here")) == "here"
    assert json.loads(one(cli("get", "web", "--json")))["sandbox_id"] == second
    assert one(cli("rm", "web")) == second


def test_rm_of_one_of_several_names_of_an_image_leaves_the_image(shared_daemon: Any, project: Path) -> None:
    cli = shared_daemon.cli
    made = one(cli("image", "create", "--name", "mine:1", str(project)))
    assert one(cli("image", "create", "--name", "other", str(project))) == made  # the content is the same
    done = cli("image", "rm", "other")
    assert one(done) == made
    assert f"removed the name other only: {made} stays as mine:1" in done.stderr.decode()
    assert json.loads(one(cli("image", "get", "mine:1", "--json")))["status"] == "ready"
    assert one(cli("image", "tag", made, "other")) == made
    assert cli("image", "rm", "other:latest", "mine:1").stdout.decode().split() == [made, made]
    assert "is removed, not ready: make it again" in refusal(cli("create", "mine:1"))
    box = one(cli("create", one(cli("image", "create", "--name", "in-use", str(project)))))
    assert "terminate it first" in refusal(cli("image", "rm", "in-use"))
    assert one(cli("rm", box)) == box
    assert one(cli("image", "rm", "in-use")).startswith("img_")


def test_an_image_by_its_name_and_tag(shared_daemon: Any, project: Path) -> None:
    cli = shared_daemon.cli
    first = one(cli("image", "create", "--name", "py:3.12", str(project)))
    box = one(cli("create", "py:3.12"))
    assert json.loads(one(cli("get", box, "--json")))["image_id"] == first
    assert one(cli("image", "tag", "py:3.12", "team/py")) == first
    assert json.loads(one(cli("image", "get", "team/py:latest", "--json")))["names"] == ["py:3.12", "team/py"]
    listed = cli("image", "ls").stdout.decode()
    assert "NAME" in listed
    # The name goes to what is made anew, and to the older one if that is the same.
    (project / "hello").write_text("changed\n")
    second = one(cli("image", "create", "--name", "py:3.12", str(project)))
    assert second != first
    assert json.loads(one(cli("image", "get", first, "--json")))["names"] == ["team/py"]
    (project / "hello").write_text("hello\n")
    assert one(cli("image", "create", "--name", "py:3.12", str(project))) == first
    assert json.loads(one(cli("image", "get", second, "--json")))["names"] == []
    assert one(cli("image", "untag", "py:3.12")) == first
    assert json.loads(one(cli("image", "get", first, "--json")))["names"] == ["team/py"]
    assert "there is no image 'py:3.12'" in refusal(cli("image", "untag", "py:3.12"))
    refused = refusal(cli("image", "untag", first))
    assert "is not called" in refused
    assert "did you mean" not in refused  # the image is there
    one(cli("rm", box))
    assert one(cli("image", "rm", first)) == first
    assert "is removed" in refusal(cli("create", "team/py"))
    one(cli("image", "rm", second))


def test_names_outlive_the_daemon(new_daemon: Any, project: Path) -> None:
    daemon = new_daemon()
    daemon.start()
    image = one(daemon.cli("image", "create", "--name", "py", str(project)))
    box = one(daemon.cli("create", "py"))
    snapshot = one(daemon.cli("snapshot", "create", box, "--name", "before"))
    daemon.stop()
    daemon.start()
    assert json.loads(one(daemon.cli("image", "get", "py", "--json")))["image_id"] == image
    assert json.loads(one(daemon.cli("snapshot", "get", "before", "--json")))["snapshot_id"] == snapshot
    assert json.loads(one(daemon.cli("snapshot", "get", snapshot[:-1], "--json")))["snapshot_id"] == snapshot


def test_a_name_that_looks_like_an_id_is_refused(shared_daemon: Any, project: Path) -> None:
    message = refusal(shared_daemon.cli("image", "create", "--name", "img_1", str(project)))
    assert "a name may not look like an id" in message
    message = refusal(shared_daemon.cli("image", "create", "--name", "a b", str(project)))
    assert "name" in message


def test_a_snapshot_by_its_name(shared_daemon: Any, image: str) -> None:
    cli = shared_daemon.cli
    box = one(cli("create", image))
    one(cli("exec", box, "--", "sh", "-c", "echo kept >note; echo done"))
    first = one(cli("snapshot", "create", box, "--name", "before"))
    restored = one(cli("snapshot", "restore", "before"))
    assert one(cli("exec", restored, "--", "cat", "note")) == "kept"
    image = one(cli("snapshot", "promote", "before", "--name", "noted:1"))
    assert json.loads(one(cli("image", "get", "noted:1", "--json")))["image_id"] == image
    assert one(cli("image", "rm", "noted:1")) == image
    assert "a name may not look like an id" in refusal(cli("snapshot", "promote", "before", "--name", "img_1"))
    second = one(cli("snapshot", "create", box, "--name", "before"))
    message = refusal(cli("snapshot", "restore", "before"))
    assert "ambiguous" in message
    assert "give the id of one of" in message
    assert first in message
    assert second in message
    assert one(cli("snapshot", "rm", second)) == second
    assert one(cli("snapshot", "rm", "before")) == first
    one(cli("rm", box))
    one(cli("rm", restored))


def test_ids_by_how_they_begin(shared_daemon: Any, image: str) -> None:
    cli = shared_daemon.cli
    boxes = [one(cli("create", image)), one(cli("create", image))]
    same = next(n for n in range(len(boxes[0])) if boxes[0][n] != boxes[1][n])
    assert one(cli("exec", boxes[1][: same + 1], "--", "echo", "here")) == "here"
    assert "ambiguous" in refusal(cli("rm", boxes[1][:same]))
    with shared_daemon.connect() as client:
        process = client.process.launch(boxes[0], ["sleep", "600"])
        found = client.process.signal(boxes[0], process.process_id[:-2], "KILL")
        assert found.process_id == process.process_id
    assert one(cli("rm", boxes[1][: same + 1])) == boxes[1]
    assert one(cli("rm", boxes[0])) == boxes[0]


def test_no_command_takes_the_beginning_of_all_ids(shared_daemon: Any, image: str) -> None:
    cli = shared_daemon.cli
    box = one(cli("create", image))
    with shared_daemon.connect() as client:
        client.process.launch(box, ["sleep", "600"])
    for line in ("rm sbx_", "get sbx_0", "image get img_", f"kill {box} prc_"):
        message = refusal(cli(*line.split()))
        assert "needs at least 4 characters after" in message, line
        assert "maybe a variable is empty" in message, line
    assert one(cli("rm", box)) == box

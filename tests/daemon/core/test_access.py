"""Who may do what: a second user against a real root daemon. Each refusal comes before any effect."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.users import NOBODY, as_user

from sandkeep.blocking import connect
from sandkeep.errors import SandkeepError

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("bwrap")]

OTHER = 40_001


@pytest.fixture(scope="module")
def source(places: str) -> str:
    """A directory that every user can read."""
    folder = Path(tempfile.mkdtemp(dir=places))
    folder.chmod(0o755)
    (folder / "hello").write_text("hello\n")
    (folder / "hello").chmod(0o644)
    return str(folder)


def calls(socket: str, uid: int, work: Callable[[Any], Any]) -> Any:
    """What `work` answers with a client of that user's; an error as its code."""

    def body() -> Any:
        with connect(socket) as client:
            try:
                return work(client)
            except SandkeepError as error:
                return error.code

    return as_user(uid, body)


def head(daemon: Any) -> int:
    with daemon.connect() as client:
        return int(client.daemon.status().position)


@pytest.fixture(scope="module")
def theirs(shared_daemon: Any, source: str) -> tuple[str, str]:
    """An image and a sandbox of another user's."""

    def make(client: Any) -> tuple[str, str]:
        image = client.image.create(source)
        return image.image_id, client.sandbox.create(image.image_id).sandbox_id

    image_id, sandbox_id = calls(shared_daemon.socket, OTHER, make)
    return image_id, sandbox_id


def test_a_user_has_images_and_sandboxes_of_their_own(shared_daemon: Any, theirs: tuple[str, str]) -> None:
    image_id, sandbox_id = theirs
    view = calls(shared_daemon.socket, OTHER, lambda client: client.sandbox.get(sandbox_id))
    assert view.owner == f"uid:{OTHER}"
    assert (
        calls(shared_daemon.socket, OTHER, lambda client: client.sandbox.exec(sandbox_id, ["cat", "hello"])).stdout
        == b"hello\n"
    )
    assert [
        s.sandbox_id for s in calls(shared_daemon.socket, OTHER, lambda client: client.sandbox.list().sandboxes)
    ] == [sandbox_id]
    assert [i.image_id for i in calls(shared_daemon.socket, OTHER, lambda client: client.image.list().images)] == [
        image_id
    ]


def test_another_owners_things_are_not_found_and_not_listed(shared_daemon: Any, theirs: tuple[str, str]) -> None:
    image_id, sandbox_id = theirs
    before = head(shared_daemon)
    attempts: dict[str, Callable[[Any], Any]] = {
        "get": lambda c: c.sandbox.get(sandbox_id),
        "exec": lambda c: c.sandbox.exec(sandbox_id, ["true"]),
        "terminate": lambda c: c.sandbox.terminate(sandbox_id),
        "history": lambda c: c.sandbox.history(sandbox_id),
        "as it was": lambda c: c.event.state_at(sandbox_id, before),
        "back in time": lambda c: c.sandbox.restore_at(sandbox_id, before),
        "launch": lambda c: c.process.launch(sandbox_id, ["true"]),
        "process list": lambda c: c.process.list(sandbox_id),
        "process read": lambda c: c.process.read(sandbox_id, "x"),
        "events": lambda c: c.event.list(sandbox_id=sandbox_id),
        "image": lambda c: c.image.get(image_id),
        "image remove": lambda c: c.image.remove(image_id),
        "create from it": lambda c: c.sandbox.create(image_id),
    }
    for name, attempt in attempts.items():
        assert calls(shared_daemon.socket, NOBODY, attempt) == "not_found", name
    assert calls(shared_daemon.socket, NOBODY, lambda c: c.sandbox.list(all=True).sandboxes) == []
    assert calls(shared_daemon.socket, NOBODY, lambda c: c.image.list(all=True).images) == []
    assert calls(shared_daemon.socket, NOBODY, lambda c: c.process.list(all=True).processes) == []
    assert calls(shared_daemon.socket, NOBODY, lambda c: c.event.list().events) == []
    assert head(shared_daemon) == before
    assert calls(shared_daemon.socket, OTHER, lambda c: c.sandbox.get(sandbox_id)).status == "running"


def test_a_directory_that_the_caller_cannot_read_is_refused(shared_daemon: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("hunter2")
    secret.chmod(0o700)
    assert calls(shared_daemon.socket, NOBODY, lambda c: c.image.create(str(secret))) == "permission_denied"
    assert calls(shared_daemon.socket, NOBODY, lambda c: c.image.create("/root")) == "permission_denied"
    images = f"{shared_daemon.state_dir}/images"
    with shared_daemon.connect() as client:
        known = {image.image_id for image in client.image.list().images}
    assert set(os.listdir(images)) <= known


@pytest.mark.parametrize(
    "attempt",
    [
        lambda c: c.daemon.shutdown(),
        lambda c: c.store.verify(),
        lambda c: c.store.rebuild(),
    ],
    ids=["shutdown", "verify", "rebuild"],
)
def test_administrators_only(shared_daemon: Any, attempt: Callable[[Any], Any]) -> None:
    before = head(shared_daemon)
    assert calls(shared_daemon.socket, NOBODY, attempt) == "permission_denied"
    assert head(shared_daemon) == before


@pytest.mark.parametrize("field", [{"isolation": "none"}, {"network": "host"}], ids=["isolation", "network"])
def test_values_for_administrators_only(shared_daemon: Any, theirs: tuple[str, str], field: dict[str, str]) -> None:
    before = head(shared_daemon)
    assert calls(shared_daemon.socket, OTHER, lambda c: c.sandbox.create(theirs[0], **field)) == "permission_denied"
    assert head(shared_daemon) == before


def test_a_member_of_the_admin_group_is_one(new_daemon: Any) -> None:
    daemon = new_daemon()
    daemon.start(SANDKEEP_ADMIN_GROUP="nogroup")

    def ask(client: Any) -> bool:
        return bool(client.daemon.status().admin)

    assert calls(daemon.socket, NOBODY, ask) is True
    assert calls(daemon.socket, OTHER, ask) is False


def test_a_socket_group_keeps_others_out(new_daemon: Any) -> None:
    daemon = new_daemon()
    daemon.start(SANDKEEP_SOCKET_GROUP="nogroup")

    def reach() -> str:
        try:
            with connect(daemon.socket) as client:
                client.daemon.ping()
        except SandkeepError as error:
            return error.code
        return "reached"

    assert as_user(NOBODY, reach) == "reached"
    assert as_user(OTHER, reach) == "permission_denied"


def test_a_command_id_is_its_owners_own(shared_daemon: Any, theirs: tuple[str, str], source: str) -> None:
    """What another owner called by the same id neither answers a command nor has it done twice."""
    with shared_daemon.connect() as client:
        image_id = client.image.create(source).image_id
        first = client.sandbox.create(image_id, command_id="mk").sandbox_id
    made = {
        calls(shared_daemon.socket, OTHER, lambda c: c.sandbox.create(theirs[0], command_id="mk").sandbox_id)
        for _ in range(3)
    }
    assert len(made) == 1
    assert first not in made

"""Descriptors that the daemon hands out, of files that the code inside owns: another user reads, and no more.

The code inside is the owner of its journals, and can give them any mode. Whoever gets a descriptor of one can open it
anew, or run it, through ``/proc/self/fd``: with the rights of the owner, who may be root.
"""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.conftest import KUBERNETES
from tests.conftest import RunningDaemon, daemon_in
from tests.support.boxes import Box
from tests.support.expect import until
from tests.support.kubernetes.images import TOOLS
from tests.support.patience import patient
from tests.support.users import NOBODY, as_user, command_as

from sandkeep.clients import descriptors  # noqa: F401  # as who uses it has no way to the checkout
from sandkeep.errors import SandkeepError, SetupError
from sandkeep.ids import new_id
from sandkeepd.providers.common.inside import INSIDE
from sandkeepd.providers.kubernetes.manifests import DIRECTORY

pytestmark = pytest.mark.needs("root")

STRANGER = 43_210
PROGRAM = "/usr/bin/id"

KINDS = [
    pytest.param("local", marks=pytest.mark.needs("bwrap")),
    pytest.param("docker", marks=pytest.mark.needs("docker")),
    pytest.param("gvisor", marks=pytest.mark.needs("runsc")),
    KUBERNETES,
]


def journals(box: Box) -> str:
    """The directory of the journals inside."""
    return f"{DIRECTORY if box.provider == 'kubernetes' else INSIDE}/out/p"


class House:
    """A daemon, and sandboxes of a stranger's. Their code is root where it can be."""

    def __init__(self, daemon: RunningDaemon, provider: str, source: str) -> None:
        self.daemon = daemon
        self.client = daemon.connect()
        self.provider = provider
        if provider == "docker":  # nobody else may use an image that an administrator brought
            self.client.image.publish(source)
        self.image = as_user(STRANGER, lambda: self._call("image.create", source, provider=provider).image_id)

    def _call(self, method: str, *given: Any, **fields: Any) -> Any:
        with self.daemon.connect() as client:
            subject, _, verb = method.partition(".")
            return getattr(getattr(client, subject), verb)(*given, **fields)

    def create(self) -> Box:
        """Another sandbox."""
        user = {"user": "0"} if self.provider == "gvisor" else {}
        made = as_user(STRANGER, lambda: str(self._call("sandbox.create", self.image, **user).sandbox_id))
        box = Box(self.daemon, self.client, made)
        box.provider = self.provider
        return box


@pytest.fixture(scope="module", params=KINDS)
def house(request: pytest.FixtureRequest, places: str) -> Iterator[House]:
    with daemon_in(places) as daemon:
        source = f"{daemon.root}/source"
        os.mkdir(source, 0o755)
        if request.param == "docker":
            engine = request.getfixturevalue("dockerd")
            daemon.env["DOCKER_HOST"], source = engine.host, engine.tools()
        elif request.param == "kubernetes":
            daemon.env["KUBECONFIG"], source = request.getfixturevalue("namespace"), TOOLS
        daemon.start()
        made = House(daemon, request.param, source)
        yield made
        if request.param == "kubernetes":  # the cluster outlives the module
            for sandbox in made.client.sandbox.list().sandboxes:
                made.client.sandbox.terminate(sandbox.sandbox_id)
        made.client.close()


@pytest.fixture(scope="module")
def box(house: House) -> Box:
    return house.create()


def _planted(box: Box, mode: str) -> str:
    """A process whose journal is a program of that mode; its id."""
    started = box.client.process.launch(box.id, ["cat", PROGRAM])
    process_id = str(started.process_id)
    box.client.process.wait(box.id, process_id, timeout_s=patient(30))  # what somebody writes to is not run
    journal = f"{journals(box)}/{process_id}.stdout"
    box.sh(f"chmod {mode} {journal}; chmod 777 {journals(box)}")
    found = Path(box.daemon.state_dir, "sandboxes", box.id, "out", "p", f"{process_id}.stdout").stat()
    has_copy = box.provider == "kubernetes"  # of the pod's, whose mode is the daemon's own
    assert found.st_mode & 0o7777 == (0o600 if has_copy else int(mode, 8))  # else nothing was tried
    return process_id


def _try(attempt: Callable[..., Any], *given: Any) -> Any:
    """What came of it, or the number of the error."""
    try:
        return attempt(*given)
    except OSError as error:
        return error.errno


def _with_journal(box: Box, process_id: str, attempt: Callable[[int], Any]) -> Any:
    """What comes of something that a stranger does with the descriptor that he is handed."""

    def work() -> Any:
        with (
            box.daemon.connect() as client,
            client.with_descriptors("process.open_output", box.id, process_id) as handed,
        ):
            given = handed.receive()
            handed.answer()
            assert os.read(given[0], 4) == b"\x7fELF"  # it can be read, whatever its mode
            return _try(attempt, given[0])

    return as_user(STRANGER, work)


def _refusals(box: Box) -> tuple[int, ...]:
    """Return the errors with which a change is refused. A pod's copy is nobody's but the daemon's, also by its mode."""
    return (errno.EROFS, errno.EACCES) if box.provider == "kubernetes" else (errno.EROFS,)


def _run(fd: int) -> bytes:
    return subprocess.run([f"/proc/self/fd/{fd}", "-u"], pass_fds=[fd], capture_output=True, check=False).stdout


@pytest.mark.parametrize("mode", ["6755", "6777", "0777"])
def test_nobody_runs_what_the_code_inside_wrote(box: Box, mode: str) -> None:
    assert _with_journal(box, _planted(box, mode), _run) == errno.EACCES


CHANGES: dict[str, Callable[[int], Any]] = {
    "write": lambda fd: os.open(f"/proc/self/fd/{fd}", os.O_WRONLY),
    "read and write": lambda fd: os.open(f"/proc/self/fd/{fd}", os.O_RDWR),
    "cut": lambda fd: os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_TRUNC),
    "truncate": lambda fd: os.truncate(f"/proc/self/fd/{fd}", 0),
    "touch": lambda fd: os.utime(fd),
    "attribute": lambda fd: os.setxattr(fd, "user.mine", b"x"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("mode", ["6777", "0666"])
def test_nobody_changes_it(box: Box, mode: str, change: str) -> None:
    assert _with_journal(box, _planted(box, mode), CHANGES[change]) in _refusals(box)


def _link(fd: int, target: str) -> None:
    opened = os.open("/proc/self/fd", os.O_PATH)  # with a directory Python calls linkat(2), which follows
    os.link(str(fd), target, src_dir_fd=opened, follow_symlinks=True)


def test_nobody_keeps_it_under_a_name_of_his_own(box: Box) -> None:
    place = Path(box.daemon.root, "public")
    with suppress(FileExistsError):
        place.mkdir()
    place.chmod(0o777)  # in the same file system
    process_id = _planted(box, "0666")
    link = f"{place}/{process_id}"
    assert _with_journal(box, process_id, lambda fd: _link(fd, link)) == errno.EXDEV


def test_who_is_root_changes_nothing_by_mistake(box: Box) -> None:
    """Nor does whoever has the uid that the file belongs to."""
    process_id = _planted(box, "6777")
    owner = Path(box.daemon.state_dir, "sandboxes", box.id, "out", "p", f"{process_id}.stdout").stat().st_uid
    with box.client.with_descriptors("process.open_output", box.id, process_id) as handed:
        out, err = handed.receive()
        handed.answer()
    try:
        for uid in {0, owner}:
            for change in (*CHANGES.values(), lambda fd: os.fchmod(fd, 0o755), lambda fd: os.fchown(fd, 0, 0)):
                assert as_user(uid, lambda: _try(change, out)) == errno.EROFS  # noqa: B023
        with pytest.raises(PermissionError):
            _run(out)
    finally:
        os.close(out)
        os.close(err)


def test_the_same_when_the_sandbox_has_ended(house: House) -> None:
    box = house.create()
    process_id = _planted(box, "6777")
    box.client.sandbox.terminate(box.id)
    assert _with_journal(box, process_id, _run) == errno.EACCES
    assert _with_journal(box, process_id, CHANGES["read and write"]) in _refusals(box)


def test_the_same_after_a_restart(house: House) -> None:
    """A daemon that adopts the sandbox hands out no more."""
    box = house.create()
    process_id = _planted(box, "6777")
    house.daemon.kill()
    house.daemon.start()
    assert _with_journal(box, process_id, _run) == errno.EACCES
    assert _with_journal(box, process_id, CHANGES["read and write"]) in _refusals(box)


ANEW = [
    lambda fd: os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK),
    lambda fd: os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK),
    lambda fd: os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_NONBLOCK),
    lambda fd: os.fchmod(fd, 0o666),
]


@pytest.mark.parametrize("way", ["in", "out"])
def test_the_end_of_a_copy_is_that_end_and_no_more(box: Box, way: str) -> None:
    """Neither for him who asked for it, nor for the code inside, to whom a FIFO belongs."""
    box.sh("echo content >file")
    more = {"transfer_id": new_id("cpy")} if way == "in" else {}

    def given() -> tuple[list[Any], tuple[int, int]]:
        with (
            box.daemon.connect() as client,
            client.with_descriptors(f"sandbox.copy_{way}", box.id, path="file", **more) as handed,
        ):
            [fd] = handed.receive()
            found = os.fstat(fd)
            return [_try(attempt, fd) for attempt in ANEW], (found.st_uid, found.st_mode & 0o7777)

    tried, (owner, mode) = as_user(STRANGER, given)
    assert (tried[:3], mode) == ([errno.EACCES] * 3, 0o600)
    assert tried[3] in (errno.EPERM, errno.EROFS)
    if box.provider in ("gvisor", "kubernetes"):  # of which the daemon has both ends, and no file
        assert owner == 0
        return
    more = {"transfer_id": new_id("cpy")} if way == "in" else {}
    with box.client.with_descriptors(f"sandbox.copy_{way}", box.id, path="file", **more) as handed:
        [fd] = handed.receive()
        assert as_user(owner, lambda: _try(ANEW[3], fd)) == errno.EROFS
        os.close(fd)


@pytest.mark.parametrize("house", [KINDS[1]], indirect=True)
def test_no_link_among_the_journals_is_followed_when_a_container_does_not_start(house: House, dockerd: Any) -> None:
    """What its first program says is looked for there; and an error is told to the caller."""
    box = house.create()
    canary = Path(house.daemon.root, "canary")
    canary.write_text("of root alone")
    canary.chmod(0o600)
    # The program can open neither, and says nothing: there is no such directory inside.
    box.sh(f"ln -s {canary} {journals(box)}/.start; chmod 0 /run/sandkeep/out/exits")
    house.daemon.kill()
    dockerd.ask("POST", f"/containers/sandbox-{box.id}/kill")
    house.daemon.start()
    until(lambda: box.client.sandbox.get(box.id).status == "lost")
    with pytest.raises(SandkeepError, match="did not start") as failed:
        box.client.sandbox.resume(box.id)
    assert "of root alone" not in str(failed.value)


# -- a daemon that is not root ----------------------------------------------------------------------------------------


class Users:
    """A user's daemon, and a process that has written. Others are let in to its socket."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self.daemon = daemon
        os.chown(daemon.root, NOBODY, NOBODY)
        os.mkdir(f"{daemon.root}/source", 0o755)
        daemon.program = command_as(NOBODY, daemon.program)
        daemon.start()
        os.chmod(daemon.socket, 0o666)
        self.box = as_user(NOBODY, self._create)
        with daemon.connect() as client:
            client.process.launch(self.box, ["sh", "-c", "seq 1 400000; printf 'a\\nb' >&2"], name="p")
            client.process.wait(self.box, "p", timeout_s=patient(60))

    def _create(self) -> str:
        with self.daemon.connect() as client:
            image = client.image.create(f"{self.daemon.root}/source").image_id
            return str(client.sandbox.create(image).sandbox_id)

    def opened(self) -> int:
        """How many descriptors come of asking for them."""
        with (
            self.daemon.connect() as client,
            client.with_descriptors("process.open_output", self.box, "p") as handed,
        ):
            given = handed.receive()
            for fd in given:
                os.close(fd)
            return len(given)


@pytest.fixture(scope="module")
def users(places: str) -> Iterator[Users]:
    with daemon_in(places) as daemon:
        yield Users(daemon)


WHOLE = b"".join(b"%d\n" % number for number in range(1, 400_001))


@pytest.mark.needs("bwrap")
def test_a_users_daemon_hands_its_own_user_his_own_files(users: Users) -> None:
    assert as_user(NOBODY, users.opened) == 2


@pytest.mark.needs("bwrap")
def test_a_users_daemon_hands_nobody_else_what_could_be_run(users: Users) -> None:
    with pytest.raises(SetupError, match="to a user who does not own it") as refused:
        users.opened()
    assert (refused.value.code, refused.value.data["stdout_bytes"]) == ("not_supported", len(WHOLE))


@pytest.mark.needs("bwrap")
def test_the_commands_read_from_such_a_daemon_all_the_same(users: Users) -> None:
    daemon, box = users.daemon, users.box
    done = daemon.cli("logs", box, "p")
    assert (done.returncode, done.stdout == WHOLE, done.stderr) == (0, True, b"a\nb")
    for count in (1, 2, 300_000):
        done = daemon.cli("logs", box, "p", "--tail", str(count))
        assert done.stdout == b"".join(WHOLE.splitlines(keepends=True)[-count:])
        assert done.stderr == (b"b" if count == 1 else b"a\nb")
    followed = daemon.cli("logs", box, "p", "--follow", "--stream", "stdout")
    assert followed.stdout == WHOLE

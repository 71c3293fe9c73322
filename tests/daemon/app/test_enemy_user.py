"""A second local user who attacks from outside: the daemon, another user's sandboxes, and all these have on the host.

Each attack is tried first by root, for whom it works: so it is one. Then by the enemy, for whom nothing of it may.
"""

import ctypes
import errno
import os
import pickle
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.conftest import RunningDaemon, daemon_in
from tests.support.expect import until
from tests.support.hostile import traces_of
from tests.support.users import as_client, as_user

from sandkeep.errors import SandkeepError
from sandkeep.protocol.methods import METHODS, Access

pytestmark = pytest.mark.needs("root", "bwrap", "tmux")

VICTIM, ENEMY = 40_001, 40_002
SECRET = "a secret of the victim's"

PTRACE_SEIZE = 0x4206
SYS_PIDFD_GETFD = 438


class Scene(NamedTuple):
    """The daemon, what the victim has, and the processes and control groups of its sandbox."""

    daemon: RunningDaemon
    kind: str
    ids: dict[str, str]
    pids: list[int]
    groups: list[str]
    temporary: str


KINDS = ["local", pytest.param("docker", marks=pytest.mark.needs("docker")),
         pytest.param("gvisor", marks=pytest.mark.needs("runsc"))]  # fmt: skip


FURTHER = [pytest.param(*kind.values, marks=[*kind.marks, pytest.mark.soak]) for kind in KINDS[1:]]
"""The others, for what no provider has a part in."""


@pytest.fixture(scope="module", params=KINDS)
def scene(request: pytest.FixtureRequest, places: str) -> Iterator[Scene]:
    engine = request.getfixturevalue("dockerd") if request.param == "docker" else None
    with daemon_in(places) as daemon:
        temporary, source = f"{daemon.root}/tmp", f"{daemon.root}/source"
        for path, mode in ((temporary, 0o1777), (source, 0o755)):
            os.mkdir(path)
            os.chmod(path, mode)
        more = {"base": engine.guest()} if engine is not None else {}
        if engine is not None:
            daemon.env["DOCKER_HOST"] = engine.host
        os.mkdir(f"{daemon.root}/locks", 0o700)
        daemon.start(TMPDIR=temporary, SANDBOX_LOCK_MOUNT_PATH=f"{daemon.root}/locks")
        if engine is not None:
            with daemon.connect() as root:
                root.image.publish(engine.guest())
        ids = as_client(daemon, VICTIM, lambda client: furnish(client, source, provider=request.param, **more))
        found = traces_of(ids["sandbox_id"], None)
        assert daemon.process is not None
        yield Scene(
            daemon,
            request.param,
            ids,
            [daemon.process.pid, *(pid for pid, _ in found.processes)],
            [*found.groups],
            temporary,
        )


def furnish(client: Any, source: str, **image: Any) -> dict[str, str]:
    """A sandbox with a secret in memory and in files, a process, a terminal, a snapshot, an artifact, and a session."""
    image_id = client.image.create(source, **image).image_id
    box = client.sandbox.create(image_id, secrets={"TOKEN": SECRET}).sandbox_id
    client.process.launch(box, 'printf %s "$TOKEN" >secret; echo $TOKEN; exec sleep 1000', name="steady", stdin=True)
    client.process.launch(box, "echo $TOKEN; exec cat", name="terminal", tty=True)
    for name in ("steady", "terminal"):
        until(lambda name=name: client.process.read(box, name, wait_s=20).stdout)
    ids = {"image_id": image_id, "sandbox_id": box, "snapshot_id": client.snapshot.create(box).snapshot_id}
    ids["session_id"] = client.session.ensure("theirs", image=image_id).session.session_id
    ids["artifact_id"] = client.artifact.export(box, "secret").artifact_id
    client.lock.acquire("theirs")
    return ids


def is_well(scene: Scene) -> None:
    """All that the victim has is as it was."""

    def look(client: Any) -> None:
        box = scene.ids["sandbox_id"]
        done = client.sandbox.exec(box, "cat secret")
        assert (done.exit_code, done.stdout) == (0, SECRET.encode()), done
        for name in ("steady", "terminal"):
            assert client.process.get(box, name).status == "running", name
        assert client.snapshot.get(scene.ids["snapshot_id"]).status == "ready"

    as_client(scene.daemon, VICTIM, look)


def tried(scene: Scene, attack: Callable[[], list[str]]) -> None:
    """See that an attack finds something as root, nothing as the enemy, and that nobody else notices."""
    assert attack(), "this is no attack: not even root succeeds"
    found = as_user(ENEMY, attack)
    assert found == []
    is_well(scene)


# -- by the socket -----------------------------------------------------------------------------------------------------

VALUES: dict[str, Any] = {
    "name": "steady", "command": ["true"], "data": b"x", "rows": 24, "cols": 80, "position": 1, "transfer_id": "cpy_x",
    "checkpoint_id": "chk_x", "disk_bytes": 1 << 30, "path": "secret", "merge_id": "mrg_x", "sha256": "0" * 64,
    "decisions": [{"path": "secret", "delete": True}], "target": "/tmp",
}  # fmt: skip


def parameters(scene: Scene, method: Any) -> dict[str, Any]:
    """What a call needs, as far as it can be about what the victim has."""
    given = {**VALUES, **scene.ids, **({"name": "theirs"} if method.name.startswith("lock.") else {})}
    return {
        field.encode_name: given[field.encode_name]
        for field in msgspec.structs.fields(method.params)
        if field.required or field.encode_name == "sandbox_id"
    }


def test_no_method_reaches_what_another_user_has(scene: Scene) -> None:
    """Not one of all that there are, and none leaves an event."""
    methods = [method for method in METHODS.values() if method.access is Access.OWNER]
    assert len(methods) > 30
    before = as_client(scene.daemon, 0, lambda client: client.daemon.status().position)

    def attack(client: Any) -> dict[str, str]:
        return {method.name: refusal(client, method, parameters(scene, method)) for method in methods}

    answers = as_client(scene.daemon, ENEMY, attack)
    assert {name: code for name, code in answers.items() if code != "not_found"} == {}
    assert as_client(scene.daemon, 0, lambda client: client.daemon.status().position) == before
    is_well(scene)


def refusal(client: Any, method: Any, params: dict[str, Any]) -> str:
    """The code by which a call is refused."""
    group, _, name = method.name.partition(".")
    try:
        if method.descriptors:
            with client.with_descriptors(method.name, **params) as handed:
                for fd in handed.receive():
                    os.close(fd)
                handed.answer()
        else:
            getattr(getattr(client, group), name)(**params)
    except SandkeepError as error:
        return error.code
    return "it was let in"


@pytest.mark.parametrize("scene", [KINDS[0], *FURTHER], indirect=True)
def test_a_flood_keeps_nobody_from_being_served(scene: Scene) -> None:
    """Of connections, of lines that do not end, and of nonsense: the enemy is let go, and the victim is served."""

    def flood(over: Callable[[], bool]) -> int:
        held = []
        for number in range(400):
            sock = socket.socket(socket.AF_UNIX)
            sock.setblocking(False)
            with suppress(OSError):
                sock.connect(f"{scene.daemon.root}/{('sock', 'stream.sock')[number % 2]}")
                sock.send((b"x" * 100_000, b"{}\n" * 30_000, b"\xff\n" * 1000, b"{")[number % 4])
                held.append(sock)
        while not over():
            time.sleep(0.01)
        return len(held)

    with meanwhile(flood) as told:
        for _ in range(5):
            is_well(scene)
    assert told() > 50
    is_well(scene)


@contextmanager
def meanwhile(work: Callable[[Callable[[], bool]], Any]) -> Iterator[Callable[[], Any]]:
    """Have the enemy do some work during a block, until what it is given says that that is over.

    Afterwards it can be asked what came of it.
    """
    ending, end = os.pipe()
    answer, telling = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        try:  # whatever happens, this is not to go on as the tests
            answered = as_user(ENEMY, lambda: work(lambda: bool(select.select([ending], [], [], 0)[0])))
            with open(telling, "wb") as pipe:
                pickle.dump(answered, pipe)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(ending)
    os.close(telling)
    with open(answer, "rb") as pipe:
        found: list[bytes] = []
        try:
            yield lambda: pickle.loads(found[0])
        finally:
            os.close(end)
            found.append(pipe.read())
            os.waitpid(child, 0)
        assert found[0], "the enemy failed: its traceback is on stderr"


# -- by the kernel -----------------------------------------------------------------------------------------------------


def test_no_process_can_be_looked_into(scene: Scene) -> None:
    names = ("environ", "maps", "smaps", "stack", "syscall", "io", "auxv", "pagemap", "mem", "exe", "root", "cwd", "fd",
             "fdinfo", "map_files", "ns/pid", "ns/mnt", "ns/user")  # fmt: skip

    def attack() -> list[str]:
        return [f"/proc/{pid}/{name}" for pid in scene.pids for name in names if opens(f"/proc/{pid}/{name}")]

    tried(scene, attack)


def opens(path: str) -> bool:
    """Whether something is to be had there."""
    for attempt in (lambda: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)), lambda: os.readlink(path)):
        with suppress(OSError):
            attempt()
            return True
    return False


def test_no_secret_is_in_what_everybody_may_read_of_a_process(scene: Scene) -> None:
    def attack() -> list[str]:
        return [f"/proc/{pid}/{name}" for pid in scene.pids for name in os.listdir(f"/proc/{pid}") if tells(pid, name)]

    if scene.kind == "gvisor":  # where it is in the memory of its kernel alone
        assert attack() == as_user(ENEMY, attack) == []
    else:
        tried(scene, attack)


def tells(pid: int, name: str) -> bool:
    with suppress(OSError), open(os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        return SECRET.encode() in file.read(1 << 20)
    return False


def test_no_process_can_be_signalled_or_traced(scene: Scene) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    local = ctypes.create_string_buffer(8)

    class Vector(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    def attack() -> list[str]:
        done = []
        for pid in scene.pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL if os.geteuid() else 0)
                done.append(f"kill {pid}")
            if libc.ptrace(PTRACE_SEIZE, pid, 0, 0) == 0:
                done.append(f"ptrace {pid}")
            ours, theirs = Vector(ctypes.addressof(local), 8), Vector(0x10000, 8)
            libc.process_vm_readv(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
            if ctypes.get_errno() != errno.EPERM:
                done.append(f"read the memory of {pid}")
            with suppress(OSError):
                pidfd = os.pidfd_open(pid)
                if libc.syscall(SYS_PIDFD_GETFD, pidfd, 0, 0) >= 0:
                    done.append(f"took a descriptor of {pid}")
                os.close(pidfd)
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid))
                done.append(f"set the priority of {pid}")
        return done

    tried(scene, lambda: as_user(0, attack) if os.geteuid() == 0 else attack())


def test_no_control_group_can_be_changed(scene: Scene) -> None:
    def attack() -> list[str]:
        files = [f"{group}/{name}" for group in scene.groups for name in os.listdir(group)]
        return [path for path in (*scene.groups, *files) if os.access(path, os.W_OK)]

    tried(scene, attack)


# -- by files and sockets ----------------------------------------------------------------------------------------------


def places_of(scene: Scene) -> list[str]:
    """Every path below the state directory, as root finds them."""
    walked = os.walk(scene.daemon.state_dir)
    return [f"{folder}/{name}" for folder, names, files in walked for name in (*names, *files)]


def test_nothing_of_the_state_directory_is_reached(scene: Scene) -> None:
    places = places_of(scene)
    assert len(places) > 15

    def attack() -> list[str]:
        ways = {"read": readable, "written": lambda path: os.access(path, os.W_OK), "seen": os.lstat}
        return [f"{path} {way}" for path in places for way, attempt in ways.items() if worked(attempt, path)]

    tried(scene, attack)


def readable(path: str) -> bool:
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    return True


def worked(attempt: Callable[[str], Any], path: str) -> bool:
    try:
        return bool(attempt(path))
    except OSError:
        return False


def test_no_other_socket_answers(scene: Scene) -> None:
    """Those of tmux, of gVisor's kernels and of engines, with a path or without; the daemon's own two are for all."""
    ours = {f"{scene.daemon.root}/sock", f"{scene.daemon.root}/stream.sock"}
    inodes = {inode for pid in scene.pids for inode in sockets_of(pid)}
    with open("/proc/net/unix") as listed:
        rows = [line.split() for line in listed][1:]
    listening = {row[7] for row in rows if len(row) > 7 and row[6] in inodes and row[5] == "01"}

    def attack() -> list[str]:
        return [path for path in listening - (ours if os.geteuid() else set()) if answers(path)]

    assert listening >= ours
    tried(scene, attack)


def sockets_of(pid: int) -> Iterator[str]:
    """The inodes of the sockets that a process has."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            kind, _, inode = os.readlink(f"/proc/{pid}/fd/{name}").partition(":")
            if kind == "socket":
                yield inode.strip("[]")


def answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as sock, suppress(OSError):
        sock.connect("\0" + path[1:] if path.startswith("@") else path)
        return True
    return False


def test_nothing_listens_on_a_port(scene: Scene) -> None:
    with socket.socket() as control:
        control.bind(("127.0.0.1", 0))
        control.listen()
        assert ports_of(os.getpid())
    assert [port for pid in scene.pids for port in ports_of(pid)] == []


def ports_of(pid: int) -> list[str]:
    """The addresses that a process listens on, in its own network namespace."""
    inodes = set(sockets_of(pid))
    found = []
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        with suppress(FileNotFoundError), open(f"/proc/{pid}/net/{kind}") as listed:
            rows = [line.split() for line in listed][1:]
            found += [row[1] for row in rows if row[9] in inodes and (kind[:3] == "udp" or row[3] == "0A")]
    return found


def test_links_that_are_planted_where_anybody_may_write_lead_nobody_anywhere(scene: Scene) -> None:
    """The enemy puts a link in the place of whatever appears in the daemon's directory for temporary files, as fast as
    it can, while the victim has all made that there is.
    """
    canary = f"{scene.daemon.root}/canary"
    with open(canary, "w") as file:
        file.write("untouched")

    def race(over: Callable[[], bool]) -> set[str]:
        seen: set[str] = set()
        while not over():
            for name in os.listdir(scene.temporary):
                seen.add(name)
                if os.path.islink(f"{scene.temporary}/{name}"):  # one of its own: links to links would be without end
                    continue
                for kind in ("", ".new", "-journal"):
                    with suppress(OSError):
                        os.symlink(canary, f"{scene.temporary}/{name}{kind}")
        return seen

    def work(client: Any) -> None:
        made = client.snapshot.create(scene.ids["sandbox_id"]).snapshot_id
        again = client.snapshot.restore(made, secrets={"TOKEN": "x"}).sandbox_id
        assert client.sandbox.exec(again, "cat secret").stdout == SECRET.encode()
        client.sandbox.write_file(again, path="new", data=b"x" * 100_000)
        client.sandbox.terminate(again)
        client.snapshot.delete(made)

    with meanwhile(race) as told:
        as_client(scene.daemon, VICTIM, work)
        os.close(os.open(f"{scene.temporary}/the-end", os.O_CREAT | os.O_EXCL))
        until(lambda: os.path.lexists(f"{scene.temporary}/the-end.new"))
    assert "the-end" in told()  # it saw what was made
    with open(canary) as file:
        assert file.read() == "untouched"
    is_well(scene)

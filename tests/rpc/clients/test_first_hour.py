"""The first hour of a new user with the SDK, who types what comes to mind: on each kind of clients, against a real
daemon.
"""

import inspect
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.clients import KINDS, Kind, OnThreads, drive

from sandkeep import blocking
from sandkeep.errors import CallerError, SandkeepError, StateError

pytestmark = pytest.mark.needs("bwrap")

Story = Callable[[Any, str], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> str:
    project = tmp_path_factory.mktemp("project")
    (project / "test.sh").write_text("test $(cat answer) = 42 && echo passed\n")
    (project / "answer").write_text("42\n")
    return str(project)


async def of(value: Any) -> Any:
    """Await what a client with an event loop returns; what a blocking client returns is there already."""
    return await value if inspect.isawaitable(value) else value


async def every(iterable: Any) -> list[Any]:
    return [each async for each in iterable] if hasattr(iterable, "__aiter__") else list(iterable)


# -- what they do -----------------------------------------------------------------------------------------------------


async def run_break_and_restore(client: Any, project: str) -> None:
    """A test suite in a sandbox: broken, restored, forked, broken in the forks alone."""
    image = await of(client.images.create(project))
    sandbox = await of(client.sandboxes.create(image, name="first", labels={"hour": "first"}))
    try:
        assert (await of(sandbox.exec("sh test.sh"))).stdout == b"passed\n"
        snapshot = await of(sandbox.snapshot("works"))
        await of(sandbox.files.write("answer", "41\n"))
        assert (await of(sandbox.exec(["sh", "test.sh"]))).exit_code == 1
        diff = await of(sandbox.diff(snapshot))
        assert [(change.change, change.path) for change in diff.files] == [("changed", "answer")]
        forks = await of(sandbox.fork(3, labels={"try": "yes"}))
        assert [(await of(fork.exec("sh test.sh"))).exit_code for fork in forks] == [1, 1, 1]
        await of(forks[0].files.write(Path("answer"), b"42"))
        assert [(await of(fork.exec("sh test.sh"))).exit_code for fork in forks] == [0, 1, 1]
        for fork in forks:
            await of(fork.terminate())
        (found,) = [each for each in await of(client.snapshots.list(name="works")) if each.sandbox_id == sandbox.id]
        assert found == snapshot
        await of(sandbox.restore(found))
        assert (await of(sandbox.exec("sh test.sh"))).exit_code == 0
        assert [each.id for each in await of(client.sandboxes.list())] == [sandbox.id]
    finally:
        await of(sandbox.terminate())
    types = [event.type for event in await every(sandbox.events(follow=False))]
    assert types[0] == "sandbox.create_requested"
    assert types[-1] == "sandbox.terminated"


async def leave_a_process_and_come_back(client: Any, project: str) -> None:
    """A process that is begun, left, found again by another handle, and ended."""
    sandbox = await of(client.sandboxes.create(await of(client.images.create(project))))
    try:
        await of(sandbox.processes.launch("while read line; do echo got $line; done", name="echo", stdin=True))
        again = await of(client.sandboxes.get(sandbox.id))
        process = await of(again.processes.get("echo"))
        for number in range(3):
            await of(process.write_stdin(f"{number}\n"))
        await of(process.write_stdin(eof=True))
        pieces = await every(process.output())
        assert b"".join(piece.stdout for piece in pieces) == b"got 0\ngot 1\ngot 2\n"
        assert (await of(process.wait())).exit_code == 0
        assert (await of(client.processes.get(sandbox, "echo"))) == process
    finally:
        await of(sandbox.terminate())


MISTAKES: tuple[tuple[Callable[[Any, Any], Any], type[Exception], str], ...] = (
    (lambda c, s: c.images.create("docs"), CallerError, "give ./docs for the directory, docker.io/library/docs for"),
    (lambda c, s: c.images.create("No Such"), CallerError, "a directory is given by its absolute path"),
    (lambda c, s: c.images.create("/no/such"), CallerError, "there is no directory /no/such"),
    (lambda c, s: c.sandboxes.create("img_nosuch"), CallerError, "there is no image 'img_nosuch'"),
    (lambda c, s: c.sandboxes.create(), TypeError, "sandbox.create() needs image_id"),
    (lambda c, s: c.sandboxes.create(s.image_id, memory="1G"), TypeError, "did you mean 'memory_bytes'"),
    (lambda c, s: c.sandboxes.create(s.image_id, memory_bytes=512), CallerError, "memory_bytes: must be an integer"),
    (lambda c, s: c.sandboxes.create(s.image_id, cpus=float("nan")), CallerError, "cpus: must be a finite number"),
    (lambda c, s: c.sandboxes.create(s.image_id, name="a b"), CallerError, "name: must be an id or name: 1 to 64"),
    (lambda c, s: c.sandboxes.create(s.image_id, name="mistaken"), StateError, "you have a sandbox called 'mistaken'"),
    (lambda c, s: c.sandboxes.create(s.image_id, env={"A": 1}), CallerError, "env: must be a string, not an integer"),
    (lambda c, s: c.sandboxes.create(s.image_id, network="internet"), CallerError, "network: must be one of `none`"),
    (
        lambda c, s: c.sandboxes.create(s.image_id, volumes=[{"source": "./data", "target": "/data"}]),
        CallerError,
        "volumes[0].source: must be an absolute path of the host, without ':', or the name of a volume",
    ),
    (
        lambda c, s: c.sandboxes.create(s.image_id, volumes=["data:/data"]),
        CallerError,
        "volumes[0]: must be an object, not a string",
    ),
    (
        lambda c, s: c.sandboxes.create(s.image_id, volumes=[{"source": "data", "target": "/d", "mode": "ro"}]),
        CallerError,
        "volumes[0].mode: there is no such parameter",
    ),
    (lambda c, s: c.sandboxes.get("nobody"), CallerError, "nobody"),
    (lambda c, s: c.snapshots.get("never"), CallerError, "there is no snapshot 'never'"),
    (lambda c, s: s.exec(), TypeError, "needs command"),
    (lambda c, s: s.exec([]), CallerError, "command: must be an array of at least 1 element"),
    (lambda c, s: s.exec(["echo", 5]), CallerError, "command[1]: must be a string, not an integer"),
    (lambda c, s: s.exec("echo\0"), CallerError, "command: must be any text without NUL"),
    (lambda c, s: s.exec("true", cwd="/tmp"), TypeError, "did you mean 'working_dir'"),
    (lambda c, s: s.exec("true", timeout=5, timeout_s=5), TypeError, "more than one value for 'timeout_s'"),
    (lambda c, s: s.exec("true", timeout=-1), CallerError, "timeout_s: must be a number, more than 0"),
    (lambda c, s: s.refresh(timeout=5), TypeError, "timeout"),
    (lambda c, s: s.exec("true", timeout_s=-1), CallerError, "timeout_s: must be a number, more than 0"),
    (lambda c, s: s.exec("true", env={"A": object()}), TypeError, "cannot send env"),
    (lambda c, s: s.exec("true", env={"A B": "c"}), CallerError, "env: each name must be a variable's name"),
    (lambda c, s: s.files.read("nothing"), CallerError, "'nothing': there is no such file"),
    (lambda c, s: s.files.read("."), CallerError, "'.': it is not a regular file"),
    (lambda c, s: s.files.ls("answer"), CallerError, "'answer': there is no such directory"),
    (lambda c, s: s.files.write("answer", 42), CallerError, "data: must be bytes or str, not int"),
    (lambda c, s: s.files.write("/etc/passwd", "me"), CallerError, "/etc/passwd"),
    (lambda c, s: s.files.write("big", bytes(8 * 1024 * 1024 + 1)), CallerError, "copy larger files by"),
    (lambda c, s: s.files.write("big", bytes(20_000_000)), CallerError, "copy larger files by"),
    (lambda c, s: s.files.read_text("binary"), UnicodeDecodeError, "utf-8"),
    (lambda c, s: s.fork(0), CallerError, "count: must be an integer, at least 1"),
    (lambda c, s: s.fork(2, ["one"]), CallerError, "names: 1 are given for 2 sandboxes"),
    (lambda c, s: s.restore(), CallerError, "snapshot_id"),
    (lambda c, s: s.processes.get("never"), CallerError, "has no process 'never'"),
    (lambda c, s: s.processes.launch("true", rows=0, tty=True), CallerError, "rows: must be an integer, at least 1"),
    (lambda c, s: s.run("true"), AttributeError, "has no attribute 'run': use 'exec'"),
    (lambda c, s: s.kill(), AttributeError, "has no attribute 'kill': use 'terminate'"),
    (lambda c, s: s.stop(), AttributeError, "has no attribute 'stop': use 'suspend' or 'terminate'"),
    (lambda c, s: s.files.list("."), AttributeError, "has no attribute 'list': use 'ls'"),
    (lambda c, s: s.files.remove("answer"), AttributeError, "has no attribute 'remove': use 'sandbox.exec'"),
    (lambda c, s: c.containers, AttributeError, "has no attribute 'containers': use 'sandboxes'"),
    (lambda c, s: c.sandboxs, AttributeError, "'sandboxs'"),
    (lambda c, s: c.sandbox.execute(s.id, "true"), AttributeError, "no method sandbox.execute"),
    (lambda c, s: c.image.remove(s.image_id), StateError, "terminate it first"),
)  # fmt: skip


async def make_every_mistake(client: Any, project: str) -> None:
    """Each mistake is refused with a sentence that names it, and harms nothing."""
    image = await of(client.images.create(project))
    sandbox = await of(client.sandboxes.create(image, name="mistaken"))
    try:
        await of(sandbox.exec(r"printf '\377' >binary"))
        for mistake, kind, words in MISTAKES:
            with pytest.raises(kind) as caught:
                await of(mistake(client, sandbox))
            assert words in str(caught.value)
            assert "regex" not in str(caught.value)
            assert "$." not in str(caught.value)
        assert (await of(sandbox.exec("sh test.sh"))).stdout == b"passed\n"
    finally:
        await of(sandbox.terminate())
    for late in (lambda: sandbox.exec("true"), lambda: sandbox.files.read("answer"), sandbox.fork, sandbox.snapshot):
        with pytest.raises(SandkeepError, match="has ended: create a new one"):
            await of(late())
    assert (await of(sandbox.terminate())).status == "stopped"


async def call_things_by_their_names(client: Any, project: str) -> None:
    """Images, snapshots and sandboxes by the names they were given, and by the beginnings of their ids."""
    word = f"by-name-{uuid.uuid4().hex[:12]}"
    image = await of(client.images.create(project, name=f"{word}:1"))
    sandbox = await of(client.sandboxes.create(f"{word}:1", name=word))
    try:
        assert sandbox.image_id == image.id
        snapshot = await of(sandbox.snapshot(word))
        await of(sandbox.files.write("answer", "0"))
        await of(sandbox.restore(word))
        assert await of(sandbox.files.read_text("answer")) == "42\n"
        assert await of(client.snapshots.get(word)) == snapshot
        assert await of(client.snapshots.get(snapshot.id[:-2])) == snapshot
        assert await of(client.images.get(f"{word}:1")) == image
        assert await of(client.sandboxes.get(word)) == sandbox
        await of(image.tag(f"{word}:2"))
        assert await of(client.images.get(f"{word}:2")) == image
        await of(sandbox.terminate())
        sandbox = await of(client.sandboxes.create(f"{word}:2", name=word))  # the name is free again
    finally:
        await of(sandbox.terminate())


async def use_it_after_its_block(client: Any, project: str) -> None:
    """A client that was closed says so, instead of blaming the daemon."""
    image = await of(client.images.create(project))
    client.close()
    with pytest.raises(StateError, match=r"this client is closed, so sandbox\.create was not sent: connect again"):
        await of(client.sandboxes.create(image))


STORIES = (
    run_break_and_restore, leave_a_process_and_come_back, make_every_mistake, call_things_by_their_names,
    use_it_after_its_block,
)  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_is_left(shared_daemon: Any) -> Iterator[None]:
    yield
    with shared_daemon.connect() as client:
        assert client.sandboxes.list() == []


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_first_hour(shared_daemon: Any, project: str, kind: Kind, story: Story) -> None:
    if isinstance(kind, OnThreads):
        with blocking.connect(shared_daemon.socket) as client:
            drive(story(client, project))
    else:
        kind.run(shared_daemon.socket, lambda client: story(client, project))

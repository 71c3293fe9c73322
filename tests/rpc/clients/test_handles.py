"""Handles against a real daemon, for clients with and without an event loop."""

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest
import trio
from tests.support.clients import Kind, OnAsyncio, OnTrio

import sandkeep
from sandkeep import blocking, model
from sandkeep.clients import operations
from sandkeep.clients.handles import family
from sandkeep.clients.kinds import KINDS
from sandkeep.errors import CallerError, StateError

pytestmark = pytest.mark.needs("bwrap")


@pytest.fixture(scope="module")
def image(client: blocking.Client, tmp_path_factory: pytest.TempPathFactory) -> blocking.Image:
    project = tmp_path_factory.mktemp("project")
    (project / "main.txt").write_text("of the image\n")
    return client.images.create(str(project))


@pytest.fixture
def sandbox(client: blocking.Client, image: blocking.Image) -> Any:
    with client.sandboxes.create(image) as sandbox:
        yield sandbox


def test_a_sandbox_runs_commands_and_ends_with_its_block(client: blocking.Client, image: blocking.Image) -> None:
    with client.sandboxes.create(image, name="block", labels={"made": "here"}) as sandbox:
        assert (sandbox.status, sandbox.name, sandbox.info.spec.labels) == ("running", "block", {"made": "here"})
        assert sandbox.exec("cat main.txt; echo $0 >&2").stdout == b"of the image\n"
        assert sandbox.exec(["printf", "%s", "$HOME"]).stdout == b"$HOME"
        assert sandbox.exec(r"printf 'gr\303\274\303\237e\377'").text == "grüße\ufffd"
        assert client.sandboxes.get("block") == sandbox
        assert repr(sandbox) == f"<Sandbox {sandbox.id} 'block' running>"
    assert sandbox.refresh().status == "stopped"
    assert sandbox not in client.sandboxes.list()
    assert sandbox in client.sandboxes.list(all=True)


def test_a_block_may_end_its_sandbox_itself(client: blocking.Client, image: blocking.Image) -> None:
    with client.sandboxes.create(image) as sandbox:
        assert sandbox.terminate() is sandbox
    assert sandbox.status == "stopped"


def test_the_error_of_a_block_comes_before_one_of_ending_its_sandbox(client: Any, image: blocking.Image) -> None:
    another = client.another()

    def work() -> None:
        with sandbox:
            another.close()
            raise ZeroDivisionError

    sandbox = another.sandboxes.create(image)
    with pytest.raises(ZeroDivisionError) as caught:
        work()
    assert "not ended" in caught.value.__notes__[0]
    assert client.sandboxes.get(sandbox).terminate().status == "stopped"


def test_files_are_written_read_and_listed(sandbox: blocking.Sandbox) -> None:
    everything = bytes(range(256))
    assert sandbox.files.write("new/dir/data", everything, mode=0o640).size_bytes == 256
    assert sandbox.files.read("new/dir/data") == everything
    sandbox.files.write("text", "grüße\n")
    assert sandbox.files.read_text("text") == "grüße\n"
    assert [(entry.name, entry.type) for entry in sandbox.files.ls("new")] == [("dir", "directory")]
    assert {entry.name for entry in sandbox.files.ls()} >= {"main.txt", "new", "text"}
    with pytest.raises(CallerError, match="nothing"):
        sandbox.files.read("nothing")


def test_a_large_file_and_a_large_directory_come_whole(sandbox: blocking.Sandbox) -> None:
    sandbox.exec("head -c 9000000 /dev/zero | tr '\\0' x >big; mkdir many; cd many; seq 1500 | xargs touch")
    assert sandbox.files.read("big") == b"x" * 9_000_000
    assert len(sandbox.files.ls("many")) == 1500


def test_a_sandbox_cannot_fill_the_memory_of_its_client(
    monkeypatch: pytest.MonkeyPatch, sandbox: blocking.Sandbox
) -> None:
    assert sandbox.exec("truncate -s 300M large && mkdir many && cd many && seq 3000 | xargs touch").exit_code == 0
    with pytest.raises(CallerError, match="'large' has more than 268435456 bytes: raise max_bytes, or copy larger"):
        sandbox.files.read("large")
    with pytest.raises(CallerError, match="more than 3 bytes"):
        sandbox.files.read_text("main.txt", max_bytes=3)
    monkeypatch.setattr(operations, "MAX_ENTRIES", 2000)
    with pytest.raises(CallerError, match="'many' has more than 2000 files"):
        sandbox.files.ls("many")


def test_a_name_that_is_not_utf_8_is_read(sandbox: blocking.Sandbox) -> None:
    sandbox.exec(r"""printf there >"$(printf '\377')" """)
    (odd,) = [entry for entry in sandbox.files.ls() if entry.name != "main.txt"]
    assert sandbox.files.read(b"\xff".decode("utf-8", "surrogateescape")) == b"there", odd


def test_processes_are_handles_of_their_sandbox(sandbox: blocking.Sandbox) -> None:
    process = sandbox.processes.launch("read line; echo got $line; exit 3", name="reader", stdin=True)
    assert (process.name, process.sandbox_id) == ("reader", sandbox.id)
    assert sandbox.processes.get("reader") == process
    assert sandbox.processes.list() == [process]
    process.write_stdin(b"a line\n", eof=True)
    assert b"".join(piece.stdout for piece in process.output()) == b"got a line\n"
    timed = [piece for piece in process.output(times=True, since=process.requested_at) if piece.stdout]
    assert [piece.times[-1].stdout_offset for piece in timed][-1] == len(b"got a line\n")
    assert process.wait() is process
    assert process.exit_code == 3
    unnamed = sandbox.processes.launch("exec sleep 1000")
    assert unnamed.signal("KILL").wait().exit_code == 137
    assert sandbox.processes.list() == []


def test_forks_snapshots_and_restores_are_handles(client: blocking.Client, sandbox: blocking.Sandbox) -> None:
    sandbox.files.write("state", "before")
    snapshot = sandbox.snapshot("handles-before")
    assert (snapshot.status, snapshot.name, snapshot.sandbox_id) == ("ready", "handles-before", sandbox.id)
    assert sandbox.snapshots.list() == [snapshot]
    assert client.snapshots.list(sandbox_id=sandbox) == [snapshot]
    sandbox.files.write("state", "after")
    forks = sandbox.fork(2)
    restored = snapshot.restore(name="handles-restored")
    try:
        assert [fork.files.read_text("state") for fork in forks] == ["after", "after"]
        assert [fork.forked_from for fork in forks] == [sandbox.id, sandbox.id]
        assert restored.files.read_text("state") == "before"
        assert sandbox.restore(snapshot) is sandbox
        assert sandbox.files.read_text("state") == "before"
        assert [change.path for change in forks[0].diff(sandbox.id).files] == ["state"]
    finally:
        for each in (*forks, restored):
            each.terminate()
    image = snapshot.promote()
    assert isinstance(image, blocking.Image)
    assert image.remove().status == "removed"
    assert snapshot.delete().status == "deleted"


def test_a_list_has_all_its_pages(client: Any, monkeypatch: pytest.MonkeyPatch, sandbox: blocking.Sandbox) -> None:
    processes = [sandbox.processes.launch("sleep 1000") for _ in range(3)]
    monkeypatch.setattr(client, "_call", short_pages(client._call))
    assert client.sandboxes.get(sandbox).processes.list() == processes
    with pytest.raises(TypeError, match="no parameter 'limit'"):
        client.processes.list(limit=1)
    with pytest.raises(TypeError, match="no parameter 'after'"):
        sandbox.processes.list(False, processes[0].id)  # type: ignore[call-arg]


def short_pages(call: Callable[..., Any]) -> Callable[..., Any]:
    """Pages of one element."""

    def called(row: Any, *args: Any, **kwargs: Any) -> Any:
        return call(row, *args, **kwargs, **({"limit": 1} if row.name.endswith(".list") else {}))

    return called


def test_a_session_is_a_handle_too(client: blocking.Client, image: blocking.Image) -> None:
    session = client.sessions.ensure("handles", image.id)
    assert session in client.sessions.list()
    sandbox = client.sandboxes.get(session.session_id)
    assert sandbox.id == session.sandbox_id
    assert session.heartbeat() is session
    assert session.close(snapshot=False).status == "terminated"
    assert sandbox.refresh().status == "stopped"


def test_every_kind_of_handles_can_be_named_in_annotations() -> None:
    for kind in KINDS:
        name = kind.noun.title()
        assert getattr(blocking, name) is family(asynchronous=False)[kind.noun]
        assert getattr(sandkeep, f"Async{name}") is family(asynchronous=True)[kind.noun]
        assert {name} <= set(blocking.__all__)
        assert {f"Async{name}"} <= set(sandkeep.__all__)


def test_events_of_a_sandbox(sandbox: blocking.Sandbox) -> None:
    types = [event.type for event in sandbox.events(follow=False)]
    assert types[0] == "sandbox.create_requested"
    assert "sandbox.created" in types


def test_handles_are_told_apart_and_their_mistakes_named(client: Any, sandbox: blocking.Sandbox) -> None:
    assert sandbox != client.images.list()[0]
    assert len({sandbox, client.sandboxes.get(sandbox)}) == 1
    with pytest.raises(AttributeError, match="'Sandbox' object has no attribute 'run'"):
        sandbox.run("true")  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"sandbox.exec\(\) needs command"):
        sandbox.exec()  # type: ignore[call-arg]
    assert {"exec", "status", "files"} <= set(dir(sandbox))
    assert {"sandboxes", "sandbox", "images"} <= set(dir(client))
    assert isinstance(sandbox, blocking.Sandbox)
    with pytest.raises(AttributeError):
        _ = blocking.Banana  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [OnTrio(), OnAsyncio()], ids=lambda kind: kind.name)
def test_the_same_on_an_event_loop(shared_daemon: Any, image: blocking.Image, kind: Kind) -> None:
    async def body(client: sandkeep.Client) -> None:
        async with await client.sandboxes.create(image.id) as sandbox:
            assert isinstance(sandbox, sandkeep.AsyncSandbox)
            assert (await sandbox.exec("cat main.txt")).stdout == b"of the image\n"
            await sandbox.files.write("file", "text")
            assert await sandbox.files.read_text("file") == "text"
            process = await sandbox.processes.launch("echo out")
            assert [piece.stdout async for piece in process.output() if piece.stdout] == [b"out\n"]
            timed = [piece async for piece in process.output(times=True, since=process.requested_at) if piece.stdout]
            assert [time.stdout_offset for time in timed[0].times] == [len(b"out\n")]
            await kind.together(*(fork.terminate for fork in await sandbox.fork(3)))
            events = [event async for event in sandbox.events(follow=False)]
            assert isinstance(events[0], model.Event)
        assert (await sandbox.refresh()).status == "stopped"
        assert await client.sandboxes.list() == []

    kind.run(shared_daemon.socket, body)


async def test_a_block_that_trio_cancels_ends_its_sandbox(shared_daemon: Any, image: blocking.Image) -> None:
    async with sandkeep.connect(shared_daemon.socket) as client:
        with trio.CancelScope() as scope:
            async with await client.sandboxes.create(image.id) as sandbox:
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert (await sandbox.refresh()).status == "stopped"


def test_a_block_that_asyncio_cancels_ends_its_sandbox(shared_daemon: Any, image: blocking.Image) -> None:
    """Also when it is cancelled again meanwhile."""

    async def block(sandbox: sandkeep.AsyncSandbox, inside: asyncio.Event) -> None:
        async with sandbox:
            inside.set()
            await asyncio.Event().wait()

    async def main() -> None:
        async with sandkeep.aio.connect(shared_daemon.socket) as client:
            sandbox = await client.sandboxes.create(image.id)
            inside = asyncio.Event()
            task = asyncio.create_task(block(sandbox, inside))
            await inside.wait()
            while not task.done():
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await sandbox.refresh()).status == "stopped"

    asyncio.run(main())


def test_a_command_ends_with_the_program_s_patience(shared_daemon: Any, image: blocking.Image) -> None:
    """And the exception that ended the call names the process, also through a handle."""

    async def main() -> None:
        async with (
            sandkeep.aio.connect(shared_daemon.socket) as client,
            await client.sandboxes.create(image.id) as sandbox,
        ):
            task = asyncio.create_task(sandbox.exec("exec sleep 100000"))
            while not await sandbox.processes.list():
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            process = await sandbox.processes.get(caught.value.process_id)  # type: ignore[attr-defined]
            assert (await process.wait()).exit_code in (128 + signal.SIGINT, 128 + signal.SIGKILL)

    asyncio.run(main())


def test_a_handle_of_an_ended_sandbox_says_so(client: blocking.Client, image: blocking.Image) -> None:
    ended = client.sandboxes.create(image).terminate()
    with pytest.raises((CallerError, StateError), match=ended.id):
        ended.exec("true")

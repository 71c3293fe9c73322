"""Exactly once: a command given again gets its first answer, whatever became of the connection or the daemon."""

import io
import os
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support.expect import refused_async, until
from tests.support.inside import Inside, inside
from tests.support.patience import patient

from sandkeep.errors import SandkeepError, StateError
from sandkeep.protocol.methods import METHODS

HELD = "echo ready; while [ ! -e go ]; do sleep 0.01; done; exec cat"
COUNTS = "trap 'echo got >>signals' USR1; echo ready; while :; do sleep 0.01; done"


# -- a repeat, method by method ---------------------------------------------------------------------------------------


class World:
    """A real daemon with something to change in it."""

    def __init__(self, daemon: Any, source: str) -> None:
        self.daemon = daemon
        self.source = source
        with daemon.connect() as client:
            self.image, self.unused = (client.image.create(source, clean=True).image_id for _ in range(2))
            client.image.tag(self.image, "old")
            client.image.tag(self.unused, "unused")
            client.session.ensure(id="closing", image=self.image)
            self.box, self.doomed = (client.sandbox.create(self.image).sandbox_id for _ in range(2))
            self.artifact = client.artifact.export(self.box, "/etc/passwd").artifact_id
            self._launch(client, "reader", HELD, stdin=True)
            self._launch(client, "trapper", COUNTS)
            self._launch(client, "screen", "echo ready; while read -r line; do stty size; done", tty=True)
        self.copying = self._begin_copy()

    def _launch(self, client: Any, name: str, script: str, **options: Any) -> None:
        client.process.launch(self.box, ["sh", "-c", script], name=name, **options)
        until(lambda: b"ready" in client.process.read(self.box, name, wait_s=10).stdout)

    def _begin_copy(self) -> Any:
        """A copy under way, which is left so: only its commit is of interest here."""
        with self.daemon.connect() as client:
            query = {"path": "/workspace", "transfer_id": "tr", "contents": True}
            handed = client.with_descriptors("sandbox.copy_in", self.box, **query)
        [descriptor] = handed.receive()
        with open(descriptor, "wb") as pipe, tarfile.open(fileobj=pipe, mode="w|") as archive:
            archive.addfile(tarfile.TarInfo("copied"), io.BytesIO())
        return handed

    def lines(self, name: str) -> int:
        with self.daemon.connect() as client:
            try:
                return int(client.sandbox.read_file(self.box, path=name).data.count(b"\n"))
            except SandkeepError:
                return 0

    def events(self, kind: str) -> int:
        with self.daemon.connect() as client:
            return sum(1 for _ in client.follow_events(type=kind, follow=False))

    def size(self) -> bytes:
        """The size of the terminal, as the process in it sees it."""
        with self.daemon.connect() as client:
            before = client.process.read(self.box, "screen").next_stdout_offset
            client.process.write_stdin(self.box, "screen", data=b"\n")
            said = b""
            while not (b" " in said and said.endswith(b"\n")):
                piece = client.process.read(self.box, "screen", stdout_offset=before, wait_s=10)
                before, said = piece.next_stdout_offset, said + piece.stdout
            return bytes(said.split(b"\n", 1)[-1].split(b"\r")[0])

    def read_all(self, name: str) -> bytes:
        with self.daemon.connect() as client:
            return b"".join(piece.stdout for piece in client.read_output(self.box, name, follow=False))


class Case:
    """A command, parameters that make another of it, what somebody does between it and its repeat, and what is the
    case when it was done once. `like` picks what of the answer must be the same.
    """

    def __init__(
        self,
        params: Callable[[World], dict[str, Any]],
        other: dict[str, Any],
        once: Callable[[World], bool],
        between: Callable[[World, Any], Any] = lambda world, client: None,
        like: Callable[[dict[str, Any]], Any] = lambda answer: answer,
    ) -> None:
        self.params = params
        self.other = other
        self.once = once
        self.between = between
        self.like = like


CASES = {
    "image.create": Case(
        lambda w: {"source": w.source, "clean": True, "labels": {"case": "1"}},
        {"labels": {"case": "2"}},
        lambda w: w.events("image.create_requested") == 3,
    ),
    "image.tag": Case(
        lambda w: {"image_id": w.image, "name": "py:3.12"},
        {"name": "other"},
        lambda w: w.events("image.tagged") == 3,
        like=lambda answer: answer["image_id"],  # its name "old" is taken afterwards
    ),
    "image.untag": Case(
        lambda w: {"image_id": "old", "name": "old"}, {"name": "other"}, lambda w: w.events("image.untagged") == 1
    ),
    "image.remove": Case(
        lambda w: {"image_id": "unused"}, {"image_id": "other"}, lambda w: w.events("image.remove_requested") == 1
    ),
    "sandbox.create": Case(
        lambda w: {"image_id": w.image, "secrets": {"A": "b"}, "labels": {"case": "1"}},
        {"labels": {}},
        lambda w: w.events("sandbox.create_requested") == 5,
        like=lambda answer: answer["sandbox_id"],
    ),
    "session.ensure": Case(
        lambda w: {"id": "pinned", "image": w.image},
        {"id": "other"},
        lambda w: w.events("session.start_requested") == 2,
        like=lambda answer: answer["session"]["sandbox_id"],
    ),
    "artifact.export": Case(
        lambda w: {"sandbox_id": w.box, "path": "/etc/passwd"},
        {"path": "/etc/group"},
        lambda w: w.events("artifact.exported") == 2,
        like=lambda answer: answer["artifact_id"],
    ),
    "artifact.remove": Case(
        lambda w: {"artifact_id": w.artifact}, {"artifact_id": "other"}, lambda w: w.events("artifact.removed") == 1
    ),
    "session.close": Case(
        lambda w: {"session_id": "closing"},
        {"session_id": "other"},
        lambda w: w.events("session.stopped") == 1,
        like=lambda answer: (answer["status"], answer["snapshot_ids"]),
    ),
    "sandbox.exec": Case(
        lambda w: {"sandbox_id": w.box, "command": "echo x >>execs; echo out; echo err >&2; exit 3"},
        {"inline_bytes": 7},
        lambda w: w.lines("execs") == 1,
    ),
    "sandbox.terminate": Case(
        lambda w: {"sandbox_id": w.doomed}, {"sandbox_id": "other"}, lambda w: w.events("sandbox.terminated") == 2
    ),
    "sandbox.write_file": Case(
        lambda w: {"sandbox_id": w.box, "path": "file", "data": "Zmlyc3QK"},
        {"data": "b3RoZXIK"},
        lambda w: w.lines("file") == 2,
        lambda w, client: client.sandbox.write_file(w.box, path="file", data=b"somebody\nelse\n"),
    ),
    "sandbox.copy_commit": Case(
        lambda w: {"sandbox_id": w.box, "transfer_id": "tr"},
        {"transfer_id": "other"},
        lambda w: w.lines("copied") == 1,
        lambda w, client: client.sandbox.write_file(w.box, path="copied", data=b"changed\n"),
    ),
    "process.launch": Case(
        lambda w: {"sandbox_id": w.box, "name": "one", "command": "echo x >>launches; sleep 1000"},
        {"name": "two"},
        lambda w: w.lines("launches") == 1,
        lambda w, client: [None for _ in iter(lambda: w.lines("launches"), 1)],
    ),
    "process.signal": Case(
        lambda w: {"sandbox_id": w.box, "name": "trapper", "signal": "USR1"},
        {"signal": "USR2"},
        lambda w: w.lines("signals") == 1,
        lambda w, client: [None for _ in iter(lambda: w.lines("signals"), 1)],
    ),
    "process.write_stdin": Case(
        lambda w: {"sandbox_id": w.box, "name": "reader", "data": "aW4K"},
        {"data": "b3V0Cg=="},
        lambda w: w.read_all("reader") == b"ready\nin\n",
        lambda w, client: (
            client.sandbox.exec(w.box, "touch go"),
            until(lambda: w.read_all("reader") == b"ready\nin\n"),
        ),
    ),
    "process.resize": Case(
        lambda w: {"sandbox_id": w.box, "name": "screen", "rows": 30, "cols": 90},
        {"rows": 31},
        lambda w: w.size() == b"40 100",
        lambda w, client: (
            client.process.resize(w.box, "screen", rows=40, cols=100),
            [None for _ in iter(w.size, b"40 100")],  # tmux takes its time for the second
        ),
    ),
    "stream.access": Case(
        lambda w: {"renew": True},
        {"renew": False},
        lambda w: True,  # the answer itself tells
    ),
    "daemon.shutdown": Case(lambda w: {}, {}, lambda w: w.events("daemon.started") == 2),
}
"""How each method that changes something is repeated. One that is new needs a line here."""

ELSEWHERE = {
    "sandbox.update": "tests/daemon/sandboxes/test_limits.py",
    **dict.fromkeys(("volume.create", "volume.remove"), "tests/daemon/providers/docker/test_volumes.py"),
    **dict.fromkeys(("image.publish", "image.unpublish"), "tests/daemon/providers/docker/test_foreign_images.py"),
    "process.cancel": "tests/daemon/sandboxes/test_cancellation.py",
    "sandbox.suspend": "tests/daemon/sandboxes/test_suspend.py",
    "sandbox.resume": "tests/daemon/sandboxes/test_suspend.py",
    "provider.choose": "tests/rpc/compat/test_gcri.py",
    "lock.acquire": "tests/daemon/locks/test_locks.py",
    "lock.release": "tests/daemon/locks/test_locks.py",
    "snapshot.import": "tests/crash/keeping.py",
    **dict.fromkeys(("sandbox.attach_shared", "sandbox.detach"), "tests/integration/test_handover.py"),
    **dict.fromkeys(
        ("checkpoint.create", "checkpoint.restore", "checkpoint.delete"),
        "tests/daemon/checkpoints/test_checkpoints.py",
    ),
    **dict.fromkeys(
        ("sandbox.fork", "sandbox.restore", "sandbox.restore_at", "snapshot.create", "snapshot.delete", "snapshot.gc",
         "snapshot.promote", "snapshot.restore", "store.prune"),
        "tests/daemon/api/test_repeats_of_snapshots.py",
    ),
    **dict.fromkeys(
        ("branch.create", "branch.merge", "branch.resolve", "branch.abandon", "branch.commit", "branch.remove"),
        "tests/daemon/api/test_repeats_of_branches.py",
    ),
}  # fmt: skip
"""Those that need another world than this one, and where they are repeated."""


def ask(daemon: Any, method: str, command_id: str, params: dict[str, Any]) -> Any:
    """Make a call on a connection of its own."""
    with daemon.connect() as client:
        return client.call(method, {**params, "command_id": command_id})


def another(world: World, name: str) -> tuple[str, str, dict[str, Any]]:
    """Another method under the same id."""
    if name == "stream.access":
        return "sandbox.exec", f"the-{name}", {"sandbox_id": world.box, "command": "true"}
    return "stream.access", f"the-{name}", {"renew": True}


@pytest.mark.needs("bwrap", "tmux")
def test_every_change_is_made_once(running_daemon: Any, source: str) -> None:
    """Each method that changes something: given again at once, after others did theirs, and after the daemon died."""
    assert {*CASES, *ELSEWHERE} == {name for name, row in METHODS.items() if row.mutates}
    world = World(running_daemon, source)
    made_once(running_daemon, world, {name: case for name, case in CASES.items() if name != "daemon.shutdown"})
    world.copying.close()


def made_once(running_daemon: Any, world: Any, by_name: dict[str, Case]) -> None:
    cases = {name: (case, case.params(world)) for name, case in by_name.items()}
    first = {}
    for name, (case, params) in cases.items():
        first[name] = ask(running_daemon, name, f"the-{name}", params)
        with running_daemon.connect() as client:
            case.between(world, client)

    def check() -> None:
        for name, (case, params) in cases.items():
            again = ask(running_daemon, name, f"the-{name}", params)
            assert case.like(again) == case.like(first[name]), name
            with pytest.raises(SandkeepError) as no:
                ask(running_daemon, name, f"the-{name}", {**params, **case.other})
            assert no.value.code in ("conflict", "not_found"), name
            with pytest.raises(StateError, match="given with another command"):
                ask(running_daemon, *another(world, name))
            assert case.once(world), name

    check()
    running_daemon.kill()
    running_daemon.start()
    check()


def test_a_daemon_is_stopped_once(running_daemon: Any) -> None:
    """A repeat that comes to the next daemon does not stop that."""
    assert ask(running_daemon, "daemon.shutdown", "stop", {}) == {}
    assert running_daemon.process.wait(patient(60)) == 0
    running_daemon.start()
    assert ask(running_daemon, "daemon.shutdown", "stop", {}) == {}
    with running_daemon.connect() as client:
        client.daemon.ping()
        started = [event.type for event in client.follow_events(type="daemon", follow=False)]
    assert started == ["daemon.started", "daemon.stopped", "daemon.started"]


def test_secrets_are_no_part_of_what_is_kept(running_daemon: Any, source: str) -> None:
    """Neither in the log nor beside it, in no form: another value makes the same command."""
    with running_daemon.connect() as client:
        box = client.sandbox.create(client.image.create(source).image_id).sandbox_id
        first = client.sandbox.exec(box, "echo $A", secrets={"A": "x"}, command_id="s")
        assert client.sandbox.exec(box, "echo $A", secrets={"A": "y"}, command_id="s") == first
        with pytest.raises(StateError):
            client.sandbox.exec(box, "echo $A", secrets={"B": "x"}, command_id="s")


# -- while the first is under way -------------------------------------------------------------------------------------


@pytest.mark.needs("bwrap")
def test_a_repeat_waits_for_the_first(running_daemon: Any, source: str) -> None:
    """Two connections write the same input to a process that does not read yet: it gets it once."""
    data = os.urandom(300_000)
    with running_daemon.connect() as client:
        box = client.sandbox.create(client.image.create(source).image_id).sandbox_id
        client.process.launch(box, ["sh", "-c", HELD], name="p", stdin=True)
        answers: list[int] = []

        def write() -> None:
            with running_daemon.connect() as mine:
                answers.append(mine.process.write_stdin(box, "p", data=data, eof=True, command_id="w").written_bytes)

        threads = [threading.Thread(target=write) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: client.daemon.status().connections >= 3)
        client.sandbox.exec(box, "touch go")
        for thread in threads:
            thread.join()
        assert answers == [len(data)] * 2
        assert b"".join(piece.stdout for piece in client.read_output(box, "p")) == b"ready\n" + data


# -- a daemon that dies at a certain point ----------------------------------------------------------------------------


async def until_hangs(daemon: Inside, hangs: trio.Event, method: str, **params: Any) -> None:
    """Make a call, and leave it when it has come to where the daemon is to die."""
    async with trio.open_nursery() as nursery:

        async def call() -> None:
            await daemon.call(method, **params)

        nursery.start_soon(call)
        await hangs.wait()
        nursery.cancel_scope.cancel()


async def instance_of(daemon: Inside) -> Any:
    return (await daemon.sandboxes.runtimes.running(daemon.box())).instance


def hanging(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    """Have a method of the daemon's come to nothing: it says that it was called, and hangs."""
    reached = trio.Event()

    async def hang(*_: Any, **__: Any) -> Any:
        reached.set()
        await trio.sleep_forever()

    monkeypatch.setattr(owner, name, hang)
    return reached


async def test_a_launch_that_a_crash_prevented_is_made_by_the_repeat(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = {"sandbox_id": "box", "name": "p", "command": "echo x >>count; echo done", "command_id": "c"}
    async with inside(state_dir) as daemon:
        await daemon.call("sandbox.create", image_id=await daemon.image(source), name="box")
        with monkeypatch.context() as patch:
            hangs = hanging(await instance_of(daemon), "launch", patch)
            await until_hangs(daemon, hangs, "process.launch", **command)
    async with inside(state_dir) as daemon:
        await daemon.reconciler.run()
        first = await daemon.call("process.launch", **command)
        assert (await daemon.call("process.launch", **command)).process_id == first.process_id
        await daemon.call("process.wait", sandbox_id="box", name="p")
        done = await daemon.call("sandbox.exec", sandbox_id="box", command="cat count")
        assert done.stdout == b"x\n"
        types = await daemon.types("box")
        assert types.count("process.launch_requested") == 3
        assert types.count("process.launch_failed") == 1
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def test_a_creation_that_a_crash_prevented_is_made_by_the_repeat(
    state_dir: str, source: str, places: str
) -> None:
    """Also under a name; which is free for whoever else has none of that name."""
    async with inside(state_dir) as daemon:
        command = {
            "image_id": await daemon.image(source),
            "name": "box",
            "command_id": "c",
            "secrets": {"A": "1"},
        }
        daemon.fake.faults.create_delay_s = 3600
        hangs = trio.Event()
        daemon.core.log.on_commit.append(lambda facts: hangs.set())
        await until_hangs(daemon, hangs, "sandbox.create", **command)
    async with inside(state_dir) as daemon:
        await daemon.reconciler.run()
        (place := Path(places, "theirs")).mkdir(mode=0o755)
        theirs = await daemon.call("image.create", uid=7, source=str(place), provider="fake")
        other = await daemon.call("sandbox.create", 7, image_id=theirs.image_id, name="box")
        made = await daemon.call("sandbox.create", **command)
        assert (made.status, made.name) == ("running", "box")
        assert (await daemon.call("sandbox.create", **command)).sandbox_id == made.sandbox_id
        await refused_async("conflict", daemon.call("sandbox.create", **{**command, "command_id": "d"}))
        assert await daemon.types("box") == ["sandbox.create_requested", "sandbox.created"]
        for sandbox_id in (other.sandbox_id, "box"):
            await daemon.call("sandbox.terminate", sandbox_id=sandbox_id)
    async with inside(state_dir) as daemon:
        assert daemon.core.problems == []
        assert daemon.box().status == "stopped"


async def test_an_import_that_a_crash_prevented_is_made_by_the_repeat(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = {"source": source, "provider": "fake", "command_id": "c"}
    async with inside(state_dir) as daemon:
        with monkeypatch.context() as patch:
            await until_hangs(daemon, hanging(daemon.fake.images, "make", patch), "image.create", **command)
    async with inside(state_dir) as daemon:
        await daemon.reconciler.run()
        made = await daemon.call("image.create", **command)
        assert made.status == "ready"
        assert await daemon.call("image.create", **command) == made


@pytest.mark.parametrize("sent", [False, True])
async def test_a_signal_is_sent_once(sent: bool, state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the daemon died just before it sent it or just after."""
    command = {"sandbox_id": "box", "name": "p", "signal": "USR1", "command_id": "c"}
    async with inside(state_dir) as daemon:
        await daemon.call("sandbox.create", image_id=await daemon.image(source), name="box")
        await daemon.call("process.launch", sandbox_id="box", name="p", command=COUNTS)
        while not (await daemon.call("process.read", sandbox_id="box", name="p", wait_s=10)).stdout:
            pass
        if sent:
            await daemon.call("process.signal", **command)
        else:
            with monkeypatch.context() as patch:
                hangs = hanging(await instance_of(daemon), "signal", patch)
                await until_hangs(daemon, hangs, "process.signal", **command)
    async with inside(state_dir) as daemon:
        await daemon.reconciler.run()
        for _ in range(2):
            assert (await daemon.call("process.signal", **command)).last_signal == "USR1"
        # What is sent later arrives later: when the process has ended, it has had all of the others.
        counted = {"sandbox_id": "box", "command": "until [ -s signals ]; do sleep 0.01; done; cat signals"}
        await daemon.call("sandbox.exec", **counted)
        await daemon.call("process.signal", sandbox_id="box", name="p", signal="KILL")
        await daemon.call("process.wait", sandbox_id="box", name="p")
        assert (await daemon.call("sandbox.exec", **counted)).stdout == b"got\n"
        assert (await daemon.types("box")).count("process.signalled") == 2
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def test_an_input_is_gone_on_with_where_it_was(state_dir: str, source: str) -> None:
    """A daemon that dies while it waits for room has written some: the repeat writes the rest."""
    data = os.urandom(300_000)
    command = {"sandbox_id": "box", "name": "p", "data": data, "eof": True, "command_id": "c"}
    async with inside(state_dir) as daemon:
        await daemon.call("sandbox.create", image_id=await daemon.image(source), name="box")
        await daemon.call("process.launch", sandbox_id="box", name="p", command=HELD, stdin=True)
        with trio.move_on_after(patient(60)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: daemon.call("process.write_stdin", **command))
                while True:
                    await trio.testing.wait_all_tasks_blocked(0.05)
                    past = daemon.core.log.commands.find("uid:0", "c")
                    if past is not None and past.taken:
                        break
                nursery.cancel_scope.cancel()
        assert past is not None
        assert 0 < past.taken < len(data)
    async with inside(state_dir) as daemon:
        await daemon.reconciler.run()
        await daemon.call("sandbox.exec", sandbox_id="box", command="touch go")
        for _ in range(2):
            assert (await daemon.call("process.write_stdin", **command)).written_bytes == len(data)
        await daemon.call("process.wait", sandbox_id="box", name="p")
        said = b"ready\n"
        while len(said) < len(data) + 6:
            piece = await daemon.call("process.read", sandbox_id="box", name="p", stdout_offset=len(said))
            said += piece.stdout
        assert said == b"ready\n" + data
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def test_an_input_of_which_nobody_knows_is_not_written_again(state_dir: str, source: str) -> None:
    """Killed between writing and putting that down: the repeat is told what is certain, and what is not."""
    command = {"sandbox_id": "box", "name": "p", "data": b"12345", "command_id": "c"}
    async with inside(state_dir) as daemon:
        await daemon.call("sandbox.create", image_id=await daemon.image(source), name="box")
        await daemon.call("process.launch", sandbox_id="box", name="p", command=["cat"], stdin=True)
        commands = daemon.core.log.commands
        assert (await daemon.call("process.write_stdin", **command)).written_bytes == 5
        commands.execute("UPDATE commands SET taken = 2, trying = 3, done = 0", ())
        error = await refused_async("conflict", daemon.call("process.write_stdin", **command))
        assert (error.data["written_bytes"], error.data["uncertain_bytes"]) == (2, 3)
        await daemon.call("sandbox.terminate", sandbox_id="box")


# -- what is remembered, and for how long -----------------------------------------------------------------------------


async def test_commands_are_forgotten_after_a_day(state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with inside(state_dir) as daemon:
        await daemon.call("sandbox.create", image_id=await daemon.image(source), name="box")
        await daemon.call("process.launch", sandbox_id="box", name="p", command=["cat"], stdin=True)
        exec_ = {"sandbox_id": "box", "command": "true", "command_id": "c"}
        write = {"sandbox_id": "box", "name": "p", "data": b"x", "command_id": "d"}
        first = (await daemon.call("sandbox.exec", **exec_)).process_id
        await daemon.call("process.write_stdin", **write)
        for hours, same in ((23.9, True), (24.1, False)):
            for module in ("sandkeepd.api.repeated_commands", "sandkeep_store.eventlog.eventless_commands"):
                monkeypatch.setattr(f"{module}.now_us", lambda at=hours: _now() + int(at * 3600e6))
            assert ((await daemon.call("sandbox.exec", **exec_)).process_id == first) is same
            assert (daemon.core.log.commands.find("uid:0", "d") is not None) is same
        await daemon.call("sandbox.terminate", sandbox_id="box")


def _now() -> int:
    from sandkeep.protocol.clock import now_us

    return now_us()


async def test_what_is_remembered_beside_the_log_may_be_lost(state_dir: str) -> None:
    """A damaged file is begun anew, and the daemon works on."""
    async with inside(state_dir) as daemon:
        await daemon.call("stream.access", renew=True, command_id="c")
    Path(state_dir, "commands.db").write_bytes(b"nonsense" * 1000)
    for end in ("-wal", "-shm"):
        Path(state_dir, f"commands.db{end}").unlink(missing_ok=True)
    async with inside(state_dir) as daemon:
        await daemon.call("stream.access", renew=True, command_id="c")
        assert daemon.core.log.commands.find("uid:0", "c") is not None


async def test_what_cannot_be_remembered_is_not_done(state_dir: str, source: str) -> None:
    """But for stopping the daemon, which a full disk must not prevent."""
    async with inside(state_dir) as daemon:
        await daemon.call("sandbox.create", image_id=await daemon.image(source), name="box")
        await daemon.call("process.launch", sandbox_id="box", name="p", command=["cat"], stdin=True)
        os.mkdir(f"{state_dir}/commands.db")
        write = {"sandbox_id": "box", "name": "p", "data": b"x"}
        await refused_async("storage_unavailable", daemon.call("process.write_stdin", **write, command_id="c"))
        assert (await daemon.call("sandbox.exec", sandbox_id="box", command="true", command_id="d")).exit_code == 0
        await daemon.call("daemon.shutdown", command_id="e")
        os.rmdir(f"{state_dir}/commands.db")
        assert (await daemon.call("process.write_stdin", **write, command_id="c")).written_bytes == 1
        await daemon.call("sandbox.terminate", sandbox_id="box")

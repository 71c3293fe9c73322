"""The protocol of cloud-run-sandbox, as its clients speak it, over TLS with a token in the address, and over the Unix
socket.
"""

import base64
import io
import os
import re
import socket
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
from tests.conftest import RunningDaemon
from tests.support.expect import refused, until, until_async
from tests.support.patience import patient
from tests.support.sharing import of_directory
from tests.support.streams import everything, message, refusal, websocket

from sandkeep import events
from sandkeep.compat import cloud_run
from sandkeep.errors import CallerError, StateError
from sandkeep.protocol.frames import parse_target
from sandkeepd.core.peer import Peer
from sandkeepd.stream.authentication import RefusedError
from sandkeepd.stream.cloud_run import GUESTS, MAX_CODE_BYTES, Conversation, Guest
from sandkeepd.stream.server import StreamServer
from sandkeepd.stream.session import Client
from sandkeepd.stream.tokens import Tokens

pytestmark = pytest.mark.needs("bwrap", "root")


class Server:
    """A daemon that speaks it, and the ways to it."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self.daemon = daemon
        self.start()

    def start(self) -> None:
        self.daemon.start()
        with self.daemon.connect() as client:
            access = client.stream.access()
        self.address, self.token, self.pin = access.addresses[0], access.token, access.pin
        self.advertised = f"{self.address.replace('127.0.0.1', 'localhost')}#{self.pin}"

    @asynccontextmanager
    async def open(self, path: str, *, password: str | None = "") -> AsyncIterator[Any]:
        """A websocket, with the user's token as the password of an address, or without."""
        sock = socket.create_connection(("127.0.0.1", int(self.address.rpartition(":")[2])))
        basic = base64.b64encode(f"any:{password or self.token}".encode())
        headers = [(b"Authorization", b"Basic " + basic)] if password is not None else []
        async with websocket(sock, path, tls=True, headers=headers) as connection:
            yield connection


class Talk:
    """One client's side of a conversation."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.id = self.token = ""

    async def send(self, **said: Any) -> None:
        await self.connection.send_message(msgspec.json.encode(said).decode())

    async def until(self, status: str) -> list[Any]:
        """Messages up to one of a status."""
        got = []
        with trio.fail_after(patient(60)):
            while True:
                got.append(await message(self.connection))
                if got[-1].get("status") == status:
                    return got

    async def created(self, **options: Any) -> "Talk":
        await self.send(**options)
        got = await self.until("SANDBOX_RUNNING")
        locked = ["SANDBOX_LOCK_ACQUIRING", "SANDBOX_LOCK_ACQUIRED"] if options.get("enable_sandbox_handoff") else []
        assert [one.get("status", one["event"]) for one in got] == [
            "SANDBOX_CREATING", *locked, "sandbox_id", "SANDBOX_RUNNING"
        ]  # fmt: skip
        self.id, self.token = got[-2]["sandbox_id"], got[-2]["sandbox_token"]
        return self

    async def run(self, code: str, language: str = "bash") -> tuple[str, str, int]:
        await self.send(language=language, code=code)
        got = await self.until("SANDBOX_EXECUTION_DONE")
        assert got[0]["status"] == "SANDBOX_EXECUTION_RUNNING"
        out, err = ("".join(one["data"] for one in got if one["event"] == name) for name in ("stdout", "stderr"))
        return out, err, got[-1]["exit_code"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def servers(places: str) -> Iterator[list[Server]]:
    root = Path(tempfile.mkdtemp(dir=places))
    os.chmod(root, 0o711)
    (root / "image").mkdir()
    made = []
    for name in ("a", "b"):
        (root / name).mkdir()
        os.chmod(root / name, 0o711)
        daemon = RunningDaemon(str(root / name))
        port = free_port()
        daemon.env |= {
            "SANDKEEP_STREAM": f"tls://127.0.0.1:{port}", "SANDKEEP_CLOUD_RUN_IMAGE": str(root / "image"),
            "SANDKEEP_STREAM_ADVERTISED": f"tls://localhost:{port}",
        }  # fmt: skip
        daemon.env |= (
            of_directory(root) if not made else {k: v for k, v in made[0].daemon.env.items() if "_MOUNT_" in k}
        )
        made.append(Server(daemon))
    yield made
    said = [server.daemon.said() for server in made]
    for server in made:
        server.daemon.clear()
    assert "defect" not in "".join(said)


@pytest.fixture
def server(servers: list[Server]) -> Server:
    return servers[0]


async def test_code_runs_with_input_and_its_output_is_whole_text(server: Server) -> None:
    async with server.open("/create") as connection:
        talk = await Talk(connection).created(idle_timeout=300)
        assert len(talk.token) == 32
        assert await talk.run("echo out; echo err >&2; exit 3") == ("out\n", "err\n", 3)
        await talk.send(language="python", code="import time\nfor n in range(9): print(n); time.sleep(0.1)")
        pieces = [one["data"] for one in await talk.until("SANDBOX_EXECUTION_DONE") if one["event"] == "stdout"]
        assert "".join(pieces) == "".join(f"{number}\n" for number in range(9))
        assert pieces.count("\n") <= 2  # a line and its end, which a busy machine may part
        assert (await talk.run("print('é' * 50000, end='')", "python"))[0] == "é" * 50000
        await talk.send(language="bash", code="read line; echo got $line")
        await talk.until("SANDBOX_EXECUTION_RUNNING")
        await talk.send(language="bash", code="true")
        assert "already in progress" in (await talk.until("SANDBOX_EXECUTION_ERROR"))[-1]["message"]
        await talk.send(event="stdin", data="some input\n")
        got = await talk.until("SANDBOX_EXECUTION_DONE")
        assert {"event": "stdout", "data": "got some input\n"} in got
        await talk.send(event="stdin", data="late")
        await talk.until("SANDBOX_STDIN_ERROR")
        await talk.send(language="cobol", code="STOP RUN.")
        await talk.until("SANDBOX_EXECUTION_UNSUPPORTED_LANGUAGE_ERROR")
        for nonsense in ("{", "[]", '"x"', '{"language": 7}', "{}", b"{}", b'{"\xff'):
            await connection.send_message(nonsense)
            await talk.until("SANDBOX_EXECUTION_ERROR")
        for code, why in (("#" * (MAX_CODE_BYTES + 1), "longer"), ("\0", "command")):
            await talk.send(language="bash", code=code)
            refused = (await talk.until("SANDBOX_EXECUTION_ERROR"))[-1]["message"]
            assert why in refused
            assert await message(connection) == {"event": "error", "message": refused}
        assert await talk.run("#" * MAX_CODE_BYTES) == ("", "", 0)
        await talk.send(language="bash", code="sleep 1000")
        await talk.until("SANDBOX_EXECUTION_RUNNING")
        await talk.send(action="kill_process")
        assert (await talk.until("SANDBOX_EXECUTION_DONE"))[-1]["exit_code"] == 137
        await talk.send(action="kill_sandbox")
        told, code = await everything(connection)
    assert ([one["status"] for one in told][-2:], code) == (["SANDBOX_KILLING", "SANDBOX_KILLED"], 1000)


async def test_who_comes_back_gets_the_output_from_where_it_was(server: Server) -> None:
    async with server.open("/create") as connection:
        talk = await Talk(connection).created()
        await talk.send(language="bash", code="echo 1; while [ ! -e go ]; do sleep 0.05; done; echo 2")
        first = await talk.until("SANDBOX_EXECUTION_RUNNING")
        first.append(await message(connection))
    target = f"/attach/{talk.id}?sandbox_token={talk.token}"
    async with server.open(target, password=None) as connection:  # the sandbox's token is enough
        again = Talk(connection)
        await again.until("SANDBOX_RUNNING")
        async with server.open(target) as other:
            told, code = await everything(other)
        assert ([one.get("status") for one in told], code) == (["SANDBOX_IN_USE", None], 1011)
        await again.send(action="reconnect")
        with server.daemon.connect() as client:
            client.sandbox.exec(talk.id, "touch go")
        rest = await again.until("SANDBOX_EXECUTION_DONE")
        said = "".join(one["data"] for one in (*first, *rest) if one["event"] == "stdout")
        assert said == "1\n2\n"
        await again.send(action="reconnect")  # nothing runs: nothing is wrong
        assert (await again.run("echo more"))[0] == "more\n"
        await again.send(action="kill_sandbox")
        await everything(connection)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/attach/sandbox-none?sandbox_token=" + "0" * 32, "SANDBOX_NOT_FOUND", 1011),
        ("/attach/sandbox-none?sandbox_token=any", "SANDBOX_NOT_FOUND", 1011),
        ("/attach/sandbox-none", "SANDBOX_PERMISSION_DENIAL_ERROR", 4000),
        ("/attach/ID?sandbox_token=any", "SANDBOX_PERMISSION_DENIAL_ERROR", 4000),
        ("/attach/ID?sandbox_token=" + "0" * 32, "SANDBOX_PERMISSION_DENIAL_ERROR", 4000),
        ("/attach/ID", "SANDBOX_PERMISSION_DENIAL_ERROR", 4000),
    ],
)
async def test_who_has_not_the_token_gets_nothing(server: Server, path: str, status: str, code: int) -> None:
    async with server.open("/create") as connection:
        talk = await Talk(connection).created()
        async with server.open(path.replace("ID", talk.id)) as other:
            told, found = await everything(other)
        assert (next(one["status"] for one in told if one.get("message")), found) == (status, code)
        assert told[-1]["event"] == "error"
        async with server.open(path.replace("ID", talk.id), password=None) as other:
            assert refusal(other)[0] == 401
        assert (await talk.run("echo here"))[0] == "here\n"
        await talk.send(action="kill_sandbox")
        await everything(connection)


async def test_a_snapshot_of_files_begins_another_sandbox_at_any_daemon(servers: list[Server]) -> None:
    """It is found by its name in the store, and holds `/tmp` as well. What it begins can be saved like any other."""
    server, other_server = servers
    async with server.open("/create") as connection:
        talk = await Talk(connection).created()
        await talk.run(
            "echo kept >file; mkdir -p a/b; ln file a/b/hard; ln -s file soft; echo there >/tmp/aside; echo home >~/own"
        )
        for name in ("../../etc", "", "a b"):
            await talk.send(action="snapshot_filesystem", name=name)
            await talk.until("SANDBOX_FILESYSTEM_SNAPSHOT_ERROR")
            assert (await message(connection))["event"] == "error"
        for content in ("first", "second"):  # the second replaces the first
            await talk.run(f"echo {content} >/tmp/which")
            await talk.send(action="snapshot_filesystem", name="first")
            await talk.until("SANDBOX_FILESYSTEM_SNAPSHOT_CREATED")
        archive = Path(server.daemon.env["FILESYSTEM_SNAPSHOT_MOUNT_PATH"], "filesystem_snapshots/first/first.tar")
        with tarfile.open(archive) as tar:
            assert {"workspace/file", "tmp/aside", "home/sandbox/own"} <= set(tar.getnames())
        for at in servers:
            async with at.open("/create") as connected:
                restored = await Talk(connected).created(
                    filesystem_snapshot_name="first", idle_timeout=77, enable_checkpoint=True
                )
                assert (await restored.run("cat file a/b/hard soft /tmp/aside ~/own /tmp/which"))[0] == (
                    "kept\nkept\nkept\nthere\nhome\nsecond\n"
                )
                with at.daemon.connect() as client:
                    assert client.sandbox.get(restored.id).spec.idle_timeout_s == 77
                await restored.send(action="kill_sandbox")
                await everything(connected)
        async with other_server.open("/create") as connected:
            await Talk(connected).send(filesystem_snapshot_name="none")
            told, code = await everything(connected)
        assert (told[-2]["status"], code) == ("SANDBOX_CREATION_ERROR", 4000)
        with server.daemon.connect() as client:
            snapshot = client.snapshot.list(name="first").snapshots[-1]
            error = refused("not_supported", client.snapshot.restore, snapshot.snapshot_id)
            assert "export" in error.message
        await talk.send(action="kill_sandbox")
        await everything(connection)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("upstream/upstream.tar", {"tmp/made": "there", "tmp/sandbox_token": "secret", "./workspace/deep/file": "in"}),
        ("upstream.tar.gz", {"tmp/made": "there", "workspace/deep/file": "in"}),
    ],
)
async def test_snapshots_of_other_programs_are_found_by_their_layouts(
    server: Server, path: str, names: dict[str, str]
) -> None:
    """As `runsc tar rootfs-upper` writes them: with devices for what was deleted, and directories that are there."""
    archive = Path(server.daemon.env["FILESYSTEM_SNAPSHOT_MOUNT_PATH"], "filesystem_snapshots", path)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz" if path.endswith("gz") else "w") as tar:
        for directory in (".", "etc", "workspace"):
            tar.addfile(directory_called(directory))
        gone = tarfile.TarInfo("usr/bin/gone")
        gone.type = tarfile.CHRTYPE
        tar.addfile(gone)
        for name, content in names.items():
            tar.addfile(sized(name, content), io.BytesIO(content.encode()))
    async with server.open("/create") as connection:
        talk = await Talk(connection).created(filesystem_snapshot_name="upstream")
        assert (await talk.run("cat /tmp/made deep/file; ls /tmp"))[0] == "therein" + "made\n"
        await talk.send(action="kill_sandbox")
        await everything(connection)
    archive.unlink()


async def test_what_the_sandbox_may_not_write_is_refused_with_the_reason(server: Server) -> None:
    for name, why in (("usr/lib/installed", "Permission denied|Read-only"), ("file", "root directory")):
        archive = Path(server.daemon.env["FILESYSTEM_SNAPSHOT_MOUNT_PATH"], "filesystem_snapshots/other.tar.gz")
        archive.parent.mkdir(exist_ok=True)
        with tarfile.open(archive, "w:gz") as tar:
            tar.addfile(sized(name, "x"), io.BytesIO(b"x"))
        async with server.open("/create") as connection:
            await Talk(connection).send(filesystem_snapshot_name="other")
            told, code = await everything(connection)
        assert (told[-2]["status"], code) == ("SANDBOX_CREATION_ERROR", 4000)
        assert re.search(why, told[-1]["message"], re.IGNORECASE), told[-1]
        archive.unlink()


def directory_called(name: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.mode = tarfile.DIRTYPE, 0o755
    return made


def sized(name: str, content: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size = len(content)
    return made


async def test_without_a_place_for_snapshots_none_is_kept(new_daemon: Any, tmp_path: Path) -> None:
    """Neither here nor elsewhere: it fails at once. So do checkpoints."""
    daemon = new_daemon()
    (tmp_path / "image").mkdir()
    daemon.env |= {"SANDKEEP_STREAM": "tls://127.0.0.1:0", "SANDKEEP_CLOUD_RUN_IMAGE": str(tmp_path / "image")}
    server = Server(daemon)
    async with server.open("/create") as connection:
        talk = await Talk(connection).created()
        await talk.send(action="snapshot_filesystem", name="kept")
        told = await talk.until("SANDBOX_FILESYSTEM_SNAPSHOT_ERROR")
        assert [one["status"] for one in told] == [
            "SANDBOX_FILESYSTEM_SNAPSHOT_CREATING", "SANDBOX_FILESYSTEM_SNAPSHOT_ERROR"
        ]  # fmt: skip
        assert "FILESYSTEM_SNAPSHOT_BUCKET" in told[-1]["message"]
        assert (await message(connection))["event"] == "error"
        with daemon.connect() as client:
            assert client.snapshot.list(all=True).snapshots == []
        await talk.send(action="checkpoint")
        told, code = await everything(connection)
        assert [one.get("status") for one in told] == ["SANDBOX_CHECKPOINTING", "SANDBOX_CHECKPOINT_ERROR", None]
        assert code == 4000
    for options in ({"filesystem_snapshot_name": "kept"}, {"enable_checkpoint": True}):
        async with server.open("/create") as connection:
            await Talk(connection).send(**options)
            told, code = await everything(connection)
        assert ([one.get("status") for one in told], code) == (
            ["SANDBOX_CREATING", "SANDBOX_CREATION_ERROR", None],
            4000,
        )
    async with server.open(f"/attach/sandbox-none?sandbox_token={talk.token}") as connection:
        told, code = await everything(connection)
    assert ([one.get("status") for one in told], code) == (["SANDBOX_NOT_FOUND", None], 1011)


async def test_a_checkpointed_one_is_attached_again(server: Server) -> None:
    async with server.open("/create") as connection:
        talk = await Talk(connection).created(enable_checkpoint=True)
        await talk.run("echo kept >file")
        await talk.send(action="checkpoint")
        told, code = await everything(connection)
    assert [one["status"] for one in told] == [
        "SANDBOX_CHECKPOINTING", "SANDBOX_DELETING", "SANDBOX_DELETED", "SANDBOX_CHECKPOINTED"
    ]  # fmt: skip
    assert code == 1000
    async with server.open(f"/attach/{talk.id}?sandbox_token={talk.token}") as connection:
        again = Talk(connection)
        got = await again.until("SANDBOX_RUNNING")
        assert [one["status"] for one in got] == ["SANDBOX_RESTORING", "SANDBOX_RUNNING"]
        assert (await again.run("cat file"))[0] == "kept\n"
        await again.send(language="bash", code="sleep 1000")
        await again.until("SANDBOX_EXECUTION_RUNNING")
        await again.send(action="checkpoint")
        told = await again.until("SANDBOX_EXECUTION_IN_PROGRESS_ERROR")
        assert [one["status"] for one in told] == ["SANDBOX_CHECKPOINTING", "SANDBOX_EXECUTION_IN_PROGRESS_ERROR"]
        await again.send(action="kill_sandbox")
        await everything(connection)


async def test_one_whose_checkpoint_is_gone_is_not_restored(server: Server) -> None:
    async with server.open("/create") as connection:
        talk = await Talk(connection).created(enable_checkpoint=True)
        await talk.send(action="checkpoint")
        await everything(connection)
    archives = Path(server.daemon.env["FILESYSTEM_SNAPSHOT_MOUNT_PATH"]).rglob("snp_*.tar*")
    max(archives, key=lambda path: path.stat().st_mtime_ns).unlink()
    async with server.open(f"/attach/{talk.id}?sandbox_token={talk.token}") as connection:
        with trio.fail_after(patient(60)):
            told, code = await everything(connection)
    assert ([one.get("status") for one in told], code) == (["SANDBOX_RESTORING", "SANDBOX_RESTORE_ERROR", None], 4000)


async def test_a_handover_is_told_and_where_it_goes_on(servers: list[Server]) -> None:
    one, other = servers
    async with one.open("/create") as connection:
        talk = await Talk(connection).created(enable_sandbox_handoff=True)
        await talk.run("echo mine >mine")
        await talk.send(language="bash", code="sleep 1000")
        await talk.until("SANDBOX_EXECUTION_RUNNING")
        async with other.open(f"/attach/{talk.id}?sandbox_token={talk.token}") as there:
            again = Talk(there)
            got = await again.until("SANDBOX_RUNNING")
            assert [one["status"] for one in got] == [
                "SANDBOX_RESTORING", "SANDBOX_LOCK_ACQUIRING", "SANDBOX_LOCK_ACQUIRED", "SANDBOX_RUNNING"
            ]  # fmt: skip
            told, code = await everything(connection)
            assert [message["status"] for message in told] == [
                "SANDBOX_LOCK_RELEASE_REQUESTED", "SANDBOX_CHECKPOINTING", "SANDBOX_EXECUTION_FORCE_KILLED",
                "SANDBOX_DELETING", "SANDBOX_LOCK_RELEASING", "SANDBOX_LOCK_RELEASED", "SANDBOX_DELETED",
                "SANDBOX_CHECKPOINTED",
            ]  # fmt: skip
            assert code == 1000
            assert told[-1]["moved_to"] == [other.advertised]
            target = f"/attach/{talk.id}?sandbox_token="
            for password in (None, "none"):
                async with one.open(target + talk.token, password=password) as left:
                    assert await everything(left) == (told[-1:], 1000)
            async with one.open(target + "0" * 32, password=None) as stranger:
                assert refusal(stranger)[0] == 401
            assert (await again.run("cat mine"))[0] == "mine\n"
            await again.send(action="kill_sandbox")
            await everything(there)


async def test_a_kill_after_the_handover_is_refused_and_the_sandbox_goes_on(servers: list[Server]) -> None:
    one, other = servers
    async with one.open("/create") as connection:
        talk = await Talk(connection).created(enable_sandbox_handoff=True)
        async with other.open(f"/attach/{talk.id}?sandbox_token={talk.token}") as there:
            await talk.until("SANDBOX_DELETED")
            await talk.send(action="kill_sandbox")
            told, code = await everything(connection)
            assert [message.get("status") for message in told] == [
                "SANDBOX_KILLING", "SANDBOX_KILL_ERROR", None, "SANDBOX_CHECKPOINTED"
            ]  # fmt: skip
            assert code == 1000
            again = Talk(there)
            await again.until("SANDBOX_RUNNING")
            assert await again.run("echo on") == ("on\n", "", 0)
            await again.send(action="kill_sandbox")
            await everything(there)


@contextmanager
def without_snapshots(server: Server) -> Iterator[None]:
    """Let all hand-overs fail."""
    directory = Path(server.daemon.env["FILESYSTEM_SNAPSHOT_MOUNT_PATH"])
    aside = directory.rename(f"{directory}.aside")
    directory.touch()
    try:
        yield
    finally:
        directory.unlink()
        aside.rename(directory)


def detach(server: Server, sandbox_id: str) -> None:
    with server.daemon.connect() as client:
        client.sandbox.detach(sandbox_id)


def lock_of(server: Server, sandbox_id: str) -> Any:
    with server.daemon.connect() as client:
        return next(lock for lock in client.lock.list().locks if lock.name == sandbox_id)


async def test_what_is_told_to_be_killed_runs_nowhere(server: Server) -> None:
    async with server.open("/create") as connection:
        talk = await Talk(connection).created(enable_sandbox_handoff=True)
        await talk.send(language="bash", code="echo $$; sleep 1000")
        await talk.until("SANDBOX_EXECUTION_RUNNING")
        await message(connection)
        with without_snapshots(server), pytest.raises(StateError) as failed:
            await trio.to_thread.run_sync(detach, server, talk.id)
        assert failed.value.code == "conflict"
        told = await talk.until("SANDBOX_RUNNING")
        assert [one["status"] for one in told] == [
            "SANDBOX_CHECKPOINTING", "SANDBOX_EXECUTION_FORCE_KILLED", "SANDBOX_RUNNING"
        ]  # fmt: skip
        with server.daemon.connect() as client:
            assert [one.exit_code for one in client.process.list(talk.id, all=True).processes] == [137]
        assert await talk.run("echo on") == ("on\n", "", 0)
        await talk.send(action="kill_sandbox")
        await everything(connection)


@pytest.mark.needs("runsc")
async def test_what_is_told_to_be_killed_does_not_go_on_from_memory(new_daemon: Any, tmp_path: Path) -> None:
    daemons, settings = [new_daemon(), new_daemon()], of_directory(tmp_path)
    (tmp_path / "empty").mkdir()
    servers = []
    for daemon in daemons:
        daemon.env |= {**settings, "SANDKEEP_STREAM": "tls://127.0.0.1:0"}
        daemon.start()
        with daemon.connect() as client:
            image = client.image.create(str(tmp_path / "empty"), provider="gvisor").image_id
        daemon.stop()
        daemon.env["SANDKEEP_CLOUD_RUN_IMAGE"] = image
        servers.append(Server(daemon))
    async with servers[0].open("/create") as connection:
        talk = await Talk(connection).created(enable_sandbox_handoff=True)
        await talk.send(language="bash", code="while sleep 0.05; do echo on >>file; done")
        await talk.until("SANDBOX_EXECUTION_RUNNING")
        await trio.to_thread.run_sync(take, servers[1], talk.id, talk.token)
        told, _ = await everything(connection)
        assert "SANDBOX_EXECUTION_FORCE_KILLED" in [one["status"] for one in told]
    with daemons[1].connect() as client:
        assert client.process.list(talk.id).processes == []
        client.sandbox.terminate(talk.id)


async def test_a_sandbox_that_is_being_handed_over_is_not_resumed(server: Server) -> None:
    async with server.open("/create") as connection:
        talk = await Talk(connection).created(enable_sandbox_handoff=True)
        await talk.run("head -c 30000000 /dev/urandom >file")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, detach, server, talk.id)
            await talk.until("SANDBOX_CHECKPOINTING")
            await talk.send(language="bash", code="touch late")
            assert "being saved" in (await talk.until("SANDBOX_EXECUTION_ERROR"))[-1]["message"]
            async with server.open(f"/attach/{talk.id}?sandbox_token={talk.token}", password=None) as other:
                assert lock_of(server, talk.id).status == "handing_over"
                told, code = await everything(other)
    assert ([one["status"] for one in told], code) == (["SANDBOX_CHECKPOINTED"], 1000)


async def test_actions_come_one_at_a_time(server: Server) -> None:
    async with server.open("/create") as connection:
        talk = await Talk(connection).created()
        await talk.run("head -c 10000000 /dev/urandom >file")
        for _ in range(20):
            await talk.send(action="snapshot_filesystem", name="busy")
        told = await talk.until("SANDBOX_FILESYSTEM_SNAPSHOT_CREATED")
        refused = [one for one in told if one.get("status") == "SANDBOX_FILESYSTEM_SNAPSHOT_ERROR"]
        assert len(refused) == 19
        assert "in progress" in refused[0]["message"]
        await talk.send(language="bash", code="read line; echo $line")
        for _ in range(20):
            await talk.send(action="reconnect")
        await talk.send(event="stdin", data="once\n")
        told = await talk.until("SANDBOX_EXECUTION_DONE")
        assert [one.get("status") or one["data"] for one in told] == [
            "SANDBOX_EXECUTION_RUNNING", "once\n", "SANDBOX_EXECUTION_DONE"
        ]  # fmt: skip
        for _ in range(2):
            await talk.send(action="kill_sandbox")
        told, code = await everything(connection)
    assert ([one.get("status") for one in told], code) == (
        ["SANDBOX_KILLING", "SANDBOX_KILL_ERROR", None, "SANDBOX_KILLED"], 1000
    )  # fmt: skip


async def test_a_kill_beside_a_checkpoint_that_fails_is_a_kill(server: Server) -> None:
    async with server.open("/create") as connection:
        talk = await Talk(connection).created(enable_checkpoint=True)
        with without_snapshots(server):
            await talk.send(action="checkpoint")
            await talk.send(action="kill_sandbox")
            told, code = await everything(connection)
    assert (told[-1]["status"], code) == ("SANDBOX_KILLED", 1000)


async def test_a_command_that_reads_no_input_can_be_killed(server: Server) -> None:
    async with server.open("/create") as connection:
        talk = await Talk(connection).created()
        await talk.send(language="bash", code="sleep 1000")
        await talk.until("SANDBOX_EXECUTION_RUNNING")
        for _ in range(3):
            await talk.send(event="stdin", data="x" * 200_000)
        await talk.send(action="kill_process")
        await talk.until("SANDBOX_EXECUTION_DONE")
        await talk.send(action="kill_sandbox")
        await everything(connection)


async def test_another_ones_snapshot_keeps_its_name(server: Server) -> None:
    async with server.open("/create") as one, server.open("/create") as other:
        first, second = await Talk(one).created(), await Talk(other).created()
        for _ in range(2):  # its own may be replaced
            await first.send(action="snapshot_filesystem", name="owned")
            await first.until("SANDBOX_FILESYSTEM_SNAPSHOT_CREATED")
        await second.send(action="snapshot_filesystem", name="owned")
        told = await second.until("SANDBOX_FILESYSTEM_SNAPSHOT_ERROR")
        assert "choose another name" in told[-1]["message"]
        for talk in (first, second):
            await talk.send(action="kill_sandbox")
            await everything(talk.connection)


async def test_a_sandbox_that_nobody_knows_is_ended(server: Server) -> None:
    def sandboxes() -> dict[str, str]:
        with server.daemon.connect() as client:
            return {one.sandbox_id: one.status for one in client.sandbox.list(all=True).sandboxes}

    before = sandboxes()
    async with server.open("/create") as connection:
        await Talk(connection).send(idle_timeout=0, enable_checkpoint=True)
        await Talk(connection).until("SANDBOX_CREATING")
        connection.wire.cut()
    await until_async(lambda: sandboxes().keys() != before.keys())
    [made] = sandboxes().keys() - before.keys()
    await until_async(lambda: sandboxes()[made] == "stopped")


async def test_a_binary_first_message_is_refused(server: Server) -> None:
    async with server.open("/create") as connection:
        await connection.send_message(b'{"\xff')
        told, code = await everything(connection)
    assert (told[0]["status"], code) == ("SANDBOX_CREATION_ERROR", 4000)
    assert "text" in told[0]["message"]


def test_guests_of_a_sandbox_are_few_and_not_counted_as_their_host(tmp_path: Path) -> None:
    server, peer, target = StreamServer({}, Tokens(str(tmp_path))), Peer(uid=0, gid=0), parse_target("/attach/x")
    with ExitStack() as stack:
        for _ in range(GUESTS):
            stack.enter_context(server._count_connection(Guest(peer, target, "sandbox")))
        with pytest.raises(RefusedError) as refused, server._count_connection(Guest(peer, target, "sandbox")):
            pass
        assert refused.value.status == 429
        for other in (Guest(peer, target, "another"), Client(peer, target)):
            stack.enter_context(server._count_connection(other))
    assert server.connections == 0


async def test_a_client_that_does_not_read_is_told_the_end() -> None:
    heard: list[Any] = []
    core: Any = SimpleNamespace(log=SimpleNamespace(on_commit=heard))
    talk = Conversation(SimpleNamespace(core=core), Client(Peer(uid=0, gid=0), parse_target("/create")), None)  # type: ignore[arg-type]
    for _ in range(5000):
        talk._committed([SimpleNamespace(sandbox_id="", event=events.LockHandoverFailed(code="", message=""))])  # type: ignore[list-item]
    talk._committed([SimpleNamespace(sandbox_id="", event=events.SandboxTerminated(reason=""))])  # type: ignore[list-item]
    told: list[Any] = []

    async def note(event: Any) -> None:
        told.append(event)
        if isinstance(event, events.SandboxTerminated):
            over.cancel()

    talk._tell_of = note  # type: ignore[method-assign]
    with trio.move_on_after(patient(60)) as over:
        await talk._tell_of_events()
    assert len(told) < 1000
    assert isinstance(told[-1], events.SandboxTerminated)


def take(server: Server, sandbox_id: str, token: str) -> str:
    with server.daemon.connect() as client:
        return str(client.sandbox.attach_shared(sandbox_id, token, timeout_s=patient(60)).sandbox_id)


def take_from(server: Server, other: Server, sandbox: cloud_run.CloudRunSandbox) -> None:
    """Take a sandbox in which a command runs, by another daemon."""
    with server.daemon.connect() as client:
        until(lambda: client.process.list(sandbox.sandbox_id).processes)
    take(other, sandbox.sandbox_id, sandbox.sandbox_token)


async def test_a_client_that_follows_goes_on_where_its_sandbox_does(servers: list[Server]) -> None:
    one, other = servers
    async with cloud_run.create(one.address, one.token, pin=one.pin, enable_sandbox_handoff=True) as sandbox:
        result = await sandbox.run("bash", "read line; echo $line >file; echo said >&2; exit 3", "kept\n")
        assert result == cloud_run.Result("", "said\n", 3)
        for server in (other, one):
            await trio.to_thread.run_sync(take, server, sandbox.sandbox_id, sandbox.sandbox_token)
            assert (await sandbox.run("bash", "cat file")).stdout == "kept\n"
            assert sandbox.address == server.advertised
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, take_from, one, other, sandbox)
            with pytest.raises(StateError, match="killed") as killed:
                await sandbox.run("bash", "sleep 1000")
        assert killed.value.data["moved_to"] == [sandbox.address] != [one.address]
        await sandbox.snapshot("followed")
        await sandbox.checkpoint()
        with pytest.raises(StateError) as ended:
            await sandbox.run("bash", "true")
        assert ended.value.code == "not_ready"
    known = (sandbox.sandbox_id, sandbox.sandbox_token, one.token)
    async with cloud_run.attach(one.address, *known, pin=one.pin) as again:
        assert (await again.run("python", "print(open('file').read())")).stdout == "kept\n\n"
        with pytest.raises(StateError) as busy:
            async with cloud_run.attach(one.address, sandbox.sandbox_id, sandbox.sandbox_token, pin=one.pin):
                pass
        assert busy.value.code == "in_use"
        await again.kill()
    with pytest.raises(StateError, match="cannot be reached"):
        async with cloud_run.attach(f"tls://none.invalid:1#{one.pin}", "any", "0" * 32):
            pass
    with pytest.raises(CallerError, match="sandbox-none"):
        async with cloud_run.attach(one.address, "sandbox-none", "0" * 32, one.token, pin=one.pin):
            pass


async def test_a_client_sends_its_token_to_no_other_server(servers: list[Server]) -> None:
    one, other = servers
    async with cloud_run.create(one.address, one.token, pin=one.pin, enable_sandbox_handoff=True) as sandbox:
        with pytest.raises(CallerError, match="pinned"):
            async with cloud_run.attach(f"{one.address}#{other.pin}", sandbox.sandbox_id, sandbox.sandbox_token):
                pass
        await sandbox.kill()


async def test_it_is_off_until_it_is_set(new_daemon: Any) -> None:
    daemon = new_daemon()
    daemon.env["SANDKEEP_STREAM"] = "tls://127.0.0.1:0"
    server = Server(daemon)
    async with server.open("/create") as connection:
        assert refusal(connection) == (404, "not_found")

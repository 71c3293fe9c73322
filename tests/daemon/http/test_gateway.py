"""The gateway under clients that leave, do not read, or lose their key, with a daemon that answers as the test says."""

import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from tests.support.expect import refused, until_async
from tests.support.patience import patient

from sandkeep.errors import CallerError, DataError, SandkeepError, StateError
from sandkeep.model import ExecResult, Session, SessionSpec
from sandkeep.protocol.methods import KeyRef, SandboxExec, SessionClose
from sandkeep_store.views.state import State
from sandkeepd.core.access import own_request
from sandkeepd.core.call import Call
from sandkeepd.core.peer import Peer
from sandkeepd.core.quotas import SPARE_CALLS, Quotas
from sandkeepd.http import exchange, files, gateway, views
from sandkeepd.http.bodies import SessionBody
from sandkeepd.http.exchange import Asked
from sandkeepd.http.gateway import Gateway
from sandkeepd.http.keys import Keys
from sandkeepd.http.routes import ROWS
from sandkeepd.http.server import HttpServer, Limits
from sandkeepd.http.sessions import ensure_problem
from sandkeepd.serving.holdings import Holdings

OUTPUT = ExecResult(
    process_id="prc_1", sandbox_id="sbx_1", exit_code=0, timed_out=False, status="exited", stdout=bytes(1 << 20),
    stderr=b"", stdout_bytes=1 << 20, stderr_bytes=0, stdout_truncated=False, stderr_truncated=False, duration_s=0.0,
)  # fmt: skip
ANSWER_BYTES = 6 << 20
"""Size of that as JSON, where a null byte has six."""

BODY = b'{"command":"true"}'


class Served:
    """A gateway on a Unix socket, with the key `ci`. `answer` answers its calls, which are in `calls`; `ended` are
    those that came to their end.
    """

    def __init__(self, path: str, uid: int, holdings: Holdings, keys: Keys, key: str) -> None:
        self.path = path
        self.uid = uid
        self.holdings = holdings
        self.keys = keys
        self.key = key
        self.calls: list[Call] = []
        self.ended: list[Call] = []
        self.go_on = trio.Event()
        self.gateway: Gateway
        self.answer: Callable[[Call], Any] = lambda _: OUTPUT
        self.immediate: dict[str, Any] = {}

    async def __call__(self, call: Call) -> Any:
        self.calls.append(call)
        await self.go_on.wait()
        self.ended.append(call)
        return self.answer(call)

    def head(self, verb: str, path: str, more: str = "") -> bytes:
        return f"{verb} /api/sandbox{path} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {self.key}\r\n{more}\r\n".encode()

    def exec(self) -> bytes:
        """A request to run a command."""
        return self.head("POST", "/sessions/s/exec/", f"Content-Length: {len(BODY)}\r\n") + BODY

    async def ask(self, data: bytes) -> trio.SocketStream:
        """Send a request on a new connection."""
        stream = await trio.open_unix_socket(self.path)
        await stream.send_all(data)
        return stream

    async def status(self, data: bytes) -> int:
        """Send a request, and return the status of its answer; 0 for none."""
        async with await self.ask(data) as stream:
            answer = await stream.receive_some(4096)
        return int(answer.split()[1]) if answer else 0

    async def called(self, number: int) -> None:
        """Wait until so many calls have begun."""
        await until_async(lambda: len(self.calls) == number)


@asynccontextmanager
async def served(tmp_path: Path, limits: Limits | None = None, max_bytes: int = 1 << 30) -> AsyncIterator[Served]:
    path = f"{tmp_path}/sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    listener.setblocking(False)
    keys = Keys(str(tmp_path))
    key = await keys.create(SimpleNamespace(params=KeyRef(name="ci")))  # type: ignore[arg-type]
    found = Served(path, os.getuid(), Holdings(max_bytes), keys, key.key)
    async with trio.open_nursery() as tasks:
        core: Any = SimpleNamespace(
            start_task=lambda task, _: tasks.start_soon(task), quotas=SimpleNamespace(artifacts_of=lambda key: 7),
        )  # fmt: skip
        found.gateway = Gateway(core, found, keys, None, ROWS)  # type: ignore[arg-type]
        server = HttpServer(found.gateway.app, limits, found.holdings)
        await tasks.start(server.serve, listener)
        with trio.fail_after(patient(60)):
            yield found
        found.go_on.set()
        tasks.cancel_scope.cancel()


# -- clients that leave -----------------------------------------------------------------------------------------------


async def test_a_call_whose_client_has_left_goes_on_and_takes_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "MAX_REQUESTS", 1)
    async with served(tmp_path, Limits(connections=1)) as daemon:
        for number in range(1, 4):
            async with await daemon.ask(daemon.exec()):
                await daemon.called(number)
            await until_async(lambda: not daemon.gateway.requests["ci"])
        assert daemon.ended == []
        assert daemon.holdings.of(daemon.uid) >= 3 * len(BODY)
        daemon.go_on.set()
        await until_async(lambda: len(daemon.ended) == 3)
        assert await daemon.status(daemon.exec()) == 200
        await until_async(lambda: daemon.holdings.of(daemon.uid) == 0)


async def test_a_defect_is_on_record_though_the_client_has_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as daemon:
        daemon.answer = lambda _: 1 / 0
        async with await daemon.ask(daemon.exec()):
            await daemon.called(1)
        await until_async(lambda: not daemon.gateway.requests["ci"])
        daemon.go_on.set()
        await until_async(lambda: "ZeroDivisionError" in caplog.text)


async def test_a_key_has_turns_left_to_end_its_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "MAX_REQUESTS", 1)
    async with served(tmp_path) as daemon, await daemon.ask(daemon.exec()) as first:
        await daemon.called(1)
        assert await daemon.status(daemon.exec()) == 429
        async with await daemon.ask(daemon.head("DELETE", "/sessions/s/")) as second:
            await daemon.called(2)
            daemon.go_on.set()
            assert (await second.receive_some(4096)).split()[1] == b"204"
        assert (await first.receive_some(4096)).split()[1] == b"200"


def test_calls_that_end_sessions_have_room_beyond_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDKEEP_QUOTA", "calls=1")
    quotas = Quotas(State())
    run = own_request("key:ci", "sandbox.exec", SandboxExec(sandbox_id="s", command="true"))
    close = own_request("key:ci", "session.close", SessionClose(session_id="s"))
    with ExitStack() as calls:
        calls.enter_context(quotas.calling(run))
        refused("quota_exceeded", calls.enter_context, quotas.calling(run))
        for _ in range(SPARE_CALLS):
            calls.enter_context(quotas.calling(close))
        refused("quota_exceeded", calls.enter_context, quotas.calling(close))
    assert quotas.used("key:ci", "calls") == 0


async def test_the_calls_of_a_key_hold_only_so_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "MAX_BYTES", 10_000)
    async with served(tmp_path) as daemon:
        async with await daemon.ask(daemon.exec()):
            await daemon.called(1)
        assert await daemon.status(daemon.exec()) == 429
        async with await daemon.ask(daemon.head("DELETE", "/sessions/s/")):
            await daemon.called(2)
        daemon.go_on.set()
        await until_async(lambda: len(daemon.ended) == 2)
        assert await daemon.status(daemon.exec()) == 200


# -- clients that do not read -----------------------------------------------------------------------------------------


async def test_unread_answers_count(tmp_path: Path) -> None:
    async with served(tmp_path, max_bytes=4 * ANSWER_BYTES) as daemon:
        daemon.go_on.set()
        clients = []
        for number in range(8):
            clients.append(await daemon.ask(daemon.exec()))
            await clients[-1].receive_some(1)
            assert min(number + 1, 3) * ANSWER_BYTES < daemon.holdings.of(daemon.uid) <= 4 * ANSWER_BYTES
        whole = 0
        for client in clients:
            got = 1
            try:
                while data := await client.receive_some(1 << 20):
                    got += len(data)
                    if got > ANSWER_BYTES:
                        break
            except trio.BrokenResourceError:
                pass
            whole += got > ANSWER_BYTES
            await client.aclose()
        assert 1 <= whole <= 4
        await until_async(lambda: daemon.holdings.of(daemon.uid) == 0)


# -- keys that are removed --------------------------------------------------------------------------------------------


async def test_a_request_ends_with_its_key(tmp_path: Path) -> None:
    """Before it was complete it is not carried out; after that it is, but not answered."""
    async with served(tmp_path) as daemon:
        async with await daemon.ask(daemon.exec()) as whole, await daemon.ask(daemon.exec()[:-1]) as begun:
            await daemon.called(1)
            await until_async(lambda: daemon.gateway.requests["ci"] == 2)
            await daemon.keys.remove(SimpleNamespace(params=KeyRef(name="ci")))  # type: ignore[arg-type]
            daemon.go_on.set()
            for stream in (whole, begun):
                with suppress(trio.BrokenResourceError):
                    assert await stream.receive_some(4096) == b""
        await until_async(lambda: not daemon.gateway.requests["ci"])
        assert len(daemon.calls) == len(daemon.ended) == 1


async def test_a_body_has_to_be_complete_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "BODY_S", 0.05)
    async with served(tmp_path) as daemon:
        async with await daemon.ask(daemon.exec()[:-1]) as stream:
            answer = await stream.receive_some(4096)
        assert answer.split()[1] == b"408"
        assert b"not complete after 0.05 s" in answer
        assert daemon.calls == []


# -- uploads ----------------------------------------------------------------------------------------------------------


async def test_an_upload_that_the_sandbox_does_not_take_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "UNTAKEN_S", 0.05)
    async with served(tmp_path) as daemon:
        ended = trio.Event()

        async def copy_in(call: Call) -> None:
            reading, writing = os.pipe()
            try:
                await call.give([writing])
                await trio.sleep_forever()
            finally:
                os.close(reading)
                os.close(writing)
                ended.set()

        monkeypatch.setattr(Served, "__call__", lambda _, call: copy_in(call))
        head = daemon.head("POST", "/sessions/s/files/upload/?path=a", "Content-Length: 1000000\r\n")
        assert await daemon.status(head + bytes(100_000)) == 504
        await ended.wait()


# -- one answer -------------------------------------------------------------------------------------------------------


async def test_the_artifacts_of_a_session_are_not_listed_to_be_counted(tmp_path: Path) -> None:
    shown = Session(
        session_id="s", key="ses_1", owner="key:ci", status="terminated", spec=SessionSpec(image="img_1"),
        created_at="2026-01-01T00:00:00.000000Z", position=1,
    )  # fmt: skip
    async with served(tmp_path) as daemon:
        daemon.go_on.set()
        daemon.answer = lambda call: shown
        async with await daemon.ask(daemon.head("GET", "/sessions/s/")) as stream:
            assert b'"artifacts_count":7' in await stream.receive_some(65536)
        assert [call.method.name for call in daemon.calls] == ["session.get"]


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ("starting", "starting"),
        ("ready", "ready"),
        ("stopping", "terminated"),
        ("failed", "failed"),
        ("expired", "terminated"),
        ("terminated", "terminated"),
    ],
)
def test_statuses_are_those_that_its_clients_know(status: Any, shown: str) -> None:
    reason = "idle_timeout" if status == "expired" else None
    session = Session(
        session_id="s", key="ses_1", owner="key:ci", status=status, spec=SessionSpec(image="img_1"),
        created_at="2026-01-01T00:00:00.000000Z", position=1, terminated_reason=reason,
    )  # fmt: skip
    view = views.session(session)
    assert (view.status, view.metadata.get("terminated_reason")) == (shown, reason)


@pytest.mark.parametrize(
    ("error", "restores", "status"),
    [
        (CallerError("not_found", ""), True, 404),
        (DataError("snapshot_missing", ""), True, 404),
        (DataError("snapshot_corrupt", ""), True, 404),
        (StateError("snapshot_not_ready", ""), True, 404),
        (StateError("secret_missing", ""), True, 400),
        (StateError("quota_exceeded", ""), True, 400),
        (StateError("timeout", ""), True, 400),
        (CallerError("not_found", ""), False, 400),
        (DataError("snapshot_corrupt", ""), False, 404),
        (DataError("snapshot_missing", ""), False, 404),
        (CallerError("invalid", ""), True, None),
    ],
)
def test_a_failed_creation_is_a_404_only_by_the_snapshot_that_is_restored(
    error: SandkeepError, restores: bool, status: int | None
) -> None:
    body = SessionBody(restore_snapshot_id="snp_1" if restores else None)
    asked: Any = Asked(scope={}, receive=None, send=None, peer=Peer(uid=0, gid=0), body=body)  # type: ignore[arg-type]
    assert ensure_problem(asked, error) == status

"""The toolkit of *AstraForge*, against a real gateway with local sandboxes."""

import fcntl
import logging
import os
import signal
import ssl
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support import astraforge_program
from tests.support.expect import until
from tests.support.gateway import SESSIONS, Gateway, gateway_in
from tests.support.patience import patient

from sandkeep.compat import astraforge
from sandkeep.compat.astraforge import DeepAgentClient, SandboxBackend, SandboxSession
from sandkeep.compat.astraforge.globs import matcher
from sandkeep.errors import CallerError, DataError, SandkeepError, SetupError, StateError
from sandkeepd.stream.identity import FILE_NAME, Identity

pytestmark = pytest.mark.needs("bwrap", "root")


PROGRAM = f"""#!{sys.executable} -IS
import fcntl, os, sys
gate, name = "%s", os.path.basename(sys.argv[0])
if "bwrap" in sys.argv:
    try:
        os.rename(gate, gate + ".held")
        with open(gate + ".held") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
    except FileNotFoundError:
        pass
os.execv("/usr/bin/" + name, [name, *sys.argv[1:]])
"""


class Gate:
    """Holds the next sandbox of a daemon while it starts: what starts its `bwrap` waits for a lock first."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._gate, self.held = Path(directory, "gate"), Path(directory, "gate.held")
        for name in ("setpriv", "sh"):  # the latter is before the former in groups of version 2
            program = Path(directory, name)
            program.write_text(PROGRAM % self._gate)
            program.chmod(0o755)

    @contextmanager
    def closed(self) -> Iterator[Callable[[], None]]:
        """Hold the next one, until what this yields is called, or the end."""
        with open(self._gate, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                yield lock.close
            finally:
                for left in (self._gate, self.held):
                    left.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def gate(places: str) -> Gate:
    directory = tempfile.mkdtemp(dir=places)
    os.chmod(directory, 0o755)
    return Gate(directory)


@pytest.fixture(scope="module")
def gateway(places: str, gate: Gate) -> Iterator[Gateway]:
    path = f"{gate.directory}:{os.environ['PATH']}"
    with gateway_in(places, PATH=path, SANDKEEP_SNAPSHOT_RETAIN="all") as gateway:
        yield gateway
        assert "defect" not in gateway.daemon.said()


@pytest.fixture(params=["unix", "http", "http/api/"])
def url(request: pytest.FixtureRequest, gateway: Gateway) -> str:
    return gateway.unix if request.param == "unix" else f"http://127.0.0.1:{gateway.port}{request.param[4:]}"


@pytest.fixture
def client(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> DeepAgentClient:
    """A client by the environment alone."""
    monkeypatch.setenv("ASTRA_FORGE_API_URL", gateway.unix)
    monkeypatch.setenv("ASTRA_FORGE_API_KEY", f"{gateway.key}\n")
    return DeepAgentClient()


@pytest.fixture
def backend(client: DeepAgentClient, gateway: Gateway) -> Callable[..., SandboxBackend]:
    """Makes backends of the same gateway."""
    return lambda rt=None, **params: SandboxBackend(rt, session_params={"image": gateway.image_id, **params})


def refused(kind: type[SandkeepError], code: str, call: Callable[[], Any]) -> SandkeepError:
    with pytest.raises(kind) as info:
        call()
    assert info.value.code == code, info.value
    return info.value


def live(client: DeepAgentClient) -> list[str]:
    return [each.session_id for each in client.list_sandbox_sessions() if each.status in ("starting", "ready")]


def snapshot_of(gateway: Gateway, session_id: str) -> str:
    answer = gateway.ask("POST", f"{SESSIONS}{session_id}/snapshot/", {})
    assert answer.status == 201, answer
    return str(answer.value["id"])


def archive_of(gateway: Gateway, snapshot_id: str) -> Path:
    with gateway.daemon.connect() as admin:
        [place] = admin.snapshot.get(snapshot_id).places
    return Path(place.uri.removeprefix("file://"))


def saved(gateway: Gateway, client: DeepAgentClient, session_id: str) -> str:
    """The snapshot of a session with a file of 100,000 bytes."""
    client.create_sandbox_session({"id": session_id, "image": gateway.image_id})
    client.upload_file(session_id, "file", os.urandom(100_000))
    return snapshot_of(gateway, session_id)


def damage(gateway: Gateway, snapshot_id: str) -> None:
    archive = archive_of(gateway, snapshot_id)
    archive.write_bytes(archive.read_bytes()[:-5000])


# -- the client -------------------------------------------------------------------------------------------------------


def test_the_life_of_a_session(gateway: Gateway, url: str) -> None:
    client = DeepAgentClient(url, api_key=gateway.key)
    name = f"life-{url[:4]}-{url.count('/')}"
    asked = {"id": name, "image": gateway.image_id, "artifact_base_url": "https://files.example", "metadata": None}
    made = client.create_sandbox_session(asked)
    assert (made.session_id, made.status, made.workspace_path) == (name, "ready", "/workspace")
    assert client.create_sandbox_session(asked) == client.get_sandbox_session(name), "one that is ready is reused"
    assert client.list_sandbox_sessions()[0].session_id == name

    client.upload_file(name, "a dir/ü&?.txt", content="hello\n")
    done = client.execute(name, "cat a*/*; echo no >&2; exit 3", timeout=20)
    assert (done.output, done.exit_code, done.truncated) == ("hello\nno\n", 3, False)
    assert client.execute(name, ["printf", "%s", "a b"]).output == "a b"
    assert client.execute(name, "sleep 60", timeout=0.1).exit_code == 124

    exported = client.export_file(name, "a dir/ü&?.txt", filename="out.txt", content_type="text/plain")
    assert (exported.filename, exported.content_type, exported.size_bytes) == ("out.txt", "text/plain", 6)
    assert exported.download_url.startswith("https://files.example/")
    assert client.get_artifact_content(name, exported.artifact_id) == b"hello\n"

    assert client.heartbeat_sandbox_session(name)["status"] == "ready"
    client.stop_sandbox_session(name)
    assert client.get_sandbox_session(name).status == "terminated"
    assert client.list_sandbox_sessions()[0].status == "terminated"
    assert client.execute(name, "cat a*/*").output == "hello\n"
    client.delete_sandbox_session(name)
    assert client.get_sandbox_session(name).status == "terminated"


def test_files_are_bytes_unless_they_are_decoded(gateway: Gateway, client: DeepAgentClient) -> None:
    client.create_sandbox_session({"id": "bytes", "image": gateway.image_id})
    client.upload_file("bytes", "some", b"caf\xe9 \xf0\x9f\x90\x8d")
    assert client.get_file_content("bytes", "some") == b"caf\xe9 \xf0\x9f\x90\x8d"
    assert client.get_file_content("bytes", "some", encoding="utf-8") == "caf\ufffd \N{SNAKE}"
    large = os.urandom(5_000_000)
    client.upload_file("bytes", "large", large)
    assert client.get_file_content("bytes", "large") == large
    client.stop_sandbox_session("bytes")


def test_the_id_is_given_up_for_no_other_failure_of_a_restore(
    gateway: Gateway, client: DeepAgentClient, caplog: pytest.LogCaptureFixture
) -> None:
    snapshot = saved(gateway, client, "source")
    client.create_sandbox_session({"id": "secretive", "image": gateway.image_id, "secrets": {"TOKEN": "x"}})
    client.stop_sandbox_session("secretive")
    asked = {"id": "secretive", "image": gateway.image_id, "restore_snapshot_id": snapshot}
    with caplog.at_level(logging.WARNING, "sandkeep.compat.astraforge"):
        error = refused(StateError, "secret_missing", lambda: client.create_sandbox_session(asked))
    assert error.data["http_status"] == 400
    assert caplog.messages == []
    client.stop_sandbox_session("source")


def test_a_corrupt_snapshot_is_given_up(
    gateway: Gateway, client: DeepAgentClient, caplog: pytest.LogCaptureFixture
) -> None:
    snapshot = saved(gateway, client, "whole")
    damage(gateway, snapshot)
    with caplog.at_level(logging.WARNING, "sandkeep.compat.astraforge"):
        made = client.create_sandbox_session(
            {"id": "given-up", "image": gateway.image_id, "restore_snapshot_id": snapshot}
        )
    assert (made.status, made.restore_snapshot_id) == ("ready", None)
    assert made.session_id != "given-up"
    assert client.execute(made.session_id, "ls").output == ""
    assert [f"without its {name}, which failed" in said for name, said in zip(
        ["id", "restore_snapshot_id"], caplog.messages, strict=True
    )] == [True, True]  # fmt: skip
    client.stop_sandbox_session(made.session_id)
    client.stop_sandbox_session("whole")


def test_a_snapshot_is_given_up_for_no_other_reason(gateway: Gateway, client: DeepAgentClient) -> None:
    snapshot = saved(gateway, client, "lost")
    archive_of(gateway, snapshot).unlink()
    asked = {"image": gateway.image_id, "restore_snapshot_id": snapshot}
    error = refused(DataError, "snapshot_missing", lambda: client.create_sandbox_session({"id": "n", **asked}))
    assert error.data["http_status"] == 404
    refused(DataError, "snapshot_missing", lambda: client.create_sandbox_session(asked))
    asked["restore_snapshot_id"] = "snp_none"
    refused(CallerError, "not_found", lambda: client.create_sandbox_session(asked))
    assert live(client) == ["lost"]
    client.stop_sandbox_session("lost")


def test_other_refusals_are_final(client: DeepAgentClient) -> None:
    assert refused(CallerError, "invalid", client.create_sandbox_session).data == {
        "field": "image", "http_status": 400,
    }  # fmt: skip
    refused(CallerError, "not_found", lambda: client.create_sandbox_session({"id": "x", "image": "img_none"}))
    refused(CallerError, "not_found", lambda: client.get_sandbox_session("x"))
    refused(CallerError, "not_found", lambda: client.get_sandbox_session("../sessions"))
    refused(CallerError, "invalid", lambda: client.execute("x", "true", timeout=float("nan")))
    refused(CallerError, "invalid", lambda: client.get_file_content("x", "\udcff"))


# -- errors of the connection -----------------------------------------------------------------------------------------


def test_a_wrong_key_is_refused_also_in_the_middle_of_an_upload(gateway: Gateway, url: str) -> None:
    client = DeepAgentClient(url, "skk_wrong")
    refused(CallerError, "permission_denied", client.list_sandbox_sessions)
    refused(CallerError, "permission_denied", lambda: client.upload_file("x", "y", bytes(50_000_000)))


@pytest.mark.parametrize(
    "url", ["gopher://h", "http://", "unix:relative", "http://u:p@h/api", "http://h:x", "http://h?a"]
)
def test_an_address_that_makes_no_sense(url: str) -> None:
    error = refused(SetupError, "not_configured", lambda: DeepAgentClient(url, "key"))
    assert error.data == {"setting": "ASTRA_FORGE_API_URL"}


@pytest.mark.parametrize("key", ["", "two words", "line\nfeed: x", "schl\u00fcssel"])
def test_a_key_that_cannot_be_one_is_not_repeated(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASTRA_FORGE_API_KEY", raising=False)
    error = refused(SetupError, "not_configured", lambda: DeepAgentClient("http://h", key))
    assert error.data == {"setting": "ASTRA_FORGE_API_KEY"}
    assert not key or key not in error.message


def test_nobody_answers(gateway: Gateway, tmp_path: Path) -> None:
    for url in (f"unix:{tmp_path}/none", "http://127.0.0.1:1/api"):
        assert url in refused(StateError, "not_ready", DeepAgentClient(url, "key").list_sandbox_sessions).message
    client = DeepAgentClient(gateway.unix, gateway.key, timeout=0.2)
    gateway.make("slow")
    refused(StateError, "timeout", lambda: client.execute("slow", "sleep 2"))
    gateway.ask("DELETE", f"{SESSIONS}slow/")


class Answering(BaseHTTPRequestHandler):
    """Answers what its server says, and notes the keys that it gets."""

    def do_GET(self) -> None:
        self.server.keys.append(self.headers["X-Api-Key"])  # type: ignore[attr-defined]
        status, headers, body = self.server.answer  # type: ignore[attr-defined]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def answering(status: int, body: bytes = b"", tls: ssl.SSLContext | None = None, **headers: str) -> Iterator[Any]:
    """A server on the loopback interface that is no gateway."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        server.answer, server.keys = (status, headers, body), []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_the_key_follows_no_redirect() -> None:
    with answering(200, b"[]") as other:
        target = f"http://127.0.0.1:{other.server_port}/"
        for status in (301, 302, 307, 308):
            with answering(status, Location=target) as first:
                client = DeepAgentClient(f"http://127.0.0.1:{first.server_port}", "key")
                assert str(status) in refused(SetupError, "not_configured", client.list_sandbox_sessions).message
                assert first.keys == ["key"]
        assert other.keys == []


def test_a_certificate_that_nobody_trusts_gets_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(200, b"[]", tls=Identity.of(str(tmp_path)).context) as server:
        client = DeepAgentClient(f"https://127.0.0.1:{server.server_port}/api", "key")
        assert "CERTIFICATE_VERIFY_FAILED" in refused(StateError, "not_ready", client.list_sandbox_sessions).message
        assert server.keys == []
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / FILE_NAME))
        assert client.list_sandbox_sessions() == []
        assert server.keys == ["key"]


@pytest.mark.parametrize(
    ("status", "body", "headers", "kind", "code"),
    [
        (200, b"<html>", {}, SetupError, "not_configured"),
        (200, b'[{"id": 1}]', {}, SetupError, "not_configured"),
        (502, b"Bad Gateway", {}, SetupError, "not_configured"),
        (200, b"[]", {"Content-Length": "100"}, StateError, "not_ready"),
    ],
)
def test_an_answer_of_something_else(status: int, body: bytes, headers: Any, kind: Any, code: str) -> None:
    with answering(status, body, **headers) as server:
        client = DeepAgentClient(f"http://127.0.0.1:{server.server_port}", "key")
        refused(kind, code, client.list_sandbox_sessions)


# -- AstraForge's own names -------------------------------------------------------------------------------------------


def test_every_method_of_the_toolkit(gateway: Gateway) -> None:
    """The program that runs with the toolkit itself in `tests/sources`."""
    url = f"http://127.0.0.1:{gateway.port}/api"
    seen = astraforge_program.run(astraforge, url, gateway.key, gateway.image_id, "methods")
    astraforge_program.check(seen, "methods")


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.py", "a.py", True),
        ("*.py", "deep/er/a.py", True),
        ("/*.py", "deep/a.py", False),
        ("deep/*.py", "deep/er/a.py", False),
        ("**/*.py", "a.py", True),
        ("deep/**", "deep/er/a.py", True),
        ("deep/**/a.?y", "deep/er/a.py", True),
        ("[!b].py", "a.py", True),
        ("[!a].py", "a.py", False),
        ("a.py", "aXpy", False),
        ("a[.py", "a[.py", True),
    ],
)
def test_a_glob(pattern: str, path: str, matches: bool) -> None:
    assert (matcher(pattern).fullmatch(path) is not None) == matches


# -- the backend ------------------------------------------------------------------------------------------------------


def test_a_session_is_pinned_by_the_configuration_or_by_a_parameter(
    client: DeepAgentClient, backend: Callable[..., SandboxBackend]
) -> None:
    config = {"configurable": {"sandbox_session_id": "configured"}}
    for rt in (config, SimpleNamespace(config=config)):
        assert backend(rt, id="parameter").id == "configured"
    for rt in (None, {}, {"configurable": {}}, SimpleNamespace(config=None)):
        assert backend(rt, id="parameter").id == "parameter"
    unpinned = backend()
    with ThreadPoolExecutor(4) as pool:
        [made] = set(pool.map(lambda _: unpinned.id, range(4)))
    assert sorted(live(client)) == sorted(["configured", "parameter", made])
    for session_id in ("configured", "parameter", made):
        client.stop_sandbox_session(session_id)


def test_commands_and_files(client: DeepAgentClient, backend: Callable[..., SandboxBackend]) -> None:
    box = backend(id="agent")
    written = box.upload_files([("in/a", b"\xff"), ("/", b"x"), ("/etc/x", b"x"), ("b", b"")])
    assert [(each.path, each.error) for each in written] == [
        ("in/a", None), ("/", "invalid_path"), ("/etc/x", "permission_denied"), ("b", None),
    ]  # fmt: skip
    read = box.download_files(["in/a", "none", "/workspace", "b"])
    assert [(each.content, each.error) for each in read] == [
        (b"\xff", None), (None, "file_not_found"), (None, "invalid_path"), (b"", None),
    ]  # fmt: skip
    assert box.execute("cat in/a; exit 2").output == "\ufffd"
    client.stop_sandbox_session("agent")


def stopped(gateway: Gateway, client: DeepAgentClient, session_id: str) -> None:
    client.stop_sandbox_session(session_id)
    assert client.get_sandbox_session(session_id).status == "terminated"


def failed(gateway: Gateway, client: DeepAgentClient, session_id: str) -> None:
    """Somebody kills its first process. Its last files are in no snapshot yet."""
    with gateway.daemon.connect() as admin:
        [sandbox] = admin.sandbox.list().sandboxes
        events = admin.sandbox.history(sandbox.sandbox_id).events
    [created] = [event for event in events if event.type == "sandbox.created"]
    os.kill(created.data["handle"]["first"]["pid"], signal.SIGKILL)
    until(lambda: client.get_sandbox_session(session_id).status == "failed")


@pytest.mark.parametrize("end", [stopped, failed])
def test_one_that_ended_is_brought_back_with_its_last_files(
    gateway: Gateway, client: DeepAgentClient, backend: Callable[..., SandboxBackend], end: Callable[..., None]
) -> None:
    """Not with the snapshot that its parameters name, nor with an older one of its own."""
    first = saved(gateway, client, f"before-{end.__name__}")
    client.stop_sandbox_session(f"before-{end.__name__}")
    box = backend(id=end.__name__, restore_snapshot_id=first)
    assert box.execute("ls").output == "file\n"
    for number, again in enumerate((box, backend(id=end.__name__, restore_snapshot_id=first))):
        snapshot_of(gateway, end.__name__)
        box.execute(f"rm -f *; echo {number} >new")
        end(gateway, client, end.__name__)
        assert again.execute("cat *").output == f"{number}\n"
        assert again.id == end.__name__
    client.stop_sandbox_session(end.__name__)


def test_one_whose_latest_snapshot_is_corrupt_gives_another(
    gateway: Gateway, client: DeepAgentClient, backend: Callable[..., SandboxBackend]
) -> None:
    saved(gateway, client, "damaged")
    client.stop_sandbox_session("damaged")
    damage(gateway, client.get_sandbox_session("damaged").metadata["latest_snapshot_id"])
    box = backend(id="damaged")
    other = box.ensure_ready()
    assert (other.status, other.restore_snapshot_id) == ("ready", None)
    assert other.session_id != "damaged"
    box.execute("echo mine >file")
    client.stop_sandbox_session(other.session_id)
    assert (box.execute("cat file").output, box.id) == ("mine\n", other.session_id)
    client.stop_sandbox_session(other.session_id)


@contextmanager
def starting(
    gateway: Gateway, client: DeepAgentClient, gate: Gate, session_id: str
) -> Iterator[Callable[[], SandboxSession]]:
    """A session that is brought back by another program, and is starting until what this yields is called."""
    client.create_sandbox_session({"id": session_id, "image": gateway.image_id})
    client.upload_file(session_id, "file", "mine")
    client.stop_sandbox_session(session_id)
    with ThreadPoolExecutor(1) as pool, gate.closed() as let_go:
        started = pool.submit(client.create_sandbox_session, {"id": session_id})
        until(gate.held.exists)
        assert client.get_sandbox_session(session_id).status == "starting"

        def finish() -> SandboxSession:
            let_go()
            return started.result(patient(60))

        yield finish


def test_one_that_starts_for_too_long_gives_another_with_its_files(
    gateway: Gateway,
    client: DeepAgentClient,
    backend: Callable[..., SandboxBackend],
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("ASTRA_FORGE_SANDBOX_READY_TIMEOUT", "0.2")
    monkeypatch.setenv("ASTRA_FORGE_SANDBOX_READY_POLL_INTERVAL", "0.05")
    with starting(gateway, client, gate, "held") as finish:
        box = backend(id="held")
        assert box.execute("cat file").output == "mine"
        assert box.id != "held"
        assert client.get_sandbox_session("held").status == "starting"
        assert "does not get ready" in caplog.text
        client.stop_sandbox_session(box.id)
        assert finish().status == "ready"
    client.stop_sandbox_session("held")


def test_one_that_is_ready_in_time_is_used(
    gateway: Gateway, client: DeepAgentClient, backend: Callable[..., SandboxBackend], gate: Gate
) -> None:
    with starting(gateway, client, gate, "late") as finish, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: backend(id="late").id)
        finish()
        assert waiting.result(patient(60)) == "late"
    client.stop_sandbox_session("late")

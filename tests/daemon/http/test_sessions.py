"""Sessions over HTTP: their routes, bodies and statuses, by clients in two languages."""

import gzip
import hashlib
import os
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import until
from tests.support.gateway import SESSIONS, Answer, Gateway, gateway_in, plain
from tests.support.patience import patient
from tests.support.snapshots import archive

pytestmark = pytest.mark.needs("bwrap", "root")

SNAPSHOTS = "/api/sandbox/snapshots/"
HERE = Path(__file__).parent


@pytest.mark.needs("curl")
def test_the_life_of_a_session_by_curl(gateway: Gateway, tmp_path: Path) -> None:
    command = ["sh", HERE / "life.sh", gateway.path, gateway.key, gateway.image_id, tmp_path]
    done = subprocess.run(command, capture_output=True, timeout=patient(120), text=True)
    assert (done.returncode, done.stdout) == (0, "lived\n"), done.stderr


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "invalid"),
        ({"image": "img_none"}, 400, "not_found"),
        ({"image": "img_none", "restore_snapshot_id": "snp_none"}, 404, "not_found"),
        ({"mode": "k8s"}, 400, "provider_unavailable"),
        ({"mode": "k8s", "restore_snapshot_id": "snp_none"}, 404, "not_found"),
        ({"mode": "vm"}, 400, "invalid"),
        ({"id": "a/b"}, 400, "invalid"),
        ({"idle_timeout_sec": 59}, 400, "invalid"),
        ({"idle_timeout_sec": -1}, 400, "invalid"),
        ({"max_lifetime_sec": 299}, 400, "invalid"),
        ({"idle_timeout_sec": 301, "max_lifetime_sec": 300}, 400, "invalid"),
        ({"idle_timeout_sec": 3601}, 400, "invalid"),
        ({"cpu": "many"}, 400, "invalid"),
        ({"memory": "1Zi"}, 400, "invalid"),
        (b"{", 400, "invalid"),
        (b"[]", 400, "invalid"),
        (b"\xff", 400, "invalid"),
        (b'{"image":"\xff"}', 400, "invalid"),
        (b'{"image":"\\ud800"}', 400, "invalid"),
        (b'{"metadata":{"a":1e400}}', 400, "invalid"),
        *((b'{"metadata":{"a":' + b"[" * deep + b"]" * deep + b"}}", 400, "invalid") for deep in (64, 940, 960, 970)),
        (b"[" * 100_000, 400, "invalid"),
        (b" " * (1 << 20) + b"{}", 413, "invalid"),
    ],
)
def test_a_refused_creation(gateway: Gateway, body: Any, status: int, code: str) -> None:
    if isinstance(body, dict) and body:
        body = {"image": gateway.image_id, **body}
    assert gateway.ask("POST", SESSIONS, body).problem == (status, code)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, (300, 3600)),
        ({"idle_timeout_sec": 0, "max_lifetime_sec": 0}, (0, 0)),
        ({"idle_timeout_sec": 60, "max_lifetime_sec": 300}, (60, 300)),
        ({"idle_timeout_sec": 9000, "max_lifetime_sec": 0}, (9000, 0)),
        ({"idle_timeout_sec": 0}, (0, 3600)),
    ],
)
def test_limits_of_time(gateway: Gateway, given: dict[str, int], shown: tuple[int, int]) -> None:
    name = f"timed-{'-'.join(map(str, shown))}-{len(given)}"
    session = gateway.make(name, **given)
    assert (session["idle_timeout_sec"], session["max_lifetime_sec"]) == shown
    assert (session["expires_at"] is None) == (shown[1] == 0)
    gateway.ask("DELETE", f"{SESSIONS}{name}/")
    back = gateway.ask("POST", SESSIONS, {"id": name})
    assert (back.status, back.value["idle_timeout_sec"], back.value["max_lifetime_sec"]) == (201, *shown)
    gateway.ask("DELETE", f"{SESSIONS}{name}/")


def test_a_limit_is_held_against_the_sessions_other_one(gateway: Gateway) -> None:
    gateway.make("held", idle_timeout_sec=60, max_lifetime_sec=300)
    for _ in ("ready", "terminated"):
        answer = gateway.ask("POST", SESSIONS, {"id": "held", "idle_timeout_sec": 301})
        assert answer.problem == (400, "invalid")
        assert answer.value["detail"] == "idle_timeout_sec cannot exceed max_lifetime_sec"
        gateway.ask("DELETE", f"{SESSIONS}held/")
    back = gateway.ask("POST", SESSIONS, {"id": "held", "idle_timeout_sec": 300}).value
    assert (back["idle_timeout_sec"], back["max_lifetime_sec"]) == (300, 300)
    gateway.ask("DELETE", f"{SESSIONS}held/")


def test_the_view_of_a_session(gateway: Gateway) -> None:
    session = gateway.make("seen", cpu="500m", memory="128Mi", workspace_uid="w-1", metadata={"team": "a"})
    assert session["control_endpoint"] == f"{SESSIONS}seen/"
    assert (session["cpu"], session["memory"], session["ephemeral_storage"]) == ("0.5", "128Mi", None)
    assert (session["workspace_uid"], session["metadata"]) == ("w-1", {"team": "a"})
    assert session["workspace_path"] == "/workspace"
    assert session["workspace_name"] in session["ref"]
    gateway.ask("DELETE", f"{SESSIONS}seen/")
    ended = gateway.ask("GET", f"{SESSIONS}seen/").value
    assert (ended["status"], ended["metadata"]["team"]) == ("terminated", "a")
    assert ended["metadata"]["latest_snapshot_id"] in ended["snapshot_ids"]


def test_lists_go_on_where_the_header_says(gateway: Gateway) -> None:
    for name in ("one", "two", "three"):
        gateway.make(name)
    found, path = [], f"{SESSIONS}?limit=1"
    while path:
        answer = gateway.ask("GET", path)
        found += [session["id"] for session in answer.value]
        path = answer.headers.get("link", "").partition("<")[2].partition(">")[0]
    assert found[:3] == ["three", "two", "one"]
    for name in found[:3]:
        gateway.ask("DELETE", f"{SESSIONS}{name}/")
    assert [each["status"] for each in gateway.ask("GET", f"{SESSIONS}?limit=3").value] == ["terminated"] * 3
    assert not {"one", "two", "three"} & {each["id"] for each in gateway.ask("GET", f"{SESSIONS}?all=false").value}


def test_unknown_keys_and_empty_texts_are_ignored(gateway: Gateway) -> None:
    gateway.make("loose", cpu="", memory="", workspace_uid="", of_the_future=1)
    of = f"{SESSIONS}loose/"
    assert gateway.ask("GET", f"{of}?format=json").status == 200
    assert gateway.ask("POST", f"{of}exec/", {"command": "true", "cwd": "", "tty": True}).value["exit_code"] == 0
    assert gateway.ask("POST", f"{of}upload/", {"path": "a", "content": "x", "mode": 420}).value["exit_code"] == 0
    exported = gateway.ask("POST", f"{of}files/export/", {"path": "a", "filename": "", "content_type": "", "x": 1})
    assert (exported.status, exported.value["filename"]) == (201, "a")
    assert gateway.ask("POST", f"{of}snapshots/", {"label": "", "compress": True}).status == 201
    gateway.ask("DELETE", of)


def test_lists_of_a_session_are_newest_first(gateway: Gateway) -> None:
    gateway.make("listed")
    of = f"{SESSIONS}listed/"
    gateway.ask("POST", f"{of}upload/", {"path": "a", "content": "x"})
    snapshots = [gateway.ask("POST", f"{of}snapshot/", {"label": label}).value["id"] for label in "ab"][::-1]
    artifacts = [gateway.ask("POST", f"{of}files/export/", {"path": "a"}).value["id"] for _ in range(2)][::-1]
    for name, expected in (("snapshots", snapshots), ("artifacts", artifacts)):
        found, path = [], f"{of}{name}/?limit=1"
        while path:
            answer = gateway.ask("GET", path)
            assert answer.value["session_id"] == "listed"
            found += [each["id"] for each in answer.value[name]]
            path = answer.headers.get("link", "").partition("<")[2].partition(">")[0]
        assert found == expected
    assert gateway.ask("GET", of).value["snapshot_ids"] == snapshots
    assert gateway.ask("GET", f"{of}debug-connection/").value["status"] == "ready"
    gateway.ask("DELETE", of)
    assert gateway.ask("GET", f"{of}debug-connection/").value["status"] == "not_ready"


def test_an_upload_is_answered_as_a_command(gateway: Gateway) -> None:
    """A file that cannot be written is a failure to show to an agent; a session that is not there is none."""
    gateway.make("uploads")
    of = f"{SESSIONS}uploads/"
    for path in ("new/a", "/workspace/new/b"):
        for answer in (
            gateway.ask("POST", f"{of}upload/", {"path": path, "content": "x"}),
            gateway.ask("POST", f"{of}files/upload/?path=more/{path.strip('/')}", b"x"),
        ):
            shown = answer.value
            assert (answer.status, shown["exit_code"], shown["stdout"], shown["stderr"]) == (200, 0, "", ""), shown
    for path in ("new/a/below", "/proc/x", "new"):
        refused = gateway.ask("POST", f"{of}upload/", {"path": path, "content": "x"})
        assert (refused.status, refused.value["exit_code"], bool(refused.value["stderr"])) == (200, 1, True), refused
    coded = {"path": "lines", "content": "AAAA\nAAAA\n", "encoding": "base64"}
    assert gateway.ask("POST", f"{of}upload/", coded).value["size_bytes"] == 6
    assert gateway.ask("POST", f"{SESSIONS}none/upload/", {"path": "a", "content": "x"}).problem == (404, "not_found")
    gateway.ask("DELETE", of)


def test_a_snapshot_that_is_gone_names_no_path_of_the_host(gateway: Gateway) -> None:
    gateway.make("gone")
    snapshot_id = gateway.ask("POST", f"{SESSIONS}gone/snapshot/", {}).value["id"]
    with gateway.daemon.connect() as admin:
        [place] = admin.snapshot.get(snapshot_id).places
    os.unlink(place.uri.removeprefix("file://"))
    gateway.ask("DELETE", f"{SESSIONS}gone/")
    body = {"image": gateway.image_id, "restore_snapshot_id": snapshot_id}
    answer = gateway.ask("POST", SESSIONS, body)
    assert answer.problem == (404, "snapshot_missing")
    assert os.path.dirname(place.uri.removeprefix("file://")).encode() not in answer.body
    assert snapshot_id.encode() in answer.body


def test_a_session_whose_latest_snapshot_is_corrupt_is_a_404(gateway: Gateway) -> None:
    gateway.make("rotten")
    gateway.ask("POST", f"{SESSIONS}rotten/upload/", {"path": "a", "content": "x"})
    gateway.ask("DELETE", f"{SESSIONS}rotten/")
    snapshot_id = gateway.ask("GET", f"{SESSIONS}rotten/").value["metadata"]["latest_snapshot_id"]
    with gateway.daemon.connect() as admin:
        [place] = admin.snapshot.get(snapshot_id).places
    with open(place.uri.removeprefix("file://"), "r+b") as archive:
        archive.truncate(20)
    assert gateway.ask("POST", SESSIONS, {"id": "rotten"}).problem == (404, "snapshot_corrupt")


def test_a_repeated_request_is_carried_out_once(gateway: Gateway) -> None:
    gateway.make("once")
    for _ in range(2):
        body = {"command": "echo more >>count"}
        assert gateway.ask("POST", f"{SESSIONS}once/exec/", body, headers={"Idempotency-Key": "k1"}).status == 200
    counted = gateway.ask("POST", f"{SESSIONS}once/exec/", {"command": "cat count"}).value
    assert counted["stdout"] == "more\n"
    gateway.ask("DELETE", f"{SESSIONS}once/")


def test_a_repeated_request_makes_one_session(gateway: Gateway) -> None:
    """It has no id by which a second one would be found."""
    made = [
        gateway.ask("POST", SESSIONS, {"image": gateway.image_id}, headers={"Idempotency-Key": "made"})
        for _ in range(2)
    ]
    assert [answer.status for answer in made] == [201, 200]
    assert made[0].value["id"] == made[1].value["id"]
    gateway.ask("DELETE", made[0].headers["location"])


def test_a_request_is_the_same_though_the_session_has_changed(gateway: Gateway) -> None:
    def ask(**body: Any) -> Answer:
        again = {"Idempotency-Key": "changed"} if not body else {}
        return gateway.ask("POST", SESSIONS, {"id": "changed", "image": gateway.image_id, **body}, headers=again)

    assert ask().status == 201
    gateway.ask("DELETE", f"{SESSIONS}changed/")
    assert ask(idle_timeout_sec=60, max_lifetime_sec=300).status == 201
    gateway.ask("DELETE", f"{SESSIONS}changed/")
    assert ask().status in (200, 201)
    gateway.ask("DELETE", f"{SESSIONS}changed/")


def test_a_request_has_one_idempotency_key(gateway: Gateway) -> None:
    head = f"POST {SESSIONS} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {gateway.key}\r\nContent-Length: 0\r\n"
    with plain(gateway.path) as sock:
        sock.sendall(f"{head}Idempotency-Key: a\r\nIdempotency-Key: b\r\n\r\n".encode())
        assert b"give the header Idempotency-Key once" in sock.recv(4096)


def test_a_request_is_carried_out_once_though_the_daemon_was_killed(gateway: Gateway) -> None:
    gateway.make("killed")
    of = f"{SESSIONS}killed/"
    body = {"command": "echo more >>count; until test -e go; do sleep 0.1; done"}
    again = {"Idempotency-Key": "killed"}
    with ThreadPoolExecutor() as pool:
        first = pool.submit(gateway.ask, "POST", f"{of}exec/", body, headers=again)
        until(lambda: gateway.ask("GET", f"{of}files/content/?path=count").body == b"more\n")
        gateway.daemon.kill()
        assert isinstance(first.exception(), ConnectionError | HTTPException)
        gateway.daemon.start()
        second = pool.submit(gateway.ask, "POST", f"{of}exec/", body, headers=again)
        gateway.ask("POST", f"{of}upload/", {"path": "go", "content": ""})
        assert (second.result().status, second.result().value["exit_code"]) == (200, 0)
    assert gateway.ask("GET", f"{of}files/content/?path=count").body == b"more\n"
    gateway.ask("DELETE", of)


@pytest.mark.parametrize("point", ["session.made", "session.saved"])
def test_a_change_of_a_session_is_made_once_though_the_daemon_was_killed(places: str, point: str) -> None:
    with gateway_in(places) as gateway:
        if point == "session.saved":
            gateway.make("s")
        gateway.daemon.stop()
        gateway.daemon.start(SANDKEEP_FAILPOINT=point)

        def ask() -> Answer:
            if point == "session.saved":
                return gateway.ask("POST", f"{SESSIONS}s/stop/", headers={"Idempotency-Key": "k"})
            body = {"id": "s", "image": gateway.image_id}
            return gateway.ask("POST", SESSIONS, body, headers={"Idempotency-Key": "k"})

        with pytest.raises((ConnectionError, HTTPException)):
            ask()
        gateway.daemon.end(0)
        gateway.daemon.start(SANDKEEP_FAILPOINT="")
        assert ask().status in (200, 204)
        found = gateway.ask("GET", f"{SESSIONS}s/").value
        assert found["status"] == ("ready" if point == "session.made" else "terminated")
        assert bool(found["snapshot_ids"]) == (point == "session.saved")
        with gateway.daemon.connect() as client:
            assert len(client.sandbox.list(all=True).sandboxes) == 1


def test_a_file_that_changes_is_downloaded_as_it_was_read(gateway: Gateway) -> None:
    """Only its writer knows if it is whole; the answer is well-formed, and the daemon goes on."""
    gateway.make("changes")
    of = f"{SESSIONS}changes/"
    command = "i=0; while ! test -e done; do i=$((i+1)); head -c $((i % 7 * 100000)) /dev/zero >file; done"
    with ThreadPoolExecutor() as pool:
        writer = pool.submit(gateway.ask, "POST", f"{of}exec/", {"command": command})
        until(lambda: gateway.ask("GET", f"{of}files/content/?path=file").status == 200)
        for _ in range(20):
            answer = gateway.ask("GET", f"{of}files/content/?path=file")
            assert answer.status == 200
            assert not answer.body.strip(b"\0")
        gateway.ask("POST", f"{of}upload/", {"path": "done", "content": ""})
        assert writer.result().status == 200
    gateway.ask("DELETE", of)


def test_files(gateway: Gateway) -> None:
    gateway.make("files")
    of = f"{SESSIONS}files/"
    assert gateway.ask("GET", f"{of}files/content/?path=none").problem == (404, "not_found")
    assert gateway.ask("GET", f"{of}files/content/?path=/").problem == (400, "invalid")
    assert gateway.ask("GET", f"{of}files/content/").problem == (400, "invalid")
    assert gateway.ask("POST", f"{of}files/upload/?path=empty", b"").status == 200
    answer = gateway.ask("GET", f"{of}files/content/?path=empty&filename=a%22%0D%0AX:%20y%C3%BC")
    assert (answer.status, answer.body) == (200, b"")
    expected = "attachment; filename=\"a___X: y_\"; filename*=UTF-8''a%22%0D%0AX%3A%20y%C3%BC"
    assert answer.headers["content-disposition"] == expected
    assert "x" not in answer.headers
    assert gateway.ask("POST", f"{of}upload/", {"path": "a", "content": "?", "encoding": "base64"}).status == 400
    assert gateway.ask("POST", f"{of}upload/", {"path": "a", "content": "/wA=", "encoding": "base64"}).status == 200
    assert gateway.ask("GET", f"{of}files/content/?path=../workspace/a").body == b"\xff\0"
    assert gateway.ask("GET", f"{of}files/content/?path=../../../../etc/shadow").problem == (404, "not_found")
    assert gateway.ask("POST", f"{of}files/upload/?path=/", b"x").problem == (403, "permission_denied")
    gateway.ask("DELETE", of)


def test_a_compressed_body_is_refused(gateway: Gateway) -> None:
    """Nothing is written: it would be taken for the file itself."""
    gateway.make("packed")
    upload = f"{SESSIONS}packed/files/upload/?path=a.gz"
    for coding in ("gzip", "br, gzip", "identity, gzip", "\xff"):
        for path, body in ((upload, gzip.compress(b"text")), (SESSIONS, gzip.compress(b"{}"))):
            answer = gateway.ask("POST", path, body, headers={"Content-Encoding": coding})
            assert answer.problem == (415, "invalid")
            assert answer.headers["accept-encoding"] == "identity"
    assert gateway.ask("GET", f"{SESSIONS}packed/files/content/?path=a.gz").status == 404
    assert gateway.ask("POST", upload, b"text", headers={"Content-Encoding": "Identity"}).status == 200


def test_a_broken_upload_leaves_nothing(gateway: Gateway) -> None:
    gateway.make("broken")
    of = f"{SESSIONS}broken/"
    gateway.ask("POST", f"{of}upload/", {"path": "a", "content": "old"})
    head = f"POST {of}files/upload/?path=a HTTP/1.1\r\nHost: x\r\nX-Api-Key: {gateway.key}\r\n"
    with plain(gateway.path) as sock:
        sock.sendall(f"{head}Content-Length: 1000000\r\n\r\n".encode() + bytes(500_000))
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(4096).split()[1] == b"400"
        assert sock.recv(1) == b""
    listed = partial(gateway.ask, "POST", f"{of}exec/", {"command": "ls -A; cat a"})
    until(lambda: listed().value["stdout"] == "a\nold", seen=lambda: listed().value)
    gateway.ask("DELETE", of)


def test_an_upload_ends_with_its_sandbox(gateway: Gateway) -> None:
    """It does not go on in another sandbox, and brings none about."""
    sandbox_id = gateway.make("ends")["sandbox_id"]
    head = f"POST {SESSIONS}ends/files/upload/?path=a HTTP/1.1\r\nHost: x\r\nX-Api-Key: {gateway.key}\r\n"
    with plain(gateway.path) as sock:
        sock.sendall(f"{head}Content-Length: 1000000\r\n\r\n".encode() + bytes(500_000))
        with gateway.daemon.connect() as client:
            until(lambda: client.sandbox.exec(sandbox_id, "ls -A").stdout)
        assert gateway.ask("DELETE", f"{SESSIONS}ends/").status == 204
        sock.sendall(bytes(500_000))
        assert sock.recv(4096).split()[1] == b"409"
    assert gateway.ask("GET", f"{SESSIONS}ends/").value["status"] == "terminated"


def test_a_download_ends_with_its_sandbox(gateway: Gateway) -> None:
    gateway.make("cut")
    gateway.ask("POST", f"{SESSIONS}cut/exec/", {"command": "head -c 30M /dev/zero >large"})
    connection = gateway.connection()
    connection.request("GET", f"{SESSIONS}cut/files/content/?path=large", headers={"X-Api-Key": gateway.key})
    response = connection.getresponse()
    assert gateway.ask("DELETE", f"{SESSIONS}cut/").status == 204
    with pytest.raises(IncompleteRead):
        response.read()
    connection.close()
    assert gateway.ask("GET", f"{SESSIONS}cut/").value["status"] == "terminated"


def test_no_bytes_of_a_command_are_lost_that_are_not_text(gateway: Gateway) -> None:
    gateway.make("bytes")
    body = {"command": r"printf '\377a'; printf e >&2", "capture_stderr": False}
    done = gateway.ask("POST", f"{SESSIONS}bytes/exec/", body).value
    assert (done["stdout"], done["stderr"], done["truncated"]) == ("\ufffda", "", False)
    long = gateway.ask("POST", f"{SESSIONS}bytes/exec/", {"command": "head -c 2M /dev/zero"}).value
    assert (len(long["stdout"]), long["truncated"]) == (1 << 20, True)
    late = gateway.ask("POST", f"{SESSIONS}bytes/exec/", {"command": "sleep 60", "timeout_sec": 0.1}).value
    assert (late["exit_code"], late["timed_out"]) == (124, True)
    gateway.ask("DELETE", f"{SESSIONS}bytes/")


def test_artifacts(gateway: Gateway) -> None:
    session = gateway.make("exports", artifact_base_url="https://files.example/base/")
    assert session["artifact_base_url"] == "https://files.example/base/"
    of = f"{SESSIONS}exports/"
    gateway.ask("POST", f"{of}upload/", {"path": "out/a.txt", "content": "small"})
    small = gateway.ask("POST", f"{of}files/export/", {"path": "out/a.txt"})
    assert small.status == 201
    assert small.headers["location"] == small.value["content_url"]
    assert small.value["download_url"] == "https://files.example/base/out/a.txt"
    assert (small.value["content"], small.value["size_bytes"]) == ("c21hbGw=", 5)
    gateway.ask("POST", f"{of}files/upload/?path=large", bytes(1 << 20))
    body = {"path": "large", "filename": 'x"\u00fc.bin', "content_type": "text/html"}
    large = gateway.ask("POST", f"{of}files/export/", body).value
    assert (large["filename"], large["content_type"], large["content"]) == ('x"\u00fc.bin', "text/html", None)
    used = gateway.ask("GET", of).value
    assert (used["artifacts_count"], used["cpu_seconds"] > 0) == (2, True)
    assert gateway.ask("HEAD", of).status == 200
    gateway.ask("DELETE", of)
    ended = gateway.ask("GET", of).value
    assert (ended["artifacts_count"], ended["cpu_seconds"], ended["storage_bytes"]) == (2, None, None)
    listed = gateway.ask("GET", f"{of}artifacts/").value["artifacts"]
    assert [each["id"] for each in listed] == [large["id"], small.value["id"]]
    got = gateway.ask("GET", large["content_url"])
    assert got.body == bytes(1 << 20)
    assert got.headers["content-type"] == "application/octet-stream", "no browser shows it as a page"
    assert got.headers["content-disposition"] == "attachment; filename=\"x__.bin\"; filename*=UTF-8''x%22%C3%BC.bin"
    other = large["content_url"].replace("exports", "elsewhere")
    assert gateway.ask("GET", other).problem == (404, "not_found")
    assert gateway.ask("POST", f"{of}files/export/", {"path": "none"}).problem == (404, "not_found")
    assert gateway.ask("POST", f"{of}files/export/", {"path": "large", "filename": "a/b"}).problem == (400, "invalid")
    with gateway.daemon.connect() as client:
        client.artifact.remove(small.value["id"])
    assert gateway.ask("GET", of).value["artifacts_count"] == 1
    gateway.daemon.kill()
    gateway.daemon.start()
    assert gateway.ask("GET", of).value["artifacts_count"] == 1
    gateway.ask("DELETE", of)


def test_an_archive_of_astraforge_is_brought_to_the_key_that_sends_it(gateway: Gateway, tmp_path: Path) -> None:
    """Made as there: `tar -czf` of the absolute path of the workspace, of a container or a pod."""
    for top in ("workspace", "workspaces"):
        (tmp_path / top / "sub").mkdir(parents=True)
        (tmp_path / top / "sub" / "file").write_text("theirs\n")
        made = subprocess.run(["tar", "-C", tmp_path, "-czf", "-", top], capture_output=True, check=True).stdout
        digest = f"sha256:{hashlib.sha256(made).hexdigest()}"
        headers = {"Idempotency-Key": f"import-{top}"}
        path = f"{SNAPSHOTS}?image={gateway.image_id}&label={top}&digest={digest}"
        found = [gateway.ask("POST", path, made, headers=headers) for _ in range(2)]
        assert [each.status for each in found] == [201, 201], found
        snapshot = found[0].value
        assert (snapshot["label"], found[1].value["id"]) == (top, snapshot["id"])
        session = gateway.make(f"from-{top}", restore_snapshot_id=snapshot["id"])
        assert session["restore_snapshot_id"] == snapshot["id"]
        ran = gateway.ask("POST", f"{SESSIONS}from-{top}/exec/", {"command": "cat sub/file; ls"}).value
        assert ran["stdout"] == "theirs\nsub\n"
        with gateway.daemon.connect() as client:
            assert client.snapshot.get(snapshot["id"]).owner == "key:ci"


@pytest.mark.parametrize(
    ("query", "body", "problem"),
    [
        ("", b"", (400, "invalid")),
        ("", b"x", (409, "snapshot_corrupt")),
        ("", bytes(1 << 20), (409, "snapshot_corrupt")),
        ("", gzip.compress(b"no archive"), (409, "snapshot_corrupt")),
        ("", archive(("../../etc/passwd", "evil")), (409, "snapshot_corrupt")),
        ("", archive(("file", "x"))[:-9], (409, "snapshot_corrupt")),
        (f"?digest=sha256:{'0' * 64}", archive(("file", "x")), (409, "snapshot_corrupt")),
        ("?digest=none", archive(("file", "x")), (400, "invalid")),
        ("?image=img_none", archive(("file", "x")), (404, "not_found")),
        ("?files=all", archive(("file", "x")), (400, "invalid")),
    ],
    ids=["empty", "short", "zeros", "gzip", "leaving", "cut", "digest", "no-digest", "image", "files"],
)
def test_a_refused_archive(gateway: Gateway, query: str, body: bytes, problem: tuple[int, str]) -> None:
    assert gateway.ask("POST", f"{SNAPSHOTS}{query}", body).problem == problem


def test_a_bomb_is_refused(gateway: Gateway) -> None:
    assert gateway.ask("POST", SNAPSHOTS, archive(("zeros", "\0" * (80 << 20)))).problem == (409, "snapshot_corrupt")

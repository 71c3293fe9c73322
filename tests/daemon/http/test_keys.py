"""API keys: who may make them, what is stored of them, and what they open."""

import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import refused, until
from tests.support.gateway import SESSIONS, Gateway, gateway_in, plain
from tests.support.users import NOBODY, as_user

from sandkeep.blocking import connect
from sandkeepd.http.bodies import CommandBody, ExportBody, UploadBody
from sandkeepd.http.routes import ROWS
from sandkeepd.http.row import PREFIX

pytestmark = pytest.mark.needs("bwrap", "root")


def test_a_key_is_stored_as_a_digest_that_only_the_daemon_reads(gateway: Gateway) -> None:
    path = f"{gateway.daemon.state_dir}/http-keys.json"
    with open(path) as file:
        assert gateway.key not in file.read()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


@pytest.mark.parametrize(
    "headers",
    [
        lambda key: {"X-Api-Key": key},
        lambda key: {"x-api-key": key},
        lambda key: {"Authorization": f"Bearer {key}"},
        lambda key: {"Authorization": f"bearer   {key} "},
    ],
)
def test_a_key_lets_in(gateway: Gateway, headers: Any) -> None:
    for tcp in (False, True):
        answer = gateway.ask("GET", SESSIONS, key=None, headers=headers(gateway.key), tcp=tcp)
        assert (answer.status, answer.value) == (200, [])


@pytest.mark.parametrize(
    "headers",
    [
        lambda key: {},
        lambda key: {"X-Api-Key": ""},
        lambda key: {"X-Api-Key": key[:-1]},
        lambda key: {"X-Api-Key": f"{key}A"},
        lambda key: {"X-Api-Key": key.upper()},
        lambda key: {"X-Api-Key": "\xb2"},
        lambda key: {"Authorization": key},
        lambda key: {"Authorization": f"Basic {key}"},
        lambda key: {"Authorization": f"Bearer {key}", "X-Api-Key": key},
        lambda key: {"Cookie": f"key={key}"},
    ],
)
def test_nothing_else_lets_in(gateway: Gateway, headers: Any) -> None:
    answer = gateway.ask("GET", SESSIONS, key=None, headers=headers(gateway.key))
    assert answer.problem == (401, "permission_denied")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_keys_are_made_listed_and_removed_on_the_command_line(gateway: Gateway) -> None:
    cli = gateway.daemon.cli
    key = cli("key", "create", "shop").stdout.decode().strip()
    assert gateway.ask("GET", SESSIONS, key=key).status == 200
    assert b"key:shop" in cli("key", "ls").stdout
    again = cli("key", "create", "shop")
    assert (again.returncode, again.stdout) == (1, b"")
    assert b"[conflict]" in again.stderr
    assert cli("key", "rm", "nosuch", "shop").stdout == b"shop\n"
    assert gateway.ask("GET", SESSIONS, key=key).status == 401
    assert b"[not_found]" in cli("key", "rm", "shop").stderr


def test_keys_are_for_administrators(gateway: Gateway) -> None:
    path = gateway.daemon.socket

    def attempt() -> list[str]:
        with connect(path) as client:
            calls = [lambda: client.key.create("mine"), client.key.list, lambda: client.key.remove("ci")]
            return [refused("permission_denied", call).code for call in calls]

    assert as_user(NOBODY, attempt) == ["permission_denied"] * 3


def test_keys_outlive_the_daemon(places: str) -> None:
    with gateway_in(places) as gateway:
        gateway.daemon.kill()
        gateway.daemon.start()
        assert gateway.ask("GET", SESSIONS).status == 200


@pytest.mark.parametrize("damage", ["content", "mode"])
def test_a_file_that_cannot_be_trusted_has_no_keys(places: str, damage: str) -> None:
    with gateway_in(places) as gateway:
        gateway.daemon.stop()
        path = f"{gateway.daemon.state_dir}/http-keys.json"
        if damage == "mode":
            os.chmod(path, 0o644)
        else:
            os.truncate(path, 20)
        left = Path(path).read_bytes()
        gateway.daemon.start()
        assert gateway.ask("GET", SESSIONS).status == 401
        with gateway.daemon.connect() as client:
            assert path in refused("storage_unavailable", client.key.create, "more").message
            assert Path(path).read_bytes() == left, "the other keys may be saved from it"
            gateway.daemon.stop()
        os.unlink(path)
        gateway.daemon.start()
        with gateway.daemon.connect() as client:
            assert client.key.create("more").key


def test_another_keys_objects_are_not_there(gateway: Gateway) -> None:
    with gateway.daemon.connect() as client:
        other = client.key.create("other").key
    gateway.make("mine")
    assert gateway.ask("GET", f"{SESSIONS}mine/").status == 200
    assert gateway.ask("GET", f"{SESSIONS}mine/", key=other).problem == (404, "not_found")
    assert gateway.ask("GET", f"{SESSIONS}nothing/", key=other).problem == (404, "not_found")
    assert gateway.ask("DELETE", f"{SESSIONS}mine/", key=other).problem == (404, "not_found")
    assert gateway.ask("GET", f"{SESSIONS}?all=true", key=other).value == []
    assert gateway.ask("POST", SESSIONS, {"id": "mine", "image": gateway.image_id}, key=other).status == 400
    assert gateway.ask("DELETE", f"{SESSIONS}mine/").status == 204


def test_another_key_learns_nothing_by_any_route(gateway: Gateway) -> None:
    """The answer about a session of another is that about none."""
    with gateway.daemon.connect() as client:
        other = client.key.create("curious").key
    gateway.make("known")
    of = f"{SESSIONS}known/"
    gateway.ask("POST", f"{of}upload/", {"path": "a", "content": "x"})
    artifact = gateway.ask("POST", f"{of}files/export/", {"path": "a"}).value["id"]
    snapshot = gateway.ask("POST", f"{of}snapshot/", {}).value["id"]

    def told(verb: str, path: str, body: Any) -> tuple[int, bytes]:
        answer = gateway.ask(verb, path, body, key=other)
        return answer.status, answer.body

    bodies: dict[Any, Any] = {
        CommandBody: {"command": "true"}, UploadBody: {"path": "a", "content": ""}, ExportBody: {"path": "a"},
    }  # fmt: skip
    asked = 0
    for row in ROWS:
        if "{id}" not in row.path:
            continue
        query = "?path=a" if "path" in row.query.__struct_fields__ else ""
        path = PREFIX + row.path.replace("{artifact_id}", artifact) + query
        body = bodies.get(row.body, {}) if row.body is not None else None
        status, ours = told(row.verb, path.format(id="known"), body)
        assert (status, ours.replace(b"known", b"nobody")) == told(row.verb, path.format(id="nobody"), body)
        assert status == 404, row
        asked += 1
    assert asked > 15
    for field, name in (("restore_snapshot_id", snapshot), ("image", gateway.image_id)):
        unknown = f"{name[:4]}{'0' * 26}"
        ours, none = (told("POST", SESSIONS, {"image": "img_x", field: text}) for text in (name, unknown))
        assert (ours[0], ours[1].replace(name.encode(), unknown.encode())) == none
    assert gateway.ask("GET", of).value["status"] == "ready"
    gateway.ask("DELETE", of)


def test_a_page_of_the_web_has_no_way_in(gateway: Gateway) -> None:
    """A browser asks first before it sends a key, and never adds one by itself."""
    asks = {"Origin": "http://evil", "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "x-api-key"}  # fmt: skip
    first = gateway.ask("OPTIONS", SESSIONS, key=None, headers=asks, tcp=True)
    assert first.status == 405
    forged = {"Origin": "http://evil", "Host": "evil.example", "Content-Type": "text/plain"}
    posted = gateway.ask("POST", SESSIONS, {"image": gateway.image_id}, key=None, headers=forged, tcp=True)
    assert posted.status == 401
    for answer in (first, posted):
        assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("way", ["download", "upload"])
def test_a_removed_key_ends_what_it_streams(gateway: Gateway, way: str) -> None:
    with gateway.daemon.connect() as client:
        key = client.key.create("brief").key
        image = client.image.create(f"{gateway.daemon.root}/image", owner="key:brief").image_id
        assert gateway.ask("POST", SESSIONS, {"id": "s", "image": image}, key=key).status == 201
        gateway.ask("POST", f"{SESSIONS}s/exec/", {"command": "head -c 30M /dev/zero >large"}, key=key)
        verb, path, more = (
            ("GET", "content", "") if way == "download" else ("POST", "upload", "Content-Length: 30000000\r\n")
        )
        head = f"{verb} {SESSIONS}s/files/{path}/?path=large HTTP/1.1\r\nHost: x\r\nX-Api-Key: {key}\r\n{more}\r\n"
        with plain(gateway.path) as sock:
            sock.sendall(head.encode() + (bytes(1 << 20) if way == "upload" else b""))
            if way == "download":
                sock.recv(1)
            client.key.remove("brief")
            got = 0
            with suppress(ConnectionResetError):
                while data := sock.recv(1 << 20):
                    got += len(data)
            assert got < 20_000_000
        sandbox = next(box for box in client.sandbox.list().sandboxes if box.owner == "key:brief")
        until(lambda: client.sandbox.exec(sandbox.sandbox_id, "ls -A").stdout == b"large\n")
        client.sandbox.terminate(sandbox.sandbox_id)


@pytest.mark.parametrize("image", ["/", "/etc", "/root/image"])
def test_a_key_has_no_paths_of_the_host(gateway: Gateway, image: str) -> None:
    answer = gateway.ask("POST", SESSIONS, {"image": image})
    assert answer.problem == (403, "permission_denied")


def test_a_key_does_not_make_the_engine_call_the_host(gateway: Gateway) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        image = f"127.0.0.1:{listener.getsockname()[1]}/x"
        assert gateway.ask("POST", SESSIONS, {"image": image}).problem == (403, "permission_denied")


def test_another_keys_commands_are_not_repeated(gateway: Gateway) -> None:
    """A command of another key by the same id neither answers one nor keeps it from being carried out."""
    with gateway.daemon.connect() as client:
        other = client.key.create("echo").key
        image = client.image.create(f"{gateway.daemon.root}/image", owner="key:echo").image_id
    again = {"Idempotency-Key": "mk"}
    made = [
        gateway.ask("POST", SESSIONS, {"image": image_id}, key=key, headers=again).value
        for key, image_id in ((gateway.key, gateway.image_id), (other, image), (other, image))
    ]
    assert len({session["id"] for session in made}) == 2
    assert made[1]["id"] == made[2]["id"] != made[0]["id"]
    for key, session in ((gateway.key, made[0]), (other, made[1])):
        gateway.ask("DELETE", f"{SESSIONS}{session['id']}/", key=key)


def test_a_key_has_quotas_of_its_own(places: str) -> None:
    with gateway_in(places, SANDKEEP_QUOTA="calls=3,disk=40M") as gateway:
        with gateway.daemon.connect() as client:
            other = client.key.create("other").key
        gateway.make("box", ephemeral_storage="30Mi")
        more = {"id": "more", "image": gateway.image_id, "ephemeral_storage": "30Mi"}
        refusal = gateway.ask("POST", SESSIONS, more)
        assert refusal.problem == (400, "quota_exceeded")
        assert "quota of disk of key:ci" in refusal.value["detail"]
        wait = {"command": "until [ -e go ]; do sleep 0.1; done"}
        with ThreadPoolExecutor() as pool, gateway.daemon.connect() as client:
            waiting = [pool.submit(gateway.ask, "POST", f"{SESSIONS}box/exec/", wait) for _ in range(3)]
            until(lambda: [q.used for q in client.quota.get(owner="key:ci").quotas if q.quota == "calls"] == [3])
            refusal = gateway.ask("POST", f"{SESSIONS}box/exec/", {"command": "true"})
            assert refusal.problem == (429, "quota_exceeded")
            assert "quota of calls of key:ci" in refusal.value["detail"]
            assert gateway.ask("GET", SESSIONS, key=other).status == 200
            [box] = client.sandbox.list().sandboxes
            client.sandbox.exec(box.sandbox_id, "touch go")
            assert [one.result().value["exit_code"] for one in waiting] == [0, 0, 0]

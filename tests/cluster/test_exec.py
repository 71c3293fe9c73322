"""Commands in pods, frame by frame, and their logs."""

import json
import os
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
import websocket
from tests.cluster.conftest import new_namespace
from tests.support.expect import until
from tests.support.kubernetes.clients import Clients, refusal
from tests.support.kubernetes.images import BUSYBOX
from tests.support.patience import patient

pytestmark = pytest.mark.needs("root")

LONGEST_S = patient(30)
V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"


@pytest.fixture(scope="module")
def home(connected: Clients) -> Iterator[str]:
    """A namespace with the pod `main`."""
    namespace = new_namespace(connected)
    start(connected, namespace, "main", "echo one; echo two; echo three; exec sleep 1000000")
    yield namespace
    connected.core.delete_namespace(namespace)


def start(clients: Clients, namespace: str, name: str, script: str, *more: dict[str, Any]) -> None:
    """Run a pod, and wait until it runs."""
    main = {"name": "main", "image": BUSYBOX, "command": ["sh", "-c", script]}
    spec = {"containers": [main, *more], "terminationGracePeriodSeconds": 0}
    clients.core.create_namespaced_pod(namespace, {"metadata": {"name": name}, "spec": spec})
    read = clients.core.read_namespaced_pod
    until(lambda: read(name, namespace).status.phase == "Running")


def connect(clients: Clients, home: str, *command: str, protocol: str = V5) -> websocket.WebSocket:
    """An exec connection to the pod `main`, with stdin, stdout and stderr."""
    given = clients.api.configuration
    query = "&".join(("stdin=1", "stdout=1", "stderr=1", *(f"command={quote(part)}" for part in command)))
    url = f"ws{given.host.removeprefix('http')}/api/v1/namespaces/{home}/pods/main/exec?{query}"
    token = given.auth_settings().get("BearerToken", {}).get("value")
    options = {"ca_certs": given.ssl_ca_cert, "certfile": given.cert_file, "keyfile": given.key_file}
    found: websocket.WebSocket = websocket.create_connection(
        url, LONGEST_S, header=[f"Authorization: {token}"] if token else [], subprotocols=[protocol],
        sslopt={"cert_reqs": ssl.CERT_REQUIRED, **options} if url.startswith("wss") else {},
    )  # fmt: skip
    return found


def frames_of(connection: websocket.WebSocket) -> dict[int, bytes]:
    """All that comes on each channel, to the Status."""
    found: dict[int, bytes] = {}
    while 3 not in found:
        frame = connection.recv()
        assert isinstance(frame, bytes)
        assert frame
        found[frame[0]] = found.get(frame[0], b"") + frame[1:]
    connection.shutdown()  # type: ignore[no-untyped-call]
    return found


def test_output_and_exit_code(clients: Clients, home: str) -> None:
    script = "cat; echo out; echo err >&2; exit 3"
    done = clients.open_exec("main", "sh", "-c", script, namespace=home, stdin=True)
    done.write_stdin("in\n")
    done.close_channel(0)
    done.run_forever(timeout=LONGEST_S)
    assert (done.read_stdout(), done.read_stderr(), done.returncode) == ("in\nout\n", "err\n", 3)
    assert clients.exec("main", "echo", "hello", namespace=home) == "hello\n"


def test_only_the_streams_that_were_asked_for(clients: Clients, home: str) -> None:
    done = clients.open_exec("main", "sh", "-c", "echo out; echo err >&2", namespace=home, stderr=False)
    done.run_forever(timeout=LONGEST_S)
    assert (done.read_stdout(), done.read_stderr(), done.returncode) == ("out\n", "", 0)


def test_version_4_has_no_end_of_input(clients: Clients, home: str) -> None:
    connection = connect(clients, home, "head", "-c", "3", protocol=V4)
    assert connection.subprotocol == V4
    connection.send_binary(b"\xff\x00")
    connection.send_binary(b"\x00abcd")
    found = frames_of(connection)
    assert (found[1], json.loads(found[3])["status"]) == (b"abc", "Success")


def test_terminals_have_a_size(clients: Clients, home: str) -> None:
    done = clients.open_exec("main", "sh", namespace=home, stdin=True, tty=True)
    done.write_channel(4, '{"Width": 77, "Height": 33}')
    done.write_stdin("sleep 1; stty size; exit 5\n")
    done.run_forever(timeout=LONGEST_S)
    assert "33 77" in done.read_stdout()
    assert done.returncode == 5


def test_binary_data_both_ways(clients: Clients, home: str) -> None:
    data = os.urandom(1 << 20)
    done = clients.open_exec("main", "cat", namespace=home, stdin=True, binary=True)
    received = b""
    for begin in range(0, len(data), 1 << 14):
        done.write_stdin(data[begin : begin + (1 << 14)])
        received += done.read_stdout(timeout=0) or b""
    done.close_channel(0)
    done.run_forever(timeout=LONGEST_S)
    assert received + (done.read_stdout() or b"") == data


def test_a_protocol_that_nobody_knows_is_refused_without_a_word(clients: Clients, home: str) -> None:
    with pytest.raises(websocket.WebSocketBadStatusException, match="403") as refused:
        connect(clients, home, "true", protocol="v9.channel.k8s.io")
    assert not refused.value.resp_body


def test_refused_before_the_upgrade(clients: Clients, home: str) -> None:
    path = f"/api/v1/namespaces/{home}/pods"
    assert clients.request("POST", f"{path}/none/exec?command=true")[0] == 404


@pytest.mark.parametrize("command", [(), ("no-such-program",)], ids=["no command", "no program"])
def test_a_command_that_cannot_be_started_has_no_exit_code(
    clients: Clients, home: str, command: tuple[str, ...]
) -> None:
    status = json.loads(frames_of(connect(clients, home, *command))[3])
    assert status["status"] == "Failure"
    assert "ExitCode" not in str(status)
    assert "exec" in status["message"]


def test_a_pod_of_several_containers_needs_the_name_of_one(clients: Clients, home: str) -> None:
    start(clients, home, "pair", "sleep 1000000", {"name": "two", "image": BUSYBOX, "command": ["sleep", "1000000"]})
    path = f"/api/v1/namespaces/{home}/pods/pair"
    for request in ("exec?command=true&stdout=1", "log?x=1"):
        code, said = clients.request("GET", f"{path}/{request}")
        assert (code, "choose one of: [main two]" in said["message"]) == (400, True)
        code, said = clients.request("GET", f"{path}/{request}&container=three")
        assert (code, said["message"]) == (400, "container three is not valid for pod pair")
    assert clients.exec("pair", "echo", "two", namespace=home, container="two") == "two\n"


def test_logs(clients: Clients, home: str) -> None:
    read = clients.core.read_namespaced_pod_log
    until(lambda: read("main", home) == "one\ntwo\nthree\n")
    assert read("main", home, tail_lines=1) == "three\n"
    assert refusal(lambda: read("none", home)) == (404, "NotFound")


def test_logs_are_followed(clients: Clients, home: str) -> None:
    talk = "echo first; until [ -e /tmp/go ]; do sleep 0.05; done; echo second; sleep 1000000"
    start(clients, home, "talker", talk)
    response = clients.core.read_namespaced_pod_log("talker", home, follow=True, _preload_content=False)
    assert response.read1() == b"first\n"
    clients.exec("talker", "touch", "/tmp/go", namespace=home)
    assert response.read1() == b"second\n"
    clients.core.delete_namespaced_pod("talker", home)
    assert response.read1() == b""

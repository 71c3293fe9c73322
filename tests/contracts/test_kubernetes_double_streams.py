"""Exec and logs of the double: real processes behind the websockets of the API."""

import contextlib
import io
import json
import os
import select
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import websocket
from kubernetes import watch
from tests.support import rootfs
from tests.support.expect import until
from tests.support.kubernetes.clients import Clients, refusal
from tests.support.kubernetes.cluster import Cluster, start_cluster

LONGEST_S = 30
ENOUGH = 300 << 20
"""More bytes than any buffer on the way may hold."""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("image")
    with tarfile.open(fileobj=io.BytesIO(rootfs.busybox())) as archive:
        archive.extractall(root, filter="fully_trusted")
    return root


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, image: Path) -> Iterator[Cluster]:
    with start_cluster(tmp_path_factory.mktemp("cluster"), {"busybox": image}, crds={}) as cluster:
        with Clients(cluster) as clients:
            start(clients, "main", ["sh", "-c", "echo one; echo two; echo three; exec sleep 1000000"])
        yield cluster


def start(clients: Clients, name: str, command: list[str]) -> None:
    """Run a pod, and wait until it runs."""
    containers = [{"name": "main", "image": "busybox", "command": command}]
    spec = {"containers": containers, "terminationGracePeriodSeconds": 0}
    clients.core.create_namespaced_pod("default", {"metadata": {"name": name}, "spec": spec})
    watcher: Any = watch.Watch()  # type: ignore[no-untyped-call]
    selected = {"field_selector": f"metadata.name={name}", "timeout_seconds": LONGEST_S}
    for event in watcher.stream(clients.core.list_namespaced_pod, "default", **selected):
        if event["object"].status.phase == "Running":
            return
    pytest.fail(f"pod {name} does not run")


def connect(cluster: Cluster, *command: str, protocol: str = "v5.channel.k8s.io") -> websocket.WebSocket:
    """An exec connection with stdin, stdout and stderr."""
    query = "&".join(("stdin=1", "stdout=1", "stderr=1", *(f"command={part}" for part in command)))
    url = f"ws{cluster.url.removeprefix('http')}/api/v1/namespaces/default/pods/main/exec?{query}"
    header = [f"Authorization: Bearer {cluster.token}"]
    connection: websocket.WebSocket = websocket.create_connection(
        url, LONGEST_S, header=header, subprotocols=[protocol]
    )
    return connection


def test_output_and_exit_code(clients: Clients) -> None:
    script = "cat; echo out; echo err >&2; exit 3"
    done = clients.open_exec("main", "sh", "-c", script, stdin=True)
    done.write_stdin("in\n")
    done.close_channel(0)
    done.run_forever(timeout=LONGEST_S)
    assert (done.read_stdout(), done.read_stderr(), done.returncode) == ("in\nout\n", "err\n", 3)
    assert clients.exec("main", "echo", "hello") == "hello\n"


def test_only_the_streams_that_were_asked_for(clients: Clients) -> None:
    done = clients.open_exec("main", "sh", "-c", "echo out; echo err >&2", stderr=False)
    done.run_forever(timeout=LONGEST_S)
    assert (done.read_stdout(), done.read_stderr(), done.returncode) == ("out\n", "", 0)


def test_version_4_has_no_end_of_input(cluster: Cluster) -> None:
    connection = connect(cluster, "head", "-c", "3", protocol="v4.channel.k8s.io")
    assert connection.subprotocol == "v4.channel.k8s.io"
    connection.send_binary(b"\xff\x00")
    connection.send_binary(b"\x00abcd")
    frames = [connection.recv() for _ in range(3)]
    assert frames[:2] == [b"\x01", b"\x01abc"]
    assert b'"status":"Success"' in frames[2]
    connection.shutdown()  # type: ignore[no-untyped-call]


def test_terminals_have_a_size(clients: Clients) -> None:
    done = clients.open_exec("main", "sh", stdin=True, tty=True)
    done.write_channel(4, '{"Width": 77, "Height": 33}')
    done.write_stdin("stty size; exit 5\n")
    done.run_forever(timeout=LONGEST_S)
    assert "33 77" in done.read_stdout()
    assert done.returncode == 5


def test_binary_data_both_ways(clients: Clients) -> None:
    data = os.urandom(1 << 20)
    done = clients.open_exec("main", "cat", stdin=True, binary=True)
    received = b""
    for start in range(0, len(data), 1 << 14):
        done.write_stdin(data[start : start + (1 << 14)])
        received += done.read_stdout(timeout=0) or b""
    done.close_channel(0)
    done.run_forever(timeout=LONGEST_S)
    assert received + (done.read_stdout() or b"") == data


def test_a_slow_reader_stops_the_process(cluster: Cluster, clients: Clients) -> None:
    connection = connect(cluster, "sh", "-c", f"echo%20$$;exec%20head%20-c%20{ENOUGH}%20/dev/zero")
    assert connection.recv() == b"\x01"
    announced = connection.recv()
    assert isinstance(announced, bytes)
    process = announced[1:].partition(b"\n")[0].decode()
    written = _settled(lambda: _written(clients, process))
    assert written < ENOUGH // 2
    connection.shutdown()  # type: ignore[no-untyped-call]


def test_a_process_that_does_not_read_stops_the_sender(cluster: Cluster) -> None:
    connection = connect(cluster, "sleep", "1000")
    connection.settimeout(1)
    frame = b"\x00" + bytes(1 << 20)
    sent = 0
    with contextlib.suppress(websocket.WebSocketTimeoutException):
        while sent < ENOUGH:
            connection.send_binary(frame)
            sent += len(frame)
    assert sent < ENOUGH // 2
    connection.shutdown()  # type: ignore[no-untyped-call]
    deadline = time.monotonic() + LONGEST_S
    while cluster.requests()["execs"]:
        assert time.monotonic() < deadline, "the exec is still open"
        time.sleep(0.05)


def _written(clients: Clients, process: str) -> int:
    """Bytes that a process in the pod has written."""
    text = clients.exec("main", "cat", f"/proc/{process}/io")
    return int(dict(line.split(": ") for line in text.splitlines())["wchar"])


def _settled(read: Callable[[], int]) -> int:
    """A number that is the same 20 times in a row."""
    seen = [read()]
    while len(seen) < 20 or len(set(seen[-20:])) > 1:
        seen.append(read())
    return seen[-1]


def test_exec_connections_can_be_cut(cluster: Cluster) -> None:
    connection = connect(cluster, "sleep", "1000")
    assert connection.recv() == b"\x01"
    assert cluster.requests()["execs"] == [{"namespace": "default", "pod": "main", "command": ["sleep", "1000"]}]
    assert cluster.faults(cut_exec={"namespace": "default", "pod": "main"}) == {"cut": 1}
    with pytest.raises((websocket.WebSocketConnectionClosedException, ConnectionError)):
        connection.recv()
    connection.shutdown()  # type: ignore[no-untyped-call]


def test_refused_before_the_upgrade(cluster: Cluster, clients: Clients) -> None:
    path = "/api/v1/namespaces/default/pods/main/exec?command=true"
    assert clients.request("GET", path)[0] == 400
    with pytest.raises(websocket.WebSocketBadStatusException, match="403") as refused:
        connect(cluster, "true", protocol="v9.channel.k8s.io")
    assert refused.value.resp_body == b""
    assert clients.request("POST", "/api/v1/namespaces/default/pods/none/exec?command=true")[0] == 404


@pytest.mark.parametrize("command", [(), ("no-such-program",)], ids=["no command", "no program"])
def test_a_command_that_cannot_be_started_has_no_exit_code(cluster: Cluster, command: tuple[str, ...]) -> None:
    connection = connect(cluster, *command)
    while (frame := connection.recv())[0] != 3:
        assert isinstance(frame, bytes)
    status = json.loads(frame[1:])
    assert (status["status"], "details" in status) == ("Failure", False)
    assert "failed to exec in container" in status["message"]
    connection.shutdown()  # type: ignore[no-untyped-call]


def test_a_pod_of_several_containers_needs_the_name_of_one(cluster: Cluster, clients: Clients) -> None:
    containers = [{"name": name, "image": "busybox", "command": ["sleep", "1000000"]} for name in ("one", "two")]
    spec = {"containers": containers, "terminationGracePeriodSeconds": 0}
    clients.core.create_namespaced_pod("default", {"metadata": {"name": "pair"}, "spec": spec})
    until(lambda: clients.core.read_namespaced_pod("pair", "default").status.phase == "Running")
    path = "/api/v1/namespaces/default/pods/pair"
    for request in ("exec?command=true&stdout=1", "log"):
        code, said = clients.request("GET", f"{path}/{request}")
        assert (code, "choose one of: [one two]" in said["message"]) == (400, True)
        code, said = clients.request("GET", f"{path}/{request}{'&' if '?' in request else '?'}container=three")
        assert (code, said["message"]) == (400, "container three is not valid for pod pair")
    assert clients.exec("pair", "echo", "two", container="two") == "two\n"


def test_logs(clients: Clients) -> None:
    read = clients.core.read_namespaced_pod_log
    until(lambda: read("main", "default") == "one\ntwo\nthree\n")
    assert read("main", "default", tail_lines=1) == "three\n"
    assert refusal(lambda: read("none", "default")) == (404, "NotFound")


def test_logs_are_followed(clients: Clients) -> None:
    start(
        clients,
        "talker",
        ["sh", "-c", "echo first; until [ -e /tmp/go ]; do sleep 0.05; done; echo second; sleep 1000000"],
    )
    response = clients.core.read_namespaced_pod_log("talker", "default", follow=True, _preload_content=False)
    assert response.read1() == b"first\n"
    clients.exec("talker", "touch", "/tmp/go")
    assert response.read1() == b"second\n"
    clients.core.delete_namespaced_pod("talker", "default")
    assert response.read1() == b""


def test_the_cluster_ends_with_its_parent(tmp_path: Path) -> None:
    program = f"""
import pathlib, sys
from tests.support.kubernetes.cluster import start_cluster
with start_cluster(pathlib.Path({str(tmp_path / "cluster")!r}), crds={{}}):
    print("ready", flush=True)
    sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout
    assert parent.stdin
    assert parent.stdout.readline() == b"ready\n"
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    handles = [os.pidfd_open(int(child)) for child in children]
    assert handles
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    for handle in handles:
        assert select.select([handle], [], [], LONGEST_S)[0], "it still runs"
        os.close(handle)

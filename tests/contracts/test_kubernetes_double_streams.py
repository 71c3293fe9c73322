"""Streams of the double that no real cluster has broken off at a test's word, or shows how full they are."""

import contextlib
import io
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
from tests.support.kubernetes.clients import Clients
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

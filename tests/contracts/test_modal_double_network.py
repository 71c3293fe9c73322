"""The double of Modal's service has tunnels, readiness probes, idle timeouts, and networks that are apart."""

import contextlib
import socket
import ssl
from typing import Any

import pytest
from tests.support.expect import until
from tests.support.modal.boxes import Boxes, output
from tests.support.patience import patient

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("busybox"), pytest.mark.needs("modal")]

ECHO = ("nc", "-ll", "-p", "22", "-e", "cat")


def echo(connection: socket.socket) -> bytes:
    """Send a line, and return what comes back until the end."""
    connection.settimeout(patient(60))
    connection.sendall(b"line\n")
    received = connection.recv(100)
    while not received.endswith(b"\n"):
        received += connection.recv(100) or b"\n"
    return received


def listens(made: Any) -> bool:
    return bool(output(made.exec("sh", "-c", "netstat -ltn | grep -c :22"))[2] == 0)


def test_a_tunnel_leads_into_the_sandbox(boxes: Boxes) -> None:
    made = [boxes.create(*ECHO, unencrypted_ports=[22]) for _ in range(2)]
    for one in made:
        until(lambda one=one: listens(one))
        tunnel = one.tunnels()[22]
        assert tunnel.tcp_socket == (tunnel.unencrypted_host, tunnel.unencrypted_port)
        with socket.create_connection(tunnel.tcp_socket) as connection:
            assert echo(connection) == b"line\n"
    addresses = {one.tunnels()[22].tcp_socket for one in made}
    assert len(addresses) == 2
    assert {one.tunnels()[22].tcp_socket for one in map(boxes.sdk.Sandbox.from_id, [m.object_id for m in made])} == (
        addresses
    )


def test_a_tunnel_through_tls(boxes: Boxes) -> None:
    made = boxes.create(*ECHO, encrypted_ports=[22])
    until(lambda: listens(made))
    tunnel = made.tunnels()[22]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection(tunnel.tls_socket) as connection,
        context.wrap_socket(connection, server_hostname=tunnel.host) as wrapped,
    ):
        assert echo(wrapped) == b"line\n"
    with pytest.raises(boxes.sdk.exception.InvalidError):
        tunnel.tcp_socket  # noqa: B018 - a property that raises


def test_a_tunnel_to_nobody_is_closed(boxes: Boxes) -> None:
    made = boxes.create(unencrypted_ports=[22])
    with socket.create_connection(made.tunnels()[22].tcp_socket) as connection:
        connection.settimeout(patient(60))
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""


def test_a_tunnel_ends_with_its_sandbox(boxes: Boxes) -> None:
    made = boxes.create(*ECHO, unencrypted_ports=[22])
    until(lambda: listens(made))
    address = made.tunnels()[22].tcp_socket
    with socket.create_connection(address) as connection:
        assert echo(connection) == b"line\n"
        made.terminate()
        made.wait(raise_on_termination=False)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    with pytest.raises(ConnectionRefusedError), socket.create_connection(address):
        pass


def test_a_sandbox_that_becomes_ready(boxes: Boxes) -> None:
    probe = boxes.sdk.Probe.with_exec("test", "-e", "/ready")
    made = boxes.create(readiness_probe=probe)
    with pytest.raises(boxes.sdk.exception.TimeoutError):
        made.wait_until_ready(timeout=1)
    assert output(made.exec("touch", "/ready"))[2] == 0
    made.wait_until_ready(timeout=60)
    listening = boxes.create(*ECHO, readiness_probe=boxes.sdk.Probe.with_tcp(22))
    listening.wait_until_ready(timeout=60)
    assert listens(listening)


def test_a_sandbox_that_is_idle_ends(boxes: Boxes) -> None:
    def start_in_time() -> Any:
        """Start a process before the sandbox is idle for too long."""
        made = boxes.create(idle_timeout=1)
        try:
            return made, made.exec("sh", "-c", "read line; echo $line")
        except boxes.sdk.exception.NotFoundError:
            return None

    busy, process = until(start_in_time)
    boxes.create(idle_timeout=1).wait()  # it ends, and the other one would have
    assert process.poll() is None
    process.stdin.write("still there\n")
    process.stdin.write_eof()
    process.stdin.drain()
    busy.wait()


def test_sandboxes_have_no_network_in_common(boxes: Boxes) -> None:
    first = boxes.create(*ECHO)
    until(lambda: listens(first))
    second = boxes.create(block_network=True)
    assert output(second.exec("nc", "-w", "1", "127.0.0.1", "22"))[2] != 0
    assert output(second.exec("sh", "-c", "tail -n +3 /proc/net/dev | cut -d: -f1"))[0].split() == ["lo"]

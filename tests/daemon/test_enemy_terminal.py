"""What broke a daemon when its descriptors and terminals were attacked."""

import errno
import socket
import struct
from typing import Any

import pytest
from tests.users import NOBODY, as_user

from sandkeepd.api.listener import _SO_PASSRIGHTS


def _can_refuse() -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
        except OSError:
            return False
    return True


def _lingering() -> socket.socket:
    """A socket that takes 20 s to close, as nobody reads what was sent."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        sender = socket.socket()
        sender.connect(listener.getsockname())
        keeper, _ = listener.accept()
    sender.setblocking(False)
    try:
        while sender.send(b"x" * 65536):
            pass
    except BlockingIOError:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 20))
    keeper.detach()  # it stays open, for as long as this process lives
    return sender


@pytest.mark.needs("root")
@pytest.mark.parametrize("name", ["sock", "stream.sock"])
def test_nobody_can_make_the_daemon_close_a_descriptor_for_him(shared_daemon: Any, name: str) -> None:
    """Closing one can take as long as its sender likes, and all other clients would have to wait."""
    if not _can_refuse():
        pytest.skip("this kernel cannot refuse descriptors: that came with 6.16")

    def attack() -> int | None:
        with socket.socket(socket.AF_UNIX) as sock, _lingering() as sent:
            sock.connect(f"{shared_daemon.root}/{name}")
            try:
                socket.send_fds(sock, [b"{"], [sent.fileno()])
            except OSError as error:
                sent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return error.errno
        return None

    assert as_user(NOBODY, attack) == errno.EPERM
    with shared_daemon.connect() as client:
        assert client.daemon.ping()

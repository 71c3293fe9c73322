"""What broke a daemon when its descriptors and terminals were attacked."""

import errno
import socket
import struct
from typing import Any

import pytest
from tests.support.boxes import Box
from tests.support.expect import until
from tests.support.patience import patient
from tests.support.users import NOBODY, as_user

from sandkeep.ids import new_id
from sandkeepd.api.listener import _SO_PASSRIGHTS

pytestmark = pytest.mark.needs("bwrap", "tmux")


@pytest.fixture(scope="module")
def box(shared_box: Box) -> str:
    return shared_box.id


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


@pytest.mark.parametrize(
    ("trick", "code"),
    [
        ("tmux set-option -g remain-on-exit on", 9),
        ("tmux set-option -p remain-on-exit on", 9),
        ("tmux set-option -s exit-empty off", 9),
        ("tmux respawn-pane -k 'sleep 1000'", 9),
    ],
)
def test_a_terminal_that_would_stay_is_no_process(shared_daemon: Any, box: str, trick: str, code: int) -> None:
    """However its tmux was told to go on, a process has ended when its command has."""
    with shared_daemon.connect() as client:
        name = client.process.launch(box, f"echo up; {trick}; exit 9", name=new_id("t"), tty=True).name
        assert client.process.wait(box, name, timeout_s=patient(60)).exit_code == code
        assert client.process.read(box, name).stdout.startswith(b"up\r\n")

        def left() -> bytes:
            return bytes(client.sandbox.exec(box, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout)

        assert b"/run/sandkeep/in" in left()  # the keeper is seen
        until(lambda: b"sleep 1000" not in left())

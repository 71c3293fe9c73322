"""Terminals through a real daemon: started, attached to, and from a key to its echo. Beside tmux by hand, in turns."""

import os
import pty
import select
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benches import fair
from benches.daemon import daemon, tree
from benches.table import Row, show

from sandkeepd.host.processes import raise_priority

STARTS = 40
KEYS = 1500
LINE = 60


class Terminal:
    """The controlling side of a terminal in which a tmux client shows something."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def until(self, wanted: bytes) -> None:
        data = b""
        while wanted not in data:
            select.select([self.fd], [], [])
            data = data[-16:] + os.read(self.fd, 65536)

    def drain(self) -> None:
        while select.select([self.fd], [], [], 0.2)[0]:
            os.read(self.fd, 65536)

    def key(self, key: bytes) -> float:
        """Seconds from a key to its echo."""
        begun = time.perf_counter()
        os.write(self.fd, key)
        self.until(key)
        return time.perf_counter() - begun


def by_hand(socket: str, *command: str) -> None:
    """What it takes to have a command in a tmux of its own, with a journal."""
    tmux = ["tmux", "-u", "-f", "/dev/null", "-S", socket]
    words = [*tmux, "set-option", "-g", "status", "off", ";", "new-session", "-d", "-x", "80", "-y", "24", *command]
    subprocess.run([*words, ";", "pipe-pane", f"exec cat >>{socket}.journal"], check=True)


@contextmanager
def attached_by_hand(socket: str) -> Iterator[Terminal]:
    pid, fd = pty.fork()
    if pid == 0:
        raise_priority()  # it is a session of its own here
        os.execvpe("tmux", ["tmux", "-u", "-S", socket, "attach-session"], {**os.environ, "TERM": "xterm-256color"})
    try:
        yield Terminal(fd)
    finally:
        os.close(fd)
        os.waitpid(pid, 0)


@contextmanager
def attached(client: Any, box: str, name: str) -> Iterator[Terminal]:
    with client.with_descriptors("process.attach", box, name) as handed:
        (fd,) = handed.receive()
        handed.answer()
    os.set_blocking(fd, True)
    try:
        yield Terminal(fd)
    finally:
        os.close(fd)


def seconds(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def start_row(client: Any, root: str, box: str) -> Row:
    ours, floor = [], []
    for number in range(STARTS):
        floor.append(seconds(lambda number=number: by_hand(f"{root}/s{number}", "cat")))
        subprocess.run(["tmux", "-S", f"{root}/s{number}", "kill-server"], check=True)
        ours.append(seconds(lambda number=number: client.process.launch(box, ["cat"], name=f"s{number}", tty=True)))
        client.process.signal(box, f"s{number}", "KILL")
    return row("process.launch with a terminal, durable", ours, "tmux new-session, pipe-pane", floor, 3)


def attach_row(client: Any, root: str, box: str) -> Row:
    ours, floor = [], []
    for _ in range(STARTS):
        begun = time.perf_counter()
        with attached_by_hand(f"{root}/hand") as terminal:
            terminal.until(b"\x1b")
            floor.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        with attached(client, box, "cat") as terminal:
            terminal.until(b"\x1b")
            ours.append(time.perf_counter() - begun)
    return row("attach to the first byte", ours, "tmux attach", floor, 4)


def key_row(client: Any, root: str, box: str) -> Row:
    ours, floor = [], []
    with attached_by_hand(f"{root}/hand") as hand, attached(client, box, "cat") as terminal:
        hand.drain()
        terminal.drain()
        for number in range(KEYS):
            key = b"\r" if number % LINE == LINE - 1 else bytes([97 + number % 26])
            if key == b"\r":
                for one in (hand, terminal):
                    os.write(one.fd, key)
                    one.drain()
                continue
            floor.append(hand.key(key))
            ours.append(terminal.key(key))
    return row("from a key to its echo", ours, "tmux attach", floor, 2)


def row(case: str, ours: list[float], what: str, floor: list[float], most: float) -> Row:
    ratio = statistics.median(ours) / statistics.median(floor)
    figures = [f"p50 {statistics.median(one) * 1e3:.2f} ms" for one in (ours, floor)]
    return Row(case, figures[0], f"{what} {figures[1]}", ratio, f"<= {most:g}", ratio <= most)


@fair.conditions()
def run() -> list[Row]:
    with daemon() as (client, root):
        box = client.sandbox.create(client.image.create(tree(root, "small", 10, 1000)).image_id).sandbox_id
        client.process.launch(box, ["cat"], name="cat", tty=True)
        by_hand(f"{root}/hand", "cat")
        asked = ["tmux", "-S", f"{root}/hand", "display-message", "-p", "#{pid}"]
        fair.like_the_daemon(int(subprocess.run(asked, stdout=subprocess.PIPE, check=True).stdout))
        try:
            return [start_row(client, root, box), attach_row(client, root, box), key_row(client, root, box)]
        finally:
            subprocess.run(["tmux", "-S", f"{root}/hand", "kill-server"], check=True)


if __name__ == "__main__":
    show(run())

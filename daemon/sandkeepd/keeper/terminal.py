"""Terminals of processes, as files and scripts: the files in `in`, and the commands to its tmux.

Each is a tmux server of its own, inside the sandbox. Viewers use the sandbox's own tmux client: a server tells its
client what to execute, so a client outside would be an escape.
"""

import os
import select
from pathlib import Path
from typing import Final

import trio

from sandkeep.errors import ProviderError, SandkeepError, SetupError, StateError
from sandkeepd.contract.processes import Terminal
from sandkeepd.keeper import requests

VIEWER: Final = "vwr"
"""Prefix of the ids of viewers, which are helpers and not on record: their files are removed when they end."""

MAX_SOCKET_BYTES: Final = 100
"""A socket's address holds 107. A longer path is given from the directory of the journals, where all scripts begin."""

DEADLINE_S: Final = 20.0
"""Seconds a process's tmux has to show it to a viewer, and for any other request."""

STUCK: Final = b"stuck\n"
"""Said to a terminal's script when its process was killed, and the end of that is still not known."""

END_OF_FILE: Final = b"\x04"


_SCRIPTS: Final = Path(__file__).parent

PANE: Final = (_SCRIPTS / "pane.sh").read_bytes()
BEGIN: Final = b'echo "run $$.$PPID" >&9; exec 9>&-'
"""The first commands of a process in a terminal: it reports its pid, and that of its parent, whose group it belongs to.
"""

_TERMINFO: Final = (_SCRIPTS / "terminfo.sh").read_bytes()
_TERMINAL: Final = _TERMINFO + (_SCRIPTS / "terminal.sh").read_bytes()
_VIEWER: Final = (_TERMINFO + (_SCRIPTS / "viewer.sh").read_bytes()).decode()


def is_viewer(process_id: str) -> bool:
    """Return True for the id of a viewer, or the name of its file in `in`."""
    return process_id.startswith(VIEWER + "_")


def script(inside: str, hidden: str, process_id: str, terminal: Terminal) -> bytes:
    """Return the script that gives a process a terminal. `inside` is the path of `in` and `out` in the sandbox."""
    journals = f"{inside}/out/p"
    sockets = journals if hidden == "in" else f"{inside}/{hidden}"
    arguments = [
        process_id, f"{inside}/in/{process_id}", f"{journals}/{process_id}", str(terminal.rows), str(terminal.cols),
        terminal.session, socket(sockets, process_id), hidden,
    ]  # fmt: skip
    return b"set -- " + b" ".join(requests.quote(os.fsencode(word)) for word in arguments) + b"\n" + _TERMINAL


def socket(sockets: str, process_id: str) -> str:
    """Return the path of a tmux socket in `sockets`, short enough when used from the directory of journals."""
    path = f"{sockets}/{process_id}.tmux"
    return path if len(os.fsencode(path)) <= MAX_SOCKET_BYTES else f"./{process_id}.tmux"


def viewer_argv(sockets: str, process_id: str, number: int | None, term: str, *, read_only: bool) -> list[str]:
    """Return the argv, to be run in `journals`, that shows a terminal on /dev/pts/`number`, or its own."""
    place = "" if number is None else f"/dev/pts/{number}"
    return ["sh", "-c", _VIEWER, socket(sockets, process_id), place, term, "-r" if read_only else ""]


def resize_argv(sockets: str, process_id: str, rows: int, cols: int) -> list[str]:
    """The command, to be run among the journals, that gives a terminal a size; the next viewer may change it."""
    size = ["resize-window", "-t", "$0:", "-x", str(cols), "-y", str(rows)]
    return _tmux(sockets, process_id, *size, ";", "set-option", "-wq", "-t", "$0:", "window-size", "latest")


def paste_argv(sockets: str, process_id: str, buffer: str) -> list[str]:
    """The command, to be run among the journals, that types its input into a terminal, every byte as it is."""
    load = ["load-buffer", "-b", buffer, "-"]
    return _tmux(sockets, process_id, *load, ";", "paste-buffer", "-d", "-r", "-b", buffer, "-t", "%0")


def with_eof(data: bytes, *, eof: bool) -> bytes:
    """Return the bytes to type. In the middle of a line the first end-of-file character only submits the line."""
    if not eof:
        return data
    return data + END_OF_FILE * (2 if data and not data.endswith(b"\n") else 1)


def _tmux(sockets: str, process_id: str, *arguments: str) -> list[str]:
    return ["tmux", "-u", "-S", socket(sockets, process_id), *arguments]


async def wait_shown(fd: int, ended: trio.Event) -> bool:
    """Wait until a viewer's terminal shows something; return False when the viewer has ended instead.

    tmux reports errors on stderr, so the first byte on the terminal means that it shows the process. Raises
    `provider_unavailable` when nothing happens for too long.
    """
    found = False

    async def look() -> None:
        nonlocal found
        await trio.lowlevel.wait_readable(fd)
        if _holds_bytes(fd):
            found = True
            nursery.cancel_scope.cancel()

    with trio.move_on_after(DEADLINE_S) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await ended.wait()
            nursery.cancel_scope.cancel()
    if scope.cancelled_caught:
        raise no_answer()
    return found


def no_answer() -> SandkeepError:
    """The error for a tmux that does nothing."""
    message = "tmux of the process's terminal does not answer: kill the process if that goes on"
    return ProviderError("provider_unavailable", message)


def _holds_bytes(fd: int) -> bool:
    """Return True if there are bytes to read, and not only a hangup."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(0))


def not_started(stderr: bytes) -> SandkeepError:
    """Return the error for a process that got no terminal, from its stderr."""
    sentence = _sentence(stderr)
    if sentence == "tmux is missing":
        message = (
            "there is no tmux in the sandbox's image, which terminals need: install it there, or launch without tty"
        )
        return SetupError("not_supported", message)
    message = f"cannot start the process's terminal: {sentence or 'the sandbox is out of processes or memory'}"
    return ProviderError("provider_unavailable", message)


def not_attached(stderr: bytes) -> SandkeepError:
    """The error for a viewer that ended at once."""
    message = f"cannot attach to the process's terminal: {_sentence(stderr) or 'its tmux did not say why'}"
    return ProviderError("provider_unavailable", message)


def refused(stderr: bytes) -> SandkeepError:
    """The error for something that tmux did not do."""
    return StateError("not_ready", f"tmux of the process's terminal refused: {_sentence(stderr) or 'it has ended'}")


def _sentence(stderr: bytes) -> str:
    text = stderr.decode(errors="replace").strip()[:300]
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())

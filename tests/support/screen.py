"""A terminal such as people have, played by a tmux server of the test's own: keys go in, and what is seen comes out.

What is typed and shown passes a real pseudo-terminal. Nothing is slept for: a screen is looked at until it shows what
it should, or a deadline is over. One client of the server is asked for all of it: a program for each look at the
screen would take more of a processor than what is looked at.
"""

import os
import select
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support.expect import until
from tests.support.patience import patient

DEADLINE_S = patient(120.0)
"""Only a test that fails takes so long. A daemon that starts on a busy machine may need half a minute."""


class Screen:
    """One window with a plain shell in it. `env` is what that shell has, and nothing else."""

    def __init__(self, place: Path, env: dict[str, str], *, rows: int = 24, cols: int = 80) -> None:
        self._words = ["tmux", "-u", "-S", str(place / "tmux"), "-f", "/dev/null"]
        given = [f"{name}={value}" for name, value in {"PS1": "$ ", "LANG": "C.UTF-8", **env}.items()]
        begin = [
            *("set-option", "-g", "default-terminal", "tmux-256color", ";", "set-option", "-g", "status", "off", ";"),
            *("new-session", "-d", "-s", "screen", "-x", str(cols), "-y", str(rows)),
            *("env", "-i", *given, "TERM=tmux-256color", "bash", "--norc", "--noprofile"),
        ]
        subprocess.run([*self._words, *begin], capture_output=True, check=True, timeout=DEADLINE_S)
        self._client = subprocess.Popen(
            [*self._words, "-C", "attach-session", "-t", "screen", "-f", "no-output,ignore-size"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._unread = b""
        self._answer()  # to attach-session
        self.until("$ ")

    def _tmux(self, *words: str) -> str:
        assert self._client.stdin is not None
        self._client.stdin.write(f"{' '.join(map(_quoted, words))}\n".encode())
        return self._answer()

    def _answer(self) -> str:
        """Read what a command said, between `%begin` and `%end` of one number. Notices come before."""
        while not (begin := self._line()).startswith(b"%begin "):
            assert not begin.startswith(b"%exit"), "the shell of this screen has ended"
        number = begin.removeprefix(b"%begin")
        said: list[str] = []
        while (line := self._line()) != b"%end" + number:
            assert line != b"%error" + number, "\n".join(said)
            said.append(line.decode())
        return "\n".join(said)

    def _line(self) -> bytes:
        assert self._client.stdout is not None
        while b"\n" not in self._unread:
            assert select.select([self._client.stdout], [], [], DEADLINE_S)[0], "tmux does not answer"
            read = os.read(self._client.stdout.fileno(), 1 << 16)
            assert read, "tmux has ended"
            self._unread += read
        line, self._unread = self._unread.split(b"\n", 1)
        return line

    def type(self, text: str) -> None:
        """Type characters."""
        self._tmux("send-keys", "-t", "screen", "-l", text)

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names: Enter, C-c, PageUp."""
        self._tmux("send-keys", "-t", "screen", *keys)

    def enter(self, line: str) -> None:
        """Type a line, see it on the screen, and press Enter."""
        self.type(line)
        self.until(lambda seen: _squeezed(line) in _squeezed(seen))
        self.press("Enter")

    def open(self, line: str) -> str:
        """Enter a line that starts something which takes the whole screen, and look until that is what is shown."""
        self.enter(line)
        return self.until(lambda seen: bool(seen) and _squeezed(line) not in _squeezed(seen))

    def paste(self, data: bytes) -> None:
        """Have bytes come from the terminal as they are, as a mouse makes it send some."""
        self._tmux("send-keys", "-t", "screen", "-H", *(f"{byte:02x}" for byte in data))

    def shown(self, *, colours: bool = False, joined: bool = False) -> str:
        """What is on the screen, without empty lines at its end; with `colours`, the sequences that make them. With
        `joined`, lines that were broken at the edge are one again.
        """
        options = [*(["-e"] if colours else []), *(["-J"] if joined else [])]
        return self._tmux("capture-pane", "-p", "-t", "screen", *options).rstrip()

    def lines(self) -> list[str]:
        """What is on the screen, by lines."""
        return [line.rstrip() for line in self.shown().splitlines()]

    def until(self, expected: str | Callable[[str], bool], *, colours: bool = False) -> str:
        """Look until the screen holds a text, or something holds of it; answer it. Fails with what was seen instead."""
        holds = expected if callable(expected) else lambda shown: str(expected).strip() in shown

        seen = ""

        def look() -> bool:
            nonlocal seen
            seen = self.shown(colours=colours)
            return holds(seen)

        until(look, DEADLINE_S, seen=lambda: f"without {expected!r}:\n{seen}")
        return seen

    def until_prompt(self) -> str:
        """Look until the shell of this screen waits for a line."""
        return self.until(lambda seen: seen.splitlines()[-1:] == ["$"])

    def resize(self, rows: int, cols: int) -> None:
        """Give the window another size."""
        self._tmux("resize-window", "-t", "screen", "-x", str(cols), "-y", str(rows))

    def modes(self) -> str:
        """What the programs in this screen have switched on in it, beyond what a shell finds: for comparing."""
        names = ("alternate_on", "mouse_any_flag", "mouse_sgr_flag", "keypad_flag", "keypad_cursor_flag", "cursor_flag",
                 "insert_flag", "origin_flag", "scroll_region_upper", "scroll_region_lower")  # fmt: skip
        return self._tmux("display-message", "-p", "-t", "screen", " ".join(f"{name}=#{{{name}}}" for name in names))

    def child(self) -> int:
        """The pid of the program that the shell of this screen runs."""
        shell = self._tmux("display-message", "-p", "-t", "screen", "#{pane_pid}").strip()
        return int(until(lambda: Path(f"/proc/{shell}/task/{shell}/children").read_text().split())[0])

    def close(self) -> None:
        """End it, and what runs in it."""
        with self._client:  # closes its pipes, and waits for it
            self._client.kill()  # otherwise it and the server may wait for each other
        subprocess.run([*self._words, "kill-server"], capture_output=True, check=False, timeout=DEADLINE_S)


def _quoted(word: str) -> str:
    """Quote a word for tmux's parser. Of what is not a letter or a digit much means something to it also in quotes."""
    return '"' + "".join(c if c.isalnum() or not c.isascii() else f"\\{ord(c):03o}" for c in word) + '"'


def _squeezed(text: str) -> str:
    """Text without its white space: where a long line is broken does not matter."""
    return "".join(text.split())

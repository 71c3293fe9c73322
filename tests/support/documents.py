"""Documents as tests: their blocks, taken apart, and a session with a shell played as a document shows it.

In a document

- a ``sh`` block is typed in as it stands;
- in a ``console`` block a line after ``$ `` is typed, and what follows is what the reader then sees; ``…`` on a line of
  its own stands for any lines;
- a comment ``<!-- type: TEXT -->`` or ``<!-- press: KEYS -->`` says what the words around it ask the reader to do, with
  keys by tmux's names; what was begun before it goes on meanwhile;
- ``<!-- again: WHY -->`` says that the reader may have to give the next command more than once;
- ``<!-- file: NAME -->`` that the block after it, Python or a Dockerfile, is to be a file.

Ids, times, sizes and columns' widths are not compared.
"""

import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from tests.support.screen import DEADLINE_S, Screen

from sandkeep.demo import traces
from sandkeep.system.trees import remove_tree

ROOT = Path(__file__).parents[2]
ANYTHING = "…"

_ITEM = re.compile(
    r"^```(sh|console|python|dockerfile)\n(.*?)^```$|^<!-- (type|press|again|file): (.*?) -->$",
    re.MULTILINE | re.DOTALL,
)
_VARYING = (
    (r"\b(img|sbx|prc|log|cpy|snp|lck|mrg|cmt|frk|pnt)_[0-9a-z]{26}\b", r"\1_ID"),
    (r"\b\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
    (r"^ *\d+ ([◆◇ ]) +(?=\d+\.\d{3} )", r"POSITION \1 "),
    (r"\bposition \d+", "position N"),
    (r"\b(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(\.\d+)?\b", "TIME"),
    (r"\b\d+\.\d{3}\b", "TIME"),
    (r"\b(img|sbx|prc)…\w{6}\b", r"\1…"),
    (r"\b\d+(ms|s|m|h)\b", "AGE"),
    (r"\b\d+(\.\d+)? (B|kB|KB|MB|GB)\b", "SIZE"),
    (r"^\[\d\] \d+$", "[JOB] PID"),
    (r"\bpid \d+", "pid PID"),
    (r"\btick \d+", "tick N"),
    (r"sandkeep \d+\.\d+\.\d+", "sandkeep VERSION"),
    (r"/[\w./-]+/(socket|\.local)\b", r"/\1"),
    (r"^\[\d\][-+ ] .*", ""),  # what becomes of a job is told with the next prompt, or the one after it
    (r"\s+", " "),
)


def blocks(document: str, language: str) -> list[str]:
    """The blocks of one language, in their order."""
    text = (ROOT / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


class Step(Struct, frozen=True):
    """One thing that a reader does (`kind` is ``sh``, ``command``, ``type``, ``press``, ``again`` or
    ``file``), and what is seen.

    What it begins `returns` before the reader does the next thing, or goes on.
    """

    kind: str
    text: str
    seen: list[str]
    returns: bool = True
    repeats: bool = False


def section(document: str, heading: str) -> str:
    """What is under a heading of the second level."""
    pattern = rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)"
    (text,) = re.findall(pattern, (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)
    return str(text)


def environment(text: str) -> dict[str, str]:
    """The variables that the drop-ins for systemd in a text set."""
    return dict(line.split("=", 1) for line in re.findall(r"^Environment=(.*)$", text, re.MULTILINE))


def steps(document: str) -> list[Step]:
    """All that a reader of a document does."""
    return steps_of((ROOT / document).read_text())


def steps_of(text: str) -> list[Step]:
    """The same of a part of one."""
    found: list[Step] = []
    for match in _ITEM.finditer(text):
        language, body, kind, text = match.groups()
        if kind:
            found.append(Step(kind, text, []))
        elif language == "sh":
            found.append(Step("sh", body.rstrip("\n"), []))
        elif language in ("python", "dockerfile"):
            found[-1] = replace(found[-1], seen=body.splitlines())
        elif found and found[-1].kind in ("type", "press") and not _begins_a_command(found, body):
            found[-1] = Step(found[-1].kind, found[-1].text, body.splitlines())
        else:
            found += _commands(body)
    around = zip([None, *found[:-1]], found, [*found[1:], None], strict=True)
    return [_placed(before, step, after) for before, step, after in around if step.kind != "again"]


def _begins_a_command(found: list[Step], body: str) -> bool:
    return body.startswith("$ ") and not body.startswith(f"$ {found[-1].text}\n")


def _commands(body: str) -> Iterator[Step]:
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, *seen = part.splitlines()
        yield Step("command", command, seen)


def _placed(before: Step | None, step: Step, after: Step | None) -> Step:
    """A step as it is among its neighbours."""
    goes_on = after is not None and after.kind in ("type", "press")
    again = before is not None and before.kind == "again"
    return replace(step, returns=not goes_on, repeats=again)


def plain(line: str) -> str:
    """A line without what differs from time to time."""
    for pattern, instead in _VARYING:
        line = re.sub(pattern, instead, line)
    return line.strip()


def agrees(shown: list[str], seen: list[str]) -> bool:
    """Whether what a document shows is what was seen, wherever a narrower terminal broke its lines."""
    words = [r"(?:\S+ )*?" if line == ANYTHING else re.escape(plain(line)) + " " for line in shown]
    text = "".join(f"{plain(line)} " for line in seen if plain(line))
    return re.fullmatch("".join(words), text) is not None


@contextmanager
def directory(places: str) -> Iterator[Path]:
    """A directory for a reader, with nothing of it left behind, also when the reader got stuck."""
    made = tempfile.mkdtemp(dir=places)
    try:
        yield Path(made)
    finally:
        for pid in traces.processes(made):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        remove_tree(made)


class Session:
    """A reader at a terminal, who does what a document says."""

    def __init__(self, screen: Screen, directory: Path) -> None:
        self._screen = screen
        self._directory = directory

    def do(self, step: Step) -> None:
        """Do one thing, and look whether what is seen is what the document shows. Fails with both."""
        if step.kind == "file":
            (self._directory / step.text).write_text("\n".join(step.seen) + "\n")
        elif step.kind in ("type", "press"):
            self._screen.enter(step.text) if step.kind == "type" else self._screen.press(*step.text.split())
            self._until_seen(step)
        elif step.returns:
            self._give(step)
        else:
            self._enter(step)
            self._until_seen(step, typed=f"$ {step.text}")

    def _give(self, step: Step) -> None:
        """Give a command that comes to an end."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            self._enter(step)
            lines = self._screen.until(lambda seen: seen.startswith("$ ") and seen.endswith("\n$")).splitlines()[:-1]
            if not step.seen or agrees(step.seen, _without(lines, f"$ {step.text}")):
                return
            if not step.repeats or time.monotonic() > deadline:
                raise AssertionError(_difference(step, lines))

    def _enter(self, step: Step) -> None:
        self._screen.until_prompt()
        self._screen.press("C-l")  # clears the screen, and nothing else: `$?` stays what it was
        self._screen.until(lambda seen: seen == "$")
        for line in step.text.splitlines():
            self._screen.enter(line)

    def _until_seen(self, step: Step, typed: str = "") -> None:
        def holds(seen: str) -> bool:
            lines = seen.splitlines()
            if step.returns and lines[-1:] != ["$"]:
                return False
            lines = _without(lines[:-1] if step.returns else lines, typed)
            return agrees(step.seen, lines) or agrees([ANYTHING, *step.seen], lines)

        try:
            self._screen.until(holds)
        except AssertionError:
            raise AssertionError(_difference(step, self._screen.lines())) from None


def _without(lines: list[str], typed: str) -> list[str]:
    """What was seen below the command that was typed."""
    return lines[1:] if lines[:1] == [typed] else lines


def _difference(step: Step, lines: list[str]) -> str:
    shown, seen = "\n".join(step.seen), "\n".join(lines)
    return f"{step.kind} {step.text!r}\n-- the document shows:\n{shown}\n-- there is:\n{seen}"

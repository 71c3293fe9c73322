"""The output of an engine that builds or pulls: reported as progress, and as one error with the place of the failure.

A build's output is a caller's and unbounded: only the last lines of a step are kept, and progress is reported a few
times a second.
"""

import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from sandkeep.errors import CallerError, ProviderError, SandkeepError, StateError
from sandkeep.protocol.amounts import of_total
from sandkeepd.providers.docker.dockerfile import Step
from sandkeepd.providers.docker.stream import Document

Report = Callable[[str], None]

LAST_LINES: Final = 12
"""Number of output lines of a failing step in the error."""

MOST_COLUMNS: Final = 240
_REPORT_PERIOD_S: Final = 0.25
_STEP: Final = re.compile(r"Step (\d+)/(\d+) : ")
_EXIT: Final = re.compile(r"returned a non-zero code: (\d+)")
_ENGINES_OWN: Final = re.compile(
    r"no space left on device|read-only file system|input/output error|context canceled|cannot connect to|"
    r"failed to create (?:shim|task)|error creating overlay mount|too many open files|cannot allocate memory",
    re.IGNORECASE,
)
_LOST_LAYER: Final = re.compile(r'unable to find image "sha256:')
"""The error of Docker's builder (20.10) when any image was removed at the instant between two steps: it has lost the
one that it had made itself.
"""
_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class ProgressReport:
    """Reports progress at a readable rate."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._last = float("-inf")

    def report(self, message: str) -> None:
        """Report an important message."""
        self._last = time.monotonic()
        self._report(message)

    def report_if_due(self, message: str) -> None:
        """Report a message unless another one was reported just now."""
        if time.monotonic() - self._last >= _REPORT_PERIOD_S:
            self.report(message)


class BuildLog:
    """Follows one build. `steps` are those that the engine counts; None is one that the Dockerfile does not contain."""

    def __init__(self, steps: Sequence[Step | None], report: Report) -> None:
        self._steps = steps
        self._written = sum(step is not None for step in steps)
        self._progress = ProgressReport(report)
        self._now = 0
        self._tail: deque[str] = deque(maxlen=LAST_LINES)
        self._rest = ""
        self.error: SandkeepError | None = None
        self.has_lost_layer = False
        """True after a failure of the engine's own: a repeated build may well succeed."""

    def receive(self, document: Document) -> None:
        """Take the engine's next word."""
        text = document.get("stream") or document.get("status") or ""
        if "error" in document:
            self.error = self._failure(document)
        elif isinstance(text, str):
            begun = _STEP.match(text)
            if begun and int(begun[1]) == self._now + 1:
                self._begin()
            else:
                self._add_output(text)

    def refusal_error(self, message: str) -> SandkeepError:
        """Return the error for a build that the engine did not even begin."""
        return self._failure({"error": message})

    @property
    def tail(self) -> str:
        """The last lines of the present step's output."""
        return "\n".join([*self._tail, *filter(None, [_plain(self._rest)])][-LAST_LINES:])

    def too_long(self, limit: str) -> SandkeepError:
        """Return the error for a build that was ended at a time limit."""
        at = f" at {self._place}" if self._step is not None else ""
        return StateError("timeout", f"the build was ended{at}: it took longer than {limit}\n{self.tail}".rstrip())

    def _begin(self) -> None:
        self._now += 1
        self._tail.clear()
        self._rest = ""
        if self._step is not None:
            self._progress.report(f"{self._where}: {_shown(self._step.text)}")

    def _add_output(self, text: str) -> None:
        *lines, self._rest = (self._rest + text).split("\n")
        self._rest = self._rest[-MOST_COLUMNS * 4 :]
        for line in filter(None, map(_plain, lines[-LAST_LINES:])):
            if not line.startswith(" ---> ") and not line.startswith("Removing intermediate container"):
                self._tail.append(line)
        if self._tail and self._step is not None:
            self._progress.report_if_due(f"{self._where}: {self._tail[-1]}")

    @property
    def _step(self) -> Step | None:
        return self._steps[self._now - 1] if 0 < self._now <= len(self._steps) else None

    @property
    def _where(self) -> str:
        number = sum(step is not None for step in self._steps[: self._now])
        return f"step {number}/{self._written}"

    def _failure(self, document: Document) -> SandkeepError:
        detail = document.get("errorDetail")
        code = detail.get("code") if isinstance(detail, dict) else None
        message = _plain(str(document["error"]))
        self.has_lost_layer = _LOST_LAYER.search(message) is not None
        found = _EXIT.search(message)
        exit_code = int(found[1]) if found else code
        if not exit_code and (self.has_lost_layer or _ENGINES_OWN.search(message)):
            return ProviderError("provider_unavailable", f"the Docker engine could not build: {message}")
        if self._step is None:
            return CallerError("invalid", f"the build failed: {message}", field="source")
        how = f" with exit code {exit_code}" if exit_code else f": {message}"
        return CallerError("invalid", f"the build failed at {self._place}{how}\n{self.tail}".rstrip())

    @property
    def _place(self) -> str:
        assert self._step is not None
        return f"{self._where} (line {self._step.first_line}, {_shown(self._step.text)})"


class PullLog:
    """Follows one pull. Raises what `check_size` does, which is called with the bytes that have come."""

    def __init__(self, reference: str, report: Report, check_size: Callable[[int], None]) -> None:
        self._reference = reference
        self._check_size = check_size
        self._progress = ProgressReport(report)
        self._layers: dict[str, tuple[int, int]] = {}
        self.error: str | None = None

    def receive(self, document: Document) -> None:
        """Take the engine's next word."""
        if "error" in document:
            self.error = _plain(str(document["error"]))
            return
        layer, detail = document.get("id"), document.get("progressDetail")
        if document.get("status") == "Downloading" and isinstance(layer, str) and isinstance(detail, dict):
            self._layers[layer] = (_count(detail.get("current")), _count(detail.get("total")))
        present, total = (
            (sum(numbers) for numbers in zip(*self._layers.values(), strict=True)) if self._layers else (0, 0)
        )
        self._check_size(present)
        self._progress.report_if_due(f"pulling {self._reference}" + (f": {of_total(present, total)}" if total else ""))


def pull_error(reference: str, text: str) -> SandkeepError:
    """Return the error for a reference that the engine could not pull, from its message."""
    lowered = text.lower()
    if any(word in lowered for word in ("not found", "manifest unknown", "does not exist", "no matching manifest")):
        message = f"there is no image {reference}, neither here nor in its registry, or it needs a login there"
        return CallerError("not_found", message, reference=reference)
    if any(word in lowered for word in ("unauthorized", "forbidden", "denied", "no basic auth")):
        return CallerError(
            "permission_denied", f"the registry does not let this engine pull {reference}: log in there", field="source"
        )
    message = f"{reference} is not in the engine, and its registry cannot be reached: {text}"
    return ProviderError("provider_unavailable", message)


def _count(number: object) -> int:
    return number if isinstance(number, int) else 0


def _plain(text: str) -> str:
    """Return a line without control characters and escape sequences."""
    shown = _CONTROLS.sub("", _ESCAPES.sub("", text.replace("\t", " "))).strip("\n")
    return shown if len(shown) <= MOST_COLUMNS else shown[: MOST_COLUMNS - 1] + "…"


def _shown(text: str) -> str:
    return _plain(" ".join(text.split()))

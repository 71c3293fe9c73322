"""The parts of a Dockerfile that must be known before it is built: its steps, and the images that it names.

The engine parses it again, but not the caller's text: it gets one line for each instruction as it was understood here.
What could be understood otherwise even so is refused, and so are names of images that callers may not use: see
`image_references`. Text in, text out.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from sandkeep.errors import CallerError
from sandkeepd.contract import image_references

MOST_BYTES: Final = 1024 * 1024
SCRATCH: Final = "scratch"

_ESCAPE: Final = re.compile(r"\s*#\s*escape\s*=\s*(\S?)", re.IGNORECASE)
_CONTINUED: Final = re.compile(r"\\[ \t]*$")
_DOUBTFUL: Final = re.compile(r"\\\\[ \t]*$")
_FLAG: Final = re.compile(r"--[a-z]+(?:=[^\s\"'\\]*)?(?=\s|$)")
_HERE_DOCUMENT: Final = re.compile(r"\d*<<-?['\"]?[A-Za-z_][^<]*")
_VARIABLE: Final = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?::([-+])([^{}$]*))?\})")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:=(\"[^\"\\]*\"|'[^'\\]*'|[^\s\"'\\]*))?(?=\s|$)")
_MAYBE_REMOTE: Final = re.compile(r"[:@$\\]")
_SPACE: Final = re.compile(r"[\t\v\f\r ]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Python takes some of them for blanks, or for the end of a line, and engines do not."""

_WORDS: Final = frozenset(
    {
        "ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "MAINTAINER",
        "ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR",
    }
)  # fmt: skip
_MOST_DIGITS: Final = 6
_STAGE: Final = re.compile(r"[a-z][a-z0-9_.-]*")


class Step(Struct, frozen=True, kw_only=True):
    """One instruction: its first line, counted from 1, its first word, and the rest, all in one line."""

    first_line: int
    word: str
    rest: str

    @property
    def text(self) -> str:
        """The whole of it."""
        return f"{self.word} {self.rest}"


class Dockerfile(Struct, frozen=True, kw_only=True):
    """A Dockerfile's steps, and the references of the images that it builds on or copies from. `named` has that of each
    step that names one, by its first line. `platforms` are references with the platform that a FROM wants of them.
    """

    steps: list[Step]
    images: list[str]
    named: dict[int, str] = {}
    platforms: list[tuple[str, str]] = []

    def marked(self, labels: Mapping[str, str], ids: Mapping[str, str]) -> tuple[str, list[Step | None]]:
        """Return the text with labels set first in each stage, and references replaced by the images' `ids`; and the
        Dockerfile's step for each resulting one; None is one of ours.
        """
        label = "LABEL " + " ".join(f"{name}={value}" for name, value in labels.items())
        lines: list[str] = []
        steps: list[Step | None] = []
        for step in self.steps:
            # The engine must not resolve a reference again: the name may belong to another image there, which the
            # caller may not use, or which has triggers that were not checked.
            image = ids.get(self.named.get(step.first_line, ""))
            lines.append(step.text if image is None else _pinned(step, image))
            steps.append(step)
            if step.word == "FROM":
                lines.append(label)
                steps.append(None)
        return "\n".join(lines) + "\n", steps


def read(content: bytes) -> Dockerfile:
    """Parse a Dockerfile. It must not make the engine fetch files. Raises `invalid`."""
    if len(content) > MOST_BYTES or b"\0" in content:
        raise _refusal(None, f"it is no text, or has more than {MOST_BYTES >> 20} MiB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _refusal(None, "it is not UTF-8") from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    steps = list(_steps(lines))
    if not any(step.word == "FROM" for step in steps):
        raise _refusal(None, "it has no FROM")
    named = _Images(steps)
    return Dockerfile(steps=steps, images=list(named.found), named=named.named, platforms=named.platforms)


def of_ours(lines: list[str]) -> Dockerfile:
    """Return a Dockerfile of ours, which may name any image."""
    return Dockerfile(steps=list(_steps(lines)), images=[])


def check_triggers(triggers: Sequence[str], *, may_name_images: bool) -> None:
    """Refuse triggers (ONBUILD) of an image that a Dockerfile must not contain itself. The engine resolves the names of
    images in them, also of those that the caller may not use: only an administrator's builds `may_name_images` there.
    """
    for trigger in triggers:
        images = _Images(list(_steps(trigger.split("\n")))).found
        if images and not may_name_images:
            message = f"its base copies from {next(iter(images))[:200]} by ONBUILD: copy from that image yourself"
            raise _refusal(None, message)


def _steps(lines: list[str]) -> Iterator[Step]:
    first, text = 0, ""
    for number, line in enumerate(lines, 1):
        if _CONTROL.search(line):
            raise _refusal(number, "there is a control character: write it as an escape sequence in a RUN step's text")
        if line.lstrip().startswith("#"):
            escape = _ESCAPE.match(line)
            if escape and escape[1] != "\\":
                raise _refusal(number, "only the backslash can be the escape character here")
            continue
        if not line.strip():
            continue
        if _DOUBTFUL.search(line):
            raise _refusal(number, "two backslashes at the end mean different things to different engines")
        first = first or number
        text += _CONTINUED.sub("", line)
        if not _CONTINUED.search(line):
            yield _step(first, text)
            first, text = 0, ""
    if text:
        yield _step(first, text)


def _step(first: int, text: str) -> Step:
    word, *rest = _SPACE.split(text.strip(), maxsplit=1)
    if word.upper() not in _WORDS:  # which some engine may take for one of them
        raise _refusal(first, f"{word[:60]!r} is no instruction")
    if text.strip().endswith("\\"):  # after it was a blank of another kind
        raise _refusal(first, "it ends in a backslash that continues no line")
    return Step(first_line=first, word=word.upper(), rest="".join(rest).strip())


class _Images:
    """The images that the steps name, checked in their order: a name can be that of an earlier stage."""

    def __init__(self, steps: list[Step]) -> None:
        self.found: dict[str, None] = {}
        self.named: dict[int, str] = {}
        self.platforms: list[tuple[str, str]] = []
        self._arguments: dict[str, str | None] = {}
        self._are_clear = True
        self._stages: list[str] = []
        for step in steps:
            self._look(step, step.word, step.rest)

    def _look(self, step: Step, word: str, rest: str) -> None:
        if word == "ARG" and not self._stages:
            self._note_arguments(rest)
        elif word == "FROM":
            self._begin_stage(step, rest)
        elif word == "ONBUILD":
            inner = _step(step.first_line, rest)
            self._look(step, inner.word, inner.rest)
        elif word in ("COPY", "ADD", "RUN"):
            if any(_HERE_DOCUMENT.fullmatch(part) for part in rest.split()):
                raise _refusal(
                    step.first_line, "here-documents are not supported: put the text into a file, and COPY it"
                )
            flags, arguments = _flags(step, rest)
            for name in (flag.removeprefix("--from=") for flag in flags if flag.startswith("--from=")):
                earlier = self._stages[:-1]  # the name of the present one is an image's as yet
                if not _is_stage(name, earlier) and not _is_index(name, earlier):
                    self._use(step, name)
            if word == "ADD" and _MAYBE_REMOTE.search(_sources(arguments)):
                # The engine itself would fetch it, from the host's network: loopback and private addresses, too.
                raise _refusal(
                    step.first_line,
                    "ADD fetches nothing here: COPY files of the directory, or let a RUN step fetch it if builds have "
                    "a network",
                )

    def _note_arguments(self, rest: str) -> None:
        while rest:
            assignment = _ASSIGNMENT.match(rest)
            if assignment is None:
                self._are_clear = False
                return
            value = assignment[2] or ""
            quoted = value[:1] in ("'", '"')
            plain = value[1:-1] if quoted else value
            self._arguments[assignment[1]] = plain if value[:1] == "'" else _expand(plain, self._arguments)
            rest = rest[assignment.end() :].lstrip()

    def _begin_stage(self, step: Step, rest: str) -> None:
        if "\\" in rest:  # at its end, a backslash would take in the line that is added after it
            raise _refusal(step.first_line, "FROM has a backslash: write the reference plainly")
        flags, arguments = _flags(step, rest)
        name, *naming = arguments.split()[:3] or [""]
        expanded = _expand(name, self._arguments) if self._are_clear or "$" not in name else None
        if expanded is None:
            raise _refusal(step.first_line, f"what {name[:200]!r} means is not clear: write the reference itself")
        is_image = expanded.lower() != SCRATCH and not _is_stage(expanded, self._stages)
        if is_image:
            self._use(step, expanded)
            self.platforms += [(expanded, flag.partition("=")[2]) for flag in flags]
        stage = naming[1].lower() if len(naming) == 2 and naming[0].upper() == "AS" else ""
        self._stages.append(stage if _STAGE.fullmatch(stage) else "")

    def _use(self, step: Step, name: str) -> None:
        """Note the reference of an image."""
        image_references.parse(name, f"Dockerfile, line {step.first_line}")
        if image_references.could_be_an_id(name):
            raise _refusal(step.first_line, f"{name!r} could be the beginning of an image's id: write {name}:latest")
        self.found[name] = None
        self.named[step.first_line] = name


def _is_stage(name: str, stages: Iterable[str]) -> bool:
    return name != "" and name.lower() in stages


def _is_index(name: str, stages: Sequence[str]) -> bool:
    return name.isdecimal() and name.isascii() and len(name) <= _MOST_DIGITS and int(name) < len(stages)


def _pinned(step: Step, image: str) -> str:
    """Return a step as one line, with `image` in place of the reference of one."""
    if step.word == "ONBUILD":
        return f"ONBUILD {_pinned(_step(step.first_line, step.rest), image)}"
    flags, arguments = _flags(step, step.rest)
    if step.word == "FROM":
        arguments = " ".join([image, *arguments.split()[1:]])
    flags = [f"--from={image}" if flag.startswith("--from=") else flag for flag in flags]
    return " ".join([step.word, *flags, arguments])


def _flags(step: Step, rest: str) -> tuple[list[str], str]:
    """Return the flags that come first, and the rest. Quotes would be removed from a flag, and hide its meaning."""
    found = []
    while rest.startswith("--"):
        flag = _FLAG.match(rest)
        if flag is None:
            raise _refusal(step.first_line, f"the option {rest[:60]!r} is not understood: write it plainly")
        found.append(flag[0])
        rest = rest[flag.end() :].lstrip()
    return found, rest


def _sources(arguments: str) -> str:
    """Return all but the last argument, the destination, which may well have variables; all of a list in JSON."""
    return arguments if arguments.startswith("[") else " ".join(arguments.split()[:-1])


def _expand(text: str, arguments: Mapping[str, str | None]) -> str | None:
    """Return the text with its variables replaced; None when the result is not certain."""
    unclear = False

    def value(found: re.Match[str]) -> str:
        nonlocal unclear
        name, how, word = found[1] or found[2], found[3], found[4] or ""
        known = arguments.get(name, "")
        if known is None:
            unclear = True
            return ""
        if how == "-":
            return known or word
        return (word if known else "") if how == "+" else known

    expanded = _VARIABLE.sub(value, text)
    return None if unclear or "$" in expanded else expanded


def _refusal(line: int | None, why: str) -> CallerError:
    where = "Dockerfile" if line is None else f"Dockerfile, line {line}"
    return CallerError("invalid", f"{where}: {why}", field="dockerfile", line=line)

"""Patterns of files to leave out, by the rules of Docker's `.dockerignore`; and a program that applies them: it prints
the paths of a build context that its `.dockerignore` does not exclude, each ended by a NUL.

python system/ignore.py DIRECTORY [NAME...]

The files of these names at the top are excluded as well.

It runs as a process of its own, with nothing but the standard library, since patterns that come from a caller can take
any time, and a directory any memory. Where a caller's directory is read by the caller's rights, ``find`` applies them.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from typing import BinaryIO, Final

MOST_BYTES: Final = 1024 * 1024
MOST_CHARACTERS: Final = 1024
"""Maximum length of a pattern: what ``find`` takes for one grows with its square."""

_MOST_AT_ONCE: Final = 4096
"""Maximum characters of the names that are tried at once: with more, ``find`` takes more memory, and is no faster."""

NAME: Final = ".dockerignore"
PRINT: Final = ("-printf", "%y %s %p\\0")
MALFORMED: Final = 2
"""The exit code when the patterns cannot be used; the reason is on stderr."""


_STAR: Final = "[^/]*"
_DIRECTORIES: Final = "(.*/)?"
_REST: Final = ".*"

_SPECIAL: Final = re.compile(r"[*?\[\\]")
_IN_POSIX: Final = frozenset(".^$*+?()[]{}|\\")


class Pattern:
    """One line: a pattern in Go's manner with ``**`` for any number of directories, or with ``!`` an exception."""

    def __init__(self, line: str) -> None:
        self.is_exception = line.startswith("!")
        self.path = os.path.normpath(line.removeprefix("!").strip()).lstrip("/")
        self._expression = re.compile(_expression(self.path), re.DOTALL)

    def matches(self, path: str) -> bool:
        """Return True if the pattern matches this path itself, not one above it."""
        return self._expression.fullmatch(path) is not None

    @property
    def is_literal(self) -> bool:
        """True if it matches one path alone."""
        return not _SPECIAL.search(self.path)

    def may_match_below(self, path: str) -> bool:
        """Return True if it can also match in this directory."""
        beginning = _SPECIAL.split(self.path, maxsplit=1)[0]
        return f"{self.path}/".startswith(f"{path}/") or (beginning != self.path and f"{path}/".startswith(beginning))


class Rule:
    """Patterns with the same effect, one after the other, of which it does not matter which one matches: any number of
    literal ones, which are tried all at once, or one other.
    """

    def __init__(self, patterns: list[Pattern], *, prunes: bool) -> None:
        self.is_exception = patterns[0].is_exception
        self.prunes = prunes
        """True if no exception is within what it hides."""
        self._patterns = patterns
        self._paths = frozenset(pattern.path for pattern in patterns if pattern.is_literal)

    def matches(self, path: str) -> bool:
        """Return True if a pattern matches this path itself, not one above it."""
        return path in self._paths if self._paths else self._patterns[0].matches(path)

    def words(self) -> list[str]:
        """Return find's words for what it matches, and what is below that."""
        expressions = "|".join(_expression(pattern.path, posix=True) for pattern in self._patterns)
        action = PRINT if self.is_exception else ("-prune",) if self.prunes else ()
        return ["-regex", rf"\./({expressions})(/.*)?", *action, "-o"]


class Rules:
    """The rules of a file of patterns, of which the last that matches a path or a directory above it decides."""

    def __init__(self, ignored: list[Pattern]) -> None:
        exceptions = [pattern for pattern in ignored if pattern.is_exception]
        self._special = [pattern for pattern in exceptions if not pattern.is_literal]
        self._on_the_way = {above for pattern in exceptions for above in _and_above(pattern.path)}
        self.all: list[Rule] = []
        for _, run in groupby(ignored, lambda pattern: pattern.is_exception):
            self._add(list(run), has_exceptions=bool(exceptions))

    def _add(self, run: list[Pattern], *, has_exceptions: bool) -> None:
        """Add patterns of the same effect. Those that prune are last, which is where `find` looks first."""
        literal = [pattern for pattern in run if pattern.is_literal]
        self.all += [Rule([pattern], prunes=not has_exceptions) for pattern in run if not pattern.is_literal]
        for prunes in (False, True):
            some = [pattern for pattern in literal if self.may_except_below(pattern.path) is not prunes]
            self.all += [Rule(part, prunes=prunes) for part in _parts(some)]

    def may_except_below(self, path: str) -> bool:
        """Return True if an exception can match this path, or one in this directory."""
        return path in self._on_the_way or any(pattern.may_match_below(path) for pattern in self._special)


def _and_above(path: str) -> Iterable[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


def _parts(literal: list[Pattern]) -> Iterator[list[Pattern]]:
    """Divide patterns so that one expression can have those of each part."""
    part: list[Pattern] = []
    size = 0
    for pattern in literal:
        if part and size + len(pattern.path) > _MOST_AT_ONCE:
            yield part
            part, size = [], 0
        part.append(pattern)
        size += len(pattern.path)
    if part:
        yield part


def patterns(text: str) -> list[Pattern]:
    """Parse the patterns of a `.dockerignore`. Raises ValueError for a malformed one."""
    found = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        word = line.strip()
        if not word or line.startswith("#") or word in (".", "!"):
            continue
        if "\0" in word or len(word) > MOST_CHARACTERS:
            raise ValueError(f"line {number} is no pattern: it has a NUL, or more than {MOST_CHARACTERS} characters")
        try:
            found.append(Pattern(word))
        except re.error as error:
            raise ValueError(f"line {number}: {word[:200]!r} is no pattern: {error}") from None
    return found


def wanted(ignored: list[Pattern]) -> Iterator[bytes]:
    """Yield the paths below the present directory that are not ignored, each after its directory's."""
    return (os.fsencode(path) for path, hidden, _ in _walk(ignored, ".") if not hidden)


def unwanted(ignored: list[Pattern], top: str) -> Iterator[bytes]:
    """Yield the paths below `top` that are ignored with all that is below them, but for what is below such a one.
    Directories that cannot be read are passed over, as nobody can copy what is in them. Raises OSError.
    """
    walk = _walk(ignored, top, unreadable=(PermissionError, FileNotFoundError, NotADirectoryError))
    return (os.fsencode(path) for path, hidden, entered in walk if hidden and not entered)


def _walk(
    ignored: list[Pattern], top: str, *, unreadable: tuple[type[OSError], ...] = ()
) -> Iterator[tuple[str, bool, bool]]:
    """Yield paths, whether they are ignored, and whether they are directories that are entered all the same. A
    directory that cannot be read for one of the reasons `unreadable` counts as empty. Raises OSError.
    """
    rules = Rules(ignored)
    waiting: list[tuple[str, frozenset[Rule]]] = [("", frozenset())]
    while waiting:
        directory, above = waiting.pop()
        with suppress(*unreadable), os.scandir(f"{top}/{directory}") as entries:
            for entry in entries:
                path = f"{directory}/{entry.name}" if directory else entry.name
                meant = above | {rule for rule in rules.all if rule not in above and rule.matches(path)}
                hidden = next((not rule.is_exception for rule in reversed(rules.all) if rule in meant), False)
                entered = entry.is_dir(follow_symlinks=False) and (not hidden or rules.may_except_below(path))
                yield path, hidden, entered
                if entered:
                    waiting.append((path, meant))


def find_expression(ignored: list[Pattern]) -> list[str]:
    """Return the words of ``find .`` that neither print nor enter what the patterns hide; what is left is for the words
    after them. Of a directory that is hidden, the parts that an exception may match are searched.
    """
    words = ["-regextype", "posix-extended"] if ignored else []
    for rule in reversed(Rules(ignored).all):
        words += rule.words()
    return words


def _escaped(character: str, *, posix: bool) -> str:
    if posix:
        return "\\" + character if character in _IN_POSIX else character
    return re.escape(character)


def _bracket(inside: str, *, posix: bool) -> str:
    """Convert the inside of a bracket expression. No bracket matches a slash."""
    negated = inside.startswith("^")
    inside = inside.removeprefix("^")
    if not posix:
        return f"[{'^/' if negated else ''}{re.escape(inside).replace(chr(92) + '-', '-')}]"
    if not inside or set(inside) & set("[]^\\"):  # POSIX has no way to escape in a bracket
        raise re.error("a bracket with such characters is not supported here")
    return f"[{'^/' if negated else ''}{inside}]"


def _expression(path: str, *, posix: bool = False) -> str:
    """Convert a pattern into a regular expression: of Python, or an extended one of POSIX."""
    made, at = list[str](), 0
    while at < len(path):
        character = path[at]
        at += 1
        if character == "*" and path[at : at + 1] == "*":
            at += 2 if path[at + 1 : at + 2] == "/" else 1
            made.append(_REST if at >= len(path) and not path.endswith("/") else _DIRECTORIES)
        elif character == "*":
            made.append(_STAR)
        elif character == "?":
            made.append("[^/]")
        elif character == "[":
            end = path.index("]", at + 1) if "]" in path[at + 1 :] else -1
            if end < 0:
                raise re.error("a bracket is not closed")
            made.append(_bracket(path[at:end], posix=posix))
            at = end + 1
        elif character == "\\" and at < len(path):
            made.append(_escaped(path[at], posix=posix))
            at += 1
        else:
            made.append(_escaped(character, posix=posix))
    return "".join(made) if posix else _atomic(made)


def _atomic(parts: list[str]) -> str:
    """Join the parts of an expression so that Python's matcher, which goes back through all combinations of what stars
    may match, need not: a star that matches as little as possible leaves the most to the next one of its kind.
    """
    units = [list[str]()]
    for part in parts:
        if part == _DIRECTORIES:
            units.append([])
        else:
            units[-1].append(part)
    made = _components(units[0])
    for number, unit in enumerate(units[1:], 2):
        is_last = number == len(units) or unit[-1:] != ["/"]
        made += f"(?:.*/)?{_components(unit)}" if is_last else f"(?>(?:.*?/)??{_components(unit)})"
    return made


def _components(parts: list[str]) -> str:
    """Do as `_atomic` for parts without directories between them."""
    pieces, since = list[str](), -1
    for part in parts:
        if part == _STAR:
            if since >= 0:
                pieces[since] = "(?>[^/]*?"
                pieces.append(")")
            since = len(pieces)
        elif part in ("/", _REST):
            since = -1
        pieces.append(part)
    return "".join(pieces)


def main(top: str, left_out: list[str], output: BinaryIO) -> int:
    """Print the paths; answer the exit code."""
    try:
        with open(os.open(f"{top}/{NAME}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
        ignored = patterns(content.decode("utf-8", "surrogateescape"))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{NAME}: {error}\n")
        return MALFORMED
    os.chdir(top)  # from here no path is too long
    hidden = {os.fsencode(name) for name in left_out}
    output.writelines(b"./" + path + b"\0" for path in wanted(ignored) if path not in hidden)
    output.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:], sys.stdout.buffer))

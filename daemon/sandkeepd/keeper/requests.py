"""What is said to the keeper: request lines, and the scripts that start processes. No input or output here."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from sandkeep.errors import CallerError

MAX_REQUEST_BYTES: Final = 4096
"""PIPE_BUF of Linux: what is written at once up to this length arrives whole, however many write."""

MAX_SCRIPT_BYTES: Final = 2 * 1024 * 1024
"""About what the kernel takes for the arguments and environment of a program; more could not be started."""

NEWLINE: Final = b"'\"$4\"'"
"""A newline inside quotes, in a request that must stay one line: the keeper passes one as the fourth parameter."""

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PROCESS_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_process_id(process_id: str) -> str:
    """Return an id that may be part of file names and request lines; raise `invalid` otherwise."""
    if _PROCESS_ID.fullmatch(process_id):
        return process_id
    raise CallerError(
        "invalid",
        "process_id: use 1 to 64 letters, digits, '_' or '-', the first a letter or digit",
        field="process_id",
    )


def to_bytes(text: str, field: str) -> bytes:
    """The bytes of a text that goes into a shell script; raises `invalid` for what no program can be given."""
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise CallerError("invalid", f"{field}: give text that can be written as UTF-8", field=field) from None
    if b"\0" in data:
        raise CallerError("invalid", f"{field}: a NUL cannot be passed to a program: leave it out", field=field)
    return data


def quote(data: bytes) -> bytes:
    """Quote bytes as one word of a shell."""
    return b"'" + data.replace(b"'", b"'\\''") + b"'"


def variable(name: str, field: str) -> bytes:
    """The name of a variable; raises `invalid` for what a shell would not take for one."""
    if _VARIABLE.fullmatch(name):
        return name.encode()
    raise CallerError(
        "invalid", f"{field}: {name[:80]!r} is no name of a variable: use letters, digits and '_'", field=field
    )


MAX_INLINE_BYTES: Final = 1024
"""A script up to this length goes with its request: a shell reads those byte by byte, a file at once."""


def script(
    leader: Sequence[str],
    command: Sequence[str],
    env: Mapping[str, str],
    working_dir: str | None,
    opening: bytes = b"",
    failing: Sequence[str] = (),
) -> list[bytes]:
    """The commands of a shell that becomes the process. `leader` are the words that make it the leader of a group of
    its own; `failing` is executed by them where the directory is not there, if the shell cannot just end with 126.
    `opening` are commands that come first; the path of the script itself is ``$3`` to them.

    The environment is set by the leader, and not by the shell, which has variables of its own that cannot be set to
    everything. A first word with ``=`` would be taken for a variable by it, so a shell stands between.
    """
    words = [to_bytes(word, "command") for word in command]
    if b"=" in words[0]:
        words = [b"sh", b"-c", b'exec "$0" "$@"', *words]
    settings = [variable(name, "env") + b"=" + to_bytes(value, "env") for name, value in env.items()]
    commands = [b"umask 022", *([opening] if opening else [])]
    if working_dir is not None:
        otherwise = b"exec " + _words([*leader, *failing]) if failing else b"exit 126"
        commands.append(b"cd -- " + quote(to_bytes(working_dir, "working_dir")) + b" || " + otherwise)
        commands.append(b"unset OLDPWD")
    commands.append(b"exec " + _words(leader) + b" " + b" ".join(quote(word) for word in [*settings, *words]))
    if sum(map(len, commands)) > MAX_SCRIPT_BYTES:
        raise CallerError(
            "invalid", "command: the words and variables are too long together: put them into a file", field="command"
        )
    return commands


def _words(words: Sequence[str]) -> bytes:
    return b" ".join(quote(word.encode()) for word in words)


def in_a_file(commands: Sequence[bytes]) -> bytes:
    """A script for a file."""
    return b"\n".join(commands) + b"\n"


def in_a_line(commands: Sequence[bytes]) -> bytes | None:
    """A script without an opening as part of a request; None when it is better put into a file."""
    line = b"; ".join(command.replace(b"\n", NEWLINE) for command in commands)
    return line if len(line) <= MAX_INLINE_BYTES else None


def secret_requests(process_id: str, secrets: Mapping[str, str]) -> Iterator[bytes]:
    """The request lines that give `secrets` to one process, or to all that start from now on (`process_id` ``-``)."""
    verb = b"share - " if process_id == "-" else b"secret " + process_id.encode() + b" "
    for name, value in secrets.items():
        text = (
            b"export "
            + variable(name, "secrets")
            + b"="
            + quote(to_bytes(value, "secrets")).replace(b"\n", NEWLINE)
            + b";"
        )
        step = MAX_REQUEST_BYTES - len(verb) - 1
        for start in range(0, len(text), step):
            yield verb + text[start : start + step] + b"\n"


def request(verb: str, process_id: str, argument: str = "-", script: bytes | None = None) -> bytes:
    """One request line."""
    line = f"{verb} {process_id} {argument}".encode()
    return line + (b"\n" if script is None else b" " + script + b"\n")


def questions(process_ids: Iterable[str]) -> Iterator[bytes]:
    """The request lines that have it told which processes have lost their watchers, and how those of `process_ids`
    that have ended did.
    """
    yield request("sweep", "-")
    line = b""
    for process_id in process_ids:
        word = b" " + process_id.encode()
        if line and len(line) + len(word) >= MAX_REQUEST_BYTES:
            yield line + b"\n"
            line = b""
        line = (line or b"ask -") + word
    if line:
        yield line + b"\n"

"""Requests to the keeper: request lines, and the files that start processes. No input or output here."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from sandkeep.errors import CallerError

MAX_REQUEST_BYTES: Final = 4096
"""PIPE_BUF of Linux: writes up to this length are atomic."""

MAX_SCRIPT_BYTES: Final = 2 * 1024 * 1024
"""Roughly the kernel's limit for a program's arguments and environment."""

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


def _to_bytes(text: str, field: str) -> bytes:
    """Encode text for a shell script; raises `invalid` for a NUL or text that is not UTF-8."""
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


def _variable(name: str, field: str) -> bytes:
    """Encode the name of a variable; raises `invalid` if a shell would not accept it."""
    if _VARIABLE.fullmatch(name):
        return name.encode()
    raise CallerError(
        "invalid", f"{field}: {name[:80]!r} is not a valid variable name: use letters, digits and '_'", field=field
    )


def record(command: Sequence[str], env: Mapping[str, str], working_dir: str | None) -> bytes:
    """Return the record that starts a process: see ``keeper.c``. Raises `invalid` for text no program can get."""
    settings = [_variable(name, "env") + b"=" + _to_bytes(value, "env") for name, value in env.items()]
    arguments = [_to_bytes(word, "command") for word in command]
    fields = [_to_bytes(working_dir or "", "working_dir"), *settings, b"", *arguments]
    return _checked(b"\0".join(fields) + b"\0")


def script(
    leader: Sequence[str], command: Sequence[str], env: Mapping[str, str], working_dir: str, opening: bytes
) -> bytes:
    """A script of a shell that becomes a process, for a file. `leader` are the words that make it one as which all
    processes begin; `opening` are commands that come first.

    The environment is set by the leader, and not by the shell, which has variables of its own that cannot be set to
    everything. A first word with ``=`` would be taken for a variable by it, so a shell stands between.
    """
    arguments = [_to_bytes(word, "command") for word in command]
    if b"=" in arguments[0]:
        arguments = [b"sh", b"-c", b'exec "$0" "$@"', *arguments]
    settings = [_variable(name, "env") + b"=" + _to_bytes(value, "env") for name, value in env.items()]
    started = [*(word.encode() for word in leader), *settings, *arguments]
    enter = b"cd -- " + quote(_to_bytes(working_dir, "working_dir")) + b" || exit 126"
    commands = [b"umask 022", opening, enter, b"unset OLDPWD", b"exec " + b" ".join(quote(word) for word in started)]
    return _checked(b"\n".join(commands) + b"\n")


def _checked(text: bytes) -> bytes:
    if len(text) > MAX_SCRIPT_BYTES:
        raise CallerError(
            "invalid", "command: arguments and environment exceed 2 MiB together: put them into a file", field="command"
        )
    return text


def secret_requests(process_id: str, secrets: Mapping[str, str]) -> Iterator[bytes]:
    """The request lines that give `secrets` to one process, or to all that start from now on (`process_id` ``-``)."""
    verb = b"share - " if process_id == "-" else b"secret " + process_id.encode() + b" "
    step = (MAX_REQUEST_BYTES - len(verb) - 1) // 2  # each byte may take two
    for name, value in secrets.items():
        text = _variable(name, "secrets") + b"=" + _to_bytes(value, "secrets") + b"\0"
        for start in range(0, len(text), step):
            yield verb + escape(text[start : start + step]) + b"\n"


def escape(text: bytes) -> bytes:
    """A text as part of a request, which is one line."""
    return text.replace(b"\\", b"\\\\").replace(b"\n", b"\\n")


def request(verb: str, process_id: str, argument: str = "-") -> bytes:
    """One request line."""
    return f"{verb} {process_id} {argument}\n".encode()


def run(process_id: str, mode: str, quick_ms: int) -> bytes:
    """The request that starts a process by its file."""
    return request("run", process_id, f"{mode} {quick_ms}")


def run_record(text: bytes, process_id: str, mode: str, quick_ms: int) -> bytes | None:
    """The request that starts a process by this record; None when it is better put into a file."""
    line = f"run {process_id} {mode} {quick_ms} ".encode() + escape(text) + b"\n"
    return line if len(line) <= MAX_REQUEST_BYTES else None


def queries(process_ids: Iterable[str], awaited: Iterable[str]) -> Iterator[bytes]:
    """Yield requests that resume stopped processes, and report the exits of `process_ids` and all of the `awaited`."""
    yield request("sweep", "-")
    yield from (request("check", process_id) for process_id in awaited)
    line = b""
    for process_id in process_ids:
        word = b" " + process_id.encode()
        if line and len(line) + len(word) >= MAX_REQUEST_BYTES:
            yield line + b"\n"
            line = b""
        line = (line or b"ask -") + word
    if line:
        yield line + b"\n"


def read_more(process_id: str, what: str, *, over: bool = False) -> bytes:
    """Return the request to read more of ``stdin``, ``data`` or ``control``; the last one with `over`."""
    return request("end" if over else "more", process_id, what)


def rename(process_id: str, new: str) -> bytes:
    """The request that gives a process another id, by which its journals are called, too."""
    return request("name", process_id, check_process_id(new))

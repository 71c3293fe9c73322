"""Copying files and trees between this machine and sandboxes, and between sandboxes.

    with sandkeep.blocking.connect() as client:
        transfer.copy_in(client, "project", sandbox_id, "/workspace")
        transfer.copy_out(client, sandbox_id, "results/.", "out")

Names work as with ``cp -a``: into a directory that is there a thing goes under its own name, a tree is merged with one
of that name, and a path that ends in ``/.`` stands for what is in the directory. Kept are modes (but for set-uid and
set-gid bits), times in seconds, symbolic links as links, hard links, holes, empty directories and every byte of a name;
owners are not: what is copied belongs to who copies. All is seen at its destination when it is complete, file by file
where a tree is merged; what is interrupted before leaves nothing. When the daemon goes away in the middle, files and
trees are copied anew as soon as it is back.

The bytes go from one ``tar`` to another, through a pipe and past this process. What a sandbox sends can be anything:
see `confined` for what holds the ``tar`` that unpacks it here.
"""

import functools
import io
import os
import re
import select
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, Concatenate, Final, ParamSpec, Protocol

from sandkeep.blocking import Client
from sandkeep.clients.descriptors import Handed
from sandkeep.clients.operations import path_params
from sandkeep.errors import CallerError, ProviderError, SandkeepError, SetupError
from sandkeep.ids import new_id
from sandkeep.model import Copied
from sandkeep.system import confined, ignore
from sandkeep.system.staging import Stage

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Progress = Callable[[int], None]
P = ParamSpec("P")


class _Handle(Protocol):
    @property
    def id(self) -> str: ...


Sandbox = str | _Handle
"""A sandbox: its handle, its id or the beginning of that, or its name."""

BEAT_S: Final = 0.1
"""Seconds between progress reports."""

MAX_STDERR_BYTES: Final = 65536
"""Maximum bytes kept of a program's stderr."""

_CHANGED: Final = 1
"""Exit code of tar if a file changed, or went away, while it was read."""

_NO_READER: Final = -signal.SIGPIPE
"""Exit code of a program when the sandbox stops reading: the call has the reason."""

_CUT_SHORT: Final = ("Unexpected EOF", "does not look like a tar archive")
"""Messages of tar for an archive whose sender failed: the sender has the reason."""

_NO_ROOM: Final = ("No space left", "Wrote only", "quota")
"""Messages of tar for a full disk; a short write names only its size."""

_WARNING: Final = re.compile("tar: Removing leading ")

_CREATE: Final = (
    "tar", "--create", "--file=-", "--format=gnu", "--sparse", "--numeric-owner", "--mode=ug-s",
    "--blocking-factor=128", "--no-unquote", "--directory",
)  # fmt: skip
_EXTRACT: Final = (
    "tar", "--extract", "--file=-", "--no-same-owner", "--no-same-permissions", "--numeric-owner",
    "--warning=no-timestamp", "--blocking-factor=128", "--directory",
)  # fmt: skip
_SCALARS: Final = {"TAR_OPTIONS": None, "POSIXLY_CORRECT": None, "LC_ALL": "C"}


def _persistent(copy: Callable[Concatenate[Client, P], Copied]) -> Callable[Concatenate[Client, P], Copied]:
    """Make a copy restart when the daemon went away in the middle: nothing of it counts before its end."""

    def copy_at_last(client: Client, /, *args: P.args, **kwargs: P.kwargs) -> Copied:
        return client.persist(lambda: copy(client, *args, **kwargs))

    functools.update_wrapper(copy_at_last, copy)
    return copy_at_last


@_persistent
def copy_in(
    client: Client,
    source: Path,
    sandbox_id: Sandbox,
    path: Path,
    *,
    progress: Progress | None = None,
    exclude: Sequence[str] = (),
    patterns: Sequence[str] = (),
) -> Copied:
    """Copy a file or tree of this machine, as far as you may read it, to `path` in a sandbox.

    `path` begins at the sandbox's working directory unless it is absolute. `progress` is called now and then with the
    bytes done. Files and directories with a name in `exclude` are left out, at any depth, and those of a tree that
    `patterns` hide, which are lines as of a `.dockerignore` at its top.

    Raises `invalid` for a malformed pattern, `not_found`, `permission_denied`, `conflict`, `disk_limit` and the
    daemon's errors.
    """
    directory, name, contents = _source(os.fsencode(source))
    with (
        _hidden(patterns, directory, name) as (hidden, listed),
        _receiving(client, sandbox_id, path, contents=contents) as (call, commit, descriptor),
    ):
        argv = [*_create([*(f"--exclude={each}" for each in exclude), *hidden]), directory, name]
        with _reader(argv, descriptor, None if listed is None else os.dup(listed.fileno())) as tar:
            _watch([call], tar, progress, "wchar")
        if not call.answered and tar.returncode not in (0, _CHANGED, _NO_READER):
            raise _unreadable(tar)
        return commit()


@_persistent
def copy_out(
    client: Client, sandbox_id: Sandbox, path: Path, target: Path, *, progress: Progress | None = None
) -> Copied:
    """Copy a file or tree of a sandbox to `target` on this machine. See `copy_in`.

    The answer's `path` is where it is now. Directories that were there keep their modes.
    """
    place, given = os.fsencode(target), os.fsencode(path)
    contents = _is_contents(given)
    with _stage(place) as stage, _sending(client, sandbox_id, path, contents=contents) as (call, descriptor):
        with _writer([*_EXTRACT, "."], stage, descriptor) as tar:
            _watch([call], tar, progress, "rchar")
        copied = _complete(call, tar)
        with _translated_errors(place):
            there = stage.merge_into_target() if contents else _install(stage, place)
    return Copied(path=os.fsdecode(there), files=copied.files, size_bytes=copied.size_bytes)


@_persistent
def copy_across(
    client: Client, sandbox_id: Sandbox, path: Path, other_id: Sandbox, other: Path, *, progress: Progress | None = None
) -> Copied:
    """Copy a file or tree from one sandbox to another, or within one. See `copy_in`."""
    contents = _is_contents(os.fsencode(path))
    with (
        _sending(client, sandbox_id, path, contents=contents) as (out, source),
        _receiving(client, other_id, other, contents=contents) as (into, commit, descriptor),
    ):
        with _reader(["cat"], descriptor, source) as cat:
            _watch([into, out], cat, progress, "wchar")
        # The side that closed the pipe has the reason: the source sandbox has only lost its reader.
        if cat.returncode != _NO_READER and not into.answered:
            out.answer()  # raises if a part is missing
            if cat.returncode:
                raise _unreadable(cat)
        return commit()


def send_archive(client: Client, sandbox_id: Sandbox, path: Path, descriptor: int) -> Copied:
    """Write a file or tree of a sandbox to an open descriptor, as a tar archive with one entry at its top."""
    return _send(client, sandbox_id, path, descriptor, "cat", contents=_is_contents(os.fsencode(path)))


def send_compressed(
    client: Client, sandbox_id: Sandbox, path: Path, descriptor: int, *, progress: Progress | None = None
) -> Copied:
    """Write the same, compressed by gzip. `progress` is called now and then with the bytes before that."""
    contents = _is_contents(os.fsencode(path))
    return _send(client, sandbox_id, path, descriptor, "gzip", progress, contents=contents)


def send_file(
    client: Client, sandbox_id: Sandbox, path: Path, descriptor: int, *, progress: Progress | None = None
) -> Copied:
    """Write the content of a file of a sandbox to an open descriptor."""
    return _send(client, sandbox_id, path, descriptor, "cat", progress, as_bytes=True)


def is_directory(client: Client, sandbox_id: str, path: str) -> bool:
    """Return True if a path in a sandbox is a directory, or a link to one; False for all else, or nothing."""
    try:
        client.sandbox.list_dir(sandbox_id, path=path, limit=1)
    except CallerError as error:
        if error.code != "not_found":
            raise
        return False
    return True


def _send(
    client: Client, sandbox_id: Sandbox, path: Path, descriptor: int, program: str, progress: Progress | None = None,
    **form: bool,
) -> Copied:  # fmt: skip
    """Write a file or tree of a sandbox to an open descriptor, through a program."""
    with _sending(client, sandbox_id, path, **form) as (call, source):
        with _reader([program], os.dup(descriptor), source) as sender:
            _watch([call], sender, progress, "rchar")
        if sender.returncode:
            raise BrokenPipeError
        answer: Copied = call.answer()
        return answer


def receive_archive(client: Client, descriptor: int, sandbox_id: Sandbox, path: Path) -> Copied:
    """Unpack a tar archive, read from an open descriptor to its end, in the directory `path` of a sandbox."""
    with _receiving(client, sandbox_id, path, contents=True) as (call, commit, pipe):
        with _reader(["cat"], pipe, os.dup(descriptor)) as cat:
            _watch([call], cat, None, "wchar")
        if not call.answered and cat.returncode not in (0, _NO_READER):
            raise _unreadable(cat)
        return commit()


# -- the daemon's side ------------------------------------------------------------------------------------------------


@contextmanager
def _receiving(
    client: Client, sandbox_id: Sandbox, path: Path, *, contents: bool
) -> Iterator[tuple[Handed, Callable[[], Copied], int]]:
    """Begin a copy into a sandbox: yield the call, its commit function, and the descriptor to write and close."""
    transfer_id = new_id("cpy")
    name = sandbox_id if isinstance(sandbox_id, str) else sandbox_id.id

    def commit() -> Copied:
        if not call.answered:
            try:
                committed: Copied = client.sandbox.copy_commit(name, transfer_id)
            except CallerError as error:
                if error.code != "not_found":  # it has failed just now, as the call itself tells
                    raise
            else:
                return committed
        answer: Copied = call.answer()
        return answer

    given = {**path_params(path), "transfer_id": transfer_id, "contents": contents}
    with client.with_descriptors("sandbox.copy_in", sandbox_id, **given) as call:
        [descriptor] = call.receive()
        yield call, commit, descriptor


@contextmanager
def _sending(client: Client, sandbox_id: Sandbox, path: Path, **form: bool) -> Iterator[tuple[Handed, int]]:
    """A copy out of a sandbox: the call, and the descriptor to read from, to be closed."""
    with client.with_descriptors("sandbox.copy_out", sandbox_id, **path_params(path), **form) as call:
        [descriptor] = call.receive()
        yield call, descriptor


# -- programs ---------------------------------------------------------------------------------------------------------


@contextmanager
def _reader(argv: list[str | bytes], output: int, source: int | None = None) -> "Iterator[subprocess.Popen[bytes]]":
    """A program that writes to a pipe, for the length of a block. The descriptors are closed here."""
    try:
        program = _start(subprocess.Popen, argv, stdin=subprocess.DEVNULL if source is None else source, stdout=output)
    finally:
        for descriptor in (output, source):
            if descriptor is not None:
                os.close(descriptor)
    with _ending(program):
        yield program


@contextmanager
def _writer(argv: list[str | bytes], stage: Stage, source: int) -> "Iterator[subprocess.Popen[bytes]]":
    """A program that reads from a pipe and writes in a stage, with which it ends. The descriptor is closed here.

    Its umask is none, so that modes are those of the archive.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        begin, group = confined.start, stage.group
        settings: dict[str, Any] = {"cwd": stage.tree, "umask": 0, "process_group": group}
        program = _start(begin, argv, stage.tree, stdin=source, stdout=nothing, **settings)
    finally:
        os.close(source)
        os.close(nothing)
    with _ending(program):
        yield program


def _start(begin: Callable[..., "subprocess.Popen[bytes]"], *args: Any, **settings: Any) -> "subprocess.Popen[bytes]":
    environment = {name: value for name, value in os.environ.items() if name not in _SCALARS} | {"LC_ALL": "C"}
    stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it is the program's
    try:
        program = begin(*args, stderr=stderr, env=environment, **settings)
    except FileNotFoundError:
        raise SetupError("not_supported", "tar is not installed on this machine: install GNU tar") from None
    program.stderr = stderr
    return program


@contextmanager
def _ending(program: "subprocess.Popen[bytes]") -> Iterator[None]:
    try:
        yield
    finally:
        if program.poll() is None:
            program.kill()
        program.wait()
        if program.stderr is not None:
            with program.stderr as stderr:
                program.stderr = io.BytesIO(os.pread(stderr.fileno(), MAX_STDERR_BYTES, 0))


def _watch(calls: list[Handed], program: "subprocess.Popen[bytes]", progress: Progress | None, counter: str) -> None:
    """Wait until the program has ended. A call that fails meanwhile ends the program, and is raised: code inside a
    sandbox may hold the program's pipe open for ever.
    """
    with _ended(program) as ended:
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        for call in calls:
            poll.register(call.fileno(), select.POLLIN)
        while ended not in (ready := {number for number, _ in poll.poll(BEAT_S * 1000 if progress else None)}):
            for call in calls:
                if call.fileno() in ready:
                    _read_message(call, poll)
            if progress:
                progress(_count(program.pid, counter))
        if progress:
            progress(_count(program.pid, counter))
    program.wait()


def _read_message(call: Handed, poll: select.poll) -> None:
    """Take a message of a call; once it has succeeded, stop polling it."""
    call.read_message()
    if call.answered:
        poll.unregister(call.fileno())
        call.answer()


@contextmanager
def _ended(program: "subprocess.Popen[bytes]") -> Iterator[int]:
    """A descriptor that can be read when the program has ended."""
    descriptor = os.pidfd_open(program.pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _count(pid: int, counter: str) -> int:
    """Return the number of bytes that a program has read or written so far."""
    with suppress(OSError), open(f"/proc/{pid}/io", encoding="ascii") as file:
        return int(dict(line.split(": ") for line in file)[counter])
    return 0


def _first_error(program: "subprocess.Popen[bytes]") -> str:
    """Return the first line that a program wrote to stderr which is not only a warning."""
    stderr: IO[bytes] | None = program.stderr
    if stderr is None:
        return ""
    stderr.seek(0)
    lines = stderr.read(MAX_STDERR_BYTES).decode("utf-8", "backslashreplace").strip().splitlines()
    lines = [line for line in lines if not _WARNING.match(line)] or lines
    return lines[0][:500] if lines else f"exit code {program.returncode}"


# -- this machine's side ----------------------------------------------------------------------------------------------


def _is_contents(path: bytes) -> bool:
    return path == b"." or path.endswith(b"/.")


def _source(path: bytes) -> tuple[bytes, bytes, bool]:
    """Return tar's source: a directory, a name in it, and whether to take only the contents of that name."""
    with _translated_errors(path):
        status = os.stat(path) if path.endswith(b"/") else os.lstat(path)
    if _is_contents(path):
        return path, b".", True
    if path.endswith(b"/") and not stat.S_ISDIR(status.st_mode):
        raise CallerError("invalid", f"{os.fsdecode(path)!r} is not a directory", field="source")
    full = os.path.realpath(path) if path.rstrip(b"/") != path or path.endswith(b"..") else path.rstrip(b"/")
    directory, name = os.path.split(full)
    if not name:
        raise CallerError("invalid", "the root directory has no name: give /. to copy its contents", field="source")
    return directory or b".", b"./" + name, False


def _create(excluding: Sequence[str | bytes]) -> list[str | bytes]:
    """Return the argv that makes an archive of a directory, which follows."""
    return [_CREATE[0], "--no-wildcards", *excluding, *_CREATE[1:]]


@contextmanager
def _hidden(
    patterns: Sequence[str], directory: bytes, name: bytes
) -> Iterator[tuple[list[str | bytes], IO[bytes] | None]]:
    """Yield tar's options for what patterns hide in a tree, and what they make it read from stdin."""
    if not patterns:
        yield [], None
        return
    try:
        ignored = ignore.patterns("\n".join(patterns))
    except ValueError as error:
        raise CallerError("invalid", f"patterns: {error}", field="patterns") from None
    options: list[str | bytes] = ["--anchored"]
    with tempfile.TemporaryFile() as listed:
        for path in _unwanted(ignored, os.path.join(directory, name)):
            member = name + b"/" + path
            if b"\n" in member or member != member.rstrip():  # a line of a list loses such an end
                options.append(b"--exclude=" + member)
            else:
                listed.write(member + b"\n")
        listed.seek(0)
        yield [*options, "--exclude-from=-"], listed


def _unwanted(ignored: list[ignore.Pattern], top: bytes) -> Iterator[bytes]:
    try:
        yield from ignore.unwanted(ignored, os.fsdecode(top))
    except OSError as error:  # tar may be able to read what we are not, and would copy what is to be left out
        why = f"{error.strerror or error}; nothing was copied"
        raise ProviderError("provider_unavailable", f"patterns cannot be applied to the files: {why}") from None


def _stage(target: bytes) -> Stage:
    with _translated_errors(target):
        return Stage(target)


def _install(stage: Stage, target: bytes) -> bytes:
    made = stage.only_entry()
    is_tree = stat.S_ISDIR(os.lstat(made).st_mode)
    if target.endswith(b"/") and not stage.into and not is_tree:
        raise CallerError("not_found", f"there is no directory {os.fsdecode(target)!r}", field="target")
    return stage.commit(made)


def _complete(call: Handed, tar: "subprocess.Popen[bytes]") -> Copied:
    """Return the sandbox's answer for a copy that was unpacked here. Raises the error of either side."""
    if tar.returncode and not any(message in _first_error(tar) for message in _CUT_SHORT):
        raise _unwritable(tar)
    answer: Copied = call.answer()
    if tar.returncode:
        raise _unwritable(tar)
    return answer


def _unreadable(tar: "subprocess.Popen[bytes]") -> SandkeepError:
    error = _first_error(tar)
    if "ermission denied" in error:
        return CallerError("permission_denied", f"a file cannot be read: {error}; nothing was copied", field="source")
    return ProviderError("provider_unavailable", f"the files cannot be read: {error}; nothing was copied")


def _unwritable(tar: "subprocess.Popen[bytes]") -> SandkeepError:
    error = _first_error(tar)
    if any(message in error for message in _NO_ROOM):
        message = f"no space left on this machine's disk: {error}; nothing was copied"
        return CallerError("permission_denied", message, field="target")
    return ProviderError(
        "provider_unavailable", f"the sandbox's archive cannot be unpacked: {error}; nothing was copied"
    )


@contextmanager
def _translated_errors(path: bytes) -> Iterator[None]:
    """Translate errors of the operating system for a path of this machine."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        where = os.fsdecode(error.filename or path)
        raise CallerError("not_found", f"there is no {where!r} on this machine", field="path") from None
    except OSError as error:
        where = os.fsdecode(error.filename or path)
        code = "permission_denied" if error.errno in (1, 13, 30) else "invalid"
        raise CallerError(code, f"{where!r} cannot be used: {error.strerror}", field="path") from None

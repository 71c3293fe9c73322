"""The only access to paths that a caller names: with the caller's rights and no others.

A directory is read by programs that have taken the caller's uid, gid and groups before they open anything, and dropped
every capability: ``find`` lists it, ``tar`` reads it. Their output is not trusted either, since a caller may manipulate
processes of his own uid. It goes into another ``tar``, which runs as the image's owner in a jail that sees nothing but
an empty directory. Python then reads that directory once, for the digest.
"""

import functools
import hashlib
import os
import re
import select
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Final, NoReturn, Self, cast, get_args

from msgspec import Struct

from sandkeep.errors import CallerError, DaemonError, ProviderError, SandkeepError
from sandkeep.model import SkippedFile
from sandkeep.system import ignore as ignored
from sandkeep.system.descriptors import closing_fd
from sandkeep_store.archives.tar.depth import MOST_LEVELS, require_depth
from sandkeep_store.files.holes import data_of
from sandkeep_store.threads import Threads, check_cancelled
from sandkeepd.contract.caller import Caller, Progress
from sandkeepd.contract.image_sources import Seen
from sandkeepd.contract.images import ImageRequest, ImportedImage
from sandkeepd.host import mounts, seccomp
from sandkeepd.host.processes import TOOL_ENV, in_fresh_thread, ordinary_priority
from sandkeepd.host.threads import Meter, run_in_thread

MAX_SKIPPED: Final = 100
"""Maximum number of skipped files that are named."""

MAX_PATH_BYTES: Final = 4095
"""Maximum path length of the kernel. There can be longer ones below a directory, but programs could not copy them."""

MAX_DEPTH: Final = MOST_LEVELS + 1
MAX_NAMES_BYTES: Final = 4 * 1024**3
MAX_FILE_BYTES: Final = 1024**4
"""A sparse file can have any length at no cost, but all of it has to be read for the digest."""

_in_import_thread: Final = Threads(2)
_in_look_thread: Final = Threads(2)
"""Threads of their own: callers can make their own imports take as long as they like."""

_SKIPPED: Final = {b"s": "socket", b"b": "device", b"c": "device", b"D": "door", b"K": "kernel"}
_SETUID: Final = stat.S_ISUID | stat.S_ISGID
_PIECE_BYTES: Final = 1024 * 1024
_FIRST_BYTES: Final = 64 * 1024
_MOST_MEMORY_KIB: Final = 1024 * 1024
_PATIENCE_MS: Final = 500
"""Maximum delay of noticing a cancellation."""

# The arguments must not be copied into themselves, if the caller can see them at all. What the kernel shows as
# files is left out: it may have no end (kcore), or never answer (kmsg).
_SURVEY: Final = f"""
cd -- "$SOURCE" || {{ ls -d -- "$SOURCE/"; exit 3; }}
left=$1 words=$2
shift 2
while [ "$left" -gt 0 ]; do
	place=$1 left=$((left - 1))
	shift
	[ ! -e "$place" ] || set -- "$@" -samefile "$place" -prune -o
done
for type in proc sysfs cgroup cgroup2 debugfs tracefs securityfs configfs bpf pstore efivarfs; do
	set -- "$@" -fstype $type -prune -printf 'K %s %p\\0' -o
done
while [ "$words" -gt 0 ]; do # to the end: an exception from what is ignored is none from these
	word=$1 words=$((words - 1))
	shift
	set -- "$@" "$word"
done
ulimit -v {_MOST_MEMORY_KIB} 2>/dev/null || : # the patterns may be made to take any
exec find . -maxdepth {MAX_DEPTH} "$@" {ignored.PRINT[0]} '{ignored.PRINT[1]}'
"""


IGNORE_FILES: Final = (".sandkeepignore", ".dockerignore")
"""Files at the top of a directory with patterns of what to leave out; the first that is there counts."""

_MOST_PATTERNS_BYTES: Final = 32 * 1024
_MOST_PATTERNS: Final = 1000
_SPECIAL: Final = re.compile(r"[\\*?\[\]]")
"""Characters that mean something in a pattern of find's."""

_READ_PATTERNS: Final = f"""
cd -- "$SOURCE" || {{ ls -d -- "$SOURCE/"; exit 3; }}
for name in {" ".join(IGNORE_FILES)}; do
	[ ! -f "./$name" ] || {{ printf '%s\n' "$name"; exec head -c {_MOST_PATTERNS_BYTES + 1} -- "./$name"; }}
done
"""

_LOOK: Final = """
[ -f "$SOURCE" ] && exec echo file
cd -- "$SOURCE" || { ls -d -- "$SOURCE/"; exit 3; }
[ -f "./$DOCKERFILE" ] && exec echo dockerfile
echo directory
"""

_READ_FILE: Final = '[ ! -f "$SOURCE" ] || exec head -c "$1" -- "$SOURCE"'


class LeftOut(Struct, frozen=True, kw_only=True):
    """Files of a directory that are not copied: `names` at any depth; what the patterns match of the first of
    `IGNORE_FILES` that is there, unless not to go `by_file`, and after these `patterns`.
    """

    names: Sequence[str] = ()
    patterns: Sequence[str] = ()
    by_file: bool = False

    @classmethod
    def of(cls, request: ImageRequest) -> Self:
        """Return what a request for an image leaves out."""
        return cls(names=request.ignore, patterns=request.patterns, by_file=request.by_file)


NOTHING: Final = LeftOut()


class Survey(Struct, frozen=True, kw_only=True):
    """The contents of a directory: `names` is an open file of paths for tar, each ended by a NUL; `size_bytes` those of
    its files.
    """

    names: int
    size_bytes: int
    skipped: list[SkippedFile]
    skipped_count: int


async def import_tree(
    source: str, caller: Caller, target: str, *, owner: int | None, hide: Sequence[str], progress: Progress,
    check_size: Callable[[int], None], left_out: LeftOut = NOTHING,
) -> ImportedImage:  # fmt: skip
    """Copy the directory `source`, as `caller` may read it, to `target`, which must not exist.

    Everything in it then belongs to `owner` (None: to this process's user). Kept are modes, times, symbolic and hard
    links, empty directories, FIFOs and every byte of a name; dropped are setuid and setgid bits; sockets and devices
    are skipped. The directories `hide` are left out, and what is to be `left_out`. `check_size` is called with the
    bytes of all files before they are copied.

    Raises `invalid` (no such directory), `permission_denied` (the first path that cannot be read),
    `storage_unavailable`, and what `check_size` raises. The caller removes a partial copy.
    """
    _check_caller(caller)
    if not source.startswith("/") or "\0" in source:
        raise CallerError("invalid", f"source: {source[:200]!r} is not an absolute path", field="source")
    await progress(f"looking at {source}")
    words = await _in_import_thread(_left_out, source, caller, left_out)
    survey = await _in_import_thread(_survey, source, caller, hide, words)
    try:
        check_size(survey.size_bytes)
        copy = functools.partial(_copy, source, caller, target, owner, survey.names)
        await run_in_thread(
            copy, progress, f"copying {source}", threads=_in_import_thread, total_bytes=survey.size_bytes
        )
    finally:
        os.close(survey.names)
    await progress("computing the digest")
    await _in_import_thread(_drop_setuid, target)
    digest, size, count = await _in_import_thread(digest_tree, target)
    return ImportedImage(
        digest=digest, size_bytes=size, file_count=count, skipped=survey.skipped, skipped_count=survey.skipped_count
    )


async def look(source: str, caller: Caller, dockerfile: str) -> Seen:
    """Return what `source` is, and if it has the `dockerfile`. Raises `invalid` if missing, `permission_denied`."""
    _check_caller(caller)
    return await _in_look_thread(_look, source, caller, dockerfile)


async def read_file(path: str, caller: Caller, most_bytes: int) -> bytes:
    """Return the beginning of a small regular file; nothing if there is none, or the caller may not read it."""
    _check_caller(caller)
    run = functools.partial(_run_as, caller, [_READ_FILE, "sh", str(most_bytes)], None, SOURCE=path)
    _, output, _ = await _in_look_thread(run)
    return output


def _check_caller(caller: Caller) -> None:
    """A user's daemon can act for that user only."""
    if os.geteuid() != 0 and caller.uid != os.geteuid():
        message = "this daemon can read files only for the user it runs as: use root's daemon, or one of your own"
        raise CallerError("permission_denied", message)


def _as_caller(caller: Caller) -> list[str]:
    """Return the argv prefix that takes the caller's rights. Root as a caller keeps its capabilities."""
    if os.geteuid() != 0:
        return ["setpriv", "--no-new-privs", "--inh-caps=-all"]
    if caller.uid == 0:
        return []
    groups = ["--groups", ",".join(map(str, caller.groups))] if caller.groups else ["--clear-groups"]
    return [
        "setpriv", "--reuid", str(caller.uid), "--regid", str(caller.gid), *groups, "--no-new-privs", "--inh-caps=-all",
        "--bounding-set=-all",
    ]  # fmt: skip


def _look(source: str, caller: Caller, dockerfile: str) -> Seen:
    code, output, errors = _run_as(caller, [_LOOK], None, SOURCE=source, DOCKERFILE=dockerfile)
    word = output.decode("ascii", "replace").strip()
    if code or word not in get_args(Seen):
        raise _not_a_directory(source, errors)
    return cast("Seen", word)


def _left_out(source: str, caller: Caller, left_out: LeftOut) -> list[str]:
    """Return the words of find's that pass over what is to be left out. Raises `invalid` for malformed patterns."""
    names = [word for name in left_out.names for word in ("-name", _SPECIAL.sub(r"\\\g<0>", name), "-prune", "-o")]
    name, text = _patterns_of(source, caller) if left_out.by_file else ("", "")
    found = [
        *_patterns("source", f"{name}: ", text),
        *_patterns("patterns", "", "\n".join(left_out.patterns)),
    ]  # fmt: skip
    if len(found) > _MOST_PATTERNS:
        raise CallerError("invalid", f"source: there are more than {_MOST_PATTERNS} patterns: shorten {name}")
    return names + ignored.find_expression(found)


def _patterns(field: str, where: str, text: str) -> list[ignored.Pattern]:
    try:
        found = ignored.patterns(text)
        ignored.find_expression(found)
    except (ValueError, re.error) as error:
        raise CallerError("invalid", f"{field}: {where}{error}", field=field) from None
    return found


def _patterns_of(source: str, caller: Caller) -> tuple[str, str]:
    """Return the name and the content of the directory's file of patterns; empty if there is none."""
    code, output, errors = _run_as(caller, [_READ_PATTERNS], None, SOURCE=source)
    if code == 3:
        raise _not_a_directory(source, errors)
    if code:
        raise _unreadable(source, errors)
    name, _, content = output.partition(b"\n")
    if len(content) > _MOST_PATTERNS_BYTES:
        message = f"source: {name.decode()} has more than {_MOST_PATTERNS_BYTES >> 10} KiB: shorten it"
        raise CallerError("invalid", message, field="source")
    return name.decode(), content.decode("utf-8", "surrogateescape")


def _survey(source: str, caller: Caller, hide: Sequence[str], left_out: Sequence[str] = ()) -> Survey:
    with tempfile.TemporaryFile() as found:
        listing = _Listing(source, found)
        survey = [_SURVEY, "sh", str(len(hide)), str(len(left_out)), *hide, *left_out]
        code, _, errors = _run_as(caller, survey, listing.take, SOURCE=source)
        if code == 3:
            raise _not_a_directory(source, errors)
        if code:
            raise _unreadable(source, errors)
        return listing.survey()


def _run_as(
    caller: Caller, script: Sequence[str], taker: Callable[[bytes], None] | None, **paths: str
) -> tuple[int, bytes, bytes]:
    """Run a shell script with the caller's rights; return its exit code, its output, unless taken, and its stderr."""
    argv = [*_as_caller(caller), "sh", "-c", *script]
    with in_fresh_thread(functools.partial(_start_reader, argv, paths)) as program:
        try:
            output, errors = _drain({program.stdout: taker, program.stderr: None}, [program])
        finally:
            _kill(program)
        return program.wait(), output, errors


def _start_reader(
    argv: list[str], paths: Mapping[str, str], stdin: int = subprocess.DEVNULL
) -> "subprocess.Popen[bytes]":
    """Start a program, which gets paths of the caller's as variables: command lines are read by everybody."""
    with ordinary_priority():
        return subprocess.Popen(
            argv, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**TOOL_ENV, **paths}, cwd="/",
            process_group=0,
        )  # fmt: skip


def _kill(program: "subprocess.Popen[bytes]") -> None:
    """End a program and all that it started: of a jail, the outer process alone would not do, not even one that has
    ended. Until it is waited for, no other group can have its number.
    """
    if program.returncode is None:
        os.killpg(program.pid, signal.SIGKILL)


class _Listing:
    """Splits find's listing into names for tar and files that an image cannot hold. The listing is untrusted."""

    def __init__(self, source: str, names: IO[bytes]) -> None:
        self._source = source
        self._names = names
        self._rest = b""
        self._skipped: list[SkippedFile] = []
        self._skipped_count = 0
        self._size_bytes = 0

    def take(self, piece: bytes) -> None:
        """Take some more of ``find``'s output: type, size and path of each entry, ended by a NUL."""
        *entries, self._rest = (self._rest + piece).split(b"\0")
        for entry in entries:
            self._sort(entry)
        if len(self._rest) > 2 * MAX_PATH_BYTES:
            self._refuse("holds paths that are longer than the kernel takes")
        if self._names.tell() > MAX_NAMES_BYTES:
            self._refuse("holds too many files")

    def _sort(self, entry: bytes) -> None:
        kind, size, path = (*entry.split(b" ", 2), b"", b"")[:3]
        if len(path) > MAX_PATH_BYTES:
            self._refuse("holds paths that are longer than the kernel takes")
        require_depth(path.removeprefix(b"./"))
        if kind == b"f" and (not size.isdigit() or int(size) > MAX_FILE_BYTES):
            self._refuse(f"holds a file of more than {MAX_FILE_BYTES >> 40} TiB: {_display(path)}")
        if kind == b"K" and path == b".":
            self._refuse("is a file system of the kernel's, such as /proc")
        if kind not in _SKIPPED:
            self._names.write(path + b"\0")
            self._size_bytes += int(size) if kind == b"f" else 0
            return
        self._skipped_count += 1
        if len(self._skipped) < MAX_SKIPPED:
            self._skipped.append(SkippedFile(path=_display(path), why=_SKIPPED[kind]))

    def _refuse(self, why: str) -> NoReturn:
        message = f"source: {self._source} {why}: choose another directory"
        raise CallerError("invalid", message, field="source")

    def survey(self) -> Survey:
        """Return the result. Its file of names is read-only, as the caller's own programs get it."""
        self._names.flush()
        names = os.open(f"/proc/self/fd/{self._names.fileno()}", os.O_RDONLY | os.O_CLOEXEC)
        return Survey(
            names=names, size_bytes=self._size_bytes, skipped=self._skipped, skipped_count=self._skipped_count
        )


def _display(path: bytes) -> str:
    return path[2:].decode("utf-8", "backslashreplace")[:MAX_PATH_BYTES]


def _copy(source: str, caller: Caller, target: str, owner: int | None, names: int, moved: Meter) -> None:
    """Read as the caller, write in the jail."""
    os.makedirs(target, mode=0o700)
    if owner is not None:
        os.chown(target, owner, owner)
    reading = [
        *_as_caller(caller), "sh", "-c", 'cd -- "$SOURCE" && exec "$@"', "sh",
        "tar", "--create", "--file=-", "--format=gnu", "--sparse", "--numeric-owner",
        "--mode=ug-s", "--no-recursion", "--null", "--verbatim-files-from",
        "--files-from=-",  # opened already: the caller may not open the list itself
    ]  # fmt: skip
    with in_fresh_thread(functools.partial(_start_reader, reading, {"SOURCE": source}, names)) as reader:
        try:
            assert reader.stdout is not None
            try:
                writer = in_fresh_thread(functools.partial(_extract, target, owner, reader.stdout.fileno()))
            finally:
                reader.stdout.close()
            with writer:
                try:
                    pipes = {reader.stderr: None, writer.stderr: None}
                    complaints, errors = _drain(pipes, [reader, writer], lambda: moved(_bytes_written(reader.pid)))
                finally:
                    _kill(writer)
        finally:
            _kill(reader)
        written, read = writer.wait(), reader.wait()
    if read > 1:  # 1: a file changed, or was removed, while it was read; below 0: the writer left it alone
        raise _unreadable(source, complaints)
    if written or read < 0:
        raise _not_written(errors)


def _extract(target: str, owner: int | None, stdin: int) -> "subprocess.Popen[bytes]":
    """Start the writing half, in a jail in which nothing but the target can be written."""
    unpack = ["tar", "-x", "--file=-", "--preserve-permissions", "--no-same-owner", "--numeric-owner", "--directory"]
    place = target
    take: list[str] = []
    if owner is not None:
        place = _expose(target)
        take = [
            "prlimit", f"--fsize={MAX_FILE_BYTES}", "--", "setpriv", "--reuid", str(owner), "--regid", str(owner),
            "--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all",
        ]  # fmt: skip
    with ExitStack() as closing:
        calls = None
        if seccomp.why_missing() is None:
            calls = closing.enter_context(open(seccomp.open_program(), "rb", buffering=0)).fileno()
        jail = _jail(place, calls)
        argv = [*take, *jail, *unpack, "/image" if jail else place]
        with ordinary_priority():
            return subprocess.Popen(
                argv, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=TOOL_ENV, cwd="/",
                process_group=0, pass_fds=() if calls is None else (calls,),
            )  # fmt: skip


def _expose(target: str) -> str:
    """Mount the target, in this thread's namespace, where the image's owner can reach it."""
    scratch = mounts.enter_private_namespace()
    with closing_fd(mounts.open_path(target)) as opened:
        mounts.mount_scratch(scratch)
        os.mkdir(f"{scratch}/image")
        mounts.bind(mounts.at(opened), f"{scratch}/image", mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC)
    return f"{scratch}/image"


def _jail(place: str, calls: int | None) -> list[str]:
    """Return the argv prefix of bubblewrap, with the seccomp filter from descriptor `calls`."""
    if not os.path.exists("/usr/bin/bwrap"):
        return []
    # No --die-with-parent: the parent is the thread that started it, which ends at once, and not the daemon.
    argv = ["bwrap", "--unshare-all", "--cap-drop", "ALL", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink(f"/{name}"):
            argv += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            argv += ["--ro-bind", f"/{name}", f"/{name}"]
    if calls is not None:
        argv += ["--seccomp", str(calls)]
    return [*argv, "--bind", place, "/image", "--remount-ro", "/", "--chdir", "/image", "--"]


def _drain(
    pipes: Mapping[IO[bytes] | None, Callable[[bytes], None] | None],
    programs: Sequence["subprocess.Popen[bytes]"],
    beat: Callable[[], None] = lambda: None,
) -> list[bytes]:
    """Read programs' output until they exit, not to the pipes' ends, and call `beat` meanwhile. Keep the beginning of
    untaken output.
    """
    takers = {pipe.fileno(): taker for pipe, taker in pipes.items() if pipe}
    output = dict.fromkeys(takers, b"")
    poll = select.poll()
    with ExitStack() as stack:
        running = {os.pidfd_open(program.pid) for program in programs}
        for fd in running:
            stack.callback(os.close, fd)
        for fd in (*takers, *running):
            poll.register(fd, select.POLLIN)
        silent = False
        while running or not silent:
            check_cancelled()
            beat()
            ready = [fd for fd, _ in poll.poll(_PATIENCE_MS if running else 0)]
            silent = not ready
            for fd in ready:
                if fd in running:
                    running.discard(fd)
                    poll.unregister(fd)
                elif not _read_once(fd, takers[fd], output):
                    poll.unregister(fd)
    return list(output.values())


def _bytes_written(pid: int) -> int:
    """Return the bytes that a program has written so far; 0 if the kernel does not say."""
    with suppress(OSError, KeyError, ValueError), open(f"/proc/{pid}/io", encoding="ascii") as file:
        return int(dict(line.split(": ") for line in file)["wchar"])
    return 0


def _read_once(fd: int, taker: Callable[[bytes], None] | None, output: dict[int, bytes]) -> bool:
    """Read once from a pipe. Answers whether there may be more."""
    piece = os.read(fd, _FIRST_BYTES)
    if taker:
        taker(piece)
    elif len(output[fd]) < _FIRST_BYTES:
        output[fd] += piece
    return bool(piece)


def _first_line(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "backslashreplace").strip().splitlines()
    return lines[0][:500] if lines else "no reason was given"


def _not_a_directory(source: str, stderr: bytes) -> SandkeepError:
    message = stderr.decode("utf-8", "backslashreplace")
    if "ermission denied" not in (message.splitlines() or [""])[-1]:
        if "Not a directory" in message:
            return CallerError("invalid", f"source: {source} is not a directory", field="source")
        if "No such file" in message:
            return CallerError("invalid", f"source: there is no directory {source}", field="source")
    return CallerError("permission_denied", f"you may not read {source}", field="source", path=source)


def _unreadable(source: str, stderr: bytes) -> SandkeepError:
    for line in stderr.decode("utf-8", "backslashreplace").splitlines():
        if "ermission denied" in line:
            said = line.partition(": ")[2].rpartition(": ")[0].removesuffix(": Cannot open")
            inner = said.removeprefix("cannot open ").removesuffix(" for reading").strip("\u2018\u2019'")
            path = os.path.normpath(os.path.join(source, inner))
            return CallerError("permission_denied", f"you may not read {path}", field="source", path=path)
    return CallerError("invalid", f"source: {source} could not be read: {_first_line(stderr)}", field="source")


def _not_written(stderr: bytes) -> SandkeepError:
    message = _first_line(stderr)
    if any(cause in stderr for cause in (b"No space left", b"Wrote only", b"quota exceeded", b"Read-only file system")):
        return DaemonError(
            "storage_unavailable", f"the image could not be written: {message}: make room in the state directory"
        )
    return ProviderError("provider_unavailable", f"the image could not be written: {message}")


def _drop_setuid(root: str) -> None:
    """Remove set-uid bits that the reading half should have left out: the caller can manipulate its output. Blocks."""
    with closing_fd(os.open(os.fsencode(root), os.O_RDONLY | os.O_DIRECTORY)) as top:
        for path, info in _walk(top):
            if info.st_mode & _SETUID and not stat.S_ISLNK(info.st_mode):
                os.chmod(path or b".", stat.S_IMODE(info.st_mode) & ~_SETUID, dir_fd=top)


def digest_tree(root: str) -> tuple[str, int, int]:
    """Return the digest of an unchanging tree, the bytes of its files, and its number of entries. Blocks.

    Hashed is, in the order of the names' bytes, for each entry: path, type and mode, and the link's target or the
    content's own hash. Times and owners are left out, so that equal trees have equal digests wherever they come from.
    Of contents the pieces that are all zeros are left out, holes or not: an empty file of terabytes takes no time.
    """
    total = hashlib.sha256()
    size = count = 0
    with closing_fd(os.open(os.fsencode(root), os.O_RDONLY | os.O_DIRECTORY)) as top:
        for path, info in _walk(top):
            content = b""
            if stat.S_ISLNK(info.st_mode):
                content = os.readlink(path, dir_fd=top)
            elif stat.S_ISREG(info.st_mode):
                content = _digest_file(path, top)
                size += info.st_size
            for part in (path, b"%o" % info.st_mode, content):
                total.update(b"%d:" % len(part) + part)
            count += 1
    return "sha256:" + total.hexdigest(), size, count


def _walk(top: int) -> Iterator[tuple[bytes, os.stat_result]]:
    """All entries below a directory, in one order, without recursion: a tree may be deeper than Python's stack."""
    waiting = [b""]
    while waiting:
        path = waiting.pop()
        info = os.stat(path or b".", dir_fd=top, follow_symlinks=False)
        yield path, info
        if stat.S_ISDIR(info.st_mode):
            with closing_fd(os.open(path or b".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)) as fd:
                names = sorted((os.fsencode(name) for name in os.listdir(fd)), reverse=True)
            waiting += [path + b"/" + name if path else name for name in names]


def _digest_file(path: bytes, top: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=top)
    with closing_fd(fd):
        size = os.fstat(fd).st_size
        digest = hashlib.sha256(b"%d:" % size)
        hashed = 0  # the end of the last piece: a file may have many extents within one
        for begin, end in data_of(fd, size):
            for offset in range(max(hashed, begin - begin % _PIECE_BYTES), end, _PIECE_BYTES):
                piece = os.pread(fd, _PIECE_BYTES, offset)
                if piece != bytes(len(piece)):
                    digest.update(b"%d:" % offset + piece)
                hashed = offset + _PIECE_BYTES
                check_cancelled()
    return digest.digest()

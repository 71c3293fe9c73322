"""The only way to a path that a caller names: with the caller's rights and no others.

A directory is read by programs that have taken the caller's uid, gid and groups before they open anything, and gone
without every capability: ``find`` looks at what is there, ``tar`` reads it. What they say is not trusted either,
since a caller may meddle with programs that run as himself. It goes into another ``tar``, which runs as the image's
owner in a jail that sees nothing but an empty directory. Python then reads that directory once, for the digest.
"""

import functools
import hashlib
import os
import select
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Final

import trio
from msgspec import Struct

from sandkeep.errors import CallerError, DaemonError, ProviderError, SandkeepError
from sandkeep.model import SkippedFile
from sandkeepd import mounts
from sandkeepd.hostprocess import TOOL_ENV, in_fresh_thread
from sandkeepd.providers.base import Caller, ImportedImage, Progress

MAX_SKIPPED: Final = 100
"""How many of the skipped files are named."""

_SKIPPED: Final = {b"s": "socket", b"b": "device", b"c": "device", b"D": "door"}
_FIRST_BYTES: Final = 64 * 1024

# $1 the directory, $2 what must not be copied into itself, if the caller can see it at all.
_SURVEY: Final = """
cd -- "$1" || { ls -d -- "$1/"; exit 3; }
[ -e "$2" ] && set -- -samefile "$2" -prune -o || set --
exec find . "$@" -printf '%y %p\\0'
"""


class Survey(Struct, frozen=True, kw_only=True):
    """What a directory holds: `names` is an open file of paths for tar, each ended by a NUL."""

    names: int
    skipped: list[SkippedFile]
    skipped_count: int


async def import_tree(
    source: str, caller: Caller, target: str, *, owner: int | None, hide: str, progress: Progress
) -> ImportedImage:
    """Copy the directory `source`, as `caller` may read it, to `target`, which must not exist.

    Everything in it then belongs to `owner` (None: to this process's user). Kept are modes, times, symbolic and hard
    links, empty directories, FIFOs and every byte of a name; dropped are setuid and setgid bits; sockets and devices
    are skipped. The tree `hide` is left out.

    Raises `invalid` (no such directory), `permission_denied` (the first path that cannot be read),
    `storage_unavailable`. What was copied so far is left for the caller to remove.
    """
    _check_caller(caller)
    if not source.startswith("/") or "\0" in source:
        raise CallerError("invalid", f"source: {source[:200]!r} is not an absolute path", field="source")
    await progress(f"looking at {source}")
    survey = await trio.to_thread.run_sync(_survey, source, caller, hide)
    try:
        await progress(f"copying {source}")
        await trio.to_thread.run_sync(_copy, source, caller, target, owner, survey.names)
    finally:
        os.close(survey.names)
    await progress("computing the digest")
    digest, size, count = await trio.to_thread.run_sync(digest_tree, target)
    return ImportedImage(
        digest=digest, size_bytes=size, file_count=count, skipped=survey.skipped, skipped_count=survey.skipped_count
    )


def _check_caller(caller: Caller) -> None:
    """A user's daemon can act for that user only."""
    if os.geteuid() != 0 and caller.uid != os.geteuid():
        raise CallerError("permission_denied", "this daemon can read files only for the user it runs as")


def _as_caller(caller: Caller) -> list[str]:
    """The words that take the caller's rights. A caller who is root keeps his, and his capabilities."""
    if os.geteuid() != 0:
        return ["setpriv", "--no-new-privs", "--inh-caps=-all"]
    if caller.uid == 0:
        return []
    groups = ["--groups", ",".join(map(str, caller.groups))] if caller.groups else ["--clear-groups"]
    return [
        "setpriv", "--reuid", str(caller.uid), "--regid", str(caller.gid), *groups, "--no-new-privs", "--inh-caps=-all",
        "--bounding-set=-all",
    ]  # fmt: skip


def _survey(source: str, caller: Caller, hide: str) -> Survey:
    with tempfile.TemporaryFile() as listing:
        argv = [*_as_caller(caller), "sh", "-c", _SURVEY, "sh", source, hide]
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=listing, stderr=subprocess.PIPE, env=TOOL_ENV, cwd="/", check=False
        )
        if done.returncode == 3:
            raise _not_a_directory(source, done.stderr)
        if done.returncode:
            raise _unreadable(source, done.stderr)
        listing.seek(0)
        return _sort_out(listing)


def _sort_out(listing: IO[bytes]) -> Survey:
    """Separate what tar shall read from what an image cannot hold."""
    skipped: list[SkippedFile] = []
    skipped_count = 0
    with tempfile.TemporaryFile() as names:
        for entry in _entries(listing):
            kind, path = entry[:1], entry[2:]
            if kind not in _SKIPPED:
                names.write(path + b"\0")
                continue
            skipped_count += 1
            if len(skipped) < MAX_SKIPPED:
                shown = path[2:].decode("utf-8", "backslashreplace")
                skipped.append(SkippedFile(path=shown, why=_SKIPPED[kind]))
        names.flush()
        names.seek(0)
        return Survey(names=os.dup(names.fileno()), skipped=skipped, skipped_count=skipped_count)


def _entries(listing: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while piece := listing.read(_FIRST_BYTES):
        *entries, rest = (rest + piece).split(b"\0")
        yield from entries


def _copy(source: str, caller: Caller, target: str, owner: int | None, names: int) -> None:
    """Read as the caller, write in the jail."""
    os.makedirs(target, mode=0o700)
    if owner is not None:
        os.chown(target, owner, owner)
    reading = [
        *_as_caller(caller), "tar", "--create", "--file=-", "--format=gnu", "--sparse", "--numeric-owner",
        "--mode=ug-s", "--no-recursion", "--null", "--verbatim-files-from", "--directory", source,
        "--files-from=-",  # opened already: the caller may not open the list itself
    ]  # fmt: skip
    with subprocess.Popen(
        reading, stdin=names, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=TOOL_ENV, cwd="/"
    ) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        try:
            extract = functools.partial(_extract, target, owner, reader.stdout.fileno())
            writer = in_fresh_thread(extract) if owner is not None else extract()
        finally:
            reader.stdout.close()
        complaints, errors = _drain([reader.stderr, writer.stderr])
        written, read = writer.wait(), reader.wait()
        if writer.stderr:
            writer.stderr.close()
    if read > 1:  # 1: a file changed, or was removed, while it was read; below 0: the writer left it alone
        raise _unreadable(source, complaints)
    if written or read < 0:
        raise _not_written(errors)


def _extract(target: str, owner: int | None, stdin: int) -> "subprocess.Popen[bytes]":
    """Start the writing half, in a jail in which nothing but the target can be written."""
    unpack = [
        "tar",
        "--extract",
        "--file=-",
        "--preserve-permissions",
        "--no-same-owner",
        "--numeric-owner",
        "--directory",
    ]
    place = target
    take: list[str] = []
    if owner is not None:
        place = _lend(target)
        take = [
            "setpriv", "--reuid", str(owner), "--regid", str(owner), "--clear-groups", "--no-new-privs",
            "--inh-caps=-all", "--bounding-set=-all",
        ]  # fmt: skip
    jail = _jail(place)
    argv = [*take, *jail, *unpack, "/image" if jail else place]
    return subprocess.Popen(argv, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=TOOL_ENV, cwd="/")


def _lend(target: str) -> str:
    """Make the target reachable, in this thread's namespace, for the image's owner, who may not enter the state."""
    scratch = mounts.enter_private_namespace()
    opened = mounts.open_place(target)
    try:
        mounts.mount_scratch(scratch)
        os.mkdir(f"{scratch}/image")
        mounts.bind(mounts.at(opened), f"{scratch}/image", mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC)
    finally:
        os.close(opened)
    return f"{scratch}/image"


def _jail(place: str) -> list[str]:
    if not os.path.exists("/usr/bin/bwrap"):
        return []
    # No --die-with-parent: the parent is the thread that started it, which ends at once, and not the daemon.
    argv = ["bwrap", "--unshare-all", "--cap-drop", "ALL", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink(f"/{name}"):
            argv += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            argv += ["--ro-bind", f"/{name}", f"/{name}"]
    return [*argv, "--bind", place, "/image", "--remount-ro", "/", "--chdir", "/image", "--"]


def _drain(pipes: Sequence[IO[bytes] | None]) -> list[bytes]:
    """Read several pipes to their ends, keeping the beginning of each."""
    poll = select.poll()
    kept: dict[int, bytes] = {pipe.fileno(): b"" for pipe in pipes if pipe}
    order = list(kept)
    for fd in order:
        poll.register(fd, select.POLLIN)
    open_ends = set(order)
    while open_ends:
        for fd, _ in poll.poll():
            piece = os.read(fd, 65536)
            if not piece:
                poll.unregister(fd)
                open_ends.discard(fd)
            elif len(kept[fd]) < _FIRST_BYTES:
                kept[fd] += piece
    return [kept[fd] for fd in order]


def _first_line(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "backslashreplace").strip().splitlines()
    return lines[0][:500] if lines else "no reason was given"


def _not_a_directory(source: str, stderr: bytes) -> SandkeepError:
    said = stderr.decode("utf-8", "backslashreplace")
    if "ermission denied" in said.splitlines()[-1]:
        return CallerError("permission_denied", f"you may not read {source}", field="source", path=source)
    if "Not a directory" in said:
        return CallerError("invalid", f"source: {source} is not a directory", field="source")
    if "No such file" in said:
        return CallerError("invalid", f"source: there is no directory {source}", field="source")
    return CallerError("permission_denied", f"you may not read {source}", field="source", path=source)


def _unreadable(source: str, stderr: bytes) -> SandkeepError:
    for line in stderr.decode("utf-8", "backslashreplace").splitlines():
        if "ermission denied" in line:
            inner = line.partition(": ")[2].rpartition(": ")[0].removesuffix(": Cannot open").strip("\u2018\u2019'")
            path = os.path.normpath(os.path.join(source, inner))
            return CallerError("permission_denied", f"you may not read {path}", field="source", path=path)
    return CallerError("invalid", f"source: {source} could not be read: {_first_line(stderr)}", field="source")


def _not_written(stderr: bytes) -> SandkeepError:
    said = _first_line(stderr)
    if any(words in stderr for words in (b"No space left", b"Wrote only", b"quota exceeded", b"Read-only file system")):
        return DaemonError(
            "storage_unavailable", f"the image could not be written: {said}: make room in the state directory"
        )
    return ProviderError("provider_unavailable", f"the image could not be written: {said}")


def digest_tree(root: str) -> tuple[str, int, int]:
    """The digest of a tree that nobody changes meanwhile, the bytes of its files, and how many entries it has. Blocks.

    Hashed is, in the order of the names' bytes, for each entry: path, type and mode, and the link's target or the
    content's own hash. Times and owners are left out, so that equal trees have equal digests wherever they come from.
    """
    total = hashlib.sha256()
    size = count = 0
    top = os.open(os.fsencode(root), os.O_RDONLY | os.O_DIRECTORY)
    try:
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
    finally:
        os.close(top)
    return "sha256:" + total.hexdigest(), size, count


def _walk(top: int) -> Iterator[tuple[bytes, os.stat_result]]:
    """All entries below a directory, in one order, without recursion: a tree may be deeper than Python's stack."""
    waiting = [b""]
    while waiting:
        path = waiting.pop()
        info = os.stat(path or b".", dir_fd=top, follow_symlinks=False)
        yield path, info
        if stat.S_ISDIR(info.st_mode):
            fd = os.open(path or b".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
            try:
                names = sorted((os.fsencode(name) for name in os.listdir(fd)), reverse=True)
            finally:
                os.close(fd)
            waiting += [path + b"/" + name if path else name for name in names]


def _digest_file(path: bytes, top: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=top)
    with open(fd, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").digest()

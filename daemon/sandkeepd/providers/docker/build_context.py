"""The build context for an engine: a directory of ours, packed by programs and streamed, with files of ours added to
it.

The directory is a copy that is immutable by now, but its content is a caller's: any names, any links, any size. `tar`
reads it, and follows no link; a program of its own applies the `.dockerignore`, so that neither takes the daemon's
memory or time.
"""

import functools
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Final, NamedTuple

from sandkeep.errors import CallerError, ProviderError, SandkeepError
from sandkeep.system import ignore as docker_ignore
from sandkeepd.host.processes import TOOL_ENV, in_fresh_thread, ordinary_priority
from sandkeepd.providers.common.build_files import read_below

OUR_DOCKERFILE: Final = ".sandkeep.dockerfile"
"""The name of the Dockerfile that the engine builds by; it does not get into the image."""

IGNORE: Final = docker_ignore.NAME
_PIECE_BYTES: Final = 256 * 1024
_MOST_SAID: Final = 2000


def of_directory(directory: str, dockerfile: str) -> Generator[bytes]:
    """Stream a tar archive with `directory` under its own name, and a Dockerfile of ours beside it."""
    parent, name = os.path.split(directory)
    added = {OUR_DOCKERFILE: dockerfile.encode(), IGNORE: f"{OUR_DOCKERFILE}\n{IGNORE}\n".encode()}
    yield from _packed(added, [*_tar(parent), "--", f"./{name}"])


def of_context(top: str, dockerfile: str) -> Generator[bytes]:
    """Stream a tar archive of the files in the directory `top` that are not ignored, with a Dockerfile of ours.

    Raises `invalid` while it is read, if its `.dockerignore` is malformed.
    """
    ignore = read_below(top, IGNORE, docker_ignore.MOST_BYTES)
    ours = [OUR_DOCKERFILE] if ignore is not None else [OUR_DOCKERFILE, IGNORE]
    added = {OUR_DOCKERFILE: dockerfile.encode(), IGNORE: (ignore or b"") + b"\n" + "\n".join(ours).encode() + b"\n"}
    if ignore is None:
        excluded = [f"--exclude=./{name}" for name in added]
        yield from _packed(added, [*_tar(top), "--anchored", "--no-wildcards", *excluded, "--", "."])
    else:
        listed = [*_tar(top), "--no-recursion", "--null", "--verbatim-files-from", "--files-from=-"]
        yield from _packed(added, listed, [sys.executable, "-I", "-S", docker_ignore.__file__, top, *added])


def _tar(directory: str) -> list[str]:
    return [
        "tar", "--create", "--file=-", "--format=gnu", "--numeric-owner", "--owner=0", "--group=0", "--directory",
        directory,
    ]  # fmt: skip


class _Program(NamedTuple):
    """A running program, and the file for its stderr, so that it never blocks on that."""

    process: "subprocess.Popen[bytes]"
    output: IO[bytes]


def _packed(added: Mapping[str, bytes], tar: Sequence[str], lister: Sequence[str] | None = None) -> Generator[bytes]:
    """Stream our files, then the output of `tar`; the `lister`, if there is one, gives it the names of the files to
    pack.
    """
    for name, content in added.items():
        yield tar_entry(name, content)
    with ExitStack() as stack:
        listing = _start(stack, lister, subprocess.DEVNULL) if lister else None
        packing = _start(stack, tar, listing.process.stdout if listing else subprocess.DEVNULL)
        if listing is not None and listing.process.stdout is not None:
            listing.process.stdout.close()  # it is tar's alone
        assert packing.process.stdout is not None
        while piece := os.read(packing.process.stdout.fileno(), _PIECE_BYTES):
            yield piece
        for program in (listing, packing):
            if program is not None and program.process.wait():
                raise _failure(program)


def _start(stack: ExitStack, argv: Sequence[str], stdin: "int | IO[bytes] | None") -> _Program:
    """Start a program that is ended at the stack's end."""
    output = stack.enter_context(os.fdopen(os.memfd_create("said"), "w+b", buffering=0))
    process = in_fresh_thread(functools.partial(_spawn, argv, stdin, output))
    stack.callback(_end, process)
    return _Program(process, output)


def _spawn(argv: Sequence[str], stdin: "int | IO[bytes] | None", output: IO[bytes]) -> "subprocess.Popen[bytes]":
    with ordinary_priority():
        return subprocess.Popen(
            argv, stdin=stdin, stdout=subprocess.PIPE, stderr=output, env=TOOL_ENV, cwd="/", process_group=0
        )


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.stdout is not None:
        process.stdout.close()
    process.wait()


def _failure(program: _Program) -> SandkeepError:
    program.output.seek(0)
    lines = program.output.read(_MOST_SAID).decode(errors="replace").strip().splitlines() or ["no reason was given"]
    if program.process.returncode == docker_ignore.MALFORMED and lines[0].startswith(IGNORE):
        return CallerError("invalid", f"source: {lines[0]}", field="source")
    return ProviderError("provider_unavailable", f"the build context could not be packed: {lines[-1]}")


def tar_entry(name: str, content: bytes) -> bytes:
    """Return a file in a tar archive, without the archive's end."""
    header = tarfile.TarInfo(name)
    header.size, header.mode = len(content), 0o644
    return header.tobuf(tarfile.GNU_FORMAT) + content + b"\0" * (-len(content) % tarfile.BLOCKSIZE)

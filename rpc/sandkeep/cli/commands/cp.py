"""`cp`: files and trees between this machine and sandboxes."""

import os
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from threading import Thread
from typing import Final

import click

from sandkeep.blocking import Client
from sandkeep.cli.display.output import json_line, of_total
from sandkeep.cli.display.progress import progress
from sandkeep.cli.options import Frontend, command, common
from sandkeep.cli.words import LOCATION
from sandkeep.clients.pages import every
from sandkeep.errors import SandkeepError
from sandkeep.ids import NAME_PATTERN
from sandkeep.model import Copied

_IN_SANDBOX: Final = re.compile(NAME_PATTERN.partition("$")[0] + r":(?P<path>.*)\Z", re.DOTALL)
_STREAM: Final = "-"


@command(
    examples=[
        "sandkeep cp project $BOX:/workspace",
        "sandkeep cp $BOX:results/. results",
        "sandkeep cp $BOX:core.1 - | tar -xO | gdb -c /dev/stdin",
    ]
)
@click.argument("source", type=LOCATION, metavar="SRC")
@click.argument("target", type=LOCATION, metavar="DST")
@click.option("-r", "recursive", is_flag=True, hidden=True, help="Typed from habit: directories are always copied.")
@common()
def cp(front: Frontend, source: str, target: str, recursive: bool) -> None:  # noqa: ARG001
    """Copy the file or directory SRC to DST. At least one of them is in a sandbox: SANDBOX:PATH.

    It works as `cp -a` does, except for owners. Into an existing directory SRC is copied under its own name; a SRC that
    ends in /. stands for the directory's contents. A relative PATH starts at the sandbox's working directory; a local
    name with a colon is given as ./NAME. A single - is a tar archive on stdin or stdout.
    """
    for word in (source, target):
        if word.startswith(":") and not os.path.lexists(word):
            raise click.UsageError(f"{word!r} names no sandbox before the colon: maybe a variable is not set")
    there, here = parse_location(source), parse_location(target)
    if there is None and here is None:
        raise click.UsageError("neither SRC nor DST is in a sandbox: give one of them as SANDBOX:PATH")
    if not source or not target:
        raise click.UsageError("empty path: give . for the working directory")
    with front.client() as client, ExitStack() as shown:
        display = progress("copying")
        if target != _STREAM:  # whatever reads the archive may write to the same terminal
            shown.enter_context(display)
        total = Total(front, source, there)
        copied = _copy(
            client, (source, there), (target, here), lambda count: display(f"copying: {of_total(count, total.known())}")
        )
    if front.as_json and target != _STREAM:
        json_line(copied)


class Total:
    """The size of a file or tree, here or in a sandbox, counted beside its copy once somebody asks. Failures to count
    are no errors: the copy itself has them.
    """

    def __init__(self, front: Frontend, local: str, inside: tuple[str, str] | None) -> None:
        self._front = front
        self._local = local
        self._inside = inside
        self._thread: Thread | None = None
        self._total: int | None = None

    def known(self) -> int | None:
        """Return the bytes, once they are counted. The first call starts that."""
        if self._thread is None:
            self._thread = Thread(target=self._count, daemon=True)
            self._thread.start()
        return self._total

    def _count(self) -> None:
        with suppress(SandkeepError, OSError, RecursionError):
            if self._inside is None:
                self._total = _local_bytes(self._local)
                return
            with self._front.client() as client:
                self._total = _inside_bytes(client, *self._inside)


def _local_bytes(path: str) -> int:
    if not os.path.isdir(path) or os.path.islink(path):
        return os.lstat(path).st_size
    found = 0
    for directory, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                found += os.lstat(os.path.join(directory, name)).st_size
    return found


def _inside_bytes(client: Client, sandbox: str, path: str) -> int:
    try:
        entries = every(client.sandbox.list_dir, sandbox_id=sandbox, path=path)
    except SandkeepError:  # a file is listed in its directory
        above, name = os.path.split(path)
        entries = every(client.sandbox.list_dir, sandbox_id=sandbox, path=above or ".")
        named: int = sum(entry.size_bytes for entry in entries if entry.name == name)
        return named
    deeper: int = sum(
        _inside_bytes(client, sandbox, f"{path}/{entry.name}") for entry in entries if entry.type == "directory"
    )
    here: int = sum(entry.size_bytes for entry in entries if entry.type == "file")
    return deeper + here


def parse_location(word: str) -> tuple[str, str] | None:
    """The sandbox and the path in it that a word names; None when it is a place on this machine."""
    match = _IN_SANDBOX.match(word)
    return (word.partition(":")[0], match["path"] or ".") if match else None


def _copy(
    client: Client,
    source: tuple[str, tuple[str, str] | None],
    target: tuple[str, tuple[str, str] | None],
    on_progress: Callable[[int], None],
) -> Copied:
    from sandkeep import transfer

    (local_source, there), (local_target, here) = source, target
    on_terminal = on_progress if sys.stderr.isatty() else None
    if there and here:
        return transfer.copy_across(client, *there, *here, progress=on_terminal)
    if there and local_target == _STREAM:
        return transfer.send_archive(client, *there, 1)
    if there:
        return transfer.copy_out(client, *there, local_target, progress=on_terminal)
    assert here is not None
    if local_source == _STREAM:
        return transfer.receive_archive(client, 0, *here)
    return transfer.copy_in(client, os.fsencode(local_source), *here, progress=on_terminal)

"""`cp`: files and trees between this machine and sandboxes."""

import os
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import click

from sandkeep.blocking import Client
from sandkeep.cli.display.output import json_line, size
from sandkeep.cli.display.progress import progress
from sandkeep.cli.options import Frontend, command, common
from sandkeep.cli.words import LOCATION
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
@common()
def cp(front: Frontend, source: str, target: str) -> None:
    """Copy the file or directory SRC to DST. At least one of them is in a sandbox: SANDBOX:PATH.

    It works as `cp -a` does, except for owners. Into an existing directory SRC is copied under its own name; a SRC that
    ends in /. stands for the directory's contents. A relative PATH starts at the sandbox's working directory; a local
    name with a colon is given as ./NAME. A single - is a tar archive on stdin or stdout.
    """
    there, here = parse_location(source), parse_location(target)
    if there is None and here is None:
        raise click.UsageError("neither SRC nor DST is in a sandbox: give one of them as SANDBOX:PATH")
    if not source or not target:
        raise click.UsageError("empty path: give . for the working directory")
    with front.client() as client, ExitStack() as shown:
        display = progress("copying")
        if target != _STREAM:  # whatever reads the archive may write to the same terminal
            shown.enter_context(display)
        copied = _copy(client, (source, there), (target, here), lambda count: display(f"copying: {size(count)}"))
    if front.as_json and target != _STREAM:
        json_line(copied)


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

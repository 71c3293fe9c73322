"""Bubblewrap that is killed in its first instants, by each of its users: nothing of it stays.

Its child, the first process of the jail's namespace, waits until it is let go on. When bubblewrap 0.8 is killed before
that, the child waits for ever, and as a first process it ignores SIGTERM. `--userns-block-fd` makes those instants as
long as they have to be.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.expect import refused, until

from sandkeep.system.staging import Stage
from sandkeep_store.archives.trees import jail
from sandkeepd.host import caller_paths, processes
from sandkeepd.providers.local import start

pytestmark = pytest.mark.needs("bwrap")


class Block:
    """What has bubblewrap wait for ever, and tell of its child in a pipe."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()  # nothing is written there
        self.info, self.info_end = os.pipe()
        self.descriptors = (self.reading, self.info_end)
        self.arguments = ["--unshare-user", "--info-fd", str(self.info_end), "--userns-block-fd", str(self.reading)]
        self.argv = ["bwrap", "--unshare-pid", *self.arguments, "--ro-bind", "/", "/", "sleep", "1000"]

    def child(self) -> int:
        """The child's pid, as soon as there is one."""
        text = b""
        while b"}" not in text:  # it is written in pieces
            text += os.read(self.info, 4096)
        return int(msgspec.json.decode(text)["child-pid"])

    def close(self) -> None:
        for descriptor in (self.reading, self.writing, self.info, self.info_end):
            os.close(descriptor)


@pytest.fixture
def block() -> Iterator[Block]:
    made = Block()
    yield made
    made.close()


def has_ended(pid: int) -> bool:
    """Also as a zombie, which whoever is the first process here has to reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("is_killed", [True, False])
def test_an_extracting_program(tmp_path: Path, block: Block, monkeypatch: pytest.MonkeyPatch, is_killed: bool) -> None:
    """Whoever started it kills it, or has died: then the stage does, with SIGTERM first."""
    jail.bubblewrap()
    view, popen = jail._view, subprocess.Popen

    def blocked(argv: Any, **settings: Any) -> "subprocess.Popen[bytes]":
        return popen(argv, **settings, pass_fds=block.descriptors)

    with (tmp_path / "stderr").open("wb") as stderr, Stage(os.fsencode(tmp_path / "target"), beside=True) as stage:
        with monkeypatch.context() as patch:
            patch.setattr(jail, "_view", lambda tree: [*block.arguments, *view(tree)])
            patch.setattr(subprocess, "Popen", blocked)
            process = jail.start_extracting(stage.tree, None, stderr, group=stage.group)
        child = block.child()
        if is_killed:
            process.kill()
            process.communicate()
    until(lambda: has_ended(child))
    process.communicate()


def test_the_writing_half_of_an_import(block: Block) -> None:
    """Also when it was not the daemon that killed it."""
    program = subprocess.Popen(block.argv, pass_fds=block.descriptors, process_group=0)
    with program:
        child = block.child()
        program.kill()
        os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
        caller_paths._kill(program)
    until(lambda: has_ended(child))


def test_a_tool_that_takes_too_long(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    children = []
    monkeypatch.setattr(processes, "_read_all", lambda *_: children.append(block.child()))
    refused("provider_unavailable", processes.run_tool, block.argv, descriptors=block.descriptors)
    until(lambda: has_ended(children[0]))


def test_a_sandbox_that_does_not_start(block: Block) -> None:
    silence, end = os.pipe()
    os.close(end)
    with open(os.devnull, "r+b") as nothing:
        argv = [*block.argv[:2], "--unshare-user", "--info-fd", "4", "--userns-block-fd", "3", *block.argv[-5:]]
        more = list(block.descriptors)
        pid = processes.spawn(argv, stdin=nothing.fileno(), output=nothing.fileno(), more=more)
    child = block.child()
    refused("provider_unavailable", start._await_first, None, pid, silence, block.info)
    os.close(silence)
    until(lambda: has_ended(child))

"""Code that writes past tmux to the terminals of those who look at it, on every provider, and what they get to see."""

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pytest
import trio
from tests.conftest import RunningDaemon, daemon_in
from tests.support.expect import until
from tests.support.patience import patient
from tests.support.snapshots import sh

from sandkeep.stream import StreamClient

pytestmark = pytest.mark.needs("tmux", "root")

LATE_S = patient(60.0)

EVIL = (
    r"\033]52;c;RVZJTA==\a\033]0;EVIL title\a\033]2;EVIL title\033\\\033]1337;EVIL\a\033]8;;http://EVIL\a"
    r"\033PtmuxEVIL;\033\033]52;c;RVZJTA==\a\033\\\033P+q544e\033\\\033_EVIL\033\\\033^EVIL\033\\"
    r"\033[5i\033[4i\033[?5i\033[6n\033[?6n\033[21t\033[18t\033[8;1;1t\033[>4;2m\033[?2031h\033[?9999h\033[2h\033Z\005\302\233"
)
"""What a terminal would do more for than draw: in the words of a shell's printf."""

FORBIDDEN = re.compile(
    rb"EVIL|RVZJTA|\x1b[P\]X^_Z]|\x1b\[\??[0-9;]*[in]|\x1b\[[0-9;]*t(?<!\x1b\[2[23];0;0t)|\x1b\[>[0-9;]+m"
    rb"|\x1b\[\?(?:2031|9999)h|\x1b\[2h|\x05|\xc2\x9b"
)

PAST = f"""
own=$(tty)
while :; do
    for place in /dev/pts/[0-9]* /proc/[0-9]*/fd/[012]; do
        shown=$(readlink -f "$place")
        case $shown in "$own" | /dev/pts/ptmx) ;; /dev/pts/*) printf '{EVIL}\\033[1;1HPAST' >"$place" ;; esac
    done 2>/dev/null
    sleep 0.05
done &
"""
"""Writes to all terminals that there are, but its own."""

ESCAPED = "skt-escaped"

THROUGH = f"""
tmux set-option -s set-clipboard on
tmux set-option -g set-titles on
tmux set-option -g set-titles-string EVIL
tmux set-option -g allow-passthrough on
tmux set-option -sa terminal-overrides ',*:civis=\\E]0;EVIL\\a:cnorm=\\E[6n:smcup=\\EPEVIL\\E\\\\:Ms=\\E]52;EVIL\\a'
tmux set-option -g lock-command 'echo locked >>/tmp/{ESCAPED}'
while read line; do case $line in *leave*)
    tmux lock-session; tmux run-shell 'echo shell >>/tmp/{ESCAPED}'
    tmux detach-client -E 'echo detached >>/tmp/{ESCAPED}'
    ;; esac; printf 'through {EVIL}tmux \\033[31mred\\033[0m %s\\n' "$line"; done
"""
"""Has tmux send what it sends if it is told to, to whoever types a line; and run programs at ``leave``, by its server
and by the client of whoever looks.
"""


class Guarded(NamedTuple):
    """A daemon with a sandbox, whose code does both in the terminal `evil`. `has_past`: it can write past tmux, as
    it cannot on gVisor, where no code finds a viewer's terminal.
    """

    daemon: RunningDaemon
    box: str
    has_past: bool

    def has_shown(self, seen: bytes) -> bool:
        """Whether all that draws was there, by now."""
        past = seen.count(b"PAST") > 3 or not self.has_past
        return past and b"through" in seen and b"\x1b[31mred" in seen and b"typed" in seen


@pytest.fixture(scope="module", params=["local", "docker", "gvisor"])
def guarded(request: pytest.FixtureRequest, places: str) -> Iterator[Guarded]:
    image: dict[str, Any] = {"provider": request.param}
    with daemon_in(places) as daemon:
        if request.param == "docker":
            engine = request.getfixturevalue("dockerd")
            daemon.env["DOCKER_HOST"] = engine.host
            image["base"] = engine.tools()
        daemon.start(SANDKEEP_STREAM=f"unix:{daemon.root}/stream.sock")
        os.mkdir(f"{daemon.root}/image")
        with daemon.connect() as client:
            box = client.sandbox.create(client.image.create(f"{daemon.root}/image", **image).image_id).sandbox_id
            client.process.launch(box, ["sh", "-c", PAST + THROUGH], name="evil", tty=True)
        yield Guarded(daemon, str(box), request.param != "gvisor")


@contextmanager
def command_line(guarded: Guarded) -> Iterator[int]:
    """`sandkeep attach` on a terminal of ours."""
    ours, theirs = pty.openpty()
    words = [*guarded.daemon.command, "attach", guarded.box, "evil"]
    environment = {**guarded.daemon.env, "TERM": "xterm-256color"}
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment):
        os.close(theirs)
        try:
            yield ours
        finally:
            os.write(ours, b"\x02d")
            with suppress(OSError):  # it has ended
                while os.read(ours, 65536):
                    pass
            os.close(ours)


def test_a_viewer_at_the_command_line(guarded: Guarded) -> None:
    with command_line(guarded) as ours:
        os.write(ours, b"typed\r")
        seen, deadline = b"", time.monotonic() + LATE_S
        while not guarded.has_shown(seen):
            assert select.select([ours], [], [], deadline - time.monotonic())[0], seen
            try:
                seen += os.read(ours, 65536)
            except OSError as error:  # the command has ended
                pytest.fail(f"{error} after {seen.decode(errors='replace')!r}")
    assert not FORBIDDEN.findall(seen)


async def test_a_viewer_by_the_stream_server(guarded: Guarded) -> None:
    seen = b""
    async with StreamClient(f"unix:{guarded.daemon.root}/stream.sock").attach(guarded.box, "evil") as terminal:
        await terminal.send(b"typed\r")
        with trio.fail_after(LATE_S):
            while not guarded.has_shown(seen):
                seen += (await anext(terminal)).data
    assert not FORBIDDEN.findall(seen)


def test_programs_that_tmux_runs_for_a_viewer_run_inside(guarded: Guarded) -> None:
    with command_line(guarded) as ours:
        os.write(ours, b"leave\r")
        with suppress(OSError), guarded.daemon.connect() as client:  # the viewer is detached
            until(lambda: "detached" in sh(client, guarded.box, f"cat /tmp/{ESCAPED} || true"))
    assert not os.path.exists(f"/tmp/{ESCAPED}")

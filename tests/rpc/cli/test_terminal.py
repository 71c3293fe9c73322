"""`attach`, `shell` and `run --tty`, seen through a real terminal: what a person sees is compared, not what was sent.

And `attach` to a process that has no terminal, which is seen through pipes.
"""

import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.boxes import Box
from tests.support.expect import until
from tests.support.patience import patient
from tests.support.screen import DEADLINE_S, Screen

from sandkeep.cli.attach import terminal

pytestmark = pytest.mark.needs("bwrap", "tmux")


@pytest.fixture(scope="module")
def box(shared_box: Box) -> str:
    return shared_box.id


@pytest.fixture
def new_screen(tmp_path: Path, shared_daemon: Any) -> Iterator[Callable[..., Screen]]:
    """Makes screens, whose shell knows the command as ``$SK``."""
    made: list[Screen] = []

    def make(daemon: Any = shared_daemon, **size: int) -> Screen:
        place = tmp_path / str(len(made))
        place.mkdir()
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
        env = {**kept, "SANDKEEP_SOCKET": daemon.socket, "SK": " ".join(daemon.command)}
        made.append(Screen(place, env, **size))
        return made[-1]

    yield make
    for screen in made:
        screen.close()


@pytest.fixture
def screen(new_screen: Callable[..., Screen]) -> Screen:
    return new_screen()


def status(daemon: Any, box: str, name: str) -> str:
    with daemon.connect() as client:
        return str(client.process.get(box, name).status)


# -- what is seen -----------------------------------------------------------------------------------------------------

PICTURE = "".join(
    [
        "\\033[2J\\033[H",
        "plain \\033[1mbold\\033[0m \\033[4munderlined\\033[0m \\033[7mreverse\\033[0m\\n",
        *(f"\\033[38;5;{number}m{number:3d}\\033[0m " for number in range(17, 256, 14)),
        "\\n",
        *(f"\\033[48;5;{number}m{number:3d}\\033[0m " for number in range(17, 256, 14)),
        "\\n漢字 かな 한글 wide\\n",
        "🐚 🏖 emoji, and combined: e\\314\\201 n\\314\\203\\n",
        "├─┐ └─┘ ▁▂▃▄▅▆▇█\\n",
        "\\033[10;20Hfar off\\033[11;70Hwide end 漢\\033[13;1H",
    ]
)


def test_it_looks_as_it_does_without_a_sandbox(new_screen: Callable[..., Screen], box: str) -> None:
    """Wide characters, combining ones, 256 colours, attributes and places, on both screens of the same kind."""
    bare, ours = new_screen(), new_screen()
    script = shlex.quote(f"printf '{PICTURE}done\\n'; read x")
    bare.enter(f"clear; sh -c {script}")
    ours.enter(f"clear; $SK run {box} picture --tty -- sh -c {script}")
    # The line as it was typed has all of it, too, until it is cleared.
    expected = bare.until(lambda seen: seen.endswith("done") and "printf" not in seen, colours=True)
    assert "漢字" in expected
    assert "38;5;17m" in expected
    assert ours.until(lambda seen: seen == expected, colours=True) == expected
    ours.press("Enter")
    ours.until_prompt()


def test_a_program_of_the_whole_screen(screen: Screen, box: str) -> None:
    screen.enter("echo before")
    before = screen.until_prompt().splitlines()
    script = "printf '\\033[?1049h\\033[2J\\033[5;5Hwhole screen'; read x; printf '\\033[?1049l'; echo back; read x"
    screen.open(f"$SK run {box} whole --tty -- sh -c {shlex.quote(script)}")
    assert screen.until("whole screen").splitlines()[4] == "    whole screen"
    screen.press("Enter")
    screen.until(lambda seen: "back" in seen and "whole screen" not in seen)
    screen.press("Enter")
    assert screen.until_prompt().splitlines()[: len(before) - 1] == before[:-1]  # what was there before is there again


def test_the_mouse_reaches_a_program_that_asks_for_it(screen: Screen, box: str) -> None:
    script = "stty -icanon -echo; printf '\\033[?1000h\\033[?1006hready\\n'; head -c 9 | od -An -c; read x"
    screen.open(f"$SK run {box} mouse --tty -- sh -c {shlex.quote(script)}")
    screen.until("ready")
    screen.until(lambda _: "mouse_any_flag=1" in screen.modes())
    screen.paste(b"\x1b[<0;7;4M")
    assert "[ < 0 ; 7 ; 4 M" in " ".join(screen.until("033").split())
    screen.press("Enter")
    screen.until_prompt()
    assert "mouse_any_flag=0" in screen.modes()


def test_what_scrolled_away_can_be_scrolled_back_to(screen: Screen, box: str) -> None:
    screen.open(f"$SK run {box} scroll --tty -- sh -c 'seq 1 400; read x'")
    screen.until("400")
    assert "300" not in screen.lines()
    screen.press("C-b", "[")
    screen.until("[0/")
    for _ in range(4):
        screen.press("PageUp")
    screen.until(lambda seen: "310" in seen.split())
    screen.press("q")
    screen.until("400")
    screen.press("Enter")
    screen.until_prompt()


def test_a_new_size_is_that_of_the_terminal_inside(screen: Screen, box: str) -> None:
    script = "trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done"
    screen.open(f"$SK run {box} sizes --tty -- sh -c {shlex.quote(script)}")
    screen.until("24 80")
    screen.resize(31, 97)
    screen.until("31 97")
    screen.press("C-c")
    screen.until_prompt()


def test_two_viewers_see_the_same_and_both_type(new_screen: Callable[..., Screen], box: str) -> None:
    one, two = new_screen(), new_screen()
    one.open(f"$SK run {box} both --tty -- sh -c 'echo ready; cat'")
    one.type("from one")
    one.until("from one")
    two.open(f"$SK attach {box} both")
    two.until("from one")
    two.type(", and from two")
    assert one.until("from one, and from two") == two.until("from one, and from two")
    two.press("C-b", "d")
    two.until("detached")
    one.press("Enter", "C-d")
    one.until_prompt()


def test_who_only_looks_types_nothing_but_may_leave(new_screen: Callable[..., Screen], box: str) -> None:
    one, two = new_screen(), new_screen()
    one.open(f"$SK run {box} looked-at --tty -- sh -c 'echo ready; cat'")
    one.type("typed")
    one.until("typed")
    two.open(f"$SK attach {box} looked-at --read-only")
    two.until("typed")
    two.paste(b"nothing of this\x02d")  # keys that come at once, as over a slow line, are keys all the same
    two.until("detached")
    one.type(" more")
    assert "typed more" in one.until("more")
    one.press("C-c")
    one.until_prompt()


# -- how it ends ------------------------------------------------------------------------------------------------------


def test_a_shell_ends_with_its_code_and_leaves_the_terminal_as_it_was(screen: Screen, box: str) -> None:
    screen.enter("clear; stty -a")
    before, modes = screen.until_prompt().splitlines()[:-1], screen.modes()
    screen.open(f"$SK shell {box}; echo code $?")
    screen.until("bash")
    screen.enter("tty; exit 7")
    screen.until("code 7")
    assert screen.modes() == modes
    screen.enter("clear; stty -a")
    screen.until(lambda seen: seen.splitlines()[:-1] == before)


def test_exec_takes_the_options_of_docker_exec(screen: Screen, box: str) -> None:
    screen.open(f"$SK exec -it {box} -- sh -c 'test -t 0 && test -t 1 && echo ready; read x; exit $x'; echo code $?")
    screen.until("ready")
    screen.enter("9")
    screen.until("code 9")
    screen.open(f"$SK exec -ti --cwd /tmp {box} -- sh -c 'pwd; exec cat'; echo code $?")
    screen.enter("typed")
    screen.until(lambda seen: seen.count("typed") == 2)
    screen.press("C-b", "d")
    screen.until("code 0")
    assert "running process: sandkeep attach" in screen.shown().replace("\n", " ")


def test_shells_get_names_of_their_own(new_screen: Callable[..., Screen], shared_daemon: Any, image: str) -> None:
    with shared_daemon.connect() as client:
        alone = client.sandbox.create(image).sandbox_id
        one, two = new_screen(), new_screen()
        for screen, words in ((one, ""), (two, " -- sh -c 'echo ready; cat'")):
            screen.open(f"$SK shell {alone}{words}")
        assert [process.name for process in client.process.list(alone).processes] == ["shell", "shell-2"]
        two.press("C-c")
        two.until_prompt()
        one.press("C-b", "d")
        assert f"running process: sandkeep attach {alone} shell" in one.until("attach").replace("\n", "")
        client.sandbox.terminate(alone)


def test_detaching_leaves_it_running_and_our_terminal_sane(screen: Screen, shared_daemon: Any, box: str) -> None:
    screen.enter("clear; stty -a")
    before, modes = screen.until_prompt().splitlines()[:-1], screen.modes()
    script = "printf '\\033[?1049h\\033[?1003h\\033[?2004h\\033[?25lhere'; read x; exit 3"
    screen.open(f"$SK run {box} left --tty -- sh -c {shlex.quote(script)}; echo code $?")
    screen.press("C-b", "d")
    screen.until("code 0")
    assert status(shared_daemon, box, "left") == "running"
    assert screen.modes() == modes
    screen.enter("clear; stty -a")
    screen.until(lambda seen: seen.splitlines()[:-1] == before)
    screen.open(f"clear; $SK attach {box} left; echo code $?")
    screen.until("here")
    screen.press("Enter")
    screen.until("code 3")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_viewer_that_is_ended_cleans_up(number: int, screen: Screen, shared_daemon: Any, box: str) -> None:
    screen.enter("clear; stty -a")
    before, modes = screen.until_prompt().splitlines()[:-1], screen.modes()
    name = f"viewed-{number}"
    script = "printf '\\033[?1049h\\033[?1002h\\033[?25lhere'; read x"
    screen.open(f"$SK run {box} {name} --tty -- sh -c {shlex.quote(script)}; echo code $?")
    screen.until(lambda seen: seen.strip() == "here" and "mouse_any_flag=1" in screen.modes())
    os.kill(screen.child(), number)
    screen.until(f"code {128 + number}")
    assert status(shared_daemon, box, name) == "running"
    assert screen.modes() == modes
    screen.enter("clear; stty -a")
    screen.until(lambda seen: seen.splitlines()[:-1] == before)


def test_a_viewer_that_is_killed_takes_nothing_along(screen: Screen, shared_daemon: Any, box: str) -> None:
    screen.open(f"$SK run {box} survivor --tty -- sh -c 'echo ready; cat'")
    screen.type("still")
    screen.until("still")
    os.kill(screen.child(), signal.SIGKILL)
    screen.until("Killed")
    assert status(shared_daemon, box, "survivor") == "running"
    screen.open(f"clear; $SK attach {box} survivor")
    screen.until(lambda seen: seen.split() == ["ready", "still"])


def test_a_viewer_that_was_stopped_draws_all_again(screen: Screen, shared_daemon: Any, box: str) -> None:
    screen.open(f"$SK run {box} stopped --tty -- sh -c 'echo here; cat'")
    screen.until(lambda seen: seen.strip() == "here")
    viewer = screen.child()
    os.kill(viewer, signal.SIGSTOP)
    screen.until("Stopped")
    screen.enter("clear")
    screen.until_prompt()
    screen.enter("fg")
    screen.until(lambda seen: seen.split() == ["here"])
    screen.type("typed")  # every key goes on at once, which the process's own terminal shows
    with shared_daemon.connect() as client:
        at = len("here\r\n")
        assert client.process.read(box, "stopped", stdout_offset=at, wait_s=30).stdout[:1] == b"t"
    screen.press("C-c")
    screen.until_prompt()


def test_the_sandboxs_end_is_the_viewers(screen: Screen, shared_daemon: Any, image: str) -> None:
    with shared_daemon.connect() as client:
        alone = client.sandbox.create(image).sandbox_id
        modes = screen.modes()
        script = "printf '\\033[?1049h\\033[?1003hhere'; cat"
        screen.open(f"$SK run {alone} p --tty -- sh -c {shlex.quote(script)}; echo code $?")
        screen.until(lambda seen: seen.strip() == "here")
        client.sandbox.terminate(alone)
    screen.until("code 137")
    assert screen.modes() == modes


def test_it_goes_on_without_the_daemon(new_daemon: Any, new_screen: Callable[..., Screen], tmp_path: Path) -> None:
    daemon = new_daemon()
    daemon.start()
    (tmp_path / "empty").mkdir()
    with daemon.connect() as client:
        alone = client.sandbox.create(client.image.create(str(tmp_path / "empty")).image_id).sandbox_id
    screen = new_screen(daemon)
    screen.open(f"$SK run {alone} p --tty -- sh -c 'echo ready; cat; exit 5'; echo code $?")
    screen.type("one")
    screen.until("one")
    daemon.kill()
    screen.type(" two")
    screen.until("one two")
    screen.press("Enter", "C-d")
    screen.until(lambda seen: "one two" not in seen)  # it has ended, and its code is asked for
    daemon.start()
    screen.until("code 5")


def test_a_command_that_ends_at_once_shows_what_it_wrote(screen: Screen, shared_daemon: Any, box: str) -> None:
    screen.enter(f"clear; $SK run {box} quick --tty -- sh -c 'printf \"writ\\164en\\n\"; exit 4'; echo code $?")
    assert "written" in screen.until("code 4").split()
    assert shared_daemon.cli("logs", box, "quick").stdout == b"written\r\n"


def test_the_last_lines_of_a_command_stay_when_nobody_typed(screen: Screen, shared_daemon: Any, box: str) -> None:
    """Also of one that was attached to when it ended: they went with the other screen. Colours stay, jumps do not."""
    script = "seq 50; printf '\\033[2J\\033[9;9H\\033[31mred\\033[m end'; until [ -e go ]; do sleep 0.05; done; exit 4"
    screen.open(f"$SK run {box} patient --tty -- sh -c {shlex.quote(script)}; echo code $?")
    screen.until("red end")
    assert shared_daemon.cli("exec", box, "--", "touch", "go").returncode == 0
    seen = screen.until("code 4", colours=True)
    assert "\x1b[31mred\x1b[39m end\n" in seen
    lines = screen.lines()
    assert lines[lines.index("red end") - 1] == "50"
    assert "20" not in lines


def test_a_picture_does_not_stay(screen: Screen, shared_daemon: Any, box: str) -> None:
    script = "printf '\\033[?1049h\\033[?1003h\\033[5;5Hpicture'; until [ -e gone ]; do sleep 0.05; done; exit 5"
    modes = screen.modes()
    screen.open(f"clear; $SK run {box} picture-left --tty -- sh -c {shlex.quote(script)}; echo code $?")
    screen.until("picture")
    assert shared_daemon.cli("exec", box, "--", "touch", "gone").returncode == 0
    assert screen.until("code 5").split() == ["[exited]", "code", "5", "$"]
    assert screen.modes() == modes


@pytest.mark.parametrize(
    ("pieces", "typed"),
    [
        ([b"\x1b[?1;2c", b"\x1bP>|tm", b"ux 3.3a\x1b", b"\\\x1b[I"], False),
        ([b"\x1b[<64;7;4M\x1b[M !!"], False),
        ([b"\x1b[?1;2c\x1b]11;rgb:0/0/0\x07q"], True),
        ([b"\x1b[A"], True),
        ([b"\x1b", b"x"], True),
        ([b"\r"], True),
    ],
)
def test_what_a_terminal_sends_by_itself_was_not_typed(pieces: list[bytes], typed: bool) -> None:
    master, shown = os.openpty()
    reading, writing = os.pipe()
    try:
        view = terminal._View(terminal.OwnTerminal(reading, writing), master)
        with view.awake():
            for piece in pieces:
                view._watch_keys(piece)
        assert view.was_typed is typed
    finally:
        for descriptor in (master, shown, reading, writing):
            os.close(descriptor)


# -- without a terminal of our own ------------------------------------------------------------------------------------


@contextmanager
def started(daemon: Any, *words: str) -> Iterator[Any]:
    """A command that runs, with pipes to it. It is gone after the block, also when the block failed."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*daemon.command, *words], env=daemon.env, stdin=pipe, stdout=pipe, stderr=pipe) as command:
        patience = threading.Timer(DEADLINE_S, command.kill)  # so that no read below waits for ever
        patience.start()
        try:
            yield command
        finally:
            patience.cancel()
            command.kill()


def read_until(pipe: Any, expected: bytes) -> bytes:
    seen = b""
    while expected not in seen:
        piece = os.read(pipe.fileno(), 65536)
        assert piece, seen
        seen += piece
    return seen


def test_piped_it_is_a_terminal_all_the_same(shared_daemon: Any, box: str) -> None:
    launched = shared_daemon.cli(
        "run", box, "piped", "--tty", "--detach", "--", "sh", "-c", "stty size; read x; exit $x"
    )
    assert launched.stdout.startswith(b"prc_")
    with started(shared_daemon, "attach", box, "piped") as command:
        read_until(command.stdout, b"24 80")
        command.stdin.write(b"9\r")
        command.stdin.close()
        command.stdout.read()
        assert command.wait(patient(30)) == 9


def test_a_shell_and_exec_need_a_terminal(shared_daemon: Any, box: str) -> None:
    for line in (["shell", box], ["exec", "-it", box, "--", "true"]):
        done = shared_daemon.cli(*line)
        assert (done.returncode, done.stdout) == (125, b"")
        assert b"needs a terminal" in done.stderr


def test_a_process_without_a_terminal_is_followed_from_now_on(shared_daemon: Any, box: str) -> None:
    script = "echo early; read x; echo out $x; echo err $x >&2; read x; exit 6"
    with shared_daemon.connect() as client:
        client.process.launch(box, ["sh", "-c", script], name="plain", stdin=True)
        until(lambda: client.process.read(box, "plain", wait_s=10).stdout)
        with started(shared_daemon, "attach", box, "plain", "-i") as command:
            command.stdin.write(b"typed\n")
            command.stdin.flush()
            assert command.stdout.readline() == b"out typed\n"
            assert command.stderr.readline() == b"err typed\n"
            with started(shared_daemon, "attach", box, "plain", "--from-start") as other:
                assert other.stdout.readline() == b"early\n"
                assert other.stdout.readline() == b"out typed\n"
                command.stdin.write(b"\n")
                command.stdin.flush()
                assert (command.wait(patient(30)), other.wait(patient(30))) == (6, 6)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGQUIT, 0), (signal.SIGTERM, -15), (signal.SIGHUP, -1)])
def test_leaving_it_leaves_it_running(number: int, code: int, shared_daemon: Any, box: str) -> None:
    with shared_daemon.connect() as client:
        name = f"plain-{number}"
        client.process.launch(
            box, ["sh", "-c", "trap 'echo told; exit 3' INT; echo ready; while :; do sleep 0.05; done"], name=name
        )
        with started(shared_daemon, "attach", box, name, "--from-start") as command:
            assert command.stdout.readline() == b"ready\n"
            command.send_signal(number)
            assert command.wait(patient(30)) == code
        assert status(shared_daemon, box, name) == "running"
        with started(shared_daemon, "attach", box, name, "--from-start") as command:
            assert command.stdout.readline() == b"ready\n"
            command.send_signal(signal.SIGINT)
            assert command.stdout.readline() == b"told\n"
            assert command.wait(patient(30)) == 3

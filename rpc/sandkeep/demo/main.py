"""The demo: Sandkeep's main job from end to end, with every claim checked as it is made."""

import hashlib
import json
import os
import secrets
import shlex
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from sandkeep.demo.house import LIMIT_S, DemoDaemon, StartError, house
from sandkeep.demo.stage import Stage
from sandkeep.demo.witness import EventFollower
from sandkeep.errors import SandkeepError

PROJECT: Final = Path(__file__).parent / "project"
FLASHES: Final = 12


class MismatchError(Exception):
    """A check of the demo failed; the message says which."""


def run(*, keep: bool = False, fast: bool = False) -> int:
    """Show it all; answer 0 when everything was right, 1 when not, 130 when interrupted."""
    stage = Stage(fast=fast)
    left: list[str] = []
    code = 0
    try:
        with house(keep=keep, left=left) as daemon:
            code = _show(daemon, stage)
            if keep:
                stage.say(f"\nKept: {daemon.root}")
    except KeyboardInterrupt:
        _report(stage, left)
        stage.say("\nInterrupted" + ("." if left else "; everything was cleaned up."))
        return 130
    return _close(stage, code, left, daemon.root, keep=keep)


def _close(stage: Stage, code: int, left: list[str], root: str, *, keep: bool) -> int:
    if not keep and os.path.exists(root):
        left.append(f"directory {root}")
    _report(stage, left)
    if code or left:
        return 1
    stage.fact("no process, mount or directory of it is left")
    stage.say("\nThat was Sandkeep. Next: the two-minute tour in docs/tutorial/tour.md.")
    return 0


def _report(stage: Stage, left: list[str]) -> None:
    for thing in left:
        stage.failure(f"left behind: {thing}")


def _show(daemon: DemoDaemon, stage: Stage) -> int:
    try:
        Demo(daemon, stage).play()
    except MismatchError as error:
        stage.failure(str(error))
    except StartError as error:
        stage.failure(f"the daemon did not start:\n{error}")
    except (SandkeepError, OSError) as error:
        stage.failure(str(error))
    else:
        return 0
    return 1


class Demo:
    """The steps, in order. Each runs the commands that it shows."""

    def __init__(self, daemon: DemoDaemon, stage: Stage) -> None:
        self.daemon = daemon
        self.stage = stage
        self.events = EventFollower(daemon, stage)
        self.sandbox = ""
        self.image = ""
        self.light = ""
        self.secret = secrets.token_hex(16)

    def play(self) -> None:
        """All of it."""
        self.start_a_daemon()
        self.make_an_image()
        self.make_a_sandbox()
        self.stream_a_process()
        self.fail()
        self.pass_a_secret()
        self.restart_the_daemon()
        self.look_back()
        self.lose_and_rebuild()
        self.end()

    def start_a_daemon(self) -> None:
        """Start it, and begin to watch its events."""
        self.stage.say("Sandkeep keeps sandboxes. What you see is real: a daemon of its own in a")
        self.stage.say("temporary directory, the commands as you would type them, and ◦ every event.")
        self.stage.title("A daemon")
        self.stage.command("sandkeep daemon &")
        pid = self.daemon.start()
        self.events.watch()
        self.events.catch_up()
        self.stage.fact(f"it answers, as process {pid}")

    def make_an_image(self) -> None:
        """Make an image of the project that is shipped with Sandkeep."""
        self.stage.title("An image: a directory, copied once, never changed again")
        self.image = self.answer("image", "create", str(PROJECT), shown="image create ./lighthouse")
        self.events.catch_up()

    def make_a_sandbox(self) -> None:
        """Make a sandbox, change a file in it, and see that the project is untouched."""
        self.stage.title("A sandbox: the image's files, copy-on-write, isolated")
        self.sandbox = self.answer("create", self.image)
        self.events.catch_up()
        self.require(self.answer("exec", self.sandbox, "--", "sh", "-c", "id -u; ls -d /home /root 2>&1 | head -1"))
        before = (PROJECT / "README").read_bytes()
        changed = self.answer("exec", self.sandbox, "--", "sh", "-c", "echo changed > README; cat README")
        self.require(changed == "changed", "the sandbox could not change its own file")
        self.require((PROJECT / "README").read_bytes() == before, "the project on the host was changed")
        self.events.catch_up()
        self.stage.fact("the file changed inside; the project itself is as it was")

    def stream_a_process(self) -> None:
        """Follow a process that prints for a few seconds."""
        self.stage.title("A process, its output streamed as it comes")
        started = time.monotonic()
        code, lines = self.sandkeep("exec", self.sandbox, "--", "sh", "light.sh", str(FLASHES))
        self.require(code == 0, f"it exited with {code}")
        self.require(lines == flashes(FLASHES), "its output was not complete")
        self.events.catch_up()
        self.stage.fact(f"{FLASHES} flashes over {time.monotonic() - started:.1f} s, stdout and stderr kept apart")

    def fail(self) -> None:
        """Run a command that fails."""
        self.stage.title("A command that fails: its code is the command's own")
        code, _ = self.sandkeep("exec", self.sandbox, "--", "sh", "tests/run.sh")
        self.stage.output(f"$? = {code}")
        self.require(code == 3, f"it exited with {code} instead of 3")
        self.events.catch_up()

    def pass_a_secret(self) -> None:
        """Pass a secret, and look for it everywhere."""
        self.stage.title("A secret: in the process's environment, and nowhere else")
        argv = ("exec", self.sandbox, "--secret", "HARBOUR_TOKEN", "--", "sh", "login.sh")
        digest = self.answer(*argv, environment={"HARBOUR_TOKEN": self.secret})
        self.require(digest == hashlib.sha256(self.secret.encode()).hexdigest(), "the secret did not arrive")
        self.events.catch_up()
        files = self.look_for_the_secret()
        self.stage.fact(f"it arrived; it is in none of {files} files of the state directory")
        self.stage.fact(f"and in none of {len(self.events.events)} events")

    def look_for_the_secret(self) -> int:
        """Search every file of the state directory and every event; answer how many files were read."""
        needle = self.secret.encode()
        count = 0
        for path in regular_files(self.daemon.root):
            with suppress(FileNotFoundError):  # the daemon goes on with its work meanwhile
                self.require(needle not in path.read_bytes(), f"the secret is in {path}")
                count += 1
        leaks = [event.type for event in self.events.events if self.secret in json.dumps(event.data)]
        self.require(not leaks, f"the secret is in {leaks}")
        return count

    def restart_the_daemon(self) -> None:
        """Stop the daemon while a process runs, start it again, and find all of the process's output."""
        self.stage.title("A restart: the daemon goes, the process does not notice")
        self.light = self.answer("run", self.sandbox, "light", "--detach", "--", "sh", "light.sh")
        self.await_a_flash()
        self.stage.command("kill $DAEMON")
        self.require(self.daemon.stop() == 0, "the daemon did not stop in good order")
        code, _ = self.sandkeep("ps", self.sandbox)
        self.require(code == 1, f"without a daemon `ps` exited with {code}")
        self.await_a_flash()
        self.stage.command("sandkeep daemon &")
        self.daemon.start()
        self.events.catch_up()
        self.require("light" in self.answer("ps", self.sandbox), "the process does not run any more")
        seen = self.await_a_flash()
        self.answer("exec", self.sandbox, "--", "touch", "dawn")
        code, lines = self.sandkeep("logs", self.sandbox, "light", "--follow")
        self.require(code == 0 and len(lines) >= seen, "the end of its output is missing")
        self.require(lines == [f"flash {number + 1}" for number in range(len(lines))], "there is a gap in its output")
        self.require(self.sandkeep("wait", self.sandbox, "light")[0] == 0, "its exit code was lost")
        self.events.catch_up()
        self.stage.fact(f"all {len(lines)} flashes, without a gap, and the exit code")

    def await_a_flash(self) -> int:
        """Wait until `light` flashes once more, and return how often it has by then. It needs no daemon for that."""
        journal = Path(self.daemon.state_dir, "sandboxes", self.sandbox, "out", "p", f"{self.light}.stdout")
        before = journal.read_bytes().count(b"\n")
        deadline = time.monotonic() + LIMIT_S
        while (count := journal.read_bytes().count(b"\n")) == before:
            self.require(time.monotonic() < deadline, "the process has stopped flashing")
            time.sleep(0.02)
        return count

    def look_back(self) -> None:
        """Show the history and metadata.json."""
        self.stage.title("The history of the sandbox")
        code, lines = self.sandkeep("history", self.sandbox)
        self.require(code == 0 and len(lines) > 10, "the history is not complete")
        self.stage.title("Its metadata.json, computed from the events; here key by key")
        document = json.loads(self.settled_metadata())
        for key, value in document.items():
            self.stage.output(f"{key}: {json.dumps(value)}")

    @property
    def metadata(self) -> Path:
        """Path of the sandbox's metadata.json."""
        return Path(self.daemon.state_dir, "sandboxes", self.sandbox, "metadata.json")

    def settled_metadata(self) -> bytes:
        """The document, once it has the sandbox's last event: it is written a moment after."""
        with self.daemon.connect() as client:
            last = client.sandbox.get(self.sandbox).position
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            if self.metadata.exists() and json.loads(text := self.metadata.read_bytes())["position"] >= last:
                return text
            time.sleep(0.02)
        raise MismatchError("metadata.json does not follow the events")

    def lose_and_rebuild(self) -> None:
        """Remove metadata.json and have it rebuilt."""
        self.stage.title("Lost and rebuilt, from the log alone")
        before = self.settled_metadata()
        self.stage.command("rm sandboxes/$BOX/metadata.json")
        self.metadata.unlink()
        self.answer("store", "rebuild")
        self.require(self.metadata.exists() and self.metadata.read_bytes() == before, "it was not rebuilt the same")
        self.stage.fact(f"the same {len(before)} bytes again")
        self.answer("store", "verify")

    def end(self) -> None:
        """End the sandbox and the daemon."""
        self.stage.title("The end: everything is cleaned up")
        self.answer("rm", self.sandbox)
        self.answer("image", "rm", self.image)
        self.events.catch_up()
        self.require(self.daemon.stop() == 0, "the daemon did not stop in good order")
        self.daemon.in_use = False

    def require(self, right: object, otherwise: str = "that was no answer") -> None:
        """Go on only if it is right."""
        if not right:
            raise MismatchError(otherwise)

    def answer(self, *argv: str, shown: str | None = None, environment: dict[str, str] | None = None) -> str:
        """Run a command that must succeed; return its stdout."""
        code, lines = self.sandkeep(*argv, shown=shown, environment=environment)
        self.require(code == 0, f"`sandkeep {argv[0]}` exited with {code}")
        return "\n".join(lines)

    def sandkeep(
        self, *argv: str, shown: str | None = None, environment: dict[str, str] | None = None
    ) -> tuple[int, list[str]]:
        """Run a `sandkeep` command, show it and all that it prints; answer its code and the lines of its stdout."""
        self.stage.command("sandkeep " + (shown or " ".join(self.short(word) for word in argv)))
        with subprocess.Popen(
            [sys.executable, "-m", "sandkeep.cli", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**self.daemon.environment, **(environment or {})},
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            errors = threading.Thread(target=self.relay, args=(process.stderr, [], True))
            errors.start()
            lines: list[str] = []
            try:
                self.relay(process.stdout, lines, False)
            except BaseException:
                process.terminate()  # SIGTERM, unlike Ctrl-C, is for the demo alone
                raise
            finally:
                errors.join()
        return process.returncode, lines

    def short(self, word: str) -> str:
        """Return the form of a word to show: ids are long, and a reader would use a shell variable."""
        return {self.sandbox: "$BOX", self.image: "$IMG"}.get(word) or shlex.quote(word)

    def relay(self, stream: IO[bytes], lines: list[str], error: bool) -> None:
        """Show lines as they come, and keep them."""
        for raw in stream:
            line = raw.decode(errors="replace").rstrip("\n")
            lines.append(line)
            self.stage.output(line, error=error)


def flashes(count: int) -> list[str]:
    """Return the lines that light.sh prints."""
    return [f"flash {number} of {count}" for number in range(1, count + 1)]


def regular_files(root: str) -> Iterator[Path]:
    """Every regular file below a directory that can be read."""
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory, name)
            with suppress(FileNotFoundError):
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path

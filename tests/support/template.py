"""A process that has imported the daemon and the command and forks itself into one, because a start is mostly the
import.

Daemons made so are processes with descriptors, environment and session of their own, and run the same program, be it
given by the name of its module or by its text. What they lack is exec: /proc tells the template's arguments and
environment. Tests of that start `sandkeepd` themselves.
"""

import atexit
import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence

FIXED_BY_EXEC = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG")
"""Variables that begin like this are read when a program is started, too soon for a fork."""


SDKS = {
    "DOCKER_HOST": ("docker", "requests"),
    "KUBECONFIG": ("kubernetes",),
    "SANDBOX_S3_ENDPOINT_URL": ("boto3.session", "sandkeep_store.buckets.s3_client"),
    "STORAGE_EMULATOR_HOST": ("google.cloud.storage",),
}
"""What a setting has a program import. Of these no import begins a thread, or reads a variable that tests set."""


class Forked:
    """A forked daemon, with what tests use of `subprocess.Popen`."""

    def __init__(self, pid: int, end: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._end = end

    def poll(self) -> int | None:
        """The exit code, negative for a signal, or None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code; raise `subprocess.TimeoutExpired` after so many seconds."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("sandkeepd", timeout or 0)
        return code

    def _look(self, timeout: float | None) -> int | None:
        ending = select.poll()  # select(2) takes no descriptors from 1024 on
        ending.register(self._end, select.POLLIN)
        if self.returncode is None and ending.poll(None if timeout is None else timeout * 1000):
            self.returncode = os.waitstatus_to_exitcode(int(os.read(self._end, 16)))
            os.close(self._end)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


_template: socket.socket | None = None
_one_at_a_time = threading.Lock()


def start(program: Sequence[str], stdout: int, stderr: int, environ: dict[str, str]) -> Forked:
    """Fork what plays `program` and writes to these descriptors, and return at once."""
    read, write = os.pipe()
    with _one_at_a_time, tempfile.TemporaryFile() as order:
        order.write(json.dumps([program[1:], environ, os.getcwd()]).encode())
        order.flush()
        control = _connection()
        socket.send_fds(control, [b"start"], [order.fileno(), stdout, stderr, write])
        os.close(write)
        return Forked(int(control.recv(16)), read)


def can_start(program: Sequence[str], environ: dict[str, str]) -> bool:
    """Tell whether this is Python's, and a fork sees this environment as a new program would."""
    if len(program) < 3 or program[0] != sys.executable or program[1] not in {"-m", "-c"}:
        return False
    return all(os.environ.get(name) == value for name, value in environ.items() if name.startswith(FIXED_BY_EXEC))


def run(program: Sequence[str], environ: dict[str, str], timeout_s: float) -> "subprocess.CompletedProcess[bytes]":
    """Play `program`, which has no input, to its end, and return its exit code and what it wrote."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = start(program, stdout.fileno(), stderr.fileno(), environ)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            raise
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(program, code, stdout.read(), stderr.read())


def _connection() -> socket.socket:
    global _template  # one for each process that runs tests
    if _template is None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            words = [sys.executable, os.path.abspath(__file__), str(its.fileno())]
            process = subprocess.Popen(words, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
        from tests.support.patience import patient  # the template itself is a program, which knows no `tests`

        ours.settimeout(patient(60))  # to import everything takes long on a busy machine
        assert ours.recv(16) == b"ready"
        atexit.register(_stop, process, ours)
        _template = ours
    return _template


def _stop(process: "subprocess.Popen[bytes]", control: socket.socket) -> None:
    control.close()
    process.wait()


# -- the template itself ----------------------------------------------------------------------------------------------


def serve(control: socket.socket) -> list[str]:
    """Fork on demand, and tell of each end. Return in the fork what it is to play; exit when nobody listens."""
    ends: dict[int, int] = {}

    def reap(*_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                end = ends.pop(pid)
                with contextlib.suppress(BrokenPipeError):
                    os.write(end, b"%d" % status)
                os.close(end)

    signal.signal(signal.SIGCHLD, reap)
    control.send(b"ready")
    while True:
        asked, descriptors, _, _ = socket.recv_fds(control, 16, 4)
        if not asked:
            sys.exit()
        order, stdout, stderr, end = descriptors
        # The end of a child that is not on the list yet would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        with open(order, "rb") as file:
            file.seek(0)
            program, environ, directory = json.loads(file.read())
        import_sdks(environ)
        pid = os.fork()
        if pid == 0:
            break
        ends[pid] = end
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        for number in (stdout, stderr):
            os.close(number)
        control.send(b"%d" % pid)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    os.setsid()
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    for number in (stdout, stderr, end, *ends.values()):
        os.close(number)
    control.close()
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(directory)
    return list(program)


def import_sdks(environ: dict[str, str]) -> None:
    """Import what programs with these settings import on first use: it takes longer than all else of their start."""
    for setting in SDKS.keys() & environ.keys():
        modules = SDKS.pop(setting)  # once
        with contextlib.suppress(ImportError):
            for module in modules:
                importlib.import_module(module)
            if "boto3.session" in modules:
                _read_models()


def _read_models() -> None:
    """Read the SDK's models of S3, as for a client: it looks through the directories of four hundred services."""
    from botocore.session import Session

    from sandkeep_store.buckets import s3_client

    session = Session()
    session.register_component("data_loader", s3_client._models())
    session.create_client("s3", "us-east-1", aws_access_key_id="none", aws_secret_access_key="none").close()


def main() -> None:
    """Be the template, and after a fork the daemon."""
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    import argparse  # noqa: F401
    import encodings.ascii  # noqa: F401

    import click
    import msgspec
    import tests.support.fake_provider  # noqa: F401
    from inotify_simple import INotify

    import sandkeep.blocking  # noqa: F401
    import sandkeepd.app.daemon
    import sandkeepd.app.logging  # noqa: F401  # these are what takes its time
    from sandkeep import failpoints
    from sandkeep.cli.root import COMMANDS
    from sandkeep.cli.root import sandkeep as command
    from sandkeep.protocol.methods import METHODS

    INotify().close()  # the first asks ldconfig for the C library
    for name in COMMANDS:
        command.get_command(click.Context(command), name)  # imports it
    for method in METHODS.values():
        msgspec.json.Decoder(method.params)  # it leaves with the type how to decode it

    how, program, *words = serve(socket.socket(fileno=int(sys.argv[1])))
    sys.argv[:] = [program if how == "-m" else how, *words]
    importlib.reload(failpoints)  # it reads the environment once
    code = 0
    try:
        if how == "-m":
            runpy.run_module(program, run_name="__main__")
        else:
            exec(program, {"__name__": "__main__"})  # a test's own text
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        code = end.code
    _leave(code)


def _leave(code: int) -> None:
    """Exit as Python does, except that no object is freed: that would copy every page of the template's heap first."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()

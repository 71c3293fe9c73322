"""A double as a process of its own: its start, its end with its parent, and the requests by which tests control it.

    python -m MODULE --dir DIR ...

The module's `main` gives its arguments to `run`. DIR/log has its messages.
"""

import argparse
import asyncio
import contextlib
import faulthandler
import gc
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).parents[3]

STOP_S = 60.0
"""Seconds that the end of a double may take."""

SHOWN_CHARACTERS = 8000
"""So much of the end of its log is shown when it takes longer."""

Announce = Callable[[Mapping[str, Any]], None]


@contextlib.contextmanager
def start(
    module: str, directory: Path, images: Mapping[str, str | Path] | None, argv: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Run a double whose files are in `directory`, and yield what it announces.

    Raises RuntimeError with its messages if it does not start.
    """
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", module, "--dir", str(directory)]
    command += [part for name, root in (images or {}).items() for part in ("--image", f"{name}={root}")]
    reading, writing = os.pipe()
    with (directory / "log").open("wb") as log, os.fdopen(reading, "rb") as ready:
        process = subprocess.Popen(
            [*command, *argv, "--ready-fd", str(writing)],
            cwd=_REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[writing],
        )
        os.close(writing)
        try:
            answer = ready.readline()
            if not answer:
                raise RuntimeError(f"{module} did not start:\n{(directory / 'log').read_text()}")
            yield json.loads(answer)
        finally:
            _end(process, directory / "log")


def _end(process: "subprocess.Popen[bytes]", log: Path) -> None:
    """End a double. One that does not end in time writes where it stands to its log, which is shown, and is killed."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        processes = subprocess.run(["ps", "-eo", "pid,ppid,stat,wchan:30,args"], capture_output=True, text=True)
        process.send_signal(signal.SIGUSR1)
        time.sleep(1)
        process.kill()
        process.wait()
        below = [line for line in processes.stdout.splitlines() if str(process.pid) in line or "launcher.py" in line]
        said = [f"a double did not end in {STOP_S} s: {process.args}", *below, log.read_text()[-SHOWN_CHARACTERS:]]
        print("\n".join(said), file=sys.stderr)


def control(url: str, method: str, what: str, body: Any = None) -> Any:
    """Send a request to `/double/WHAT` of a double, and return its answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/double/{what}", data, method=method)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def parser() -> argparse.ArgumentParser:
    """Return the arguments that every double has."""
    made = argparse.ArgumentParser()
    made.add_argument("--dir", type=Path, required=True)
    made.add_argument("--image", type=pair, action="append", default=[])
    made.add_argument("--ready-fd", type=int)
    return made


def pair(text: str) -> tuple[str, str]:
    """Split `NAME=VALUE`."""
    name, _, value = text.partition("=")
    return name, value


def run(options: argparse.Namespace, serve: Callable[[asyncio.Event, Announce], Awaitable[None]]) -> None:
    """Run `serve` until it returns: it announces that requests are served, and returns once its event is set.

    SIGTERM, SIGINT and the end of the parent set it.
    """
    options.dir.mkdir(parents=True, exist_ok=True)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    asyncio.run(_run(options, serve))


async def _run(options: argparse.Namespace, serve: Callable[[asyncio.Event, Announce], Awaitable[None]]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    loop.add_signal_handler(signal.SIGINT, stopped.set)
    loop.add_reader(os.pidfd_open(os.getppid()), stopped.set)

    def announce(ready: Mapping[str, Any]) -> None:
        gc.freeze()  # imported modules need not be traversed again
        text = json.dumps(ready)
        (options.dir / "ready").write_text(text)
        if options.ready_fd is not None:
            with os.fdopen(options.ready_fd, "w") as pipe:
                pipe.write(f"{text}\n")

    await serve(stopped, announce)

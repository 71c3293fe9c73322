"""Output of commands that ran to their end."""

import json
import subprocess
from typing import Any


def said(done: "subprocess.CompletedProcess[bytes]", code: int = 0) -> str:
    """The output of a command that ended with that code, without white space around it."""
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout.decode().strip()


def lines(done: "subprocess.CompletedProcess[bytes]") -> list[str]:
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout.decode().splitlines()


def one(done: "subprocess.CompletedProcess[bytes]") -> str:
    """The only line of a command's output."""
    (only,) = lines(done)
    return only


def document(done: "subprocess.CompletedProcess[bytes]") -> Any:
    """The JSON document on that line."""
    return json.loads(one(done))

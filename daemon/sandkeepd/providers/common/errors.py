"""Errors of the operating system and of its tools, for callers."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from sandkeep.errors import DaemonError, ProviderError


@contextmanager
def converted_errors(made: str = "the sandbox") -> Iterator[None]:
    """Convert an OSError in a block that makes something into an error for the caller who wants it `made`."""
    try:
        yield
    except OSError as error:
        what = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        if error.errno in (28, 30, 122):  # ENOSPC, EROFS, EDQUOT
            message = f"the state directory cannot be written: {what}: make room there"
            raise DaemonError("storage_unavailable", message) from None
        raise ProviderError("provider_unavailable", f"{made} could not be made: {what}") from None


@contextmanager
def storage_errors(written: str = "the state directory") -> Iterator[None]:
    """Raise `storage_unavailable` for an OSError in a block in which something is `written`."""
    try:
        yield
    except OSError as error:
        message = f"{written} cannot be written: {error.strerror}: make room there"
        raise DaemonError("storage_unavailable", message) from None


def stderr_of(done: "subprocess.CompletedProcess[bytes]") -> str:
    """Return the beginning of a tool's stderr."""
    return done.stderr.decode(errors="replace").strip()[:300]

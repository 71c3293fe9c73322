"""The journal of a commit: a file in the state directory of its daemon, which gives it to the program open.

Nothing in the target is believed, whoever owns it: the owner of a directory can rename what others have in it, and a
branch can bring files that look like a journal. So the journal also has the identities of the target and of its staging
directory.

Its first line is the state, always as long as that of any other, so that it is overwritten in place: on a full disk,
too, and all or nothing. Empty: the staging directory may be there, empty. ``staging``: nothing in the target was
changed. ``applying``: some of it may be. ``complete``: all is as the commit wants it. ``undone``: all is as it was.
The second line has the identities; what follows, from ``applying`` on, is the digest of the steps, and the steps.
"""

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal, TypeAlias, get_args

State: TypeAlias = Literal["staging", "applying", "complete", "undone"]

VERSION: Final = 2
_WIDTH: Final = 9
_MAX_BYTES: Final = 1 << 30
_SHA256_CHARACTERS: Final = 64


class JournalError(OSError):
    """The journal cannot be written: it is on another disk than the target."""


class Journal:
    """An open journal. The descriptor is for reading and writing, and stays the caller's."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def lock(self) -> None:
        """Lock it until this process ends. Raises OSError while another process has it locked."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @property
    def state(self) -> State | None:
        """The state; None if it is empty. Raises OSError, ValueError for a damaged one."""
        line = os.pread(self._descriptor, _WIDTH, 0)
        if not line:
            return None
        for state in get_args(State):
            if line == _line(state):
                return state  # type: ignore[no-any-return]
        raise ValueError("state")

    def settled_state(self) -> State | None:
        """Return the state once that is durable: the death of its writer may have come before that."""
        os.fsync(self._descriptor)
        return self.state

    def begin(self, target: int, staging: int) -> None:
        """Write the inodes of the target and the empty staging directory, durably: the journal must be empty. Raises
        JournalError.
        """
        identities = {"version": VERSION, "target": target, "staging": staging}
        self._write(_line("staging") + json.dumps(identities).encode("ascii") + b"\n", 0)

    def clear(self) -> None:
        """Empty it. Raises no error: what remains names a directory that is not there."""
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)

    def write(self, steps: list[dict[str, Any]]) -> None:
        """Write the steps, durably; then the first of them can be made. Raises JournalError."""
        content = json.dumps(steps).encode("ascii")
        digest = hashlib.sha256(content).hexdigest().encode("ascii")
        self._write(digest + b"\n" + content, os.fstat(self._descriptor).st_size)
        self.mark("applying")

    def mark(self, state: State) -> None:
        """Write the state, durably: the decision. Raises JournalError."""
        self._write(_line(state), 0)

    def identities(self) -> tuple[int, int]:
        """Return the inodes of the target and of the staging directory. Raises OSError, ValueError."""
        return self._read()[0]

    def steps(self) -> list[dict[str, Any]]:
        """Return the steps. Raises OSError, ValueError."""
        return self._read()[1]

    def _read(self) -> tuple[tuple[int, int], list[dict[str, Any]]]:
        size = os.fstat(self._descriptor).st_size
        if size > _MAX_BYTES:
            raise ValueError("size")
        content = b"".join(self._pieces(size))[_WIDTH:]
        head, _, rest = content.partition(b"\n")
        try:
            identities = json.loads(head)
            if identities["version"] != VERSION:
                raise ValueError("version")
            inodes = int(identities["target"]), int(identities["staging"])
        except (TypeError, KeyError) as error:
            raise ValueError("identities") from error
        if self.state == "staging":  # the steps may be there in part
            return inodes, []
        digest, steps = rest[:_SHA256_CHARACTERS], rest[_SHA256_CHARACTERS + 1 :]
        if hashlib.sha256(steps).hexdigest().encode("ascii") != digest:
            raise ValueError("digest")
        return inodes, list(json.loads(steps))

    def _pieces(self, size: int) -> Iterator[bytes]:
        offset = 0
        while offset < size and (piece := os.pread(self._descriptor, size - offset, offset)):
            yield piece
            offset += len(piece)

    def _write(self, content: bytes, offset: int) -> None:
        with _journal_errors():
            rest = memoryview(content)
            while rest:
                written = os.pwrite(self._descriptor, rest, offset)
                rest, offset = rest[written:], offset + written
            os.fsync(self._descriptor)


@contextmanager
def _journal_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JournalError(error.errno or errno.EIO, "journal") from error


def _line(state: State) -> bytes:
    return state.encode("ascii").ljust(_WIDTH - 1) + b"\n"

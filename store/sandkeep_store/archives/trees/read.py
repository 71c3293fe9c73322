"""Reading of a tree by GNU tar, with the rights of the tree's owner plus CAP_DAC_READ_SEARCH.

tar follows no link of the tree and starts in an open directory, so renames in the meantime cannot lead it elsewhere.
Its stderr names the files that it could not read.
"""

import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache
from typing import IO, Final, Literal

from msgspec import Struct, field

from sandkeep.errors import ProviderError, SandkeepError, SetupError
from sandkeep_store.archives.tar.members import shown
from sandkeep_store.archives.trees import pipes

What = Literal[
    "socket",
    "device",
    "unknown",
    "other filesystem",
    "name too long",
    "changed",
    "shrank",
    "vanished",
    "kept out",
    "set-uid",
]
"""Reasons for which a file is omitted from an archive or stored differently: the first ones are omitted altogether."""

MOST_REMARKS: Final = 100
_CHUNK: Final = 1 << 18
"""Bytes read at once: in between, other threads get the GIL."""
_CHANGED, _FAILED = 1, 2
"""Exit codes of tar for files that changed or could not be read; stderr names them."""

_TAR: Final = (
    "tar", "--create", "--file=-", "--format=posix", "--pax-option=delete=atime,delete=ctime", "--sparse",
    "--sort=name", "--numeric-owner", "--xattrs", "--xattrs-include=user.*", "--xattrs-exclude=user.overlay.*",
    "--one-file-system", "--verbose", "--index-file=/dev/null", "--blocking-factor=512", "--quoting-style=escape",
    "--anchored", "--no-wildcards",
)  # fmt: skip
"""tar reports files on other filesystems only in verbose mode."""
_KNOWN_LINE: Final = re.compile(
    rb"tar: (?P<name>.*): (?:"
    rb"(?P<socket>socket ignored)|(?P<unknown>door ignored|Unknown file type; file ignored)|"
    rb"(?P<changed>file changed as we read it)|(?P<shrank>File shrank by \d+ bytes?; padding with zeros)|"
    rb"(?P<vanished>File removed before we read it|Cannot [a-z]+: No such file or directory)|"
    rb"(?P<other_filesystem>file is on a different filesystem; not dumped))\n?",
    re.DOTALL,
)
_ENTER: Final = ["unshare", "--user", "--map-root-user", "--"]
_HARMLESS: Final = re.compile(rb"tar: (Exiting with failure status|.*: Warning: )", re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_LETTERS: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


class Remark(Struct, frozen=True, kw_only=True):
    """One thing of a tree that is not in its archive as it was."""

    name: str
    what: What


class Remarks(Struct, kw_only=True):
    """The count of each kind, and the first `MOST_REMARKS` of them."""

    counts: dict[What, int] = field(default_factory=dict)
    first: list[Remark] = field(default_factory=list)

    def add(self, name: bytes, what: What) -> None:
        """Take note of one."""
        self.counts[what] = self.counts.get(what, 0) + 1
        if len(self.first) < MOST_REMARKS:
            self.first.append(Remark(name=shown(name)[1:-1], what=what))

    def include(self, others: "Remarks") -> None:
        """Add the counts of others."""
        for what, count in others.counts.items():
            self.counts[what] = self.counts.get(what, 0) + count


class Program:
    """The reading program at work."""

    def __init__(self, process: "subprocess.Popen[bytes]", stderr: IO[bytes]) -> None:
        self._process = process
        self._stderr = stderr

    def chunks(self) -> Iterator[bytes]:
        """The archive that it writes."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while chunk := pipes.read_some(descriptor, _CHUNK):
            yield chunk

    def check(self, prefix: bytes, remarks: Remarks) -> None:
        """Wait for the program and note the files on its stderr, below `prefix`. Raises `provider_unavailable`."""
        code = self._process.wait()
        failures = [line for line in self._lines() if not _noted(line, prefix, remarks)]
        if failures or code not in (0, _CHANGED, _FAILED):
            raise unreadable(failures[0] if failures else b"it ended with %d" % code)

    def _lines(self) -> Iterator[bytes]:
        self._stderr.seek(0)
        return iter(self._stderr)


def _noted(line: bytes, prefix: bytes, remarks: Remarks) -> bool:
    match = _KNOWN_LINE.fullmatch(line)
    if match is None:
        return _HARMLESS.match(line) is not None
    what: What = match.lastgroup.replace("_", " ")  # type: ignore[union-attr, assignment]
    remarks.add(prefix + _unescaped(match["name"]).removeprefix(b"./"), what)
    return True


def _unescaped(text: bytes) -> bytes:
    def letter(match: re.Match[bytes]) -> bytes:
        found = match[1]
        return bytes([int(found, 8) & 0xFF]) if len(found) == 3 else _LETTERS.get(found, found)

    return _ESCAPED.sub(letter, text)


def reading(
    directory: int, name: bytes, exclude: Sequence[bytes] = (), owner: tuple[int, int] | None = None
) -> AbstractContextManager["Program"]:
    """Read `name` in an open directory, for the length of a block: as the user and group `owner`, or as ourselves.

    The paths in `exclude` begin there, too.
    """
    options = [b"--exclude=./" + path for path in exclude]
    return _reading(directory, [*options, b"--", _below(name)], subprocess.DEVNULL, owner)


class Names:
    """The list of names for a reading program that waits for it on a pipe."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._thread: threading.Thread | None = None

    def tell(self, names: Sequence[bytes]) -> None:
        """Send the names to read. To be called once."""
        # A thread, as the program may block on its output before it reads more names.
        thread = threading.Thread(target=self._write, args=(names,), name="sandkeep-names")
        thread.start()
        self._thread = thread

    def _write(self, names: Sequence[bytes]) -> None:
        with suppress(BrokenPipeError), self._pipe:  # it has ended, and said why
            self._pipe.write(b"".join(_below(name) + b"\0" for name in names))

    def close(self) -> None:
        """Close the pipe, after the program has ended."""
        if self._thread is not None:
            self._thread.join()
        else:
            self._pipe.close()


@contextmanager
def reading_only(directory: int, owner: tuple[int, int] | None = None) -> Iterator[tuple["Program", Names]]:
    """Read single names in an open directory, in the order given, without descending into directories.

    The program is started before the names are known, as its start takes a while.
    """
    options = ["--no-recursion", "--null", "--verbatim-files-from", "--files-from=-"]
    read_end, write_end = os.pipe()
    with ExitStack() as closing:
        names = Names(open(write_end, "wb"))  # noqa: SIM115 - `Names` closes it
        closing.callback(names.close)
        try:
            program = closing.enter_context(_reading(directory, options, read_end, owner))
        finally:
            os.close(read_end)
        yield program, names


def _below(name: bytes) -> bytes:
    return b"." if name == b"." else b"./" + name


@contextmanager
def _reading(
    directory: int, arguments: Sequence[str | bytes], stdin: int, owner: tuple[int, int] | None
) -> Iterator["Program"]:
    argv: list[str | bytes] = [*_rights(owner), *_TAR, *arguments]
    with tempfile.TemporaryFile() as stderr:
        try:
            process = subprocess.Popen(
                argv, cwd=f"/proc/self/fd/{directory}", stdin=stdin, stdout=subprocess.PIPE, stderr=stderr,
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            )  # fmt: skip
        except FileNotFoundError:
            raise SetupError(
                "not_supported", "there is no tar on this machine, or no setpriv: install GNU tar and util-linux"
            ) from None
        assert process.stdout is not None
        pipes.widen(process.stdout.fileno())
        try:
            yield Program(process, stderr)
        finally:
            process.kill()
            process.stdout.close()
            process.wait()


@cache
def can_enter_namespaces() -> bool:
    """Return True if a user may create a namespace in which he can read his own closed files."""
    try:
        return subprocess.run([*_ENTER, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _rights(owner: tuple[int, int] | None) -> list[str]:
    """Return the argv prefix that keeps one capability: to read also files that their owner has closed to himself."""
    if os.geteuid() != 0:
        return _ENTER if can_enter_namespaces() else []
    uid, gid = owner or (0, 0)
    only = "-all,+dac_read_search"
    return [
        "setpriv", "--reuid", str(uid), "--regid", str(gid), "--clear-groups", "--no-new-privs",
        f"--inh-caps={only}", f"--ambient-caps={only}", f"--bounding-set={only}", "--",
    ]  # fmt: skip


def unreadable(line: bytes) -> SandkeepError:
    """The error for a tree of which no archive can be made."""
    why = shown(line.strip().removeprefix(b"tar: "))[1:-1]
    return ProviderError("provider_unavailable", f"the files cannot be read: {why}; no snapshot was made")

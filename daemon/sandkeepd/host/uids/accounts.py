"""Host uids and gids that belong to accounts: those of passwd and group, and the ranges of subuid and subgid.

Only the files are read. A directory service could take seconds to answer, so an administrator of one chooses a range of
uids that it does not use.
"""

import os
from collections.abc import Iterator
from typing import Final

_FILES: Final = ("passwd", "group", "subuid", "subgid")

Ranges = list[tuple[int, int, str]]


class Accounts:
    """Those of the files in `directory`, read again whenever one has changed."""

    def __init__(self, directory: str = "/etc") -> None:
        self._directory = directory
        self._seen: list[tuple[int, ...]] = []
        self._ranges: Ranges = []

    def owner(self, number: int) -> str | None:
        """The file and the name that a number belongs to, as a uid or as a gid; None when it is nobody's."""
        seen = [self._stamp(name) for name in _FILES]
        if seen != self._seen:
            self._ranges = [found for name in _FILES for found in self._read(name)]
            self._seen = seen
        return next((whose for first, count, whose in self._ranges if first <= number < first + count), None)

    def _stamp(self, name: str) -> tuple[int, ...]:
        try:
            found = os.stat(f"{self._directory}/{name}")
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_ino, found.st_size

    def _read(self, name: str) -> Iterator[tuple[int, int, str]]:
        is_account = name in ("passwd", "group")
        path = f"{self._directory}/{name}"
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            fields = line.split(":")
            try:
                first, count = (int(fields[2]), 1) if is_account else (int(fields[1]), int(fields[2]))
            except (ValueError, IndexError):  # a comment, or another program's syntax
                continue
            yield first, count, f"{fields[0][:80]} in {path}"

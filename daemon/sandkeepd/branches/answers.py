"""Paths in answers: those that are asked for, as text, and no more of them than a message holds."""

from collections.abc import Callable, Iterable, Iterator
from posixpath import normpath
from typing import Final, TypeVar

from sandkeep_store.archives.trees.tree import is_in

T = TypeVar("T")

MOST_BYTES: Final = 1_500_000
"""Maximum bytes of paths and lines in one answer. In JSON each may become six, and a message has 16 MiB."""


def chosen(paths: Iterable[str]) -> Callable[[bytes], bool]:
    """Return a function that tells if a name is at or below one of the paths; without paths, all are. They begin at
    the workspace, which is ``.``.
    """
    wanted = [normpath(path.strip("/")).encode("utf-8", "surrogateescape") for path in paths]
    return lambda name: not wanted or any(is_in(name, path) for path in wanted)


def text_of(path: bytes) -> tuple[str, bytes | None]:
    """Return a path as text, and its bytes if it is not UTF-8."""
    try:
        return path.decode(), None
    except UnicodeDecodeError:
        return path.decode("utf-8", "backslashreplace"), path


def as_many_as_fit(items: Iterable[T], size: Callable[[T], int]) -> Iterator[T]:
    """Yield items as long as an answer has room for them: the first in any case."""
    room = MOST_BYTES
    for item in items:
        yield item
        room -= size(item)
        if room <= 0:
            return

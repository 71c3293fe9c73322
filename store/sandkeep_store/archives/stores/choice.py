"""Which copy of an archive a restore takes. Pure: what is on record and what is set go in, places in order come out."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sandkeep.errors import SandkeepError
from sandkeep_store.buckets.config import Place, Root


def in_order(recorded: Sequence[Place], configured: Sequence[Root]) -> tuple[Place, ...]:
    """The places in which to look for an archive, the best first.

    Those that other machines see, if they are still set, in the order of the settings: a bucket is what was kept on
    purpose, and a disk may have been lost and found. Then the copy on disk. Last what is on record but not set any
    more: it may still be there, and if not, its error says which setting is missing. A bucket and where it is mounted
    are one: what was stored in either has the same path in the other.
    """
    return tuple(dict.fromkeys(_candidates(recorded, configured)))


def _candidates(recorded: Sequence[Place], configured: Sequence[Root]) -> Iterator[Place]:
    set_now = [place for root in configured for place in _in(root, recorded)]
    yield from (place for place in set_now if place.root.is_shared)
    yield from (place for place in set_now if not place.root.is_shared)
    yield from sorted(recorded, key=lambda place: place.root.is_shared)


def _in(root: Root, recorded: Sequence[Place]) -> Iterator[Place]:
    for place in recorded:
        if place.root == root or {place.root.where, root.where} in _SAME:
            yield root.place(place.path)


def most_telling(failures: Iterable[SandkeepError]) -> SandkeepError:
    """Of what went wrong in each place the one to tell: a damaged archive says more than one that cannot be reached,
    and that says more than one that is not there.
    """
    return max(failures, key=lambda error: _TELLING.get(error.code, 1))


_SAME: Final = ({"mount", "gcs"}, {"state"}, {"directory"})
"""Kinds of roots of which one may be the other: a directory of this machine may have been moved, with all in it."""

_TELLING = {"snapshot_missing": 0, "snapshot_corrupt": 2}

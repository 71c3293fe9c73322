"""Selection of the copy from which an archive is restored. Pure: takes recorded places and settings, returns places in
order.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sandkeep.errors import SandkeepError
from sandkeep_store.buckets.config import Place, Root


def restore_order(recorded: Sequence[Place], configured: Sequence[Root]) -> tuple[Place, ...]:
    """Return the places in which to look for an archive, the best first.

    First shared places that are still configured, in the order of the settings: a bucket was chosen on purpose, and a
    disk may have been lost and found. Then the copy on disk. Last, recorded places that are no longer configured: the
    archive may still be there, and if not, the error names the missing setting. A bucket and its mount count as one
    root: an object has the same path in both.
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


def most_specific_error(failures: Iterable[SandkeepError]) -> SandkeepError:
    """Return the failure to report: a damaged archive before an unreachable one, and that before a missing one."""
    return max(failures, key=lambda error: _SPECIFICITY.get(error.code, 1))


_SAME: Final = ({"mount", "gcs"}, {"state"}, {"directory"})
"""Kinds of roots of which one may be the other: a directory of this machine may have been moved, with all in it."""

_SPECIFICITY = {"snapshot_missing": 0, "snapshot_corrupt": 2}

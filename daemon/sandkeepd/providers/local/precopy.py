"""Copies of a sandbox's changes as they were at one moment, made while it runs, as in a live migration of memory.

Each pass begins with a short freeze, in which the changes are catalogued, and copies while the sandbox runs what the
passes before did not, or what was changed meanwhile. When little is left, that is copied during the freeze. Everything
here blocks.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from sandkeep import failpoints
from sandkeep_store.archives.trees import changes
from sandkeep_store.archives.trees.changes import Catalogue
from sandkeep_store.archives.trees.passes import Passes
from sandkeepd.host.cgroups.pause import Pause, processes
from sandkeepd.host.mapped_files import mapped_files
from sandkeepd.host.processes import run_tool
from sandkeepd.providers.common.layers import Layers
from sandkeepd.providers.common.views import shown
from sandkeepd.providers.local.files import SandboxFiles

COPIED_FILES: Final = 2000
COPIED_BYTES: Final = 32 << 20
"""Maximum that is copied in one freeze without a pass before, where blocks are not shared."""

_PASSES: Final = 3
"""Maximum number of passes while the sandbox runs."""

_LITTLE: Final = (200, 4 << 20)
"""Files and bytes that are copied during a freeze rather than in one more pass."""

_MEASURE: Final = """find "$1" -printf '%b\\n' | head -n "$2" """
"""$1 a directory, $2 how many files are looked at: prints how many blocks each occupies."""

_BLOCK: Final = 512


class Look(NamedTuple):
    """A look at a frozen sandbox's changes. `now` is `found` with the files of `mapped`, those that its processes can
    write to in memory, marked as unreliable; None: all.
    """

    found: Catalogue
    now: Catalogue
    mapped: set[bytes] | None


class Copied(NamedTuple):
    """The moment of a copy, and how long the sandbox was frozen in all."""

    look: Look
    pause: Pause


Select = Callable[[Catalogue], Sequence[bytes]]
"""Chooses names to copy, with their directories and in the order of the tree."""


def look(held: SandboxFiles, layers: Layers, tree: int) -> Look:
    """Catalogue a frozen sandbox's changes, the open directory `tree`."""
    found = changes.take_catalogue(tree, layers.enter, layers.overlay)
    mapped = mapped_files(processes(held.plan.cgroups, held.first_pid), held.handle.workspace)
    return Look(found, changes.with_unreliable(found, mapped), mapped)


def copy_running(
    held: SandboxFiles, layers: Layers, tree: int, copy: Passes, *, select: Select, point: str
) -> Copied | None:
    """Copy the changes, the open directory `tree`, that `select` chooses. Return None, with part of a copy made, where
    that is impossible: there is not enough space, or files can only be read with more rights.

    `point` is the failpoint of a freeze.
    """
    total = Pause()
    try:
        for left in reversed(range(_PASSES + 1)):
            with held.freeze() as pause:
                failpoints.reach(point)
                seen = look(held, layers, tree)
                names = select(seen.found)
                todo = copy.outdated(seen.now, names)
                is_last = not left or not _is_worth_a_pass(tree, todo, seen)
                is_complete = is_last and copy.update(seen.now, names, todo)
            total = sum_of(total, pause)
            if is_last:
                if is_complete:
                    copy.finish()
                return Copied(seen, total) if is_complete else None
            began = time.monotonic()
            copy.update(seen.now, names, [name for name in todo if seen.now[name].changed])
            # What changed right before the freeze can be told from what changes after it only when that is over.
            time.sleep(max(0.0, changes.RECENT_NS / 1e9 - (time.monotonic() - began)))
            del seen, names, todo  # half a kilobyte a file, while the next look makes its own
    except OSError:
        return None
    raise AssertionError("unreachable")


def whole(now: Catalogue) -> list[bytes]:
    """Choose everything."""
    return sorted(now, key=changes.tree_order)


def sum_of(first: Pause, second: Pause) -> Pause:
    """Return how long both were."""
    return Pause(None if first.ms is None and second.ms is None else (first.ms or 0) + (second.ms or 0))


def is_quick_to_copy(held: SandboxFiles, layers: Layers, state_dir: str, *, shares_blocks: bool) -> bool:
    """Return True if a copy of all changes is quick enough for a freeze. `shares_blocks`: it costs no bytes."""
    if shares_blocks and not os.path.ismount(os.path.dirname(held.upper)):  # a disk shares none with another
        return True
    measure = [*layers.enter, "sh", "-c", _MEASURE, "sh"]
    with shown(held.upper, above=state_dir) as tree:
        done = run_tool([*measure, f"/proc/self/fd/{tree}/.", str(COPIED_FILES + 1)], descriptors=[tree])
    blocks = [int(line) for line in done.stdout.split()]
    return len(blocks) <= COPIED_FILES and sum(blocks) * _BLOCK <= COPIED_BYTES


def is_little(tree: int, names: Sequence[bytes], files: int, size: int) -> bool:
    """Return True if these names of an open directory are at most so many, and have at most so many bytes."""
    if len(names) > files:
        return False
    left = size
    for name in names:
        try:
            left -= os.stat(name, dir_fd=tree, follow_symlinks=False).st_blocks * _BLOCK
        except OSError:
            continue
        if left < 0:
            return False
    return True


def _is_worth_a_pass(tree: int, todo: Sequence[bytes], seen: Look) -> bool:
    """Return True if there is much to copy, apart from what no pass can: files that are mapped."""
    if seen.mapped is None:
        return False
    mapped = {seen.found[name].inode for name in seen.mapped if name in seen.found}
    return not is_little(tree, [name for name in todo if seen.found[name].inode not in mapped], *_LITTLE)

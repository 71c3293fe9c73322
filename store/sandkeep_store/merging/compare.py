"""Comparison of two trees, at a cost that follows what changed.

Layers that both stacks share at their lower end are never walked: outside of them lie all names that can differ, or
that hide a name which then differs. Each of these candidates is looked at in both merged views.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from sandkeep_store.archives.tar.members import TOP
from sandkeep_store.archives.trees.changes import tree_order
from sandkeep_store.archives.trees.tree import is_opaque
from sandkeep_store.budgets import Table
from sandkeep_store.merging.content import no_progress, same_content
from sandkeep_store.merging.trees import Entry, Layer, Lookup, Progress, TreeState, walk
from sandkeep_store.threads import check_cancelled

_NAME_BYTES: Final = 200
"""Memory of a name in a set, and of its key in a sorted list, besides its bytes in both."""

_CHANGE_BYTES: Final = 700
"""Memory of a change with two entries; its name is counted already."""


class Change(Struct, frozen=True):
    """A name that differs: its two entries, None where it is absent. `content` is True if both are files whose bytes
    differ.
    """

    before: Entry | None
    after: Entry | None
    content: bool = False


class _Candidates(NamedTuple):
    """Names that may differ, and those of them beneath which everything may."""

    names: set[bytes]
    whole: set[bytes]


def changes(
    before: TreeState, after: TreeState, ignore: Collection[bytes] = (), progress: Progress = no_progress
) -> dict[bytes, Change]:
    """Compare two trees; return what differs in the order of the tree, directories before their contents.

    Kind, mode, target and bytes count; owner, mtime and extended attributes do not. The names in `ignore` are left out
    at any depth, with all beneath them. `progress` gets the number of bytes read, and may raise to end the work.
    Raises `permission_denied` for a name that cannot be read, and `quota_exceeded`, see `budgets`. Blocks.
    """
    ignored, memory = frozenset(ignore), Table()
    own, others = _unshared(before.layers, after.layers)
    found: dict[bytes, Change] = {}
    with Lookup(before.view) as old, Lookup(after.view) as new:
        if len(own) == len(before.layers) or len(others) == len(after.layers):
            compared = _whole_views(before, after, ignored, memory)
        else:
            compared = _candidates([*own, *others], ignored, memory)
        for name in _with_contents(compared, old, new, ignored, memory):
            check_cancelled()
            change = _compare(name, old, new, progress)
            if change is not None:
                memory.grow(_CHANGE_BYTES)
                found[name] = change
    return {name: found[name] for name in sorted(found, key=tree_order)}


def _unshared(before: Sequence[Layer], after: Sequence[Layer]) -> tuple[Sequence[Layer], Sequence[Layer]]:
    """Return the layers of each stack above those that both share at their lower end."""
    shared = 0
    while shared < min(len(before), len(after)) and before[-1 - shared].key == after[-1 - shared].key:
        shared += 1
    return before[: len(before) - shared], after[: len(after) - shared]


def _names_in(tree: int, begin: bytes, ignored: frozenset[bytes], memory: Table) -> Iterator[tuple[bytes, bool]]:
    for name, _, is_directory in walk(tree, begin, ignored):
        memory.grow(_NAME_BYTES + 2 * len(name))
        yield name, is_directory


def _whole_views(before: TreeState, after: TreeState, ignored: frozenset[bytes], memory: Table) -> _Candidates:
    names = {TOP}
    for state in (before, after):
        names.update(name for name, _ in _names_in(state.view, TOP, ignored, memory))
    return _Candidates(names, set())


def _candidates(layers: Sequence[Layer], ignored: frozenset[bytes], memory: Table) -> _Candidates:
    names, whole = {TOP}, set[bytes]()
    for layer in layers:
        for name, is_directory in _names_in(layer.fd, TOP, ignored, memory):
            names.add(name)
            # Files and whiteouts, of whatever kind, hide the directories of lower layers.
            if not is_directory or (layer.overlay and is_opaque(layer.fd, name, layer.overlay)):
                whole.add(name)
    return _Candidates(names, whole)


def _with_contents(
    compared: _Candidates, old: Lookup, new: Lookup, ignored: frozenset[bytes], memory: Table
) -> Iterator[bytes]:
    """Yield the candidates, and what is beneath directories that are in one tree only, or were replaced."""
    names, whole = compared
    within: bytes | None = None
    more = set[bytes]()
    for name in sorted(names, key=tree_order):
        if within is not None and name.startswith(within + b"/"):
            continue  # all of it is in `more`
        kinds = [entry and entry.kind for entry in (old.entry(name), new.entry(name))]
        if "directory" in kinds and name in whole:
            within = name
            for view in (old.view, new.view):
                more.update(found for found, _ in _names_in(view, name, ignored, memory))
        yield name
    yield from sorted(more, key=tree_order)


def _compare(name: bytes, old: Lookup, new: Lookup, progress: Progress) -> Change | None:
    before, after = old.entry(name), new.entry(name)
    if before is None or after is None or before.kind != after.kind:
        return None if before is after else Change(before, after)
    content = False
    if before.kind == "file":
        is_same_file = (before.device, before.inode) == (after.device, after.inode)
        content = not is_same_file and (
            before.size != after.size or not same_content(old.view, new.view, name, progress)
        )
    if content or (before.mode, before.target) != (after.mode, after.target):
        return Change(before, after, content)
    return None

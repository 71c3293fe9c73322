"""The tree of branches: an image at the root, and each sandbox below that with which it began. Pure.

A merge has several parents: it is drawn below the nearest one that these have in common, and names all of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from sandkeep.model import Branch, Merge

_LINES: Final = {True: ("├─ ", "└─ ", "│  ", "   "), False: ("|- ", "`- ", "|  ", "   ")}


class Row(NamedTuple):
    """A line of the tree: an image, a sandbox, or a merge that is not decided yet."""

    label: str
    status: str = ""
    created_at: str = ""
    origin: str = ""
    sandbox_id: str = ""


class _Node(NamedTuple):
    row: Row
    image_id: str
    parents: Sequence[str]


def closure(branches: Iterable[Branch], everything: Iterable[Branch]) -> list[Branch]:
    """Return branches, and those of `everything` that they came from, in its order."""
    by_id = {branch.sandbox_id: branch for branch in everything}
    wanted: set[str] = set()
    pending = [branch.sandbox_id for branch in branches]
    while pending:
        sandbox_id = pending.pop()
        if sandbox_id in by_id and sandbox_id not in wanted:
            wanted.add(sandbox_id)
            pending += by_id[sandbox_id].parents
    return [branch for sandbox_id, branch in by_id.items() if sandbox_id in wanted]


def rows(branches: Sequence[Branch], merges: Sequence[Merge], *, unicode: bool) -> Iterator[Row]:
    """Yield the lines of the tree of branches, and of merges that wait for decisions."""
    nodes = _nodes(branches, merges)
    below: dict[str, list[str]] = {}
    above: dict[str, str] = {}
    for key, node in nodes.items():
        above[key] = _place(node, above)
        below.setdefault(above[key], []).append(key)
    for image_id in dict.fromkeys(place for place in above.values() if place not in nodes):
        yield Row(image_id)
        yield from _draw(image_id, nodes, below, _LINES[unicode])


def _draw(root: str, nodes: dict[str, _Node], below: dict[str, list[str]], lines: tuple[str, ...]) -> Iterator[Row]:
    """Yield what is below a root, without recursion: lineages may be thousands of sandboxes deep."""
    more, last, through, blank = lines
    pending = [(key, "", key == below[root][-1]) for key in reversed(below.get(root, []))]
    while pending:
        key, indent, is_last = pending.pop()
        row = nodes[key].row
        yield row._replace(label=indent + (last if is_last else more) + row.label)
        children = below.get(key, [])
        inner = indent + (blank if is_last else through)
        pending += [(child, inner, child == children[-1]) for child in reversed(children)]


def _nodes(branches: Sequence[Branch], merges: Sequence[Merge]) -> dict[str, _Node]:
    """Return the nodes by their ids, oldest first."""
    called = {branch.sandbox_id: branch.name or branch.sandbox_id for branch in branches}
    images = {branch.sandbox_id: branch.image_id for branch in branches}
    nodes = {branch.sandbox_id: _sandbox(branch, called) for branch in branches}
    for merge in merges:
        parents = [*merge.branches.values()]
        image_id = next((images[parent] for parent in parents if parent in images), merge.base_id)
        conflicts = f": {merge.conflicts} conflict{'' if merge.conflicts == 1 else 's'}" if merge.conflicts else ""
        origin = f"merge of {', '.join(merge.branches)}{conflicts}"
        nodes[merge.merge_id] = _Node(Row(merge.merge_id, merge.status, merge.created_at, origin), image_id, parents)
    return dict(sorted(nodes.items(), key=lambda item: item[1].row.created_at))


def _sandbox(branch: Branch, called: dict[str, str]) -> _Node:
    known = [called[parent] for parent in called if parent in branch.parents]  # in the order of the tree
    parents = ", ".join([*known, *(parent for parent in branch.parents if parent not in called)])
    origin = {
        "merge": f"merge of {parents}" if parents else f"merge {branch.base_id}",
        "snapshot": f"from {branch.base_id}" + (f" of {parents}" if parents else ""),
        "fork": f"fork of {parents}" if parents else "fork",
    }.get(branch.base, "")
    row = Row(
        branch.name or branch.sandbox_id, branch.status, branch.created_at, origin,
        branch.sandbox_id if branch.name else "",
    )  # fmt: skip
    return _Node(row, branch.image_id, branch.parents)


def _place(node: _Node, above: dict[str, str]) -> str:
    """Return the nearest node that all parents descend from, as far as they are known; else the image."""
    parents = [parent for parent in node.parents if parent in above]
    if len(parents) == 1:
        return parents[0]
    nearest = node.image_id
    for same in zip(*(_chain(parent, above) for parent in parents), strict=False):
        if len({*same}) > 1:
            break
        nearest = same[0]
    return nearest


def _chain(key: str, above: dict[str, str]) -> list[str]:
    """Return what a node is below, from the image on, and the node itself."""
    chain = [key]
    while (key := above.get(key, "")) != "":
        chain.append(key)
    return chain[::-1]

"""Layers: archives of differences, and flattening of a chain of them.

A layer is an OCI layer (see `whiteouts`). A chain runs from its oldest archive to its newest. The oldest is a layer
over the tree `base`; without `base` it is a whole archive.
"""

from collections.abc import Sequence

from sandkeep_store.archives.tar import hardlinks
from sandkeep_store.archives.tar.compression import Codec
from sandkeep_store.archives.tar.hardlinks import HardLinks
from sandkeep_store.archives.tar.inspect import CheckedArchive, Moved
from sandkeep_store.archives.tar.limits import DEFAULT_LIMITS, Limits
from sandkeep_store.archives.tar.members import corrupt
from sandkeep_store.archives.trees.merge import Layer, LayerStack
from sandkeep_store.archives.trees.pack import PackedArchive, write
from sandkeep_store.archives.trees.read import Remarks
from sandkeep_store.archives.trees.tree import Tree


def flatten(
    chain: Sequence[int],
    output: int,
    *,
    base: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    codec: Codec = "gzip",
    owner: tuple[int, int] | None = None,
    moved: Moved | None = None,
) -> PackedArchive:
    """Write a chain of archives, open files, over the open directory `base` as one whole archive.

    Nothing is extracted. Each archive is read twice; `moved` gets the number of bytes written. Raises the errors of
    `inspect` and `pack`. Blocks.
    """
    return write(_merged(chain, base, limits), output, codec, Remarks(), owner=owner, moved=moved)


def _merged(chain: Sequence[int], base: int | None, limits: Limits) -> LayerStack:
    layers = _examined(chain, limits, whole=base is None)
    if base is not None:
        layers.append(Layer(source=Tree(base), links=hardlinks.in_tree(base), marks=False))
    return LayerStack(layers)


def _examined(chain: Sequence[int], limits: Limits, *, whole: bool) -> list[Layer]:
    """Look through all archives of a chain; answer them to be read again, the newest first."""
    layers = []
    for number, archive in enumerate(chain):
        marks = not (whole and number == 0)
        first = CheckedArchive(archive, limits, layer=marks)
        links = HardLinks()
        for member in first:
            links.add(member)
        if links and first.result.duplicates:
            raise corrupt("cannot be combined with others: it has hard links, and names that come twice")
        layers.append(Layer(source=first.reread(), links=links, marks=marks))
    return layers[::-1]

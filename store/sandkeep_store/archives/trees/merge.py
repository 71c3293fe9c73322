"""Stacked archives and trees, read as one.

The uppermost comes first and hides names of those below, so each is read once, as a stream; memory holds only the names
of the layers above the lowest. A file whose name is hidden is stored under another of its hard links.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from sandkeep_store.archives.tar import whiteouts
from sandkeep_store.archives.tar.hardlinks import HardLinks
from sandkeep_store.archives.tar.members import TOP, Member
from sandkeep_store.archives.trees.tree import Source

_NAMED, _CLOSED, _PART = 1, 2, 4
"""Flags of a name in the layers above: present; closed (nothing below is visible in it); a parent of other names."""

_MOST_FOUND: Final = 50_000
"""Of so many directories it is remembered whether they are closed."""


class Layer(Struct, frozen=True, kw_only=True):
    """One of the stacked layers. With `marks`, its names may be whiteouts. It deletes `gone`, names that end with a
    slash for opaque directories.
    """

    source: Source
    links: HardLinks
    marks: bool = False
    gone: Sequence[bytes] = ()


class HiddenNames:
    """The names in the layers above, and the names below that they hide."""

    def __init__(self) -> None:
        self._above: dict[bytes, int] = {}
        self._here: dict[bytes, int] = {}
        self._found: dict[bytes, bool] = {}

    def is_visible(self, name: bytes, *, directory: bool) -> bool:
        """Return True if this name is visible in the present layer."""
        if not self._above:
            return True
        known = self._above.get(name, 0)
        return not (known & _NAMED or (known & _PART and not directory) or self.is_closed(name))

    def is_closed(self, name: bytes) -> bool:
        """Return True if a parent of this name hides everything below it."""
        passed: list[bytes] = []
        closed = False
        while name != TOP and not closed:
            name = name.rpartition(b"/")[0] or TOP
            if name in self._found:
                closed = self._found[name]
                break
            passed.append(name)
            closed = bool(self._above.get(name, 0) & _CLOSED)
        if len(self._found) > _MOST_FOUND:
            self._found = {}
        self._found.update(dict.fromkeys(passed, closed))
        return closed

    def take(self, name: bytes, known: int) -> None:
        """Take note of a name for the layers below."""
        self._here[name] = self._here.get(name, 0) | known
        while name != TOP:
            name = name.rpartition(b"/")[0] or TOP
            if self._here.get(name, 0) & _PART:
                return
            self._here[name] = self._here.get(name, 0) | _PART

    def go_down(self) -> None:
        """Apply the names noted in this layer to the next one below."""
        for name, known in self._here.items():
            self._above[name] = self._above.get(name, 0) | known
        self._here, self._found = {}, {}


class LayerStack:
    """The layers, uppermost first, as one source. Deletions that no lower layer needs are omitted."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._hidden = HiddenNames()
        self._with_data: Source | None = None

    def __iter__(self) -> Iterator[Member]:
        for layer in self._layers:
            is_last = layer is self._layers[-1]
            chosen: dict[int, bytes] = {}
            for gone in layer.gone:
                self._take_gone(gone)
            for member in layer.source:
                if self._shows(member, layer, chosen, is_last=is_last):
                    self._with_data = layer.source
                    yield member
            self._hidden.go_down()

    def data(self) -> Iterator[memoryview]:
        """See `Source`."""
        return iter(()) if self._with_data is None else self._with_data.data()

    def _shows(self, member: Member, layer: Layer, chosen: dict[int, bytes], *, is_last: bool) -> bool:
        """Return True if a member is visible, and note the names below that it hides."""
        name, is_directory = member.name, member.kind == "directory"
        gone = whiteouts.deleted_path(name) if layer.marks else None
        if gone is not None:
            self._take_gone(gone)
            return False
        shows = self._hidden.is_visible(name, directory=is_directory)
        if not is_last:
            self._hidden.take(name, _NAMED if is_directory else _NAMED | _CLOSED)
        if group := layer.links.of(name):
            shows = self._rename_to_visible(member, group, chosen)
        return shows

    def _take_gone(self, gone: bytes) -> None:
        if gone.endswith(b"/"):
            self._hidden.take(gone[:-1], _CLOSED)
        else:
            self._hidden.take(gone, _NAMED | _CLOSED)

    def _rename_to_visible(self, member: Member, group: list[bytes], chosen: dict[int, bytes]) -> bool:
        """Give a file with several names one that shows, and have links lead there. Whether it is there at all then."""
        name = member.name
        if member.kind != "hard link":
            shown = [other for other in (name, *group) if self._hidden.is_visible(other, directory=False)]
            if not shown:
                return False
            member.name = chosen[id(group)] = shown[0]
            return True
        first = chosen.get(id(group))
        if first is None or first == name or not self._hidden.is_visible(name, directory=False):
            return False
        member.target = first
        return True

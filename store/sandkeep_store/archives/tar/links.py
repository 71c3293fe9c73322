"""Resolution of an archive's symbolic links through each other, from the archive alone."""

from typing import Final

from sandkeep_store.archives.tar.members import corrupt, shown

MAX_LINK_BYTES: Final = 64 << 20
"""Maximum memory for the links of one archive, in bytes."""
_LINK_BYTES: Final = 300
"""Memory per link beside its name and target, in bytes."""
_PART_BYTES: Final = 150
"""Memory per directory that holds a link, in bytes."""

_MOST_HOPS: Final = 40
"""So many links the kernel follows for one path."""
_MOST_STEPS: Final = 10_000_000

_TOP: Final = 0


class Links:
    """Symbolic links by name. Their directories are numbered, so that a step costs the same in any depth."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, bytes], int] = {}
        self._targets: dict[int, bytes] = {}
        self._names: dict[bytes, int] = {}
        self._bytes = self._steps = 0

    def add(self, name: bytes, target: bytes) -> None:
        """Take one more; one of the same name is replaced. Raises `snapshot_corrupt` when they are too many."""
        place = _TOP
        for part in name.split(b"/"):
            key = (place, part)
            if key not in self._places:
                self._places[key] = len(self._places) + 1
                self._bytes += _PART_BYTES + len(part)
            place = self._places[key]
        self._names[name] = place
        self._targets[place] = target
        self._bytes += _LINK_BYTES + len(name) + len(target)
        if self._bytes > MAX_LINK_BYTES:
            raise corrupt("cannot be extracted: it has more symbolic links than can be checked", name)

    def target(self, name: bytes) -> bytes:
        """Return the target of a link that was added."""
        return self._targets[self._names[name]]

    def check(self) -> None:
        """Raise `snapshot_corrupt` when one leads out."""
        for name, place in self._names.items():
            if self._leads_out(name, self._targets[place]):
                target = shown(self._targets[place])
                message = (
                    f"is not safe to extract: the symbolic link {shown(name)} leads to {target}, out of the archive"
                )
                raise corrupt(f"{message}: make it a relative one to something inside, or leave it out", name)

    def _leads_out(self, name: bytes, target: bytes) -> bool:
        """Return True if following a link leaves the top. A name not in the archive is never a link: the archive is
        extracted into an empty directory.
        """
        if target.startswith(b"/"):
            return True
        path = self._walked(name)
        to_go = target.split(b"/")[::-1]
        hops = 0
        while to_go:
            self._count_step()
            part = to_go.pop()
            if part in (b"", b"."):
                continue
            if part == b"..":
                if len(path) == 1:
                    return True
                path.pop()
                continue
            place = self._places.get((path[-1], part), -1)
            further = self._targets.get(place)
            if further is None:
                path.append(place)
            elif further.startswith(b"/"):
                return True
            elif (hops := hops + 1) > _MOST_HOPS:
                return False  # a circle
            else:
                to_go += further.split(b"/")[::-1]
        return False

    def _walked(self, name: bytes) -> list[int]:
        """The directories above a link, from the top; -1 stands for those that hold none."""
        path = [_TOP]
        for part in name.split(b"/")[:-1]:
            path.append(self._places[path[-1], part])
        return path

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise corrupt("cannot be extracted: its symbolic links lead through each other without end")

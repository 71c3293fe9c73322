"""Places of the daemon and of its sandboxes in the tree of control groups.

A service with ``Delegate=yes`` owns the tree below its unit's group. In version 2 of the interface a group that hands
controllers on to its children may hold no process itself, and systemd puts the main process of a unit that is started
again into the unit's own group: if that hands controllers on, and old sandboxes keep it doing so, the kernel refuses
(EBUSY) and the service cannot start until every sandbox has ended. So sandboxes never make the daemon's own unit hand
controllers on, unless systemd promises to start it in a leaf:

``sandkeep-sandboxes.service/sandboxes/<log>.<id>``
    when that unit, which only holds the place, is there beside the daemon's. It is how the units are shipped.
``<unit>/sandboxes/<log>.<id>``, the daemon in ``<unit>/daemon``
    in version 1, which has no such rule; in version 2 when systemd started the daemon in ``<unit>/daemon`` itself
    (``DelegateSubgroup=daemon``, systemd 254), or in a scope of its own, which is never started again
    (``systemd-run --user --scope --property=Delegate=yes``).
``<own group>/sandkeep/<log>.<id>``
    when nothing was delegated: the daemon was started by hand. Nothing is moved.

`settle` moves; everything else only looks. Groups of sandboxes that exist are on record by path, wherever they are.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

ROOT: Final = "/sys/fs/cgroup"
CONTROLLERS: Final = ("pids", "memory", "cpu", "cpuacct", "blkio", "io", "freezer")
"""Controllers that limit or count usage, and the freezer. Version 2 has no ``cpuacct``, has ``io`` for ``blkio``, and
freezes every group without a controller.
"""

LEAF: Final = "daemon"
SANDBOXES: Final = "sandboxes"
SANDBOXES_UNIT: Final = "sandkeep-sandboxes.service"
"""The unit whose group is the sandboxes' when it is there beside the daemon's unit."""

_MARKS: Final = ("trusted.delegate", "user.delegate")
"""Attributes by which the system's systemd marks a delegated group. Only root may read the first."""

logger: Final = logging.getLogger("sandkeepd")


def membership() -> str:
    """In which groups this process is."""
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        return file.read()


def settle(root: str = ROOT, member_of: str | None = None, environ: Mapping[str, str] = os.environ) -> None:
    """Move this process into a leaf of its unit's groups and make the sandboxes' parent. To be called once, before
    other uses.

    Only the main process of a systemd unit, or the only one of a scope, in a group that was delegated to it, is moved.
    Failures are logged and weaken limits: see `Hierarchies.has`.
    """
    groups = parse(membership() if member_of is None else member_of)
    unit, in_leaf = _unit_of(groups.get("name=systemd") or groups.get("", ""))
    if not any(_is_delegated(f"{top}{unit}") for top in (root, f"{root}/unified", f"{root}/systemd")):
        return
    is_own_scope = unit.endswith(".scope") and _is_alone(f"{root}{unit}")
    if not is_own_scope and environ.get("SYSTEMD_EXEC_PID") != str(os.getpid()):
        return
    for name in CONTROLLERS:
        if groups.get(name) in (unit, f"{unit}/{LEAF}"):
            with _logged_failure():
                _enter_leaf(f"{root}/{name}{unit}")
    if os.path.exists(f"{root}{unit}/cgroup.controllers"):
        with _logged_failure():
            _settle_v2(f"{root}{unit}", in_leaf or is_own_scope)


def sandboxes_parent_v1(own: str) -> str:
    """The directory in which groups of sandboxes are made by a process in the group `own`, by version 1's rules."""
    unit, in_leaf = _unit_of(own)
    made = f"{unit}/{SANDBOXES}"
    return made if in_leaf and os.path.isdir(made) else f"{own}/sandkeep"


def sandboxes_parent_v2(own: str) -> tuple[str, list[str]]:
    """The same by version 2's rules, and the controllers that can be had there."""
    unit, in_leaf = _unit_of(own)
    if in_leaf:
        for place in (_beside(unit), unit):
            made = f"{place}/{SANDBOXES}"
            if os.path.isdir(made):
                return made, read(f"{made}/cgroup.controllers").split()
    return f"{own}/sandkeep", read(f"{own}/cgroup.subtree_control").split()


def controllers(group: str) -> list[str]:
    """Return our controllers that a group of version 2 has; none if there is no such directory."""
    enabled = read(f"{group}/cgroup.controllers").split()
    return [name for name in CONTROLLERS if name in enabled]


def parse(member_of: str) -> dict[str, str]:
    """The text of ``/proc/PID/cgroup`` as controller -> group; version 2's has no name."""
    groups: dict[str, str] = {}
    for line in member_of.splitlines():
        _, names, path = line.split(":", 2)
        groups.update(dict.fromkeys(names.split(","), path.rstrip("/")))
    return groups


def _unit_of(group: str) -> tuple[str, bool]:
    """The unit's group for a process in `group`, and whether that is the leaf already."""
    unit, _, name = group.rpartition("/")
    return (unit, True) if name == LEAF else (group, False)


def _beside(unit: str) -> str:
    return f"{os.path.dirname(unit)}/{SANDBOXES_UNIT}"


def _is_delegated(group: str) -> bool:
    for mark in _MARKS:
        with suppress(OSError):
            if os.getxattr(group, mark) == b"1":
                return True
    # A user's systemd marks none. Its units' groups belong to the user, as the whole tree was delegated to it.
    uid = os.geteuid()
    with suppress(OSError):
        return uid != 0 and os.stat(f"{group}/cgroup.procs").st_uid == uid and bool(controllers(group))
    return False


def _is_alone(group: str) -> bool:
    """Tell if this process is the only one in a group: no program that the user runs beside it is in the way."""
    return read(f"{group}/cgroup.procs").split() == [str(os.getpid())]


@contextmanager
def _logged_failure() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        logger.warning("the daemon's place among control groups could not be taken", extra={"why": str(error)})


def _enter_leaf(unit: str) -> None:
    """Put this process into the leaf, and make the place beside it."""
    for name in (LEAF, SANDBOXES):
        os.makedirs(f"{unit}/{name}", exist_ok=True)
    write(f"{unit}/{LEAF}/cgroup.procs", str(os.getpid()))


def _settle_v2(unit: str, in_leaf: bool) -> None:
    os.makedirs(f"{unit}/{LEAF}", exist_ok=True)
    write(f"{unit}/{LEAF}/cgroup.procs", str(os.getpid()))
    place = _beside(unit)
    if _is_delegated(place):
        _delegate_controllers(place)
    elif in_leaf:
        _delegate_controllers(unit)
    else:
        logger.warning(
            "sandboxes get no control groups, as the unit could not be restarted under them",
            extra={"unit": os.path.basename(unit), "remedy": f"start {SANDBOXES_UNIT}, or set DelegateSubgroup={LEAF}"},
        )


def _delegate_controllers(unit: str) -> None:
    """Delegate a unit's controllers to the sandboxes' parent group."""
    os.makedirs(f"{unit}/{SANDBOXES}", exist_ok=True)
    for name in controllers(unit):
        write(f"{unit}/cgroup.subtree_control", f"+{name}")


def read(path: str) -> str:
    """Return the content of one of the kernel's files; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def write(path: str, text: str) -> None:
    """Write to one of the kernel's files, which takes a value in one piece. Raises OSError."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)

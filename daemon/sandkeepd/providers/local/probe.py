"""The local provider's capabilities on this machine, found by trying each once."""

import os
import shutil
import tempfile
from contextlib import ExitStack
from typing import Final

from msgspec import Struct

from sandkeep.model import Capability
from sandkeep.system.descriptors import closing_fd
from sandkeepd.host import mounts, seccomp
from sandkeepd.host.processes import in_fresh_thread, run_tool
from sandkeepd.keeper import program
from sandkeepd.providers.common.capabilities import capability
from sandkeepd.providers.common.errors import stderr_of


class Abilities(Struct, frozen=True, kw_only=True):
    """The probed abilities.

    `overlay` includes the mapping of the image's owner; `files` follows from the rest.
    """

    bubblewrap: Capability
    overlay: Capability
    reflink: Capability
    no_nested_userns: Capability
    seccomp: Capability

    @property
    def files(self) -> str:
        """The way in which an image's files become a sandbox's own."""
        if self.overlay.works:
            return "overlay"
        return "reflink" if self.reflink.works else "copy"


def probe(directory: str, image_uid: int, root: bool) -> Abilities:
    """Try everything, in a directory on the filesystem of the sandboxes. Blocks for some tens of milliseconds."""
    place = tempfile.mkdtemp(prefix="probe-", dir=directory)
    try:
        for name in ("lower", "upper", "work", "mount"):
            os.mkdir(f"{place}/{name}")
        with open(f"{place}/lower/file", "w", encoding="ascii") as file:
            file.write("probe")
        filtered = _seccomp(image_uid, root)
        return Abilities(
            bubblewrap=Capability(works=True) if filtered.works else _bubblewrap(image_uid, root),
            seccomp=filtered,
            overlay=_root_overlay(place, image_uid) if root else _user_overlay(place),
            reflink=_reflink(place),
            no_nested_userns=_no_nested_userns(),
        )
    finally:
        run_tool(["chmod", "-R", "u+rwx", "--", place])
        shutil.rmtree(place, ignore_errors=True)


def _no_nested_userns() -> Capability:
    works = _has_bwrap() and b"--disable-userns" in run_tool(["bwrap", "--help"], timeout_s=20).stdout
    return capability(works, "bubblewrap is older than 0.8: code inside can make user namespaces of its own")


def _has_bwrap() -> bool:
    return shutil.which("bwrap") is not None


def _seccomp(image_uid: int, root: bool) -> Capability:
    """Try bubblewrap with the filter. Where that works, it works without."""
    why = program.why_missing() or seccomp.why_missing() or ("" if _has_bwrap() else "bwrap is missing")
    if why:
        return Capability(works=False, why=f"system calls are not filtered: {why}")
    with closing_fd(seccomp.open_program()) as fd:
        done = run_tool([*_enter(image_uid, root), *_BWRAP, "--seccomp", "0", "true"], timeout_s=20, stdin=fd)
    return capability(done.returncode == 0, f"system calls are not filtered: {stderr_of(done)}")


_COPIES: Final = "every sandbox gets a copy of its image"
_PROGRAMS: Final = ("/usr", "/bin", "/lib", "/lib64", "/nix/store")
_BWRAP: Final = ("bwrap", "--unshare-all", *(word for path in _PROGRAMS for word in ("--ro-bind-try", path, path)))
"""Without the mounts of the whole root: bwrap fails if a container's goes while it looks."""


def _enter(image_uid: int, root: bool) -> list[str]:
    return ["setpriv", "--reuid", str(image_uid), "--regid", str(image_uid), "--clear-groups"] if root else []


def _bubblewrap(image_uid: int, root: bool) -> Capability:
    if why := program.why_missing() or ("" if _has_bwrap() else "bwrap is missing: install the package bubblewrap"):
        return Capability(works=False, why=why)
    done = run_tool([*_enter(image_uid, root), *_BWRAP, "true"], timeout_s=20)
    return capability(done.returncode == 0, f"bwrap does not work here: {stderr_of(done)}: allow user namespaces")


def _root_overlay(place: str, image_uid: int) -> Capability:
    def attempt() -> None:
        mounts.enter_private_namespace()
        mounts.mount_scratch(f"{place}/mount")
        for name in ("image", "workspace"):
            os.mkdir(f"{place}/mount/{name}")
        mounts.bind_mapped([(f"{place}/lower", f"{place}/mount/image", image_uid)], image_uid + 1)
        with ExitStack() as opened:  # an open descriptor would keep this namespace
            places = [mounts.open_path(f"{place}/{name}") for name in ("mount/image", "upper", "work")]
            for fd in places:
                opened.callback(os.close, fd)
            lower, upper, work = map(mounts.at, places)
            mounts.overlay(lower, upper, work, f"{place}/mount/workspace")

    try:
        in_fresh_thread(attempt)
    except (OSError, ValueError) as error:
        return Capability(works=False, why=f"{error}: {_COPIES}")
    return Capability(works=True)


def _user_overlay(place: str) -> Capability:
    options = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work,userxattr"
    mounting = ["mount", "-t", "overlay", "-o", options, "sandkeep", f"{place}/mount"]
    done = run_tool(["unshare", "--user", "--map-root-user", "--mount", "--", *mounting], timeout_s=20)
    return capability(done.returncode == 0, f"{stderr_of(done)}: {_COPIES}")


def _reflink(place: str) -> Capability:
    done = run_tool(["cp", "--reflink=always", "--", f"{place}/lower/file", f"{place}/clone"])
    return capability(done.returncode == 0, "the state directory's filesystem cannot share blocks between files")

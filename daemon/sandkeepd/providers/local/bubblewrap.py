"""Arguments of bubblewrap: the complete view of a local sandbox."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from sandkeep.system import hostview
from sandkeepd.providers.common.inside import HOME, INSIDE, WORKSPACE, environment, marks

_FROM_HOST: Final = ("/usr", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/certs")
_ETC: Final = ("passwd", "group", "hosts", "resolv.conf", "nsswitch.conf")


class View(Struct, frozen=True, kw_only=True):
    """The parameters of bubblewrap's arguments.

    `workspace`, `in_dir` and `out_dir` are the paths of these directories for bubblewrap. With `close_userns` the code
    inside can make no user namespaces, in which it would reach more of the kernel than it needs. `seccomp_fd` is the
    descriptor of the system call filter for bubblewrap.
    """

    sandbox_id: str
    log_id: str
    workspace: str
    in_dir: str
    out_dir: str
    uid: int
    gid: int
    host_network: bool
    read_only: bool
    scratch_bytes: int
    guard_out: bool = False
    close_userns: bool = False
    seccomp_fd: int | None = None


def arguments(view: View, info_fd: int) -> list[str]:
    """Return bubblewrap's arguments, without the program to run.

    The root is a tmpfs without a size, so it is made read-only at the end; writable places have a size or lie on the
    disk. Parents that bubblewrap makes by itself would be closed to others than their owner, hence the ``--dir``.
    """
    return [
        "--unshare-user", *(["--disable-userns"] if view.close_userns else []), "--uid", str(view.uid),
        "--gid", str(view.gid), "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try",
        *([] if view.host_network else ["--unshare-net"]), "--hostname", view.sandbox_id[:63],
        "--as-pid-1", "--new-session", "--cap-drop", "ALL", "--clearenv",
        *_variables(view), *_etc(view), *hostview.bind_arguments(_FROM_HOST), *_scratch(view), *_shared(view),
        "--remount-ro", "/", "--chdir", "/", "--info-fd", str(info_fd),
        *(["--seccomp", str(view.seccomp_fd)] if view.seccomp_fd is not None else []),
    ]  # fmt: skip


def _variables(view: View) -> Iterator[str]:
    for name, value in {**environment(view.sandbox_id), **marks(view.sandbox_id, view.log_id)}.items():
        yield from ("--setenv", name, value)


def _etc(view: View) -> Iterator[str]:
    yield from ("--perms", "0755", "--dir", "/etc")
    for name in _ETC:
        yield from ("--ro-bind", f"{view.in_dir}/.etc/{name}", f"/etc/{name}")


def _scratch(view: View) -> Iterator[str]:
    yield from ("--proc", "/proc", "--dev", "/dev")
    for place, mode in (("/dev/shm", "1777"), ("/tmp", "1777"), (HOME, "0755")):  # noqa: S108 - inside
        if place == HOME:
            yield from ("--perms", "0755", "--dir", "/home")
        yield from ("--perms", mode, "--size", str(view.scratch_bytes), "--tmpfs", place)
    yield from ("--remount-ro", "/dev", "--perms", "0755", "--dir", "/var", "--symlink", "../tmp", "/var/tmp")  # noqa: S108


def _shared(view: View) -> Iterator[str]:
    yield from ("--ro-bind" if view.read_only else "--bind", view.workspace, WORKSPACE)
    yield from ("--perms", "0755", "--dir", "/run", "--perms", "0755", "--dir", INSIDE)
    yield from ("--ro-bind", view.in_dir, f"{INSIDE}/in")
    if not view.guard_out:
        yield from ("--bind", view.out_dir, f"{INSIDE}/out")
        return
    # Where the code inside has the uid that owns `out`, mounts keep it from replacing the entries there.
    yield from ("--ro-bind", view.out_dir, f"{INSIDE}/out")
    for name in ("p", "exits"):
        yield from ("--bind", f"{view.out_dir}/{name}", f"{INSIDE}/out/{name}")

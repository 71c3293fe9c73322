"""What systemd does to a service, as far as it can be done without systemd: run as a program, it becomes the service.

``python unit.py SETTINGS COMMAND…`` takes the place of the manager's child between fork and exec. SETTINGS is JSON:
`sockets`, descriptors that become 3, 4, …; `names` of these; `groups` to be in; `directives` of a unit's [Service]
section, of which those that are understood are applied in systemd's order. The variables that hold the process's id are
set last.
"""

import ctypes
import fcntl
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

PR_SET_NO_NEW_PRIVS = 38
SCMP_ACT_ALLOW, SCMP_ACT_ERRNO, EPERM, EAFNOSUPPORT = 0x7FFF0000, 0x00050000, 1, 97
SCMP_CMP_NE, SCMP_CMP_LT, SCMP_CMP_GT, SCMP_CMP_EQ, SCMP_CMP_MASKED_EQ = 1, 2, 6, 4, 7
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
REALTIME = (1, 2, 6)  # SCHED_FIFO, SCHED_RR, SCHED_DEADLINE


def directives(unit: Path) -> dict[str, list[str]]:
    """The [Service] section: directive -> words, of all its lines together."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in unit.read_text().splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).extend(value.split())
    return found


class Comparison(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


class Filter:
    """A seccomp filter that allows what no rule forbids."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libseccomp.so.2")
        self.lib.seccomp_init.restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(self.lib.seccomp_init(SCMP_ACT_ALLOW))

    def forbid(self, call: str, errno: int, *comparisons: Comparison) -> None:
        number = self.lib.seccomp_syscall_resolve_name(call.encode())
        array = (Comparison * len(comparisons))(*comparisons)
        if number >= 0:  # others are of other machines
            done = self.lib.seccomp_rule_add_array(
                self.context, SCMP_ACT_ERRNO | errno, number, len(comparisons), array
            )
            assert done == 0, (call, done)

    def load(self) -> None:
        assert self.lib.seccomp_load(self.context) == 0


def calls_of(group: str) -> list[str]:
    text = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True)
    words = [line.strip() for line in text.stdout.splitlines() if line.startswith("    ")]
    return [word for word in words if not word.startswith(("#", "@"))]


def restrict_calls(wanted: dict[str, list[str]]) -> None:
    calls = Filter()
    for word in wanted.get("SystemCallFilter", []):
        for call in calls_of("@" + word.strip("~@")):
            calls.forbid(call, EPERM)
    if "RestrictAddressFamilies" in wanted:
        allowed = {FAMILIES[name] for name in wanted["RestrictAddressFamilies"]}
        for family in set(range(max(allowed))) - allowed:
            calls.forbid("socket", EAFNOSUPPORT, Comparison(0, SCMP_CMP_EQ, family, 0))
        calls.forbid("socket", EAFNOSUPPORT, Comparison(0, SCMP_CMP_GT, max(allowed), 0))
    if wanted.get("RestrictRealtime") == ["yes"]:
        for policy in REALTIME:
            calls.forbid("sched_setscheduler", EPERM, Comparison(1, SCMP_CMP_EQ, policy, 0))
    calls.load()


def apply(wanted: dict[str, list[str]], command: list[str]) -> list[str]:
    """Apply what this process can have applied to itself; answer the command with what a tool must do before it."""
    for name, value in wanted.items():
        if name == "LimitNOFILE":
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # systemd may raise it, and a test may not
            limit = int(value[0]) if most == resource.RLIM_INFINITY else min(int(value[0]), most)
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        elif name == "UMask":
            os.umask(int(value[0], 8))
    if wanted.get("NoNewPrivileges") == ["yes"]:
        assert ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    if {"SystemCallFilter", "RestrictAddressFamilies", "RestrictRealtime"} & set(wanted):
        restrict_calls(wanted)
    if "CapabilityBoundingSet" in wanted:
        kept = ",".join("+" + name.removeprefix("CAP_").lower() for name in wanted["CapabilityBoundingSet"])
        return ["setpriv", f"--bounding-set=-all,{kept}", "--inh-caps=-all", "--", *command]
    return command


def main() -> None:
    settings = json.loads(sys.argv[1])
    for group in settings.get("groups", []):
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    command = apply(settings.get("directives", {}), sys.argv[2:])
    sockets = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in settings.get("sockets", [])]  # out of the way of 3, 4, …
    if sockets:
        for place, fd in enumerate(sockets, start=3):
            os.dup2(fd, place, inheritable=True)
        os.environ |= {"LISTEN_FDS": str(len(sockets)), "LISTEN_FDNAMES": ":".join(settings["names"])}
        os.environ["LISTEN_PID"] = str(os.getpid())
    os.environ["SYSTEMD_EXEC_PID"] = str(os.getpid())
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()

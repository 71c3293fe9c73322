"""The seccomp filter of sandboxes: for bubblewrap as a BPF program, for Docker as a profile in JSON.

Both are made of `profile.toml`, which names its origin and the differences; ``scripts/build-seccomp`` compiles the
programs.
"""

import json
import os
import tomllib
from functools import cache
from typing import Any, Final

_PLACE: Final = os.path.dirname(__file__)
_MACHINE: Final = os.uname().machine
_PROGRAM: Final = f"{_PLACE}/filter.{_MACHINE}"
_EPERM, _ENOSYS = 1, 38


def why_missing() -> str | None:
    """Return the reason why this machine has no filter; None if there is one."""
    if not os.path.isdir("/proc/sys/kernel/seccomp"):
        return "this kernel has no filters of system calls"
    if os.path.exists(_PROGRAM):
        return None
    return f"there is no filter for {_MACHINE} machines: name it in profile.toml and run scripts/build-seccomp"


def open_program() -> int:
    """A descriptor of the BPF program, as bubblewrap reads it. Raises OSError."""
    return os.open(_PROGRAM, os.O_RDONLY | os.O_CLOEXEC)


@cache
def docker_profile() -> str | None:
    """The profile in the engine's format; None for a machine that it does not name."""
    with open(f"{_PLACE}/profile.toml", "rb") as file:
        profile = tomllib.load(file)
    machine = profile["machine"].get(_MACHINE)
    if machine is None:
        return None
    calls = [
        {"names": [*profile["allow"], *machine["allow"]], "action": "SCMP_ACT_ALLOW"},
        {"names": profile["refuse"], "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM},
        *(
            {"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": number}
            for name, number in profile["answers"].items()
        ),
        *_conditional(profile),
    ]
    return json.dumps(
        {
            "defaultAction": "SCMP_ACT_ERRNO",
            "defaultErrnoRet": _ENOSYS,  # engines before 23.0 pass over this and answer EPERM
            "architectures": [f"SCMP_ARCH_{name}" for name in machine["architectures"]],
            "syscalls": calls,
        }
    )


def _conditional(profile: dict[str, Any]) -> list[dict[str, Any]]:
    rules = []
    for name, rule in profile["values"].items():
        rules += [_rule(name, rule["argument"], "EQ", value) for value in rule["equal"]]
        if "below" in rule:
            rules.append(_rule(name, rule["argument"], "LT", rule["below"]))
    for name, rule in profile["clear"].items():
        rules.append(_rule(name, rule["argument"], "MASKED_EQ", rule["bits"]))
    return rules


def _rule(name: str, argument: int, comparison: str, value: int) -> dict[str, Any]:
    condition = {"index": argument, "value": value, "valueTwo": 0, "op": f"SCMP_CMP_{comparison}"}
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": [condition]}

"""The settings of the gVisor provider, for the administrator. See `settings` for the manner.

The names and meanings of the ``RUNSC_*`` and of ``GVISOR_LOG_PACKETS`` are those of cloud-run-sandbox.
"""

import os
import re
from typing import Final

from sandkeep.settings.daemon import Setting, parse_switch

_WORD: Final = re.compile(r"[a-z][a-z0-9-]{0,30}")


def _directory(text: str) -> str:
    if not text.startswith("/") or "\0" in text:
        raise ValueError("give an absolute path")
    return os.path.normpath(text)


def _platform(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise ValueError("give the name of a platform that runsc has, such as ptrace, systrap or kvm")
    return text


def _absent() -> str | None:
    return None


PLATFORM = Setting(
    "RUNSC_PLATFORM",
    _platform,
    lambda: "ptrace",
    "ptrace",
    "How gVisor has the code of sandboxes run: `ptrace`, which works everywhere; or what else `runsc` has.",
)
IGNORE_CGROUPS = Setting(
    "RUNSC_IGNORE_CGROUPS",
    parse_switch,
    lambda: True,
    "1",
    "Whether `runsc` leaves control groups alone. Sandkeep puts it into groups of its own either way.",
)
USE_SUDO = Setting(
    "RUNSC_USE_SUDO",
    parse_switch,
    lambda: False,
    "0",
    "Whether a user's daemon starts `runsc` by `sudo -n`. Only `0` is supported: have the daemon run as root.",
)
ROOTLESS = Setting(
    "RUNSC_ROOTLESS",
    parse_switch,
    lambda: False,
    "0 for root's daemon; a user's is always rootless",
    "Whether `runsc` is to need no rights of root's.",
)
DISABLE_NETWORKING = Setting(
    "RUNSC_DISABLE_NETWORKING",
    parse_switch,
    lambda: False,
    "0",
    "Whether no gVisor sandbox gets a network, whatever is asked for.",
)
READONLY_FILESYSTEM = Setting(
    "RUNSC_READONLY_FILESYSTEM",
    parse_switch,
    lambda: False,
    "0",
    "Whether no gVisor sandbox can write to its files, as with `create --read-only`.",
)
ROOT_DIR_BASE = Setting[str | None](
    "RUNSC_ROOT_DIR_BASE",
    _directory,
    _absent,
    "`gvisor` in SANDKEEP_STATE_DIR",
    "The directory in which `runsc` keeps its state, in `runsc_root_SANDBOX`.",
)
BUNDLE_DIR_BASE = Setting[str | None](
    "RUNSC_BUNDLE_DIR_BASE",
    _directory,
    _absent,
    "`gvisor` in SANDKEEP_STATE_DIR",
    "The directory of the bundles, `runsc_bundle_SANDBOX`, with what a suspended sandbox is brought back from.",
)
DEBUG_LOG_DIR = Setting[str | None](
    "RUNSC_DEBUG_LOG_DIR",
    _directory,
    _absent,
    "none",
    "The directory for what `runsc --debug` tells, in one of its own for each sandbox.",
)
STRACE = Setting(
    "RUNSC_STRACE",
    parse_switch,
    lambda: False,
    "0",
    "Whether the system calls of sandboxes are told there, too.",
)
LOG_PACKETS = Setting(
    "GVISOR_LOG_PACKETS",
    parse_switch,
    lambda: False,
    "0",
    "Whether their packets are.",
)
